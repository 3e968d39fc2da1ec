"""Reader of the Parquet files written by ``traceanalyzer.exporters.parquet``, and of any table."""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput, UnknownFormat
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.source import Source, size_of
from traceanalyzer.parsers.tables import as_table
from traceanalyzer.trace import Meta, Trace

_CONVERT = "convert the original trace again"
#: A truncated file does not say what it was.
_AGAIN = f"{_CONVERT}; if it was a summary, write it again with traceanalyzer summarize"

#: Exceptions of pyarrow, polars and JSON on damaged files.
BAD_BYTES = (
    *(pa.ArrowException, pl.exceptions.PolarsError, OSError, OverflowError, RecursionError),
    *(ValueError, TypeError, KeyError, IndexError),
)


#: Where the other tables are in the file: first byte and length.
_Places = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class _File:
    """An open file: the Parquet reader of ``events``, and the buffer with the other tables."""

    events: pq.ParquetFile
    data: pa.Buffer
    sources: tuple[Meta, ...]
    places: _Places


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read a trace by row groups; keep only the selected rows and columns.

    Raises:
        UnknownFormat: a Parquet file not written by traceanalyzer.
        MalformedInput: truncated, damaged, compressed as a whole or of another schema version.
    """
    if source.compression:
        raise MalformedInput(
            source.path, f"a Parquet file inside {source.compression}", hint="unpack it first"
        )
    with readable(source.path):
        file = _open(source.path)
        rows = _selected_events(file.events, selection, source.size, progress)
        tables = {
            name: _side_table(file, name, selection, rows)
            for name in schema.TABLES
            if name != "events"
        }
        trace = Trace(sources=file.sources, events=rows.drop("_row"), **tables)
    wrong = schema.check(trace.tables)
    if wrong:
        raise MalformedInput(source.path, f"tables violate the schema: {wrong[0]}", hint=_CONVERT)
    return trace


#: Rows take several bytes each; equal rows may take none, and gigabytes of memory.
_LEAST_ROWS, _ROWS_PER_BYTE = 1 << 20, 4


@contextmanager
def readable(path: str, hint: str = _AGAIN) -> Iterator[None]:
    """Turn the libraries' exceptions on damaged files into MalformedInput."""
    try:
        yield
    except BAD_BYTES as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        what = f"truncated or damaged: {reason.rstrip('.')}"
        raise MalformedInput(path, what, hint=hint) from None


def _open(path: str) -> _File:
    data = pa.memory_map(path).read_buffer()
    events = _parquet(data, "events")
    footer: dict[bytes, bytes] = events.metadata.metadata or {}
    version = footer.get(schema.PARQUET_VERSION.encode())
    if version is None:
        raise UnknownFormat(
            path,
            "a Parquet file that traceanalyzer did not write",
            hint="traceanalyzer convert writes one",
        )
    if int(version) != schema.VERSION:
        newer = int(version) > schema.VERSION
        by = "a newer" if newer else "an older"
        raise MalformedInput(
            path,
            f"written by {by} traceanalyzer (schema {int(version)}, supported: {schema.VERSION})",
            hint=("upgrade, or " if newer else "") + _CONVERT + " with this version",
        )
    sources = msgspec.json.decode(footer[schema.PARQUET_SOURCES.encode()], type=tuple[Meta, ...])
    if not sources:
        raise ValueError("no source is listed")
    places = msgspec.json.decode(footer[schema.PARQUET_TABLES.encode()], type=_Places)
    return _File(events, data, sources, places)


def opened(path: str) -> ds.Dataset:
    """Open a table that another program wrote as Parquet or Arrow.

    Raises:
        BAD_BYTES: it is damaged.
    """
    try:
        table = ds.dataset(path, format="parquet" if path.endswith(".parquet") else "ipc")
    except pa.ArrowInvalid:
        with pa.OSFile(path) as file:  # a stream of Arrow
            table = ds.dataset(pa.ipc.open_stream(file).read_all())
    _check_rows(table.count_rows(), size_of(path))
    return table


