"""Tables and charts of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.result import Chart, Table

if TYPE_CHECKING:
    from traceanalyzer.analyzers.operators.result import Operators

_BARS = 15

_KEYS = {"name": "operator", "input_dims": "input shapes", "stack": "called from"}
_DEVICE = {
    "self_device_ns": "self device",
    "self_device_frac": "of device",
    "total_device_ns": "total device",
}
_HOST = {
    "self_host_ns": "self host",
    "self_host_frac": "of host",
    "total_host_ns": "total host",
    "mean_host_ns": "host/call",
}
#: Columns that give way where both sides are told, and where rows have more than a name.
_LESS_TOLD = ("mean_host_ns",)
_LEAST_TOLD = ("total_device_ns", "self_host_frac", "mean_host_ns")
_MEMORY = {
    "self_device_memory_bytes": "self device",
    "total_device_memory_bytes": "total device",
    "self_host_memory_bytes": "self host",
    "total_host_memory_bytes": "total host",
}


def tables(result: Operators) -> tuple[Table, ...]:
    """Operators, memory and ranks; memory first where rows are sorted by it."""
    rows = result.operators
    keys = {name: label for name, label in _KEYS.items() if name in rows.columns}
    both = result.device_ns is not None
    left_out = _LEAST_TOLD if len(keys) > 1 else _LESS_TOLD if both else ()
    times = {"calls": "calls", **(_DEVICE if both else {}), **_HOST}
    times = {name: label for name, label in times.items() if name not in left_out}
    found = [Table("operators", "Operators", rows, {**keys, **times})]
    memory = {name: label for name, label in _MEMORY.items() if rows[name].is_not_null().any()}
    if "memory" in result.sort_by:
        found.insert(0, _memory(rows, keys, memory))
    elif memory:
        held = rows.sort(*memory, "name", descending=[True] * len(memory) + [False])
        used = pl.any_horizontal(pl.col(name) != 0 for name in memory)
        found.append(_memory(held.filter(used), keys, memory))
    if result.ranks.height > 1:
        found.append(_ranks(result.ranks))
    return tuple(found)


def _memory(rows: pl.DataFrame, keys: dict[str, str], memory: dict[str, str]) -> Table:
    shown = {**keys, "calls": "calls", **memory}
    return Table("memory", "Memory allocated less freed", rows, shown)


def _ranks(ranks: pl.DataFrame) -> Table:
    known = ranks["rank"].null_count() < ranks.height
    device = ranks["device_ns"].null_count() < ranks.height
    shown = {
        **({"rank": "rank"} if known else {"path": "file"}),
        "calls": "calls",
        "threads": "threads",
        "host_ns": "host",
        **({"device_ns": "device"} if device else {}),
    }
    return Table("ranks", "Ranks", ranks, shown)


def charts(result: Operators) -> tuple[Chart, ...]:
    """Bars of the heaviest operators, on the host of the threads that run operators."""
    host = _chart(result.running, "self_host_ns", "self host time")
    if result.device_ns is None:
        return (host,)
    return (_chart(result.operators, "self_device_ns", "self device time"), host)


def _chart(rows: pl.DataFrame, column: str, label: str) -> Chart:
    names = rows.group_by("name").agg(pl.col(column).sum())
    heaviest = names.filter(pl.col(column) > 0).sort(column, "name", descending=[True, False])
    return Chart(
        name=column.removesuffix("_ns"),
        title=f"Operators by {label}",
        mark="span",
        frame=heaviest.head(_BARS).with_columns(zero_ns=pl.lit(0, pl.Int64)),
        x=column,
        x2="zero_ns",
        y="name",
        x_label=label,
        y_label="",
    )
