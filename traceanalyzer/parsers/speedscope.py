"""speedscope JSON: sampled and evented profiles, written by py-spy and many other tools.

Input: JSON text. Output: ``sample`` events and the prefix tree of their frames, one lane per
profile.

Specification: <https://www.speedscope.app/file-format-schema.json>
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import polars as pl
from msgspec import Meta as Bounds, Raw, Struct

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.frames.stacks import NONE, Interner
from traceanalyzer.parsers import tables
from traceanalyzer.parsers.collapsed.text import LABELLED, named
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source, rank_or_node_from_name
from traceanalyzer.parsers.tables import Frame, Lanes
from traceanalyzer.trace import Issue, Meta, Trace, issue_rows, sort_events

#: Numeric text is accepted too (dotnet-trace writes it), except "nan" and "inf".
_Finite = Annotated[float, Bounds(ge=-sys.float_info.max, le=sys.float_info.max)]


class FrameEntry(Struct):
    """A function; the line counts from 1."""

    name: str
    file: str | None = None
    line: float | None = None


class Shared(Struct):
    """The frames that all profiles refer to by index."""

    frames: list[FrameEntry]


class File(Struct):
    """The whole file; profiles are decoded one by one, so that a bad one does not affect others."""

    profiles: list[Raw]
    shared: Shared
    exporter: str | None = None


class Sampled(Struct, tag="sampled", tag_field="type"):
    """Stacks and their weights; 1 each without weights."""

    samples: list[list[int]]
    weights: list[_Finite] | None = None
    name: str = ""
    unit: str = "none"
    startValue: _Finite = 0.0  # noqa: N815 - key of the file
    endValue: _Finite | None = None  # noqa: N815


class Event(Struct):
    """A frame that opens (``O``) or closes (``C``)."""

    type: str
    at: _Finite
    frame: int


class Evented(Struct, tag="evented", tag_field="type"):
    """Calls and returns, ordered by time."""

    events: list[Event]
    name: str = ""
    unit: str = "none"
    startValue: _Finite = 0.0  # noqa: N815
    endValue: _Finite | None = None  # noqa: N815


Profile = Sampled | Evented


#: Nanoseconds per unit.
_NS = {"nanoseconds": 1, "microseconds": 1_000, "milliseconds": 1_000_000, "seconds": 10**9}
#: Decimals of a weight in ns: decimal fractions of seconds are not exact.
_DECIMALS = 3
_MAX_NS = float(1 << 62)
#: Profile names of py-spy and of our exporter: any of these parts may be missing.
_NAME = re.compile(
    r"(?s)(?:Rank -?\d+ ?)?(?:Process (-?\d{1,18}) ?)?"
    r'(?:Thread (-?\d{1,18}|0[xX][0-9a-fA-F]{1,15})(?: "(.*)")? ?)?(before|after)?'
)


class Sample(NamedTuple):
    """A stack's leaf (``NONE``: empty), its weight in the profile's unit, its start in ns.

    ``lane`` is the one named by its frames; None for the lane of the profile.
    """

    leaf: int
    weight: float
    ts: int | None
    lane: int | None = None


class Frames(NamedTuple):
    """The number of each of the file's frames in the tree, and the label texts by number."""

    numbers: list[int]
    labels: dict[int, bytes]


#: Returns the lane named by a stack's labels, joined by ``;``; None if they are not labels.
LaneOf = Callable[[bytes], int | None]


@dataclass(frozen=True)
class Owner:
    """Process, thread and category in a profile's name."""

    pid: int | None
    tid: int | None
    thread: str | None
    category: str | None


NOBODY = Owner(None, None, None, None)


def unit_of(profile: Profile) -> str | None:
    """Return the unit of the weights: ``ns``, ``bytes``, ``samples``, or None if unknown."""
    if profile.unit in _NS:
        return "ns"
    return {"bytes": "bytes", "none": "samples"}.get(profile.unit)


