"""What can be saved of text that is not JSON: small faults are mended, what is lost is counted."""

import re
from dataclasses import dataclass, field

from traceanalyzer.parsers.chrome_trace import container
from traceanalyzer.parsers.chrome_trace.columns import Issues
from traceanalyzer.parsers.chrome_trace.container import End, value_end
from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, Event, decode_event

#: A broken event is looked at up to this many starts further on: its arguments may hold some.
_STARTS = 8
#: Looking for ends in vain may cost this many times the text; then it stays near.
_PATIENCE = 8
_WINDOW = 1 << 12
#: How far an event's indentation is looked for before it, and events indented alike behind it.
_INDENT = 64
_REACH = 1 << 16

# every alternative takes its whole token at once, so that no text is looked at twice
_token = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"'
    rb"|-?(?:\d[\d.]*+(?:[eE][+-]?\d*+)?(?:\#\w*+)?|(?:NaN|Infinity|nan|inf)\b)"
    rb"|,(?=\s*+[}\]])",
    re.DOTALL,
)
_number = re.compile(rb"-?(?:0|[1-9]\d{0,299})(?:\.\d{1,300})?(?:[eE][+-]?\d{1,2})?")
_odd_in_string = re.compile(
    rb"[\x00-\x1f]|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\(?![\"\\/bfnrt]|u[0-9a-fA-F]{4})"
    rb"|\\[\"\\/bfnrtu]",
    re.DOTALL,
)
_low_half = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_high_half = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")

_blanks = re.compile(rb"[ \t\r\n,]*+")
#: What a decoder stumbles over and :func:`mended` mends: escapes, numbers, commas.
_mendable = re.compile(r"[\\\d.#\-+eEnNiI}\]]|,[ \t\r\n]*+[}\]]")
#: The end of an array, to be told from that of a list inside an event.
_last_end = re.compile(rb'\}[\s,]*+(?=\]\s*+(?:\}?\s*+\Z|,\s*+"))')


@dataclass
class Saved:
    """Events saved from damaged text.

    Attributes:
        texts: each event's own JSON text, now strict.
        events: the events, in order.
        issues: what was lost or mended, with offsets within the text.
        tail: the text of an event at the end that goes on where the text stops.
        closed: offset behind the ``]`` that ended the array, or None.
        lost: an event was lost and none was read since: this may be the inside of that one.
    """

    texts: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    issues: Issues = field(default_factory=Issues)
    tail: bytes = b""
    closed: int | None = None
    lost: bool = False


