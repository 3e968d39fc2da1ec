"""Tracks of rows: process and thread ids, their names, and lanes for overlapping slices.

A viewer draws a slice on the track (pid, tid) and requires the slices of a track to nest: Perfetto
drops a slice that partially overlaps another. Therefore

* device rows are placed as in Kineto: pid is the device, tid the stream (-1 if unknown);
* textual ids are written as text;
* device rows with a process (nsys) have unnamed tracks, which get the names ``GPU 0 (NVIDIA H100)``
  and ``stream 7``; rows of a process without a thread, such as ranges that end on another thread,
  get a separate track, tid -1;
* scheduling intervals of a thread get a second track, ``(running)``;
* a slice that does not nest moves to an overflow track: a tid from 1,000,000,000 on, named like the
  thread plus ``(overlap 1)``; the argument ``"traceanalyzer tid"`` of its slices, flow points and
  names is the original tid;
* with several ranks in one trace, processes are numbered from 1, rank by rank, as ranks use the
  same device numbers and often the same process ids. Their names begin with the rank, and
  ``"traceanalyzer rank"`` and ``"traceanalyzer pid"`` of ``process_name`` are the original values.
  A negative rank stands for a recording without a rank, whose processes are its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import IO

import numpy as np
import orjson
import polars as pl

from traceanalyzer.frames.nesting import nest
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_KINDS

FIRST_OVERFLOW_TID = 1_000_000_000
#: Lane of scheduling intervals; overflow lanes are smaller.
_RUNNING = 1 << 31
_NO_ID = -1
ORIGINAL_TID = "traceanalyzer tid"

PROCESS = ("rank", "pid")
THREAD = ("rank", "pid", "tid")
PLACE = ("rank", "pid", "tid", "lane")


@dataclass(frozen=True)
class Tracks:
    """The tracks of a trace; ids are JSON text.

    Attributes:
        of_event: rank, pid, tid and lane of each row of ``events``; lane 0 is the main track.
        places: rank, pid, tid, lane -> ``where``, the members ``"pid":…,"tid":…``, and
            ``original``, the original id of an overflow track, else null.
        processes: rank, pid -> ``process``, its id.
        threads: rank, pid, tid -> ``thread``, its id.
        names: the metadata events that name and order processes and threads.
    """

    of_event: pl.DataFrame
    places: pl.DataFrame
    processes: pl.DataFrame
    threads: pl.DataFrame
    names: pl.Series


def lay_out(trace: Trace) -> Tracks:
    """Assign a track to every row, and name the tracks."""
    drawn = _with_tracks(trace)
    of_event = _with_lanes(trace.events, drawn)
    unnamed = _unnamed(trace, drawn)
    threads = _threads(trace, of_event, unnamed)
    processes = _processes(trace, threads, unnamed)
    places = _places(of_event, threads, processes)
    names = pl.concat([_process_names(processes), _thread_names(places)])
    return Tracks(
        of_event,
        places.select(*PLACE, "where", "original"),
        processes.select(*PROCESS, "process"),
        threads.select(*THREAD, "thread"),
        names,
    )


def _with_tracks(trace: Trace) -> pl.DataFrame:
    """Return rank, pid and tid of the track of each event."""
    on_device = pl.col("tid").is_null()
    pid = pl.when(on_device & _is_of_device()).then("device").otherwise("pid")
    tid = pl.when(on_device).then("stream").otherwise("tid")
    drawn = trace.events.select(
        "rank", pid.fill_null(_NO_ID).cast(pl.Int64).alias("pid"),
        tid.fill_null(_NO_ID).alias("tid"), "device", "stream",
        synchronises=pl.col("kind") == "cuda_sync", on_device=on_device,
    )  # fmt: skip
    return _with_flow_tracks(drawn, trace.flows).select(*THREAD)


def _is_of_device() -> pl.Expr:
    """Match rows without a thread that belong to a device; allocations belong to their process."""
    on_stream = pl.col("kind").is_in(DEVICE_KINDS) | pl.col("pid").is_null()
    return pl.col("device").is_not_null() & on_stream


def _with_flow_tracks(drawn: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    """Move streams to the track named by flows to them.

    The id of a stream's track in the file may differ from the stream number ("stream 7"), and an
    arrow must end on the track of its slice.
    """
    queue = ["rank", "device", "stream", "synchronises"]
    points = flows.filter(pl.col("event").is_not_null()).select("event", "pid", "tid")
    of_point = drawn.select(*queue, "on_device")[points["event"]]
    named = (
        of_point.hstack(points.select(flow_pid="pid", flow_tid="tid"))
        .filter("on_device")
        .unique(queue, keep="first", maintain_order=True)
        .drop("on_device")
    )
    if named.is_empty():
        return drawn
    joined = lookup(drawn, named, queue)
    moved = pl.col("on_device") & pl.col("flow_pid").is_not_null()
    return joined.with_columns(
        pl.when(moved).then(f"flow_{name}").otherwise(name).alias(name) for name in ("pid", "tid")
    )


def _with_lanes(events: pl.DataFrame, drawn: pl.DataFrame) -> pl.DataFrame:
    """Add lanes in which every slice nests exactly; rows that are not slices stay in lane 0."""
    is_slice = pl.col("kind") != "async"
    bounds = events.select(
        start="ts",
        end=pl.when(is_slice).then(pl.col("ts") + pl.col("dur")),
        running=pl.col("kind") == "sched",
    )
    nested = nest(drawn.hstack(bounds), by=(*THREAD, "running"), tolerance=0)
    lane = pl.col("lane").fill_null(0) + pl.when("running").then(_RUNNING).otherwise(0)
    return drawn.with_columns(nested.select(lane.cast(pl.UInt32).alias("lane")))


def _unnamed(trace: Trace, drawn: pl.DataFrame) -> pl.DataFrame:
    """Return names for the tracks of rows with a process but without a thread.

    Returns:
        rank, pid, tid -> ``track``, its name, and ``owner``, the name of the process if it is a
        GPU.
    """
    names = {device.id: device.name for device in trace.meta.devices if device.name}
    models = pl.lit(None, pl.String)
    if names:
        models = pl.col("device").replace_strict(names, default=None, return_dtype=pl.String)
    stream = pl.when(pl.col("stream").is_null()).then(pl.lit("no stream"))
    rows = trace.events.select(
        "device",
        "stream",
        on_device=_is_of_device(),
        is_unnamed=pl.col("tid").is_null() & pl.col("pid").is_not_null(),
    )
    return (
        drawn.hstack(rows)
        .filter("is_unnamed")
        .unique(list(THREAD), maintain_order=True)
        .select(
            *THREAD,
            track=pl.when("on_device")
            .then(stream.otherwise(pl.format("stream {}", "stream")))
            .otherwise(pl.lit("no thread")),
            owner=pl.when("on_device").then(
                pl.coalesce(
                    pl.format("GPU {} ({})", "device", models), pl.format("GPU {}", "device")
                )
            ),
        )
    )


def _threads(trace: Trace, of_event: pl.DataFrame, unnamed: pl.DataFrame) -> pl.DataFrame:
    """Return every thread of the trace, with its data in ``lanes`` and its id as JSON text."""
    used = pl.concat(
        frame.select(pl.col("rank"), pl.col("pid"), pl.col("tid"))
        for frame in (trace.lanes.drop_nulls("tid"), of_event, trace.flows)
    )
    threads = _with_labels(used.unique(maintain_order=True), trace.lanes, THREAD, "thread")
    return _with_names(threads, unnamed, THREAD, "track")


def _processes(trace: Trace, threads: pl.DataFrame, unnamed: pl.DataFrame) -> pl.DataFrame:
    """Return every process of the trace, likewise; renumbered if there are several ranks."""
    lanes = trace.lanes.filter(pl.col("tid").is_null())
    used = pl.concat(frame.select(*PROCESS) for frame in (lanes, threads, trace.counters))
    described = _with_labels(used.unique(maintain_order=True), lanes, PROCESS, "process")
    owners = unnamed.drop_nulls("owner").unique(list(PROCESS), maintain_order=True)
    processes = _with_names(described, owners, PROCESS, "owner")
    # readings of the whole machine belong to no rank
    of_ranks = processes.filter(pl.col("rank").is_not_null() | pl.col("pid").is_not_null())
    if of_ranks["rank"].n_unique() < 2:  # ids of one rank stay as they are
        return processes
    rank = pl.col("rank").cast(pl.String).fill_null("unknown")
    title = pl.coalesce("label", "process")
    name = pl.when(pl.col("rank") < 0).then(title).otherwise(pl.format("rank {}: {}", rank, title))
    is_named = pl.col("rank").is_null() & pl.col("label").is_not_null()
    number = pl.int_range(1, pl.len() + 1)
    return processes.sort("rank", "sort_index", "pid", nulls_last=True).with_columns(
        original="process",
        process=number.cast(pl.String),
        sort_index=number,
        label=pl.when(is_named).then("label").otherwise(name),
    )


def _with_labels(
    used: pl.DataFrame, lanes: pl.DataFrame, key: tuple[str, ...], name: str
) -> pl.DataFrame:
    """Return the tracks of a key with their data in ``lanes`` and ``name``, their id in JSON."""
    rows = lanes.select(*key, "label", "labels", "sort_index", "textual").unique(
        list(key), keep="first"
    )
    frame = lookup(used, rows, key)
    number = pl.col(key[-1]).cast(pl.String)
    text = pl.when("textual").then(quoted_column(frame["label"])).otherwise(number)
    return frame.with_columns(text.alias(name), original=pl.lit(None, pl.String))


def _with_names(
    tracks: pl.DataFrame, names: pl.DataFrame, key: tuple[str, ...], name: str
) -> pl.DataFrame:
    """Set the labels of tracks without one from ``names``."""
    joined = lookup(tracks, names.select(*key, name), key)
    return joined.with_columns(label=pl.coalesce("label", name)).drop(name)


def _places(of_event: pl.DataFrame, threads: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """Return every thread in lane 0, followed by the overflow tracks."""
    used = of_event.filter(pl.col("lane") > 0).unique().sort(*PLACE)
    overflow = lookup(used, threads, THREAD).with_columns(
        original="thread",
        thread=_free_ids(threads["tid"], used.height).cast(pl.String),
        label=pl.format(
            "{} ({})",
            pl.coalesce(pl.col("label").str.strip_chars(), "thread"),
            pl.when(pl.col("lane") < _RUNNING)
            .then(pl.format("overlap {}", "lane"))
            .otherwise(pl.lit("running")),
        ),
    )
    main = threads.with_columns(lane=pl.lit(0, pl.UInt32))
    both = pl.concat([main, overflow.select(main.columns)])
    where = members(member("pid", pl.col("process")), member("tid", pl.col("thread")))
    return lookup(both, processes.select(*PROCESS, "process"), PROCESS).with_columns(where=where)


def _free_ids(used: pl.Series, number: int) -> pl.Series:
    """Return unused thread ids for overflow tracks."""
    taken = set(used)
    free = (tid for tid in count(FIRST_OVERFLOW_TID) if tid not in taken)
    return pl.Series(list(islice(free, number)), dtype=pl.Int64)


def _process_names(processes: pl.DataFrame) -> pl.Series:
    where = members(member("pid", pl.col("process")), pl.lit('"tid":0'))
    was = (
        pl.lit(',"traceanalyzer rank":'),
        pl.when(pl.col("rank") >= 0).then(pl.col("rank").cast(pl.String)).otherwise(pl.lit("null")),
        pl.lit(',"traceanalyzer pid":'),
        pl.col("original"),
    )
    columns = {"name": "label", "labels": "labels", "sort_index": "sort_index"}
    return _metadata(processes, "process", where, columns, pl.concat_str(was))


def _thread_names(places: pl.DataFrame) -> pl.Series:
    was = pl.lit(f',"{ORIGINAL_TID}":') + pl.col("original")
    columns = {"name": "label", "sort_index": "sort_index"}
    # Perfetto counts an empty name as an error; the empty id of Kineto's marks implies it
    is_empty = (pl.col("label") == "") & pl.col("where").str.contains('"tid":""', literal=True)
    named = places.with_columns(label=pl.when(~is_empty.fill_null(value=False)).then("label"))
    return _metadata(named, "thread", pl.col("where"), columns, was)


def _metadata(
    tracks: pl.DataFrame, thing: str, where: pl.Expr, columns: Mapping[str, str], was: pl.Expr
) -> pl.Series:
    """Return metadata events ``thing_name`` etc., track by track, for non-null values.

    ``was`` are additional members with the original ids, null if unchanged.
    """
    texts = tracks.with_columns(quoted_column(tracks[name]) for name in ("label", "labels"))
    events = texts.select(
        pl.concat_str(
            pl.lit(f'{{"ph":"M","name":"{thing}_{what}",'),
            where,
            pl.lit(f',"args":{{"{what}":'),
            column,
            was.fill_null(""),
            pl.lit("}}"),
        ).alias(what)
        for what, column in columns.items()
    )
    return events.select(pl.concat_list(pl.all())).to_series().explode().drop_nulls()


def lookup(rows: pl.DataFrame, table: pl.DataFrame, on: Sequence[str]) -> pl.DataFrame:
    """Join the rows, in their order, with a table; null is a key like any other."""
    return rows.join(table, on=on, how="left", nulls_equal=True, maintain_order="left")


def microseconds(ns: pl.Expr) -> pl.Expr:
    """Format nanoseconds as microseconds with three decimals, exact for every Int64."""
    return (ns.cast(pl.Decimal(38, 3)) / 1000).cast(pl.String)


def member(key: str, value: pl.Expr) -> pl.Expr:
    """Format ``"key":value`` from JSON values; null for null."""
    return pl.lit(f"{quoted(key)}:") + value.cast(pl.String)


def members(*expressions: pl.Expr) -> pl.Expr:
    """Join members with commas, without nulls; empty if all are null."""
    return pl.concat_str(expressions, separator=",", ignore_nulls=True)


def quoted(text: str) -> str:
    """Format a text as a JSON string."""
    return orjson.dumps(text).decode()


def quoted_column(column: pl.Series) -> pl.Expr:
    """Return the column of that name as JSON strings; each distinct text is escaped once."""
    distinct = column.drop_nulls().unique()
    texts = pl.Series([quoted(text) for text in distinct.cast(pl.String)], dtype=pl.String)
    return pl.col(column.name).replace_strict(distinct, texts, default=None, return_dtype=pl.String)


class Items:
    """Writes the items of a JSON array or object to a file, one per line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._separator = b"\n"

    def write(self, items: pl.Series) -> None:
        """Write a column of items, without nulls."""
        lines = (",\n" + items.drop_nulls()).to_arrow(compat_level=pl.CompatLevel.oldest())
        if len(lines) == 0:
            return
        # the texts of an Arrow column are contiguous in one buffer
        _, offsets, data = lines.buffers()
        ends = np.frombuffer(offsets, np.int64)[lines.offset :]
        self._file.write(self._separator)
        self._file.write(memoryview(data)[ends[0] + 2 : ends[len(lines)]])
        self._separator = b",\n"
