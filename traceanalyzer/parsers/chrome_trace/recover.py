"""Recover events from invalid JSON: repair small faults, count lost events."""

from __future__ import annotations

import bisect
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from traceanalyzer.parsers.chrome_trace import container
from traceanalyzer.parsers.chrome_trace.columns import Issues
from traceanalyzer.parsers.chrome_trace.container import value_end
from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, Event, decode_event, decode_events

#: Budget of recovery in units per byte of text; a unit is the cost of decoding a byte.
_PATIENCE = 3
_FREE = 1 << 21
#: Minimum cost of an event, extra cost of one that is decoded alone, and of one that is lost.
_LEAST, _ALONE, _LOSS = 1 << 7, 3 << 7, 1 << 10
#: Cost of repairing a fault, of searching a byte for faults, and of continuing after a bracket.
_FAULT, _REPAIR, _BRACKET = 3 << 5, 2, 1 << 5
#: Text with more faults than one in this many bytes is not repaired.
_BYTES_PER_FAULT, _FEW_FAULTS = 8, 64
#: Maximum bytes of events that are decoded together.
_RUN = 1 << 14
#: Bytes of an unfinished event that are examined first.
_WINDOW = 1 << 9
#: Search distance for an event's indentation before it, and for equally indented events after it.
_INDENT = 64
_REACH = 1 << 16
#: Searching costs this much less than decoding.
_SEARCH = 8

