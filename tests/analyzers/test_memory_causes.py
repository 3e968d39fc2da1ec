"""Causes that the memory analyses report, on snapshots with a known cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from snapshots import MAIN, MIB, TORCH, Frame, Snapshot
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.memory import attribution, oom_causes
from traceanalyzer.errors import MissingData
from traceanalyzer.render.occupancy import lay_out

BASE = 0x7F00_0000_0000
GIB = 1 << 30
CALL: Frame = ("_call_impl", TORCH + "nn/modules/module.py", 1762)
FORWARD: Frame = ("forward", "/home/ada/model.py", 20)
ENGINE: Frame = ("torch::autograd::Engine::thread_main(...)", "??", 0)
ADAM: Frame = ("step", TORCH + "optim/adamw.py", 232)
KEEP: Frame = ("keep_losses", "/home/ada/train.py", 60)
GENERATE: Frame = ("generate", "/home/ada/serve.py", 12)


# --- growth without annotations --------------------------------------------------------------


def training(steps: int, leak: int = MIB, layers: int = 3) -> Snapshot:
    """Return steps of forward, backward and optimizer without annotations; each leaks bytes."""
    snapshot = Snapshot()
    for step in range(steps):
        for layer in range(layers):
            snapshot.alloc(BASE + layer * 4 * MIB, 4 * MIB, MAIN, CALL, FORWARD)
        if leak:
            snapshot.alloc(BASE + GIB + step * leak, leak, MAIN, KEEP)
        for layer in range(layers):
            snapshot.alloc(BASE + (layers + layer) * 4 * MIB, 2 * MIB, ENGINE)
            snapshot.free(BASE + layer * 4 * MIB, 4 * MIB, ENGINE)
        snapshot.alloc(BASE + GIB - MIB, MIB, MAIN, ADAM).free(BASE + GIB - MIB, MIB, MAIN, ADAM)
        for layer in range(layers):
            snapshot.free(BASE + (layers + layer) * 4 * MIB, 2 * MIB, MAIN)
    return snapshot.hold(BASE + GIB, 64 * MIB, *((n * leak, leak) for n in range(steps) if leak))


def serving(requests: int, leak: int) -> Snapshot:
    """Return requests of three allocations each outside modules, some of which are never freed."""
    snapshot = Snapshot()
    for request in range(requests):
        snapshot.alloc(BASE, MIB, MAIN, GENERATE)
        snapshot.alloc(BASE + MIB, 4 * MIB, MAIN, CALL, FORWARD)
        if leak:
            snapshot.alloc(BASE + GIB + request * leak, leak, MAIN, KEEP)
        snapshot.free(BASE + MIB, 4 * MIB).free(BASE, MIB)
    return snapshot.hold(BASE + GIB, 64 * MIB, *((n * leak, leak) for n in range(requests) if leak))


def activations(steps: int, leak: int, layers: int = 12) -> Snapshot:
    """Return steps that allocate activations in forward and free all but one or none of them."""
    snapshot, kept = Snapshot(), []
    for step in range(steps):
        at = [BASE + (step * layers + layer) * 4 * MIB for layer in range(layers)]
        for address in at:
            snapshot.alloc(address, 4 * MIB, MAIN, CALL, FORWARD)
        kept += at[:leak]
        for address in reversed(at[leak:]):
            snapshot.free(address, 4 * MIB)
    return snapshot.hold(BASE, GIB, *((address - BASE, 4 * MIB) for address in kept))


def layers(n: int) -> Snapshot:
    """Return one forward pass of equal layers with live activations."""
    snapshot = Snapshot()
    for layer in range(n):
        snapshot.alloc(BASE, 8 * MIB, MAIN, CALL, FORWARD).free(BASE, 8 * MIB, MAIN, CALL, FORWARD)
        snapshot.alloc(BASE + GIB + layer * MIB, MIB, MAIN, CALL, FORWARD)
    return snapshot.hold(BASE + GIB, 64 * MIB, *((at * MIB, MIB) for at in range(n)))


@pytest.mark.parametrize(
    ("snapshot", "by"),
    [(training(8), "optimizer calls"), (serving(10, MIB), "repeated allocations")],
    ids=["training", "serving"],
)
def test_growth_detects_steps_without_annotations(
    snapshot: Snapshot, by: str, tmp_path: Path
) -> None:
    result = ta.memory_growth(snapshot.write(tmp_path / "x.pickle"))
    assert result.steps["by"].unique().to_list() == [by]
    (row,) = result.suspects.to_dicts()
    assert (row["function"], row["per_step_bytes"]) == ("keep_losses", MIB)
    check_wording(result.verdict, *result.notes)


def test_growth_per_step_is_that_of_each_device(tmp_path: Path) -> None:
    paths = [training(n).write(tmp_path / f"rank{n}.pickle") for n in (5, 11)]
    result = ta.memory_growth(paths)
    assert result.suspects["grown_bytes"].to_list() == [4 * MIB, 10 * MIB]
    assert result.suspects["intervals"].to_list() == [4, 10]
    check_wording(result.summary())


@pytest.mark.parametrize("leak", [0, 1, 2])
def test_steps_end_at_lows_of_live_memory(leak: int, tmp_path: Path) -> None:
    """A sum of losses keeps a part of the activations of a line; the others are freed."""
    path = activations(10, leak).write(tmp_path / "x.pickle")
    result = ta.memory_growth(path)
    assert result.steps["by"].unique().to_list() == ["lows of live memory"]
    assert result.steps["live_bytes"].to_list() == [n * leak * 4 * MIB for n in range(1, 11)]
    assert result.suspects["per_step_bytes"].to_list() == [leak * 4 * MIB] * (leak > 0)
    found = [one for one in ta.diagnose(path).diagnosis if one.id == "memory-growth"]
    assert [one.cost_bytes for one in found] == [9 * leak * 4 * MIB] * (leak > 0)


@pytest.mark.parametrize("every", [1, 5])
def test_memory_freed_every_few_steps_is_no_leak(every: int, tmp_path: Path) -> None:
    """A reference cycle keeps blocks of several steps until the garbage collector runs."""
    snapshot, kept = Snapshot(), []
    for step in range(23):
        at = [BASE + GIB + layer * 4 * MIB for layer in range(24)]
        for address in at:
            snapshot.alloc(address, 4 * MIB, MAIN, CALL, FORWARD)
        for layer in range(6):
            kept.append(BASE + (6 * (step % every) + layer) * 4 * MIB)
            snapshot.alloc(kept[-1], 4 * MIB, MAIN, KEEP)
        for address in at:
            snapshot.free(address, 4 * MIB)
        while kept and step % every == every - 1:
            snapshot.free(kept.pop(0), 4 * MIB)
    alive = [(address - BASE, 4 * MIB) for address in kept]
    path = snapshot.hold(BASE, 4 * GIB, *alive).write(tmp_path / "x.pickle")
    found = [one for one in ta.diagnose(path).diagnosis if one.id == "memory-growth"]
    collected = [24 * 4 * MIB] * (every == 5)  # live at the end of 4 steps of 6 blocks
    assert [one.cost_bytes for one in found] == collected
    growth = ta.memory_growth(path).growth.filter(pl.col("collected_bytes") > 0)
    assert growth.select("function", "collected_bytes").rows() == [
        ("keep_losses", n) for n in collected
    ]


@pytest.mark.parametrize("caller", ["validate", "run_validation", "train_epoch"])
def test_activations_of_an_evaluation_need_no_gradients(caller: str, tmp_path: Path) -> None:
    snapshot = Snapshot()
    for block in range(50):
        stack = (MAIN, (caller, "/home/ada/engine.py", 31), CALL, FORWARD)
        snapshot.alloc(BASE + block * 4 * MIB, 4 * MIB, *stack)
    snapshot.note("oom", 0, 80 * MIB, MAIN, device_free=4 * MIB)
    path = snapshot.hold(BASE, 200 * MIB, *((n * 4 * MIB, 4 * MIB) for n in range(50)))
    (one,) = ta.diagnose(path.write(tmp_path / "x.pickle")).diagnosis
    assert one.id == "out-of-memory"
    is_kept = caller != "train_epoch"
    assert ("no_grad" in one.advice) == is_kept
    assert any(caller in text for text in one.evidence) == is_kept


@pytest.mark.parametrize("snapshot", [training(8, leak=0), serving(10, leak=0)])
def test_no_growth_without_leak(snapshot: Snapshot, tmp_path: Path) -> None:
    path = snapshot.write(tmp_path / "x.pickle")
    assert ta.memory_growth(path).suspects.is_empty()
    growth = ta.memory(path).growth
    assert growth is not None
    assert growth.summary() == ""


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_larger_requests_that_the_next_step_frees_are_no_growth(kept: int, tmp_path: Path) -> None:
    """Inputs grow by 1 MiB per step; each is freed in the step after it, or later ones are kept."""
    snapshot, live = Snapshot(), []
    for step in range(8):
        live.append((BASE + GIB + step * 32 * MIB, (4 + step) * MIB))
        snapshot.alloc(*live[-1], MAIN, KEEP)
        for layer in range(3):
            snapshot.alloc(BASE + layer * 4 * MIB, 4 * MIB, MAIN, CALL, FORWARD)
        for layer in range(3):
            snapshot.alloc(BASE + (3 + layer) * 4 * MIB, 2 * MIB, ENGINE)
            snapshot.free(BASE + layer * 4 * MIB, 4 * MIB, ENGINE)
        snapshot.alloc(BASE + GIB - MIB, MIB, MAIN, ADAM).free(BASE + GIB - MIB, MIB, MAIN, ADAM)
        for layer in range(3):
            snapshot.free(BASE + (3 + layer) * 4 * MIB, 2 * MIB, MAIN)
        if kept < 3 and len(live) >= kept:
            snapshot.free(*live.pop(0), MAIN)
    path = snapshot.hold(BASE + GIB, GIB, *((at - BASE - GIB, n) for at, n in live))
    suspects = ta.memory_growth(path.write(tmp_path / "x.pickle")).suspects
    assert suspects["function"].to_list() == ["keep_losses"] * (kept == 3)


def test_backward_passes_are_steps_without_optimizer(tmp_path: Path) -> None:
    snapshot = training(8)
    snapshot.events = [
        one for one in snapshot.events if "adamw" not in one["frames"][0]["filename"]
    ]
    result = ta.memory_growth(snapshot.write(tmp_path / "x.pickle"))
    assert result.steps["by"].unique().to_list() == ["backward passes"]
    assert result.suspects["function"].to_list() == ["keep_losses"]


def test_frees_with_the_stack_of_the_allocation_end_no_backward_pass(tmp_path: Path) -> None:
    """PyTorch records that stack, unless it records the stacks of frees, too."""
    snapshot, stacks = training(8, layers=8), dict[int, list[dict[str, object]]]()
    snapshot.events = [
        one for one in snapshot.events if "adamw" not in one["frames"][0]["filename"]
    ]
    for event in snapshot.events:
        event["frames"] = stacks.setdefault(event["addr"], event["frames"])
        if event["action"] == "free_completed":
            stacks.pop(event["addr"])
    result = ta.memory_growth(snapshot.write(tmp_path / "x.pickle"))
    assert result.steps.height == 8
    assert result.suspects["function"].to_list() == ["keep_losses"]


def test_layers_of_one_pass_are_not_steps(tmp_path: Path) -> None:
    path = layers(24).write(tmp_path / "x.pickle")
    with pytest.raises(MissingData, match="no steps"):
        ta.memory_growth(path)
    assert ta.memory(path).growth is None


def test_per_step_bytes_match_growth(tmp_path: Path) -> None:
    """Bytes allocated and freed within a few steps are not growth."""
    snapshot = Snapshot()
    for step in range(9):
        begin = snapshot.now
        if step % 3 == 2:
            snapshot.free(BASE, 8 * MIB, MAIN, KEEP)
        else:
            snapshot.alloc(BASE + step % 3 * 8 * MIB, 8 * MIB, MAIN, KEEP)
        snapshot.alloc(BASE + GIB + step * MIB, MIB, MAIN, KEEP)
        snapshot.step(f"ProfilerStep#{step}", begin, snapshot.now - 1)
    growth = ta.memory_growth(snapshot.write(tmp_path / "x.pickle")).growth
    total = pl.col("per_step_bytes") * pl.col("grew_n")
    assert growth.filter(total > pl.col("grown_bytes")).is_empty()


def test_verdict_starts_with_leak(tmp_path: Path) -> None:
    result = ta.memory(training(8).write(tmp_path / "x.pickle"))
    assert result.growth is not None
    assert result.growth.suspects["grown_bytes"].to_list() == [7 * MIB]
    assert result.view().tables[0].name == "suspects"
    check_wording(result.verdict)


def test_verdict_starts_with_out_of_memory_error(tmp_path: Path) -> None:
    snapshot = training(2).note("oom", MIB, 512 * MIB, MAIN, FORWARD)
    result = ta.memory(snapshot.write(tmp_path / "x_rank3.pickle"))
    assert result.errors is not None
    assert result.errors.errors.select("rank", "device").rows() == [(3, 0)]
    assert result.view().tables[0].name == "errors"
    check_wording(result.verdict)


@pytest.mark.parametrize(("leak", "request_bytes"), [(MIB, MIB), (0, MIB), (MIB, 512 * MIB)])
def test_error_after_growth_has_the_advice_of_growth(
    leak: int, request_bytes: int, tmp_path: Path
) -> None:
    """One cause has one advice, if the growth is large enough to be the cause."""
    snapshot = training(8, leak=leak).note("oom", MIB, request_bytes, MAIN, FORWARD)
    result = ta.memory_oom(snapshot.write(tmp_path / "x.pickle"))
    ((cause, advice),) = result.errors.select("cause", "advice").rows()
    is_growth = leak == request_bytes == MIB
    assert ("--growth" in advice) == is_growth
    assert (cause == "steady growth") == is_growth
    assert ("steady growth" in result.summary()) == is_growth


@pytest.mark.parametrize("free", [MIB, 100 * GIB])
def test_growth_with_room_on_the_device_met_a_limit(free: int, tmp_path: Path) -> None:
    """As of set_per_process_memory_fraction."""
    snapshot = training(8, leak=MIB).note("oom", free, MIB, MAIN, FORWARD)
    (error,) = ta.memory_oom(snapshot.write(tmp_path / "x.pickle")).errors.to_dicts()
    assert error["cause"] == "steady growth"
    assert ("limit" in oom_causes.sentence(error)) == (free > MIB)


@pytest.mark.parametrize(
    ("caller", "temporary", "cause"),
    [
        ("validate", True, "steady growth"),
        ("collect", True, "steady growth"),
        ("collect", False, "real demand"),  # layers of one forward pass
        ("checkpoint", True, "real demand"),  # their inputs
    ],
)
def test_results_that_are_kept_one_by_one_are_growth(
    caller: str, temporary: bool, cause: str, tmp_path: Path
) -> None:
    snapshot = Snapshot().alloc(BASE + GIB, 40 * MIB, MAIN)
    for block in range(20):
        if temporary:
            snapshot.alloc(BASE + 2 * GIB, MIB, MAIN).free(BASE + 2 * GIB, MIB)
        stack = (MAIN, (caller, "/home/ada/engine.py", 31), CALL, FORWARD)
        snapshot.alloc(BASE + block * 4 * MIB, 4 * MIB, *stack)
    snapshot.note("oom", 0, 80 * MIB, MAIN, device_free=4 * MIB)
    snapshot.hold(BASE, 80 * MIB, *((n * 4 * MIB, 4 * MIB) for n in range(20)))
    snapshot.hold(BASE + GIB, 40 * MIB, (0, 40 * MIB))
    ((found, advice),) = (
        ta.memory_oom(snapshot.write(tmp_path / "x.pickle")).errors.select("cause", "advice").rows()
    )
    assert found == cause
    assert ("forward (model.py:20)" in advice) == (cause == "steady growth")
    assert ("no_grad" in advice) == (caller == "validate")


@pytest.mark.parametrize(
    ("line", "before", "after", "grows"),
    [
        ("allocate_session", 40, 0, True),
        ("load_weights", 40, 0, False),  # a model that is too large
        ("allocate_session", 0, 0, False),
        ("allocate_session", 40, 60, False),  # a burst at the beginning
        ("forward", 40, 0, False),  # activations of one pass
    ],
)
def test_blocks_that_one_line_adds_until_memory_is_full(
    line: str, before: int, after: int, grows: bool, tmp_path: Path
) -> None:
    """Nothing is freed beside them; they are taken as the steps."""
    snapshot = Snapshot()
    for block in range(before):
        snapshot.alloc(BASE + GIB + block * MIB, MIB, MAIN, ("build", "/home/ada/model.py", 8))
    stack = (MAIN, (line, "/home/ada/cache.py", 57), *[CALL, FORWARD] * (line == "forward"))
    for block in range(80):
        snapshot.alloc(BASE + block * MIB, MIB, *stack)
    for block in range(after * 2):
        snapshot.alloc(BASE + 2 * GIB + block, 1 + block, MAIN, KEEP)
    snapshot.note("oom", 0, MIB, *stack)
    for start, n in ((BASE, 80), (BASE + GIB, before)):
        snapshot.hold(start, max(n, 1) * MIB, *((k * MIB, MIB) for k in range(n)))
    path = snapshot.write(tmp_path / "x.pickle")
    (error,) = ta.memory_oom(path).errors.iter_rows(named=True)
    assert (error["cause"] == "steady growth") == grows
    if grows:
        assert ta.memory_growth(path).suspects["grown_bytes"].to_list() == [79 * MIB]
    else:
        with pytest.raises(MissingData):
            ta.memory_growth(path)


_RUNNER: Frame = ("execute_model", "/opt/vllm/v1/worker/gpu_model_runner.py", 90)


#: What only one engine has.
_OPTIONS = (
    "gpu_memory_utilization",
    "enable_sleep_mode",
    "mem_fraction_static",
    "release_memory_occupation",
)


@pytest.mark.parametrize(
    ("line", "request_of", "options", "named"),
    [
        (("_allocate_kv_cache", "/opt/vllm/worker/run.py", 9), _RUNNER, _OPTIONS[:1], True),
        (("__init__", "/opt/sglang/srt/mem_cache/pool.py", 9), FORWARD, _OPTIONS[2:], True),
        (("generate", "/home/ada/rollout.py", 22), FORWARD, (), True),
        (("generate", "/home/ada/rollout.py", 22), ("step", "/home/ada/rollout.py", 9), (), False),
        (("setup_kv_caches", "/home/ada/gpt-fast/generate.py", 7), FORWARD, (), True),
        (("kv_cache", "/home/ada/vllm/train.py", 7), FORWARD, (), True),  # a folder of a user
        (("load_weights", "/home/ada/model.py", 9), FORWARD, (), False),
    ],
)
def test_memory_of_an_engine_fills_the_gpu(
    line: Frame, request_of: Frame, options: tuple[str, ...], named: bool, tmp_path: Path
) -> None:
    snapshot = Snapshot().alloc(BASE, 60 * MIB, MAIN, line).alloc(BASE + GIB, 10 * MIB, MAIN)
    snapshot.note("oom", 2 * MIB, 20 * MIB, MAIN, request_of)
    snapshot.hold(BASE, 60 * MIB, (0, 60 * MIB)).hold(BASE + GIB, 10 * MIB, (0, 10 * MIB))
    (error,) = ta.memory_oom(snapshot.write(tmp_path / "x.pickle")).errors.to_dicts()
    assert tuple(one for one in _OPTIONS if one in error["advice"]) == options
    assert ("60 MiB" in error["advice"]) == named


# --- fragmentation ---------------------------------------------------------------------------


def freed(size: int, *, end: tuple[int, int] | None = None) -> Snapshot:
    """Return a segment that is full at the peak; at the end it is free except for ``end``."""
    snapshot = Snapshot().note("segment_alloc", BASE, size * MIB)
    for at in range(0, size, 10):
        snapshot.alloc(BASE + at * MIB, 10 * MIB)
    for at in range(0, size, 10):
        if end is None or at * MIB != end[0]:
            snapshot.free(BASE + at * MIB, 10 * MIB)
    return snapshot.hold(BASE, size * MIB, *([end] if end else []))


@pytest.mark.parametrize("end", [None, (30 * MIB, 10 * MIB)], ids=["all", "all but one"])
def test_memory_freed_after_peak_is_not_fragmentation(
    end: tuple[int, int] | None, tmp_path: Path
) -> None:
    path = freed(100, end=end).write(tmp_path / "x.pickle")
    result = ta.memory(path)
    assert result.devices["fullest_split_bytes"].to_list() == [0]
    assert not any(one.id == "memory-fragmentation" for one in ta.diagnose(path).findings)


def holes(action: str, **segment: object) -> Snapshot:
    """Return 240 MiB of segments at the peak with two holes of 30 MiB."""
    snapshot = Snapshot().note(action, BASE, 120 * MIB)
    for at in range(4):
        snapshot.alloc(BASE + at * 30 * MIB, 30 * MIB)
    snapshot.free(BASE, 30 * MIB).free(BASE + 60 * MIB, 30 * MIB)
    snapshot.note(action, BASE + GIB, 120 * MIB).alloc(BASE + GIB, 120 * MIB)
    snapshot.free(BASE + GIB, 120 * MIB)
    snapshot.hold(BASE, 120 * MIB, (30 * MIB, 30 * MIB), (90 * MIB, 30 * MIB), **segment)
    return snapshot.hold(BASE + GIB, 120 * MIB, **segment)


def test_free_memory_between_blocks_at_peak_is_fragmentation(tmp_path: Path) -> None:
    path = holes("segment_alloc").write(tmp_path / "x.pickle")
    (row,) = ta.memory(path).devices.to_dicts()
    sizes = ("fullest_reserved_bytes", "fullest_free_bytes", "fullest_split_bytes")
    assert [row[name] // MIB for name in sizes] == [240, 60, 60]
    (finding,) = [one for one in ta.diagnose(path).findings if one.id == "memory-fragmentation"]
    check_wording(finding.title, finding.advice, ta.memory(path).verdict)


def test_free_pages_of_expandable_segment_do_not_count(tmp_path: Path) -> None:
    """A hole of 30 MiB contains one free page of 20 MiB."""
    path = holes("segment_map", is_expandable=True).write(tmp_path / "x.pickle")
    (row,) = ta.memory(path).devices.to_dicts()
    assert row["expandable"]
    assert row["fullest_split_bytes"] // MIB == 20


def test_enabled_expandable_segments_are_not_recommended(tmp_path: Path) -> None:
    snapshot = Snapshot().note("segment_map", BASE, 20 * MIB).alloc(BASE, MIB).free(BASE, MIB)
    other = (MAIN, FORWARD)
    snapshot.note("segment_unmap", BASE, 20 * MIB, *other)
    snapshot.note("segment_map", BASE, 40 * MIB, *other)
    for at in range(0, 40, 2):
        snapshot.alloc(BASE + at * MIB, MIB)
    snapshot.note("oom", 5 * MIB, 15 * MIB)
    blocks = [(at * MIB, MIB) for at in range(0, 40, 2)]
    path = snapshot.hold(BASE, 40 * MIB, *blocks, is_expandable=True).write(tmp_path / "x.pickle")
    advice = [one.advice for one in ta.diagnose(path).findings]
    assert advice
    assert not any("expandable_segments:True" in one for one in advice)
    check_wording(ta.memory_oom(path).errors["advice"][0])


# --- several devices -------------------------------------------------------------------------

DATA_PARALLEL: Frame = ("forward", TORCH + "nn/parallel/data_parallel.py", 190)
REPLICATE: tuple[Frame, ...] = (
    MAIN,
    CALL,
    DATA_PARALLEL,
    ("replicate", TORCH + "nn/parallel/replicate.py", 95),
    ("forward", TORCH + "nn/parallel/_functions.py", 22),
    ("broadcast_coalesced", TORCH + "nn/parallel/comm.py", 57),
)
SCATTER: tuple[Frame, ...] = (
    MAIN,
    CALL,
    DATA_PARALLEL,
    ("scatter_kwargs", TORCH + "nn/parallel/scatter_gather.py", 92),
    ("forward", TORCH + "nn/parallel/_functions.py", 103),
    ("scatter", TORCH + "nn/parallel/comm.py", 187),
)
GATHER: tuple[Frame, ...] = (
    MAIN,
    CALL,
    DATA_PARALLEL,
    ("gather", TORCH + "nn/parallel/scatter_gather.py", 130),
)
OTHER = BASE + (1 << 40)


def two_devices(*, oom: bool = True) -> Snapshot:
    """Return device 1 with replicas and batches, and device 0 that gathers and runs out."""
    other = Snapshot(now=5)
    other.alloc(OTHER, 6 * MIB, *REPLICATE).alloc(OTHER + 8 * MIB, 2 * MIB, *SCATTER)
    other.alloc(OTHER + 16 * MIB, 10 * MIB, MAIN).free(OTHER + 16 * MIB, 10 * MIB)
    snapshot = Snapshot(now=200)
    snapshot.alloc(BASE, 20 * MIB, MAIN).alloc(BASE + 20 * MIB, 20 * MIB, *GATHER)
    if oom:
        snapshot.note("oom", MIB, 30 * MIB, *GATHER)
    snapshot.hold(BASE, 40 * MIB, (0, 20 * MIB), (20 * MIB, 20 * MIB))
    snapshot.hold(OTHER, 40 * MIB, (0, 6 * MIB), (8 * MIB, 2 * MIB), device=1)
    snapshot.more = {"device_traces": [snapshot.events, other.events]}
    return snapshot


def test_error_has_device_and_memory_of_others(tmp_path: Path) -> None:
    result = ta.memory_oom(two_devices().write(tmp_path / "x_rank3.pickle"))
    rows = result.devices.select("device", "at_error_bytes", "peak_bytes").rows()
    assert rows == [(0, 40 * MIB, 40 * MIB), (1, 8 * MIB, 18 * MIB)]
    assert result.alive.filter(pl.col("stack").str.contains("data_parallel"))["n"].sum() == 1
    check_wording(result.verdict)


def test_replicas_and_scattered_batches_have_categories(tmp_path: Path) -> None:
    alive = ta.memory(two_devices(oom=False).write(tmp_path / "x.pickle")).alive
    rows = alive.filter(device=1).select(pl.col("category").cast(pl.String), "live_bytes").rows()
    assert {("parameters", 6 * MIB), ("inputs", 2 * MIB)} <= set(rows)


def test_plots_share_time_axis_and_start_with_device_of_verdict(
    tmp_path: Path,
) -> None:
    snapshot = two_devices()
    snapshot.more = {"device_traces": snapshot.more["device_traces"][::-1]}
    snapshot.segments = []
    result = ta.memory(snapshot.write(tmp_path / "x.pickle")).maps
    assert [one.name for one in result] == ["memory_None_1", "memory_None_0"]
    layouts = [lay_out(one) for one in result]
    assert {one.end_time for one in layouts} == {215_000.0}
    assert [one.time.tolist()[1] for one in layouts if one.time is not None] == [195_000.0, 0.0]
    assert [one.time.tolist()[0] for one in layouts if one.time is not None] == [0.0, 0.0]


def at(start_us: int | None, tmp_path: Path) -> Path:
    """Write a snapshot of one device, recorded for 20 us from ``start_us``."""
    snapshot = Snapshot().alloc(BASE, MIB).free(BASE, MIB).hold(BASE, MIB)
    for event in snapshot.events:
        event["time_us"] += start_us or 0
        if start_us is None:
            del event["time_us"]
    return snapshot.write(tmp_path / f"{start_us}.pickle")


def test_plots_of_several_files_share_time_axis(tmp_path: Path) -> None:
    result = ta.memory([at(0, tmp_path), at(30, tmp_path)])
    layouts = [lay_out(one) for one in result.maps]
    assert {one.end_time for one in layouts} == {50_000.0}
    times = sorted(one.time.tolist()[1:] for one in layouts if one.time is not None)
    assert times == [[0.0, 10_000.0, 20_000.0], [30_000.0, 40_000.0, 50_000.0]]
    assert not result.remarks


@pytest.mark.parametrize("other", [60_000_000, None], ids=["a minute later", "no times"])
def test_plots_without_common_time_keep_their_axes(tmp_path: Path, other: int | None) -> None:
    result = ta.memory([at(0, tmp_path), at(other, tmp_path)])
    ends = [one.end_time for one in map(lay_out, result.maps) if one.time is not None]
    assert set(ends) == {20_000.0}
    (remark,) = result.remarks
    check_wording(remark)


def test_flamegraph_uses_common_peak_of_devices(tmp_path: Path) -> None:
    path = two_devices(oom=False).write(tmp_path / "x.pickle")
    assert sum(ta.memory(path).devices["peak_bytes"]) == 58 * MIB
    assert ta.flamegraph(path).total == 48 * MIB


# --- stacks ----------------------------------------------------------------------------------


def test_capture_frames_are_omitted(tmp_path: Path) -> None:
    capture: tuple[Frame, ...] = (
        ("_PyEval_EvalFrameDefault", "/usr/src/Python/ceval.c", 900),
        ("gather_with_cpp", "??", 0),
        ("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
        ("torch::unwind::unwind()", "??", 0),
    )
    snapshot = Snapshot().alloc(BASE, MIB, MAIN, FORWARD, *capture).hold(BASE, MIB)
    path = snapshot.write(tmp_path / "x.pickle")
    expected = "main (/home/ada/train.py:10);forward (/home/ada/model.py:20)"
    result = ta.memory(path)
    assert result.alive["stack"].to_list() == [expected]
    assert result.maps[0].stacks["frames"].to_list() == [expected.split(";")[::-1]]
    assert "unwind" not in str(ta.flamegraph(path).to_dict())


# --- sizes -----------------------------------------------------------------------------------


def test_small_allocations_count_but_are_not_listed(tmp_path: Path) -> None:
    snapshot = Snapshot().alloc(BASE, 8 * MIB, MAIN, FORWARD).alloc(BASE + 8 * MIB, 2 * MIB, MAIN)
    path = snapshot.hold(BASE, 10 * MIB, (0, 8 * MIB), (8 * MIB, 2 * MIB)).write(
        tmp_path / "x.pickle"
    )
    result = ta.memory(path, min_bytes=4 * MIB)
    assert result.devices["peak_bytes"].to_list() == [10 * MIB]
    assert result.lines.select("live_bytes", "live_frac").rows() == [(8 * MIB, 0.8)]
    (drawn,) = result.maps
    assert drawn.boxes["live_bytes"].to_list() == [8 * MIB]
    assert drawn.levels["rest_bytes"].max() == 2 * MIB
    check_wording(*result.notes)


ROW = {"cause": oom_causes.DEMAND, "request_bytes": 10, "missing_bytes": 4, "unused_bytes": 50,
       "allocated_bytes": 60}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "least"),
    [
        ({}, 10),
        ({"missing_bytes": 12}, 12),
        ({"request_bytes": None, "missing_bytes": None}, 6),
        ({"request_bytes": None, "missing_bytes": None, "allocated_bytes": 0}, 1),
        ({"cause": oom_causes.FRAGMENTATION}, 50),
        ({"cause": oom_causes.FRAGMENTATION, "unused_bytes": None}, 10),
    ],
)
def test_growth_is_the_cause_from_the_size_that_it_fills(more: dict[str, Any], least: int) -> None:
    row = {**ROW, **more}
    assert oom_causes.is_growth(least, row)
    assert not oom_causes.is_growth(least - 1, row)


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({}, 1),
        ({"n": 7}, 0),
        ({"live_frac": 0.29}, 0),
        ({"live_bytes": 99}, 0),
        ({"category": "x"}, 0),
    ],
)
def test_many_blocks_of_unknown_use_may_be_kept(more: dict[str, Any], kept: int) -> None:
    row = {"category": attribution.UNKNOWN, "live_frac": 0.3, "n": 8, "live_bytes": 100, **more}
    assert oom_causes.may_be_kept(pl.DataFrame([row, row]), 100).height == kept


@pytest.mark.parametrize(
    ("gib", "usual"), [(80, True), (70, True), (69, False), (23, True), (17, False)]
)
def test_memory_below_that_of_gpus_is_not_usual(gib: int, usual: bool) -> None:
    assert oom_causes._is_usual(gib << 30) == usual


def test_too_many_steps_skip_one_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = training(8).write(tmp_path / "x.pickle")
    monkeypatch.setattr("traceanalyzer.analyzers.memory.growth._MOST_STEPS", 7)
    with pytest.raises(MissingData, match="too many steps"):
        ta.memory_growth(path)
    skipped = ta.diagnose(path).rules.filter(pl.col("why").str.contains("too many steps"))
    assert skipped.height
