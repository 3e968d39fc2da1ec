"""Protobuf encoding of many messages at once, from columns.

A :class:`Layout` describes messages that have the same fields: constant bytes and columns of
integers. Every integer of a column takes the same number of bytes: a varint may be padded with zero
groups (``0x80``), which all decoders accept. So all messages of a layout have the same length,
nested lengths are constants, and encoding is one assignment per byte of the layout for all rows,
without a loop over messages.

https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Column = npt.NDArray[np.generic]

_VARINT, _FIXED64, _DELIMITED = 0, 1, 2
#: Bits per byte of a varint; its longest form.
_BITS, _LONGEST = 7, 10


def varint(value: int, width: int = 0) -> bytes:
    """Encode an integer >= 0, padded to ``width`` bytes."""
    groups = []
    while True:
        groups.append(value & 0x7F)
        value >>= _BITS
        if not value and len(groups) >= width:
            break
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


def number(tag: int, value: int, width: int = 0) -> bytes:
    """Encode an integer field; a negative one as int64."""
    return varint(tag << 3 | _VARINT) + varint(value % (1 << 64), width)


def fixed64(tag: int, value: int) -> bytes:
    """Encode a fixed64 field."""
    return varint(tag << 3 | _FIXED64) + value.to_bytes(8, "little")


def delimited(tag: int, *content: bytes | str) -> bytes:
    """Encode a message, bytes or text field."""
    data = b"".join(part.encode() if isinstance(part, str) else part for part in content)
    return varint(tag << 3 | _DELIMITED) + varint(len(data)) + data


def width_of(values: Column) -> int:
    """Return the number of bytes of the longest varint of a column."""
    if not values.size:
        return 1
    if values.dtype.kind == "i" and int(values.min()) < 0:
        return _LONGEST
    return max(-(-int(values.max()).bit_length() // _BITS), 1)


@dataclass(frozen=True)
class Value:
    """A column in a layout: the bytes of the tag, and how each number is encoded.

    Attributes:
        key: position of the column among those passed to :meth:`Layout.encode`.
        width: bytes per number.
        fixed: 8 bytes, little endian (fixed64 and double), instead of a varint.
    """

    key: int
    width: int
    fixed: bool = False


Part = bytes | Value


def value(tag: int, key: int, width: int) -> tuple[Part, ...]:
    """Return the parts of an integer field whose values are a column."""
    return varint(tag << 3 | _VARINT), Value(key, width)


def fixed(tag: int, key: int) -> tuple[Part, ...]:
    """Return the parts of a fixed64 or double field whose values are a column."""
    return varint(tag << 3 | _FIXED64), Value(key, 8, fixed=True)


def message(tag: int, *content: Part) -> tuple[Part, ...]:
    """Return the parts of a nested message."""
    length = sum(_length(part) for part in content)
    return varint(tag << 3 | _DELIMITED) + varint(length), *content


def _length(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part.width


@dataclass(frozen=True)
class Layout:
    """Messages with the same fields.

    Attributes:
        parts: constant bytes and columns, in order.
    """

    parts: tuple[Part, ...]
    width: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", sum(map(_length, self.parts)))

    def place_of(self, key: int) -> int:
        """Return the offset of a column within a message."""
        at = 0
        for part in self.parts:
            if isinstance(part, Value) and part.key == key:
                return at
            at += _length(part)
        raise KeyError(key)

    def encode(self, columns: Sequence[Column], rows: int) -> Bytes:
        """Return the messages, one row of bytes per message.

        Args:
            columns: the columns, by the keys of the layout; each with ``rows`` numbers.
            rows: number of messages.
        """
        out = np.empty((rows, self.width), np.uint8)
        at = 0
        for part in self.parts:
            end = at + _length(part)
            if isinstance(part, bytes):
                out[:, at:end] = np.frombuffer(part, np.uint8)
            elif part.fixed:
                numbers = np.ascontiguousarray(columns[part.key])
                out[:, at:end] = numbers.view(np.uint8).reshape(rows, 8)
            else:
                _put_varints(out[:, at:end], columns[part.key])
            at = end
        return out


def _put_varints(out: Bytes, values: Column) -> None:
    rest = values.astype(np.uint64)
    width = out.shape[1]
    for at in range(width):
        group = rest.astype(np.uint8) & np.uint8(0x7F)
        out[:, at] = group | np.uint8(0x80) if at < width - 1 else group
        if at < width - 1:
            rest >>= np.uint64(_BITS)


def interleaved(
    parts: Sequence[tuple[npt.NDArray[np.int64], Bytes]], rows: int
) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Join encoded messages of several layouts in a common order.

    Args:
        parts: of each layout, the positions of its messages in the common order, and the messages.
        rows: number of messages of all layouts; each position occurs once.

    Returns:
        The bytes, and the offset of each message in them.
    """
    widths = np.zeros(rows, np.int64)
    for positions, encoded in parts:
        widths[positions] = encoded.shape[1]
    ends = np.cumsum(widths)
    offsets = ends - widths
    out = np.empty(int(ends[-1]) if rows else 0, np.uint8)
    for positions, encoded in parts:
        out[offsets[positions][:, None] + np.arange(encoded.shape[1])] = encoded
    return out, offsets
