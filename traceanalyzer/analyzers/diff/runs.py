"""One run: the data of each rank, combined over ranks, and the measure that it is judged by."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, R
from traceanalyzer.analyzers.comm_outliers import compute as comm
from traceanalyzer.analyzers.comm_outliers.collectives import Part as CommPart
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.columns import largest_first, source_of, stacked
from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.analyzers.diff.roles import Units
from traceanalyzer.analyzers.flamegraph.weights import Part as Stacks
from traceanalyzer.analyzers.gpu_idle import compute as gpu_idle
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.kernels import compute as kernels
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.memory import compute as memory
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.analyzers.steps import compute as steps
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Meta

Floats = npt.NDArray[np.float64]

#: Metadata keys of versions.
_SOFTWARE = {
    "cuda_driver_version": "CUDA driver",
    "cuda_runtime_version": "CUDA runtime",
    "nccl_version": "NCCL",
}


#: Recorded data with overhead.
PYTHON_FRAMES: str = "Python frames (with_stack)"
ALLOCATIONS: str = "allocations (profile_memory)"


@dataclass(frozen=True)
class Facts(Meta):
    """Metadata of a file that is relevant to a comparison.

    Attributes:
        extras: recorded data with overhead.
        cut_off: whether the file is truncated.
    """

    extras: tuple[str, ...] = ()
    cut_off: bool = False

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs."""
        return tuple(device.name for device in self.devices if device.name)

    @property
    def software(self) -> tuple[str, ...]:
        """Versions of the software that the file names: ``CUDA driver 12080``."""
        try:
            metadata = json.loads(self.extra or "{}")
        except ValueError:
            return ()
        if not isinstance(metadata, dict):
            return ()
        job = metadata.get("distributedInfo")
        facts = {**metadata, **(job if isinstance(job, dict) else {})}
        return tuple(f"{name} {facts[key]}" for key, name in _SOFTWARE.items() if key in facts)


@dataclass(frozen=True)
class Part:
    """The parts of one rank from other analyzers; None if the file lacks the data.

    Attributes:
        facts: how it was recorded.
        steps: its steps. Their rows also have ``source`` (the file), ``mark`` (the step's start in
            it), and how long the device or main thread was ``busy_ns`` and idle by cause
            (``dataloading_ns`` ...), null if unknown.
        idle: why its devices are idle.
        kernels: device work.
        work: device work by step: mark (null outside of any step), name, family, n, total_ns.
        units: its kernels, copies and memsets by operator call and position.
        operators: operators by step: mark, name, kind, n, host_ns and device_ns (self times);
            device_ns null without device work.
        comm: its collectives.
        memory: its memory.
        stacks: its sampled stacks.
    """

    facts: Facts
    steps: steps.Part | None
    idle: gpu_idle.Part | None
    kernels: kernels.Part | None
    work: pl.DataFrame | None
    units: Units | None
    operators: pl.DataFrame | None
    comm: CommPart | None
    memory: Memory | None
    stacks: Stacks | None


@dataclass(frozen=True)
class Run:
    """The combined results of all ranks; None if no rank has the data.

    Attributes:
        facts: how each file was recorded.
        steps: its steps.
        idle: why its devices are idle.
        kernels: what its devices did.
        work: by step, as in :class:`Part`, with rank and source.
        units: those of all ranks, the times with rank and source.
        operators: the same.
        comm: its collectives.
        memory: its memory.
        stacks: its sampled stacks.
    """

    facts: tuple[Facts, ...]
    steps: Steps | None
    idle: GpuIdle | None
    kernels: Kernels | None
    work: pl.DataFrame | None
    units: Units | None
    operators: pl.DataFrame | None
    comm: CommOutliers | None
    memory: Memory | None
    stacks: tuple[Stacks, ...]

    @property
    def ranks(self) -> int:
        """Number of recorded ranks; files without a rank count as one each."""
        return len({(f.rank, f.path if f.rank is None else "") for f in self.facts})

    @property
    def counted(self) -> pl.DataFrame:
        """The rows of the steps without warm-up."""
        return pl.DataFrame() if self.steps is None else self.steps.counted

    @property
    def step_count(self) -> int:
        """Number of counted steps; the same step on several ranks counts once."""
        return 0 if self.steps is None else int(self.counted["number"].n_unique())


