"""Events of producers that deviate from Kineto's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer.parsers import tables
from traceanalyzer.parsers.chrome_trace import arrays, columns


@pytest.fixture(params=["compiled", "python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with the compiled scan, and without it."""
    if request.param == "python":
        monkeypatch.setattr(arrays, "_scan", None)


def _read(tmp_path: Path, *events: dict[str, Any]) -> ta.Trace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return ta.read(path)


def _work(kind: str, name: str, **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": 5, "bytes": 64, **args}
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 2,
        "args": args,
    }


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(
    ("kind", "name", "args", "expected"),
    [
        (
            "gpu_memcpy", "Memcpy",
            {"copy kind": "HtoD", "src kind": "pageable", "dst kind": "device"},
            "Memcpy HtoD (Pageable -> Device)",
        ),
        (
            "gpu_memcpy", "Memcpy",
            {"copy kind": "DtoD", "src kind": "device_static", "dst kind": "managed"},
            "Memcpy DtoD (Device Static -> Managed)",
        ),
        ("gpu_memcpy", "Memcpy", {"copy kind": "DtoH", "src kind": 99}, "Memcpy DtoH"),
        ("gpu_memcpy", "Memcpy", {"copy kind": 42, "src kind": "device"}, "Memcpy"),
        ("gpu_memcpy", "Memcpy", {}, "Memcpy"),
        ("gpu_memset", "Memset", {"memory kind": 3}, "Memset (Device)"),
        ("gpu_memset", "Memset", {"memory kind": -1}, "Memset"),
        # already named, as by Kineto and by the exporter of this package
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", {"copy kind": "DtoD"},
         "Memcpy PtoP (Device -> Device)"),
    ],
)  # fmt: skip
def test_copies_of_cupti_monitor_are_named_by_their_arguments(
    tmp_path: Path, kind: str, name: str, args: dict[str, Any], expected: str
) -> None:
    row = _read(tmp_path, _work(kind, name, **args)).events.row(0, named=True)
    assert (row["kind"], row["name"], row["stream"], row["bytes"]) == (kind, expected, 7, 64)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("tid", [7, "stream 7"])  # the scan leaves the second one to Python
def test_sizes_of_a_kernel_without_a_collective_name_are_left_out(
    tmp_path: Path, tid: int | str
) -> None:
    work = _work("kernel", "ncclKernel_AllReduce_x", **{"Group size": 8, "dtype": "Float"})
    row = _read(tmp_path, work | {"tid": tid}).collectives.row(0, named=True)
    known = {name: value for name, value in row.items() if value is not None}
    assert known == {"event": 0, "collective": "all_reduce"}


def test_pageable_copies_of_cupti_monitor_are_found(tmp_path: Path) -> None:
    places = {"copy kind": "HtoD", "src kind": "pageable", "dst kind": "device", "bytes": 8 << 20}
    trace = _read(tmp_path, _work("gpu_memcpy", "Memcpy", **places))
    assert "pageable" in ta.transfers(trace).findings["finding"].to_list()


@pytest.mark.usefixtures("either")
def test_counters_of_a_gpu_without_series_have_the_gpu(tmp_path: Path) -> None:
    def counter(pid: str, name: str, **values: float) -> dict[str, Any]:
        return {"ph": "C", "name": name, "pid": pid, "ts": 1, "args": values or {"": 40.0}}

    trace = _read(
        tmp_path,
        _work("kernel", "gemm"),
        counter("GPU 1 Counters", "SM Active (%)"),
        counter("GPU 1 Counters", "HBM BW (%)"),
        counter("GPU 1 Counters", "other", used=1.0),
        counter("others", "SM Active (%)"),
    )
    assert set(trace.counters.select(pl.col("name", "series").cast(pl.String)).rows()) == {
        ("SM Active (%)", "GPU 1"),
        ("HBM BW (%)", "GPU 1"),
        ("other", "used"),
        ("SM Active (%)", ""),
    }
    gpu = ta.host_metrics(trace).gpus().filter(pl.col("gpu") == "GPU 1").row(0, named=True)
    assert (gpu["sm_frac"], gpu["dram_frac"]) == (0.4, 0.4)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("large", [False, True])
def test_functions_around_the_start_of_the_profiler_have_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    """Kineto gives them the line at that moment, that of prof.step(); later ones that of def."""
    if large:  # columns are in temporary files
        monkeypatch.setattr(columns, "SPILLED_BYTES", 1)
        monkeypatch.setattr(tables, "_LEAST_BYTES", 1)

    def function(name: str, ts: int, dur: int) -> dict[str, Any]:
        place = {"ph": "X", "cat": "python_function", "pid": 1, "tid": 1}
        return place | {"name": name, "ts": ts, "dur": dur}

    step, called = "torch/profiler/profiler.py(1227): step", "data.py(3): load"
    loop = [function("train.py(40): <module>", 0, 1000), function("train.py(14): fit", 1, 990)]
    load = [function(called, 50, 20), function(step, 90, 5)]
    started = _read(tmp_path, *loop, function(step, 2, 9), *load).events["name"].cast(pl.String)
    assert started.to_list() == ["<module> (train.py)", "fit (train.py)", step, called, step]
    later = _read(tmp_path, *loop, *load).events["name"].cast(pl.String)
    assert later.to_list() == [one["name"] for one in (*loop, *load)]


@pytest.mark.parametrize("overflow", [True, False])
def test_a_full_buffer_of_viztracer_is_an_issue(tmp_path: Path, *, overflow: bool) -> None:
    slices = [{"ph": "X", "cat": "FEE", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]
    path = tmp_path / "result.json"
    noted = {"version": "1.1.1", "overflow": overflow}
    path.write_text(json.dumps({"traceEvents": slices, "viztracer_metadata": noted}))
    issues = ta.read(path).issues.select("severity", "code", "count").rows()
    assert issues == [("data_loss", "history-overflowed", 1)] * overflow


@pytest.mark.usefixtures("either")
def test_kernels_copies_and_calls_of_rocprof_1(tmp_path: Path) -> None:
    def slice_(name: str, pid: int, begin: int, **args: Any) -> dict[str, Any]:
        texts = {key.replace("_", "-"): str(value) for key, value in args.items()}
        args = {"BeginNs": f"{begin}000", "EndNs": f"{begin + 40}000", "Name": name, **texts}
        return {"ph": "X", "name": name, "pid": str(pid), "tid": "7", "ts": str(begin), "dur": "40",
                "args": args}  # fmt: skip

    processes = {2: "CPU HIP API", 1: "COPY", 8: "GPU2"}
    trace = _read(
        tmp_path,
        {},
        *({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
          for pid, name in processes.items()),
        slice_("hipMemcpy", 2, 100),
        slice_("CopyHostToDevice", 1, 110, dev_id=2, queue_id=0, stream_id=0),
        slice_("hipLaunchKernel", 2, 200),
        slice_("add(float*)", 8, 210, dev_id=2, queue_id=3, stream_id=0),
    )  # fmt: skip
    rows = trace.events.sort("ts").select("kind", "name", "device", "stream", "dur")
    assert [tuple(map(str, row[:2])) + row[2:] for row in rows.iter_rows()] == [
        ("cuda_runtime", "hipMemcpy", None, None, 40_000),
        ("gpu_memcpy", "Memcpy HtoD", 2, 0, 40_000),
        ("cuda_runtime", "hipLaunchKernel", None, None, 40_000),
        ("kernel", "add(float*)", 2, 3, 40_000),
    ]
