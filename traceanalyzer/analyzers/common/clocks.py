"""Common axis of recordings: whether their clocks can be compared, and what aligns them.

Also which inputs have a time axis, and time windows (``--since``, ``--until``) without events.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from traceanalyzer.analyzers.common.columns import OfRank, source_of, stacked
from traceanalyzer.trace import Meta, Trace
from traceanalyzer.units import format_ns
from traceanalyzer.vocabulary import MEMORY_SNAPSHOT, PY_SPY_DUMP


@dataclass(frozen=True)
class Origin:
    """The recording that a part of a result is from.

    Attributes:
        rank: global rank, or None.
        path: the file.
        epoch_ns: absolute time of the trace's ts 0, or None.
        start_ns: time of the file's first event, or None.
    """

    rank: int | None
    path: str
    epoch_ns: int | None
    start_ns: int | None

    @property
    def owner(self) -> str:
        """The rank, or the file without a rank, as :data:`OWNER` of its rows."""
        return self.path if self.rank is None else str(self.rank)


#: The rank, or the file without a rank, from path and rank.
OWNER = pl.coalesce(pl.col("rank").cast(pl.String), "path").alias("owner")


def origin(source: Meta | Origin) -> dict[str, Any]:
    """Return the fields of :class:`Origin` by name."""
    return {name: getattr(source, name) for name in ("rank", "path", "epoch_ns", "start_ns")}


class OnClock(OfRank, Protocol):
    """A part of a recording with its own clock."""

    @property
    def epoch_ns(self) -> int | None:
        """Absolute time of the clock's 0, or None."""

    @property
    def start_ns(self) -> int | None:
        """Time of the first event, analysed or not, or None."""


def axis(
    parts: Sequence[OnClock], table: str, owners: Sequence[Hashable] | None = None
) -> tuple[pl.Series, bool]:
    """Return what is added to the times of each part, and whether all share an axis.

    If they do (see :func:`one_clock`), 0 is the start of the first one, otherwise that of each
    owner's first one. Nothing is added to a part without times.

    Args:
        parts: of one rank or file each.
        table: attribute with ``start`` and ``end`` of what is analysed.
        owners: owner of each part; without it, the rank, or the file without a rank.
    """
    if owners is None:
        owners = [part.path if part.rank is None else part.rank for part in parts]
    epochs = [part.epoch_ns or 0 for part in parts]
    begins, ends, starts, known = [], [], [], []
    for number, (part, epoch) in enumerate(zip(parts, epochs, strict=True)):
        times: pl.DataFrame = getattr(part, table)
        begin, end = times.select(pl.col("start").min(), pl.col("end").max()).row(0)
        if begin is not None:
            begins.append(begin + epoch)
            ends.append(end + epoch)
            starts.append((begin if part.start_ns is None else part.start_ns) + epoch)
            known.append(number)
    if not known:
        return pl.Series([0] * len(parts), dtype=pl.Int64), True
    shared = one_clock([parts[number].epoch_ns for number in known], begins, ends)
    zeros = to_zero(starts, [owners[number] for number in known], one_clock=shared)
    shifts = [0] * len(parts)
    for number, zero in zip(known, zeros, strict=True):
        shifts[number] = epochs[number] + zero
    return pl.Series(shifts, dtype=pl.Int64), shared


def on_axis(
    parts: Sequence[OfRank],
    table: str,
    shifts: pl.Series,
    *,
    at: str = "start",
    **values: pl.Series,
) -> pl.DataFrame:
    """Concatenate a table of all parts, with rank, path and ``at_ns``: its start on the axis.

    Args:
        parts: of one rank or file each.
        table: the attribute; its own rank stays. Without the column ``at``, there is no ``at_ns``.
        shifts: result of :func:`axis`.
        at: column of the time.
        **values: further columns, with one value per part.
    """
    frames: list[pl.DataFrame] = [getattr(part, table) for part in parts]
    source = source_of(parts)
    if "rank" in frames[0].columns:
        del source["rank"]
    rows = stacked(frames, **source, **values, at_ns=shifts)
    if at in rows.columns:
        return rows.with_columns(at_ns=pl.col(at) + pl.col("at_ns"))
    return rows.drop("at_ns")


