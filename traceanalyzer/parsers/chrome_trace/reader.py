"""Read the text of a Chrome trace into the tables of a trace."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.chrome_trace.arrays import collect
from traceanalyzer.parsers.chrome_trace.assemble import Assembler
from traceanalyzer.parsers.chrome_trace.columns import NEVER, Collected, Metadata
from traceanalyzer.parsers.chrome_trace.container import (
    Container,
    NotATraceError,
    first_events,
    open_text,
)
from traceanalyzer.parsers.chrome_trace.decode import NULL, integer
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.schema import LAST_EPOCH_NS
from traceanalyzer.trace import Device, Meta, Trace, is_truncated, issue_rows, sort_events
from traceanalyzer.vocabulary import DEVICE_WORK

#: Issues without data loss; all others are losses.
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
        "unknown-packet",
        "annotations-unreadable",
    )
)

#: Details of an issue, shown instead of its first place.
_DETAILS = {
    "profile-chunk": "a V8 CPU profile: its samples are not supported",
    "two-clocks": "PyTorch's events cannot be placed on Composer's clock",
}

#: The first event of JAX's and TensorFlow's profiler, which names devices and hosts; its keys may
#: be in any order.
_XLA = re.compile(
    rb'"process_name"[^{}]*+\{\s*+"name"\s*+:\s*+"/(?:device|host):'
    rb'|"name"\s*+:\s*+"/(?:device|host):[^"{}]*+"\s*+\}[^{}]*?"process_name"'
)
#: The categories of ONNX Runtime's profiler.
_ONNXRUNTIME = re.compile(rb'"cat"\s*+:\s*+"(?:Session"|Node"[^{}]*+\{[^}]*?"op_name")')
_XLA_BYTES = 1 << 12

#: Settings of PyTorch's profiler before the events: modules or Python frames were recorded. If
#: other keys than PyTorch's come first, the settings may follow the events.
_WITH_MODULES = re.compile(
    rb'"with_(?:modules|stack)"\s*+:\s*+1|\A(?!\s*+\{\s*+"(?:schemaVersion|distributedInfo)")'
)
_HEAD_BYTES = 1 << 16

#: Overlap of consecutive work of a stream that its clock or a programmatic launch may cause.
_OVERLAP_NS = 10_000
_OVERLAPPING_SHARE = 0.1

#: Top-level keys with a field in Meta, and keys too large for it.
_META_KEYS = frozenset(
    ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name")
)
_BULKY = frozenset(("samples", "stackFrames", "traceEvents"))
_MAX_RANK = (1 << 31) - 1
_ANNOTATIONS = "kernel_annotations_rank{}[_.]*json"
_MAX_BYTES = 64 << 20
#: torchtitan names traces by rank: ``000003.1764412345.pt.trace.json``.
_RANK_NAME = re.compile(r"(\d{1,7})\.")
_NODE, _GRAPH = (
    pl.col("args").str.extract(rf'"{name}"\s*:\s*(\d+)').cast(pl.UInt64, strict=False)
    for name in ("graph node id", "graph id")
)


def parse(source: Source, selection: Selection, progress: Progress | None) -> Trace:
    """Read one Chrome trace.

    Raises:
        MalformedInput: the file has no events and is not an empty trace.
        UnreadableFile: the file cannot be read.
    """
    text = open_text(source, progress)
    container, collected = Container(), Collected()
    reading, classify = selection, None
    try:
        first = first_events(text, container)
        head = b"" if first is None else text.read(first, _XLA_BYTES)
        if (by_lanes := _XLA.search(head)) or _ONNXRUNTIME.search(head):
            from traceanalyzer.parsers.chrome_trace import xla

            reading = xla.full_selection(selection)
            classify = xla.with_device_work if by_lanes else xla.of_onnxruntime
        if first is not None and selection.args_with_modules:
            head = text.read(max(0, first - _HEAD_BYTES), min(first, _HEAD_BYTES))
            if _WITH_MODULES.search(head):
                reading = replace(reading, columns=reading.columns | {"args"})
        collect(text, first, reading, container, collected)
    except NotATraceError as error:
        raise MalformedInput(
            source.path,
            str(error),
            hint="a trace begins with [ or has a traceEvents array; was the export complete?",
        ) from None
    finally:
        text.close()
    trace = trace_of(source, reading, container.metadata, collected)
    if container.arrays > 1 and _is_concurrent(trace):
        raise MalformedInput(
            source.path,
            f"contains {container.arrays} recordings of one GPU in sequence",
            hint="pass each recording as a file of its own",
        )
    if classify:
        trace = classify(trace, selection)
    args = trace.events.get_column("args", default=None)
    if args is not None and args.str.contains('"graph node id"', literal=True).any():
        trace = _annotated(trace)
    return sort_events(trace) if trace.stacks.height else trace


def _is_concurrent(trace: Trace) -> bool:
    """Whether work of one stream runs at the same time, which recordings of several times do."""
    lane = ["device", "stream"]
    work = trace.events[["kind", "ts", "dur", *lane]]
    work = work.filter(pl.col("kind").is_in(DEVICE_WORK), pl.col("dur") > 0)
    follows = pl.col("ts").shift(-1).over(lane, order_by="ts")
    overlapping = work.filter(follows + _OVERLAP_NS < pl.col("ts") + pl.col("dur"))
    return overlapping.height > _OVERLAPPING_SHARE * work.height


def trace_of(
    source: Source, selection: Selection, metadata: dict[str, Any], collected: Collected
) -> Trace:
    """Build all tables from the collected columns."""
    meta = _meta(source, metadata, collected)
    is_cut = bool(source.damage) or "truncated" in collected.issues
    assembler = Assembler(collected, selection, meta.rank, is_cut=is_cut)
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
    rows = [
        (_severity(code), *_detailed(code, n, at)) for code, (n, at) in collected.issues.items()
    ]
    tables = {name: frames.get(name, schema.empty(name)) for name in schema.TABLES}
    trace = Trace(sources=(meta,), **{**tables, "issues": issue_rows(rows, meta.rank)})
    if is_truncated(trace):
        meta = replace(meta, complete_until=assembler.complete_until)
        trace = replace(trace, sources=(meta,))
    return sort_events(trace) if is_moved else trace


def _of_composer(
    frames: dict[str, pl.DataFrame], meta: Meta, collected: Collected, assembler: Assembler
) -> tuple[dict[str, pl.DataFrame], Meta, bool]:
    """Correct tables of a Composer file: ranks of a merged file, one clock.

    Returns:
        The tables, the metadata, and whether times were shifted.
    """
    from traceanalyzer.parsers.chrome_trace import producers

    ranks = producers.ranks_by_pid(collected.metadata)
    if meta.rank is None and len(set(ranks.values())) > 1:
        frames = producers.with_ranks(frames, ranks, assembler.pid)
    base = producers.torch_base(collected.metadata, collected.first)
    extra: dict[str, Any] = {}
    if len(ranks) == 1:
        extra = dict(producers.synchronisation(collected.metadata))
    if base is None:
        collected.issues.note("two-clocks", -1)
    if base == 0:
        if (frames["events"]["kind"] != "other").any():
            extra[producers.ONE_CLOCK] = True
        if extra:
            meta = replace(meta, extra=msgspec.json.encode(extra).decode())
        return frames, meta, False
    extra[producers.TORCH_START] = collected.first
    meta = replace(meta, start_ns=None, extra=msgspec.json.encode(extra).decode())
    return producers.on_one_clock(frames, base or 0), meta, base is not None


def _severity(code: str) -> str:
    if code == "composer-units":
        return "info"
    return "notice" if code in _NOTICES else "data_loss"


def _detailed(code: str, count: int, offset: int) -> tuple[str, int, str | None]:
    code, _, detail = code.partition(": ")
    place = None if offset < 0 else f"byte {offset}"
    return code, count, detail or _DETAILS.get(code, place)


# --- metadata of the file, in the spelling of its writer ------------------------------------------


def _meta(source: Source, metadata: dict[str, Any], collected: Collected) -> Meta:
    """Build the file's Meta from its top-level values, its metadata events and its name."""
    job = metadata.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    rank = _count(job.get("rank"))
    if rank is None:
        rank = _global_rank(collected.metadata)
    if rank is None:
        rank = rank_from_name(source.path)
    rest = {k: v for k, v in metadata.items() if k not in _META_KEYS and k not in _BULKY}
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
    """Return Composer's rank; None for a merged file, which has several."""
    ranks = {
        _count(msgspec.json.decode(args).get("value"))
        for name, *_, args in events
        if name == "global_rank"
    }
    return ranks.pop() if len(ranks) == 1 else None


