"""Memory analyses of snapshots from a simulated allocator with known results."""

from __future__ import annotations

import gzip
import json
import pickle
import runpy
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT
from harness import differences, plain
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.analyzers.memory.ledger import ledgers
from traceanalyzer.analyzers.memory.rank_memory import thinned
from traceanalyzer.errors import MalformedInput, MissingData, OptionError, UnknownFormat
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.source import Source

FOLDER = Path(__file__).parents[2] / "fixtures" / "memory"
MAKE = runpy.run_path(str(FOLDER.parent / "make_memory.py"))
TRUTH = {name: MAKE["truth"](make(), most) for name, (make, _, most, _) in MAKE["FILES"].items()}
NO_HISTORY = ("torch113_segments_only",)

every = pytest.mark.parametrize("name", TRUTH)


def path(name: str) -> Path:
    return FOLDER / f"{name}.pickle"


def whole(name: str) -> Any:
    """Return the objects that a fixture was pickled from."""
    make, era, most, _ = MAKE["FILES"][name]
    return MAKE["Snapshot"](make(), era, most).whole()


# --- the parser ------------------------------------------------------------------------------


@pytest.mark.sample(3)
@every
def test_tables_match_schema(name: str) -> None:
    for columns in ((), ("args",)):
        assert schema.check(ta.read(path(name), columns=columns).tables) == []


@every
def test_all_events_are_read(name: str) -> None:
    if name in NO_HISTORY:
        pytest.skip("has no events")
    trace = ta.read(path(name))
    expected = [
        (device, e["action"], e.get("addr"), e["size"], e.get("time_us"), len(e["frames"]))
        for device, events in enumerate(whole(name)["device_traces"])
        for e in events
    ]
    events = trace.events.filter(pl.col("kind") != "user_annotation")
    start = trace.meta.epoch_ns
    rows = [
        (
            row["device"],
            row["name"],
            row["address"],
            row["bytes"],
            None if start is None else (start + row["ts"]) // 1000,
            depth(trace, row["stack"]),
        )
        for row in events.iter_rows(named=True)
    ]
    # events of devices are interleaved by time; the order per device is that of the file
    assert sorted(rows, key=lambda row: row[0]) == expected


def depth(trace: ta.Trace, stack: int | None) -> int:
    parents = trace.stacks["parent"].to_list()
    count = 0
    while stack is not None:
        count, stack = count + 1, parents[stack]
    return count


def test_stack_frames_are_ordered_from_outermost() -> None:
    trace = ta.read(path("training"))
    leaf = trace.events.filter(pl.col("name") == "alloc")["stack"][0]
    rows = {row["id"]: row for row in trace.stacks.iter_rows(named=True)}
    frames = []
    while leaf is not None:
        row = rows[leaf]
        frames.append((row["name"], row["file"], row["line"]))
        leaf = row["parent"]
    # C++ frames have neither file nor line
    expected = [
        (name, None if file == "??" else file, line or None)
        for name, file, line in reversed(MAKE["STACKS"]["weights"])
    ]
    assert frames == expected


@every
def test_segments_and_blocks_match_file(name: str) -> None:
    trace = ta.read(path(name))
    content = whole(name)
    segments = content if isinstance(content, list) else content["segments"]
    assert trace.segments["total_bytes"].to_list() == [s["total_size"] for s in segments]
    blocks = [
        (number, address, block["size"], state(block))
        for number, segment in enumerate(segments)
        for address, block in with_addresses(segment)
    ]
    columns = ("segment", "address", "size_bytes", pl.col("state").cast(pl.String))
    assert trace.blocks.select(columns).rows() == blocks


