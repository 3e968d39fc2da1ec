"""Content of a pickled snapshot: a :class:`Document` of tagged words, and access by name.

A word has 64 bits: a tag in the low 4, a payload in the high 60. Dicts with a known key are rows of
a table. Tables are identified by keys, never by a version: snapshots of torch 1.13 and older are a
list of segments, later ones a dict; fields missing in a file are null.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.schema import MAX_ADDRESS, MAX_BYTES

TaggedArray = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

#: Tables by number: the identifying key, and the fields that are read.
TABLES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("filename", ("name", "filename", "line")),
    (
        "action",
        (
            "action",
            "addr",
            "device_free",
            "size",
            "stream",
            "time_us",
            "frames",
            "compile_context",
            "user_metadata",
            "pool_id",
        ),
    ),
    ("state", ("address", "size", "requested_size", "state", "frames", "history")),
    (
        "blocks",
        (
            "device",
            "address",
            "total_size",
            "allocated_size",
            "active_size",
            "stream",
            "segment_type",
            "segment_pool_id",
            "is_expandable",
            "frames",
            "blocks",
        ),
    ),
    ("stage", ("name", "stage", "device", "time_us")),
    ("real_size", ("addr", "real_size", "frames")),
)
FRAMES, EVENTS, BLOCKS, SEGMENTS, ANNOTATIONS, HISTORY = range(len(TABLES))

#: Keys of the root.
TRACES = "device_traces"
#: Pinned host memory (``record_pinned_host_memory=True``, torch 2.14), in the form of a device's.
HOST_SEGMENTS, HOST_TRACES = "host_segments", "host_traces"
SETTINGS = "allocator_settings"
MOST_ENTRIES = "trace_alloc_max_entries"
OVERFLOWED = "trace_alloc_overflowed"

KEYS: Final[tuple[str, ...]] = tuple(
    dict.fromkeys(
        (
            *(key for trigger, fields in TABLES for key in (trigger, *fields)),
            "segments",
            TRACES,
            HOST_SEGMENTS,
            HOST_TRACES,
            SETTINGS,
            "external_annotations",
            MOST_ENTRIES,
            OVERFLOWED,
        )
    )
)

NONE, BOOL, INT, BIG, FLOAT, STR, EMPTY, STACK, TUPLE, LIST, DICT, ROW = range(12)

_BITS = np.uint64(4)
_TAG = np.uint64(15)
_ROW_BITS = np.uint64(52)
_ROW_MASK = np.uint64((1 << 52) - 1)
#: Maximum depth of containers converted to Python values.
_DEEPEST = 6
#: Maximum number of values converted to Python values, and characters of their texts.
_MOST = 1000
_LETTERS = 100_000


@dataclass(frozen=True)
class Document:
    """The content of a pickle.

    Attributes:
        strings: distinct texts as bytes; the known keys come first.
        bigs: integers beyond 60 bits.
        floats: distinct floats.
        sequences: stacks and tuples: offsets (one more than there are), and the words.
        lists: other lists, in the same form.
        dicts: offsets in pairs, and alternating keys and values.
        tables: number of rows of each table, and the columns that any row has.
        root: the word of the root.
        complete: whether the pickle is complete, not truncated.
        consumed: bytes up to the end of the last complete opcode.
        protocol: the pickle's protocol, None for an empty file.
        trailing: bytes after the end.
    """

    strings: list[bytes]
    bigs: list[int]
    floats: list[float]
    sequences: tuple[bytes, bytes]
    lists: tuple[bytes, bytes]
    dicts: tuple[bytes, bytes]
    tables: list[tuple[int, dict[str, bytes]]]
    root: int
    complete: bool
    consumed: int
    protocol: int | None
    trailing: int


@dataclass(frozen=True)
class Table:
    """The rows of a table."""

    height: int
    columns: dict[str, TaggedArray]

    def column(self, name: str) -> TaggedArray:
        """Return a column, filled with NONE if the file does not have it."""
        column = self.columns.get(name)
        return np.zeros(self.height, np.uint64) if column is None else column

    def has(self, name: str) -> bool:
        """Whether any row has this field."""
        return name in self.columns

    def without(self, rows: Ints) -> "Table":
        """Return the table without these rows."""
        kept = np.ones(self.height, np.bool_)
        kept[rows] = False
        columns = {name: column[kept] for name, column in self.columns.items()}
        return Table(int(kept.sum()), columns)


@dataclass
class _Budget:
    """Remaining budget of a conversion to Python values: shared containers multiply."""

    values: int = _MOST
    letters: int = _LETTERS

    def spend(self) -> bool:
        """Use up one value; return whether the budget allows it."""
        self.values -= 1
        return self.values >= 0

    def text(self, text: str) -> str:
        """Return as much of a text as the budget allows."""
        shortened = text[: self.letters]
        self.letters -= len(shortened)
        return shortened


class Snapshot:
    """Access to a document's content by name.

    Attributes:
        wrong: number of values with an invalid type for their field.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.wrong = 0
        self._lists = _cut(document.lists)
        self._dicts = _cut(document.dicts)
        self._sequences = _cut(document.sequences)

    @cached_property
    def texts(self) -> list[str]:
        """All texts by number; invalid UTF-8 is replaced."""
        return [text.decode(errors="replace") for text in self.document.strings]

    def table(self, number: int) -> Table:
        """Return a table of :data:`TABLES` by number."""
        height, columns = self.document.tables[number]
        return Table(height, {name: _array(data) for name, data in columns.items()})

    def integers(self, tagged: TaggedArray, *, unsigned: bool = False) -> pl.Series:
        """Return integers; null if absent. Numbers beyond 64 bits count as wrong."""
        tags = tagged & _TAG
        values = tagged.view(np.int64) >> np.int64(4)
        valid = tags == INT
        if unsigned:
            valid &= values >= 0
        rest = np.flatnonzero(~valid & (tags != NONE))
        for row in rest:
            known = self._integer(int(tagged[row]))
            if known is None or not (
                0 <= known < 1 << 64 if unsigned else -(1 << 63) <= known < 1 << 63
            ):
                self.wrong += 1
                continue
            values[row] = known - (1 << 64) if known >= 1 << 63 else known
            valid[row] = True
        column = pl.Series(values.view(np.uint64) if unsigned else values)
        return (
            column if valid.all() else pl.select(pl.when(pl.Series(valid)).then(column)).to_series()
        )

    def addresses(self, tagged: TaggedArray) -> pl.Series:
        """Return addresses; null if absent or beyond the address space of a process."""
        values = self.integers(tagged, unsigned=True)
        wrong = (values >= MAX_ADDRESS).fill_null(value=False)
        self.wrong += int(wrong.sum())
        return values.set(wrong, None)

    def sizes(self, tagged: TaggedArray, any_size: pl.Series | None = None) -> pl.Series:
        """Return sizes in bytes; null if absent, negative or at least :data:`MAX_BYTES`.

        Args:
            tagged: the sizes.
            any_size: rows where any size is valid, such as requests that failed.
        """
        values = self.integers(tagged)
        large = values >= MAX_BYTES if any_size is None else (values >= MAX_BYTES) & ~any_size
        wrong = ((values < 0) | large).fill_null(value=False)
        self.wrong += int(wrong.sum())
        return values.set(wrong, None)

    def codes(self, tagged: TaggedArray) -> Ints:
        """Return numbers of texts; -1 if absent."""
        valid = (tagged & _TAG) == STR
        self.wrong += int(((tagged & _TAG) != NONE)[~valid].sum())
        return np.where(valid, (tagged >> _BITS).astype(np.int64), -1)

    def strings(
        self, tagged: TaggedArray, dtype: pl.DataType | type[pl.DataType] = pl.String
    ) -> pl.Series:
        """Return texts; null if absent."""
        used, place = np.unique(self.codes(tagged), return_inverse=True)
        texts = [None if code < 0 else self.texts[code] for code in used.tolist()]
        return pl.Series(texts, dtype=pl.String).cast(dtype).gather(place)

    def booleans(self, tagged: TaggedArray) -> pl.Series:
        """Return booleans; null if absent."""
        valid = (tagged & _TAG) == BOOL
        self.wrong += int(((tagged & _TAG) != NONE)[~valid].sum())
        return pl.select(
            pl.when(pl.Series(valid)).then(pl.Series((tagged >> _BITS) == 1))
        ).to_series()

    def sequence_numbers(self, tagged: TaggedArray) -> Ints:
        """Return numbers of stacks; -1 if absent."""
        self.wrong += int((~np.isin(tagged & _TAG, (STACK, NONE, EMPTY))).sum())
        return sequence_numbers(tagged)

    def frames(self, sequences: Ints) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Return frame rows of the sequences, concatenated, outermost first, and their lengths."""
        offsets, items = self._sequences
        starts, lengths = offsets[sequences], offsets[sequences + 1] - offsets[sequences]
        total = int(lengths.sum())
        ends = np.cumsum(lengths)
        # the file has the innermost frame first: each run is reversed
        back = np.repeat(starts + lengths - 1 + (ends - lengths), lengths) - np.arange(total)
        rows = (items[back] >> _BITS) & _ROW_MASK
        return rows.astype(np.uint32), lengths.astype(np.uint32)

    def rows(self, word: int, table: int) -> Ints:
        """Return the rows of a table in a list, in its order; other items count as wrong."""
        if word & 15 != LIST:
            self.wrong += word & 15 not in (NONE, EMPTY)
            return np.empty(0, np.int64)
        items = self._items(self._lists, word >> 4)
        of_table = ((items & _TAG) == ROW) & ((items >> _BITS >> _ROW_BITS) == table)
        self.wrong += int((~of_table).sum())
        rows: Ints = ((items[of_table] >> _BITS) & _ROW_MASK).astype(np.int64)
        return rows

    def owners(self, tagged: TaggedArray, table: int) -> tuple[Ints, Ints]:
        """Return the rows of ``table`` in several lists, and the index of each row's list."""
        lists = [self.rows(int(word), table) for word in tagged]
        owner = np.repeat(np.arange(len(lists)), [rows.size for rows in lists])
        return np.concatenate([np.empty(0, np.int64), *lists]), owner

    def first_rows(self, tagged: TaggedArray, table: int) -> Ints:
        """Return the first row of ``table`` in each list; -1 without one."""
        lists = [self.rows(int(word), table) for word in tagged]
        return np.array([rows[0] if rows.size else -1 for rows in lists], np.int64)

    def items(self, word: int) -> list[int]:
        """Return the words of a list; empty for any other value."""
        return self._items(self._lists, word >> 4).tolist() if word & 15 == LIST else []

    def members(self, word: int, table: int) -> Ints:
        """Return the rows of ``table`` in a list and the lists in it; others are skipped."""
        outer = self.items(word)
        nested = [item for inner in outer for item in self.items(inner)]
        items = np.array([*outer, *nested], np.uint64)
        of_table = ((items & _TAG) == ROW) & ((items >> _BITS >> _ROW_BITS) == table)
        rows: Ints = ((items[of_table] >> _BITS) & _ROW_MASK).astype(np.int64)
        return rows

    def fields(self, word: int) -> dict[str, int]:
        """Return the words of a dict by key."""
        if word & 15 != DICT:
            return {}
        pairs = self._items(self._dicts, word >> 4, 2).reshape(-1, 2).tolist()
        return {self.texts[key >> 4]: value for key, value in pairs if key & 15 == STR}

    def value(self, word: int) -> Any:
        """Convert a scalar or a container to a Python value; large containers are truncated."""
        return self._value(word, _Budget(), 0)

    def _value(self, word: int, budget: _Budget, depth: int) -> Any:
        tag, payload = word & 15, word >> 4
        if tag in (INT, BIG):
            return self._integer(word)
        if tag == BOOL:
            return bool(payload)
        if tag == FLOAT:
            return self.document.floats[payload]
        if tag == STR:
            return budget.text(self.texts[payload])
        if tag in (LIST, TUPLE) and depth < _DEEPEST:
            items = self._items(self._lists if tag == LIST else self._sequences, payload).tolist()
            return [self._value(item, budget, depth + 1) for item in items if budget.spend()]
        if tag == DICT and depth < _DEEPEST:
            fields = self.fields(word).items()
            return {
                budget.text(key): self._value(item, budget, depth + 1)
                for key, item in fields
                if budget.spend()
            }
        return [] if tag == EMPTY else None

    def _integer(self, word: int) -> int | None:
        tag, payload = word & 15, word >> 4
        if tag == INT:
            return payload - (1 << 60) if payload >> 59 else payload
        return self.document.bigs[payload] if tag == BIG else None

    def _items(self, cut: tuple[Ints, TaggedArray], number: int, width: int = 1) -> TaggedArray:
        offsets, items = cut
        return items[width * int(offsets[number]) : width * int(offsets[number + 1])]


def _cut(stored: tuple[bytes, bytes]) -> tuple[Ints, TaggedArray]:
    return _array(stored[0]).astype(np.int64), _array(stored[1])


def _array(data: bytes) -> TaggedArray:
    return np.frombuffer(data, np.uint64)


def sequence_numbers(tagged: TaggedArray) -> Ints:
    """Return numbers of stacks; -1 for other values."""
    return np.where((tagged & _TAG) == STACK, (tagged >> _BITS).astype(np.int64), -1)
