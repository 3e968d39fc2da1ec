"""Chrome Trace Event JSON in Kineto's layout, for Perfetto, chrome://tracing and this package.

Writes the metadata as top-level members, then ``traceEvents``, one event per line, with exact times
in microseconds with three decimals. ``tracks`` assigns rows to tracks, ``events`` formats tables as
events. Read back by ``traceanalyzer.parsers.chrome_trace``, a trace of one rank has equal tables; a
trace of several ranks is for viewing, with new process ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import IO, Any

import msgspec
import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MissingData
from traceanalyzer.exporters.chrome_trace import events
from traceanalyzer.exporters.chrome_trace.tracks import Items, lay_out
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Meta, Trace, concat
from traceanalyzer.vocabulary import MERGED

_VERSION = "kineto schema "
#: isal has levels 0 to 3; 1 is as fast as 0, and its output is 10 % larger than that of 3.
_GZIP_LEVEL = 1


def write_chrome_trace(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as Chrome JSON.

    Written: events with their kernels, collectives and memory, flows, counters, lanes, stacks and
    metadata. Not written: issues, segments and blocks, counter readings that are not finite,
    source lines of stacks.

    Args:
        trace: the trace; read it with the column ``args`` to keep unknown arguments.
        file: a binary file; need not be seekable.

    Raises:
        MissingData: the trace has no times, as collapsed stacks have none.
    """
    if trace.events["ts"].null_count():
        raise MissingData(
            f"{trace.meta.path}: the events have no timestamps, which a Chrome trace requires"
        )
    tracks = lay_out(trace)
    top = _header_members(trace.sources)
    file.write(f'{{{top}{"," * bool(top)}\n"traceEvents":['.encode())
    items = Items(file)
    items.write(tracks.names)
    for texts in events.slice_texts(trace, tracks):
        items.write(texts)
    for texts in events.flow_texts(trace, tracks):
        items.write(texts)
    items.write(events.counter_texts(trace, tracks))
    file.write(b"\n]")
    if trace.stacks.height:
        file.write(b',\n"stackFrames":{')
        Items(file).write(events.frame_texts(trace))
        file.write(b'\n},\n"samples":[')
        Items(file).write(events.sample_texts(trace, tracks))
        file.write(b"\n]")
    file.write(b"}\n")


