"""Outliers, stragglers and what stragglers did, from the collectives of each rank.

A file is read up to twice, each time as little as possible: :data:`NEEDS` (device work, its launch
calls, annotations and the host rows that describe collectives); :data:`CONTEXT`, only of the files
and intervals in which ranks waited for a straggler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Analyzer, Needs, Reader, Reading
from traceanalyzer.analyzers.comm_outliers import (
    By,
    Options,
    activity,
    arrivals,
    chains,
    collectives,
    experts,
    inspector,
    matching,
    outliers,
)
from traceanalyzer.analyzers.comm_outliers.collectives import INSTANCES, Part
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers, Delayed, Totals
from traceanalyzer.analyzers.comm_outliers.tables import remarks
from traceanalyzer.analyzers.common import (
    aggregates,
    device_steps,
    jobs,
    kernel_names,
    names,
    replays,
    step_marks,
)
from traceanalyzer.analyzers.common.aggregates import Aggregates
from traceanalyzer.errors import MissingData
from traceanalyzer.run.find import each, without_snapshots
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, record_hint

#: Until 2021 PyTorch recorded collectives and steps as operators.
_AS_OPERATORS = (
    vocabulary.PARAM_COMMS,
    *vocabulary.HOST_COLLECTIVE_PREFIXES,
    *vocabulary.NCCL_ANNOTATION_PREFIXES,
    *step_marks.MARK_NAMES,
)

NEEDS = Needs(
    {*vocabulary.DEVICE_WORK, *vocabulary.LAUNCH_KINDS, "user_annotation", "nvtx", "mpi"},
    _AS_OPERATORS,
)

CONTEXT = Needs(NEEDS.kinds | {"cpu_op", "python_function", "osrt"})


def measure_any(trace: Trace, options: Options) -> Part | Aggregates:
    """Return :func:`measure`, or the durations that NCCL Inspector recorded without times."""
    return aggregates.of_forms(trace, (vocabulary.INSPECTOR_FORM,)) or measure(trace, options)


def measure(trace: Trace, options: Options) -> Part:
    """Return one rank's collectives, steps and busy time.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    key = ("communication", tuple(options.comm_patterns))
    return trace.once(key, lambda: _measure(trace, options))


def _measure(trace: Trace, options: Options) -> Part:
    work = collectives.device_work(trace)
    rows = collectives.communication(trace, options.comm_patterns)
    closed = collectives.closed(trace, options.comm_patterns)
    compute = collectives.compute_kernels(work, closed)
    meta = trace.meta
    shift = meta.epoch_ns or 0
    marks = step_marks.step_marks(trace)
    steps = (
        device_steps.device_steps(trace) if marks.height else device_steps.on_device(trace, marks)
    )
    instances = _in_steps(closed, steps)
    activity = collectives.activity(trace, work, closed, compute)
    if meta.format in vocabulary.ONLY_COMMUNICATION:
        activity = activity._replace(busy_ns=None, overlap_ns=None)
        instances = instances.with_columns(compute_ns=None, memory_ns=None)
    return Part(
        rank=meta.rank,
        path=meta.path,
        host=meta.host,
        world_size=meta.world_size,
        shift_ns=shift,
        epoch_known=meta.epoch_ns is not None,
        start_ns=meta.start_ns,
        instances=_shaped(trace, instances, shift),
        steps=steps.select("step", pl.col("start", "end") + shift),
        activity=activity,
        unclosed=rows.height - closed.height,
        record_hint=record_hint(meta, "collective"),
        gpu=collectives.gpu_name(trace, instances["device"].drop_nulls().first()),  # type: ignore[arg-type]
        by_device=collectives.by_device(trace, work, closed, compute),
        node_gpus=len(meta.devices) if len(meta.devices) > 1 else 0,
        recording=jobs.recording(trace),
    )


def measure_for_report(trace: Trace, options: Options) -> Part:
    """Return :func:`measure` of a trace with communication or device work.

    Raises:
        MissingData: the trace has neither.
    """
    part = measure(trace, options)
    if part.instances.is_empty() and part.activity.busy_ns is None:
        hint = f"; {part.record_hint}" if part.record_hint else ""
        raise MissingData(f"{part.path}: no communication was recorded{hint}")
    return part


