"""Export of Nsight Systems traces: lossless Parquet, Chrome JSON for viewers."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import OptionError
from traceanalyzer.run.ranks import by_rank
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.vocabulary import DEVICE_KINDS

FIXTURES = Path(__file__).parents[2] / "fixtures/nsys"
BUNDLED = [FIXTURES / "training.sqlite", FIXTURES / "tables.sqlite"]
REAL = [
    "cloverleaf_4xa100",
    "mfu_2gpu_after",
    "mfu_2gpu_before",
    "nvtx_only_2022",
    "power_iteration_t4",
    "pre2022_two_long_gaps",
    "saxpy_mpi_lazy_false",
]
COLUMNS = ON_REQUEST


@pytest.fixture(params=[*BUNDLED, *REAL], ids=lambda of: of if isinstance(of, str) else of.stem)
def export(request) -> Path:
    if isinstance(request.param, Path):
        return request.param
    return request.getfixturevalue("shared") / f"data/nsys/{request.param}.sqlite.gz"


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    texts = [n for n, t in frame.schema.items() if isinstance(t, pl.Categorical | pl.Enum)]
    return frame.with_columns(pl.col(texts).cast(pl.String))


@pytest.mark.sample(9)
def test_parquet_is_the_same_trace(export, tmp_path_factory):
    trace = ta.read(export, columns=COLUMNS)
    path = tmp_path_factory.mktemp("out") / "a.parquet"
    ta.convert(trace, path)
    again = ta.read(path, columns=COLUMNS)
    for name, frame in trace.tables.items():
        columns = again.tables[name].columns
        assert frame.columns == [c for c in columns if c in frame.columns]
        assert_frame_equal(again.tables[name].select(frame.columns), frame)
    assert [replace(m, path="") for m in again.sources] == [
        replace(m, path="") for m in trace.sources
    ]


def as_chrome_shows(events: pl.DataFrame) -> pl.DataFrame:
    """What the documentation says is left of a rank's events."""
    on_device = pl.col("kind").is_in(DEVICE_KINDS)
    is_sample = pl.col("kind") == "sample"
    kept = on_device | is_sample
    lost = {"category": pl.String, "device": pl.Int32, "bytes": pl.Int64, "address": pl.UInt64}
    return plain(events).with_columns(
        category=pl.when(pl.col("kind") == "other")
        .then("category")
        .when(~is_sample)
        .then(pl.col("kind").cast(pl.String)),
        pid=pl.when(~on_device).then("pid"),
        tid=pl.when(~on_device).then(pl.col("tid").fill_null(-1)),
        **{
            name: pl.when(kept).then(name).otherwise(pl.lit(None, dtype))
            for name, dtype in lost.items()
            if name != "category"
        },
    )


