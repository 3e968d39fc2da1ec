"""Rows of slices; begin and end events are combined to slices, flow points to arrows."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import polars as pl

from traceanalyzer import schema, vocabulary
from traceanalyzer.frames.linking import enclosing
from traceanalyzer.frames.numbering import group_numbers, numbered
from traceanalyzer.parsers.chrome_trace import decode
from traceanalyzer.parsers.chrome_trace.columns import (
    INPUTS,
    NO_TEXT,
    Collected,
    Collective,
    Ints,
    Issues,
    Rows,
    Slices,
    text_series,
)
from traceanalyzer.parsers.chrome_trace.decode import NO_ARGS, NULL, Args, Event, text_of
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.trace import overlaps
from traceanalyzer.vocabulary import kind_of_category

#: Returns the arguments' JSON text of every event of a piece.
RawArgs = Callable[[], list[msgspec.Raw]]

#: The name of Kineto's allocator events, which had no category before 2022.
MEMORY = "[memory]"
#: Kinds that follow from the phase, whatever the category.
PHASE_KINDS = {"P": "sample", "N": "object", "O": "object", "D": "object"}
#: Instants; a duration written by some tools is ignored.
_INSTANT_PHASES = frozenset("iIR")

_HOST_COLLECTIVE = re.compile(r"^(?:[nr]cclx?|[xmh]ccl|gloo|mpi|ucc):|^record_param_comms$|^c10d::")
_decode_list = msgspec.json.Decoder(list[Any]).decode


class Draft:
    """State while a batch is built: selection, text codes, issues."""

    def __init__(self, selection: Selection, offset: int, raw_args: RawArgs) -> None:
        self.selection = selection
        self.offset = offset
        self.raw_args = raw_args
        self.codes = decode.Codes()
        self.issues = Issues()

    def lose(self, code: str, count: int = 1) -> None:
        """Count events that could not be kept."""
        if count:
            self.issues.note(code, self.offset, count)

    def timed(
        self, events: list[Event], rows: list[int]
    ) -> tuple[list[Event], list[int], array[int]]:
        """Return the events and rows that have a time, and the times; count the others."""
        ts, bad = decode.nanoseconds([e.ts for e in events])
        self.lose("bad-time", bad)
        if not events or min(ts) != NULL:
            return events, rows, ts
        have = [i for i, value in enumerate(ts) if value != NULL]
        self.lose("no-time", len(events) - len(have) - bad)
        return [events[i] for i in have], [rows[i] for i in have], _take(ts, have)

    def fill(self, out: Rows, events: list[Event], rows: list[int], ts: array[int]) -> None:
        """Fill the columns that all types of events have."""
        out.columns["order"] = array("I", rows).tobytes()
        out.columns["ts"] = ts.tobytes()
        out.columns["category"] = self.codes.column([e.cat for e in events])
        out.columns["name"] = self.codes.column([e.name for e in events])
        set_ids(out, "pid", [e.pid for e in events])
        set_ids(out, "tid", [e.tid for e in events])

    def json_texts(self, rows: list[int]) -> list[str | None] | None:
        """Return the arguments' text of rows, if it is selected."""
        if "args" not in self.selection.columns:
            return None
        raw = self.raw_args()
        return [_json_text(raw[row]) for row in rows]


def set_ids(out: Rows, name: str, values: list[Any]) -> None:
    """Fill a column of ids."""
    out.columns[name], labels = decode.ids(values)
    if labels:
        out.labels[name] = labels


def slice_columns(draft: Draft, events: list[Event], rows: list[int]) -> Slices:
    """Return the columns of the selected events; ``rows`` are their numbers in the piece."""
    events, rows = _wanted(draft.selection, events, rows)
    if not events:
        return Slices()
    events, rows, ts = draft.timed(events, rows)
    dur, bad = decode.nanoseconds(
        [decode.ABSENT if e.ph in _INSTANT_PHASES else e.dur for e in events]
    )
    draft.lose("bad-duration", bad)
    if NULL in dur:
        draft.lose("no-duration", _without_duration(events, dur) - bad)
    if draft.selection.windows:
        keep = _inside(draft.selection.windows, ts, dur)
        events, rows = [events[i] for i in keep], [rows[i] for i in keep]
        ts, dur = _take(ts, keep), _take(dur, keep)
    args = [e.args if type(e.args) is Args else NO_ARGS for e in events]
    out = Slices(args=draft.json_texts(rows))
    draft.fill(out, events, rows, ts)
    out.columns["dur"] = dur.tobytes()
    out.columns["correlation"] = decode.integers([a.correlation for a in args])
    out.columns["external_id"] = decode.integers(
        [a.external_id if a.external_id != NULL else a.external_id_2021 for a in args]
    )
    on_device = _device_columns(out.columns, events, args)
    _collective_columns(out, events, args, on_device)
    if MEMORY in draft.codes:
        _memory_columns(out.columns, events, args)
    out.stack_frames = {i: f"{e.sf}" for i, e in enumerate(events) if e.sf is not None}
    out.phase_kinds = {i: PHASE_KINDS[e.ph] for i, e in enumerate(events) if e.ph in PHASE_KINDS}
    _input_columns(draft, out.columns, events, args)
    return out