class _Damaged:
    """A text with the places where its values end."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.characters = text.decode("latin-1")
        self.patience = _PATIENCE * len(text)

    def end(self, at: int) -> End:
        """Where the event at an offset ends."""
        found = self._far(at) if self.patience > 0 else self._near(at)
        if found.at is not None or not self._is_mendable(found.wrong):
            return found
        horizon = self._horizon(at)
        outline = value_end(outlined(self.text[at:horizon]).decode("latin-1"), 0)
        if outline.at is not None:
            return End(at + outline.at)
        return End(None, found.cut or (outline.cut and horizon == len(self.text)))

    def _far(self, at: int) -> End:
        """By growing windows: an error costs the decoder all the text that it was given."""
        size = _WINDOW
        while True:
            found = self._within(at, at + size)
            if found.at is not None or not found.cut or at + size >= len(self.text):
                break
            size *= 4
        if found.at is None:
            self.patience -= size
        return found

    def _near(self, at: int) -> End:
        """Without going far: brackets that were lost make an event swallow all that follow."""
        horizon = self._horizon(at)
        found = self._within(at, horizon)
        return found._replace(cut=found.cut and horizon == len(self.text))

    def _within(self, at: int, end: int) -> End:
        found = value_end(self.characters[at:end], 0)
        place = None if found.wrong is None else at + found.wrong
        return End(None if found.at is None else at + found.at, found.cut, place)

    def _is_mendable(self, wrong: int | None) -> bool:
        return wrong is not None and _mendable.match(self.characters, wrong) is not None

    def _horizon(self, at: int) -> int:
        """The offset of an event some way on."""
        for _ in range(_STARTS):
            start = container.next_event_start(self.text, at + 1)
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
            saved.issues.note("bad-event", at)
        return end.at
    following = _resume(text, at)
    if end.cut and (not final or following is None):
        saved.tail = text[at:]
        return len(text)
    saved.issues.note("bad-event", at)
    saved.lost = True
    if following is not None:
        return following
    last = _last_end.search(text, at)
    return last.end() if last else len(text)


def _resume(text: bytes, at: int) -> int | None:
    """Where to go on behind the start of a lost event; None: the rest of the text belongs to it.

    Where events stand on lines of their own, at the next one that is indented no deeper: others may
    be inside the lost event.
    """
    line = text.rfind(b"\n", max(at - _INDENT, 0), at)
    indent = text[line:at]
    if line >= 0 and indent.isspace():
        no_deeper = re.compile(rb"\n[ \t\r]{0,%d}+\{" % (len(indent) - 1))
        if aligned := no_deeper.search(text, at, at + _REACH):
            return aligned.end() - 1
        on_lines = text.rfind(indent + b"{", max(line - _REACH, 0), line) >= 0
        if on_lines and len(text) - at < _REACH:
            return None
    return container.next_event_start(text, at + 1)


def _bracket(text: bytes, at: int, saved: Saved) -> int:
    """The array's end, unless another array, or an event, follows: it is read as one with this.

    Nor is it the end when it may belong to a lost event and more events follow.
    """
    if match := container.GOES_ON.match(text, at + 1):
        return match.end()
    if saved.lost and (following := container.next_event_start(text, at)) is not None:
        return following
    saved.closed = at + 1
    return len(text)


def _stray(text: bytes, at: int, saved: Saved) -> int:
    """Text that is no event: over it to the next event or bracket."""
    saved.issues.note("stray-text", at)
    match = container.BEHIND_STRAY.search(text, at)
    return match.start() if match else len(text)


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
        saved.issues.note(code, offset, count)
    saved.lost = saved.lost and event.ph is None
    saved.texts.append(segment)
    saved.events.append(event)
    return True


# --- small faults, mended without moving the bounds of an event --------------------------------


def mended(text: bytes) -> tuple[bytes, dict[str, int]]:
    """The text with all small faults mended, and how many of each there were.

    Bytes that are not UTF-8 and lone surrogates become U+FFFD, raw control characters in strings
    are escaped, backslashes that escape nothing are doubled, commas before a closing bracket go,
    NaN, Infinity and numbers that JSON or a double cannot hold become null.
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
        if token[0] == 0x22:
            return _mended_string(token, counts)
        if token == b",":
            counts["trailing-comma"] = counts.get("trailing-comma", 0) + 1
            return b""
        return token if _number.fullmatch(token) else b"null"

    return _token.sub(mend, text), counts


def outlined(text: bytes) -> bytes:
    """The text at the same length, with every token a lenient reader takes in its place.

    Only good for finding where values end.
    """

    def outline(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if token[0] == 0x22:
            return token.replace(b"\\", b"_") if b"\\" in token else token
        if token == b",":
            return b" "
        return token if _number.fullmatch(token) else b"0".ljust(len(token))

    return _token.sub(outline, text)


def _mended_string(token: bytes, counts: dict[str, int]) -> bytes:
    if _odd_in_string.search(token) is None:
        return token
    paired = -1  # where the second half of a surrogate pair stands

    def count(code: str, instead: bytes) -> bytes:
        counts[code] = counts.get(code, 0) + 1
        return instead

    def mend(match: re.Match[bytes]) -> bytes:
        nonlocal paired
        odd = match.group()
        if odd[0] != 0x5C:
            return count("raw-control-character", b"\\u%04x" % odd[0])
        if odd == b"\\":
            return count("bad-escape", b"\\\\")
        if len(odd) == 2 or match.start() == paired:
            return odd
        if _high_half.match(odd) and _low_half.match(token, match.end()):
            paired = match.end()
            return odd
        return count("lone-surrogate", b"\\ufffd")

    return _odd_in_string.sub(mend, token)
