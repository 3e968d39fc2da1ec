"""Protobuf's encoding: the fields of a message, the packets of a trace, track events as JSON.

:func:`packets`, :func:`flows` and :func:`writer` are compiled (``_wire.c``): without it no trace is
read. The rest recognises traces, and reads the few packets that describe others.

https://protobuf.dev/programming-guides/encoding/
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

try:
    from traceanalyzer.parsers.perfetto import _wire
except ImportError:  # pragma: no cover - built without a compiler
    _wire = None  # type: ignore[assignment]

Ints = npt.NDArray[np.int64]
#: Texts by id, as JSON.
Texts = Mapping[int, bytes]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
NULL = -(1 << 63)
INSTANT = -1
#: Columns of :func:`packets`.
COLUMNS = (
    "at", "length", "ts", "sequence", "flags", "clock", "kind", "event", "event_length", "type",
    "track", "value",
)  # fmt: skip
#: Bits of ``kind``.
IS_EVENT, IS_STATE, HAS_EXTRA, HAS_FLOWS, IS_OTHER, IS_DOUBLE, HAS_VALUE, IS_BAD = (
    1, 2, 4, 8, 16, 32, 64, 128,
)  # fmt: skip
#: Columns of the rows that :func:`writer` writes.
ROW = ("ts", "dur", "at", "length", "end_at", "end_length", "track", "state")
#: Arrows of an event that are read; recorded events have a few.
MOST_ARROWS = 1024
_LONGEST = 10
_UINT64, _SIGN = (1 << 64) - 1, 1 << 63
_EVENT = 11
#: Fields of a packet with a track event, or with a description of others.
_DESCRIBED = frozenset((6, _EVENT, 12, 43, 44, 50, 52, 53, 59, 60))


class Damaged(Exception):
    """A message that is not protobuf, from this place on."""


class Field(NamedTuple):
    """A field of a message: for a delimited one, ``value`` is its length and ``at`` its place."""

    number: int
    type: int
    value: int
    at: int


def fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises:
        Damaged: the rest of the message is not protobuf.
    """
    while at < end:
        field, at = _next(data, at, end)
        yield field


def whole_fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """Like :func:`fields`, but end at the damage."""
    try:
        yield from fields(data, at, end)
    except Damaged:
        return


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(end, at + _LONGEST)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64, place + 1
        shift += 7
    raise Damaged


def _next(data: memoryview, at: int, end: int) -> tuple[Field, int]:
    key, at = _varint(data, at, end)
    number, type_ = key >> 3, key & 7
    if not 0 < number < 1 << 29:
        raise Damaged
    if type_ == VARINT:
        value, after = _varint(data, at, end)
        return Field(number, type_, value, at), after
    if type_ == DELIMITED:
        size, at = _varint(data, at, end)
        if size > end - at:
            raise Damaged
        return Field(number, type_, size, at), at + size
    width = {FIXED64: 8, FIXED32: 4}.get(type_)
    if width is None or end - at < width:
        raise Damaged
    return Field(number, type_, int.from_bytes(data[at : at + width], "little"), at), at + width


def signed(value: int) -> int:
    """Return the int64 with these bits."""
    return value - (1 << 64) if value & _SIGN else value


def double(value: int) -> float:
    """Return the double with these bits."""
    number: float = struct.unpack("<d", value.to_bytes(8, "little"))[0]
    return number


def text(data: memoryview, field: Field) -> str:
    """Return a text field; bytes that are not UTF-8 are replaced."""
    if field.type != DELIMITED:
        return ""
    return bytes(data[field.at : field.at + field.value]).decode("utf-8", "replace")


