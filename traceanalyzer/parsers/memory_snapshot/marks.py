"""Ranges that were marked while memory was recorded: steps of the profiler, of the optimizer."""

from __future__ import annotations

from typing import Any

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.memory_snapshot import layout
from traceanalyzer.parsers.memory_snapshot.history import LAST_US
from traceanalyzer.parsers.memory_snapshot.words import Reading

_START = "START"


def read(reading: Reading) -> tuple[pl.DataFrame, int]:
    """The slices that pairs of START and END make, and how many of these stand alone.

    The history is a ring: the START of a range that is over may be gone. What was left open is of
    no known length.

    Returns:
        ``time_us``, ``end_us`` (null where it is open), ``name`` and ``device`` of each.
    """
    table = reading.table(layout.ANNOTATIONS)
    marks = pl.DataFrame(
        {
            "name": reading.strings(table.words("name"), schema.NAME),
            "stage": reading.strings(table.words("stage")),
            "device": reading.integers(table.words("device")).cast(pl.Int32, strict=False),
            "time_us": reading.integers(table.words("time_us")),
        }
    )
    timed = marks.filter(pl.col("time_us").is_between(0, LAST_US))
    opened: dict[tuple[object, object], list[int]] = {}
    slices: list[list[Any]] = []
    alone = marks.height - timed.height
    for row, (name, stage, device, time) in enumerate(timed.rows()):
        waiting = opened.setdefault((name, device), [])
        if stage == _START:
            waiting.append(len(slices))
            slices.append([row, time, None])
        elif waiting and slices[waiting[-1]][1] <= time:
            slices[waiting.pop()][2] = time
        else:
            alone += 1
    found = pl.DataFrame(slices, schema=["row", "time_us", "end_us"], orient="row").cast(pl.Int64)
    names = timed.select("name", "device")[found["row"]]
    return pl.concat([found.drop("row"), names], how="horizontal"), alone + sum(
        map(len, opened.values())
    )
