"""Memory analyses of small snapshots, one behaviour each."""

from __future__ import annotations

import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from snapshots import MAIN, MIB, START_US, TORCH, Frame, Snapshot
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.memory.attribution import CATEGORIES
from traceanalyzer.analyzers.memory.oom_causes import CAUSE, Situation, advice, cause
from traceanalyzer.analyzers.memory.result import private_pools
from traceanalyzer.errors import MalformedInput, MissingData, OptionError

ROOT = Path(__file__).parents[2]
BASE = 0x7F00_0000_0000
WRAPPED: Frame = ("wrapper", TORCH + "optim/optimizer.py", 533)
ADAM: Frame = ("step", TORCH + "optim/adamw.py", 232)
CALL: Frame = ("_call_impl", TORCH + "nn/modules/module.py", 1762)
FORWARD: Frame = ("forward", "/home/ada/model.py", 20)
ENGINE: Frame = ("torch::autograd::Engine::thread_main(...)", "??", 0)
ACCUMULATE: Frame = ("torch::autograd::AccumulateGrad::apply(...)", "??", 0)
BACKWARD: Frame = ("torch::autograd::generated::MulBackward0::apply(...)", "??", 0)


# --- attribution -----------------------------------------------------------------------------


def category_of(tmp_path: Path, *stack: Frame, freed_by: tuple[Frame, ...] = ()) -> tuple[str, str]:
    """Return category and confidence of an allocation that lives for 200 events or is freed."""
    snapshot = Snapshot().note("segment_alloc", BASE, 20 * MIB).alloc(BASE, 4 * MIB, *stack)
    if freed_by:
        snapshot.free(BASE, 4 * MIB, *freed_by)
        snapshot.hold(BASE, 20 * MIB)
    else:
        for _ in range(100):
            snapshot.alloc(BASE + 8 * MIB, 512).free(BASE + 8 * MIB, 512)
        snapshot.hold(BASE, 20 * MIB, (0, 4 * MIB))
    alive = ta.memory(snapshot.write(tmp_path / "x.pickle")).alive
    row = alive.filter(pl.col("live_bytes") == 4 * MIB).row(0, named=True)
    return row["category"], row["confidence"]


FSDP: Frame = ("forward", TORCH + "distributed/fsdp/fully_sharded_data_parallel.py", 864)
FLAT: Frame = ("_alloc_padded", TORCH + "distributed/fsdp/_flat_param.py", 1500)
CLOSURE: Frame = ("closure", "/opt/venv/lib/python3.12/site-packages/lightning/loop.py", 126)
CHECKPOINT: Frame = ("backward", TORCH + "utils/checkpoint.py", 288)
PYTHON_ENGINE: Frame = ("_engine_run_backward", TORCH + "autograd/graph.py", 824)
INDUCTOR: Frame = ("call", "/tmp/torchinductor_root/ab/cabc.py", 300)  # noqa: S108 - a name


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("stack", "freed_by", "expected"),
    [
        ((MAIN, WRAPPED, ADAM), (), ("optimizer state", "high")),
        ((MAIN, WRAPPED, ADAM), (MAIN, WRAPPED, ADAM), ("temporary", "medium")),
        ((MAIN, WRAPPED, CLOSURE, CALL, FORWARD), (), ("activations", "medium")),
        ((MAIN, FSDP, CALL, FORWARD), (ENGINE,), ("activations", "high")),
        ((MAIN, FSDP, FLAT), (), ("communication buffers", "medium")),
        ((MAIN, PYTHON_ENGINE, CHECKPOINT, CALL, FORWARD), (ENGINE,), ("activations", "high")),
        ((ENGINE, BACKWARD), (ENGINE, BACKWARD), ("temporary", "medium")),
        ((ENGINE, BACKWARD), (), ("gradients", "medium")),
        ((ENGINE, ACCUMULATE), (), ("gradients", "high")),
        ((("main", "/home/ada/optim/train.py", 3),), (), ("unknown", "none")),
        ((MAIN, CALL, FORWARD, ("at::native::_to_copy", "??", 0)), (), ("activations", "medium")),
        ((MAIN, ("at::native::_to_copy", "??", 0)), (), ("inputs", "low")),
        ((MAIN, ("to", TORCH + "nn/modules/module.py", 1340)), (), ("parameters", "medium")),
    ],
    ids=str,
)
def test_innermost_code_decides_category(
    stack: tuple[Frame, ...],
    freed_by: tuple[Frame, ...],
    expected: tuple[str, str],
    tmp_path: Path,
) -> None:
    assert category_of(tmp_path, *stack, freed_by=freed_by) == expected


