"""The tables of the answer, the most telling first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.result import Table

if TYPE_CHECKING:
    from traceanalyzer.analyzers.launches.result import Launches

_DELAYS = {
    "launches": "launches",
    "mean_delay_ns": "mean delay",
    "median_delay_ns": "median",
    "p99_delay_ns": "p99",
    "max_delay_ns": "max",
}


def tables(result: Launches) -> tuple[Table, ...]:
    """Devices, stretches, synchronising calls, streams, launch calls, short kernels; details."""
    graphs = (_graphs(result),) if result.graphs.height else ()
    in_detail = (_operators(result), _steps(result))
    return (
        _devices(result),
        _stretches(result),
        _synchronising(result),
        _streams(result),
        _calls(result),
        *graphs,
        _short(result),
        *(replace(table, detail=True) for table in in_detail),
    )


def _devices(result: Launches) -> Table:
    columns = {
        "on": "device",
        "busy_frac": "busy",
        "waiting_frac": "waits for launches",
        **_DELAYS,
        "late": "> 100 us",
        "waited_frac": "queued behind work",
    }
    return _table("devices", "Devices", result.devices, columns)


def _stretches(result: Launches) -> Table:
    columns = {
        **_on(result),
        "step": "step",
        "at_ns": "at",
        "length_ns": "length",
        "gaps": "gaps",
        "pieces": "pieces",
        "busy_frac": "busy",
        "synchronised_frac": "after a sync",
        "annotation": "mostly in",
        "operator": "operator",
    }
    title = "Stretches in which a device ran out of work again and again"
    return _table("stretches", title, result.stretches, columns, "none")


def _synchronising(result: Launches) -> Table:
    columns = {
        "call": "call",
        "operator": "operator",
        "annotation": "annotation",
        "python": "Python",
        **({"ranks": "ranks"} if result.devices.height > 1 else {}),
        "n": "n",
        "host_ns": "host time",
        "idle_ns": "device idle",
        "idle_after_ns": "idle after",
    }
    title = "Calls in which the host waits for the device"
    return _table("synchronising", title, result.synchronising, columns, "none")


def _streams(result: Launches) -> Table:
    columns = {
        **_on(result),
        "process": "process",
        "stream": "stream",
        "launches": "launches",
        "mean_queue": "mean queue",
        "max_queue": "max",
        "empty_frac": "empty",
        "full_frac": "1,024 or more",
    }
    return _table("streams", "Launches waiting in each stream", result.streams, columns)


def _calls(result: Launches) -> Table:
    columns = {
        "launch_name": "launch call",
        **_DELAYS,
        "late": "> 100 us",
        "median_call_ns": "median call",
        "max_call_ns": "max call",
        "slow_calls": "> 50 us",
    }
    return _table("calls", "Launch calls", result.calls, columns)


def _graphs(result: Launches) -> Table:
    columns = {
        "launch_name": "launch call",
        "launches": "launches",
        "pieces": "pieces of work",
        "median_delay_ns": "median delay to the first",
        "max_delay_ns": "max",
        "median_call_ns": "median call",
        "max_call_ns": "max call",
    }
    title = "Launch calls that started several pieces of work"
    return _table("graphs", title, result.graphs, columns)


def _short(result: Launches) -> Table:
    columns = {
        "name": "kernel",
        "short_kernels": "short",
        "short_frac": "of its kind",
        "share_frac": "of all kernels",
        "short_ns": "time in all",
        "mean_ns": "mean",
    }
    return _table("short", "Kernels shorter than 10 us", result.short, columns, "none")


def _operators(result: Launches) -> Table:
    columns = {
        "operator": "operator",
        "waiting_ns": "device waits",
        **_DELAYS,
        "late": "> 100 us",
        "waited_frac": "queued behind work",
        "median_call_ns": "median call",
    }
    table = _table("operators", "Launches by operator", result.operators, columns)
    return replace(table, missing={"operator": "(none)"})


def _steps(result: Launches) -> Table:
    columns = {
        **_on(result),
        "step": "step",
        "step_ns": "length",
        "stretch_frac": "in stretches",
        "waiting_ns": "waits for launches",
        "waiting_frac": "of the step",
    }
    return _table("steps", "Steps", result.steps, columns, "no steps are marked")


def _on(result: Launches) -> dict[str, str]:
    """The column that names devices, where there are several."""
    return {"on": "device"} if result.devices.height > 1 else {}


def _table(
    name: str, title: str, frame: pl.DataFrame, columns: Mapping[str, str], empty: str = "none"
) -> Table:
    """A table without the columns in which nothing is known."""
    known = {n: label for n, label in columns.items() if frame[n].null_count() < frame.height}
    return Table(name, title, frame, known or columns, empty=empty)
