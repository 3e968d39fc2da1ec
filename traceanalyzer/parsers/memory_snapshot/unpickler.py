"""Read pickles with the unpickler of Python's library, limited to plain data and in memory.

It reads Flight Recorder dumps, and memory snapshots without the compiled machine. Only the opcodes
of numbers, texts, tuples, lists and dicts are executed: a file cannot look up or call anything.
:class:`Problem` has the reasons to reject a pickle, also those of the compiled machine.
"""

import io
import pickle
import pickletools
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final

from traceanalyzer.parsers.source import JoinedBlocks

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


#: Memory limit: bytes per byte of the file, and a constant.
OBJECTS, ALLOWANCE = 50, 32 << 20
#: Values on the stack besides one for each four bytes of the file.
_STACK: Final = 1 << 20
#: Executed opcodes, by the maximum memory in bytes of a value and its words.
_COSTS: Final = {
    0: "PROTO FRAME STOP MARK APPEND APPENDS SETITEM SETITEMS",
    20: "NONE NEWTRUE NEWFALSE BININT1 EMPTY_TUPLE BINGET LONG_BINGET",
    60: "BININT BININT2",
    100: "EMPTY_LIST EMPTY_DICT MEMOIZE BINPUT LONG_BINPUT",
    220: "LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE",
    400: "TUPLE TUPLE1 TUPLE2 TUPLE3",
}
#: Words of a filled container, and places of its items on the stack, without their words.
_FILLED, _ITEM = 150, 12
_ONE: Final = {pickle.APPEND[0]: 1, pickle.SETITEM[0]: 2}
#: Bytes of a memo index.
_INDEX: Final = {
    **dict.fromkeys(pickle.BINPUT + pickle.BINGET, 1),
    **dict.fromkeys(pickle.LONG_BINPUT + pickle.LONG_BINGET, 4),
}
_APPENDS: Final = pickle.APPEND + pickle.APPENDS
#: The unpickler in Python: its methods by opcode are documented in its source only.
_Library: Any = pickle._Unpickler


