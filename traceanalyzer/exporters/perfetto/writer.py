"""Write recordings to one Perfetto trace, one after another.

Each recording is a packet sequence with a clock of its own, whose 0 is its first moment. The offset
of the clocks, and the ids of arrows between recordings, follow from comparing all of them: they are
filled in at the end by :meth:`PerfettoWriter.close`. So each recording is read once, and one is in
memory at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import polars as pl

from traceanalyzer.exporters.perfetto import packets
from traceanalyzer.exporters.perfetto.packets import Ids, Ints, SliceEncoder, Slices
from traceanalyzer.exporters.perfetto.tracks import Uuids, lay_out
from traceanalyzer.frames import linking
from traceanalyzer.frames.nesting import ROOT, nest
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Trace
from traceanalyzer.units import natural
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


def _slices(trace: Trace, tracks: Ids, start_ns: int, open_flows: Ints, first_flow: int) -> Slices:
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
        flows=_arrows(trace, first_flow),
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
    return frame["value"].gather(pl.Series(place).replace(frame.height, None))


def _arrows(trace: Trace, first: int) -> pl.DataFrame:
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


def _counters(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the counters of the file, and the allocator's totals; finite readings only.

    Returns:
        Readings: ts, value, and counter (row of the other table), sorted by time; name, unit and
        pid (null: of the rank) of each counter.
    """
    name = pl.concat_str("name", "series", separator=" ", ignore_nulls=True)
    recorded = trace.counters.select(
        "ts", "value", "pid", name=name, unit=pl.lit("", pl.String)
    ).filter(pl.col("value").is_finite())
    rows = pl.concat([recorded, *_memory(trace)])
    keys = ["pid", "name", "unit"]
    names = rows.select(keys).unique(maintain_order=True).with_row_index("counter")
    numbered = rows.join(names, on=keys, nulls_equal=True, maintain_order="left")
    readings = numbered.sort("ts", maintain_order=True).select("ts", "value", "counter")
    return readings, names.drop("counter")


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


#: Ids of arrows: bits for the number of the recording begin here; those between recordings.
_OF_SEQUENCE, _BETWEEN = 40, 1 << 62
#: Columns of a group that are no arguments.
_LEVELS = ("group", "track", "place")
_OF_GROUP = (*_LEVELS, "ts", "dur", "name", "category")


@dataclass
class Written:
    """A recording in the file.

    Attributes:
        sequence: its packet sequence, from 1.
        start_ns: time on the clock of the recording that is 0 on that of the sequence.
        snapshot_at: offset of the packet with its clock.
        open_flows: offset of each open flow id, by row of ``events``.
        slices: number of slices and instants.
        readings: number of readings of counters.
        arrows: number of arrows.
    """

    sequence: int
    start_ns: int
    snapshot_at: int
    open_flows: dict[int, int] = field(default_factory=dict)
    slices: int = 0
    readings: int = 0
    arrows: int = 0


