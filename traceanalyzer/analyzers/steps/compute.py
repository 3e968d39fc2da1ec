"""Steps of each rank and their parts, combined over all ranks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import clocks, device_steps, device_work, display, step_marks
from traceanalyzer.analyzers.common.columns import joined as joined_tables, stacked
from traceanalyzer.analyzers.common.names import mapped, matching, named
from traceanalyzer.analyzers.steps import By, Options, engine, result, slow_steps
from traceanalyzer.analyzers.steps.engine import PHASE
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, of_kinds, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS, MEMORY_SNAPSHOT

_ANNOTATIONS = ("user_annotation", "nvtx", "other")
_ON_DEVICE = (*DEVICE_WORK, *LAUNCH_KINDS)
_UNUSED = ("external_id", "bytes")

#: Names of Composer's slices of the loop around a batch. The loader runs before its batch.
_HOST_PATTERNS = {
    "dataloader": r"^(?:event/dataloader|dataloader/)",
    "forward": r"^(?:event/)?forward$",
    "backward": r"^(?:event/)?backward$",
}

#: Annotations of something within a step, which are never a step.
_NO_STEP = re.compile(r"(?i)^(?:[nrxmh]cclx?:|gloo:|Optimizer\.|enumerate\(|callback/|algorithm/)")

#: Number of names suggested if no steps are marked.
_SUGGESTED = 5

#: Longer names are not suggested as steps.
_LONGEST = 60

#: A time between files that is this many times as long as the longest step is not recorded.
_PAUSE = 10

#: Device work between steps is no remainder of a step from this share of the median step on.
_EXTRA = 0.05

#: Name of a file of torch.profiler's tensorboard_trace_handler: host and process, time of writing.
_OF_HANDLER = re.compile(r"(?P<process>.*\.)\d{10,}\.pt\.trace\.json(?:\.gz)?")

#: Labels of parts that grew; communication and copies mean their exposed parts.
_SHORT = {
    part: label.removeprefix("exposed ")
    for part, label in (device_work.PART_NAMES | result.HOST_PARTS).items()
}

#: Key of a recording.
RECORDING = ("rank", "path")

_WARM_UP = pl.col("warm_up")


def needs(options: Options) -> Needs:
    """Device work, its launch calls, and slices that may mark steps.

    All host slices if ``step_name`` is given.
    """
    if options.step_name is None:
        return Needs({*_ON_DEVICE, *_ANNOTATIONS}, step_marks.MARK_NAMES, unused=_UNUSED)
    return Needs({*_ON_DEVICE, *step_marks.MARK_KINDS}, unused=_UNUSED)


@dataclass(frozen=True)
class Part:
    """One rank's steps.

    Attributes:
        rank: global rank, or None if the file has none.
        path: the file.
        epoch_ns: absolute time of the trace's ts 0, or None.
        start_ns: time of the file's first event, or None.
        steps: one row per step and device, or per step without device work: device, step, start
            and end on the device, ``host_start``, ``host_end``, ``before_busy_ns`` (time since the
            end of the previous step in which any device runs work), the columns of
            :func:`~traceanalyzer.analyzers.common.device_work.measure_parts` (null without device
            work), and ``dataloader_ns`` (since the end of the previous step), ``forward_ns``,
            ``backward_ns`` (within the step), null if Composer did not record them.
        by_kernels: the steps are inferred from kernels, not marked.
        exposed: exposed host time before steps of an engine, see :class:`~.engine.Measured`; of
            ``steps``, mode and ``exposed_ns`` are columns of ``steps``.
        of_snapshot: they are marks of a memory snapshot, which repeat those of a trace.
        only_slow: rows of :func:`~.slow_steps.only_slow`; None if not requested.
        between: rows of :func:`~.slow_steps.between`; None if not requested.
        code: rows of :func:`~.slow_steps.code`; None if not requested.
        growing: rows of :func:`~.slow_steps.growing`; None if not requested.
        doubles: rows of :func:`~.slow_steps.doubles`; None if not requested.
        host_memory: rows of :func:`~.slow_steps.host_memory`; None if not requested.
        contended: rows of :func:`~.slow_steps.contended`; None if not requested.
    """

    rank: int | None
    path: str
    epoch_ns: int | None
    start_ns: int | None
    steps: pl.DataFrame
    by_kernels: bool
    exposed: pl.DataFrame
    of_snapshot: bool = False
    only_slow: pl.DataFrame | None = None
    between: pl.DataFrame | None = None
    code: pl.DataFrame | None = None
    growing: pl.DataFrame | None = None
    doubles: pl.DataFrame | None = None
    host_memory: pl.DataFrame | None = None
    contended: pl.DataFrame | None = None


def measure(trace: Trace, options: Options) -> Part:
    """Return the steps of one rank.

    Raises:
        MissingData: no steps are marked, or no slice's name matches ``step_name``.
        OptionError: ``step_name`` is not a regular expression.
    """
    marks = _steps(trace, options)
    if marks.is_empty() and options.step_every is not None:
        raise MissingData(
            f"{trace.meta.path}: no kernel matches --step-every {options.step_every!r}"
        )
    if marks.is_empty():
        raise MissingData(_no_steps(trace, options.step_name))
    parts = _host_parts(trace, device_steps.on_host(marks))
    of_engine = engine.measured(trace, marks)
    marks = marks.with_columns(_busy_before(trace, marks)).hstack(parts).hstack(of_engine.steps)
    of_devices = device_work.per_device(marks, device_work.device_work(trace))
    measured = device_work.measure_parts(device_work.runs(trace), of_devices)
    columns = ["step", "start", "end", "host_start", "host_end", "before_busy_ns", *parts.columns]
    columns += of_engine.steps.columns
    steps = (
        marks[columns]
        .join(measured.drop("rank", "end"), on=["step", "start"], how="left")
        .sort("start", "device")
    )
    meta = trace.meta
    by_kernels = step_marks.by_kernels(marks)
    return Part(
        meta.rank, meta.path, meta.epoch_ns, meta.start_ns, steps, by_kernels=by_kernels,
        exposed=of_engine.exposed, of_snapshot=meta.format == MEMORY_SNAPSHOT,
    )  # fmt: skip


def measure_for_diagnosis(trace: Trace, options: Options) -> Part:
    """Return the part of :func:`measure` with slices only in slow steps or between steps.

    Raises:
        MissingData: no steps are marked.
    """
    part = measure(trace, options)
    calls = trace.kept(slow_steps.calls_of_steps(trace, part.steps))
    return replace(
        part,
        only_slow=slow_steps.only_slow(trace, part.steps, calls),
        between=slow_steps.between(trace, part.steps),
        code=slow_steps.code(trace, part.steps),
        growing=slow_steps.growing(trace, part.steps, calls),
        doubles=slow_steps.doubles(trace, part.steps),
        host_memory=slow_steps.host_memory(trace, part.steps),
        contended=slow_steps.contended(trace, part.steps, calls),
    )


def _steps(trace: Trace, options: Options) -> pl.DataFrame:
    """Return the marked steps, or those inferred from kernels if requested or none is marked."""
    if options.step_every is not None:
        return device_steps.on_device(trace, step_marks.repeated(trace, options.step_every))
    steps = device_steps.device_steps(trace, options.step_name)
    return device_steps.on_host(steps) if options.by == "window" else steps


def _busy_before(trace: Trace, steps: pl.DataFrame) -> pl.Series:
    """Return how long any device runs work between each step and the one before."""
    before = pl.coalesce(pl.col("end").shift(1), "start")
    windows = steps.select(start=pl.min_horizontal(before, "start"), end="start")
    busy = device_work.runs(trace).all_work[["start", "end"]]
    return intervals.overlap_with(windows, busy)["overlap"].alias("before_busy_ns")


def combine(parts: Sequence[Part], options: Options) -> Steps:
    """Combine the steps of all ranks, and compare ranks."""
    parts, notes = _marked_once(parts)
    rows = step_marks.with_phases(joined(parts))
    on = display.places(rows.drop("device"))
    known = rows["compute_ns"].null_count() < rows.height
    within = tuple(device_work.PART_NAMES if known else result.HOST_PARTS)
    steps = judged(rows, within).with_columns(on)
    ranks = by_recording(steps)
    exposed = joined_tables(parts, "exposed")
    return Steps(
        steps=steps,
        ranks=ranks.with_columns(display.places(ranks)),
        common=common(steps, within),
        phases=engine.by_phase(steps),
        exposed=exposed,
        scheduler=engine.by_function(exposed, steps.unique([*RECORDING, "number"])),
        by_kernels=any(part.by_kernels for part in parts),
        by=options.by,
        only_slow=_with_sources(parts, "only_slow"),
        between=_with_sources(parts, "between"),
        code=_with_sources(parts, "code"),
        growing=_with_sources(parts, "growing"),
        doubles=_with_sources(parts, "doubles"),
        host_memory=_with_sources(parts, "host_memory"),
        contended=_with_sources(parts, "contended"),
        input_notes=notes,
    )


def more(parts: Sequence[Part], options: Options) -> Needs | None:
    """Return what names the code that an inference engine runs while the devices wait for it."""
    if not any(part.exposed.height for part in parts):
        return None
    first = needs(options)
    return replace(first, kinds={*first.kinds, "python_function", "cpu_op"})


STEPS = Analyzer(
    "steps",
    Options,
    needs,
    measure,
    combine,
    more=more,
    measure_for={"page": measure_for_diagnosis},
)


# --- one rank ------------------------------------------------------------------------------


def _host_parts(trace: Trace, marks: pl.DataFrame) -> pl.DataFrame:
    """Return how long each of :data:`_HOST_PATTERNS` ran on the step's thread; null if never."""
    lane = ["pid", "tid"]
    if not matching(trace.names, [*_HOST_PATTERNS.values()]):
        names = (f"{part}_ns" for part in _HOST_PATTERNS)
        return pl.DataFrame([intervals.nulls(name, pl.Int64, marks.height) for name in names])
    slices = trace.events.select(
        "kind", "name", *lane, start="ts", end=pl.col("ts") + pl.col("dur")
    ).filter(pl.col("kind") == "other", pl.col("end").is_not_null())
    by_part = {part: slices.filter(named(slices, [name])) for part, name in _HOST_PATTERNS.items()}
    before = pl.coalesce(pl.col("end").shift(1), pl.lit(slices["start"].min(), pl.Int64), "start")
    since = marks.select(*lane, "end", start=pl.min_horizontal("start", before))
    windows = {"dataloader": since, "forward": marks, "backward": marks}
    return pl.DataFrame(
        [_within(windows[part], rows, lane).alias(f"{part}_ns") for part, rows in by_part.items()]
    )


