"""What can be saved of text that is not JSON: small faults are mended, what is lost is counted."""

import bisect
import re
from array import array
from dataclasses import dataclass, field

from traceanalyzer.parsers.chrome_trace import container
from traceanalyzer.parsers.chrome_trace.columns import Issues
from traceanalyzer.parsers.chrome_trace.container import End, value_end
from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, Event, decode_event, decode_events

#: A broken event is looked at up to this many starts further on: its arguments may hold some.
_STARTS = 8
#: Work in vain may cost this many units for each byte of text, a unit being the decoding of a byte.
_PATIENCE = 4
_FREE = 1 << 20
#: What it costs to outline a byte, and to lose an event.
_OUTLINE = 8
_LOSS = 1 << 10
_WINDOW = 1 << 9
#: Events behind damage are tried together, in runs of up to so many bytes.
_RUN = 1 << 14
#: How far an event's indentation is looked for before it, and events indented alike behind it.
_INDENT = 64
_REACH = 1 << 16
#: Searching costs less than decoding.
_SEARCH = 8

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
_following_blanks = re.compile(rb",[ \t\r\n]*+")
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


class DamagedText:
    """A text with the places where its values begin and end, and the work done on it in vain.

    The work is bounded by the text's length: an event that does not end costs all the text that is
    looked at. Without credit an event is followed to a few starts further on only, and the debt is
    paid by text that is skipped.

    Attributes:
        text: what is damaged.
        spent: units of work in vain.
        runs_from: offset from which on runs of events may be tried.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.spent = 0
        self.runs_from = 0
        self._starts: array[int] | None = None

    def credit(self, at: int) -> int:
        """What may still be spent when reading has come to an offset; a debt is negative."""
        return _FREE + _PATIENCE * (len(self.text) + at) - self.spent

    def start(self, at: int, nth: int = 0) -> int | None:
        """The offset of the nth event that starts at an offset or behind it, or None."""
        if self._starts is None:
            found = container.EVENT_START.finditer(self.text)
            self._starts = array("q", [match.end() for match in found])
        place = bisect.bisect_left(self._starts, at) + nth
        return self._starts[place] if place < len(self._starts) else None

    def start_before(self, at: int) -> int:
        """The offset of the last event that starts at an offset or before it; 0: there is none."""
        self.start(0)
        starts = self._starts or array("q")
        place = bisect.bisect_right(starts, at)
        return starts[place - 1] if place else 0

    def end(self, at: int) -> End:
        """Where the event at an offset ends."""
        found = self._read(at, lenient=False)
        if found.at is not None or not self._is_mendable(found.wrong):
            return found
        outline = self._read(at, lenient=True)
        if outline.at is not None:
            return outline
        return End(None, found.cut or outline.cut)

    def _read(self, at: int, *, lenient: bool) -> End:
        """By growing windows: an error costs the decoder all the text that it was given.

        Not further than some starts on where the reader is lenient or has no credit: brackets that
        were lost make an event swallow all that follow.
        """
        size, horizon = _WINDOW, self.start(at + 1, _STARTS - 1) or len(self.text)
        while True:
            is_near = lenient or size > self.credit(at)
            stop = horizon if is_near else len(self.text)
            found = self._within(at, min(at + size, stop), lenient=lenient)
            if found.at is not None or not found.cut or at + size >= stop:
                return found._replace(cut=found.cut and stop == len(self.text))
            size *= 4

    def _within(self, at: int, stop: int, *, lenient: bool) -> End:
        window = self.text[at:stop]
        found = value_end((outlined(window) if lenient else window).decode("latin-1"), 0)
        if found.at is not None:
            return End(at + found.at)
        self.spent += _OUTLINE * len(window) if lenient else found.wrong or len(window)
        return found._replace(wrong=None if found.wrong is None else at + found.wrong)

    def _is_mendable(self, wrong: int | None) -> bool:
        if wrong is None:
            return False
        blanks = _following_blanks.match(self.text, wrong)
        near = self.text[wrong : (blanks.end() if blanks else wrong) + 1]
        return _mendable.match(near.decode("latin-1")) is not None


def recover(text: bytes, *, final: bool) -> Saved:
    """All whole events of a piece of text, whatever surrounds them.

    The work is linear in the length of the text, whatever it holds. Of text without any event that
    ends some starts are skipped.

    Args:
        text: begins between two events.
        final: no text follows; an event that does not end is lost.
    """
    saved = Saved()
    damaged = DamagedText(text)
    at = 0
    while (at := _behind_blanks(text, at)) < len(text):
        if text[at] == 0x7B:
            at = _run(damaged, at, saved) or _event(damaged, at, final, saved)
        elif text[at] == 0x5D:
            at = _bracket(damaged, at, saved)
        else:
            at = _stray(text, at, saved)
    return saved


def _run(damaged: DamagedText, at: int, saved: Saved) -> int | None:
    """Save the events from an offset on together, if all are well; returns where they end."""
    stop = damaged.start_before(at + _RUN) if at >= damaged.runs_from else at
    if stop <= at:
        return None
    segment, counts = damaged.text[at:stop].rstrip(b" \t\r\n,"), dict[str, int]()
    try:
        events = decode_events(b"[" + segment + b"]")
    except BAD_TEXT:
        segment, counts = mended(segment)
        try:
            events = decode_events(b"[" + segment + b"]")
        except BAD_TEXT:
            damaged.runs_from = stop
            return None
    for code, count in counts.items():
        saved.issues.note(code, at, count)
    saved.lost = saved.lost and all(event.ph is None for event in events)
    saved.texts.append(segment)
    saved.events += events
    return stop


def _behind_blanks(text: bytes, at: int) -> int:
    match = _blanks.match(text, at)
    return match.end() if match else at


def _event(damaged: DamagedText, at: int, final: bool, saved: Saved) -> int:
    """Save the event at an offset, or count it lost; returns where to go on."""
    text, end = damaged.text, damaged.end(at)
    if end.at is not None:
        if not _save(text[at : end.at], at, saved):
            saved.issues.note("bad-event", at)
        return end.at
    following = _resume(damaged, at)
    if end.cut and (not final or following is None):
        saved.tail = text[at:]
        return len(text)
    saved.issues.note("bad-event", at)
    saved.lost = True
    if following is not None:
        return following
    last = _last_end.search(text, at)
    return last.end() if last else len(text)


def _resume(damaged: DamagedText, at: int) -> int | None:
    """Where to go on behind the start of a lost event; None: the rest of the text belongs to it.

    Where events stand on lines of their own, at the next one that is indented no deeper: others may
    be inside the lost event.
    """
    damaged.spent += _LOSS
    debt = -damaged.credit(at)
    if debt > 0:
        return damaged.start(at + 1 + debt // _PATIENCE)
    text = damaged.text
    line = text.rfind(b"\n", max(at - _INDENT, 0), at)
    indent = text[line:at]
    if line >= 0 and indent.isspace():
        no_deeper = re.compile(rb"\n[ \t\r]{0,%d}+\{" % (len(indent) - 1))
        aligned = no_deeper.search(text, at, at + _REACH)
        damaged.spent += (aligned.end() - at if aligned else _REACH) // _SEARCH
        if aligned:
            return aligned.end() - 1
        damaged.spent += _REACH // _SEARCH
        on_lines = text.rfind(indent + b"{", max(line - _REACH, 0), line) >= 0
        if on_lines and len(text) - at < _REACH:
            return None
    return damaged.start(at + 1)


def _bracket(damaged: DamagedText, at: int, saved: Saved) -> int:
    """The array's end, unless another array, or an event, follows: it is read as one with this.

    Nor is it the end when it may belong to a lost event and more events follow.
    """
    if match := container.GOES_ON.match(damaged.text, at + 1):
        return match.end()
    if saved.lost and (following := damaged.start(at)) is not None:
        return following
    saved.closed = at + 1
    return len(damaged.text)


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
