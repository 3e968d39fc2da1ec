"""Device time of all ranks by part (compute, communication, copies, idle), also over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import clocks, device_work, launching
from traceanalyzer.analyzers.common.columns import ratio, stacked
from traceanalyzer.analyzers.common.device_steps import device_steps, is_warm_up
from traceanalyzer.analyzers.common.device_work import DEVICE, measure_parts, per_device
from traceanalyzer.analyzers.common.step_marks import MARK_NAMES, by_kernels
from traceanalyzer.analyzers.overlap import By, Options, reasons
from traceanalyzer.analyzers.overlap.reasons import Exposed
from traceanalyzer.analyzers.overlap.result import SMALL_FRAC, Overlap
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS

_KINDS = frozenset({*DEVICE_WORK, *LAUNCH_KINDS, "user_annotation", "nvtx"})

#: Most stretches that a rank's recording is measured in, and that a chart shows.
FINE, COARSE = 2_000, 200

_STREAM = (*DEVICE, "stream")
_WORK_KINDS = (device_work.COMPUTE, device_work.COMMUNICATION, device_work.MEMORY)

#: What is left out for rules.
_NO_STEP = pl.Series("step", [], dtype=pl.String)
_NO_STREAMS = pl.DataFrame(
    schema={
        "rank": pl.Int32,
        "device": pl.Int32,
        "stream": pl.Int64,
        **dict.fromkeys(("events", "start", "end", "busy_ns", "alone_ns"), pl.Int64),
        **dict.fromkeys((f"{kind}_ns" for kind in _WORK_KINDS), pl.Int64),
    }
)

_NO_WORK = (
    "{path}: no device work was recorded, so nothing can overlap; {hint}. For runs without a GPU "
    "use comm-outliers (collectives) and gpu-idle (main thread)"
)
_NO_STEPS = (
    "{paths}: no steps are marked, and no sequence of kernels repeats; {hint} and name them with "
    "steps --step-name REGEX, or name a kernel that begins a step with steps --step-every REGEX"
)


#: Device work, its launch calls, and the annotations that mark steps.
NEEDS = Needs(_KINDS, MARK_NAMES, unused=("external_id", "bytes"))


@dataclass(frozen=True)
class Part:
    """One rank's device time.

    All frames have rank, device, start and end, and except ``streams`` the columns of
    :func:`~traceanalyzer.analyzers.common.device_work.measure_parts`.

    Attributes:
        path: the file.
        epoch_ns: absolute time of the trace's ts 0, or None.
        start_ns: time of the file's first event, or None.
        devices: one row per device, from its first start to its last end.
        steps: one row per step and device.
        steps_by_kernels: steps are inferred from repeating kernels.
        streams: one row per stream: stream, events, busy_ns, compute_ns, communication_ns,
            memory_ns (of this stream), alone_ns (no other stream of the device running).
        stretches: one row per device and stretch of time, see :func:`stretches`.
        unfinished: number of device events without an end, which are not counted.
        before: see :func:`~traceanalyzer.analyzers.common.launching.launched_before`.
        step_hint: how steps are marked for the profiler that wrote the file.
        exposed: communication, and why it is exposed; None without any.
    """

    path: str
    epoch_ns: int | None
    start_ns: int | None
    devices: pl.DataFrame
    steps: pl.DataFrame
    steps_by_kernels: bool
    streams: pl.DataFrame
    stretches: pl.DataFrame
    unfinished: int
    before: int | launching.Beginning | None
    step_hint: str = ""
    exposed: Exposed | None = None

    @property
    def rank(self) -> int | None:
        """Rank of the devices, or None."""
        ranks: list[int | None] = self.devices["rank"].head(1).to_list()
        return ranks[0] if ranks else None


def measure(trace: Trace, options: Options, *, for_rules: bool = False) -> Part:
    """Measure the device time of one rank; ``for_rules``: only of whole devices.

    Raises:
        MissingData: the trace has no device work.
        OptionError: a pattern is not a regular expression.
    """
    device_work.require_all_work(trace)
    work = device_work.device_work(trace, options.comm_patterns)
    if work.is_empty():
        hint = record_hint(trace.meta, "device work")
        raise MissingData(_NO_WORK.format(path=trace.meta.path, hint=hint))
    span, steps = device_work.extent(work), device_steps(trace)
    runs = device_work.runs(trace, options.comm_patterns)
    devices = measure_parts(runs, span)
    if for_rules:
        of_steps, of_streams, fine = devices.clear(), _NO_STREAMS, devices.clear()
        of_steps.insert_column(2, _NO_STEP)
    else:
        of_steps, of_streams = measure_parts(runs, per_device(steps, work)), _streams(work)
        fine = measure_parts(runs, stretches(span, trace.meta.epoch_ns))
    recorded = int(trace.events["kind"].is_in(DEVICE_WORK).sum())
    return Part(
        path=trace.meta.path,
        epoch_ns=trace.meta.epoch_ns,
        start_ns=trace.meta.start_ns,
        devices=devices,
        steps=of_steps,
        steps_by_kernels=not for_rules and by_kernels(steps),
        streams=of_streams,
        stretches=fine,
        unfinished=recorded - work.height,
        before=launching.launched_before(trace, work),
        step_hint=record_hint(trace.meta, "step"),
        exposed=reasons.measure(trace, work, options.comm_patterns)
        if devices["communication_ns"].sum()
        else None,
    )


def combine(parts: Sequence[Part], options: Options) -> Overlap:
    """Combine the device time of all ranks.

    Raises:
        MissingData: ``by`` is ``step`` and no rank has steps.
    """
    shifts, one_clock = clocks.axis(parts, "devices")
    whole, steps, streams = (
        _spans(parts, name, shifts) for name in ("devices", "steps", "streams")
    )
    if options.by == "step" and steps.is_empty():
        paths = ", ".join(part.path for part in parts[:3])
        raise MissingData(_NO_STEPS.format(paths=paths, hint=parts[0].step_hint))
    exposed = [part.exposed for part in parts if part.exposed]
    communication = reasons.communication(exposed)
    return Overlap(
        by=options.by,
        devices=_shares(_one_per_device(whole, ["rank", "device"])),
        steps=_shares(steps).with_columns(_is_warm_up(steps)),
        steps_by_kernels=any(part.steps_by_kernels for part in parts),
        streams=_one_per_device(streams, ["rank", "device", "stream"]).with_columns(
            alone_frac=ratio("alone_ns", "busy_ns")
        ),
        timeline=_shares(_sorted(_timeline(parts, shifts, one_clock=one_clock))),
        unfinished=sum(part.unfinished for part in parts),
        launched_before_ns=launching.known_ns(part.before for part in parts),
        reasons=reasons.divide(communication if _is_much(whole) else pl.DataFrame(), exposed),
        groups=reasons.by_group(communication),
    )


def _is_warm_up(steps: pl.DataFrame) -> pl.Series:
    spans = steps.with_columns(start="at_ns", end=pl.col("at_ns") + pl.col("span_ns"))
    return is_warm_up(spans, ("path", *DEVICE))


def _is_much(devices: pl.DataFrame) -> bool:
    """Whether exposed communication is long enough to look for reasons."""
    columns = (f"{part}_ns" for part in device_work.PARTS)
    whole = devices.select(pl.sum_horizontal(columns).sum()).item()
    return bool(devices["exposed_communication_ns"].sum() > SMALL_FRAC * whole)


OVERLAP = Analyzer(
    "overlap",
    Options,
    NEEDS,
    measure,
    combine,
    measure_for={"findings": partial(measure, for_rules=True)},
)


# --- one rank ------------------------------------------------------------------------------


def _streams(work: pl.DataFrame) -> pl.DataFrame:
    """Measure how long each stream was busy, with what, and how long no other stream was."""
    runs = intervals.union(work, (*_STREAM, "work_kind"))
    busy = intervals.union(runs, _STREAM)
    crowd = intervals.overlap_with(busy, intervals.crowded(busy, DEVICE), DEVICE)
    length = pl.col("end") - pl.col("start")
    by_kind = {
        f"{kind}_ns": length.filter(pl.col("work_kind") == kind).sum() for kind in _WORK_KINDS
    }
    streams = work.group_by(_STREAM).agg(
        pl.len().cast(pl.Int64).alias("events"), pl.col("start").min(), pl.col("end").max()
    )
    for frame in (
        crowd.group_by(_STREAM).agg(
            busy_ns=length.sum(), alone_ns=(length - pl.col("overlap")).sum()
        ),
        runs.group_by(_STREAM).agg(**by_kind),
    ):
        streams = streams.join(frame, on=_STREAM, how="left", nulls_equal=True)
    return streams.with_columns(pl.col("^.*_ns$").fill_null(0)).sort(_STREAM)


def stretches(span: pl.DataFrame, epoch_ns: int | None) -> pl.DataFrame:
    """Return the time windows to measure a rank's devices in, cut at 10^k ns of absolute time.

    Args:
        span: rank, device, start and end of each device's work.
        epoch_ns: absolute time of the clock's 0.

    Returns:
        rank, device, start and end, at most :data:`FINE` + 1 for each device.
    """
    first, last = span.select(pl.col("start").min(), pl.col("end").max()).row(0)
    width = 1
    while (last - first) > FINE * width:
        width *= 10
    epoch = epoch_ns or 0
    grid = np.arange((first + epoch) // width, (last + epoch) // width + 2, dtype=np.int64)
    edges = np.clip(grid * width - epoch, first, last)
    windows = pl.DataFrame({"start": edges[:-1], "end": edges[1:]}).filter(
        pl.col("end") > pl.col("start")
    )
    return span.select(DEVICE).join(windows, how="cross")


# --- all ranks -----------------------------------------------------------------------------


def _spans(parts: Sequence[Part], table: str, shifts: pl.Series) -> pl.DataFrame:
    """Return a table of all parts by rank and file, with ``at_ns`` and ``span_ns``."""
    return _sorted(
        clocks.on_axis(parts, table, shifts).select(
            "rank",
            "path",
            pl.exclude("rank", "path", "start", "end", "at_ns"),
            "at_ns",
            span_ns=pl.col("end") - pl.col("start"),
        )
    )


def _one_per_device(frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Sum the rows of one device over several recordings, such as profiler cycles.

    The time between recordings is not included. Files without a rank are not merged.
    """
    path = pl.when(pl.col("rank").is_null()).then("path")
    grouped = frame.group_by(*keys, file=path, maintain_order=True)
    summed = grouped.agg(pl.col("path", "at_ns").first(), pl.exclude(*keys, "path", "at_ns").sum())
    return summed.select(frame.columns)


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort("rank", "path", maintain_order=True, nulls_last=True)


