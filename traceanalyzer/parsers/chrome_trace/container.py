"""The text of a file by offset: its event arrays, the metadata around them, starts of events."""

import contextlib
import json
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from traceanalyzer.errors import UnreadableFile
from traceanalyzer.parsers.chrome_trace.columns import Issues
from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, decode_any
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.source import Source

_BLOCK = 1 << 21
_SMALL = 1 << 16


class _PlainText:
    """Random access to the bytes of a file, which are the text."""

    def __init__(self, source: Source, progress: Progress | None) -> None:
        self._source, self._progress = source, progress
        try:
            self._file = os.open(source.path, os.O_RDONLY)
        except OSError as error:
            raise UnreadableFile(source.path, str(error.strerror).lower()) from None

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from an offset; fewer than requested only at the end."""
        parts = []
        try:
            while length > 0 and (part := os.pread(self._file, length, offset)):
                parts.append(part)
                offset, length = offset + len(part), length - len(part)
        except OSError as error:
            raise UnreadableFile(
                self._source.path, str(error.strerror).lower(), where=f"byte {offset}"
            ) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def later(self, offset: int, length: int) -> Callable[[], bytes]:
        """Return a function for :meth:`read` that works in any thread and after the release."""
        return lambda: self.read(offset, length)

    def release(self, offset: int) -> None:
        """Release the bytes before this offset."""
        if self._progress:
            self._progress(min(offset, self._source.size), self._source.size)

    def close(self) -> None:
        """Stop reading."""
        os.close(self._file)


class _StreamedText:
    """The same for a file to be decompressed or decoded, in a thread.

    Blocks are kept until they are released.
    """

    def __init__(self, source: Source, progress: Progress | None) -> None:
        self._blocks: list[bytes] = []
        self._start = 0  # offset of the first kept block
        self._end = 0
        self._ended = False
        blocks = source.blocks(_BLOCK, progress)
        # for a small file a thread costs more than it saves
        self._ahead = None if source.size < _SMALL else _Ahead(blocks)
        self._next = self._ahead.next if self._ahead else partial(next, blocks, None)

    def read(self, offset: int, length: int) -> bytes:
        self._fill(offset + length)
        parts, at = [], self._start
        for block in self._blocks:
            low, high = max(offset - at, 0), min(offset + length - at, len(block))
            if low < high:
                parts.append(block[low:high] if high - low < len(block) else block)
            at += len(block)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def later(self, offset: int, length: int) -> Callable[[], bytes]:
        data = self.read(offset, length)  # only one thread may read a stream
        return lambda: data

    def release(self, offset: int) -> None:
        while self._blocks and self._start + len(self._blocks[0]) <= offset:
            self._start += len(self._blocks.pop(0))

    def close(self) -> None:
        if self._ahead:
            self._ahead.close()

    def _fill(self, end: int) -> None:
        while self._end < end and not self._ended:
            block = self._next()
            if block is None:
                self._ended = True
            else:
                self._blocks.append(block)
                self._end += len(block)


#: The decompressed text of a file; see the methods of a plain one.
Text = _PlainText | _StreamedText


def open_text(source: Source, progress: Progress | None) -> Text:
    """Return the text of a source; a compressed one is read ahead."""
    return (_PlainText if source.is_plain else _StreamedText)(source, progress)


class _Ahead:
    """An iterator of blocks run in a thread, a few blocks ahead; inflating releases the GIL."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=4)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(blocks,), daemon=True)
        self._thread.start()

    def _run(self, blocks: Iterator[bytes]) -> None:
        try:
            for block in blocks:
                self._put(block)
                if self._stop.is_set():
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - raised again by next()
            self._put(error)

    def _put(self, item: bytes | BaseException | None) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=0.1)
                return

    def next(self) -> bytes | None:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


#: Maximum size of a metadata value, and of all of them.
MAX_VALUE_BYTES = 1 << 26
WINDOW_BYTES = 1 << 12
_STRIDE_BYTES = 1 << 20
_BLANKS = b" \t\r\n,"

_KEY = re.compile(rb'("(?:[^"\\]++|\\.)*")\s*+:\s*+', re.DOTALL)
EVENTS_KEY = re.compile(rb'"traceEvents"\s*+:\s*+\[')
_NO_EVENTS = re.compile(rb"null|\{\s*+\}")
#: Values with times: decimals stay text, for exact nanoseconds.
_WITH_TIMES = frozenset(("samples",))

#: An error within this distance of the text's end may come from truncation: the longest token.
_NEAR = 12

_KEYS = (
    rb"ph|name|cat|ts|pid|tid|dur|args|id|id2|s|bp|sf|tts|tdur|cname|scope|weight|bind_id"
    rb"|flow_in|flow_out"
)
# possessive quantifiers: no run of blanks is scanned twice
_OPENING = rb'\{\s*+"(?:' + _KEYS + rb')"\s*+:'
#: Start of an event: an object after another one, or after a line end, that opens with a key of
#: the format. The same text may occur inside an event (a list of such objects in ``args``); a cut
#: there leaves an unfinished event, which is then joined with the next piece.
EVENT_START = re.compile(rb"(?:\A\s*+|[,}]\s*+|\n[ \t]*+)(?=" + _OPENING + rb")")
#: End of stray text: an event, whatever precedes it, or a bracket.
BEHIND_STRAY = re.compile(_OPENING + rb"|\]")
#: After the end of an array: an event, read together with the array.
GOES_ON = re.compile(rb"[ \t\r\n,]*+(?=" + _OPENING + rb")")
_EVENTS = re.compile(EVENTS_KEY.pattern + rb"|" + EVENT_START.pattern)

