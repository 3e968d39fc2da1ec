"""One trace in, what it gives to a flamegraph out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from traceanalyzer.analyzers.flamegraph import samples, slices
from traceanalyzer.analyzers.flamegraph.groups import groups, of_threads
from traceanalyzer.analyzers.flamegraph.part import Part, part
from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, HOST_KINDS

Weight = Literal["time", "count", "bytes"]
By = Literal["process", "thread", "rank", "file"]

#: What is read of a file when no kinds are asked for.
KINDS = frozenset(("sample", "lane", *HOST_KINDS, *ALLOCATOR_KINDS))


def extract(
    trace: Trace,
    *,
    kinds: Sequence[str] = (),
    threads: Sequence[str] = (),
    weight: Weight | None = None,
    by: By | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> Part:
    """A trace's stacks and their weights; of a memory snapshot the bytes live at the peak.

    Args:
        trace: samples with stacks, or slices that nest.
        kinds: kinds of events; without any the samples, else ``python_function``, else all slices
            on threads of the host.
        threads: only events of threads with one of these numbers, or these words in their name.
        weight: ``time``, ``count`` or ``bytes``; by default what samples were recorded with, and a
            slice's time less that of the slices in it.
        by: tell ``process``, ``thread``, ``rank`` or ``file`` apart.
        since_ns: leave out what is before this time after the first event ...
        until_ns: ... and what is at or after this one. Slices are cut there.

    Raises:
        MissingData: there are no such events, or they have no times and a window is asked for.
        OptionError: there is no such thread, or no such weight.
        InputError: the trace's tables contradict one another.
    """
    if not kinds and trace.segments.height:
        from traceanalyzer.analyzers.memory.samples import at_peak, is_snapshot  # few are snapshots

        trace = at_peak(trace) if is_snapshot(trace) else trace
    window = _window(trace, since_ns, until_ns)
    chosen = _chosen(trace, kinds)
    wanted = of_threads(trace, threads) & chosen
    if window != (None, None):
        wanted &= _inside(*window)
    rows = trace.events.with_row_index("_row").filter(wanted)
    if rows.is_empty():
        raise MissingData(f"{trace.meta.path}: no events that are asked for")
    number = rows["_row"]
    if (rows["kind"] == "sample").all():
        calls = samples.calls(trace, number, weight)
    else:
        calls = slices.calls(trace, number, weight, window)
    return part(trace.meta.path, calls, *groups(trace, calls.events, by))


def _chosen(trace: Trace, kinds: Sequence[str]) -> pl.Expr:
    """The events of the kinds asked for, or of those that tell most."""
    sampled = pl.col("kind") == "sample"
    slice_ = (pl.col("dur") >= 0) & ~sampled
    if kinds:
        trace.require(*kinds)
        of_kind = pl.col("kind").cast(pl.String).is_in(kinds)
        only_samples = set(kinds) == {"sample"}
        return of_kind & (sampled if only_samples else slice_)
    for found in (
        sampled,
        slice_ & (pl.col("kind") == "python_function"),
        slice_ & pl.col("kind").cast(pl.String).is_in(HOST_KINDS),
    ):
        host = found & pl.col("device").is_null()
        if trace.events.select(host.any()).item():
            return host
    hint = record_hint(trace.meta, "stack")
    raise MissingData(
        f"{trace.meta.path}: no stacks and no slices on a thread were recorded; {hint}"
    )


def _window(
    trace: Trace, since_ns: int | None, until_ns: int | None
) -> tuple[int | None, int | None]:
    """The times asked for on the trace's clock; both None for all of it."""
    if since_ns is None and until_ns is None:
        return None, None
    told = [meta.start_ns for meta in trace.sources if meta.start_ns is not None]
    start = min(told) if told else trace.events["ts"].min()
    if not isinstance(start, int):
        raise MissingData(f"{trace.meta.path}: has no times; leave --since and --until out")
    lo = None if since_ns is None else start + since_ns
    return lo, None if until_ns is None else start + until_ns


def _inside(lo: int | None, hi: int | None) -> pl.Expr:
    """Slices that share time with the window, and samples taken in it."""
    inside = pl.lit(value=True)
    if lo is not None:
        end = pl.col("ts") + pl.col("dur").fill_null(0)
        inside &= (end > lo) | (pl.col("ts") >= lo)
    if hi is not None:
        inside &= pl.col("ts") < hi
    return inside.fill_null(value=False)
