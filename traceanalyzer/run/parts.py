"""Files of summaries: the measured parts of one input, for any analysis.

A summary is a Parquet file of two columns: ``section``, and ``packed``, a value as MessagePack. A
row with a section has the values of one analysis. Each other row is one column of a table: its
type, its values and which of them are known; a section refers to it by its number. Equal columns
are stored once. The footer's key-value metadata has the JSON of a :class:`Header` under
:data:`traceanalyzer.schema.SUMMARY`.

Summaries may come from anyone: the types to build come from the annotations of this package's
classes, never from the file, and msgspec checks each value against its type.
"""

from __future__ import annotations

import collections
import io
import json
import os
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from traceanalyzer import __version__, files, schema
from traceanalyzer.errors import MalformedInput, UnreadableFile
from traceanalyzer.parsers.parquet import reader as parquet
from traceanalyzer.run.baselines import PARTS_SCHEMA

AGAIN: Final = "write it again with traceanalyzer summarize"
readable = partial(parquet.readable, hint=AGAIN)
#: A larger file, or one with more rows, is not a summary of one input.
_MOST_BYTES, _MOST_ROWS = 1 << 29, 1 << 18
_STORED = pa.schema([("section", pa.large_string()), ("packed", pa.large_binary())])
_SIMPLE: dict[str, pl.DataType] = {
    str(dtype()): dtype()
    for dtype in (
        *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64),
        *(pl.Boolean, pl.Float32, pl.Float64, pl.String, pl.Categorical, pl.Null),
    )
}
#: Lists and structs in each other are at most as deep as this.
_DEEPEST = 8
#: Types whose values are stored as a list; those of the others are bytes.
_LISTED = (pl.String, pl.Categorical, pl.Enum, pl.Null)
#: A stored column: its type, its values, and one byte for each that says whether it is known.
_Column = tuple[str, bytes | list[str | None], bytes]


@dataclass(frozen=True)
class Header:
    """What the footer of a summary says about it.

    Attributes:
        schema: :data:`~traceanalyzer.run.baselines.PARTS_SCHEMA` of the program that wrote it.
        program: version of that program.
        path: the input file, as it was given.
        format: its format, or None if it could not be read.
        bytes: its size.
        changed_ns: time of its last change.
        index: its position among the inputs of the run.
        total: number of inputs of the run.
        context: whether the file has the events around the waits for one rank, not its parts.
    """

    schema: int
    program: str
    path: str
    format: str | None
    bytes: int
    changed_ns: int
    index: int
    total: int
    context: bool = False


def header_of(path: str, text: bytes) -> Header:
    """Return the checked header of a summary.

    Raises:
        MalformedInput: of another schema, or damaged.
    """
    with readable(path):
        known = json.loads(text)
        number, program = known["schema"], str(known["program"])[:40]
        if type(number) is not int:
            raise ValueError("no schema number")
    if number != PARTS_SCHEMA:
        raise MalformedInput(
            path,
            f"a summary of traceanalyzer {program} (schema {number}); this is {__version__} "
            f"(schema {PARTS_SCHEMA})",
            hint=AGAIN,
        )
    with readable(path):
        header = msgspec.json.decode(text, type=Header)
        if not 0 <= header.index < header.total or not header.path:
            raise ValueError("impossible position of the input")
    return header


# --- write -----------------------------------------------------------------------------------


