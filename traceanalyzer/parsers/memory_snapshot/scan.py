"""Check of a snapshot's opcodes, before pickle creates objects.

It rejects the same input as ``_machine.c``, at the same byte. It tracks the kinds of the values on
the stack and in the memo, not the values, and limits the memory that the objects would need.
"""

import pickle  # for the names of its opcodes alone
import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from traceanalyzer.parsers.memory_snapshot import document

MOST_TEXT = 16 << 20
MOST_MARKS = 1000
MOST_BIG = 9
MOST_ITEMS = 65536
#: Maximum gap between memo indices.
AHEAD = 1024
#: Memory limit in bytes per byte of the file: for stack and memo, and for objects, which take 5 to
#: 10 in real files.
SLOTS, OBJECTS = 2, 20
#: Constant added to both limits.
ALLOWANCE = 32 << 20
#: Bytes of objects and of their words: an item, a pair, the bookkeeping of a stack or frame.
ITEM_BYTES, PAIR_BYTES, NOTED_BYTES = 16, 48, 200


class Problem(Enum):
    """Reasons to reject a file, in the order of the numbers in ``_machine_store.h``.

    In the texts, ``{}`` is the number of the problem, ``{op}`` the opcode with that number.
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
    KEY = "a key that is neither text nor a small number"  # raised by this scan only


class Wrong(Exception):
    """The file is rejected for a problem."""

    def __init__(self, problem: Problem, number: int = 0) -> None:
        self.problem = problem
        self.number = number


# Kinds of values: the tags of a document's words, except that a row of the first table is FRAME and
# a text that identifies a table is TRIGGER + table number. Open containers on the stack and in the
# memo have five more kinds; a memo entry may also be UNSET, or TAKEN if it must not be used again.
FRAME, TRIGGER = 12, 16
NEW_LIST, NEW_DICT, OPEN_STACK, OPEN_LIST, OPEN_DICT, UNSET, TAKEN = range(32, 39)
#: Kind of a container in the memo after its first fetch, when it can no longer be filled.
_FETCHED: Final = {
    NEW_LIST: document.EMPTY,
    NEW_DICT: document.EMPTY,
    OPEN_STACK: document.STACK,
}
#: Hashable kinds whose values cannot be crafted to collide.
_KEYS: Final = frozenset(
    (document.NONE, document.BOOL, document.INT, document.STR, *range(TRIGGER, NEW_LIST))
)


class Open:
    """A list or dict on the stack.

    Attributes:
        kind: whether it is new, and what it contains.
        index: its index in the memo, or -1.
        frames: number of frames in it.
    """

    __slots__ = ("frames", "index", "kind")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.index = -1
        self.frames = 0


class Scan:
    """Interprets the opcodes in ``data``, to which the file's bytes are appended as they are read.

    It modifies ``data`` so that pickle loads texts as bytes (not all are UTF-8) and does not read
    frames ahead (a truncated file lacks the last one).

    Attributes:
        data: bytes of the file so far.
        consumed: bytes of complete opcodes.
        at: offset of the current opcode.
        protocol: pickle protocol, 0 if not known yet.
        stopped: whether the pickle has ended.
        stack: kinds of values, or open containers.
        memo: kinds of values.
    """

    def __init__(self, triggers: Sequence[bytes]) -> None:
        self.data = bytearray()
        self.consumed = self.at = self.protocol = 0
        self.stopped = False
        self.stack: list[int | Open] = []
        self.memo = bytearray()
        self._texts = {key: TRIGGER + table for table, key in reversed([*enumerate(triggers)])}
        self._marks: list[int] = []
        self._stored = self._again = self._objects = 0
        self._dropped: list[int] = []

    def run(self) -> None:
        """Process all complete opcodes."""
        data, end, at = self.data, len(self.data), self.consumed
        if end and not at and data[0] != _PROTO:
            raise Wrong(Problem.START, data[0])
        while not self.stopped and (at := self._fetches(at, end)) < end:
            self.at = at
            op = data[at]
            size, cost, do = _OPCODES.get(op, _UNKNOWN)
            if at + size <= end and op in _WITH_LENGTH:
                size += _length(op, data[at + 1 : at + size])
            if at + size > end:
                break
            if cost:
                self._charge(cost + size, at + size)
            if isinstance(do, int):
                self.stack.append(do)
            else:
                do(self, op, data[at + 1 : at + size])
            at += size
        self.consumed = at

    def complete(self) -> bytes:
        """Return opcodes that complete a truncated file, as a tuple of its value and of lists.

        The lists contain values outside any container, for the rows in them. An incomplete row is
        lost.
        """
        self.at = self.consumed
        tail = bytearray()
        while True:
            floor, below = self._floor(), self._floor(-2)
            container = self.stack[floor - 1] if self._marks and floor > below else None
            self._fold_items(tail, floor, in_list=_is_list(container))
            if not self._marks:
                break
            self._marks.pop()
            self._fold_mark(tail, floor, container)
        if not self.stack:
            self.stack.append(document.NONE)
            tail += pickle.NONE
        dropped = self._dropped[::-1]
        values = [self._drop(tail) for _ in range(len(self.stack))]
        fetches = (pickle.LONG_BINGET + struct.pack("<I", i) for i in (*values[::-1], *dropped))
        return bytes(tail + pickle.MARK + b"".join(fetches) + pickle.TUPLE + pickle.STOP)

    # --- the memo ----------------------------------------------------------------------------

    def _fetches(self, at: int, end: int) -> int:
        """Process consecutive BINGET and LONG_BINGET opcodes, the bulk of a snapshot."""
        data, memo, stack, known = self.data, self.memo, self.stack, len(self.memo)
        room = (SLOTS * at + ALLOWANCE) // 8 - 2 * known
        while at < end and len(stack) <= room:
            op = data[at]
            if op == _BINGET and at + 2 <= end:
                index, size = data[at + 1], 2
            elif op == _LONG_BINGET and at + 5 <= end:
                index, size = _UINT32(data, at + 1)[0], 5
            else:
                return at
            if index >= known or memo[index] >= NEW_LIST:
                self.at = at
                self._fetch(index)
            stack.append(memo[index])
            at += size
        if len(stack) > room:
            self.at = at
            raise Wrong(Problem.MEMORY)
        return at

    def _fetch(self, index: int) -> None:
        """Check a memo entry that is fetched for the first time, or is invalid."""
        if index >= len(self.memo) or self.memo[index] == UNSET:
            raise Wrong(Problem.NEVER_STORED, index)
        if self.memo[index] not in _FETCHED:
            raise Wrong(Problem.USED_TWICE)
        self.memo[index] = _FETCHED[self.memo[index]]

    def put(self, op: int, argument: bytearray) -> None:
        """MEMOIZE, BINPUT and LONG_BINPUT."""
        self._need(1, op)
        index = int.from_bytes(argument, "little") if argument else self._stored
        if index > self._stored + AHEAD or index > self.at:
            raise Wrong(Problem.BEYOND, index)
        if index < len(self.memo) and self.memo[index] != UNSET:
            raise Wrong(Problem.STORED_TWICE, index)
        self.memo += bytes((UNSET,)) * (index + 1 - len(self.memo))
        value = self.stack[-1]
        if isinstance(value, int):
            kind = TAKEN if value == document.ROW else value
        elif value.kind not in _FETCHED:
            kind = TAKEN
        elif value.index >= 0:
            raise Wrong(Problem.KEPT_TWICE)
        else:
            kind, value.index = value.kind, index
        self.memo[index] = kind
        self._stored += 1

    # --- containers --------------------------------------------------------------------------

    def fill(self, op: int, _: bytearray) -> None:
        """APPEND, APPENDS, SETITEM and SETITEMS."""
        if count := _OF_ONE.get(op):
            self._need(count, op)
            place = len(self.stack) - count
        else:
            place = self._unmark(op) - 1
            if place < self._floor():
                raise Wrong(Problem.TOO_FEW, op)
        (self._append if op in _APPENDS else self._set)(place)

    def _append(self, place: int) -> None:
        """Append everything above a place on the stack to the list there."""
        to, items = self.stack[place], self.stack[place + 1 :]
        if not isinstance(to, Open) or not _is_list(to):
            raise Wrong(Problem.NO_LIST)
        del self.stack[place + 1 :]
        self._charge(NOTED_BYTES * (to.kind == NEW_LIST) + ITEM_BYTES * len(items), self.at + 1)
        if not items or to.kind == OPEN_LIST:
            return
        self._again += to.frames
        if self._again > 4 * self.at + (16 << 20):
            raise Wrong(Problem.AGAIN)
        if items.count(FRAME) < len(items):
            self._become(to, OPEN_LIST, TAKEN)
            return
        to.frames += len(items)
        if to.frames > MOST_ITEMS:
            raise Wrong(Problem.FRAMES)
        self._become(to, OPEN_STACK, OPEN_STACK)

    def _set(self, place: int) -> None:
        """Add the pairs above a place on the stack to the dict there, which may become a row."""
        to, pairs = self.stack[place], self.stack[place + 1 :]
        if not isinstance(to, Open) or to.kind not in (NEW_DICT, OPEN_DICT):
            raise Wrong(Problem.NO_DICT)
        if len(pairs) & 1:
            raise Wrong(Problem.ODD)
        del self.stack[place + 1 :]
        more = ITEM_BYTES * len(pairs)
        if pairs and to.kind == NEW_DICT:
            table = _table_of(pairs)
            self._become(to, OPEN_DICT, FRAME if table == 0 else TAKEN)
            if table is not None:
                self.stack[place] = document.ROW if table else FRAME
                more = 0 if table else NOTED_BYTES
        self._charge(PAIR_BYTES * len(pairs) // 2 + more, self.at + 1)
        if not _KEYS.issuperset(pairs[::2]):
            raise Wrong(Problem.KEY)

    def _become(self, container: Open, kind: int, in_memo: int) -> None:
        """Fill a container, which must not have been fetched from the memo."""
        if container.index >= 0:
            if self.memo[container.index] != container.kind:
                raise Wrong(Problem.REFILLED)
            self.memo[container.index] = in_memo
        container.kind = kind

    def tuple(self, op: int, _: bytearray) -> None:
        """EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3 and TUPLE."""
        count = _TUPLES.get(op)
        if count is None:
            count = len(self.stack) - self._unmark(op)
        self._need(count, op)
        if count > MOST_ITEMS:
            raise Wrong(Problem.LONG_TUPLE, count)
        place = len(self.stack) - count
        if not all(map(_is_plain, self.stack[place:])):  # shared nested tuples would multiply
            raise Wrong(Problem.NESTED_TUPLE)
        self.stack[place:] = [document.TUPLE if count else document.EMPTY]
        self._charge(ITEM_BYTES * count, self.at + 1)

    def new(self, op: int, _: bytearray) -> None:
        """EMPTY_LIST and EMPTY_DICT."""
        self.stack.append(Open(NEW_LIST if op == _EMPTY_LIST else NEW_DICT))

    # --- other opcodes -----------------------------------------------------------------------

    def text(self, op: int, argument: bytearray) -> None:
        """SHORT_BINUNICODE and BINUNICODE."""
        self.data[self.at] = _AS_BYTES[op]
        text = argument[_OPCODES[op][0] - 1 :]
        self.stack.append(self._texts.get(bytes(text), document.STR))

    def frame(self, _: int, __: bytearray) -> None:
        """FRAME: the number of bytes to read ahead."""
        self.data[self.at + 1 : self.at + 9] = bytes(8)

    def proto(self, _: int, argument: bytearray) -> None:
        """PROTO, allowed at the beginning only."""
        if self.at:
            raise Wrong(Problem.PROTO_AGAIN)
        if not 2 <= argument[0] <= 5:
            raise Wrong(Problem.PROTOCOL, argument[0])
        self.protocol = argument[0]

    def stop(self, _: int, __: bytearray) -> None:
        """STOP."""
        if len(self.stack) != 1 or self._marks:
            raise Wrong(Problem.LEFT_OVER, len(self.stack))
        self.stopped = True

    def mark(self, _: int, __: bytearray) -> None:
        """MARK: the following values go into one container."""
        if len(self._marks) == MOST_MARKS:
            raise Wrong(Problem.MARKS)
        self._marks.append(len(self.stack))

    def refuse(self, op: int, _: bytearray) -> None:
        """All opcodes that do not occur in snapshots."""
        raise Wrong(Problem.OPCODE, op)

    def _charge(self, size: int, behind: int) -> None:
        self._objects += size
        if self._objects > OBJECTS * behind + ALLOWANCE:
            raise Wrong(Problem.MEMORY)

    def _floor(self, mark: int = -1) -> int:
        """Return the height of the stack below a mark."""
        return self._marks[mark] if len(self._marks) >= -mark else 0

    def _unmark(self, op: int) -> int:
        if not self._marks:
            raise Wrong(Problem.NO_MARK, op)
        return self._marks.pop()

    def _need(self, count: int, op: int) -> None:
        if len(self.stack) - self._floor() < count:
            raise Wrong(Problem.TOO_FEW, op)

    # --- truncated files ---------------------------------------------------------------------

    def _fold_items(self, tail: bytearray, floor: int, *, in_list: bool) -> None:
        """Append items that wait for an APPEND to the lists below them."""
        while len(self.stack) - floor >= 2 and _is_list(self.stack[-2]):
            top = self.stack[-1]
            if top not in (document.ROW, FRAME) and (in_list or not _is_list(top)):
                return
            self._append(len(self.stack) - 2)
            tail += pickle.APPEND

    def _fold_mark(self, tail: bytearray, floor: int, container: int | Open | None) -> None:
        """Put everything above a mark into the container below it."""
        if _is_list(container):
            self._append(floor - 1)
            tail += pickle.APPENDS
            return
        if not isinstance(container, Open):
            self._drop_to(tail, floor)
            return
        if len(self.stack) - floor & 1:
            self._drop(tail)
        if container.kind == OPEN_DICT or _table_of(self.stack[floor:]) is None:
            self._set(floor - 1)
            tail += pickle.SETITEMS
        else:
            self._drop_to(tail, floor)
            self._drop(tail)

    def _drop_to(self, tail: bytearray, floor: int) -> None:
        """Drop everything above a mark, as a list."""
        self.stack[floor:] = [document.LIST]
        tail += pickle.LIST
        self._drop(tail)

    def _drop(self, tail: bytearray) -> int:
        """Remove the last value from the stack, and return its index in the memo."""
        index = len(self.memo) + len(self._dropped)
        self._dropped.append(index)
        del self.stack[-1]
        tail += pickle.LONG_BINPUT + struct.pack("<I", index) + pickle.POP
        return index


def _length(op: int, argument: bytearray) -> int:
    length = int.from_bytes(argument, "little")
    if op == _LONG1 and length > MOST_BIG:
        raise Wrong(Problem.INTEGER, length)
    if length > MOST_TEXT:
        raise Wrong(Problem.TEXT, length)
    return length


def _is_list(value: int | Open | None) -> bool:
    return isinstance(value, Open) and value.kind in (NEW_LIST, OPEN_STACK, OPEN_LIST)


def _is_plain(value: int | Open) -> bool:
    if isinstance(value, Open):
        return value.kind in (NEW_LIST, NEW_DICT)
    return value <= document.EMPTY or value >= TRIGGER


def _table_of(pairs: Sequence[int | Open]) -> int | None:
    """Return the first table identified by a key of these pairs, or None."""
    triggers = [key for key in pairs[::2] if isinstance(key, int) and key >= TRIGGER]
    return min(triggers) - TRIGGER if triggers else None


_PROTO, _LONG1, _EMPTY_LIST = pickle.PROTO[0], pickle.LONG1[0], pickle.EMPTY_LIST[0]
_BINGET, _LONG_BINGET = pickle.BINGET[0], pickle.LONG_BINGET[0]
_UINT32: Final = struct.Struct("<I").unpack_from
_AS_BYTES: Final = {
    pickle.SHORT_BINUNICODE[0]: pickle.SHORT_BINBYTES[0],
    pickle.BINUNICODE[0]: pickle.BINBYTES[0],
}
_WITH_LENGTH: Final = (_LONG1, *_AS_BYTES)
_OF_ONE: Final = {pickle.APPEND[0]: 2, pickle.SETITEM[0]: 3}
_APPENDS: Final = (pickle.APPEND[0], pickle.APPENDS[0])
_TUPLES: Final = {
    code[0]: count
    for count, code in enumerate((pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3))
}
_Opcode = tuple[int, int, int | Callable[[Scan, int, bytearray], None]]
_UNKNOWN: Final[_Opcode] = (1, 0, Scan.refuse)
#: Per opcode: bytes without a variable-length argument, memory of its object in bytes, and the kind
#: it pushes or its handler.
_OPCODES: Final[dict[int, _Opcode]] = {
    pickle.PROTO[0]: (2, 0, Scan.proto),
    pickle.FRAME[0]: (9, 0, Scan.frame),
    pickle.STOP[0]: (1, 0, Scan.stop),
    pickle.MARK[0]: (1, 0, Scan.mark),
    pickle.NONE[0]: (1, 0, document.NONE),
    pickle.NEWTRUE[0]: (1, 0, document.BOOL),
    pickle.NEWFALSE[0]: (1, 0, document.BOOL),
    pickle.BININT[0]: (5, 40, document.INT),
    pickle.BININT1[0]: (2, 0, document.INT),
    pickle.BININT2[0]: (3, 40, document.INT),
    pickle.LONG1[0]: (2, 100, document.BIG),
    pickle.BINFLOAT[0]: (9, 160, document.FLOAT),
    pickle.SHORT_BINUNICODE[0]: (2, 160, Scan.text),
    pickle.BINUNICODE[0]: (5, 160, Scan.text),
    pickle.EMPTY_TUPLE[0]: (1, 0, Scan.tuple),
    pickle.TUPLE[0]: (1, 160, Scan.tuple),
    pickle.TUPLE1[0]: (1, 160, Scan.tuple),
    pickle.TUPLE2[0]: (1, 160, Scan.tuple),
    pickle.TUPLE3[0]: (1, 160, Scan.tuple),
    pickle.EMPTY_LIST[0]: (1, 120, Scan.new),
    pickle.EMPTY_DICT[0]: (1, 120, Scan.new),
    pickle.APPEND[0]: (1, 0, Scan.fill),
    pickle.APPENDS[0]: (1, 0, Scan.fill),
    pickle.SETITEM[0]: (1, 0, Scan.fill),
    pickle.SETITEMS[0]: (1, 0, Scan.fill),
    pickle.MEMOIZE[0]: (1, 0, Scan.put),
    pickle.BINPUT[0]: (2, 0, Scan.put),
    pickle.LONG_BINPUT[0]: (5, 0, Scan.put),
    _BINGET: (2, 0, Scan.refuse),  # complete ones are handled by _fetches
    _LONG_BINGET: (5, 0, Scan.refuse),
}