def _within(windows: pl.DataFrame, rows: pl.DataFrame, lane: list[str]) -> pl.Series:
    if rows.is_empty():
        return pl.repeat(None, windows.height, dtype=pl.Int64, eager=True)
    return intervals.overlap_with(windows[[*lane, "start", "end"]], rows, lane)["overlap"]


def _no_steps(trace: Trace, step_name: str | None) -> str:
    """Return the error text with a recording hint and suggestions."""
    if trace.meta.complete_until is not None and step_name is None:
        return f"{trace.meta.path}: no step is complete, because the file is truncated"
    if trace.meta.window != (None, None) and step_name is None:
        return f"{trace.meta.path}: no step lies completely inside the time window; widen it"
    hint = record_hint(trace.meta, "step")
    text = (
        f"no steps are marked, and no sequence of kernels repeats; {hint} and name them with "
        "--step-name REGEX, or name a kernel that runs once per step with --step-every REGEX"
        if step_name is None
        else f"no host slice matches --step-name {step_name!r}"
    )
    names = _suggestions(trace)
    maybe = f". Annotations that may be steps: {', '.join(names)}" if names else ""
    return f"{trace.meta.path}: {text}{maybe}"


#: Categories of VizTracer's function calls, which are no annotations.
_CALLS = ("fee", "FEE")


