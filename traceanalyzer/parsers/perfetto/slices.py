"""Events of tracks, their names, and work that the GPU's driver recorded.

An end closes the innermost open slice of its track, in order of time. PyTorch writes all begins of
a kind, then all their ends in the same order: these are paired by their numbers, so that slices
that overlap or meet stay exact.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from traceanalyzer.parsers.chrome_trace.columns import CounterValue, Metadata
from traceanalyzer.parsers.chrome_trace.decode import NULL
from traceanalyzer.parsers.perfetto.state import (
    Described,
    Key,
    Specs,
    Track,
    counter_names,
    inside,
    number,
    text_of,
)
from traceanalyzer.parsers.perfetto.wire import (
    DELIMITED,
    Field,
    Ints,
    double,
    signed,
    text,
    whole_fields,
)

_CATEGORIES = (
    ("gpu_memcpy", re.compile(r"(?i)mem_?cpy|copy|transfer")),
    ("gpu_memset", re.compile(r"(?i)mem_?set|fill")),
)
_DIGITS = re.compile(r"\d{1,18}")
#: Category and name of arrows, and the first number of those between stages, as in PyTorch's JSON.
FLOW = "ac2g"
_FIRST_ARROW = 1 << 40


class Stage(NamedTuple):
    """A render stage: its id, those that it waited for, and an event of Chrome's JSON."""

    id: int
    waits: list[int]
    dur: int
    event: dict[str, Any]


def stage_event(data: memoryview, message: Field, specs: Specs, names: dict[int, bytes]) -> Stage:
    """Return a render stage as an event of Chrome's JSON.

    The category follows from the name of the stage: copy, memset, otherwise a kernel. The id of the
    event is the correlation id if it has no other.
    """
    fields = list(whole_fields(data, message.at, message.at + message.value))
    known = {one.number: one for one in fields}
    args: dict[str, Any] = {}
    for one in (inside(data, field) for field in fields if field.number == 6):
        if key := text_of(data, one, 1):
            args[key] = _value(text_of(data, one, 2) or "")
    stage = specs.stages.get(number(known, 14)) or str(args.get("stage", ""))
    queue = specs.stages.get(number(known, 13), "")
    device = signed(number(known, 11))
    args.setdefault("correlation", number(known, 1))
    args.setdefault("device", device)
    if "stream" not in args:
        digits = _DIGITS.search(queue)
        args["stream"] = int(digits[0]) if digits else number(known, 13) or number(known, 3)
    if 21 in known:
        _launch(data, known[21], specs, args)
    given = text_of(data, known, 17) or _interned(names, number(known, 20))
    name = given or specs.kernels.get(number(known, 19)) or stage or None
    category = next((kind for kind, pattern in _CATEGORIES if pattern.search(stage)), "kernel")
    event = {"cat": category, "name": name, "pid": device, "tid": args["stream"], "args": args}
    waits = [one.value for one in fields if one.number == 18 and one.type != DELIMITED]
    return Stage(number(known, 1), waits, min(number(known, 2), 1 << 62), event)