def run_of(parts: Sequence[Part]) -> Run:
    """Combine the parts of one run."""
    parts = sorted(parts, key=_place)
    return Run(
        facts=tuple(part.facts for part in parts),
        steps=_combined(parts, "steps", steps.STEPS),
        idle=_combined(parts, "idle", gpu_idle.GPU_IDLE),
        kernels=_combined(parts, "kernels", kernels.KERNELS),
        work=_with_sources(parts, "work"),
        units=_units(parts),
        operators=_with_sources(parts, "operators"),
        comm=_collectives(parts),
        memory=_combined(parts, "memory", memory.MEMORY),
        stacks=tuple(part.stacks for part in parts if part.stacks),
    )


def _combined(parts: Sequence[Part], name: str, analyzer: Analyzer[Any, Any, R]) -> R | None:
    """Combine the parts of an analyzer; None if there are none."""
    known = [getattr(part, name) for part in parts if getattr(part, name)]
    return analyzer.combine(known, analyzer.options()) if known else None


def _place(part: Part) -> tuple[bool, int, str]:
    return part.facts.rank is None, part.facts.rank or 0, part.facts.path


def _collectives(parts: Sequence[Part]) -> CommOutliers | None:
    try:
        return _combined(parts, "comm", comm.COMM_OUTLIERS)
    except MissingData:
        return None


def _units(parts: Sequence[Part]) -> Units | None:
    """Return the places of all ranks: those of the first one in its order, then all others."""
    known = [(part.facts, part.units) for part in parts if part.units]
    if not known:
        return None
    places = pl.concat([units.places for _, units in known]).unique(
        "place", keep="first", maintain_order=True
    )
    source = source_of([facts for facts, _ in known])
    times = [units.times for _, units in known]
    return Units(places, stacked(times, rank=source["rank"], source=source["path"]))


def _with_sources(parts: Sequence[Part], table: str) -> pl.DataFrame | None:
    known = [part for part in parts if getattr(part, table) is not None]
    if not known:
        return None
    source = source_of([part.facts for part in known])
    frames = [getattr(part, table) for part in known]
    return stacked(frames, rank=source["rank"], source=source["path"])


Outcome = Literal["regression", "improvement", "no change", "not judged", "cannot be compared"]
Name = Literal["step", "mean", "device", "thread", "samples", "memory"]

#: Families of device work whose count does not scale with the work.
_NO_WORK = rf"^mem(?:cpy|set)|^{COMMUNICATION}$"

_OPERATORS = ("operators", "host_ns")

#: Measures; the first that both runs have is used, the mean only if the median did not change.
NAMES: tuple[Name, ...] = ("step", "device", "thread", "samples", "memory")

#: Least change of the mean step if the median did not change, and least number of slow steps.
MEAN_FRAC, _SLOW = 0.05, 3

#: Quantile of the usual step, and the least share of slow steps of which the median may be one.
_USUAL, _HALF = 0.4, 0.4


