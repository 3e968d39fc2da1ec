"""From what a file wrote to what a column holds: integers, ids, text.

Each function has a fast route for a whole column of well-formed values and a slow one, value by
value, for columns in which somebody wrote something else.
"""

from __future__ import annotations

import re
from array import array
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace.decode import NULL

INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1
#: Null in a UInt64 column on its way to the tables.
NULL_ADDRESS = UINT64_MAX

_decimal_integer = re.compile(r"[+-]?\d{1,20}")


def integers(values: list[Any]) -> bytes:
    """A column of Int64; what is no integer becomes null."""
    try:
        return array("q", values).tobytes()
    except (TypeError, OverflowError):
        return array("q", [integer(value) for value in values]).tobytes()


def integer(value: Any) -> int:
    """An Int64 from a number or numeric text, else null."""
    if isinstance(value, str) and _decimal_integer.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and -INT64_MAX <= value <= INT64_MAX:
        return value
    return NULL


def addresses(values: list[Any]) -> bytes:
    """A column of UInt64; negative ones are two's complement, what is no integer is null."""
    try:
        return array("Q", values).tobytes()
    except (TypeError, OverflowError):
        return array("Q", [_address(value) for value in values]).tobytes()


def _address(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 16 if value.lower().startswith("0x") else 10)
        except ValueError:
            return NULL_ADDRESS
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 64:
        return value & UINT64_MAX
    return NULL_ADDRESS


class Codes(dict[str | None, int]):
    """Text to small numbers, in order of first appearance; null is the empty code."""

    EMPTY = (1 << 32) - 1

    def __init__(self) -> None:
        super().__init__({None: self.EMPTY})

    def __missing__(self, text: str) -> int:
        if type(text) is not str:
            raise TypeError("not text")
        code = self[text] = len(self) - 1
        return code

    def column(self, values: list[Any]) -> bytes:
        """Codes (UInt32) of a column of text; what is not text is made text first."""
        try:
            return array("I", map(self.__getitem__, values)).tobytes()
        except TypeError:
            return array("I", [self[text_of(value)] for value in values]).tobytes()

    def table(self) -> list[str]:
        """The texts by code."""
        return [text for text in self if text is not None]


def text_of(value: Any) -> str | None:
    """A name as text: numbers as written, structures as JSON; None stays None."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str | int | float | bool):
        return str(value)
    return msgspec.json.encode(value).decode()


def ids(values: list[Any]) -> tuple[bytes, dict[int, str]]:
    """A column of process or thread ids, and the textual ones by row.

    Integers and numeric text are ids; other text is a label (its id null here, made by the
    assembler); missing is null.
    """
    try:
        return array("q", values).tobytes(), {}
    except (TypeError, OverflowError):
        pass
    column, labels = array("q"), {}
    for row, value in enumerate(values):
        number = integer(value)
        column.append(number)
        if number == NULL and value is not None and value != NULL:
            labels[row] = text_of(value) or ""
    return column.tobytes(), labels


def label(value: Any, number: int) -> str | None:
    """The text of an id that is no number."""
    return text_of(value) if number == NULL and value is not None and value != NULL else None


def triples(values: list[Any]) -> bytes:
    """x, y, z of every value, flat, Int32; what is no triple of numbers is null (-1)."""
    try:
        flat = array("i", [number for triple in values for number in triple])
        if len(flat) == 3 * len(values) and all(len(triple) == 3 for triple in values):
            return flat.tobytes()
    except (TypeError, OverflowError):
        pass
    return array("i", [number for value in values for number in _triple(value)]).tobytes()


def _triple(value: Any) -> tuple[int, int, int]:
    if isinstance(value, list) and len(value) == 3:
        numbers = [integer(v) for v in value]
        if all(0 <= n < 1 << 31 for n in numbers):
            return numbers[0], numbers[1], numbers[2]
    return -1, -1, -1