def with_addresses(segment: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    at, blocks = segment["address"], []
    for block in segment["blocks"]:
        blocks.append((at, block))
        at += block["size"]
    return blocks


def state(block: dict[str, Any]) -> str:
    return str(block["state"]).replace("awaiting", "pending")


def test_annotations_become_slices() -> None:
    trace = ta.read(path("training"))
    steps = trace.events.filter(pl.col("kind") == "user_annotation")
    assert steps["name"].to_list() == [f"ProfilerStep#{n}" for n in range(6)]
    assert steps["dur"].null_count() == 0


def test_oom_event_has_free_bytes() -> None:
    trace = ta.read(path("oom"))
    (row,) = trace.memory_totals.to_dicts()
    event = trace.events.row(row["event"], named=True)
    assert event["kind"] == "oom"
    assert event["address"] is None
    expected = next(e for e in whole("oom")["device_traces"][0] if e["action"] == "oom")
    assert (event["bytes"], row["free_bytes"]) == (expected["size"], expected["device_free"])


def test_extra_fields_become_args_on_request() -> None:
    first = ta.read(path("training"), columns=["args"]).events["args"][0]
    assert json.loads(first)["compile_context"] == "N/A"


def test_compressed_snapshot_is_read(tmp_path: Path) -> None:
    packed = tmp_path / "x.pickle.gz"
    packed.write_bytes(gzip.compress(path("training").read_bytes()))
    assert ta.read(packed).events.equals(ta.read(path("training")).events)


def test_rank_is_read_from_file_name(tmp_path: Path) -> None:
    named = tmp_path / "snapshot_rank3.pickle"
    named.write_bytes(path("training").read_bytes())
    assert ta.read(named).meta.rank == 3


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_all_pickle_protocols_are_read(protocol: int, tmp_path: Path) -> None:
    other = tmp_path / "x.pickle"
    other.write_bytes(pickle.dumps(whole("training"), protocol=protocol))
    assert ta.read(other).events.equals(ta.read(path("training")).events)


@pytest.mark.sample(4)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
def test_truncated_file_keeps_complete_rows(share: float, tmp_path: Path) -> None:
    data = path("two_devices").read_bytes()
    cut = tmp_path / "x.pickle"
    cut.write_bytes(data[: int(share * len(data))])
    trace, full = ta.read(cut), ta.read(path("two_devices"))
    assert "truncated" in trace.issues["code"].to_list()
    for device in (0, 1):
        kept, all_ = (
            t.events.filter(pl.col("device") == device, pl.col("kind") != "user_annotation")
            for t in (trace, full)
        )
        columns = ("kind", "address", "bytes")
        assert kept.select(columns).equals(all_.head(kept.height).select(columns))
    segments = trace.segments.drop("stack")
    assert segments.equals(full.segments.drop("stack").head(segments.height))
    check_wording(*ta.memory(cut).remarks)


def test_format_is_detected_by_content(tmp_path: Path) -> None:
    unknown = tmp_path / "unknown"
    for name in TRUTH:
        unknown.write_bytes(path(name).read_bytes())
        assert registry.require(Source(unknown)).name == "memory-snapshot"


@pytest.mark.matrix
@pytest.mark.sample(3)
@every
def test_parquet_round_trip_keeps_memory(name: str, tmp_path: Path) -> None:
    ta.convert(path(name), tmp_path / "x.parquet")
    trace, again = ta.read(path(name)), ta.read(tmp_path / "x.parquet")
    assert differences(trace, again) == []
    assert ta.memory(again).devices.drop("path").equals(ta.memory(trace).devices.drop("path"))


def test_kinds_select_rows() -> None:
    whole_ = ta.read(path("training"))
    for kind in ("alloc", "user_annotation", "kernel"):
        events = ta.read(path("training"), kinds=[kind]).events
        assert plain(events).equals(plain(whole_.events.filter(pl.col("kind") == kind)))


# --- the reconstruction ----------------------------------------------------------------------


@pytest.mark.sample(3)
@every
def test_devices_match_simulation(name: str) -> None:
    rows = ta.memory(path(name)).devices.to_dicts()
    for row, true in zip(rows, TRUTH[name], strict=True):
        if name in NO_HISTORY:
            assert (row["end_bytes"], row["reserved_end_bytes"]) == (
                true["end_bytes"],
                true["reserved_end_bytes"],
            )
            continue
        values = {key: row[key] for key in true}
        values["peak_event"] = -1 if values["peak_event"] is None else values["peak_event"]
        assert values == true
        quality = ("reused_n", "double_free_n", "resized_n", "never_freed_n", "difference_bytes")
        assert [row[key] for key in quality] == [0] * 5


@pytest.mark.sample(3)
@every
def test_timeline_matches_simulation(name: str) -> None:
    if name in NO_HISTORY:
        pytest.skip("has no history")
    make, _, most, _ = MAKE["FILES"][name]
    timeline = ta.memory(path(name)).timeline
    for device in make().devices:
        kept = device.truth[-(most or len(device.truth)) :]
        curve = timeline.filter(pl.col("device") == device.number)
        assert curve.select("live_bytes", "reserved_bytes").rows()[1:] == kept


def test_snapshot_versions_give_equal_lines() -> None:
    answers = [
        ta.memory(path(name)).lines.select("function", "n", "live_bytes").rows()
        for name in ("training", "torch21_no_times", "torch20_block_history")
    ]
    assert answers[0] == answers[1] == answers[2]


def test_allocations_before_history_are_counted() -> None:
    row = ta.memory(path("ring")).devices.row(0, named=True)
    assert row["before_bytes"] == row["start_bytes"] == TRUTH["ring"][0]["start_bytes"]
    assert row["before_n"] > 0
    check_wording(*ta.memory(path("ring")).notes)


# --- attribution -----------------------------------------------------------------------------


def test_categories_of_training() -> None:
    alive = ta.memory(path("training")).alive.select(
        pl.col("category", "confidence").cast(pl.String), "n"
    )
    assert sorted(alive.group_by("category", "confidence").agg(pl.col("n").sum()).rows()) == [
        ("activations", "high", 4),
        ("communication buffers", "medium", 1),
        ("gradients", "high", 1),
        ("inputs", "low", 1),
        ("optimizer state", "high", 4),
        ("parameters", "medium", 4),
        ("temporary", "medium", 1),
    ]


def test_lines_are_own_code_or_library() -> None:
    lines = ta.memory(path("training")).lines.select("function", "is_own_code").head(2).rows()
    assert lines == [("train_step", True), ("main", True)]
    torch = ta.memory(path("training"), library_name="torch").lines
    named = torch.filter(pl.col("is_own_code"))["function"].to_list()
    assert {"step", "to", "_call_impl"} <= set(named)


def test_shares_sum_to_one() -> None:
    result = ta.memory(path("two_devices"))
    for frame in (result.alive, result.lines, result.categories):
        sums = frame.group_by("device").agg(pl.col("live_frac").sum())["live_frac"]
        assert sums.to_list() == pytest.approx([1, 1])


@pytest.mark.matrix
def test_trace_of_several_ranks_is_split() -> None:
    files = [ta.read(path(name)).with_rank(n) for n, name in enumerate(("training", "oom"))]
    columns = ("rank", "peak_bytes", "end_bytes", "difference_bytes", "inactive_bytes")
    together = ta.memory(ta.concat(files)).devices.select(columns)
    assert together.equals(ta.memory(files).devices.select(columns))


@pytest.mark.matrix
def test_outlier_of_several_ranks_is_reported(tmp_path: Path) -> None:
    for rank in range(4):
        source = path("oom" if rank == 2 else "training")
        (tmp_path / f"rank{rank}.pickle").write_bytes(source.read_bytes())
    result = ta.memory(tmp_path)
    assert result.devices["rank"].to_list() == [0, 1, 2, 3]
    check_wording(result.verdict)
    assert result.charts[0].frame.height == 4


# --- out of memory, growth, differences ------------------------------------------------------


def errors(name: str, **options: Any) -> dict[str, Any]:
    (row,) = ta.memory_oom(path(name), **options).errors.to_dicts()
    return row


def test_fragmentation_is_the_cause() -> None:
    row = errors("fragmented_oom")
    assert row["cause"] == "fragmentation"
    assert "expandable_segments" in row["advice"]
    assert row["unused_bytes"] >= row["request_bytes"] > row["largest_free_bytes"]
    assert row["reserved_bytes"] - row["allocated_bytes"] == row["unused_bytes"]


def test_demand_exceeds_all_free_memory() -> None:
    row = errors("oom_expandable")
    free = row["unused_bytes"] + row["device_free_bytes"]
    expected = "fragmentation" if free >= row["request_bytes"] else "real demand"
    assert row["cause"] == expected
    assert row["missing_bytes"] == max(row["request_bytes"] - free, 0)


def test_largest_free_block_matches_simulation() -> None:
    """If an error ends the history, the blocks at the end are those of the error."""
    for name in ("fragmented_oom", "oom"):
        device = MAKE["FILES"][name][0]().devices[0]
        free = [
            b.size for s in device.segments for b in s.blocks if b.asked is None and not s.small
        ]
        assert errors(name)["largest_free_bytes"] == max(free)


def test_memory_outside_pytorch_needs_capacity() -> None:
    device = MAKE["FILES"]["oom"][0]().devices[0]
    row = errors("oom", capacity_bytes=device.capacity)
    assert row["outside_bytes"] == 0
    assert errors("oom")["outside_bytes"] is None
    check_wording(*ta.memory_oom(path("oom")).notes)


def test_no_error_explains_how_to_record_one() -> None:
    result = ta.memory_oom(path("training"))
    assert result.errors.is_empty()
    check_wording(result.verdict)


def test_live_memory_at_error_sums_to_allocated() -> None:
    result = ta.memory_oom(path("oom"))
    assert result.alive["live_bytes"].sum() == result.errors["allocated_bytes"][0]


def test_only_the_leak_is_a_suspect() -> None:
    result = ta.memory_growth(path("leak"))
    (row,) = result.suspects.to_dicts()
    assert (row["function"], row["line"]) == ("keep_losses", 60)
    steps = range(8)
    assert row["grown_bytes"] == sum((1 << 20) + step for step in steps[1:])
    assert row["grown_steps"] == 7
    assert "keep_losses" in result.verdict
    assert ta.memory_growth(path("training")).suspects.is_empty()


def test_growth_measures_live_bytes_at_each_boundary() -> None:
    result = ta.memory_growth(path("leak"), step_every="40")
    device = MAKE["FILES"]["leak"][0]().devices[0]
    expected = [device.truth[at - 1][0] for at in range(40, len(device.truth) + 1, 40)]
    assert result.steps["live_bytes"].to_list() == expected
    by_time = ta.memory_growth(path("leak"), step_every="500us").steps
    assert by_time["time_ns"].diff().drop_nulls().unique().to_list() == [500_000]


def test_growth_without_annotations() -> None:
    steps = ta.memory_growth(path("torch21_no_times")).steps
    assert steps["by"].unique().to_list() == ["optimizer calls"]
    assert steps["time_ns"].null_count() == steps.height
    with pytest.raises(MissingData, match="--step-every"):
        ta.memory_growth(path("oom_expandable"))
    with pytest.raises(MissingData, match="_record_memory_history"):
        ta.memory_growth(path("torch113_segments_only"))
    with pytest.raises(OptionError, match="no times"):
        ta.memory_growth(path("torch21_no_times"), step_every="1ms")
    assert ta.memory_growth(path("torch21_no_times"), step_every="50").steps.height == 5


def test_diff_lists_changes() -> None:
    result = ta.memory_diff(path("leak"), path("training"))
    assert result.peak_bytes - result.base_bytes == result.changes["changed_bytes"].sum()
    assert result.lines.row(0, named=True)["function"] == "keep_losses"
    same = ta.memory_diff(path("training"), path("training"))
    assert same.changes["changed_bytes"].unique().to_list() == [0]
    check_wording(same.verdict)


# --- plots -----------------------------------------------------------------------------------


@pytest.mark.sample(3)
@every
def test_boxes_and_rest_sum_to_live_bytes(name: str) -> None:
    for drawn in ta.memory(path(name)).occupancies:
        boxes = drawn.boxes
        for row in drawn.levels.iter_rows(named=True):
            live = (boxes["start"] <= row["event"]) & (boxes["end"] > row["event"])
            assert boxes.filter(live)["live_bytes"].sum() + row["rest_bytes"] == row["live_bytes"]
        if drawn.segments.height:
            filled = drawn.blocks.group_by("segment").agg(pl.col("total_bytes").sum())
            sizes = dict(drawn.segments.select("id", "total_bytes").rows())
            assert dict(filled.rows()) == sizes


def test_segment_plot_matches_peak() -> None:
    result = ta.memory(path("training"))
    (drawn,) = result.occupancies
    live = drawn.blocks.filter(pl.col("state") == "live")
    row = result.devices.row(0, named=True)
    assert live.height == row["peak_n"]
    assert drawn.segments["total_bytes"].sum() == row["reserved_at_peak_bytes"]
    assert drawn.spans.height == 6
    assert Counter(drawn.marks["kind"]) == {"peak": 1}


def test_flamegraph_weighs_the_peak() -> None:
    result = ta.flamegraph(path("training"))
    assert result.unit == "bytes"
    assert result.total == TRUTH["training"][0]["peak_bytes"]


# --- bad input -------------------------------------------------------------------------------


def written(tmp_path: Path, name: str, data: bytes) -> Path:
    file = tmp_path / name
    file.write_bytes(data)
    return file


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("pwned"),))


