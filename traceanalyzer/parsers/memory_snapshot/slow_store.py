"""Where the machine in Python keeps things, counted as the extension takes memory for them.

Both so refuse the same files, at the same byte.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum

NONE = 0

ALLOWANCE = 32 << 20
WORD_BYTES = 8
_PIECE, _CHAIN = 24, 16


class Problem(IntEnum):
    """Why a file is refused."""

    OPCODE = 1
    BEYOND = 2
    NEVER_STORED = 3
    STORED_TWICE = 4
    INTEGER = 5
    TEXT = 6
    USED_TWICE = 7
    REFILLED = 8
    MEMORY = 9
    MARKS = 10
    FRAMES = 11
    TOO_FEW = 12
    NO_MARK = 13
    NO_LIST = 14
    NO_DICT = 15
    ODD = 16
    PROTOCOL = 17
    START = 18
    PROTO_AGAIN = 19
    LEFT_OVER = 20
    NESTED_TUPLE = 21
    LONG_TUPLE = 22
    KEPT_TWICE = 23
    AGAIN = 24
    TOO_MANY = 25


class Wrong(Exception):
    """A problem, on its way to the machine."""

    def __init__(self, problem: Problem, number: int = 0) -> None:
        self.problem = problem
        self.number = number


class Memory:
    """Counts what the extension would hold."""

    def __init__(self) -> None:
        self.held = 0
        self.behind = 0

    def charge(self, size: int) -> None:
        """Count memory that is about to be taken, or refuse it."""
        if self.held + size > 2 * self.behind + ALLOWANCE:
            raise Wrong(Problem.MEMORY)
        self.held += size


class Room:
    """The room of a growing array."""

    def __init__(self, memory: Memory, each: int) -> None:
        self._memory = memory
        self._each = each
        self.room = 0

    def fit(self, need: int) -> None:
        """Make room for so many."""
        if need > self.room:
            room = next_room(self.room, need)
            self._memory.charge((room - self.room) * self._each)
            self.room = room


def next_room(room: int, need: int) -> int:
    """How far an array grows."""
    if room < 64:
        room = 64
    elif room < 1 << 16:
        room *= 2
    else:
        room += room >> (2 if room < 1 << 20 else 3)
    return max(room, need)


class Pool:
    """Distinct texts of bytes, numbered."""

    def __init__(self, memory: Memory) -> None:
        self.texts: dict[bytes, int] = {}
        self.all: list[bytes] = []
        self._memory = memory
        self._ends = Room(memory, WORD_BYTES)
        self._bytes = Room(memory, 1)
        self._used = self._slots = 0

    def intern(self, text: bytes) -> int:
        """The number of a text, new or known."""
        count = len(self.all)
        if 2 * (count + 1) > self._slots:
            size = self._slots * 2 or 64
            self._memory.charge(size * WORD_BYTES)
            self._memory.held -= self._slots * WORD_BYTES
            self._slots = size
        known = self.texts.get(text)
        if known is not None:
            return known
        self._ends.fit(count + 1)
        self._bytes.fit(self._used + len(text))
        self._used += len(text)
        self.texts[text] = count
        self.all.append(text)
        return count


class Chains:
    """Growing runs of words, as many as one likes."""

    def __init__(self, memory: Memory) -> None:
        self.all: list[array[int]] = []
        self._words, self._pieces, self._chains = (
            Room(memory, each) for each in (WORD_BYTES, _PIECE, _CHAIN)
        )
        self._used = self._parts = 0
        self._last = -1  # the run that ends where all words end

    def begin(self) -> int:
        """A new, empty run."""
        self._chains.fit(len(self.all) + 1)
        self.all.append(array("Q"))
        return len(self.all) - 1

    def extend(self, number: int, items: Sequence[int]) -> None:
        """More words for a run."""
        if self._last != number:
            self._pieces.fit(self._parts + 1)
            self._parts += 1
            self._last = number
        self._words.fit(self._used + len(items))
        self._used += len(items)
        self.all[number].extend(items)

    def packed(self, each: int) -> tuple[bytes, bytes]:
        """Offsets in items of so many words, and the words of all runs."""
        ends = array("Q", [0])
        words = bytearray()
        for run in self.all:
            words += run.tobytes()
            ends.append(len(words) // (WORD_BYTES * each))
        return ends.tobytes(), bytes(words)


class Table:
    """Rows of one kind; table 0 has its rows in a pool."""

    def __init__(self, memory: Memory, fields: Sequence[int]) -> None:
        self.columns: list[array[int] | None] = [None] * len(fields)
        self.rows = 0
        self.column_of = {key: column for column, key in enumerate(fields)}
        self._memory = memory
        self._room = 0

    def add(self, values: dict[int, int]) -> int:
        """A new row, of values by column."""
        self._grow()
        for column in values:
            if self.columns[column] is None:
                self._memory.charge(self._room * WORD_BYTES)
                self.columns[column] = array("Q", bytes(self.rows * WORD_BYTES))
        for column, kept in enumerate(self.columns):
            if kept is not None:
                kept.append(values.get(column, NONE))
        self.rows += 1
        return self.rows - 1

    def _grow(self) -> None:
        if self.rows < self._room:
            return
        room = next_room(self._room, self.rows + 1)
        for column in self.columns:
            if column is not None:
                self._memory.charge((room - self._room) * WORD_BYTES)
        self._room = room
