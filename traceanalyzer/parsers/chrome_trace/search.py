"""Where events may begin in a text: fast guesses, which strict decoding judges."""

from __future__ import annotations

import re

_KEYS = (
    rb"ph|name|cat|ts|pid|tid|dur|args|id|id2|s|bp|sf|tts|tdur|cname|scope|weight|bind_id"
    rb"|flow_in|flow_out"
)
#: Where an event starts: an object behind another, or behind a line's end, that opens with a key
#: of the format. The same text inside an event is possible (a list of such objects in ``args``);
#: a cut there leaves unbalanced text, which the decoder notices.
EVENT_START = re.compile(rb"(?:[,}\n]|\A)\s*(?=\{\s*\"(?:" + _KEYS + rb')"\s*:)')


def last_event_start(text: bytes) -> int:
    """Offset of the last event that starts behind the text's beginning; 0 when there is none."""
    last = 0
    for match in EVENT_START.finditer(text):
        last = match.end()
    return last


def event_starts(text: bytes) -> list[int]:
    """Offsets of everything that looks like an event's start."""
    return [match.end() for match in EVENT_START.finditer(text)]