def test_free_decides_category_without_allocation(tmp_path: Path) -> None:
    zero = ("zero_grad", TORCH + "optim/optimizer.py", 1000)
    snapshot = (
        Snapshot()
        .free(BASE, MIB, MAIN, zero)
        .free(BASE + MIB, 2 * MIB, ENGINE)
        .hold(BASE, 20 * MIB)
    )
    categories = ta.memory(snapshot.write(tmp_path / "x.pickle")).categories
    rows = categories.select(pl.col("category").cast(pl.String), "live_bytes").rows()
    assert sorted(rows) == [("activations", 2 * MIB), ("gradients", MIB)]


def test_texts_of_the_program_are_exact_categories(tmp_path: Path) -> None:
    """Recorded with an allocation, or later at its address; the last one counts, until its free."""
    snapshot = (
        Snapshot()
        .note("alloc", BASE, MIB, user_metadata="weights")
        .note("alloc", BASE + MIB, 2 * MIB, user_metadata="N/A")
        .note("annotate", BASE + MIB, 2 * MIB, user_metadata="first")
        .note("annotate", BASE + MIB, 2 * MIB, user_metadata="saved for backward")
        .note("alloc", BASE + 4 * MIB, 4 * MIB, user_metadata="freed")
        .free(BASE + 4 * MIB, 4 * MIB)
        .note("alloc", BASE + 4 * MIB, 8 * MIB, CALL, FORWARD, user_metadata="")
        .note("annotate", BASE + 16 * MIB, 16 * MIB, user_metadata="before the history")
        .hold(BASE, 40 * MIB, (0, MIB), (MIB, 2 * MIB), (4 * MIB, 8 * MIB), (16 * MIB, 16 * MIB))
    )
    categories = ta.memory(snapshot.write(tmp_path / "x.pickle")).categories
    rows = categories.select(pl.col("category", "confidence").cast(pl.String), "live_bytes").rows()
    assert rows == [
        ("before the history", "exact", 16 * MIB),
        ("activations", "medium", 8 * MIB),
        ("saved for backward", "exact", 2 * MIB),
        ("weights", "exact", MIB),
    ]


def test_annotations_of_allocations_as_pytorch_writes_them(shared: Path) -> None:
    alive = ta.memory(shared / "data/causes/other/memory_annotate.pickle").alive
    (row,) = alive.filter(pl.col("confidence") == "exact").rows(named=True)
    assert (row["category"], row["live_bytes"]) == ("retained_by_autograd", 4 * MIB)


def test_documented_categories_are_complete() -> None:
    page = (ROOT / "docs" / "memory.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+) \| .* \| (?:high|medium|low|none) \|$", page, re.MULTILINE)
    assert set(rows) == set(CATEGORIES)


def test_compiled_code_is_not_own_code(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB, MAIN, FORWARD, INDUCTOR).hold(BASE, 2 * MIB, (0, MIB))
    assert ta.memory(snapshot.write(tmp_path / "x.pickle")).lines["function"].to_list() == [
        "forward"
    ]


def test_deep_stack_is_shortened(tmp_path: Path) -> None:
    deep = [("f" * 5000, "/home/ada/deep.py", line) for line in range(1, 3001)]
    snapshot = Snapshot().alloc(BASE, MIB, *deep).hold(BASE, 2 * MIB, (0, MIB))
    result = ta.memory(snapshot.write(tmp_path / "x.pickle"))
    assert "(2,780 more)" in result.alive["stack"][0]
    assert len(result.to_dict()["stacks"][0]["stack"]) < 300_000


# --- quality ---------------------------------------------------------------------------------


def test_mismatches_are_counted(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB).alloc(BASE, 2 * MIB)  # an address in use
    snapshot.free(BASE, 2 * MIB).note("free_completed", BASE, 2 * MIB)  # freed twice
    snapshot.alloc(BASE + 8 * MIB, MIB).free(BASE + 8 * MIB, 3 * MIB)  # of another size
    snapshot.alloc(BASE + 16 * MIB, MIB)  # in no block
    result = ta.memory(snapshot.hold(BASE, 20 * MIB).write(tmp_path / "x.pickle"))
    row = result.devices.row(0, named=True)
    counts = ("reused_n", "double_free_n", "resized_n", "never_freed_n", "difference_bytes")
    assert [row[name] for name in counts] == [1, 1, 1, 1, MIB]
    check_wording(result.notes)


@pytest.mark.parametrize("skipped", ["free_requested", "free_completed", None])
def test_one_event_of_each_free_may_be_missing(tmp_path: Path, skipped: str | None) -> None:
    """``_record_memory_history(skip_actions=[...])`` omits events."""
    snapshot = Snapshot()
    for n in range(5):
        snapshot.alloc(BASE + n * MIB, MIB)
        for action in {"free_requested", "free_completed"} - {skipped}:
            snapshot.note(action, BASE + n * MIB, MIB)
    result = ta.memory(snapshot.write(tmp_path / "x.pickle")).devices.row(0, named=True)
    assert (result["peak_bytes"], result["end_bytes"]) == (MIB, 0)
    assert (result["double_free_n"], result["never_freed_n"], result["resized_n"]) == (0, 0, 0)


