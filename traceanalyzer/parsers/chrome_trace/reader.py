"""A Chrome trace's text in, the tables of a trace out."""

import re
from dataclasses import replace
from typing import Any

import msgspec
import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.limits import LAST_EPOCH_NS
from traceanalyzer.parsers.chrome_trace.arrays import collect
from traceanalyzer.parsers.chrome_trace.assemble import Assembler
from traceanalyzer.parsers.chrome_trace.columns import NEVER, Collected, Metadata
from traceanalyzer.parsers.chrome_trace.container import Container, NoTraceError, first_events
from traceanalyzer.parsers.chrome_trace.decode import NULL, integer
from traceanalyzer.parsers.chrome_trace.text import open_text
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.trace import Device, Meta, Trace, issue_rows, sort_events

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
        "two-clocks",
    )
)

#: What is said of an issue instead of the place where it was found.
_DETAILS = {
    "profile-chunk": "a V8 CPU profile: its samples are not read",
    "two-clocks": "PyTorch's events cannot be placed on Composer's clock",
}

#: The first event of JAX's and TensorFlow's profiler: it names its devices and hosts.
_XLA = re.compile(rb'"process_name"[^{]*+\{\s*+"name"\s*+:\s*+"/(?:device|host):')
_XLA_BYTES = 1 << 12

#: Top-level values that have a place of their own in Meta, and those that are too large for it.
_OWN = frozenset(
    ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name")
)
_BULKY = frozenset(("samples", "stackFrames", "traceEvents"))
_MAX_RANK = (1 << 31) - 1


def parse(source: Source, selection: Selection, progress: Progress | None) -> Trace:
    """Read one chrome trace.

    Raises:
        MalformedInput: nothing in the file is an event and it is no empty trace either.
        UnreadableFile: the operating system refused.
    """
    text = open_text(source, progress)
    container, collected = Container(), Collected()
    reading, by_lanes = selection, False
    try:
        first = first_events(text, container)
        if first is not None and _XLA.search(text.read(first, _XLA_BYTES)):
            from traceanalyzer.parsers.chrome_trace import xla

            reading, by_lanes = xla.everything(selection), True
        collect(text, first, reading, container, collected)
    except NoTraceError as error:
        raise MalformedInput(
            source.path,
            str(error),
            hint="a trace begins with [ or has a traceEvents array; was the export complete?",
        ) from None
    finally:
        text.close()
    trace = _trace(source, reading, container.metadata, collected)
    if by_lanes:
        trace = xla.told(trace, selection)
    return sort_events(trace) if trace.stacks.height else trace


def _trace(
    source: Source, selection: Selection, metadata: dict[str, Any], collected: Collected
) -> Trace:
    """All tables of what was collected."""
    meta = _meta(source, metadata, collected)
    assembler = Assembler(collected, selection, meta.rank)
    frames = assembler.frames()
    if metadata.get("samples") or collected.stack_frames:
        from traceanalyzer.parsers.chrome_trace import samples

        meta = replace(meta, weight_unit=samples.weight_unit(metadata))
        frames = samples.add_samples(
            frames, metadata, collected, selection, meta.rank, assembler.row_of
        )
    is_moved = False
    if any(name == "global_rank" for name, *_ in collected.metadata):
        frames, meta, is_moved = _of_composer(frames, meta, collected, assembler)
    if source.damage:
        collected.issues.note(f"damaged-file: {source.damage}", -1)
    rows = [(_severity(code), *_worded(code, n, at)) for code, (n, at) in collected.issues.items()]
    tables = {name: frames.get(name, schema.empty(name)) for name in schema.TABLES}
    trace = Trace(sources=(meta,), **{**tables, "issues": issue_rows(rows, meta.rank)})
    return sort_events(trace) if is_moved else trace


def _of_composer(
    frames: dict[str, pl.DataFrame], meta: Meta, collected: Collected, assembler: Assembler
) -> tuple[dict[str, pl.DataFrame], Meta, bool]:
    """What Composer wrote: ranks of a merged file, one clock; last whether times were moved."""
    from traceanalyzer.parsers.chrome_trace import composer

    ranks = composer.ranks_by_pid(collected.metadata)
    if meta.rank is None and len(set(ranks.values())) > 1:
        frames = composer.with_ranks(frames, ranks, assembler.pid)
    base = composer.torch_base(collected.metadata, collected.first)
    if base is None:
        collected.issues.note("two-clocks", -1)
    if base == 0:
        if (frames["events"]["kind"] != "other").any():
            meta = replace(meta, extra=msgspec.json.encode({composer.ONE_CLOCK: True}).decode())
        return frames, meta, False
    extra = msgspec.json.encode({composer.TORCH_START: collected.first}).decode()
    meta = replace(meta, start_ns=None, extra=extra)
    return composer.on_one_clock(frames, base or 0), meta, base is not None


def _severity(code: str) -> str:
    if code == "composer-units":
        return "info"
    if code in _NOTICES:
        return "notice"
    return "data_loss"


def _worded(code: str, count: int, offset: int) -> tuple[str, int, str | None]:
    code, _, detail = code.partition(": ")
    place = None if offset < 0 else f"byte {offset}"
    return code, count, detail or _DETAILS.get(code, place)


# --- what the file says about itself, in whichever of its writers' words -------------------------


def _meta(source: Source, metadata: dict[str, Any], collected: Collected) -> Meta:
    """The file's Meta from its top-level values, its metadata events and its name."""
    job = metadata.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    rank = _count(job.get("rank"))
    if rank is None:
        rank = _global_rank(collected.metadata)
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
        start_ns=None if collected.first == NEVER else collected.first,
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


def _global_rank(events: list[Metadata]) -> int | None:
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
            memory = integer(entry.get("totalGlobalMem"))
            known = None if memory == NULL else memory
            found.append(Device(number, _text(entry.get("name")), known))
    return tuple(found)


def _count(value: Any) -> int | None:
    """A rank or a number of ranks; sometimes written as text."""
    number = integer(value) if not isinstance(value, bool) else NULL
    return number if 0 <= number <= _MAX_RANK else None


def _text(value: Any) -> str | None:
    return re.sub(r"\s+", " ", value) if isinstance(value, str) and value else None
