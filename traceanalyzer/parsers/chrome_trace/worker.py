"""One piece of text to batches: the compiled scan, strict decoding, recovery, in this order."""

from __future__ import annotations

from traceanalyzer.parsers.chrome_trace import recover
from traceanalyzer.parsers.chrome_trace.batch import Batch
from traceanalyzer.parsers.chrome_trace.decode import (
    BAD_TEXT,
    Event,
    decode_events,
    decode_lines,
    decode_raw_args,
)
from traceanalyzer.parsers.chrome_trace.extract import extract
from traceanalyzer.parsers.chrome_trace.scanner import scanned
from traceanalyzer.parsers.chrome_trace.want import Want

_JUNK = b" \t\r\n,"


def process(text: bytes, offset: int, want: Want) -> list[Batch]:
    """The batches of a piece of text; together they hold its events, the last one their number.

    Args:
        text: events separated by commas, line breaks or nothing; perhaps damaged.
        offset: the piece's place in the file, for issues.
        want: what to keep.
    """
    found = scanned(text, offset, want)
    if found is not None:
        return found
    body = text.strip(_JUNK)
    if not body:
        return [Batch()]
    lead = len(text) - len(text.lstrip(_JUNK))
    return [
        _strict(body, offset, lead, want)
        or _lines(body, offset, want)
        or _saved(text, offset, want)
    ]


def _strict(body: bytes, offset: int, lead: int, want: Want) -> Batch | None:
    """Well-formed events, perhaps with the array's end among them; None: they are not."""
    try:
        return _batch(decode_events(b"[" + body + b"]"), body, offset, want)
    except BAD_TEXT as error:
        done = recover.closed_array(body, error)
    if done is None:
        return None
    events, closed = done
    batch = _batch(events, body[: closed - 1], offset, want)
    batch.closed = closed + lead
    return batch


def _batch(events: list[Event], text: bytes, offset: int, want: Want) -> Batch:
    return extract(events, want, offset, lambda: decode_raw_args(b"[" + text + b"]"))


def _lines(body: bytes, offset: int, want: Want) -> Batch | None:
    """Newline-delimited events, without commas."""
    try:
        events = decode_lines(body)
    except BAD_TEXT:
        return None
    return _batch(
        events, b",".join(filter(None, map(bytes.strip, body.split(b"\n")))), offset, want
    )


def _saved(text: bytes, offset: int, want: Want) -> Batch:
    """Damaged text: mended as a whole if that is enough, else event by event."""
    mended, counts = recover.repair(text)
    body = mended.strip(_JUNK)
    try:
        batch = _batch(decode_events(b"[" + body + b"]"), body, offset, want)
        issues = {code: (count, offset) for code, count in counts.items()}
    except BAD_TEXT:
        saved = recover.recover(text)
        batch = _batch(saved.events, b",".join(saved.texts), offset, want)
        batch.head, batch.tail, batch.closed = saved.head, saved.tail, saved.closed
        issues = {code: (count, offset + at) for code, (count, at) in saved.issues.items()}
    batch.issues = {**batch.issues, **issues}
    return batch