# every alternative consumes its whole token, so that no text is scanned twice; groups are not
# possessive, because those match wrongly in Python 3.11.0 to 3.11.4
_SOUND = (
    rb'"(?:[^"\\\x00-\x1f]++|\\(?:[\"\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*"'
    rb'|[^"\d\-NnIi,]++'
    rb"|-?(?:0|[1-9]\d{0,299})(?:\.\d{1,300})?(?![\d.eE#])"
    rb"|,(?!\s*+[}\]])"
    rb"|(?!-?(?:NaN|Infinity|nan|inf)\b)(?:[NnIi]|-(?!\d))"
)
_token = re.compile(
    rb"((?:" + _SOUND + rb")+)"
    rb'|"(?:[^"\\]++|\\.)*(?:"|\\?\Z)'
    rb"|-?(?:\d[\d.]*+(?:[eE][+-]?\d*+)?(?:\#\w*+)?|(?:NaN|Infinity|nan|inf)\b)"
    rb"|,",
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

_object = re.compile(rb'\{\s*+["}]')
#: Faults that a decoder rejects and :func:`repaired` fixes: escapes, numbers, commas.
_repairable = re.compile(rb"[\\\d.#\-+eEnNiI}\]]|,[ \t\r\n]*+[}\]]")
_blanks = re.compile(rb"[ \t\r\n,]*+")
#: The end of the event array, as opposed to a list inside an event.
_last_end = re.compile(rb'\}[\s,]*+(?=\]\s*+(?:\}?\s*+\Z|,\s*+"))')
_QUOTE, _OPEN, _CLOSE = b'"{}'
_STRUCTURE, _BLANK, _BEFORE_EVENT = (
    np.isin(np.arange(256), list(some)) for some in (b'"{}', b" \t\r", b",}\n")
)
#: Maximum blanks before an event.
_LONGEST_INDENT = 256

Places = npt.NDArray[np.int32]


@dataclass
class Saved:
    """Events recovered from damaged text.

    Attributes:
        texts: JSON texts of the events, now valid.
        events: the events, in order.
        issues: lost events and repairs, with offsets within the text.
        tail: text of an unfinished event at the end.
        closed: offset after the ``]`` that ended the array, or None.
        lost: an event was lost and none was read since: the position may be inside the lost event.
    """

    texts: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    issues: Issues = field(default_factory=Issues)
    tail: bytes = b""
    closed: int | None = None
    lost: bool = False


class DamagedText:
    """A damaged text with the offsets of its objects, and the work done on it.

    The work is limited by the text's length: events beyond the budget are skipped.

    Attributes:
        text: the damaged text.
        spent: units of work done.
        run: maximum bytes of events that are decoded together.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.spent = 0
        self.run = _RUN

    def credit(self, at: int) -> int:
        """Return the remaining budget at an offset; negative if it is exceeded."""
        return _FREE + _PATIENCE * (len(self.text) + at) - self.spent

    def start(self, at: int) -> int | None:
        """Return the offset of the first event start at or after an offset, or None."""
        place = bisect.bisect_left(self._starts, at)
        return self._starts[place] if place < len(self._starts) else None

    def end(self, at: int) -> int | None:
        """Return the offset after the object that begins at an offset, or None."""
        if not _object.match(self.text, at):
            return None
        opened, ends = self._objects
        place = bisect.bisect_left(opened, at)
        is_known = place < len(opened) and opened[place] == at
        return ends[place] or None if is_known else None

    def repaired(self, part: bytes) -> tuple[bytes, dict[str, int]]:
        """Return a part of the text with its faults repaired, and the number of each fault.

        Raises:
            msgspec.DecodeError: too many faults.
        """
        faults = Faults(_FEW_FAULTS + len(part) // _BYTES_PER_FAULT)
        try:
            return repaired(part, faults), faults.counts
        finally:
            self.spent += _REPAIR * len(part) + _FAULT * faults.number

    @cached_property
    def _openings(self) -> Places:
        starts = [match.start() for match in container.OPENING.finditer(self.text)]
        return np.array(starts, np.int32)

    @cached_property
    def _starts(self) -> array[int]:
        """The openings after another object, or at the beginning of a line."""
        data = np.frombuffer(b"\n" + self.text, np.uint8)
        before = self._openings.copy()
        for _ in range(_LONGEST_INDENT):
            is_blank = _BLANK[data[before]]
            if not is_blank.any():
                break
            before -= is_blank
        return array("i", self._openings[_BEFORE_EVENT[data[before]]].tobytes())

    @cached_property
    def _objects(self) -> tuple[array[int], array[int]]:
        """Offsets of opening braces, and after the brace that closes each; 0: unclosed."""
        at, is_open = _braces(self.text, self._openings)
        level = np.cumsum(2 * is_open.astype(np.int8) - 1, dtype=np.int32)
        level += ~is_open
        level -= level.min(initial=0)
        levels = np.minimum(level, 0xFFFF, out=level).astype(np.uint16)
        # braces of one level alternate between open and close
        order = np.argsort(levels, kind="stable").astype(np.int32)
        levels, opens = levels[order], is_open[order]
        pair = np.flatnonzero(opens[:-1] & ~opens[1:] & (levels[:-1] == levels[1:]))
        ends = np.zeros(len(at), np.int32)
        ends[order[pair]] = at[order[pair + 1]] + 1
        return array("i", at[is_open].tobytes()), array("i", ends[is_open].tobytes())


def _braces(text: bytes, openings: Places) -> tuple[Places, npt.NDArray[np.bool_]]:
    """Return the offsets of braces outside strings, and which of them open an object.

    Events never begin inside a string, where quotes are escaped: quotes are counted from the
    beginning of each event, so that an extra quote does not affect the next event.
    """
    data = np.frombuffer(text.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
    at = np.flatnonzero(_STRUCTURE[data]).astype(np.int32)
    kind = data[at]
    quotes = np.cumsum(kind == _QUOTE, dtype=np.int32)
    before = np.zeros(len(at), np.int32)
    starts = np.searchsorted(at, openings)
    before[starts] = quotes[starts]
    quotes -= np.maximum.accumulate(before, out=before)
    is_brace = (quotes & 1 == 0) & (kind != _QUOTE)
    return at[is_brace], kind[is_brace] == _OPEN


def recover(text: bytes, *, final: bool) -> Saved:
    """Recover all complete events of a piece of text.

    The work is linear in the length of the text: event starts are skipped in text with hardly any
    valid event, and events in text with very many tiny ones.

    Args:
        text: begins between two events.
        final: no text follows; an unfinished event is lost.
    """
    saved = Saved()
    damaged = DamagedText(text)
    at = 0
    while (at := _behind_blanks(text, at)) < len(text):
        start, kept = at, len(saved.texts)
        if damaged.credit(at) < 0:
            at = _skip(damaged, at, saved)
        elif text[at] == _OPEN:
            at = _run(damaged, at, saved) or _event(damaged, at, final, saved)
        elif text[at] == 0x5D:
            at = _bracket(damaged, at, saved)
        else:
            at = _stray(text, at, saved)
        if len(saved.texts) == kept and _begins_another(text, start, at, saved):
            break
    return saved


def _begins_another(text: bytes, start: int, end: int, saved: Saved) -> bool:
    """Whether the list of events of another recording begins in text that was skipped."""
    key = None if saved.tail or saved.closed else container.EVENTS_KEY.search(text, start, end)
    if key is None:
        return False
    saved.issues.note("another-recording", key.start())
    saved.closed = key.start()
    return True


def _skip(damaged: DamagedText, at: int, saved: Saved) -> int:
    """Skip text until the budget is positive again; return the offset of the next event."""
    saved.issues.note("bad-event", at)
    saved.lost = True
    following = damaged.start(at + 1 - damaged.credit(at) // _PATIENCE)
    return _last_bracket(damaged.text, at) if following is None else following


def _run(damaged: DamagedText, at: int, saved: Saved) -> int | None:
    """Recover several events from an offset on together; return the offset of their end.

    Runs get longer after valid events and shorter after damaged ones.
    """
    while True:
        texts, stop = _following(damaged, at)
        if len(texts) < 2 or damaged.credit(at) < 0:
            return None
        segment = b",".join(texts)
        damaged.spent += _ALONE + max(0, _LEAST * len(texts) - len(segment))
        decoded = _decoded(damaged, b"[" + segment + b"]", decode_events)
        if decoded is not None:
            break
        damaged.run //= 2
    damaged.run = min(2 * damaged.run, _RUN)
    events, segment, counts = decoded
    _keep(events, segment[1:-1], counts, at, saved)
    return stop


def _following(damaged: DamagedText, at: int) -> tuple[list[bytes], int]:
    """Return the texts of the adjacent objects from an offset on, and the offset of their end."""
    text, texts, stop = damaged.text, list[bytes](), at
    while stop < min(at + damaged.run, len(text)) and text[stop] == _OPEN:
        end = damaged.end(stop)
        if end is None or end - at > 2 * _RUN:
            break
        texts.append(text[stop:end])
        stop = _behind_blanks(text, end)
    return texts, stop


T = TypeVar("T")


def _decoded(
    damaged: DamagedText, segment: bytes, decode: Callable[[bytes], T]
) -> tuple[T, bytes, dict[str, int]] | None:
    """Decode a text; return value, text (repaired if needed) and repair counts, None on failure."""
    damaged.spent += len(segment)
    try:
        return decode(segment), segment, {}
    except BAD_TEXT:
        pass
    try:
        segment, counts = damaged.repaired(segment)
        return decode(segment), segment, counts
    except BAD_TEXT:
        return None


def _keep(
    events: list[Event], text: bytes, counts: dict[str, int], offset: int, saved: Saved
) -> None:
    for code, count in counts.items():
        saved.issues.note(code, offset, count)
    saved.lost = saved.lost and all(event.ph is None for event in events)
    saved.texts.append(text)
    saved.events += events


def _behind_blanks(text: bytes, at: int) -> int:
    match = _blanks.match(text, at)
    return match.end() if match else at


def _event(damaged: DamagedText, at: int, final: bool, saved: Saved) -> int:
    """Recover the event at an offset, or count it as lost; return the offset to continue at."""
    text, end = damaged.text, damaged.end(at)
    if end is not None:
        damaged.spent += _ALONE
        decoded = _decoded(damaged, text[at:end], decode_event)
        if decoded is not None:
            damaged.run = min(2 * damaged.run + 1, _RUN)
            _keep([decoded[0]], *decoded[1:], at, saved)
            return end
    following = _resume(damaged, at)
    if end is None and (not final or following is None) and _is_cut(damaged, at):
        saved.tail = text[at:]
        return len(text)
    saved.issues.note("bad-event", at)
    saved.lost = True
    return _last_bracket(text, at) if following is None else following


def _last_bracket(text: bytes, at: int) -> int:
    """Return the offset of the bracket that ends the array; the text's end without one."""
    last = _last_end.search(text, at)
    return last.end() if last else len(text)


def _is_cut(damaged: DamagedText, at: int) -> bool:
    """Whether the text ends within the event at an offset, which may have small faults."""
    size = _WINDOW
    while damaged.credit(at) >= 0:
        window = damaged.text[at : at + size]
        end = value_end(window.decode("latin-1"), 0)
        damaged.spent += end.wrong or len(window)
        if end.wrong is not None and not end.cut and _repairable.match(window, end.wrong):
            try:
                end = value_end(damaged.repaired(window)[0].decode("latin-1"), 0)
            except BAD_TEXT:
                return False
        if not end.cut or at + size >= len(damaged.text):
            return end.cut
        size *= 4
    return False


def _resume(damaged: DamagedText, at: int) -> int | None:
    """Return the offset to continue at after a lost event; None: the rest belongs to that event.

    If events are on separate lines, this is the next one that is not indented deeper: deeper ones
    may be inside the lost event.
    """
    damaged.spent += _LOSS
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
    """Process a closing bracket; return the offset to continue at.

    It does not end the array if an event follows, or if it may belong to a lost event and more
    events follow.
    """
    damaged.spent += _BRACKET
    if match := container.GOES_ON.match(damaged.text, at + 1):
        return match.end()
    if saved.lost and (following := damaged.start(at)) is not None:
        return following
    saved.closed = at + 1
    return len(damaged.text)


def _stray(text: bytes, at: int, saved: Saved) -> int:
    """Skip stray text; return the offset of the next event or bracket."""
    saved.issues.note("stray-text", at)
    match = container.BEHIND_STRAY.search(text, at)
    return match.start() if match else len(text)


# --- repair of small faults, without changing the bounds of an event ----------------------------


class Faults:
    """Number of repaired faults.

    Attributes:
        most: maximum number.
        number: total number.
        counts: number of each kind that is an issue.
    """

    def __init__(self, most: int) -> None:
        self.most, self.number = most, 0
        self.counts: dict[str, int] = {}

    def add(self, code: str | None, count: int = 1) -> None:
        """Count faults; a number that becomes null is not an issue.

        Raises:
            msgspec.DecodeError: too many faults for text that was once JSON.
        """
        if code:
            self.counts[code] = self.counts.get(code, 0) + count
        self.number += count
        if self.number > self.most:
            raise msgspec.DecodeError("too many faults")


def repaired(text: bytes, faults: Faults) -> bytes:
    """Return the text with all small faults repaired.

    Bytes that are not UTF-8 and lone surrogates become U+FFFD, raw control characters in strings
    are escaped, invalid backslashes are doubled, commas before a closing bracket are removed, NaN,
    Infinity and numbers invalid in JSON or beyond a double become null.

    Raises:
        msgspec.DecodeError: too many faults.
    """
    try:
        text.decode()
    except UnicodeDecodeError:
        replaced = text.decode("utf-8", "replace")
        faults.add("bad-utf8", replaced.count("\ufffd") - text.count(b"\xef\xbf\xbd"))
        text = replaced.encode()

    def repair(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if match.lastindex:
            return token
        if token[0] == _QUOTE:
            return _repaired_string(token, faults)
        if token == b",":
            faults.add("trailing-comma")
            return b""
        if _number.fullmatch(token):
            return token
        faults.add(None)
        return b"null"

    return _token.sub(repair, text)


def _repaired_string(token: bytes, faults: Faults) -> bytes:
    if _odd_in_string.search(token) is None:
        return token
    paired = -1  # offset of the second half of a surrogate pair

    def count(code: str, instead: bytes) -> bytes:
        faults.add(code)
        return instead

    def repair(match: re.Match[bytes]) -> bytes:
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

    return _odd_in_string.sub(repair, token)
