"""Cases: a fault (or none, or two) in a job with random sizes, recorded in a random way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from benchmarks.accuracy import device_faults, host_faults, serving
from benchmarks.accuracy.fault import FAULTS, Context, Expected, Fault
from benchmarks.accuracy.programs import new_job, train
from benchmarks.accuracy.simulator import Job, Program, Rank, simulate

WORLDS = {
    "data-parallel": (2, 4, 4, 8),
    "sharded": (2, 4, 8),
    "pipeline": (2, 4),
    "single": (1,),
    "inference": (1,),
}
#: Faults that are simulated with 64 ranks too.
LARGE = ("loader-slow-on-one-rank", "slow-gpu", "slow-interconnect", "loader-slow")

#: Modules with faults: importing them fills FAULTS.
MODULES = (host_faults, device_faults, serving)


@dataclass
class Case:
    """A job that ran, and the answers that count, the costliest first.

    Attributes:
        name: the fault (``a + b`` for a pair, ``healthy-...`` for none).
        kind: ``single``, ``pair``, ``healthy`` or ``real``.
        cost_frac: how much of the run time the fault takes, against the same job without it.
    """

    name: str
    kind: str
    seed: int
    job: Job
    ranks: list[Rank]
    expected: tuple[Expected, ...]
    cost_frac: float = 0.0
    format: str = "kineto"
    notes: list[str] = field(default_factory=list)


def program_of(job: Job) -> Callable[[Rank], Program]:
    """The program of a job's family."""
    return serving.serve if job.family == "inference" else train


def wall_us(ranks: list[Rank]) -> float:
    """Duration of a run."""
    return max(r.now for r in ranks) - min(event[4] for r in ranks for event in r.events[:50])


def base_job(fault: Fault, seed: int, world: int | None = None) -> Job:
    """A healthy job for a fault; the same arguments give the same job."""
    dice = random.Random(f"{seed} {fault.name} {world}")
    family = dice.choice(
        [f for f in fault.families if world is None or f in ("data-parallel", "sharded")]
    )
    if family == "inference":
        job = serving.new_serving_job(seed, fault.steps)
    else:
        fitting = [w for w in fault.worlds or WORLDS[family] if (w > 1) == (family != "single")]
        job = new_job(family, seed, world or dice.choice(fitting), fault.steps)
        vary(job, dice)
    job.shapes = "shapes" in fault.record or dice.random() < 0.5
    job.stacks = "stacks" in fault.record or dice.random() < 0.35
    job.marks = "marks" in fault.record or dice.random() < 0.75
    if fault.prepare:
        fault.prepare(job)
    return job


def vary(job: Job, dice: random.Random) -> None:
    """Sizes of models, batches and hosts."""
    job.width = dice.choice((1536, 2048, 2560))
    job.layers = dice.choice((2, 3)) if job.family != "pipeline" else 1
    job.tokens = job.tokens if job.family == "pipeline" else dice.choice((4096, 8192, 12288))
    job.op_us *= dice.uniform(0.8, 1.4)
    job.options.item = job.family == "sharded" or dice.random() < 0.6
    job.options.loader_us = lambda *_: 120.0
    if dice.random() < 0.3 and job.world > job.gpus_per_host:
        job.skew_us = {1: dice.uniform(-3000, 3000)}


def make_case(fault: Fault, seed: int, world: int | None = None) -> Case:
    """One case of a fault."""
    healthy = base_job(fault, seed, world)
    usual = wall_us(simulate(healthy, program_of(healthy)))
    job = base_job(fault, seed, world)
    dice = random.Random(f"{seed} {fault.name} place")
    context = Context(dice, usual / len(job.steps), dice.uniform(0.18, 0.38))
    expected = fault.inject(job, context)
    ranks = simulate(job, program_of(job))
    name = fault.name if world is None else f"{fault.name} ({world} ranks)"
    cost = 1 - usual / wall_us(ranks)
    return Case(name, "single", seed, job, ranks, (expected,), max(0.0, cost))


def single_cases(seed: int, only: str = "") -> Iterator[Callable[[], Case]]:
    """A case for each fault, not made yet; and those with 64 ranks."""
    for fault in FAULTS.values():
        if only in fault.name:
            yield partial(make_case, fault, seed)
