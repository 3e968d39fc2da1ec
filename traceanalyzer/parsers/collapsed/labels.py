"""Frames of collapsed stacks: process labels, thread labels, functions with file and line."""

import re

from traceanalyzer.parsers.tables import Frame, Lanes

#: A count: whole or fractional, never negative.
COUNT = re.compile(rb"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_PROCESS = re.compile(rb'process (\d{1,18}):"')
#: End of a command line: a quote before another label or something that looks like a frame.
#: Command lines are not escaped, so a quote alone does not end one.
_COMMAND_END = re.compile(rb'";(?=process \d+:"|thread \(|[^;]* \()')
#: A thread name may contain "; ": a frame never begins with a space.
_THREAD = re.compile(
    rb"thread \((\d{1,18}|0[xX][0-9a-fA-F]{1,16})\)(?:: ([^;]*(?:; [^;]*)*))?(?:;|\Z)"
)
_AUSTIN = re.compile(rb"P(\d{1,18});T(?:\d+:)?(\d{1,18}|0[xX][0-9a-fA-F]{1,16})(?:;|\Z)")

LABELLED = (b"process ", b"thread (")
_SIGN, _MODULUS = 1 << 63, 1 << 64

_LINE = re.compile(r":(0|[1-9]\d{0,8})\)\Z")
#: The file of a Python frame: a source file, or the name passed to the compiler (``<stdin>``).
_PYTHON = re.compile(r"(?i)\.py[xwi]?\Z|\A<|>\Z")
_TORCH_FRAME = re.compile(r"(?s)(.*)\((0|[1-9]\d{0,8})\):_(.+)\Z")
_AUSTIN_FRAME = re.compile(r"(?s)(.*):(.*?):(0|[1-9]\d{0,8})\Z")
#: py-spy's name of an unknown library.
_UNKNOWN = "?"


def closes(line: bytes) -> bool:
    """Whether a line, or the part after its first quote, ends a command line and the record."""
    stack, _, count = line.rstrip().rpartition(b" ")
    return COUNT.fullmatch(count) is not None and _has_end(stack)


def is_closed(stack: bytes) -> bool:
    """Whether a stack begins with a complete label."""
    match = _PROCESS.match(stack)
    return _has_end(stack, match.end()) if match else stack.startswith(LABELLED)


def _has_end(stack: bytes, start: int = 0) -> bool:
    return stack.find(b'";', start) >= 0 or (stack.endswith(b'"') and len(stack) > start)


def opened(line: bytes) -> int:
    """Return the offset of the command line that a line begins with; 0 without one."""
    match = _PROCESS.match(line)
    return match.end() if match else 0


def py_spy(stack: bytes, lanes: Lanes) -> tuple[int, bytes]:
    """Return the lane of a stack, and the stack without its process and thread frames."""
    end = 0
    while match := _PROCESS.match(stack, end):
        end = _end_of_command(stack, match.end()) + 2
    if match := _THREAD.match(stack, end):
        end = match.end()
    label = stack[:end]
    lane = lanes.by_label.get(label)
    if lane is None:
        lane = lanes.by_label[label] = _lane(stack, lanes)
    return lane, stack[end:]


def named(
    stack: bytes, lanes: Lanes, *, pid: int | None = None, tid: int | None = None
) -> int | None:
    """Return the lane of process and thread frames; None for a stack with other frames too.

    Args:
        stack: the frames.
        lanes: where the lane is added.
        pid: process id, if no frame names the process.
        tid: thread id, if no frame names the thread.
    """
    _, rest = py_spy(stack, Lanes())
    return None if rest else _lane(stack, lanes, pid, tid)


def _lane(
    stack: bytes, lanes: Lanes, default_pid: int | None = None, default_tid: int | None = None
) -> int:
    """Return the lane named by a stack's process and thread frames."""
    pid, tid = None, default_tid
    place = 0
    while match := _PROCESS.match(stack, place):
        child_pid, start = int(match[1]), match.end()
        end = _end_of_command(stack, start)
        lanes.add_process(child_pid, stack[start:end].decode(errors="replace"), pid)
        pid, place = child_pid, end + 2
    pid = default_pid if pid is None else pid
    if match := _THREAD.match(stack, place):
        tid = _id(match[1])
        lanes.add_thread(pid, tid, match[2].decode(errors="replace") if match[2] else None)
    return lanes.of(pid, tid)


def austin(stack: bytes, lanes: Lanes) -> tuple[int, bytes]:
    """Return the lane of an Austin stack, and its frames."""
    match = _AUSTIN.match(stack)
    if not match:
        return 0, stack
    pid, tid = int(match[1]), _id(match[2])
    lanes.add_thread(pid, tid, None)
    return lanes.of(pid, tid), stack[match.end() :]


def _end_of_command(stack: bytes, start: int) -> int:
    """Return the offset of the quote that ends the command line."""
    if match := _COMMAND_END.search(stack, start):
        return match.start()
    if stack.endswith(b'"') and len(stack) > start:
        return len(stack) - 1
    end = stack.find(b'";', start)
    return end if end >= 0 else len(stack)


def _id(text: bytes) -> int:
    """Parse a decimal or hexadecimal thread id as Int64."""
    value = int(text, 16 if text[:2].lower() == b"0x" else 10)
    return value - _MODULUS if value >= _SIGN else value


def split(text: str) -> Frame:
    """Parse ``NAME (FILE:LINE)``, ``NAME (FILE)``, ``NAME (LIBRARY)`` or ``NAME``.

    Paths and C++ names may contain ``(``: the name of a Python frame ends at the first `` (``, that
    of a native one at the last.
    """
    if not text.endswith(")"):
        return Frame(text)
    name, _, rest = text.partition(" (")
    match = _LINE.search(rest)
    if match and match.start():
        return Frame(name, rest[: match.start()], int(match[1]))
    file = rest[:-1]
    if not _PYTHON.search(file):
        name, _, rest = text.rpartition(" (")
        file = rest[:-1]
    if not file or not name:
        return Frame(text)
    return Frame(name, None if file == _UNKNOWN else file)


def split_torch(text: str) -> Frame:
    """Parse ``FILE(LINE):_NAME``; blanks, ``;`` and tabs of all parts are ``_``."""
    match = _TORCH_FRAME.match(text)
    if not match:
        return Frame(text)
    file, line, name = match.groups()
    return Frame(name, file or None, int(line))


def split_austin(text: str) -> Frame:
    """Parse ``FILE:NAME:LINE``; the file may contain colons."""
    match = _AUSTIN_FRAME.match(text)
    if not match:
        return Frame(text)
    file, name, line = match.groups()
    return Frame(name, file or None, int(line))