def _input_columns(
    draft: Draft, out: dict[str, bytes], events: list[Event], args: list[Args]
) -> None:
    """Fill the selected columns of operators' inputs."""
    names = [name for name in INPUTS if name in draft.selection.columns]
    if not names:
        return
    has = draft.selection.has_inputs
    rows = [i for i, event in enumerate(events) if has(event.name)]
    out["input_rows"] = array("I", rows).tobytes()
    for name in names:
        out[name] = draft.codes.column([_json_text(getattr(args[i], name)) for i in rows])


def _wanted(
    selection: Selection, events: list[Event], rows: list[int]
) -> tuple[list[Event], list[int]]:
    """Return the events with a selected kind or name."""
    if selection.kinds is None:
        return events, rows
    keep = [
        i
        for i, e in enumerate(events)
        if selection.wants(_kind(e), e.name if isinstance(e.name, str) else None)
    ]
    return [events[i] for i in keep], [rows[i] for i in keep]


def _kind(event: Event) -> str:
    kind = PHASE_KINDS.get(event.ph) or kind_of_category(event.cat)
    return "cpu_instant_event" if kind == "other" and event.name == MEMORY else kind


def _without_duration(events: list[Event], dur: array[int]) -> int:
    """Count complete events without a valid duration."""
    return sum(1 for e, length in zip(events, dur, strict=True) if e.ph == "X" and length == NULL)


def _inside(windows: Sequence[tuple[int, int]], ts: array[int], dur: array[int]) -> list[int]:
    """Return the rows that overlap a window."""
    return [
        row
        for row, (start, length) in enumerate(zip(ts, dur, strict=True))
        if overlaps(start, start + max(length, 0), windows)
    ]


def _take(column: array[int], rows: list[int]) -> array[int]:
    return array("q", [column[row] for row in rows])


def _device_columns(out: dict[str, bytes], events: list[Event], args: list[Args]) -> list[int]:
    """Fill the columns of device rows and of kernels; return the device rows."""
    on_device = {c for c in {e.cat for e in events} if is_device(c)}
    if not on_device:
        return []
    rows = [i for i, e in enumerate(events) if e.cat in on_device]
    out["device_rows"] = array("I", rows).tobytes()
    out["device"] = decode.integers([args[i].device for i in rows])
    out["stream"] = decode.integers([_stream(args[i].stream, events[i].tid) for i in rows])
    out["copied"] = decode.integers([args[i].copied for i in rows])
    kernels = [i for i in rows if args[i].grid is not None]
    out["kernel_rows"] = array("I", kernels).tobytes()
    out["grid"] = decode.triples([args[i].grid for i in kernels])
    out["block"] = decode.triples([args[i].block for i in kernels])
    out["registers"] = decode.integers([args[i].registers for i in kernels])
    out["shared_memory"] = decode.integers([args[i].shared_memory for i in kernels])
    return rows


def is_device(category: str | None) -> bool:
    """Whether events of a category run on a device."""
    return kind_of_category(category) in vocabulary.DEVICE_KINDS


def _stream(stream: Any, tid: Any) -> Any:
    if stream != NULL:
        return stream
    if isinstance(tid, str):  # "stream 7", as Kineto wrote in 2021
        digits = tid.removeprefix("stream").strip()
        return int(digits) if digits.isdecimal() and len(digits) < 19 else NULL
    return tid


