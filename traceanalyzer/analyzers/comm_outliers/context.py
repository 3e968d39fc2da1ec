"""What a late rank did while the others waited: each stretch divided up, on host and device.

Host: at every moment the innermost event counts, on the thread that issued the collective; where
that thread has none, on the thread that marks steps, then on the others that issue collectives. So
an operator is not hidden by the annotation or the Python frame around it, and time inside an
annotation with no operator running (Python, or waiting for something that is not recorded) is
shown as the annotation's own; ``within`` names the annotation around. The host parts of a stretch,
``nothing recorded`` among them, add up to it exactly.

Device: each kernel, copy or set by the sum of its overlaps, and ``idle``, when none ran. Streams
run side by side, so these parts may exceed the stretch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.late import Window
from traceanalyzer.analyzers.names import ADDRESS
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import Trace
from traceanalyzer.units import format_frac, format_ns
from traceanalyzer.vocabulary import (
    DEVICE_WORK,
    LAUNCH_KINDS,
    NCCL_ANNOTATION_PREFIXES,
    PARAM_COMMS,
    steps_pattern,
)

IDLE = "idle"
NOTHING = "nothing recorded"

#: Parts shown of each stretch, on each side.
_TOP = 5

#: Share of a stretch from which its second largest part is named too.
_WORTH = 0.1

#: Kinds that show what a host thread is at, outermost last in what they tell.
_HOST_KINDS = (
    "cpu_op",
    "user_annotation",
    "python_function",
    *LAUNCH_KINDS,
    "nvtx",
    "osrt",
)
_ISSUING = "^(?:" + "|".join((PARAM_COMMS, "c10d::", *NCCL_ANNOTATION_PREFIXES)) + ")"

_ANNOTATIONS = ("user_annotation", "nvtx")

_PART = ("kind", "name", "within", "overlap_ns")

_LONGEST = 70

_TYPES = {
    "window": pl.UInt32,
    "side": pl.String,
    "kind": pl.String,
    "name": pl.String,
    "within": pl.String,
    "overlap_ns": pl.Int64,
    "overlap_frac": pl.Float64,
}


def context(windows: Sequence[Window], traces: Sequence[Trace]) -> pl.DataFrame:
    """The largest parts of every stretch: window (its number), side, kind, name, overlap.

    A stretch whose rank is not among ``traces`` has no rows, one whose trace holds no host events
    (or no device work) none of that side.
    """
    found = []
    for number, window in enumerate(windows):
        trace = next((t for t in traces if _is_of(t, window)), None)
        if trace is not None:
            found += [part.with_columns(window=number) for part in _divide(window, trace)]
    rows = [
        pl.DataFrame(schema=_TYPES),
        *(f.select(pl.col(n).cast(t) for n, t in _TYPES.items()) for f in found),
    ]
    return pl.concat(rows)


def words(parts: pl.DataFrame, side: str) -> pl.DataFrame:
    """``window`` and a column named for the side: its largest parts, as people say it.

    ``train_step with no operator running 46.9 ms (99.8 %)``; the second part too if it is a tenth
    of the stretch or more.
    """
    order = pl.int_range(pl.len()).over("window")
    told = parts.filter(pl.col("side") == side).with_columns(order=order)
    second = (pl.col("order") == 1) & (pl.col("overlap_frac") >= _WORTH)
    top = told.filter((pl.col("order") == 0) | second)
    said = pl.Series(side, [_said(part) for part in top.iter_rows(named=True)], dtype=pl.String)
    return (
        top.select("window", said)
        .group_by("window", maintain_order=True)
        .agg(pl.col(side).str.join(", "))
    )


def _said(part: Mapping[str, Any]) -> str:
    what = _short(part["name"])
    if part["side"] == "host" and part["kind"] in _ANNOTATIONS:
        what += " with no operator running"
    elif part["within"] is not None:
        what += f" in {_short(part['within'])}"
    return f"{what} {format_ns(part['overlap_ns'])} ({format_frac(part['overlap_frac'])})"


def _short(name: str) -> str:
    """A name that leaves room for how long it took; tables have it whole."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."


def _is_of(trace: Trace, window: Window) -> bool:
    return trace.meta.path == window.path and trace.meta.rank in (None, window.rank)


