"""Data model of a speedscope file, and conversion of a profile to samples."""

import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, NamedTuple

from msgspec import Meta, Raw, Struct

from traceanalyzer.frames.stacks import NONE, Interner

#: Numeric text is accepted too (dotnet-trace writes it), except "nan" and "inf".
_Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


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
    if scale is None or not abs(value * scale) < _MAX_NS:
        return None
    return round(value * scale)


def _note(issues: dict[str, int], code: str, count: int = 1) -> None:
    issues[code] = issues.get(code, 0) + count