def _suggestions(trace: Trace) -> list[str]:
    """Return the most frequent annotations, with numbers replaced."""
    is_call = pl.col("category").is_in(_CALLS).fill_null(value=False)
    marks = trace.events.filter(of_kinds(_ANNOTATIONS), pl.col("dur") > 0, ~is_call)
    plain = mapped(marks["name"], _without_numbers).drop_nulls().alias("name")
    counts = plain.filter(plain.str.len_chars() <= _LONGEST).value_counts(name="n")
    most = counts.sort("n", "name", descending=[True, False]).head(_SUGGESTED)
    return [f"{name!r} ({n:,} times)" if n > 1 else repr(name) for name, n in most.iter_rows()]


def _without_numbers(name: str) -> str | None:
    return None if _NO_STEP.match(name) else re.sub(r"\d+", "#", name)


# --- all ranks -----------------------------------------------------------------------------


def _with_sources(parts: Sequence[Part], table: str) -> pl.DataFrame | None:
    """A table of all parts that have it, with rank and path; None where none has it."""
    known = [part for part in parts if getattr(part, table) is not None]
    return joined_tables(known, table) if known else None


def _marked_once(parts: Sequence[Part]) -> tuple[list[Part], tuple[str, ...]]:
    """Select the parts with the steps to count, and return a note for each other part.

    Snapshots mark the steps of a trace again.
    Composer and PyTorch's profiler mark the same steps of a rank in separate files. As in one
    file, PyTorch's marks count, else Composer's batches, else steps inferred from kernels.
    """

    def order(part: Part) -> int:
        return 2 if part.by_kernels else int(step_marks.of_composer(part.steps["step"]))

    parts = [part for part in parts if not part.of_snapshot] or parts
    first: dict[int | None, Part] = {}
    for part in sorted(parts, key=order):
        first.setdefault(part.rank, part)
    counted, notes = [], []
    for part in parts:
        other = first[part.rank]
        if part.rank is not None and order(part) == order(other) + 1:
            notes.append(f"Skipped: {part.path}: {other.path} marks the same steps.")
        else:
            counted.append(part)
    return counted, tuple(notes)


