"""Where the event arrays lie in a file, what stands around them, and where to cut them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, decode_any
from traceanalyzer.parsers.chrome_trace.search import EVENT_START, last_event_start
from traceanalyzer.parsers.chrome_trace.text import Text

PIECE_BYTES = 1 << 22
_HEADER_BYTES = 1 << 16
_TAIL_BYTES = 1 << 15
_MAX_HEADER = 1 << 30
_BOM = b"\xef\xbb\xbf"
_JUNK = b" \t\r\n,"

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_EMPTY_EVENTS = re.compile(rb'"traceEvents"\s*:\s*(?:null|\{\s*\})')


@dataclass
class Container:
    """What was found around the events.

    Attributes:
        metadata: top-level values beside the events.
        closed: the last event array or object was closed as it should be.
        is_object: the events lie in an object, so its end must follow; a bare array's need not.
        damaged_metadata: some of the top level could not be read.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    closed: bool = False
    is_object: bool = False
    damaged_metadata: bool = False

    def learn(self, text: bytes) -> int:
        """Take the members of a JSON object into the metadata; returns how long the object is.

        Tolerant: this text is small, and losing all of it for one odd byte would be a pity.
        """
        try:
            value = decode_any(text)
            length = len(text)
        except BAD_TEXT:
            loose = text.decode("utf-8", "replace")
            try:
                value, end = _loose_json.raw_decode(loose)
                length = len(loose[:end].encode())
            except (ValueError, RecursionError):
                self.damaged_metadata = True
                return len(text)
        if isinstance(value, dict):
            value.pop("traceEvents", None)
            self.metadata.update(value)
        return length


_loose_json = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


def first_events(text: Text, container: Container) -> int | None:
    """Offset behind the bracket (or at the first line) where events begin; None: there are none.

    Raises:
        ValueError: the text is no trace; the message says what it is instead.
    """
    start = 3 if text.read(0, 3) == _BOM else 0
    head = text.read(start, _HEADER_BYTES)
    blanks = len(head) - len(head.lstrip())
    return _enter(text, start + blanks, container)


def _enter(text: Text, offset: int, container: Container) -> int | None:
    """Go into the value that begins at an offset: an array, an object, or bare events."""
    head = text.read(offset, _HEADER_BYTES)
    if not head:
        raise ValueError("is empty")
    if head.startswith(b"["):
        return offset + 1
    if not head.startswith(b"{"):
        raise ValueError("is not JSON")
    if b'"traceEvents"' not in head and EVENT_START.match(head) and _is_event(head):
        container.closed = True  # bare lines need no bracket
        return offset
    return _find_key(text, offset, b"", container)


def _is_event(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0]
    return b'"ph"' in first or b'"ph"' in head[:4096]


def _find_key(text: Text, offset: int, opening: bytes, container: Container) -> int | None:
    """Offset behind ``"traceEvents": [`` of the object that goes on at an offset.

    What stands before it is taken as metadata: it must decode by itself, else the words were
    inside some value. Without such a key all of the rest is metadata and None is returned.
    """
    size = _HEADER_BYTES
    while True:
        window = text.read(offset, size)
        for match in _EVENTS_KEY.finditer(window):
            before = opening + window[: match.start()].rstrip(_JUNK)
            if _decodes(before + b"}"):
                container.learn(before + b"}")
                container.closed, container.is_object = False, True
                return offset + match.end()
        if len(window) < size or size >= _MAX_HEADER:
            break
        size *= 8
    damaged = _EVENTS_KEY.search(window)
    if damaged and not opening:
        # the header is damaged, and these words are the best there is
        container.damaged_metadata = container.is_object = True
        return offset + damaged.end()
    length = container.learn(opening + window)
    container.closed = not container.damaged_metadata
    if not opening and not _EMPTY_EVENTS.search(window) and "traceEvents" not in container.metadata:
        raise ValueError('is JSON, but has no "traceEvents"')
    return _after_object(text, offset + length - len(opening), container)


def _decodes(text: bytes) -> bool:
    try:
        decode_any(text)
    except BAD_TEXT:
        return False
    return True


def next_events(text: Text, offset: int, container: Container) -> int | None:
    """After the ``]`` of an event array: where the next one begins, or None; metadata is read."""
    head = text.read(offset, _HEADER_BYTES)
    rest = head.lstrip()
    at = offset + len(head) - len(rest)
    if rest.startswith(b",") and _decodes_start(rest):
        return _find_key(text, at + 1, b"{", container)
    container.closed = True
    return _after_object(text, at, container)


def _decodes_start(rest: bytes) -> bool:
    return rest.lstrip(_JUNK).startswith(b'"') or rest.lstrip(_JUNK).startswith(b"}")


def _after_object(text: Text, offset: int, container: Container) -> int | None:
    """Another value behind a whole one: traces are sometimes concatenated."""
    head = text.read(offset, _HEADER_BYTES)
    rest = head.lstrip(_JUNK + b"}]")
    if not rest.startswith((b"[", b"{")):
        return None
    try:
        return _enter(text, offset + len(head) - len(rest), container)
    except ValueError:
        return None


@dataclass(frozen=True)
class Piece:
    """A stretch of text that begins and (but for the last) ends between two events."""

    offset: int
    length: int
    last: bool


def pieces(text: Text, offset: int, size: int = PIECE_BYTES) -> Iterator[Piece]:
    """Cut the text from an offset to its end into pieces of about ``size``."""
    while True:
        length = size
        while (cut := _cut(text, offset, length)) is None:
            length *= 2  # an event larger than a piece
        yield Piece(offset, cut.length, cut.last)
        if cut.last:
            return
        offset += cut.length


def _cut(text: Text, offset: int, length: int) -> Piece | None:
    """The piece of at most this length, or None when no event ends inside it."""
    for window in (min(_TAIL_BYTES, length), length):
        low = offset + length - window
        tail = text.read(low, window)
        if len(tail) < window:
            end = low + len(tail) if tail else offset + len(text.read(offset, length))
            return Piece(offset, end - offset, last=True)
        start = last_event_start(tail)
        if start > 0:
            return Piece(offset, low + start - offset, last=False)
    return None
