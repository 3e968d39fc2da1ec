"""Tracks of one recording: processes, threads, streams, and child tracks for overlapping slices.

* Each host process is a process of Perfetto, named after its rank. Device rows without a process
  belong to the process with most launch calls.
* Threads are threads of Perfetto. A thread has separate child tracks for asynchronous ranges,
  scheduling, allocations and samples, so that none of them covers its calls.
* Below the process, ``GPU 0 (NVIDIA H100)`` has one track per stream; projected annotations and
  synchronisation have tracks beside it.
* Marks of the profiler itself have one track of the process.
* The slices of a track of Perfetto must nest. Slices that do not are moved to child tracks,
  ``(overlap 1)`` and so on; so are slices nested deeper than Perfetto's limit, ``(deep 1)``.
"""

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from traceanalyzer.exporters.perfetto import packets
from traceanalyzer.exporters.perfetto.packets import Ids
from traceanalyzer.frames.nesting import nest
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, DEVICE_KINDS, LAUNCH_KINDS

#: What a track shows, in the order of display: of a thread, and of a stream.
_CALLS, _ASYNC, _RUNNING, _ALLOCATIONS, _SAMPLES, _PROFILER = range(6)
_WORK, _ANNOTATIONS, _SYNCHRONISATION = range(6, 9)
_OF_THREAD = ("", "async", "running", "allocations", "samples", "profiler")
_OF_STREAM = {_WORK: "", _ANNOTATIONS: " annotations", _SYNCHRONISATION: " synchronisation"}
#: Perfetto drops slices nested deeper than 512.
_DEEPEST = 500
_DEEP = 1 << 16
_KINETO = "kineto"
#: Label of host processes in Kineto, which says nothing.
_HOST_LABEL = "CPU"
#: Process and thread ids have 31 bits; invented ones begin here.
_LAST_ID, _FIRST_INVENTED = (1 << 31) - 1, 1 << 30
_PLACE = ("pid", "tid", "device", "family")


@dataclass
class Described:
    """The tracks of a rank that are described in the file.

    Attributes:
        processes: uuid of each host process, by its pid.
        pids: process id in the file, likewise.
        tids: thread ids used in each process.
        tracks: uuid of each track.
        until: end of its last recording, since 1970; None if that is not known.
    """

    processes: dict[int | None, int] = field(default_factory=dict)
    pids: dict[int | None, int] = field(default_factory=dict)
    tids: dict[int | None, set[int]] = field(default_factory=dict)
    tracks: dict[tuple[object, ...], int] = field(default_factory=dict)
    until: int | None = None


@dataclass
class Uuids:
    """Ids in a file: those of the next track, of processes, and of the tracks of each rank."""

    track: int = 0
    pids: set[int] = field(default_factory=set)
    ranks: dict[tuple[int, str | None], Described] = field(default_factory=dict)

    def next(self) -> int:
        """Return the next id of a track."""
        self.track += 1
        return self.track

    def pid(self, wanted: int | None) -> int:
        """Return a process id: the wanted one if it is free and valid."""
        pid = wanted if wanted is not None and 0 < wanted <= _LAST_ID else _FIRST_INVENTED
        while pid in self.pids:
            pid = max(pid + 1, _FIRST_INVENTED)
        self.pids.add(pid)
        return pid

    def described(self, trace: Trace) -> Described:
        """Return the tracks of the rank of a recording that it may use.

        Recordings of one rank, such as the cycles of a profiler, share their tracks. Recordings of
        the same time share the processes only: their slices may not nest.
        """
        rank, host = trace.meta.rank, trace.meta.host
        known = Described() if rank is None else self.ranks.setdefault((rank, host), Described())
        begin, until = _extent(trace)
        if known.processes and (known.until is None or begin is None or begin < known.until):
            known.tracks = {}
        known.until = until
        return known


@dataclass(frozen=True)
class Tracks:
    """The tracks of a recording.

    Attributes:
        of_event: uuid of the track of each row of ``events``.
        of_counter: uuid of each counter.
        descriptors: the packets that describe the tracks.
    """

    of_event: Ids
    of_counter: Ids
    descriptors: bytes


def _extent(trace: Trace) -> tuple[int | None, int | None]:
    """Return the first and the last moment of a recording since 1970, as far as they are known."""
    end = (pl.col("ts") + pl.col("dur").fill_null(0)).max()
    times = trace.events.select(pl.col("ts").min(), end=end).row(0)
    epoch_ns = trace.meta.epoch_ns or 0
    return times if times[0] is None else (times[0] + epoch_ns, times[1] + epoch_ns)