@dataclass(frozen=True)
class Value:
    """A measure of one run.

    Attributes:
        value: in ns, bytes or samples.
        error: its standard error, or None if unknown.
    """

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Measure:
    """A measure of both runs.

    Attributes:
        name: ``step``, the median time of a step; ``mean``, its mean: the median did not change,
            but one step in a few is slow in one run, or every second one is; ``device``, first
            start to last end of a device's work and of the marked steps, mean over devices;
            ``thread``, the same of training threads; ``samples``, the weight of all sampled stacks;
            ``memory``, the highest peak.
        unit: ``ns``, ``bytes``, ``samples`` or empty.
        before: its value before.
        after: its value after.
        noise: the noise of the difference, or None if unknown.
        least: the least significant change, as a fraction of the smaller value.
        work: the work of the run after as a multiple of that before; its value and sums are divided
            by it. 1 if steps are compared.
    """

    name: Name
    unit: str
    before: float
    after: float
    noise: float | None
    least: float
    work: float = 1.0

    @property
    def change(self) -> float:
        """The value after minus the value before."""
        return self.after - self.before

    @property
    def change_frac(self) -> float | None:
        """The change as a fraction of the value before."""
        return self.change / self.before if self.before else None

    @property
    def noise_frac(self) -> float | None:
        """The noise as a fraction of the value before."""
        return None if self.noise is None or not self.before else self.noise / self.before

    @property
    def in_steps(self) -> bool:
        """Whether steps are compared, not whole recordings."""
        return self.name in ("step", "mean")

    @property
    def outcome(self) -> Outcome:
        """The outcome: a significant change is a regression or an improvement.

        The total of samples is not judged: it measures duration and threads, not speed. A change of
        a single step is not, either: steps of equal work differ, too.
        """
        if self.name == "samples":
            return "not judged"
        if not is_change(self.before, self.after, self.noise, self.least):
            return "no change"
        if self.in_steps and self.noise is None:
            return "not judged"
        return "regression" if self.change > 0 else "improvement"


def measured(
    before: Run, after: Run, least: float, *, by_mean: bool | None = None
) -> Measure | None:
    """Return the first measure that both runs have; None if there is none.

    ``by_mean``: whether steps are judged by their mean; None: if only the mean changed.
    """
    for name in NAMES:
        unit, base, other = _unit(name, before, after), _value(name, before), _value(name, after)
        if unit is None or base is None or other is None:
            continue
        known = base.error is not None and other.error is not None
        noise = noise_of(base.error, other.error) if known else None
        work = work_ratio(before, after, least) if name in ("device", "thread") else 1.0
        measure = Measure(name, unit, base.value, other.value / work, noise, least, work)
        if name == "step" and by_mean is not False:
            mean = _mean(before, after, measure)
            slower = (before, after)[mean.change > 0]
            changed = measure.outcome == "no change" and mean.outcome != "no change"
            regular = changed and _is_regular(step_times(slower))
            sides = step_times(before), step_times(after)
            judged = mean if by_mean or regular or any(map(alternates, sides)) else measure
            return with_ranges(judged, *sides)
        return measure
    return None


def with_ranges(measure: Measure, before: Floats, after: Floats) -> Measure:
    """Return a measure with less noise if the ranges of both runs' values do not overlap.

    By chance that happens to one of 126 pairs of runs with five values each. All differences of a
    value after and one before are then beyond the gap between the ranges.
    """
    gap, change = max(after.min() - before.max(), before.min() - after.max()), abs(measure.change)
    is_known = change > (measure.noise or 0) or min(before.size, after.size) < _RANGES
    return measure if is_known or gap <= 0 else replace(measure, noise=max(change - gap, 0.0))


def _mean(before: Run, after: Run, median: Measure) -> Measure:
    """Return the measure of the mean step, in which one slow step in a few counts."""
    sides = [step_times(run) for run in (before, after)]
    means = [float(side.mean()) for side in sides]
    one = noise_of(*map(_error_of_slow, sides))
    others = median.noise
    if others is not None and any(map(_is_regular, sides)):
        others = noise_of(*map(_error_of_others, sides))
    noise = None if others is None else float(np.hypot(others, one))
    least = max(median.least, MEAN_FRAC)
    return replace(median, name="mean", before=means[0], after=means[1], noise=noise, least=least)


def step_times(run: Run) -> Floats:
    """Return the mean time of each counted step over its ranks, in order; none without steps."""
    if run.steps is None:
        return np.empty(0)
    each = run.counted.group_by("number").agg(pl.col("duration_ns").mean()).sort("number")
    return each["duration_ns"].to_numpy()


