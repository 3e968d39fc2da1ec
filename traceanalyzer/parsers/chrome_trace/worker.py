"""One piece of text to one batch; as a program, a loop that does so for pieces from a pipe."""

from __future__ import annotations

import os
import struct
import sys
from typing import BinaryIO

import msgspec

from traceanalyzer.parsers.chrome_trace import recover
from traceanalyzer.parsers.chrome_trace.batch import Batch, pack
from traceanalyzer.parsers.chrome_trace.decode import (
    BAD_TEXT,
    Event,
    decode_events,
    decode_lines,
    decode_quick,
    decode_raw_args,
)
from traceanalyzer.parsers.chrome_trace.extract import extract
from traceanalyzer.parsers.chrome_trace.search import wanted_text
from traceanalyzer.parsers.chrome_trace.times import InexactTimeError
from traceanalyzer.parsers.chrome_trace.want import Want

_JUNK = b" \t\r\n,"


def process(text: bytes, offset: int, want: Want) -> Batch:
    """The batch of a piece of text.

    Args:
        text: events separated by commas, line breaks or nothing; perhaps damaged.
        offset: the piece's place in the decompressed file, for issues.
        want: what to keep.
    """
    if want.boundary:
        found = wanted_text(text, want)
        if found is None:
            return Batch()
        quick = _quick(found, offset, want)
        if quick is not None:
            return quick
        try:
            return _batch(decode_events(b"[" + found + b"]"), found, offset, want)
        except (*BAD_TEXT, msgspec.ValidationError):
            pass  # the cut was wrong or the text is damaged: read all of it
    body = text.strip(_JUNK)
    if not body:
        return Batch()
    quick = _quick(body, offset, want)
    if quick is not None:
        return quick
    try:
        return _batch(decode_events(b"[" + body + b"]"), body, offset, want)
    except (*BAD_TEXT, msgspec.ValidationError) as error:
        done = recover.closed_array(body, error)
        if done is not None:
            events, closed = done
            batch = _batch(events, body[: closed - 1], offset, want)
            batch.closed = closed + len(text) - len(text.lstrip(_JUNK))
            return batch
    return _lines(body, offset, want) or _saved(text, offset, want)


def _quick(text: bytes, offset: int, want: Want) -> Batch | None:
    """The usual case: strict JSON whose times a double holds; None when it is not that."""
    if want.text_times:
        return None
    try:
        return _batch(decode_quick(b"[" + text + b"]"), text, offset, want)
    except (*BAD_TEXT, msgspec.ValidationError, InexactTimeError):
        return None


def _batch(events: list[Event], text: bytes, offset: int, want: Want) -> Batch:
    return extract(events, want, offset, lambda: decode_raw_args(b"[" + text + b"]"))


def _lines(body: bytes, offset: int, want: Want) -> Batch | None:
    """Newline-delimited events, without commas."""
    try:
        events = decode_lines(body)
    except (*BAD_TEXT, msgspec.ValidationError):
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
    except (*BAD_TEXT, msgspec.ValidationError):
        saved = recover.recover(text)
        batch = _batch(saved.events, b",".join(saved.texts), offset, want)
        batch.head, batch.tail, batch.closed = saved.head, saved.tail, saved.closed
        issues = {code: (count, offset + at) for code, (count, at) in saved.issues.items()}
    batch.issues = {**batch.issues, **issues}
    return batch


# --- the program -----------------------------------------------------------------------------

HEADER = struct.Struct("<QQQ")  # offset, length, whether the text follows (else it is in the file)
LENGTH = struct.Struct("<Q")


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer pieces until the pipe closes: first the path and Want, then a header a piece."""
    path_length = LENGTH.unpack(requests.read(LENGTH.size))[0]
    path = os.fsdecode(requests.read(path_length))
    want_length = LENGTH.unpack(requests.read(LENGTH.size))[0]
    want = msgspec.msgpack.decode(requests.read(want_length), type=Want)
    file = os.open(path, os.O_RDONLY)
    while len(header := requests.read(HEADER.size)) == HEADER.size:
        offset, length, inline = HEADER.unpack(header)
        text = requests.read(length) if inline else read_range(file, offset, length)
        reply = pack(process(text, offset, want))
        replies.write(LENGTH.pack(len(reply)))
        replies.write(reply)
        replies.flush()


def read_range(file: int, offset: int, length: int) -> bytes:
    """Bytes of an open file from an offset; fewer only at its end."""
    parts = []
    while length > 0:
        part = os.pread(file, length, offset)
        if not part:
            break
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
