"""One table of a result as CSV: all rows and columns in raw units, for other programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from traceanalyzer.result import Result

# Spreadsheets run a cell that starts like this as a formula.
_FORMULA = r"^[=+\-@\t\r\n]"


def render(result: Result, *, table: str | None = None, top: int | None = None) -> str:
    """One table, by default the first; null is an empty cell, a list its JSON.

    Text that a spreadsheet would run as a formula gets a leading apostrophe; numbers never do.

    Raises:
        KeyError: the result has no table of that name.
    """
    frame = result.to_polars(table)
    rows = frame if top is None else frame.head(top)
    return pl.DataFrame([_column(rows[name]) for name in rows.columns]).write_csv()


def _column(values: pl.Series) -> pl.Series:
    if values.dtype.is_nested():
        lists = [None if value is None else json.dumps(value) for value in values.to_list()]
        return pl.Series(values.name, lists, dtype=pl.String)
    if isinstance(values.dtype, (pl.String, pl.Categorical, pl.Enum)):
        return values.cast(pl.String).str.replace(_FORMULA, "'$0")
    return values
