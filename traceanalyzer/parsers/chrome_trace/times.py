"""Times in microseconds, as a file wrote them, to exact nanoseconds."""

from __future__ import annotations

import re
from array import array

import msgspec

from traceanalyzer.parsers.chrome_trace.decode import NULL

INT64_MAX = (1 << 63) - 1

_integers = msgspec.json.Decoder(list[int])
_not_milli = re.compile(rb'\.(?!\d{3}(?:,|$))|[eE"]')
_number = re.compile(rb'"?\s*(-?)(\d+)(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?\s*"?')


def nanoseconds(texts: list[msgspec.Raw]) -> tuple[array[int], int]:
    """A column of JSON numbers in us as Int64 ns, ``NULL`` for null; and how many were no time."""
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


def _one_by_one(texts: list[msgspec.Raw]) -> tuple[array[int], int]:
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
