"""Idle time by cause: the gaps of each rank's devices, joined over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import clocks, device_work
from traceanalyzer.analyzers.common.columns import grouped, stacked
from traceanalyzer.analyzers.common.device_steps import is_warm_up
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE, MEMORY
from traceanalyzer.analyzers.common.gpu_api import Api, joined_api
from traceanalyzer.analyzers.common.step_marks import by_kernels, with_phases
from traceanalyzer.analyzers.common.waits import WAITS_FOR_REQUESTS
from traceanalyzer.analyzers.gpu_idle import By, Options, causes, gaps as losing, host, longest_gaps
from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSE, CAUSES
from traceanalyzer.analyzers.gpu_idle.gaps import Coverage, drained, queued, with_launches
from traceanalyzer.analyzers.gpu_idle.host import Excerpt, HostTime, take
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.frames import intervals, linking
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.vocabulary import (
    ALLOCATES,
    ANNOTATION_KINDS,
    DEVICE_WORK,
    LOAD_MODULE,
    OTHER_CALLS,
)

#: Columns of times: busy, then idle time by cause. They add up to end - start.
TIMES = tuple(f"{part}_ns" for part in (BUSY, *CAUSES))

#: Those, time in the loader, in copies of batches, in the loader while the device was busy, and
#: exposed communication.
MEASURES = (*TIMES, "loader_ns", "copy_ns", "overlapped_loader_ns", "exposed_communication_ns")
_UNIT = ["unit"]
_INTERVAL = ["unit", "start", "end"]

#: Causes for which more evidence is read.
_UNEXPLAINED = [causes.HOST_CODE, causes.UNKNOWN, causes.DATALOADING, causes.CHECKPOINT_IO]


#: Device work and host activity.
NEEDS = Needs({*DEVICE_WORK, *host.HOST, host.OVERHEAD, "cuda_sync"}, unused=("external_id",))


@dataclass(frozen=True)
class Part(clocks.Origin):
    """One rank's devices, or its main thread without recorded device work.

    Attributes:
        coverage: what was recorded.
        program: its GPU API and framework.
        host: data loading and file access.
        units: unit (number), device, pid, start, end and :data:`MEASURES`.
        causes: unit, cause, gaps (idle intervals with the cause), idle_ns, longest_ns.
        lost: unit, cause, start, end: all idle time, exposed communication and exposed copies;
            None unless requested.
        steps: unit, step, start, end and :data:`MEASURES`.
        gaps: rows of :func:`~.longest_gaps.longest`.
        gap_count: number of idle gaps that are not short.
        by_device: the same with one unit per device, if units are processes.
    """

    coverage: Coverage
    program: Api
    host: HostTime
    units: pl.DataFrame
    causes: pl.DataFrame
    lost: pl.DataFrame | None
    steps: pl.DataFrame
    gaps: pl.DataFrame
    gap_count: int
    by_device: Part | None = None


def _synchronising(excerpt: Excerpt) -> pl.DataFrame:
    """Return when a thread waits for the device.

    An engine that waits for requests reads numbers of other processes, not of the device.
    """
    waits = host.calls(excerpt, causes.SYNCHRONISING)
    requests = excerpt.named(["python_function"], [WAITS_FOR_REQUESTS])
    if requests.is_empty():
        return waits
    return intervals.subtract(waits, excerpt.of_units(requests), _UNIT)


def measure(excerpt: Excerpt, options: Options, *, with_lost: bool = False) -> Part:
    """Return one rank's idle time by cause.

    Args:
        excerpt: one rank.
        options: options of the analysis.
        with_lost: whether to add :attr:`Part.lost`.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    loading = host.loading(excerpt, options.dataloader)
    loader, copies = excerpt.of_units(loading), host.copying(excerpt)
    busy, units = _busy(excerpt, loader), _spans(excerpt)
    profiler = intervals.subtract(_profiling(excerpt, units), busy, _UNIT)
    idle = with_launches(excerpt, intervals.gaps(pl.concat([busy, profiler]), _UNIT, units))
    waits = pl.concat([_synchronising(excerpt), host.blocking_copies(excerpt)])
    due, soon = drained(excerpt, idle, busy, waits)
    is_late = (pl.col("launched") > pl.col("start")).fill_null(value=False)
    long = pl.col("end") - pl.col("start") >= options.min_gap_ns
    short = ~(long | (is_late & pl.Series(intervals.meets(idle, due))))
    gaps, short_gaps, late_launches = map(idle.filter, (~short, short & ~is_late, short & is_late))
    del idle  # of millions of gaps
    near = replace(excerpt, slices=excerpt.slices.filter(intervals.meets(excerpt.slices, gaps)))
    little, files = host.blocking_little(excerpt), host.accessing_files(near, excerpt)
    on_cpu = host.computing(near.slices, near.names, near.launched)
    synced = (waits, due, intervals.subtract(soon, near.of_units(on_cpu), _UNIT))
    on_host = (files, on_cpu, rivals := longest_gaps.rivals_of(excerpt))
    idle_of = _by_first_cause(excerpt, near, gaps, loader, copies, little, synced, on_host)
    idle_of |= {causes.PROFILER: profiler, causes.SHORT_GAP: short_gaps}
    idle_of[causes.LAUNCH] = pl.concat([idle_of[causes.LAUNCH], late_launches[_INTERVAL]])
    cuts = longest_gaps.cuts(near, gaps, idle_of[causes.HOST_CODE])
    idle_of[causes.HOST_CODE] = linking.divided(idle_of[causes.HOST_CODE], cuts, _UNIT)
    pieces = [idle_of[cause] for cause in CAUSES]
    caused = losing.labelled(pieces, pl.Series(CAUSES, dtype=CAUSE))
    exposed, alone = _exposed(excerpt), _copies(excerpt, little, rivals) if with_lost else []
    windows = [busy, *pieces, loader, copies, intervals.intersect(loader, busy, _UNIT), exposed]
    measured = _measured(units, excerpt.steps, windows)
    parts, fills = linking.divided(gaps.filter(long), cuts, _UNIT), [files[on_cpu.columns], on_cpu]
    longest = longest_gaps.longest(excerpt, parts, caused, fills, rivals, options.library_names)
    return Part(
        **clocks.origin(excerpt),
        coverage=_coverage(excerpt, longest["cause"]),
        program=excerpt.program,
        host=HostTime(
            loader=host.loader_slices(loading),
            loader_code=host.loader_code(excerpt, loading),
            file_calls=host.file_calls(near, files, pl.concat(idle_of[n] for n in _UNEXPLAINED)),
            copies_pinned=host.copies_pinned(excerpt),
            waits=losing.waits(excerpt, waits, idle_of[causes.SYNCHRONISATION], options),
            regions=_compiled_regions(excerpt),
        ),
        units=measured.head(units.height).drop("step"),
        causes=_by_cause(caused),
        lost=losing.lost([*pieces, exposed, *alone]) if alone else None,
        steps=measured.tail(-units.height).drop("device", "pid"),
        gaps=longest,
        gap_count=gaps.select(long.sum()).item(),
        by_device=measure(excerpt.by_device, options) if excerpt.by_device else None,
    )


