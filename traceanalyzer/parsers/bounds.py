"""What a parser found, without what cannot be.

In: a trace as a format's parser made it. Out: the same without events at times that no clock shows,
and without sizes, addresses and weights beyond :mod:`traceanalyzer.limits`, which its issues count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from traceanalyzer import limits, schema
from traceanalyzer.trace import Meta, Trace, issue_rows


def bounded(trace: Trace) -> Trace:
    """The trace with nothing in it that is beyond what there can be."""
    timely = _timely(trace)
    tables = {name: _sized(name, frame) for name, frame in timely.tables.items()}
    told = ("events", "flows", "counters")
    late = sum(getattr(trace, name).height - getattr(timely, name).height for name in told)
    wrong = sum(count for _, count in tables.values())
    found = [("time-out-of-range", late), ("number-out-of-range", wrong)]
    issues = [("data_loss", code, count, None) for code, count in found if count]
    frames: dict[str, Any] = {name: frame for name, (frame, _) in tables.items()}
    frames["issues"] = pl.concat([trace.issues, issue_rows(issues, trace.meta.rank)])
    return replace(timely, sources=tuple(map(_dated, trace.sources)), **frames)


def _timely(trace: Trace) -> Trace:
    """Without what is on no clock; the same trace where all of it is."""
    points = pl.col("ts").is_between(-limits.LAST_NS, limits.LAST_NS)
    on_clock = trace.events.select(limits.on_the_clock().all()).item()
    if on_clock and all(f.select(points.all()).item() for f in (trace.flows, trace.counters)):
        return trace
    return trace.select(limits.on_the_clock(), points)


def _sized(name: str, frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """A table with null for numbers that cannot be, and how many there were."""
    lost = 0
    for column in schema.TABLES[name]:
        if column.null == "never":
            continue
        far = limits.beyond(name, column.name)
        count = int(frame.select(far.sum()).item())
        if count:
            frame = frame.with_columns(pl.when(~far).then(column.name).alias(column.name))
            lost += count
    return frame, lost


def _dated(meta: Meta) -> Meta:
    """Without times that leave no room on the clock for those behind them."""
    epoch, start = meta.epoch_ns, meta.start_ns
    if epoch is not None and not 0 <= epoch <= limits.LAST_EPOCH_NS:
        epoch = None
    if start is not None and abs(start) > limits.LAST_NS:
        start = None
    return replace(meta, epoch_ns=epoch, start_ns=start)
