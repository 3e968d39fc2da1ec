"""What a rule is, what it judges, and what it measures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.diagnosis.device_time import (
    COPIES,
    LINK,
    OUTLIER,
    REPEATED,
    SLOW,
    DeviceTime,
    device_time,
)
from traceanalyzer.analyzers.diagnosis.program import Program, program
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.result import SEVERITIES, Confidence, Result, Severity


@dataclass(frozen=True)
class Answers:
    """The results that rules judge.

    Attributes:
        results: of the analyzers, by name, as far as there are any.
        one_job: whether all files can be of one job.
    """

    results: Mapping[str, Result]
    one_job: bool = True

    def get(self, name: str) -> Result | None:
        """The result of an analyzer, or None."""
        return self.results.get(name)

    @cached_property
    def time(self) -> DeviceTime:
        """The lost time of all devices by root cause."""
        idle, comm, kernels = map(self.get, ("gpu_idle", "comm_outliers", "kernels"))
        return device_time(
            idle if isinstance(idle, GpuIdle) else None,
            comm if isinstance(comm, CommOutliers) else None,
            kernels.training if isinstance(kernels, Kernels) else None,
        )

    @cached_property
    def program(self) -> Program:
        """What is known of the program and its GPUs."""
        return program(self.results)


@dataclass(frozen=True)
class Measured:
    """What a rule measured of one thing, whether it is worth a finding or not.

    Attributes:
        size: what is compared with the rule's thresholds.
        title: what is wrong, one sentence with numbers.
        evidence: further numbers, a sentence each.
        advice: what to try.
        cost_ns: time that removing it can gain at most, as the mean per step and device (per device
            where no steps are marked), or None.
        total_ns: the same, all devices together; ``cost_ns`` follows from it where it is None.
        once: the cost arises once per device, not in each step.
        cost_bytes: memory that it costs, or None.
        cost_frac: the cost as a share of ``of``, or None; by default the size, where that is a
            share.
        confidence: how sure it is.
        rank, device, step: where it is, None where it is in many places.
        intervals: when it is: rank, device, start_ns, end_ns on the clocks of their files.
        explained: the share of it that other findings explain, by the name of their rule.
    """

    size: float
    title: str
    evidence: tuple[str, ...] = ()
    advice: str = ""
    cost_ns: int | None = None
    total_ns: int | None = None
    once: bool = False
    cost_bytes: int | None = None
    cost_frac: float | None = None
    of: str = "the devices' time"
    confidence: Confidence = "high"
    rank: int | None = None
    device: int | None = None
    step: str | None = None
    intervals: pl.DataFrame | None = None
    explained: Mapping[str, float] = field(default_factory=dict)


#: Measures a result; the second argument has the results of the other analyses.
Measure = Callable[[Any, Answers], Iterable[Measured]]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong, and from when on it counts.

    Attributes:
        id: what the rule is called, in options and in answers.
        analysis: the analysis whose answer it judges.
        looks_for: what is wrong where it finds something, in a few words.
        measure: what is compared with the thresholds, in a few words.
        levels: the least size of a finding of each severity; a severity that it lacks is not given.
        function: the function that measures.
        counts: the measure is a number of things, not a share.
        uses: analyses whose results are evidence, where there are any.
        compares_ranks: it compares the ranks of one job.
    """

    id: str
    analysis: str
    looks_for: str
    measure: str
    levels: Mapping[Severity, float]
    function: Measure = field(repr=False)
    counts: bool = False
    uses: tuple[str, ...] = ()
    compares_ranks: bool = False

    def judge(self, answers: Answers) -> Iterator[Measured]:
        """What it measures of the result of its analysis."""
        for one in self.function(answers.results[self.analysis], answers):
            is_share = one.cost_frac is None and not self.counts
            yield replace(one, cost_frac=one.size) if is_share else one

    def severity(self, size: float) -> Severity | None:
        """How grave a size is; None where it is not worth a finding."""
        reached = [name for name, least in self.levels.items() if size >= least]
        return max(reached, key=SEVERITIES.index, default=None)


def rule(
    analysis: str,
    looks_for: str,
    measure: str,
    levels: Mapping[Severity, float],
    *,
    counts: bool = False,
    uses: tuple[str, ...] = (),
    compares_ranks: bool = False,
) -> Callable[[Measure], Rule]:
    """Makes a rule of the function that measures, whose name is its id; see :class:`Rule`."""

    def make(function: Measure) -> Rule:
        name = function.__name__.strip("_").replace("_", "-")
        return Rule(
            name, analysis, looks_for, measure, levels, function, counts, uses, compares_ranks
        )

    return make


# --- which rule has which cause --------------------------------------------------------------

#: The rule of each cause of idle time.
IDLE_RULES = {
    causes.PROFILER: "profiler-overhead",
    causes.SHORT_GAP: "short-gaps",
    causes.DEVICE_WAIT: "device-wait",
    causes.DATALOADING: "data-loading",
    causes.BATCH_COPY: "batch-copies",
    causes.MODULE_LOADING: "module-loading",
    causes.SYNCHRONISATION: "synchronisation",
    causes.MEMORY_MANAGEMENT: "memory-management",
    causes.CHECKPOINT_IO: "checkpoints",
    causes.PEER: "waiting-for-ranks",
    causes.LAUNCH: "launch-bound",
    causes.HOST_CODE: "host-code",
    causes.UNKNOWN: "unknown-idleness",
}
#: The rule of each cause that delays a rank, without its work.
DELAY_RULES = {**IDLE_RULES, COPIES: "exposed-copies"}
#: The rule of each cause of lost time; a straggler's work has that of the straggler.
RULE_OF = {
    **DELAY_RULES,
    REPEATED: "repeated-reduction",
    SLOW: "slow-collectives",
    OUTLIER: "collective-outliers",
    LINK: "slow-link",
}


def explained_by(
    losses: pl.DataFrame, whole_ns: float, column: str = "lost_ns"
) -> dict[str, float]:
    """The share of a time that other findings explain, by their ids.

    Args:
        losses: cause and ``column``, the time that is explained.
        whole_ns: the time in question.
        column: where the times are.
    """
    sums = losses.group_by("cause").agg(pl.col(column).sum()).sort("cause")
    shares: dict[str, float] = {}
    for cause, ns in sums.iter_rows():
        id_ = RULE_OF.get(cause) or "late-rank"
        shares[id_] = shares.get(id_, 0.0) + min(ns / whole_ns, 1.0)
    return shares