def test_full_segment_has_no_free_memory(tmp_path: Path) -> None:
    snapshot = Snapshot().note("segment_alloc", BASE, 20 * MIB).alloc(BASE, 20 * MIB)
    result = ta.memory(snapshot.hold(BASE, 20 * MIB, (0, 20 * MIB)).write(tmp_path / "x.pickle"))
    (row,) = result.devices.to_dicts()
    assert (row["allocated_end_bytes"], row["fragmentation_frac"]) == (20 * MIB, 0)
    free = ("inactive_bytes", "inactive_split_bytes", "inactive_split_n", "largest_free_bytes")
    assert [row[name] for name in free] == [0] * 4


@pytest.mark.parametrize("device", [0, 1])
def test_private_pools_are_named(device: int, tmp_path: Path) -> None:
    """Free memory in the pool of a CUDA graph serves nothing else."""
    snapshot = Snapshot().alloc(BASE, 4 * MIB, CALL, FORWARD).alloc(BASE + 64 * MIB, 6 * MIB)
    snapshot.hold(BASE, 20 * MIB, (0, 4 * MIB), device=device)
    snapshot.hold(BASE + 64 * MIB, 40 * MIB, (0, 6 * MIB), segment_pool_id=(3, 0), device=device)
    snapshot.more = {"device_traces": [[] for _ in range(device)] + [snapshot.events]}
    result = ta.memory(snapshot.write(tmp_path / "x.pickle"))
    columns = "pool", "segments", "reserved_bytes", "allocated_bytes", "free_bytes"
    assert result.pools.filter(pl.col("device") == device).select(columns).rows() == [
        ("3.0", 1, 40 * MIB, 6 * MIB, 34 * MIB),
        (None, 1, 20 * MIB, 4 * MIB, 16 * MIB),
    ]
    assert "Private pool 3.0" in result.view().verdict
    assert not next(t for t in result.view().tables if t.name == "pools").detail


def test_private_pools_are_summed(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, 4 * MIB, CALL, FORWARD)
    snapshot.hold(BASE, 20 * MIB, (0, 4 * MIB))
    for number in (1, 2, 3):
        snapshot.hold(BASE + number * 64 * MIB, 40 * MIB, segment_pool_id=(0, number))
    result = ta.memory(snapshot.write(tmp_path / "x.pickle"))
    pools = private_pools(result)
    assert pools is not None
    assert pools.free_bytes == 120 * MIB
    assert pools.text.startswith("3 private pools")
    findings = {one.id: one for one in ta.diagnose(tmp_path / "x.pickle").findings}
    assert all("expandable" not in one.advice for one in findings.values())


def test_memory_in_one_pool_needs_no_table_of_pools(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB).hold(BASE, 2 * MIB, (0, MIB))
    result = ta.memory(snapshot.write(tmp_path / "x.pickle"))
    assert result.pools.is_empty()
    assert "pools" not in {table.name for table in result.view().tables}


@pytest.mark.parametrize("size", [None, 0, MIB])
def test_segments_that_do_not_hold_what_is_live_tell_nothing(
    size: int | None, tmp_path: Path
) -> None:
    """Then what is reserved is not known, rather than 0 B, and the cause of an error neither."""
    snapshot = Snapshot().note("segment_alloc", BASE, 20 * MIB).alloc(BASE, 8 * MIB)
    snapshot.note("oom", 5 * MIB, 64 * MIB)
    if size is not None:
        snapshot.hold(BASE, size)
    path = snapshot.write(tmp_path / "x.pickle")
    row = ta.memory(path).devices.row(0, named=True)
    assert (row["peak_bytes"], row["reserved_peak_bytes"]) == (8 * MIB, None)
    assert ta.memory_oom(path).errors["cause"].to_list() == ["not known"]


def test_empty_cache_is_not_a_retry(tmp_path: Path) -> None:
    empty = ("empty_cache", TORCH + "cuda/memory.py", 200)
    snapshot = Snapshot()
    for _ in range(3):
        snapshot.note("segment_alloc", BASE, 20 * MIB).alloc(BASE, MIB).free(BASE, MIB)
        snapshot.note("segment_free", BASE, 20 * MIB, MAIN, empty)
    result = ta.memory(snapshot.write(tmp_path / "x.pickle")).devices
    assert result["retries"].to_list() == [0]
    assert result["segment_allocs"].to_list() == result["segment_frees"].to_list() == [3]
    assert result["allocations"].to_list() == [3]
    # the absence of segments at the end is known too
    assert result["reserved_peak_bytes"].to_list() == [20 * MIB]
    assert result["difference_bytes"].to_list() == [0]


