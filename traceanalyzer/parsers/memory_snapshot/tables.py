"""Tables of a snapshot: stacks, allocator history, annotations, segments and blocks."""

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames import stacks as prefix_tree
from traceanalyzer.parsers.memory_snapshot import document
from traceanalyzer.parsers.memory_snapshot.document import Ints, Snapshot, Table, TaggedArray
from traceanalyzer.parsers.tables import tree_table
from traceanalyzer.schema import LAST_EPOCH_NS
from traceanalyzer.vocabulary import ALLOCATOR_KINDS

#: Files that mean "unknown" in a snapshot, and the greatest line.
_NO_FILE = ("", "??")
_LAST_LINE = (1 << 31) - 1
#: Actions with another name in the schema.
_ACTIONS: Final = {"free": "free_completed"}
#: Greatest time in microseconds since 1970 that does not overflow the clock.
LAST_US: Final = LAST_EPOCH_NS // 1000
_LEFTOVERS: Final = ("compile_context", "user_metadata", "pool_id")
#: Maximum characters of their JSON text.
_LONGEST: Final = 4096
_START = "START"
#: Text of users (``torch.cuda.memory._set_memory_metadata``) that says nothing.
_NO_METADATA = ("", "N/A")
#: An older spelling of a state.
_STATES = {"active_awaiting_free": "active_pending_free"}


@dataclass(frozen=True)
class Stacks:
    """The table ``stacks``, and the leaf row of each stack."""

    table: pl.DataFrame
    leaf: Ints

    def of(self, reading: Snapshot, tagged: TaggedArray) -> pl.Series:
        """Return the leaf rows of a column of stacks; null if absent."""
        numbers = reading.sequence_numbers(tagged)
        rows = pl.Series(self.leaf[numbers]).cast(pl.UInt32)
        return pl.select(pl.when(pl.Series(numbers >= 0)).then(rows)).to_series()


def read_stacks(reading: Snapshot, used: list[TaggedArray]) -> Stacks:
    """Build the table of the stacks in these columns."""
    named = np.unique(np.concatenate([document.sequence_numbers(tagged) for tagged in used]))
    named = named[named >= 0]
    frames, lengths = reading.frames(named)
    tree = prefix_tree.build(frames, lengths)
    leaf = np.zeros(int(named.max(initial=-1)) + 2, np.int64)  # the last entry is for -1
    leaf[named] = tree.leaf
    return Stacks(tree_table(tree, _frames(reading)), leaf)


def _frames(reading: Snapshot) -> pl.DataFrame:
    """Return name, file and line of each frame; C++ frames often have neither file nor line."""
    rows = reading.table(document.FRAMES)
    line = reading.integers(rows.column("line"), unsigned=True)
    frames = pl.DataFrame(
        {
            "name": reading.strings(rows.column("name")).fill_null("?"),
            "file": reading.strings(rows.column("filename")),
            "line": line,
        }
    )
    return frames.select(
        pl.col("name").cast(schema.NAME),
        pl.when(~pl.col("file").is_in(_NO_FILE)).then("file").cast(schema.NAME).alias("file"),
        pl.when(pl.col("line").is_between(1, _LAST_LINE)).then("line").cast(pl.Int32).alias("line"),
    )


@dataclass(frozen=True)
class History:
    """The recorded events, by device, in file order.

    Attributes:
        table: all rows of the file.
        rows: rows of ``table`` that belong to a device, in this order.
        device: device of each of them.
        time_us: time of each of them; null without a recorded time. Monotonic per device.
        backwards: number of times that were corrected for this.
    """

    table: Table
    rows: Ints
    device: Ints
    time_us: pl.Series
    backwards: int

    def column(self, name: str) -> TaggedArray:
        """Return a field of each row."""
        return self.table.column(name)[self.rows]


