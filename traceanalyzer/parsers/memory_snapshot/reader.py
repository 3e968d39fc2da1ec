"""Read a snapshot into the tables of a trace."""

import json
import math
from collections.abc import Iterator
from typing import Any

import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.memory_snapshot import document, tables
from traceanalyzer.parsers.memory_snapshot.document import Snapshot
from traceanalyzer.parsers.memory_snapshot.machine import read_pickle
from traceanalyzer.parsers.memory_snapshot.tables import History, Stacks
from traceanalyzer.parsers.memory_snapshot.unpickler import Refused
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.parsers.tables import Ints, Order, as_table, time_order
from traceanalyzer.trace import Device, Issue, Meta, Trace, issue_rows
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, MEMORY_SNAPSHOT

#: How to record a history; a snapshot without one only has the memory at the time of the dump.
RECORD = "call torch.cuda.memory._record_memory_history() before the workload"

_BLOCK = 1 << 20
_US = 1000
_WANTED = frozenset((*ALLOCATOR_KINDS, "user_annotation"))
#: c10's number of a CUDA device.
_CUDA = 1


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read a snapshot.

    The clock starts at the first event. All complete parts of a truncated file are read.

    Raises:
        MalformedInput: the pickle is not a snapshot, or is empty.
        UnreadableFile: the file cannot be read.
    """
    rank = rank_from_name(source.path)
    if selection.kinds is not None and not selection.kinds & _WANTED:
        return Trace(sources=(Meta(path=source.path, format=MEMORY_SNAPSHOT, rank=rank),))
    reading = _read(source, progress)
    top = reading.fields(reading.document.root)
    history = tables.read_history(reading, reading.items(top.get(document.TRACES, 0)))
    of_stacks = tables.read_stacks(
        reading,
        [
            reading.table(number).column("frames")
            for number in (document.EVENTS, document.BLOCKS, document.SEGMENTS, document.HISTORY)
        ],
    )
    ranges, alone = tables.read_annotations(reading)
    start_us = _earliest(history.time_us, ranges["time_us"])
    events, totals = _events(reading, selection, history, of_stacks, ranges, start_us)
    of_devices = reading.table(document.SEGMENTS).without(
        reading.members(top.get(document.HOST_SEGMENTS, 0), document.SEGMENTS)
    )
    segments = tables.segments(reading, of_devices, of_stacks, rank)
    blocks = tables.blocks(reading, of_devices, of_stacks, segments)
    devices = sorted({*history.device.tolist(), *segments["device"].drop_nulls().to_list()})
    if segments.is_empty() and (events.is_empty() or not history.rows.size):
        _require_history(source, _pinned(reading, top), events)
    meta = Meta(
        path=source.path,
        format=MEMORY_SNAPSHOT,
        epoch_ns=None if start_us is None else start_us * _US,
        start_ns=None if start_us is None else 0,
        rank=rank,
        devices=tuple(Device(device) for device in devices),
        extra=_extra(reading, top),
    )
    return Trace(
        sources=(meta,),
        events=events.with_columns(rank=pl.lit(rank, pl.Int32)),
        stacks=of_stacks.table,
        memory_totals=totals,
        segments=segments,
        blocks=blocks,
        issues=issue_rows(_issues(source, reading, top, history, alone), rank),
    )


def _require_history(source: Source, pinned: int, events: pl.DataFrame) -> None:
    """Raise the error about a snapshot without segments and history."""
    what, hint = "", f"{RECORD}, and take the snapshot after it"
    if pinned:
        what = f"has pinned host memory alone ({pinned:,} rows), which is not analysed"
        hint = "call torch.cuda.memory._record_memory_history() without record_cuda=False"
    elif events.is_empty():
        what = "an empty snapshot: no segments and no history"
    if what:
        raise MalformedInput(source.path, what, hint=hint)


def _read(source: Source, progress: Progress | None) -> Snapshot:
    try:
        blocks = source.blocks(_BLOCK, progress)
        return Snapshot(read_pickle(blocks, document.KEYS, document.TABLES))
    except Refused as error:
        raise MalformedInput(
            source.path,
            f"not a memory snapshot: {error.what}",
            where=None if error.offset is None else f"byte {error.offset:,}",
            hint="torch.cuda.memory._dump_snapshot(FILE) writes one",
        ) from None


def _earliest(*times: pl.Series) -> int | None:
    starts = [int(low) for time in times if isinstance(low := time.min(), int)]
    return min(starts, default=None)


def _events(
    reading: Snapshot,
    selection: Selection,
    history: History,
    of_stacks: Stacks,
    ranges: pl.DataFrame,
    start_us: int | None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Build ``events``, sorted, and ``memory_totals``."""
    start = start_us or 0
    done = tables.events(reading, history, of_stacks, args="args" in selection.columns)
    done = done.with_columns(ts=(history.time_us - start) * _US)
    marked = ranges.select(
        "name",
        "device",
        kind=pl.lit("user_annotation", schema.KIND),
        ts=(pl.col("time_us") - start) * _US,
        dur=(pl.col("end_us") - pl.col("time_us")) * _US,
    )
    both = pl.concat([done, marked], how="diagonal").with_columns(
        free_bytes=tables.free_bytes(reading, history).extend_constant(None, marked.height)
    )
    if (wanted := selection.rows()) is not None:
        both = both.filter(wanted)
    order = None if both["ts"].null_count() else _order(both)
    both = both if order is None else both[order]
    free = both.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("event"), "free_bytes")
    totals = free.drop_nulls().with_columns(device_type=pl.lit(_CUDA))
    return as_table(both, "events", both.columns), as_table(totals, "memory_totals")


