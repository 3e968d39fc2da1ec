"""A Chrome trace's text in, the tables of a trace out."""

from __future__ import annotations

from dataclasses import replace

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.chrome_trace import xla
from traceanalyzer.parsers.chrome_trace.arrays import collect
from traceanalyzer.parsers.chrome_trace.assemble import Assembler
from traceanalyzer.parsers.chrome_trace.columns import Collected
from traceanalyzer.parsers.chrome_trace.container import Container, NoTraceError, first_events
from traceanalyzer.parsers.chrome_trace.metadata import describe
from traceanalyzer.parsers.chrome_trace.samples import add_samples, weight_unit
from traceanalyzer.parsers.chrome_trace.text import open_text
from traceanalyzer.parsers.chrome_trace.want import Want
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace, issue_rows, sort_events

#: How bad an issue is; whatever is not listed is a loss.
_NOTICES = frozenset(
    (
        "negative-duration",
        "no-duration",
        "bad-utf8",
        "lone-surrogate",
        "raw-control-character",
        "bad-escape",
        "trailing-comma",
        "stray-text",
        "unclosed-begin",
        "mismatched-end",
        "profile-chunk",
    )
)

#: What is said of an issue instead of the place where it was found.
_DETAILS = {"profile-chunk": "a V8 CPU profile: its samples are not read"}


def parse(source: Source, selection: Selection, progress: Progress | None) -> Trace:
    """Read one chrome trace.

    Raises:
        MalformedInput: nothing in the file is an event and it is no empty trace either.
        UnreadableFile: the operating system refused.
    """
    want = _want(selection)
    text = open_text(source, progress)
    container, collected = Container(), Collected()
    try:
        first = first_events(text, container)
        by_lanes = first is not None and xla.wrote(text.read(first, xla.HEAD_BYTES))
        want = xla.everything(want) if by_lanes else want
        collect(text, first, want, container, collected)
    except NoTraceError as error:
        raise MalformedInput(
            source.path,
            str(error),
            hint="a trace begins with [ or has a traceEvents array; was the export complete?",
        ) from None
    finally:
        text.close()
    meta = describe(source, container.metadata, collected.metadata, collected.first)
    assembler = Assembler(collected, want, meta.rank)
    frames = assembler.frames()
    frames = add_samples(frames, container.metadata, collected, want, meta.rank, assembler.row_of)
    meta = replace(meta, weight_unit=weight_unit(container.metadata))
    if source.damage:
        collected.lose(f"damaged-file: {source.damage}", 1, -1)
    rows = [(_severity(code), *_worded(code, n, at)) for code, (n, at) in collected.issues.items()]
    issues = issue_rows(rows, meta.rank)
    tables = {name: frames.get(name, schema.empty(name)) for name in schema.TABLES}
    trace = Trace(sources=(meta,), **{**tables, "issues": issues})
    if by_lanes:
        trace = xla.told(trace, selection)
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


def _severity(code: str) -> str:
    if code == "composer-units":
        return "info"
    if code in _NOTICES or code.startswith("unknown-phase"):
        return "notice"
    return "data_loss"


def _worded(code: str, count: int, offset: int) -> tuple[str, int, str | None]:
    code, _, detail = code.partition(": ")
    place = None if offset < 0 else f"byte {offset}"
    return code, count, detail or _DETAILS.get(code, place)
