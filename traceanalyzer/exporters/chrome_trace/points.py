"""Flow points, counter readings and sampled stacks as JSON text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.exporters.chrome_trace.slices import IS_SAMPLE
from traceanalyzer.exporters.chrome_trace.text import member, members, microseconds, quoted_column
from traceanalyzer.exporters.chrome_trace.tracks import ORIGINAL_TID, PLACE, PROCESS, THREAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceanalyzer.exporters.chrome_trace.tracks import Tracks
    from traceanalyzer.trace import Trace

#: Points turned into text at once.
ROWS = 1 << 16

_PHASES = {"start": "s", "step": "t", "end": "f"}


def flow_texts(trace: Trace, tracks: Tracks) -> Iterator[pl.Series]:
    """Every flow point, on the track of its slice; its id is the arrow's number.

    An end is bound to the slice around it (``"bp":"e"``, as Kineto writes), unless its slice
    begins only later.
    """
    slices = tracks.of_event.with_columns(begin=trace.events["ts"])
    for points in trace.flows.iter_slices(ROWS):
        bound = slices.select(pl.all().gather(points["event"]).name.suffix("_slice"))
        same = pl.all_horizontal(
            pl.col(f"{name}_slice").eq_missing(pl.col(name)) for name in THREAD
        )
        lane = pl.when(same).then("lane_slice").fill_null(0)
        frame = points.hstack(bound).with_columns(lane=lane)
        placed = frame.join(
            tracks.places, on=PLACE, how="left", nulls_equal=True, maintain_order="left"
        )
        yield placed.select(_flow(placed)).to_series()


def _flow(frame: pl.DataFrame) -> pl.Expr:
    is_end = pl.col("phase") == "end"
    later = (pl.col("begin_slice") > pl.col("ts")).fill_null(value=False)
    phase = pl.col("phase").cast(pl.String).replace_strict(_PHASES)
    origin = member(ORIGINAL_TID, pl.col("original"))
    text = members(
        pl.concat_str(pl.lit('{"ph":"'), phase, pl.lit('"')),
        member("id", pl.col("flow")),
        pl.col("where"),
        member("ts", microseconds(pl.col("ts"))),
        member("cat", quoted_column(frame["category"])),
        member("name", quoted_column(frame["name"])),
        pl.when(is_end & ~later).then(pl.lit('"bp":"e"')),
        pl.concat_str(pl.lit('"args":{'), origin, pl.lit("}")),
    )
    return text + "}"


def counter_texts(trace: Trace, tracks: Tracks) -> pl.Series:
    """Counter readings, those of one counter and time that stand together in one event."""
    frame = trace.counters.filter(pl.col("value").is_finite()).join(
        tracks.processes, on=PROCESS, how="left", nulls_equal=True, maintain_order="left"
    )
    same_event = pl.struct("ts", "name", *PROCESS).rle_id().alias("run")
    # a series has one reading an event
    again = pl.int_range(pl.len()).over("run", "series").alias("again")
    readings = frame.with_columns(same_event).with_columns(again)
    reading = pl.concat_str(quoted_column(frame["series"]), pl.lit(":"), "value")
    events = readings.group_by("run", "again", maintain_order=True).agg(
        pl.first("ts", "name", "process"), args=reading.str.join(",")
    )
    text = members(
        pl.lit('{"ph":"C"'),
        member("name", quoted_column(events["name"])),
        member("pid", pl.col("process")),
        member("ts", microseconds(pl.col("ts"))),
        pl.concat_str(pl.lit('"args":{'), "args", pl.lit("}")),
    )
    return events.select(text + "}").to_series()


def frame_texts(trace: Trace) -> pl.Series:
    """The members of ``stackFrames``: row of ``stacks`` -> function, file and caller."""
    text = members(
        member("name", quoted_column(trace.stacks["name"])),
        member("category", quoted_column(trace.stacks["file"])),
        pl.concat_str(pl.lit('"parent":"'), "parent", pl.lit('"')),
    )
    return trace.stacks.select(
        pl.concat_str(pl.lit('"'), "id", pl.lit('":{'), text, pl.lit("}"))
    ).to_series()


def sample_texts(trace: Trace, tracks: Tracks) -> pl.Series:
    """The items of ``samples``."""
    samples = trace.events.filter(IS_SAMPLE)
    for key, ids in ((PROCESS, tracks.processes), (THREAD, tracks.threads)):
        samples = samples.join(ids, on=key, how="left", nulls_equal=True, maintain_order="left")
    text = members(
        pl.concat_str(pl.lit('{"ts":'), microseconds(pl.col("ts"))),
        member("name", quoted_column(samples["name"])),
        member("pid", pl.col("process")),
        member("tid", pl.coalesce("thread", pl.col("tid").cast(pl.String))),
        member("sf", pl.col("stack")),
        member("weight", pl.col("weight")),
    )
    return samples.select(text + "}").to_series()
