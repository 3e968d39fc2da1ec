"""Times in microseconds, as a file wrote them, to exact nanoseconds."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace.decode import EXACT_US, NO_TIME, NULL, Event, QuickEvent

INT64_MAX = (1 << 63) - 1

_integers = msgspec.json.Decoder(list[int])
_not_milli = re.compile(rb'\.(?!\d{3}(?:,|$))|[eE"]')
_number = re.compile(rb'"?\s*(-?)(\d+)(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?\s*"?')


class InexactTimeError(ValueError):
    """A time is too large for a double to tell its nanoseconds apart: read it as text."""


@dataclass
class Times:
    """A column of times: Int64 ns, or doubles in us that the assembler turns into ns.

    Attributes:
        column: the values, ``NULL`` or ``NO_TIME`` where there is none.
        bad: how many values were no time at all; they are missing now.
    """

    column: array[int] | array[float]
    bad: int = 0

    @property
    def missing(self) -> float:
        """The value that says there is no time."""
        return NO_TIME if self.column.typecode == "d" else NULL

    def take(self, rows: Iterable[int]) -> Times:
        """Only these rows."""
        column = self.column
        return Times(array(column.typecode, [column[row] for row in rows]))

    def nanoseconds(self) -> list[int]:
        """The values as integers in ns, ``NULL`` where there is none."""
        if self.column.typecode == "q":
            return self.column.tolist()  # type: ignore[return-value]
        return [NULL if us == NO_TIME else nanoseconds_of(us) for us in self.column]


def starts(events: list[Event]) -> Times:
    """The events' ``ts``.

    Raises:
        InexactTimeError: doubles do not do for these.
    """
    values: list[Any] = [event.ts for event in events]
    if events and type(events[0]) is QuickEvent:
        column = array("d", values)
        if max(column) >= EXACT_US or -EXACT_US >= min(column) != NO_TIME:
            raise InexactTimeError
        return Times(column)
    return Times(*_from_texts(values))


def durations(events: list[Event]) -> Times:
    """The events' ``dur``.

    Raises:
        InexactTimeError: doubles do not do for these.
    """
    values: list[Any] = [event.dur for event in events]
    if events and type(events[0]) is QuickEvent:
        column = array("d", values)
        if max(column) >= EXACT_US:
            raise InexactTimeError
        return Times(column)
    return Times(*_from_texts(values))


def instant(event: Event) -> int | None:
    """One event's ``ts`` in ns; None when it has none."""
    if isinstance(event, QuickEvent):
        return None if event.ts == NO_TIME else nanoseconds_of(event.ts)
    return nanosecond(bytes(event.ts))


def nanoseconds_of(us: float) -> int:
    """The nearest ns of a double below ``EXACT_US``; whole us and the rest apart, for exactness."""
    whole = int(us // 1)
    return whole * 1000 + round((us - whole) * 1000)


def _from_texts(texts: list[Any]) -> tuple[array[int], int]:
    """Int64 ns of a column of JSON numbers, null for ``null``, and how many were no time."""
    text = b",".join(texts)
    missing = text.count(b"null")
    dots = text.count(b".")
    fill = b"%d" % NULL
    try:
        if dots == 0 and not _not_milli.search(text):
            fill = b"%d" % (NULL // 1000)
            values = _integers.decode(b"[" + text.replace(b"null", fill) + b"]")
            return _thousandfold(values), 0
        if dots == len(texts) - missing and not _not_milli.search(text):
            # 5345121.123 us is the integer 5345121123 in ns; leading zeros go, JSON has none
            text = b"," + text.replace(b"null", fill)
            for leading in (b",0.00", b",0.0", b",0."):
                text = text.replace(leading, b",")
            return array("q", _integers.decode(b"[" + text[1:].replace(b".", b"") + b"]")), 0
    except (msgspec.DecodeError, OverflowError):
        pass
    return _one_by_one(texts)


def _thousandfold(values: list[int]) -> array[int]:
    null = NULL // 1000
    return array("q", [v * 1000 if v != null else NULL for v in values])


def _one_by_one(texts: list[Any]) -> tuple[array[int], int]:
    column = array("q")
    bad = 0
    for text in texts:
        value = nanosecond(bytes(text))
        bad += value is None and bytes(text) != b"null"
        column.append(NULL if value is None else value)
    return column, bad


def nanosecond(text: bytes) -> int | None:
    """One time in microseconds, as JSON text, to the nearest nanosecond; None if it is none."""
    match = _number.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, exponent = match.groups()
    digits = whole + (fraction or b"")
    if len(digits) > 400:
        return None
    power = 3 - len(fraction or b"") + int(exponent or 0)
    if power >= 0:
        value = int(digits) * 10 ** min(power, 40)
    else:
        unit: int = 10 ** min(-power, 500)
        value = (int(digits) + unit // 2) // unit
    value = -value if sign else value
    return value if -INT64_MAX <= value <= INT64_MAX else None
