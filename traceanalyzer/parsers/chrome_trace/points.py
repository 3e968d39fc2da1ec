"""Combine events: begin and end events to slices, flow points to arrows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames.linking import enclosing
from traceanalyzer.frames.numbering import group_numbers, numbered
from traceanalyzer.parsers.chrome_trace.columns import NO_TEXT, Collected, Ints, text_series
from traceanalyzer.parsers.chrome_trace.decode import NULL

_BEGIN, _INSTANT = frozenset("BbS"), frozenset("nTp")

_LANE = ["pid", "tid"]
_PHASES = pl.Series(("start", "step", "end"), dtype=schema.FLOW_PHASE)
_PHASE_CODE = np.zeros(256, dtype=np.uint8)
_PHASE_CODE[[ord("s"), ord("t"), ord("f")]] = 0, 1, 2


@dataclass
class Paired:
    """Slices from begin and end events.

    Attributes:
        begin: row of each slice's begin event.
        end: row of its end event, or -1.
        asynchronous: whether it is an async slice, not a B/E pair.
        issues: issue counts.
    """

    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    asynchronous: list[bool] = field(default_factory=list)
    issues: dict[str, int] = field(default_factory=dict)

    def add(self, begin: int, end: int, *, asynchronous: bool) -> None:
        """Add a slice by the rows of its two events."""
        self.begin.append(begin)
        self.end.append(end)
        self.asynchronous.append(asynchronous)

    def count(self, code: str) -> None:
        """Count an issue."""
        self.issues[code] = self.issues.get(code, 0) + 1


class _Open:
    """The open slices of one lane, innermost last, and by name, so that no end scans them all."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.by_name: dict[tuple[int, ...], list[int]] = {}
        self.closed: set[int] = set()
        self.strays: list[int] = []

    def begin(self, row: int, *names: tuple[int, ...]) -> None:
        """Open a slice; an end with any of these names may close it."""
        self.rows.append(row)
        for name in names:
            self.by_name.setdefault(name, []).append(row)

    def innermost(self) -> int | None:
        """Return the innermost open slice, or None."""
        return self._top(self.rows)

    def named(self, *names: tuple[int, ...]) -> int | None:
        """Return the innermost slice of the first of these names that is open, or None."""
        rows = (self._top(self.by_name.get(name, [])) for name in names)
        return next((row for row in rows if row is not None), None)

    def end(self, row: int) -> None:
        """Close a slice."""
        self.closed.add(row)

    def left(self) -> list[int]:
        """Return the slices that were never closed."""
        return [row for row in self.rows if row not in self.closed]

    def _top(self, rows: list[int]) -> int | None:
        while rows and rows[-1] in self.closed:
            rows.pop()
        return rows[-1] if rows else None


def pair(phase: str, ts: Ints, name: Ints, pid: Ints, tid: Ints, key: Ints) -> Paired:
    """Match begin and end events by time, in file order for equal times.

    An end closes the innermost open slice of its name (preferably of its process), or the innermost
    slice if it has no name. Skipped slices stay open. An end without an open slice is matched after
    all others: to the innermost remaining slice before it, or to one of its name that begins at the
    same time. A slice that is never closed has no end; an end without a slice is dropped. Ends that
    do not match the innermost slice (async: any open slice), unclosed slices and dropped ends are
    counted.
    """
    paired = Paired()
    lanes: dict[tuple[int, ...], _Open] = {}
    names, pids, tids, keys = name.tolist(), pid.tolist(), tid.tolist(), key.tolist()
    for row in np.argsort(ts, kind="stable").tolist():
        what, is_async = phase[row], keys[row] != NO_TEXT
        lane = lanes.setdefault((keys[row],) if is_async else (pids[row], tids[row]), _Open())
        keys_of_name = (names[row], pids[row]), (names[row],)
        if what in _BEGIN:
            lane.begin(row, *keys_of_name)
        elif what in _INSTANT:
            paired.add(row, -1, asynchronous=True)
        elif (
            begin := lane.innermost() if names[row] == NO_TEXT else lane.named(*keys_of_name)
        ) is None:
            lane.strays.append(row)
        else:
            if begin != lane.innermost() and not is_async:
                paired.count("mismatched-end")
            lane.end(begin)
            paired.add(begin, row, asynchronous=is_async)
    for lane in lanes.values():
        _settle(lane, paired, ts, names, keys)
    return paired


