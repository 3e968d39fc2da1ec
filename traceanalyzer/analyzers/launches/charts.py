"""The answer as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.launches.part import DEVICE
from traceanalyzer.result import Chart

if TYPE_CHECKING:
    from traceanalyzer.analyzers.launches.result import Launches

#: Streams whose queues are drawn: those with most launches.
_STREAMS = 6


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
