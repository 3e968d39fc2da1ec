"""Corrections for producers that deviate from the format.

Each correction applies to one exact spelling; all other events are unchanged:

* our own exporter moves slices that do not nest to overflow tracks
  (:mod:`traceanalyzer.exporters.chrome_trace.tracks`): the argument ``"traceanalyzer tid"``, always
  the first, is the original tid of a slice, flow point or thread name;
* py-spy's begin and end events get frame names as in its other formats, because there is no column
  for the file and line in their arguments; frames for a thread or a process become lanes, as in its
  raw format;
* the back end ``cupti_monitor`` of PyTorch's profiler has direction and memory of copies in their
  arguments only: they get the names that Kineto gives them;
* ``EventList.export_chrome_trace`` of PyTorch's older profiler has operators and kernels without
  category, as threads of the processes "CPU functions" and "CUDA functions", joined by flows;
* rocprof 1 has kernels, copies and calls of HIP without category, with device and queue in their
  arguments, and writes copies ``CopyHostToDevice``;
* MosaicML Composer's system profiler writes wrong counter names and units: its "gb" of memory are
  bytes / 2**9, its "kb" of network traffic bytes / 2**3, its disk counters have a series literally
  called ``field_name``, and its CUDA memory is in 10^9 bytes without saying so. The corrected names
  never match these spellings, so reading an exported file corrects nothing twice.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt
import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.chrome_trace.columns import NEVER, Metadata
from traceanalyzer.parsers.chrome_trace.decode import (
    ABSENT,
    BAD_TEXT,
    Args,
    Event,
    integer,
    nanosecond,
)
from traceanalyzer.parsers.collapsed.text import LABELLED, py_spy
from traceanalyzer.parsers.tables import Lanes

RawArgs = Callable[[], list[msgspec.Raw]]

# --- our own exporter ------------------------------------------------------------------------

_origin = re.compile(rb'\{"traceanalyzer tid":(?:-?\d+|"(?:[^"\\]|\\.)*"),?')
_decode_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def undo_overflow(events: list[Event], moved: Sequence[int], raw_args: RawArgs) -> RawArgs:
    """Restore the tid of moved events, and drop the names of overflow tracks.

    Args:
        events: events of any writer, changed in place.
        moved: rows of the events with an ``original_tid``.
        raw_args: returns the arguments' text of every event.

    Returns:
        A function that returns the arguments' texts as they were before the move.
    """
    for row in moved:
        event = events[row]
        if event.ph == "M":
            event.name = None
        elif type(event.args) is Args:
            event.tid = event.args.original_tid
    return (lambda: _without_mark(raw_args(), moved)) if moved else raw_args


def _without_mark(texts: list[msgspec.Raw], moved: Sequence[int]) -> list[msgspec.Raw]:
    """Return the texts without ``"traceanalyzer tid"``; null if there was nothing else."""
    cleaned = list(texts)
    for row in moved:
        text, is_first = _origin.subn(b"{", bytes(cleaned[row]), count=1)
        if not is_first:  # another program has changed the order
            args = _decode_raws(text)
            args.pop("traceanalyzer tid", None)
            text = msgspec.json.encode(args)
        cleaned[row] = ABSENT if text == b"{}" else msgspec.Raw(text)
    return cleaned


# --- py-spy ----------------------------------------------------------------------------------

#: A phase that is ignored.
_NOTHING = "("


class _Place(msgspec.Struct, gc=False):
    """Location of a function."""

    filename: Any = None
    line: Any = None


_decode_place = msgspec.json.Decoder(_Place).decode


def name_py_spy_frames(events: list[Event], rows: Sequence[int], raw_args: RawArgs) -> None:
    """Name py-spy's slices ``NAME (FILE:LINE)``; turn its labels into process and thread names.

    Args:
        events: events of any writer, changed in place.
        rows: rows of py-spy's events.
        raw_args: returns the arguments' text of every event.
    """
    texts = raw_args() if rows else []
    for row in rows:
        event = events[row]
        try:
            place = _decode_place(texts[row])
        except BAD_TEXT:
            continue
        if not isinstance(event.name, str) or not isinstance(place.filename, str):
            continue
        if place.filename:
            event.name = _frame(event.name, place.filename, place.line)
        elif event.name.encode(errors="replace").startswith(LABELLED):
            _label(event, event.name)


def _frame(name: str, file: str, line: Any) -> str:
    """Format a function as in py-spy's raw format, without the line if it is unknown."""
    return f"{name} ({file}:{line})" if type(line) is int and line > 0 else f"{name} ({file})"


