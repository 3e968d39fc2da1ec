"""The shape of a speedscope file; members that are not read are not named."""

from __future__ import annotations

from msgspec import Raw, Struct


class FrameEntry(Struct):
    """A function; the line counts from 1."""

    name: str
    file: str | None = None
    line: float | None = None


class Shared(Struct):
    """What all profiles refer to by index."""

    frames: list[FrameEntry]


class File(Struct):
    """The whole file; each profile is read by itself, so that a bad one spoils no other."""

    profiles: list[Raw]
    shared: Shared


class Sampled(Struct, tag="sampled", tag_field="type"):
    """Stacks and how much each counts; without weights each counts once."""

    samples: list[list[int]]
    weights: list[float] | None = None
    name: str = ""
    unit: str = "none"
    startValue: float = 0.0  # noqa: N815 - the file's words
    endValue: float | None = None  # noqa: N815


class Event(Struct):
    """A frame opened (``O``) or closed (``C``)."""

    type: str
    at: float
    frame: int


class Evented(Struct, tag="evented", tag_field="type"):
    """Calls and returns in the order of time."""

    events: list[Event]
    name: str = ""
    unit: str = "none"
    startValue: float = 0.0  # noqa: N815
    endValue: float | None = None  # noqa: N815


Profile = Sampled | Evented