def test_segments_that_go_with_their_blocks_are_no_retries(tmp_path: Path) -> None:
    snapshot = Snapshot()
    for _ in range(3):
        snapshot.note("segment_alloc", BASE, 20 * MIB, MAIN).alloc(BASE, 20 * MIB, MAIN)
        snapshot.free(BASE, 20 * MIB, MAIN)
        at = {"time_us": snapshot.events[-1]["time_us"]}
        snapshot.note("segment_free", BASE, 20 * MIB, MAIN, **at)
    result = ta.memory(snapshot.write(tmp_path / "x.pickle")).devices
    assert result["retries"].to_list() == [0]
    assert result["segment_frees"].to_list() == [3]


def test_retry_frees_and_allocates_in_one_call(tmp_path: Path) -> None:
    snapshot = Snapshot().note("segment_alloc", BASE, 20 * MIB, MAIN)
    snapshot.alloc(BASE, MIB).free(BASE, MIB)
    snapshot.note("segment_free", BASE, 20 * MIB, MAIN, FORWARD)
    snapshot.note("segment_alloc", BASE, 40 * MIB, MAIN, FORWARD).hold(BASE, 40 * MIB)
    result = ta.memory(snapshot.write(tmp_path / "x.pickle"))
    assert result.devices["retries"].to_list() == [1]
    row = result.devices.row(0, named=True)
    assert (row["segment_allocs"], row["segment_frees"]) == (2, 1)
    check_wording(result.verdict)


def test_idle_device_has_a_history(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB).free(BASE, MIB).hold(BASE, 2 * MIB)
    snapshot.hold(BASE + 64 * MIB, 20 * MIB, (0, 20 * MIB), device=1)
    snapshot.more = {"device_traces": [snapshot.events, []]}
    result = ta.memory(snapshot.write(tmp_path / "x.pickle"))
    assert result.devices["peak_bytes"].to_list() == [MIB, 20 * MIB]
    check_wording(result.verdict)


def test_files_joined_without_ranks_are_rejected(tmp_path: Path) -> None:
    path = Snapshot().alloc(BASE, MIB).hold(BASE, 2 * MIB, (0, MIB)).write(tmp_path / "x.pickle")
    trace = ta.read(path)
    with pytest.raises(OptionError, match="without ranks"):
        ta.memory(ta.concat([trace, trace]))
    twice = ta.memory([path, path])
    assert twice.lines["live_frac"].to_list() == [1.0]


# --- the parser ------------------------------------------------------------------------------


@pytest.mark.matrix
def test_invalid_top_level_values_are_ignored(tmp_path: Path) -> None:
    for value in (float("nan"), True, 5.0, None, "x", [float("inf")], {"a": [1]}, (1, 2)):
        snapshot = Snapshot().alloc(BASE, MIB).hold(BASE, 2 * MIB, (0, MIB))
        names = ("allocator_settings", "trace_alloc_overflowed", "trace_alloc_max_entries")
        snapshot.more = {name: deepcopy(value) for name in names}
        assert ta.memory(snapshot.write(tmp_path / "x.pickle")).devices.height == 1


def test_shared_containers_are_not_expanded(tmp_path: Path) -> None:
    shared = tuple(range(1000))
    snapshot = Snapshot().alloc(BASE, MIB).hold(BASE, 2 * MIB, (0, MIB))
    snapshot.settings = {str(n): [shared] * 1000 for n in range(50)}
    try:
        extra = ta.read(snapshot.write(tmp_path / "x.pickle")).meta.extra
    except MalformedInput:
        return
    assert extra is not None
    assert len(extra) < 200_000


def test_args_belong_to_their_row(tmp_path: Path) -> None:
    snapshot = Snapshot().note("alloc", BASE, MIB, user_metadata="one", pool_id=(0, 1))
    snapshot.note("alloc", BASE + MIB, MIB).note("alloc", BASE + 2 * MIB, MIB, user_metadata="two")
    args = ta.read(snapshot.write(tmp_path / "x.pickle"), columns=["args"]).events["args"].to_list()
    assert [re.findall("one|two", text) for text in args] == [["one"], [], ["two"]]
    assert "[0, 1]" in args[0]


def test_reversed_annotations_are_open(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB).hold(BASE, 2 * MIB, (0, MIB)).step("step 1", 50, 20)
    snapshot.marks.append({"name": "x", "stage": "END", "device": 0, "time_us": (1 << 63) - 1})
    trace = ta.read(snapshot.write(tmp_path / "x.pickle"))
    assert trace.events.filter(pl.col("kind") == "user_annotation")["dur"].to_list() == [None]
    assert dict(trace.issues.select("code", "count").rows())["open-annotations"] == 3


