"""Tables that the analyses of memory share."""

import polars as pl

from traceanalyzer.analyzers.common import places
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import headings, table_of_known
from traceanalyzer.analyzers.memory.attribution import frame_text
from traceanalyzer.result import Table

#: Of what is live, by any columns.
ALIVE = headings(
    "on: device, event, at: line of code, leaf: innermost frame, category, n, live_bytes: bytes, "
    "live_frac: share"
)


def shown_table(
    name: str, title: str, frame: pl.DataFrame, columns: dict[str, str], *, detail: bool = False
) -> Table:
    """A table without the columns of which nothing is known, nor that of the only device."""
    shown = frame.with_columns(places.places(frame))
    columns = {one: heading for one, heading in columns.items() if one in shown.columns}
    if frame.select("rank", "path", "device").n_unique() < 2:
        del columns["on"]
    if frame.is_empty():
        return Table(name, title, shown, columns, detail=detail)
    return table_of_known(name, title, shown, columns, detail=detail)


def with_line(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with ``at``: function, file and line as one text."""
    texts = [frame_text(*row) for row in frame.select("function", "file", "line").rows()]
    return frame.with_columns(at=pl.Series(texts, dtype=pl.String))


def summed(alive: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Rows of ``alive`` by fewer columns, the most bytes first."""
    sums = alive.group_by(keys).agg(pl.col("n", "live_bytes", "live_frac").sum())
    return largest_first(sums, "live_bytes", *keys)


def times_of(n: int) -> str:
    """``once``, ``twice``, ``3 times``."""
    return {1: "once", 2: "twice"}.get(n, f"{n:,} times")
