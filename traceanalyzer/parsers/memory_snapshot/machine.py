"""Unpickle snapshots to a :class:`~.document.Document` in limited memory, without running code.

The compiled machine interprets the opcodes allowed in a snapshot and creates words instead of
objects. Without a compiler, ``plain`` unpickles objects and encodes them as the same words.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Final

from traceanalyzer.parsers.memory_snapshot.document import Document
from traceanalyzer.parsers.memory_snapshot.problem import Problem, Refused

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
        from traceanalyzer.parsers.memory_snapshot import plain  # type: ignore[unreachable]

        return plain.read(blocks, keys, tables)
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
            raise Refused(_PROBLEMS[code - 1], number, offset)
