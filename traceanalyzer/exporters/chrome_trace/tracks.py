"""Where a row is drawn: process and thread ids, their names, and lanes for what overlaps.

A viewer draws a slice on the track (pid, tid) and needs the slices of a track to nest: Perfetto
drops one that overlaps another partially. So

* device rows lie where Kineto puts them: pid is the device, tid the stream (-1 where not known);
* ids that were text are text again;
* where device rows tell their process (nsys), whose tracks nothing names, these are called
  ``GPU 0 (NVIDIA H100)`` and ``stream 7``; what belongs to a process and to none of its threads, as
  ranges that end on another one than they began on, is drawn on a track of its own, tid -1;
* stretches in which a thread was on a core lie on a track beside its own, ``(running)``;
* a slice that does not nest goes to an overflow track: a tid from 1,000,000,000 on, named like its
  own thread with ``(overlap 1)`` behind it; ``"traceanalyzer tid"`` among the arguments of its
  slices, flow points and names says where they came from;
* with several ranks in one trace, processes are numbered from 1, rank by rank, since ranks use the
  same device numbers and often the same process ids. Their names begin with the rank, and
  ``"traceanalyzer rank"`` and ``"traceanalyzer pid"`` of ``process_name`` say what they were.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, islice

import polars as pl

from traceanalyzer.exporters.chrome_trace.text import looked_up, member, members, quoted_column
from traceanalyzer.frames.nesting import nest
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_KINDS

FIRST_OVERFLOW_TID = 1_000_000_000
#: The lane of what a scheduler tells of a thread; overflow lanes lie below.
_RUNNING = 1 << 31
_NO_ID = -1
ORIGINAL_TID = "traceanalyzer tid"

PROCESS = ("rank", "pid")
THREAD = ("rank", "pid", "tid")
PLACE = ("rank", "pid", "tid", "lane")


@dataclass(frozen=True)
class Tracks:
    """The tracks of a trace; ids are JSON text, ready to be written.

    Attributes:
        of_event: rank, pid, tid and lane of each row of ``events``; lane 0 is the own track.
        places: rank, pid, tid, lane -> ``where``, the members ``"pid":…,"tid":…``, and
            ``original``, the id that an overflow track stands for, else null.
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
    """Find every row's track, name the tracks."""
    drawn = _drawn(trace)
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


def _drawn(trace: Trace) -> pl.DataFrame:
    """rank, pid and tid of the track each event is drawn on."""
    on_device = pl.col("tid").is_null()
    pid = pl.when(on_device & _is_of_device()).then("device").otherwise("pid")
    tid = pl.when(on_device).then("stream").otherwise("tid")
    drawn = trace.events.select(
        "rank",
        pid.fill_null(_NO_ID).cast(pl.Int64).alias("pid"),
        tid.fill_null(_NO_ID).alias("tid"),
        "device",
        "stream",
        synchronises=pl.col("kind") == "cuda_sync",
        on_device=on_device,
    )
    return _where_flows_say(drawn, trace.flows).select(*THREAD)


def _is_of_device() -> pl.Expr:
    """Rows without a thread that lie on a device; an allocation is one of its process."""
    on_stream = pl.col("kind").is_in(DEVICE_KINDS) | pl.col("pid").is_null()
    return pl.col("device").is_not_null() & on_stream


