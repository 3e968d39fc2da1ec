"""Protobuf's encoding: the fields of a message, the packets of a trace, track events as JSON.

:func:`packets` and :func:`writer` are compiled (``_wire.c``); the versions here do the same.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
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
_DEEPEST = 64
_LONGEST = 10
_UINT64, _SIGN = (1 << 64) - 1, 1 << 63
_STATE_FIELDS = frozenset((6, 12, 43, 44, 50, 52, 53, 59, 60))
_OF_PACKET = frozenset((3, 42, 79, 87, 98))


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


# --- packets ---------------------------------------------------------------------------------


def packets(data: memoryview) -> tuple[dict[str, Ints], int]:
    """Return the packets of a trace as columns, and the offset after the last packet.

    ``at`` and ``length`` are the packet, ``event`` and ``event_length`` its track event; ``ts``,
    ``clock`` and ``track`` are :data:`NULL` if they are not given. Packets that say nothing are
    left out, except the first packet.
    """
    if _wire is not None:
        columns, end = _wire.packets(data)
        return {
            name: np.frombuffer(column, np.int64)
            for name, column in zip(COLUMNS, columns, strict=True)
        }, end
    found, end = _packets(data)  # type: ignore[unreachable]
    table = np.array(found, np.int64).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, table.T, strict=True)), end


def _packets(data: memoryview) -> tuple[list[list[int]], int]:
    rows: list[list[int]] = []
    at = 0
    while at < len(data):
        try:
            field, after = _next(data, at, len(data))
        except Damaged:
            break
        at = after
        if field.number == 1 and field.type == DELIMITED:
            row = _packet(data, field)
            if not rows or row["kind"] or row["flags"] or row["ts"] != NULL:
                rows.append(list(row.values()))
    return rows, at


def _packet(data: memoryview, packet: Field) -> dict[str, int]:
    row = dict.fromkeys(COLUMNS, 0)
    row |= {"at": packet.at, "length": packet.value}
    row |= {"ts": NULL, "clock": NULL, "track": NULL}
    try:
        for field in fields(data, packet.at, packet.at + packet.value):
            _put_field(data, field, row)
    except Damaged:
        row["kind"] |= IS_BAD
    return {column: signed(value & _UINT64) for column, value in row.items()}


def _put_field(data: memoryview, field: Field, row: dict[str, int]) -> None:
    number, value = field.number, field.value
    if number == 8:
        row["ts"] = value
    elif number == 10:
        row["sequence"] = value & 0xFFFFFFFF
    elif number == 13:
        row["flags"] |= value
    elif number == 41:
        row["flags"] |= value != 0
    elif number == 58:
        row["clock"] = value & 0xFFFFFFFF
    elif number == 11:
        if field.type != DELIMITED:
            raise Damaged
        row["kind"] |= IS_EVENT
        row |= {"event": field.at, "event_length": value}
        try:
            for one in fields(data, field.at, field.at + value):
                _put_event(one, row)
        except Damaged:
            row["kind"] |= IS_BAD
    elif number in _STATE_FIELDS:
        row["kind"] |= IS_STATE
    elif number not in _OF_PACKET:
        row["kind"] |= IS_OTHER


def _put_event(field: Field, row: dict[str, int]) -> None:
    if field.number == 9:
        row["type"] = field.value
    elif field.number == 11:
        row["track"] = field.value
    elif field.number in (30, 44):
        row["value"] = field.value
        row["kind"] |= HAS_VALUE | (IS_DOUBLE if field.number == 44 else 0)
    elif field.number in (12, 46):
        row["kind"] |= HAS_EXTRA
    elif field.number in (36, 42, 47, 48):
        row["kind"] |= HAS_FLOWS


def flows(data: memoryview, rows: Ints) -> tuple[Ints, int]:
    """Return the arrows of track events: row, id (as int64), and 1 if the arrow ends there.

    Arrows beyond the first :data:`MOST_ARROWS` of an event are counted only: a packed list of ids
    compresses to almost nothing. The number of these is returned too.

    Args:
        data: the trace.
        rows: place and length of each track event.
    """
    if _wire is not None:
        found, left_out = _wire.flows(data, rows.tobytes())
        return np.frombuffer(found, np.int64).reshape(-1, 3), left_out
    points: list[tuple[int, int, int]] = []  # type: ignore[unreachable]
    left_out = 0
    for row, (at, length) in enumerate(rows.tolist()):
        arrows = (
            (row, signed(id_), int(field.number in (42, 48)))
            for field in whole_fields(data, at, at + length)
            if field.number in (36, 42, 47, 48)
            for id_ in _repeated(data, field)
        )
        points.extend(islice(arrows, MOST_ARROWS))
        left_out += sum(1 for _ in arrows)
    return np.array(points, np.int64).reshape(-1, 3), left_out


def _repeated(data: memoryview, field: Field) -> Iterator[int]:
    """Yield the numbers of a repeated field, which may be packed."""
    if field.type != DELIMITED:
        yield field.value
        return
    at, end = field.at, field.at + field.value
    try:
        while at < end:
            if field.number > 42:
                if end - at < 8:
                    return
                value, at = int.from_bytes(data[at : at + 8], "little"), at + 8
            else:
                value, at = _varint(data, at, end)
            yield value
    except Damaged:
        return


def memory_packets(head: bytes) -> tuple[list[int], bool]:
    """Return the kinds of the packets in the first bytes, and whether no other bytes follow."""
    columns, end = packets(memoryview(head))
    return columns["kind"].tolist(), end == len(head)


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
    few = wanted - inputs
    if _wire is not None:
        implied = b"".join(bytes((len(k), len(v))) + k + v for k, v in kinds.items())
        ids, args = (_packed(dict(enumerate(one))) for one in zip(*tracks, strict=True))
        tables = tuple(_packed(table) for state in states for table in state)
        names = _lengths_and_names(wanted), _lengths_and_names(few)
        return lambda rows: _wire.texts(data, rows.tobytes(), ids, args, tables, implied, *names)

    def write(rows: Ints) -> tuple[bytes, int]:  # type: ignore[unreachable]
        one = _Writer(data, kinds, wanted, few)
        parts = [one.event(row, tracks[row[6]], states[row[7]]) for row in rows.tolist()]
        return b"".join(parts), one.unknown

    return write


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


class _Writer:
    """Writes events; counts unknown ids."""

    def __init__(
        self,
        data: memoryview,
        kinds: Mapping[bytes, bytes],
        wanted: frozenset[bytes],
        few: frozenset[bytes],
    ) -> None:
        self.data, self.kinds, self.wanted, self.few, self.unknown = data, kinds, wanted, few, 0

    def event(self, row: list[int], track: tuple[bytes, bytes], state: State) -> bytes:
        ts, dur, at, length, end_at, end_length, *_ = row
        parts = [b'{"ph":"i",' if dur == INSTANT else b'{"ph":"X",', track[0], b',"ts":', us(ts)]
        if dur >= 0:
            parts += [b',"dur":', us(dur)]
        name = self._name_of(at, at + length) or self._name_of(end_at, end_at + end_length)
        no_inputs = name is not None and name.number == 10 and name.value in state.no_inputs
        wanted = self.few if no_inputs else self.wanted
        args, categories = self._arguments(at, at + length, state, wanted)
        more, others = self._arguments(end_at, end_at + end_length, state, wanted)
        known = ([track[1]] if track[1] else []) + args + more
        parts += [b',"args":{', b",".join(known), b"}"]
        if name is not None and name.number == 23:
            parts += [b',"name":', self._text(name)]
        elif name is not None:
            parts += [b',"name":', self._interned(state.names, name.value, b"null")]
        if text := b",".join(categories + others):
            parts += [b',"cat":"', text, b'"']
        elif category := self._implied(at, at + length, state):
            parts += [b',"cat":', category]
        return b"".join([*parts, b"},\n"])

    def _name_of(self, at: int, end: int) -> Field | None:
        for field in whole_fields(self.data, at, end):
            is_text = field.type == DELIMITED
            if field.number in (10, 23) and is_text == (field.number == 23):
                return field
        return None

    def _arguments(
        self, at: int, end: int, state: State, wanted: frozenset[bytes]
    ) -> tuple[list[bytes], list[bytes]]:
        args, categories = [], []
        for field in whole_fields(self.data, at, end):
            is_text = field.type == DELIMITED
            if field.number == 4 and is_text and self._is_wanted(field, wanted):
                args.append(self._annotation(field, state, 0, named=True))
            elif field.number == 22 and is_text:
                categories.append(self._text(field)[1:-1])
            elif field.number == 3 and field.type == VARINT:
                known = self._interned(state.categories, field.value, b"")
                categories += [known[1:-1]] if known else []
        return args, categories

    def _is_wanted(self, annotation: Field, wanted: frozenset[bytes]) -> bool:
        if not wanted:
            return True
        for name in whole_fields(self.data, annotation.at, annotation.at + annotation.value):
            if name.number == 1:
                return True
            if name.number == 10 and name.type == DELIMITED:
                return bytes(self.data[name.at : name.at + name.value]) in wanted
        return False

    def _implied(self, at: int, end: int, state: State) -> bytes | None:
        """Return the category that the arguments imply."""
        for one in whole_fields(self.data, at, end):
            if one.number == 4 and one.type == DELIMITED:
                for name in whole_fields(self.data, one.at, one.at + one.value):
                    if name.number == 10 and name.type == DELIMITED:
                        key = bytes(self.data[name.at : name.at + name.value])
                    elif name.number == 1:
                        key = state.keys.get(name.value, b"")[1:-1]
                    else:
                        continue
                    if key in self.kinds:
                        return self.kinds[key]
        return None

    def _text(self, field: Field) -> bytes:
        raw = bytes(self.data[field.at : field.at + field.value])
        escaped = bytearray()
        for byte in raw:
            special = byte < 0x20 or byte in b'"\\'
            escaped += b"\\u%04x" % byte if special else bytes((byte,))
        return b'"' + escaped + b'"'

    def _interned(self, table: Texts, id_: int, default: bytes) -> bytes:
        known = table.get(id_)
        self.unknown += known is None
        return default if known is None else known

    def _annotation(self, message: Field, state: State, depth: int, *, named: bool) -> bytes:
        name = value = None
        end = message.at + message.value
        for field in whole_fields(self.data, message.at, end):
            if field.number in (1, 10):
                name = field
            elif 2 <= field.number <= 12 or field.number == 17:
                value = field
        prefix = self._name(name, state) + b":" if named else b""
        return prefix + self._value(value, message, state, depth)

    def _name(self, name: Field | None, state: State) -> bytes:
        if name is not None and name.number == 10 and name.type == DELIMITED:
            return self._text(name)
        id_ = name.value if name is not None and name.number == 1 else NULL
        return self._interned(state.keys, id_, b'""')

    def _value(self, field: Field | None, message: Field, state: State, depth: int) -> bytes:
        number = 0 if field is None or depth >= _DEEPEST else field.number
        if field is None or (number in (6, 9, 11, 12)) != (field.type == DELIMITED):
            return b"null"
        if number == 2:
            return b"true" if field.value else b"false"
        if number in (3, 7):
            return b"%d" % field.value
        if number == 4:
            return b"%d" % signed(field.value)
        if number == 5:
            value = double(field.value)
            return repr(value).encode() if math.isfinite(value) else b"null"
        if number in (6, 9):
            return self._text(field)
        if number in (11, 12):
            parts = [
                self._annotation(one, state, depth + 1, named=number == 11)
                for one in whole_fields(self.data, message.at, message.at + message.value)
                if one.number == number and one.type == DELIMITED
            ]
            brackets = b"{%s}" if number == 11 else b"[%s]"
            return brackets % b",".join(parts)
        if number == 17:
            return self._interned(state.strings, field.value, b"null")
        return b"null"


def us(ns: int) -> bytes:
    """Return nanoseconds as microseconds in JSON."""
    sign = b"-" if ns < 0 else b""
    return b"%s%d.%03d" % (sign, abs(ns) // 1000, abs(ns) % 1000)
