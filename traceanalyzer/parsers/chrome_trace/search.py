"""Where events may begin in a text: fast guesses, which decoding judges."""

from __future__ import annotations

import re

_KEYS = (
    rb"ph|name|cat|ts|pid|tid|dur|args|id|id2|s|bp|sf|tts|tdur|cname|scope|weight|bind_id"
    rb"|flow_in|flow_out"
)
# no run of blanks is looked at twice, whatever stands around it
_OPENING = rb'\{\s*+"(?:' + _KEYS + rb')"\s*+:'
#: Where an event starts: an object behind another, or behind a line's end, that opens with a key
#: of the format. The same text inside an event is possible (a list of such objects in ``args``);
#: a cut there leaves an event that does not end, which is then joined with the next piece.
EVENT_START = re.compile(rb"(?:\A\s*+|[,}]\s*+|\n[ \t]*+)(?=" + _OPENING + rb")")
#: What ends text that is no event: an event, whatever stands before it, or a bracket.
BEHIND_STRAY = re.compile(_OPENING + rb"|\]")
#: Behind the end of an array: another array, or an event, so that the two are read as one.
GOES_ON = re.compile(
    rb'[ \t\r\n,]*+(?:(?:\}\s*+\{\s*+"traceEvents"\s*+:\s*+)?\[|(?=' + _OPENING + rb"))"
)

_EVENT = re.compile(_OPENING)
_OBJECT = re.compile(rb'\{\s*+"')
#: Of so many starts the best is taken.
_CANDIDATES = 32
_LONGEST_INDENT = 256


def last_event_start(text: bytes) -> int:
    """Offset of the last event that starts behind the text's beginning; 0 when there is none.

    Of starts at the beginning of a line the least indented: others may be inside an event.
    """
    return _last(_EVENT, text)


def last_object_start(text: bytes) -> int:
    """The same for an object with any key, for files whose events open with one of their own."""
    return _last(_OBJECT, text)


def next_event_start(text: bytes, at: int) -> int | None:
    """Offset of the first event that starts at an offset or behind it, or None."""
    match = EVENT_START.search(text, at)
    return match.end() if match else None


def _last(opening: re.Pattern[bytes], text: bytes) -> int:
    best, least, seen, at = 0, len(text), 0, len(text)
    while seen < _CANDIDATES and (at := text.rfind(b"{", 0, at)) > 0:
        if opening.match(text, at) and (indent := _indent(text, at)) is not None:
            seen += 1
            if best == 0 or indent < least:
                best, least = at, indent
    return best


def _indent(text: bytes, at: int) -> int | None:
    """How far an object is indented, if it may be an event: far when it does not begin a line."""
    before = text[max(at - _LONGEST_INDENT, 0) : at]
    blanks = len(before) - len(before.rstrip(b" \t\r\n"))
    line = before.rfind(b"\n", len(before) - blanks)
    if line >= 0:
        return len(before) - line
    return len(text) if before[: len(before) - blanks].endswith((b",", b"}")) else None
