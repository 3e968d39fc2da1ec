"""Unpickle snapshots to a :class:`~.document.Document` in limited memory, without running code.

The compiled machine interprets the opcodes allowed in a snapshot and creates words instead of
objects. Without a compiler, ``scan`` checks all opcodes and rejects those not allowed, pickle's
unpickler creates objects, and these are converted to the same words.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
from array import array
from collections.abc import Iterator
from itertools import accumulate, chain, repeat
from typing import Any, Final

from traceanalyzer.parsers.memory_snapshot import document
from traceanalyzer.parsers.memory_snapshot.document import Document
from traceanalyzer.parsers.memory_snapshot.scan import Problem, Scan, Wrong

try:
    import traceanalyzer.parsers.memory_snapshot._machine as _machine
except ImportError:  # pragma: no cover - built without a compiler
    _machine = None  # type: ignore[assignment]

Tables = tuple[tuple[str, tuple[str, ...]], ...]
_PROBLEMS: Final = tuple(Problem)
_MOST_TABLES: Final = 16


class Refused(Exception):
    """The bytes are not a memory snapshot.

    Attributes:
        what: the reason, one clause.
        offset: offset of the opcode in the decompressed bytes.
    """

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"{what} (at byte {offset:,})")
        self.what = what
        self.offset = offset


def machine(keys: tuple[str, ...], tables: Tables) -> Machine | PlainMachine:
    """Return a machine for one pickle: the compiled one, or the Python one without a compiler.

    Args:
        keys: texts that come first in the document.
        tables: the key that identifies a table's dicts, and the fields to read from them.
    """
    return (PlainMachine if _machine is None else Machine)(keys, tables)


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
        strings, bigs, floats, sequences, lists, dicts, tables, *rest = self._machine.take()
        root, complete, consumed, protocol, trailing = rest
        return Document(
            strings=strings,
            bigs=[int.from_bytes(big, "little", signed=True) for big in bigs],
            floats=[struct.unpack("<d", raw)[0] for raw in floats],
            sequences=sequences,
            lists=lists,
            dicts=dicts,
            tables=[
                (
                    rows,
                    {
                        name: column
                        for name, column in zip(fields, columns, strict=True)
                        if column is not None
                    },
                )
                for fields, (rows, columns) in zip(self._fields, tables, strict=True)
            ],
            root=root,
            complete=bool(complete),
            consumed=consumed,
            protocol=protocol or None,
            trailing=trailing,
        )

    @staticmethod
    def _check(problem: tuple[int, int, int] | None) -> None:
        if problem is not None:
            code, number, offset = problem
            raise _refused(_PROBLEMS[code - 1], number, offset)


class PlainMachine:
    """Python version of :class:`Machine`."""

    def __init__(self, keys: tuple[str, ...], tables: Tables) -> None:
        if len(tables) > _MOST_TABLES:
            raise ValueError("1 to 16 tables")
        if len(set(keys)) < len(keys):
            raise ValueError("a key twice")
        for key in chain.from_iterable((trigger, *fields) for trigger, fields in tables):
            if key not in keys:
                raise KeyError(key)
        self._scan: Scan | None = Scan([trigger.encode() for trigger, _ in tables])
        self._encoder = _Encoder(keys, tables)
        self._behind = 0  # bytes after the last complete opcode
        self._problem: Refused | None = None

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the file, the stack and the memo."""
        scan = self._scan
        return 0 if scan is None else len(scan.data) + 8 * len(scan.stack) + len(scan.memo)

    def feed(self, block: bytes | bytearray | memoryview) -> None:
        """Read the next block; raise :class:`Refused` if it is not a snapshot."""
        scan = self._open()
        if scan.stopped:
            self._behind += len(block)
            return
        scan.data += block
        try:
            scan.run()
        except Wrong as wrong:
            self._problem = _refused(wrong.problem, wrong.number, scan.at)
            raise self._problem from None
        self._behind = len(scan.data) - scan.consumed

    def close(self) -> Document:
        """End the file and return its content. The machine cannot be used afterwards."""
        scan = self._open()
        tail = b""
        if not scan.stopped:
            try:
                tail = scan.complete()
            except Wrong as wrong:
                raise _refused(wrong.problem, wrong.number, scan.at) from None
        self._scan = None
        scan.data[scan.consumed :] = tail
        stream = io.BytesIO(scan.data)
        scan.data.clear()
        loaded = PlainUnpickler(io.BufferedReader(stream, _READ_AHEAD)).load()
        encoded = [self._encoder.word(value) for value in ((loaded,) if scan.stopped else loaded)]
        return self._encoder.document(
            root=encoded[0],
            complete=scan.stopped,
            consumed=scan.consumed,
            protocol=scan.protocol or None,
            trailing=self._behind if scan.stopped else 0,
        )

    def _open(self) -> Scan:
        if self._scan is None:
            raise ValueError("the machine is closed")
        if self._problem:
            raise self._problem
        return self._scan


