"""Cases: zero to two faults in a job with random sizes and random recording options."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.accuracy import (
    blind_faults,
    device_faults,
    found_faults,
    host_faults,
    serving,
)
from benchmarks.accuracy.fault import FAULTS, Case, Context, Expected, Fault, reads_loss
from benchmarks.accuracy.programs import new_job, train
from benchmarks.accuracy.simulator import Job, Program, Rank, simulate
from benchmarks.accuracy.variants import VARIANTS, Variant, within_recording
from benchmarks.accuracy.write import write_kineto
from benchmarks.accuracy.write_nsys import write_nsys

WORLDS = {
    "data-parallel": (2, 4, 4, 8),
    "sharded": (2, 4, 8),
    "pipeline": (2, 4),
    "single": (1,),
    "inference": (1,),
}
#: Modules with faults: importing them fills FAULTS.
MODULES = (host_faults, device_faults, serving, blind_faults, found_faults)


def program_of(job: Job) -> Callable[[Rank], Program]:
    """Return the program of a job's family."""
    return serving.serve if job.family == "inference" else train


def wall_us(ranks: list[Rank]) -> float:
    """Return the duration of a run in us, from the first event of the last rank."""
    begun = max(min(event[4] for event in r.events[:50]) for r in ranks)
    return max(r.now for r in ranks) - begun


@dataclass(frozen=True)
class Size:
    """Size of a fault: the duration of a step without it, and its share (None: random)."""

    step_us: float
    share: float | None


#: Least share of the run time that the second of two faults costs besides the first one.
LEAST = 0.05


