"""Tables and charts of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.result import Chart, Table

if TYPE_CHECKING:
    from traceanalyzer.analyzers.kernels.result import Kernels

_BARS = 15

_SHARES = {"n": "n", "total_ns": "total", "busy_frac": "of busy", "span_frac": "of span"}
_LENGTHS = {
    "mean_ns": "mean",
    "min_ns": "min",
    "median_ns": "median",
    "p99_ns": "p99",
    "max_ns": "max",
}
#: What is told at first of kernels, whose names need room; the rest is a table of its own.
_FIRST = ("n", "total_ns", "busy_frac", "mean_ns", "max_ns")
_GROUPED = ("n", "total_ns", "busy_frac", "mean_ns", "median_ns", "max_ns")
_LATER = ("n", "span_frac", "min_ns", "median_ns", "p99_ns")

_UNKNOWN = {"operator": "(none known)", "annotation": "(none known)"}


def tables(result: Kernels) -> tuple[Table, ...]:
    """Groups where asked for, families, names; devices where there are several."""
    group = _group(result)
    numbers = {**_SHARES, **_LENGTHS}
    first, later, grouped = (
        {name: numbers[name] for name in told} for told in (_FIRST, _LATER, _GROUPED)
    )
    kernel = {**group, "kernel": "kernel"}
    family = {} if group else {"family": "family"}
    found = [
        _table(
            "families",
            "Families",
            result.families,
            {**group, "family": "family", **(grouped if group else numbers)},
        ),
        _table("names", "Kernels, copies and sets", result.names, {**kernel, **family, **first}),
        _table("lengths", "How long they run", result.names, {**kernel, **later}, detail=True),
    ]
    if result.groups is not None:
        mostly = {"family": "mostly", "family_frac": "of it"}
        by = f"By {result.question.by}"
        found.insert(0, _table("groups", by, result.groups, {**group, **_SHARES, **mostly}))
    if result.devices.height > 1:
        found.append(_devices(result.devices))
    return tuple(found)


def _table(
    name: str, title: str, frame: pl.DataFrame, columns: dict[str, str], *, detail: bool = False
) -> Table:
    return Table(name, title, frame, columns, missing=_UNKNOWN, detail=detail)


def _group(result: Kernels) -> dict[str, str]:
    """The columns that tell groups apart, without a rank or device that is always the same."""
    group = result.question.group
    outer = [name for name in group[:-1] if result.devices[name].n_unique() > 1]
    return {name: name for name in (*outer, *group[-1:])}


def _devices(devices: pl.DataFrame) -> Table:
    known = devices["rank"].null_count() < devices.height
    shown = {
        **({"rank": "rank"} if known else {"path": "file"}),
        "device": "device",
        "n": "n",
        "total_ns": "total",
        "busy_ns": "busy",
        "span_ns": "span",
        "busy_frac": "busy/span",
    }
    return Table("devices", "Devices", devices, shown)


def charts(result: Kernels) -> tuple[Chart, ...]:
    """Bars of the families and of the heaviest names."""
    families = _chart("families", "Device work by family", result.heaviest("family"), "family")
    names = _chart("names", "Kernels by total time", result.heaviest("name"), "kernel")
    return (families, names)


def _chart(name: str, title: str, rows: pl.DataFrame, label: str) -> Chart:
    frame = rows.filter(pl.col("total_ns") > 0).head(_BARS)
    return Chart(
        name=name,
        title=title,
        mark="span",
        frame=frame.with_columns(zero_ns=pl.lit(0, pl.Int64)),
        x="total_ns",
        x2="zero_ns",
        y=label,
        x_label="total",
        y_label="",
        color=None if label == "family" else "family",
    )