class _Input:
    """Blocks as a file that returns all bytes of a request, or raises EOFError."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.at = 0
        self._file = io.BufferedReader(JoinedBlocks(iter(blocks)))
        self.readline = self._file.readline

    def read(self, size: int) -> bytes:
        if size > MOST_TEXT:
            raise Refused(Problem.TEXT, size)
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError
        self.at += size
        return data

    def count_rest(self) -> int:
        return sum(map(len, iter(lambda: self._file.read(1 << 20), b"")))


class PlainUnpickler(_Library):  # type: ignore[misc]
    """Unpickles plain data; texts become bytes, as not all are UTF-8.

    Attributes:
        at: offset of the current opcode.
        consumed: bytes of complete opcodes.
        complete: whether the pickle is complete, not truncated.
        trailing: bytes after the end.
    """

    def __init__(self, blocks: Iterable[bytes], triggers: Sequence[bytes] = ()) -> None:
        self.op = self.at = self.consumed = self.trailing = self.proto = self.spent = 0
        self.complete = False
        self.input, self._triggers, self._fetched = _Input(blocks), triggers, set[int]()
        super().__init__(self.input)

    def load(self) -> Any:
        """Return the root; that of a truncated file has all complete values and rows.

        Raises:
            Refused: the pickle has other opcodes, is damaged, or takes too much memory.
        """
        try:
            try:
                root = super().load()
            except EOFError:
                return self._salvaged()
        except Refused as error:
            error.offset = self.at
            raise
        except IndexError:
            raise Refused(Problem.TOO_FEW, self.op, self.at) from None
        except (pickle.UnpicklingError, LookupError, AttributeError, TypeError, ValueError):
            raise Refused(Problem.DAMAGED, self.op, self.at) from None
        except MemoryError:
            raise Refused(Problem.MEMORY, offset=self.at) from None
        self.complete, self.consumed = True, self.input.at
        self.trailing = self.input.count_rest()
        return root

    def pop_mark(self) -> list[Any]:
        """Return the values above the last MARK."""
        if not self.metastack:
            raise Refused(Problem.NO_MARK, self.op)
        items: list[Any] = super().pop_mark()
        return items

    def find_class(self, module: str, name: str) -> Any:
        """Reject: the data has no class or function."""
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")

    def persistent_load(self, pid: Any) -> Any:
        """Reject: the data has no external references."""
        raise pickle.UnpicklingError(f"{pid!r} is not allowed")

    def _refuse(self) -> None:
        raise Refused(Problem.OPCODE, self.op)

    def _proto(self) -> None:
        self.proto = self.read(1)[0]
        if not 2 <= self.proto <= 5:
            raise Refused(Problem.PROTOCOL, self.proto)

    def _long(self) -> None:
        if (size := self.read(1)[0]) > MOST_BIG:
            raise Refused(Problem.INTEGER, size)
        self.append(int.from_bytes(self.read(size), "little", signed=True))

    def _skip_frame(self) -> None:
        self.read(8)  # the number of bytes to read ahead: a truncated file has fewer

    def _stop(self) -> None:
        if self.metastack or len(self.stack) != 1:
            raise Refused(Problem.LEFT_OVER, sum(map(len, [self.stack, *self.metastack])))
        self.load_stop()

    def _mark(self) -> None:
        if len(self.metastack) == MOST_MARKS:
            raise Refused(Problem.MARKS)
        self.load_mark()

    def _put(self) -> None:
        size, stored = _INDEX.get(self.op, 0), len(self.memo)
        index = int.from_bytes(self.read(size), "little") if size else stored
        if index > min(stored + AHEAD, self.at):
            raise Refused(Problem.BEYOND, index)
        if index in self.memo:
            raise Refused(Problem.STORED_TWICE, index)
        self.memo[index] = self.stack[-1]

    def _get(self) -> None:
        index = int.from_bytes(self.read(_INDEX[self.op]), "little")
        if index not in self.memo:
            raise Refused(Problem.NEVER_STORED, index)
        value = self.memo[index]
        if type(value) in (list, dict):
            self._fetched.add(id(value))
        self.append(value)

    def _items(self) -> None:
        if count := _ONE.get(self.op):
            items = self.stack[-count:]
            del self.stack[-count:]
        else:
            items = self.pop_mark()
        self._fill(self.stack[-1], items, list if self.op in _APPENDS else dict)

    def _fill(self, target: Any, items: list[Any], kind: type[Any]) -> None:
        """Put items into a list or dict, which must not be in use: nothing contains itself."""
        if type(target) is not kind:
            raise Refused(Problem.NO_LIST if kind is list else Problem.NO_DICT)
        if id(target) in self._fetched:
            raise Refused(Problem.REFILLED)
        if kind is dict and len(items) & 1:
            raise Refused(Problem.ODD)
        if kind is dict and not all(map(_is_key, items[::2])):
            raise Refused(Problem.KEY)
        self.spent += (not target) * _FILLED - len(items) * _ITEM - sys.getsizeof(target)
        if kind is list:
            target.extend(items)
        else:
            target.update(zip(items[::2], items[1::2], strict=True))
        self.spent += sys.getsizeof(target)

    def _salvaged(self) -> Any:
        """Return the root of a truncated file; an incomplete row is lost."""
        levels = [*self.metastack, self.stack]
        while True:
            items = levels.pop()
            outer = levels[-1][-1] if levels and levels[-1] else None
            while len(items) > 1 and self._waits(items[-1], items[-2], type(outer) is list):
                items[-2].append(items.pop())
            if not levels:
                return items[0] if items else None
            if type(outer) is list:
                self._fill(outer, items, list)
            elif type(outer) is dict and not self._is_row(outer):
                del items[len(items) & ~1 :]  # a key without a value
                if outer or not self._is_row(items[::2]):
                    self._fill(outer, items, dict)
                else:
                    levels[-1].pop()

    def _waits(self, item: Any, target: Any, in_list: bool) -> bool:
        """Whether an item waits for the APPEND to the list before it."""
        if type(target) is not list or id(target) in self._fetched:
            return False
        return self._is_row(item) or (type(item) is list and not in_list)

    def _is_row(self, value: Any) -> bool:
        return type(value) in (dict, list) and any(key in value for key in self._triggers)


def _is_key(key: Any) -> bool:
    """Whether a key is hashed without recursion, and cannot be crafted to collide."""
    if type(key) is int:
        return -(1 << 31) <= key < 1 << 31
    return key is None or type(key) in (bool, bytes)


def _counted(op: int, cost: int, load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a handler of an opcode that counts its memory."""

    def step(self: PlainUnpickler) -> None:
        self.op, self.at = op, self.input.at - 1
        if (op == pickle.PROTO[0]) == (self.at > 0):
            raise Refused(Problem.PROTO_AGAIN if self.at else Problem.START, op)
        load(self)
        self.consumed = self.input.at
        self.spent += cost + self.consumed - self.at
        if (
            self.spent > OBJECTS * self.consumed + ALLOWANCE
            or len(self.stack) > self.consumed // 4 + _STACK
        ):
            raise Refused(Problem.MEMORY)

    return step


_METHODS: Final[dict[str, Any]] = {
    "PROTO": PlainUnpickler._proto,
    "FRAME": PlainUnpickler._skip_frame,
    "STOP": PlainUnpickler._stop,
    "MARK": PlainUnpickler._mark,
    "LONG1": PlainUnpickler._long,
    "SHORT_BINUNICODE": _Library.load_short_binbytes,
    "BINUNICODE": _Library.load_binbytes,
    **dict.fromkeys(("MEMOIZE", "BINPUT", "LONG_BINPUT"), PlainUnpickler._put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), PlainUnpickler._get),
    **dict.fromkeys(("APPEND", "APPENDS", "SETITEM", "SETITEMS"), PlainUnpickler._items),
}
_CODES: Final = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
PlainUnpickler.dispatch = {op: _counted(op, 0, PlainUnpickler._refuse) for op in range(256)} | {
    (op := _CODES[name]): _counted(op, cost, _METHODS.get(name, _Library.dispatch[op]))
    for cost, names in _COSTS.items()
    for name in names.split()
}