def _epoch(value: Any) -> int | None:
    """Return the absolute time of ts 0; None if later times would overflow the clock."""
    number = integer(value)
    return number if 0 <= number <= LAST_EPOCH_NS else None


def _devices(properties: Any) -> tuple[Device, ...]:
    if not isinstance(properties, list):
        return ()
    devices = []
    for entry in properties:
        number = _count(entry.get("id")) if isinstance(entry, dict) else None
        if number is not None:
            memory = integer(entry.get("totalGlobalMem"))
            known = None if memory == NULL else memory
            devices.append(Device(number, _text(entry.get("name")), known))
    return tuple(devices)


def _count(value: Any) -> int | None:
    """Return a rank or a number of ranks, which some writers store as text."""
    number = integer(value) if not isinstance(value, bool) else NULL
    return number if 0 <= number <= _MAX_RANK else None


def _text(value: Any) -> str | None:
    return re.sub(r"\s+", " ", value) if isinstance(value, str) and value else None


def _annotated(trace: Trace) -> Trace:
    """Return a trace of CUDA graphs with the annotations of their nodes in ``args``, if any.

    A trace that was not exported with ``cuda_graph_annotations`` has what its graphs were annotated
    with in their capture (``torch.cuda.graph_annotations``) in a file beside it or in the folder
    above: ``kernel_annotations_rank0_*.json``, dictionaries of arguments or names for each node.

    A file that cannot be read is a notice in ``issues``. Nodes are numbered by their id, or by
    that of the graph in the upper and their own in the lower 32 bits.
    """
    path = _annotations_of(trace.meta.path, trace.meta.rank)
    if path is None:
        return trace
    try:
        texts = _annotation_texts(path)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        row = ("notice", "annotations-unreadable", 1, f"{path.name}: {error}")
        issues = pl.concat([trace.issues, issue_rows([row], trace.meta.rank)])
        return replace(trace, issues=issues)
    known = pl.DataFrame(list(texts.items()), {"id": pl.UInt64, "added": pl.String}, orient="row")
    added = pl.coalesce(
        number.replace_strict(known["id"], known["added"], default=None)
        for number in (_NODE, _GRAPH * (1 << 32) + _NODE)
    )
    args = pl.col("args").str.strip_chars_end().str.strip_suffix("}")
    with_added = pl.concat_str(args, pl.lit(","), added, pl.lit("}"))
    return replace(
        trace, events=trace.events.with_columns(args=pl.coalesce(with_added, pl.col("args")))
    )


def _annotations_of(path: str, rank: int | None) -> Path | None:
    """Return the annotations of the rank of a trace; without a rank, those of rank 0."""
    trace = Path(path)
    if rank is None:
        named = _RANK_NAME.match(trace.name)
        rank = int(named[1]) if named else 0
    folders = trace.absolute().parents[:2]
    files = (file for one in folders for file in sorted(one.glob(_ANNOTATIONS.format(rank))))
    return next(files, None)


def _annotation_texts(path: Path) -> dict[int, str]:
    """Return the arguments of each node as the inside of a JSON object."""
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError("larger than 64 MiB")
    merged = {}
    for node, annotations in msgspec.json.decode(path.read_bytes()).items():
        args: dict[str, Any] = {}
        for one in annotations:
            args |= one if isinstance(one, dict) else {"annotation": one}
        if args and 0 <= (number := int(node)) < 1 << 64:
            merged[number] = msgspec.json.encode(args).decode()[1:-1]
    return merged