#: An object that opens like an event.
OPENING = re.compile(_OPENING)
_OBJECT = re.compile(rb'\{\s*+"')
#: Number of candidate starts of which the best is used.
_CANDIDATES = 32
_LONGEST_INDENT = 256

# the values are not used; `len` avoids the conversion of long numbers
_scanner = json.JSONDecoder(strict=False, parse_int=len, parse_float=len, parse_constant=len)
_loose_json = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


class NotATraceError(ValueError):
    """The text is not a Chrome trace; the message says what it is."""


class AnotherRecordingError(ValueError):
    """Another recording follows, as in concatenated files; the argument is its offset."""


@dataclass
class Container:
    """The JSON around the events.

    Attributes:
        metadata: top-level values other than the events.
        has_events: there is a list of events, perhaps empty.
        is_recorded: an event was read.
        arrays: number of arrays that are not members of an object.
        is_object: the events are inside an object, whose end must follow; a bare array may lack it.
        closed: the last array or object was closed.
        end: offset up to which events were read.
        issues: issues outside the events.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    has_events: bool = False
    is_recorded: bool = False
    arrays: int = 0
    is_object: bool = False
    closed: bool = False
    end: int = 0
    issues: Issues = field(default_factory=Issues)
    kept_bytes: int = 0

    def enter(self, *, is_object: bool) -> None:
        """Record the start of an event array."""
        self.has_events, self.is_object, self.closed = True, is_object, False

    def follow(self, offset: int) -> None:
        """Note that the events of another object begin at an offset.

        Raises:
            AnotherRecordingError: those of an earlier object were read.
        """
        if self.is_recorded:
            raise AnotherRecordingError(offset)

    def learn(self, members: dict[str, bytes], offset: int) -> None:
        """Add metadata values."""
        for key, value in members.items():
            self.kept_bytes += len(value)
            fits = self.kept_bytes <= MAX_VALUE_BYTES
            known, decoded = _decoded(key, value) if fits else (False, None)
            if known:
                self.metadata[key] = decoded
            else:
                self.issues.note("damaged-metadata", offset)


def _decoded(key: str, value: bytes) -> tuple[bool, Any]:
    """Decode a value leniently; the first item is whether it could be read."""
    try:
        return True, decode_any(value) if key in _WITH_TIMES else msgspec.json.decode(value)
    except BAD_TEXT:
        pass
    try:
        loose = _loose_json.decode(value.decode("utf-8", "replace"))
        # removes lone surrogates and integers of any length
        strict = json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace")
        return True, msgspec.json.decode(strict)
    except (*BAD_TEXT, ValueError):
        return False, None


def first_events(text: Text, container: Container) -> int | None:
    """Return the offset after the bracket (or of the first line) where events begin, or None.

    Raises:
        NotATraceError: the text is not a trace.
    """
    start = _behind(text, 0)
    first = text.read(start, 1)
    if not first:
        raise NotATraceError("is empty")
    if first not in (b"[", b"{"):
        raise NotATraceError("is not JSON")
    at = _find_events(text, start, container)
    if not container.has_events:
        if container.issues or not container.closed:
            raise NotATraceError('is truncated or damaged before "traceEvents"')
        raise NotATraceError('is JSON without "traceEvents"')
    return at


def next_events(text: Text, offset: int, container: Container) -> int | None:
    """Return the start of the next event array after a ``]``, or None; read metadata between.

    Raises:
        AnotherRecordingError: the next array is that of another object.
    """
    if container.is_object or text.read(offset, WINDOW_BYTES).lstrip(_BLANKS).startswith(b'"'):
        events, at = _members(text, offset, container)
        if events is not None or at is None:
            return events
        return _find_events(text, at, container)
    container.closed = True
    return _find_events(text, offset, container)


def _find_events(text: Text, at: int, container: Container) -> int | None:
    """Return where the events of the value at an offset, or of a later one, begin."""
    while first := text.read(at := _behind(text, at, _BLANKS + b"]}"), 1):
        if first == b"[":
            if container.is_object:
                container.follow(at)
            container.arrays += 1
            container.enter(is_object=False)
            return at + 1
        if first == b"{":
            events, behind = _members(text, at + 1, container, start=at)
            if events is not None or behind is None:
                return events
            at = behind
            continue
        container.issues.note("stray-text", at)
        following = _next_match(text, at, _EVENTS)
        if following is None:
            return None
        if text.read(following - 1, 1) == b"[":
            return _enter_another(container, following)
        at = following
    return None


def _members(
    text: Text, at: int, container: Container, start: int | None = None
) -> tuple[int | None, int | None]:
    """Read an object's members up to its events or its end.

    Args:
        text: the text.
        at: offset after the opening brace, or after a value.
        container: receives the members.
        start: offset of the object, if it is read from its beginning. The object may be an event
            itself, the first of a file without brackets.

    Returns:
        Where events begin, or None; the offset after the object, or None at the text's end.
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
            if start is not None:
                container.follow(start)
            container.learn(members, opened)
            container.enter(is_object=True)
            return value_at + 1, None
        value = None if name is None else _value(text, value_at)
        if name is None or value is None:
            return _salvage(text, at, container, members, start), None
        if name == "traceEvents":
            container.has_events |= _NO_EVENTS.fullmatch(value) is not None
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
    """Return where events begin in or after a damaged object."""
    if start is not None and ("ph" in members or _is_event(text.read(start, WINDOW_BYTES))):
        container.enter(is_object=False)
        return start
    container.learn(members, at)
    if text.read(at, 1) and not _is_cut(text, at):
        container.issues.note("damaged-metadata", at)
    events = _next_match(text, at, EVENTS_KEY)
    return None if events is None else _enter_another(container, events)


