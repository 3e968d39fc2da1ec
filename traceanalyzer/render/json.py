"""A result as JSON: raw units, keys sorted, no NaN; for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from traceanalyzer.result import Result

_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_INDENT_2
    | orjson.OPT_NON_STR_KEYS
    | orjson.OPT_SERIALIZE_NUMPY
    | orjson.OPT_APPEND_NEWLINE
)


def render(result: Result, *, top: int | None = None) -> bytes:
    """``Result.to_dict()`` with at most ``top`` rows of each table; NaN and infinity are null."""
    values = {key: _fitting(value) for key, value in result.to_dict().items()}
    if top is not None:
        values |= {table.name: table.frame.head(top).to_dicts() for table in result.tables}
    return orjson.dumps(values, option=_OPTIONS)


def _fitting(value: Any) -> Any:
    """A sum that 64 bits do not hold as the nearest number that other programs read."""
    beyond = isinstance(value, int) and not -(1 << 63) <= value < 1 << 64
    return float(value) if beyond else value