@pytest.mark.sample(9)
def test_chrome_json_of_a_rank_reads_back(export, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    traces = by_rank(ta.read(export))
    for trace in traces:
        path = folder / f"{trace.meta.rank}.json"
        ta.convert(export, path, rank=trace.meta.rank)
        again = ta.read(path)
        rank = pl.lit(trace.meta.rank, pl.Int32)
        assert_frame_equal(
            plain(again.events).with_columns(rank=rank), as_chrome_shows(trace.events)
        )
        shapes = [one.launch_configs.drop("local_memory") for one in (again, trace)]  # not Kineto's
        assert_frame_equal(*shapes)
        assert_frame_equal(plain(again.stacks), plain(trace.stacks))
        assert again.issues.is_empty()
        for name in ("rank", "world_size", "devices", "host", "epoch_ns", "weight_unit"):
            assert getattr(again.meta, name) == getattr(trace.meta, name), name


def test_a_rank_that_is_not_there(tmp_path):
    with raises_wording(OptionError):
        ta.convert(FIXTURES / "training.sqlite", tmp_path / "a.json", rank=7)
    assert list(tmp_path.iterdir()) == []


def written(trace: ta.Trace, tmp_path: Path) -> dict[str, Any]:
    ta.convert(trace, tmp_path / "out.json", force=True)
    result: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return result


@pytest.mark.sample(9)
def test_all_slices_nest_on_their_track(export, tmp_path_factory):
    trace = ta.read(export)
    result = written(trace, tmp_path_factory.mktemp("out"))["traceEvents"]
    tracks = defaultdict(list)
    for event in result:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    for slices in tracks.values():
        still_open: list[int] = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while still_open and still_open[-1] <= start:
                still_open.pop()
            assert not still_open or end <= still_open[-1]
            still_open.append(end)
    closed = trace.events.filter(pl.col("dur").is_not_null())
    assert sum(map(len, tracks.values())) == closed.height


def names(result: dict[str, Any], thing: str) -> dict[Any, str]:
    key = (lambda e: e["pid"]) if thing == "process" else (lambda e: (e["pid"], e["tid"]))
    return {
        key(event): event["args"]["name"]
        for event in result["traceEvents"]
        if event["ph"] == "M" and event["name"] == f"{thing}_name"
    }


def test_processes_gpus_threads_and_streams_are_named(tmp_path):
    trace = ta.read(FIXTURES / "training.sqlite")
    result = written(trace, tmp_path)
    processes, threads = names(result, "process"), names(result, "thread")
    assert sorted(processes.values()) == [
        "rank 0: GPU 0 (NVIDIA H100 80GB HBM3)",
        "rank 0: python3",
        "rank 1: GPU 1 (NVIDIA H100 80GB HBM3)",
        "rank 1: python3",
    ]
    of_kind = defaultdict(set)
    for event in result["traceEvents"]:
        if event["ph"] in "Xi":
            place = event["pid"], event["tid"]
            of_kind[event["cat"]].add((processes[event["pid"]], threads[place]))
    assert of_kind["kernel"] >= {
        ("rank 0: GPU 0 (NVIDIA H100 80GB HBM3)", "stream 7"),
        ("rank 1: GPU 1 (NVIDIA H100 80GB HBM3)", "stream 7"),
    }
    assert all(track.startswith("stream ") for _, track in of_kind["kernel"])
    assert {process for process, _ in of_kind["nvtx"]} == {"rank 0: python3", "rank 1: python3"}
    assert all(track.endswith("(running)") for _, track in of_kind["sched"])
    assert not any(track.endswith("(running)") for _, track in of_kind["nvtx"])


def test_a_domain_and_a_payload_are_arguments(tmp_path):
    result = written(ta.read(FIXTURES / "training.sqlite", columns=["args"]), tmp_path)
    ranges = [event for event in result["traceEvents"] if event.get("cat") == "nvtx"]
    nccl_events = [event for event in ranges if event.get("args", {}).get("category") == "NCCL"]
    assert nccl_events
    assert all("args" in e["args"] for e in ranges if e["name"] == "batch")
    kernels = [event for event in result["traceEvents"] if event.get("cat") == "kernel"]
    assert all(kernel["args"]["correlation"] for kernel in kernels)


def test_rows_without_thread_and_process(tmp_path):
    trace = ta.read(FIXTURES / "tables.sqlite")
    result = written(trace, tmp_path)
    (pid,) = set(trace.events["pid"])
    assert names(result, "thread")[pid, -1] == "no thread"
    drawn = {e["cat"]: e for e in result["traceEvents"] if e["ph"] in "Xi" and e["tid"] == -1}
    assert {"alloc", "free_completed", "nvtx"} <= drawn.keys()
    assert drawn["alloc"]["args"] == {
        "Device Id": 0, "Bytes": 536_870_912, "Addr": drawn["alloc"]["args"]["Addr"],
        "Total Allocated": 2_684_354_560,
    }  # fmt: skip
    readings = [event for event in result["traceEvents"] if event["ph"] == "C"]
    assert len(readings) == trace.counters.height
    assert all("pid" not in event for event in readings)
    # readings of the whole machine make no second rank of it
    assert {event["pid"] for event in result["traceEvents"] if event["ph"] == "X"} == {pid, 0}
