"""Cuts and byte searches in the text of events, for speed; the strict decoder judges the result."""

from __future__ import annotations

import re

from traceanalyzer.parsers.chrome_trace.want import Want

_KEYS = (
    rb"ph|name|cat|ts|pid|tid|dur|args|id|id2|s|bp|sf|tts|tdur|cname|scope|weight|bind_id"
    rb"|flow_in|flow_out"
)
#: Where an event starts: an object behind another, or behind a line's end, that opens with a key
#: of the format. The same text inside an event is possible (a list of such objects in ``args``);
#: a cut there leaves unbalanced text, which the decoder notices.
EVENT_START = re.compile(rb"(?:[,}\n]|\A)\s*(?=\{\s*\"(?:" + _KEYS + rb')"\s*:)')

_BETWEEN = re.compile(rb"\}\s*,?\s*\{")


def last_event_start(text: bytes) -> int:
    """Offset of the last event that starts behind the text's beginning; 0 when there is none."""
    last = 0
    for match in EVENT_START.finditer(text):
        last = match.end()
    return last


def event_starts(text: bytes) -> list[int]:
    """Offsets of everything that looks like an event's start."""
    return [match.end() for match in EVENT_START.finditer(text)]


def boundary_of(events: bytes) -> bytes:
    """The text that lies between any two events of this sample, if a search may rely on it.

    It must hold a line break and be the same every time: then it cannot lie inside an event, whose
    objects are indented deeper or stand on one line. Empty when there is no such text.
    """
    found = _BETWEEN.findall(events)
    if not found:
        return b""
    shortest = min(set(found), key=len)
    is_uniform = found.count(shortest) > len(found) // 2
    return shortest if is_uniform and b"\n" in shortest and b"," in shortest else b""


def wanted_text(text: bytes, want: Want) -> bytes | None:
    """The text of the wanted events only, separated by commas; None when none is here."""
    patterns = want.patterns()
    hits = [match.start() for pattern in patterns for match in pattern.finditer(text)]
    if len(patterns) > 1:
        hits.sort()
    boundary, opening = want.boundary, len(want.boundary) - 1
    segments: list[bytes] = []
    end = 0
    for hit in hits:
        if hit < end:
            continue
        start = text.rfind(boundary, end, hit)
        start = end if start < 0 else start + opening
        end = text.find(boundary, hit)
        end = len(text) if end < 0 else end + 1
        segments.append(text[start:end].strip(b" \t\r\n,"))
    return b",".join(segments) if segments else None