def quoted(content: str) -> bytes:
    """Return a text as JSON."""
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values, sorted, and the place of each value among them."""
    if not len(values) or values.min() == values.max():  # one sequence and one clock, mostly
        return values[:1].copy(), np.zeros(len(values), np.int64)
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    length = np.diff(np.concatenate([first, [len(values)]]))
    known = np.unique(values[first])  # few
    return known, np.repeat(np.searchsorted(known, values[first]), length)


def is_compiled() -> bool:
    """Whether the compiled functions are installed."""
    return _wire is not None


# --- packets ---------------------------------------------------------------------------------


def packets(data: memoryview) -> tuple[dict[str, Ints], int]:
    """Return the packets of a trace as columns, and the offset after the last packet.

    ``at`` and ``length`` are the packet, ``event`` and ``event_length`` its track event; ``ts``,
    ``clock`` and ``track`` are :data:`NULL` if they are not given. Packets that say nothing are
    left out, except the first packet.
    """
    columns, end = _wire.packets(data)
    return {
        name: np.frombuffer(column, np.int64) for name, column in zip(COLUMNS, columns, strict=True)
    }, end


def flows(data: memoryview, rows: Ints) -> tuple[Ints, int]:
    """Return the arrows of track events: row, id (as int64), and 1 if the arrow ends there.

    Arrows beyond the first :data:`MOST_ARROWS` of an event are counted only: a packed list of ids
    compresses to almost nothing. The number of these is returned too.

    Args:
        data: the trace.
        rows: place and length of each track event.
    """
    points, left_out = _wire.flows(data, rows.tobytes())
    return np.frombuffer(points, np.int64).reshape(-1, 3), left_out


def are_packets(head: bytes) -> bool:
    """Whether the first bytes of a file are packets: two with content, and none damaged."""
    data = memoryview(head)
    known = [
        _has_content(data, one)
        for one in whole_fields(data, 0, len(data))
        if one.number == 1 and one.type == DELIMITED
    ]
    return known.count(True) > 1 and None not in known[:-1]


def _has_content(data: memoryview, packet: Field) -> bool | None:
    """Whether a packet has an event or describes others; None if it is damaged."""
    numbers = set()
    try:
        for one in fields(data, packet.at, packet.at + packet.value):
            numbers.add(one.number)
            if one.number == _EVENT:
                if one.type != DELIMITED:
                    return None
                for _ in fields(data, one.at, one.at + one.value):
                    pass
    except Damaged:
        return None
    return not numbers.isdisjoint(_DESCRIBED)


# --- events as JSON --------------------------------------------------------------------------


class State(NamedTuple):
    """Interned texts of a packet sequence between two resets, as JSON by id.

    ``no_inputs`` are the names of the events whose inputs nobody reads.
    """

    categories: dict[int, bytes]
    names: dict[int, bytes]
    keys: dict[int, bytes]
    strings: dict[int, bytes]
    no_inputs: dict[int, bytes]


def writer(
    data: memoryview,
    tracks: list[tuple[bytes, bytes]],
    states: list[State],
    kinds: Mapping[bytes, bytes],
    wanted: frozenset[bytes],
    inputs: frozenset[bytes],
) -> Callable[[Ints], tuple[bytes, int]]:
    """Return a function that writes track events as events of Chrome's JSON.

    It returns them with the number of unknown ids in them. Its argument has the columns :data:`ROW`
    of each event: ``dur`` is :data:`INSTANT` or :data:`NULL` (open), ``at`` and ``end_at`` are the
    track events of its begin and its end. Threads may call it at the same time.

    Args:
        data: the trace.
        tracks: of each track, its ids and its arguments as JSON without brackets.
        states: interned texts.
        kinds: category (as JSON) that an argument implies, for events without one.
        wanted: names of the arguments to write, at most 255 bytes each; empty for all. Arguments
            with interned names are always written.
        inputs: names among these that events of :attr:`State.no_inputs` do without.
    """
    implied = b"".join(bytes((len(k), len(v))) + k + v for k, v in kinds.items())
    ids, args = (_packed(dict(enumerate(one))) for one in zip(*tracks, strict=True))
    tables = tuple(_packed(table) for state in states for table in state)
    names = _lengths_and_names(wanted), _lengths_and_names(wanted - inputs)
    return lambda rows: _wire.texts(data, rows.tobytes(), ids, args, tables, implied, *names)


def _lengths_and_names(names: frozenset[bytes]) -> bytes:
    return b"".join(bytes((len(name),)) + name for name in sorted(names, key=len))


def _packed(texts: Texts) -> bytes:
    """Return texts for ``_wire.c``: their number; id, place and length of each; the texts."""
    ids = np.array([signed(id_) for id_ in texts], np.int64)
    order = np.argsort(ids)
    values = list(texts.values())
    ordered = [values[row] for row in order.tolist()]
    sizes = np.array([len(one) for one in ordered], np.int64)
    places = 8 + 24 * len(ids) + np.cumsum(sizes) - sizes
    rows = np.stack([ids[order], places, sizes], axis=1)
    return b"".join([len(ids).to_bytes(8, "little"), rows.tobytes(), *ordered])


def us(ns: int) -> bytes:
    """Return nanoseconds as microseconds in JSON."""
    return b"%s%d.%03d" % (b"-" if ns < 0 else b"", abs(ns) // 1000, abs(ns) % 1000)