def _where_flows_say(drawn: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    """Streams moved to the track that flows to them name.

    The file's own id of a stream's track need not be the stream's number ("stream 7"), and an
    arrow must end where its slice is.
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
    joined = looked_up(drawn, named, queue)
    moved = pl.col("on_device") & pl.col("flow_pid").is_not_null()
    return joined.with_columns(
        pl.when(moved).then(f"flow_{name}").otherwise(name).alias(name) for name in ("pid", "tid")
    )


def _with_lanes(events: pl.DataFrame, drawn: pl.DataFrame) -> pl.DataFrame:
    """Lanes in which every slice nests exactly; a row that is no slice stays on its own track."""
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
    """Names for the tracks of rows without a thread of which the process is known.

    Returns:
        rank, pid, tid -> ``track``, its name, and ``owner``, that of the process if it is a GPU.
    """
    names = {device.id: device.name for device in trace.meta.devices if device.name}
    models = pl.lit(None, pl.String)
    if names:
        models = pl.col("device").replace_strict(names, default=None, return_dtype=pl.String)
    stream = pl.when(pl.col("stream").is_null()).then(pl.lit("no stream"))
    told = trace.events.select(
        "device",
        "stream",
        on_device=_is_of_device(),
        is_unnamed=pl.col("tid").is_null() & pl.col("pid").is_not_null(),
    )
    return (
        drawn.hstack(told)
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
    """Every thread of the trace, with what ``lanes`` says about it and its id as JSON text."""
    used = pl.concat(
        frame.select(pl.col("rank"), pl.col("pid"), pl.col("tid"))
        for frame in (trace.lanes.drop_nulls("tid"), of_event, trace.flows)
    )
    threads = _described(used.unique(maintain_order=True), trace.lanes, THREAD, "thread")
    return _called(threads, unnamed, THREAD, "track")


def _processes(trace: Trace, threads: pl.DataFrame, unnamed: pl.DataFrame) -> pl.DataFrame:
    """Every process of the trace, likewise; numbered anew where there are several ranks."""
    lanes = trace.lanes.filter(pl.col("tid").is_null())
    used = pl.concat(frame.select(*PROCESS) for frame in (lanes, threads, trace.counters))
    described = _described(used.unique(maintain_order=True), lanes, PROCESS, "process")
    owners = unnamed.drop_nulls("owner").unique(list(PROCESS), maintain_order=True)
    processes = _called(described, owners, PROCESS, "owner")
    # readings of the whole machine are no rank's
    of_ranks = processes.filter(pl.col("rank").is_not_null() | pl.col("pid").is_not_null())
    if of_ranks["rank"].n_unique() < 2:  # ids of one rank stay as they are
        return processes
    rank = pl.col("rank").cast(pl.String).fill_null("unknown")
    number = pl.int_range(1, pl.len() + 1)
    return processes.sort("rank", "sort_index", "pid", nulls_last=True).with_columns(
        original="process",
        process=number.cast(pl.String),
        sort_index=number,
        label=pl.format("rank {}: {}", rank, pl.coalesce("label", "process")),
    )


def _described(
    used: pl.DataFrame, lanes: pl.DataFrame, key: tuple[str, ...], name: str
) -> pl.DataFrame:
    """The tracks of a key with what ``lanes`` says about them and ``name``, their id in JSON."""
    told = lanes.select(*key, "label", "labels", "sort_index", "textual")
    frame = looked_up(used, told, key)
    number = pl.col(key[-1]).cast(pl.String)
    text = pl.when("textual").then(quoted_column(frame["label"])).otherwise(number)
    return frame.with_columns(text.alias(name), original=pl.lit(None, pl.String))


def _called(
    tracks: pl.DataFrame, names: pl.DataFrame, key: tuple[str, ...], name: str
) -> pl.DataFrame:
    """The tracks, those without a label called as ``names`` says."""
    joined = looked_up(tracks, names.select(*key, name), key)
    return joined.with_columns(label=pl.coalesce("label", name)).drop(name)


def _places(of_event: pl.DataFrame, threads: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """Every thread in lane 0, and behind them the overflow tracks."""
    used = of_event.filter(pl.col("lane") > 0).unique().sort(*PLACE)
    overflow = looked_up(used, threads, THREAD).with_columns(
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
    own = threads.with_columns(lane=pl.lit(0, pl.UInt32))
    both = pl.concat([own, overflow.select(own.columns)])
    where = members(member("pid", pl.col("process")), member("tid", pl.col("thread")))
    return looked_up(both, processes.select(*PROCESS, "process"), PROCESS).with_columns(where=where)


def _free_ids(used: pl.Series, number: int) -> pl.Series:
    """Thread ids for overflow tracks that no thread of the trace has."""
    taken = set(used)
    free = (tid for tid in count(FIRST_OVERFLOW_TID) if tid not in taken)
    return pl.Series(list(islice(free, number)), dtype=pl.Int64)


def _process_names(processes: pl.DataFrame) -> pl.Series:
    where = members(member("pid", pl.col("process")), pl.lit('"tid":0'))
    was = (
        pl.lit(',"traceanalyzer rank":'),
        pl.col("rank").cast(pl.String).fill_null("null"),
        pl.lit(',"traceanalyzer pid":'),
        pl.col("original"),
    )
    columns = {"name": "label", "labels": "labels", "sort_index": "sort_index"}
    return _metadata(processes, "process", where, columns, pl.concat_str(was))


def _thread_names(places: pl.DataFrame) -> pl.Series:
    was = pl.lit(f',"{ORIGINAL_TID}":') + pl.col("original")
    columns = {"name": "label", "sort_index": "sort_index"}
    return _metadata(places, "thread", pl.col("where"), columns, was)


def _metadata(
    tracks: pl.DataFrame, thing: str, where: pl.Expr, columns: Mapping[str, str], was: pl.Expr
) -> pl.Series:
    """Metadata events ``thing_name`` and so on, track by track, where there is something to say.

    ``was`` are the further members that say what a track stands for, null where it is itself.
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
