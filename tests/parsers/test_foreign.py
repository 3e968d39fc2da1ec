"""Known files that no parser reads: the error describes them."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pytest
from conftest import ROOT
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.cli.main import status
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
    "oom.txt": "RuntimeError: CUDA out of memory. Tried to allocate 5.74 GiB (GPU 0)",
    "oom_cut.log": "step 3\ntorch.OutOfMemoryError: CUDA out of memory.\n",
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


#: Lines of NCCL's watchdog, of PyTorch 2.1, 2.5 and 2.7.
OLD = (
    "[E ProcessGroupNCCL.cpp:458] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL("
)
NEW = "[E321 02:07:08 ProcessGroupNCCL.cpp:607] " + OLD.partition("] ")[2]
STATUS = (
    "[E1 a.cpp:1] [PG ID 11 PG GUID {} Rank {}]  failure detected by watchdog at work "
    "sequence id: {}"
)
SIGNAL = (
    "[E1 a.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal due to a "
    "collective timeout from rank 2 and we will. Last enqueued NCCL work: {1}, last"
)
AT = "[PG ID 0 PG GUID 0(default_pg) Rank {}] Exception (either an error or timeout) detected by "


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (
            [
                NEW.format(0) + "SeqNum=1580, OpType=ALLREDUCE, NumelIn=4",
                AT.format(3) + "watchdog at work: 1580, last enqueued NCCL work: 1582",
            ],
            "allreduce 1580 on ranks 0, 3",
        ),
        (
            [
                OLD.format(0) + "SeqNum=96120, OpType=ALLREDUCE, Timeout",
                OLD.format(0) + "SeqNum=96117, OpType=ALLREDUCE",
                OLD.format(7) + "OpId=64088, OpType=_ALLGATHER_BASE",
            ],
            "allgather_base 64088 on rank 7, allreduce 96117 on rank 0; rank 7 is behind",
        ),
        (
            [
                NEW.format(7) + "SeqNum=8, OpType=BROADCAST, NumelIn=5056, NumelOut=5056",
                AT.format(5) + "watchdog at work: 8, last enqueued NCCL work: 8",
                NEW.format(3) + "SeqNum=8, OpType=ALLREDUCE, NumelIn=21, NumelOut=21",
            ],
            "allreduce 8 of 21 elements on rank 3, work 8 on rank 5, broadcast 8 of 5,056 elements",
        ),
        (
            [
                NEW.format(0) + "SeqNum=8, OpType=ALLTOALL_BASE, NumelIn=5, NumelOut=9",
                NEW.format(1) + "SeqNum=8, OpType=ALLTOALL_BASE, NumelIn=9, NumelOut=5",
            ],
            "alltoall_base 8 on ranks 0-1",
        ),
        (
            [
                NEW.format(4) + "SeqNum=610, OpType=COALESCED, NumelIn=56320, NumelOut=450560",
                NEW.format(6) + "SeqNum=610, OpType=COALESCED, NumelIn=76800, NumelOut=614400",
            ],
            "coalesced 610 of 56,320 elements on rank 4, coalesced 610 of 76,800 elements on rank",
        ),
        (
            [  # not all gather
                NEW.format(0) + "SeqNum=5, OpType=COALESCED, NumelIn=100, NumelOut=200",
                NEW.format(1) + "SeqNum=5, OpType=COALESCED, NumelIn=200, NumelOut=100",
                NEW.format(2) + "SeqNum=5, OpType=COALESCED, NumelIn=300, NumelOut=600",
            ],
            "coalesced 5 on ranks 0-2",
        ),
        (
            [
                NEW.format(0) + "SeqNum=5, OpType=ALLREDUCE, NumelIn=100, NumelOut=100",
                NEW.format(1) + "SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000",
            ],
            "allreduce 5 on ranks 0-1",
        ),
        (
            [  # sends and receives
                NEW.format(0) + "SeqNum=7, OpType=COALESCED, NumelIn=512, NumelOut=512",
                NEW.format(1) + "SeqNum=7, OpType=COALESCED, NumelIn=64, NumelOut=64",
            ],
            "coalesced 7 on ranks 0-1",
        ),
        (
            [
                NEW.format(0) + "SeqNum=3, OpType=_ALLGATHER_BASE, NumelIn=10, NumelOut=20",
                NEW.format(1) + "SeqNum=3, OpType=_ALLGATHER_BASE, NumelIn=12, NumelOut=24",
            ],
            "allgather_base 3 of 10 elements on rank 0, allgather_base 3 of 12 elements on rank 1",
        ),
        (["loss=2.6 " + OLD.format(1) + "SeqNum=9, OpType=GATHER"], "gather 9 on rank 1"),
        (
            [  # the ranks within groups are not those of the job
                "[rank13]:" + NEW.format(1) + "SeqNum=216, OpType=ALLTOALL_BASE, NumelIn=5",
                "[rank13]:" + STATUS.format(119, 1, 216),
                "[rank15]:" + NEW.format(1) + "SeqNum=57, OpType=ALLREDUCE, NumelIn=3",
                "[rank15]:" + STATUS.format(112, 0, 57),
            ],
            "allreduce 57 of group 112 on rank 15, alltoall_base 216 of group 119 on rank 13",
        ),
        (
            [
                "[rank2]:" + NEW.format(2) + "SeqNum=78, OpType=ALLREDUCE, NumelIn=3",
                "[rank2]:" + STATUS.format(0, 2, 78),
                *("[rank{0}]:" + SIGNAL).format(0, 77).splitlines(),
                *("[rank{0}]:" + SIGNAL).format(1, 79).splitlines(),
            ],
            "allreduce 78 on rank 2; rank 0 did not call it",
        ),
    ],
)
def test_a_log_of_the_watchdog_names_collectives_and_ranks(lines: list[str], named: str) -> None:
    known = recognise("\n".join(["step 1", *lines]).encode(), "job.log")
    assert known is not None
    assert f"timeout of {named}" in known.what
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT=1" in known.hint


def test_a_log_of_a_watchdog_that_is_stuck() -> None:
    line = "[rank{0}]:[E419 P.cpp:1484] [PG ID 2 PG GUID 9 Rank {0}] ProcessGroupNCCL's watchdog "
    text = "\n".join(f"{line.format(rank)}got stuck for 480 seconds" for rank in (4, 2))
    known = recognise(text.encode(), "job.log")
    assert known is not None
    assert "stuck for 480 s on ranks 2, 4" in known.what


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["diagnose"], 0),
        (["hang", "--top", "5", "-q"], 0),
        (["kernels"], 1),
        (["diagnose", "-o", "x.json"], 1),
        (["diagnose", "--output=x.json"], 1),
        (["diagnose", "-ox.json"], 1),
        (["hang", "--to", "json"], 1),
    ],
)
def test_the_log_of_a_failed_job_is_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    (tmp_path / "job.log").write_text(OLD.format(1) + "SeqNum=9, OpType=GATHER\n")
    assert status([*arguments, str(tmp_path / "job.log")]) == code
    out, error = capsys.readouterr()
    assert "gather 9 on rank 1" in (error if code else out)


PRINT = "Rank {} is running collective: CollectiveFingerPrint({}OpType={}, TensorShape=[{}]"
NUMBER = "SequenceNumber=7, "


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        (
            [(1, NUMBER, "ALLREDUCE", "8, 2"), (0, NUMBER, "ALLREDUCE", "5")],
            "different sizes to one collective: allreduce 7 of [5] on rank 0, allreduce 7 of [8",
        ),
        (
            [(0, "", "ALLREDUCE", "20"), (1, "", "REDUCE", "20"), (2, "", "REDUCE", "20")],
            "call different collectives: allreduce of [20] on rank 0, reduce of [20] on ranks 1-2",
        ),
        ([(0, "", "ALLREDUCE", "20"), (1, "", "ALLREDUCE", "20")], None),
    ],
)
def test_a_log_of_ranks_that_compare_their_calls(
    calls: list[tuple[object, ...]], named: str | None
) -> None:
    text = "Detected mismatch between collectives on ranks. " + ", but\n".join(
        PRINT.format(*call) for call in calls
    )
    known = recognise(text.encode(), "job.txt")
    assert (known and named) is None or named in str(known)


def test_a_log_of_ranks_that_miss_a_barrier() -> None:
    text = (
        b"RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms\n Original"
    )
    assert "not reached on ranks 1-2" in str(recognise(text, "job.txt"))


@pytest.mark.parametrize("name", ["job.log", "slurm-4.out"])
def test_an_error_far_in_a_log_is_found(name: str, tmp_path: Path) -> None:
    lines = "".join(f"INFO {n} read a part of the data set\n" for n in range(40_000))
    path = tmp_path / name
    path.write_text(lines + OLD.format(3) + "SeqNum=9, OpType=GATHER\n" + lines)
    with pytest.raises(UnknownFormat, match="gather 9 on rank 3"):
        ta.read(path)
    with pytest.raises(UnreadableFile, match="gather 9 on rank 3"):
        ta.read_job(tmp_path)
    shutil.copy(ROOT / "fixtures/nccl_8ranks/rank0.json.gz", tmp_path)
    assert "gather 9 on rank 3" in str(ta.find_inputs(tmp_path)[1])
    oom = "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 8.00 GiB"
    path.write_text(f"{lines}{oom} of which 1.00 GiB is free. 6.00 GiB is allocated by PyTorch\n")
    assert ta.printed(path).to_polars("memory")["requested_bytes"].to_list() == [3 << 30]
    found = ta.diagnose(tmp_path).findings[0]
    assert (found.id, found.severity) == ("out-of-memory-in-logs", "critical")
    assert "3 GiB were requested on GPU 1" in found.title


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_of_many_ranks_are_read_whole(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    block = "".join(f"INFO {n} read a part of the data set\n" for n in range(40_000))[: 1 << 20]
    lines = "".join(
        f"[rank{n}]:{NEW.format(n // 8)}SeqNum=1234, OpType=GATHER\n" for n in range(400)
    )
    path = tmp_path / ("job.log" if pack is bytes else "job.log.gz")
    path.write_bytes(pack((block[: -len(lines) // 2] + "\n" + lines + block).encode()))
    with pytest.raises(UnknownFormat, match="timeout of gather 1234 on ranks 0-399;"):
        ta.read(path)


def test_a_barrier_missed_by_many_ranks(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    late = ", ".join(str(2 * n) for n in range(500))
    path.write_text(f"step 1\n[Rank 1]: Ranks {late} failed to pass monitoredBarrier in 2 ms\n")
    with pytest.raises(UnknownFormat, match=r"ranks 0, 2, .* \(500 in total\)"):
        ta.read(path)


@pytest.mark.parametrize("number", [0, 1])
def test_a_large_log_of_failures_is_named_soon_and_short(number: int) -> None:
    lines = "".join(OLD.format(n) + f"SeqNum={n * number}, OpType=GATHER\n" for n in range(8000))
    start = process_time()
    what = str(recognise(lines.encode(), "job.log"))
    assert process_time() - start < 5
    assert len(what) < 1000


@pytest.mark.parametrize(("rows", "known"), [(1, True), (3, True), (0, False)])
def test_rows_of_a_table_without_its_heading(rows: int, known: bool) -> None:
    row = (
        " " * 20
        + "aten::addmm         4.55%     141.430us         5.77%       1.2ms      59us  3\n"
    )
    found = recognise(("top operators\n" + row * rows).encode(), "rows.txt")
    assert (found is not None and "without its heading" in found.what) == known
