"""Where events may begin in a text: fast guesses, which decoding judges."""

from __future__ import annotations

import re

_KEYS = (
    rb"ph|name|cat|ts|pid|tid|dur|args|id|id2|s|bp|sf|tts|tdur|cname|scope|weight|bind_id"
    rb"|flow_in|flow_out"
)
# no run of blanks is looked at twice, whatever stands around it
_BEFORE = rb"(?:\A\s*+|[,}]\s*+|\n[ \t]*+)"
#: Where an event starts: an object behind another, or behind a line's end, that opens with a key
#: of the format. The same text inside an event is possible (a list of such objects in ``args``);
#: a cut there leaves an event that does not end, which is then joined with the next piece.
EVENT_START = re.compile(_BEFORE + rb'(?=\{\s*+"(?:' + _KEYS + rb')"\s*+:)')
_OBJECT_START = re.compile(_BEFORE + rb'(?=\{\s*+")')


def last_event_start(text: bytes) -> int:
    """Offset of the last event that starts behind the text's beginning; 0 when there is none."""
    return _last(EVENT_START, text)


def last_object_start(text: bytes) -> int:
    """The same for an object with any key, for files whose events open with one of their own."""
    return _last(_OBJECT_START, text)


def next_event_start(text: bytes, at: int) -> int | None:
    """Offset of the first event that starts at an offset or behind it, or None."""
    match = EVENT_START.search(text, at)
    return match.end() if match else None


def _last(pattern: re.Pattern[bytes], text: bytes) -> int:
    last = 0
    for match in pattern.finditer(text):
        last = match.end()
    return last
