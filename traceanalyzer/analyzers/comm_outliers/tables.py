"""The tables of the answer, the most telling first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.result import Table
from traceanalyzer.units import format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.comm_outliers.result import CommOutliers

_WHAT = {"collective": "collective", "dtype": "dtype", "message_bytes": "message", "group": "group"}


def tables(result: CommOutliers) -> tuple[Table, ...]:
    """Late ranks, ranks, baseline, outliers, groups, collectives, steps, context, clocks.

    What compares ranks is left out where there is one rank only.
    """
    compared = () if result.baseline is None else (_baseline(result.baseline),)
    beside = () if result.memory is None else (_memory(result.memory),)
    alone = (*compared, _outliers(result), *beside, _groups(result))
    if result.n_ranks == 1:
        return (*alone, _ranks(result))
    in_detail = (_collectives(result), _steps(result), _context(result), _clocks(result))
    details = (replace(table, detail=True) for table in in_detail)
    return (_late(result), _ranks(result), *alone, *details)


def _late(result: CommOutliers) -> Table:
    columns = {
        "rank": "late rank",
        "step": "step",
        "collective": "collective",
        "message_bytes": "message",
        "late_ns": "late by",
        "imposed_ns": "others waited",
        "host": "host meanwhile",
        "device": "device meanwhile",
    }
    title = f"Who kept the others waiting (late by {format_ns(result.min_wait_ns)} or more)"
    return _table("late", title, result.late_with_context(), columns, "nobody")


def _ranks(result: CommOutliers) -> Table:
    meeting = {
        "wait_ns": "waited",
        "imposed_ns": "others waited for it",
        "times_last": "last",
        "late_steps": "late steps",
        "late_frac": "cost",
    }
    columns = {
        "rank": "rank",
        "host": "host",
        "n": "collectives",
        "comm_ns": "communication",
        **(meeting if result.n_ranks > 1 else {}),
        "outliers": "outliers",
        "idle_ns": "device idle",
        "overlap_frac": "hidden by compute",
    }
    return _table("ranks", "Ranks", result.ranks, columns)


def _baseline(frame: pl.DataFrame) -> Table:
    columns = {
        **_WHAT,
        "kernel": "kernel",
        "n": "n",
        "median_ns": "median",
        "n_before": "n before",
        "baseline_ns": "median before",
        "ratio": "ratio",
        "compute_frac": "compute beside",
        "compute_before_frac": "before",
    }
    empty = "no kind of collective is in both"
    return _table("baseline", "Medians against the baseline", frame, columns, empty)


def _outliers(result: CommOutliers) -> Table:
    columns = {
        "rank": "rank",
        "step": "step",
        "collective": "collective",
        "message_bytes": "message",
        "at_ns": "at",
        "duration_ns": "duration",
        "factor": "x usual",
        "z": "z",
        "cause": "cause",
        "compute_ns": "compute beside",
        "beside": "busiest beside",
    }
    return _table("outliers", "Outliers", result.outliers(), columns)


def _groups(result: CommOutliers) -> Table:
    columns = {
        **_WHAT,
        "kernel": "kernel",
        "n": "n",
        "median_ns": "median",
        "p95_ns": "p95",
        "p99_ns": "p99",
        "max_ns": "max",
        "total_ns": "total",
        "share_frac": "of span",
        "algbw_gbps": "algbw",
        "busbw_gbps": "busbw",
        "outliers": "outliers",
    }
    return _table("groups", "Collectives by kind", result.groups, columns)


def _collectives(result: CommOutliers) -> Table:
    columns = {
        "step": "step",
        **_WHAT,
        "first_rank": "first",
        "late_rank": "last",
        "skew_ns": "arrival skew",
        "late_ns": "last after median",
        "imposed_ns": "waited in all",
        "pure_ns": "pure",
        "end_skew_ns": "end skew",
        "ranks": "ranks",
    }
    worst = result.collectives.sort("imposed_ns", "instance", descending=[True, False])
    title = "Collectives across ranks, most waiting first"
    return _table("collectives", title, worst, columns, "none could be matched across ranks")


def _steps(result: CommOutliers) -> Table:
    columns = {
        "step": "step",
        "straggler": "straggler",
        "cost_ns": "costs",
        "cost_frac": "of the step",
        "step_ns": "step",
        "collectives": "collectives",
    }
    return _table("steps", "Stragglers by step", result.steps, columns, "no steps are marked")


def _context(result: CommOutliers) -> Table:
    stretches = result.late.with_row_index("window").select("window", "step", rank="late_rank")
    frame = result.context.join(stretches, on="window", how="left", maintain_order="left")
    columns = {
        "rank": "late rank",
        "step": "step",
        "side": "on",
        "name": "what",
        "within": "within",
        "kind": "kind",
        "overlap_ns": "time",
        "overlap_frac": "of the stretch",
    }
    title = "What late ranks did while the others waited"
    return _table("context", title, frame, columns, "nothing to look into")


def _clocks(result: CommOutliers) -> Table:
    columns = {
        "rank": "rank",
        "n": "collectives",
        "offset_ns": "ahead by",
        "residual_ns": "residual",
        "applied": "corrected",
    }
    return _table("clocks", "Clocks", result.clocks, columns, "no collective can tell")


def _table(
    name: str, title: str, frame: pl.DataFrame, columns: Mapping[str, str], empty: str = "none"
) -> Table:
    """A table without the columns that hold nothing at all."""
    told = {name: label for name, label in columns.items() if _has_data(frame, name)}
    return Table(name, title, frame, told or columns, empty)


def _has_data(frame: pl.DataFrame, name: str) -> bool:
    return name in frame.columns and frame[name].null_count() < frame.height


def _memory(memory: pl.DataFrame) -> Table:
    columns = {
        "rank": "rank",
        "step": "step",
        "collective": "collective",
        "duration_ns": "duration",
        "taken_bytes": "memory taken",
        "capacity_bytes": "of",
        "taken_frac": "full",
    }
    return _table("memory", "Memory of the device during outliers", memory, columns, "not known")
