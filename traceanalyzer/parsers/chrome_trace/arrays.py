"""Collect all event arrays of a file: split into pieces, read on several cores.

A piece is read by the compiled scan, strict decoding and recovery, in this order. The scan
(``_scan.c``) reads the ordinary events of well-formed text and returns all others to Python.
Without it (no compiler when the package was installed) strict decoding reads everything and gives
the same tables, slower.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from traceanalyzer import vocabulary
from traceanalyzer.machine import executor, threads
from traceanalyzer.parsers.chrome_trace import container as around, decode
from traceanalyzer.parsers.chrome_trace.columns import (
    INPUTS,
    Batch,
    Collected,
    Collective,
    Flows,
    Slices,
)
from traceanalyzer.parsers.chrome_trace.container import (
    GOES_ON,
    AnotherRecordingError,
    Container,
    Text,
)
from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, NULL, Event
from traceanalyzer.parsers.chrome_trace.extract import extract
from traceanalyzer.parsers.contract import Selection

try:
    from traceanalyzer.parsers.chrome_trace import _scan
except ImportError:  # pragma: no cover - built without a compiler
    _scan = None  # type: ignore[assignment]

_BLANKS = b" \t\r\n,"
_trailing = re.compile(r"trailing characters \(byte (\d+)\)")

#: Flags of the scan for a category.
_WANTED, _DEVICE, _OTHER = 1, 2, 64
#: Parts of communication names: Python reads the arguments of host events with such names.
_COMMUNICATION = [word.encode() for word in vocabulary.COMMUNICATION_TERMS]
#: How ``null`` begins.
_NULL = ord("n")

#: Results of the scan, in order: columns of slices, rows that may be collectives, columns of flow
#: points.
_SLICE_COLUMNS = (
    *("order", "ts", "dur", "category", "name", "pid", "tid", "correlation", "external_id"),
    *("device_rows", "device", "stream", "copied"),
    *("kernel_rows", "grid", "block", "registers", "shared_memory"),
    *("memory_rows", "allocated", "address", "device_type", "device_id"),
    *("total_allocated", "total_reserved"),
)
_FLOW_COLUMNS = ("order", "phase", "ts", "category", "name", "pid", "tid", "id")


def process(text: bytes, offset: int, selection: Selection, *, final: bool = False) -> list[Batch]:
    """Return the batches of a piece of text; the last one has the number of events.

    Args:
        text: events separated by commas, line breaks or nothing; may be damaged. It begins between
            two events; an unfinished event at its end becomes the last batch's ``tail``.
        offset: offset of the piece in the file, for issues.
        selection: what to keep.
        final: no text follows.
    """
    return (
        _whole(text, offset, selection)
        or _lines(text, offset, selection)
        or [_saved(text, offset, selection, final=final)]
    )


def _whole(text: bytes, offset: int, selection: Selection) -> list[Batch] | None:
    """Read well-formed events, perhaps with the array's end; None if the text is damaged."""
    batches = _scanned(text, offset, selection) or _strict(text, offset, selection)
    # events after the end of an array are read, too, see recover
    goes_on = batches and batches[-1].closed and GOES_ON.match(text, batches[-1].closed)
    return None if goes_on else batches


# --- the compiled scan -----------------------------------------------------------------------


def _scanned(text: bytes, offset: int, selection: Selection) -> list[Batch] | None:
    """Scan a well-formed piece; None if it must be read another way."""
    if _scan is None:
        return None  # type: ignore[unreachable]
    other = _flags("other", selection) | _OTHER
    with_args = "args" in selection.columns
    scanned = _scan.scan(
        text,
        0,
        [
            (word.encode(), _flags(kind, selection))
            for kind, spellings in vocabulary.SPELLINGS.items()
            for word in spellings
        ],
        other,
        other,
        _COMMUNICATION,
        [name.encode() for name in selection.names],
        array("q", [edge for window in selection.windows for edge in window]).tobytes(),
        selection.wants("flow", None),
        selection.kinds is None,
        with_args,
        "input_dims" in selection.columns,
        "input_types" in selection.columns,
        "concrete_inputs" in selection.columns,
        [name.encode() for name in sorted(selection.inputs_of)],
    )
    if scanned is None:
        return None
    events, closed, first, columns = scanned
    *values, next_rows, rows, dims, types, concrete, args, text_ranges, rest_ranges = columns
    width = len(_SLICE_COLUMNS)
    inputs = zip(("input_rows", *INPUTS), (rows, dims, types, concrete), strict=True)
    slices = Slices(dict(zip(_SLICE_COLUMNS, values[:width], strict=True)) | dict(inputs))
    flows = Flows(dict(zip(_FLOW_COLUMNS, values[width + 1 :], strict=True)))
    flows.at_next = array("I", next_rows).tolist()
    try:
        texts = _texts(text, array("q", text_ranges))
        slices.args = _spelled(text, array("q", args)) if with_args else None
        rest = _rest(text, array("q", rest_ranges), offset, selection)
    except BAD_TEXT:
        return None
    _name_collectives(slices, array("I", values[width]), texts)
    rest.events = events
    rest.first = min(rest.first, first)
    rest.closed = None if closed < 0 else closed
    return [Batch(texts=texts, slices=slices, flows=flows), rest]


