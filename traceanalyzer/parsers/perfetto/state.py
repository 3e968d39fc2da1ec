"""Packets that describe others: interned texts, tracks, clocks, defaults of a packet sequence.

A sequence (one writer) resets its texts with SEQ_INCREMENTAL_STATE_CLEARED; ``generation`` counts
these resets. Within a generation an id keeps its text, so all its packets share one table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from traceanalyzer.parsers.perfetto import wire
from traceanalyzer.parsers.rocpd.recording import copy_name

REALTIME: Key = (0, 1)
_LAST = 1 << 62


def on_trace_clock(
    described: Described, ts: wire.Ints, clock: wire.Ints, sequence: wire.Ints
) -> tuple[wire.Ints, wire.Ints]:
    """Return the times of packets on the clock of the trace, and the rows with an unknown clock.

    Args:
        described: the clock snapshots.
        ts: time of each packet, on its clock, in ns or the unit of the clock.
        clock: id of the clock, not null.
        sequence: packet sequence.
    """
    target = (0, described.primary)
    result = np.where((ts >= 0) & (ts < _LAST), ts, wire.NULL)
    keys, of_row = wire.numbered(sequence << 32 | clock)
    unknown = np.zeros(len(ts), np.bool_)
    for number, both in enumerate(keys.tolist()):
        key = clock_key(both & 0xFFFFFFFF, both >> 32 & 0xFFFFFFFF)
        if key == target:
            continue
        rows = np.flatnonzero(of_row == number)
        times = _absolute(described.snapshots, key, result[rows], rows)
        path = _path(described.snapshots, key, target)
        if path is None:
            unknown[rows] = True
        else:
            for source, to in path:
                times = _converted(described.snapshots, source, to, times)
        result[rows] = times
    return result, np.flatnonzero(unknown)


def epoch_ns(described: Described) -> int | None:
    """Return the time since 1970 of 0 on the clock of the trace; None without a snapshot of it."""
    target = (0, described.primary)
    if target == REALTIME:
        return 0
    path = _path(described.snapshots, target, REALTIME)
    if path is None:
        return None
    first = next(
        (one.time for shot in described.snapshots for one in shot.clocks if one.key == target), 0
    )
    moment = np.array([first], np.int64)
    for source, to in path:
        moment = _converted(described.snapshots, source, to, moment)
    return int(moment[0]) - first


def _absolute(snapshots: list[Snapshot], key: Key, times: wire.Ints, rows: wire.Ints) -> wire.Ints:
    """Return absolute times of a clock whose packets count its unit, or time since the previous."""
    known = [(shot.row, one) for shot in snapshots for one in shot.clocks if one.key == key]
    if not known:
        return times
    unit = known[0][1].unit
    valid = times != wire.NULL
    limit = _LAST // unit
    scaled = np.where(valid & (times < limit), times, 0) * unit
    if not known[0][1].is_incremental:
        return np.where(valid & (times < limit), scaled, wire.NULL)
    # sums begin at each snapshot
    at = np.array([row for row, _ in known])
    base = np.array([one.time for _, one in known])
    segment = np.searchsorted(at, rows, side="right") - 1
    total = np.cumsum(np.minimum(scaled, _LAST >> 20))
    first = np.searchsorted(segment, segment)
    before = total[first] - np.minimum(scaled, _LAST >> 20)[first]
    sums = total - before + np.where(segment >= 0, base[np.maximum(segment, 0)], 0)
    return np.where(valid & (sums >= 0) & (sums < _LAST), sums, wire.NULL)


def _path(snapshots: list[Snapshot], source: Key, target: Key) -> list[tuple[Key, Key]] | None:
    """Return the conversions from one clock to another, or None."""
    links: dict[Key, dict[Key, None]] = {}
    for shot in snapshots:
        keys = [one.key for one in shot.clocks]
        for key in keys:
            links.setdefault(key, {}).update(dict.fromkeys(keys))
    queue: list[list[tuple[Key, Key]]] = [[]]
    reached = {source}
    while queue:
        path = queue.pop(0)
        end = path[-1][1] if path else source
        if end == target:
            return path
        for key in links.get(end, {}):
            if key not in reached:
                reached.add(key)
                queue.append([*path, (end, key)])
    return None


def _converted(snapshots: list[Snapshot], source: Key, target: Key, times: wire.Ints) -> wire.Ints:
    """Convert times with the last snapshot before each."""
    pairs = []
    for shot in snapshots:
        known = {one.key: one.time for one in shot.clocks}
        if source in known and target in known:
            pairs.append((known[source], known[target] - known[source]))
    pairs.sort()
    at, offset = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    place = np.maximum(np.searchsorted(at, times, side="right") - 1, 0)
    return np.where(times == wire.NULL, wire.NULL, times + offset[place])


#: Categories of rocprofv3, as Kineto spells them.
_CATEGORIES = {
    "kernel_dispatch": "kernel",
    "memory_copy": "gpu_memcpy",
    "hip_api": "cuda_runtime",
    "hsa_api": "cuda_driver",
    "marker_api": "nvtx",
    "rccl_api": "nvtx",
}
#: Arguments of rocprofv3, as Kineto spells them.
_ARGUMENTS = {"corr_id": "correlation", "copy_bytes": "bytes"}
_COPY = re.compile(r"MEMORY_COPY_\w+")

Key = tuple[int, int]


class Clock(NamedTuple):
    """A clock in a snapshot: its key (sequence or 0, id), its time, and how packets count it."""

    key: Key
    time: int
    is_incremental: bool
    unit: int


class Snapshot(NamedTuple):
    """The same moment on several clocks; ``row`` is the packet."""

    row: int
    clocks: list[Clock]


@dataclass
class Track:
    """A track as described; None for what is not given."""

    parent: int = 0
    name: str | None = None
    process: tuple[int, str | None, str | None] | None = None
    thread: tuple[int, int, str | None] | None = None
    counter: tuple[str | None, int, bool] | None = None


@dataclass
class Defaults:
    """Defaults of the packets of a sequence."""

    clock: int | None = None
    track: int = 0
    extra: list[int] = field(default_factory=list)
    extra_double: list[int] = field(default_factory=list)


@dataclass
class Specs:
    """Texts of render stages and GPU counters by id: names, pids of contexts, counters."""

    stages: dict[int, str] = field(default_factory=dict)
    contexts: dict[int, int] = field(default_factory=dict)
    kernels: dict[int, str] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    counters: dict[int, dict[int, str]] = field(default_factory=dict)
    gpus: dict[int, int] = field(default_factory=dict)


def new_state() -> wire.State:
    """Return a state without texts."""
    return wire.State({}, {}, {}, {}, {})


@dataclass
class Described:
    """All that these packets describe.

    Attributes:
        states: interned texts by (sequence, generation).
        tracks: tracks by uuid.
        defaults, specs: by (sequence, generation).
        snapshots: clocks, in order.
        primary: id of the clock of the trace.
        stages: rows of render stages, with the field of the event.
        gpu_counters: rows of GPU counters, likewise.
    """

    states: defaultdict[Key, wire.State] = field(default_factory=lambda: defaultdict(new_state))
    tracks: dict[int, Track] = field(default_factory=dict)
    defaults: defaultdict[Key, Defaults] = field(default_factory=lambda: defaultdict(Defaults))
    specs: defaultdict[Key, Specs] = field(default_factory=lambda: defaultdict(Specs))
    snapshots: list[Snapshot] = field(default_factory=list)
    primary: int = 6
    stages: list[tuple[int, wire.Field]] = field(default_factory=list)
    gpu_counters: list[tuple[int, wire.Field]] = field(default_factory=list)


def generations(sequence: wire.Ints, flags: wire.Ints) -> wire.Ints:
    """Return the number of resets of its sequence up to and including each packet."""
    if len(sequence) and sequence.min() == sequence.max():
        return np.cumsum(flags & 1)
    order = np.argsort(sequence, kind="stable")
    resets = np.cumsum(flags[order] & 1)
    first = np.searchsorted(sequence[order], sequence[order])
    before = resets - (flags[order] & 1)
    result = np.empty(len(sequence), np.int64)
    result[order] = resets - before[first]
    return result


def describe(data: memoryview, rows: Iterable[tuple[int, ...]]) -> Described:
    """Read packets with descriptions.

    Args:
        data: the trace.
        rows: row, place, length, sequence and generation of each of these packets.
    """
    result = Described()
    for row, at, length, sequence, generation in rows:
        key = (sequence, generation)
        for one in wire.whole_fields(data, at, at + length):
            if one.type != wire.DELIMITED:
                continue
            if one.number == 12:
                _interned(data, one, result.states[key], result.specs[key])
            elif one.number == 60:
                _track(data, one, result)
            elif one.number == 6:
                _snapshot(data, one, row, sequence, result)
            elif one.number == 59:
                _defaults(data, one, result.defaults[key])
            elif one.number == 53:
                result.stages.append((row, one))
            elif one.number == 52:
                result.gpu_counters.append((row, one))
    return result


def inside(data: memoryview, message: wire.Field) -> dict[int, wire.Field]:
    """Return the fields of a message by number; of repeated ones the last."""
    end = message.at + (message.value if message.type == wire.DELIMITED else 0)
    return {one.number: one for one in wire.whole_fields(data, message.at, end)}


def number(known: dict[int, wire.Field], tag: int, default: int = 0) -> int:
    """Return an integer field."""
    one = known.get(tag)
    return default if one is None or one.type == wire.DELIMITED else one.value


def text_of(data: memoryview, known: dict[int, wire.Field], tag: int) -> str | None:
    """Return a text field; None if it is absent or empty."""
    one = known.get(tag)
    return None if one is None else wire.text(data, one) or None


def _interned(data: memoryview, message: wire.Field, state: wire.State, specs: Specs) -> None:
    tables = {1: state.categories, 2: state.names, 3: state.keys, 29: state.strings}
    plain = {24: specs.stages, 1000: specs.kernels, 1001: specs.arguments}
    for one in wire.whole_fields(data, message.at, message.at + message.value):
        known = inside(data, one)
        id_, content = number(known, 1), text_of(data, known, 2) or ""
        if one.number in tables:
            tables[one.number][id_] = wire.quoted(_as_kineto(one.number, content))
        elif one.number in plain:
            plain[one.number][id_] = (
                text_of(data, known, 3) if one.number == 1000 else None
            ) or content
        elif one.number == 23:
            specs.contexts[id_] = wire.signed(number(known, 2))
        elif one.number == 47:
            specs.gpus[id_] = wire.signed(number(known, 3))
            if 2 in known:
                specs.counters[id_] = counter_names(data, known[2])


def _as_kineto(table: int, content: str) -> str:
    """Return a text of rocprofv3 in Kineto's spelling; other texts are unchanged."""
    if table == 1:
        return _CATEGORIES.get(content, content)
    if table == 2 and _COPY.fullmatch(content):
        return copy_name(content)
    return _ARGUMENTS.get(content, content) if table == 3 else content


