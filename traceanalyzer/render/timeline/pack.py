"""Columns of integers as compressed text, for a page.

A column is written as variable-length integers: seven bits per byte, the lowest first, the top bit
set on all bytes but the last; negative numbers as odd ones (zigzag). All columns follow each other,
are compressed by zlib and encoded in base64; the browser inflates them (``DecompressionStream``).
"""

import zlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_LEVEL = 4  # half the time of the default, and 2 % larger
_LONGEST = 10  # bytes of 64 bits, seven at a time


class Packed:
    """Tables whose rows are sorted by ``row``, the place of their lane.

    Attributes:
        columns: columns of each table, in order.
        ends: number of rows of each table up to each lane's end.
    """

    def __init__(self) -> None:
        self.columns: dict[str, dict[str, Ints]] = {}
        self.rows: dict[str, Ints] = {}

    def add(self, table: str, frame: pl.DataFrame, *columns: Mapping[str, Ints]) -> None:
        """Add a table."""
        self.rows[table] = frame["row"].to_numpy()
        self.columns[table] = {name: values for one in columns for name, values in one.items()}

    def to_dict(self, lanes: int) -> dict[str, Any]:
        """Return the tables' columns, the ends of the lanes' rows, and the data."""
        ends = {
            table: np.searchsorted(rows, np.arange(lanes), side="right").tolist()
            for table, rows in self.rows.items()
        }
        values = [column for table in self.columns.values() for column in table.values()]
        data = zlib.compress(b"".join(map(varints, values)), _LEVEL)
        names = {table: list(columns) for table, columns in self.columns.items()}
        return {"columns": names, "ends": ends, "data": b64encode(data).decode()}


def varints(values: Ints) -> bytes:
    """Return integers as variable-length bytes, zigzag encoded."""
    values = values.astype(np.int64, copy=False)
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    length = np.ones(left.size, np.int64)
    largest = int(left.max(initial=0))
    for bits in range(7, largest.bit_length(), 7):
        length += left >= np.uint64(1 << bits)
    ends = np.cumsum(length)
    out = np.zeros(int(ends[-1]) if ends.size else 0, np.uint8)
    begins = ends - length
    for place in range(min(int(length.max(initial=0)), _LONGEST)):
        some = np.flatnonzero(length > place)
        byte = (left[some] & np.uint64(127)).astype(np.uint8)
        more = (length[some] > place + 1).astype(np.uint8) << 7
        out[begins[some] + place] = byte | more
        left[some] >>= np.uint64(7)
    return out.tobytes()


def gaps_and_lengths(frame: pl.DataFrame) -> dict[str, Ints]:
    """Return ``gap``, start less the end of the row before (0 for the first), and ``length``."""
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    return {"gap": np.diff(end, prepend=0) - (end - start), "length": end - start}


def codes(frame: pl.DataFrame) -> tuple[list[tuple[Any, ...]], Ints]:
    """Return the distinct rows in order of appearance, and the number of each row."""
    number = frame.with_row_index("at").select(first=pl.col("at").min().over(frame.columns))[
        "first"
    ]
    distinct, inverse = np.unique(number.to_numpy(), return_inverse=True)
    return frame[distinct].rows(), inverse.astype(np.int64)