def _compiled_regions(excerpt: Excerpt) -> int:
    """Return the number of calls of regions that torch.compile compiled."""
    names = (causes.LOOKS_UP, causes.REGION)  # of older and newer versions, or both
    looks_up, calls = (excerpt.named(("cpu_op", *ANNOTATION_KINDS), [name]) for name in names)
    if calls.height and calls["name"].n_unique() == 1:  # one graph, called for each micro-batch
        return 0
    return max(looks_up.height, calls.height)


def _profiling(excerpt: Excerpt, units: pl.DataFrame) -> pl.DataFrame:
    """Return when the profiler runs: recorded overhead, and its functions within the units."""
    functions = excerpt.of_units(excerpt.named(("python_function",), [causes.PROFILES]))
    return pl.concat([excerpt.overhead, intervals.intersect(functions, units, _UNIT)])


def _coverage(excerpt: Excerpt, causes_of_gaps: pl.Series) -> Coverage:
    unexplained = causes_of_gaps.is_in(_UNEXPLAINED).any()
    return Coverage(
        on_host=excerpt.on_host,
        work_lost=excerpt.work_lost,
        host_known=excerpt.slices.height > 0,
        launches_known=excerpt.launched.height > 0 or excerpt.on_host,
        stacks_known=excerpt.stacks_read,
        steps_by_kernels=by_kernels(excerpt.steps),
        unread_samples=excerpt.samples_recorded and not excerpt.stacks_read and unexplained,
        graph_gaps=excerpt.graph_gaps,
        unread_targets=excerpt.unread_targets and (causes_of_gaps == causes.DEVICE_WAIT).any(),
        hints=excerpt.hints,
    )