def counter_names(data: memoryview, descriptor: wire.Field) -> dict[int, str]:
    """Return the names of GPU counters by id."""
    if descriptor.type != wire.DELIMITED:
        return {}
    specs = wire.whole_fields(data, descriptor.at, descriptor.at + descriptor.value)
    known = [inside(data, one) for one in specs if one.number == 1]
    return {number(one, 1): text_of(data, one, 2) or f"counter {number(one, 1)}" for one in known}


def _track(data: memoryview, message: wire.Field, result: Described) -> None:
    known = inside(data, message)
    track = result.tracks.setdefault(number(known, 1), Track())
    track.parent = number(known, 5, track.parent)
    names = (text_of(data, known, tag) for tag in (2, 10, 13))
    track.name = next(filter(None, names), track.name)
    if 3 in known:
        process = inside(data, known[3])
        labels = text_of(data, process, 8)
        track.process = (wire.signed(number(process, 1)), text_of(data, process, 6), labels)
    if 4 in known:
        thread = inside(data, known[4])
        track.thread = (
            wire.signed(number(thread, 1)), wire.signed(number(thread, 2)), text_of(data, thread, 5)
        )  # fmt: skip
    if 8 in known:
        counter = inside(data, known[8])
        multiplier = wire.signed(number(counter, 4)) or 1
        track.counter = (text_of(data, counter, 6), multiplier, bool(number(counter, 5)))