def _flags(kind: str, selection: Selection) -> int:
    wanted = _WANTED if selection.wants(kind, None) else 0
    return wanted | (_DEVICE if kind in vocabulary.DEVICE_KINDS else 0)


def _name_collectives(slices: Slices, rows: array[int], texts: list[str]) -> None:
    """Set the collectives of communication kernels without arguments, by kernel name."""
    names = array("I", slices.columns["name"])
    categories = array("I", slices.columns["category"])
    used = {categories[row] for row in rows if categories[row] < len(texts)}
    kernels = {code for code in used if vocabulary.kind_of_category(texts[code]) == "kernel"}
    kept = [
        row
        for row in rows
        if categories[row] in kernels and vocabulary.is_communication(texts[names[row]])
    ]
    slices.columns["collective_rows"] = array("I", kept).tobytes()
    slices.collectives = [_named(texts[names[row]]) for row in kept]


def _named(kernel: str) -> Collective:
    collective = vocabulary.collective_of_kernel(kernel)
    return collective, None, NULL, NULL, None, NULL, None, NULL, NULL, None, None


def _texts(text: bytes, ranges: array[int]) -> list[str]:
    """Return names and categories by code; escapes are decoded."""
    texts = []
    for at, length in zip(ranges[::2], ranges[1::2], strict=True):
        raw = text[at : at + length]
        texts.append(
            raw.decode() if b"\\" not in raw else str(decode.decode_any(b'"' + raw + b'"'))
        )
    return texts


def _spelled(text: bytes, ranges: array[int]) -> list[str | None]:
    """Return the JSON text of a value of each row; None if absent or null."""
    spans = zip(ranges[::2], ranges[1::2], strict=True)
    return [text[at : at + n].decode() if n and text[at] != _NULL else None for at, n in spans]


def _rest(text: bytes, ranges: array[int], offset: int, selection: Selection) -> Batch:
    """Return the batch of the events that the scan left to Python."""
    if not ranges:
        return Batch()
    spans = zip(ranges[::3], ranges[1::3], strict=True)
    joined = b",".join([text[at : at + length] for at, length in spans])
    return _batch(
        decode.decode_events(b"[" + joined + b"]"), joined, offset, selection, ranges[2::3]
    )


def _batch(
    events: list[Event],
    text: bytes,
    offset: int,
    selection: Selection,
    order: array[int] | None = None,
) -> Batch:
    """Return the batch of events in a text that separates them by commas."""
    return extract(
        events, selection, offset, lambda: decode.decode_raw_args(b"[" + text + b"]"), order
    )


# --- strict decoding -------------------------------------------------------------------------


def _strict(text: bytes, offset: int, selection: Selection) -> list[Batch] | None:
    """Decode well-formed events; None if the text is damaged."""
    body = text.strip(_BLANKS)
    if not body:
        return [Batch()]
    try:
        return [_batch(decode.decode_events(b"[" + body + b"]"), body, offset, selection)]
    except BAD_TEXT as error:
        closed = _early_end(body, error)
    if closed is None:
        return None
    try:
        events = decode.decode_events(b"[" + body[:closed])
        batch = _batch(events, body[: closed - 1], offset, selection)
    except BAD_TEXT:
        return None
    batch.closed = closed + len(text) - len(text.lstrip(_BLANKS))
    return [batch]


def _early_end(body: bytes, error: Exception) -> int | None:
    """Return the offset after the ``]`` that ended ``[body]`` early, from the decoder's error."""
    match = _trailing.search(str(error))
    # the decoder counts the added bracket and the first extra byte
    return None if match is None else body.rfind(b"]", 0, int(match[1]) - 1) + 1


def _lines(text: bytes, offset: int, selection: Selection) -> list[Batch] | None:
    """Decode newline-delimited events without commas, perhaps followed by the array's end."""
    lines = text.rstrip(_BLANKS)
    closed = len(lines) if lines.endswith(b"]") else None
    if closed:
        lines = lines[:-1]
    try:
        events = decode.decode_lines(lines)
    except BAD_TEXT:
        return None
    batch = extract(events, selection, offset, lambda: decode.decode_raw_args_lines(lines))
    batch.closed = closed
    return [batch]


# --- recovery --------------------------------------------------------------------------------


def _saved(text: bytes, offset: int, selection: Selection, *, final: bool) -> Batch:
    """Recover events from damaged text, one by one."""
    from traceanalyzer.parsers.chrome_trace import recover

    saved = recover.recover(text, final=final)
    batch = _batch(saved.events, b",".join(saved.texts), offset, selection)
    batch.tail, batch.closed = saved.tail, saved.closed
    batch.issues.add(saved.issues, offset)
    return batch


PIECE_BYTES = 1 << 22
FIRST_PIECE_BYTES = 1 << 12
#: The end of a piece is searched in this much text first.
TAIL_BYTES = 1 << 15
#: Maximum size of an event; text without any event end is cut anywhere.
MAX_EVENT_BYTES = 1 << 26
#: An event that does not end within this much text is damaged: a bracket is missing.
MAX_CARRY_BYTES = 1 << 23