def _by_first_cause(
    excerpt: Excerpt,
    near: Excerpt,
    gaps: pl.DataFrame,
    loader: pl.DataFrame,
    copies: pl.DataFrame,
    little: pl.DataFrame,
    synced: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
    on_host: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
) -> dict[str, pl.DataFrame]:
    """Divide gaps by the first cause that applies, in the order of the causes here.

    After the host waited for the device, launching counts as synchronisation, and in short gaps
    other host code. An inference engine has to read the tokens of each step: there, only short gaps
    count. While another Python thread slows launches down, they are host code.
    """
    (synchronising, due, soon), (files, on_cpu, rivals) = synced, on_host
    waits, prompt = queued(gaps)
    calls = host.classified(near)
    loading = host.in_class(near, calls, LOAD_MODULE, least_ns=causes.LONG_CALL_NS)
    launching = pl.concat([host.launching(near, calls, on_cpu), prompt])
    of_engine = with_phases(excerpt.steps)["phase"].count() > 0
    due = due.clear() if of_engine else intervals.intersect(due, launching, _UNIT)
    when = {
        causes.DEVICE_WAIT: waits,
        causes.DATALOADING: loader,
        causes.BATCH_COPY: copies,
        causes.SMALL_COPIES: host.copying_little(near, little),
        causes.COMMUNICATOR: host.creating_communicators(excerpt, calls),
        causes.MODULE_LOADING: pl.concat([near.code_loading, loading]),
        causes.GRAPH_BUILDING: host.building_graphs(near, calls),
        causes.SYNCHRONISATION: synchronising,
        causes.MEMORY_MANAGEMENT: host.in_class(near, calls, *ALLOCATES),
        causes.CHECKPOINT_IO: pl.concat([host.saving(near), near.of_units(files)]),
        causes.PEER: near.collectives,
        _SLOWED: rivals.filter("slows")[_INTERVAL],
        _AFTER_WAIT: pl.concat([soon, due]),
        causes.API_CALLS: host.in_class(near, calls, *OTHER_CALLS, least_ns=causes.LONG_CALL_NS),
        causes.LAUNCH: launching,
        causes.HOST_CODE: host.extents(excerpt),
    }
    *divided, none = intervals.divide(gaps, list(when.values()), _UNIT)
    idle_of = dict(zip(when, divided, strict=True)) | {causes.UNKNOWN: none}
    for part, cause in ((_AFTER_WAIT, causes.SYNCHRONISATION), (_SLOWED, causes.HOST_CODE)):
        idle_of[cause] = pl.concat([idle_of[cause], idle_of.pop(part)])
    return idle_of


#: What is due to a wait for the device before it, and to another thread: see above.
_AFTER_WAIT, _SLOWED = "after_wait", "slowed"


def measure_with_lost(trace: Trace, options: Options) -> Part:
    """Return :func:`measure` with the intervals of all lost time.

    Raises:
        MissingData: neither device work nor operators were recorded.
        OptionError: a pattern is not a regular expression.
    """
    key = ("gpu_idle", options)
    return trace.once(key, lambda: measure(take(trace, options), options, with_lost=True))


def measure_for_report(trace: Trace, options: Options) -> Part:
    """Return :func:`measure_with_lost`, with short intervals merged if there are many.

    Raises:
        MissingData: neither device work nor operators were recorded.
        OptionError: a pattern is not a regular expression.
    """
    part = measure_with_lost(trace, options)
    work = device_work.device_work(trace, options.comm_patterns)
    of_units = work.join(part.units[["unit", "device"]], on="device", nulls_equal=True)
    return _merged(part, of_units, options)


