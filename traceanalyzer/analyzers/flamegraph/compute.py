"""Weighted stacks of each file, combined to one flame graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import clocks, own_lines
from traceanalyzer.analyzers.common.columns import of_one_unit
from traceanalyzer.analyzers.common.libraries import by_component
from traceanalyzer.analyzers.flamegraph import By, Options, Weight, result, tree, weights
from traceanalyzer.analyzers.flamegraph.result import FlameGraph
from traceanalyzer.drawings import Flame
from traceanalyzer.errors import MissingData
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, in_spans, record_hint
from traceanalyzer.units import format_first, format_frac, format_weight
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, DEVICE_WORK, HOST_KINDS, MEMORY_SNAPSHOT

_TITLE_FILES = 3


def needs(options: Options) -> Needs:
    """The requested kinds; else samples, host slices and allocations."""
    kinds = options.kinds or (*HOST_KINDS, *ALLOCATOR_KINDS)
    columns = ("args",) if {*DEVICE_WORK}.intersection(kinds) else ()
    return Needs(frozenset(("sample", "lane", *kinds)), columns=columns, samples=True)


def measure(trace: Trace, options: Options) -> weights.Part:
    """Return a trace's stacks and weights; of a memory snapshot the bytes live at the peak.

    Raises:
        MissingData: no events match, or they have no times and a window is given.
        OptionError: there is no such thread or weight.
        InputError: the trace's tables are inconsistent.
    """
    if not options.kinds and trace.segments.height:
        from traceanalyzer.analyzers.memory.rank_memory import at_peak, is_snapshot

        trace = at_peak(trace) if is_snapshot(trace) else trace
    window = _window(trace, *options.window)
    inside = in_spans([window], with_start=True).fill_null(value=False)
    wanted = _chosen(trace, options.kinds) & weights.of_threads(trace, options.threads)
    if window != (None, None):
        wanted &= inside
    rows = trace.events.with_row_index("_row").filter(wanted)
    if rows.is_empty():
        span = clocks.recorded_span(trace)
        if span and window != (None, None) and trace.events.filter(inside).is_empty():
            raise MissingData(clocks.no_events(trace.meta.path, span, *options.window))
        raise MissingData(f"{trace.meta.path}: no events match the options")
    number = rows["_row"]
    if (rows["kind"] == "sample").all():
        calls = weights.sampled(trace, number, options.weight)
    else:
        calls = weights.sliced(trace, number, options.weight, window)
    return weights.part(trace.meta.path, calls, *weights.groups(trace, calls.events, options.by))


def combine(
    parts: Sequence[weights.Part], options: Options, bases: Sequence[weights.Part] = ()
) -> result.FlameGraph:
    """Combine the stacks of all files.

    Args:
        parts: the parts of all files; those of one unit are added.
        options: the options. Shares refer to the stacks through ``focus`` if that is given.
        bases: the parts of a run to compare with, scaled to the same sum. Without any, a file's
            own column "before" is the base.

    Raises:
        InputError: the weights of the base have another unit.
        OptionError: a pattern that no function matches.
        MissingData: the stacks have no weight.
    """
    parts, skipped = of_one_unit(parts)
    everything = tree.joined(parts, bases)
    whole = tree.focused(everything, options.focus) if options.focus else everything
    known = tree.known_functions(
        whole.frames, by_component(options.library_names) if options.library_names else None
    )
    table = tree.functions(whole, known)
    calls = tree.calls_of_lines(whole, known)
    boxes = tree.drawn(whole, known, options)
    total = float(whole.weights[0].sum())
    counts = sum((part.counts for part in (*parts, *bases)), Counter[str]())
    facts = [_focus_fact(options.focus, total, everything)] if options.focus else []
    if whole.base is not None:
        facts.append(_base_fact(whole, bases))
    return result.FlameGraph(
        total=total,
        unit=whole.unit,
        base=whole.base,
        on_device=bool(options.kinds) and {*options.kinds} <= {*DEVICE_WORK},
        names=tuple(options.library_names),
        functions=table,
        lines=own_lines.lines(calls),
        activities=own_lines.activities(calls),
        flame=Flame(
            name="flamegraph",
            title=options.title or _title(parts),
            subtitle=_subtitle(whole, total, options, bases),
            unit=whole.unit,
            frame=boxes.frame,
            inverted=options.inverted,
        ),
        least_frac=boxes.least_frac,
        hidden=boxes.hidden,
        hidden_frac=boxes.hidden_weight / total,
        remarks=(*facts, *result.count_notes(counts, table)),
        input_notes=skipped,
    )


def _of_time(trace: Trace, options: Options) -> weights.Part:
    """Measure the stacks of time or samples for a report, which excludes bytes of snapshots."""
    if trace.meta.format == MEMORY_SNAPSHOT:
        hint = record_hint(trace.meta, "stack")
        raise MissingData(f"{trace.meta.path}: no stacks of time were recorded; {hint}")
    return measure(trace, options)


FLAMEGRAPH = Analyzer(
    "flamegraph",
    Options,
    needs,
    measure,
    combine,
    base="base",
    split_ranks=False,
    whole_file=True,
    measure_for={"page": _of_time},
)


def _chosen(trace: Trace, kinds: Sequence[str]) -> pl.Expr:
    """Select the events of the requested kinds, or of the most specific ones."""
    sampled = pl.col("kind") == "sample"
    slice_ = (pl.col("dur") >= 0) & ~sampled
    if kinds:
        trace.require(*kinds)
        of_kind = pl.col("kind").cast(pl.String).is_in(kinds)
        return of_kind & (sampled if set(kinds) == {"sample"} else slice_)
    for candidate in (
        sampled,
        slice_ & (pl.col("kind") == "python_function"),
        slice_ & pl.col("kind").cast(pl.String).is_in(HOST_KINDS),
    ):
        host = candidate & pl.col("device").is_null()
        if trace.events.select(host.any()).item():
            return host
    hint = record_hint(trace.meta, "stack")
    raise MissingData(
        f"{trace.meta.path}: no stacks and no slices on a thread were recorded; {hint}"
    )


def _window(
    trace: Trace, since_ns: int | None, until_ns: int | None
) -> tuple[int | None, int | None]:
    """Return the requested window on the trace's clock; both None without one."""
    if since_ns is None and until_ns is None:
        return None, None
    window = trace.window(since_ns, until_ns)
    if window is None:
        raise MissingData(f"{trace.meta.path}: {clocks.no_timeline(trace)}")
    return window


