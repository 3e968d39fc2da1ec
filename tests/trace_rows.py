"""Tables for tests, from rows that say only what matters."""

from __future__ import annotations

from typing import Any

import polars as pl

from traceanalyzer import schema


def table(name: str, *rows: dict[str, Any], drop: tuple[str, ...] = ()) -> pl.DataFrame:
    """Rows of a table of the schema; what a row leaves out is null."""
    columns = [c for c in schema.TABLES[name] if c.name not in drop]
    full = [{c.name: row.get(c.name) for c in columns} for row in rows]
    return pl.DataFrame(full, schema={c.name: c.dtype for c in columns})
