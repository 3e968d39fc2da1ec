"""The machine in Python: what ``_machine.c`` does, in the same steps and with the same numbers.

Used where the extension was not compiled, and as its reference in tests.
"""

from __future__ import annotations

import pickle  # for the names of its opcodes alone
import struct
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from traceanalyzer.parsers.memory_snapshot.slow_store import WORD_BYTES, Problem, Wrong
from traceanalyzer.parsers.memory_snapshot.slow_values import (
    BIG,
    BOOL,
    EMPTY,
    FLOAT,
    INT,
    NEW_DICT,
    NEW_LIST,
    NONE,
    OPEN,
    OPEN_DICT,
    ROW,
    STR,
    Values,
    list_like,
    opened,
)

MOST_TEXT = 16 << 20
MOST_MARKS = 1000
MOST_BIG = 9

_Do = Callable[[Values, bytes], None]


class Machine:
    """Reads one pickle; ``feed`` and ``finish`` return a problem, or None."""

    def __init__(
        self,
        keys: tuple[bytes, ...],
        tables: tuple[tuple[int, tuple[int, ...]], ...],
        seed: int,  # noqa: ARG002 - Python's own hashes have theirs
    ) -> None:
        if not 1 <= len(tables) <= 16:
            raise ValueError("1 to 16 tables")
        self._values = Values(keys, tables)
        self._problem: tuple[int, int, int] | None = None
        self._pending = bytearray()
        self._need = 0
        self._consumed = self._trailing = self._protocol = 0
        self._root = NONE
        self._stopped = self._taken = False

    @property
    def held(self) -> int:
        """Bytes that the extension would hold."""
        return 0 if self._taken else self._values.memory.held + len(self._pending)

    def feed(self, block: bytes | bytearray | memoryview) -> tuple[int, int, int] | None:
        """Read on."""
        if self._taken:
            raise ValueError("the machine is closed")
        if self._problem is None and len(block):
            try:
                self._read(bytes(block))
            except Wrong as wrong:
                self._problem = (wrong.problem, wrong.number, self._values.at)
        return self._problem

    def finish(self) -> tuple[int, int, int] | None:
        """The file ends here."""
        if self._taken:
            raise ValueError("the machine is closed")
        if self._problem is None and not self._stopped:
            self._values.at = self._values.memory.behind = self._consumed
            try:
                _salvage(self._values)
            except Wrong as wrong:
                self._problem = (wrong.problem, wrong.number, self._values.at)
            stack = self._values.stack
            self._root = self._values.settled(stack[0]) if stack else NONE
        return self._problem

    def take(self) -> tuple[Any, ...]:
        """Everything that was read, as the extension gives it."""
        if self._taken:
            raise ValueError("the machine is closed")
        self._taken = True
        v = self._values
        rows = [table.rows for table in v.tables]
        columns = [
            tuple(None if column is None else column.tobytes() for column in table.columns)
            for table in v.tables
        ]
        rows[0] = len(v.frames.all)
        frames = array("Q", b"".join(v.frames.all))
        width = len(v.tables[0].columns)
        columns[0] = tuple(
            frames[at::width].tobytes() if at in v.seen else None for at in range(width)
        )
        words = list(accumulate((len(text) // WORD_BYTES for text in v.sequences.all), initial=0))
        return (
            v.strings.all,
            v.bigs.all,
            v.floats.all,
            (array("Q", words).tobytes(), b"".join(v.sequences.all)),
            v.lists.packed(1),
            v.dicts.packed(2),
            tuple(zip(rows, columns, strict=True)),
            self._root,
            int(self._stopped),
            self._consumed,
            self._protocol,
            self._trailing,
        )

    def _read(self, block: bytes) -> None:
        if self._stopped:
            self._trailing += len(block)
            return
        if self._pending:
            self._pending += block
            if len(self._pending) < self._need:
                return
            block = bytes(self._pending)
            self._pending.clear()
        if not self._consumed and block[0] != _PROTO:
            self._values.at = 0
            raise Wrong(Problem.START, block[0])
        self._run(block)

    def _run(self, data: bytes) -> None:
        """Whole opcodes; the first that is not whole waits for the next block."""
        values, memory, end, at = self._values, self._values.memory, len(data), 0
        while not self._stopped and (at := _fetches(values, data, at, self._consumed)) < end:
            op = data[at]
            size, do = _OPCODES.get(op, _UNKNOWN)
            values.at = self._consumed + at
            if at + size <= end and op in _WITH_LENGTH:
                size += self._length(data, at, size)
            if at + size > end:
                self._need = size
                break
            memory.behind = values.at + size
            argument = data[at + 1 : at + size]
            if do is not None:
                do(values, argument)
            else:
                self._control(op, argument)
            at += size
        self._consumed += at
        if self._stopped:
            self._trailing += end - at
        else:
            self._pending += data[at:]

    def _length(self, data: bytes, at: int, size: int) -> int:
        length = int.from_bytes(data[at + 1 : at + size], "little")
        if data[at] == _LONG1 and length > MOST_BIG:
            raise Wrong(Problem.INTEGER, length)
        if length > MOST_TEXT:
            raise Wrong(Problem.TEXT, length)
        return length

    def _control(self, op: int, argument: bytes) -> None:
        values = self._values
        if op == _STOP:
            if len(values.stack) != 1 or values.marks:
                raise Wrong(Problem.LEFT_OVER, len(values.stack))
            self._root = values.settled(values.stack[0])
            self._stopped = True
        elif op == _PROTO:
            if values.at:
                raise Wrong(Problem.PROTO_AGAIN)
            if not 2 <= argument[0] <= 5:
                raise Wrong(Problem.PROTOCOL, argument[0])
            self._protocol = argument[0]
        elif op != _FRAME:  # that says how much to read ahead
            raise Wrong(Problem.OPCODE, op)


def _fetches(values: Values, data: bytes, at: int, offset: int) -> int:
    """All BINGET and LONG_BINGET from here on: most of a snapshot is nothing else."""
    memo, stack, end = values.memo, values.stack, len(data)
    known, room = len(memo), values.stack_room.room
    while at < end:
        if data[at] == _BINGET and at + 2 <= end:
            index, size = data[at + 1], 2
        elif data[at] == _LONG_BINGET and at + 5 <= end:
            index, size = _UINT32(data, at + 1)[0], 5
        else:
            break
        if index < known and memo[index] & 15 < OPEN and len(stack) < room:
            stack.append(memo[index])
        else:
            values.at = offset + at
            values.memory.behind = values.at + size
            values.get(index)
            room = values.stack_room.room
        at += size
    return at


def _mark(values: Values, _: bytes) -> None:
    if len(values.marks) == MOST_MARKS:
        raise Wrong(Problem.MARKS)
    values.marks.append(len(values.stack))


def _unmark(values: Values, op: int, *, holder: bool) -> int:
    """Where the last mark was, with a value before it if there must be one."""
    if not values.marks:
        raise Wrong(Problem.NO_MARK, op)
    mark = values.marks.pop()
    if holder and mark == values.floor():
        raise Wrong(Problem.TOO_FEW, op)
    return mark


def _tuple(values: Values, _: bytes) -> None:
    mark = _unmark(values, pickle.TUPLE[0], holder=False)
    if len(values.stack) > mark:
        values.tuple(len(values.stack) - mark)
    else:
        values.push(EMPTY)


def _appends(values: Values, _: bytes) -> None:
    values.append(_unmark(values, pickle.APPENDS[0], holder=True) - 1)


def _set_items(values: Values, _: bytes) -> None:
    values.set(_unmark(values, pickle.SETITEMS[0], holder=True) - 1)


def _append(values: Values, _: bytes) -> None:
    _need(values, 2, pickle.APPEND[0])
    values.append(len(values.stack) - 2)


def _set(values: Values, _: bytes) -> None:
    _need(values, 3, pickle.SETITEM[0])
    values.set(len(values.stack) - 3)


def _need(values: Values, count: int, op: int) -> None:
    if len(values.stack) - values.floor() < count:
        raise Wrong(Problem.TOO_FEW, op)


def _small_tuple(op: int, count: int) -> _Do:
    def make(values: Values, _: bytes) -> None:
        _need(values, count, op)
        values.tuple(count)

    return make


def _memoize(values: Values, _: bytes) -> None:
    _need(values, 1, pickle.MEMOIZE[0])
    values.put(values.stored)


def _put(op: int) -> _Do:
    def put(values: Values, argument: bytes) -> None:
        _need(values, 1, op)
        values.put(int.from_bytes(argument, "little"))

    return put


def _get(values: Values, argument: bytes) -> None:
    values.get(int.from_bytes(argument, "little"))


def _constant(word: int) -> _Do:
    return lambda values, _: values.push(word)


def _unsigned(values: Values, argument: bytes) -> None:
    values.push(INT | int.from_bytes(argument, "little") << 4)


def _int(values: Values, argument: bytes) -> None:
    _push_integer(values, int.from_bytes(argument, "little", signed=True))


def _long(values: Values, argument: bytes) -> None:
    _push_integer(values, int.from_bytes(argument[1:], "little", signed=True))


def _push_integer(values: Values, number: int) -> None:
    if -(1 << 59) <= number < 1 << 59:
        values.push(INT | (number & (1 << 60) - 1) << 4)
    else:
        raw = number.to_bytes(16, "little", signed=True)
        values.push(BIG | values.bigs.intern(raw) << 4)


def _float(values: Values, argument: bytes) -> None:
    values.push(FLOAT | values.floats.intern(argument[::-1]) << 4)


def _text(header: int) -> _Do:
    return lambda values, argument: values.push(STR | values.strings.intern(argument[header:]) << 4)


_BINGET, _LONG_BINGET = pickle.BINGET[0], pickle.LONG_BINGET[0]
_UINT32 = struct.Struct("<I").unpack_from
_STOP, _PROTO, _FRAME, _LONG1 = pickle.STOP[0], pickle.PROTO[0], pickle.FRAME[0], pickle.LONG1[0]
_WITH_LENGTH = (_LONG1, pickle.SHORT_BINUNICODE[0], pickle.BINUNICODE[0])
_UNKNOWN: tuple[int, _Do | None] = (1, None)
#: Of each opcode: its bytes without what a length in it adds, and what it does.
_OPCODES: dict[int, tuple[int, _Do | None]] = {
    pickle.MARK[0]: (1, _mark),
    pickle.EMPTY_TUPLE[0]: (1, _constant(EMPTY)),
    _STOP: (1, None),
    pickle.BINFLOAT[0]: (9, _float),
    pickle.BININT[0]: (5, _int),
    pickle.BININT1[0]: (2, _unsigned),
    pickle.BININT2[0]: (3, _unsigned),
    pickle.NONE[0]: (1, _constant(NONE)),
    pickle.BINUNICODE[0]: (5, _text(4)),
    pickle.EMPTY_LIST[0]: (1, _constant(opened(NEW_LIST, 0))),
    pickle.APPEND[0]: (1, _append),
    pickle.APPENDS[0]: (1, _appends),
    _BINGET: (2, _get),
    _LONG_BINGET: (5, _get),
    pickle.BINPUT[0]: (2, _put(pickle.BINPUT[0])),
    pickle.LONG_BINPUT[0]: (5, _put(pickle.LONG_BINPUT[0])),
    pickle.SETITEM[0]: (1, _set),
    pickle.TUPLE[0]: (1, _tuple),
    pickle.SETITEMS[0]: (1, _set_items),
    pickle.EMPTY_DICT[0]: (1, _constant(opened(NEW_DICT, 0))),
    _PROTO: (2, None),
    pickle.TUPLE1[0]: (1, _small_tuple(pickle.TUPLE1[0], 1)),
    pickle.TUPLE2[0]: (1, _small_tuple(pickle.TUPLE2[0], 2)),
    pickle.TUPLE3[0]: (1, _small_tuple(pickle.TUPLE3[0], 3)),
    pickle.NEWTRUE[0]: (1, _constant(BOOL | 1 << 4)),
    pickle.NEWFALSE[0]: (1, _constant(BOOL)),
    _LONG1: (2, _long),
    pickle.SHORT_BINUNICODE[0]: (2, _text(1)),
    pickle.MEMOIZE[0]: (1, _memoize),
    _FRAME: (9, None),
}


def _salvage(values: Values) -> None:
    """Fold what is on the stack, so that the rows that are whole remain."""
    stack, marks = values.stack, values.marks
    while True:
        floor = values.floor()
        below = marks[-2] if len(marks) > 1 else 0
        held = bool(marks) and floor > below
        in_list = held and list_like(stack[floor - 1])
        _fold_items(values, floor, in_list)
        if not marks:
            return
        marks.pop()
        if held:
            _fold_mark(values, floor, in_list)
        else:
            del stack[floor:]


def _fold_items(values: Values, floor: int, in_list: bool) -> None:
    """Items that wait for an APPEND go into the lists below them."""
    stack = values.stack
    while len(stack) - floor >= 2 and list_like(stack[-2]):
        if stack[-1] & 15 != ROW and (in_list or not list_like(stack[-1])):
            return
        values.append(len(stack) - 2)


def _fold_mark(values: Values, floor: int, in_list: bool) -> None:
    """What is above a mark goes into the container below; a row that is not whole is lost."""
    stack = values.stack
    container = stack[floor - 1]
    if in_list:
        values.append(floor - 1)
    elif container & 15 != OPEN:
        del stack[floor:]
    else:
        del stack[len(stack) - (len(stack) - floor & 1) :]
        if container >> 4 & 7 != OPEN_DICT and values.table_of(stack[floor:]) is not None:
            del stack[floor - 1 :]
        else:
            values.set(floor - 1)
