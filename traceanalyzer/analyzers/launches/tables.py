"""Tables and charts of launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.analyzers.common.display import table_of_known
from traceanalyzer.analyzers.launches.calls import DEVICE
from traceanalyzer.result import Chart, Table

if TYPE_CHECKING:
    from traceanalyzer.analyzers.launches.result import Launches

_ON = {"on": "device"}

_DELAYS = {
    "launches": "launches",
    "mean_delay_ns": "mean delay",
    "median_delay_ns": "median",
    "p99_delay_ns": "p99",
    "max_delay_ns": "max",
}

_LATE = {"late": "> 100 us"}
_QUEUED = {**_LATE, "waited_frac": "queued behind work"}
_CALL = {"median_call_ns": "median call"}

#: Columns of each table and their headings.
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "devices": {
        **_ON,
        "busy_frac": "busy",
        "waiting_frac": "waits for launches",
        **_DELAYS,
        **_QUEUED,
    },
    "stretches": {
        **_ON,
        "step": "step",
        "at_ns": "at",
        "length_ns": "length",
        "gaps": "gaps",
        "pieces": "pieces",
        "busy_frac": "busy",
        "synchronised_frac": "after a sync",
        "annotation": "mostly in",
        "operator": "operator",
    },
    "synchronising": {
        "call": "call",
        "operator": "operator",
        "annotation": "annotation",
        "python": "Python",
        "ranks": "ranks",
        "n": "n",
        "host_ns": "host time",
        "idle_ns": "device idle",
        "idle_after_ns": "idle after",
    },
    "streams": {
        **_ON,
        "process": "process",
        "stream": "stream",
        "launches": "launches",
        "mean_queue": "mean queue",
        "max_queue": "max",
        "empty_frac": "empty",
        "full_frac": "1,024 or more",
    },
    "calls": {
        "launch_name": "launch call",
        **_DELAYS,
        **_LATE,
        **_CALL,
        "max_call_ns": "max call",
        "slow_calls": "> 50 us",
    },
    "graphs": {
        "launch_name": "launch call",
        "launches": "launches",
        "pieces": "pieces of work",
        "median_delay_ns": "median delay to the first",
        "max_delay_ns": "max",
        **_CALL,
        "max_call_ns": "max call",
    },
    "short": {
        "name": "kernel",
        "short_kernels": "short",
        "short_frac": "of its kind",
        "share_frac": "of all kernels",
        "short_ns": "time in all",
        "mean_ns": "mean",
    },
    "operators": {
        "operator": "operator",
        "waiting_ns": "device waits",
        **_DELAYS,
        **_QUEUED,
        **_CALL,
    },
    "steps": {
        **_ON,
        "step": "step",
        "step_ns": "length",
        "stretch_frac": "in stretches",
        "waiting_ns": "waits for launches",
        "waiting_frac": "of the step",
    },
}

#: Streams whose queues are drawn: those with most launches.
_STREAMS = 6


def tables(result: Launches) -> tuple[Table, ...]:
    """Devices, stretches, synchronising calls, streams, launch calls, short kernels; details."""
    graphs = "Launch calls that started several pieces of work"
    return (
        _table(result, "devices", "Devices"),
        _table(result, "stretches", "Stretches in which a device ran out of work again and again"),
        _table(result, "synchronising", "Calls in which the host waits for the device"),
        _table(result, "streams", "Launches waiting in each stream"),
        _table(result, "calls", "Launch calls"),
        *([_table(result, "graphs", graphs)] if result.graphs.height else []),
        _table(result, "short", "Kernels shorter than 10 us"),
        _table(
            result, "operators", "Launches by operator", detail=True, missing={"operator": "(none)"}
        ),
        _table(result, "steps", "Steps", detail=True, empty="no steps are marked"),
    )


def _table(result: Launches, name: str, title: str, **more: Any) -> Table:
    """One table; what tells devices or ranks apart only where there are several devices."""
    single = () if result.devices.height > 1 or name == "devices" else ("on", "ranks")
    columns = {key: label for key, label in _COLUMNS[name].items() if key not in single}
    return table_of_known(name, title, getattr(result, name), columns, **more)


# --- charts --------------------------------------------------------------------------------


def charts(result: Launches) -> tuple[Chart, ...]:
    """Queues over time, and how many launches waited how long."""
    return (_queues(result), _delays(result))


def _queues(result: Launches) -> Chart:
    key = [*DEVICE, "process", "stream"]
    chosen = result.streams.head(_STREAMS).select(*key).with_row_index("_order")
    rows = result.queue.join(chosen, on=key, nulls_equal=True, maintain_order="left")
    frame = rows.sort("_order", maintain_order=True)
    label = pl.format("stream {}", "stream")
    if result.streams["process"].n_unique() > 1:
        label = pl.format("process {}, {}", "process", label)
    if result.devices.height > 1:
        label = pl.format("{}, {}", "on", label)
    more = result.streams.height - chosen.height
    busiest = f" (the {chosen.height} streams with most launches)" if more else ""
    return Chart(
        "queue",
        f"Launches waiting in each stream{busiest}",
        "line",
        frame.select("at_ns", "length", label.alias("queue")),
        x="at_ns",
        y="length",
        x_label="time since the first launch",
        y_label="launches in the queue",
        panel="queue",
    )


def _delays(result: Launches) -> Chart:
    words = (
        pl.when("waited").then(pl.lit("earlier work of its stream")).otherwise(pl.lit("nothing"))
    )
    return Chart(
        "delays",
        "Delay from launch call to start, by what was before it",
        "bar",
        result.delays.with_columns(words.alias("waited_for")),
        x="delay",
        y="n",
        x_label="delay: from this up to the next",
        y_label="launches",
        color="waited_for",
        stacked=True,
    )