class Writer:
    """Collects the sections of a summary, and writes them."""

    def __init__(self) -> None:
        self._sections: dict[str, bytes] = {}
        self._columns: dict[bytes, int] = {}

    def add(self, section: str, value: Any) -> None:
        """Add the value of a section.

        Raises:
            TypeError: the value cannot be stored.
        """
        self._sections[section] = msgspec.msgpack.encode(value, enc_hook=self._packed)

    def write(self, path: str, header: Header) -> None:
        """Write the file; it gets its name when it is complete.

        Raises:
            OutputError: it cannot be written.
        """
        names = [*self._sections, *([None] * len(self._columns))]
        packed = [*self._sections.values(), *self._columns]
        table = pa.table({"section": names, "packed": packed}, schema=_STORED)
        about = msgspec.json.encode(header)
        data = io.BytesIO()
        with pq.ParquetWriter(
            data,
            _STORED,
            compression="zstd",
            compression_level=9,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
        ) as parquet:
            parquet.write_table(table)
            parquet.add_key_value_metadata({schema.SUMMARY: about})
        with files.opened(path) as file:
            file.write(data.getbuffer())

    def _packed(self, value: Any) -> Any:
        """Return what is stored of a table or an array, with the numbers of their columns."""
        if isinstance(value, pl.DataFrame):
            return value.height, [(name, self._column(value[name])) for name in value.columns]
        if isinstance(value, np.ndarray):
            return value.shape, self._column(pl.Series(values=value.ravel()))
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__} cannot be stored")

    def _column(self, values: pl.Series) -> Any:
        """Return the number of a column; of lists, the numbers of the lengths and the items."""
        if isinstance(values.dtype, pl.List):
            lengths = values.list.len().cast(pl.Int64)
            return [self._column(lengths), self._column(values.filter(lengths > 0).explode())]
        if isinstance(values.dtype, pl.Struct):
            if values.null_count():
                raise TypeError("a column of structs with nulls cannot be stored")
            return [
                [name, self._column(values.struct.field(name))] for name in values.struct.fields
            ]
        return self._simple_column(values)

    def _simple_column(self, values: pl.Series) -> int:
        """Return the number of a column; equal columns have one number."""
        column: _Column
        if isinstance(values.dtype, _LISTED):
            column = _name(values.dtype), values.cast(pl.String).to_list(), b""
        else:
            known = values.is_not_null().to_numpy().tobytes() if values.null_count() else b""
            plain = values.cast(pl.UInt8) if values.dtype == pl.Boolean else values
            column = _name(values.dtype), plain.fill_null(0).to_numpy().tobytes(), known
        return self._columns.setdefault(msgspec.msgpack.encode(column), len(self._columns))


def _name(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Enum):
        return json.dumps(dtype.categories.to_list())
    if str(dtype) not in _SIMPLE:
        raise TypeError(f"a column of {dtype} cannot be stored")
    return str(dtype)


# --- read ------------------------------------------------------------------------------------


class Summary:
    """A summary, open for reading.

    Attributes:
        path: the file.
        header: what its footer says.
        columns: the columns that were read, by their hash; summaries that share it share columns.
    """

    def __init__(self, path: str, columns: dict[bytes, pl.Series] | None = None) -> None:
        self.path = path
        self.columns = {} if columns is None else columns
        self._simple: dict[int, pl.Series] = {}
        try:
            size = os.path.getsize(path)  # noqa: PTH202 - the name is kept as it was given
        except OSError as error:
            raise UnreadableFile(path, str(error.strerror).lower()) from None
        with readable(path):
            self._metadata = pq.read_metadata(path)
            about = (self._metadata.metadata or {}).get(schema.SUMMARY.encode(), b"")
        self.header = header_of(path, about)
        with readable(path):
            _check_size(self._metadata, size)

    @cached_property
    def _rows(self) -> tuple[dict[str, bytes], list[bytes]]:
        file = pq.ParquetFile(self.path, page_checksum_verification=True)
        if file.schema_arrow.names != _STORED.names:
            raise ValueError("other columns than a summary has")
        table = file.read().cast(_STORED)
        table.validate(full=True)
        rows = list(zip(table["section"].to_pylist(), table["packed"].to_pylist(), strict=True))
        sections = {name: packed for name, packed in rows if name is not None}
        return sections, [packed for name, packed in rows if name is None]

    @property
    def sections(self) -> tuple[str, ...]:
        """The names of its sections.

        Raises:
            MalformedInput: the file is damaged.
        """
        with readable(self.path):
            return tuple(self._rows[0])

    def read(self, section: str, kind: Any) -> Any:
        """Return the value of a section, of the type ``kind``.

        Raises:
            MalformedInput: the file is damaged, or the value is of another type.
        """
        with readable(self.path):
            data = self._rows[0][section]
            return msgspec.msgpack.decode(data, type=kind, dec_hook=self._unpacked)

    def _unpacked(self, kind: Any, tree: Any) -> Any:
        """Return a table, an array or a counter from what is stored of it."""
        origin = typing.get_origin(kind) or kind
        if origin is pl.DataFrame:
            return _frame(tree, self._column)
        if origin is np.ndarray:
            shape, number = msgspec.convert(tree, tuple[tuple[int, ...], Any])
            return self._column(number).to_numpy().reshape(shape).copy()
        if origin is collections.Counter:
            return collections.Counter(msgspec.convert(tree, dict[str, int]))
        raise ValueError(f"{kind} is not stored")

    def _column(self, number: Any, depth: int = 0) -> pl.Series:
        _, columns = self._rows
        if type(number) is list and number and depth < _DEEPEST:
            if type(number[0]) is list:
                fields = msgspec.convert(number, list[tuple[str, Any]])
                named = {name: self._column(one, depth + 1) for name, one in fields}
                return pl.DataFrame(named).to_struct()
            lengths, items = (self._column(one, depth + 1) for one in number)
            return _joined_lists(lengths, items)
        if type(number) is not int or not 0 <= number < len(columns):
            raise ValueError(f"no column {number!r}")
        if number not in self._simple:
            key = blake2b(columns[number]).digest()
            if key not in self.columns:
                self.columns[key] = _simple(columns[number])
            self._simple[number] = self.columns[key]
        return self._simple[number]


