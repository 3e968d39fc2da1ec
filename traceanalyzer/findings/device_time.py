"""Lost time of the devices: each lost moment belongs to one root cause.

Time is lost where a device is idle, where communication runs without compute, and where copies run
without either. Idle time belongs to its cause (see ``gpu_idle``). Exposed communication is divided
in this order:

- wait time of pipeline stages belongs to the schedule, up to its bubble, see :func:`with_bubble`;
- wait time for another rank belongs to what delayed that rank, see :func:`delays` (so does the
  wait time of main threads, where collectives run on the host), and the exposed transfers that
  overlapped wait time delays;
- reductions of gradients that the next micro-batch repeats belong to the repetition;
- time of a collective above the usual on all ranks belongs to that collective;
- time above other collectives of its kind, without an explanation, likewise;
- time above that at a quarter of the link's bandwidth belongs to the link;
- the rest is other exposed communication.

The times of all causes add up to the idle time, exposed communication and exposed copies of all
devices. Removing a cause may gain less: another rank may then be the slowest, see ``gains``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.arrivals import WARN_FRAC, carried, in_sequences
from traceanalyzer.analyzers.comm_outliers.pipelines import Pipeline, scheduled, work_longer
from traceanalyzer.analyzers.comm_outliers.result import SLOW_LINK_FRAC, CommOutliers
from traceanalyzer.analyzers.common.columns import left_join, previous, ratio
from traceanalyzer.analyzers.common.device_steps import usual_ns
from traceanalyzer.analyzers.common.display import Basis
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.kernels.training import REPEATED as PURPOSE_REPEATED
from traceanalyzer.frames import intervals, linking
from traceanalyzer.frames.numbering import group_numbers
from traceanalyzer.result import memoized
from traceanalyzer.units import format_frac, format_ns

#: Columns that identify a device.
DEVICE = ("path", "rank", "device")

#: Causes besides those of idle time: work of a straggler (or its communication), and slow or
#: exposed communication.
WORK, SLOW, OUTLIER, LINK = "work", "slow_collectives", "collective_outliers", "slow_link"
UNEXPLAINED = "unexplained"
EXPOSED, COPIES = causes.EXPOSED, causes.COPIES
REPEATED, BUBBLE = "repeated_reduction", "bubble"

#: Time that grows: in so many steps, by this factor, with this correlation.
_LEAST_STEPS, _GROWN, _STEADY = 6, 1.2, 0.95
#: GPUs run one after another from this share of their time on, each for this share of its part.
_IN_TURN, _TAKES_PART, _SOME_WORK = 0.9, 0.1, 0.25
#: Idle time of one cause that begins this soon after that of another follows it.
_AFTER_NS = 20_000
#: Time with collectives and no other work, on the device or on the main thread.
_COMMUNICATING = (EXPOSED, causes.PEER)

#: All causes; in alphabetical order, by which rows are sorted.
CAUSE = pl.Enum(
    sorted([*causes.LOSS.categories, WORK, SLOW, OUTLIER, LINK, UNEXPLAINED, REPEATED, BUBBLE])
)

_LENGTH = pl.col("end") - pl.col("start")

#: Columns of losses: place and time, cause, rank of the cause (null if unknown), whether it is wait
#: time for that rank, whether that is by the schedule of a pipeline, and the time within steps (if
#: none are marked: all); ``on_host_ns``: the part of that in collectives of the host, in which the
#: device is idle.
_LOSS: dict[str, pl.DataType | type[pl.DataType]] = {
    "path": pl.String,
    "rank": pl.Int32,
    "device": pl.Int32,
    "start": pl.Int64,
    "end": pl.Int64,
    "cause": CAUSE,
    "root_rank": pl.Int32,
    "waited": pl.Boolean,
    "collective": pl.String,
    "scheduled": pl.Boolean,
    "lost_ns": pl.Int64,
    "on_host_ns": pl.Int64,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceTime(Basis):
    """The lost time of all devices by root cause, and the whole time that it is a share of.

    Attributes:
        losses: one row per interval: path, rank, device, start, end (on the clock of its file),
            cause, ``root_rank`` (rank of the cause, null if unknown), waited (whether it is wait
            time for that rank), collective, ``scheduled`` (whether a pipeline has the collective),
            ``lost_ns`` (within steps, if marked), ``on_host_ns`` (of it, in collectives of the
            host), step.
        windows: the whole time: path, rank, device, start, end and step (null if no steps are
            marked: the span of each device).
        outside: cause, ``idle_ns``: idle time of all devices before, between and after steps.
        warm_up: idle time and exposed copies in warm-up steps, which are no windows, in columns of
            losses.
        warm_up_ns: time of all warm-up steps.
    """

    losses: pl.DataFrame
    windows: pl.DataFrame
    outside: pl.DataFrame
    warm_up: pl.DataFrame
    warm_up_ns: int

    @property
    def exposed(self) -> str:
        """Name of exposed communication; without GPUs there is no overlap."""
        return "communication" if self.on_host else "exposed communication"

    def cost(self, total_ns: float, *, once: bool = False) -> dict[str, Any]:
        """Return a total time as fields of a finding; ``once``: per device, not per step."""
        share = {"cost_frac": self.frac(total_ns), "of": self.of}
        if once:
            devices = max(self.windows.n_unique(DEVICE), 1)
            per = "process, once" if self.on_host else "GPU, once"
            return share | {"cost_ns": round(total_ns / devices), "per": per}
        mean = {"cost_ns": self.each_ns(total_ns), "per": self.per}
        return mean | share

    def text(self, total_ns: float, *, once: bool = False) -> str:
        """Format a total time: ``1.45 ms per step and GPU``."""
        if once:
            cost = self.cost(total_ns, once=True)
            return f"{format_ns(cost['cost_ns'])} per {cost['per']}"
        return super().text(total_ns)

    def share(self, total_ns: float, *, once: bool = False) -> str:
        """Format a total time and its share: ``1.45 ms per step and GPU (12.1 % of step time)``."""
        return f"{self.text(total_ns, once=once)} ({format_frac(self.frac(total_ns))} of {self.of})"

    @memoized
    def of_cause(self, cause: str) -> pl.DataFrame:
        """Return the losses of one cause."""
        return self.losses.filter(pl.col("cause") == cause)

    def waits_for(self, rank: int) -> pl.DataFrame:
        """Return wait time for one rank, for all causes of its delay (not of the schedule)."""
        return self.losses.filter("waited", pl.col("root_rank") == rank)

    def other_waits(self, ranks: Mapping[str, Sequence[int]]) -> pl.DataFrame:
        """Return wait time for ranks without that for these ranks, by cause."""
        root, cause = pl.col("root_rank"), pl.col("cause")
        of_these = [root.is_in(some) & (cause == one) for one, some in ranks.items()]
        return self.losses.filter("waited", ~pl.any_horizontal(of_these))

    @cached_property
    def busy(self) -> pl.DataFrame:
        """The time of each device without idle and wait time: path, rank, device, busy_ns."""
        whole = self.windows.group_by(DEVICE).agg(ns=_LENGTH.sum())
        lost = self.losses.group_by(DEVICE).agg(pl.col("lost_ns").sum())
        joined = whole.join(lost, on=DEVICE, how="left", nulls_equal=True)
        return joined.with_columns(busy_ns=pl.col("ns") - pl.col("lost_ns").fill_null(0))

    @cached_property
    def busy_ns(self) -> int:
        """The same, of all devices: no kernels take more of it."""
        return int(self.busy["busy_ns"].sum())

    def in_stretches(self, *which: pl.Expr) -> pl.DataFrame:
        """Return those losses without wait time, in order of device and time.

        ``stretch`` is a number for those that follow each other.
        """
        return self.losses.with_columns(self._stretch).filter(~pl.col("waited"), *which)

    @cached_property
    def _stretch(self) -> pl.Series:
        """The stretch of each loss, null for wait time."""
        _, (device,) = group_numbers(DEVICE, self.losses)
        rows = self.losses.select("start", "end", local=~pl.col("waited"), device=pl.Series(device))
        end, last = (pl.when("local").then(x).forward_fill().shift(1) for x in ("end", "device"))
        apart = (pl.col("start") - end >= _AFTER_NS) | pl.col("device").ne_missing(last)
        number = (pl.col("local") & apart).cum_sum()
        return rows.select(stretch=pl.when("local").then(number)).to_series()

    @cached_property
    def in_turn(self) -> bool:
        """Whether the GPUs of one process run one after another.

        One of them alone runs in 90 % of the time in which any of them does, and each of them runs
        for at least a tenth of an equal part of it.
        """
        process, lost = ["path", "rank"], self.losses
        together = lost.is_empty() or lost["collective"].null_count() < lost.height
        if together or self.windows.n_unique(DEVICE) < 2:
            return False
        changes = pl.concat(
            lost.select(*process, at=side, idle=pl.lit(by))
            for side, by in (("start", 1), ("end", -1))
        ).sort("at")
        idle, until = pl.col("idle").cum_sum(), pl.col("at").shift(-1)
        spans = changes.with_columns(idle.over(process), ns=(until - pl.col("at")).over(process))
        whole = self.windows.group_by(process).agg(n=pl.col("device").n_unique(), ns=_LENGTH.sum())
        known = spans.join(whole.select(*process, "n"), on=process, nulls_equal=True)
        idle_ns, alone_ns = (
            int(known.filter(pl.col("idle") == n)["ns"].sum())
            for n in (pl.col("n"), pl.col("n") - 1)
        )
        running_ns = int((whole["ns"] // whole["n"]).sum()) - idle_ns
        busy = self.busy["busy_ns"]
        each = (whole["n"] > 1).all() and (busy * busy.len() >= _TAKES_PART * running_ns).all()
        return each and alone_ns >= _IN_TURN * running_ns > 0

    @cached_property
    def busiest(self) -> tuple[int, float] | None:
        """The GPU that all others of the only process wait for, and how often it works as long.

        That is its work by that of the others on average. It is hardly idle, and each of the others
        does a part of the work.
        """
        rows = self.busy.sort("busy_ns", "device", descending=[True, False])
        work, processes = rows["busy_ns"], rows.n_unique(["path", "rank"])
        together = self.losses["collective"].null_count() < self.losses.height
        if together or processes != 1 or rows.height < 2 or not work_longer(work)[0]:
            return None
        if work[0] < _IN_TURN * rows["ns"][0] or work[-1] < _SOME_WORK * work[0]:
            return None
        return rows["device"][0], work[0] * (rows.height - 1) / int(work[1:].sum())

    def only_step(self, losses: pl.DataFrame) -> str | None:
        """Return the step with most of a loss, if there are several steps."""
        sums = losses.drop_nulls("step").group_by("step").agg(pl.col("lost_ns").sum())
        most = sums.filter(pl.col("lost_ns") >= MOST * int(losses["lost_ns"].sum()))
        steps: list[str] = most["step"].to_list()
        return steps[0] if steps and self.windows["step"].n_unique() > 1 else None

    def share_of_one_step(self, rows: pl.DataFrame) -> float:
        """Return the largest share of the intervals of a finding in one step (of all ranks)."""
        device = pl.struct("rank", "device").hash().alias("on")
        steps = self.windows.select(device, "step", begin="start").sort("begin")
        length = pl.col("end_ns") - pl.col("start_ns")
        middles = rows.select(device, ns=length, at=pl.col("start_ns") + length // 2)
        placed = middles.sort("at").join_asof(
            steps, left_on="at", right_on="begin", by="on", check_sortedness=False
        )
        by_step = placed.group_by("step").agg(pl.col("ns").sum())
        whole = int(by_step["ns"].sum())
        return float(by_step.select(pl.col("ns").max()).item()) / whole if whole else 1.0

    def growing(self, sums: pl.DataFrame) -> tuple[int, int] | None:
        """Return the time in the first and the last step if it becomes longer with each step.

        The last third of the steps takes 1.2 times as long as the first one, and time and number of
        the step are correlated by at least 0.95.

        Args:
            sums: step, ``ns``.
        """
        steps = self.windows.drop_nulls("step")
        steps = steps.filter(pl.col("path") == pl.col("path").first()).sort("start")
        known = steps.unique("step", maintain_order=True).join(
            sums, on="step", how="left", maintain_order="left"
        )
        ns = known["ns"].fill_null(0).to_numpy().astype(float)
        third = ns.size // 3
        if ns.size < _LEAST_STEPS or ns[-third:].sum() < _GROWN * max(ns[:third].sum(), 1):
            return None
        steady = np.corrcoef(np.arange(ns.size), ns)[0, 1] >= _STEADY
        return (int(ns[0]), int(ns[-1])) if steady else None

    @cached_property
    def growth(self) -> pl.DataFrame:
        """Additional loss of slow steps over the usual step of their device, by cause.

        Columns: cause, ``grown_ns``; cause null is the duration of the steps.
        """
        keys = [*DEVICE, "step"]
        whole = self.windows.select(*keys, cause=pl.lit(None, CAUSE), ns=_LENGTH)
        usual = usual_ns(pl.col("ns")).over(*DEVICE, "cause")
        slow = whole.with_columns(over=(pl.col("ns") - usual).clip(0)).filter(pl.col("over") > 0)
        by_cause = self.losses.group_by(*keys, "cause").agg(ns=pl.col("lost_ns").sum())
        every = self.windows.select(keys).join(by_cause.select("cause").unique(), how="cross")
        of_step = every.join(by_cause, on=[*keys, "cause"], how="left", nulls_equal=True)
        calm = whole.filter(pl.col("ns") <= _CALM * usual).select(*keys, calm=pl.lit(value=True))
        rows = of_step.join(calm, on=keys, how="left", nulls_equal=True)
        of_calm = pl.col("ns").filter("calm").median().over(*DEVICE, "cause")
        more = rows.with_columns(pl.col("ns").fill_null(0))
        more = more.with_columns(over=(pl.col("ns") - of_calm).clip(0))
        in_slow = more.join(slow.select(keys), on=keys, how="semi", nulls_equal=True)
        summed = pl.concat([slow.select("cause", "over"), in_slow.select("cause", "over")])
        return summed.group_by("cause").agg(grown_ns=pl.col("over").sum())


#: Steps that take at most so many times the usual are not slow.
_CALM = 1.1


def device_time(
    idle: GpuIdle | None, comm: CommOutliers | None, training: pl.DataFrame | None = None
) -> DeviceTime:
    """Return the lost time of all devices by root cause.

    Args:
        idle: idle time and exposed communication; without it, all communication counts as exposed.
        comm: collectives, if recorded.
        training: device work by purpose, see :attr:`~.Kernels.training`.
    """
    idle = _as_compared(idle, comm)
    windows, lost = _recorded_by_all(_windows(idle, comm), comm), _lost(idle, comm)
    if comm is not None:
        comm = comm.on_devices(windows)
        arrivals = comm.arrivals.with_columns(scheduled=scheduled(comm.arrivals))
        comm = replace(comm, arrivals=arrivals)
    first = _warm_up(idle, windows)
    alone = lost.filter(~pl.col("cause").is_in(_COMMUNICATING))
    in_first, in_steps = (_in_windows(alone, spans) for spans in (first, windows))
    signed = ((alone, _LENGTH), (in_first, -_LENGTH), (in_steps, -_LENGTH))
    lengths = pl.concat(rows.select("cause", ns=ns) for rows, ns in signed)
    outside = lengths.group_by("cause").agg(idle_ns=pl.col("ns").sum())
    losses = chain([_shaped(in_steps)], _communication(lost, comm, windows, training))
    del alone, in_steps, lengths, signed  # each is as large as the losses
    time = DeviceTime(
        losses=with_step(pl.concat(rows.filter(pl.col("lost_ns") > 0) for rows in losses), windows),
        windows=windows,
        outside=outside.sort("idle_ns", "cause", descending=[True, False]),
        warm_up=with_step(_shaped(in_first), first),
        warm_up_ns=int(first.select(_LENGTH.sum()).item()),
        whole_ns=int(windows.select(_LENGTH.sum()).item()),
        n=windows.height,
        in_steps=windows["step"].null_count() < windows.height,
        on_host=idle is not None and idle.coverage.on_host,
    )
    if time.in_turn or time.busiest:  # the host waits for one GPU, as the others do
        waits = pl.col("cause").replace(causes.SYNCHRONISATION, causes.DEVICE_WAIT)
        time = replace(time, losses=time.losses.with_columns(waits))
    pipeline = None if comm is None else comm.pipeline
    return time if pipeline is None else with_bubble(time, pipeline)


def with_bubble(time: DeviceTime, pipeline: Pipeline) -> DeviceTime:
    """Attribute wait time of pipeline stages to the schedule, at most its bubble in each step.

    Stages with equal work wait ``bubble_frac`` of a step. If a stage works longer, all wait for it,
    too, and the bubble is that of a step in which they work as long as they do themselves::

        bubble = (step - lost time) * bubble_frac / (1 - bubble_frac)
    """
    of_work = pl.col("waited") & pl.col("cause").is_in([WORK, UNEXPLAINED])
    is_bubble = of_work & pl.col("scheduled")
    waits, others = time.losses.filter(is_bubble), time.losses.filter(~is_bubble)
    busy = time.busy
    longer = work_longer(busy["busy_ns"])
    balanced = not longer.any()
    if waits.is_empty() or not (balanced or pipeline.bubble_frac):
        return time
    keys = [*DEVICE, "step"]
    sums = time.losses.group_by(keys).agg(pl.col("lost_ns").sum())
    steps = time.windows.select(*keys, length=_LENGTH).join(
        sums, on=keys, how="left", nulls_equal=True
    )
    frac = pipeline.bubble_frac or 1.0
    limit = pl.col("length") * frac
    if not balanced:
        limit = (pl.col("length") - pl.col("lost_ns").fill_null(0)) * frac / (1 - frac)
    steps = steps.select(*keys, limit=limit)
    slow = busy["rank"].filter(longer).implode()
    by_step = waits.join(steps, on=keys, how="left", nulls_equal=True)
    by_step = by_step.sort(pl.col("root_rank").is_in(slow), "start", *DEVICE)
    before = pl.col("lost_ns").cum_sum().over(keys) - pl.col("lost_ns")
    bubble = (pl.col("limit").fill_null(0) - before).clip(0, pl.col("lost_ns")).cast(pl.Int64)
    parts = by_step.with_columns(bubble=bubble).with_columns(cut=pl.col("start") + bubble)
    of_host = pl.min_horizontal("on_host_ns", "bubble")
    first = parts.with_columns(
        end=pl.min_horizontal("cut", "end"), lost_ns="bubble", cause=pl.lit(BUBBLE, CAUSE),
        root_rank=pl.lit(None, pl.Int32), on_host_ns=of_host,
    )  # fmt: skip
    rest = parts.with_columns(
        start="cut", lost_ns=pl.col("lost_ns") - pl.col("bubble"),
        on_host_ns=pl.col("on_host_ns") - of_host,
    )  # fmt: skip
    names = time.losses.columns
    losses = pl.concat([others, *(part.select(names) for part in (first, rest))])
    return replace(time, losses=losses.filter(pl.col("lost_ns") > 0).sort(*DEVICE, "start", "end"))


# --- windows ---------------------------------------------------------------------------------


def _windows(idle: GpuIdle | None, comm: CommOutliers | None) -> pl.DataFrame:
    """Return the steps of each device without warm-up; without steps its span.

    Without idle time, the span of its collectives. Steps detected by kernels count if they are
    detected on all devices.
    """
    if idle is not None and idle.steps.height and _on_all_devices(idle):
        return idle.counted_steps.select(*DEVICE, "start", "end", "step")
    if idle is not None:
        spans = idle.units.select(*DEVICE, "start", "end")
    elif comm is not None:
        end = pl.col("ts") + pl.col("duration_ns")
        rows = comm.instances.group_by(DEVICE).agg(start=pl.col("ts").min(), end=end.max())
        spans = rows.sort(DEVICE)
    else:
        spans = pl.DataFrame(schema={name: _LOSS[name] for name in (*DEVICE, "start", "end")})
    return spans.with_columns(step=pl.lit(None, pl.String))


def _as_compared(idle: GpuIdle | None, comm: CommOutliers | None) -> GpuIdle | None:
    """Return idle time with the devices of one process as ranks, if one of them is a straggler.

    Their collectives are compared as those of ranks, numbered by device.
    """
    if idle is None or comm is None or idle.units["rank"].n_unique() > 1:
        return idle
    compared, totals = comm.arrivals.select("rank", "device").unique(), comm.totals
    by_device = compared["rank"].eq_missing(compared["device"].cast(pl.Int32)).all()
    little = totals.total_wait_ns < WARN_FRAC * totals.total_span_ns
    if compared.height <= 1 or not by_device or little:
        return idle
    units, steps = (rows.with_columns(rank="device") for rows in (idle.units, idle.steps))
    lost = None if idle.lost is None else idle.lost.with_columns(rank="device")
    return replace(idle, units=units, steps=steps, lost=lost)


def _recorded_by_all(windows: pl.DataFrame, comm: CommOutliers | None) -> pl.DataFrame:
    """Return the steps, or else the part of the spans, in which all ranks are recorded."""
    if comm is None or comm.compared_from is None or not comm.begin_apart:
        return windows
    keys = ["path", "rank"]
    rows = left_join(windows, comm.compared_from, keys)
    begun = pl.col("step").is_null() | (pl.col("start") >= pl.col("from_ns").fill_null(_EVER))
    cut = rows.filter(begun).with_columns(start=pl.max_horizontal("start", "from_ns"))
    cut = cut.filter(pl.col("start") < pl.col("end"))
    return cut.select(windows.columns) if cut.height else windows


def _warm_up(idle: GpuIdle | None, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the warm-up steps of each device, if steps are the windows."""
    if idle is None or not windows["step"].is_not_null().any():
        return windows.clear()
    return idle.steps.filter("warm_up").select(*DEVICE, "start", "end", "step")


