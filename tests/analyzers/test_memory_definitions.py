"""The ledger of allocations compared with plain Python, on generated histories."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from traceanalyzer.analyzers.memory.ledger import History, Ledger, Source, ledger

modest = settings(max_examples=60, deadline=None)
Row = dict[str, Any]

ROWS = {
    "ts": pl.Int64, "kind": pl.String, "address": pl.UInt64, "bytes": pl.Int64,
    "stack": pl.UInt32, "change": pl.Int64, "segment_change": pl.Int64,
    "allocated_bytes": pl.Int64, "reserved_bytes": pl.Int64,
}  # fmt: skip
BLOCKS = {
    "address": pl.UInt64, "size_bytes": pl.Int64, "requested_bytes": pl.Int64,
    "state": pl.String, "stack": pl.UInt32,
}  # fmt: skip
ADDRESSES = (16, 32, 48)


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Generate allocations and frees of a few addresses in any order, and segment changes."""
    rows: list[Row] = []
    ts = 0
    for _ in range(draw(st.integers(0, 12))):
        ts += draw(st.integers(0, 3))
        change = draw(st.sampled_from([1, 1, 1, -1, -1, 0]))
        rows.append(
            {
                "ts": ts,
                "kind": "segment_alloc" if not change else "alloc",
                "address": draw(st.sampled_from([*ADDRESSES, None] if change == 0 else ADDRESSES)),
                "bytes": draw(st.sampled_from([0, 100, 100, 200])),
                "stack": draw(st.sampled_from([None, 1, 2])),
                "change": change,
                "segment_change": 0 if change else draw(st.sampled_from([1, -1])),
                "allocated_bytes": None,
                "reserved_bytes": None,
            }
        )
    return rows


@st.composite
def blocks(draw: st.DrawFn) -> list[Row]:
    """Generate blocks at a few addresses at the end."""
    chosen = draw(st.lists(st.sampled_from([*ADDRESSES, 64]), unique=True, max_size=4))
    return [
        {
            "address": address,
            "size_bytes": 512,
            "requested_bytes": draw(st.sampled_from([None, 100])),
            "state": draw(st.sampled_from(["active_allocated", "active_pending_free", "inactive"])),
            "stack": 9,
        }
        for address in chosen
    ]


def ledger_of(rows: list[Row], blocks: list[Row], reserved: int | None, source: Source) -> Ledger:
    history = History(0, pl.DataFrame(rows, schema=ROWS), source)
    return ledger(history, pl.DataFrame(blocks, schema=BLOCKS), reserved)


def reference(rows: list[Row], blocks: list[Row]) -> tuple[list[Row], dict[str, int]]:
    """Return each allocation from its event to the next at its address, and mismatch counts.

    An address that is freed first, or is in a block but never allocated, was allocated before.
    """
    n, allocations = len(rows), []
    counts = dict.fromkeys(("reused_n", "double_free_n", "resized_n", "never_freed_n"), 0)
    for address in ADDRESSES:
        events = [(i + 1, r) for i, r in enumerate(rows) if r["change"] and r["address"] == address]
        for place, (at, row) in enumerate(events):
            after = events[place + 1] if place + 1 < len(events) else None
            if row["change"] == 1:
                freed = after is not None and after[1]["change"] == -1
                counts["reused_n"] += after is not None and not freed
                counts["resized_n"] += bool(freed and after and after[1]["bytes"] != row["bytes"])
                allocations.append(
                    {
                        "start": at, "end": after[0] if after else n + 1, "bytes": row["bytes"],
                        "address": address, "stack": row["stack"],
                        "freed_by": after[1]["stack"] if freed and after else None,
                        "origin": "recorded",
                    }
                )  # fmt: skip
            elif place == 0:
                allocations.append(
                    {
                        "start": 0, "end": at, "bytes": row["bytes"], "address": address,
                        "stack": row["stack"], "freed_by": row["stack"], "origin": "freed",
                    }
                )  # fmt: skip
            else:
                counts["double_free_n"] += events[place - 1][1]["change"] == -1
    active = [b for b in blocks if b["state"] != "inactive"]
    size = {b["address"]: b["requested_bytes"] or b["size_bytes"] for b in active}
    open_ = {r["address"]: r for r in allocations if r["end"] > n}
    for address, allocation in open_.items():
        counts["never_freed_n"] += address not in size
        counts["resized_n"] += address in size and size[address] != allocation["bytes"]
    for block in active:
        if block["address"] not in open_:
            allocations.append(
                {
                    "start": 0, "end": n + 1, "bytes": size[block["address"]],
                    "address": block["address"], "stack": 9, "freed_by": None, "origin": "block",
                }
            )  # fmt: skip
    return allocations, counts


def in_order(rows: list[Row]) -> list[tuple[Any, ...]]:
    return sorted(tuple(str(row[name]) for name in sorted(row)) for row in rows)


