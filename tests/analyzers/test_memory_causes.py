"""What the analyses of memory name as the cause, on snapshots with a known one."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from snapshots import MAIN, MIB, TORCH, Frame, Snapshot
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.errors import MissingData
from traceanalyzer.render.occupancy.layout import lay_out

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
    """Steps of forward, backward and optimizer without annotations; each step keeps some bytes."""
    made = Snapshot()
    for step in range(steps):
        for layer in range(layers):
            made.alloc(BASE + layer * 4 * MIB, 4 * MIB, MAIN, CALL, FORWARD)
        if leak:
            made.alloc(BASE + GIB + step * leak, leak, MAIN, KEEP)
        for layer in range(layers):
            made.alloc(BASE + (layers + layer) * 4 * MIB, 2 * MIB, ENGINE)
            made.free(BASE + layer * 4 * MIB, 4 * MIB, ENGINE)
        made.alloc(BASE + GIB - MIB, MIB, MAIN, ADAM).free(BASE + GIB - MIB, MIB, MAIN, ADAM)
        for layer in range(layers):
            made.free(BASE + (layers + layer) * 4 * MIB, 2 * MIB, MAIN)
    return made.hold(BASE + GIB, 64 * MIB, *((n * leak, leak) for n in range(steps) if leak))


def serving(requests: int, leak: int) -> Snapshot:
    """Requests of three allocations each outside of modules, of which a part stays."""
    made = Snapshot()
    for request in range(requests):
        made.alloc(BASE, MIB, MAIN, GENERATE)
        made.alloc(BASE + MIB, 4 * MIB, MAIN, CALL, FORWARD)
        if leak:
            made.alloc(BASE + GIB + request * leak, leak, MAIN, KEEP)
        made.free(BASE + MIB, 4 * MIB).free(BASE, MIB)
    return made.hold(BASE + GIB, 64 * MIB, *((n * leak, leak) for n in range(requests) if leak))


def layers(n: int) -> Snapshot:
    """One forward pass: equal layers of which activations stay."""
    made = Snapshot()
    for layer in range(n):
        made.alloc(BASE, 8 * MIB, MAIN, CALL, FORWARD).free(BASE, 8 * MIB, MAIN, CALL, FORWARD)
        made.alloc(BASE + GIB + layer * MIB, MIB, MAIN, CALL, FORWARD)
    return made.hold(BASE + GIB, 64 * MIB, *((at * MIB, MIB) for at in range(n)))


@pytest.mark.parametrize(
    ("made", "by"),
    [(training(8), "optimizer calls"), (serving(10, MIB), "repeated allocations")],
    ids=["training", "serving"],
)
def test_growth_finds_steps_without_annotations(made: Snapshot, by: str, tmp_path: Path) -> None:
    found = ta.memory_growth(made.write(tmp_path / "x.pickle"))
    assert found.steps["by"].unique().to_list() == [by]
    (row,) = found.suspects.to_dicts()
    assert (row["function"], row["per_step_bytes"]) == ("keep_losses", MIB)
    check_wording(found.verdict, *found.notes)


@pytest.mark.parametrize("made", [training(8, leak=0), serving(10, leak=0)])
def test_without_a_leak_nothing_grows(made: Snapshot, tmp_path: Path) -> None:
    path = made.write(tmp_path / "x.pickle")
    assert ta.memory_growth(path).suspects.is_empty()
    assert "grows" not in ta.memory(path).verdict


def test_backward_passes_are_steps_where_no_optimizer_is_recorded(tmp_path: Path) -> None:
    made = training(8)
    made.events = [one for one in made.events if "adamw" not in one["frames"][0]["filename"]]
    found = ta.memory_growth(made.write(tmp_path / "x.pickle"))
    assert found.steps["by"].unique().to_list() == ["backward passes"]
    assert found.suspects["function"].to_list() == ["keep_losses"]


def test_layers_of_one_pass_are_no_steps(tmp_path: Path) -> None:
    path = layers(24).write(tmp_path / "x.pickle")
    with pytest.raises(MissingData, match="no steps"):
        ta.memory_growth(path)
    assert "grows" not in ta.memory(path).verdict


def test_a_rate_times_the_steps_is_the_growth(tmp_path: Path) -> None:
    """Bytes that come and go within a few steps are no growth."""
    made = Snapshot()
    for step in range(9):
        begin = made.now
        if step % 3 == 2:
            made.free(BASE, 8 * MIB, MAIN, KEEP)
        else:
            made.alloc(BASE + step % 3 * 8 * MIB, 8 * MIB, MAIN, KEEP)
        made.alloc(BASE + GIB + step * MIB, MIB, MAIN, KEEP)
        made.step(f"ProfilerStep#{step}", begin, made.now - 1)
    growth = ta.memory_growth(made.write(tmp_path / "x.pickle")).growth
    total = pl.col("per_step_bytes") * pl.col("grew_n")
    assert growth.filter(total > pl.col("grown_bytes")).is_empty()


def test_memory_leads_with_a_leak(tmp_path: Path) -> None:
    found = ta.memory(training(8).write(tmp_path / "x.pickle"))
    assert found.growth is not None
    assert found.growth.suspects["grown_bytes"].to_list() == [7 * MIB]
    assert found.verdict.startswith("Memory grows: 7 MiB")
    assert found.view().tables[0].name == "suspects"
    check_wording(found.verdict)


def test_memory_leads_with_an_error(tmp_path: Path) -> None:
    made = training(2).note("oom", MIB, 512 * MIB, MAIN, FORWARD)
    found = ta.memory(made.write(tmp_path / "x_rank3.pickle"))
    assert found.verdict.startswith("Memory ran out once on device 0 of rank 3")
    assert found.view().tables[0].name == "errors"
    check_wording(found.verdict)


# --- fragmentation ---------------------------------------------------------------------------


def freed(size: int, *, end: tuple[int, int] | None = None) -> Snapshot:
    """A segment that is full at the peak; at the end all of it is free, or all but one block."""
    made = Snapshot().note("segment_alloc", BASE, size * MIB)
    for at in range(0, size, 10):
        made.alloc(BASE + at * MIB, 10 * MIB)
    for at in range(0, size, 10):
        if end is None or at * MIB != end[0]:
            made.free(BASE + at * MIB, 10 * MIB)
    return made.hold(BASE, size * MIB, *([end] if end else []))


@pytest.mark.parametrize("end", [None, (30 * MIB, 10 * MIB)], ids=["all", "all but one"])
def test_memory_freed_after_the_peak_is_no_fragmentation(
    end: tuple[int, int] | None, tmp_path: Path
) -> None:
    path = freed(100, end=end).write(tmp_path / "x.pickle")
    found = ta.memory(path)
    assert found.devices["fullest_split_bytes"].to_list() == [0]
    assert "between blocks" not in found.verdict
    assert not any("ragmentation" in one.title for one in ta.diagnose(path).found)


def holes(action: str, **segment: object) -> Snapshot:
    """120 MiB are reserved at the peak, of which every other 30 MiB are free."""
    made = Snapshot().note(action, BASE, 120 * MIB)
    for at in range(4):
        made.alloc(BASE + at * 30 * MIB, 30 * MIB)
    made.free(BASE, 30 * MIB).free(BASE + 60 * MIB, 30 * MIB)
    made.note(action, BASE + GIB, 120 * MIB).alloc(BASE + GIB, 120 * MIB)
    made.free(BASE + GIB, 120 * MIB)
    made.hold(BASE, 120 * MIB, (30 * MIB, 30 * MIB), (90 * MIB, 30 * MIB), **segment)
    return made.hold(BASE + GIB, 120 * MIB, **segment)


def test_free_memory_between_blocks_at_the_peak_is_fragmentation(tmp_path: Path) -> None:
    path = holes("segment_alloc").write(tmp_path / "x.pickle")
    (row,) = ta.memory(path).devices.to_dicts()
    sizes = ("fullest_reserved_bytes", "fullest_free_bytes", "fullest_split_bytes")
    assert [row[name] // MIB for name in sizes] == [240, 60, 60]
    (finding,) = [one for one in ta.diagnose(path).found if "Fragmentation" in one.title]
    check_wording(finding.title, finding.advice, ta.memory(path).verdict)


def test_pages_of_an_expandable_segment_can_be_unmapped(tmp_path: Path) -> None:
    """Of a hole of 30 MiB one page of 20 MiB is free as a whole."""
    path = holes("segment_map", is_expandable=True).write(tmp_path / "x.pickle")
    (row,) = ta.memory(path).devices.to_dicts()
    assert row["expandable"]
    assert row["fullest_split_bytes"] // MIB == 20


def test_expandable_segments_are_not_advised_where_they_are_on(tmp_path: Path) -> None:
    made = Snapshot().note("segment_map", BASE, 20 * MIB).alloc(BASE, MIB).free(BASE, MIB)
    other = (MAIN, FORWARD)
    made.note("segment_unmap", BASE, 20 * MIB, *other)
    made.note("segment_map", BASE, 40 * MIB, *other)
    for at in range(0, 40, 2):
        made.alloc(BASE + at * MIB, MIB)
    made.note("oom", 5 * MIB, 15 * MIB)
    blocks = [(at * MIB, MIB) for at in range(0, 40, 2)]
    path = made.hold(BASE, 40 * MIB, *blocks, is_expandable=True).write(tmp_path / "x.pickle")
    advice = [one.advice for one in ta.diagnose(path).found]
    assert advice
    assert not any("expandable_segments:True" in one for one in advice)
    assert "already" in ta.memory_oom(path).errors["advice"][0]


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
    """Device 1 has replicas and batches; device 0 gathers later and runs out."""
    other = Snapshot(now=5)
    other.alloc(OTHER, 6 * MIB, *REPLICATE).alloc(OTHER + 8 * MIB, 2 * MIB, *SCATTER)
    other.alloc(OTHER + 16 * MIB, 10 * MIB, MAIN).free(OTHER + 16 * MIB, 10 * MIB)
    made = Snapshot(now=200)
    made.alloc(BASE, 20 * MIB, MAIN).alloc(BASE + 20 * MIB, 20 * MIB, *GATHER)
    if oom:
        made.note("oom", MIB, 30 * MIB, *GATHER)
    made.hold(BASE, 40 * MIB, (0, 20 * MIB), (20 * MIB, 20 * MIB))
    made.hold(OTHER, 40 * MIB, (0, 6 * MIB), (8 * MIB, 2 * MIB), device=1)
    made.more = {"device_traces": [made.events, other.events]}
    return made


def test_an_error_is_on_a_device_and_shows_the_others(tmp_path: Path) -> None:
    found = ta.memory_oom(two_devices().write(tmp_path / "x_rank3.pickle"))
    rows = found.devices.select("device", "at_error_bytes", "peak_bytes").rows()
    assert rows == [(0, 40 * MIB, 40 * MIB), (1, 8 * MIB, 18 * MIB)]
    assert "on device 0 of rank 3" in found.verdict
    assert "Imbalance" in found.verdict
    assert "DataParallel" in found.verdict
    check_wording(found.verdict)


def test_replicas_and_scattered_batches_are_no_activations(tmp_path: Path) -> None:
    found = ta.memory(two_devices(oom=False).write(tmp_path / "x.pickle")).alive
    told = found.filter(device=1).select(pl.col("category").cast(pl.String), "live_bytes")
    assert {("parameters", 6 * MIB), ("inputs", 2 * MIB)} <= set(told.rows())


def test_pictures_share_one_time_axis_and_begin_with_the_device_of_the_verdict(
    tmp_path: Path,
) -> None:
    made = two_devices()
    made.more = {"device_traces": made.more["device_traces"][::-1]}
    made.segments = []
    found = ta.memory(made.write(tmp_path / "x.pickle")).maps
    assert [one.name for one in found] == ["memory_None_1", "memory_None_0"]
    layouts = [lay_out(one) for one in found]
    assert {one.end_time for one in layouts} == {215_000.0}
    assert [one.time.tolist()[1] for one in layouts if one.time is not None] == [195_000.0, 0.0]
    assert [one.time.tolist()[0] for one in layouts if one.time is not None] == [0.0, 0.0]


def at(start_us: int | None, tmp_path: Path) -> Path:
    """A snapshot of one device whose recording begins then and lasts 20 us."""
    made = Snapshot().alloc(BASE, MIB).free(BASE, MIB).hold(BASE, MIB)
    for event in made.events:
        event["time_us"] += start_us or 0
        if start_us is None:
            del event["time_us"]
    return made.write(tmp_path / f"{start_us}.pickle")


def test_pictures_of_several_files_share_one_time_axis(tmp_path: Path) -> None:
    found = ta.memory([at(0, tmp_path), at(30, tmp_path)])
    layouts = [lay_out(one) for one in found.maps]
    assert {one.end_time for one in layouts} == {50_000.0}
    times = sorted(one.time.tolist()[1:] for one in layouts if one.time is not None)
    assert times == [[0.0, 10_000.0, 20_000.0], [30_000.0, 40_000.0, 50_000.0]]
    assert not found.remarks


@pytest.mark.parametrize("other", [60_000_000, None], ids=["a minute later", "no times"])
def test_pictures_of_files_that_have_no_common_time_keep_their_axes(
    tmp_path: Path, other: int | None
) -> None:
    found = ta.memory([at(0, tmp_path), at(other, tmp_path)])
    ends = [one.end_time for one in map(lay_out, found.maps) if one.time is not None]
    assert set(ends) == {20_000.0}
    (remark,) = found.remarks
    check_wording(remark)


def test_peaks_at_different_moments_are_not_added(tmp_path: Path) -> None:
    path = two_devices(oom=False).write(tmp_path / "x.pickle")
    assert sum(ta.memory(path).devices["peak_bytes"]) == 58 * MIB
    assert ta.flamegraph(path).total == 48 * MIB


# --- stacks ----------------------------------------------------------------------------------


def test_frames_of_the_capture_are_left_out(tmp_path: Path) -> None:
    capture: tuple[Frame, ...] = (
        ("_PyEval_EvalFrameDefault", "/usr/src/Python/ceval.c", 900),
        ("gather_with_cpp", "??", 0),
        ("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
        ("torch::unwind::unwind()", "??", 0),
    )
    made = Snapshot().alloc(BASE, MIB, MAIN, FORWARD, *capture).hold(BASE, MIB)
    path = made.write(tmp_path / "x.pickle")
    expected = "main (/home/ada/train.py:10);forward (/home/ada/model.py:20)"
    found = ta.memory(path)
    assert found.alive["stack"].to_list() == [expected]
    assert found.maps[0].stacks["frames"].to_list() == [expected.split(";")[::-1]]
    assert "unwind" not in str(ta.flamegraph(path).to_dict())


# --- sizes -----------------------------------------------------------------------------------


def test_small_allocations_are_counted_but_not_listed(tmp_path: Path) -> None:
    made = Snapshot().alloc(BASE, 8 * MIB, MAIN, FORWARD).alloc(BASE + 8 * MIB, 2 * MIB, MAIN)
    path = made.hold(BASE, 10 * MIB, (0, 8 * MIB), (8 * MIB, 2 * MIB)).write(tmp_path / "x.pickle")
    found = ta.memory(path, min_bytes=4 * MIB)
    assert found.devices["peak_bytes"].to_list() == [10 * MIB]
    assert found.lines.select("live_bytes", "live_frac").rows() == [(8 * MIB, 0.8)]
    (drawn,) = found.maps
    assert drawn.boxes["live_bytes"].to_list() == [8 * MIB]
    assert drawn.levels["rest_bytes"].max() == 2 * MIB
    check_wording(*found.notes)