def _snapshot(
    data: memoryview, message: wire.Field, row: int, sequence: int, result: Described
) -> None:
    clocks = []
    for one in wire.whole_fields(data, message.at, message.at + message.value):
        if one.number == 1:
            known = inside(data, one)
            key = clock_key(number(known, 1), sequence)
            unit = number(known, 4) or 1
            time = wire.signed(number(known, 2)) * unit
            if abs(time) < 1 << 62:
                clocks.append(Clock(key, time, bool(number(known, 3)), unit))
        elif one.number == 2 and one.type != wire.DELIMITED and one.value:
            result.primary = one.value
    result.snapshots.append(Snapshot(row, clocks))


def clock_key(id_: int, sequence: int) -> Key:
    """Return the key of a clock: ids 64 to 127 belong to their packet sequence."""
    return (sequence if 64 <= id_ < 128 else 0, id_)


def _defaults(data: memoryview, message: wire.Field, defaults: Defaults) -> None:
    known = inside(data, message)
    if 58 in known:
        defaults.clock = number(known, 58)
    if 11 in known:
        event = known[11]
        defaults.track = number(inside(data, event), 11, defaults.track)
        defaults.extra = integers(data, event, 31) or defaults.extra
        defaults.extra_double = integers(data, event, 45) or defaults.extra_double


def integers(data: memoryview, message: wire.Field, tag: int) -> list[int]:
    """Return a repeated integer field that is not packed."""
    end = message.at + (message.value if message.type == wire.DELIMITED else 0)
    return [
        one.value
        for one in wire.whole_fields(data, message.at, end)
        if one.number == tag and one.type != wire.DELIMITED
    ]


def doubles(data: memoryview, message: wire.Field, tag: int) -> list[float]:
    """Return a repeated field of doubles that is not packed."""
    return [wire.double(value) for value in integers(data, message, tag)]
