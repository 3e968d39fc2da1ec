"""The opcodes of a pickled snapshot to columns of words; no object of the file is ever made.

Compiled where that was possible, else :mod:`~.slow_machine`, which gives the same. A word is 64
bits: a tag in the low 4, what it says in the high 60 (``words`` has the tags). Dicts with a known
key become rows of a table, lists of frames interned sequences, everything else stays what it is.
"""

from __future__ import annotations

import os
import pickletools
import struct
from dataclasses import dataclass

from traceanalyzer.parsers.memory_snapshot import slow_machine
from traceanalyzer.parsers.memory_snapshot.slow_store import Problem
from traceanalyzer.parsers.memory_snapshot.slow_values import MOST_ITEMS

try:
    from traceanalyzer.parsers.memory_snapshot import _machine
except ImportError:  # pragma: no cover - built without a compiler
    _machine = None  # type: ignore[assignment]

#: What is said of a problem; ``{}`` is its number, ``{op}`` the opcode of that number.
_SAID = {
    Problem.OPCODE: "opcode {op} is not one of a memory snapshot",
    Problem.BEYOND: "memo index {} is beyond what was stored",
    Problem.NEVER_STORED: "memo index {} was never stored",
    Problem.STORED_TWICE: "memo index {} is stored twice",
    Problem.INTEGER: "an integer of {} bytes",
    Problem.TEXT: "a text of {} bytes",
    Problem.USED_TWICE: "a list or row is used twice",
    Problem.REFILLED: "a list or dict is filled after it was used",
    Problem.MEMORY: "needs more memory than a snapshot of its size would",
    Problem.MARKS: f"more than {slow_machine.MOST_MARKS} containers within one another",
    Problem.FRAMES: f"a stack of more than {MOST_ITEMS} frames",
    Problem.TOO_FEW: "opcode {op} with too few values before it",
    Problem.NO_MARK: "opcode {op} without a MARK",
    Problem.NO_LIST: "an item for what is no open list",
    Problem.NO_DICT: "a pair for what is no open dict",
    Problem.ODD: "a key without a value",
    Problem.PROTOCOL: "pickle protocol {}",
    Problem.START: "the first byte is {}, which begins no pickle",
    Problem.PROTO_AGAIN: "a second PROTO",
    Problem.LEFT_OVER: "STOP with {} values, not one",
    Problem.NESTED_TUPLE: "a tuple of more than plain values",
    Problem.LONG_TUPLE: "a tuple of {} values",
    Problem.KEPT_TWICE: "a list or dict is stored twice",
    Problem.AGAIN: "a stack is filled again and again",
    Problem.TOO_MANY: "more different values than can be numbered",
}


class Refused(Exception):
    """Bytes that no memory snapshot has.

    Attributes:
        what: one clause.
        offset: where the opcode begins in the decompressed bytes.
    """

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"{what} (at byte {offset:,})")
        self.what = what
        self.offset = offset


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


class Machine:
    """Reads one pickle: :meth:`feed` its bytes in blocks of any size, then :meth:`close`."""

    def __init__(
        self, keys: tuple[str, ...], tables: tuple[tuple[str, tuple[str, ...]], ...]
    ) -> None:
        numbers = {key: number for number, key in enumerate(keys)}
        wanted = tuple(
            (numbers[trigger], tuple(numbers[field] for field in fields))
            for trigger, fields in tables
        )
        raw = tuple(key.encode() for key in keys)
        # a seed that nobody knows: no file can be made whose values all hash alike
        seed = int.from_bytes(os.urandom(8))
        self._machine: _machine.Machine | slow_machine.Machine
        self._machine = (_machine or slow_machine).Machine(raw, wanted, seed)
        self._fields = [fields for _, fields in tables]

    @property
    def held(self) -> int:
        """Bytes of memory in use."""
        return self._machine.held

    def feed(self, block: bytes | bytearray | memoryview) -> None:
        """Read on; :class:`Refused` for what no snapshot has."""
        _check(self._machine.feed(block))

    def close(self) -> Document:
        """The file ends here: what was in it. Nothing can be done with the machine afterwards."""
        _check(self._machine.finish())
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


def _check(problem: tuple[int, int, int] | None) -> None:
    if problem is not None:
        code, number, offset = problem
        raise Refused(_SAID[Problem(code)].format(number, op=_opcode(number)), offset)


def _opcode(code: int) -> str:
    name = next((op.name for op in pickletools.opcodes if ord(op.code) == code), None)
    if name is None:
        return hex(code)
    return f"{name} ({chr(code)!r})" if 32 < code < 127 else name
