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
from traceanalyzer.parsers.chrome_trace.recover import recover
from traceanalyzer.parsers.chrome_trace.scanner import scanned
from traceanalyzer.parsers.chrome_trace.want import Want

_BLANKS = b" \t\r\n,"
_another_array = re.compile(rb"[ \t\r\n,]*+\[")
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
    found = scanned(text, offset, want)
    if found is not None and not _goes_on(text, found[-1].closed):
        return found
    body = text.strip(_BLANKS)
    if not body:
        return [Batch()]
    lead = len(text) - len(text.lstrip(_BLANKS))
    return [
        _strict(body, lead, offset, want)
        or _lines(body, lead, offset, want)
        or _saved(text, offset, want, final=final)
    ]


def _goes_on(text: bytes, closed: int | None) -> bool:
    """Whether the array ends only for another one to begin: the two are read as one."""
    return closed is not None and _another_array.match(text, closed) is not None


def _strict(body: bytes, lead: int, offset: int, want: Want) -> Batch | None:
    """Well-formed events, perhaps with the array's end among them; None: they are not."""
    try:
        return _batch(decode_events(b"[" + body + b"]"), body, offset, want)
    except BAD_TEXT as error:
        closed = _early_end(body, error)
    if closed is None or _goes_on(body, closed):
        return None
    try:
        batch = _batch(decode_events(b"[" + body[:closed]), body[: closed - 1], offset, want)
    except BAD_TEXT:
        return None
    batch.closed = closed + lead
    return batch


def _early_end(body: bytes, error: Exception) -> int | None:
    """Offset behind the ``]`` that ended ``[body]`` early, as the decoder's complaint tells it."""
    match = _trailing.search(str(error))
    # the decoder counts the bracket put before the text, and the first byte that is too many
    return None if match is None else body.rfind(b"]", 0, int(match[1]) - 1) + 1


def _batch(events: list[Event], text: bytes, offset: int, want: Want) -> Batch:
    return extract(events, want, offset, lambda: decode_raw_args(b"[" + text + b"]"))


def _lines(body: bytes, lead: int, offset: int, want: Want) -> Batch | None:
    """Newline-delimited events, without commas, perhaps with the array's end behind them."""
    is_closed = body.endswith(b"]")
    lines = body[:-1] if is_closed else body
    try:
        events = decode_lines(lines)
    except BAD_TEXT:
        return None
    batch = extract(events, want, offset, lambda: decode_raw_args_lines(lines))
    batch.closed = lead + len(body) if is_closed else None
    return batch


def _saved(text: bytes, offset: int, want: Want, *, final: bool) -> Batch:
    """Damaged text, event by event."""
    saved = recover(text, final=final)
    batch = _batch(saved.events, b",".join(saved.texts), offset, want)
    batch.tail, batch.closed = saved.tail, saved.closed
    for code, (count, at) in saved.issues.items():
        batch.issues[code] = (count, offset + at)
    return batch
