"""What a pickled snapshot holds: a :class:`Document` of words, and its content by name.

A word is 64 bits: a tag in the low 4, what it says in the high 60. Dicts with a known key are rows
of a table, by the keys they hold and never by a version: snapshots of torch 1.13 and older are a
list of segments, later ones a dict; fields came and went, and what a file does not hold is null.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.limits import MOST_ADDRESS, MOST_BYTES

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

#: Tables by number: the key that tells, and the fields that are read.
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

#: Keys of the whole.
TRACES = "device_traces"
SETTINGS = "allocator_settings"
MOST_ENTRIES = "trace_alloc_max_entries"
OVERFLOWED = "trace_alloc_overflowed"

KEYS: Final[tuple[str, ...]] = tuple(
    dict.fromkeys(
        (
            *(key for trigger, fields in TABLES for key in (trigger, *fields)),
            "segments",
            TRACES,
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
#: Levels of nested containers turned into Python values.
_DEEPEST = 6
#: Values turned into Python values at once, and letters of their texts.
_MOST = 1000
_LETTERS = 100_000


@dataclass(frozen=True)
class Document:
    """What a pickle holds.

    Attributes:
        strings: every text once, as its bytes; the known keys come first.
        bigs: integers beyond 60 bits.
        floats: every float once.
        sequences: stacks and tuples: offsets (one more than there are), and the words.
        lists: the same for other lists.
        dicts: offsets in pairs, and key and value in turns.
        tables: rows of each, and the columns that any row has.
        root: the word of the whole.
        complete: whether the pickle ends as it must; else what came before is all there is.
        consumed: bytes up to the end of the last whole opcode.
        protocol: the pickle's, None of an empty file.
        trailing: bytes behind the end.
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
    """One table's rows."""

    height: int
    columns: dict[str, Words]

    def words(self, name: str) -> Words:
        """A column, of NONE where the file does not have it."""
        found = self.columns.get(name)
        return np.zeros(self.height, np.uint64) if found is None else found

    def has(self, name: str) -> bool:
        """Whether any row has this field."""
        return name in self.columns


@dataclass
class _Budget:
    """What turning words into values may still cost: containers may be shared, and so multiply."""

    values: int = _MOST
    letters: int = _LETTERS

    def spend(self) -> bool:
        """Whether there may be one value more."""
        self.values -= 1
        return self.values >= 0

    def text(self, text: str) -> str:
        """As much of a text as may be."""
        told = text[: self.letters]
        self.letters -= len(told)
        return told


