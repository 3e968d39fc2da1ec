"""Where the event arrays lie in a file, what stands around them, and where to cut them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, decode_any
from traceanalyzer.parsers.chrome_trace.lenient import value_end
from traceanalyzer.parsers.chrome_trace.search import (
    EVENT_START,
    last_event_start,
    last_object_start,
)
from traceanalyzer.parsers.chrome_trace.text import Text

PIECE_BYTES = 1 << 22
FIRST_PIECE_BYTES = 1 << 12
TAIL_BYTES = 1 << 15
#: No event is larger; text without an end to any event is cut anywhere.
MAX_EVENT_BYTES = 1 << 26
#: One value beside the events, and all of them, are kept up to this size.
MAX_VALUE_BYTES = 1 << 26
WINDOW_BYTES = 1 << 12
_STRIDE_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n,"

_KEY = re.compile(rb'("(?:[^"\\]++|\\.)*+")\s*+:\s*+', re.DOTALL)
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*+:\s*+\[')
_NO_EVENTS = re.compile(rb"null|\{\s*+\}")
#: Values that hold times: decimals stay text, for exact nanoseconds.
_WITH_TIMES = frozenset(("samples",))

_loose_json = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


class NoTraceError(ValueError):
    """The text is no chrome trace; the message says what it is instead."""


@dataclass
class Container:
    """What was found around the events.

    Attributes:
        metadata: top-level values beside the events.
        found: there is a list of events, be it empty.
        is_object: the events lie in an object, so its end must follow; a bare array's need not.
        closed: the last array or object was closed as it should be.
        end: how far events were read.
        issues: code -> (count, offset of the first).
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    found: bool = False
    is_object: bool = False
    closed: bool = False
    end: int = 0
    issues: dict[str, tuple[int, int]] = field(default_factory=dict)
    kept_bytes: int = 0

    def note(self, code: str, offset: int) -> None:
        """Count an oddity."""
        seen, first = self.issues.get(code, (0, offset))
        self.issues[code] = (seen + 1, first)

    def enter(self, *, is_object: bool) -> None:
        """Events begin here."""
        self.found, self.is_object, self.closed = True, is_object, False

    def learn(self, members: dict[str, bytes], offset: int) -> None:
        """Take values beside the events."""
        for key, value in members.items():
            self.kept_bytes += len(value)
            fits = self.kept_bytes <= MAX_VALUE_BYTES
            known, decoded = _decoded(key, value) if fits else (False, None)
            if known:
                self.metadata[key] = decoded
            else:
                self.note("damaged-metadata", offset)


def _decoded(key: str, value: bytes) -> tuple[bool, Any]:
    """A value, whatever small faults it has; first whether it could be read."""
    try:
        return True, decode_any(value) if key in _WITH_TIMES else msgspec.json.decode(value)
    except BAD_TEXT:
        pass
    try:
        loose = _loose_json.decode(value.decode("utf-8", "replace"))
        # lone surrogates and whole numbers of any length end here
        strict = json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace")
        return True, msgspec.json.decode(strict)
    except (*BAD_TEXT, ValueError):
        return False, None


def first_events(text: Text, container: Container) -> int | None:
    """Offset behind the bracket (or at the first line) where events begin; None: there are none.

    Raises:
        NoTraceError: the text is no trace.
    """
    start = _behind(text, len(_BOM) if text.read(0, len(_BOM)) == _BOM else 0)
    first = text.read(start, 1)
    if not first:
        raise NoTraceError("is empty")
    if first not in (b"[", b"{"):
        raise NoTraceError("is not JSON")
    at = _find_events(text, start, container)
    if not container.found:
        if container.issues or not container.closed:
            raise NoTraceError('ends or is damaged before any "traceEvents"')
        raise NoTraceError('is JSON, but has no "traceEvents"')
    return at


def next_events(text: Text, offset: int, container: Container) -> int | None:
    """After the ``]`` of an event array: where the next one begins, or None; metadata is read."""
    head = text.read(offset, WINDOW_BYTES).lstrip(_BLANKS)
    if container.is_object or head.startswith(b'"'):
        events, at = _members(text, offset, container)
        if events is not None or at is None:
            return events
        return _find_events(text, at, container)
    container.closed = True
    return _find_events(text, offset, container)


def _find_events(text: Text, at: int, container: Container) -> int | None:
    """Where the events of the value at an offset, or of one behind it, begin."""
    while first := text.read(at := _behind(text, at, _BLANKS + b"]}"), 1):
        if first == b"[":
            container.enter(is_object=False)
            return at + 1
        if first == b"{":
            events, behind = _members(text, at + 1, container, start=at)
            if events is not None or behind is None:
                return events
            at = behind
            continue
        container.note("stray-text", at)
        following = _next_match(text, at, EVENT_START)
        if following is None:
            return None
        at = following
    return None


