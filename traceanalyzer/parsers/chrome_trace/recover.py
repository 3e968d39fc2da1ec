"""What can be saved of text that is not JSON: event by event, everything lost is counted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, Event, decode_event, decode_events
from traceanalyzer.parsers.chrome_trace.search import event_starts

_MAX_JOIN = 8
_JUNK = b" \t\r\n,"

_token = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|-?\b(?:NaN|Infinity|nan|inf|-?1\.#(?:IND|INF|QNAN)\w*)\b'
    rb"|-?\d[\d.]*[eE]\+?\d{3,}",
    re.DOTALL,
)
_odd_in_string = re.compile(rb"[\x00-\x1f]|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\(?![\"\\/bfnrtu])")
_pair = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_trailing = re.compile(r"trailing characters \(byte (\d+)\)")


@dataclass
class Saved:
    """Events saved from damaged text.

    Attributes:
        texts: each event's own JSON text, now strict.
        events: the events, in order.
        issues: code -> (count, offset of the first within the text).
        head, tail: text before the first and behind the last event that is no event by itself.
        closed: offset behind the ``]`` that ended the array, or None.
    """

    texts: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    issues: dict[str, tuple[int, int]] = field(default_factory=dict)
    head: bytes = b""
    tail: bytes = b""
    closed: int | None = None

    def note(self, code: str, count: int, offset: int) -> None:
        """Count an oddity."""
        seen, first = self.issues.get(code, (0, offset))
        self.issues[code] = (seen + count, first)


def repair(text: bytes) -> tuple[bytes, dict[str, int]]:
    """Text with everything mended that can be without moving an event's bounds.

    Bytes that are not UTF-8 and lone surrogates become U+FFFD, raw control characters in strings
    are escaped, NaN, Infinity and numbers beyond a double become null. Returns the text and how
    many of each were mended; what was written between the strings is left as it is.
    """
    counts: dict[str, int] = {}
    try:
        text.decode()
    except UnicodeDecodeError:
        replaced = text.decode("utf-8", "replace")
        counts["bad-utf8"] = replaced.count("\ufffd") - text.count(b"\xef\xbf\xbd")
        text = replaced.encode()

    def mend(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if token[0] != 0x22:
            return b"null"
        if _odd_in_string.search(token) is None:
            return token
        return _mend_string(token, counts)

    return _token.sub(mend, text), counts


def _mend_string(token: bytes, counts: dict[str, int]) -> bytes:
    def mend(match: re.Match[bytes]) -> bytes:
        odd = match.group()
        if odd == b"\\":
            counts["bad-escape"] = counts.get("bad-escape", 0) + 1
            return b"\\\\"
        if odd[0] == 0x5C:
            if _pair.match(token, match.start()):
                return odd
            if _pair.match(token, max(0, match.start() - 6)):
                return odd
            counts["lone-surrogate"] = counts.get("lone-surrogate", 0) + 1
            return b"\\ufffd"
        counts["raw-control-character"] = counts.get("raw-control-character", 0) + 1
        return b"\\u%04x" % odd[0]

    return _odd_in_string.sub(mend, token)


def recover(text: bytes) -> Saved:
    """All whole events of a piece of text, whatever surrounds them."""
    saved = Saved()
    starts = event_starts(text)
    if not starts or text[: starts[0]].strip(_JUNK + b"["):
        first = starts[0] if starts else len(text)
        saved.head = text[:first].strip(_JUNK)
        saved.closed = _close(text, 0)
        if saved.closed is not None:
            saved.head = b""
            return saved
    bounds = [*starts, len(text)]
    at = 0
    while at < len(starts):
        step = _next_event(text, bounds, at, saved)
        if saved.closed is not None:
            return saved
        at += step
    return saved


def _next_event(text: bytes, bounds: list[int], at: int, saved: Saved) -> int:
    """Save the event at a start, or count it lost; returns how many starts it covers."""
    start = bounds[at]
    for join in range(1, min(_MAX_JOIN, len(bounds) - 1 - at) + 1):
        segment = text[start : bounds[at + join]].rstrip(_JUNK)
        if _save(segment, start, saved):
            return join
    if at == len(bounds) - 2:
        saved.tail = text[start:].strip(_JUNK)
    else:
        saved.note("bad-event", 1, start)
    return 1


def _save(segment: bytes, offset: int, saved: Saved) -> bool:
    """Decode one segment, mended if need be; text behind the event may close the array."""
    for mended in (False, True):
        text, counts = repair(segment) if mended else (segment, {})
        try:
            event = decode_event(text)
        except BAD_TEXT as error:
            match = _trailing.search(str(error))
            if match is None:
                continue
            end = int(match[1])
            closed = _close(text, end)
            rest = text[end:].strip(_JUNK + b"}]")
            if closed is None and rest:
                continue
            try:
                event = decode_event(text[:end])
            except BAD_TEXT:
                continue
            saved.closed = None if closed is None else offset + closed
            if closed is None:
                saved.note("stray-text", 1, offset + end)
            text = text[:end]
        for code, count in counts.items():
            saved.note(code, count, offset)
        saved.texts.append(text)
        saved.events.append(event)
        return True
    return False


def _close(text: bytes, at: int) -> int | None:
    """Offset behind a ``]`` that follows (commas and blanks aside), or None."""
    rest = text[at:].lstrip(_JUNK)
    return len(text) - len(rest) + 1 if rest.startswith(b"]") else None


def closed_array(text: bytes, error: Exception) -> tuple[list[Event], int] | None:
    """The events before a ``]`` inside the text and the offset behind it, or None.

    ``text`` was decoded as ``[text]`` and failed with ``error``: when the array ended early, the
    decoder says where its trailing characters begin.
    """
    match = _trailing.search(str(error))
    if match is None:
        return None
    end = int(match[1]) - 1  # without the bracket put before the text
    closed = text.rfind(b"]", 0, end) + 1
    try:
        return decode_events(b"[" + text[:closed]), closed
    except (*BAD_TEXT, msgspec.ValidationError):
        return None
