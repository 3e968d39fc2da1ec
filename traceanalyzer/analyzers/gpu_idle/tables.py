"""Tables and charts of idle time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.common.kernel_names import short_names
from traceanalyzer.analyzers.common.places import places, short_paths, told_by_rank
from traceanalyzer.analyzers.gpu_idle.causes import BATCH_COPY, BUSY, CAUSES, DATALOADING, NAMES
from traceanalyzer.result import Chart, Table

if TYPE_CHECKING:
    from traceanalyzer.analyzers.gpu_idle.result import GpuIdle

#: What tells units apart.
_UNIT = ("rank", "path", "device", "pid")

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
    frame = _with_idle(result.units, "span_ns", busy_frac=f"{BUSY}_ns").with_columns(
        idle_frac=pl.col("idle_ns") / pl.col("span_ns")
    )
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
    frame = _with_idle(result.steps, "step_ns", dataloading_frac=f"{DATALOADING}_ns")
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


def _with_idle(frame: pl.DataFrame, span_ns: str, **shares: str) -> pl.DataFrame:
    """Adds the file, the span by this name, the idle time, and how much of it is not input.

    ``shares`` names columns that hold a share of the span, and what they are the share of.
    """
    span = pl.col("end") - pl.col("start")
    idle = span - pl.col(f"{BUSY}_ns")
    return frame.with_columns(
        _files(frame).alias("file"),
        span.alias(span_ns),
        idle.alias("idle_ns"),
        other_ns=idle - pl.col(f"{DATALOADING}_ns") - pl.col(f"{BATCH_COPY}_ns"),
        **{name: pl.col(column) / span for name, column in shares.items()},
    )


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


# --- charts --------------------------------------------------------------------------------


def charts(result: GpuIdle) -> tuple[Chart, ...]:
    """Idle by cause per step; per device, where there are several; the longest gaps over time."""
    return (
        *([_step_chart(result)] if result.steps.height else []),
        *([_unit_chart(result)] if result.units.height > 1 else []),
        _gap_chart(result),
    )


def _with_unit(result: GpuIdle, frame: pl.DataFrame) -> pl.DataFrame:
    """Adds ``on``: what a unit is called."""
    called = pl.concat([result.units.select(_UNIT), frame.select(_UNIT)])
    words = places(called).tail(frame.height)
    process = pl.format("{} process {}", words, "pid")
    return frame.with_columns(on=pl.coalesce(process, words))


def _colors(result: GpuIdle) -> pl.Enum:
    """The causes that occur, and being busy: each has one colour in all charts."""
    occur = [NAMES[cause] for cause, lost in result.idle_by_cause.items() if lost]
    return pl.Enum([*occur, BUSY])


def _times(frame: pl.DataFrame, keep: list[str], colors: pl.Enum) -> pl.DataFrame:
    """A row for each of ``colors``, in their order: ``cause`` and ``time_ns``, beside ``keep``."""
    columns = {f"{BUSY}_ns": BUSY} | {f"{cause}_ns": NAMES[cause] for cause in CAUSES}
    rows = frame.with_row_index("_row").unpivot(
        list(columns), index=["_row", *keep], variable_name="cause", value_name="time_ns"
    )
    cause = pl.col("cause").replace_strict(columns)
    shown = rows.with_columns(cause).filter(pl.col("cause").is_in(colors.categories.to_list()))
    return shown.with_columns(pl.col("cause").cast(colors)).sort("cause", "_row").drop("_row")


def _step_chart(result: GpuIdle) -> Chart:
    frame = _with_unit(result, result.steps)
    rows = _times(frame, ["step", "on"], _colors(result)).filter(pl.col("cause") != BUSY)
    waiting = "Waiting" if result.on_host else "Idle"
    return Chart(
        "steps",
        f"{waiting} time of each step, by cause",
        "bar",
        rows,
        x="step",
        y="time_ns",
        x_label="step",
        y_label=waiting.lower(),
        color="cause",
        panel="on" if result.units.height > 1 else None,
        stacked=True,
    )


def _unit_chart(result: GpuIdle) -> Chart:
    rows = _times(_with_unit(result, result.units), ["on"], _colors(result))
    return Chart(
        "devices",
        "What the time of each went into",
        "bar",
        rows,
        x="on",
        y="time_ns",
        x_label="",
        y_label="time",
        color="cause",
        stacked=True,
    )


def _gap_chart(result: GpuIdle) -> Chart:
    cause = pl.col("cause").cast(pl.String).replace_strict(NAMES).cast(_colors(result))
    rows = _with_unit(result, result.gaps).with_columns(
        cause=cause, end_ns=pl.col("start_ns") + pl.col("end") - pl.col("start")
    )
    return Chart(
        "gaps",
        "The longest gaps, by their main cause",
        "span",
        rows.sort("rank", "device", "pid", "start"),
        x="start_ns",
        y="on" if result.units.height > 1 else "cause",
        x_label="time from the start",
        y_label="",
        color="cause",
        x2="end_ns",
    )