def _label(event: Event, text: str) -> None:
    """Turn a label's begin event into a metadata event that names its lane; drop its end event."""
    lanes = Lanes()
    _, rest = py_spy(text.encode(errors="replace"), lanes)
    if rest:
        return
    begins, event.ph = event.ph == "B", _NOTHING
    for (_, tid), name in lanes.threads.items() if begins else ():
        event.ph, event.name, event.args = "M", "thread_name", Args(name=name or f"thread {tid}")
    for pid, command in lanes.commands.items() if begins else ():
        event.ph, event.name, event.args = "M", "process_name", Args(name=command)
        event.pid = pid


# --- PyTorch's cupti_monitor -------------------------------------------------------------------

#: CUPTI's kinds of memory; memsets have their number.
_MEMORIES = (
    "unknown", "pageable", "pinned", "device", "array", "managed", "device_static", "managed_static"
)  # fmt: skip


def name_copies(events: Sequence[Event]) -> None:
    """Name copies ``Memcpy HtoD (Pageable -> Device)`` and memsets ``Memset (Device)``.

    Args:
        events: events of this name, changed in place if their arguments say more.
    """
    for event in events:
        args = event.args
        if type(args) is not Args:
            continue
        ends = [_memory(kind) for kind in (args.source_memory, args.target_memory)]
        if event.name == "Memcpy" and isinstance(args.copy_kind, str):
            places = f" ({ends[0]} -> {ends[1]})" if all(ends) else ""
            event.name = f"Memcpy {args.copy_kind}{places}"
        elif event.name == "Memset" and (memory := _memory(args.memory_kind)):
            event.name = f"Memset ({memory})"


def _memory(kind: Any) -> str | None:
    """Return a kind of memory as Kineto writes it: ``Device Static``."""
    if type(kind) is int:
        kind = _MEMORIES[kind] if 0 <= kind < len(_MEMORIES) else None
    return kind.replace("_", " ").title() if isinstance(kind, str) else None


# --- PyTorch's older profiler ----------------------------------------------------------------

#: Its process of device work; that of operators is "CPU functions".
_ON_DEVICE = "CUDA functions"


def as_operators_and_kernels(events: Sequence[Event]) -> None:
    """Set category, device and External id of the events of ``EventList.export_chrome_trace``.

    An operator has a flow to each of its kernels, at the start of both.

    Args:
        events: events of its two processes, changed in place.
    """
    arrows = [event for event in events if event.ph in ("s", "f") and type(event.id) is int]
    targets = {_place(one): one.id for one in arrows if one.ph == "f"}
    sources = {one.id: _place(one) for one in arrows if one.ph == "s"}
    first = {place: number + 1 for number, place in reversed(sources.items())}  # 0: no operator
    for event in events:
        if event.ph != "X" or event.cat is not None:
            continue
        on_device, place = event.pid == _ON_DEVICE, _place(event)
        source = sources.get(targets.get(place, -1), ()) if on_device else place
        event.cat = _category(event.name) if on_device else "cpu_op"
        args = event.args if type(event.args) is Args else Args()
        args.external_id = first.get(source, args.external_id)
        event.args = args
        if on_device:  # its threads are the devices
            event.pid = event.tid


def _place(event: Event) -> tuple[Any, ...]:
    return str(event.pid), str(event.tid), nanosecond(bytes(event.ts))


def _category(name: Any) -> str:
    for prefix in ("memcpy", "memset"):
        if isinstance(name, str) and name.lower().startswith(prefix):
            return f"gpu_{prefix}"
    return "kernel"


# --- rocprof 1 -------------------------------------------------------------------------------

_COPIES = {
    "CopyHostToDevice": "Memcpy HtoD",
    "CopyDeviceToHost": "Memcpy DtoH",
    "CopyDeviceToDevice": "Memcpy DtoD",
    "FillBuffer": "Memset (Device)",
}


def as_device_work_and_calls(events: Sequence[Event]) -> None:
    """Set category, device and stream of the events of rocprof 1; flows join calls and their work.

    Args:
        events: slices with its arguments, changed in place.
    """
    for event in events:
        args, name = event.args, event.name
        if type(args) is not Args or event.cat is not None or not isinstance(name, str):
            continue
        if args.dev_id is not None:
            event.name = _COPIES.get(name, name)
            event.cat = _category(event.name)
            args.device, args.stream = args.dev_id, args.queue
        elif name.startswith("hip"):
            event.cat = "cuda_runtime"


# --- Composer --------------------------------------------------------------------------------


class TrueCounter(NamedTuple):
    """Corrected name and series of a counter, and the factor for its readings."""

    name: str
    series: str
    factor: float


