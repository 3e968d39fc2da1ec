"""Read only the beginning and the end of a file, to describe thousands of files in seconds."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.info import Options
from traceanalyzer.analyzers.info.compute import INFO, Info, Part, measure
from traceanalyzer.errors import InputError, MalformedInput, OptionError
from traceanalyzer.machine import cores
from traceanalyzer.parsers.chrome_trace.container import EVENT_START
from traceanalyzer.parsers.source import Source
from traceanalyzer.run.find import each_and_skipped, format_of, is_summary
from traceanalyzer.run.loop import collect, guarded, truncated_notes, with_notes
from traceanalyzer.run.read import read
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.units import format_bytes, format_count
from traceanalyzer.vocabulary import DATABASES

#: Bytes read at each end of a file.
END_BYTES = 1 << 16
#: Estimated time to read a whole file, and each of its bytes; size of compressed files unpacked.
_FILE_SECONDS, _BYTE_SECONDS, _INFLATED = 0.01, 1e-8, 10
#: From this estimated time on, ends are enough.
_LONG_SECONDS = 20
#: Formats of which tables can be skipped: their metadata is read, without events.
_SELECTIVE = (*DATABASES, "parquet")
_TOGETHER = 16


@dataclass(frozen=True)
class Ends:
    """The beginning and the end of one file.

    Attributes:
        path: the file.
        trace: the metadata and the events at both ends; None with an error.
        parts: ``whole``: the whole file was read; ``both``: the beginning and the end; ``first``:
            only the beginning, because the file is compressed; ``none``: no events.
        error: why it cannot be read.
    """

    path: str
    trace: Trace | None
    parts: Literal["whole", "both", "first", "none"]
    error: InputError | None = None


def takes_long(paths: Sequence[str], workers: int | Literal["auto"]) -> bool:
    """Whether reading whole files takes long, by their sizes and the number of processes."""
    seconds = 0.0
    for path in paths:
        try:
            size = os.path.getsize(path)  # noqa: PTH202 - names, not Paths
        except OSError:
            continue
        unpacked = size * _INFLATED if path.endswith((".gz", ".zst", ".zip")) else size
        seconds += _FILE_SECONDS + unpacked * _BYTE_SECONDS
    return seconds > _LONG_SECONDS * (cores() if workers == "auto" else workers)


def read_ends(paths: Sequence[str], workers: int | Literal["auto"] = 1) -> Iterator[Ends]:
    """Yield the ends of each file, in order, read by several processes if allowed."""
    from traceanalyzer.run import workers as processes

    chunks = [paths[i : i + _TOGETHER] for i in range(0, len(paths), _TOGETHER)]
    number = min(len(chunks), cores() if workers == "auto" else workers)
    if number < 2:
        yield from _ends_of(paths)
        return
    for chunk, answer in zip(chunks, processes.each(_ends_of, chunks, number), strict=True):
        known = answer if isinstance(answer, list) else _ends_of(chunk)
        yield from known


def _ends_of(paths: Sequence[str]) -> list[Ends]:
    ends = []
    for path in paths:
        try:
            ends.append(_ends(path))
        except InputError as error:
            ends.append(Ends(path, None, "none", error))
    return ends


def _ends(path: str) -> Ends:
    """Return the ends of one file.

    Raises:
        InputError: it cannot be read.
    """
    source = Source(path)
    name = format_of(path)
    if name in _SELECTIVE:
        return Ends(path, read(path, kinds=()), "none")
    head = source.head()
    if (
        name != "chrome-trace"
        or len(head) < END_BYTES
        or source.size <= 2 * END_BYTES * (source.compression is None)
    ):
        return Ends(path, read(path), "whole")
    starts = [match.start() for match in EVENT_START.finditer(head)]
    if len(starts) < 2:
        return Ends(path, read(path), "whole")
    text = head[: starts[-1] + 1].rstrip(b", \r\n\t")
    tail = b"" if source.compression else _tail(path)
    text = text + b"," + tail if tail else text + b"]}"
    try:
        trace = _parsed(path, text)
    except MalformedInput:
        return Ends(path, read(path), "whole")
    return Ends(path, trace, "both" if tail else "first")


def _tail(path: str) -> bytes:
    """Return the end of a file from the start of an event on; empty without one."""
    with open(path, "rb") as file:  # noqa: PTH123 - the name is kept as it was given
        file.seek(-END_BYTES, os.SEEK_END)
        data = file.read()
    first = EVENT_START.search(data, 1)
    return data[first.end() :] if first else b""


def _parsed(path: str, text: bytes) -> Trace:
    """Return the trace of a part of a file; its name may have the rank."""
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder, Path(path).name.removesuffix(".gz").removesuffix(".zst"))
        part.write_bytes(text)
        trace = read(part, format="chrome-trace")
    sources = tuple(replace(meta, path=path) for meta in trace.sources)
    return replace(trace, sources=sources, issues=trace.issues.clear())


# --- description of the files ---------------------------------------------------------------

#: Options for reading that need all events, or another machine.
_NEED_ALL = ("rank", "assume_rank", "since_ns", "until_ns", "format", "client")
#: What was not read, by the part of the files that was.
_UNREAD = {
    "both": f"only the first and last {format_bytes(END_BYTES)}: events and issues are not "
    "counted, the span is from the first to the last event in them",
    "first": f"only the first {format_bytes(END_BYTES)} of the unpacked text, because they are "
    "compressed: events and issues are not counted, the span is not known",
    "none": "only the metadata: events and issues are not counted, the span is not known",
}
#: Columns that need all events.
_COUNTED = ("steps", "events", "communication", "communication_ns", "dropped", "device_work",
            "launch_calls", "spans")  # fmt: skip


def described(
    items: Sequence[Trace | str],
    skipped: Iterable[tuple[str, str]],
    reading: Mapping[str, Any],
    *,
    required: bool,
) -> Info | None:
    """Return the description of files by their ends; None if they are read as a whole.

    Args:
        items: traces and files.
        skipped: (path, reason) of files that were not read.
        reading: options for reading.
        required: raise an error if that is impossible.

    Raises:
        OptionError: an input is in memory or a summary, or an option needs all events.
    """
    paths = [item for item in items if isinstance(item, str) and not is_summary(item)]
    if len(paths) < len(items) or any(reading.get(name) is not None for name in _NEED_ALL):
        if required and any(isinstance(item, str) and is_summary(item) for item in items):
            raise OptionError("--quick is for trace files; summaries are small: leave it out")
        if required:
            raise OptionError("--quick describes whole trace files; it cannot select events")
        return None
    workers = reading.get("workers", 1)
    if not required and not takes_long(paths, workers):
        return None
    progress = reading.get("progress")
    parts: list[Part] = []
    unread, kinds = list(skipped), Counter[str]()
    for ends in read_ends(paths, workers):
        if progress:
            progress(1, 1)
        if ends.trace is None:
            unread.append((ends.path, ends.error.what if ends.error else "not read"))
            continue
        kinds[ends.parts] += 1
        parts.append(_without_counts(measure(ends.trace, Options()), ends))
    if not parts:
        return None
    result = INFO.combine(parts, Options(tuple(unread)))
    notes = [
        f"Of {format_count(kinds[name], 'file')} this is read: {text}; --full reads everything."
        for name, text in _UNREAD.items()
        if kinds[name]
    ]
    return replace(result, input_notes=(*result.input_notes, *notes))


def _without_counts(part: Part, ends: Ends) -> Part:
    """Return a description without the numbers that need all events."""
    if ends.parts == "whole":
        return part
    unknown = dict.fromkeys(_COUNTED)
    span = {} if ends.parts == "both" else {"span_ns": None}
    return Part(part.files, [{**row, **unknown, **span} for row in part.contents], [], [])


def info(
    inputs: Inputs,
    *,
    skipped: Iterable[tuple[str, str]] = (),
    quick: bool | None = None,
    **reading: Unpack[Reading],
) -> Info:
    """Describe files: format, rank, host, time, events by kind, communication, dropped events.

    One file is in memory at a time. If there are several, files that cannot be read are listed with
    the reason, as are those of ``skipped``.

    Of many or large files only the beginning and the end are read: their events are not counted,
    and a note says so.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        skipped: (path, reason) of files that the caller has already skipped.
        quick: whether to read only the beginning and the end of large files; None: if reading all
            of them takes long, and no option selects events.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: the only file cannot be read.
        OptionError: ``quick`` with options that select events, or with a trace in memory.
    """
    items, foreign = each_and_skipped(inputs)
    if quick is not False:
        result = described(items, (*skipped, *foreign), reading, required=quick is True)
        if result is not None:
            return result
    opened, parts = collect(INFO, items, Options(), may_be_empty=len(items) != 1, **reading)
    state = opened.state
    unread = [(one.path, one.why) for one in state.skipped]
    with guarded(opened.summaries):
        result = INFO.combine(parts, Options((*skipped, *foreign, *unread)))
        if opened.summaries:
            result.view()
    return with_notes(result, truncated_notes(state.truncated, state.metas), opened.jobs)
