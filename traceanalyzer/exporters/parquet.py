"""traceanalyzer's Parquet layout: one Parquet file per trace.

Any Parquet reader (DuckDB, pandas, polars) reads ``events``, with the columns of the schema, and a
folder of such files as one dataset with the column ``rank``. Each of the other tables is a complete
Parquet file, embedded between the leading magic and the first row group, which readers skip because
they follow the footer's offsets. The footer's key-value metadata has::

    traceanalyzer.schema   version of the tables (an integer)
    traceanalyzer.sources  JSON list: the Meta of each source file
    traceanalyzer.tables   JSON object: table -> [first byte, number of bytes]; an empty table
                           has no entry

Enums and categoricals are stored as dictionary-encoded text, so readers need no special support.
"""

import io
from typing import IO, Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from traceanalyzer import schema
from traceanalyzer.trace import Trace

#: Rows per row group: few enough to convert and filter one group at a time.
ROWS = 1 << 18

#: Dictionary page limit, large enough for one dictionary per row group; the default is 1 MiB.
_DICTIONARY_BYTES = 1 << 26

_TEXT = (pl.Categorical, pl.Enum)


def write_parquet(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as Parquet, with one row group in memory at a time.

    Args:
        trace: the trace; all tables are written, including optional columns that it has.
        file: an empty binary file.
    """
    options = _options(trace.events)
    # one pyarrow stream for both: it tracks its position itself
    sink = pa.PythonFile(file, mode="w")
    with pq.ParquetWriter(sink, _arrow(trace.events.head(0)).schema, **options) as writer:
        places = _write_side_tables(trace, sink)
        for rows in trace.events.iter_slices(ROWS):
            writer.write_table(_arrow(rows))
        writer.add_key_value_metadata(
            {
                schema.PARQUET_VERSION: str(schema.VERSION),
                schema.PARQUET_SOURCES: orjson.dumps([meta.recorded() for meta in trace.sources]),
                schema.PARQUET_TABLES: orjson.dumps(places),
            }
        )


def _write_side_tables(trace: Trace, sink: pa.PythonFile) -> dict[str, tuple[int, int]]:
    places = {}
    for name, frame in trace.tables.items():
        if name == "events" or frame.is_empty():
            continue
        data = io.BytesIO()
        pq.write_table(_arrow(frame), data, **_options(frame))
        places[name] = (sink.tell(), data.tell())
        sink.write(data.getbuffer())
    return places


def _arrow(frame: pl.DataFrame) -> pa.Table:
    """Convert to Arrow with plain text for dictionary types: a slice keeps only its names."""
    texts = [name for name, dtype in frame.schema.items() if isinstance(dtype, _TEXT)]
    plain = frame.with_columns(pl.col(texts).cast(pl.String))
    return plain.to_arrow(compat_level=pl.CompatLevel.oldest())


def _options(frame: pl.DataFrame) -> dict[str, Any]:
    """Return writer options: delta encoding for times and ids, a dictionary for all others."""
    growing = ("ts", "event", "correlation", "external_id")
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in frame.columns if name not in growing],
        "column_encoding": dict.fromkeys(
            (name for name in frame.columns if name in growing), "DELTA_BINARY_PACKED"
        ),
        "dictionary_pagesize_limit": _DICTIONARY_BYTES,
        "write_page_checksum": True,
        "store_schema": False,
    }
