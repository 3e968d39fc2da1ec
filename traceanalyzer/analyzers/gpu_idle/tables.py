"""The answer as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.gpu_idle.causes import BATCH_COPY, BUSY, CAUSES, DATALOADING
from traceanalyzer.analyzers.gpu_idle.words import NAMES
from traceanalyzer.analyzers.kernel_names import short_names
from traceanalyzer.analyzers.places import short_paths, told_by_rank
from traceanalyzer.result import Table

if TYPE_CHECKING:
    from traceanalyzer.analyzers.gpu_idle.result import GpuIdle

_KEY = {"rank": "rank", "file": "file", "device": "device", "pid": "process"}


def tables(result: GpuIdle) -> tuple[Table, ...]:
    """Causes, units, steps, the longest gaps; the steps first where they are asked for."""
    found = [_causes(result), _units(result), _steps(result), _gaps(result)]
    if result.by == "step":
        found.insert(0, found.pop(2))
    return tuple(found)


def _causes(result: GpuIdle) -> Table:
    summed = result.causes.group_by("cause").agg(
        pl.col("gaps", "idle_ns").sum(), pl.col("longest_ns").max()
    )
    frame = summed.with_columns(
        why=pl.col("cause").cast(pl.String).replace_strict(NAMES),
        idle_frac=pl.col("idle_ns") / max(result.idle_ns, 1),
        span_frac=pl.col("idle_ns") / max(result.span_ns, 1),
    ).sort("idle_ns", "why", descending=[True, False])
    columns = {
        "why": "cause", "idle_ns": "idle", "span_frac": "share of time",
        "idle_frac": "share of idle", "gaps": "stretches", "longest_ns": "longest",
    }  # fmt: skip
    waiting = "Waiting" if result.on_host else "Idle"
    ordered = frame.select("cause", "why", pl.exclude("cause", "why"))
    return Table("causes", f"{waiting} by cause", ordered, columns, empty="never idle")


def _units(result: GpuIdle) -> Table:
    span = pl.col("end") - pl.col("start")
    input_ns = pl.col(f"{DATALOADING}_ns") + pl.col(f"{BATCH_COPY}_ns")
    frame = result.units.with_columns(
        file=_files(result.units),
        span_ns=span,
        idle_ns=span - pl.col(f"{BUSY}_ns"),
        other_ns=span - pl.col(f"{BUSY}_ns") - input_ns,
        busy_frac=pl.col(f"{BUSY}_ns") / span,
    ).with_columns(idle_frac=pl.col("idle_ns") / pl.col("span_ns"))
    columns = {
        "span_ns": "span", "busy_ns": "busy", "idle_ns": "idle", "idle_frac": "idle",
        "dataloading_ns": "data loading", "batch_copy_ns": "batch copies",
        "other_ns": "other idle", "loader_ns": "loader took", "hidden_loader_ns": "of it hidden",
    }  # fmt: skip
    for name in ("batch_copy_ns", "loader_ns", "hidden_loader_ns"):
        if not frame[name].sum():
            del columns[name]
    title = "Training threads" if result.on_host else "Devices, the most idle first"
    frame = frame.sort("idle_frac", descending=True, nulls_last=True, maintain_order=True)
    return Table("units", title, frame, {**_told(result, frame), **columns})


def _steps(result: GpuIdle) -> Table:
    span = pl.col("end") - pl.col("start")
    input_ns = pl.col(f"{DATALOADING}_ns") + pl.col(f"{BATCH_COPY}_ns")
    frame = result.steps.with_columns(
        file=_files(result.steps),
        step_ns=span,
        idle_ns=span - pl.col(f"{BUSY}_ns"),
        other_ns=span - pl.col(f"{BUSY}_ns") - input_ns,
        dataloading_frac=pl.col(f"{DATALOADING}_ns") / span,
    )
    columns = {
        "step": "step", "step_ns": "step time", "busy_ns": "busy",
        "exposed_communication_ns": "exposed communication", "dataloading_ns": "data loading",
        "dataloading_frac": "data loading", "batch_copy_ns": "batch copies",
        "other_ns": "other idle", "loader_ns": "loader took",
    }  # fmt: skip
    for name in ("exposed_communication_ns", "batch_copy_ns", "loader_ns"):
        if not frame[name].sum():
            del columns[name]
    if "loader_ns" in columns and frame["loader_ns"].equals(frame[f"{DATALOADING}_ns"]):
        del columns["loader_ns"]
    title = "Steps"
    if result.units.height > 1:
        title += ", those that wait most first"
        frame = frame.sort("idle_ns", descending=True, maintain_order=True)
    if result.by == "step":
        del columns["other_ns"]
        columns |= {
            f"{cause}_ns": NAMES[cause]
            for cause in CAUSES
            if cause not in (DATALOADING, BATCH_COPY) and result.idle_by_cause[cause]
        }
    empty = "no steps are marked"
    return Table("steps", title, frame, {**_told(result, frame), **columns}, empty=empty)


def _gaps(result: GpuIdle) -> Table:
    names = pl.concat([result.gaps["before"], result.gaps["after"]]).drop_nulls()
    short = short_names(names)
    frame = result.gaps.with_columns(
        file=_files(result.gaps),
        gap_ns=pl.col("end") - pl.col("start"),
        why=pl.col("cause").cast(pl.String).replace_strict(NAMES),
        range=pl.when(pl.col("annotation") != pl.col("host_event")).then("annotation"),
        kernel_before=pl.col("before").replace(short),
        kernel_after=pl.col("after").replace(short),
    )
    columns = {"start_ns": "start", "gap_ns": "gap", "step": "step", "why": "mostly"}
    columns |= {
        name: heading
        for name, heading in (
            ("host_event", "host meanwhile"),
            ("own_code", "own code"),
            ("range", "annotation"),
            ("kernel_before", "before it"),
            ("kernel_after", "after it"),
        )
        if frame[name].drop_nulls().len()
    }
    title = "Longest waits" if result.on_host else "Longest gaps"
    empty = "none" if result.gap_count == 0 else "not looked at"
    return Table("gaps", title, frame, {**_told(result, frame), **columns}, empty=empty)


def _files(frame: pl.DataFrame) -> pl.Series:
    return short_paths(frame["path"]) if frame.height else frame["path"]


def _told(result: GpuIdle, frame: pl.DataFrame) -> dict[str, str]:
    """The columns that tell units apart, where there are several."""
    if result.units.height < 2:
        return {}
    told = {name: said for name, said in _KEY.items() if frame[name].drop_nulls().len()}
    if told_by_rank(result.units):
        told.pop("file", None)
    return told
