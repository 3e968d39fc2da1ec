"""Tables shared by the memory analyses."""

import polars as pl

from traceanalyzer.analyzers.common import display
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import headings, table_of_known
from traceanalyzer.analyzers.memory.attribution import frame_text
from traceanalyzer.result import Table

#: Headings of tables of live memory.
ALIVE = headings(
    "on: device, event, at: line of code, leaf: innermost frame, category, n, live_bytes: bytes, "
    "live_frac: share"
)


def known_table(
    name: str, title: str, frame: pl.DataFrame, columns: dict[str, str], *, detail: bool = False
) -> Table:
    """Return a table without columns of nulls, and without the device column of a single device."""
    located = frame.with_columns(display.places(frame))
    columns = {name: heading for name, heading in columns.items() if name in located.columns}
    if frame.select("rank", "path", "device").n_unique() < 2:
        del columns["on"]
    if frame.is_empty():
        return Table(name, title, located, columns, detail=detail)
    return table_of_known(name, title, located, columns, detail=detail)


def with_line(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with ``at``: function, file and line as one text."""
    texts = [frame_text(*row) for row in frame.select("function", "file", "line").rows()]
    return frame.with_columns(at=pl.Series(texts, dtype=pl.String))


def summed(alive: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the sums of ``alive`` by fewer columns, largest first."""
    sums = alive.group_by(keys).agg(pl.col("n", "live_bytes", "live_frac").sum())
    return largest_first(sums, "live_bytes", *keys)


def times_of(n: int) -> str:
    """Return ``once``, ``twice`` or ``3 times``."""
    return {1: "once", 2: "twice"}.get(n, f"{n:,} times")