def _members(
    text: Text, at: int, container: Container, start: int | None = None
) -> tuple[int | None, int | None]:
    """Read an object's members up to its events or its end.

    Args:
        text: the text.
        at: behind the opening brace, or behind a value.
        container: takes what is read.
        start: the object's own offset, when it is read from its beginning. It may turn out to be
            an event itself, the first of a file without brackets.

    Returns:
        Where events begin, or None; the offset behind the object, or None at the text's end.
    """
    members: dict[str, bytes] = {}
    opened = at
    while True:
        at = _behind(text, at, _BLANKS)
        head = text.read(at, WINDOW_BYTES)
        if head[:1] in (b"}", b""):
            break
        key = _KEY.match(head)
        name = _text(key[1]) if key else None
        value_at = _behind(text, at + (key.end() if key else 0))
        if name == "traceEvents" and text.read(value_at, 1) == b"[":
            container.learn(members, opened)
            container.enter(is_object=True)
            return value_at + 1, None
        value = None if name is None else _value(text, value_at)
        if name is None or value is None:
            return _salvage(text, at, container, members, start), None
        if name == "traceEvents":
            container.found |= _NO_EVENTS.fullmatch(value) is not None
        else:
            members[name] = value
        at = value_at + len(value)
    if start is not None and "ph" in members:
        container.enter(is_object=False)
        return start, None
    container.learn(members, opened)
    container.closed = head != b""
    return None, at + 1 if container.closed else None


def _salvage(
    text: Text, at: int, container: Container, members: dict[str, bytes], start: int | None
) -> int | None:
    """Where events begin in or behind a damaged object."""
    if start is not None and ("ph" in members or _is_event(text.read(start, WINDOW_BYTES))):
        container.enter(is_object=False)
        return start
    container.learn(members, at)
    if text.read(at, 1) and not _is_cut(text, at):
        container.note("damaged-metadata", at)
    events = _next_match(text, at, _EVENTS_KEY)
    if events is not None:
        container.enter(is_object=True)
    return events


def _is_event(head: bytes) -> bool:
    """Whether a damaged object may be an event; if it is not, its events are found all the same."""
    return EVENT_START.match(head) is not None and b'"ph"' in head


def _is_cut(text: Text, at: int) -> bool:
    """Whether the text ends within the member at an offset."""
    window = text.read(at, WINDOW_BYTES)
    return len(window) < WINDOW_BYTES and value_end("{" + window.decode("latin-1"), 0).cut


def _text(key: bytes) -> str | None:
    known, name = _decoded("", key)
    return name if known and isinstance(name, str) else None


def _value(text: Text, at: int) -> bytes | None:
    """The text of the value at an offset; None when it does not end or is too large."""
    size = WINDOW_BYTES
    while True:
        window = text.read(at, size)
        end = value_end(window.decode("latin-1"), 0)
        is_all = len(window) < size
        if end.at is not None and (is_all or end.at < size):
            return window[: end.at]
        if is_all or (end.at is None and not end.cut) or size > MAX_VALUE_BYTES:
            return None
        size *= 8


def _behind(text: Text, at: int, blanks: bytes = b" \t\r\n") -> int:
    """Offset of the first byte that is none of these; no file has more than some MB of them."""
    limit = at + MAX_VALUE_BYTES
    while at < limit and (window := text.read(at, WINDOW_BYTES)):
        rest = window.lstrip(blanks)
        at += len(window) - len(rest)
        if rest:
            break
    return at


def _next_match(text: Text, at: int, pattern: re.Pattern[bytes]) -> int | None:
    """Offset behind the first match at or behind an offset; None: there is none to the end."""
    while window := text.read(at, _STRIDE_BYTES):
        match = pattern.search(window)
        if match:
            return at + match.end()
        text.release(at)
        if len(window) < _STRIDE_BYTES:
            break
        at += _STRIDE_BYTES - WINDOW_BYTES
    return None


@dataclass(frozen=True)
class Piece:
    """A stretch of text that begins and (but for the last) ends between two events."""

    offset: int
    length: int
    last: bool


def pieces(text: Text, offset: int) -> Iterator[Piece]:
    """Cut the text from an offset to its end into pieces of about ``PIECE_BYTES``.

    A small one comes first: some files are thousands of small arrays.
    """
    first = min(FIRST_PIECE_BYTES, PIECE_BYTES)
    cut = _cut(text, offset, first) or Piece(offset, first, last=False)
    yield cut
    while not cut.last:
        offset += cut.length
        length = PIECE_BYTES
        while (found := _cut(text, offset, length)) is None:
            length *= 2  # an event larger than a piece
        cut = found
        yield cut


def _cut(text: Text, offset: int, length: int) -> Piece | None:
    """The piece of at most this length, or None when no event ends inside it."""
    for window in dict.fromkeys((min(TAIL_BYTES, length), length)):
        low = offset + length - window
        tail = text.read(low, window)
        if len(tail) < window:
            end = low + len(tail) if tail else offset + len(text.read(offset, length))
            return Piece(offset, end - offset, last=True)
        start = last_event_start(tail)
        if start > 0:
            # the line's beginning goes with the event
            start = len(tail[:start].rstrip(b" \t\r\n")) or start
            return Piece(offset, low + start - offset, last=False)
    if length <= 2 * PIECE_BYTES:
        return None
    start = last_object_start(tail)
    if start > 0:
        return Piece(offset, start, last=False)
    return Piece(offset, length, last=False) if length >= MAX_EVENT_BYTES else None