def test_invalid_addresses_are_dropped(tmp_path: Path) -> None:
    snapshot = (
        Snapshot().alloc((1 << 63) + 4096, MIB).alloc(BASE, MIB).hold(BASE, 2 * MIB, (0, MIB))
    )
    path = snapshot.write(tmp_path / "x.pickle")
    assert ta.memory(path).devices["peak_bytes"].to_list() == [MIB]
    assert dict(ta.read(path).issues.select("code", "count").rows())["wrong-type"] == 1


# --- out of memory ---------------------------------------------------------------------------

BARE = Situation(request=30 * MIB, reserved=100 * MIB)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "real demand"),
        ({"device_free": 30 * MIB}, "limit"),
        # the free blocks have most of the request, or a small part of it
        ({"device_free": 14 * MIB, "unused": 16 * MIB, "usable": 16 * MIB}, "fragmentation"),
        ({"device_free": 20 * MIB, "unused": 14 * MIB, "usable": 14 * MIB}, "real demand"),
        ({"device_free": 29 * MIB, "unused": MIB, "usable": MIB}, "real demand"),
        ({"unused": 40 * MIB, "usable": 40 * MIB, "largest_free": 10 * MIB}, "fragmentation"),
        (
            {"unused": 40 * MIB, "usable": 10 * MIB, "largest_free": 10 * MIB},
            "another pool or stream",
        ),
        ({"unused": 20 * MIB, "usable": 20 * MIB, "largest_free": 5 * MIB}, "real demand"),
        # it would just fit, but hardly anything is unused
        (
            {"device_free": 29 * MIB, "unused": MIB, "usable": MIB, "reserved": 200 * MIB},
            "real demand",
        ),
        ({"outside": 50 * MIB}, "outside PyTorch"),
        ({"outside": 10 * MIB}, "real demand"),
        ({"request": 9 * MIB, "device_free": 12 * MIB}, "real demand"),
        ({"request": 33 * MIB, "device_free": 36 * MIB, "expandable": True}, "real demand"),
        ({"request": 33 * MIB, "device_free": 40 * MIB, "expandable": True}, "limit"),
    ],
    ids=str,
)
def test_cause_of_situation(changes: dict[str, Any], expected: str) -> None:
    assert cause(replace(BARE, **changes)) == expected


def test_advice_depends_on_settings() -> None:
    fragmented = replace(BARE, unused=40 * MIB, usable=40 * MIB, divided=True)
    assert "expandable_segments:True" in advice(fragmented, "fragmentation")
    assert "max_split_size_mb" in advice(fragmented, "fragmentation")
    assert "max_split_size_mb" not in advice(replace(fragmented, limited=True), "fragmentation")
    check_wording(advice(replace(fragmented, expandable=True), "fragmentation"))
    check_wording(advice(replace(BARE, request=1 << 50), "real demand"))
    assert "record_stream" in advice(replace(BARE, pending=20 * MIB), "real demand")
    known = [reason for reason in CAUSE.categories if reason != "steady growth"]  # needs its size
    check_wording(*(advice(BARE, reason) for reason in known))


LOAD: Frame = ("load", TORCH + "serialization.py", 1500)
LOSS: Frame = ("cross_entropy", TORCH + "nn/functional.py", 3460)


@pytest.mark.parametrize(
    ("request_mib", "frame", "holder", "word"),
    [
        (30, FORWARD, LOAD, "map_location"),
        (30, LOSS, FORWARD, "cross-entropy"),
        (1, LOSS, FORWARD, "use a smaller batch"),
        (30, FORWARD, FORWARD, "use a smaller batch"),
    ],
)
def test_what_to_do_first_follows_from_the_frames(
    request_mib: int, frame: Frame, holder: Frame, word: str, tmp_path: Path
) -> None:
    snapshot = (
        Snapshot().note("segment_alloc", BASE, 100 * MIB).alloc(BASE, 100 * MIB, holder, MAIN)
    )
    snapshot.note("oom", 0, request_mib * MIB, frame, MAIN).hold(BASE, 100 * MIB, (0, 100 * MIB))
    (row,) = ta.memory_oom(snapshot.write(tmp_path / "x.pickle")).errors.to_dicts()
    assert row["cause"] == "real demand"
    assert word in row["advice"].split("; then ")[0]


