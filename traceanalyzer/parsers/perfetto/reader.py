"""Read a Perfetto trace into the tables of a trace, through the parser of Chrome's JSON."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from traceanalyzer.errors import MalformedInput, UnreadableFile
from traceanalyzer.machine import executor, threads
from traceanalyzer.parsers.chrome_trace import reader as chrome_trace
from traceanalyzer.parsers.chrome_trace.arrays import process
from traceanalyzer.parsers.chrome_trace.columns import INPUTS, Batch, Collected, Flows, Issues
from traceanalyzer.parsers.chrome_trace.decode import Args
from traceanalyzer.parsers.chrome_trace.points import may_communicate
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.perfetto import slices, state, wire
from traceanalyzer.parsers.perfetto.slices import BEGIN, END, pair
from traceanalyzer.parsers.perfetto.wire import INSTANT, NULL, Field, Ints
from traceanalyzer.parsers.source import Source
from traceanalyzer.schema import LAST_EPOCH_NS
from traceanalyzer.trace import Trace, sort_events

_INSTANT, _COUNTER = 3, 4
_COMPRESSED = 50
#: Events passed on at once.
_ROWS = 1 << 14
#: A file is read as one block, a compressed one in steps of at most this size: slices may cross all
#: of it.
_WHOLE, _STEP = 1 << 62, 1 << 24
#: A compressed packet may become this much larger than the file, and at least this large.
_RATIO, _SMALL = 64, 1 << 26
#: Category that an argument implies: PyTorch's first writer gave none.
_IMPLIED = {
    b"registers per thread": b'"kernel"',
    b"copy kind": b'"gpu_memcpy"',
    b"memory kind": b'"gpu_memset"',
    b"cuda_sync_kind": b'"cuda_sync"',
    b"cbid": b'"cuda_runtime"',
}
#: Arguments that become columns; all others are needed for the column ``args`` only.
_READ = frozenset(name.encode() for name in Args.__struct_encode_fields__)
#: Inputs of operators, by far the longest arguments: read if they are selected, and for the size
#: of collectives.
_INPUTS = frozenset((b"Input Dims", b"Input type", b"Concrete Inputs"))
_XLA = ("/device:", "/host:")

Columns = dict[str, Ints]


def parse(source: Source, selection: Selection, progress: Progress | None) -> Trace:
    """Read one trace.

    Raises:
        MalformedInput: the file has no packet.
        UnreadableFile: the file cannot be read, or the compiled part is not installed.
    """
    if not wire.is_compiled():
        raise UnreadableFile(
            source.path,
            "reading Perfetto traces needs the compiled part of traceanalyzer, which is missing",
            hint="install a wheel, or a C compiler and reinstall",
        )
    collected = Collected()
    data, packets = _content(source, progress, collected.issues)
    if not len(packets["at"]):
        raise MalformedInput(
            source.path, "has no packet of a Perfetto trace", hint="was the export complete?"
        )
    recording = _Recording(data, packets, collected)
    reading = selection
    is_xla = any(
        one.process is not None and (one.process[1] or "").startswith(_XLA)
        for one in recording.described.tracks.values()
    )
    if is_xla:
        from traceanalyzer.parsers.chrome_trace import xla

        reading = xla.full_selection(selection)
    recording.read(reading)
    metadata: dict[str, Any] = {}
    epoch = state.epoch_ns(recording.described)
    if epoch is not None and 0 <= epoch <= LAST_EPOCH_NS:
        metadata["baseTimeNanoseconds"] = epoch
    trace = chrome_trace.trace_of(source, reading, metadata, collected)
    trace = replace(trace, sources=tuple(replace(m, format="perfetto") for m in trace.sources))
    if is_xla:
        trace = xla.with_device_work(trace, selection)
    return sort_events(trace) if is_xla else trace


def _content(
    source: Source, progress: Progress | None, issues: Issues
) -> tuple[memoryview, Columns]:
    """Return the bytes of the trace, with compressed packets in place, and its packets."""
    # in one piece if it can be: joining pieces takes as long as reading them
    step = min(_STEP, source.size + 1) if source.compression else source.size + 1
    data = memoryview(next(source.blocks(_WHOLE, progress, step), b""))
    packets, end = wire.packets(data)
    if end < len(data):
        issues.note("truncated", end)
    parts, done = [], 0
    room = max(_SMALL, _RATIO * source.size)
    for at, length, one in _compressed(data, packets):
        parts.append(data[done : _begin(data, at)])
        unpacked = _inflated(data[one.at : one.at + one.value], room, issues, at)
        room -= len(unpacked)
        parts.append(memoryview(unpacked))
        done = at + length
    if parts:
        data = memoryview(b"".join([*parts, data[done:end]]))
        packets, _ = wire.packets(data)
        for _ in _compressed(data, packets):  # within each other: Perfetto writes none
            issues.note("bad-packet", -1)
    issues.lose("bad-packet", int(((packets["kind"] & wire.IS_BAD) > 0).sum()))
    return data, packets


def _compressed(data: memoryview, packets: Columns) -> Iterator[tuple[int, int, Field]]:
    """Yield place and length of the packets with compressed ones, and that field."""
    for row in np.flatnonzero(packets["kind"] & wire.IS_STATE).tolist():
        at, length = int(packets["at"][row]), int(packets["length"][row])
        for one in wire.whole_fields(data, at, at + length):
            if one.number == _COMPRESSED and one.type == wire.DELIMITED:
                yield at, length, one


def _begin(data: memoryview, at: int) -> int:
    """Return the offset of the tag before the content of a packet; its length may be padded."""
    at -= 2
    while data[at] & 0x80:
        at -= 1
    return at


def _inflated(data: memoryview, room: int, issues: Issues, at: int) -> bytes:
    """Return the packets in compressed ones, as far as they can be read."""
    inflater = zlib.decompressobj()
    try:
        unpacked = inflater.decompress(data, max(room, 1))
    except zlib.error:
        issues.note("bad-packet", at)
        return b""
    if not inflater.eof:
        issues.note("bad-packet", at)
        _, end = wire.packets(memoryview(unpacked))
        return unpacked[:end]
    return unpacked


def _without_inputs(state: wire.State, selection: Selection) -> wire.State:
    """Return texts with the names of the events whose inputs are not read."""
    are_selected = not selection.columns.isdisjoint(INPUTS)
    if are_selected and not selection.inputs_of:
        return state
    read = {wire.quoted(name) for name in selection.inputs_of} if are_selected else set()
    no_inputs = {
        id_: b""
        for id_, name in state.names.items()
        if not (name in read or may_communicate(name.decode()))
    }
    return state._replace(no_inputs=no_inputs)


class _Recording:
    """The packets of a file, read into the columns of the Chrome parser."""

    def __init__(self, data: memoryview, packets: Columns, collected: Collected) -> None:
        self.data, self.packets, self.collected = data, packets, collected
        kind, sequence = packets["kind"], packets["sequence"]
        self.generation = state.generations(sequence, packets["flags"])
        self.described = state.describe(data, self._state_rows())
        self.only_process = slices.only_process(self.described)
        keys, self.state_of = wire.numbered(sequence << 31 | self.generation)
        self.keys = [(key >> 31, key & (1 << 31) - 1) for key in keys.tolist()]
        # resets without texts share one state: there may be one in each packet
        self.states = [state.new_state(), *self.described.states.values()]
        numbers = {key: i for i, key in enumerate(self.described.states, 1)}
        self.state_number = np.array([numbers.get(key, 0) for key in self.keys], np.int64)
        collected.issues.lose("unknown-packet", int((kind == wire.IS_OTHER).sum()))
        self.ts = self._times()
        self.track = self._tracks()

    def _state_rows(self) -> Iterator[tuple[int, ...]]:
        """Yield row, place, length, sequence and generation of the packets that describe others."""
        packets = self.packets
        columns = (packets["at"], packets["length"], packets["sequence"], self.generation)
        of_state = np.flatnonzero(packets["kind"] & wire.IS_STATE)
        for low in range(0, len(of_state), _ROWS):
            some = of_state[low : low + _ROWS]
            yield from zip(some.tolist(), *(c[some].tolist() for c in columns), strict=True)

    def _by_key(self, attribute: str, default: int) -> Ints:
        values = [getattr(self.described.defaults.get(key), attribute, None) for key in self.keys]
        filled = [default if value is None else wire.signed(value) for value in values]
        return np.array(filled, np.int64)[self.state_of]

    def _times(self) -> Ints:
        clock = self.packets["clock"]
        clock = np.where(clock == NULL, self._by_key("clock", self.described.primary), clock)
        ts, unknown = state.on_trace_clock(
            self.described, self.packets["ts"], clock, self.packets["sequence"]
        )
        timed = unknown[(self.packets["kind"][unknown] & wire.IS_EVENT) > 0]
        self.collected.issues.lose("unknown-clock", len(timed))
        return ts

    def _tracks(self) -> Ints:
        track = self.packets["track"]
        return np.where(track == NULL, self._by_key("track", 0), track)

    def read(self, selection: Selection) -> None:
        """Read all events into the columns."""
        issues, kind = self.collected.issues, self.packets["kind"]
        good = ((kind & wire.IS_EVENT) > 0) & ((kind & wire.IS_BAD) == 0)
        timeless = good & (self.ts == NULL)
        issues.lose("no-time", int(timeless.sum()))
        events = np.flatnonzero(good & ~timeless)
        type_ = self.packets["type"][events]
        legacy = (type_ < BEGIN) | (type_ > _COUNTER)
        issues.lose("unknown-phase", int(legacy.sum()))
        paired = events[(type_ == BEGIN) | (type_ == END)]
        uuids, track = wire.numbered(self.track[paired])
        track = track.astype(np.min_scalar_type(len(uuids)))  # NumPy sorts small integers faster
        pairs = pair(self.ts[paired], track, self.packets["type"][paired])
        issues.lose("unmatched-end", pairs.unmatched)
        begin = paired[pairs.begin]
        end = np.where(pairs.end < 0, -1, paired[pairs.end])
        instants = events[type_ == _INSTANT]
        rows = np.concatenate([begin, instants])
        ends = np.concatenate([end, np.full(len(instants), -1)])
        order = np.argsort(rows, kind="stable")
        self._slices(rows[order], ends[order], selection)
        if selection.wants("counter", None):
            self._counters(events[type_ == _COUNTER], events)
        self.collected.metadata.extend(slices.names(self.described))

    def _slices(self, rows: Ints, ends: Ints, selection: Selection) -> None:
        """Read slices and instants: the packets of their begin, and of their end or -1."""
        uuids, place = wire.numbered(self.track[rows])
        places = [
            slices.place_of(self.described, uuid % (1 << 64), self.only_process)
            for uuid in uuids.tolist()
        ]
        if len(rows):
            self._collect(rows, ends, place, places, selection)
        if self.described.stages:
            self._stages(self._table(rows, ends, place)[:, :2], selection)
        with_flows = np.flatnonzero(self.packets["kind"][rows] & wire.HAS_FLOWS)
        if len(with_flows) and selection.wants("flow", None):
            table = self._table(rows[with_flows], ends[with_flows], place[with_flows])
            self._flows(table, places)

    def _table(self, rows: Ints, ends: Ints, place: Ints) -> Ints:
        """Return the columns :data:`wire.ROW` of slices and instants."""
        packets, ts = self.packets, self.ts
        has_end = ends >= 0
        is_instant = packets["type"][rows] == _INSTANT
        start = ts[rows]
        columns = (
            start,
            np.where(has_end, ts[ends] - start, np.where(is_instant, INSTANT, NULL)),
            packets["event"][rows],
            packets["event_length"][rows],
            np.where(has_end, packets["event"][ends], 0),
            np.where(has_end, packets["event_length"][ends], 0),
            place,
            self.state_number[self.state_of[rows]],
        )
        return np.stack(columns, axis=1)

    def _collect(
        self, rows: Ints, ends: Ints, place: Ints, places: list[slices.Place], selection: Selection
    ) -> None:
        """Write events as JSON and read that, in threads."""
        wanted = frozenset() if "args" in selection.columns else _READ
        of_track = [(one.as_json(), one.args) for one in places]
        states = [_without_inputs(one, selection) for one in self.states]
        write = wire.writer(self.data, of_track, states, _IMPLIED, wanted, _INPUTS)

        def read(low: int) -> tuple[list[Batch], int]:
            some = slice(low, low + _ROWS)
            text, unknown = write(self._table(rows[some], ends[some], place[some]))
            return process(text, 0, selection, final=True), unknown

        def add(batches: list[Batch], unknown: int) -> None:
            self.collected.issues.lose("unknown-text", unknown)
            self._add(batches)

        if len(rows) <= _ROWS:
            add(*read(0))
            return
        waiting: deque[Future[tuple[list[Batch], int]]] = deque()
        with executor(threads()) as pool:
            for low in range(0, len(rows), _ROWS):
                waiting.append(pool.submit(read, low))
                if len(waiting) > threads():
                    add(*waiting.popleft().result())
            while waiting:
                add(*waiting.popleft().result())

    def _add(self, batches: list[Batch]) -> None:
        for batch in batches:
            # offsets in the JSON are no places of the file
            batch.issues = Issues({code: (n, -1) for code, (n, _) in batch.issues.items()})
            self.collected.add(batch)

    def _stages(self, known: Ints, selection: Selection) -> None:
        """Read render stages, without those that are slices of a track too."""
        twice = set(map(tuple, known.tolist()))
        texts, stages = [], []
        for row, message in self.described.stages:
            key = self.keys[self.state_of[row]]
            ts = int(self.ts[row])
            if ts == NULL:
                self.collected.issues.note("no-time", -1)
                continue
            names = self.described.states[key].names
            stage = slices.stage_event(self.data, message, self.described.specs[key], names)
            stages.append((ts, stage))
            if (ts, stage.dur) not in twice:
                times = b'{"ph":"X","ts":%s,"dur":%s,' % (wire.us(ts), wire.us(stage.dur))
                texts.append(times + msgspec.json.encode(stage.event)[1:])
        for ts, arrow in slices.arrows(stages):
            texts.append(b'{"ts":%s,' % wire.us(ts) + msgspec.json.encode(arrow)[1:])
        for low in range(0, len(texts), _ROWS):
            text = b",\n".join(texts[low : low + _ROWS])
            self._add(process(text, 0, selection, final=True))

    def _flows(self, table: Ints, places: list[slices.Place]) -> None:
        """Read arrows: each leads from an event to the next one with its id."""
        points, left_out = wire.flows(self.data, np.ascontiguousarray(table[:, 2:4]))
        self.collected.issues.lose("too-many-flows", left_out)
        ts = table[points[:, 0], 0]
        order = np.lexsort((points[:, 0], ts, points[:, 1]))
        points, ts = points[order], ts[order]
        place = table[points[:, 0], 6]
        ended = np.concatenate([[False], points[:-1, 2] > 0])
        first = np.concatenate([[True], np.diff(points[:, 1]) != 0]) | ended
        last = np.concatenate([first[1:], [True]])
        phase = np.where(first, ord("s"), np.where(last, ord("f"), ord("t"))).astype(np.uint8)
        labels = {i: one.tid for i, one in enumerate(places) if isinstance(one.tid, str)}
        pids = np.array([NULL if one.pid is None else one.pid for one in places], np.int64)
        tids = [one.tid if isinstance(one.tid, int) else NULL for one in places]
        n = len(points)
        columns = {
            "order": np.zeros(n, np.uint32),
            "ts": ts,
            "category": np.zeros(n, np.uint32),
            "name": np.zeros(n, np.uint32),
            "pid": pids[place],
            "tid": np.array(tids, np.int64)[place],
            "id": np.cumsum(first) - 1,
            "phase": phase,
        }
        textual = np.flatnonzero(np.isin(place, list(labels))).tolist() if labels else []
        flows = Flows(columns={name: column.tobytes() for name, column in columns.items()})
        if textual:
            flows.labels["tid"] = {row: labels[int(place[row])] for row in textual}
        self.collected.add(Batch(texts=[slices.FLOW], flows=flows))

    # --- counters ------------------------------------------------------------------------------

    def _counters(self, rows: Ints, events: Ints) -> None:
        """Read the counters of tracks, those in slices, and those of GPUs."""
        kind, value = self.packets["kind"], self.packets["value"]
        known = rows[(kind[rows] & wire.HAS_VALUE) > 0]
        is_double = (kind[known] & wire.IS_DOUBLE) > 0
        bits = np.ascontiguousarray(value[known])
        numbers = np.where(is_double, bits.view(np.float64), bits.astype(np.float64))
        readings = list(
            zip(known.tolist(), self.track[known].tolist(), numbers.tolist(), strict=True)
        )
        readings += self._extra(events[(kind[events] & wire.HAS_EXTRA) > 0])
        # each sequence adds up its differences, in the order of its packets, from each reset on
        readings.sort(key=lambda one: one[0])
        totals: dict[tuple[int, int], float] = {}
        values: list[tuple[int, int, int, str, float]] = []
        names: dict[int, tuple[int, str, float, bool]] = {}
        for row, uuid, number in readings:
            if uuid not in names:
                names[uuid] = self._counter(uuid)
            pid, name, multiplier, is_incremental = names[uuid]
            if is_incremental:
                writer = int(self.state_of[row]), uuid
                number = totals[writer] = totals.get(writer, 0.0) + number
            if abs(number) < float("inf"):
                values.append((int(self.ts[row]), row, pid, name, number * multiplier))
        collected = self.collected.counters
        collected.extend(
            (ts, pid, None, name, "value", value) for ts, _, pid, name, value in sorted(values)
        )
        for row, message in self.described.gpu_counters:
            if self.ts[row] != NULL:
                key, ts = self.keys[self.state_of[row]], int(self.ts[row])
                collected.extend(slices.readings(self.data, message, ts, self.described, key))

    def _counter(self, uuid: int) -> tuple[int, str, float, bool]:
        """Return process, name, multiplier and whether values are differences."""
        track = self.described.tracks.get(uuid % (1 << 64), state.Track())
        pid = slices.process_of(self.described, uuid % (1 << 64), self.only_process)
        unit, multiplier, is_incremental = track.counter or (None, 1, False)
        name = track.name or unit or f"counter {uuid % (1 << 64)}"
        return NULL if pid is None else pid, name, multiplier, is_incremental

    def _extra(self, rows: Ints) -> list[tuple[int, int, float]]:
        """Return row, track and value of the counters that slices carry."""
        result = []
        for row in rows.tolist():
            at, length = (int(self.packets[c][row]) for c in ("event", "event_length"))
            message = wire.Field(0, wire.DELIMITED, length, at)
            defaults = self.described.defaults[self.keys[self.state_of[row]]]
            whole = state.integers(self.data, message, 12)
            of_whole = state.integers(self.data, message, 31) or defaults.extra
            real = state.doubles(self.data, message, 46)
            of_real = state.integers(self.data, message, 45) or defaults.extra_double
            values = [float(wire.signed(v)) for v in whole]
            for uuids, numbers in ((of_whole, values), (of_real, real)):
                result += [
                    (row, wire.signed(uuid), number)
                    for uuid, number in zip(uuids, numbers, strict=False)
                ]
        return result
