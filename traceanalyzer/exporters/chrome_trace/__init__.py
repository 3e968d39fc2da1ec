"""Chrome Trace Event JSON in Kineto's layout, for Perfetto, chrome://tracing and this package.

Writes the metadata as top-level members, then ``traceEvents``, one event per line, with exact times
in microseconds with three decimals. ``tracks`` assigns rows to tracks, ``events`` formats tables as
events, ``text`` formats columns as JSON. Read back by ``traceanalyzer.parsers.chrome_trace``, a
trace of one rank has equal tables; a trace of several ranks is for viewing, with new process ids.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import IO, Any

import msgspec

from traceanalyzer.errors import MissingData
from traceanalyzer.exporters.chrome_trace import events
from traceanalyzer.exporters.chrome_trace.tracks import Items, lay_out
from traceanalyzer.trace import Meta, Trace

_VERSION = "kineto schema "
#: isal has levels 0 to 3; 1 is as fast as 0, and its output is 10 % larger than that of 3.
_GZIP_LEVEL = 1


def write_chrome_trace(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as Chrome JSON.

    Written: events with their kernels, collectives and memory, flows, counters, lanes, stacks and
    metadata. Not written: issues, segments and blocks, counter readings that are not finite,
    source lines of stacks.

    Args:
        trace: the trace; read it with the column ``args`` to keep unknown arguments.
        file: a binary file; need not be seekable.

    Raises:
        MissingData: the trace has no times, as collapsed stacks have none.
    """
    if trace.events["ts"].null_count():
        raise MissingData(
            f"{trace.meta.path}: the events have no timestamps, which a Chrome trace requires"
        )
    tracks = lay_out(trace)
    top = _header_members(trace.sources)
    file.write(f'{{{top}{"," * bool(top)}\n"traceEvents":['.encode())
    items = Items(file)
    items.write(tracks.names)
    for texts in events.slice_texts(trace, tracks):
        items.write(texts)
    for texts in events.flow_texts(trace, tracks):
        items.write(texts)
    items.write(events.counter_texts(trace, tracks))
    file.write(b"\n]")
    if trace.stacks.height:
        file.write(b',\n"stackFrames":{')
        Items(file).write(events.frame_texts(trace))
        file.write(b'\n},\n"samples":[')
        Items(file).write(events.sample_texts(trace, tracks))
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


# --- top-level members: the metadata -------------------------------------------------------------


def _header_members(sources: Sequence[Meta]) -> str:
    """Return Kineto's top-level members and other metadata, as JSON text without braces.

    For a trace of several files, only values that are equal in all of them.
    """
    meta = _in_common(sources)
    extra: dict[str, Any] = msgspec.json.decode(meta.extra) if meta.extra else {}
    job = {"backend": meta.backend, "rank": meta.rank, "world_size": meta.world_size}
    standard = {
        "schemaVersion": _schema_version(meta.version),
        "deviceProperties": _devices(meta),
        "distributedInfo": {**extra.pop("distributedInfo", {}), **_known(job)},
        "baseTimeNanoseconds": meta.epoch_ns,
        "host_name": meta.host,
    }
    known = {key: value for key, value in standard.items() if value not in (None, {}, [])}
    members = {**known, **extra}
    return msgspec.json.encode(members).decode()[1:-1]


def _in_common(sources: Sequence[Meta]) -> Meta:
    first = sources[0]
    differing: dict[str, Any] = {
        f.name: f.default
        for f in fields(Meta)
        if f.name not in ("path", "format")
        and any(getattr(meta, f.name) != getattr(first, f.name) for meta in sources)
    }
    return replace(first, **differing)


def _schema_version(version: str | None) -> int | str | None:
    if version is None or not version.startswith(_VERSION):
        return None
    number = version.removeprefix(_VERSION)
    return int(number) if number.isdecimal() else number


def _devices(meta: Meta) -> list[dict[str, Any]]:
    return [
        _known({"id": device.id, "name": device.name, "totalGlobalMem": device.total_bytes})
        for device in meta.devices
    ]


def _known(members: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}
