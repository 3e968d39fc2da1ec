"""Unpickle snapshots to a :class:`~.document.Document` in limited memory, without running code.

The compiled machine interprets the opcodes allowed in a snapshot and creates words instead of
objects. Without a compiler, objects are unpickled and encoded as the same words.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable
from itertools import accumulate, chain, repeat
from typing import Any, Final

from traceanalyzer.parsers.memory_snapshot import document as doc
from traceanalyzer.parsers.memory_snapshot.document import Document
from traceanalyzer.parsers.memory_snapshot.unpickler import (
    MOST_ITEMS,
    PlainUnpickler,
    Problem,
    Refused,
)

try:
    import traceanalyzer.parsers.memory_snapshot._machine as _machine
except ImportError:  # pragma: no cover - built without a compiler
    _machine = None  # type: ignore[assignment]

Tables = tuple[tuple[str, tuple[str, ...]], ...]
_PROBLEMS: Final = tuple(Problem)


def read_pickle(blocks: Iterable[bytes], keys: tuple[str, ...], tables: Tables) -> Document:
    """Read one pickle.

    Args:
        blocks: its bytes, in blocks of any size.
        keys: texts that come first in the document.
        tables: the key that identifies a table's dicts, and the fields to read from them.

    Raises:
        Refused: it is not a memory snapshot.
    """
    if _machine is None:
        return _read_without_machine(blocks, keys, tables)  # type: ignore[unreachable]
    machine = Machine(keys, tables)
    for block in blocks:
        machine.feed(block)
    return machine.close()


class Machine:
    """Reads one pickle: :meth:`feed` its bytes in blocks of any size, then :meth:`close`."""

    def __init__(self, keys: tuple[str, ...], tables: Tables) -> None:
        numbers = {key: number for number, key in enumerate(keys)}
        wanted = tuple(
            (numbers[trigger], tuple(numbers[field] for field in fields))
            for trigger, fields in tables
        )
        raw = tuple(key.encode() for key in keys)
        # a random seed: no file can be crafted to cause hash collisions
        self._machine = _machine.Machine(raw, wanted, int.from_bytes(os.urandom(8)))
        self._fields = [fields for _, fields in tables]

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory in use."""
        return self._machine.allocated_bytes

    def feed(self, block: bytes | bytearray | memoryview) -> None:
        """Read the next block; raise :class:`Refused` if it is not a snapshot."""
        self._check(self._machine.feed(block))

    def close(self) -> Document:
        """End the file and return its content. The machine cannot be used afterwards."""
        self._check(self._machine.finish())
        return _document(self._machine.take(), self._fields)

    @staticmethod
    def _check(problem: tuple[int, int, int] | None) -> None:
        if problem is not None:
            code, number, offset = problem
            raise Refused(_PROBLEMS[code - 1], number, offset)


def _document(taken: tuple[Any, ...], fields: Iterable[tuple[str, ...]]) -> Document:
    """Return what the compiled machine, or the encoder of objects, has taken out of a pickle."""
    strings, bigs, floats, sequences, lists, dicts, tables, root, complete, *rest = taken
    consumed, protocol, trailing = rest
    return Document(
        strings=strings,
        bigs=[int.from_bytes(big, "little", signed=True) for big in bigs],
        floats=[struct.unpack("<d", raw)[0] for raw in floats],
        sequences=sequences,
        lists=lists,
        dicts=dicts,
        tables=[
            (rows, {name: column for name, column in zip(names, columns, strict=True) if column})
            for names, (rows, columns) in zip(fields, tables, strict=True)
        ],
        root=root,
        complete=bool(complete),
        consumed=consumed,
        protocol=protocol or None,
        trailing=trailing,
    )


#: Bits of a word: the tag and, for a row, the number of its table.
_KIND: Final = 0xFF << 56 | 15


def _read_without_machine(
    blocks: Iterable[bytes], keys: tuple[str, ...], tables: Tables
) -> Document:
    """Read a snapshot; see :func:`.machine.read_pickle`."""
    encoder = _Encoder(keys, tables)
    unpickler = PlainUnpickler(blocks, encoder.triggers)
    root = unpickler.load()
    unpickler.memo.clear()
    try:
        taken = encoder.take(encoder.word(root))
    except RecursionError:
        raise Refused(Problem.DEEP) from None
    state = (unpickler.complete, unpickler.consumed, unpickler.proto, unpickler.trailing)
    return _document((*taken, *state), [fields for _, fields in tables])