@dataclass(frozen=True)
class Plan:
    """Faults and fixed options of a case.

    Attributes:
        name: of the case.
        faults: none, one, or two of which the first has the larger share.
        family, world: of the job, if fixed.
        format: ``kineto`` or ``nsys``.
        record: what is always recorded.
        change: a variant of the job, see :mod:`~benchmarks.accuracy.variants`.
    """

    name: str
    faults: tuple[Fault, ...]
    seed: int
    family: str = ""
    world: int = 0
    format: str = "kineto"
    record: tuple[str, ...] = ()
    change: Callable[[Job], None] | None = None

    def base_job(self) -> Job:
        """Return the healthy job; the same plan gives the same job."""
        dice = random.Random(f"{self.seed} {self.name}")
        family = self.family or dice.choice(self._families())
        steps = max((fault.steps for fault in self.faults), default=6)
        if family == "inference":
            job = serving.new_serving_job(self.seed, 24)
        else:
            job = new_job(family, self.seed, self._world(family, dice), steps)
            vary(job, dice)
        record = {*self.record, *(name for fault in self.faults for name in fault.record)}
        for name, odds in (("shapes", 0.5), ("stacks", 0.35), ("marks", 0.75)):
            chance = dice.random() < odds
            setattr(job, name, name in record or chance)
        for fault in self.faults:
            if fault.prepare:
                fault.prepare(job)
        if self.change:
            self.change(job)
        if len(self.faults) > 1 and family != "inference":
            reads_loss(job)  # otherwise the slower of host and device hides a fault of the other
        return job

    def _families(self) -> list[str]:
        first, *others = self.faults
        return [f for f in first.families if all(f in other.families for other in others)]

    def _world(self, family: str, dice: random.Random) -> int:
        given = next((fault.worlds for fault in self.faults if fault.worlds), WORLDS[family])
        fitting = [w for w in given if (w > 1) == (family != "single")]
        return self.world or dice.choice(fitting)

    def make(self) -> Case:
        """Simulate the job with its faults, and without them for their cost."""
        usual = self._wall_us()
        sizes = self._sizes(usual)
        job = self.base_job()
        expected = self._inject(job, sizes)
        ranks = simulate(job, program_of(job))
        both = wall_us(ranks)
        ranks = within_recording(job, ranks)
        if len(sizes) > 1 and self._wall_us({0: sizes[0]}) < self._wall_us({1: sizes[1]}):
            expected = expected[::-1]  # without the second fault, the job is faster
        recorded = [name for name in ("shapes", "stacks", "marks") if getattr(job, name)]
        setting = f"{job.family} x{job.world}, {'+'.join(recorded) or 'plain'}, {self.format}"
        write = partial(write_nsys if self.format == "nsys" else write_kineto, job, ranks)
        cost = max(0.0, 1 - usual / both)
        return Case(self.name, self._kind(), self.seed, setting, expected, cost, write)

    def _kind(self) -> str:
        kinds = ("healthy", self.faults[0].kind if self.faults else "", "pair")
        return kinds[len(self.faults)]

    def _sizes(self, usual: float) -> dict[int, Size]:
        """Return step time and share of each fault.

        The share of a second fault is of a step with the first one. If the first one hides it, it
        grows until it costs at least :data:`LEAST` of the run time.
        """
        if not self.faults:
            return {}
        steps = len(self.base_job().steps)
        first = Size(usual / steps, None if len(self.faults) == 1 else 0.4)
        if len(self.faults) == 1:
            return {0: first}
        alone = self._wall_us({0: first})
        for share in (0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
            sizes = {0: first, 1: Size(alone / steps, share)}
            both = self._wall_us(sizes)
            if both - alone >= LEAST * both:
                break
        return sizes

    def _inject(self, job: Job, sizes: dict[int, Size]) -> tuple[Expected, ...]:
        """Inject the faults of these numbers."""
        expected = []
        for number, size in sizes.items():
            dice = random.Random(f"{self.seed} {self.name} {number}")
            share = dice.uniform(0.18, 0.38) if size.share is None else size.share
            expected.append(self.faults[number].inject(job, Context(dice, size.step_us, share)))
        return tuple(expected)

    def _wall_us(self, sizes: dict[int, Size] | None = None) -> float:
        """Return the run time with some of the faults."""
        job = self.base_job()
        self._inject(job, sizes or {})
        return wall_us(simulate(job, program_of(job)))


def vary(job: Job, dice: random.Random) -> None:
    """Vary the sizes of models and batches, and the speed of hosts."""
    job.width = dice.choice((1536, 2048, 2560))
    job.layers = dice.choice((2, 3)) if job.family != "pipeline" else 1
    job.tokens = job.tokens if job.family == "pipeline" else dice.choice((4096, 8192, 12288))
    job.op_us *= dice.uniform(0.8, 1.4)
    job.options.item = job.family == "sharded" or dice.random() < 0.6
    job.options.pinned_scalars = dice.random() < 0.5
    if job.world > job.gpus_per_host and dice.random() < 0.5:
        job.skew_us = {1: dice.uniform(-3000, 3000)}


#: Faults that are simulated with 64 ranks too.
LARGE = ("loader-slow-on-one-rank", "slow-gpu", "slow-interconnect")
#: Faults that are recorded with Nsight Systems too.
NSYS = ("slow-gpu", "synchronize-each-step", "allocation-in-loop", "single-precision",
        "device-copies", "launch-bound")  # fmt: skip
#: The costlier fault is the first.
PAIRS = (
    ("loader-slow", "unfused-pointwise"),
    ("loader-slow-on-one-rank", "slow-link-in-some-steps"),
    ("slow-gpu", "checkpoint-on-rank-0"),
    ("pageable-batch-copy", "logging-each-step"),
    ("boolean-mask", "device-copies"),
    ("slow-interconnect", "loader-slow-on-one-rank"),
    ("checkpoint-on-all-ranks", "recompilation-in-some-steps"),
    ("activation-offload", "unfused-attention"),
    ("garbage-collection-on-one-rank", "tiny-collectives"),
    ("slow-scheduler", "decode-without-graphs"),
)
#: Healthy jobs: family, ranks, what is always recorded.
HEALTHY = (
    ("single", 1, ("stacks",)),
    ("single", 1, ("shapes", "marks")),
    ("data-parallel", 2, ("marks",)),
    ("data-parallel", 4, ("stacks", "marks")),
    ("data-parallel", 16, ()),
    ("data-parallel", 64, ("marks",)),
    ("sharded", 4, ("shapes",)),
    ("sharded", 8, ("marks",)),
    ("pipeline", 4, ("marks",)),
    ("inference", 1, ("marks",)),
)


def plans(seed: int) -> list[Plan]:
    """Return all simulated cases of a seed."""
    all_plans = [Plan(name, (fault,), seed) for name, fault in FAULTS.items()]
    all_plans += [
        Plan(f"{name} (64 ranks)", (FAULTS[name],), seed, "data-parallel", 64) for name in LARGE
    ]
    all_plans += [Plan(f"{name} (nsys)", (FAULTS[name],), seed, format="nsys") for name in NSYS]
    for first, second in PAIRS:
        all_plans.append(Plan(f"{first} + {second}", (FAULTS[first], FAULTS[second]), seed))
    for family, world, record in HEALTHY:
        name = f"healthy {family} x{world}{' with ' * bool(record)}{'+'.join(record)}"
        all_plans.append(Plan(name, (), seed, family, world, record=record))
    return all_plans + [plan for variant in VARIANTS for plan in of_variant(variant, seed)]


def of_variant(variant: Variant, seed: int) -> Iterator[Plan]:
    """Yield the healthy jobs and the faults of a variant."""
    how = (variant.format, variant.record, variant.change)
    for family, world in variant.healthy:
        yield Plan(f"healthy {family} x{world} ({variant.name})", (), seed, family, world, *how)
    for name, family, world in variant.faults:
        yield Plan(f"{name} ({variant.name})", (FAULTS[name],), seed, family, world, *how)
