"""Split a file into lines of UTF-8, and detect the dialect of collapsed stacks."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

from traceanalyzer.parsers.collapsed import labels
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.source import Source

#: Maximum line length: a million frames fit.
MAX_LINE = 16 << 20
#: Replacement of a longer line; not a valid sample.
TOO_LONG = b"..."
_CHUNK = 1 << 21

_BOMS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

_TWO = re.compile(rb"(?s).*\s(?:\d+(?:\.\d*)?|\.\d+)\s+(?:\d+(?:\.\d*)?|\.\d+)\s*\Z")
_ONE = re.compile(rb"(?s)(.*)\s(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?\s*\Z")
_AUSTIN_LINE = re.compile(rb"P\d+;T[\dxXa-fA-F:]+[; ]")
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


def utf8(head: bytes) -> bytes:
    """Return the beginning of a file as UTF-8 without its byte order mark."""
    return b"".join(_decoded(iter((head,))))


def chunks(source: Source, progress: Progress | None) -> Iterator[list[bytes]]:
    """Yield lists of lines without their line ends; the last line of a file may lack its end.

    A line longer than ``MAX_LINE`` (or a chunk, if that is larger) is replaced by ``TOO_LONG``.
    """
    parts: list[bytes] = []
    size = 0
    for block in _decoded(source.blocks(_CHUNK, progress)):
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
        austin: frames are ``FILE:NAME:LINE`` below ``P<pid>;T<tid>``.
        torch: frames are ``FILE(LINE):_NAME`` of PyTorch's ``export_stacks``; counts are µs.
        full: Austin's metrics are ``TIME,IDLE,MEMORY``.
        columns: counts at the end of a line: 1, or 2 for a comparison of two recordings.
        labelled: lines begin with process or thread frames.
        scale: factor from a count to ``unit``.
        unit: unit of the weights: ``samples``, ``ns`` or ``bytes``.
    """

    austin: bool = False
    torch: bool = False
    full: bool = False
    columns: int = 1
    labelled: bool = False
    scale: float = 1.0
    unit: str = "samples"


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
    if labels.opened(text) or text.startswith(b"# austin:"):
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
    if _is_of_torch(data):
        return Dialect(torch=True, scale=1000.0, unit="ns")
    labelled = any(line.startswith(labels.LABELLED) for line in data)
    two = sum(1 for line in data if _TWO.match(line))
    compared = not labelled and 0 < _MOST * len(data) <= two
    return Dialect(columns=2 if compared else 1, labelled=labelled)


def _is_of_torch(data: list[bytes]) -> bool:
    """Whether most stacks have frames of ``export_stacks``, which have no blanks."""
    matches = sum(1 for line in data if _TORCH_LINE.match(line))
    return bool(data) and matches >= _MOST * len(data)


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


def _decoded(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Decode the blocks to UTF-8; invalid UTF-16 becomes U+FFFD, invalid UTF-8 is kept."""
    first = next(blocks, b"")
    encoding = next((name for bom, name in _BOMS.items() if first.startswith(bom)), None)
    if encoding is None:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first[2:]).encode(errors="replace")
    for block in blocks:
        yield decoder.decode(block).encode(errors="replace")
    yield decoder.decode(b"", final=True).encode()
