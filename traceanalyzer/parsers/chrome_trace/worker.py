"""One piece of text to batches: the compiled scan, strict decoding, recovery, in this order."""

from __future__ import annotations

import re

from traceanalyzer.parsers.chrome_trace.batch import Batch
from traceanalyzer.parsers.chrome_trace.decode import (
    BAD_TEXT,
    Event,
    decode_events,
    decode_lines,
    decode_raw_args,
    decode_raw_args_lines,
)
from traceanalyzer.parsers.chrome_trace.extract import extract
from traceanalyzer.parsers.chrome_trace.mend import mended
from traceanalyzer.parsers.chrome_trace.recover import recover
from traceanalyzer.parsers.chrome_trace.scanner import scanned
from traceanalyzer.parsers.chrome_trace.search import GOES_ON
from traceanalyzer.parsers.chrome_trace.want import Want

_BLANKS = b" \t\r\n,"
_trailing = re.compile(r"trailing characters \(byte (\d+)\)")


def process(text: bytes, offset: int, want: Want, *, final: bool = False) -> list[Batch]:
    """The batches of a piece of text; together they hold its events, the last one their number.

    Args:
        text: events separated by commas, line breaks or nothing; perhaps damaged. It begins
            between two events; an event that it does not end is the last batch's ``tail``.
        offset: the piece's place in the file, for issues.
        want: what to keep.
        final: no text follows.
    """
    return (
        _whole(text, offset, want)
        or _lines(text, offset, want)
        or _mended(text, offset, want)
        or [_saved(text, offset, want, final=final)]
    )


def _whole(text: bytes, offset: int, want: Want) -> list[Batch] | None:
    """Well-formed events, perhaps with the array's end among them; None: they are not."""
    found = scanned(text, offset, want) or _strict(text, offset, want)
    # an array that ends only for another to begin is read as one with it, see recover
    goes_on = found and found[-1].closed and GOES_ON.match(text, found[-1].closed)
    return None if goes_on else found


def _strict(text: bytes, offset: int, want: Want) -> list[Batch] | None:
    """The same by the strict decoder."""
    body = text.strip(_BLANKS)
    if not body:
        return [Batch()]
    try:
        return [_batch(decode_events(b"[" + body + b"]"), body, offset, want)]
    except BAD_TEXT as error:
        closed = _early_end(body, error)
    if closed is None:
        return None
    try:
        batch = _batch(decode_events(b"[" + body[:closed]), body[: closed - 1], offset, want)
    except BAD_TEXT:
        return None
    batch.closed = closed + len(text) - len(text.lstrip(_BLANKS))
    return [batch]


def _early_end(body: bytes, error: Exception) -> int | None:
    """Offset behind the ``]`` that ended ``[body]`` early, as the decoder's complaint tells it."""
    match = _trailing.search(str(error))
    # the decoder counts the bracket put before the text, and the first byte that is too many
    return None if match is None else body.rfind(b"]", 0, int(match[1]) - 1) + 1


def _batch(events: list[Event], text: bytes, offset: int, want: Want) -> Batch:
    return extract(events, want, offset, lambda: decode_raw_args(b"[" + text + b"]"))


def _lines(text: bytes, offset: int, want: Want) -> list[Batch] | None:
    """Newline-delimited events, without commas, perhaps with the array's end behind them."""
    lines = text.rstrip(_BLANKS)
    closed = len(lines) if lines.endswith(b"]") else None
    if closed:
        lines = lines[:-1]
    try:
        events = decode_lines(lines)
    except BAD_TEXT:
        return None
    batch = extract(events, want, offset, lambda: decode_raw_args_lines(lines))
    batch.closed = closed
    return [batch]


def _mended(text: bytes, offset: int, want: Want) -> list[Batch] | None:
    """Text with small faults, mended as a whole; None: that does not do.

    Nor does it for the piece in which the array ends: offsets behind its end count.
    """
    whole, counts = mended(text)
    found = None if whole == text else _whole(whole, offset, want)
    if found is None or found[-1].closed is not None:
        return None
    for code, count in counts.items():
        found[-1].issues[code] = (count, offset)
    return found


def _saved(text: bytes, offset: int, want: Want, *, final: bool) -> Batch:
    """Damaged text, event by event."""
    saved = recover(text, final=final)
    batch = _batch(saved.events, b",".join(saved.texts), offset, want)
    batch.tail, batch.closed = saved.tail, saved.closed
    for code, (count, at) in saved.issues.items():
        batch.issues[code] = (count, offset + at)
    return batch
