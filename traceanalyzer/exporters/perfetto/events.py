"""The tables of a recording as columns of packets: slices with arguments, arrows, counters."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.exporters.perfetto.packets import Ids, Ints, Slices
from traceanalyzer.frames import linking
from traceanalyzer.frames.nesting import ROOT
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS

#: Arguments of all events, by column.
_OF_EVENT = {
    "correlation": "correlation",
    "external_id": "external id",
    "bytes": "bytes",
    "address": "address",
    "weight": "weight",
    "input_dims": "input dims",
    "args": "args",
}
_OF_KERNEL = {"registers": "registers per thread", "shared_memory": "shared memory"}
_OF_COLLECTIVE = {
    "collective": "collective",
    "dtype": "dtype",
    "elements_in": "elements in",
    "elements_out": "elements out",
    "group": "process group",
    "group_size": "group size",
    "group_ranks": "group ranks",
    "seq": "sequence number",
    "peer": "peer rank",
    "splits_in": "split sizes in",
    "splits_out": "split sizes out",
}
#: Counters of ``memory_totals``.
_MEMORY = {"allocated_bytes": "allocated", "reserved_bytes": "reserved"}
_FLOW = {"event": pl.UInt32, "flow": pl.UInt64}


def slices(trace: Trace, tracks: Ids, start_ns: int, open_flows: Ints, first_flow: int) -> Slices:
    """Return all events.

    Args:
        trace: the recording.
        tracks: uuid of the track of each event.
        start_ns: time that becomes 0.
        open_flows: rows with an arrow to another rank.
        first_flow: ids of arrows begin here.
    """
    events = trace.events
    ts = events["ts"].to_numpy() - start_ns
    dur = events["dur"].fill_null(-1).to_numpy()
    annotations = {
        label: events[name] for name, label in _OF_EVENT.items() if name in events.columns
    }
    annotations |= _of_side(trace)
    return Slices(
        ts=ts,
        end=ts + np.maximum(dur, -1),
        track=tracks,
        name=events["name"],
        category=_categories(events),
        annotations={
            label: column
            for label, column in annotations.items()
            if column.null_count() < column.len()
        },
        flows=flows(trace, first_flow),
        open_flows=open_flows,
    )


def _categories(events: pl.DataFrame) -> pl.Series:
    """Return the category of the file, otherwise the kind."""
    kind = pl.col("kind").cast(pl.String)
    return events.select(pl.coalesce(pl.col("category").cast(pl.String), kind)).to_series()


def _of_side(trace: Trace) -> dict[str, pl.Series]:
    """Return arguments from the side tables, one value per event."""
    rows = trace.events.height
    kernels = trace.launch_configs
    columns = {
        label: _spread(kernels["event"], kernels[name], rows)
        for name, label in _OF_KERNEL.items()
        if kernels.height
    }
    for name in ("grid", "block") if kernels.height else ():
        axes = [pl.col(f"{name}_{axis}").cast(pl.String).fill_null("?") for axis in "xyz"]
        known = pl.any_horizontal(pl.col(f"{name}_{axis}").is_not_null() for axis in "xyz")
        text = kernels.select(pl.when(known).then(pl.format("[{}, {}, {}]", *axes))).to_series()
        columns[name] = _spread(kernels["event"], text, rows)
    for name, label in _OF_COLLECTIVE.items() if trace.collectives.height else ():
        columns[label] = _spread(trace.collectives["event"], trace.collectives[name], rows)
    return columns


def _spread(event: pl.Series, values: pl.Series, rows: int) -> pl.Series:
    """Return a column with the values in these rows; of several values of a row the first."""
    frame = pl.DataFrame({"event": event, "value": values}).drop_nulls("event")
    place = np.full(rows, frame.height, np.int64)
    place[frame["event"].to_numpy()[::-1]] = np.arange(frame.height - 1, -1, -1)
    chosen = pl.Series(place).replace(frame.height, None)
    return frame["value"].gather(chosen)


def flows(trace: Trace, first: int) -> pl.DataFrame:
    """Return the arrows: row of ``events`` and id of the arrow, sorted.

    Arrows recorded in the file, and from each launch call to its device work, by correlation id.
    """
    recorded = trace.flows.drop_nulls("event").select(
        "event", flow=pl.col("flow").cast(pl.UInt64) + first
    )
    top = recorded["flow"].max()
    after = (top if isinstance(top, int) else first) + 1
    links = _launches(trace, recorded["event"], after)
    both = pl.concat([recorded, links]).unique(maintain_order=True)
    # an arrow with one end is not drawn
    shared = both.filter(pl.len().over("flow") > 1)
    return shared.cast(_FLOW).sort("event", maintain_order=True)  # type: ignore[arg-type]


def _launches(trace: Trace, drawn: pl.Series, first: int) -> pl.DataFrame:
    """Return arrows from launch calls to device work without a recorded arrow."""
    events = trace.events.select("kind", "pid", "correlation").with_row_index("event")
    joined = events.filter(pl.col("correlation").is_not_null())
    work = joined.filter(
        pl.col("kind").is_in(DEVICE_WORK), ~pl.col("event").is_in(drawn.unique().implode())
    )
    calls = joined.filter(pl.col("kind").is_in(LAUNCH_KINDS))
    if work.is_empty() or calls.is_empty():
        return pl.DataFrame(schema={"event": pl.UInt32, "flow": pl.UInt64})
    keys = ["correlation"] if work["pid"].null_count() else ["pid", "correlation"]
    match = linking.first_match(calls, work, keys)
    known = np.flatnonzero(match != ROOT)
    ids = pl.Series("flow", np.arange(first, first + known.size), pl.UInt64)
    ends = (calls["event"].gather(match[known]), work["event"].gather(known))
    return pl.concat(pl.DataFrame({"event": end, "flow": ids}) for end in ends)


@dataclass(frozen=True)
class Counters:
    """Readings of counters.

    Attributes:
        readings: ts, value, and counter (row of ``names``), sorted by time.
        names: name, unit and pid (null: of the rank) of each counter.
    """

    readings: pl.DataFrame
    names: pl.DataFrame


def counters(trace: Trace) -> Counters:
    """Return the counters of the file, and the allocator's totals; finite readings only."""
    name = pl.concat_str("name", "series", separator=" ", ignore_nulls=True)
    recorded = trace.counters.select(
        "ts", "value", "pid", name=name, unit=pl.lit("", pl.String)
    ).filter(pl.col("value").is_finite())
    rows = pl.concat([recorded, *_memory(trace)])
    keys = ["pid", "name", "unit"]
    names = rows.select(keys).unique(maintain_order=True).with_row_index("counter")
    numbered = rows.join(names, on=keys, nulls_equal=True, maintain_order="left")
    readings = numbered.sort("ts", maintain_order=True).select("ts", "value", "counter")
    return Counters(readings, names.drop("counter"))


def _memory(trace: Trace) -> list[pl.DataFrame]:
    totals = trace.memory_totals
    of_event = trace.events.select("ts", "pid", "device")[totals["event"]]
    rows = of_event.hstack(totals.select("device_type", *_MEMORY))
    place = (
        pl.when((pl.col("device_type") == 0) | (pl.col("device") < 0))
        .then(pl.lit("CPU"))
        .otherwise(pl.format("GPU {}", pl.col("device").fill_null(0)))
    )
    return [
        rows.drop_nulls(column).select(
            "ts",
            pl.col(column).cast(pl.Float64).alias("value"),
            "pid",
            name=pl.concat_str(place, pl.lit(f" memory {word}")),
            unit=pl.lit("bytes"),
        )
        for column, word in _MEMORY.items()
    ]
