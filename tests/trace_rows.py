"""Tables for tests, from incomplete rows."""

from __future__ import annotations

from typing import Any

import polars as pl

from traceanalyzer import schema


def table(name: str, *rows: dict[str, Any], drop: tuple[str, ...] = ()) -> pl.DataFrame:
    """Return a table of the schema; missing values are null."""
    columns = [c for c in schema.TABLES[name] if c.name not in drop]
    full = [{c.name: row.get(c.name) for c in columns} for row in rows]
    return pl.DataFrame(full, schema={c.name: c.dtype for c in columns})
