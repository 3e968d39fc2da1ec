"""Separate the rows of a report from headers, messages of ncu and the output of the program."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from traceanalyzer.parsers.ncu_csv.layout import Layout, encoding_of, parse_header

#: A record with quoted line breaks has at most this many lines.
_LINES = 64
_LONGEST = 1 << 20
#: Of a longer line only the beginning is kept; a row with values of all instances may be long.
_LONGEST_LINE = 1 << 25
_QUOTE, _LINE_BREAK = 34, 10
_CHARS = 300


@dataclass
class Messages:
    """Lines that are not rows.

    Attributes:
        errors: lines ``==ERROR==``, without the prefix; warnings: lines ``==WARNING==``.
        other: number of other lines, such as output of the program.
        bad: number of rows with an open quotation mark, which are skipped.
        counts: number of errors and of warnings.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    other: int = 0
    bad: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"errors": 0, "warnings": 0})

    def add(self, line: bytes) -> None:
        """Count a line; the first messages are kept."""
        for prefix, name in ((b"==ERROR==", "errors"), (b"==WARNING==", "warnings")):
            if line.startswith(prefix):
                self.counts[name] += 1
                kept: list[str] = getattr(self, name)
                if len(kept) < 3:
                    kept.append(line[len(prefix) :].decode(errors="replace").strip()[:_CHARS])
                return
        if line.strip() and not line.startswith((b"==PROF==", b"==LOG==")):
            self.other += 1


def utf8(blocks: Iterable[bytes], head: bytes) -> Iterator[bytes]:
    """Yield the blocks as UTF-8 without a byte order mark."""
    encoding = encoding_of(head)
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
    first = True
    for block in blocks:
        data = decoder.decode(block).encode(errors="replace") if decoder else block
        yield data.removeprefix(codecs.BOM_UTF8) if first else data
        first = False


def chunks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks that end with a record: at a line break outside of quotation marks."""
    rest = b""
    for block in _bounded(blocks):
        data = rest + block
        end = _last_record(data)
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        yield rest


def _bounded(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks without the ends of endless lines, which would have to be in memory."""
    length = 0
    for block in blocks:
        first, last = block.find(b"\n"), block.rfind(b"\n")
        end = len(block) if first < 0 else first
        room = max(_LONGEST_LINE - length, 0)
        length = length + end if first < 0 else len(block) - last - 1
        yield block if end <= room else block[:room] + block[end:]


def _last_record(data: bytes) -> int:
    """Return where the last complete record ends; the last line if quotation marks do not match."""
    last = end = data.rfind(b"\n") + 1
    quotes = _quotes(data, end)
    for _ in range(_LINES):
        if not end:  # a record that goes on, unless it is too long for one
            return 0 if len(data) < _LONGEST else last
        if quotes % 2 == 0:
            return end
        before = data.rfind(b"\n", 0, end - 1) + 1
        quotes -= data.count(b'"', before, end)
        end = before
    return last


def regular_rows(data: bytes, layout: Layout) -> int:
    """Return the number of rows of a chunk whose lines are all rows; 0 if some are not.

    Rows begin with a quotation mark. A header is not a row.
    """
    if not layout.quoted or not data.startswith(b'"') or b'"Kernel Name"' in data:
        return 0
    content = np.frombuffer(data, np.uint8)
    begins = np.flatnonzero(content == _LINE_BREAK) + 1
    is_open = not data.endswith(b"\n")
    if bool((content[begins if is_open else begins[:-1]] == _QUOTE).all()):
        return len(begins) + is_open
    return 0


def _quotes(data: bytes, end: int) -> int:
    """Count quotation marks; faster than ``bytes.count`` where they are frequent."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, end) == _QUOTE)) if end else 0


def sections(
    data: bytes, layout: Layout | None, messages: Messages
) -> Iterator[tuple[Layout | None, list[bytes]]]:
    """Yield the layout and the rows of each run of rows in a chunk.

    A header begins a new table; its layout comes first, with no rows.
    """
    rows: list[bytes] = []
    record: list[bytes] = []
    for line in data.split(b"\n"):
        if record:
            record.append(line)
            if sum(part.count(b'"') for part in record) % 2 == 0:
                rows.append(b"\n".join(record))
                record = []
            elif len(record) >= _LINES:
                rows += closed(record, layout, messages)
                record = []
            continue
        if b"Name" in line and (header := parse_header(line.decode(errors="replace"))):
            if header == layout and not header.is_wide:  # several reports in one log
                continue
            if rows:
                yield layout, rows
                rows = []
            layout = header
            yield layout, []
        elif not _is_row(line, layout):
            messages.add(line)
        elif line.count(b'"') % 2:
            record = [line]
        else:
            rows.append(line)
    if record:
        rows += closed(record, layout, messages)
    if rows:
        yield layout, rows


def is_short(data: bytes, layout: Layout | None) -> bool:
    """Whether the last line is a row with fewer cells than the table."""
    last = data.rpartition(b"\n")[2]
    if layout is None or not layout.quoted or not last.startswith(b'"'):
        return False
    return last.count(b'"') < 2 * layout.width


def _is_row(line: bytes, layout: Layout | None) -> bool:
    if layout is None or line.startswith(b"=="):
        return False
    if layout.quoted:
        return line.startswith(b'"')
    return line.count(layout.delimiter.encode()) >= min(len(layout.columns), 3)


def closed(record: list[bytes], layout: Layout | None, messages: Messages) -> list[bytes]:
    """Return the complete rows after the first line, whose quotation mark is open."""
    messages.bad += 1
    rows = []
    for line in record[1:]:
        if not _is_row(line, layout) or b'"Kernel Name"' in line:  # output, or a header
            messages.add(line)
        elif line.count(b'"') % 2:
            messages.bad += 1
        else:
            rows.append(line)
    return rows
