"""The stack, the memo and the containers of the machine in Python."""

from __future__ import annotations

from array import array

from traceanalyzer.parsers.memory_snapshot.slow_store import (
    WORD_BYTES,
    Chains,
    Memory,
    Pool,
    Problem,
    Room,
    Table,
    Wrong,
)

NONE, BOOL, INT, BIG, FLOAT, STR, EMPTY, STACK, TUPLE, LIST, DICT, ROW = range(12)
#: Never seen outside: a container that can still be filled, a memo entry that cannot be fetched,
#: and a stack in the memo that was not yet fetched.
OPEN, BARRED, KEPT = 12, 13, 14
#: Kinds of open containers, in the 3 bits above the tag. Above them stands nothing, a memo index,
#: the number of a sequence, or that of a list or dict.
NEW_LIST, NEW_DICT, MEMO_LIST, MEMO_DICT, OPEN_STACK, MEMO_STACK, OPEN_LIST, OPEN_DICT = range(8)
DICTS = (NEW_DICT, MEMO_DICT, OPEN_DICT)
UNSET, TAKEN = BARRED, BARRED | 1 << 4

MOST_ITEMS = 65536
AHEAD = 1024


class Values:
    """The stack, the memo, and all that was made of them."""

    def __init__(
        self, keys: tuple[bytes, ...], tables: tuple[tuple[int, tuple[int, ...]], ...]
    ) -> None:
        self.memory = memory = Memory()
        self.stack: list[int] = []
        self.memo: list[int] = []
        self.marks: list[int] = []
        self.stored = self.at = self._again = 0
        self.strings, self.bigs, self.floats, self.sequences, self.frames = (
            Pool(memory) for _ in range(5)
        )
        self.lists, self.dicts = Chains(memory), Chains(memory)
        self.tables = [Table(memory, fields) for _, fields in tables]
        self.seen: set[int] = set()
        self.stack_room, self._memo_room, self._scratch = (
            Room(memory, WORD_BYTES) for _ in range(3)
        )
        for number, key in enumerate(keys):
            if self.strings.intern(key) != number:
                raise ValueError("a key twice")
        self._triggers = {key: number for number, (key, _) in reversed([*enumerate(tables)])}

    def push(self, word: int) -> None:
        """Put a word on the stack."""
        self.stack_room.fit(len(self.stack) + 1)
        self.stack.append(word)

    def floor(self) -> int:
        """How much of the stack is below the last mark."""
        return self.marks[-1] if self.marks else 0

    def settled(self, word: int) -> int:
        """What a container on the stack is once it is used."""
        if word & 15 != OPEN:
            return word
        kind, of = word >> 4 & 7, word >> 7
        if kind == OPEN_STACK:
            return STACK | of << 4
        if kind == MEMO_STACK:
            return STACK | self.memo[of] >> 4 << 4
        if kind == OPEN_LIST:
            return LIST | of << 4
        return DICT | of << 4 if kind == OPEN_DICT else EMPTY

    def append(self, place: int) -> None:
        """Everything above a place on the stack goes into the list there."""
        was, items = self.stack[place], self.stack[place + 1 :]
        if not list_like(was):
            raise Wrong(Problem.NO_LIST)
        del self.stack[place + 1 :]
        if not items:
            return
        kind = was >> 4 & 7
        if kind == OPEN_LIST:
            self.lists.extend(was >> 7, self._all_settled(items))
        elif kind in (OPEN_STACK, MEMO_STACK):
            self._more_stack(place, was, items)
        elif all_frames(items):
            self._make_stack(place, was, items)
        else:
            self._make_list(place, was, OPEN, [items])

    def set(self, place: int) -> None:
        """The pairs above a place on the stack go into the dict there, which may become a row."""
        was, pairs = self.stack[place], self.stack[place + 1 :]
        if was & 15 != OPEN or was >> 4 & 7 not in DICTS:
            raise Wrong(Problem.NO_DICT)
        if len(pairs) & 1:
            raise Wrong(Problem.ODD)
        del self.stack[place + 1 :]
        if not pairs:
            return
        if was >> 4 & 7 == OPEN_DICT:
            self.dicts.extend(was >> 7, self._all_settled(pairs))
            return
        of = self.table_of(pairs)
        if of is not None:
            self.stack[place] = row = self._row(of, pairs)
            self._patch(was, MEMO_DICT, OPEN, TAKEN if of else row)
            return
        self._patch(was, MEMO_DICT, OPEN, TAKEN)
        number = self.dicts.begin()
        self.stack[place] = opened(OPEN_DICT, number)
        self.dicts.extend(number, self._all_settled(pairs))

    def table_of(self, pairs: list[int]) -> int | None:
        """The first table that has one of these keys as its trigger."""
        keys = (key >> 4 for key in pairs[::2] if key & 15 == STR)
        return min((self._triggers[key] for key in keys if key in self._triggers), default=None)

    def tuple(self, count: int) -> None:
        """The last values become one."""
        if count > MOST_ITEMS:
            raise Wrong(Problem.LONG_TUPLE, count)
        items = self._all_settled(self.stack[-count:])
        if any(item & 15 > EMPTY for item in items):
            raise Wrong(Problem.NESTED_TUPLE)
        number = self.sequences.intern(array("Q", items).tobytes())
        self.stack[-count:] = [TUPLE | number << 4]

    def put(self, index: int) -> None:
        """Keep the last value in the memo."""
        if index > self.stored + AHEAD or index > self.at:
            raise Wrong(Problem.BEYOND, index)
        if index < len(self.memo) and self.memo[index] != UNSET:
            raise Wrong(Problem.STORED_TWICE, index)
        self._memo_room.fit(index + 1)
        self.memo += [UNSET] * (index + 1 - len(self.memo))
        value = self.stack[-1]
        if value & 15 == ROW and not is_frame(value):
            value = TAKEN
        elif value & 15 == OPEN:
            value = self._put_open(index, value)
        self.memo[index] = value
        self.stored += 1

    def _put_open(self, index: int, value: int) -> int:
        kind, of = value >> 4 & 7, value >> 7
        if kind in (NEW_LIST, NEW_DICT):
            self.stack[-1] = opened(MEMO_LIST if kind == NEW_LIST else MEMO_DICT, index)
            return OPEN
        if kind == OPEN_STACK:
            self.stack[-1] = opened(MEMO_STACK, index)
            return KEPT | of << 4
        if kind in (OPEN_LIST, OPEN_DICT):
            return TAKEN
        raise Wrong(Problem.KEPT_TWICE)

    def get(self, index: int) -> None:
        """Push what the memo has."""
        if index >= len(self.memo) or self.memo[index] == UNSET:
            raise Wrong(Problem.NEVER_STORED, index)
        word = self.memo[index]
        if word & 15 >= OPEN:
            if word & 15 == BARRED:
                raise Wrong(Problem.USED_TWICE)
            word = self.memo[index] = EMPTY if word & 15 == OPEN else STACK | word >> 4 << 4
        self.push(word)

    def _all_settled(self, words: list[int]) -> list[int]:
        return [self.settled(word) if word & 15 == OPEN else word for word in words]

    def _patch(self, was: int, kind: int, expected: int, value: int) -> None:
        """The memo entry of a container that is about to be filled, which nobody has fetched."""
        if was >> 4 & 7 == kind:
            if self.memo[was >> 7] & 15 != expected:
                raise Wrong(Problem.REFILLED)
            self.memo[was >> 7] = value

    def _make_stack(self, place: int, was: int, items: list[int]) -> None:
        if len(items) > MOST_ITEMS:
            raise Wrong(Problem.FRAMES)
        number = self.sequences.intern(array("Q", items).tobytes())
        if was >> 4 & 7 in (NEW_LIST, OPEN_STACK):
            self.stack[place] = opened(OPEN_STACK, number)
            return
        self._patch(was, MEMO_LIST, OPEN, KEPT | number << 4)
        self._patch(was, MEMO_STACK, KEPT, KEPT | number << 4)
        self.stack[place] = opened(MEMO_STACK, was >> 7)

    def _more_stack(self, place: int, was: int, items: list[int]) -> None:
        old = array("Q", self.sequences.all[self.settled(was) >> 4]).tolist()
        self._again += len(old)
        if self._again > 4 * self.memory.behind + (16 << 20):
            raise Wrong(Problem.AGAIN)
        if not all_frames(items):
            self._make_list(place, was, KEPT, [old, items])
            return
        self._scratch.fit(len(old) + len(items))
        self._make_stack(place, was, old + items)

    def _make_list(self, place: int, was: int, expected: int, runs: list[list[int]]) -> None:
        self._patch(was, MEMO_LIST if expected == OPEN else MEMO_STACK, expected, TAKEN)
        number = self.lists.begin()
        self.stack[place] = opened(OPEN_LIST, number)
        for run in runs:
            self.lists.extend(number, self._all_settled(run))

    def _row(self, of: int, pairs: list[int]) -> int:
        table = self.tables[of]
        values = {
            table.column_of[key >> 4]: self.settled(value)
            for key, value in zip(pairs[::2], pairs[1::2], strict=True)
            if key & 15 == STR and key >> 4 in table.column_of
        }
        if of:
            return ROW | table.add(values) << 4 | of << 56
        self.seen.update(values)
        row = array("Q", [values.get(column, NONE) for column in range(len(table.columns))])
        return ROW | self.frames.intern(row.tobytes()) << 4


def opened(kind: int, of: int) -> int:
    """A container on the stack that can still be filled."""
    return OPEN | kind << 4 | of << 7


def list_like(word: int) -> bool:
    """Whether a word is a list that can still be filled."""
    return word & 15 == OPEN and word >> 4 & 7 not in DICTS


def all_frames(words: list[int]) -> bool:
    """Whether all are rows of table 0."""
    return all(is_frame(word) for word in words)


def is_frame(word: int) -> bool:
    """Whether a word is a row of table 0."""
    return word & 15 == ROW and not word >> 56