def combine(
    parts: Sequence[Part | Aggregates], options: Options, base: Sequence[Part | Aggregates] = ()
) -> CommOutliers:
    """Compare the ranks; durations without times are not used next to traces.

    Raises:
        MissingData: no communication in any part or in the other run, or a part of one of two runs
            has no times.
    """
    timed, untimed = aggregates.divided(parts, Part)
    base_timed, base_untimed = aggregates.divided(base, Part)
    if untimed and not timed:
        if base:
            raise MissingData(f"{untimed[0].path}: durations without times have no baseline")
        return inspector.combine(aggregates.joined(untimed), options)
    if base_untimed:
        raise MissingData(f"{base_untimed[0].path}: a baseline needs the times of collectives")
    return aggregates.without(untimed, lambda: compare(timed, options, base_timed))


def compare(parts: Sequence[Part], options: Options, base: Sequence[Part] = ()) -> CommOutliers:
    """Compare the ranks, and the medians of their groups with those of another run.

    Files of different jobs are analysed separately.

    Raises:
        MissingData: no communication in any part, or in the other run.
    """
    parts = matching.ordered(matching.devices_apart(parts))
    several = jobs.several_jobs(part.recording for part in parts if part.recording)
    rows = matching.joined(parts)
    matched = matching.unmatched(rows) if several else matching.match(rows)
    hosts = {part.rank: part.host if part.epoch_known else None for part in parts}
    clocks = arrivals.clock_offsets(matched, hosts)
    offsets = arrivals.applied(clocks)
    matched = matched.with_columns(at_ns=arrivals.on_axis(parts, offsets))
    begins = arrivals.begins(parts, offsets)
    matched, spanning = arrivals.recorded_by_all(matched, begins, offsets)
    matched = outliers.with_links(matched, parts)
    met = arrivals.arrivals(matched, offsets)
    rows = arrivals.plausible(met)
    roots = chains.roots(rows)
    slow = outliers.slow(arrivals.collectives(rows), options.factor, options.z)
    each = chains.with_roots(slow, roots)
    waits = arrivals.with_waits(matched, rows, each)
    of_job = waits.partition_by("path") if several else [waits]
    judged = (outliers.judge(one, options.factor, options.z) for one in of_job)
    instances = pl.concat(judged).sort("id")
    marks = matching.marks(parts, offsets)
    steps = arrivals.steps(rows, marks)
    ranks = arrivals.ranks(parts, instances, rows, steps, roots, marks)
    groups = outliers.summarize(instances, dict(ranks[["rank", "span_ns"]].iter_rows()))
    least = options.min_wait_ns
    if least is None:
        least = arrivals.threshold(steps)
    delayed = arrivals.delayed(each, rows, steps, marks, least)
    return CommOutliers(
        totals=_totals(parts, instances, rows, each.height),
        delayed=Delayed(delayed, least, arrivals.windows(delayed)),
        ranks=ranks,
        baseline=outliers.compare(groups, compare(base, options).groups) if base else None,
        instances=instances,
        groups=groups,
        collectives=each,
        arrivals=rows,
        steps=steps,
        clocks=clocks,
        remarks=(several,)
        if several
        else tuple(remarks(parts, instances, each, clocks, met.height - rows.height, spanning)),
        one_job=not several,
        compared_from=begins.drop("begin"),
        experts=experts.experts(instances),
        by=options.by,
    )


def _totals(
    parts: Sequence[Part], instances: pl.DataFrame, rows: pl.DataFrame, n_collectives: int
) -> Totals:
    return Totals(
        n_events=instances.height,
        n_ranks=len({part.rank for part in parts}),
        world_size=max((part.world_size for part in parts if part.world_size), default=None),
        n_matched=rows.height,
        n_collectives=n_collectives,
        n_outliers=int(instances["outlier"].sum()),
        total_comm_ns=int(instances["duration_ns"].sum()),
        total_wait_ns=int(rows["once_ns"].sum()),
        covered_ns=sum(part.activity.comm_ns for part in parts),
        total_span_ns=sum(part.activity.span_ns for part in parts),
    )