def measure_for_rules(excerpt: Excerpt, options: Options) -> Part:
    """Return :func:`measure_for_report` without caching all intervals, which only timelines need.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    return _merged(measure(excerpt, options, with_lost=True), excerpt.work, options)


def _merged(part: Part, work: pl.DataFrame, options: Options) -> Part:
    """Merge short lost intervals; times in steps and from one collective to the next remain."""
    if part.lost is None or part.coverage.on_host or part.lost.height <= losing.MANY:
        return part
    starts = work.filter(pl.col("work_kind") == COMMUNICATION).select("unit", ts="start")
    marks = pl.concat([part.steps.select("unit", ts=side) for side in ("start", "end")] + [starts])
    return replace(part, lost=losing.merged(part.lost, marks, options.min_gap_ns))


def combine(parts: Sequence[Part], options: Options) -> GpuIdle:
    """Join the idle time of all ranks by cause."""
    shifts, one_clock = clocks.axis(parts, "units")
    key = ["rank", "path", "device", "pid"]
    gaps = _by_device(parts, "gaps", shifts).sort(
        pl.col("end") - pl.col("start"), *key, "start", descending=[True] + [False] * 5
    )
    by_cause = _by_device(parts, "causes", shifts).sort(
        *key, "idle_ns", "cause", descending=[False] * 4 + [True, False]
    )
    steps = _by_device(parts, "steps", shifts).sort(*key, "start", nulls_last=True)
    return GpuIdle(
        options=options,
        coverage=Coverage.joined([part.coverage for part in parts]),
        program=joined_api([part.program for part in parts]),
        host=HostTime.joined([part.host for part in parts]),
        units=_by_device(parts, "units", shifts).sort(key),
        causes=by_cause,
        lost=_by_device(parts, "lost", shifts).drop("at_ns")
        if all(part.lost is not None for part in parts)
        else None,
        steps=steps.with_columns(is_warm_up(steps, key)),
        gaps=gaps,
        gap_count=sum(part.gap_count for part in parts),
        one_clock=one_clock,
        whole=combine([part.by_device or part for part in parts], replace(options, by="device"))
        if options.by == "process"
        else None,
    )


def more(parts: Sequence[Part], _options: Options) -> Needs | None:
    """Return what to read to explain long gaps: sampled stacks, or targets of stream waits."""
    samples = any(part.coverage.unread_samples for part in parts)
    targets = any(part.coverage.unread_targets for part in parts)
    if not samples and not targets:
        return None
    columns = ("args",) if targets else ()
    return replace(NEEDS, kinds={*NEEDS.kinds, "sample"}, samples=samples, columns=columns)


GPU_IDLE = Analyzer(
    "gpu_idle",
    Options,
    NEEDS,
    measure,
    combine,
    take=take,
    more=more,
    measure_for={"page": measure_for_report, "findings": measure_for_rules},
    slow=True,
)


# --- busy time and spans ---------------------------------------------------------------------


def _busy(excerpt: Excerpt, loader: pl.DataFrame) -> pl.DataFrame:
    """Return when each unit's work runs.

    For a main thread: operators outside loading and saving, except waits for collectives.
    """
    if not excerpt.on_host:
        return _of_whole_devices(excerpt)
    waiting = pl.concat([loader, host.saving(excerpt), host.awaiting(excerpt)])
    return intervals.subtract(host.running(excerpt), waiting, _UNIT)


def _of_whole_devices(excerpt: Excerpt) -> pl.DataFrame:
    """Return when each unit's device is busy, with the work of any process on it."""
    devices = excerpt.units[["unit", "device"]]
    if devices["device"].n_unique() == devices.height:
        return intervals.union(excerpt.work, _UNIT)
    work = excerpt.work[["unit", "start", "end"]].join(devices, on="unit")
    union = intervals.union(work, ["device"]).join(devices, on="device", nulls_equal=True)
    return union[["unit", "start", "end"]]


def _spans(excerpt: Excerpt) -> pl.DataFrame:
    """Return the units with start and end: first to last work, extended to the marked steps.

    A truncated recording ends with its last work.
    """
    active = host.extents(excerpt) if excerpt.on_host else excerpt.work[["unit", "start", "end"]]
    active = host.until_end(active, excerpt.recorded_until)
    ends = grouped(active, _UNIT, start=pl.col("start").min(), end=pl.col("end").max())
    first, last = excerpt.steps["start"].min(), excerpt.steps["end"].max()
    extended = ends.select(
        "unit",
        start=pl.min_horizontal("start", pl.lit(first, pl.Int64)),
        end=pl.max_horizontal("end", pl.lit(last, pl.Int64)),
    )
    return excerpt.units.join(extended, on="unit", maintain_order="left")


# --- times -----------------------------------------------------------------------------------


def _exposed(excerpt: Excerpt) -> pl.DataFrame:
    """Return when communication runs without compute."""
    communication, compute = (_work_of(excerpt, kind) for kind in (COMMUNICATION, COMPUTE))
    return intervals.subtract(communication, compute, _UNIT)