_MEMORY = re.compile(r"memory/(?:swap|virtual)")
_MEMORY_SERIES = re.compile(r"(used|free|available)_gb")
_CUDA = re.compile(r"memory/cuda/((?:current|peak)_(?:allocated|active|inactive|reserved))_mem")
_RETRIES = ("memory/cuda/alloc_retries", "alloc_retries")
_DISK = re.compile(r"(disk/.+)/((?:read|write)_(?:count|bytes|time)|busy_time)", re.DOTALL)
_NETWORK = re.compile(r"(network/.+)/kb_(sent|recv)", re.DOTALL)


def true_counter(name: str, series: str) -> TrueCounter | None:
    """Return the correction of a Composer counter; None for any other counter."""
    if _MEMORY.fullmatch(name) and (match := _MEMORY_SERIES.fullmatch(series)):
        return TrueCounter(name, f"{match[1]}_bytes", 2**9)
    if (match := _CUDA.fullmatch(name)) and series == f"{match[1]}_mem":
        return TrueCounter("memory/cuda", f"{match[1]}_bytes", 10**9)
    if (name, series) == _RETRIES:
        return TrueCounter("memory/cuda", series, 1)
    if (match := _DISK.fullmatch(name)) and series == "field_name":
        return TrueCounter(match[1], match[2].replace("_time", "_time_ms"), 1)
    if (match := _NETWORK.fullmatch(name)) and series == f"kb_{match[2]}":
        return TrueCounter(match[1], f"{match[2]}_bytes", 2**3)
    return None