def joined(parts: Sequence[Part]) -> pl.DataFrame:
    """Join the steps of all parts by rank and time.

    Files of one rank whose steps do not overlap in time are parts of one recording, as Composer and
    torch.profiler's schedule write them; so are those of one process without a rank, by their
    names. Rank and path are the key of a recording.

    Returns:
        rank, path (of the recording's first file), number (of the step in its recording, from 0),
        the columns of :attr:`Part.steps` with ``at_ns`` (see :func:`~.clocks.axis`) and
        ``duration_ns`` for start and end, and ``before_ns``, the time since the end of the
        previous step without device work, null for the first and after a pause of the profiler.
    """
    ordered = sorted(parts, key=lambda part: (part.rank is None, part.rank or 0, part.path))
    recordings = [
        recording
        for _, group in groupby(ordered, key=lambda part: (part.rank, _process(part)))
        for recording in _recordings(list(group))
    ]
    rows = _on_one_clock(recordings)
    of = pl.DataFrame(
        {
            "recording": range(len(recordings)),
            "rank": [files[0].rank for files in recordings],
            "path": [files[0].path for files in recordings],
        },
        schema_overrides={"recording": pl.UInt32, "rank": pl.Int32},
    )
    numbered = rows.with_columns(
        number=pl.col("start").rank("dense").over("recording").cast(pl.Int64) - 1
    )
    known = numbered.join(
        _before(rows), on=["recording", "start"], how="left", maintain_order="left"
    )
    return known.join(of, on="recording", maintain_order="left").select(
        "rank",
        "path",
        "number",
        "step",
        "device",
        "at_ns",
        (pl.col("end") - pl.col("start")).alias("duration_ns"),
        "before_ns",
        pl.exclude(
            "rank", "path", "number", "step", "device", "at_ns", "start", "end", "before_ns",
            "before_busy_ns", "host_start", "host_end", "file", "recording",
        ),
    )  # fmt: skip


