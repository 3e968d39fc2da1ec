"""Frames of collapsed stacks: a process, a thread, or a function with its file and line."""

import re

from traceanalyzer.parsers.tables import Frame, Lanes

#: A count: whole or fractional, never negative.
COUNT = re.compile(rb"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_PROCESS = re.compile(rb'process (\d{1,18}):"')
#: Where a command line ends: a quote before another label or something that looks like a frame.
#: Nothing in it is escaped, so a quote alone is no end.
_COMMAND_END = re.compile(rb'";(?=process \d+:"|thread \(|[^;]* \()')
#: A thread's name may hold "; ": a frame never begins with a space.
_THREAD = re.compile(
    rb"thread \((\d{1,18}|0[xX][0-9a-fA-F]{1,16})\)(?:: ([^;]*(?:; [^;]*)*))?(?:;|\Z)"
)
_AUSTIN = re.compile(rb"P(\d{1,18});T(?:\d+:)?(\d{1,18}|0[xX][0-9a-fA-F]{1,16})(?:;|\Z)")

LABELLED = (b"process ", b"thread (")
_SIGN, _MODULUS = 1 << 63, 1 << 64

_LINE = re.compile(r":(0|[1-9]\d{0,8})\)\Z")
#: What a Python frame names as its file: a source file, or what the compiler was told.
_PYTHON = re.compile(r"(?i)\.py[xwi]?\Z|\A<|>\Z")
_AUSTIN_FRAME = re.compile(r"(?s)(.*):(.*?):(0|[1-9]\d{0,8})\Z")
#: py-spy's word for a library it does not know.
_UNKNOWN = "?"


def closes(line: bytes) -> bool:
    """Whether a line, or what follows its first quote, ends a command line and the record."""
    stack, _, count = line.rstrip().rpartition(b" ")
    return COUNT.fullmatch(count) is not None and _has_end(stack)


def is_closed(stack: bytes) -> bool:
    """Whether a stack begins with a label that ends in it."""
    found = _PROCESS.match(stack)
    return _has_end(stack, found.end()) if found else stack.startswith(LABELLED)


def _has_end(stack: bytes, start: int = 0) -> bool:
    return stack.find(b'";', start) >= 0 or (stack.endswith(b'"') and len(stack) > start)


def opened(line: bytes) -> int:
    """Where the command line starts that a line begins with; 0 when it does not."""
    found = _PROCESS.match(line)
    return found.end() if found else 0


def py_spy(stack: bytes, lanes: Lanes) -> tuple[int, bytes]:
    """The lane of a stack and what follows its process and thread frames."""
    end = 0
    while found := _PROCESS.match(stack, end):
        end = _end_of_command(stack, found.end()) + 2
    if found := _THREAD.match(stack, end):
        end = found.end()
    label = stack[:end]
    lane = lanes.by_label.get(label)
    if lane is None:
        lane = lanes.by_label[label] = _lane(stack, lanes)
    return lane, stack[end:]


def named(
    stack: bytes, lanes: Lanes, *, pid: int | None = None, tid: int | None = None
) -> int | None:
    """The lane of process and thread frames; None where a stack has others too.

    Process or thread are as told where no frame names them.
    """
    _, rest = py_spy(stack, Lanes())
    return None if rest else _lane(stack, lanes, pid, tid)


def _lane(
    stack: bytes, lanes: Lanes, told_pid: int | None = None, told_tid: int | None = None
) -> int:
    """The lane that a stack's process and thread frames name; what follows tells where they end."""
    pid, tid = None, told_tid
    place = 0
    while found := _PROCESS.match(stack, place):
        own, start = int(found[1]), found.end()
        end = _end_of_command(stack, start)
        lanes.add_process(own, stack[start:end].decode(errors="replace"), pid)
        pid, place = own, end + 2
    pid = told_pid if pid is None else pid
    if found := _THREAD.match(stack, place):
        tid = _id(found[1])
        lanes.add_thread(pid, tid, found[2].decode(errors="replace") if found[2] else None)
    return lanes.of(pid, tid)


def austin(stack: bytes, lanes: Lanes) -> tuple[int, bytes]:
    """The lane of an Austin stack and its frames."""
    found = _AUSTIN.match(stack)
    if not found:
        return 0, stack
    pid, tid = int(found[1]), _id(found[2])
    lanes.add_thread(pid, tid, None)
    return lanes.of(pid, tid), stack[found.end() :]


def _end_of_command(stack: bytes, start: int) -> int:
    """Where the quote is that ends the command line."""
    if found := _COMMAND_END.search(stack, start):
        return found.start()
    if stack.endswith(b'"') and len(stack) > start:
        return len(stack) - 1
    end = stack.find(b'";', start)
    return end if end >= 0 else len(stack)


def _id(text: bytes) -> int:
    """A thread id, decimal or hexadecimal, as Int64."""
    value = int(text, 16 if text[:2].lower() == b"0x" else 10)
    return value - _MODULUS if value >= _SIGN else value


def split(text: str) -> Frame:
    """``NAME (FILE:LINE)``, ``NAME (FILE)``, ``NAME (LIBRARY)`` or ``NAME``.

    Paths and C++ names hold ``(`` themselves: a Python frame ends its name at the first `` (``, a
    native one at the last.
    """
    if not text.endswith(")"):
        return Frame(text)
    name, _, rest = text.partition(" (")
    found = _LINE.search(rest)
    if found and found.start():
        return Frame(name, rest[: found.start()], int(found[1]))
    file = rest[:-1]
    if not _PYTHON.search(file):
        name, _, rest = text.rpartition(" (")
        file = rest[:-1]
    if not file or not name:
        return Frame(text)
    return Frame(name, None if file == _UNKNOWN else file)


def split_austin(text: str) -> Frame:
    """``FILE:NAME:LINE``; the file may hold colons."""
    found = _AUSTIN_FRAME.match(text)
    if not found:
        return Frame(text)
    file, name, line = found.groups()
    return Frame(name, file or None, int(line))
