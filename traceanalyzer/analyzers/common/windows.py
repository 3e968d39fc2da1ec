"""Time windows of ``--since`` and ``--until`` that contain no event."""

import polars as pl

from traceanalyzer.trace import Trace
from traceanalyzer.units import format_ns
from traceanalyzer.vocabulary import MEMORY_SNAPSHOT, PY_SPY_DUMP

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