def _error_of_slow(times: Floats) -> float:
    """Return the standard error of the mean due to slow steps: their times, and one of them.

    Regular ones may be one more or less, by the first step; how many others there are is chance.
    """
    if times.size < 2 or not _is_regular(times):
        return float(np.abs(times - times.mean()).max() / max(times.size - 1, 1))
    slow = times[_slow(times)]
    spread = slow.std(ddof=1) * slow.size**0.5
    return float(np.hypot(np.ptp(times) / ERRORS, spread) / times.size)


def _error_of_others(times: Floats) -> float:
    """Return the standard error of the steps that are not slow: with half of them, all differ."""
    usual = np.delete(times, _slow(times)) if _is_regular(times) else times
    return float(standard_errors(usual[None, :])[0])


def _slow(times: Floats) -> npt.NDArray[np.int64]:
    """Return the numbers of the slow steps: those over the usual by half of the largest excess.

    The usual time is below the median: that of a fast step if just over half of them are slow.
    """
    over = times - np.quantile(times, _USUAL, method="lower")
    return np.flatnonzero(2 * over > over.max())


def _is_regular(times: Floats) -> bool:
    """Whether one step in a few is slow, from the first to the last one."""
    slow = _slow(times)
    gaps = np.diff(slow)
    if slow.size < _SLOW or (gaps != gaps[0]).any():
        return False
    return bool(slow[0] < gaps[0] and slow[-1] >= times.size - gaps[0])


def alternates(times: Floats) -> bool:
    """Whether every second step is slow: the median is by chance that of either kind."""
    if not _is_regular(times) or (slow := _slow(times)).size <= _HALF * times.size:
        return False
    usual = np.median(np.delete(times, slow))
    return bool(np.median(times[slow]) - usual >= MEAN_FRAC * usual)


def with_same_steps(before: Run, after: Run, least: float) -> tuple[Run, Run]:
    """Return the runs without inferred steps, unless both runs have equal work in such a step.

    Steps inferred from kernels are repeats of a sequence, which may be a part of a step in one run
    and several steps in the other one.
    """
    inferred = [run.steps is not None and run.steps.by_kernels for run in (before, after)]
    if all(inferred):
        ratio = _median_ratio([_counts_in_steps(run) for run in (before, after)], "total_ns")
        if ratio is not None and max(ratio, 1 / ratio) <= 1 + least:
            return before, after
    without = [
        replace(run, steps=None) if is_inferred else run
        for run, is_inferred in zip((before, after), inferred, strict=True)
    ]
    return without[0], without[1]


def work_ratio(before: Run, after: Run, least: float) -> float:
    """Return the work after as a multiple of the work before, by :func:`_median_ratio`.

    Without kernels in both runs operators count. 1 if it is closer to 1 than a significant change,
    or unknown.
    """
    table, time = ("work", "total_ns") if before.kernels and after.kernels else _OPERATORS
    ratio = _median_ratio([_counts(run, table, time) for run in (before, after)], time)
    return ratio if ratio is not None and max(ratio, 1 / ratio) > 1 + least else 1.0


def _median_ratio(rows: Sequence[pl.DataFrame], time: str) -> float | None:
    """Return the median of the ratios of counts after and before, weighted by time.

    None if common kernels or operators take less than half of either run's time.

    Args:
        rows: name, n and ``time`` of each run.
        time: column of the time.
    """
    both = rows[0].join(rows[1], on="name", suffix="_after")
    shared = [both[time].sum(), both[f"{time}_after"].sum()]
    whole = [frame[time].sum() for frame in rows]
    if any(2 * part < of or not of for part, of in zip(shared, whole, strict=True)):
        return None
    ratio = pl.col("n_after") / pl.col("n")
    weight = pl.col(time) / whole[0] + pl.col(f"{time}_after") / whole[1]
    ordered = both.select(ratio.alias("ratio"), weight.alias("weight")).sort("ratio")
    reached = ordered["weight"].cum_sum() >= ordered["weight"].sum() / 2
    return float(ordered["ratio"][reached.arg_true()[0]])