def _simple(packed: bytes) -> pl.Series:
    """Return a stored column; equal texts are in memory once."""
    name, stored, known = msgspec.msgpack.decode(packed, type=_Column)
    dtype = _SIMPLE.get(name) or pl.Enum(msgspec.json.decode(name, type=list[str]))
    if isinstance(stored, list) or isinstance(dtype, _LISTED):
        place = {text: number for number, text in enumerate(dict.fromkeys(stored))}
        return pl.Series([*place], dtype=dtype).gather([place[text] for text in stored])
    of_numpy = np.uint8 if dtype == pl.Boolean else name.lower()
    values = pl.Series(np.frombuffer(stored, of_numpy)).cast(dtype)
    if not known:
        return values
    is_known = pl.Series(np.frombuffer(known, np.uint8)).cast(pl.Boolean)
    return pl.select(pl.when(is_known).then(values)).to_series()


def _joined_lists(lengths: pl.Series, items: pl.Series) -> pl.Series:
    """Return a column of lists from their lengths, null for no list, and all their items."""
    counts = lengths.fill_null(0)
    if lengths.dtype != pl.Int64 or (counts < 0).any() or counts.sum() != len(items):
        raise ValueError("lists of other lengths than their items")
    number = pl.Series(np.repeat(np.arange(len(lengths)), counts.to_numpy()), dtype=pl.UInt32)
    lists = pl.DataFrame({"row": number, "items": items}).group_by("row").agg("items")
    rows = pl.DataFrame({"lengths": lengths}).with_row_index("row")
    joined = rows.join(lists, on="row", how="left", maintain_order="left")
    empty = pl.lit([], dtype=pl.List(items.dtype))
    return joined.select(
        pl.when(pl.col("lengths") == 0).then(empty).otherwise("items").alias("items")
    )["items"]


def _check_size(metadata: pq.FileMetaData, size: int) -> None:
    """Check what reading the file would need, before it is read.

    Raises:
        ValueError: too much for the summary of one input.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    unpacked = sum(one.total_uncompressed_size for one in columns)
    if metadata.num_rows > _MOST_ROWS:
        raise ValueError(f"{metadata.num_rows:,} rows are too many")
    if max(size, unpacked) > _MOST_BYTES:
        raise ValueError(f"{max(size, unpacked):,} bytes are too many")


# --- values of annotated types -----------------------------------------------------------------


@cache
def part_types(measure: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the types of the parts of a ``measure`` function, from its annotation."""
    function = measure.func if isinstance(measure, partial) else measure
    kind = typing.get_type_hints(function)["return"]
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _frame(tree: Any, column: Callable[[Any], pl.Series]) -> pl.DataFrame:
    height, places = msgspec.convert(tree, tuple[int, list[tuple[str, Any]]])
    values = [column(number).alias(name) for name, number in places]
    for series in values:
        if series.len() != height:
            raise ValueError(f"column {series.name!r} has {series.len()} rows, not {height}")
    if not values and not 0 <= height <= _MOST_ROWS:
        raise ValueError(f"a table of {height} rows without columns")
    return pl.DataFrame(values) if values else pl.DataFrame(height=height)
