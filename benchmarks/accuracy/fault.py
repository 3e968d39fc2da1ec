"""Faults: a change of a healthy job, and the expected finding."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy.simulator import Job


@dataclass(frozen=True)
class Expected:
    """The expected finding: a cause, and a place unless it is the whole job.

    Attributes:
        cause: a pattern that the id, title or evidence of the finding must match.
        rank: the rank that must be named.
        steps: steps of which one must be named.
        place: a pattern of an operator, call, line or group that must be named.
        advice: a pattern that its advice must match.
    """

    cause: str
    rank: int | None = None
    steps: tuple[int, ...] = ()
    place: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Case:
    """Files of a job, and the expected findings, the costliest first.

    Attributes:
        name: the fault (``a + b`` for a pair, ``healthy ...`` for none).
        kind: ``single``, ``blind``, ``found``, ``pair``, ``healthy`` or ``real``.
        seed: of the random choices.
        setting: the job and its recording options, as text.
        expected: the expected findings.
        cost_frac: share of the run time that the faults take, compared with the same job without
            them.
        write: writes the files to a folder.
        before: writes the files without the fault; findings in these files do not count.
    """

    name: str
    kind: str
    seed: int
    setting: str
    expected: tuple[Expected, ...]
    cost_frac: float
    write: Callable[[Path], None]
    before: Callable[[Path], None] | None = None


@dataclass(frozen=True)
class Context:
    """Parameters of a fault.

    Attributes:
        dice: the random choices of the case.
        step_us: the duration of a step of the healthy job.
        share: share of the step time that the fault should take.
    """

    dice: random.Random
    step_us: float
    share: float

    @property
    def cost_us(self) -> float:
        """Time to add to each step to get the share."""
        return self.step_us * self.share / (1 - self.share)

    def host_us(self, job: Job) -> float:
        """Host time to add to each step; without a synchronisation the device hides one step."""
        return self.cost_us + (0 if job.options.item else self.step_us)


Inject = Callable[[Job, Context], Expected]


@dataclass(frozen=True)
class Fault:
    """A fault with the jobs that it can be injected into.

    Attributes:
        name: name of the fault.
        families: job families.
        inject: changes the job; returns the expected answer.
        worlds: world sizes to choose from; by default those of the family.
        record: what must be recorded: ``stacks``, ``shapes``; ``marks`` where steps are named.
        prepare: change of the healthy job as well, for example smaller kernels.
        steps: number of recorded steps.
        kind: of its cases: ``single``, ``blind`` if written without knowledge of the rules, or
            ``found`` if ``diagnose`` was once wrong.
    """

    name: str
    families: tuple[str, ...]
    inject: Inject
    worlds: tuple[int, ...] = ()
    record: tuple[str, ...] = ()
    prepare: Callable[[Job], None] | None = None
    steps: int = 6
    kind: str = "single"


FAULTS: dict[str, Fault] = {}

TRAINING = ("data-parallel", "sharded", "single")
PARALLEL = ("data-parallel", "sharded")


def fault(
    *families: str,
    worlds: tuple[int, ...] = (),
    record: tuple[str, ...] = (),
    prepare: Callable[[Job], None] | None = None,
    steps: int = 6,
    kind: str = "single",
) -> Callable[[Inject], Inject]:
    """Add a fault to :data:`FAULTS`; the name of the function is its name."""

    def add(inject: Inject) -> Inject:
        name = inject.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, families, inject, worlds, record, prepare, steps, kind)
        return inject

    return add


def some_rank(job: Job, context: Context) -> int:
    """Any rank but the first one."""
    return context.dice.randrange(1, job.world)


def some_steps(job: Job, context: Context, count: int = 2) -> tuple[int, ...]:
    """Steps in the middle of the recording."""
    return tuple(sorted(context.dice.sample(list(job.steps)[1:-1], count)))


def reads_loss(job: Job) -> None:
    """The loss is read in each step, so the host is never a step ahead."""
    job.options.item = True


def small_kernels(job: Job) -> None:
    """Kernels of some ten microseconds: the host is only a little faster than the device."""
    job.tokens, job.width, job.layers = 2048, 1024, 4