def owner_of(name: str) -> Owner | None:
    """Return process, thread and category from a profile's name; None for any other name."""
    match = _NAME.fullmatch(name)
    if not match:
        return None
    pid, tid, thread, category = match.groups()
    return Owner(
        None if pid is None else int(pid),
        None if tid is None else int(tid, 16 if tid[:2].lower() == "0x" else 10),
        thread,
        category,
    )


def samples_of(
    profile: Profile, frames: Frames, lane_of: LaneOf, tree: Interner, issues: dict[str, int]
) -> Iterator[Sample]:
    """Yield the samples of a profile, in order.

    An evented profile gives one sample of the open stack for each interval between two events;
    intervals without an open frame are not counted.

    Args:
        profile: the profile.
        frames: the file's frames. Labels at the root of a sampled stack are removed; evented
            profiles, which py-spy does not write, have none.
        lane_of: returns the lane named by labels.
        tree: the tree to which stacks are added.
        issues: issue counts, updated.
    """
    if isinstance(profile, Sampled):
        return _sampled(profile, frames, lane_of, tree, issues)
    return _evented(profile, frames.numbers, tree, issues)


def _sampled(
    profile: Sampled, frames: Frames, lane_of: LaneOf, tree: Interner, issues: dict[str, int]
) -> Iterator[Sample]:
    scale = _NS.get(profile.unit)
    weights = profile.weights or [1.0] * len(profile.samples)
    if len(weights) != len(profile.samples):
        _note(issues, "bad-sample", abs(len(weights) - len(profile.samples)))
    known: dict[tuple[int, ...], tuple[int, int | None]] = {}
    at = profile.startValue
    for stack, value in zip(profile.samples, weights, strict=False):
        weight = _scaled(value, scale)
        key = tuple(stack)
        place = known.get(key)
        if place is None:
            if any(not 0 <= frame < len(frames.numbers) for frame in stack):
                weight = math.nan
            else:
                numbers = list(map(frames.numbers.__getitem__, stack))
                lane, labels = _labelled(numbers, frames.labels, lane_of)
                place = known[key] = tree.path(numbers[labels:]), lane
        if place is None or not 0 <= weight < math.inf:
            _note(issues, "bad-sample")
            continue
        leaf, lane = place
        yield Sample(leaf, weight, _nanosecond(at, scale), lane)
        at += value


def _labelled(
    stack: list[int], labels: dict[int, bytes], lane_of: LaneOf
) -> tuple[int | None, int]:
    """Return the lane named by the labels at a stack's root, and the number of labels."""
    texts = [labels[frame] for frame in takewhile(labels.__contains__, stack)]
    lane = lane_of(b";".join(texts)) if texts else None
    return lane, 0 if lane is None else len(texts)


def _evented(
    profile: Evented, frames: list[int], tree: Interner, issues: dict[str, int]
) -> Iterator[Sample]:
    scale = _NS.get(profile.unit)
    open_: list[tuple[int, int]] = []  # frame, node
    times_open = [0] * (max(frames, default=-1) + 1)
    at = profile.startValue
    for event in profile.events:
        if not (at <= event.at < math.inf and 0 <= event.frame < len(frames)):
            _note(issues, "bad-event")
            continue
        if open_ and event.at > at:
            yield Sample(open_[-1][1], _scaled(event.at - at, scale), _nanosecond(at, scale))
        at = event.at
        frame = frames[event.frame]
        if event.type == "O":
            above = open_[-1][1] if open_ else int(NONE)
            open_.append((frame, tree.child(above, frame)))
            times_open[frame] += 1
        elif event.type == "C":
            _close(open_, frame, times_open, issues)
        else:
            _note(issues, "bad-event")
    if open_:
        _note(issues, "unclosed-frame", len(open_))
        end = profile.endValue
        if end is not None and at < end < math.inf:
            yield Sample(open_[-1][1], _scaled(end - at, scale), _nanosecond(at, scale))


