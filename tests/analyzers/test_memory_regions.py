"""Segments and blocks at every position, compared with a simulated allocator."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from test_memory_definitions import BLOCKS, ROWS

from traceanalyzer.analyzers.memory.ledger import History, ledger
from traceanalyzer.analyzers.memory.regions import Regions, regions

modest = settings(max_examples=40, deadline=None)
Row = dict[str, Any]
MIB = 1 << 20
#: Addresses and sizes of segments; the first two are adjacent.
PLACES = {1 << 30: 2 * MIB, (1 << 30) + 2 * MIB: 20 * MIB, 1 << 31: 8 * MIB}

ROWS_OF_STREAM = {**ROWS, "stream": pl.Int64}
SEGMENTS = {
    "address": pl.UInt64, "total_bytes": pl.Int64, "stream": pl.Int64, "pool": pl.String,
    "segment_type": pl.String, "expandable": pl.Boolean,
}  # fmt: skip


@dataclass
class Allocator:
    """Segments and their blocks: address to (size, requested, stack)."""

    segments: dict[int, dict[int, tuple[int, int, int]]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    states: list[dict[int, dict[int, tuple[int, int, int]]]] = field(default_factory=list)

    def note(self, kind: str, address: int, size: int, change: int, of_segment: int) -> None:
        self.rows.append(
            {
                "ts": len(self.rows), "kind": kind, "stream": 3, "address": address, "bytes": size,
                "stack": len(self.rows) % 5, "change": change, "segment_change": of_segment,
                "allocated_bytes": None, "reserved_bytes": None,
            }
        )  # fmt: skip
        self.states.append(copy.deepcopy(self.segments))

    def reserve(self, address: int) -> None:
        self.segments[address] = {}
        self.note("segment_alloc", address, PLACES[address], 0, 1)

    def release(self, address: int) -> None:
        del self.segments[address]
        self.note("segment_free", address, PLACES[address], 0, -1)

    def allocate(self, address: int, offset: int, requested: int) -> None:
        size = max(-(-requested // 512), 1) * 512
        self.segments[address][address + offset] = (size, requested, len(self.rows) % 5)
        self.note("alloc", address + offset, requested, 1, 0)

    def free(self, address: int, block: int) -> None:
        _, requested, _ = self.segments[address].pop(block)
        self.note("free_completed", block, requested, -1, 0)


@st.composite
def allocators(draw: st.DrawFn) -> Allocator:
    """Generate some operations of an allocator with memory allocated before."""
    it = Allocator()
    for address in draw(st.lists(st.sampled_from(list(PLACES)), unique=True, max_size=2)):
        it.segments[address] = {}
        if draw(st.booleans()):
            it.segments[address][address + 4096] = (1024, 700, 4)
    it.states.append(copy.deepcopy(it.segments))
    for _ in range(draw(st.integers(0, 12))):
        move = draw(st.sampled_from(["reserve", "allocate", "allocate", "free", "release"]))
        missing = [address for address in PLACES if address not in it.segments]
        empty = [address for address, inside in it.segments.items() if not inside]
        blocks = [(a, block) for a, inside in it.segments.items() for block in inside]
        if move == "reserve" and missing:
            it.reserve(draw(st.sampled_from(missing)))
        elif move == "release" and empty:
            it.release(draw(st.sampled_from(empty)))
        elif move == "free" and blocks:
            it.free(*draw(st.sampled_from(blocks)))
        elif move == "allocate" and it.segments:
            address = draw(st.sampled_from(list(it.segments)))
            offset = 4096 * draw(st.integers(0, 5))
            if address + offset not in it.segments[address]:
                it.allocate(address, offset, draw(st.sampled_from([0, 1, 512, 513, 4096])))
    return it


def at(it: Allocator, position: int) -> Regions:
    """Return the reconstruction at a position, from the history and the state at the end."""
    segments = [
        {
            "address": address, "total_bytes": PLACES[address], "stream": 0, "pool": None,
            "segment_type": "small" if PLACES[address] == 2 * MIB else "large",
            "expandable": False,
        }
        for address in it.segments
    ]  # fmt: skip
    blocks = [
        {
            "address": block, "size_bytes": size, "requested_bytes": requested,
            "state": "active_allocated", "stack": stack,
        }
        for inside in it.segments.values() for block, (size, requested, stack) in inside.items()
    ]  # fmt: skip
    at_end = pl.DataFrame(blocks, schema=BLOCKS)
    reserved = sum(PLACES[address] for address in it.segments)
    events = History(0, pl.DataFrame(it.rows, schema=ROWS_OF_STREAM), "snapshot")
    history = ledger(events, at_end, reserved)
    result = regions(history, pl.DataFrame(segments, schema=SEGMENTS), at_end, position)
    assert result is not None
    return result


def layout(blocks: dict[int, tuple[int, int, int]], address: int) -> list[tuple[int, int, str]]:
    """Return offset, size and state of the live and free blocks of a segment."""
    rows, until = [], 0
    for block, (size, _, _) in sorted(blocks.items()):
        offset = block - address
        if offset > until:
            rows.append((until, offset - until, "free"))
        rows.append((offset, size, "live"))
        until = offset + size
    if until < PLACES[address]:
        rows.append((until, PLACES[address] - until, "free"))
    return rows


@pytest.mark.matrix
@modest
@given(allocators())
def test_segments_and_blocks_at_every_position(it: Allocator) -> None:
    for position, state in enumerate(it.states):
        result = at(it, position)
        segments = result.segments.sort("address")
        assert segments.select("address", "total_bytes").rows() == [
            (address, PLACES[address]) for address in sorted(state)
        ]
        assert segments["id"].to_list() == list(range(len(state)))
        assert segments["small"].to_list() == [PLACES[a] == 2 * MIB for a in sorted(state)]
        # a segment that is freed later has the stream of its events
        assert segments["stream"].to_list() == [0 if a in it.segments else 3 for a in sorted(state)]
        for number, address in enumerate(sorted(state)):
            blocks = result.blocks.filter(pl.col("segment") == number)
            expected = layout(state[address], address)
            assert blocks.select("offset_bytes", "total_bytes", "state").rows() == expected


@modest
@given(allocators(), st.sampled_from([1, MIB, MIB + 1, 8 * MIB]), st.sampled_from([None, 0, 3]))
def test_serving_blocks_match_simulation(it: Allocator, request: int, stream: int | None) -> None:
    for position, state in enumerate(it.states):
        result = at(it, position)
        free = [
            (number, offset, size)
            for number, address in enumerate(sorted(state))
            for offset, size, what in layout(state[address], address)
            if what == "free"
            and (PLACES[address] == 2 * MIB) == (request <= MIB)
            and stream in (None, 0 if address in it.segments else 3)
        ]
        serving = result.serving(request, stream).select("segment", "offset_bytes", "total_bytes")
        assert sorted(serving.rows()) == free
        for size in (2 * MIB, 2 * MIB + 1, 20 * MIB):
            divided = any(
                PLACES[a] >= size and len({what for *_, what in layout(state[a], a)}) > 1
                for a in state
            )
            assert result.divided(size) == divided


@pytest.mark.parametrize("expandable", [False, True])
def test_expandable_segment_is_one_run(expandable: bool) -> None:
    start = 1 << 30
    segments = pl.DataFrame(
        [
            {
                "address": start + n * 2 * MIB, "total_bytes": 2 * MIB, "stream": 0, "pool": None,
                "segment_type": "large", "expandable": expandable,
            }
            for n in range(3)
        ],
        schema=SEGMENTS,
    )  # fmt: skip
    none = pl.DataFrame(schema=BLOCKS)
    history = ledger(History(0, pl.DataFrame(schema=ROWS_OF_STREAM), "snapshot"), none, 6 * MIB)
    result = regions(history, segments, none, 0)
    assert result is not None
    assert result.segments["total_bytes"].to_list() == (
        [6 * MIB] if expandable else [2 * MIB] * 3
    )  # fmt: skip
    pooled = segments.with_columns(pool=pl.lit("(1, 0)"))
    private = regions(history, pooled, none, 0)
    assert private is not None
    assert private.serving(8 * MIB, 0).is_empty()
    assert result.serving(8 * MIB, 0).height == result.segments.height


@pytest.mark.parametrize(("expandable", "split"), [(False, 56 * MIB), (True, 16 * MIB)])
def test_a_free_tail_is_split_unless_its_pages_can_be_unmapped(
    expandable: bool, split: int
) -> None:
    """A live block of 4 MiB at the start of 60 MiB: of expandable ones, 3 pages of 20 MiB."""
    start = 1 << 30
    segments = pl.DataFrame(
        [{"address": start, "total_bytes": 60 * MIB, "stream": 0, "pool": None,
          "segment_type": "large", "expandable": expandable}],
        schema=SEGMENTS,
    )  # fmt: skip
    blocks = pl.DataFrame(
        [{"address": start, "size_bytes": 4 * MIB, "requested_bytes": 4 * MIB,
          "state": "active_allocated", "stack": None}],
        schema=BLOCKS,
    )  # fmt: skip
    events = History(0, pl.DataFrame(schema=ROWS_OF_STREAM), "snapshot")
    result = regions(ledger(events, blocks, 60 * MIB), segments, blocks, 0)
    assert result is not None
    assert result.split_bytes() == split


def test_unknown_reserved_memory_gives_none() -> None:
    none = pl.DataFrame(schema=BLOCKS)
    history = ledger(History(0, pl.DataFrame(schema=ROWS_OF_STREAM), "snapshot"), none, None)
    assert regions(history, pl.DataFrame(schema=SEGMENTS), none, 0) is None
