"""The chrome trace parser: a file's text in, a :class:`~traceanalyzer.trace.Trace` out."""

from __future__ import annotations

import re

import msgspec

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.chrome_trace import container as containers
from traceanalyzer.parsers.chrome_trace.assemble import Assembler
from traceanalyzer.parsers.chrome_trace.columns import Collected
from traceanalyzer.parsers.chrome_trace.container import Container
from traceanalyzer.parsers.chrome_trace.metadata import describe
from traceanalyzer.parsers.chrome_trace.pool import batches, worker_count
from traceanalyzer.parsers.chrome_trace.samples import add_samples
from traceanalyzer.parsers.chrome_trace.search import EVENT_START, boundary_of
from traceanalyzer.parsers.chrome_trace.text import Text, open_text
from traceanalyzer.parsers.chrome_trace.want import Want
from traceanalyzer.parsers.chrome_trace.worker import process
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace, issue_rows, sort_events

_SAMPLE_BYTES = 1 << 18
_LIKELY = re.compile(rb'"(?:traceEvents|ph|schemaVersion|deviceProperties|baseTimeNanoseconds)"')

#: How bad an issue is; whatever is not listed is a loss.
_NOTICES = frozenset(
    (
        "negative-duration",
        "bad-utf8",
        "lone-surrogate",
        "raw-control-character",
        "bad-escape",
        "stray-text",
        "unclosed-begin",
        "mismatched-end",
    )
)


def sniff(head: bytes, path: str) -> bool:
    """Whether these first bytes look like a chrome trace."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        inner = text[1:].lstrip(b" \t\r\n,")
        return not inner or inner.startswith(b"]") or _LIKELY.search(head) is not None
    if not text.startswith(b"{"):
        return False
    return _LIKELY.search(head) is not None or ".json" in path.lower()


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read one chrome trace.

    Raises:
        MalformedInput: nothing in the file is an event and it is no empty trace either.
        UnreadableFile: the operating system refused.
    """
    want = _want(selection)
    text = open_text(source, progress)
    container, collected = Container(), Collected()
    try:
        _read(text, source, want, container, collected)
    except ValueError as error:
        raise MalformedInput(
            source.path,
            str(error),
            hint="a trace begins with [ or has a traceEvents array; was the export complete?",
        ) from None
    finally:
        text.close()
    meta = describe(source, container.metadata, collected.metadata)
    assembler = Assembler(collected, want, meta.rank)
    frames = assembler.frames()
    frames = add_samples(frames, container.metadata, collected, meta.rank, assembler.row_of)
    if source.damage:
        collected.lose(f"damaged-file: {source.damage}", 1, 0)
    if container.damaged_metadata and container.closed:
        collected.lose("damaged-metadata", 1, 0)
    rows = [(_severity(code), *_worded(code, n, at)) for code, (n, at) in collected.issues.items()]
    issues = issue_rows(rows, meta.rank)
    tables = {name: frames.get(name, schema.empty(name)) for name in schema.TABLES}
    trace = Trace(sources=(meta,), **{**tables, "issues": issues})
    return sort_events(trace) if trace.stacks.height else trace


def _want(selection: Selection) -> Want:
    kinds = selection.kinds
    return Want(
        kinds=None if kinds is None else sorted(kinds),
        names=list(selection.names),
        flows=kinds is None or "flow" in kinds,
        counters=kinds is None or "counter" in kinds,
        lanes=kinds is None or "lane" in kinds,
        args="args" in selection.columns,
        input_dims="input_dims" in selection.columns,
        windows=list(selection.windows),
    )


def _read(
    text: Text, source: Source, want: Want, container: Container, collected: Collected
) -> None:
    """Every event array of the file, one after the other."""
    offset = containers.first_events(text, container)
    while offset is not None:
        searching = _searching(text, offset, want)
        closed = _read_array(text, offset, source, searching, collected)
        if closed is None:
            _note_truncation(container, collected)
            return
        offset = containers.next_events(text, closed, container)


def _searching(text: Text, offset: int, want: Want) -> Want:
    """The same wish, with the text between events if a byte search may use it."""
    if not want.searchable:
        return want
    sample = text.read(offset, _SAMPLE_BYTES)
    starts = [match.end() for match in EVENT_START.finditer(sample)]
    if len(starts) < 3:
        return want
    first = process(sample[: starts[-1]], offset, Want())
    if first.issues or first.has_begin_end or first.head or first.tail:
        return want
    boundary = boundary_of(sample[starts[0] : starts[-1]])
    return msgspec.structs.replace(want, boundary=boundary)


def _read_array(
    text: Text, offset: int, source: Source, want: Want, collected: Collected
) -> int | None:
    """Collect one array's events; returns the offset behind its ``]``, None if it has none."""
    tail, tail_at = b"", offset
    read = containers.pieces(text, offset)
    workers = worker_count(text, source.size, want)
    for piece, batch in batches(text, read, want, source.path, workers):
        if tail or batch.head:
            _mend_cut(tail, batch.head, tail_at, want, collected)
        tail, tail_at = batch.tail, piece.offset + piece.length - len(batch.tail)
        collected.add(batch)
        if batch.closed is not None:
            return piece.offset + batch.closed
        text.release(piece.offset)
    collected.unfinished, collected.unfinished_at = tail, tail_at
    return None


def _mend_cut(tail: bytes, head: bytes, offset: int, want: Want, collected: Collected) -> None:
    """An event that was cut in two: joined it must be whole, else both parts are lost."""
    batch = process(tail + head, offset, want)
    if batch.events and not (batch.head or batch.tail):
        collected.add(batch)
    else:
        collected.lose("bad-event", 1, offset)


def _note_truncation(container: Container, collected: Collected) -> None:
    """Text that ends inside its array: said, unless it is a bare array with no event lost."""
    tail, at = collected.unfinished, collected.unfinished_at
    if tail:
        collected.lose("truncated", 1, at)
    elif not container.closed and container.is_object:
        collected.lose("truncated", 0, at)


def _severity(code: str) -> str:
    if code in _NOTICES or code.startswith("unknown-phase"):
        return "notice"
    return "data_loss"


def _worded(code: str, count: int, offset: int) -> tuple[str, int, str | None]:
    code, _, detail = code.partition(": ")
    return code, count, detail or f"byte {offset}"


FORMAT = Format(
    name="chrome-trace",
    suffixes=(".json", ".json.gz", ".pt.trace.json", ".pfw", ".pfw.gz", ".json.zst", ".zip"),
    description="Chrome Trace Event JSON: PyTorch/Kineto, Composer, JAX, viztracer, dftracer",
    spec_url="https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU",
    sniff=sniff,
    parse=parse,
    priority=10,
)