def _divide(window: Window, trace: Trace) -> list[pl.DataFrame]:
    near = trace.events.filter(
        pl.col("ts") < window.end_ns, pl.col("ts") + pl.col("dur") > window.start_ns
    ).with_columns(pl.col("kind").cast(pl.String), start="ts", end=pl.col("ts") + pl.col("dur"))
    clipped = intervals.clip(near, window.start_ns, window.end_ns)
    length = window.end_ns - window.start_ns
    sides = []
    if trace.events["kind"].is_in(("cpu_op", "python_function")).any():
        host = clipped.filter(pl.col("kind").is_in(_HOST_KINDS), pl.col("tid").is_not_null())
        parts = _host(host, _threads(trace, window))
        rest = length - int(parts["overlap_ns"].sum())
        sides.append(_largest(parts, "host", NOTHING, rest, length))
    if trace.events["kind"].is_in(DEVICE_WORK).any():
        device = clipped.filter(pl.col("kind").is_in(DEVICE_WORK))
        rest = length - intervals.measure(device)["length"].item()
        sides.append(_largest(_device(device), "device", IDLE, rest, length))
    return sides


def _largest(parts: pl.DataFrame, side: str, rest: str, left: int, length: int) -> pl.DataFrame:
    """The parts by name, and what they leave of the stretch; the largest first."""
    remainder = pl.DataFrame({"name": [rest], "overlap_ns": [left]})
    named = pl.col("name").str.replace(ADDRESS, "")
    return (
        pl.concat([parts, remainder], how="diagonal")
        .group_by("kind", named, "within")
        .agg(pl.col("overlap_ns").sum())
        .filter(pl.col("overlap_ns") > 0)
        .sort("overlap_ns", "name", "kind", "within", descending=[True, False, False, False])
        .head(_TOP)
        .with_columns(side=pl.lit(side), overlap_frac=pl.col("overlap_ns") / length)
    )


def _device(work: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("end") - pl.col("start")
    return _parts(work.with_columns(overlap_ns=length, within=pl.lit(None, pl.String)))


def _parts(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(_TYPES[name]) for name in _PART)


# --- host ------------------------------------------------------------------------------------


def _threads(trace: Trace, window: Window) -> list[int]:
    """Threads to look at, the most telling first; empty if none issues collectives or steps."""
    names = trace.events["name"].drop_nulls().unique().cast(pl.String)
    hosts = trace.events.filter(pl.col("tid").is_not_null())
    issuing = hosts.filter(pl.col("name").is_in(_matching(names, _ISSUING)))
    marking = hosts.filter(pl.col("name").is_in(_matching(names, steps_pattern())))
    last = issuing.filter(pl.col("ts") <= window.end_ns).tail(1)
    return list(dict.fromkeys([*last["tid"], *marking["tid"], *issuing["tid"]]))


def _matching(names: pl.Series, pattern: str) -> list[str]:
    return names.filter(names.str.contains(pattern)).to_list()


def _host(events: pl.DataFrame, threads: Sequence[int]) -> pl.DataFrame:
    """The innermost events and how long each was that; no moment is counted twice."""
    found = [pl.DataFrame(schema={name: _TYPES[name] for name in _PART})]
    covered = events.select("start", "end").clear()
    for tid in threads or events["tid"].unique().sort().to_list():
        own = events.filter(pl.col("tid") == tid)
        pieces = intervals.overlap_with(_innermost(own), covered)
        free = pl.col("end") - pl.col("start") - pl.col("overlap")
        found.append(_parts(pieces.with_columns(overlap_ns=free)))
        covered = pl.concat([covered, own.select("start", "end")])
    return pl.concat(found)


def _innermost(events: pl.DataFrame) -> pl.DataFrame:
    """One thread's time in pieces between starts and ends, each with its innermost event.

    ``within`` is the innermost annotation around that event, other than the step's.
    """
    edges = pl.concat([events["start"], events["end"]]).unique().sort()
    pieces = pl.DataFrame({"ts": edges, "start": edges, "end": edges.shift(-1)}).drop_nulls()
    found = linking.enclosing(pieces, events).drop_nulls("slice")
    inner = found.with_columns(events[name].gather(found["slice"]) for name in ("kind", "name"))
    ranges = events.filter(
        pl.col("kind").is_in(_ANNOTATIONS),
        ~pl.col("name").cast(pl.String).str.contains(steps_pattern()),
    )
    around = linking.enclosing(found.select("ts"), ranges)["slice"]
    own = pl.col("kind").is_in(_ANNOTATIONS)
    return inner.with_columns(
        within=pl.when(~own).then(ranges["name"].cast(pl.String).gather(around))
    )
