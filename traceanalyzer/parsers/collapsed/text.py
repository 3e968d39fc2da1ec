"""Lines of collapsed stacks, their dialect, and the frames and labels in them."""

import itertools
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.source import Source
from traceanalyzer.parsers.tables import Frame, Lanes

#: Maximum line length: a million frames fit.
MAX_LINE = 16 << 20
#: Replacement of a longer line; not a valid sample.
TOO_LONG = b"..."
_CHUNK = 1 << 21

_TWO = re.compile(rb"(?s).*\s(?:\d+(?:\.\d*)?|\.\d+)\s+(?:\d+(?:\.\d*)?|\.\d+)\s*\Z")
_ONE = re.compile(rb"(?s)(.*)\s((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*\Z")
#: A frame with a file.
_WITH_FILE = re.compile(rb" \([^;()]+\)[; ]")
_AUSTIN_LINE = re.compile(rb"P\d+;T[\dxXa-fA-F:]+[; ]")
#: A stack of Python's own sampling profiler (since 3.15), with frames as those of Austin.
_PYTHON_LINE = re.compile(rb"tid:\d+;")
#: A stack of ``export_stacks``; those of native calls alone have no line number.
_TORCH_LINE = re.compile(rb"(?=\S*\(\d+\):_|<built-in_)\S+ \d+\s*\Z")
_HEADER = re.compile(rb"# (\w+): (.*)")
_AUSTIN_METRICS = re.compile(rb"\d+,[01],-?\d+\Z")
_JSON = re.compile(rb'\s*(?:\{\s*(?:["}]|\Z)|\[\s*(?:[\[{"\]\d]|\Z))')
#: Control characters that do not occur in text.
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
#: Minimum fraction of samples among the lines that are not comments.
_ENOUGH = 0.5
#: Minimum fraction of lines with two counts in a comparison: a name may end in a number.
_MOST = 0.9
#: Median count of stacks from which counts are no samples: most stacks are sampled a few times.
_EVENTS = 1000


def with_newlines(head: bytes) -> bytes:
    """Return the beginning of a file with LF after each line instead of CR alone."""
    return next(_with_newlines(iter((head,))))


def _with_newlines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(blocks, b"")
    is_cr = b"\r" in first and b"\n" not in first
    for block in itertools.chain((first,), blocks):
        yield block.replace(b"\r", b"\n") if is_cr else block


def chunks(source: Source, progress: Progress | None) -> Iterator[list[bytes]]:
    """Yield lists of lines without their line ends; the last line of a file may lack its end.

    A line longer than ``MAX_LINE`` (or a chunk, if that is larger) is replaced by ``TOO_LONG``.
    """
    parts: list[bytes] = []
    size = 0
    for block in _with_newlines(source.blocks(_CHUNK, progress)):
        end = block.rfind(b"\n")
        if end < 0:
            if size <= MAX_LINE:
                parts.append(block)
            size += len(block)
            continue
        if size > MAX_LINE:
            parts = [TOO_LONG, block[block.index(b"\n") : end]]
        else:
            parts.append(block[:end])
        yield _lines(b"".join(parts))
        parts, size = [block[end + 1 :]], len(block) - end - 1
    if size:
        yield [TOO_LONG] if size > MAX_LINE else _lines(b"".join(parts))


@dataclass(frozen=True)
class Dialect:
    """How to parse the lines.

    Attributes:
        austin: frames are ``FILE:NAME:LINE`` below ``P<pid>;T<tid>`` or ``tid:<tid>``.
        torch: frames are ``FILE(LINE):_NAME`` of PyTorch's ``export_stacks``; counts are µs.
        full: Austin's metrics are ``TIME,IDLE,MEMORY``.
        columns: counts at the end of a line: 1, or 2 for a comparison of two recordings.
        labelled: lines begin with process or thread frames.
        scale: factor from a count to ``unit``.
        unit: unit of the weights: ``samples``, ``ns`` or ``bytes``; None if unknown.
    """

    austin: bool = False
    torch: bool = False
    full: bool = False
    columns: int = 1
    labelled: bool = False
    scale: float = 1.0
    unit: str | None = "samples"


def is_comment(line: bytes) -> bool:
    """Whether a line is a comment: ``#``, or ``//`` followed by a space or without a count."""
    if line.startswith(b"#"):
        return True
    return line.startswith(b"//") and (line[2:3].isspace() or not _ONE.match(line))