def _settle(lane: _Open, paired: Paired, ts: Ints, names: list[int], keys: list[int]) -> None:
    """Match the unclosed slices and the ends without an open slice."""
    strays = set(lane.strays)
    left: list[int] = []
    # begins sort before ends of the same time: an end may precede its begin in the file
    for row in sorted([*lane.left(), *strays], key=lambda row: (ts[row], row in strays, row)):
        is_async = keys[row] != NO_TEXT
        if row not in strays:
            left.append(row)
        elif left and (left[-1] < row or names[left[-1]] == names[row]):
            paired.count("mismatched-end")
            paired.add(left.pop(), row, asynchronous=is_async)
        else:
            paired.count("unmatched-end")
    for row in left:
        paired.add(row, -1, asynchronous=keys[row] != NO_TEXT)
        paired.count("unclosed-begin")


def paired_columns(collected: Collected) -> tuple[Paired, dict[str, Ints]]:
    """Return the pairs of a file and the columns of their slices, in no particular order."""
    points = collected.points
    if not points.height:
        return Paired(), {}
    columns = {name: points.whole(name) for name in list(points.parts)}
    phase = columns.pop("phase").tobytes().decode()
    paired = pair(
        phase, columns["ts"], columns["name"], columns["pid"], columns["tid"], columns["key"]
    )
    begin, end = np.array(paired.begin, dtype=np.int64), np.array(paired.end, dtype=np.int64)
    slices = {
        name: columns[name][begin] for name in ("order", "ts", "category", "name", "pid", "tid")
    }
    slices["dur"] = np.where(end >= 0, columns["ts"][end] - slices["ts"], NULL)
    return paired, slices


# --- flows -----------------------------------------------------------------------------------


def flow_table(
    collected: Collected, texts: pl.Series, rank: int | None, slices: Mapping[str, Ints]
) -> pl.DataFrame:
    """Build ``flows``; ``slices`` has ts, dur, pid and tid of all rows of ``events``, in order.

    Points with the same (id, category, name) form an arrow. Starts, steps and ends with ``bp: "e"``
    are bound to the innermost slice around them, other ends to the next slice.
    """
    if not collected.flows.height:
        return schema.empty("flows")
    points = _flow_points(collected)
    first, arrow = numbered(points.select("id", "category", "name").get_columns())
    number = np.argsort(np.argsort(first)).astype(np.uint32)
    return pl.DataFrame(
        {
            "ts": points["ts"],
            "phase": _PHASES.gather(_PHASE_CODE[points["phase"].to_numpy()]),
            "category": text_series(points["category"].to_numpy(), texts),
            "name": text_series(points["name"].to_numpy(), texts),
            "flow": pl.Series(number[arrow]),
            "rank": pl.repeat(rank, points.height, dtype=pl.Int32, eager=True),
            "pid": points["pid"],
            "tid": points["tid"],
            "event": _bound(points, slices),
        }
    )


def _flow_points(collected: Collected) -> pl.DataFrame:
    """Return the flow points ordered by time, in file order for equal times."""
    flows = collected.flows
    columns = {name: flows.whole(name) for name in list(flows.parts)}
    columns["pid"] = np.where(columns["pid"] == NULL, 0, columns["pid"])
    columns["tid"] = np.where(columns["tid"] == NULL, columns["pid"], columns["tid"])
    columns["to_next"] = np.zeros(flows.height, dtype=bool)
    columns["to_next"][collected.at_next] = True
    points = pl.DataFrame(columns).sort("ts", "order", maintain_order=True)
    return points.drop("order")


def _bound(points: pl.DataFrame, slices: Mapping[str, Ints]) -> pl.Series:
    """Return the event row that each point is bound to, null for none.

    Usually the last slice that started before the point is still running; the nesting of slices is
    computed for the other points only.
    """
    at, is_next = points["ts"], points["to_next"]
    lanes = pl.DataFrame({name: slices[name] for name in _LANE})
    _, (of_point, of_slice) = group_numbers(_LANE, points, lanes)
    queries = pl.DataFrame({"ts": at, "lane": of_point.astype(np.int32)})
    lanes = pl.DataFrame({"ts": slices["ts"], "lane": of_slice.astype(np.int32)})
    lanes = lanes.with_row_index("event")
    before = queries.join_asof(lanes, on="ts", by="lane", check_sortedness=False)["event"]
    # the end of a slice is included: Kineto ends an arrow where its launch ended
    end = pl.Series(slices["ts"] + np.maximum(slices["dur"], 0) + 1)
    rows = (end.gather(before) <= at).fill_null(value=False) & ~is_next
    if rows.any():
        spans = lanes.select("lane", start="ts").with_columns(end=end)
        inside = enclosing(queries.filter(rows), spans, by=["lane"])["slice"]
        before = before.scatter(rows.arg_true(), inside)
    if not is_next.any():
        return before
    after = queries.join_asof(lanes, on="ts", by="lane", strategy="forward", check_sortedness=False)
    return after["event"].zip_with(is_next, before)