def _counts_in_steps(run: Run) -> pl.DataFrame:
    """Return count per step and total time of each kernel that starts in a step."""
    if run.work is None or run.steps is None:
        return pl.DataFrame(schema={"name": pl.String, "n": pl.Float64, "total_ns": pl.Int64})
    rows = run.work.filter(pl.col("mark").is_not_null(), ~pl.col("family").str.contains(_NO_WORK))
    return _summed(rows, "total_ns", run.steps.steps.height)


def _counts(run: Run, table: str, time: str) -> pl.DataFrame:
    """Return count per device or rank and total time of each kernel or operator.

    Copies and communication are left out: their counts do not scale with the work.
    """
    rows: pl.DataFrame = getattr(run, table)
    if table == "work" and run.kernels:
        each = run.kernels.devices.height
        rows = rows.filter(~pl.col("family").str.contains(_NO_WORK))
    else:
        each = run.ranks
    return _summed(rows, time, each)


def _summed(rows: pl.DataFrame, time: str, each: int) -> pl.DataFrame:
    sums = rows.drop_nulls("name").group_by("name").agg(pl.col("n", time).sum())
    return sums.filter(pl.col("n") > 0, pl.col(time) > 0).with_columns(pl.col("n") / each)


def _unit(name: Name, before: Run, after: Run) -> str | None:
    """Return the unit of a measure; None if the runs have different units."""
    if name != "samples":
        return "bytes" if name == "memory" else "ns"
    units = {part.unit for run in (before, after) for part in run.stacks}
    return units.pop() if len(units) == 1 else None


def _value(name: Name, run: Run) -> Value | None:
    """Return the value of a measure of a run, or None."""
    if name == "step":
        return _step(run)
    if name in ("device", "thread"):
        # as in gpu-idle, so that the parts of the time add up to it
        idle = run.idle if run.idle and run.idle.coverage.on_host == (name == "thread") else None
        units = idle.units.height if idle else 0
        return Value(idle.span_ns / units) if idle and units else None
    if name == "samples":
        return _samples(run)
    result = run.memory
    return None if result is None else Value(float(result.scalars["peak_bytes"]))


def _step(run: Run) -> Value | None:
    """Return the median over all ranks' steps; the same step on several ranks counts once."""
    if run.steps is None:
        return None
    each = run.counted.unique(["rank", "path", "number"])["duration_ns"].sort()
    (error,) = standard_errors(each.to_numpy().astype(np.float64)[None, :], run.step_count)
    return Value(run.steps.scalars["median_ns"], None if np.isnan(error) else float(error))


def _samples(run: Run) -> Value | None:
    """Return the total weight; the standard error of a count of samples is its square root."""
    if not run.stacks:
        return None
    total = float(sum(part.weights[0].sum() for part in run.stacks))
    counted = run.stacks[0].unit == "samples"
    return Value(total, total**0.5 if counted else None) if total else None


# --- noise -----------------------------------------------------------------------------------

#: Noise in standard errors of the difference.
ERRORS = 3

#: Least number of values of each run whose ranges are compared.
_RANGES = 5

#: One of this many values is left out: of few, and of six and more.
_LEFT_OUT_OF_FEW, _LEFT_OUT, _FEW = 5, 3, 6

#: Factor of the mean distance by number of normal values: 1 / its mean in 40,000 draws; between
#: 2.22 and 2.45 for ten values and more.
_SCALE = {2: 1.77, 3: 1.77, 4: 1.51, 5: 2.28, 6: 2.6, 7: 2.5, 8: 2.18, 9: 2.63}
_SCALE_OF_MANY = 2.35