def foreign(text: bytes) -> str | None:
    """Return what a file that begins so is, if not lines of text; else None."""
    if _BINARY.search(text.replace(b"\0", b"", 1)):
        return "is binary"
    return "is JSON" if _JSON.match(text) else None


def looks_collapsed(text: bytes) -> bool:
    """Whether a file that begins so contains collapsed stacks."""
    if foreign(text):
        return False
    lines = _whole_lines(text)
    if opened(text) or text.startswith(b"# austin:"):
        return True
    if len(lines) == 1 and not _ONE.match(lines[0]):
        return _is_cut_stack(lines[0])
    data = _data(lines)
    if data and _AUSTIN_LINE.match(data[0]):
        return True
    stacks = [match[1] for line in data if (match := _ONE.match(line))]
    if not stacks or len(stacks) < _ENOUGH * len(data):
        return False
    joined = sum(1 for stack in stacks if b";" in stack or stack.endswith(b")") or not stack)
    return joined > 0 if len(stacks) == len(data) else joined >= _ENOUGH * len(stacks)


def _is_cut_stack(line: bytes) -> bool:
    """Whether an incomplete line looks like py-spy's."""
    frames = line.split(b";")[:-1]
    return sum(frame.endswith(b")") for frame in frames) > _ENOUGH * len(frames)


def detect_dialect(text: bytes) -> Dialect:
    """Return the dialect of a file that begins so."""
    lines = _whole_lines(text)
    matches = filter(None, map(_HEADER.match, lines))
    headers: dict[bytes, bytes] = {header[1]: header[2] for header in matches}
    data = _data(lines)
    if b"austin" in headers or (data and all(map(_AUSTIN_LINE.match, data))):
        return _austin(headers, data)
    if data and all(map(_PYTHON_LINE.match, data)):
        return Dialect(austin=True, labelled=True)
    if _is_of_torch(data):
        return Dialect(torch=True, scale=1000.0, unit="ns")
    labelled = any(line.startswith(LABELLED) for line in data)
    two = sum(1 for line in data if _TWO.match(line))
    compared = not labelled and 0 < _MOST * len(data) <= two
    unit = None if not labelled and _counts_events(data) else "samples"
    return Dialect(columns=2 if compared else 1, labelled=labelled, unit=unit)


def _counts_events(data: list[bytes]) -> bool:
    """Whether counts are perf's events (cycles) or times rather than samples, by their size.

    py-spy, whose frames name files, counts samples.
    """
    counts = [float(match[2]) for line in data if (match := _ONE.match(line))]
    is_large = bool(counts) and statistics.median(counts) >= _EVENTS
    return is_large and not any(map(_WITH_FILE.search, data))


def _is_of_torch(data: list[bytes]) -> bool:
    """Whether most stacks have frames of ``export_stacks``, which have no blanks."""
    return bool(data) and sum(1 for line in data if _TORCH_LINE.match(line)) >= _MOST * len(data)


def _austin(headers: dict[bytes, bytes], data: list[bytes]) -> Dialect:
    mode = headers.get(b"mode", b"wall").strip()
    if mode == b"memory":
        return Dialect(austin=True, labelled=True, unit="bytes")
    full = mode == b"full" or any(map(_AUSTIN_METRICS.search, data[:1]))
    return Dialect(austin=True, full=full, labelled=True, scale=1000.0, unit="ns")


def _whole_lines(text: bytes) -> list[bytes]:
    """Return the lines without the last one, which may be incomplete, unless it is the only one."""
    lines = [line.removesuffix(b"\r") for line in text.split(b"\n")]
    return lines[:-1] if len(lines) > 1 else lines


def _data(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.strip() and not is_comment(line)]


def _lines(text: bytes) -> list[bytes]:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return text.split(b"\n")


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
_AUSTIN = re.compile(rb"(?:P(\d{1,18});T(?:\d+:)?|tid:)(\d{1,18}|0[xX][0-9a-fA-F]{1,16})(?:;|\Z)")

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
    """Return the lane of a stack of Austin or Python's profiler, and its frames."""
    match = _AUSTIN.match(stack)
    if not match:
        return 0, stack
    pid, tid = int(match[1]) if match[1] else None, _id(match[2])
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