def test_pickled_code_is_rejected(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps({"segments": [Evil()], "device_traces": []})
    evil = written(tmp_path, "x.pickle", data)
    with raises_wording(MalformedInput):
        ta.read(evil)
    assert not (tmp_path / "pwned").exists()


def test_checkpoint_is_rejected(tmp_path: Path) -> None:
    pickled = written(tmp_path, "model.pkl", pickle.dumps({"weight": [1.0], "epoch": 3}))
    with raises_wording(UnknownFormat):
        ta.read(pickled)
    packed = tmp_path / "model.pt"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"weight": 1}))
        archive.writestr("archive/data/0", b"\0" * 4096)
    with pytest.raises(UnknownFormat, match=r"checkpoint.*_dump_snapshot"):
        ta.read(packed)


def test_empty_files_are_rejected(tmp_path: Path) -> None:
    data = pickle.dumps({"segments": [], "device_traces": [[]]})
    with pytest.raises(MalformedInput, match="_record_memory_history"):
        ta.memory(written(tmp_path, "x.pickle", data))
    with pytest.raises(UnknownFormat, match="an empty file"):
        ta.memory(written(tmp_path, "y.pickle", b""))
    with pytest.raises(UnknownFormat, match="HTML page"):
        ta.memory(written(tmp_path, "z.pickle", b"<html><body>404</body></html>"))


