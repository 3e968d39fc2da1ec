"""The answer: how long each device was idle, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from traceanalyzer.analyzers.gpu_idle import charts, tables, verdict
from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSES, DATALOADING
from traceanalyzer.result import Chart, Result, Table

By = Literal["device", "process", "step"]


@dataclass(frozen=True, eq=False, repr=False)
class GpuIdle(Result):
    """What :func:`gpu_idle` found.

    Attributes:
        by: what was asked for.
        on_host: no device work was recorded; the units are the training threads of each rank, busy
            in operators.
        work_lost: a file is cut off; or there is no device work, yet some was launched.
        host_known: host slices were recorded.
        launches_known: launch calls were joined to device work.
        min_gap_ns: shorter gaps are ``short_gap``.
        gap_count: how many gaps are not shorter.
        units: a row a device (or process on a device, or training thread): rank, path, device, pid,
            start, end, ``busy_ns`` and a column for each cause (``dataloading_ns`` ...), which add
            up to end - start; ``loader_ns`` and ``copy_ns``, how long the loader and the copies of
            batches took, hidden or not, and ``hidden_loader_ns``, while the device was busy.
        causes: a row a cause of each unit: rank, path, device, pid, cause, ``gaps`` (stretches),
            ``idle_ns``, ``longest_ns``; those that do not occur have none.
        steps: a row a step of each unit: rank, path, device, pid, step, start, end, ``start_ns``
            (from the unit's start), the columns of times of ``units`` for the step's time on the
            host, and ``exposed_communication_ns`` (communication without compute, part of
            ``busy_ns``).
        gaps: the longest gaps, at most 200 a rank: rank, path, device, pid, start, end,
            ``start_ns``, step, cause (that most of it is due to), ``cause_ns``, before and after
            (device work on either side), host_event, python, own_code and annotation (the innermost
            that ran for half of it or more).
        hints: how the profiler that wrote the (first) file records what is missing.
        more_notes: what else is to be said.
    """

    by: By
    on_host: bool
    work_lost: bool
    host_known: bool
    launches_known: bool
    min_gap_ns: int
    gap_count: int
    units: pl.DataFrame
    causes: pl.DataFrame
    steps: pl.DataFrame
    gaps: pl.DataFrame
    hints: Mapping[str, str]
    more_notes: tuple[str, ...] = ()

    @property
    def span_ns(self) -> int:
        """All units' spans together."""
        return int((self.units["end"] - self.units["start"]).sum())

    @property
    def busy_ns(self) -> int:
        """How long the units were busy, together."""
        return int(self.units[f"{BUSY}_ns"].sum())

    @property
    def idle_ns(self) -> int:
        """What is left of the span."""
        return self.span_ns - self.busy_ns

    @property
    def idle_by_cause(self) -> Mapping[str, int]:
        """Idle time of each cause, in ns, all units together; adds up to ``idle_ns``."""
        return {cause: int(self.units[f"{cause}_ns"].sum()) for cause in CAUSES}

    @property
    def step_ns(self) -> int:
        """The time of all steps, of all units together; 0 where none is marked."""
        return int((self.steps["end"] - self.steps["start"]).sum())

    @property
    def step_dataloading_frac(self) -> float | None:
        """Share of the steps' time in which units waited for the data loader."""
        waited = int(self.steps[f"{DATALOADING}_ns"].sum())
        return waited / self.step_ns if self.step_ns else None

    @property
    def title(self) -> str:
        """The question."""
        return "Why is the training waiting?" if self.on_host else "Why is the GPU idle?"

    @property
    def verdict(self) -> str:
        """How idle, the main cause, what the data loader costs, and what may help."""
        return verdict.verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed or missing."""
        return (*verdict.notes(self), *self.more_notes)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Causes, devices, steps, the longest gaps."""
        return tables.tables(self)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Idle time by cause per step, per device, and over time."""
        return charts.charts(self)

    @property
    def scalars(self) -> dict[str, Any]:
        """Sums over all units."""
        return {
            "span_ns": self.span_ns,
            "busy_ns": self.busy_ns,
            "idle_ns": self.idle_ns,
            "idle_frac": self.idle_ns / self.span_ns if self.span_ns else None,
            "idle_ns_by_cause": dict(self.idle_by_cause),
            "step_ns": self.step_ns,
            "step_dataloading_frac": self.step_dataloading_frac,
            "loader_ns": int(self.units["loader_ns"].sum()),
            "hidden_loader_ns": int(self.units["hidden_loader_ns"].sum()),
            "gap_count": self.gap_count,
        }