def _title(parts: Sequence[weights.Part]) -> str:
    return format_first(list(dict.fromkeys(part.path for part in parts)), _TITLE_FILES)


def _subtitle(
    whole: tree.Joined, total: float, options: Options, bases: Sequence[weights.Part]
) -> str:
    parts = [format_weight(total, whole.unit)]
    if options.focus:
        parts.append(f"stacks through {options.focus}")
    if options.inverted:
        parts.append("inverted (bottom-up)")
    if bases:
        parts.append(f"compared with {_title(bases)}")
    elif whole.base is not None:
        parts.append("after, compared with before")
    return ", ".join(parts)


def _focus_fact(focus: str, total: float, everything: tree.Joined) -> str:
    share = format_frac(total / everything.weights[0].sum())
    return f"Only stacks through functions that match {focus}: {share} of the recorded weight."


def _base_fact(whole: tree.Joined, bases: Sequence[weights.Part]) -> str:
    recorded = format_weight(whole.base or 0, whole.unit)
    of = _title(bases) if bases else 'the files\' column "before"'
    return f"The base ({of}) has {recorded} in total; its weights are scaled to the same sum."


def flamegraph(
    inputs: Inputs,
    *,
    base: Inputs | None = None,
    kinds: str | Sequence[str] = (),
    threads: str | Sequence[str] = (),
    weight: Weight | None = None,
    by: By | None = None,
    inverted: bool = False,
    focus: str | None = None,
    min_frac: float | None = None,
    library_names: str | Sequence[str] = (),
    title: str | None = None,
    **reading: Unpack[Reading],
) -> FlameGraph:
    """Return where the time (or other weight) goes, as a flame graph.

    Sampled stacks count with their weight, slices of a trace with their self time. All lines of a
    function are one frame. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them, which are added.
        base: the inputs of another run to compare with, scaled to the same sum.
        kinds: kinds of events; by default samples, else ``python_function``, else all slices on
            host threads.
        threads: only threads with these numbers, or with these texts in their names.
        weight: ``time``, ``count`` or ``bytes``; by default the recorded weight of samples, and the
            time of slices.
        by: one root for each ``process``, ``thread``, ``rank`` or ``file``.
        inverted: bottom-up, from leaf functions up to their callers.
        focus: a regular expression; only stacks through functions with matching names, from the
            outermost such function down.
        min_frac: boxes smaller than this fraction of the total are merged, with their number and
            weight; by default none as long as all can be drawn, else all but the 5,000 largest.
        library_names: libraries to highlight; none: the user's own code.
        title: title of the picture.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no stacks or no matching events were recorded.
        OptionError: an option is invalid, or weights have several units.
    """
    options = Options(
        kinds, threads, weight, by, inverted, focus, min_frac, base, library_names, title
    )
    return run(FLAMEGRAPH, inputs, options, **reading)
