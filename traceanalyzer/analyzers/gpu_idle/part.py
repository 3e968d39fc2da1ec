"""What one rank's file contributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSES

#: Columns of times: what ran, then idleness by cause. They add up to end - start.
TIMES = tuple(f"{sort}_ns" for sort in (BUSY, *CAUSES))

#: Those, and how long the loader took, how long copies of batches took, how much of the loader was
#: hidden behind a busy device, and communication without compute.
MEASURES = (*TIMES, "loader_ns", "copy_ns", "hidden_loader_ns", "exposed_communication_ns")


@dataclass(frozen=True)
class Part:
    """One rank's devices, or its training thread where no device work was recorded.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        on_host: there was no device work: the unit is the training thread, busy in operators.
        work_lost: the file is cut off; or there is no device work, yet some was launched.
        host_known: host slices were recorded.
        launches_known: launch calls were joined to device work.
        units: unit (number), device, pid, start, end and :data:`MEASURES`.
        causes: unit, cause, gaps (stretches of idleness in which it occurs), idle_ns, longest_ns.
        steps: unit, step, start, end and :data:`MEASURES`.
        gaps: the longest: unit, start, end, step, cause, cause_ns, and what is known of each.
        gap_count: idle stretches that are not short.
        hints: how the profiler that wrote the file records what it lacks.
    """

    rank: int | None
    path: str
    on_host: bool
    work_lost: bool
    host_known: bool
    launches_known: bool
    units: pl.DataFrame
    causes: pl.DataFrame
    steps: pl.DataFrame
    gaps: pl.DataFrame
    gap_count: int
    hints: Mapping[str, str]
