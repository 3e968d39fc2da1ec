"""One run: what each rank's file gives, all ranks together, and the number it is judged by."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, R
from traceanalyzer.analyzers.comm_outliers import compute as comm
from traceanalyzer.analyzers.comm_outliers.collectives import Part as CommPart
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.device_work import COMMUNICATION
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

#: Keys of metadata that hold a version.
_SOFTWARE = {
    "cuda_driver_version": "CUDA driver",
    "cuda_runtime_version": "CUDA runtime",
    "nccl_version": "NCCL",
}


@dataclass(frozen=True)
class Facts(Meta):
    """What a file says about itself, as far as that bears on a comparison.

    Attributes:
        extras: what was recorded beside the usual, and costs time itself.
        cut_off: the end of the file is missing.
    """

    extras: tuple[str, ...] = ()
    cut_off: bool = False

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs."""
        return tuple(device.name for device in self.devices if device.name)

    @property
    def software(self) -> tuple[str, ...]:
        """Versions of what ran, as far as the file tells: ``CUDA driver 12080``."""
        try:
            told = json.loads(self.extra or "{}")
        except ValueError:
            return ()
        if not isinstance(told, dict):
            return ()
        job = told.get("distributedInfo")
        facts = {**told, **(job if isinstance(job, dict) else {})}
        return tuple(f"{name} {facts[key]}" for key, name in _SOFTWARE.items() if key in facts)


@dataclass(frozen=True)
class Part:
    """One rank's answers; None where the file lacks what the question needs.

    Attributes:
        facts: how it was recorded.
        steps: its steps. Their rows have in addition ``source`` (the file), ``mark`` (the step's
            start in it), and how long the device, or the main thread, was ``busy_ns`` and idle
            for each cause (``dataloading_ns`` ...), null where that is not known.
        idle: why its devices are idle.
        kernels: what its devices did.
        work: that by step: mark (null outside of every step), name, family, n, total_ns.
        operators: its operators by step: mark, name, kind, n, host_ns and device_ns, both without
            the calls in them; device_ns null without device work.
        comm: its collectives.
        memory: its memory.
        stacks: its sampled stacks.
    """

    facts: Facts
    steps: steps.Part | None
    idle: gpu_idle.Part | None
    kernels: kernels.Part | None
    work: pl.DataFrame | None
    operators: pl.DataFrame | None
    comm: CommPart | None
    memory: Memory | None
    stacks: Stacks | None


@dataclass(frozen=True)
class Run:
    """All ranks' answers; None where no rank has one.

    Attributes:
        facts: how each file was recorded.
        steps: its steps.
        idle: why its devices are idle.
        kernels: what its devices did.
        work: by step, as of :class:`~.part.Part`, with rank and source.
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
    operators: pl.DataFrame | None
    comm: CommOutliers | None
    memory: Memory | None
    stacks: tuple[Stacks, ...]

    @property
    def ranks(self) -> int:
        """How many ranks were recorded; files that do not tell theirs count for one each."""
        return len({(f.rank, f.path if f.rank is None else "") for f in self.facts})

    @property
    def counted(self) -> pl.DataFrame:
        """The rows of the steps that are no warm-up."""
        return pl.DataFrame() if self.steps is None else self.steps.counted

    @property
    def step_count(self) -> int:
        """How many different steps count; the same one on several ranks is one."""
        return 0 if self.steps is None else int(self.counted["number"].n_unique())


def run_of(parts: Sequence[Part]) -> Run:
    """The parts of one run put together."""
    parts = sorted(parts, key=_place)
    return Run(
        facts=tuple(part.facts for part in parts),
        steps=_combined(parts, "steps", steps.STEPS),
        idle=_combined(parts, "idle", gpu_idle.GPU_IDLE),
        kernels=_combined(parts, "kernels", kernels.KERNELS),
        work=_joined(parts, "work"),
        operators=_joined(parts, "operators"),
        comm=_collectives(parts),
        memory=_combined(parts, "memory", memory.MEMORY),
        stacks=tuple(part.stacks for part in parts if part.stacks),
    )


def _combined(parts: Sequence[Part], name: str, analyzer: Analyzer[Any, Any, R]) -> R | None:
    """The result of an analyzer, whose parts have this name; None where there are none."""
    own = [getattr(part, name) for part in parts if getattr(part, name)]
    return analyzer.combine(own, analyzer.options(), ()) if own else None


def _place(part: Part) -> tuple[bool, int, str]:
    return part.facts.rank is None, part.facts.rank or 0, part.facts.path


def _collectives(parts: Sequence[Part]) -> CommOutliers | None:
    try:
        return _combined(parts, "comm", comm.COMM_OUTLIERS)
    except MissingData:
        return None


def _joined(parts: Sequence[Part], name: str) -> pl.DataFrame | None:
    found = []
    for part in parts:
        frame: pl.DataFrame | None = getattr(part, name)
        if frame is not None:
            rank = pl.lit(part.facts.rank, pl.Int32).alias("rank")
            found.append(frame.with_columns(rank, source=pl.lit(part.facts.path)))
    return pl.concat(found) if found else None


Outcome = Literal["regression", "improvement", "no change", "cannot be compared"]
Name = Literal["step", "device", "thread", "samples", "memory"]

#: Families of device work whose number does not tell how much was trained.
_NO_WORK = rf"^mem(?:cpy|set)|^{COMMUNICATION}$"

_OPERATORS = ("operators", "host_ns")

#: Measures, the first that both runs have counts.
NAMES: tuple[Name, ...] = ("step", "device", "thread", "samples", "memory")


@dataclass(frozen=True)
class Value:
    """A measure of one run.

    Attributes:
        value: in ns, bytes or samples.
        error: its standard error, or None where it is not known.
    """

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Measure:
    """A measure of both runs.

    Attributes:
        name: ``step``, the median time of a step; ``device``, first start to last end of a device's
            work and of the marked steps, mean over devices; ``thread``, the same of training
            threads; ``samples``, the weight of all sampled stacks; ``memory``, the highest peak.
        unit: ``ns``, ``bytes``, ``samples`` or empty.
        before: its value before.
        after: its value after.
        noise: what the difference may be by chance, or None where that is not known.
        least: the least change that counts, as a part of the smaller value.
        work: how much work the run after holds, as a multiple of that before; its value and sums
            are divided by that. 1 where steps are compared.
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
        """How much more it is after."""
        return self.after - self.before

    @property
    def change_frac(self) -> float | None:
        """That, as a part of the value before."""
        return self.change / self.before if self.before else None

    @property
    def noise_frac(self) -> float | None:
        """The noise, as a part of the value before."""
        return None if self.noise is None or not self.before else self.noise / self.before

    @property
    def outcome(self) -> Outcome:
        """More than the noise and the least change is a regression or an improvement."""
        if not is_change(self.before, self.after, self.noise, self.least):
            return "no change"
        return "regression" if self.change > 0 else "improvement"