@modest
@given(histories(), blocks())
def test_allocations_match_definition(rows: list[Row], at_end: list[Row]) -> None:
    result = ledger_of(rows, at_end, 4096, "snapshot")
    expected, counts = reference(rows, at_end)
    assert in_order(result.allocations.to_dicts()) == in_order(expected)
    live = [
        sum(r["bytes"] for r in expected if r["start"] <= at < r["end"])
        for at in range(len(rows) + 1)
    ]
    assert result.live.tolist() == live
    assert result.positions == len(rows) + 1
    for at in range(len(rows) + 1):
        here = [r for r in expected if r["start"] <= at < r["end"]]
        assert in_order(result.alive(at).to_dicts()) == in_order(here)
    before = [r for r in expected if not r["start"]]
    quality = result.quality
    assert (quality.before_n, quality.before_bytes) == (
        len(before), sum(r["bytes"] for r in before),
    )  # fmt: skip
    assert (quality.reused_n, quality.double_free_n) == (
        counts["reused_n"],
        counts["double_free_n"],
    )
    assert (quality.resized_n, quality.never_freed_n) == (
        counts["resized_n"],
        counts["never_freed_n"],
    )
    active = [b for b in at_end if b["state"] != "inactive"]
    block_bytes = sum(b["requested_bytes"] or b["size_bytes"] for b in active)
    assert quality.difference_bytes == live[-1] - block_bytes


@modest
@given(histories(), st.sampled_from([None, 0, 4096]))
def test_reserved_is_computed_backwards_from_end(rows: list[Row], at_end: int | None) -> None:
    result = ledger_of(rows, [], at_end, "snapshot")
    if at_end is None:
        assert result.reserved is None
        assert result.quality.difference_bytes is None
        return
    if at_end < result.live[-1]:  # segments that do not hold what is live
        assert result.reserved is None
        return
    changes = [r["segment_change"] * r["bytes"] for r in rows]
    assert result.reserved is not None
    assert result.reserved.tolist() == [
        at_end - sum(changes[at:]) for at in range(len(rows) + 1)
    ]  # fmt: skip


@modest
@given(histories(), st.data())
def test_instants_give_unaccounted_and_reserved_bytes(rows: list[Row], data: st.DataObject) -> None:
    sums = st.sampled_from([None, 0, 50, 1_000, 5_000])
    for row in rows:
        row["allocated_bytes"], row["reserved_bytes"] = data.draw(sums), data.draw(sums)
    result = ledger_of(rows, [], None, "instants")
    expected, _ = reference(rows, [])
    live = [
        sum(r["bytes"] for r in expected if r["start"] <= at < r["end"])
        for at in range(len(rows) + 1)
    ]
    known = [(at + 1, r["allocated_bytes"]) for at, r in enumerate(rows)
             if r["allocated_bytes"] is not None]  # fmt: skip
    more = max(known[0][1] - live[known[0][0]], 0) if known else 0
    assert result.live.tolist() == [size + more for size in live]
    anonymous = result.allocations.filter(pl.col("address").is_null())
    assert anonymous.select("start", "end", "bytes").rows() == (
        [(0, len(rows) + 1, more)] if more else []
    )
    reserved = [r["reserved_bytes"] for r in rows]
    if all(size is None for size in reserved):
        assert result.reserved is None
        return
    first = next(size for size in reserved if size is not None)
    filled, last = [], first
    for size in reserved:
        last = last if size is None else size
        filled.append(last)
    assert result.reserved is not None
    assert result.reserved.tolist() == [filled[0], *filled]


@modest
@given(histories(), st.none() | st.integers(-1, 12), st.none() | st.integers(-1, 12))
def test_window_matches_positions(rows: list[Row], since: int | None, until: int | None) -> None:
    result = ledger_of(rows, [], 0, "snapshot")
    first, last = result.between(since, until)
    before = [r["ts"] for r in rows]
    end = len(rows) if until is None else sum(ts < until for ts in before)
    start = 0 if since is None else sum(ts < since for ts in before)
    assert (first, last) == (min(start, end), end)
    for position in range(-1, len(rows) + 3):
        time = rows[position - 1]["ts"] if 0 < position <= len(rows) else None
        assert result.time_ns(position) == time


def test_free_without_allocation_was_live_before() -> None:
    row = {"ts": 5, "kind": "free", "address": 16, "bytes": 7, "stack": 3, "change": -1,
           "segment_change": 0, "allocated_bytes": None, "reserved_bytes": None}  # fmt: skip
    result = ledger_of([row], [], None, "snapshot")
    assert result.live.tolist() == [7, 0]
    assert result.quality.before_n == 1
    assert result.alive(0)["origin"].to_list() == ["freed"]
    with pytest.raises(IndexError):
        result.live[2]
