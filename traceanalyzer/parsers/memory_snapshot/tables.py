"""Tables of a snapshot: stacks, the allocator's history, annotations, segments and blocks."""

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames import stacks as prefix_tree
from traceanalyzer.limits import LAST_EPOCH_NS
from traceanalyzer.parsers.memory_snapshot import document
from traceanalyzer.parsers.memory_snapshot.document import Ints, Reading, Table, Words
from traceanalyzer.parsers.tables import tree_table
from traceanalyzer.vocabulary import ALLOCATOR_KINDS

#: What a snapshot writes where it knows no file, and a line that stands for none.
_NO_FILE = ("", "??")
_LAST_LINE = (1 << 31) - 1
#: Words of an action that are not those of the schema.
_ACTIONS: Final = {"free": "free_completed"}
#: Times beyond are no microseconds since 1970 that leave room on the clock.
LAST_US: Final = LAST_EPOCH_NS // 1000
_LEFTOVERS: Final = ("compile_context", "user_metadata", "pool_id")
#: Letters of their text.
_LONGEST: Final = 4096
_START = "START"
#: An older spelling of a state.
_STATES = {"active_awaiting_free": "active_pending_free"}


@dataclass(frozen=True)
class Stacks:
    """The table, and the leaf of each stack in it."""

    table: pl.DataFrame
    leaf: Ints

    def of(self, reading: Reading, words: Words) -> pl.Series:
        """Rows of the table for words that name stacks; null where there is none."""
        numbers = reading.sequence_numbers(words)
        found = pl.Series(self.leaf[numbers]).cast(pl.UInt32)
        return pl.select(pl.when(pl.Series(numbers >= 0)).then(found)).to_series()


def read_stacks(reading: Reading, used: list[Words]) -> Stacks:
    """The stacks that these columns name."""
    named = np.unique(np.concatenate([document.sequence_numbers(words) for words in used]))
    named = named[named >= 0]
    frames, lengths = reading.frames(named)
    tree = prefix_tree.build(frames, lengths)
    leaf = np.zeros(int(named.max(initial=-1)) + 2, np.int64)  # the last is for none
    leaf[named] = tree.leaf
    return Stacks(tree_table(tree, _frames(reading)), leaf)


def _frames(reading: Reading) -> pl.DataFrame:
    """Name, file and line of each frame; C++ frames often know neither file nor line."""
    rows = reading.table(document.FRAMES)
    line = reading.integers(rows.words("line"), unsigned=True)
    found = pl.DataFrame(
        {
            "name": reading.strings(rows.words("name")).fill_null("?"),
            "file": reading.strings(rows.words("filename")),
            "line": line,
        }
    )
    return found.select(
        pl.col("name").cast(schema.NAME),
        pl.when(~pl.col("file").is_in(_NO_FILE)).then("file").cast(schema.NAME).alias("file"),
        pl.when(pl.col("line").is_between(1, _LAST_LINE)).then("line").cast(pl.Int32).alias("line"),
    )


@dataclass(frozen=True)
class History:
    """What was recorded, device by device, each in the order of the file.

    Attributes:
        table: all rows of the file.
        rows: those of ``table`` that belong to a device, in this order.
        device: of each of them.
        time_us: of each of them; null where the file has no time. Never earlier than the one before
            on the same device.
        backwards: how many were.
    """

    table: Table
    rows: Ints
    device: Ints
    time_us: pl.Series
    backwards: int

    def words(self, name: str) -> Words:
        """A field of each row."""
        return self.table.words(name)[self.rows]


def read_history(reading: Reading, traces: list[int]) -> History:
    """The history of each device.

    Args:
        reading: the file.
        traces: the words of the devices' lists.
    """
    table = reading.table(document.EVENTS)
    rows, device = reading.owners(np.array(traces, np.uint64), document.EVENTS)
    if not reading.document.complete:
        # what stands in no list yet belongs to the one that the file's end cut off
        rest = np.ones(table.height, np.bool_)
        rest[rows] = False
        rows = np.append(rows, np.flatnonzero(rest))
        device = np.append(device, np.full(int(rest.sum()), max(len(traces) - 1, 0)))
    told = reading.integers(table.words("time_us")[rows])
    usable = ((told >= 0) & (told <= LAST_US)).fill_null(value=False)
    time = told.set(~usable, None)
    kept = (
        pl.DataFrame({"device": device, "time": time})
        .select(pl.col("time").cum_max().forward_fill().over("device"))
        .to_series()
    )
    return History(table, rows, device, kept, int((kept > time).sum()))


def events(reading: Reading, found: History, stacks: Stacks, *, args: bool) -> pl.DataFrame:
    """The rows of ``events`` that the history is, without ``ts``."""
    spelled = reading.strings(found.words("action"))
    kind = spelled.replace(_ACTIONS)
    frame = pl.DataFrame(
        {
            "kind": kind.set(~kind.is_in(ALLOCATOR_KINDS).fill_null(value=False), "other"),
            "name": spelled,
            "device": found.device,
            "stream": reading.integers(found.words("stream")),
            "bytes": reading.sizes(found.words("size"), (kind == "oom").fill_null(value=False)),
            "address": reading.addresses(found.words("addr")),
            "stack": stacks.of(reading, found.words("frames")),
        }
    ).cast({"kind": schema.KIND, "name": schema.NAME, "device": pl.Int32})
    return frame.with_columns(args=_arguments(reading, found)) if args else frame


def free_bytes(reading: Reading, found: History) -> pl.Series:
    """What an out-of-memory error says is free on the device; null for all other events."""
    return reading.sizes(found.words("device_free"))