def undo_composer_units(counters: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Correct names and values of Composer's readings; also return the number of corrections.

    Byte counts are rounded to integers: Composer keeps five digits of 10^9 bytes.

    Args:
        counters: the table ``counters``, with names as text.
    """
    pairs = counters.select("name", "series").unique()
    corrections = [(*pair, *true) for pair in pairs.iter_rows() if (true := true_counter(*pair))]
    if not corrections:
        return counters, 0
    texts = dict.fromkeys(("name", "series", "true_name", "true_series"), pl.String)
    known = pl.DataFrame(corrections, schema={**texts, "factor": pl.Float64}, orient="row")
    joined = counters.join(known, on=["name", "series"], how="left", maintain_order="left")
    changed = joined.with_columns(
        name=pl.coalesce("true_name", "name"),
        series=pl.coalesce("true_series", "series"),
        value=pl.coalesce((pl.col("value") * pl.col("factor")).round(), "value"),
    )
    return changed.select(counters.columns), int(joined["factor"].is_not_null().sum())


Frames = dict[str, pl.DataFrame]

#: Kineto's time base is a multiple of three ``std::chrono::months``.
BASE_STEP_NS = 7_889_238 * 10**9
#: Maximum time from Composer's clock synchronisation to PyTorch's events.
_LONGEST_RUN_NS = 30 * 86_400 * 10**9
_CLOCKS_DIFFER_NS = 3_600 * 10**9
#: Key in ``Meta.extra``: time of the first PyTorch event on PyTorch's clock.
TORCH_START = "composer_torch_start_ns"
#: Key in ``Meta.extra`` of a file whose PyTorch events use Composer's clock: before 2.4, PyTorch
#: wrote times since 1970 too.
ONE_CLOCK = "composer_torch_on_one_clock"
#: Key in ``Meta.extra``: time at which Composer synchronised the clocks of all ranks, on the clock
#: of this rank.
SYNC_NS = "composer_clock_sync_ns"
#: Key in ``Meta.extra``: upper bound of its error.
SYNC_ERROR_NS = "composer_clock_sync_error_ns"
_SYNC, _SYNC_ERROR = "clock_sync_timestamp_us", "clock_sync_error_bound"
_PROCESS = re.compile(r"Rank (\d+) training loop process")


#: Composer's merger writes this before the events of the ranks.
_MERGED = re.compile(rb'\[\s*+\{"name": "thread_sort_index", "ph": "M", "pid":')
_PART = re.compile(rb'training loop process"|"callback/\w+/event/|"name": "event/\w')


def is_merged(head: bytes) -> bool:
    """Whether a file with these first bytes was merged by Composer from the ranks' files."""
    return _MERGED.match(head) is not None


def is_part(head: bytes) -> bool:
    """Whether Composer wrote a file with these first bytes for one rank."""
    return head.startswith(b"[") and not is_merged(head) and _PART.search(head) is not None


def ranks_by_pid(metadata: Sequence[Metadata]) -> dict[int, int]:
    """Return the rank of each process in a Composer file; empty for any other file."""
    ranks: dict[int, int] = {}
    for name, pid, *_, args in metadata:
        if name == "global_rank" and (rank := _value(args)) >= 0:
            ranks[pid] = rank
        elif name == "process_name" and (match := _PROCESS.fullmatch(str(_args(args).get("name")))):
            ranks.setdefault(pid, int(match[1]))
    return ranks


def with_ranks(frames: Frames, ranks: Mapping[int, int], pids: npt.NDArray[Any]) -> Frames:
    """Return the tables of a merged file, each row with the rank of its process.

    Args:
        frames: all tables, with null ranks.
        ranks: rank by process id.
        pids: process of each row of ``events``; the table itself has none for device work.
    """
    old, new = list(ranks), list(ranks.values())

    def rank(pid: pl.Expr) -> pl.Expr:
        return pid.replace_strict(old, new, default=None, return_dtype=pl.Int32)

    changed = {
        name: frame.with_columns(rank=rank(pl.col("pid")))
        for name, frame in frames.items()
        if {"rank", "pid"} <= set(frame.columns) and name != "events"
    }
    events = frames["events"].with_columns(_pid=pl.Series(pids))
    changed["events"] = events.with_columns(rank=rank(pl.col("_pid"))).drop("_pid")
    return frames | changed


def synchronised_at(metadata: Sequence[Metadata]) -> int:
    """Return the time of the clock synchronisation in ns; 0 if it was not recorded."""
    values = (_value(args) for name, *_, args in metadata if name == _SYNC)
    return min((1000 * value for value in values if value > 0), default=0)


def synchronisation(metadata: Sequence[Metadata]) -> dict[str, int]:
    """Return the clock synchronisation for ``Meta.extra``: its time, and its error if known."""
    sync_ns = synchronised_at(metadata)
    errors = [1000 * _value(args) for name, *_, args in metadata if name == _SYNC_ERROR]
    bounds = {SYNC_ERROR_NS: max(errors)} if errors and max(errors) >= 0 else {}
    return {SYNC_NS: sync_ns, **bounds} if sync_ns else {}


def torch_base(metadata: Sequence[Metadata], first: int) -> int | None:
    """Return the time base of PyTorch's events in ns; 0 if all events use one clock.

    Args:
        metadata: metadata events of the file.
        first: earliest time in the file, in ns.

    Returns:
        None if the clocks cannot be aligned.
    """
    synchronised = synchronised_at(metadata)
    if first == NEVER or first >= BASE_STEP_NS or synchronised < BASE_STEP_NS:
        return 0
    earliest = synchronised - _CLOCKS_DIFFER_NS - first
    base = -(-earliest // BASE_STEP_NS) * BASE_STEP_NS
    return base if base - earliest <= _LONGEST_RUN_NS else None


def on_one_clock(frames: Frames, base: int) -> Frames:
    """Return the tables with the base added to the times of PyTorch's events."""
    moved = pl.when(pl.col("ts") < BASE_STEP_NS).then(pl.col("ts") + base).otherwise("ts")
    return {
        name: frame.with_columns(ts=moved) if "ts" in frame.columns else frame
        for name, frame in frames.items()
    }


def _value(args: str) -> int:
    return integer(_args(args).get("value"))


def _args(text: str) -> dict[str, Any]:
    args = msgspec.json.decode(text)
    return args if isinstance(args, dict) else {}


#: Larger values are damaged.
_LARGEST = 1e30


def metrics_of_ranges(ranges: pl.DataFrame, substrings: Sequence[str]) -> pl.DataFrame:
    """Return the table ``metrics`` from the ranges of Kineto's range profiler.

    With ``profiler_measure_per_kernel=True`` a range is a launch and has the name of its kernel, in
    order of launch on a GPU; otherwise it is the whole recording. Its time is a part of the
    recording, all of one length: that of the kernel is only known if it is among the metrics.

    Args:
        ranges: events of the kind, with ``args``.
        substrings: of the names of metrics to keep; empty for all.
    """
    rows = []
    columns = ranges.select("rank", pl.coalesce("device", "pid"), "name", "args")
    for number, (rank, device, name, args) in enumerate(columns.iter_rows()):
        for metric, value in _args(args or "{}").items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if (
                is_number
                and 0 <= value < _LARGEST
                and any(map(metric.__contains__, substrings or ("",)))
            ):
                rows.append((number, rank, number, name, device, 1, metric, float(value)))
    names = ("launch", "rank", "id", "kernel", "device", "launches", "metric", "value")
    types = schema.types("metrics")
    frame = pl.DataFrame(rows, schema={name: types[name] for name in names}, orient="row")
    others = {name: pl.lit(None, dtype) for name, dtype in types.items() if name not in names}
    return frame.with_columns(**others).select(list(types))