def _close(
    open_: list[tuple[int, int]], frame: int, times_open: list[int], issues: dict[str, int]
) -> None:
    """Close a frame and its callees; no effect if it is not open."""
    if not open_ or open_[-1][0] != frame:
        _note(issues, "mismatched-close")
    if not times_open[frame]:
        return
    closed = None
    while closed != frame:
        closed, _ = open_.pop()
        times_open[closed] -= 1


def _scaled(value: float, scale: int | None) -> float:
    return value if scale is None else round(value * scale, _DECIMALS)


def _nanosecond(value: float, scale: int | None) -> int | None:
    """Return a time in whole ns; None if the unit is not a time."""
    return None if scale is None or not abs(value * scale) < _MAX_NS else round(value * scale)


def _note(issues: dict[str, int], code: str, count: int = 1) -> None:
    issues[code] = issues.get(code, 0) + count


#: What only speedscope writes, by a key in it: most files are refused by looking for the keys.
_SIGNS = {
    b'"$schema"': re.compile(rb'"\$schema"\s*:\s*"https?://www\.speedscope\.app/'),
    b'"shared"': re.compile(rb'"shared"\s*:\s*\{\s*"frames"\s*:\s*\['),
    b'"profiles"': re.compile(rb'"type"\s*:\s*"(?:sampled|evented)"'),
}
_MAX_LINE = (1 << 31) - 1
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
#: Issues without data loss; all others are losses.
_NOTICES = frozenset(("unclosed-frame", "mismatched-close", "mixed-units"))


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether the first bytes look like speedscope JSON; the file name does not matter."""
    if not head.lstrip().startswith(b"{"):
        return False
    return any(key in head and pattern.search(head) for key, pattern in _SIGNS.items())


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read one speedscope file.

    Weights are in ns, and samples have a start, if the profile's unit is a time; else weights are
    in bytes or samples. Process and thread come from profile names in py-spy's style; if there are
    several other profiles, each one is a thread with a synthetic id.

    Raises:
        MalformedInput: the file is not JSON, or none of its profiles can be read.
        UnreadableFile: the file cannot be read.
    """
    rank = rank_or_node_from_name(source.path)
    kinds = selection.kinds
    if kinds is not None and not kinds & {"sample", "lane"}:
        return Trace(sources=(Meta(path=source.path, format=FORMAT.name, rank=rank),))
    file = _decoded(source, b"".join(source.blocks(progress=progress)))
    read = _Read()
    entries = file.shared.frames
    if (file.exporter or "").startswith(_OF_DEFINITIONS):
        entries = [FrameEntry(entry.name, entry.file) for entry in entries]
    frames, numbered = _distinct(entries)
    for index, raw in enumerate(file.profiles):
        try:
            profile = msgspec.json.decode(raw, type=Profile, strict=False)
        except _UNDECODABLE:
            read.issues["bad-profile"] = read.issues.get("bad-profile", 0) + 1
            continue
        owner = owner_of(profile.name)
        lane = _lane(profile.name, owner, index, len(file.profiles) > 1, read.lanes)
        owner = owner or NOBODY
        lane_of = partial(named, lanes=read.lanes, pid=owner.pid, tid=owner.tid)
        samples = samples_of(profile, numbered, lane_of, read.tree, read.issues)
        read.add(profile, samples, lane, owner.category)
    if file.profiles and not read.units:
        raise MalformedInput(source.path, "none of its profiles can be read")
    if source.damage:
        read.issues[f"damaged-file: {source.damage}"] = 1
    return _trace(source, read, frames, rank, events=kinds is None or "sample" in kinds)


#: Its lines are those of definitions, not of the code that ran.
_OF_DEFINITIONS = "pyinstrument"


