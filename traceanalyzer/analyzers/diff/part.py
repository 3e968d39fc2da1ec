"""What one rank's file contributes to its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.comm_outliers import Part as Collectives
from traceanalyzer.analyzers.flamegraph import Part as Stacks
from traceanalyzer.analyzers.gpu_idle import Part as Idleness
from traceanalyzer.analyzers.kernels import Part as Work
from traceanalyzer.analyzers.memory import Part as Memory
from traceanalyzer.analyzers.steps import Part as Steps


@dataclass(frozen=True)
class Facts:
    """How a file was recorded, as far as that bears on a comparison.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        format: the parser's name.
        version: the format's version or layout, where the file tells.
        software: versions of what ran, as far as the file tells: ``CUDA driver 12080``.
        world_size: ranks in the job, or None.
        gpus: names of the GPUs.
        extras: what was recorded beside the usual, and costs time itself.
        cut_off: the end of the file is missing.
    """

    rank: int | None
    path: str
    format: str
    version: str | None
    software: tuple[str, ...]
    world_size: int | None
    gpus: tuple[str, ...]
    extras: tuple[str, ...]
    cut_off: bool


@dataclass(frozen=True)
class Part:
    """One rank's answers; None where the file lacks what the question needs.

    Attributes:
        facts: how it was recorded.
        steps: its steps. Their rows have in addition ``source`` (the file), ``mark`` (the step's
            start in it), and how long the device, or the training thread, was ``busy_ns`` and idle
            for each cause (``dataloading_ns`` ...), null where that is not known.
        idle: why its devices are idle.
        kernels: what its devices did.
        work: that by step: mark (null outside of every step), name, family, n, total_ns.
        operators: its operators by step: mark, name, kind, n, host_ns and device_ns, both without
            the calls in them; device_ns null without device work.
        comm: its collectives.
        memory: its memory.
        stacks: its sampled stacks.
        lacking: why there is no answer, by question.
    """

    facts: Facts
    steps: Steps | None
    idle: Idleness | None
    kernels: Work | None
    work: pl.DataFrame | None
    operators: pl.DataFrame | None
    comm: Collectives | None
    memory: Memory | None
    stacks: Stacks | None
    lacking: Mapping[str, str]
