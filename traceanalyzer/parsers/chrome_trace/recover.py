"""What can be saved of text that is not JSON: event by event, everything lost is counted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, Event, decode_event
from traceanalyzer.parsers.chrome_trace.lenient import End, value_end
from traceanalyzer.parsers.chrome_trace.mend import mended, outlined
from traceanalyzer.parsers.chrome_trace.search import EVENT_START, next_event_start

#: A broken event is looked at up to this many starts further on: its arguments may hold some.
_STARTS = 8
#: Looking for ends in vain may cost this many times the text; then it stays near.
_PATIENCE = 8
_WINDOW = 1 << 12

_blanks = re.compile(rb"[ \t\r\n,]*+")
_behind_stray = re.compile(rb"\]|" + EVENT_START.pattern)
_last_end = re.compile(rb"\}[\s,]*+(?=\])")


@dataclass
class Saved:
    """Events saved from damaged text.

    Attributes:
        texts: each event's own JSON text, now strict.
        events: the events, in order.
        issues: code -> (count, offset of the first within the text).
        tail: the text of an event at the end that goes on where the text stops.
        closed: offset behind the ``]`` that ended the array, or None.
    """

    texts: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    issues: dict[str, tuple[int, int]] = field(default_factory=dict)
    tail: bytes = b""
    closed: int | None = None

    def note(self, code: str, offset: int, count: int = 1) -> None:
        """Count an oddity."""
        seen, first = self.issues.get(code, (0, offset))
        self.issues[code] = (seen + count, first)


class _Damaged:
    """A text with the places where its values end."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.characters = text.decode("latin-1")
        self.patience = _PATIENCE * len(text)

    def end(self, at: int) -> End:
        """Where the event at an offset ends."""
        found = self._far(at)  # relative to ``at``, as is all that follows
        if found.at is None and not found.cut:
            window = outlined(self.text[at : self._horizon(at)])
            found = value_end(window.decode("latin-1"), 0)
            found = End(found.at, found.cut and at + len(window) == len(self.text))
        return found if found.at is None else End(at + found.at)

    def _far(self, at: int) -> End:
        """The end by growing windows: an error costs the decoder all the text it was given."""
        size = _WINDOW
        while True:
            window = self.characters[at : at + size]
            found = value_end(window, 0)
            is_all = at + size >= len(self.characters)
            if found.at is not None or not found.cut or is_all:
                break
            size *= 4
            if self.patience < 0:
                return End(None)
        if found.at is None:
            self.patience -= len(window)
        return found

    def _horizon(self, at: int) -> int:
        """The offset of an event some way on."""
        for _ in range(_STARTS):
            start = next_event_start(self.text, at + 1)
            if start is None:
                return len(self.text)
            at = start
        return at


def recover(text: bytes, *, final: bool) -> Saved:
    """All whole events of a piece of text, whatever surrounds them.

    Args:
        text: begins between two events.
        final: no text follows; an event that does not end is lost.
    """
    saved = Saved()
    damaged = _Damaged(text)
    at = 0
    while (at := _behind_blanks(text, at)) < len(text):
        if text[at] == 0x7B:
            at = _event(damaged, at, final, saved)
        elif text[at] == 0x5D:
            at = _bracket(text, at, saved)
        else:
            at = _stray(text, at, saved)
    return saved


def _behind_blanks(text: bytes, at: int) -> int:
    match = _blanks.match(text, at)
    return match.end() if match else at


def _event(damaged: _Damaged, at: int, final: bool, saved: Saved) -> int:
    """Save the event at an offset, or count it lost; returns where to go on."""
    text, end = damaged.text, damaged.end(at)
    if end.at is not None:
        if not _save(text[at : end.at], at, saved):
            saved.note("bad-event", at)
        return end.at
    following = next_event_start(text, at + 1)
    if end.cut and (not final or following is None):
        saved.tail = text[at:]
        return len(text)
    saved.note("bad-event", at)
    if following is not None:
        return following
    last = _last_end.search(text, at)
    return last.end() if last else len(text)


def _bracket(text: bytes, at: int, saved: Saved) -> int:
    """The array's end, unless another array follows at once: it is read as one with this."""
    behind = _behind_blanks(text, at + 1)
    if text[behind : behind + 1] == b"[":
        return behind + 1
    saved.closed = at + 1
    return len(text)


def _stray(text: bytes, at: int, saved: Saved) -> int:
    """Text that is no event: over it to the next event or bracket."""
    saved.note("stray-text", at)
    match = _behind_stray.search(text, at)
    if match is None:
        return len(text)
    return match.start() if match.group() == b"]" else match.end()


def _save(segment: bytes, offset: int, saved: Saved) -> bool:
    """Decode one event, mended if need be."""
    counts: dict[str, int] = {}
    try:
        event = decode_event(segment)
    except BAD_TEXT:
        segment, counts = mended(segment)
        try:
            event = decode_event(segment)
        except BAD_TEXT:
            return False
    for code, count in counts.items():
        saved.note(code, offset, count)
    saved.texts.append(segment)
    saved.events.append(event)
    return True