def test_missing_history_explains_how_to_record_it() -> None:
    check_wording(ta.memory(path("torch113_segments_only")).verdict)


def test_trace_without_allocations_is_rejected(tmp_path: Path) -> None:
    trace = written(tmp_path, "x.json", b'{"traceEvents": [{"ph":"X","name":"f","ts":1,"dur":2}]}')
    with pytest.raises(MissingData, match="profile_memory=True"):
        ta.memory(trace)


def test_invalid_values_are_counted(tmp_path: Path) -> None:
    content = whole("training")
    content["device_traces"][0][5]["size"] = "big"
    content["device_traces"][0][6]["addr"] = -1
    content["device_traces"][0][7]["time_us"] = 10**30 % (1 << 63)
    content["device_traces"][0][8]["action"] = "dance"
    content["segments"][0]["blocks"][0]["state"] = None
    content["segments"][0]["device"] = "cuda:0"
    trace = ta.read(written(tmp_path, "x.pickle", pickle.dumps(content)))
    assert schema.check(trace.tables) == []
    codes = dict(trace.issues.select("code", "count").rows())
    assert codes["wrong-type"] >= 3
    assert ta.memory(trace).devices.height


def test_backward_times_keep_order(tmp_path: Path) -> None:
    content = whole("training")
    events = content["device_traces"][0]
    events[20]["time_us"] = events[5]["time_us"]
    trace = ta.read(written(tmp_path, "x.pickle", pickle.dumps(content)))
    assert dict(trace.issues.select("code", "count").rows())["time-backwards"] == 1
    assert ta.memory(trace).devices["peak_bytes"][0] == TRUTH["training"][0]["peak_bytes"]