class Reading:
    """A document's content by name.

    Attributes:
        wrong: how many values are of a type their field never has.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.wrong = 0
        self._lists = _cut(document.lists)
        self._dicts = _cut(document.dicts)
        self._sequences = _cut(document.sequences)

    @cached_property
    def texts(self) -> list[str]:
        """All texts by number; what is not UTF-8 is replaced."""
        return [text.decode(errors="replace") for text in self.document.strings]

    def table(self, number: int) -> Table:
        """The rows that dicts with one of the keys of :data:`TABLES` became."""
        height, columns = self.document.tables[number]
        return Table(height, {name: _array(data) for name, data in columns.items()})

    def integers(self, words: Words, *, unsigned: bool = False) -> pl.Series:
        """Whole numbers; null where there is none. Numbers beyond 64 bits are of a wrong type."""
        tags = words & _TAG
        values = words.view(np.int64) >> np.int64(4)
        valid = tags == INT
        if unsigned:
            valid &= values >= 0
        rest = np.flatnonzero(~valid & (tags != NONE))
        for row in rest:
            known = self._integer(int(words[row]))
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

    def addresses(self, words: Words) -> pl.Series:
        """Addresses; null where there are none, or where no pointer of a process can point to."""
        found = self.integers(words, unsigned=True)
        wrong = (found >= MOST_ADDRESS).fill_null(value=False)
        self.wrong += int(wrong.sum())
        return found.set(wrong, None)

    def sizes(self, words: Words, any_size: pl.Series | None = None) -> pl.Series:
        """Bytes; null where there are none. No device has as many as :data:`MOST_BYTES`.

        Args:
            words: of the sizes.
            any_size: rows of which any size will do, such as that of a request that failed.
        """
        found = self.integers(words)
        large = found >= MOST_BYTES if any_size is None else (found >= MOST_BYTES) & ~any_size
        wrong = ((found < 0) | large).fill_null(value=False)
        self.wrong += int(wrong.sum())
        return found.set(wrong, None)

    def codes(self, words: Words) -> Ints:
        """Numbers of texts; -1 where there is none."""
        told = (words & _TAG) == STR
        self.wrong += int(((words & _TAG) != NONE)[~told].sum())
        return np.where(told, (words >> _BITS).astype(np.int64), -1)

    def strings(
        self, words: Words, dtype: pl.DataType | type[pl.DataType] = pl.String
    ) -> pl.Series:
        """Texts; null where there is none."""
        codes = self.codes(words)
        used, place = np.unique(codes, return_inverse=True)
        texts = [None if code < 0 else self.texts[code] for code in used.tolist()]
        return pl.Series(texts, dtype=pl.String).cast(dtype).gather(place)

    def booleans(self, words: Words) -> pl.Series:
        """True, false, or null where neither is told."""
        told = (words & _TAG) == BOOL
        self.wrong += int(((words & _TAG) != NONE)[~told].sum())
        return pl.select(
            pl.when(pl.Series(told)).then(pl.Series((words >> _BITS) == 1))
        ).to_series()

    def sequence_numbers(self, words: Words) -> Ints:
        """Numbers of stacks; -1 where there is none."""
        self.wrong += int((~np.isin(words & _TAG, (STACK, NONE, EMPTY))).sum())
        return sequence_numbers(words)

    def frames(self, sequences: Ints) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Rows of frames of some sequences end to end, outermost first, and each one's length."""
        offsets, items = self._sequences
        starts, lengths = offsets[sequences], offsets[sequences + 1] - offsets[sequences]
        total = int(lengths.sum())
        ends = np.cumsum(lengths)
        # the innermost comes first in the file: the last of a run is read first
        back = np.repeat(starts + lengths - 1 + (ends - lengths), lengths) - np.arange(total)
        rows = (items[back] >> _BITS) & _ROW_MASK
        return rows.astype(np.uint32), lengths.astype(np.uint32)

    def rows(self, word: int, table: int) -> Ints:
        """The rows of one table that a list holds, in its order; others are of a wrong type."""
        if word & 15 != LIST:
            self.wrong += word & 15 not in (NONE, EMPTY)
            return np.empty(0, np.int64)
        items = self._items(self._lists, word >> 4)
        of_table = ((items & _TAG) == ROW) & ((items >> _BITS >> _ROW_BITS) == table)
        self.wrong += int((~of_table).sum())
        rows: Ints = ((items[of_table] >> _BITS) & _ROW_MASK).astype(np.int64)
        return rows

    def owners(self, words: Words, table: int) -> tuple[Ints, Ints]:
        """The rows of ``table`` in lists, and which of ``words`` names the list that holds each."""
        found = [self.rows(int(word), table) for word in words]
        owner = np.repeat(np.arange(len(found)), [rows.size for rows in found])
        return np.concatenate([np.empty(0, np.int64), *found]), owner

    def first_rows(self, words: Words, table: int) -> Ints:
        """The first row of ``table`` in each list; -1 where there is none."""
        found = [self.rows(int(word), table) for word in words]
        return np.array([rows[0] if rows.size else -1 for rows in found], np.int64)

    def items(self, word: int) -> list[int]:
        """The words of a list; none for anything else."""
        return self._items(self._lists, word >> 4).tolist() if word & 15 == LIST else []

    def fields(self, word: int) -> dict[str, int]:
        """Words of a dict by key."""
        if word & 15 != DICT:
            return {}
        pairs = self._items(self._dicts, word >> 4, 2).reshape(-1, 2).tolist()
        return {self.texts[key >> 4]: value for key, value in pairs if key & 15 == STR}

    def value(self, word: int) -> Any:
        """A small container or a scalar as a Python value; of a large one the beginning."""
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

    def _items(self, cut: tuple[Ints, Words], number: int, width: int = 1) -> Words:
        offsets, items = cut
        return items[width * int(offsets[number]) : width * int(offsets[number + 1])]


def _cut(stored: tuple[bytes, bytes]) -> tuple[Ints, Words]:
    return _array(stored[0]).astype(np.int64), _array(stored[1])


def _array(data: bytes) -> Words:
    return np.frombuffer(data, np.uint64)


def sequence_numbers(words: Words) -> Ints:
    """Numbers of stacks; -1 for whatever is none."""
    return np.where((words & _TAG) == STACK, (words >> _BITS).astype(np.int64), -1)
