"""What a chrome trace says about itself, in whichever of its writers' words."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from traceanalyzer.limits import LAST_EPOCH_NS
from traceanalyzer.parsers.chrome_trace.batch import NEVER
from traceanalyzer.parsers.chrome_trace.coerce import integer, label, text_of
from traceanalyzer.parsers.chrome_trace.decode import NO_ARGS, NULL, Args, Event
from traceanalyzer.parsers.naming import rank_from_name
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Device, Meta

_OWN = frozenset(
    ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name")
)
_BULKY = frozenset(("samples", "stackFrames", "traceEvents"))
_MAX_RANK = (1 << 31) - 1


def describe(
    source: Source,
    metadata: dict[str, Any],
    events: list[tuple[str, int, str | None, int, str | None, str]],
    first: int,
) -> Meta:
    """The file's Meta from its top-level values, its metadata events and its name."""
    job = metadata.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    rank = _count(job.get("rank"))
    if rank is None:
        rank = _global_rank(events)
    if rank is None:
        rank = rank_from_name(source.path)
    rest = {k: v for k, v in metadata.items() if k not in _OWN and k not in _BULKY}
    if len(job) > 1:
        rest["distributedInfo"] = job
    return Meta(
        path=source.path,
        format="chrome-trace",
        version=_version(metadata),
        epoch_ns=_epoch(metadata.get("baseTimeNanoseconds")),
        start_ns=None if first == NEVER else first,
        rank=rank,
        world_size=_count(job.get("world_size")),
        devices=_devices(metadata.get("deviceProperties")),
        host=_text(metadata.get("host_name")),
        backend=_text(job.get("backend")),
        extra=msgspec.json.encode(rest).decode() if rest else None,
    )


def _version(metadata: dict[str, Any]) -> str | None:
    version = metadata.get("schemaVersion")
    return None if version is None else f"kineto schema {version}"


def _global_rank(events: list[tuple[str, int, str | None, int, str | None, str]]) -> int | None:
    """Composer's rank; several of them mean a merged file, which has no one rank."""
    found = {
        _count(msgspec.json.decode(args).get("value"))
        for name, *_, args in events
        if name == "global_rank"
    }
    return found.pop() if len(found) == 1 else None


def _epoch(value: Any) -> int | None:
    """Absolute time of ts 0, if it leaves room on the clock for the times behind it."""
    number = integer(value)
    return number if 0 <= number <= LAST_EPOCH_NS else None


def _devices(properties: Any) -> tuple[Device, ...]:
    if not isinstance(properties, list):
        return ()
    found = []
    for entry in properties:
        number = _count(entry.get("id")) if isinstance(entry, dict) else None
        if number is not None:
            memory = _known(integer(entry.get("totalGlobalMem")))
            found.append(Device(number, _text(entry.get("name")), memory))
    return tuple(found)


def _count(value: Any) -> int | None:
    """A rank or a number of ranks; sometimes written as text."""
    number = integer(value) if not isinstance(value, bool) else NULL
    return number if 0 <= number <= _MAX_RANK else None


def _known(number: int) -> int | None:
    return None if number == NULL else number


def _text(value: Any) -> str | None:
    return re.sub(r"\s+", " ", value) if isinstance(value, str) and value else None


def metadata_event(event: Event) -> tuple[str, int, str | None, int, str | None, str]:
    """What an event of phase M says: (what, pid, its text, tid, its text, known arguments)."""
    pid, tid = integer(event.pid), integer(event.tid)
    args = event.args if type(event.args) is Args else NO_ARGS
    known = {
        key: value
        for key, value in (
            ("name", text_of(args.name)),
            ("labels", text_of(args.labels)),
            ("sort_index", integer(args.sort_index)),
            ("value", text_of(args.value)),
        )
        if value is not None and value != NULL
    }
    return (
        text_of(event.name) or "",
        pid,
        label(event.pid, pid),
        tid,
        label(event.tid, tid),
        msgspec.json.encode(known).decode(),
    )
