"""Variants of jobs: other ways to run and to record the same program, and healthy jobs of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.accuracy.programs import forward
from benchmarks.accuracy.simulator import START_US, Event, Job, Program, Rank


@dataclass(frozen=True)
class Variant:
    """A change of a healthy job, and the jobs and faults that are simulated with it.

    Attributes:
        name: of the variant.
        change: changes the job.
        healthy: family and ranks of healthy jobs.
        faults: name, family and ranks of faults.
        format: ``kineto`` or ``nsys``.
        record: what is always recorded.
    """

    name: str
    change: Callable[[Job], None]
    healthy: tuple[tuple[str, int], ...]
    faults: tuple[tuple[str, str, int], ...] = ()
    format: str = "kineto"
    record: tuple[str, ...] = ("marks",)


def ahead(job: Job) -> None:
    """The host never waits, and runs steps ahead; only the host marks the steps."""
    job.device_marks = False
    job.options.item = False


def asynchronous(job: Job) -> None:
    """The engine reads the tokens of a step while the next one runs."""
    job.device_marks = False
    job.options.overlapped_sampling = True


def unnumbered(job: Job) -> None:
    """All steps are ranges of one name, as in codes without PyTorch; the host runs ahead."""
    ahead(job)
    job.mark = "timestep"


def deep(job: Job) -> None:
    """32 micro-batches."""
    job.options.micro_batches = 32


def apart(job: Job) -> None:
    """One GPU for each host; clocks differ by up to 0.4 s, more than collectives are apart."""
    job.gpus_per_host = 1
    job.skew_us = {host: (host * 137_911 % 800_000) - 400_000.0 for host in range(job.world)}


def midway(job: Job) -> None:
    """The recording begins after one and a half steps, while work is queued."""
    job.recorded_from = 0.28


def cut(job: Job) -> None:
    """All processes were killed while they wrote the last part of their files."""
    job.truncated = frozenset(range(job.world))
    job.truncated_at = 0.92


def late(job: Job) -> None:
    """The recording of one rank begins 1.5 s after those of the others, which wait for it."""
    job.late_us = {job.world - 1: 1_500_000.0}


def mpi(job: Job) -> None:
    """Gradients are reduced on the host, by MPI."""
    job.options.reduction = "mpi"


def regularised(job: Job) -> None:
    """Two more forward passes in every fourth step, as lazy regularisation does."""
    job.steps = range(10, 22)

    def regularise(r: Rank, step: int, _layer: int) -> Program:
        for _ in range(2 * (step % 4 == 0)):
            yield from forward(r)

    job.at("after_forward", regularise)


def micro(job: Job) -> None:
    """The profiler's step is a micro-batch: one of four reduces gradients and updates."""
    job.steps = range(10, 22)
    job.options.reduces = lambda step: step % 4 == 3


def lengths(job: Job) -> None:
    """All ranks have the same length, another one in each step."""
    tokens = job.tokens
    job.options.tokens = lambda _, step: tokens * (6 + step * 5 % 4) // 8


VARIANTS = (
    Variant("regularised every fourth step", regularised, (("single", 1),)),
    Variant("steps of micro-batches", micro, (("data-parallel", 4),)),
    Variant("a length for each step", lengths, (("data-parallel", 4),)),
    Variant(
        "host ahead", ahead,
        (("single", 1), ("data-parallel", 4), ("sharded", 4), ("data-parallel", 8)),
        (("loader-slow", "single", 1), ("slow-gpu", "data-parallel", 4),
         ("launch-bound", "single", 1), ("unfused-pointwise", "single", 1),
         ("slow-interconnect", "data-parallel", 4), ("one-slow-kernel", "single", 1)),
    ),
    Variant(
        "host ahead, nsys", ahead, (("single", 1), ("data-parallel", 2)),
        (("slow-gpu", "data-parallel", 2), ("launch-bound", "single", 1),
         ("single-precision", "single", 1)),
        format="nsys",
    ),
    Variant(
        "steps without numbers", unnumbered, (("single", 1), ("data-parallel", 2)),
        (("one-slow-kernel", "single", 1), ("launch-bound", "single", 1),
         ("slow-gpu", "data-parallel", 2)),
        format="nsys",
    ),
    Variant(
        "asynchronous engine", asynchronous, (("inference", 1),),
        (("decode-without-graphs", "inference", 1), ("prefill-stalls-decode", "inference", 1)),
    ),
    Variant(
        "many micro-batches", deep, (("pipeline", 8), ("pipeline", 4)),
        (("slow-stage", "pipeline", 8),),
    ),
    Variant(
        "clocks apart", apart, (("data-parallel", 4), ("sharded", 4)),
        (("slow-gpu", "data-parallel", 4), ("loader-slow-on-one-rank", "data-parallel", 4),
         ("slow-interconnect", "data-parallel", 4)),
    ),
    Variant(
        "begins midway", midway, (("single", 1), ("data-parallel", 4)),
        (("slow-gpu", "data-parallel", 4), ("loader-slow", "single", 1),
         ("unfused-attention", "single", 1)),
    ),
    Variant(
        "cut", cut, (("single", 1), ("data-parallel", 4)),
        (("slow-gpu", "data-parallel", 4), ("single-precision", "single", 1)),
    ),
    Variant(
        "one rank recorded later", late, (("data-parallel", 4),),
        (("slow-gpu", "data-parallel", 4), ("unfused-attention", "data-parallel", 4)),
    ),
    Variant(
        "MPI", mpi, (("data-parallel", 4),),
        (("slow-gpu", "data-parallel", 4), ("garbage-collection-on-one-rank", "data-parallel", 4)),
        format="nsys",
    ),
)  # fmt: skip


def within_recording(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Drop what was before the recording: all that the host began, and work that had ended."""
    if job.recorded_from:
        end = max(rank.now for rank in ranks)
        begin = START_US + job.recorded_from * (end - START_US)
        for rank in ranks:
            rank.events = [event for event in rank.events if _is_recorded(event, begin)]
    return ranks


def _is_recorded(event: Event, begin: float) -> bool:
    kind, _name, _pid, _tid, start, duration, _args = event
    on_device = kind in ("kernel", "gpu_memcpy", "gpu_memset")
    return start + duration > begin if on_device else start >= begin