def _process(part: Part) -> str:
    """Return what is the same for the files of a process: its rank, or the start of their names."""
    if part.rank is not None:
        return str(part.rank)
    name = _OF_HANDLER.fullmatch(part.path)
    return name["process"] if name else part.path


def _recordings(parts: list[Part]) -> list[list[Part]]:
    """Group the files of a process: one recording in order of time, or one recording per file."""
    known = all(part.epoch_ns is not None for part in parts)
    spans = [_span(part, part.epoch_ns or 0 if known else 0) for part in parts]
    order = sorted(range(len(parts)), key=spans.__getitem__)
    apart = all(spans[a][1] <= spans[b][0] for a, b in pairwise(order))
    return [[parts[number] for number in order]] if apart else [[part] for part in parts]


def _span(part: Part, epoch_ns: int) -> tuple[int, int]:
    first, last = part.steps.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return first + epoch_ns, last + epoch_ns


def _on_one_clock(recordings: Sequence[Sequence[Part]]) -> pl.DataFrame:
    """Return the steps of all recordings, with the numbers of ``recording`` and its ``file``.

    ``at_ns`` is the start on the axis of all recordings, see :func:`~.clocks.axis`.
    """
    files = [
        (part.steps, number, file, part.epoch_ns or 0 if _is_absolute(recording) else 0)
        for number, recording in enumerate(recordings)
        for file, part in enumerate(recording)
    ]
    steps, number, file, shift = zip(*files, strict=True)
    parts = [part for recording in recordings for part in recording]
    rows = stacked(
        steps,
        recording=pl.Series(number, dtype=pl.UInt32),
        file=pl.Series(file, dtype=pl.Int32),
        shift=pl.Series(shift, dtype=pl.Int64),
        on_axis=clocks.axis(parts, "steps", [_process(part) for part in parts])[0],
    )
    rows = rows.with_columns(
        pl.col("start", "end") + pl.col("shift"), at_ns=pl.col("start") + pl.col("on_axis")
    ).drop("shift", "on_axis")
    if len(steps) == len(recordings):
        return rows
    several = pl.col("file").max().over("recording") > 0
    renumbered = [_renumbered(one) for one in rows.filter(several).partition_by("recording")]
    return pl.concat([rows.filter(~several), *renumbered]).sort("recording", maintain_order=True)


def _is_absolute(recording: Sequence[Part]) -> bool:
    return all(part.epoch_ns is not None for part in recording)