class PerfettoWriter:
    """Writes recordings to an empty, seekable binary file.

    Attributes:
        written: the recordings, in order.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.written: list[Written] = []
        self._file = file
        self._uuids = Uuids()

    def add(self, trace: Trace, title: str, open_flows: Ints | None = None) -> Written:
        """Write a recording of one rank.

        Args:
            trace: the recording.
            title: name of the rank, for example ``rank 3``.
            open_flows: sorted rows of ``events`` that may get an arrow to another recording.
        """
        times = (trace.events["ts"].min(), trace.counters["ts"].min())
        start_ns = min((time for time in times if isinstance(time, int)), default=0)
        written = self._begin(start_ns)
        readings, names = _counters(trace)
        tracks = lay_out(trace, names, title, self._uuids)
        self._file.write(tracks.descriptors)
        opened = np.zeros(0, np.int64) if open_flows is None else open_flows
        first_flow = written.sequence << _OF_SEQUENCE
        rows = _slices(trace, tracks.of_event, start_ns, opened, first_flow)
        written.arrows = rows.flows.height - rows.flows["flow"].n_unique()
        self._write_slices(rows, written)
        self._write_counters(readings, tracks.of_counter, written)
        return written

    def add_group(self, name: str, rows: pl.DataFrame, open_flows: Ints) -> Written:
        """Write a group of tracks that belong to no process.

        Args:
            name: name of the group.
            rows: ``group``, ``track`` and ``place`` (names of the tracks from the top down; place
                may be null), ts, dur, name, category, and columns that become arguments; sorted by
                ts, then dur descending. Times are those of the common axis.
            open_flows: sorted rows with an arrow.
        """
        start = rows["ts"].min()
        written = self._begin(start if isinstance(start, int) else 0)
        ts = rows["ts"].to_numpy() - written.start_ns
        slices = Slices(
            ts=ts,
            end=ts + rows["dur"].to_numpy(),
            track=self._group_tracks(name, rows),
            name=rows["name"],
            category=rows["category"],
            annotations={
                one.name: one for one in rows.drop(_OF_GROUP) if one.null_count() < one.len()
            },
            open_flows=open_flows,
        )
        self._write_slices(slices, written)
        return written

    def _group_tracks(self, name: str, rows: pl.DataFrame) -> Ids:
        """Describe the tracks of a group, and return the uuid of each row."""
        first, place = numbered([rows[level] for level in _LEVELS])
        named = rows.select(_LEVELS)[first]
        bounds = pl.DataFrame(
            {"start": rows["ts"], "end": rows["ts"] + rows["dur"], "place": place}
        )
        lane = nest(bounds, by=["place"], tolerance=0)["lane"].fill_null(0).to_numpy()
        size = int(lane.max(initial=0)) + 1
        pairs, of_pair = np.unique(place.astype(np.int64) * size + lane, return_inverse=True)
        top = self._uuids.next()
        self._file.write(packets.track(top, None, name))
        parents: dict[tuple[str, ...], int] = {}

        def described(parent: int, *path: str) -> int:
            if path not in parents:
                parents[path] = uuid = self._uuids.next()
                self._file.write(packets.track(uuid, parent, path[-1], uuid))
            return parents[path]

        ids = np.zeros(pairs.size, np.uint32)
        names = named[pl.Series(pairs // size)].with_columns(pair=np.arange(pairs.size))
        order = {group: i for i, group in enumerate(rows["group"].unique().sort())}
        keyed = sorted(
            names.iter_rows(),
            key=lambda row: (order[row[0]], natural(row[1]), natural(row[2] or ""), row[3]),
        )
        for *levels, pair in keyed:
            path: list[str] = []
            uuid = top
            for level in filter(None, levels):
                path.append(level)
                uuid = described(uuid, *path)
            if overlap := int(pairs[pair] % size):
                uuid = described(uuid, *path, f"{path[-1]} (overlap {overlap})")
            ids[pair] = uuid
        result: Ids = ids[of_pair]
        return result

    def close(
        self,
        shifts: Mapping[int, int],
        matches: Mapping[tuple[int, int], int],
        epoch_ns: int | None,
    ) -> None:
        """Set the clocks, and the arrows between recordings.

        Args:
            shifts: by sequence, what is added to the times of the recording.
            matches: by sequence and row of ``events``, the number of the arrow.
            epoch_ns: absolute time of 0, or None.
        """
        moments = [shifts[one.sequence] + one.start_ns for one in self.written]
        origin = min(moments, default=0)
        # times of the trace's clock must not decrease from one snapshot to the next
        latest = max(moments, default=0) - origin
        for one, moment in zip(self.written, moments, strict=True):
            common = latest + one.sequence
            of_sequence = common - (moment - origin)
            self._replace(one.snapshot_at, self._snapshot(one.sequence, of_sequence, common))
            for row, at in one.open_flows.items():
                match = matches.get((one.sequence, row))
                if match is not None:
                    self._replace(at, packets.flow_id(_BETWEEN + match))
        self._file.seek(0, 2)
        if epoch_ns is not None and epoch_ns + origin > 0:
            common = latest + len(self.written) + 1
            absolute = (packets.REALTIME, epoch_ns + origin + common)
            self._file.write(packets.clocks(1, (packets.BOOTTIME, common), absolute))

    def _begin(self, start_ns: int) -> Written:
        written = Written(len(self.written) + 1, start_ns, self._file.tell())
        self.written.append(written)
        self._file.write(self._snapshot(written.sequence, 0, 0))
        return written

    def _snapshot(self, sequence: int, of_sequence: int, common: int) -> bytes:
        clock = packets.clock_id(sequence)
        return packets.clocks(sequence, (clock, of_sequence), (packets.BOOTTIME, common))

    def _replace(self, at: int, data: bytes) -> None:
        self._file.seek(at)
        self._file.write(data)

    def _write_slices(self, slices: Slices, written: Written) -> None:
        encoder = SliceEncoder(written.sequence, slices)
        self._file.write(encoder.start())
        first = self._file.tell()
        for some in encoder.packets():
            self._file.write(some)
        written.slices = slices.ts.size
        written.open_flows = {row: first + at for row, at in encoder.open_flows}

    def _write_counters(self, readings: pl.DataFrame, uuids: Ids, written: Written) -> None:
        encoded = packets.counter_packets(
            written.sequence,
            readings["ts"].to_numpy() - written.start_ns,
            uuids[readings["counter"].to_numpy()],
            readings["value"].to_numpy(),
        )
        for some in encoded:
            self._file.write(some)
        written.readings = readings.height
