"""One table of a result as CSV: all rows and columns in raw units, for other programs."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceanalyzer.result import Result

# Spreadsheets run a cell that starts like this as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def render(result: Result, *, table: str | None = None, top: int | None = None) -> str:
    """One table, by default the first; null is an empty cell.

    Text that a spreadsheet would run as a formula gets a leading apostrophe; numbers never do.

    Raises:
        KeyError: the result has no table of that name.
    """
    frame = result.to_polars(table)
    rows = frame if top is None else frame.head(top)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell, frame.columns))
    writer.writerows(map(_cell, row) for row in rows.iter_rows())
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        value = json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value