def measured(before: Run, after: Run, least: float) -> Measure | None:
    """The first measure that both runs have; None where there is none."""
    for name in NAMES:
        unit, own, other = _unit(name, before, after), _value(name, before), _value(name, after)
        if unit is None or own is None or other is None:
            continue
        known = own.error is not None and other.error is not None
        noise = noise_of(own.error, other.error) if known else None
        work = work_ratio(before, after, least) if name in ("device", "thread") else 1.0
        return Measure(name, unit, own.value, other.value / work, noise, least, work)
    return None


def work_ratio(before: Run, after: Run, least: float) -> float:
    """How often what ran in both ran after, as a multiple of how often before.

    That is the median of kernels' (else operators') ratios, each counted by its time; without
    copies and communication, whose number is not that of the work. 1 where it is closer to 1 than
    what counts as a change, or where what ran in both is less than half of either run's time.
    """
    table, time = ("work", "total_ns") if before.kernels and after.kernels else _OPERATORS
    rows = [_counts(run, table, time) for run in (before, after)]
    both = rows[0].join(rows[1], on="name", suffix="_after")
    shared = [both[time].sum(), both[f"{time}_after"].sum()]
    whole = [frame[time].sum() for frame in rows]
    if any(2 * part < of or not of for part, of in zip(shared, whole, strict=True)):
        return 1.0
    ratio = pl.col("n_after") / pl.col("n")
    weight = pl.col(time) / whole[0] + pl.col(f"{time}_after") / whole[1]
    ordered = both.select(ratio.alias("ratio"), weight.alias("weight")).sort("ratio")
    reached = ordered["weight"].cum_sum() >= ordered["weight"].sum() / 2
    found = float(ordered["ratio"][reached.arg_true()[0]])
    return found if max(found, 1 / found) > 1 + least else 1.0


def _counts(run: Run, table: str, time: str) -> pl.DataFrame:
    """How often each kernel or operator ran on a device or rank, and for how long in all."""
    rows: pl.DataFrame = getattr(run, table)
    if table == "work" and run.kernels:
        each = run.kernels.devices.height
        rows = rows.filter(~pl.col("family").str.contains(_NO_WORK))
    else:
        each = run.ranks
    sums = rows.drop_nulls("name").group_by("name").agg(pl.col("n", time).sum())
    return sums.filter(pl.col("n") > 0, pl.col(time) > 0).with_columns(pl.col("n") / each)


def _unit(name: Name, before: Run, after: Run) -> str | None:
    """The unit of a measure; None where the runs have it in different ones."""
    if name != "samples":
        return "bytes" if name == "memory" else "ns"
    units = {part.unit for run in (before, after) for part in run.stacks}
    return units.pop() if len(units) == 1 else None


