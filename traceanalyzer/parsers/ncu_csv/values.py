"""Numbers and units of ncu, a column at a time.

ncu writes numbers as the locale does: ``1,234,567.89`` or ``1.234.567,89``. A single separator
before three digits is ambiguous (``1,234``): the other numbers decide. Units are scaled per cell
unless ``--print-units base`` was given: ``Kbyte``, ``msecond``, ``Gbyte/s``.
"""

from __future__ import annotations

import re
from functools import cache

import polars as pl

_SPACES = "[ \u00a0\u202f'\u2019]"
#: Numbers that are certainly written with a decimal comma, or with a decimal point.
_COMMA = r"^[+-]?(?:\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}|\d+,(?:\d{1,2}|\d{4,})|0,\d+)$"
_POINT = r"^[+-]?(?:\d{1,3}(?:,\d{3})+\.\d+|\d{1,3}(?:,\d{3}){2,}|\d+\.(?:\d{1,2}|\d{4,})|0\.\d+)$"
#: A value with those of its instances: ``12 (3; 4; 5)``.
_INSTANCES = r"^([^()]+?)\s*\(.*\)$"
#: Cells without a value.
_NOTHING = ("", "n/a", "(!) n/a", "no data", "(!) nan", "-", "--")

_TIMES = {
    "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6,
    "second": 1e9, "s": 1e9, "minute": 60e9, "hour": 3600e9,
}  # fmt: skip
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BASES = ("byte", "hz", "inst", "sector", "request", "cycle", "thread", "warp", "op", "bit")
_PREFIXED = re.compile(rf"([KkMGTP]?)({'|'.join(_BASES)})s?", re.IGNORECASE)


@cache
def unit_of(text: str) -> tuple[str, float]:
    """Return the base unit and the factor to it: ``Kbyte`` is 1000 ``byte``.

    Times become ``ns``, frequencies ``hz``, rates ``.../s``; unknown units stay as they are.
    """
    above, slash, below = text.strip().partition("/")
    if not slash:
        if above in _TIMES:
            return "ns", _TIMES[above]
        return _prefixed(above)
    unit, factor = _prefixed(above)
    if below in _TIMES:
        factor *= 1e9 / _TIMES[below]
        return ("hz", factor) if unit == "cycle" else (f"{unit}/s", factor)
    return f"{unit}/{below}", factor


def _prefixed(text: str) -> tuple[str, float]:
    match = _PREFIXED.fullmatch(text)
    if match is None:
        return text, 1.0
    prefix = match[1] if match[1] in _PREFIXES else match[1].upper()
    return match[2].lower(), _PREFIXES[prefix]


class Numbers:
    """Converts columns of text to numbers; remembers which decimal separator a file has.

    Attributes:
        decimal_comma: whether ambiguous numbers have a decimal comma; None: not known yet.
        with_comma: number of values that certainly have one.
    """

    def __init__(self) -> None:
        self.decimal_comma: bool | None = None
        self.with_comma = 0

    def convert(self, texts: pl.Series) -> pl.Series:
        """Return finite numbers as Float64; null for text, NaN, infinity and missing values."""
        cells = texts.str.strip_chars().str.replace_all(_SPACES, "")
        comma = cells.str.contains(_COMMA).fill_null(value=False)
        self._learn(cells, int(comma.sum()))
        point = _number(cells.str.replace_all(",", "", literal=True))
        if self.decimal_comma or comma.any():
            european = _number(
                cells.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
            )
            sure_point = cells.str.contains(_POINT).fill_null(value=False)
            use = (comma | ~sure_point) if self.decimal_comma else comma
            point = pl.select(pl.when(use).then(european).otherwise(point)).to_series()
        # a rare form, with a slower pattern
        if (missing := point.is_null() & cells.str.contains("(", literal=True)).any():
            first = texts.filter(missing).str.strip_chars().str.extract(_INSTANCES)
            plain = self.convert(first) if first.count() else first.cast(pl.Float64)
            point = point.scatter(missing.arg_true(), plain)
        return point

    def _learn(self, cells: pl.Series, with_comma: int) -> None:
        self.with_comma += with_comma
        if self.decimal_comma is None or (with_comma and not self.decimal_comma):
            with_point = int(cells.str.contains(_POINT).sum() or 0)
            if with_comma or with_point:
                self.decimal_comma = with_comma > with_point


def _number(cells: pl.Series) -> pl.Series:
    numbers = cells.cast(pl.Float64, strict=False)
    return numbers.set(~numbers.is_finite(), None)


def text_values(texts: pl.Series, numbers: pl.Series) -> pl.Series:
    """Return the values that are text, such as ``CachePreferNone``; null for all others."""
    cells = texts.str.strip_chars()
    lower = cells.str.to_lowercase()
    nothing = lower.is_in([*_NOTHING, "nan", "inf", "-inf", "+inf", "-nan"])
    return cells.set(numbers.is_not_null() | nothing | cells.is_null(), None)
