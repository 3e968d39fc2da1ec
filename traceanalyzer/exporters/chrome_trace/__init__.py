"""Chrome Trace Event JSON in Kineto's layout, for Perfetto, chrome://tracing and ourselves.

A Trace enters; bytes leave: the metadata as top-level members, then ``traceEvents``, an event a
line, times in microseconds with three decimals, exact. ``tracks`` decides where rows are drawn,
``slices`` and ``points`` turn tables into text, ``arguments`` and ``text`` help them. Read back by
``traceanalyzer.parsers.chrome_trace``, a trace of one rank gives equal tables; one of several ranks
is for viewing, its process ids are new.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from traceanalyzer.errors import MissingData
from traceanalyzer.exporters.chrome_trace.header import header_members
from traceanalyzer.exporters.chrome_trace.points import (
    counter_texts,
    flow_texts,
    frame_texts,
    sample_texts,
)
from traceanalyzer.exporters.chrome_trace.slices import slice_texts
from traceanalyzer.exporters.chrome_trace.text import Items
from traceanalyzer.exporters.chrome_trace.tracks import lay_out

if TYPE_CHECKING:
    from traceanalyzer.trace import Trace

#: isal's levels go from 0 to 3; 1 is as fast as 0 and a tenth larger than 3.
_GZIP_LEVEL = 1


def write_chrome_trace(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as Chrome JSON.

    Written are events, their kernels, collectives and memory, flows, counters, lanes, stacks and
    the metadata. Not written: issues, segments and blocks, counter readings that are no finite
    number, source lines of stacks.

    Args:
        trace: what to write; read it with the columns ``args`` to keep arguments we do not know.
        file: a binary file; needs not be seekable.

    Raises:
        MissingData: the trace has no times, as sampled stacks in folded form have none.
    """
    if trace.events["ts"].null_count():
        raise MissingData(
            f"{trace.meta.path}: its events have no times, and a Chrome trace is drawn by time"
        )
    tracks = lay_out(trace)
    top = header_members(trace.sources)
    file.write(f'{{{top}{"," * bool(top)}\n"traceEvents":['.encode())
    events = Items(file)
    events.write(tracks.names)
    for texts in slice_texts(trace, tracks):
        events.write(texts)
    for texts in flow_texts(trace, tracks):
        events.write(texts)
    events.write(counter_texts(trace, tracks))
    file.write(b"\n]")
    if trace.stacks.height:
        file.write(b',\n"stackFrames":{')
        Items(file).write(frame_texts(trace))
        file.write(b'\n},\n"samples":[')
        Items(file).write(sample_texts(trace, tracks))
        file.write(b"\n]")
    file.write(b"}\n")


def write_chrome_trace_gz(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as gzipped Chrome JSON; the same trace gives the same bytes.

    Raises:
        MissingData: the trace has no times.
    """
    from isal import igzip

    packed: Any = igzip.IGzipFile("", "wb", _GZIP_LEVEL, fileobj=file, mtime=0)  # type: ignore[no-untyped-call]
    with packed:
        write_chrome_trace(trace, packed)