def _memory_columns(out: dict[str, bytes], events: list[Event], args: list[Args]) -> None:
    rows = [i for i, a in enumerate(args) if a.allocated != NULL and events[i].name == MEMORY]
    chosen = [args[i] for i in rows]
    out["memory_rows"] = array("I", rows).tobytes()
    out["address"] = decode.addresses(
        [decode.NULL_ADDRESS if a.address is None else a.address for a in chosen]
    )
    for name in ("allocated", "device_type", "device_id", "total_allocated", "total_reserved"):
        out[name] = decode.integers([getattr(a, name) for a in chosen])


def _json_text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text == b"null" else text.decode("utf-8", "replace")


# --- collectives -----------------------------------------------------------------------------


def _collective_columns(
    out: Slices, events: list[Event], args: list[Args], on_device: list[int]
) -> None:
    names = {n for n in {e.name for e in events} if isinstance(n, str) and may_communicate(n)}
    rows = {i for i in on_device if args[i].collective is not None}
    if names:
        rows.update(i for i, e in enumerate(events) if e.name in names)
    kept = [(i, row) for i in sorted(rows) if (row := _collective(events[i], args[i])) is not None]
    out.columns["collective_rows"] = array("I", [i for i, _ in kept]).tobytes()
    out.collectives = [row for _, row in kept]


@lru_cache(maxsize=1 << 16)
def may_communicate(name: str) -> bool:
    """Whether a name may be that of communication; substrings, as every name is tested."""
    return any(word in name.lower() for word in vocabulary.COMMUNICATION_TERMS)


@lru_cache(maxsize=1 << 12)
def _is_host_collective(name: str) -> bool:
    """Whether a name is that of a collective on the host."""
    return _HOST_COLLECTIVE.search(name) is not None


def _collective(event: Event, args: Args) -> Collective | None:
    """Return the collective of an event by arguments, name and tensors; None without one."""
    name = event.name if isinstance(event.name, str) else ""
    kind = kind_of_category(event.cat)
    host = kind in ("cpu_op", "user_annotation") and _is_host_collective(name)
    by_name = host or (kind == "kernel" and vocabulary.is_communication(name))
    if args.collective is None and not by_name:
        return None
    if args.collective is None and not host:
        args = NO_ARGS  # of kernels without a collective's name only theirs counts, as in a scan
    word = args.collective if isinstance(args.collective, str) else None
    of_word, of_kernel = vocabulary.collective_of_word, vocabulary.collective_of_kernel
    known = of_word(word) or (of_kernel if kind in vocabulary.DEVICE_KINDS else of_word)(name)
    dtype = args.dtype if isinstance(args.dtype, str) else None
    elements_in = decode.integer(args.elements_in)
    if host and dtype is None and elements_in == NULL:
        dtype, elements_in = _tensor(args)
    collective = known or word
    peer = {"send": args.target_rank, "recv": args.source_rank}.get(collective or "", NULL)
    return (
        collective,
        dtype,
        elements_in,
        decode.integer(args.elements_out),
        text_of(args.group),
        decode.integer(args.group_size),
        text_of(args.group_ranks),
        decode.integer(args.seq),
        decode.integer(peer),
        _splits(args.splits_in),
        _splits(args.splits_out),
    )


def _splits(value: Any) -> str | None:
    """Return recorded split sizes as text; None if they are equal, which PyTorch writes as []."""
    text = text_of(value)
    return text if text and text.strip("[] ") else None


def _tensor(args: Args) -> tuple[str | None, int]:
    """Return dtype and number of elements of an operator's first tensor or tensor list."""
    try:
        dims, types = _decode_list(args.input_dims), _decode_list(args.input_types)
    except decode.BAD_TEXT:
        return None, NULL
    if not dims or not types or not isinstance(types[0], str):
        return None, NULL
    elements = _elements(dims[0])
    if elements is None or types[0] in ("", "TensorList", "Scalar"):
        return None, NULL
    return types[0], decode.integer(elements)


def _elements(shape: Any) -> int | None:
    """Return the product of a shape; for a list of shapes, the sum of their products."""
    if not isinstance(shape, list) or not shape:
        return None
    if isinstance(shape[0], list):
        parts = [_elements(part) for part in shape[:1024]]
        return sum(part for part in parts if part is not None)
    product = 1
    for size in shape[:64]:
        if not isinstance(size, int) or size < 0 or product > 1 << 62:
            return None
        product *= size
    return product


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
    return pl.DataFrame(columns).sort("ts", "order", maintain_order=True).drop("order")


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