def lay_out(trace: Trace, counters: pl.DataFrame, title: str, uuids: Uuids) -> Tracks:
    """Assign a track to every row of ``events`` and to every counter.

    Args:
        trace: a recording of one rank.
        counters: pid, name and unit of its counters.
        title: name of the rank; names of its processes begin with it.
        uuids: ids of earlier recordings of the file.
    """
    main = _main_process(trace)
    placed = _places(trace, main)
    first, number = numbered(placed.get_columns())
    places = placed[first]
    lane = _lanes(trace.events, number)
    size = int(lane.max(initial=0)) + 1
    pairs, of_pair = np.unique(number.astype(np.int64) * size + lane, return_inverse=True)
    writer = _Descriptors(trace, title, uuids, main)
    used = places.with_row_index("place")[pairs // size].with_columns(lane=pl.Series(pairs % size))
    ordered = used.with_row_index("pair").sort("pid", "family", "device", "tid", "place", "lane")
    ids = np.zeros(len(pairs), np.uint32)
    for row in ordered.iter_rows(named=True):
        ids[row["pair"]] = writer.track(row)
    of_counter = [writer.counter(*row) for row in counters.iter_rows()]
    return Tracks(ids[of_pair], np.array(of_counter, np.uint32), b"".join(writer.descriptors))


def _main_process(trace: Trace) -> int | None:
    """Return the process with most launch calls, otherwise with most events; None without any."""
    hosts = trace.events.filter(pl.col("pid").is_not_null()).group_by("pid")
    counts = hosts.agg(launches=pl.col("kind").is_in(LAUNCH_KINDS).sum(), n=pl.len())
    ranked = counts.sort("launches", "n", "pid", descending=[True, True, False])
    return None if ranked.is_empty() else int(ranked["pid"][0])


def _places(trace: Trace, main: int | None) -> pl.DataFrame:
    """Return pid, tid (or stream), device and family of the track of each event."""
    kind = pl.col("kind")
    of_profiler = kind == "trace"
    if (trace.meta.version or "").startswith(_KINETO):
        # Kineto puts its own marks into processes named Traces, Spans and so on
        textual = trace.lanes.filter("textual", pl.col("tid").is_null())["pid"]
        of_profiler |= pl.col("pid").is_in(textual.implode())
    on_device = pl.col("device").is_not_null() & (
        kind.is_in(DEVICE_KINDS) | (pl.col("pid").is_null() & pl.col("tid").is_null())
    )
    on_stream = on_device & pl.col("tid").is_null()
    is_allocation = kind.is_in(ALLOCATOR_KINDS) | (pl.col("name").cast(pl.String) == "[memory]")
    family = (
        pl.when(on_stream & (kind == "gpu_user_annotation"))
        .then(_ANNOTATIONS)
        .when(on_stream & (kind == "cuda_sync"))
        .then(_SYNCHRONISATION)
        .when(is_allocation)
        .then(_ALLOCATIONS)
        .when(on_stream)
        .then(_WORK)
        .when(kind == "async")
        .then(_ASYNC)
        .when(kind == "sched")
        .then(_RUNNING)
        .when(kind == "sample")
        .then(_SAMPLES)
        .when(of_profiler)
        .then(_PROFILER)
        .otherwise(_CALLS)
        .cast(pl.Int8)
    )
    rows = trace.events.select("pid", "tid", "device", "stream", family=family)
    of_stream = pl.col("family") >= _WORK
    marks = pl.col("family") == _PROFILER
    pid = pl.when(~marks).then("pid")
    return rows.select(
        pid=pid.fill_null(main) if main is not None else "pid",
        tid=pl.when(of_stream).then("stream").when(~marks).then("tid"),
        device=pl.when(of_stream).then("device"),
        family="family",
    )


def _lanes(events: pl.DataFrame, place: np.ndarray) -> np.ndarray:
    """Return the child track of each event: 0 for the track itself."""
    frame = pl.DataFrame({"start": events["ts"], "end": events["ts"] + events["dur"], "at": place})
    nested = nest(frame, by=["at"], tolerance=0)
    lane = nested["lane"].fill_null(0).to_numpy().astype(np.int64)
    deep = nested["depth"].fill_null(0).to_numpy().astype(np.int64) // _DEEPEST
    return lane + deep * _DEEP


class _Descriptors:
    """Describes tracks when they are first used, parents before children."""

    def __init__(self, trace: Trace, title: str, uuids: Uuids, main: int | None) -> None:
        known = uuids.described(trace)
        self.descriptors: list[bytes] = []
        self.processes, self._pids, self._tids = known.processes, known.pids, known.tids
        self._tracks = known.tracks
        self._title, self._uuids, self._main = title, uuids, main
        self._host = trace.meta.host
        self._gpus = {one.id: one.name for one in trace.meta.devices if one.name}
        used = trace.events["device"].drop_nulls().unique().sort().to_list()
        self._used = [device for device in used if device >= 0]
        rows = trace.lanes.select("pid", "tid", "label", "labels").iter_rows()
        self._labels = {(pid, tid): (label, labels) for pid, tid, label, labels in rows}

    def process(self, pid: int | None) -> int:
        """Return the uuid of a process, described if it is new."""
        if pid not in self.processes:
            uuid = self.processes[pid] = self._uuids.next()
            self._pids[pid] = self._uuids.pid(pid)
            self._tids[pid] = {self._pids[pid]} if pid != self._pids[pid] else set()
            label, labels = self._labels.get((pid, None), (None, None))
            label = (label or "").strip()
            title = "" if label.lower().startswith(self._title.lower()) else self._title
            name = ": ".join(part for part in (title, label) if part)
            about = [self._host] if self._host else []
            if pid == self._main:
                about += [self._gpu(device) for device in self._used]
            text = " · ".join([name or f"process {pid}", *about])
            self.descriptors.append(
                packets.process(
                    uuid,
                    self._pids[pid],
                    text,
                    [labels] if labels not in (None, _HOST_LABEL) else [],
                )
            )
        return self.processes[pid]

    def counter(self, pid: int | None, name: str, unit: str) -> int:
        """Return the uuid of a counter of a process; of the main process if it is unknown."""
        parent = self.process(self._main if pid is None else pid)
        key = ("counter", parent, name, unit)
        if key not in self._tracks:
            uuid = self._tracks[key] = self._uuids.next()
            self.descriptors.append(packets.counter_track(uuid, parent, name, unit, uuid))
        return self._tracks[key]

    def _gpu(self, device: int) -> str:
        name = self._gpus.get(device)
        return f"GPU {device} ({name})" if name else f"GPU {device}"

    def track(self, row: dict[str, int | None]) -> int:
        """Return the uuid of a track of :data:`_PLACE` and a lane."""
        key = (*(row[name] for name in _PLACE), row["lane"])
        if key not in self._tracks:
            self._tracks[key] = self._new(row)
        return self._tracks[key]

    def _new(self, row: dict[str, int | None]) -> int:
        lane, family = row["lane"] or 0, row["family"] or 0
        if lane:
            parent = self.track({**row, "lane": 0})
            deep, overlap = divmod(lane, _DEEP)
            notes = [f"overlap {overlap}"] * bool(overlap) + [f"deep {deep}"] * bool(deep)
            return self._child(parent, f"{self._name(row)} ({', '.join(notes)})", lane)
        if family >= _WORK:
            order = ((row["tid"] or 0) + 1) * len(_OF_STREAM) + family - _WORK
            return self._child(self._device(row), self._name(row), order)
        if family == _CALLS:
            return self._thread(row)
        if family == _PROFILER:
            return self._child(self.process(row["pid"]), _OF_THREAD[family], _LAST_ID)
        parent = self.track({**row, "family": _CALLS})
        return self._child(parent, self._name(row), _LAST_ID - len(_OF_THREAD) + family)

    def _child(self, parent: int, name: str, order: int) -> int:
        uuid = self._uuids.next()
        order = min(max(order, 0), _LAST_ID)
        self.descriptors.append(packets.track(uuid, parent, name, order))
        return uuid

    def _device(self, row: dict[str, int | None]) -> int:
        key = ("device", row["pid"], row["device"])
        if key not in self._tracks:
            name = "device" if row["device"] is None else self._gpu(row["device"])
            self._tracks[key] = self._child(self.process(row["pid"]), name, row["device"] or 0)
        return self._tracks[key]

    def _thread(self, row: dict[str, int | None]) -> int:
        parent, tid, pid = self.process(row["pid"]), row["tid"], row["pid"]
        if tid is None:
            return self._child(parent, "no thread", _LAST_ID)
        uuid, taken = self._uuids.next(), self._tids[pid]
        known = tid if 0 < tid <= _LAST_ID and tid not in taken else _FIRST_INVENTED
        while known in taken:
            known += 1
        taken.add(known)
        name = self._name(row)
        self.descriptors.append(packets.thread(uuid, parent, self._pids[pid], known, name))
        return uuid

    def _name(self, row: dict[str, int | None]) -> str:
        family, tid = row["family"] or 0, row["tid"]
        if family >= _WORK:
            return f"{'no stream' if tid is None else f'stream {tid}'}{_OF_STREAM[family]}"
        if family == _PROFILER:
            return _OF_THREAD[family]
        label, _ = self._labels.get((row["pid"], tid), (None, None))
        thread = (label or "").strip() or ("no thread" if tid is None else f"thread {tid}")
        return f"{thread}: {_OF_THREAD[family]}" if family else thread
