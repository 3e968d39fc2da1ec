"""Reasons to reject a pickle, of both readers."""

import pickletools
from enum import Enum
from typing import Final

MOST_TEXT: Final = 16 << 20
MOST_MARKS: Final = 1000
MOST_BIG: Final = 9
MOST_ITEMS: Final = 65536
#: Maximum gap between memo indices.
AHEAD: Final = 1024


class Problem(Enum):
    """Reasons to reject a file, in the order of the numbers in ``_machine_store.h``.

    In the texts, ``{}`` is the number of the problem, ``{op}`` the opcode with that number. Only
    the reader in Python has the last three.
    """

    OPCODE = "opcode {op} does not occur in memory snapshots"
    BEYOND = "memo index {} is out of range"
    NEVER_STORED = "memo index {} was never stored"
    STORED_TWICE = "memo index {} is stored twice"
    INTEGER = "an integer of {} bytes"
    TEXT = "a text of {} bytes"
    USED_TWICE = "a list or row is used twice"
    REFILLED = "a list or dict is filled after use"
    MEMORY = "needs more memory than a snapshot of this size"
    MARKS = f"more than {MOST_MARKS} nested containers"
    FRAMES = f"a stack of more than {MOST_ITEMS} frames"
    TOO_FEW = "opcode {op} with too few values on the stack"
    NO_MARK = "opcode {op} without a MARK"
    NO_LIST = "an item without an open list"
    NO_DICT = "a pair without an open dict"
    ODD = "a key without a value"
    PROTOCOL = "unsupported pickle protocol {}"
    START = "the first byte is {}, not the start of a pickle"
    PROTO_AGAIN = "a second PROTO"
    LEFT_OVER = "STOP with {} values instead of 1"
    NESTED_TUPLE = "a tuple with nested containers"
    LONG_TUPLE = "a tuple of {} values"
    KEPT_TWICE = "a list or dict is stored twice"
    AGAIN = "a stack is refilled too often"
    TOO_MANY = "too many distinct values"
    KEY = "a key that is neither text nor a small number"
    DAMAGED = "damaged at opcode {op}"
    DEEP = "containers are nested too deeply"


class Refused(Exception):
    """The pickle is rejected.

    Attributes:
        problem: the reason.
        number: the number in its text.
        offset: offset of the opcode in the decompressed bytes, None if it is not known.
    """

    def __init__(self, problem: Problem, number: int = 0, offset: int | None = None) -> None:
        super().__init__(problem, number, offset)
        self.problem = problem
        self.number = number
        self.offset = offset

    @property
    def what(self) -> str:
        """The reason, one clause."""
        return self.problem.value.format(self.number, op=opcode_name(self.number))

    def __str__(self) -> str:
        return self.what if self.offset is None else f"{self.what} (at byte {self.offset:,})"


def opcode_name(code: int) -> str:
    """Return the name of an opcode."""
    name = next((op.name for op in pickletools.opcodes if ord(op.code) == code), None)
    if name is None:
        return hex(code)
    return f"{name} ({chr(code)!r})" if 32 < code < 127 else name