def _arguments(reading: Reading, found: History) -> pl.Series:
    """Fields that have no column, as JSON text; null where there are none."""
    names = [name for name in _LEFTOVERS if found.table.has(name)]
    if not names:
        return pl.repeat(None, found.rows.size, dtype=pl.String, eager=True)
    told = pl.DataFrame({name: found.words(name) for name in names}).with_row_index("row")
    distinct = told.group_by(names, maintain_order=True).agg("row")
    texts = [
        json.dumps(dict(zip(names, map(reading.value, row), strict=True)), default=str)[:_LONGEST]
        for row in distinct.select(names).iter_rows()
    ]
    every = distinct.with_columns(args=pl.Series(texts, dtype=pl.String)).explode("row")
    return every.sort("row")["args"]


def read_annotations(reading: Reading) -> tuple[pl.DataFrame, int]:
    """The slices that pairs of START and END make, and how many of these stand alone.

    The history is a ring: the START of a range that is over may be gone. What was left open is of
    no known length.

    Returns:
        ``time_us``, ``end_us`` (null where it is open), ``name`` and ``device`` of each.
    """
    table = reading.table(document.ANNOTATIONS)
    marks = pl.DataFrame(
        {
            "name": reading.strings(table.words("name"), schema.NAME),
            "stage": reading.strings(table.words("stage")),
            "device": reading.integers(table.words("device")).cast(pl.Int32, strict=False),
            "time_us": reading.integers(table.words("time_us")),
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
    found = pl.DataFrame(slices, schema=["row", "time_us", "end_us"], orient="row").cast(pl.Int64)
    names = timed.select("name", "device")[found["row"]]
    return pl.concat([found.drop("row"), names], how="horizontal"), alone + sum(
        map(len, opened.values())
    )


def segments(reading: Reading, stacks: Stacks, rank: int | None) -> pl.DataFrame:
    """The table ``segments``, in the order of the file."""
    table = reading.table(document.SEGMENTS)
    sizes = {
        f"{name.split('_')[0]}_bytes": reading.sizes(table.words(name)).fill_null(0)
        for name in ("total_size", "allocated_size", "active_size")
    }
    columns = {
        "id": pl.int_range(table.height, dtype=pl.UInt32, eager=True),
        "rank": pl.repeat(rank, table.height, dtype=pl.Int32, eager=True),
        "device": reading.integers(table.words("device")).cast(pl.Int32, strict=False).fill_null(0),
        "address": reading.addresses(table.words("address")).fill_null(0),
        **sizes,
        "stream": reading.integers(table.words("stream")),
        "pool": _pools(reading, table),
        "segment_type": reading.strings(table.words("segment_type"), schema.NAME),
        "expandable": reading.booleans(table.words("is_expandable")),
        "stack": stacks.of(reading, table.words("frames")),
    }
    return pl.DataFrame(columns)


def blocks(reading: Reading, stacks: Stacks, of_segments: pl.DataFrame) -> pl.DataFrame:
    """The table ``blocks``. One without an address lies behind the one before it."""
    table = reading.table(document.BLOCKS)
    rows, segment = reading.owners(
        reading.table(document.SEGMENTS).words("blocks"), document.BLOCKS
    )
    size = reading.sizes(table.words("size")).fill_null(0)[rows]
    state = reading.strings(table.words("state"))[rows].replace(_STATES).fill_null("?")
    requested, stack = _asked_for(reading, table, stacks)
    found = pl.DataFrame(
        {
            "segment": segment,
            "address": reading.addresses(table.words("address"))[rows],
            "size_bytes": size,
            "requested_bytes": requested[rows],
            "state": state,
            "stack": stack[rows],
        }
    )
    before = pl.col("size_bytes").cum_sum().over("segment") - pl.col("size_bytes")
    start = pl.Series(of_segments["address"])[segment]
    return found.with_columns(
        segment=pl.col("segment").cast(pl.UInt32),
        address=pl.coalesce("address", start + before.cast(pl.UInt64, strict=False)),
        state=pl.col("state").cast(schema.NAME),
        # an inactive block is nobody's: what it says was asked for is of its last owner, or 0
        requested_bytes=pl.when(pl.col("state") != "inactive").then("requested_bytes"),
    )


def _pools(reading: Reading, table: Table) -> pl.Series:
    """The pool of each segment as text; null for the allocator's own."""
    words, place = np.unique(table.words("segment_pool_id"), return_inverse=True)
    told = [reading.value(int(word)) for word in words]
    names = [
        ".".join(map(str, ids)) if isinstance(ids, list) and any(ids) else None for ids in told
    ]
    return pl.Series(names, dtype=pl.String).gather(place).cast(schema.NAME)


def _asked_for(reading: Reading, table: Table, stacks: Stacks) -> tuple[pl.Series, pl.Series]:
    """The size that was asked for, and the stack of who did; older files have it in a history."""
    requested = reading.sizes(table.words("requested_size"))
    stack = stacks.of(reading, table.words("frames"))
    if not table.has("history"):
        return requested, stack
    past = reading.table(document.HISTORY)
    latest = reading.first_rows(table.words("history"), document.HISTORY)
    size = _at(reading.sizes(past.words("real_size")), latest)
    by = _at(stacks.of(reading, past.words("frames")), latest)
    return requested.zip_with(requested.is_not_null(), size), stack.zip_with(
        stack.is_not_null(), by
    )


def _at(values: pl.Series, rows: Ints) -> pl.Series:
    """Values at rows; null for row -1."""
    if values.is_empty():
        return pl.repeat(None, rows.size, dtype=values.dtype, eager=True)
    return values[np.maximum(rows, 0)].set(pl.Series(rows < 0), None)
