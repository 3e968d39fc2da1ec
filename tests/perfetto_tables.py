"""What Perfetto's trace processor must show of a trace, from the trace's own tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from trace_processor import Loaded, load

from traceanalyzer.exporters.perfetto import PerfettoWriter
from traceanalyzer.run.ranks import split_by_rank

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceanalyzer.trace import Trace

SLICES = """
select name, category, count(*) as n, sum(dur) as dur, min(ts) as first, max(ts + dur) as last
from slice group by 1, 2 order by 1, 2
"""
COUNTERS = """
select t.name, count(*) as n, sum(value) as value, min(ts) as first
from counter c join counter_track t on c.track_id = t.id group by 1 order by 1
"""
#: Slices that Perfetto closed itself because their end was missing or not inside another.
OPEN = "select count(*) as n from slice where dur < 0"
FLOWS = "select count(*) as n from flow"


def write(trace: Trace, path: Path) -> tuple[list[Trace], PerfettoWriter]:
    """Write each rank of a trace, on the clock of the trace."""
    ranks = split_by_rank([trace])
    with path.open("wb") as file:
        writer = PerfettoWriter(file)
        for one in ranks:
            writer.add(one, f"rank {one.meta.rank}")
        writer.close({one.sequence: 0 for one in writer.written}, {}, None)
    return ranks, writer


def slices(ranks: Sequence[Trace]) -> list[dict[str, object]]:
    """Return the rows of :data:`SLICES`."""
    parts = []
    for trace in ranks:
        text = pl.col("category").cast(pl.String)
        parts.append(
            trace.events.select(
                "ts",
                dur=pl.max_horizontal(pl.col("dur").fill_null(0), 0),
                name=pl.col("name").cast(pl.String),
                category=pl.coalesce(text, pl.col("kind").cast(pl.String)),
            )
        )
    rows = pl.concat(parts)
    start = _start(ranks)
    sums = rows.group_by("name", "category").agg(
        n=pl.len(),
        dur=pl.col("dur").sum(),
        first=pl.col("ts").min() - start,
        last=(pl.col("ts") + pl.col("dur")).max() - start,
    )
    return sums.select("name", "category", "n", "dur", "first", "last").to_dicts()


def _start(ranks: Sequence[Trace]) -> int:
    times = [frame["ts"].min() for one in ranks for frame in (one.events, one.counters)]
    return min(time for time in times if isinstance(time, int))


def key(row: dict[str, object]) -> tuple[object, ...]:
    """Sort key of rows with null."""
    return tuple((value is not None, value) for value in row.values())


def differences(loaded: Loaded, ranks: Sequence[Trace], writer: PerfettoWriter) -> list[str]:
    """Return how the trace processor's tables differ from those of the trace."""
    if loaded.error:
        return [loaded.error]
    slice_rows, readings, still_open, arrows = loaded.tables
    texts = [f"lost: {loaded.lost}"] if loaded.lost else []
    if sorted(slice_rows, key=key) != sorted(slices(ranks), key=key):
        texts.append("slices differ")
    finite = sum(one.readings for one in writer.written)
    if sum(row["n"] for row in readings) != finite:
        texts.append(f"{sum(row['n'] for row in readings)} readings, not {finite}")
    if still_open[0]["n"]:
        texts.append(f"{still_open[0]['n']} slices without an end")
    if arrows[0]["n"] != sum(one.arrows for one in writer.written):
        texts.append(f"{arrows[0]['n']} arrows, not {sum(one.arrows for one in writer.written)}")
    return texts


def load_all(files: Sequence[Path]) -> list[Loaded]:
    """Load files with the queries that :func:`differences` needs."""
    return load(files, SLICES, COUNTERS, OPEN, FLOWS)
