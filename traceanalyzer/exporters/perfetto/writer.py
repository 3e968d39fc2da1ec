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

from traceanalyzer.exporters.perfetto import events, packets
from traceanalyzer.exporters.perfetto.packets import Ids, Ints, SliceEncoder, Slices
from traceanalyzer.exporters.perfetto.tracks import Uuids, lay_out
from traceanalyzer.frames.nesting import nest
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Trace
from traceanalyzer.units import natural

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
        counters = events.counters(trace)
        tracks = lay_out(trace, counters.names, title, self._uuids)
        self._file.write(tracks.descriptors)
        opened = np.zeros(0, np.int64) if open_flows is None else open_flows
        first_flow = written.sequence << _OF_SEQUENCE
        rows = events.slices(trace, tracks.of_event, start_ns, opened, first_flow)
        written.arrows = rows.flows.height - rows.flows["flow"].n_unique()
        self._write_slices(rows, written)
        self._write_counters(counters, tracks.of_counter, written)
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

    def _write_counters(self, counters: events.Counters, uuids: Ids, written: Written) -> None:
        readings = counters.readings
        encoded = packets.counter_packets(
            written.sequence,
            readings["ts"].to_numpy() - written.start_ns,
            uuids[readings["counter"].to_numpy()],
            readings["value"].to_numpy(),
        )
        for some in encoded:
            self._file.write(some)
        written.readings = readings.height