def refine(result: CommOutliers, options: Options, reader: Reader) -> CommOutliers:
    """Add what stragglers did, and how full devices were if memory data is available."""
    if isinstance(result, inspector.InspectedCommOutliers):
        return result
    windows: dict[str, list[tuple[int, int]]] = {}
    waits = result.delayed.windows
    recorded = tuple(w for w in waits if not _has_only_communication(reader, w.path))
    for window in recorded:
        windows.setdefault(window.path, []).append((window.start_ns, window.end_ns))
    of_windows = activity.divide(recorded, reader.traces(CONTEXT, windows))
    delayed = replace(result.delayed, windows=recorded, context=of_windows)
    result = replace(result, delayed=delayed)
    if not (options.memory or reader.collected):
        return result
    memory = registry.ENTRIES["memory_usage"].analyzer()  # imported only on request
    parts = reader.collect(memory, options.memory, memory.options())
    fills = [fill for part in parts for fill in part]
    if not fills:
        return result
    return replace(result, memory=activity.fullness(result.outliers(), reader.metas, fills))


def _has_only_communication(reader: Reader, path: str) -> bool:
    return path in reader.metas and reader.metas[path].format in vocabulary.ONLY_COMMUNICATION


COMM_OUTLIERS = Analyzer(
    "comm_outliers",
    Options,
    NEEDS,
    measure_any,
    combine,
    refine=refine,
    base="baseline",
    prepare=collectives.prepare,
    of_one_job="",
    measure_for={"page": measure_for_report},
)


# --- one rank ------------------------------------------------------------------------------


def _shaped(trace: Trace, instances: pl.DataFrame, shift: int) -> pl.DataFrame:
    """Return the columns of :data:`INSTANCES`; a collective without a name has its kernel's."""
    kernel = names.mapped(instances["name"], kernel_names.function)
    # all_to_all of lists of tensors records no splits
    unequal = pl.col("elements_in") != pl.col("elements_out")
    has_splits = pl.coalesce("splits_in", "splits_out").is_not_null()
    has_splits |= (pl.col("collective") == "all_to_all") & unequal
    return instances.with_columns(
        pl.col("start", "end") + shift,
        pl.when(has_splits).then(pl.col("elements_in", "elements_out", "splits_in")),
        collective=pl.coalesce("collective", kernel),
        replayed=pl.col("correlation").is_in(replays.graph_launches(trace).unique().implode()),
    ).select(pl.col(name).cast(dtype) for name, dtype in INSTANCES.items())


def _in_steps(instances: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add the step in which the host issued each collective; null between steps.

    If the host call is not recorded, the start of the collective counts, which may lie in the next
    step on a device that lags behind its host; but collectives before the first one with a host
    call were issued before the recording began.
    """
    first_known = instances.filter(pl.col("issued").is_not_null())["start"].min()
    after = pl.lit(value=True) if first_known is None else pl.col("start") >= first_known
    known = instances.select(pl.col("issued").is_not_null() | after).to_series()
    row = device_steps.launching_step(steps, instances["issued"], instances["start"])
    step = steps["step"].gather(row) if steps.height else row.cast(pl.String)
    return instances.with_columns(step=pl.when(known).then(step))


def comm_outliers(
    inputs: Inputs,
    *,
    baseline: Inputs | None = None,
    memory: Inputs = (),
    factor: float = 3.0,
    z: float = 3.5,
    comm_patterns: str | Sequence[str] = (),
    min_wait_ns: int | None = None,
    by: By | None = None,
    **reading: Unpack[Reading],
) -> CommOutliers:
    """Which collectives took unusually long, which rank is the straggler, and what did it do?

    Files are read only as far as needed: device work and annotations of every file, launch calls
    if they are required to join kernels to collectives, and host events only of stragglers in the
    intervals in which other ranks waited. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them, one per rank. Memory snapshots
            among them are used as ``memory``.
        baseline: traces of another run, to compare each group's median with.
        memory: memory snapshots, or traces with ``[memory]`` instants: was the device nearly full
            when collectives were slow?
        factor: an outlier takes longer than this many times its group's median ...
        z: ... and has a modified z-score above this.
        comm_patterns: regular expressions of further kernel names that are communication.
        min_wait_ns: smallest reported arrival delay; default a tenth of the median step, 1 ms
            without steps.
        by: ``pair`` lists the tokens from each rank to each other first.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no communication in the inputs or in the baseline, or no memory data in the
            inputs of ``memory``.
        OptionError: a pattern or a number is invalid.
    """
    traces, snapshots = without_snapshots(each(inputs), reading.get("format"))
    options = Options(
        baseline, (*snapshots, *each(memory)), factor, comm_patterns, z, min_wait_ns, by
    )
    return run(COMM_OUTLIERS, traces, options, **reading)