def test_mapped_segment_is_one_run_despite_later_unmap(tmp_path: Path) -> None:
    """60 MiB mapped, 50 allocated when 15 are requested; the middle is unmapped later."""
    snapshot = Snapshot(settings={"expandable_segments": True})
    snapshot.note("segment_map", BASE, 60 * MIB).alloc(BASE, 30 * MIB).alloc(
        BASE + 30 * MIB, 20 * MIB
    )
    snapshot.note("oom", 5 * MIB, 15 * MIB)
    snapshot.free(BASE, 30 * MIB).free(BASE + 30 * MIB, 20 * MIB)
    snapshot.note("segment_unmap", BASE + 20 * MIB, 20 * MIB)
    snapshot.hold(BASE, 20 * MIB, is_expandable=True).hold(
        BASE + 40 * MIB, 20 * MIB, is_expandable=True
    )
    (row,) = ta.memory_oom(snapshot.write(tmp_path / "x.pickle")).errors.to_dicts()
    sizes = ("reserved_bytes", "allocated_bytes", "unused_bytes", "largest_free_bytes")
    assert [row[name] // MIB for name in sizes] == [60, 50, 10, 10]
    assert row["cause"] == "fragmentation"


def oom(tmp_path: Path, *, pools: int = 0, **segment: Any) -> dict[str, Any]:
    snapshot = Snapshot().note("oom", MIB, 30 * MIB)
    for number in range(3):
        pool = {"segment_pool_id": (0, 1 + number % pools)} if pools else {}
        snapshot.hold(BASE + number * 64 * MIB, 20 * MIB, **segment, **pool)
    (row,) = ta.memory_oom(snapshot.write(tmp_path / "x.pickle")).errors.to_dicts()
    return row


def test_other_pools_and_streams_are_not_usable(tmp_path: Path) -> None:
    assert oom(tmp_path)["cause"] == "fragmentation"
    for segment in ({"segment_pool_id": (0, 1)}, {"stream": 7}, {"segment_type": "small"}):
        row = oom(tmp_path, **segment)
        assert (row["cause"], row["usable_bytes"]) == ("another pool or stream", 0)


@pytest.mark.parametrize("pools", [0, 1, 3])
def test_several_private_pools_should_be_one(tmp_path: Path, pools: int) -> None:
    row = oom(tmp_path, pools=pools, **({} if pools else {"stream": 7}))
    assert row["cause"] == "another pool or stream"
    assert ("share one pool" in row["advice"]) == (pools == 3)
    assert ("empty_cache" in row["advice"]) == (pools != 3)


def test_huge_request_is_reported(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB).note("oom", MIB, 1 << 55).hold(BASE, 2 * MIB, (0, MIB))
    result = ta.memory_oom(snapshot.write(tmp_path / "x.pickle"))
    assert result.errors["request_bytes"].to_list() == [1 << 55]
    check_wording(result.verdict)


def test_missing_data_gives_unknown_cause(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB).note("oom", MIB, MIB)
    del snapshot.events[-1]["device_free"]
    (row,) = ta.memory_oom(snapshot.write(tmp_path / "x.pickle")).errors.to_dicts()
    assert (row["cause"], row["missing_bytes"]) == ("not known", None)


def test_too_small_capacity_is_rejected(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB).note("oom", MIB, MIB).hold(BASE, 2 * MIB, (0, MIB))
    path = snapshot.write(tmp_path / "x.pickle")
    for capacity in (80, -1):
        with pytest.raises(OptionError, match="capacity"):
            ta.memory_oom(path, capacity_bytes=capacity)
        with pytest.raises(OptionError, match="capacity"):
            ta.memory(path, capacity_bytes=capacity)
    of_default = ta.memory(path, capacity_bytes=8 * MIB).errors
    assert of_default is not None
    for errors in (ta.memory_oom(path, capacity_bytes=8 * MIB), of_default):
        assert errors.errors["outside_bytes"].to_list() == [5 * MIB]


def test_verdict_without_errors_mentions_window(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB).note("oom", MIB, MIB).hold(BASE, 2 * MIB, (0, MIB))
    path = snapshot.write(tmp_path / "x.pickle")
    check_wording(ta.memory_oom(path, until_ns=5_000).verdict)
    early = ta.memory(path, until_ns=5_000)
    assert early.devices["ooms"].to_list() == [0]
    check_wording(*early.notes)


@pytest.mark.matrix
def test_events_before_window_are_not_counted(tmp_path: Path) -> None:
    """The window starts after the last event before it."""
    snapshot = Snapshot().alloc(BASE, MIB).note("oom", MIB, MIB).alloc(BASE + MIB, MIB)
    path = snapshot.hold(BASE, 2 * MIB, (0, MIB), (MIB, MIB)).write(tmp_path / "x.pickle")
    allocated, failed, again = ta.memory(path).timeline["time_ns"].drop_nulls().to_list()
    late = ta.memory(path, since_ns=failed + 1).devices
    assert late.select("allocations", "ooms").row(0) == (1, 0)
    assert ta.memory_oom(path, since_ns=failed + 1).errors.is_empty()
    assert ta.memory(path, since_ns=failed).devices.select("allocations", "ooms").row(0) == (1, 1)
    assert ta.memory_oom(path, since_ns=failed).errors.height == 1
    assert ta.memory_oom(path, since_ns=allocated, until_ns=failed).errors.is_empty()
    assert again > failed


def test_invalid_stack_is_counted_once(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, MIB).hold(BASE, 2 * MIB, (0, MIB))
    snapshot.events[0]["frames"] = 7
    issues = ta.read(snapshot.write(tmp_path / "x.pickle")).issues
    assert dict(issues.select("code", "count").rows())["wrong-type"] == 1


# --- growth ----------------------------------------------------------------------------------


def growing(steps: int, leaks: set[int], *, nested: bool = False) -> Snapshot:
    """Return steps of which some leak 1 MiB."""
    snapshot = Snapshot()
    for step in range(steps):
        begin = snapshot.now
        snapshot.alloc(BASE, MIB).free(BASE, MIB)
        if step in leaks:
            snapshot.alloc(BASE + (step + 1) * MIB, MIB, MAIN, ("append", "/home/ada/train.py", 60))
        if nested:
            snapshot.step(f"step {step}", begin + 1, begin + 2)
        snapshot.step(f"ProfilerStep#{step}", begin, snapshot.now - 1)
    return snapshot


def suspects(snapshot: Snapshot, tmp_path: Path) -> list[str]:
    return ta.memory_growth(snapshot.write(tmp_path / "x.pickle")).suspects["function"].to_list()


@pytest.mark.parametrize(
    ("leaks", "suspect"),
    [
        (set(range(12)), True),
        (set(range(5, 12)), True),
        (set(range(1, 12, 2)), True),
        ({0}, False),
        ({0, 1}, False),
        ({3, 7}, False),
    ],
    ids=str,
)
def test_leak_is_suspected(leaks: set[int], suspect: bool, tmp_path: Path) -> None:
    assert suspects(growing(12, leaks), tmp_path) == ["append"] * suspect


def test_ranges_within_steps_are_ignored(tmp_path: Path) -> None:
    assert suspects(growing(8, set(range(8)), nested=True), tmp_path) == ["append"]


def test_per_step_bytes_count_steps_of_growth(tmp_path: Path) -> None:
    path = growing(12, set(range(6, 12))).write(tmp_path / "x.pickle")
    (row,) = ta.memory_growth(path).suspects.to_dicts()
    assert (row["per_step_bytes"], row["grew_n"], row["grown_bytes"]) == (MIB, 6, 6 * MIB)


def test_too_few_steps_are_reported(tmp_path: Path) -> None:
    result = ta.memory_growth(growing(3, {0, 1, 2}).write(tmp_path / "x.pickle"))
    check_wording(result.verdict)


def test_invalid_step_lengths_are_rejected(tmp_path: Path) -> None:
    path = growing(8, set()).write(tmp_path / "x.pickle")
    for every in ("1ns", "0", "x"):
        with raises_wording(OptionError):
            ta.memory_growth(path, step_every=every)
    assert ta.memory_growth(path, step_every=4).steps.height == 6


# --- differences -----------------------------------------------------------------------------


def one_line(tmp_path: Path, name: str, size: int, frame: Frame, device: int = 0) -> Path:
    snapshot = Snapshot().alloc(BASE, size, frame).hold(BASE, size, (0, size), device=device)
    snapshot.more = {"device_traces": [[]] * device + [snapshot.events]}
    return snapshot.write(tmp_path / name)


def test_paths_of_other_users_match(tmp_path: Path) -> None:
    new = one_line(tmp_path, "a.pickle", 50 * MIB, ("f", "/home/ada/run/model.py", 20))
    old = one_line(tmp_path, "b.pickle", 40 * MIB, ("f", "/scratch/bob/x/run/model.py", 20))
    result = ta.memory_diff(new, old)
    assert result.lines["changed_bytes"].to_list() == [10 * MIB]
    assert result.changes.height == 1


def test_moved_line_matches(tmp_path: Path) -> None:
    new = one_line(tmp_path, "a.pickle", 50 * MIB, ("f", "/home/ada/run/model.py", 25))
    old = one_line(tmp_path, "b.pickle", 40 * MIB, ("f", "/home/ada/run/model.py", 20))
    assert ta.memory_diff(new, old).lines.select("line", "changed_bytes").rows() == [(25, 10 * MIB)]


def test_ranks_are_compared_by_highest_peak(tmp_path: Path) -> None:
    frame = ("f", "/home/ada/run/model.py", 20)
    for rank in range(3):
        one_line(tmp_path / "old", f"rank{rank}.pickle", (40 + rank) * MIB, frame, device=rank)
        one_line(tmp_path / "new", f"rank{rank}.pickle", (45 + rank) * MIB, frame)
    result = ta.memory_diff(tmp_path / "new", tmp_path / "old")
    assert result.changes["changed_bytes"].to_list() == [5 * MIB]
    assert result.peak_bytes - result.base_bytes == 5 * MIB
    assert result.devices.height == 6


# --- other formats and the command line ------------------------------------------------------


def test_host_memory_is_excluded(tmp_path: Path) -> None:
    trace = ta.read(ROOT / "fixtures" / "nsys" / "tables.sqlite")
    assert ta.memory(trace).devices["peak_bytes"].to_list() == [2560 * MIB]
    pinned = replace(
        trace,
        memory_totals=trace.memory_totals.clear(),  # nsys sums up by kind of memory
        events=trace.events.with_columns(
            name=pl.when(pl.col("bytes") == 2 << 30).then(pl.lit("Pinned")).otherwise("name")
            .cast(trace.events.schema["name"])
        ),
    )  # fmt: skip
    assert ta.memory(pinned).devices["peak_bytes"].to_list() == [512 * MIB]


@pytest.mark.matrix
def test_functions_are_not_shadowed_by_modules() -> None:
    code = (
        "import traceanalyzer as ta\n"
        "first = [getattr(ta, name) for name in reversed(ta.__all__)]\n"
        "assert all(callable(getattr(ta, name)) for name in ta.__all__), 'shadowed'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--oom", "--growth"], "--oom and --growth cannot be combined"),
        (["--growth", "--capacity", "80GiB"], "--capacity has no effect with --growth"),
        (["--oom", "--step-every", "1ms"], "--step-every has no effect with --oom"),
        (["--diff", "other.pickle", "--step-name", "x"], "--step-name has no effect with --diff"),
        (["--capacity", "80"], "--capacity 80 B"),
        (["--oom", "--capacity", "much"], "'much' is not a size"),
        (["--oom", "--capacity", "80"], "--capacity 80 B"),
    ],
    ids=str,
)
def test_conflicting_options_are_rejected(
    arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from traceanalyzer.cli.main import status

    path = str(ROOT / "fixtures" / "memory" / "oom.pickle")
    assert status(["memory", path, *arguments]) == 2
    assert text in capfd.readouterr().err


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("training", []),
        ("fragmented_oom", ["--oom"]),
        ("leak", ["--growth"]),
        ("leak", ["--diff", str(ROOT / "fixtures" / "memory" / "training.pickle")]),
        ("two_devices", ["--library-name", "torch", "--library-name", "model", "--top", "3"]),
    ],
    ids=str,
)
def test_output_matches_golden(
    name: str,
    arguments: list[str],
    capfd: pytest.CaptureFixture[str],
    golden: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from traceanalyzer.cli.main import status

    monkeypatch.setenv("COLUMNS", "100")
    path = str(ROOT / "fixtures" / "memory" / f"{name}.pickle")
    assert status(["memory", path, "-q", *arguments]) == 0
    what = next((a.strip("-") for a in arguments if a.startswith("--")), "peak")
    golden(f"memory/{name}_{what}.txt", capfd.readouterr().out)


def test_times_start_at_first_event(tmp_path: Path) -> None:
    trace = ta.read(Snapshot().alloc(BASE, MIB).write(tmp_path / "x.pickle"))
    assert trace.meta.epoch_ns == 1000 * START_US


def test_step_options_apply_without_growth_option(tmp_path: Path) -> None:
    snapshot = Snapshot()
    for number in range(12):
        snapshot.alloc(BASE + number * MIB, MIB)
    path = snapshot.hold(BASE, 12 * MIB).write(tmp_path / "x.pickle")
    result = ta.memory(path, step_every=3).growth
    assert result is not None
    assert result.steps.equals(ta.memory_growth(path, step_every=3).steps)
    with pytest.raises(OptionError, match="shorter"):
        ta.memory(path, step_every="1us")
    with pytest.raises(MissingData):
        ta.memory(path, step_name="no such step")


@pytest.mark.parametrize(
    ("file", "category", "part"),
    [
        ("training.pickle", "optimizer state", "shard"),
        ("two_devices.pickle", "parameters", "shard"),
    ],
)
def test_without_an_error_the_peak_answers(file: str, category: str, part: str) -> None:
    result = ta.memory_oom(ROOT / "fixtures" / "memory" / file)
    assert result.errors.is_empty()
    assert result.alive["event"].null_count() == result.alive.height > 0
    peak = ta.memory(ROOT / "fixtures" / "memory" / file)
    fullest = peak.devices.sort("peak_bytes").tail(1)
    live = result.alive.join(fullest, on=["device"], how="semi")
    assert live["live_bytes"].sum() == fullest["peak_bytes"][0]
    assert category in live["category"]
    assert part in result.verdict
    assert "observer" not in result.verdict  # how to record an error is a note


@pytest.mark.parametrize(
    ("reserved_gib", "is_gpu"), [(6.5, False), (5.9, True), (14.5, True), (78, True)]
)
def test_a_gpu_of_no_usual_size_is_used_by_others_too(reserved_gib: float, is_gpu: bool) -> None:
    full = replace(BARE, request=80 * MIB, reserved=int(reserved_gib * 1024) * MIB, device_free=0)
    assert ("nvidia-smi" in advice(full, "real demand")) != is_gpu
