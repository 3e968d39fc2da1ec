"""Impossible times and sizes do not reach an analysis; losses are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from trace_rows import table

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.parsers.contract import bounded
from traceanalyzer.trace import sort_events

LAST, LONGEST = schema.LAST_NS, schema.MAX_DURATION_NS
META = ta.Meta(path="x", format="chrome-trace", rank=3)


def losses(trace: ta.Trace) -> dict[str, int]:
    return dict(trace.issues.select("code", "count").rows())


def of(*rows: dict[str, Any], **tables: pl.DataFrame) -> ta.Trace:
    return sort_events(bounded(ta.Trace(sources=(META,), events=table("events", *rows), **tables)))


@pytest.mark.parametrize(
    ("ts", "dur", "kept"),
    [
        (LAST, 0, True),
        (LAST - 5, 5, True),
        (LAST - 5, 6, False),
        (LAST + 1, None, False),
        (0, LONGEST, True),
        (0, LONGEST + 1, False),
        (0, -LONGEST - 1, False),
        (LAST - LONGEST, LONGEST, True),
        (-LAST, None, True),
        (-LAST - 1, 5, False),
        (-LAST, -1, False),
        (0, (1 << 63) - 1, False),
        (0, -(1 << 63), False),
        (1 << 62, 1 << 62, False),
        (None, None, True),
    ],
)
def test_events_out_of_the_time_range_are_dropped(ts, dur, kept):
    trace = of({"ts": 0, "kind": "sample"}, {"ts": ts, "dur": dur, "kind": "sample"})
    assert trace.events.height == 1 + kept
    assert losses(trace) == ({} if kept else {"time-out-of-range": 1})
    assert schema.check(trace.tables) == []


def test_side_tables_keep_rows_of_kept_events():
    kernels = table("launch_configs", {"event": 0, "grid_x": 1}, {"event": 1, "grid_x": 2})
    counters = table(
        "counters", *({"ts": t, "name": "a", "series": "b", "value": 1.0} for t in (0, LAST + 1))
    )
    rows = [{"ts": t, "dur": 1, "kind": "kernel"} for t in (-LAST - 1, 5)]
    trace = of(*rows, launch_configs=kernels, counters=counters)
    assert trace.launch_configs.rows()[0][:2] == (0, 2)
    assert trace.counters["ts"].to_list() == [0]
    assert losses(trace) == {"time-out-of-range": 2}
    assert trace.issues["rank"].to_list() == [3]


@pytest.mark.parametrize(
    ("row", "left"),
    [
        ({"kind": "alloc", "bytes": schema.MAX_BYTES - 1}, schema.MAX_BYTES - 1),
        ({"kind": "alloc", "bytes": schema.MAX_BYTES}, None),
        ({"kind": "free_completed", "bytes": -schema.MAX_BYTES}, None),
        ({"kind": "oom", "bytes": 1 << 62}, 1 << 62),
    ],
)
def test_sizes_out_of_range_are_null(row, left):
    trace = of({"ts": 0, **row})
    assert trace.events["bytes"].to_list() == [left]
    assert losses(trace) == ({} if left else {"number-out-of-range": 1})


def test_weights_are_exact():
    most = float(schema.MAX_WEIGHT)
    rows = [{"kind": "sample", "weight": weight} for weight in (most, most + 2, -most)]
    assert of(*rows).events["weight"].to_list() == [most, None, -most]


@pytest.mark.parametrize(
    ("epoch", "start", "kept"),
    [
        (schema.LAST_EPOCH_NS, LAST, (schema.LAST_EPOCH_NS, LAST)),
        (schema.LAST_EPOCH_NS + 1, LAST + 1, (None, None)),
        (-1, -LAST, (None, -LAST)),
    ],
)
def test_epochs_that_overflow_the_clock_are_null(epoch, start, kept):
    meta = ta.Meta(path="x", format="f", epoch_ns=epoch, start_ns=start)
    column = bounded(ta.Trace(sources=(meta,))).meta
    assert (column.epoch_ns, column.start_ns) == kept


def test_events_with_invalid_times_are_dropped_on_read(tmp_path: Path):
    path = tmp_path / "rank0.json"
    times = (1, 1 << 62, 9_000_000_000_000_000)
    events = [{"ph": "X", "name": "a", "ts": ts, "dur": 2} for ts in times]
    path.write_text(json.dumps(events))
    trace = ta.read(path)
    assert trace.events["ts"].to_list() == [1000]
    # one exceeds 64 bits, the other the range of the clock
    assert losses(trace) == {"bad-time": 1, "time-out-of-range": 1}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"events": [{"ts": None, "kind": "kernel"}]}, "events.ts: null for a kind"),
        ({"events": [{"ts": LAST, "dur": 1, "kind": "kernel"}]}, "events: a time beyond"),
        ({"events": [{"ts": 0, "kind": "sample", "stack": 0}]}, "events.stack: row 0 of 0"),
        (
            {"events": [{"ts": 0, "kind": "alloc", "bytes": 1 << 44}]},
            "events.bytes: value out of range",
        ),
        ({"stacks": [{"id": 1, "name": "f"}]}, "stacks.id: not the row numbers"),
        ({"stacks": [{"id": 0, "parent": 0, "name": "f"}]}, "stacks.parent: parent after"),
        (
            {"counters": [{"ts": 0, "name": "a", "series": "b", "value": float("inf")}]},
            "counters.value: not a finite number",
        ),
        ({"counters": [{"ts": 0, "name": "a", "series": "b"}]}, "counters.value: null 1 times"),
    ],
)
def test_check_reports_violations(tables, message):
    frames = {name: table(name, *rows) for name, rows in tables.items()}
    wrong = schema.check(ta.Trace(sources=(META,), **frames).tables)
    assert [one[: len(message)] for one in wrong] == [message]


def test_check_reports_missing_tables_and_columns():
    tables = ta.Trace(sources=(META,)).tables
    others = {**tables, "mine": pl.DataFrame()}
    del others["lanes"]
    assert schema.check(others) == ["unknown table mine", "table lanes is missing"]
    less = {**tables, "flows": tables["flows"].drop("ts")}
    assert schema.check(less)[0].startswith("flows: columns ['phase'")
    other = {**tables, "events": tables["events"].cast({"ts": pl.Int32})}
    assert schema.check(other) == ["events.ts: Int32, not Int64"]


def test_negative_sizes_are_dropped_and_counted(tmp_path: Path) -> None:
    """Only a free has a negative size."""
    copies = [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 7, "ts": n,
         "dur": 1, "args": {"device": 0, "stream": 7, "bytes": size}}
        for n, size in enumerate((64, -64))
    ]  # fmt: skip
    instants = [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": 1, "tid": 1,
         "ts": n, "args": {"Bytes": size, "Addr": 4096, "Device Type": 1, "Device Id": 0,
                           "Total Allocated": 64, "Total Reserved": size}}
        for n, size in enumerate((64, -64))
    ]  # fmt: skip
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": copies + instants}))
    trace = ta.read(path)
    of = dict(trace.events.group_by(pl.col("kind").cast(pl.String)).agg("bytes").rows())
    assert sorted(of["gpu_memcpy"], key=str) == [64, None]
    assert sorted(of["cpu_instant_event"]) == [-64, 64]
    assert trace.memory_totals["reserved_bytes"].to_list() == [64, None]
    counts = dict(trace.issues.select("code", "count").rows())
    assert counts["number-out-of-range"] == 2