def _copies(excerpt: Excerpt, little: pl.DataFrame, rivals: pl.DataFrame) -> list[pl.DataFrame]:
    """Return when copies and memsets run without kernels.

    Those of checkpoints and files, small copies that block the host, those during which another
    thread delays the launch of the next kernel, and others.
    """
    copies, kernels = _work_of(excerpt, MEMORY), _work_of(excerpt, COMPUTE, COMMUNICATION)
    alone = intervals.subtract(copies, kernels, _UNIT)
    slowed = rivals.filter("slows")[_INTERVAL]
    if slowed.height:
        until = with_launches(excerpt, intervals.gaps(kernels, _UNIT, _spans(excerpt)))
        at_once = pl.col("end") - pl.col("launched") <= causes.LAUNCH_LATENCY_NS
        slowed = intervals.intersect(slowed, until.filter(at_once), _UNIT)
    return intervals.divide(alone, [host.saving(excerpt), little, slowed], _UNIT)


def _work_of(excerpt: Excerpt, *kinds: str) -> pl.DataFrame:
    work = excerpt.work[["unit", "start", "end", "work_kind"]]
    return work.filter(pl.col("work_kind").is_in(kinds))


def _by_cause(caused: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("end") - pl.col("start")
    return caused.group_by("unit", "cause", maintain_order=True).agg(
        gaps=pl.len().cast(pl.Int64), idle_ns=length.sum(), longest_ns=length.max()
    )


def _measured(
    units: pl.DataFrame, steps: pl.DataFrame, windows: Sequence[pl.DataFrame]
) -> pl.DataFrame:
    """Return the units, and below them the steps of each unit, with :data:`MEASURES`."""
    marked = steps[["step", "start", "end"]].join(units[["unit"]], how="cross")
    rows = pl.concat([units, marked], how="diagonal")
    times = intervals.overlaps(rows[["unit", "start", "end"]], windows, _UNIT)
    return rows.hstack([time.alias(name) for name, time in zip(MEASURES, times, strict=True)])


# --- all ranks -----------------------------------------------------------------------------


def _by_device(parts: Sequence[Part], table: str, shifts: pl.Series) -> pl.DataFrame:
    """Return one table of all parts, with rank, path, device and pid in place of the unit.

    ``at_ns`` is the start on the axis, see :func:`~.clocks.axis`.
    """
    key, number = ["part", "unit"], pl.Series(range(len(parts)), dtype=pl.UInt32)
    units = stacked([part.units for part in parts], part=number)[[*key, "device", "pid"]]
    rows = clocks.on_axis(parts, table, shifts, part=number).drop("device", "pid", strict=False)
    named = units.join(rows, on=key, maintain_order="left_right").drop(key)
    if named.schema.get("cause") == pl.String:
        named = named.with_columns(pl.col("cause").cast(CAUSE))
    source = ("rank", "path", "device", "pid")
    return named.select(*source, pl.exclude(*source))


def gpu_idle(
    inputs: Inputs,
    *,
    min_gap_ns: int = 10_000,
    dataloader: str | Sequence[str] = (),
    comm_patterns: str | Sequence[str] = (),
    by: By = "device",
    library_names: str | Sequence[str] = (),
    step_name: str | None = None,
    **reading: Unpack[Reading],
) -> GpuIdle:
    """Why is the GPU idle, and what does waiting for the data loader cost?

    A gap is a maximal interval of a device's span in which no work runs on any of its streams.
    Each moment of it has one cause, the first of
    :data:`~traceanalyzer.analyzers.gpu_idle.causes.CAUSES` that matches the activity of the threads
    that launch the device's kernels; so the causes add up to the idle time. The span is from the
    first start to the last end of the device's work, extended to the marked steps.

    Without recorded device work, the thread that marks steps (otherwise the one with most time in
    operators) is analysed: it is busy in operators that are not part of data loading.

    Args:
        inputs: a trace, a file or a folder, or several of them, one per rank.
        min_gap_ns: shorter gaps count as ``short_gap``, the normal distance between kernels.
        dataloader: regular expressions of the host slices that are data loading, in place of
            :data:`~traceanalyzer.analyzers.gpu_idle.causes.DATALOADER`.
        comm_patterns: regular expressions of further kernels that are communication.
        by: ``device``; ``process``: a row per process on a device; ``step``: list steps first.
        library_names: libraries whose innermost Python frame is reported for each gap; none: the
            user's own code.
        step_name: a regular expression of the slices that are steps.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no file can be read.
        MissingData: neither device work nor operators were recorded.
        OptionError: an option is invalid.
    """
    options = Options(min_gap_ns, dataloader, comm_patterns, by, library_names, step_name)
    return run(GPU_IDLE, inputs, options, **reading)
