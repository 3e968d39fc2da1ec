"""Gains that ``what-if`` predicts, against the same simulated job without the fault."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cases import Plan, plans, program_of
from benchmarks.accuracy.fault import Expected
from benchmarks.accuracy.measure import names_cause, names_place
from benchmarks.accuracy.simulator import Job, simulate
from benchmarks.accuracy.variants import within_recording
from benchmarks.accuracy.write import write_kineto
from benchmarks.accuracy.write_nsys import write_nsys

#: A prediction counts if it is within this share of the true gain, or of the step.
OF_GAIN, OF_STEP = 0.1, 0.01
RANK = "rank of the fault"
NETWORK = "factor of the fault"
#: The change that removes each fault; a fault that no change removes is not in the table.
CHANGES: dict[str, dict[str, Any]] = {
    "loader-slow": {"free": "data-loading"},
    "loader-slow-on-one-rank": {"free": "data-loading"},
    "loader-slow-in-some-steps": {"free": "data-loading"},
    "loader-in-main-process": {"free": "data-loading"},
    "pageable-batch-copy": {"free": "HtoD"},
    "slow-gpu": {"typical_rank": RANK},
    "throttling-gpu": {"typical_rank": RANK},
    "synchronize-each-step": {"free": ("synchronisation", "host-code")},
    "item-in-loop": {"free": ("synchronisation", "host-code")},
    "garbage-collection-on-one-rank": {"free": "host-code"},
    "logging-each-step": {"free": "host-code"},
    "slow-scheduler": {"free": "host-code"},
    "tokenizer-on-main-thread": {"free": "host-code"},
    "unfused-pointwise": {"free": "MulFunctor"},
    "device-copies": {"free": "Memcpy DtoD"},
    "activation-offload": {"free": "copies"},
    "activation-offload-pageable": {"free": "copies"},
    "one-slow-kernel": {"free": "indexing_backward"},
    "slow-interconnect": {"network": NETWORK},
}


@dataclass(frozen=True)
class Prediction:
    """True and predicted gain of a case, in ns per step; ``why`` where nothing was predicted."""

    case: str
    seed: int
    step_ns: float = 0.0
    true_ns: float = 0.0
    gain_ns: float = 0.0
    why: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the prediction is within the bar."""
        allowed = max(OF_GAIN * abs(self.true_ns), OF_STEP * self.step_ns)
        return abs(self.gain_ns - self.true_ns) <= allowed


def predictions(seeds: range, only: str = "") -> Iterator[Prediction]:
    """Predict the gain of each fault that a change removes, in cases with one fault."""
    for seed in seeds:
        for plan in plans(seed):
            fault = plan.faults[0].name if len(plan.faults) == 1 else ""
            if fault in CHANGES and only in plan.name and plan.world < 64:
                yield _predicted(plan, CHANGES[fault])


def _predicted(plan: Plan, change: dict[str, Any]) -> Prediction:
    import traceanalyzer as ta

    job, healthy = plan.base_job(), plan.base_job()
    (expected,) = plan._inject(job, plan._sizes(plan._wall_us()))
    with tempfile.TemporaryDirectory() as folder:
        faulty, fixed = (
            _written(Path(folder) / name, one, plan.format)
            for name, one in (("faulty", job), ("fixed", healthy))
        )
        try:
            result = ta.what_if(faulty, **_given(change, expected, job))
            true = result.recorded_ns - ta.what_if(fixed, free="copies").recorded_ns
        except ta.TraceAnalyzerError as error:
            return Prediction(plan.name, plan.seed, why=str(error).rpartition(": ")[2])
    gain = float(result.changes["gain_ns"][0])
    return Prediction(plan.name, plan.seed, result.recorded_ns, true, gain)


def of_findings(seeds: range, only: str = "") -> Iterator[Prediction]:
    """Compare the gain of the finding about each fault, also of two faults, with the truth.

    That is the job without this fault, in step time or in the time of the run: not each step has
    the fault, and the first one does not count. Findings whose gain is no replay are left out.
    """
    for seed in seeds:
        for plan in plans(seed):
            if plan.faults and only in plan.name and plan.world < 64:
                yield from of_plan(plan)


def of_plan(plan: Plan) -> Iterator[Prediction]:
    """Compare the gains of the findings about the faults of a case with the truth."""
    import traceanalyzer as ta

    sizes, step = plan._sizes(plan._wall_us()), {}
    with tempfile.TemporaryDirectory() as folder:
        for without in (-1, *sizes):
            job = plan.base_job()
            some = {number: size for number, size in sizes.items() if number != without}
            expected = plan._inject(job, some)
            path = _written(Path(folder) / str(without), job, plan.format)
            try:
                step[without] = ta.what_if(path, free="copies").recorded_ns
            except ta.TraceAnalyzerError as error:
                yield Prediction(plan.name, plan.seed, why=str(error).rpartition(": ")[2])
                return
            if without < 0:
                found, faults = ta.diagnose(path).findings, expected
    for number, fault in enumerate(faults):
        some = {n: size for n, size in sizes.items() if n != number}
        true = (1 - step[number] / step[-1], 1 - plan._wall_us(some) / plan._wall_us(sizes))
        named = [one for one in found if one.gain_basis == "replay" and names_cause(fault, one)]
        placed = [one for one in named if names_place(fault, one)] or named
        for one in placed[:1]:
            gain = one.gain_frac or 0.0
            nearest = min(true, key=lambda frac: abs(frac - gain))
            name = f"{plan.name}: {one.id}"
            yield Prediction(name, plan.seed, step[-1], *(step[-1] * x for x in (nearest, gain)))


def _written(folder: Path, job: Job, file_format: str) -> Path:
    folder.mkdir()
    write = write_nsys if file_format == "nsys" else write_kineto
    write(job, within_recording(job, simulate(job, program_of(job))), folder)
    return folder


def _given(change: dict[str, Any], expected: Expected, job: Job) -> dict[str, Any]:
    """Return the change with the rank or the factor of the fault."""
    group = next(iter(job.groups.values()), [None])[0]
    of_fault = {RANK: expected.rank, NETWORK: group and job.transfer_factor(group, job.steps[0])}
    return {name: of_fault.get(value, value) if isinstance(value, str) else value
            for name, value in change.items()}  # fmt: skip


def table(rows: list[Prediction]) -> list[str]:
    """Return the predictions that are not within the bar, and how many are."""
    known = [one for one in rows if not one.why]
    right = sum(one.is_right for one in known)
    summary = (
        f"{right} of {len(known)} ({right / max(len(known), 1):.1%}) gains are predicted within "
        f"{OF_GAIN:.0%} of the true gain or {OF_STEP:.0%} of the step; {len(rows) - len(known)} "
        "recordings cannot be replayed."
    )
    lines = [
        summary,
        "",
        "| case | step [ms] | true gain [ms] | predicted [ms] |",
        "|---|--:|--:|--:|",
    ]
    lines += [
        f"| {one.case}, seed {one.seed} | {one.step_ns / 1e6:.2f} | {one.true_ns / 1e6:.2f} | "
        f"{one.gain_ns / 1e6:.2f} |"
        for one in known
        if not one.is_right
    ]
    return lines