def groups(table: ds.Dataset) -> Iterator[tuple[ds.Fragment, int]]:
    """Yield the groups of rows of a Parquet file, or the whole of another table, and their rows."""
    for file in table.get_fragments():
        if isinstance(file, ds.ParquetFileFragment):
            for group in file.split_by_row_group():
                yield group, group.row_groups[0].num_rows
        else:
            yield file, file.count_rows()


def columns_of(rows: pa.Table) -> list[pl.Series]:
    """Return the columns of rows; texts, whose encoding is unknown, as Binary.

    Raises:
        BAD_BYTES: a column is damaged.
    """
    columns = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        plain = column.cast(pa.large_binary()) if is_text else column
        plain.validate(full=True)
        if pa.types.is_nested(plain.type):
            raise TypeError(f"{name} is nested")
        columns.append(pl.Series(name, plain))
    return columns


def _check_rows(rows: int, size: int) -> None:
    if rows > _LEAST_ROWS + _ROWS_PER_BYTE * size:
        raise ValueError(f"{rows:,} rows are too many for {size:,} bytes")


def _parquet(data: pa.Buffer, table: str) -> pq.ParquetFile:
    reader = pa.BufferReader(data)
    metadata = pq.read_metadata(reader)
    _check_rows(metadata.num_rows, data.size)
    texts = [
        c.name
        for c in schema.TABLES[table]
        if isinstance(c.dtype, pl.Categorical | pl.Enum) and c.name in metadata.schema.names
    ]
    return pq.ParquetFile(
        reader, metadata=metadata, read_dictionary=texts, page_checksum_verification=True
    )


def _selected_events(
    file: pq.ParquetFile, selection: Selection, size: int, progress: Progress | None
) -> pl.DataFrame:
    """Return the selected rows, with their row number in the file as ``_row``."""
    types = schema.types("events", selection.columns)
    stored = _stored(file, "events", types)
    wanted = selection.rows()
    parts = [pl.DataFrame(schema={"_row": pl.UInt32, **types})]
    first = 0
    for group in range(file.num_row_groups):
        rows = _typed(file.read_row_group(group, columns=stored), "events", types)
        typed = rows.with_row_index("_row", offset=first)
        parts.append(typed.filter(wanted) if wanted is not None else typed)
        first += rows.height
        if progress:
            progress(size * (group + 1) // file.num_row_groups, size)
    return pl.concat(parts)


def _side_table(file: _File, name: str, selection: Selection, rows: pl.DataFrame) -> pl.DataFrame:
    """Read a side table; its ``event`` is renumbered to the rows that were kept."""
    pseudo_kind = {"flows": "flow", "counters": "counter", "metrics": "metric"}.get(name)
    unwanted = pseudo_kind and selection.kinds is not None and pseudo_kind not in selection.kinds
    if name not in file.places or unwanted:
        return schema.empty(name)
    first, length = file.places[name]
    if first < 0 or length < 0 or first + length > file.data.size:
        raise ValueError(f"table {name} is outside the file")
    embedded = _parquet(file.data.slice(first, length), name)
    frame = _typed(embedded.read(_stored(embedded, name, schema.types(name))), name)
    if name not in schema.EVENT_TABLES or selection.rows() is None:
        return frame
    new_rows = rows.select(event="_row", _new=pl.int_range(pl.len(), dtype=pl.UInt32))
    join_type: Literal["left", "inner"] = "left" if name == "flows" else "inner"
    joined = frame.join(new_rows, on="event", how=join_type, maintain_order="left")
    return joined.with_columns(event="_new").drop("_new")


def _stored(file: pq.ParquetFile, table: str, columns: Iterable[str]) -> list[str]:
    """Return the columns to read; those that older versions did not write are null."""
    names = set(file.schema_arrow.names)
    required = [c.name for c in schema.TABLES[table] if c.null == "never" and c.name not in names]
    if required:
        raise ValueError(f"no column {required[0]}")
    return [name for name in columns if name in names]


def _typed(stored: pa.Table, table: str, on_request: Container[str] = ()) -> pl.DataFrame:
    """Return the stored columns in the schema's types and order; missing ones are null."""
    stored.validate(full=True)  # polars panics on a dictionary index out of range
    return as_table(pl.DataFrame(pl.from_arrow(stored)), table, on_request)