#: The standard error of a mean over half of n values is the square root of this over n, times their
#: standard deviation; the one of the median of all values is smaller (1.57).
_OF_HALF = 2.0

#: States of a row.
STATES = ("slower", "faster", "within noise", "no change", "new", "gone")
STATE = pl.Enum(STATES)
SLOWER, FASTER, UNSURE, SAME, NEW, GONE = STATES


def standard_errors(values: Floats, count: int | None = None) -> Floats:
    """Return the standard error of the typical value of each row; NaN for fewer than two values.

    Args:
        values: rows with one value per step.
        count: number of independent values, if not all are.
    """
    n = values.shape[1] if count is None else count
    if n < 2:
        return np.full(values.shape[0], np.nan)
    away = np.sort(np.abs(values - np.median(values, axis=1, keepdims=True)), axis=1)
    size = away.shape[1]
    near = away[:, : size - size // (_LEFT_OUT_OF_FEW if size < _FEW else _LEFT_OUT)].mean(axis=1)
    # if most values are equal, use all
    scale = _SCALE.get(n, _SCALE_OF_MANY)
    spread = np.where(near > 0, scale * near, _SCALE[2] * away.mean(axis=1))
    errors: Floats = np.sqrt(_OF_HALF / n) * spread
    return errors


def noise_of(before: Any, after: Any) -> Any:
    """Return the noise of a difference from two standard errors: numbers, arrays or columns."""
    return ERRORS * (before**2 + after**2) ** 0.5


def is_change(before: float, after: float, noise: float | None, least: float) -> bool:
    """Whether two values differ by more than the noise and the least change."""
    change, floor = abs(after - before), least * min(abs(before), abs(after))
    return change > floor and change > (noise or 0)


def judged(rows: pl.DataFrame, unit: str, least: float) -> pl.DataFrame:
    """Add ``change_*``, ``change_frac`` and ``state`` to the rows.

    Args:
        rows: ``before_*`` and ``after_*`` (null if only the other run has the row), ``noise_*``
            (null if unknown).
        unit: of the values, the suffix of their columns.
        least: the least significant change, as a fraction of the smaller value.
    """
    before, after, noise = (pl.col(f"{name}_{unit}") for name in ("before", "after", "noise"))
    change = after.fill_null(0) - before.fill_null(0)
    both = before.is_not_null() & after.is_not_null()
    floor = least * pl.min_horizontal(before.abs(), after.abs())
    return rows.with_columns(
        change.alias(f"change_{unit}"),
        pl.when(both & (before != 0)).then(change / before).alias("change_frac"),
        state=_state(before, after, change, floor, noise),
    )


def judged_shares(rows: pl.DataFrame, least: float) -> pl.DataFrame:
    """Add ``change_frac`` (the difference) and ``state`` (``more``, ``less`` ...) to shares.

    The largest change comes first.
    """
    before, after, noise = (pl.col(f"{name}_frac") for name in ("before", "after", "noise"))
    change = after.fill_null(0) - before.fill_null(0)
    floor = least * pl.min_horizontal(before, after)
    state = _state(before, after, change, floor, noise).cast(pl.String)
    shares = state.replace({SLOWER: "more", FASTER: "less"})
    changed = rows.with_columns(change_frac=change, state=shares)
    return largest_first(changed, pl.col("change_frac").abs(), "name", "place")


def _state(
    before: pl.Expr, after: pl.Expr, change: pl.Expr, floor: pl.Expr, noise: pl.Expr
) -> pl.Expr:
    significant = (change.abs() > floor) & (change.abs() > noise.fill_null(0))
    cases = (
        (before.is_null(), NEW),
        (after.is_null(), GONE),
        (significant & (change > 0), SLOWER),
        (significant, FASTER),
        (change.abs() > floor, UNSURE),
    )
    states = [pl.when(holds).then(pl.lit(state)) for holds, state in cases]
    return pl.coalesce(*states, pl.lit(SAME)).cast(STATE)
