"""Whole lines of UTF-8 from a file's bytes, whatever their encoding and line ends."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.source import Source

#: A longer line is no stack: a million frames fit.
MAX_LINE = 16 << 20
#: What stands for it: a line that is no sample.
TOO_LONG = b"..."
_CHUNK = 1 << 21

_BOMS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


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