def collect(
    text: Text, offset: int | None, selection: Selection, container: Container, collected: Collected
) -> None:
    """Collect every event array of the file, and the metadata around them.

    Args:
        text: text of the file.
        offset: start of the first array; None for a file without one.
        selection: what to keep.
        container: receives the metadata around the arrays.
        collected: receives the events.
    """
    try:
        while offset is not None:
            closed = _array(text, offset, selection, container, collected)
            container.is_recorded = collected.events > 0
            if other := collected.issues.pop("another-recording", None):
                container.follow(other[1])
            offset = None if closed is None else around.next_events(text, closed, container)
    except AnotherRecordingError as another:
        collected.issues.note("another-recording", int(another.args[0]))
        container.closed = True
    if container.is_object and not container.closed and "truncated" not in collected.issues:
        collected.issues.note("truncated", container.end, 0)
    collected.issues.add(container.issues)


def _array(
    text: Text, offset: int, selection: Selection, container: Container, collected: Collected
) -> int | None:
    """Collect one array's events; return the offset after its ``]``, None if it is missing.

    If a piece ends inside an event, the event's beginning is put before the next piece, which is
    then read again.
    """
    carry = b""
    for piece, batches in _batches(text, offset, selection):
        start, container.end = piece.offset - len(carry), piece.offset + piece.length
        if carry:
            batches = process(carry + text.read(piece.offset, piece.length), start, selection)
        carry, closed = _take(batches, collected)
        if closed is None and carry and (piece.last or len(carry) > MAX_CARRY_BYTES):
            start = container.end - len(carry)
            carry, closed = _take(process(carry, start, selection, final=True), collected)
            if carry:
                code = "truncated" if piece.last else "bad-event"
                collected.issues.note(code, container.end - len(carry))
                carry = b""
        if closed is not None:
            container.end = start + closed
            return container.end
        text.release(piece.offset)
    return None


def _take(batches: list[Batch], collected: Collected) -> tuple[bytes, int | None]:
    """Collect a piece's batches; return the unfinished text and the offset after its ``]``."""
    for batch in batches:
        collected.add(batch)
    return batches[-1].tail, batches[-1].closed


def _batches(text: Text, offset: int, selection: Selection) -> Iterator[tuple[Piece, list[Batch]]]:
    """Yield each piece with its batches, in order; a few pieces are processed at a time.

    The scan releases the GIL, so pieces are read in threads. The small first piece is read before
    threads are started: many files have only one or two pieces.
    """
    cut = pieces(text, offset)
    first = next(cut)
    yield first, process(text.read(first.offset, first.length), first.offset, selection)
    if first.last:
        return
    second = next(cut)
    if second.last:
        yield second, process(text.read(second.offset, second.length), second.offset, selection)
        return
    workers = threads()
    waiting: deque[tuple[Piece, Future[list[Batch]]]] = deque()
    with executor(workers) as pool:
        try:
            for piece in itertools.chain((second,), cut):
                data = text.later(piece.offset, piece.length)
                waiting.append(
                    (piece, pool.submit(_read_and_process, data, piece.offset, selection))
                )
                if len(waiting) > workers:
                    done, result = waiting.popleft()
                    yield done, result.result()
            while waiting:
                done, result = waiting.popleft()
                yield done, result.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _read_and_process(data: Callable[[], bytes], offset: int, selection: Selection) -> list[Batch]:
    return process(data(), offset, selection)


@dataclass(frozen=True)
class Piece:
    """A range of text that begins and (except the last one) ends between two events."""

    offset: int
    length: int
    last: bool


def pieces(text: Text, offset: int) -> Iterator[Piece]:
    """Split the text from an offset to its end into pieces of about ``PIECE_BYTES``.

    The first piece is small: some files consist of thousands of small arrays.
    """
    first = min(FIRST_PIECE_BYTES, PIECE_BYTES)
    cut = _cut(text, offset, first) or Piece(offset, first, last=False)
    yield cut
    while not cut.last:
        offset += cut.length
        length = PIECE_BYTES
        while (piece := _cut(text, offset, length)) is None:
            length *= 2  # an event larger than a piece
        cut = piece
        yield cut


def _cut(text: Text, offset: int, length: int) -> Piece | None:
    """Return the piece of at most this length, or None if no event ends inside it."""
    for window in dict.fromkeys((min(TAIL_BYTES, length), length)):
        low = offset + length - window
        tail = text.read(low, window)
        if len(tail) < window:
            end = low + len(tail) if tail else offset + len(text.read(offset, length))
            return Piece(offset, end - offset, last=True)
        start = around.last_event_start(tail)
        if start > 0:
            # the indentation belongs to the next event
            start = len(tail[:start].rstrip(b" \t\r\n")) or start
            return Piece(offset, low + start - offset, last=False)
    if length <= 2 * PIECE_BYTES:
        return None
    start = around.last_object_start(tail)
    if start > 0:
        return Piece(offset, start, last=False)
    return Piece(offset, length, last=False) if length >= MAX_EVENT_BYTES else None