def _on_all_devices(idle: GpuIdle) -> bool:
    marked = idle.steps.select(DEVICE).unique().height
    return not idle.coverage.steps_by_kernels or marked == idle.units.select(DEVICE).unique().height


def _lost(idle: GpuIdle | None, comm: CommOutliers | None) -> pl.DataFrame:
    """Return idle time and exposed communication: path, rank, device, start, end, cause."""
    columns = {name: _LOSS[name] for name in (*DEVICE, "start", "end", "cause")}
    if idle is not None and idle.lost is not None:
        return idle.lost.select(pl.col(name).cast(of) for name, of in columns.items())
    if comm is None or idle is not None:
        return pl.DataFrame(schema=columns)
    end = pl.col("ts") + pl.col("duration_ns")
    return comm.instances.select(*DEVICE, start="ts", end=end, cause=pl.lit(EXPOSED))


def _in_windows(lost: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the part of lost time in windows as losses of its own rank."""
    of_causes = windows.join(lost.select("cause").unique(), how="cross")
    rows = intervals.intersect(lost, of_causes, [*DEVICE, "cause"])
    return rows.with_columns(root_rank="rank", lost_ns=_LENGTH)


def with_step(losses: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Add the step around the middle of each loss: the last one of its device that began before."""
    middle = losses.select(*DEVICE, ts=pl.col("start") + _LENGTH // 2)
    begun = windows.select(*DEVICE, "start", end=pl.lit(_NEVER))
    step = linking.label_by_interval(middle, begun, DEVICE)["interval"]
    losses = losses.with_columns(windows["step"].gather(step))
    _, (device,) = group_numbers(DEVICE, losses)  # faster than a sort by texts
    order = pl.Series(np.lexsort((losses["end"], losses["start"], device)))
    # column by column, as both orders are large
    return pl.DataFrame([losses.drop_in_place(name)[order] for name in losses.columns])


#: The end of a step that lasts until the next one begins, and a time before all others.
_NEVER = (1 << 63) - 1
_EVER = -_NEVER


def _shaped(rows: pl.DataFrame) -> pl.DataFrame:
    """Return exactly the columns of losses; missing columns are null."""
    missing = [pl.lit(None).alias(name) for name in _LOSS if name not in rows.columns]
    typed = rows.with_columns(missing).select(pl.col(name).cast(t) for name, t in _LOSS.items())
    return typed.with_columns(pl.col("waited", "scheduled").fill_null(value=False))


# --- communication ---------------------------------------------------------------------------


def _communication(
    lost: pl.DataFrame,
    comm: CommOutliers | None,
    windows: pl.DataFrame,
    training: pl.DataFrame | None,
) -> Iterator[pl.DataFrame]:
    """Yield exposed communication as losses, each moment once: of each cause, then the rest."""
    communicating = lost.filter(pl.col("cause").is_in(_COMMUNICATING))
    rest = intervals.intersect(communicating, windows, DEVICE)
    on_host = intervals.intersect(lost.filter(pl.col("cause") == causes.PEER), windows, DEVICE)
    for claim in () if comm is None else _claims(lost, comm, rest, windows, training):
        if claim.is_empty():
            continue
        once = _disjoint(claim)
        lost_ns, on_host_ns = intervals.overlaps(once, [rest, on_host], DEVICE)
        yield _shaped(once.with_columns(lost_ns=lost_ns, on_host_ns=on_host_ns))
        rest, on_host = (intervals.subtract(rows, once, DEVICE) for rows in (rest, on_host))
    rests = {EXPOSED: intervals.subtract(rest, on_host, DEVICE), causes.PEER: on_host}
    for cause, rows in rests.items():
        yield _shaped(rows.with_columns(cause=pl.lit(cause), lost_ns=_LENGTH))


def _claims(
    lost: pl.DataFrame,
    comm: CommOutliers,
    exposed: pl.DataFrame,
    windows: pl.DataFrame,
    training: pl.DataFrame | None,
) -> Iterator[pl.DataFrame]:
    """Yield the communication of each cause in order."""
    if comm.arrivals["wait_ns"].sum():
        waits = _waits(_with_slow(lost, comm), comm, windows)
        yield waits
        yield _delayed(waits, comm, exposed)
    if training is not None:
        yield _repeated(training)
    yield _slow(comm, "setup", causes.COMMUNICATOR)
    yield _slow(comm)
    yield _unexplained(comm)
    yield _on_slow_links(comm)


def _disjoint(rows: pl.DataFrame) -> pl.DataFrame:
    """Return intervals without the time of earlier ones on their device (of another stream)."""
    rows = rows.sort(*DEVICE, "start", "end")
    before = pl.col("end").cum_max().shift(1).over(DEVICE)
    apart = rows.with_columns(start=pl.max_horizontal("start", before))
    return apart.filter(pl.col("end") > pl.col("start"))


def _waits(lost: pl.DataFrame, comm: CommOutliers, windows: pl.DataFrame) -> pl.DataFrame:
    """Return wait time for other ranks by cause of their delay, with ``root_rank``.

    Of simultaneous waits on one device, the first one counts.
    """
    roots = comm.collectives.select("instance", "root_rank").drop_nulls()
    rows = comm.arrivals["instance", *DEVICE, "collective", "scheduled", "ts", "wait_ns"]
    rows = rows.filter(pl.col("wait_ns") > 0).join(roots, on="instance")
    times = {"start": pl.col("ts"), "end": pl.col("ts") + pl.col("wait_ns")}
    apart = _disjoint(rows.with_columns(**times).drop("ts", "wait_ns"))
    shares = delays(lost, comm, windows)
    divided = apart.join(shares, on=("instance", "root_rank"), how="left").with_columns(
        pl.col("cause").fill_null(UNEXPLAINED), pl.col("from_frac").fill_null(0.0),
        pl.col("to_frac").fill_null(1.0),
    )  # fmt: skip
    return _parts(divided)


def _parts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the part of each interval from ``from_frac`` to ``to_frac``, as wait time."""
    at = [
        (pl.col("start") + (_LENGTH * pl.col(name)).round().cast(pl.Int64)).alias(side)
        for side, name in (("start", "from_frac"), ("end", "to_frac"))
    ]
    return (
        rows.with_columns(at).drop("from_frac", "to_frac").with_columns(waited=pl.lit(value=True))
    )


def _delayed(waits: pl.DataFrame, comm: CommOutliers, exposed: pl.DataFrame) -> pl.DataFrame:
    """Return exposed transfers that overlapped wait time delays, as wait time for the same ranks.

    See :func:`~.arrivals.carried`.
    """
    overlapped = intervals.overlap_with(waits, exposed, DEVICE)
    overlapped = overlapped.with_columns(hidden=_LENGTH - pl.col("overlap"))
    if not overlapped["hidden"].sum():
        return overlapped.clear()
    sequences = intervals.overlap_with(_sequences(comm), exposed, DEVICE)
    on = ("instance", *DEVICE)
    of_rank = overlapped.group_by(on).agg(pl.col("hidden").sum())
    rows = sequences.join(of_rank, on=on, how="left", nulls_equal=True, maintain_order="left")
    rows = rows.with_columns(pl.col("hidden").fill_null(0))
    rows = rows.filter(pl.col("hidden").sum().over("sequence") > 0)
    lost = carried(*rows["sequence", "hidden", "overlap"])
    start = pl.col("end") - pl.col("overlap")
    late = rows.with_columns(start=start, end=start + lost).filter(pl.col("end") > pl.col("start"))
    placed = overlapped.join(rows.select(*on, "sequence"), on=on, nulls_equal=True)
    return _parts(late.drop("overlap").join(_causes_of(placed), on="sequence"))


def _sequences(comm: CommOutliers) -> pl.DataFrame:
    """Return the transfer of each collective, and the number of its sequence on the stream."""
    names = ("instance", *DEVICE, "collective", "scheduled")
    return in_sequences(comm.arrivals[*names, "lane", "ts", "wait_ns", "duration_ns"]).select(
        *names, "sequence",
        start=pl.col("ts") + pl.col("wait_ns").fill_null(0),
        end=pl.col("ts") + pl.col("duration_ns"),
    )  # fmt: skip


def _causes_of(overlapped: pl.DataFrame) -> pl.DataFrame:
    """Return the causes of overlapped wait time in each sequence, as shares of it."""
    sums = overlapped.group_by("sequence", "cause", "root_rank").agg(pl.col("hidden").sum())
    sums = sums.filter(pl.col("hidden") > 0).sort("sequence", "hidden", "cause", "root_rank")
    whole = pl.col("hidden").sum().over("sequence")
    to = pl.col("hidden").cum_sum().over("sequence") / whole
    share = pl.col("hidden") / whole
    return sums.select("sequence", "cause", "root_rank", to_frac=to, from_frac=to - share)


def _repeated(training: pl.DataFrame) -> pl.DataFrame:
    """Return reductions of gradients that the next micro-batch repeats."""
    rows = training.filter(purpose=PURPOSE_REPEATED)
    return rows.select(*DEVICE, "start", "end", cause=pl.lit(REPEATED), collective="name")


def _slow(comm: CommOutliers, which: str = "slow", cause: str = SLOW) -> pl.DataFrame:
    """Return time of collectives above the usual on all ranks after the last arrival.

    Of ``setup``, the first collectives: the time in which communicators are created.
    """
    slow = comm.collectives.filter(which).select("instance", "slow_factor")
    rows = comm.arrivals.join(slow, on="instance")
    over = pl.col("duration_ns") - pl.col("wait_ns")
    return _at_end(rows, over * (1 - 1 / pl.col("slow_factor")), cause)


def _unexplained(comm: CommOutliers) -> pl.DataFrame:
    """Return time of collectives above others of their kind, without a known cause."""
    rows = comm.outliers().filter(pl.col("cause").is_null())
    return _at_end(rows, pl.col("over_ns"), OUTLIER)


def _with_slow(lost: pl.DataFrame, comm: CommOutliers) -> pl.DataFrame:
    """Return the lost time; of exposed communication, what slow collectives add has their cause.

    A rank that arrives late because of it was delayed by its link, not by what it does.
    """
    for claim, cause in ((_slow(comm), SLOW), (_on_slow_links(comm), LINK)):
        if claim.is_empty():
            continue
        once = _disjoint(claim)
        is_exposed = pl.col("cause").cast(pl.String) == EXPOSED
        exposed, others = lost.filter(is_exposed), lost.filter(~is_exposed)
        kept = intervals.subtract(exposed, once, DEVICE).with_columns(cause=pl.lit(EXPOSED, CAUSE))
        added = intervals.intersect(exposed, once, DEVICE).with_columns(cause=pl.lit(cause, CAUSE))
        lost = pl.concat([rows.select(lost.columns) for rows in (others, kept, added)])
    return lost


def _on_slow_links(comm: CommOutliers) -> pl.DataFrame:
    """Return time of collectives above that at :data:`SLOW_LINK_FRAC` of the bandwidth."""
    keys = [name for name in ("collective", "dtype", "message_bytes", "group") if
            name in comm.slow_links.columns]  # fmt: skip
    of_kind = comm.slow_links.select(*keys, "link_frac").unique(keys)
    rows = comm.instances.join(of_kind, on=keys, nulls_equal=True)
    pure = pl.col("duration_ns") - pl.col("wait_ns").fill_null(0)
    return _at_end(rows, pure * (1 - pl.col("link_frac") / SLOW_LINK_FRAC), LINK)


def _at_end(rows: pl.DataFrame, over_ns: pl.Expr, cause: str) -> pl.DataFrame:
    """Return the last ``over_ns`` of each collective as time of the cause."""
    end = pl.col("ts") + pl.col("duration_ns")
    return rows.select(
        *DEVICE,
        "collective",
        start=end - over_ns.round().cast(pl.Int64),
        end=end,
        cause=pl.lit(cause),
    ).filter(pl.col("end") > pl.col("start"))


# --- delays of ranks -------------------------------------------------------------------------


def delays(lost: pl.DataFrame, comm: CommOutliers, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the causes of each straggler's delay as shares of the wait time at each collective.

    The rank that arrives last is compared with the one that arrives first, from their arrival at
    the previous collective of the same group to their arrival at this one. The delay is the longer
    idle time of the straggler, for each cause, and its longer busy time::

        excess(cause) = max(0, time(late, cause) - time(first, cause))

    If it was late at the previous collective, too, the delay that remains from there keeps its
    causes; so does work that the first rank did while it waited there, and that the straggler still
    has to do (catch-up work)::

        inherited = max(0, previous delay + exposed(late) - exposed(first)) + catch-up work

    ``exposed`` is exposed communication, and idle time in collectives that the host runs.

    A rank that was delayed by another one has that rank as root; its waits have the mean shares of
    the other waits for the root.

    Args:
        lost: idle time and exposed communication: path, rank, device, start, end, cause.
        comm: collectives.
        windows: path, rank, device, start, end of the analysed time; its start is used in place of
            the collective before the first one.

    Returns:
        instance, root_rank, cause (of idle time or ``work``), and start and end of its share of
        each wait: ``from_frac`` and ``to_frac``.
    """
    late = comm.collectives.filter(pl.col("imposed_ns") > 0, pl.col("root_rank").is_not_null())
    direct = late.filter(pl.col("root_rank") == pl.col("last_rank"))
    excess = _shares(_excess(_before_arrival(comm, direct, windows, lost), lost), direct)
    weights = excess.join(direct.select("instance", "root_rank", "imposed_ns"), on="instance")
    typical = (
        weights.group_by("root_rank", "cause")
        .agg(ns=(pl.col("frac") * pl.col("imposed_ns")).sum())
        .with_columns(frac=ratio("ns", pl.col("ns").sum().over("root_rank")))
    )
    passed = late.join(weights.select("instance"), on="instance", how="anti")
    inherited = passed.select("instance", "root_rank").join(typical, on="root_rank")
    shares = pl.concat(
        [frame.select("instance", "root_rank", "cause", "frac") for frame in (weights, inherited)]
    )
    shares = shares.filter(pl.col("frac") > 0).sort("instance", "frac", "cause")
    to = pl.col("frac").cum_sum().over("instance").clip(0, 1)
    return shares.with_columns(to_frac=to, from_frac=(to - pl.col("frac")).clip(0, 1))


def _before_arrival(
    comm: CommOutliers, direct: pl.DataFrame, windows: pl.DataFrame, lost: pl.DataFrame
) -> pl.DataFrame:
    """Return the last and the first rank of each collective, from the previous arrival to this one.

    Returns:
        instance, before (previous collective), is_late, path, rank, device, start, end (on the
        clock of the file), arrived (at the previous collective, on the common clock).
    """
    arrivals, lane = comm.arrivals, ("path", "rank", "lane")
    _, (number,) = group_numbers(lane, arrivals)  # smaller than a sort by texts
    order = np.lexsort((arrivals["ts"], number))
    ordered = arrivals["instance", "rank"][order].with_columns(
        row=pl.Series(order), lane=pl.Series(number[order])
    )
    pairs = pl.concat(
        direct.select("instance", rank=rank, is_late=pl.lit(rank == "last_rank"))
        for rank in ("last_rank", "first_rank")
    )
    ordered = ordered.with_columns(before=previous(pl.col("row"), "lane"))
    of_pairs = ordered.join(pairs, on=["instance", "rank"], maintain_order="left")
    both = arrivals["instance", *lane, "device", "ts", "arrival"][of_pairs["row"]].with_columns(
        of_pairs["is_late"],
        start=arrivals["ts"].gather(of_pairs["before"]),
        before=arrivals["instance"].gather(of_pairs["before"]),
        end="ts",
    )
    # if a device lags behind its host, the host may lose time before the first step
    of_first = pl.col("path").is_in(both.filter(pl.col("start").is_null())["path"].implode())
    starts = pl.concat(rows.filter(of_first).select(*DEVICE, "start") for rows in (windows, lost))
    begun = starts.group_by(DEVICE).agg(begun=pl.col("start").min())
    both = both.join(begun, on=DEVICE, how="left", nulls_equal=True, maintain_order="left")
    start = pl.coalesce("start", "begun")
    both = both.with_columns(start, arrived=start + pl.col("arrival") - pl.col("ts"))
    known = both.filter(pl.col("end") >= pl.col("start"))
    return known.filter(pl.len().over("instance") == 2)


def _excess(rows: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """Return instance, before, and by cause the excess of the straggler over the first one.

    The difference of ``work`` may be negative. ``inherited``: delay that remains from the previous
    collective.
    """
    recorded = lost["cause"].unique().sort().to_list()
    of_cause = {cause: lost.filter(pl.col("cause") == cause) for cause in recorded}
    times = {
        cause: intervals.overlap_with(rows, when, DEVICE)["overlap"]
        for cause, when in of_cause.items()
    }
    each = rows.select("instance", "before", "is_late", "arrived", length=_LENGTH)
    each = each.with_columns(pl.lit(0, pl.Int64).alias(name) for name in _COMMUNICATING)
    each = each.with_columns(**times)
    each = each.with_columns(work=pl.col("length") - pl.sum_horizontal(recorded or [pl.lit(0)]))

    def more(name: str) -> pl.Expr:
        late, first = (pl.col(name).filter(w).sum() for w in ("is_late", ~pl.col("is_late")))
        return (late - first).alias(name)

    return each.group_by("instance", maintain_order=True).agg(
        pl.col("before").first(),
        more(WORK),
        *(more(name).clip(0) for name in recorded if name != EXPOSED),
        (more("arrived") + sum(map(more, _COMMUNICATING))).clip(0).alias("inherited"),
    )


def _shares(excess: pl.DataFrame, direct: pl.DataFrame) -> pl.DataFrame:
    """Return the shares of each delay, inherited ones included: instance, cause, frac.

    The rest is :data:`UNEXPLAINED`.
    """
    roots = dict(direct.select("instance", "root_rank").iter_rows())
    delay = dict(direct.select("instance", "skew_ns").iter_rows())
    measured = [c for c in excess.columns if c not in ("instance", "before", "inherited")]
    known: dict[int, dict[str, float]] = {}
    behind: dict[int, float] = {}
    for row in excess.sort("instance").iter_rows(named=True):
        same = roots.get(row["before"]) == roots[row["instance"]]
        owed, work = behind.get(row["before"], 0.0) if same else 0.0, float(row[WORK])
        caught_up = min(owed, max(work, 0.0))
        behind[row["instance"]] = max(owed - work, 0.0)
        parts = {cause: float(row[cause]) for cause in measured if row[cause] > 0}
        parts[WORK] = max(work, 0.0) - caught_up
        for cause, frac in known.get(row["before"], {}).items() if same else ():
            parts[cause] = parts.get(cause, 0.0) + frac * (row["inherited"] + caught_up)
        parts[UNEXPLAINED] = max(delay[row["instance"]] - sum(parts.values()), 0.0)
        whole = sum(parts.values())
        if whole:
            known[row["instance"]] = {cause: ns / whole for cause, ns in parts.items()}
    rows = [(i, cause, frac) for i, parts in known.items() for cause, frac in parts.items()]
    schema = {"instance": pl.UInt32, "cause": pl.String, "frac": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


# --- places of losses ------------------------------------------------------------------------

#: Minimum share of a loss in one place to report that place.
MOST = 0.6

#: Minimum number of ranks to report one of them as the place.
_SEVERAL = 2


def only_rank(losses: pl.DataFrame) -> int | None:
    """Return the rank that causes most of a loss, if there are several ranks."""
    if losses["rank"].n_unique() < _SEVERAL:
        return None
    sums = losses.drop_nulls("root_rank").group_by("root_rank").agg(pl.col("lost_ns").sum())
    top = sums.sort("lost_ns", "root_rank", descending=[True, False]).head(1)
    enough = top.filter(pl.col("lost_ns") >= MOST * int(losses["lost_ns"].sum()))
    ranks: list[int] = enough["root_rank"].to_list()
    return ranks[0] if ranks else None


#: Several ranks stand out if each loses this many times as much as any other one.
_APART = 3


def main_ranks(losses: pl.DataFrame, n_ranks: int) -> tuple[int, ...]:
    """Return the ranks that cause most of a loss, if others do not: several alike, or one.

    Each of several ranks, at most half of all, loses at least 3 times as much as any other one,
    without wait time.
    """
    if losses["rank"].n_unique() < _SEVERAL:
        return ()
    local = losses.filter(~pl.col("waited")).drop_nulls("rank")
    sums = local.group_by("rank").agg(pl.col("lost_ns").sum()).sort("lost_ns", "rank")[::-1]
    ns = np.append(sums["lost_ns"].to_numpy(), 0)[:n_ranks]
    times = ns[:-1] / np.maximum(ns[1:], 0.1 * ns[:1])
    n = int(np.argmax(times)) + 1 if times.size else 0
    ranks = sums["rank"].head(n)
    of_ranks = int(losses.filter(pl.col("root_rank").is_in(ranks.implode()))["lost_ns"].sum())
    is_apart = 1 < n <= n_ranks / 2 and times[n - 1] >= _APART
    if is_apart and of_ranks >= MOST * int(losses["lost_ns"].sum()):
        return tuple(ranks.sort())
    alone = only_rank(losses)
    return () if alone is None else (alone,)


def intervals_of(losses: pl.DataFrame) -> pl.DataFrame:
    """Return losses as the intervals of a finding."""
    return losses.select(*DEVICE, start_ns="start", end_ns="end")
