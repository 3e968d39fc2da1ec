"""Collect all event arrays of a file: split into pieces, read on several cores."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from traceanalyzer.machine import executor, threads
from traceanalyzer.parsers.chrome_trace import container as around
from traceanalyzer.parsers.chrome_trace.columns import Batch, Collected
from traceanalyzer.parsers.chrome_trace.container import AnotherRecordingError, Container
from traceanalyzer.parsers.chrome_trace.piece import process
from traceanalyzer.parsers.chrome_trace.text import Text
from traceanalyzer.parsers.contract import Selection

PIECE_BYTES = 1 << 22
FIRST_PIECE_BYTES = 1 << 12
#: The end of a piece is searched in this much text first.
TAIL_BYTES = 1 << 15
#: Maximum size of an event; text without any event end is cut anywhere.
MAX_EVENT_BYTES = 1 << 26
#: An event that does not end within this much text is damaged: a bracket is missing.
MAX_CARRY_BYTES = 1 << 23


def collect(
    text: Text, offset: int | None, selection: Selection, container: Container, collected: Collected
) -> None:
    """Collect every event array of the file, and the metadata around them.

    Args:
        text: text of the file.
        offset: start of the first array; None for a file without one.
        selection: what to keep.
        container: receives the metadata around the arrays.
        collected: receives the events.
    """
    try:
        while offset is not None:
            closed = _array(text, offset, selection, container, collected)
            container.is_recorded = collected.events > 0
            if other := collected.issues.pop("another-recording", None):
                container.follow(other[1])
            offset = None if closed is None else around.next_events(text, closed, container)
    except AnotherRecordingError as another:
        collected.issues.note("another-recording", int(another.args[0]))
        container.closed = True
    if container.is_object and not container.closed and "truncated" not in collected.issues:
        collected.issues.note("truncated", container.end, 0)
    collected.issues.add(container.issues)


def _array(
    text: Text, offset: int, selection: Selection, container: Container, collected: Collected
) -> int | None:
    """Collect one array's events; return the offset after its ``]``, None if it is missing.

    If a piece ends inside an event, the event's beginning is put before the next piece, which is
    then read again.
    """
    carry = b""
    for piece, batches in _batches(text, offset, selection):
        start, container.end = piece.offset - len(carry), piece.offset + piece.length
        if carry:
            batches = process(carry + text.read(piece.offset, piece.length), start, selection)
        carry, closed = _take(batches, collected)
        if closed is None and carry and (piece.last or len(carry) > MAX_CARRY_BYTES):
            start = container.end - len(carry)
            carry, closed = _take(process(carry, start, selection, final=True), collected)
            if carry:
                code = "truncated" if piece.last else "bad-event"
                collected.issues.note(code, container.end - len(carry))
                carry = b""
        if closed is not None:
            container.end = start + closed
            return container.end
        text.release(piece.offset)
    return None


def _take(batches: list[Batch], collected: Collected) -> tuple[bytes, int | None]:
    """Collect a piece's batches; return the unfinished text and the offset after its ``]``."""
    for batch in batches:
        collected.add(batch)
    return batches[-1].tail, batches[-1].closed


def _batches(text: Text, offset: int, selection: Selection) -> Iterator[tuple[Piece, list[Batch]]]:
    """Yield each piece with its batches, in order; a few pieces are processed at a time.

    The scan releases the GIL, so pieces are read in threads. The small first piece is read before
    threads are started: many files have only one or two pieces.
    """
    cut = pieces(text, offset)
    first = next(cut)
    yield first, process(text.read(first.offset, first.length), first.offset, selection)
    if first.last:
        return
    second = next(cut)
    if second.last:
        yield second, process(text.read(second.offset, second.length), second.offset, selection)
        return
    workers = threads()
    waiting: deque[tuple[Piece, Future[list[Batch]]]] = deque()
    with executor(workers) as pool:
        try:
            for piece in itertools.chain((second,), cut):
                data = text.later(piece.offset, piece.length)
                waiting.append((piece, pool.submit(_process, data, piece.offset, selection)))
                if len(waiting) > workers:
                    done, result = waiting.popleft()
                    yield done, result.result()
            while waiting:
                done, result = waiting.popleft()
                yield done, result.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _process(data: Callable[[], bytes], offset: int, selection: Selection) -> list[Batch]:
    return process(data(), offset, selection)


@dataclass(frozen=True)
class Piece:
    """A range of text that begins and (except the last one) ends between two events."""

    offset: int
    length: int
    last: bool


def pieces(text: Text, offset: int) -> Iterator[Piece]:
    """Split the text from an offset to its end into pieces of about ``PIECE_BYTES``.

    The first piece is small: some files consist of thousands of small arrays.
    """
    first = min(FIRST_PIECE_BYTES, PIECE_BYTES)
    cut = _cut(text, offset, first) or Piece(offset, first, last=False)
    yield cut
    while not cut.last:
        offset += cut.length
        length = PIECE_BYTES
        while (piece := _cut(text, offset, length)) is None:
            length *= 2  # an event larger than a piece
        cut = piece
        yield cut


def _cut(text: Text, offset: int, length: int) -> Piece | None:
    """Return the piece of at most this length, or None if no event ends inside it."""
    for window in dict.fromkeys((min(TAIL_BYTES, length), length)):
        low = offset + length - window
        tail = text.read(low, window)
        if len(tail) < window:
            end = low + len(tail) if tail else offset + len(text.read(offset, length))
            return Piece(offset, end - offset, last=True)
        start = around.last_event_start(tail)
        if start > 0:
            # the indentation belongs to the next event
            start = len(tail[:start].rstrip(b" \t\r\n")) or start
            return Piece(offset, low + start - offset, last=False)
    if length <= 2 * PIECE_BYTES:
        return None
    start = around.last_object_start(tail)
    if start > 0:
        return Piece(offset, start, last=False)
    return Piece(offset, length, last=False) if length >= MAX_EVENT_BYTES else None