def _before(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the idle time and the device work since the previous step, by recording and start."""
    columns = ["recording", "start", "end", "file", "step", "before_busy_ns"]
    steps = rows[columns].unique().sort("recording", "start")
    since = pl.col("start") - pl.col("end").shift(1)
    # a longer time between files, or one in which numbers are missing, is a pause of the profiler
    longest = (pl.col("end") - pl.col("start")).max()
    number = pl.col("step").str.extract(r"(\d+)(?: \[\d+\])?$").cast(pl.Int64, strict=False)
    follows = (number - number.shift(1) <= 1).fill_null(value=True)
    same_file = pl.col("file") == pl.col("file").shift(1)
    recorded = same_file | (follows & (since <= _PAUSE * longest))
    return steps.select(
        "recording",
        "start",
        before_ns=pl.when(recorded).then(since - pl.col("before_busy_ns")).over("recording"),
        before_work_ns=pl.when(recorded).then("before_busy_ns").over("recording"),
    )


def _renumbered(rows: pl.DataFrame) -> pl.DataFrame:
    """Number step names across files if several files use them: ``event/batch [7]``."""
    plain = rows.with_columns(plain=step_marks.STEP)
    again = pl.format("{} [{}]", "plain", pl.col("start").rank("dense").over("plain"))
    several = pl.col("start").n_unique().over("plain") > 1
    named = pl.when(several).then(again).otherwise("step")
    return plain.with_columns(step=named).drop("plain")


# --- statistics --------------------------------------------------------------------------------


def judged(steps: pl.DataFrame, parts: Collection[str]) -> pl.DataFrame:
    """Add ``warm_up`` to the steps, and how they differ from their recording's median.

    Args:
        steps: see :func:`joined`, with ``phase`` and ``batch``: steps of an inference
            engine are compared within phase and batch, and are never warm-up.
        parts: columns of ``steps`` with the parts of its duration.

    Returns:
        ``steps`` with warm_up; ratio, the duration over the median of the steps without warm-up;
        and, for steps longer than that, grown, the part that exceeds its median most (compute,
        communication, copies, idle, forward, backward; exposed parts only), and grown_ns, by how
        much; null if no parts are known.
    """
    each = steps.unique([*RECORDING, "number"], keep="first", maintain_order=True).sort("number")
    recordings = each.group_by(RECORDING).agg("duration_ns", pl.col("phase").is_not_null().any())
    leading = [
        0 if of_engine else device_steps.warm_up(durations)
        for durations, of_engine in recordings[["duration_ns", "phase"]].iter_rows()
    ]
    counts = recordings.select(*RECORDING, _leading=pl.Series(leading, dtype=pl.Int64))
    marked = steps.join(counts, on=RECORDING, how="left", nulls_equal=True, maintain_order="left")
    marked = marked.with_columns(warm_up=pl.col("number") < pl.col("_leading")).drop("_leading")
    usual = pl.col("duration_ns").filter(~_WARM_UP).median().over(*RECORDING, *PHASE)
    return marked.with_columns(
        ratio=pl.col("duration_ns") / usual, **_growth(parts, usual, [*RECORDING, *PHASE, "device"])
    )


def _growth(parts: Collection[str], usual: pl.Expr, lane: Sequence[str]) -> dict[str, pl.Expr]:
    """Return ``grown`` and ``grown_ns``: the part of longer rows that exceeds its median most."""
    more = {
        part: pl.col(part) - pl.col(part).filter(~_WARM_UP).median().over(lane) for part in parts
    }
    most = pl.max_horizontal(*more.values()) if more else pl.lit(None, pl.Float64)
    longer = (pl.col("duration_ns") > usual) & (most > 0)
    which = pl.coalesce(
        *(pl.when(growth == most).then(pl.lit(_SHORT[part])) for part, growth in more.items()),
        pl.lit(None, pl.String),
    )
    return {
        "grown": pl.when(longer).then(which),
        "grown_ns": pl.when(longer).then(most.round().cast(pl.Int64)),
    }


def by_recording(steps: pl.DataFrame) -> pl.DataFrame:
    """Summarize the steps of each recording, without warm-up.

    Returns:
        rank, path, steps (their number), warm_up (number of excluded steps); mean_ns, median_ns,
        std_ns (of the sample, null for a single step), min_ns, max_ns of the durations; cv_frac,
        std over mean; between_ns, the idle time between these steps, and between_frac, its share of
        the time from the first start to the last end; extra_ns, the device work between steps if
        it is in at most half of the pauses (more often, the marks do not cover a step),
        extra_count, their number, and extra_frac, its share of that time.
    """
    each = steps.unique([*RECORDING, "number"], keep="first", maintain_order=True)
    kept = each.filter(~_WARM_UP)
    length = pl.col("duration_ns")
    # the time before the first counted step is not between two steps
    inner = pl.col("before_ns").slice(1).sum()
    work = pl.col("before_work_ns").slice(1)
    is_large = work > _EXTRA * length.median()
    is_extra = is_large & (2 * is_large.sum() <= work.len())
    table = kept.group_by(RECORDING, maintain_order=True).agg(
        steps=pl.len().cast(pl.Int64),
        mean_ns=length.mean(),
        median_ns=length.median(),
        std_ns=length.std(),
        min_ns=length.min(),
        max_ns=length.max(),
        between_ns=inner,
        extra_ns=work.filter(is_extra).sum(),
        extra_count=is_extra.sum().cast(pl.Int64),
        _all=length.sum() + inner + work.sum(),
    )
    excluded = each.group_by(RECORDING).agg(warm_up=_WARM_UP.sum().cast(pl.Int64))
    return (
        table.join(excluded, on=RECORDING, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            cv_frac=pl.col("std_ns") / pl.col("mean_ns"),
            between_frac=pl.col("between_ns") / pl.col("_all"),
            extra_frac=pl.col("extra_ns") / pl.col("_all"),
        )
        .drop("_all")
    )


def common(steps: pl.DataFrame, parts: Collection[str]) -> pl.DataFrame:
    """Summarize the steps that at least two recordings have, without warm-up.

    Args:
        steps: see :func:`judged`, and ``on``, the label of the rank.
        parts: columns of ``steps`` with the parts of its duration.

    Returns:
        One row per step, in their order: step, ranks (their number), duration_ns (the median),
        slowest (``on`` of the slowest, the first of several), max_ns, spread_ns (max_ns minus the
        median), spread_frac (of the median); the means of parts over ranks and devices; ratio,
        duration_ns over the median of all steps, grown and grown_ns as in :func:`judged`.
    """
    each = steps.filter(~_WARM_UP)
    length = pl.col("duration_ns")
    table = (
        each.unique([*RECORDING, "number"], keep="first", maintain_order=True)
        .group_by("step", maintain_order=True)
        .agg(
            pl.col("number").min(),
            pl.col(PHASE).first(),
            ranks=pl.len().cast(pl.Int64),
            duration_ns=length.median(),
            slowest=pl.col("on").get(length.arg_max()),
            max_ns=length.max(),
            warm_up=pl.lit(value=False),
        )
        .filter(pl.col("ranks") > 1)
        .sort("number", "step")
    )
    means = each.group_by("step").agg(pl.col(parts).mean())
    usual = length.median().over(PHASE)
    return (
        table.join(means, on="step", how="left", maintain_order="left")
        .with_columns(
            spread_ns=pl.col("max_ns") - length,
            spread_frac=(pl.col("max_ns") - length) / length,
            ratio=length / usual,
            **_growth(parts, usual, ["warm_up", *PHASE]),
        )
        .drop("number", "warm_up", *PHASE)
    )


def steps(
    inputs: Inputs,
    *,
    step_name: str | None = None,
    step_every: str | None = None,
    by: By = "launch",
    **reading: Unpack[Reading],
) -> Steps:
    """Return step times, their variation, and the parts of slow steps.

    Only device work, its launch calls and slices that may mark steps are read.

    Args:
        inputs: a trace, a file or a folder, or several of them. Several files of one rank whose
            steps do not overlap are parts of one recording.
        step_name: a regular expression; host slices whose name it matches are the steps. Default:
            see :func:`~traceanalyzer.analyzers.common.step_marks.step_marks`.
        step_every: a regular expression; a step begins at each kernel whose name it matches.
            Default if no steps are marked:
            see :func:`~traceanalyzer.analyzers.common.step_marks.repeated`.
        by: ``launch``: device work counts for the step that launched it, see
            :func:`~traceanalyzer.analyzers.common.device_steps.device_steps`; ``window``: it counts
            for the step on the host in which it runs.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no steps are marked, and no sequence of kernels repeats.
        OptionError: ``step_name`` or ``step_every`` is not a regular expression.
    """
    return run(STEPS, inputs, Options(step_name, step_every, by), **reading)
