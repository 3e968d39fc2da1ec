"""The shape of a speedscope file; members that are not read are not named."""

from __future__ import annotations

import sys
from typing import Annotated

from msgspec import Meta, Raw, Struct

#: Text is read as a number too (dotnet-trace writes some so), but none that says "nan" or "inf".
_Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


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
    weights: list[_Finite] | None = None
    name: str = ""
    unit: str = "none"
    startValue: _Finite = 0.0  # noqa: N815 - the file's words
    endValue: _Finite | None = None  # noqa: N815


class Event(Struct):
    """A frame opened (``O``) or closed (``C``)."""

    type: str
    at: _Finite
    frame: int


class Evented(Struct, tag="evented", tag_field="type"):
    """Calls and returns in the order of time."""

    events: list[Event]
    name: str = ""
    unit: str = "none"
    startValue: _Finite = 0.0  # noqa: N815
    endValue: _Finite | None = None  # noqa: N815


Profile = Sampled | Evented
