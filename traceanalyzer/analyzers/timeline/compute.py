"""States and events of each rank's devices, aligned to one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.comm_outliers import Options as CommOptions, collectives
from traceanalyzer.analyzers.comm_outliers.compute import (
    NEEDS as COMMUNICATION_NEEDS,
    combine as compare,
    measure as measure_communication,
)
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common import display
from traceanalyzer.analyzers.common.device_work import COMPUTE, WORK_KIND, device_work
from traceanalyzer.analyzers.gpu_idle import Options as IdleOptions, causes, compute as gpu_idle
from traceanalyzer.analyzers.replay import program as programs
from traceanalyzer.analyzers.replay.program import Program
from traceanalyzer.analyzers.timeline import Options, Order, alignment, states as detail
from traceanalyzer.analyzers.timeline.alignment import Recorded
from traceanalyzer.analyzers.timeline.result import Timeline
from traceanalyzer.analyzers.timeline.states import (
    MOST,
    NOT_LOST,
    coarser,
    states,
    with_peers,
    with_waits,
)
from traceanalyzer.analyzers.what_if import ReplayOptions, replay
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.vocabulary import DEVICE_WORK

_SUMMARIES = "summaries keep it for traceanalyzer report only"
_DEVICE = ["rank", "device"]
_KEYS = ["rank", "path", "device"]

#: Causes of lost time in which the device is busy.
_BUSY = (causes.EXPOSED, causes.COPIES)


#: What idle time, communication and the critical path need.
NEEDS: Needs = Needs(
    {*gpu_idle.NEEDS.kinds, *COMMUNICATION_NEEDS.kinds, *programs.NEEDS.kinds},
    COMMUNICATION_NEEDS.names + programs.NEEDS.names,
)


@dataclass(frozen=True)
class Part:
    """One rank's devices.

    Attributes:
        rank: global rank, or None.
        path: the file.
        host: host name, or None.
        epoch_ns: absolute time of the trace's ts 0, or None.
        states: rows of :func:`~.states.states`, at most about :data:`MOST`.
        events: rows of :func:`~.states.events`, likewise.
        idle: its idle time.
        communication: its collectives.
        program: what its work waits for; None in a report, which has its own.
        no_program: why it is not known.
    """

    rank: int | None
    path: str
    host: str | None
    epoch_ns: int | None
    states: pl.DataFrame
    events: pl.DataFrame
    idle: gpu_idle.Part
    communication: collectives.Part
    program: Program | None = None
    no_program: str = ""


def _idle_options(options: Options) -> IdleOptions:
    return IdleOptions(comm_patterns=options.comm_patterns, step_name=options.step_name)


def measure(trace: Trace, options: Options) -> Part:
    """Return the states, events and program of one rank.

    Raises:
        MissingData: neither device work nor operators with a duration were recorded.
        OptionError: a pattern is not a regular expression.
    """
    part = measure_for_report(trace, options)
    count = int(trace.events["kind"].is_in(DEVICE_WORK).sum())
    if count > replay.MOST_DRAWN:
        return replace(part, no_program=replay.not_drawn(count))
    try:
        return replace(part, program=replay.measure(trace, ReplayOptions()))
    except MissingData as error:
        return replace(part, no_program=str(error).removeprefix(f"{part.path}: "))


def measure_for_report(trace: Trace, options: Options) -> Part:
    """Return the states and events of one rank.

    Raises:
        MissingData: neither device work nor operators with a duration were recorded.
        OptionError: a pattern is not a regular expression.
    """
    idle = gpu_idle.measure_with_lost(trace, _idle_options(options))
    rank = pl.lit(idle.rank, pl.Int32).alias("rank")
    lost = idle.lost if idle.lost is not None else pl.DataFrame()
    lost = lost.join(idle.units.select("unit", "device"), on="unit").with_columns(rank)
    lost = lost.filter(~pl.col("cause").is_in(_BUSY))
    recorded = work = device_work(trace, options.comm_patterns)
    if idle.coverage.on_host:
        busy = intervals.subtract(idle.units.with_columns(rank), lost, _DEVICE)
        work = busy.with_columns(work_kind=pl.lit(COMPUTE, WORK_KIND))
    divided = states(work, lost)
    if divided.is_empty():
        raise MissingData(f"{idle.path}: no event has a duration, so there is nothing to draw")
    return Part(
        rank=idle.rank,
        path=idle.path,
        host=trace.meta.host,
        epoch_ns=trace.meta.epoch_ns,
        states=coarser(divided, MOST, _DEVICE, "state")[0],
        events=coarser(detail.events(trace, recorded), MOST, ["device", "stream"], "work_kind")[0],
        idle=idle,
        communication=measure_communication(
            trace, CommOptions(comm_patterns=options.comm_patterns)
        ),
    )


def combine(parts: Sequence[Part], options: Options) -> Timeline:
    """Align all ranks, and divide exposed communication into waiting and transfer."""
    compared = _compared(parts, options)
    shifts, one_clock = alignment.shifts([_recorded(part) for part in parts], compared)
    axis = _axis(parts, shifts)
    divided = with_waits(axis.place_table(parts, "states"), _waits(compared, axis), ["lane"])
    divided, state_ns = coarser(divided, MOST, ["lane"], "state")
    work = axis.place_table(parts, "events")
    if compared is not None:
        work = detail.with_collectives(
            work, axis.place_collectives(compared.instances, "duration_ns")
        )
    events, event_ns = coarser(work, MOST, ["lane", "stream"], "work_kind")
    idle = gpu_idle.combine([part.idle for part in parts], _idle_options(options))
    result = Timeline(
        order=options.order,
        lanes=_with_lost(axis.lanes, divided),
        states=divided,
        events=events,
        steps=axis.place(idle.steps).select("lane", "step", "start", "end"),
        gaps=detail.gaps(axis.place(idle.gaps)),
        one_clock=one_clock,
        matched=compared is not None and compared.totals.n_matched > 0,
        on_host=idle.coverage.on_host,
        steps_by_kernels=idle.coverage.steps_by_kernels,
        merged_ns=max(state_ns, event_ns),
        places=axis.places,
    )
    return result.with_path(*_longest_path(parts))


TIMELINE = Analyzer(
    "timeline",
    Options,
    NEEDS,
    measure,
    combine,
    slow=True,
    measure_for={"page": measure_for_report},
)


def _longest_path(parts: Sequence[Part]) -> tuple[pl.DataFrame | None, str]:
    """Return the longest path through all ranks, or why it is not known."""
    known = [part.program for part in parts if part.program is not None]
    if len(known) < len(parts):
        return None, next((part.no_program for part in parts if part.no_program), _SUMMARIES)
    try:
        return replay.combine(known, ReplayOptions()).drawn_path()
    except MissingData as error:
        return None, str(error)


def _compared(parts: Sequence[Part], options: Options) -> CommOutliers | None:
    """Return the comparison of collectives across ranks; None without communication."""
    try:
        given = CommOptions(comm_patterns=options.comm_patterns)
        return compare([part.communication for part in parts], given)
    except MissingData:
        return None


# --- one axis ------------------------------------------------------------------------------------


def _recorded(part: Part) -> Recorded:
    begin, end = part.states.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return Recorded(part.rank, part.path, part.epoch_ns, begin, end, part.idle.start_ns)


@dataclass(frozen=True)
class Axis:
    """Places the rows of each file on the axis.

    Attributes:
        lanes: one row per device: lane (its number), on (its label), rank, path, device, host,
            start, end. Several recordings of one device of a rank are one lane.
        places: rank, path and device of each part, with lane and shift.
        only: rank of each file of one part, by path.
    """

    lanes: pl.DataFrame
    places: pl.DataFrame
    only: Mapping[str, int | None]

    def place(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows of :data:`_KEYS`, start and end with ``lane`` in place of the keys."""
        rows = rows.drop("lane", strict=False)  # of a collective: its process group
        placed = rows.join(self.places, on=_KEYS, nulls_equal=True, maintain_order="left")
        times = placed.with_columns(pl.col("start", "end") + pl.col("shift"))
        return times.select("lane", pl.exclude("lane", "shift", *_KEYS)).sort("lane", "start")

    def place_table(self, parts: Sequence[Part], table: str) -> pl.DataFrame:
        """Return a table of all parts with ``lane``."""
        return self.place(pl.concat(_with_source(getattr(part, table), part) for part in parts))

    def place_collectives(self, rows: pl.DataFrame, length: str) -> pl.DataFrame:
        """Return rows of ``CommOutliers`` with ``lane``, from ``ts`` for a column of lengths.

        Its ranks are devices where one process uses several; the rank of the file counts here.
        """
        only = pl.col("path").is_in(list(self.only))
        rank = pl.col("path").replace_strict(self.only, default=None, return_dtype=pl.Int32)
        times = rows.with_columns(
            rank=pl.when(only).then(rank).otherwise("rank"),
            start=pl.col("ts"), end=pl.col("ts") + pl.col(length),
        )  # fmt: skip
        return self.place(times)