def _value(name: Name, run: Run) -> Value | None:
    """A run's measure, or None where it has none."""
    if name == "step":
        return _step(run)
    if name in ("device", "thread"):
        # as gpu-idle has it, so that the parts of the time add up to it
        idle = run.idle if run.idle and run.idle.on_host == (name == "thread") else None
        return None if idle is None else Value(idle.span_ns / idle.units.height)
    if name == "samples":
        return _samples(run)
    held = run.memory
    return None if held is None else Value(float(held.scalars["peak_bytes"]))


def _step(run: Run) -> Value | None:
    """The median over all ranks' steps; steps of one name on several ranks count as one."""
    if run.steps is None:
        return None
    each = run.counted.unique(["rank", "path", "number"])["duration_ns"].sort()
    (error,) = standard_errors(each.to_numpy().astype(np.float64)[None, :], run.step_count)
    return Value(run.steps.scalars["median_ns"], None if np.isnan(error) else float(error))


def _samples(run: Run) -> Value | None:
    """All weight; of counted samples chance alone makes it vary by its square root."""
    if not run.stacks:
        return None
    total = float(sum(part.weights[0].sum() for part in run.stacks))
    counted = run.stacks[0].unit == "samples"
    return Value(total, total**0.5 if counted else None) if total else None


# --- noise -----------------------------------------------------------------------------------

Floats = npt.NDArray[np.float64]

#: A change within so many standard errors may be chance.
ERRORS = 3

#: One value of so many is left out.
_LEFT_OUT = 5

#: What the mean distance of so many normal values is multiplied by: 1 / its mean in 40,000 draws;
#: from ten values on between 1.72 and 1.95.
_SCALE = {2: 1.77, 3: 1.77, 4: 1.51, 5: 2.28, 6: 1.93, 7: 1.88, 8: 1.74, 9: 1.71}
_SCALE_OF_MANY = 1.85

#: The standard error of a mean over half of n values is the square root of this over n times their
#: standard deviation; that of the median of all is smaller (1.57).
_OF_HALF = 2.0

#: How a row may have changed.
STATES = ("slower", "faster", "in the noise", "no change", "new", "gone")
STATE = pl.Enum(STATES)
SLOWER, FASTER, UNSURE, SAME, NEW, GONE = STATES


def standard_errors(values: Floats, count: int | None = None) -> Floats:
    """The standard error of what is usual, of each row of values; NaN for fewer than two.

    Args:
        values: a row of values each, one a step.
        count: how many of them are independent, where not all are.
    """
    n = values.shape[1] if count is None else count
    if n < 2:
        return np.full(values.shape[0], np.nan)
    away = np.sort(np.abs(values - np.median(values, axis=1, keepdims=True)), axis=1)
    near = away[:, : away.shape[1] - away.shape[1] // _LEFT_OUT].mean(axis=1)
    # where most are equal, the few others still tell something
    spread = _SCALE.get(n, _SCALE_OF_MANY) * np.where(near > 0, near, away.mean(axis=1))
    found: Floats = np.sqrt(_OF_HALF / n) * spread
    return found


def noise_of(before: Any, after: Any) -> Any:
    """What a difference may be by chance, from two standard errors: numbers, arrays or columns."""
    return ERRORS * (before**2 + after**2) ** 0.5


def is_change(before: float, after: float, noise: float | None, least: float) -> bool:
    """Whether two values differ by more than the noise and the least change."""
    change, floor = abs(after - before), least * min(abs(before), abs(after))
    return change > floor and change > (noise or 0)


def judged(rows: pl.DataFrame, unit: str, least: float) -> pl.DataFrame:
    """The rows with ``change_*``, ``change_frac`` and ``state``.

    Args:
        rows: ``before_*`` and ``after_*`` (null where only the other run has the row), ``noise_*``
            (null where it is not known).
        unit: of the values, the suffix of their columns.
        least: the least change that counts, as a part of the smaller value.
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
    """The same for shares of a whole, which change by a difference, to ``more`` or ``less``.

    The largest change comes first.
    """
    before, after, noise = (pl.col(f"{name}_frac") for name in ("before", "after", "noise"))
    change = after.fill_null(0) - before.fill_null(0)
    floor = least * pl.min_horizontal(before, after)
    state = _state(before, after, change, floor, noise).cast(pl.String)
    shares = state.replace({SLOWER: "more", FASTER: "less"})
    found = rows.with_columns(change_frac=change, state=shares)
    return found.sort(pl.col("change_frac").abs(), "name", "place", descending=[True, False, False])


def _state(
    before: pl.Expr, after: pl.Expr, change: pl.Expr, floor: pl.Expr, noise: pl.Expr
) -> pl.Expr:
    sure = (change.abs() > floor) & (change.abs() > noise.fill_null(0))
    cases = (
        (before.is_null(), NEW),
        (after.is_null(), GONE),
        (sure & (change > 0), SLOWER),
        (sure, FASTER),
        (change.abs() > floor, UNSURE),
    )
    found = [pl.when(holds).then(pl.lit(state)) for holds, state in cases]
    return pl.coalesce(*found, pl.lit(SAME)).cast(STATE)
