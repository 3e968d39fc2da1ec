"""Known files that no parser reads: the error describes them."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
from conftest import ROOT
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import UnknownFormat, UnreadableFile
from traceanalyzer.parsers.foreign import recognise

NSYS = ROOT / "fixtures" / "nsys"
EXECUTION_TRACE = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "2026", "nodes": [{"id": 1}]}
KNOWN = {
    "rank0_et.json": json.dumps(EXECUTION_TRACE, indent=2),
    "memory.json": json.dumps([[1, 2, 3], [[0, 5], [1, 6], [2, 7]]]),
    "memory.raw.json": json.dumps([[1_690_000, 2, 1024, 1], [1_690_001, 3, 1024, 1]]),
    "memory.html": '<html><head><title>GPU Memory Timeline HTML</title></head><img src="data:">',
    "page.html": "<!DOCTYPE html>\n<html><body>report</body></html>",
    "report.jsonlines": '{"Type":48,"CudaEvent":{"startNs":"1"}}\n{"Type":59}\n',
    "node.cpuprofile": '{"nodes":[{"id":1,"callFrame":{"functionName":"(root)"}}]}',
    "rocprof.json": '{"rocprofiler-sdk-tool": [{"metadata": {}}]}',
    "CUPTI_ACTIVITY_KIND_KERNEL.arrow": "ARROW1",
    "perf.data": "PERFILE2\x68",
    "perf.txt": "# perf version : 6.1\n#\npython 25534 [002] 36804.123456:   1010101 cycles:u: \n"
    "\t7f8a12345678 gemm+0x10 (/usr/lib/libblas.so.3)\n",
    "perf_without_periods.txt": "swapper 0/0  36804.123456: cpu-clock: \n\tfff [unknown] ([k])\n",
    "perf_report.txt": "# To display the header, use --header.\n#\n# Total Lost Samples: 0\n#\n",
    "rocprof_old.csv": "Index,KernelName,gpu-id,BeginNs,EndNs,DurationNs\n0,gemm,0,1,2,1\n",
    "host.xplane.pb": "\n\x02\x08\x01\x12\x00",
    "profile.bin": "\n\x15\x08\x01\x12\x0d/device:GPU:0\x1a\x00" * 2,
    "session.json": '{"start_time": 1.5, "duration": 1.0, "sample_count": 83, "root_frame": {}}',
    "saved.json": '{"session": {"start_time": 1.5, "min_interval": 0.001, "sample_count": 85}}',
    "proton.json": '[{"children":[],"frame":{"name":"foo0"},"metrics":{"time (ns)":204800}}]',
    "scalene.json": '{\n "alloc_samples": 166,\n "args": null}',
    "flame.svg": '<?xml version="1.0"?><!DOCTYPE svg PUBLIC "-//W3C"><svg version="1.1"></svg>',
    "nsys_stats.csv": "Time (%),Total Time (ns),Instances,Name\n50.1,99385786,32,flash\n",
    "vllm_bench.txt": "tip: install\n============ Serving Benchmark Result ============\nMean: 1\n",
    "nsys_stats.txt": "CUDA API Statistics:\n\n Time (%)  Total Time (ns)  Num Calls\n",
    "70_kernel_trace.csv": '"Kind","Agent_Id","Queue_Id"\n"KERNEL_DISPATCH","Agent 2",1\n',
    "out_kernel_trace.csv": '"Guid","Kind","Agent_Id"\n"00006409","KERNEL_DISPATCH","Agent 4"\n',
    "70_hip_api_trace.csv": '"Domain","Function","Process_Id"\n"HIP_RUNTIME_API","hipFree",7\n',
    "counter_collection.csv": '"Correlation_Id","Dispatch_Id","Agent_Id"\n1,1,1\n',
    "nsys_stats_quoted.csv": '"Time (%)","Total Time (ns)","Instances"\n71.4,2411520,48\n',
    "rocprof_stats.csv": '"Name","Calls","TotalDurationNs","AverageNs"\n"k",1000,2484971674,2484\n',
    "nvprof.txt": "==30905== NVPROF is profiling\n==30905== Profiling result:\n  Type  Time(%)\n",
    "nccl_tests.txt": "# nThread 1 nGpus 1 minBytes 8\n# out-of-place   in-place\n",
    "lightning.txt": "Profiler Report\n\n|  Action  |  Mean duration (s)  |  Num calls  |\n",
    "advanced.txt": "FIT Profiler Report\nProfile stats for: [LightningModule]Net.forward\n",
    "pstats.txt": "Sat Nov 28\n\n  5 function calls in 1.5 seconds\n\n   ncalls  tottime  percall  "
    "cumtime  percall filename:lineno(function)\n        1    0.5    0.5    1.5    1.5 a.py:3(f)\n",
    "lprof.txt": "Timer unit: 1e-09 s\n\nLine #      Hits         Time  Per Hit   % Time  Line C\n",
    "trainer_state.json": '{\n "best_metric": 0.7,\n "global_step": 30,\n "log_history": [\n  {}]}',
    "smi.csv": "timestamp, utilization.gpu [%], memory.used [MiB]\n2024/09/08 13:03:31.000, 9 %\n",
    "dmon.txt": "#Time         gpu     sm    mem\n#HH:MM:SS     Idx      %      %\n",
    "smi.txt": "Mon Nov 30\n+-----+\n| NVIDIA-SMI 535.54.03    Driver Version: 535.54.03 |\n",
    "trtllm.txt": "====\n= REQUEST DETAILS \n====\nNumber of requests:   6144\n",
    "aiperf.txt": "       NVIDIA AIPerf | LLM Metrics\n\u250f\u2501\n",
    "nsys_stats.md": "| Function | Time (%) | Total Time (ns) | Num Calls |\n|---|---|---|---|\n",
    "nccl_end.txt": "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 9.5\n",
    "ncu.txt": "  gemm (2, 1, 1)\n    Section: GPU Speed Of Light Throughput\n",
    "rocprof_compute.txt": "0.1 Top Kernels\n│    │ Kernel_Name   │   Count │     Sum(ns) │\n",
    "layerwise.txt": "name      | cuda_time_us | pct_cuda_... | invocations\n======\n",
    "other.db": "SQLite format 3\0\x10\0\x02\x02\0",
    "memory.db": "SQLite format 3\0\x10\0\nCREATE TABLE device_traces (id)",
    "twice.bin": "BZh91AY",
    "austin.mojo": "MOJ\x01\x01austin\x003.4.1",
    "memray.bin": "memray\x00\x0d\x00",
    "heap.pprof": "\n\x04\x08\x01\x10\x02\x12\x0f",
    "profile.pftrace": "\n\x0b\x12\x09/host:CPU\n\x02\x08\x01",
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_files_are_described(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(KNOWN[name])
    with raises_wording(UnknownFormat):
        ta.read(path)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_archive(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "traces.tar"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        text = b'{"traceEvents": []}'
        member = tarfile.TarInfo("rank0.json")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    with raises_wording(UnknownFormat):
        ta.read(path)
    with raises_wording(UnreadableFile):
        ta.find_inputs(tmp_path)


def test_a_profile_of_functions_is_described() -> None:
    import cProfile
    import marshal

    profile = cProfile.Profile()
    profile.runcall(len, "a")
    profile.create_stats()
    described = recognise(marshal.dumps(profile.stats), "work.pstats")  # type: ignore[attr-defined]
    assert described is not None
    assert "cProfile" in described.what


def test_unknown_files_are_not_described() -> None:
    for text in (b"", b"{}", b'{"a": [1, 2]}', b"[1, 2]", b"PAR1", b"plain text", b"\0" * 600):
        assert recognise(text, "x.json") is None


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called nsys that copies an export, and notes its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nsys"
    export = sorted(NSYS.glob("*.sqlite"))[0]
    program.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys\n"
        f"open({str(folder / 'calls')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "if 'bad' in sys.argv[-1]:\n"
        "    sys.exit('Error: the report is damaged')\n"
        "output = next(a for a in sys.argv if a.startswith('--output=')).partition('=')[2]\n"
        f"shutil.copy({str(export)!r}, output)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return export


def test_a_report_is_exported_by_nsys_once(nsys: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"NVIDIA report")
    first, again = ta.read(path), ta.read(path)
    assert first.events.equals(ta.read(nsys).events)
    assert (first.meta.path, first.meta.format) == (str(path), "nsys-sqlite")
    assert again.events.height == first.events.height
    assert len((tmp_path / "bin" / "calls").read_text().splitlines()) == 1


def test_a_report_that_nsys_cannot_export(nsys: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.nsys-rep"
    path.write_bytes(b"NVIDIA report")
    with raises_wording(UnknownFormat):
        ta.read(path)


def test_report_and_its_export_count_once(nsys: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a.nsys-rep").write_bytes(b"NVIDIA report")
    shutil.copy(nsys, folder / "a.sqlite")
    inputs, skipped = ta.find_inputs(folder)
    assert inputs == [str(folder / "a.sqlite")]
    assert [path for path, _ in skipped] == [str(folder / "a.nsys-rep")]


@pytest.mark.parametrize(("rows", "known"), [(1, True), (3, True), (0, False)])
def test_rows_of_a_table_without_its_heading(rows: int, known: bool) -> None:
    row = (
        " " * 20
        + "aten::addmm         4.55%     141.430us         5.77%       1.2ms      59us  3\n"
    )
    found = recognise(("top operators\n" + row * rows).encode(), "rows.txt")
    assert (found is not None and "without its heading" in found.what) == known