def _axis(parts: Sequence[Part], shifts: Sequence[int]) -> Axis:
    frames = [
        _with_source(
            part.states.group_by("device").agg(
                start=pl.col("start").min(), end=pl.col("end").max()
            ),
            part,
        ).with_columns(shift=pl.lit(shift, pl.Int64), host=pl.lit(part.host, pl.String))
        for part, shift in zip(parts, shifts, strict=True)
    ]
    file = pl.when(pl.col("rank").is_null()).then("path").alias("file")
    recorded = pl.concat(frames).with_columns(pl.col("start", "end") + pl.col("shift"), file)
    devices = recorded.group_by("rank", "device", "file", maintain_order=True).agg(
        pl.col("path", "host").first(), pl.col("start").min(), pl.col("end").max()
    )
    devices = devices.sort("rank", "path", "device", nulls_last=True)
    lanes = devices.with_columns(display.places(devices)).with_row_index("lane")
    of = recorded.join(
        lanes.select("lane", "rank", "device", "file"),
        on=["rank", "device", "file"],
        nulls_equal=True,
    )
    files = [part.path for part in parts]
    return Axis(
        lanes.select("lane", "on", *_KEYS, "host", "start", "end"),
        of.select(*_KEYS, "lane", "shift").unique(_KEYS, keep="first", maintain_order=True),
        {part.path: part.rank for part in parts if files.count(part.path) == 1},
    )


