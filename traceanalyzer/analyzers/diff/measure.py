"""The one number that a run is judged by, and whether it changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from traceanalyzer.analyzers.device_work import COMMUNICATION
from traceanalyzer.analyzers.diff.noise import is_change, noise_of, standard_errors
from traceanalyzer.analyzers.diff.run import Run

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
    if name == "device":
        # as gpu-idle has it, so that the parts of the time add up to it
        own = None if run.idle is None or run.idle.on_host else run.idle
        return None if own is None else Value(own.span_ns / own.units.height)
    if name == "thread":
        own = run.idle if run.idle and run.idle.on_host else None
        return None if own is None else Value(own.span_ns / own.units.height)
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
