"""Read pickles of plain data in limited memory, without the library's unpickler.

It reads Flight Recorder dumps, and memory snapshots without the compiled machine. Only the opcodes
of numbers, texts, tuples, lists and dicts exist: a file cannot look up or call anything.
:class:`Problem` has the reasons to reject a pickle, also those of the compiled machine.
"""

import io
import pickletools
import struct
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
_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


class Problem(Enum):
    """Reasons to reject a file, in the order of the numbers in ``_machine_store.h``.

    In the texts, ``{}`` is the number of the problem, ``{op}`` the opcode with that number. Only
    the reader in Python has the last two.
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
    name = _NAMES.get(code, hex(code))
    return f"{name} ({chr(code)!r})" if code in _NAMES and 32 < code < 127 else name


#: Memory limit: bytes per byte of the file, and a constant.
OBJECTS, ALLOWANCE = 50, 32 << 20
#: Maximum memory in bytes of what an opcode creates, with the words made of it and the items of a
#: small container; what all others create is below the limit for their bytes in the file.
_COSTS: Final = {"EMPTY_LIST": 350, "EMPTY_DICT": 450, "MEMOIZE": 130} | dict.fromkeys(
    ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), 400
)
#: Values on the stack besides one for each four bytes of the file.
_STACK: Final = 1 << 20
_PROTO, _STOP = 0x80, ord(".")


class PlainUnpickler:
    """Unpickles plain data; texts become bytes, as not all are UTF-8.

    Attributes:
        at: offset of the current opcode.
        consumed: bytes of complete opcodes.
        complete: whether the pickle is complete, not truncated.
        memo: values by index.
        proto: protocol, 0 for an empty file.
        trailing: bytes after the end.
        most_key: keys of dictionaries are numbers below it, or texts.
    """

    most_key = 1 << 31

    def __init__(self, blocks: Iterable[bytes], triggers: Sequence[bytes] = ()) -> None:
        self.at = self.consumed = self.trailing = self.proto = 0
        self.complete = False
        self._file = io.BufferedReader(JoinedBlocks(iter(blocks)))
        self._op = self._end = self._spent = 0
        self._triggers, self._fetched = triggers, set[int]()
        self.memo: dict[int, Any] = {}
        self._levels: list[list[Any]] = [[]]  # the stack; each MARK begins a level

    def load(self) -> Any:
        """Return the root; that of a truncated file has all complete values and rows.

        Raises:
            Refused: the pickle has other opcodes, is damaged, or takes too much memory.
        """
        try:
            return self._root()
        except IndexError:
            raise Refused(Problem.TOO_FEW, self._op, self.at) from None
        except MemoryError:
            raise Refused(Problem.MEMORY, offset=self.at) from None
        except Refused as error:
            error.offset = self.at
            raise

    def _root(self) -> Any:
        try:
            while self._step():
                self.consumed = self._end
                most = OBJECTS * self._end + ALLOWANCE
                if self._spent > most or len(self._levels[-1]) > self._end // 4 + _STACK:
                    raise Refused(Problem.MEMORY)
        except EOFError:
            return self._salvaged()
        self.complete, self.consumed = True, self._end
        self.trailing = sum(map(len, iter(lambda: self._file.read(1 << 20), b"")))
        return self._levels[0][0]

    def _step(self) -> bool:
        """Execute an opcode; return whether it was not the last one."""
        self.at = self._end
        self._op = self._number(1)
        if (self._op == _PROTO) == (self.at > 0):
            raise Refused(Problem.PROTO_AGAIN if self.at else Problem.START, self._op)
        if self._op == _STOP:
            if len(self._levels) > 1 or len(self._levels[0]) != 1:
                raise Refused(Problem.LEFT_OVER, sum(map(len, self._levels)))
            return False
        name = _NAMES.get(self._op, "")
        self._spent += _COSTS.get(name, 0)
        if create := _VALUES.get(name):
            value = create(self)  # may remove a level
            self._levels[-1].append(value)
        elif execute := _OTHERS.get(name):
            execute(self)
        else:
            raise Refused(Problem.OPCODE, self._op)
        return True

    def _read(self, size: int) -> bytes:
        if size > MOST_TEXT:
            raise Refused(Problem.TEXT, size)
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError
        self._end += size
        return data

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._read(size), "little", signed=signed)

    def _long(self) -> int:
        if (size := self._number(1)) > MOST_BIG:
            raise Refused(Problem.INTEGER, size)
        return self._number(size, signed=True)

    def _protocol(self) -> None:
        self.proto = self._number(1)
        if not 2 <= self.proto <= 5:
            raise Refused(Problem.PROTOCOL, self.proto)

    def _mark(self) -> None:
        if len(self._levels) > MOST_MARKS:
            raise Refused(Problem.MARKS)
        self._levels.append([])

    def _marked(self) -> list[Any]:
        """Remove and return the values above the last MARK."""
        if len(self._levels) == 1:
            raise Refused(Problem.NO_MARK, self._op)
        return self._levels.pop()

    def _last(self, count: int) -> list[Any]:
        """Remove and return so many values."""
        level = self._levels[-1]
        if len(level) < count:
            raise IndexError
        items = level[-count:]
        del level[-count:]
        return items

    def _put(self, index: int) -> None:
        if index > min(len(self.memo) + AHEAD, self.at):
            raise Refused(Problem.BEYOND, index)
        if index in self.memo:
            raise Refused(Problem.STORED_TWICE, index)
        self.memo[index] = self._levels[-1][-1]

    def _get(self, index: int) -> Any:
        if index not in self.memo:
            raise Refused(Problem.NEVER_STORED, index)
        value = self.memo[index]
        if type(value) in (list, dict):
            self._fetched.add(id(value))
        return value

    def _fill(self, items: list[Any], kind: type[Any]) -> None:
        """Put items into a list or dict, which must not be in use: nothing contains itself."""
        target = self._levels[-1][-1]
        if type(target) is not kind:
            raise Refused(Problem.NO_LIST if kind is list else Problem.NO_DICT)
        if id(target) in self._fetched:
            raise Refused(Problem.REFILLED)
        if kind is list:
            target.extend(items)
            return
        if len(items) & 1:
            raise Refused(Problem.ODD)
        if not all(_is_key(key, self.most_key) for key in items[::2]):
            raise Refused(Problem.KEY)
        target.update(zip(items[::2], items[1::2], strict=True))

    def _salvaged(self) -> Any:
        """Return the root of a truncated file; an incomplete row is lost."""
        while True:
            items = self._levels.pop()
            outer = self._levels[-1][-1] if self._levels and self._levels[-1] else None
            while len(items) > 1 and self._waits(items[-1], items[-2], type(outer) is list):
                items[-2].append(items.pop())
            if not self._levels:
                return items[0] if items else None
            if type(outer) is list:
                self._fill(items, list)
            elif type(outer) is dict and not self._is_row(outer):
                del items[len(items) & ~1 :]  # a key without a value
                if outer or not self._is_row(items[::2]):
                    self._fill(items, dict)
                else:
                    self._levels[-1].pop()

    def _waits(self, item: Any, target: Any, in_list: bool) -> bool:
        """Whether an item waits for the APPEND to the list before it."""
        if type(target) is not list or id(target) in self._fetched:
            return False
        return self._is_row(item) or (type(item) is list and not in_list)

    def _is_row(self, value: Any) -> bool:
        return type(value) in (dict, list) and any(key in value for key in self._triggers)


def _is_key(key: Any, most: int) -> bool:
    """Whether a key is hashed without recursion, and cannot be crafted to collide."""
    if type(key) is int:
        return -most <= key < most
    return key is None or type(key) in (bool, bytes)


#: Opcodes that create a value.
_VALUES: Final[dict[str, Callable[[PlainUnpickler], Any]]] = {
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "BININT": lambda of: of._number(4, signed=True),
    "BININT1": lambda of: of._number(1),
    "BININT2": lambda of: of._number(2),
    "LONG1": PlainUnpickler._long,
    "BINFLOAT": lambda of: struct.unpack(">d", of._read(8))[0],
    "SHORT_BINUNICODE": lambda of: of._read(of._number(1)),
    "BINUNICODE": lambda of: of._read(of._number(4)),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_TUPLE": lambda _: (),
    "TUPLE": lambda of: tuple(of._marked()),
    "TUPLE1": lambda of: tuple(of._last(1)),
    "TUPLE2": lambda of: tuple(of._last(2)),
    "TUPLE3": lambda of: tuple(of._last(3)),
    "BINGET": lambda of: of._get(of._number(1)),
    "LONG_BINGET": lambda of: of._get(of._number(4)),
}
_OTHERS: Final[dict[str, Callable[[PlainUnpickler], Any]]] = {
    "PROTO": PlainUnpickler._protocol,
    "FRAME": lambda of: of._read(8),  # the number of bytes to read ahead, wrong if truncated
    "MARK": PlainUnpickler._mark,
    "MEMOIZE": lambda of: of._put(len(of.memo)),
    "BINPUT": lambda of: of._put(of._number(1)),
    "LONG_BINPUT": lambda of: of._put(of._number(4)),
    "APPEND": lambda of: of._fill(of._last(1), list),
    "APPENDS": lambda of: of._fill(of._marked(), list),
    "SETITEM": lambda of: of._fill(of._last(2), dict),
    "SETITEMS": lambda of: of._fill(of._marked(), dict),
}