def _with_source(frame: pl.DataFrame, part: Part) -> pl.DataFrame:
    return frame.with_columns(rank=pl.lit(part.rank, pl.Int32), path=pl.lit(part.path))


def _waits(compared: CommOutliers | None, axis: Axis) -> pl.DataFrame:
    """Return lane, start, end, peer: when a rank waits in a collective, and for which rank."""
    types = {"lane": pl.UInt32, "start": pl.Int64, "end": pl.Int64, "peer": pl.Int32}
    if compared is None or compared.arrivals.is_empty():
        return pl.DataFrame(schema=types)
    placed = axis.place_collectives(with_peers(compared.on_devices(axis.places)), "wait_ns")
    return placed.select(pl.col(name).cast(dtype) for name, dtype in types.items())


def _with_lost(lanes: pl.DataFrame, divided: pl.DataFrame) -> pl.DataFrame:
    """Add ``lost_ns`` to the lanes: copies and idle time, without waiting for other ranks."""
    lost = divided.filter(~pl.col("state").is_in(NOT_LOST)).group_by("lane")
    sums = lost.agg(lost_ns=(pl.col("end") - pl.col("start")).sum())
    joined = lanes.join(sums, on="lane", how="left", maintain_order="left")
    return joined.with_columns(pl.col("lost_ns").fill_null(0))


def timeline(
    inputs: Inputs,
    *,
    order: Order = "rank",
    comm_patterns: str | Sequence[str] = (),
    step_name: str | None = None,
    **reading: Unpack[Reading],
) -> Timeline:
    """Return what each device does at each moment, on one axis for all ranks.

    The time of a device from its first work to its last is divided into compute, compute with
    overlapped communication, exposed communication (transfer, and waiting for another rank), copies
    and idle time by cause; the parts are disjoint and sum to the span. Ranks are aligned by
    absolute time, corrected by the ends of matched collectives as in ``comm_outliers``; without
    absolute times every rank begins at 0.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        order: order of the rows: ``rank``, ``host``, or ``cost`` (most copying and idle time
            first).
        comm_patterns: regular expressions of further kernel names that are communication.
        step_name: regular expression of the slices that are steps.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work was recorded.
        OptionError: ``order`` is unknown, or a pattern is not a regular expression.
    """
    return run(TIMELINE, inputs, Options(order, comm_patterns, step_name), **reading)