def one_clock(
    epochs: Sequence[int | None], begins: Sequence[int], ends: Sequence[int], *, pauses_ns: int = 0
) -> bool:
    """Whether times of several recordings can be compared.

    They can if absolute times are known of all or of none, and the recordings are of one stretch of
    time: no longer than all of them together and the pauses between them.

    Args:
        epochs: absolute time of 0 of each recording, or None.
        begins: first times, absolute if known.
        ends: last times, likewise.
        pauses_ns: known time between recordings of a rank.
    """
    known = len({epoch is None for epoch in epochs}) == 1
    return known and max(ends) - min(begins) <= sum(ends) - sum(begins) + pauses_ns


def to_zero(starts: Sequence[int], owners: Sequence[Hashable], *, one_clock: bool) -> list[int]:
    """Return what is added to the times of each recording so that its axis begins at 0.

    Args:
        starts: start of each recording: its first event, whatever is analysed of it. So a time on
            the axis is the same in all analyses, and in ``--since`` and ``--until``.
        owners: whose recording it is: without one clock, each owner begins at 0.
        one_clock: all begin with the first recording.
    """
    of = [None] * len(starts) if one_clock else owners
    first = dict[Hashable, int]()
    for owner, start in zip(of, starts, strict=True):
        first[owner] = min(start, first.get(owner, start))
    return [-first[owner] for owner in of]


# --- time windows ------------------------------------------------------------------------------

#: Tables whose rows have no place on a timeline, and the inputs that have them.
_TIMELESS = {
    "aggregates": "printed text",
    "metrics": "a report of Nsight Compute",
    "collective_records": "a Flight Recorder dump",
}
#: Inputs whose events may have no times, by format; of all others they are stacks.
_WITHOUT_TIMES = {MEMORY_SNAPSHOT: "a memory snapshot without times", PY_SPY_DUMP: "a stack dump"}


def no_timeline(trace: Trace) -> str | None:
    """Return why a time window does not apply to an input; None for one with a timeline."""
    kinds = (text for name, text in _TIMELESS.items() if getattr(trace, name).height)
    kind = next(kinds, None)
    if kind is None:
        if trace.meta.start_ns is not None or trace.events["ts"].min() is not None:
            return None
        if trace.events.is_empty() and trace.segments.is_empty():
            return None
        kind = _WITHOUT_TIMES.get(trace.meta.format, "a file of stacks without times")
    return f"{kind} has no timeline, so --since and --until do not apply"


def recorded_span(trace: Trace) -> tuple[int, int] | None:
    """Return the start of the first and the end of the last event, in ns after the file's start."""
    times = pl.concat(
        [
            trace.events.select("ts", end=pl.col("ts") + pl.col("dur").fill_null(0)),
            trace.counters.select("ts", end="ts"),
        ]
    )
    first, last = times.select(pl.col("ts").min(), pl.col("end").max()).row(0)
    if first is None:
        return None
    start = first if trace.meta.start_ns is None else trace.meta.start_ns
    return first - start, last - start


def is_outside(span: tuple[int, int], since_ns: int | None, until_ns: int | None) -> bool:
    """Whether a window ends before the first event or begins after the last."""
    first, last = span
    return (since_ns is not None and since_ns > last) or (until_ns is not None and until_ns < first)


def no_events(path: str, span: tuple[int, int], since_ns: int | None, until_ns: int | None) -> str:
    """Return the error of a window without events."""
    given = (("--since", since_ns), ("--until", until_ns))
    window = " ".join(f"{name} {format_ns(time)}" for name, time in given if time is not None)
    begin, end = map(format_ns, span)
    return f"{path}: no events in the time window ({window}); events are between {begin} and {end}"
