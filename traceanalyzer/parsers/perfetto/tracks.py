"""Tracks as processes, threads, GPUs and streams."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from traceanalyzer.parsers.chrome_trace.columns import Metadata
from traceanalyzer.parsers.chrome_trace.decode import NULL
from traceanalyzer.parsers.perfetto.state import Described, Track

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
        args = b'"device":%d,"stream":%d' % (device, stream)
        return Place(device, stream, args)
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
