"""From the stacks of each file to the flamegraph of all of them."""

from collections import Counter
from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.common.columns import of_one_unit
from traceanalyzer.analyzers.common.libraries import by_component
from traceanalyzer.analyzers.flamegraph import result, tree, weights
from traceanalyzer.analyzers.flamegraph.options import Options
from traceanalyzer.errors import MissingData
from traceanalyzer.result import Flame
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.units import format_frac, format_weight
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, HOST_KINDS

_SHOWN_FILES = 3
_SNAPSHOT = "memory-snapshot"


def needs(options: Options) -> Needs:
    """The kinds asked for; else samples, slices of the host and allocations."""
    kinds = options.kinds or (*HOST_KINDS, *ALLOCATOR_KINDS)
    return Needs(frozenset(("sample", "lane", *kinds)), samples=True)


def measure(trace: Trace, options: Options) -> weights.Part:
    """A trace's stacks and their weights; of a memory snapshot the bytes live at the peak.

    Raises:
        MissingData: there are no such events, or they have no times and a window is asked for.
        OptionError: there is no such thread, or no such weight.
        InputError: the trace's tables contradict one another.
    """
    if not options.kinds and trace.segments.height:
        from traceanalyzer.analyzers.memory.rank_memory import at_peak, is_snapshot

        trace = at_peak(trace) if is_snapshot(trace) else trace
    window = _window(trace, *options.window)
    chosen = _chosen(trace, options.kinds)
    wanted = weights.of_threads(trace, options.threads) & chosen
    if window != (None, None):
        wanted &= _inside(*window)
    rows = trace.events.with_row_index("_row").filter(wanted)
    if rows.is_empty():
        raise MissingData(f"{trace.meta.path}: no events that are asked for")
    number = rows["_row"]
    if (rows["kind"] == "sample").all():
        calls = weights.sampled(trace, number, options.weight)
    else:
        calls = weights.sliced(trace, number, options.weight, window)
    return weights.part(trace.meta.path, calls, *weights.groups(trace, calls.events, options.by))


def combine(
    parts: Sequence[weights.Part], options: Options, bases: Sequence[weights.Part] = ()
) -> result.FlameGraph:
    """Where the weight of the files' stacks lies.

    Args:
        parts: of each file; all are added.
        options: what is drawn. All shares are of the stacks through ``focus``, if that is given.
        bases: the parts of a run to compare with, scaled to the same sum. Without any, a file's
            own column "before" is the base.

    Raises:
        InputError: weights of several units.
        OptionError: a pattern that no function matches.
        MissingData: the stacks have no weight.
    """
    everything = tree.joined(parts, bases)
    whole = tree.focused(everything, options.focus) if options.focus else everything
    known = tree.known_functions(
        whole.frames, by_component(options.library_names) if options.library_names else None
    )
    table = tree.functions(whole, known)
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
        whose=_whose(options.library_names),
        functions=table,
        flame=Flame(
            name="flamegraph",
            title=options.title or _title(parts),
            subtitle=_subtitle(whole, total, options, bases),
            unit=whole.unit,
            frame=boxes.frame,
            inverted=options.reverse,
        ),
        least_frac=boxes.least_frac,
        hidden=boxes.hidden,
        hidden_frac=boxes.hidden_weight / total,
        remarks=(*facts, *result.count_notes(counts, table)),
    )


def _of_time(trace: Trace, options: Options) -> weights.Part:
    """For a report, the stacks of time or samples; bytes of a snapshot answer another question."""
    if trace.meta.format == _SNAPSHOT:
        raise MissingData(
            f"{trace.meta.path}: no stacks of time; {record_hint(trace.meta, 'stack')}"
        )
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
    report_measure=_of_time,
    report_parts=of_one_unit,
)


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


def _whose(libraries: Sequence[str]) -> str:
    return f"the code of {' or '.join(libraries)}" if libraries else "your own code"


def _title(parts: Sequence[weights.Part]) -> str:
    names = list(dict.fromkeys(part.path for part in parts))
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    return ", ".join(names[:_SHOWN_FILES]) + more


def _subtitle(
    whole: tree.Joined, total: float, options: Options, bases: Sequence[weights.Part]
) -> str:
    said = [format_weight(total, whole.unit)]
    if options.focus:
        said.append(f"stacks through {options.focus}")
    if options.reverse:
        said.append("callers below what they call")
    if bases:
        said.append(f"compared with {_title(bases)}")
    elif whole.base is not None:
        said.append("after, compared with before")
    return ", ".join(said)


def _focus_fact(focus: str, total: float, everything: tree.Joined) -> str:
    share = format_frac(total / everything.weights[0].sum())
    return f"Only stacks through functions that match {focus}: {share} of everything recorded."


def _base_fact(whole: tree.Joined, bases: Sequence[weights.Part]) -> str:
    recorded = format_weight(whole.base or 0, whole.unit)
    of = _title(bases) if bases else 'the files\' column "before"'
    return f"The base, {of}, has {recorded} in all; its weights are scaled to the same sum."
