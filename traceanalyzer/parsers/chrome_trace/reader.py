"""Read the text of a Chrome trace into the tables of a trace."""

import gzip
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
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
from traceanalyzer.vocabulary import DEVICE_WORK, RANGE

#: Issues without data loss; all others are losses.
_NOTICES = frozenset((
    "negative-duration", "no-duration", "unclosed-begin", "mismatched-end", "stray-text",
    "bad-utf8", "lone-surrogate", "raw-control-character", "bad-escape", "trailing-comma",
    "profile-chunk", "two-clocks", "unknown-packet", "annotations-unreadable",
))  # fmt: skip

#: Details of an issue, shown instead of its first place.
_DETAILS = {
    "profile-chunk": "a V8 CPU profile: its samples are not supported",
    "history-overflowed": "the oldest events were overwritten; record with more tracer_entries",
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
#: Signs that PyTorch has added arguments to the kernels of a trace: lines that Inductor made them
#: of, annotations of CUDA graphs. Some versions state nothing, but write the trace again by
#: ``json``: in one line, or indented by one space instead of Kineto's two.
_ADDED = re.compile(
    rb'"uid"\s*+:\s*+\d|"cudaGraphInlineAnnotated"\s*+:\s*+true'
    rb'|\A\s*+\{(?:\r?\n )?"schemaVersion"'
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
        if first is not None and (wanted := selection.args_with_modules):
            settings = text.read(max(0, first - _HEAD_BYTES), min(first, _HEAD_BYTES))
            is_stated = wanted is True and _WITH_MODULES.search(settings)
            if is_stated or _ADDED.search(settings + head) or _are_there(source.path):
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
    if selection.kinds is None or "metric" in selection.kinds:
        trace = _with_metrics(trace, source, selection)
    if container.arrays > 1 and _is_concurrent(trace):
        raise MalformedInput(
            source.path,
            f"contains {container.arrays} recordings of one GPU in sequence",
            hint="pass each recording as a file of its own",
        )
    if classify:
        trace = classify(trace, selection)
    return sort_events(trace) if trace.stacks.height else trace


def _with_metrics(trace: Trace, source: Source, selection: Selection) -> Trace:
    """Return a trace with the counters of Kineto's range profiler, which a second read gets."""
    ranges = trace.events.filter(pl.col("kind") == RANGE)
    if ranges.is_empty():
        return trace
    from traceanalyzer.parsers.chrome_trace import producers

    if "args" not in ranges.columns:
        only = Selection(kinds=frozenset({RANGE}), columns=frozenset({"args"}))
        ranges = parse(source, only, None).events.filter(pl.col("kind") == RANGE)
    return replace(trace, metrics=producers.metrics_of_ranges(ranges, selection.metrics))


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
    viztracer = metadata.get("viztracer_metadata")
    if isinstance(viztracer, dict) and viztracer.get("overflow") is True:
        collected.issues.note("history-overflowed", -1)
    rows = [
        (_severity(code), *_detailed(code, n, at)) for code, (n, at) in collected.issues.items()
    ]
    tables = {name: frames.get(name, schema.empty(name)) for name in schema.TABLES}
    tables["issues"] = issue_rows(rows, meta.rank, zeros=True)
    trace = Trace(sources=(meta,), **tables)
    if "args" in trace.events.columns and trace.events["kind"].eq("kernel").any():
        trace = _annotated(trace)
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


# --- what the program states of kernels ----------------------------------------------------------
#
# Of the kernels of CUDA graphs and of compiled code, as their arguments. Sources:
# ``torch.cuda.graph_annotations`` and ``torch._inductor.debug``. A trace without these arguments
# gets them from files beside it or in the folder above:
#
# - ``kernel_annotations_rank0_*.json`` (until PyTorch 2.13 a pickle, ``*.pkl``): dictionaries of
#   arguments, or names, of each graph node.
# - ``*py_stacks*.json.gz`` of ``dump_kernel_py_stacks``: the lines that launched each node.
# - ``dedicated_log_torch_trace*.log`` (TORCH_TRACE), ``*kernel_stack_traces*.json`` of tlparse, and
#   ``kernel_information.json`` of AOTInductor: the stacks of the operators that Inductor made a
#   kernel of. A kernel of this name in two graphs, of different lines, gets none. Kernels of
#   libraries (``extern_kernels.mm``) get those of the calls between the same two of Inductor's.


_MAX_BYTES = 256 << 20
_ERRORS = (OSError, EOFError, ValueError, TypeError, AttributeError, KeyError, RecursionError)
#: torchtitan names traces by rank: ``000003.1764412345.pt.trace.json``.
_RANK = re.compile(r"(\d{1,7})\.")
_OF_RANK = re.compile(r"rank[_-]?(\d{1,7})")
_NODE, _GRAPH = (
    pl.col("args").str.extract(rf'"{name}"\s*:\s*(\d+)').cast(pl.UInt64, strict=False)
    for name in ("graph node id", "graph id")
)
_FRAME = re.compile(r"^(.+):(\d{1,9}):([^:\n]+)$", re.MULTILINE)
#: An artifact of PyTorch's structured log; lines of its content begin with a tab.
_IN_LOG = re.compile(rb'"name": "\w*kernel_stack_traces"[^\n]*\n((?:\t[^\n]*\n?)+)')
_SUFFIX = re.compile(r"\.(?:json|log|pkl)")
#: A line of the program, not of PyTorch.
_PLACE = re.compile(r'File "(?![^"\n]*[/\\]torch[/\\])[^"\n]*", line \d+')

_Texts = dict[str, str]
#: Number, kernel and stacks of a call.
_Call = tuple[int, str, list[str]]
_Calls = list[_Call]
#: Returns the arguments to add to each event, as the inside of a JSON object.
_Reader = Callable[[list[Any], pl.DataFrame], pl.Expr]


def _annotated(trace: Trace) -> Trace:
    """Return a trace with the annotations and stacks of its kernels in ``args``, if there are any.

    A file that cannot be read is a notice in ``issues``. Nodes are numbered by their id, or by
    that of the graph in the upper and their own in the lower 32 bits.
    """
    issues, rows = trace.issues, trace.events[["kind", "name", "args", "device", "stream", "ts"]]
    args = pl.col("args").str.strip_chars_end().str.strip_suffix("}")
    for files, read in _readers(trace.meta.path, trace.meta.rank):
        try:
            added = read([content for path in files for content in _contents(path)], rows)
        except _ERRORS as error:
            row = ("notice", "annotations-unreadable", 1, f"{files[0].name}: {error}")
            issues = pl.concat([issues, issue_rows([row], trace.meta.rank)])
            continue
        with_added = pl.concat_str(args, pl.lit(","), added, pl.lit("}"))
        with_added = pl.when(pl.col("kind").is_in(DEVICE_WORK)).then(with_added)
        rows = rows.with_columns(args=with_added.fill_null(pl.col("args")))
    return replace(trace, issues=issues, events=trace.events.with_columns(rows["args"]))


def _are_there(path: str) -> bool:
    """Whether there are files with annotations or stacks of the kernels of a trace."""
    return any(_readers(path, None))


def _readers(path: str, rank: int | None) -> Iterator[tuple[list[Path], _Reader]]:
    """Yield the files of the rank of a trace, and what reads them; without a rank, those of 0."""
    trace = Path(path)
    if rank is None:
        named = _RANK.match(trace.name)
        rank = int(named[1]) if named else 0
    near = [one for folder in trace.absolute().parents[:2] for one in _listed(folder)]
    of_rank = [one for one in near if not (of := _OF_RANK.search(one.name)) or int(of[1]) == rank]
    for pattern, most, read in _FILES:
        if files := [one for one in of_rank if pattern in one.name][:most]:
            yield files, read


def _listed(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder that may state something of kernels."""
    try:
        return _listed_at(folder, folder.stat().st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=16)
def _listed_at(folder: Path, changed_ns: int) -> tuple[Path, ...]:  # noqa: ARG001 - of the cache
    each = folder.iterdir()
    return tuple(sorted(f for f in each if _NAMED.search(f.name) and _SUFFIX.search(f.name)))


def _contents(path: Path) -> list[Any]:
    """Return the content of a JSON file, which may be compressed; of a log those with stacks."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise ValueError("larger than 256 MiB")
    if path.suffix == ".pkl":
        return [_unpickled(text)]
    parts = _IN_LOG.findall(text) if path.suffix == ".log" else [text]
    return [msgspec.json.decode(part) for part in parts]


def _unpickled(text: bytes) -> Any:
    """Return the plain data of a pickle; nothing in it is executed.

    Raises:
        ValueError: it has classes or functions, or is damaged.
    """
    from traceanalyzer.parsers.memory_snapshot import unpickler

    loader = unpickler.PlainUnpickler([text])
    loader.most_key = 1 << 63
    try:
        content = _as_json(loader.load())
    except unpickler.Refused as refused:
        is_code = refused.problem is unpickler.Problem.OPCODE  # also a defaultdict
        plain = "not plain data; write it with pickle.dump(dict(annotations), file)"
        raise ValueError(plain if is_code else refused.what) from None
    if not loader.complete:
        raise ValueError("truncated")
    return content


def _as_json(value: Any) -> Any:
    """Return unpickled data, whose texts are bytes, with the types of JSON."""
    if isinstance(value, dict):
        return {str(_as_json(key)): _as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _looked_up(key: pl.Expr, texts: _Texts) -> pl.Expr:
    return key.cast(pl.String).replace_strict(
        list(texts), list(texts.values()), default=None, return_dtype=pl.String
    )


def _of_node(texts: _Texts) -> pl.Expr:
    """Return the text of each node, by its number alone or with that of its graph."""
    return pl.coalesce(_looked_up(key, texts) for key in (_NODE, _GRAPH * (1 << 32) + _NODE))


def _of_annotations(contents: list[Any], _rows: pl.DataFrame) -> pl.Expr:
    """Return the arguments of each node; a text, ``str`` until PyTorch 2.13, is its name."""
    texts = {}
    for node, annotations in _items(contents):
        args: dict[str, Any] = {}
        for one in annotations:
            args |= one if isinstance(one, dict) else {"name": one}
        if args:
            named = {"name" if key == "str" else key: value for key, value in args.items()}
            texts[str(int(node))] = _inside(named)
    return _of_node(texts)


def _of_nodes(contents: list[Any], _rows: pl.DataFrame) -> pl.Expr:
    """Return the stack that launched each node, in the layout of Python's tracebacks."""
    texts = {}
    for node, stack in _items(contents):
        frames = reversed(_FRAME.findall(stack))
        lines = (f'  File "{file}", line {line}, in {name}\n' for file, line, name in frames)
        texts[str(int(node))] = _inside({"stack": ["".join(lines)]})
    return _of_node(texts)


def _of_kernels(contents: list[Any], rows: pl.DataFrame) -> pl.Expr:
    """Return the stacks of each kernel that has the same lines in all its calls and graphs.

    A kernel that no graph names has those of the calls between its neighbors.
    """
    graphs = [[_call(*item) for item in content.items()] for content in contents]
    texts: _Texts = {}
    lines: dict[str, set[frozenset[str]]] = {}
    for _, kernel, stacks in (call for graph in graphs for call in graph):
        texts.setdefault(kernel, _inside({"stack": stacks}))
        places = frozenset(found[-1] for one in stacks if (found := _PLACE.findall(one)))
        lines.setdefault(kernel, set()).add(places)
    known = {kernel: text for kernel, text in texts.items() if len(lines[kernel]) == 1}
    is_new = ~pl.col("args").str.contains('"stack":', literal=True)
    by_name = _looked_up(pl.col("name"), known)
    return pl.when(is_new).then(pl.coalesce(by_name, pl.lit(_between(graphs, rows))))


def _call(call: str, value: Any) -> _Call:
    """Return number, kernel and stacks of a call: ``extern_kernels.mm:9``."""
    kernel, _, number = call.rpartition(":")
    stacks = value["stack_traces"] if isinstance(value, dict) else value
    return int(number) if kernel else 0, kernel or call, stacks


def _between(graphs: list[_Calls], rows: pl.DataFrame) -> pl.Series:
    """Return the stacks of kernels between two that Inductor made, such as products of libraries.

    All graphs, also two in a row, must have the same calls between the two: as many as there are
    kernels, or inside of a graph a single one. Else the first and the last kernel are certain: of
    the first and the last of several calls, or of the graphs that other kernels run between.
    """
    lane, name = ("device", "stream"), pl.col("name").cast(pl.String)
    names = {kernel for graph in graphs for _, kernel, _ in graph}
    work = rows.with_row_index("row").filter(pl.col("kind") == "kernel").sort(*lane, "ts")
    work = work.with_columns(compiled=pl.when(name.is_in(list(names))).then(name))
    compiled = pl.col("compiled")
    work = work.with_columns(
        compiled.is_not_null().cum_sum().over(lane).alias("gap"),
        before=compiled.forward_fill().over(lane), after=compiled.backward_fill().over(lane),
    )  # fmt: skip
    inside = work.filter(compiled.is_null()).drop_nulls(("before", "after"))
    of_gap = pl.len().over(*lane, "gap"), pl.int_range(pl.len()).over(*lane, "gap").alias("at")
    calls = _gaps(graphs, set(work["compiled"].drop_nulls()))
    texts: list[str | None] = [None] * rows.height
    for (before, after), kernels in inside.with_columns(of_gap).group_by("before", "after"):
        ends, starts = calls[before, ""], calls["", after]
        of_two = {a + b for a in ends for b in starts}
        if len(runs := calls[before, after] | of_two) != 1:
            continue
        run, *_ = runs
        first, last = (*ends, *starts) if of_two else (run, run)
        is_one = len(run) == 1 and not of_two and kernels["len"].n_unique() == 1
        for row, count, at in kernels.select("row", "len", "at").iter_rows():
            if is_one or count == len(run):
                texts[row] = run[0 if is_one else at]
            elif count > len(run) and (of_two or len(run) > 1) and at in (0, count - 1):
                texts[row] = next(iter(first[:1] if at == 0 else last[-1:]), None)
    return pl.Series(texts, dtype=pl.String)


def _gaps(graphs: list[_Calls], compiled: set[str]) -> dict[tuple[str, str], set[tuple[str, ...]]]:
    """Return the stacks of the calls between each two kernels; empty names begin and end graphs."""
    gaps: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for graph in graphs:
        before, run = "", list[str]()
        for _, kernel, stacks in [*sorted(graph), (0, "", [])]:
            if not kernel or kernel in compiled:
                gaps[before, kernel].add(tuple(run))
                before, run = kernel, []
            else:
                run.append(_inside({"stack": stacks}))
    return gaps


def _items(contents: list[Any]) -> Iterator[tuple[str, Any]]:
    return (item for content in contents for item in content.items())


def _inside(args: dict[str, Any]) -> str:
    """Return arguments as the inside of a JSON object."""
    return msgspec.json.encode(args).decode()[1:-1]


#: Parts of the names of files, the most that are read, and what reads them.
_FILES: tuple[tuple[str, int | None, _Reader], ...] = (
    ("kernel_annotations_rank", 1, _of_annotations),
    ("py_stacks", 1, _of_nodes),
    ("kernel_stack_traces", None, _of_kernels),
    ("kernel_information", None, _of_kernels),
    ("torch_trace", None, _of_kernels),
)
_NAMED = re.compile("|".join(name for name, *_ in _FILES))