@dataclass
class _Read:
    """The samples of all profiles so far, one list per column."""

    tree: Interner = field(default_factory=Interner)
    lanes: Lanes = field(default_factory=Lanes)
    issues: dict[str, int] = field(default_factory=dict)
    units: set[str | None] = field(default_factory=set)
    samples: list[Sample] = field(default_factory=list)
    lane_of: list[int] = field(default_factory=list)
    category: list[str | None] = field(default_factory=list)

    def add(
        self, profile: Profile, samples: Iterable[Sample], lane: int, category: str | None
    ) -> None:
        more = list(samples)
        self.samples += more
        self.lane_of += [lane if sample.lane is None else sample.lane for sample in more]
        self.category += [category] * len(more)
        self.units.add(unit_of(profile))


def _decoded(source: Source, text: bytes) -> File:
    try:
        return msgspec.json.decode(text, type=File)
    except _UNDECODABLE as error:
        what = str(error).splitlines()[0]
        hint = "the file may be truncated, or violate the schema of speedscope"
        raise MalformedInput(source.path, f"invalid speedscope JSON: {what}", hint=hint) from None


def _distinct(entries: list[FrameEntry]) -> tuple[list[Frame], Frames]:
    """Return the distinct frames, and each entry's number among them, ignoring column numbers."""
    numbers: dict[Frame, int] = {}
    of_entry = [
        numbers.setdefault(Frame(entry.name, entry.file or None, _line(entry.line)), len(numbers))
        for entry in entries
    ]
    texts = {
        number: frame.name.encode(errors="replace")
        for frame, number in numbers.items()
        if frame.file is None and frame.line is None
    }
    label = {number: text for number, text in texts.items() if text.startswith(LABELLED)}
    return list(numbers), Frames(of_entry, label)


def _line(line: float | None) -> int | None:
    return None if line is None or not 0 < line <= _MAX_LINE else int(line)


def _lane(name: str, owner: Owner | None, index: int, several: bool, lanes: Lanes) -> int:
    """Return the lane of a profile."""
    if owner is None:
        if not several:
            return 0
        tid = -1 - index  # negative: never a real thread id
        lanes.add_thread(None, tid, name)
        lanes.textual.add((None, tid))
        return lanes.of(None, tid)
    if owner.pid is not None:
        lanes.add_process(owner.pid, None, None)
    if owner.tid is not None:
        # py-spy writes "" if the thread had no name at its first sample
        lanes.add_thread(owner.pid, owner.tid, owner.thread or None)
    return lanes.of(owner.pid, owner.tid)


def _trace(
    source: Source, read: _Read, frames: list[Frame], rank: int | None, *, events: bool
) -> Trace:
    unit = next(iter(read.units)) if len(read.units) == 1 else None
    if len(read.units) > 1:
        read.issues["mixed-units"] = 1
    trace = Trace(
        sources=(Meta(path=source.path, format=FORMAT.name, rank=rank, weight_unit=unit),),
        lanes=tables.lanes_table(read.lanes, rank),
        issues=issue_rows(map(_issue, read.issues.items()), rank),
    )
    if not events:
        return trace
    samples = read.samples
    tree = read.tree.tree(np.array([sample.leaf for sample in samples], np.uint32))
    table = tables.sample_events(
        read.lanes,
        np.array(read.lane_of, np.uint32),
        np.array([sample.weight for sample in samples], np.float64),
        tree.leaf,
        rank,
        ts=pl.Series([sample.ts for sample in samples], dtype=pl.Int64),
        category=pl.Series(read.category, dtype=schema.NAME),
    )
    return sort_events(replace(trace, events=table, stacks=tables.stacks_table(tree, frames)))


def _issue(counted: tuple[str, int]) -> Issue:
    code, _, place = counted[0].partition(": ")
    severity = "notice" if code in _NOTICES else "data_loss"
    return severity, code, counted[1], place or None


FORMAT: Format = Format(
    name="speedscope",
    suffixes=(".speedscope.json", ".json"),
    description="speedscope JSON, sampled and evented",
    sniff=sniff,
    parse=parse,
    priority=50,
)