def arrows(stages: list[tuple[int, Stage]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield points of arrows: each leads from the end of a stage to the start of one that waited.

    Args:
        stages: time and stage.
    """
    ends = {one.id: (ts + one.dur, one) for ts, one in stages}
    pairs = (
        (ts, one, *ends[waited]) for ts, one in stages for waited in one.waits if waited in ends
    )
    for arrow, (start, one, end, before) in enumerate(pairs, _FIRST_ARROW):
        for phase, ts, stage in (("s", end, before), ("f", start, one)):
            lane = {key: stage.event[key] for key in ("pid", "tid")}
            yield ts, {"ph": phase, "bp": "e", "id": arrow, "cat": FLOW, "name": FLOW, **lane}


def _interned(names: dict[int, bytes], id_: int) -> str | None:
    known = names.get(id_)
    return None if known is None else str(msgspec.json.decode(known))


def _value(content: str) -> int | str:
    return int(content) if _DIGITS.fullmatch(content) else content


def _launch(data: memoryview, message: Field, specs: Specs, args: dict[str, Any]) -> None:
    """Add grid, block and arguments of a launch."""
    known = inside(data, message)
    for tag, key in ((1, "grid"), (2, "block")):
        if tag in known:
            size = inside(data, known[tag])
            args[key] = [number(size, axis) for axis in (1, 2, 3)]
    if message.type != DELIMITED:
        return
    for one in whole_fields(data, message.at, message.at + message.value):
        if one.number == 3:
            argument = inside(data, one)
            label = text_of(data, argument, 2) or specs.arguments.get(number(argument, 1))
            if label:
                args.setdefault(label.replace("_", " "), _argument(data, argument))


def _argument(data: memoryview, known: dict[int, Field]) -> Any:
    if 4 in known:
        return number(known, 4)
    if 3 in known:
        return signed(number(known, 3))
    if 5 in known:
        value = double(number(known, 5))
        return value if abs(value) < float("inf") else None
    return text(data, known[6]) if 6 in known else None


def readings(
    data: memoryview, message: Field, ts: int, described: Described, key: Key
) -> Iterator[CounterValue]:
    """Return the readings of a GPU counter event."""
    known = inside(data, message)
    specs = described.specs[key]
    names = specs.counters.get(number(known, 4), {})
    if 1 in known:
        # the first event of a writer describes the counters of all that follow
        names = counter_names(data, known[1])
        specs.counters[0] = names
    gpu = signed(number(known, 3)) if 3 in known else specs.gpus.get(number(known, 4), 0)
    for one in whole_fields(data, message.at, message.at + message.value):
        if one.number == 2:
            reading = inside(data, one)
            id_ = number(reading, 1)
            value = double(number(reading, 3)) if 3 in reading else signed(number(reading, 2))
            if abs(value) < float("inf"):
                name = names.get(id_, f"counter {id_}")
                yield ts, NULL, None, name, f"GPU {gpu}", float(value)


#: rocprofv3: work of a GPU on a stream or a queue, and calls of a thread.
_ROCPROF_GPU = re.compile(
    r"(?:COMPUTE|COPY to) \w+ \[(\d{1,5})\] (?:STREAM|QUEUE|THREAD) \[(\d{1,18})\]"
)
_ROCPROF_THREAD = re.compile(r"THREAD \d{1,9} \((\d{1,18})\)")
_DEEPEST = 64


class Place(NamedTuple):
    """Where the events of a track are: ids, or texts that stand for them, and common arguments."""

    pid: int | None
    tid: int | str | None
    args: bytes = b""

    def as_json(self) -> bytes:
        """Return the ids as keys of an event."""
        return b'"pid":%s,"tid":%s' % (msgspec.json.encode(self.pid), msgspec.json.encode(self.tid))


def place_of(described: Described, uuid: int, only_process: int | None) -> Place:
    """Return the place of a track.

    A track that is neither a thread nor a process is a thread with a textual id, its name.

    Args:
        described: all tracks.
        uuid: the track.
        only_process: process of tracks without one.
    """
    track = described.tracks.get(uuid, Track())
    chain = _chain(described, track)
    pid = next((pid for one in chain if (pid := _pid(one)) is not None), only_process)
    if track.thread is not None:
        return Place(pid, track.thread[1])
    name = track.name or ""
    if match := _ROCPROF_GPU.match(name):
        device, stream = int(match[1]), int(match[2])
        return Place(device, stream, b'"device":%d,"stream":%d' % (device, stream))
    if match := _ROCPROF_THREAD.fullmatch(name):
        return Place(pid, int(match[1]))
    if not name and track.process is None:
        # an unnamed child continues its parent
        named = (one for one in chain[1:] if one.thread is not None or one.name)
        parent = next(named, None)
        if parent is not None and parent.thread is not None:
            return Place(pid, parent.thread[1])
        name = (parent.name if parent is not None else None) or f"track {uuid}"
    return Place(pid, name or "process")


def process_of(described: Described, uuid: int, only_process: int | None) -> int | None:
    """Return the process of a track, for counters."""
    chain = _chain(described, described.tracks.get(uuid, Track()))
    return next((pid for one in chain if (pid := _pid(one)) is not None), only_process)


def only_process(described: Described) -> int | None:
    """Return the process if the file describes a single one."""
    pids = {pid for one in described.tracks.values() if (pid := _pid(one)) is not None}
    return pids.pop() if len(pids) == 1 else None


def _pid(track: Track) -> int | None:
    if track.thread is not None:
        return track.thread[0]
    return None if track.process is None else track.process[0]


def _chain(described: Described, track: Track) -> list[Track]:
    """Return a track and its parents."""
    chain = [track]
    while track.parent and len(chain) < _DEEPEST:
        parent = described.tracks.get(track.parent)
        if parent is None:
            break
        chain.append(parent)
        track = parent
    return chain


def names(described: Described) -> list[Metadata]:
    """Return the names of processes and threads."""
    rows: list[Metadata] = []

    def add(what: str, pid: int, tid: int, **args: Any) -> None:
        rows.append((what, pid, None, tid, None, msgspec.json.encode(args).decode()))

    for track in described.tracks.values():
        if track.process is not None:
            pid, name, labels = track.process
            if name or track.name:
                add("process_name", pid, NULL, name=name or track.name)
            if labels:
                add("process_labels", pid, NULL, labels=labels)
        if track.thread is not None:
            pid, tid, name = track.thread
            if name or track.name:
                add("thread_name", pid, tid, name=name or track.name)
    return rows


BEGIN, END = 1, 2
Numbers = npt.NDArray[np.integer[Any]]


class Pairs(NamedTuple):
    """Slices: rows of their begin and end events (-1: never ended), and the ends without begin."""

    begin: Ints
    end: Ints
    unmatched: int


def pair(ts: Ints, track: Numbers, type_: Ints) -> Pairs:
    """Pair begin and end events.

    Args:
        ts: time of each event, in the order of the file.
        track: number of its track.
        type_: ``BEGIN`` or ``END``.
    """
    partner = np.full(len(ts), -1, np.int64)
    order = np.argsort(track, kind="stable")
    if not _in_order(ts[order], track[order]):
        _by_number(ts, track, type_, partner)
        rest = np.flatnonzero(partner < 0)
        order = rest[np.lexsort((ts[rest], track[rest]))]
    unmatched = _nested(track[order], type_[order], order, partner)
    begin = np.flatnonzero(type_ == BEGIN)
    return Pairs(begin, partner[begin], unmatched)


def _in_order(ts: Ints, track: Numbers) -> bool:
    """Whether times do not decrease within tracks, which are one after another."""
    return not ((ts[1:] < ts[:-1]) & (track[1:] == track[:-1])).any()


def _by_number(ts: Ints, track: Numbers, type_: Ints, partner: Ints) -> None:
    """Pair runs of begins with the run of as many ends of the same tracks that follows."""
    start = np.concatenate([[0], np.flatnonzero(np.diff(type_)) + 1])
    size = np.diff(np.concatenate([start, [len(type_)]]))
    is_pair = (type_[start[:-1]] == BEGIN) & (size[:-1] == size[1:]) & (size[:-1] > 1)
    for run in np.flatnonzero(is_pair).tolist():
        low, n = int(start[run]), int(size[run])
        begins, ends = slice(low, low + n), slice(low + n, low + 2 * n)
        both = slice(low, low + 2 * n)
        if not np.array_equal(track[begins], track[ends]) or (ts[begins] > ts[ends]).any():
            continue
        by_track = np.argsort(track[both], kind="stable")
        same = np.diff(track[both][by_track]) == 0
        if not (np.diff(ts[both][by_track])[same] < 0).any():
            continue  # in order of time: nested slices
        partner[begins] = np.arange(low + n, low + 2 * n)
        partner[ends] = np.arange(low, low + n)


def _nested(track: Numbers, type_: Ints, rows: Ints, partner: Ints) -> int:
    """Pair sorted events by depth; return the number of ends without a begin.

    At each depth of a track, begins and ends alternate.
    """
    if not len(rows):
        return 0
    is_begin = type_ == BEGIN
    step = np.where(is_begin, 1, -1)
    # tracks one after another: each starts at its own level
    first = np.flatnonzero(np.concatenate([[True], np.diff(track) != 0]))
    length = np.diff(np.concatenate([first, [len(track)]]))
    level = np.cumsum(step)
    level -= np.repeat(level[first] - step[first], length)
    floor = np.empty(len(level), np.int64)
    for low, n in zip(first.tolist(), length.tolist(), strict=True):
        floor[low : low + n] = np.minimum.accumulate(np.minimum(level[low : low + n], 0))
    before = np.concatenate([[0], floor[:-1]])
    before[first] = 0
    stray = ~is_begin & (floor < before)
    depth = level - floor - is_begin  # of the slice that begins or ends
    kept = np.flatnonzero(~stray)
    order = kept[np.lexsort((kept, depth[kept], track[kept]))]
    ends = np.flatnonzero(~is_begin[order])
    begins = ends - 1  # the event before an end at its depth is its begin
    partner[rows[order[begins]]] = rows[order[ends]]
    return int(stray.sum())
