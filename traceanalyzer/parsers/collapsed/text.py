"""Whole lines of UTF-8 from a file's bytes, and which dialect of collapsed stacks they are."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

from traceanalyzer.parsers.collapsed import labels
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.source import Source

#: A longer line is no stack: a million frames fit.
MAX_LINE = 16 << 20
#: What stands for it: a line that is no sample.
TOO_LONG = b"..."
_CHUNK = 1 << 21

_BOMS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

_TWO = re.compile(rb"(?s).*\s(?:\d+(?:\.\d*)?|\.\d+)\s+(?:\d+(?:\.\d*)?|\.\d+)\s*\Z")
_ONE = re.compile(rb"(?s)(.*)\s(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?\s*\Z")
_AUSTIN_LINE = re.compile(rb"P\d+;T[\dxXa-fA-F:]+[; ]")
_HEADER = re.compile(rb"# (\w+): (.*)")
_AUSTIN_METRICS = re.compile(rb"\d+,[01],-?\d+\Z")
_JSON = re.compile(rb'\s*(?:\{\s*(?:["}]|\Z)|\[\s*(?:[\[{"\]\d]|\Z))')
#: Control characters that no text has.
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
#: Of the lines that are no comments, so many must be samples.
_ENOUGH = 0.5
#: Where two recordings are compared, so many lines have two counts: a name may end in a number.
_MOST = 0.9


def utf8(head: bytes) -> bytes:
    """The beginning of a file as UTF-8 without its byte order mark."""
    return b"".join(_decoded(iter((head,))))


def chunks(source: Source, progress: Progress | None) -> Iterator[list[bytes]]:
    """Lists of whole lines, without their ends; the last line of the file with or without one.

    Instead of a line longer than ``MAX_LINE`` (or a chunk, if that is more) there is ``TOO_LONG``.
    """
    parts: list[bytes] = []
    held = 0
    for block in _decoded(source.blocks(_CHUNK, progress)):
        end = block.rfind(b"\n")
        if end < 0:
            if held <= MAX_LINE:
                parts.append(block)
            held += len(block)
            continue
        if held > MAX_LINE:
            parts = [TOO_LONG, block[block.index(b"\n") : end]]
        else:
            parts.append(block[:end])
        yield _lines(b"".join(parts))
        parts, held = [block[end + 1 :]], len(block) - end - 1
    if held:
        yield [TOO_LONG] if held > MAX_LINE else _lines(b"".join(parts))


@dataclass(frozen=True)
class Dialect:
    """How lines are to be read.

    Attributes:
        austin: frames are ``FILE:NAME:LINE`` below ``P<pid>;T<tid>``.
        full: Austin's metrics are ``TIME,IDLE,MEMORY``.
        columns: counts at the end of a line: 1, or 2 where two recordings are compared.
        labelled: lines begin with process or thread frames.
        scale: one count is so many of ``unit``.
        unit: what a count counts: ``samples``, ``ns`` or ``bytes``.
    """

    austin: bool = False
    full: bool = False
    columns: int = 1
    labelled: bool = False
    scale: float = 1.0
    unit: str = "samples"


def is_comment(line: bytes) -> bool:
    """Whether a line is for people: ``#`` anything, ``//`` and a space or no count."""
    if line.startswith(b"#"):
        return True
    return line.startswith(b"//") and (line[2:3].isspace() or not _ONE.match(line))


def foreign(text: bytes) -> str | None:
    """What a file that begins so is instead of lines of text, or None."""
    if _BINARY.search(text.replace(b"\0", b"", 1)):
        return "is binary"
    return "is JSON" if _JSON.match(text) else None


def looks_collapsed(text: bytes) -> bool:
    """Whether a file that begins so is one of collapsed stacks."""
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
    stacks = [found[1] for line in data if (found := _ONE.match(line))]
    if not stacks or len(stacks) < _ENOUGH * len(data):
        return False
    joined = sum(1 for stack in stacks if b";" in stack or stack.endswith(b")") or not stack)
    return joined > 0 if len(stacks) == len(data) else joined >= _ENOUGH * len(stacks)


def _is_cut_stack(line: bytes) -> bool:
    """Whether a line without its end looks like one of py-spy."""
    frames = line.split(b";")[:-1]
    return sum(frame.endswith(b")") for frame in frames) > _ENOUGH * len(frames)


def tell(text: bytes) -> Dialect:
    """The dialect of a file that begins so."""
    lines = _whole_lines(text)
    found = filter(None, map(_HEADER.match, lines))
    headers: dict[bytes, bytes] = {header[1]: header[2] for header in found}
    data = _data(lines)
    if b"austin" in headers or (data and all(map(_AUSTIN_LINE.match, data))):
        return _austin(headers, data)
    labelled = any(line.startswith(labels.LABELLED) for line in data)
    two = sum(1 for line in data if _TWO.match(line))
    compared = not labelled and 0 < _MOST * len(data) <= two
    return Dialect(columns=2 if compared else 1, labelled=labelled)


def _austin(headers: dict[bytes, bytes], data: list[bytes]) -> Dialect:
    mode = headers.get(b"mode", b"wall").strip()
    if mode == b"memory":
        return Dialect(austin=True, labelled=True, unit="bytes")
    full = mode == b"full" or any(map(_AUSTIN_METRICS.search, data[:1]))
    return Dialect(austin=True, full=full, labelled=True, scale=1000.0, unit="ns")


def _whole_lines(text: bytes) -> list[bytes]:
    """The lines; the last one, which the head may have cut, only where it is the only one."""
    lines = [line.removesuffix(b"\r") for line in text.split(b"\n")]
    return lines[:-1] if len(lines) > 1 else lines


def _data(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.strip() and not is_comment(line)]


def _lines(text: bytes) -> list[bytes]:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return text.split(b"\n")


def _decoded(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks as UTF-8; what is no UTF-16 becomes U+FFFD, what is no UTF-8 is kept."""
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