def read_history(reading: Snapshot, traces: list[int]) -> History:
    """Read the history of all devices.

    Args:
        reading: the file.
        traces: the words of the devices' lists.
    """
    table = reading.table(document.EVENTS)
    rows, device = reading.owners(np.array(traces, np.uint64), document.EVENTS)
    if not reading.document.complete:
        # rows outside all lists belong to the list that was truncated
        rest = np.ones(table.height, np.bool_)
        rest[rows] = False
        rows = np.append(rows, np.flatnonzero(rest))
        device = np.append(device, np.full(int(rest.sum()), max(len(traces) - 1, 0)))
    recorded = reading.integers(table.column("time_us")[rows])
    usable = ((recorded >= 0) & (recorded <= LAST_US)).fill_null(value=False)
    time = recorded.set(~usable, None)
    monotonic = (
        pl.DataFrame({"device": device, "time": time})
        .select(pl.col("time").cum_max().forward_fill().over("device"))
        .to_series()
    )
    return History(table, rows, device, monotonic, int((monotonic > time).sum()))


def events(reading: Snapshot, history: History, stacks: Stacks, *, args: bool) -> pl.DataFrame:
    """Build the rows of ``events`` from the history, without ``ts``."""
    spelled = reading.strings(history.column("action"))
    kind = spelled.replace(_ACTIONS)
    frame = pl.DataFrame(
        {
            "kind": kind.set(~kind.is_in(ALLOCATOR_KINDS).fill_null(value=False), "other"),
            "category": _metadata(reading, history),
            "name": spelled,
            "device": history.device,
            "stream": reading.integers(history.column("stream")),
            "bytes": reading.sizes(history.column("size"), (kind == "oom").fill_null(value=False)),
            "address": reading.addresses(history.column("addr")),
            "stack": stacks.of(reading, history.column("frames")),
        }
    ).cast({"kind": schema.KIND, "name": schema.NAME, "device": pl.Int32})
    return frame.with_columns(args=_arguments(reading, history)) if args else frame


def free_bytes(reading: Snapshot, history: History) -> pl.Series:
    """Return the free device memory at out-of-memory errors; null for all other events."""
    return reading.sizes(history.column("device_free"))


def _metadata(reading: Snapshot, history: History) -> pl.Series:
    """Return the user's text on each event; null without one."""
    texts = reading.strings(history.column("user_metadata"), schema.NAME)
    return texts.set(texts.cast(pl.String).is_in(_NO_METADATA).fill_null(value=False), None)


def _arguments(reading: Snapshot, history: History) -> pl.Series:
    """Return fields without a column as JSON text; null without any."""
    names = [name for name in _LEFTOVERS if history.table.has(name)]
    if not names:
        return pl.repeat(None, history.rows.size, dtype=pl.String, eager=True)
    fields = pl.DataFrame({name: history.column(name) for name in names}).with_row_index("row")
    distinct = fields.group_by(names, maintain_order=True).agg("row")
    texts = [
        json.dumps(dict(zip(names, map(reading.value, row), strict=True)), default=str)[:_LONGEST]
        for row in distinct.select(names).iter_rows()
    ]
    every = distinct.with_columns(args=pl.Series(texts, dtype=pl.String)).explode("row")
    return every.sort("row")["args"]


def read_annotations(reading: Snapshot) -> tuple[pl.DataFrame, int]:
    """Pair START and END marks to slices; also count the marks without a partner.

    The history is a ring buffer: the START of a range may be overwritten. The duration of an open
    range is unknown.

    Returns:
        ``time_us``, ``end_us`` (null if open), ``name`` and ``device`` of each.
    """
    table = reading.table(document.ANNOTATIONS)
    marks = pl.DataFrame(
        {
            "name": reading.strings(table.column("name"), schema.NAME),
            "stage": reading.strings(table.column("stage")),
            "device": reading.integers(table.column("device")).cast(pl.Int32, strict=False),
            "time_us": reading.integers(table.column("time_us")),
        }
    )
    timed = marks.filter(pl.col("time_us").is_between(0, LAST_US))
    opened: dict[tuple[object, object], list[int]] = {}
    slices: list[list[Any]] = []
    alone = marks.height - timed.height
    for row, (name, stage, device, time) in enumerate(timed.rows()):
        waiting = opened.setdefault((name, device), [])
        if stage == _START:
            waiting.append(len(slices))
            slices.append([row, time, None])
        elif waiting and slices[waiting[-1]][1] <= time:
            slices[waiting.pop()][2] = time
        else:
            alone += 1
    ranges = pl.DataFrame(slices, schema=["row", "time_us", "end_us"], orient="row").cast(pl.Int64)
    names = timed.select("name", "device")[ranges["row"]]
    return pl.concat([ranges.drop("row"), names], how="horizontal"), alone + sum(
        map(len, opened.values())
    )