def _shares(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        overlap_frac=ratio("overlapped_communication_ns", "communication_ns"),
        utilisation_frac=ratio("busy_ns", "span_ns"),
        compute_frac=ratio("compute_ns", "span_ns"),
    )


def _timeline(parts: Sequence[Part], shifts: pl.Series, *, one_clock: bool) -> pl.DataFrame:
    """Merge the stretches to at most :data:`COARSE` + 1 of 1, 2 or 5 times 10^k ns.

    Args:
        parts: the parts of all ranks.
        shifts: what is added to the times of each part to place them on the axis.
        one_clock: whether all ranks share the axis.

    Returns:
        rank, path, device, at_ns, span_ns and the measures, summed.
    """
    number = pl.Series(range(len(parts)), dtype=pl.UInt32)
    epochs = pl.Series([part.epoch_ns or 0 for part in parts], dtype=pl.Int64)
    paths = pl.Series([part.path for part in parts], dtype=pl.String)
    frames = [part.stretches for part in parts]
    rows = stacked(frames, path=paths, part=number, epoch=epochs, zero=shifts - epochs)
    timed = rows.with_columns(pl.col("start", "end") + pl.col("epoch"))
    length = pl.col("end").max() - pl.col("start").min()
    lengths = timed.select(length if one_clock else length.over("part"))
    width = _width(lengths.select(pl.first().max().fill_null(0)).item())
    at = (pl.col("start") // width * width + pl.col("zero")).clip(lower_bound=0)
    placed = timed.with_columns(at_ns=at, span_ns=pl.col("end") - pl.col("start"))
    measures = pl.exclude("path", "rank", "device", "at_ns", "part")
    return (
        placed.drop("start", "end", "epoch", "zero")
        .group_by("part", "rank", "path", "device", "at_ns", maintain_order=True)
        .agg(measures.sum())
        .drop("part")
    )


def _width(length: int) -> int:
    width = 1
    while True:
        for times in (1, 2, 5):
            if length <= COARSE * times * width:
                return times * width
        width *= 10


def overlap(
    inputs: Inputs,
    *,
    by: By = "device",
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Overlap:
    """Return how much communication is overlapped with compute, and the cost of the rest.

    Only device work and annotations are read.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: the rows of the first table: ``device``, ``step`` or ``stream``; or communication by
            ``group``, ``phase`` (forward, backward, optimizer) or ``group,phase``.
        comm_patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work was recorded, or no steps are marked and ``by`` is ``step``.
        OptionError: ``by`` is unknown, or a pattern is not a regular expression.
    """
    return run(OVERLAP, inputs, Options(by, comm_patterns), **reading)