class _Encoder:
    """Encodes objects as words, and frees them."""

    def __init__(self, keys: tuple[str, ...], tables: Tables) -> None:
        self.triggers = [trigger.encode() for trigger, _ in tables]
        self._fields = [[field.encode() for field in fields] for _, fields in tables]
        self._rows = [array("Q") for _ in tables]
        self._columns = [set[bytes]() for _ in tables]
        # by bytes: hashes of numbers are predictable, and a file could cause collisions
        self._pools: dict[int, dict[bytes, int]] = {tag: {} for tag in range(doc.ROW + 1)}
        self._pools[doc.STR] = {key.encode(): number for number, key in enumerate(keys)}
        self._pools[doc.TUPLE] = self._pools[doc.STACK]
        self._encoded: dict[int, int] = {}  # by identity; 0 for what must not be used again

    def word(self, value: Any) -> int:
        """Return the word of an object."""
        if isinstance(value, bytes):
            return self._pooled(doc.STR, value)
        if value is None or isinstance(value, bool):
            return doc.NONE if value is None else doc.BOOL | value << 4
        if isinstance(value, float):
            return self._pooled(doc.FLOAT, struct.pack("<d", value))
        if isinstance(value, int):
            if -(1 << 59) <= value < 1 << 59:
                return doc.INT | (value & (1 << 60) - 1) << 4
            return self._pooled(doc.BIG, value.to_bytes(16, "little", signed=True))
        word = self._encoded.get(id(value))
        if word == 0:
            raise Refused(Problem.USED_TWICE)
        return word or (self._container(value) if value else doc.EMPTY)

    def take(self, root: int) -> tuple[Any, ...]:
        """Return all words so far, in the order of the compiled machine."""
        pools, tables = self._pools, zip(self._fields, self._rows, self._columns, strict=True)
        return (
            *map(list, (pools[doc.STR], pools[doc.BIG], pools[doc.FLOAT])),
            *(_runs(pools[doc.STACK], 8), _runs(pools[doc.LIST], 8), _runs(pools[doc.DICT], 16)),
            [_table(*table) for table in tables],
            root,
        )

    def _pooled(self, tag: int, raw: bytes) -> int:
        pool = self._pools[tag]
        return tag | pool.setdefault(raw, len(pool)) << 4

    def _container(self, value: Any) -> int:
        self._encoded[id(value)] = 0
        items = [*chain.from_iterable(value.items())] if type(value) is dict else value
        known = list(map(self._encoded.get, map(id, items), repeat(0)))  # frames, mostly
        encoded = array("Q", known if all(known) else [self.word(item) for item in items])
        if type(value) is dict:
            word = self._dict(value, encoded)
        else:
            is_stack = all(word & _KIND == doc.ROW for word in encoded)
            tag = doc.TUPLE if type(value) is tuple else doc.STACK if is_stack else doc.LIST
            if tag != doc.LIST and len(encoded) > MOST_ITEMS:
                raise Refused(Problem.FRAMES if is_stack else Problem.LONG_TUPLE, len(encoded))
            word = self._pooled(tag, encoded.tobytes())
        if word & 15 in (doc.STACK, doc.TUPLE) or word & _KIND == doc.ROW:
            self._encoded[id(value)] = word
        if type(value) is not tuple:
            value.clear()
        return word

    def _dict(self, value: dict[Any, Any], encoded: array[int]) -> int:
        table = next((at for at, key in enumerate(self.triggers) if key in value), None)
        if table is None:
            return self._pooled(doc.DICT, encoded.tobytes())
        fields, rows, frames = self._fields[table], self._rows[table], self._pools[doc.ROW]
        known = dict(zip(value, encoded[1::2], strict=True))
        row = array("Q", [known.get(key, doc.NONE) for key in fields])
        self._columns[table].update(known)
        number = len(rows) // len(row)
        if table == doc.FRAMES:
            number = frames.setdefault(row.tobytes(), number)
        if number * len(row) == len(rows):
            rows.extend(row)
        return doc.ROW | number << 4 | table << 56


def _table(
    fields: list[bytes], rows: array[int], present: set[bytes]
) -> tuple[int, list[bytes | None]]:
    """Return the number of rows, and the columns that any row has."""
    count = len(fields)
    columns = [
        rows[at::count].tobytes() if key in present else None for at, key in enumerate(fields)
    ]
    return len(rows) // count, columns


def _runs(pool: dict[bytes, int], size: int) -> tuple[bytes, bytes]:
    """Return the offsets of runs of words, and the words."""
    ends = accumulate((len(raw) // size for raw in pool), initial=0)
    return array("Q", ends).tobytes(), b"".join(pool)