def segments(reading: Snapshot, table: Table, stacks: Stacks, rank: int | None) -> pl.DataFrame:
    """Build ``segments``, in file order, from those of devices."""
    sizes = {
        f"{name.split('_')[0]}_bytes": reading.sizes(table.column(name)).fill_null(0)
        for name in ("total_size", "allocated_size", "active_size")
    }
    columns = {
        "id": pl.int_range(table.height, dtype=pl.UInt32, eager=True),
        "rank": pl.repeat(rank, table.height, dtype=pl.Int32, eager=True),
        "device": reading.integers(table.column("device"))
        .cast(pl.Int32, strict=False)
        .fill_null(0),
        "address": reading.addresses(table.column("address")).fill_null(0),
        **sizes,
        "stream": reading.integers(table.column("stream")),
        "pool": _pools(reading, table),
        "segment_type": reading.strings(table.column("segment_type"), schema.NAME),
        "expandable": reading.booleans(table.column("is_expandable")),
        "stack": stacks.of(reading, table.column("frames")),
    }
    return pl.DataFrame(columns)


def blocks(
    reading: Snapshot, owners: Table, stacks: Stacks, of_segments: pl.DataFrame
) -> pl.DataFrame:
    """Build ``blocks`` of the segments ``owners``; one without an address follows the previous."""
    table = reading.table(document.BLOCKS)
    rows, segment = reading.owners(owners.column("blocks"), document.BLOCKS)
    size = reading.sizes(table.column("size")).fill_null(0)[rows]
    state = reading.strings(table.column("state"))[rows].replace(_STATES).fill_null("?")
    requested, stack = _requests(reading, table, stacks)
    frame = pl.DataFrame(
        {
            "segment": segment,
            "address": reading.addresses(table.column("address"))[rows],
            "size_bytes": size,
            "requested_bytes": requested[rows],
            "state": state,
            "stack": stack[rows],
        }
    )
    before = pl.col("size_bytes").cum_sum().over("segment") - pl.col("size_bytes")
    start = pl.Series(of_segments["address"])[segment]
    return frame.with_columns(
        segment=pl.col("segment").cast(pl.UInt32),
        address=pl.coalesce("address", start + before.cast(pl.UInt64, strict=False)),
        state=pl.col("state").cast(schema.NAME),
        # the requested size of an inactive block is that of its last owner, or 0
        requested_bytes=pl.when(pl.col("state") != "inactive").then("requested_bytes"),
    )


def _pools(reading: Snapshot, table: Table) -> pl.Series:
    """Return the private pool of each segment as text; null for the default pool."""
    tagged, place = np.unique(table.column("segment_pool_id"), return_inverse=True)
    pools = [reading.value(int(word)) for word in tagged]
    names = [
        ".".join(map(str, ids)) if isinstance(ids, list) and any(ids) else None for ids in pools
    ]
    return pl.Series(names, dtype=pl.String).gather(place).cast(schema.NAME)


def _requests(reading: Snapshot, table: Table, stacks: Stacks) -> tuple[pl.Series, pl.Series]:
    """Return requested size and stack of each block; older files store them in a history."""
    requested = reading.sizes(table.column("requested_size"))
    stack = stacks.of(reading, table.column("frames"))
    if not table.has("history"):
        return requested, stack
    past = reading.table(document.HISTORY)
    latest = reading.first_rows(table.column("history"), document.HISTORY)
    size = _at(reading.sizes(past.column("real_size")), latest)
    by = _at(stacks.of(reading, past.column("frames")), latest)
    return requested.zip_with(requested.is_not_null(), size), stack.zip_with(
        stack.is_not_null(), by
    )


def _at(values: pl.Series, rows: Ints) -> pl.Series:
    """Return the values at rows; null for row -1."""
    if values.is_empty():
        return pl.repeat(None, rows.size, dtype=values.dtype, eager=True)
    return values[np.maximum(rows, 0)].set(pl.Series(rows < 0), None)
