"""One run: the answers of all its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers import comm_outliers, gpu_idle, kernels, memory, steps
from traceanalyzer.analyzers.comm_outliers import CommOutliers
from traceanalyzer.analyzers.diff.part import Facts, Part
from traceanalyzer.analyzers.flamegraph import Part as Stacks
from traceanalyzer.analyzers.gpu_idle import GpuIdle
from traceanalyzer.analyzers.kernels import Kernels
from traceanalyzer.analyzers.memory import Memory
from traceanalyzer.analyzers.steps import Steps
from traceanalyzer.errors import MissingData


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
    of_steps = [part.steps for part in parts if part.steps]
    idle = [part.idle for part in parts if part.idle]
    work = [part.kernels for part in parts if part.kernels]
    held = [part.memory for part in parts if part.memory]
    return Run(
        facts=tuple(part.facts for part in parts),
        steps=steps.combine(of_steps) if of_steps else None,
        idle=gpu_idle.combine(idle) if idle else None,
        kernels=kernels.combine(work, kernels.Question()) if work else None,
        work=_joined(parts, "work"),
        operators=_joined(parts, "operators"),
        comm=_collectives(parts),
        memory=memory.combine(held) if held else None,
        stacks=tuple(part.stacks for part in parts if part.stacks),
    )


def _place(part: Part) -> tuple[bool, int, str]:
    return part.facts.rank is None, part.facts.rank or 0, part.facts.path


def _collectives(parts: Sequence[Part]) -> CommOutliers | None:
    found = [part.comm for part in parts if part.comm]
    try:
        return comm_outliers.combine(found) if found else None
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
