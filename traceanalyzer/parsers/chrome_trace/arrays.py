"""All event arrays of a file, piece by piece, to collected columns."""

from __future__ import annotations

from traceanalyzer.parsers.chrome_trace.batch import Batch
from traceanalyzer.parsers.chrome_trace.columns import Collected
from traceanalyzer.parsers.chrome_trace.container import (
    Container,
    next_events,
    pieces,
)
from traceanalyzer.parsers.chrome_trace.pool import batches
from traceanalyzer.parsers.chrome_trace.text import Text
from traceanalyzer.parsers.chrome_trace.want import Want
from traceanalyzer.parsers.chrome_trace.worker import process

#: An event that still does not end after so much text never will: a bracket was lost.
MAX_CARRY_BYTES = 1 << 23


def collect(
    text: Text, offset: int | None, want: Want, container: Container, collected: Collected
) -> None:
    """Every event array of the file, one after the other, and what stands around them.

    Args:
        text: of the file.
        offset: where the first array begins; None for a file without any.
        want: what to keep.
        container: learns what stands around the arrays.
        collected: takes the events.
    """
    while offset is not None:
        closed = _array(text, offset, want, container, collected)
        offset = None if closed is None else next_events(text, closed, container)
    if container.is_object and not container.closed and "truncated" not in collected.issues:
        collected.lose("truncated", 0, container.end)
    for code, (count, first) in container.issues.items():
        collected.lose(code, count, first)


def _array(
    text: Text, offset: int, want: Want, container: Container, collected: Collected
) -> int | None:
    """Collect one array's events; returns the offset behind its ``]``, None if it has none.

    A piece that was cut inside an event leaves that event's beginning over: it is put before the
    next piece, which is then read once more.
    """
    carry = b""
    for piece, found in batches(text, pieces(text, offset), want):
        start, container.end = piece.offset - len(carry), piece.offset + piece.length
        if carry:
            found = process(carry + text.read(piece.offset, piece.length), start, want)
        carry, closed = _take(found, collected)
        if closed is None and carry and (piece.last or len(carry) > MAX_CARRY_BYTES):
            start = container.end - len(carry)
            carry, closed = _take(process(carry, start, want, final=True), collected)
            if carry:
                code = "truncated" if piece.last else "bad-event"
                collected.lose(code, 1, container.end - len(carry))
                carry = b""
        if closed is not None:
            container.end = start + closed
            return container.end
        text.release(piece.offset)
    return None


def _take(found: list[Batch], collected: Collected) -> tuple[bytes, int | None]:
    """Collect a piece's batches; what the piece leaves over, and the offset behind its ``]``."""
    for batch in found:
        collected.add(batch)
    return found[-1].tail, found[-1].closed