def test_window_keeps_earlier_allocations() -> None:
    whole_, since = ta.memory(path("training")), 1_000_000
    late = ta.memory(path("training"), since_ns=since)
    curve = whole_.timeline.filter(pl.col("time_ns") >= since)["live_bytes"]
    assert late.devices["peak_bytes"][0] == curve.max()
    assert late.devices["peak_ns"][0] >= since
    early = ta.memory(path("training"), until_ns=100_000).devices
    assert early["peak_bytes"][0] < whole_.devices["peak_bytes"][0]
    with pytest.raises(MissingData, match="no timeline"):
        ta.memory(path("torch21_no_times"), since_ns=1)


def test_invalid_step_name_is_rejected() -> None:
    with raises_wording(OptionError):
        ta.memory_growth(path("leak"), step_name="(")


def test_step_name_supports_lookahead() -> None:
    """As in the regular expressions of all other options."""
    marked = ta.memory_growth(path("leak"), step_name="ProfilerStep|^step")
    ahead = ta.memory_growth(path("leak"), step_name="(?=ProfilerStep)|^(?=step)")
    assert ahead.steps.equals(marked.steps)


# --- instants of torch.profiler --------------------------------------------------------------


def profiled(tmp_path: Path) -> Path:
    """Write a trace with ``[memory]`` instants: two operators in a frame, one allocation freed."""

    def slice_(cat: str, name: str, ts: int, dur: int) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1}

    def instant(ts: int, address: int, size: int, total: int, kind: int = 1) -> dict[str, Any]:
        args = {"Bytes": size, "Addr": address, "Device Type": kind, "Device Id": 0,
                "Total Allocated": total, "Total Reserved": 4096}  # fmt: skip
        return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts,
                "pid": 1, "tid": 1, "args": args}  # fmt: skip

    events = [
        slice_("user_annotation", "ProfilerStep#1", 0, 100),
        slice_("python_function", "/home/ada/train.py(12): step", 0, 60),
        slice_("cpu_op", "aten::mm", 10, 10),
        instant(15, 0x1000, 1024, 1536),
        slice_("cpu_op", "aten::add", 30, 10),
        instant(35, 0x2000, 512, 2048),
        instant(36, 0x9000, 4096, 4096, kind=0),
        instant(50, 0x2000, -512, 1536),
        slice_("cpu_op", "aten::relu", 70, 10),
        instant(75, 0x3000, 256, 1792),
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return file


def test_instants_give_the_curve(tmp_path: Path) -> None:
    result = ta.memory(profiled(tmp_path))
    assert result.timeline["live_bytes"].to_list() == [512, 1536, 2048, 1536, 1792]
    row = result.devices.row(0, named=True)
    assert (row["peak_bytes"], row["peak_ns"], row["reserved_peak_bytes"]) == (2048, 35_000, 4096)
    assert (row["start_bytes"], row["end_bytes"], row["difference_bytes"]) == (512, 1792, None)


@pytest.mark.parametrize("points", [4, 9, 10, 40])
def test_thinned_curve_keeps_ends_and_maxima(
    points: int,
) -> None:
    (history,) = ledgers(ta.read(path("training")))
    live = history.live
    assert live.size > 40
    at = thinned(history, points)
    parts = (points - 2) // 2
    edges = [n * live.size // parts for n in range(parts)]
    assert at.size <= points
    assert {0, live.size - 1, int(live.argmax()), *edges} <= set(at.tolist())
    for first, end in zip(edges, [*edges[1:], live.size], strict=True):
        inside = at[(at >= first) & (at < end)]
        assert live[inside].max() == live[first:end].max()
    assert thinned(history, live.size).tolist() == list(range(live.size))


def test_instants_are_named_by_running_code(tmp_path: Path) -> None:
    result = ta.memory(profiled(tmp_path))
    lines = result.lines.select("function", "line", "is_own_code", "live_bytes").rows()
    assert lines == [("step", 12, True, 1536), (None, None, None, 512)]
    late = ta.memory(profiled(tmp_path), since_ns=70_000).lines
    assert dict(late.select("function", "live_bytes").rows())["aten::relu"] == 256
    assert "step (train.py:12)" in result.occupancies[0].boxes["label"].to_list()


def test_one_instant_is_a_history(tmp_path: Path) -> None:
    args = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": 64, "Total Allocated": 64}
    event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1}
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{**event, "pid": 1, "tid": 1, "args": args}]))
    assert "_record_memory_history" not in ta.memory(path).verdict


def test_allocations_of_cpu_memory_only_are_named(tmp_path: Path) -> None:
    args = {"Device Type": 0, "Device Id": -1, "Addr": 1, "Bytes": 64, "Total Allocated": 64}
    event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1}
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{**event, "pid": 1, "tid": 1, "args": args}]))
    with pytest.raises(MissingData, match="only allocations of CPU memory"):
        ta.memory(path)


@pytest.mark.parametrize("start_ns", [10**15, None], ids=["known start", "first event"])
def test_times_are_from_the_start_of_the_file(start_ns: int | None) -> None:
    trace = ta.read(ROOT / "fixtures/memory/training.pickle")
    meta = replace(trace.meta, start_ns=start_ns)
    later = trace.events.with_columns(ts=pl.col("ts") + 10**15)
    shifted = replace(trace, sources=(meta,), events=later)
    for first, second in zip(ta.memory(trace).tables, ta.memory(shifted).tables, strict=True):
        assert second.frame.equals(first.frame), first.name