def _order(events: pl.DataFrame) -> Order | None:
    length = events["dur"].fill_null(-1).to_numpy()

    def lengths(rows: Order) -> Ints:
        return length[rows]

    return time_order(events["ts"].to_numpy(), lengths)


def _extra(reading: Snapshot, top: dict[str, int]) -> str | None:
    """Return the allocator's settings and the maximum length of the history as JSON text."""
    names = (document.SETTINGS, document.MOST_ENTRIES, document.OVERFLOWED)
    values: dict[str, Any] = {name: reading.value(top[name]) for name in names if name in top}
    return json.dumps(_finite(values)) if values else None


def _finite(value: Any) -> Any:
    """Return the value with text in place of floats that JSON does not support."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _overflowed(reading: Snapshot, top: dict[str, int]) -> bool:
    """Whether the oldest events of the history, a ring buffer, were overwritten."""
    value = reading.value(top.get(document.OVERFLOWED, 0))
    return any(value) if isinstance(value, list) else bool(value)


def _pinned(reading: Snapshot, top: dict[str, int]) -> int:
    """Return the number of segments and events of pinned host memory, which is not the GPU's."""
    events = reading.members(top.get(document.HOST_TRACES, 0), document.EVENTS)
    return len(reading.items(top.get(document.HOST_SEGMENTS, 0))) + events.size


def _issues(
    source: Source, reading: Snapshot, top: dict[str, int], history: History, alone: int
) -> Iterator[Issue]:
    pickled, is_cut = reading.document, not reading.document.complete
    of_host = reading.members(top.get(document.HOST_TRACES, 0), document.EVENTS)
    stray = history.table.height - history.rows.size - of_host.size
    yield "data_loss", "truncated", int(is_cut), f"{pickled.consumed:,} bytes read"
    yield from source.issues
    yield "notice", "trailing-bytes", pickled.trailing, None
    yield "data_loss", "stray-events", stray, None
    yield "notice", "pinned-host-memory", _pinned(reading, top), "rows are not analysed"
    yield "data_loss", "wrong-type", reading.wrong, None
    if history.rows.size <= 1:
        yield ("notice", "no-history", 1, RECORD)
    elif _overflowed(reading, top):
        yield ("notice", "history-overflowed", 1, "the oldest events were overwritten")
    yield "notice", "time-backwards", history.backwards, None
    yield "info", "open-annotations", alone, None