class PlainUnpickler(pickle.Unpickler):
    """Creates only numbers, texts, tuples, lists and dicts, even if the scan missed something."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Reject: a snapshot contains no class or function."""
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")

    def persistent_load(self, pid: Any, /) -> Any:
        """Reject: a snapshot has no external references."""
        raise pickle.UnpicklingError(f"{pid!r} is not allowed")


class _Encoder:
    """Encodes objects as words, in the order in which their opcodes end."""

    def __init__(self, keys: tuple[str, ...], tables: Tables) -> None:
        self._triggers = [trigger.encode() for trigger, _ in tables]
        self._fields = [{field.encode(): field for field in fields} for _, fields in tables]
        self._strings = {key.encode(): number for number, key in enumerate(keys)}
        # by bytes: hashes of numbers are predictable, and a file could cause collisions
        self._bigs: dict[bytes, int] = {}
        self._floats: dict[bytes, int] = {}
        self._sequences: dict[bytes, int] = {}
        self._frames: dict[bytes, int] = {}
        self._lists, self._dicts = _Runs(1), _Runs(2)
        self._tables: list[dict[str, array[int]]] = [{} for _ in tables]
        self._rows = [0] * len(tables)
        #: By identity: the words of objects that may be shared, and those of frames.
        self._shared: dict[int, int] = {}
        self._frame_word: dict[int, int] = {}

    def word(self, value: Any) -> int:
        """Return the word of an object; iterative, as containers may exceed the recursion limit."""
        levels: list[tuple[Any, Iterator[Any], array[int]]] = [(None, iter((value,)), array("Q"))]
        while True:
            container, rest, encoded = levels[-1]
            for item in rest:
                if type(item) not in _CONTAINERS:
                    encoded.append(self._scalar(item))
                elif (word := self._shared.get(id(item)) or self._stack(item)) is not None:
                    encoded.append(word)
                else:
                    items = chain.from_iterable(item.items()) if type(item) is dict else iter(item)
                    levels.append((item, items, array("Q")))
                    break
            else:
                levels.pop()
                if not levels:
                    return encoded[0]
                levels[-1][2].append(self._container(container, encoded))

    def document(self, **more: Any) -> Document:
        """Return the document of all words so far."""
        ends = accumulate((len(encoded) // 8 for encoded in self._sequences), initial=0)
        return Document(
            strings=list(self._strings),
            bigs=[int.from_bytes(raw, "little", signed=True) for raw in self._bigs],
            floats=[struct.unpack("<d", raw)[0] for raw in self._floats],
            sequences=(array("Q", ends).tobytes(), b"".join(self._sequences)),
            lists=self._lists.packed(),
            dicts=self._dicts.packed(),
            tables=[
                (
                    rows,
                    {name: columns[name].tobytes() for name in fields.values() if name in columns},
                )
                for rows, columns, fields in zip(
                    self._rows, self._tables, self._fields, strict=True
                )
            ],
            **more,
        )

    def _scalar(self, value: Any) -> int:
        if isinstance(value, bytes):
            return document.STR | _number(self._strings, value) << 4
        if value is None or isinstance(value, bool):
            return document.NONE if value is None else document.BOOL | value << 4
        if isinstance(value, float):
            return document.FLOAT | _number(self._floats, struct.pack("<d", value)) << 4
        number = int(value)
        if -(1 << 59) <= number < 1 << 59:
            return document.INT | (number & (1 << 60) - 1) << 4
        return document.BIG | _number(self._bigs, number.to_bytes(16, "little", signed=True)) << 4

    def _container(self, value: Any, encoded: array[int]) -> int:
        if not encoded:
            return document.EMPTY
        if type(value) is dict:
            return self._dict(value, encoded)
        if type(value) is tuple:
            return self._sequence(document.TUPLE, value, encoded)
        if all(word & _FRAME_BITS == document.ROW for word in encoded):
            return self._sequence(document.STACK, value, encoded)
        return document.LIST | self._lists.add(encoded) << 4

    def _stack(self, value: Any) -> int | None:
        """Return the word of a list of known frames, as most lists are; else None."""
        if type(value) is not list or not value:
            return None
        encoded = list(map(self._frame_word.get, map(id, value), repeat(0)))
        if not all(encoded):
            return None
        return self._sequence(document.STACK, value, array("Q", encoded))

    def _sequence(self, tag: int, value: Any, encoded: array[int]) -> int:
        word = self._shared[id(value)] = tag | _number(self._sequences, encoded.tobytes()) << 4
        return word

    def _dict(self, value: dict[Any, Any], encoded: array[int]) -> int:
        table = next((at for at, key in enumerate(self._triggers) if key in value), None)
        if table is None:
            return document.DICT | self._dicts.add(encoded) << 4
        fields, columns, rows = self._fields[table], self._tables[table], self._rows[table]
        row = {
            fields[key]: word
            for key, word in zip(value, encoded[1::2], strict=True)
            if key in fields
        }
        number = rows
        if table == document.FRAMES:
            packed = array("Q", (row.get(name, document.NONE) for name in fields.values()))
            number = _number(self._frames, packed.tobytes())
            self._shared[id(value)] = self._frame_word[id(value)] = document.ROW | number << 4
        if number == rows:
            for name in row.keys() - columns.keys():
                columns[name] = array("Q", bytes(8 * rows))
            for name, column in columns.items():
                column.append(row.get(name, document.NONE))
            self._rows[table] += 1
        return document.ROW | number << 4 | table << 56


class _Runs:
    """Concatenated runs of words."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._data, self._ends = array("Q"), array("Q", [0])

    def add(self, encoded: array[int]) -> int:
        """Add a run and return its number."""
        self._data.extend(encoded)
        self._ends.append(len(self._data) // self._width)
        return len(self._ends) - 2

    def packed(self) -> tuple[bytes, bytes]:
        """Return the offsets, in items of ``width`` words, and the words."""
        return self._ends.tobytes(), self._data.tobytes()


_READ_AHEAD: Final = 1 << 17
_CONTAINERS: Final = (list, dict, tuple)
#: Bits of a word: the tag and, for a row, the number of its table.
_FRAME_BITS: Final = 0xFF << 56 | 15


def _number(pool: dict[bytes, int], value: bytes) -> int:
    return pool.setdefault(value, len(pool))


def _refused(problem: Problem, number: int, offset: int) -> Refused:
    return Refused(problem.value.format(number, op=_opcode(number)), offset)


def _opcode(code: int) -> str:
    name = next((op.name for op in pickletools.opcodes if ord(op.code) == code), None)
    if name is None:
        return hex(code)
    return f"{name} ({chr(code)!r})" if 32 < code < 127 else name