def _enter_another(container: Container, events: int) -> int:
    """Enter the events of an object whose beginning is damaged."""
    container.follow(events)
    container.enter(is_object=True)
    return events


def _is_event(head: bytes) -> bool:
    """Whether a damaged object may be an event; if it is not, its events are still found."""
    return EVENT_START.match(head) is not None and b'"ph"' in head


def _is_cut(text: Text, at: int) -> bool:
    """Whether the text ends within the member at an offset."""
    window = text.read(at, WINDOW_BYTES)
    return len(window) < WINDOW_BYTES and value_end("{" + window.decode("latin-1"), 0).cut


def _text(key: bytes) -> str | None:
    known, name = _decoded("", key)
    return name if known and isinstance(name, str) else None


def _value(text: Text, at: int) -> bytes | None:
    """Return the text of the value at an offset; None if it is unfinished or too large."""
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
    """Return the offset of the first byte that is not a blank; at most some MB are skipped."""
    limit = at + MAX_VALUE_BYTES
    while at < limit and (window := text.read(at, WINDOW_BYTES)):
        rest = window.lstrip(blanks)
        at += len(window) - len(rest)
        if rest:
            break
    return at


def _next_match(text: Text, at: int, pattern: re.Pattern[bytes]) -> int | None:
    """Return the offset after the first match at or after an offset, or None."""
    while window := text.read(at, _STRIDE_BYTES):
        match = pattern.search(window)
        if match:
            return at + match.end()
        text.release(at)
        if len(window) < _STRIDE_BYTES:
            break
        at += _STRIDE_BYTES - WINDOW_BYTES
    return None


# --- where events begin, where values end -----------------------------------------------------


def last_event_start(text: bytes) -> int:
    """Return the offset of the last event start after the text's beginning; 0 without one.

    Among starts at the beginning of a line, the least indented: others may be inside an event.
    """
    return _last(OPENING, text)


def last_object_start(text: bytes) -> int:
    """Like :func:`last_event_start`, for an object that opens with any key."""
    return _last(_OBJECT, text)


def _last(opening: re.Pattern[bytes], text: bytes) -> int:
    best, least, tried, at = 0, len(text), 0, len(text)
    while tried < _CANDIDATES and (at := text.rfind(b"{", 0, at)) > 0:
        if opening.match(text, at) and (indent := _indent(text, at)) is not None:
            tried += 1
            if best == 0 or indent < least:
                best, least = at, indent
    return best


def _indent(text: bytes, at: int) -> int | None:
    """Return the indentation of an object that may be an event; large if not at a line start."""
    before = text[max(at - _LONGEST_INDENT, 0) : at]
    blanks = len(before) - len(before.rstrip(b" \t\r\n"))
    line = before.rfind(b"\n", len(before) - blanks)
    if line >= 0:
        return len(before) - line
    return len(text) if before[: len(before) - blanks].endswith((b",", b"}")) else None


class End(NamedTuple):
    """The end of a value.

    Attributes:
        at: offset after the value, None without a complete value.
        cut: the text ended inside the value; more text may complete it.
        wrong: offset of invalid JSON, or None.
    """

    at: int | None
    cut: bool = False
    wrong: int | None = None


def value_end(characters: str, at: int) -> End:
    """Return the end of the value that begins at an offset.

    Control characters in strings, lone surrogates, NaN and Infinity are allowed. ``characters``
    are bytes decoded as Latin-1, so that offsets are byte offsets and any byte is accepted.
    """
    try:
        end = _scanner.raw_decode(characters, at)[1]
    except json.JSONDecodeError as error:
        # no bracket follows an unfinished token
        is_near = len(characters) - error.pos <= _NEAR and "}" not in characters[error.pos :]
        is_cut = is_near or error.msg.startswith("Unterminated string")
        return End(None, is_cut, error.pos)
    except RecursionError:
        return End(None)
    return End(end)