def write_chrome_trace_gz(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as gzipped Chrome JSON; the same trace gives the same bytes.

    Raises:
        MissingData: the trace has no times.
    """
    from isal import igzip

    packed: Any = igzip.IGzipFile("", "wb", _GZIP_LEVEL, fileobj=file, mtime=0)  # type: ignore[no-untyped-call]
    with packed:
        write_chrome_trace(trace, packed)


# --- top-level members: the metadata -------------------------------------------------------------


def _header_members(sources: Sequence[Meta]) -> str:
    """Return Kineto's top-level members and other metadata, as JSON text without braces.

    For a trace of several files, only values that are equal in all of them.
    """
    meta = _in_common(sources)
    extra: dict[str, Any] = msgspec.json.decode(meta.extra) if meta.extra else {}
    job = {"backend": meta.backend, "rank": meta.rank, "world_size": meta.world_size}
    standard = {
        "schemaVersion": _schema_version(meta.version),
        "deviceProperties": [
            _known({"id": device.id, "name": device.name, "totalGlobalMem": device.total_bytes})
            for device in meta.devices
        ],
        "distributedInfo": {**extra.pop("distributedInfo", {}), **_known(job)},
        "baseTimeNanoseconds": meta.epoch_ns,
        "host_name": meta.host,
    }
    known = {key: value for key, value in standard.items() if value not in (None, {}, [])}
    return msgspec.json.encode({**known, **extra}).decode()[1:-1]


def _in_common(sources: Sequence[Meta]) -> Meta:
    first = sources[0]
    differing: dict[str, Any] = {
        f.name: f.default
        for f in fields(Meta)
        if f.name not in ("path", "format")
        and any(getattr(meta, f.name) != getattr(first, f.name) for meta in sources)
    }
    return replace(first, **differing)


def _schema_version(version: str | None) -> int | str | None:
    if version is None or not version.startswith(_VERSION):
        return None
    number = version.removeprefix(_VERSION)
    return int(number) if number.isdecimal() else number


def _known(members: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}


#: Process id and rank of the group of tracks that belong to no recording; it is the first one.
_GROUP_PID, _GROUP_RANK = 1, -(1 << 31)
_FORMAT = "chrome-trace"
#: Column of events: number of the arrow to other recordings.
_MATCH = "_match"
_FIXED = ("group", "track", "place", "ts", "dur", "name", "category")


@dataclass
class Kept:
    """A recording that is written later; see :class:`~..perfetto.writer.Written`."""

    sequence: int
    start_ns: int
    trace: Trace
    open_flows: Ints
    slices: int
    readings: int


class JsonWriter:
    """Collects recordings, and writes them to a binary file when it is closed."""

    def __init__(self, file: IO[bytes], *, packed: bool) -> None:
        self._file, self._packed = file, packed
        self._kept: list[Kept] = []

    def add(self, trace: Trace, title: str, open_flows: Ints | None = None) -> Kept:
        """Add a recording of one rank; a recording without one gets the title as process name."""
        if trace.meta.rank is None and title:
            is_process = pl.col("tid").is_null()
            label = pl.concat_str(pl.lit(title), "label", separator=": ", ignore_nulls=True)
            lanes = trace.lanes.with_columns(
                label=pl.when(is_process).then(label).otherwise("label")
            )
            trace = replace(trace, lanes=lanes)
        opened = np.zeros(0, np.int64) if open_flows is None else open_flows
        start = trace.events["ts"].min()
        return self._keep(trace, start if isinstance(start, int) else 0, opened)

    def add_group(self, name: str, rows: pl.DataFrame, open_flows: Ints) -> Kept:
        """Add tracks that belong to no recording; columns as for the Perfetto writer."""
        levels = ("group", "track", "place")
        first, number = numbered([rows[level] for level in levels])
        label = pl.concat_str(levels, separator=": ", ignore_nulls=True)
        labels = rows.select(label).to_series()[first]
        lanes: list[tuple[Any, ...]] = [(None, _GROUP_PID, None, name, None, None, False)]
        lanes += [(None, _GROUP_PID, i + 1, one, None, i, False) for i, one in enumerate(labels)]
        arguments = rows.drop(_FIXED)
        texts = [
            msgspec.json.encode({key: one for key, one in row.items() if one is not None}).decode()
            for row in arguments.iter_rows(named=True)
        ]
        values = {
            "ts": rows["ts"],
            "dur": rows["dur"],
            "kind": pl.Series(["other"] * rows.height),
            "category": rows["category"],
            "name": rows["name"],
            "pid": pl.Series([_GROUP_PID] * rows.height),
            "tid": pl.Series(number) + 1,
            "args": pl.Series(texts, dtype=pl.String),
        }
        empty = schema.empty("events").with_columns(args=pl.lit(None, pl.String))
        events = pl.DataFrame(values).cast({n: empty.schema[n] for n in values})
        trace = Trace(
            (Meta(path=name, format=_FORMAT),),
            events=pl.concat([empty, events], how="diagonal"),
            lanes=pl.DataFrame(lanes, schema=schema.types("lanes"), orient="row"),
        )
        return self._keep(trace.with_rank(_GROUP_RANK), 0, open_flows)

    def _keep(self, trace: Trace, start_ns: int, opened: Ints) -> Kept:
        counts = trace.events.height, trace.counters.height
        self._kept.append(Kept(len(self._kept) + 1, start_ns, trace, opened, *counts))
        return self._kept[-1]

    def close(
        self,
        shifts: Mapping[int, int],
        matches: Mapping[tuple[int, int], int],
        epoch_ns: int | None,
    ) -> None:
        """Write the file; arguments as for the Perfetto writer."""
        traces = []
        for one in self._kept:
            shift = shifts[one.sequence]
            sources = tuple(replace(meta, epoch_ns=shift) for meta in one.trace.sources)
            trace = _with_matches(one, matches)
            if trace.meta.rank is None:  # other recordings may have the same process ids
                trace = trace.with_rank(one.sequence - len(self._kept) - 1)
            traces.append(replace(trace, sources=sources))
        merged = _with_arrows(concat(traces))
        origin = min(shifts[one.sequence] for one in self._kept)
        extra = msgspec.json.encode({MERGED: 1}).decode()
        absolute = None if epoch_ns is None else epoch_ns + origin
        about = (replace(merged.meta, extra=extra, epoch_ns=absolute, rank=None, world_size=None),)
        merged = replace(merged, sources=about)
        write = write_chrome_trace_gz if self._packed else write_chrome_trace
        write(merged, self._file)


def _with_matches(one: Kept, matches: Mapping[tuple[int, int], int]) -> Trace:
    """Return the trace with the number of the arrow to other recordings of each event."""
    numbers = [(row, matches.get((one.sequence, row))) for row in one.open_flows.tolist()]
    rows = pl.DataFrame(numbers, schema={"event": pl.UInt32, _MATCH: pl.UInt32}, orient="row")
    events = one.trace.events.with_row_index("event")
    joined = events.join(rows, on="event", how="left", maintain_order="left").drop("event")
    return replace(one.trace, events=joined)


def _with_arrows(trace: Trace) -> Trace:
    """Return the trace with the points of these arrows."""
    rows = trace.events.with_row_index("event").drop_nulls(_MATCH)
    rows = rows.filter(pl.len().over(_MATCH) > 1)
    top = trace.flows["flow"].max()
    first = top + 1 if isinstance(top, int) else 0
    place = pl.int_range(pl.len()).over(_MATCH)
    on_device = pl.col("tid").is_null()
    of_group = pl.when(pl.col("rank") == _GROUP_RANK).then(pl.col("category").cast(pl.String))
    name = of_group.otherwise(pl.lit("collective"))
    phase = pl.when(place == 0).then(pl.lit("start"))
    points = rows.select(
        "ts",
        phase=phase.when(place == pl.len().over(_MATCH) - 1)
        .then(pl.lit("end"))
        .otherwise(pl.lit("step")),
        category=name,
        name=name,
        flow=pl.col(_MATCH) + first,
        rank="rank",
        pid=pl.when(on_device).then("device").otherwise("pid"),
        tid=pl.when(on_device).then("stream").otherwise("tid"),
        event="event",
    ).drop_nulls(["pid", "tid"])
    flows = pl.concat([trace.flows, points.cast(trace.flows.schema)])
    return replace(trace, events=trace.events.drop(_MATCH), flows=flows)
