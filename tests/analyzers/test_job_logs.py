"""Logs of jobs: failures, the end of the job, NCCL's network, engines that serve."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pytest
from conftest import ROOT

import traceanalyzer as ta
from traceanalyzer.cli.main import status
from traceanalyzer.errors import MissingData
from traceanalyzer.files import packaged
from traceanalyzer.parsers.printed_text import job_events


def problems(tmp_path: Path, text: str, name: str = "job.log") -> list[tuple[str, float, str]]:
    """Return kind, size and title of the problems in a log, which all commands agree on."""
    path = tmp_path / name
    path.write_text(text)
    each = ta.printed(path).problems
    found = {(one.severity, one.title) for one in ta.diagnose(path).findings}
    severity = {1: "critical", 0.5: "warning", 0.25: "info"}
    assert found == {(severity[one.size], one.title) for one in each}
    hang = ta.hang(path)
    assert hang.log is not None
    assert hang.log.problems == each
    is_failure = bool(each) and each[0].size >= 1
    assert hang.view().scalars["cause"] == (each[0].kind if is_failure else "unknown")
    return [(one.kind, one.size, one.title) for one in each]


def printed(tmp_path: Path, text: str) -> str:
    """Return kind and size of the problems that ``printed`` finds in a log."""
    (tmp_path / "job.log").write_text(text)
    each = ta.printed(tmp_path / "job.log").problems
    return ", ".join(f"{one.kind} {one.size}" for one in each)


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
                NEW.format(0) + "SeqNum=5, OpType=ALLREDUCE, NumelIn=100, NumelOut=100",
                NEW.format(1) + "SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000",
            ],
            "allreduce 5 on ranks 0-1",
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
def test_a_log_of_the_watchdog_names_collectives_and_ranks(
    tmp_path: Path, lines: list[str], named: str
) -> None:
    ((kind, size, title),) = problems(tmp_path, "\n".join(["step 1", *lines]) + "\n")
    is_different = " elements" in named
    assert (kind, size) == ("different calls" if is_different else "timeout", 1)
    assert f"timeout of {named}" in title
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT=1" in ta.hang(tmp_path / "job.log").advice


@pytest.mark.parametrize(
    ("op", "sizes", "named"),
    [
        ("ALLTOALL_BASE", [(5, 9), (9, 5)], "alltoall_base 8 on ranks 0-1"),
        (
            "COALESCED",
            [(56320, 450560), (76800, 614400)],
            "coalesced 8 of 56,320 elements on rank 0, coalesced 8 of 76,800 elements on rank 1",
        ),
        ("COALESCED", [(100, 200), (200, 100), (300, 600)], "coalesced 8 on ranks 0-2"),  # 1 sends
        ("COALESCED", [(512, 512), (64, 64)], "coalesced 8 on ranks 0-1"),  # sends and receives
        (
            "_ALLGATHER_BASE",
            [(10, 20), (12, 24)],
            "allgather_base 8 of 10 elements on rank 0, allgather_base 8 of 12 elements on rank 1",
        ),
    ],
)
def test_sizes_of_a_collective_that_timed_out(
    tmp_path: Path, op: str, sizes: list[tuple[int, int]], named: str
) -> None:
    lines = [
        f"{NEW.format(rank)}SeqNum=8, OpType={op}, NumelIn={n_in}, NumelOut={n_out}\n"
        for rank, (n_in, n_out) in enumerate(sizes)
    ]
    ((kind, _, title),) = problems(tmp_path, "".join(lines))
    assert kind == ("different calls" if " elements" in named else "timeout")
    assert f"timeout of {named}" in title


def test_ranks_that_did_not_call_it_are_the_culprits(tmp_path: Path) -> None:
    signal = f"[rank{{0}}]:{SIGNAL}\n"
    late = NEW.format(2) + "SeqNum=78, OpType=ALLREDUCE, NumelIn=3\n"
    path = tmp_path / "job.log"
    path.write_text(f"[rank2]:{late}{signal.format(0, 77)}{signal.format(1, 79)}")
    assert ta.hang(path).culprits == (0,)
    assert [one.rank for one in ta.diagnose(path).findings] == [0]


def test_a_log_of_a_watchdog_that_is_stuck(tmp_path: Path) -> None:
    line = "[rank{0}]:[E419 P.cpp:1484] [PG ID 2 PG GUID 9 Rank {0}] ProcessGroupNCCL's watchdog "
    text = "\n".join(f"{line.format(rank)}got stuck for 480 seconds" for rank in (4, 2))
    ((kind, size, title),) = problems(tmp_path, text)
    assert (kind, size) == ("stuck watchdog", 1)
    assert "stuck for 480 s on ranks 2, 4" in title


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["diagnose"], 0),
        (["--no-pager", "diagnose"], 0),
        (["diagnose", "--fail-on", "critical"], 3),
        (["hang", "--top", "5", "-q"], 0),
        (["printed"], 0),
        (["info"], 0),
        (["diagnose", "--to", "json"], 0),
        (["hang", "--to", "json"], 0),
        (["kernels"], 1),
    ],
)
def test_the_log_of_a_failed_job_is_an_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    (tmp_path / "job.log").write_text(OLD.format(1) + "SeqNum=9, OpType=GATHER\n")
    assert status([*arguments, str(tmp_path / "job.log")]) == code
    out = capsys.readouterr().out
    assert "gather 9" in out or code == 1 or arguments == ["info"]
    if "json" in arguments:
        json.loads(out)


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
    tmp_path: Path, calls: list[tuple[object, ...]], named: str | None
) -> None:
    text = "Detected mismatch between collectives on ranks. " + ", but\n".join(
        PRINT.format(*call) for call in calls
    )
    found = problems(tmp_path, text)
    assert [kind for kind, _, _ in found] == ["call"] * bool(named)
    assert (named or "") in str(found)


def test_a_log_of_ranks_that_miss_a_barrier(tmp_path: Path) -> None:
    text = "RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms\n at"
    ((kind, _, title),) = problems(tmp_path, text)
    assert (kind, ta.hang(tmp_path / "job.log").culprits) == ("missed barrier", (1, 2))
    assert "not reached on ranks 1-2" in title


@pytest.mark.parametrize(
    ("name", "n_lines"),
    # more than are read at once, and more than the head that shows what a file is
    [("job.log", 40_000), ("slurm-4.out", 4_000), ("run.e1234567", 4_000)],
)
def test_an_error_far_in_a_log_is_found(name: str, n_lines: int, tmp_path: Path) -> None:
    lines = "".join(f"INFO {n} read a part of the data set\n" for n in range(n_lines))
    path = tmp_path / name
    path.write_text(lines + OLD.format(3) + "SeqNum=9, OpType=GATHER\n" + lines)
    for place in (path, tmp_path):
        assert "gather 9 on rank 3" in ta.diagnose(place).findings[0].title
    shutil.copy(ROOT / "fixtures/nccl_8ranks/rank0.json.gz", tmp_path)
    found = ta.diagnose(tmp_path).findings[0]
    assert (found.id, found.severity) == ("problems-in-logs", "critical")
    oom = "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 8.00 GiB"
    path.write_text(f"{lines}{oom} of which 1.00 GiB is free. 6.00 GiB is allocated by PyTorch\n")
    assert ta.printed(path).to_polars("memory")["requested_bytes"].to_list() == [3 << 30]
    found = ta.diagnose(tmp_path).findings[0]
    assert (found.id, found.severity) == ("problems-in-logs", "critical")
    assert "3 GiB were requested on GPU 1" in found.title


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_of_many_ranks_are_read_whole(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    block = "".join(f"INFO {n} read a part of the data set\n" for n in range(40_000))[: 1 << 20]
    lines = "".join(
        f"[rank{n}]:{NEW.format(n // 8)}SeqNum=1234, OpType=GATHER\n" for n in range(400)
    )
    path = tmp_path / ("job.log" if pack is bytes else "job.log.gz")
    path.write_bytes(pack((block[: -len(lines) // 2] + "\n" + lines + block).encode()))
    assert "timeout of gather 1234 on ranks 0-399." in ta.printed(path).verdict


def test_a_barrier_missed_by_many_ranks(tmp_path: Path) -> None:
    late = ", ".join(str(2 * n) for n in range(500))
    text = f"step 1\n[Rank 1]: Ranks {late} failed to pass monitoredBarrier in 2 ms\n"
    assert "(500 in total)" in problems(tmp_path, text)[0][2]


@pytest.mark.parametrize("number", [0, 1])
def test_a_large_log_of_failures_is_named_soon_and_short(number: int, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    lines = (OLD.format(n) + f"SeqNum={n * number}, OpType=GATHER\n" for n in range(8000))
    path.write_text("".join(lines))
    start = process_time()
    verdict = ta.hang(path).verdict
    assert process_time() - start < 5
    assert len(verdict) < 1500


def searched(kind: str, pattern: re.Pattern[str], size: int) -> float:
    """Return the time to search long runs of words: any, and the marks and words of the pattern."""
    marks = packaged("parsers/job_events.toml")[kind]["marks"]
    runs = ["a", "1", "a1", " ", "a ", "1, ", "[", "Error: ", "TaskA", *marks]
    runs += re.findall(r"(?<!\\)[A-Za-z/_][A-Za-z/_ :]+", pattern.pattern)
    texts = [(word * size)[:size] + marks[0] for word in dict.fromkeys(runs)]
    start = process_time()
    for text in texts:
        assert len(list(pattern.finditer(text))) <= size
    return process_time() - start


@pytest.mark.parametrize("kind", packaged("parsers/job_events.toml"))
def test_the_time_to_search_a_line_grows_with_its_length(kind: str) -> None:
    pattern = re.compile(job_events._kinds()[kind][1].pattern, re.ASCII)
    # four times the length: 16 times the time if it were quadratic; others use the machine, too
    tries = (searched(kind, pattern, 32000) / searched(kind, pattern, 8000) for _ in range(4))
    assert any(ratio < 8 for ratio in tries)


WARN = "host:984:1357 [4] ib_plugin.c:1615 NCCL WARN "
INFO = "host:919:1150 [0] NCCL INFO "
GUESSED = (
    "[rank0]:[W602 06:53:38.4 ProcessGroupNCCL.cpp:45] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to "
    "perform barrier as devices used by this process are currently unknown. This can potentially "
    "cause a hang if this rank to GPU mapping is incorrect."
)
STEPS = "".join(f"iter {n}: loss 2.1, time 20.5ms\n" for n in range(3))
FAILED = "CUDA out of memory. Tried to allocate 3.00 GiB"
VLLM = (
    "INFO 05-04 15:16:{:02} metrics.py:229] Engine 000: Avg prompt throughput: {} tokens/s, Avg "
    "generation throughput: {} tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: "
    "{}%, Prefix cache hit rate: 0.0%\n"
)
PREEMPTED = (
    "WARNING s.py:1 Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode because there "
    "is not enough KV cache space. total_num_cumulative_preemption={}\n"
)
SGLANG = (
    "[2026-05-24 03:51:{:02} TP0] Decode batch, #running-req: {}, #token: 19, token usage: {}, "
    "cuda graph: True, gen throughput (token/s): {}, #queue-req: {},\n"
)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("slurmstepd: error: Detected 2 oom_kill events in StepId=4.0. Some of", "host memory 1"),
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in step 7.batch cgroup.",
            "host memory 1",
        ),
        (
            "slurmstepd: error: Step 1.0 exceeded memory limit (41 > 20), being killed",
            "host memory 1",
        ),
        ("kernel: Out of memory: Killed process 71 (python) total-vm:9kB", "host memory 1"),
        ("slurmstepd: error: Exceeded step memory limit at some point.", "memory limit 0.25"),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***",
            "time limit 1",
        ),
        ("=>> PBS: job killed: walltime 3610 exceeded limit 3600", "time limit 1"),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO NODE FAILURE",
            "node failure 1",
        ),
        ("slurmstepd: error: *** STEP 7.0 CANCELLED AT 2026 DUE TO PREEMPTION ***", "preemption 1"),
        (
            "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.",
            "shared memory 1",
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "lost GPU 1"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "GPU fault 1"),
        ("Signal 11 (SIGSEGV) received by PID 5", "crashed process 1"),
        ("  exitcode  : -9 (pid: 77)\nRoot Cause", "killed process 1"),
        (
            "failed (exitcode: -9) local_rank: 0 (pid: 7)\nDetected 1 oom_kill event",
            "host memory 1",
        ),
        ("RuntimeError: CUDA out of memory.\nfailed (exitcode: 1) local_rank: 0", "GPU memory 1"),
        (f"{STEPS}{FAILED}", "GPU memory 1"),
        (f"{FAILED}\n{STEPS}", "GPU memory 0.5"),
        (f"{FAILED}\n| WARNING: attempting to recover from OOM in forward pass", "GPU memory 0.5"),
        (f"{FAILED}\n{STEPS}failed (exitcode: 1) local_rank: 0 (pid: 7)", "GPU memory 1"),
        (f"{WARN}NET/IB : Got completion from peer 1.2.3.4<4> with status=12", "lost connection 1"),
        (f"{WARN}Call to connect returned Connection refused, retrying", "lost connection 1"),
        (f"{WARN}MSCCL++: cannot find config", "NCCL warning 0.25"),
        (f"{INFO}Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/3", "sockets 0.5"),
        (f"{INFO}Ring 00 : 15 -> 0 [send] via NET/Socket/0", "sockets 0.5"),
        (f"{INFO}Channel 03/0 : 15[7] -> 6[6] [send] via NET/IB/3/GDRDMA", ""),
        (
            f"{INFO}Using network Socket\n{INFO}comm 0x5 rank 0 nRanks 8 nNodes 2 localR",
            "sockets 0.5",
        ),
        (f"{INFO}Using network Socket\n{INFO}comm 0x5 rank 0 nRanks 8 nNodes 1 localR", ""),
        (f"{INFO}Using network Socket\n{INFO}NET/IB : No device found.", "may be sockets 0.25"),
        (
            "".join(f"n{n}:7{n}:7 [0] NCCL INFO Using network Socket\n" for n in "123"),
            "sockets 0.5",
        ),
        (
            "".join(f"n1:7{n}:7 [{n}] NCCL INFO Using network Socket\n" for n in "123"),
            "may be sockets 0.25",
        ),
        ("".join(f"n{n}:7{n}:7 [0] NCCL INFO Using network IB\n" for n in "123"), ""),
        (
            f"{INFO}NCCL_IB_DISABLE set to 1.\n{INFO}Using network Socket\n{INFO}nNodes 2",
            "sockets by setting 0.5",
        ),
        (GUESSED, "guessed GPU 0.25"),
        (
            f"{INFO}NET/Socket : Using [0]docker0:1<0>\n{INFO}Using network Socket\n{INFO}nNodes 2",
            "sockets 0.5, virtual interface 0.5",
        ),
        (f"{INFO}Bootstrap : Using lo:127.0.0.1<0>\n{INFO}comm 0x5 rank 0 nRanks 8 nNodes 1 l", ""),
        (f"{INFO}NCCL_P2P_DISABLE set by environment to 1", "P2P disabled 0.5"),
        (f"{INFO}NCCL_P2P_DISABLE set by environment to 0\n{INFO}Using network IB", ""),
        (f"{INFO}Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "host copies 0.25"),
        (
            "Invalidate trace cache @ step 0 and module 5: cache has only 0 modules",
            "trace cache 0.25",
        ),
        (
            "Invalidate trace cache @ step 1 and module 7: cache has only 3 modules\n" * 40,
            "trace cache 0.5",
        ),
        ("        HW Thermal Slowdown   : Active", "slow clocks 0.5"),
        ("        SW Power Cap      : Active", "slow clocks 0.25"),
        ("".join(VLLM.format(n, 0.0, 0.0, 1, 0, 1.3) for n in (0, 10, 20)), "no tokens 1"),
        ("".join(VLLM.format(n, 0.0, 0.0, 0, 0, 0.0) for n in (0, 10, 20)), ""),
        ("".join(VLLM.format(n, 900.0, 99.0, 8, 0, 9.0) for n in (0, 10, 20)), ""),
        (
            "".join(VLLM.format(n, 900.0, 99.0, 80, 70, 98.0) for n in (0, 5, 9)),
            "full KV cache 0.5",
        ),
        ("".join(VLLM.format(n, 9.0, 9.0, 8, 7, 9.0) for n in (0, 5, 9)), "waiting requests 0.25"),
        ("".join(SGLANG.format(n, 6, 0.94, 446.4, 5) for n in range(4)), "full KV cache 0.5"),
        ("".join(SGLANG.format(n, 6, 0.94, 446.4, 0) for n in range(4)), ""),
        (
            "WARNING s.py:1 Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode\n"
            + VLLM.format(1, 1.0, 9.0, 8, 0, 70.0),
            "preemptions 0.25",
        ),
        (f"{PREEMPTED.format(1)}{PREEMPTED.format(51)}", "full KV cache 0.5"),
        (
            PREEMPTED.format(51)
            + "".join(VLLM.format(n % 60, 9.0, 9.0, 8, 0, 70.0) for n in range(60)),
            "preemptions 0.25",
        ),
    ],
)
def test_what_a_log_says(tmp_path: Path, text: str, kinds: str) -> None:
    found = problems(tmp_path, f"{text}\n")
    assert ", ".join(f"{kind} {size}" for kind, size, _ in found) == kinds


def _on_node(name: str, nodes: str = "", network: str = "Socket") -> str:
    at = f"{name}:71:71 [0] NCCL INFO"
    count = f"{at} comm 0x5 rank 0 nRanks 8 nNodes {nodes} localRanks 8\n" if nodes else ""
    return f"{at} NET/Socket : Using [0]lo:1<0>\n{at} Using network {network}\n{count}{STEPS}"


@pytest.mark.parametrize(
    ("logs", "kinds"),
    [
        ([_on_node("a", "1"), _on_node("b", "1")], []),
        ([_on_node("a", "1") + _on_node("b", "1")], []),
        ([_on_node("a", "1"), _on_node("b", "2").replace("lo", "eth0")], ["sockets"]),
        ([_on_node("a", "1"), _on_node("b", "2", "IB").replace("lo", "eth0")], []),
        ([_on_node("a", "2"), _on_node("b", "2")], ["sockets", "virtual interface"]),
        # the number of nodes is missing
        ([_on_node("a"), _on_node("b")], ["may be sockets"]),
        ([_on_node("a") + _on_node("b")], ["may be sockets"]),
        ([_on_node("a").replace(STEPS, "") + _on_node("b")], ["sockets", "virtual interface"]),
        ([_on_node("a").replace(STEPS, FAILED + "\n") + _on_node("b")], ["may be sockets"]),
    ],
)
def test_hosts_of_other_jobs_and_restarts_are_no_nodes_of_a_job(
    tmp_path: Path, logs: list[str], kinds: list[str]
) -> None:
    for number, text in enumerate(logs):
        (tmp_path / f"{number}.log").write_text(text)
    found = [one.kind for one in ta.printed(tmp_path).problems]
    assert [kind for kind in found if "socket" in kind or "virtual" in kind] == kinds


def test_an_engine_without_tokens_says_in_how_many_lines(tmp_path: Path) -> None:
    lines = [VLLM.format(n, 0.0, 0.0, 3, 0, 1.3) for n in (0, 10, 20, 30)]
    ((_, _, title),) = problems(tmp_path, VLLM.format(0, 5.0, 5.0, 3, 0, 1.0) + "".join(lines))
    assert "in 4 lines one after the other" in title


def test_lines_of_an_engine_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(SGLANG.format(1, 6, 0.94, 446.4, 5) + VLLM.format(2, 1.5, 99.0, 8, 7, 50.0))
    result = ta.printed(path)
    rows = result.to_polars("engine")
    assert rows["tokens_per_s"].to_list() == [446.4, 99.0]
    assert rows["kv_cache_frac"].to_list() == [0.94, 0.5]
    assert rows["waiting"].to_list() == [5, 7]
    assert "272.7 tokens/s" in result.verdict


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "raise RuntimeError('CUDA error: device lost')\n"),
        ("notes.md", "NCCL WARN means a problem\n"),
        ("notes.txt", "If you see CUDA out of memory, use smaller batches; walltime matters\n"),
    ],
)
def test_other_texts_are_no_logs(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ta.errors.UnknownFormat):
        ta.read(tmp_path / name)


def test_a_table_is_no_answer_to_hang(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(STEPS)
    with pytest.raises(MissingData):
        ta.hang(tmp_path / "a.log")


def test_the_log_of_a_job_with_dumps_is_a_note(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "fixtures/flight_recorder/missing", tmp_path / "run")
    before = ta.hang(tmp_path / "run")
    (tmp_path / "run/job.log").write_text(OLD.format(1) + "SeqNum=9, OpType=GATHER\n")
    after = ta.hang(tmp_path / "run")
    assert (after.verdict, after.cause) == (before.verdict, before.cause)
    assert "gather 9 on rank 1" in str(after.notes)
    assert after.to_polars("job_events")["what"].to_list() == ["GATHER 9"]


def test_more_in_a_line_of_an_engine(tmp_path: Path) -> None:
    line = SGLANG.replace("#queue-req", "largest-len: 0, #queue-req").format(7, 32, 0.01, 39.33, 68)
    path = tmp_path / "server.log"
    path.write_text(line * 3)
    (table,) = (one for one in ta.printed(path).tables if one.name == "engine")
    assert table.frame["waiting"].to_list() == [68] * 3


# --- compilation ---------------------------------------------------------------------------------

OF_GUARDS = "V0703 10:34:13.273000 1403 torch/_dynamo/guards.py:2590] [0/1] [__recompiles] "
OF_BREAKS = "V0703 10:34:13.273000 1403 torch/_dynamo/symbolic.py:4] [0/0] [__graph_breaks] "
DISPATCH = "WARNING:2026-08-14 10:00:00,000:jax._src.dispatch:182: "


def recompiled(size: int, function: str = "forward in /u/model.py:31", more: str = "") -> str:
    """Return the lines of a recompilation by TORCH_LOGS=recompiles."""
    lines = [
        f"Recompiling function {function}",
        "    triggered by the following guard failure(s):",
        f"    - 0/{size}: tensor 'x' size mismatch at index 0. expected 4, actual {size}",
    ]
    return "".join(f"{OF_GUARDS}{line}\n" for line in [*lines, *([more] if more else [])])


def compiled(function: str, rows: int, seconds: float) -> str:
    """Return the lines of a compilation with jax_log_compiles."""
    return (
        f"{DISPATCH}Finished tracing + transforming {function} for pjit in 0.1 sec\n"
        f"WARNING:jax._src.pxla:1906: Compiling {function} with global shapes and types "
        f"[ShapedArray(float32[{rows},128])]. Argument mapping: [UnspecifiedValue].\n"
        f"{DISPATCH}Finished XLA compilation of jit({function}) in {seconds} sec\n"
    )


def test_recompilations_name_function_guard_and_count(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    mode = "    - 0/0: L['self'].training == True"
    path.write_text(
        recompiled(5) + recompiled(6, more=mode) + recompiled(7, "step in /u/train.py:8")
    )
    rows = ta.printed(path).to_polars("job_events").sort("line")
    guard = "tensor 'x' size mismatch at index 0. expected 4, actual"
    assert rows.select("name", "function", "what", "n").rows() == [
        ("recompilation", "forward in /u/model.py:31", None, 2),
        ("guard", "forward in /u/model.py:31", f"{guard} 5", 2),
        ("guard", "forward in /u/model.py:31", "L['self'].training == True", 1),
        ("recompilation", "step in /u/train.py:8", None, 1),
        ("guard", "step in /u/train.py:8", f"{guard} 7", 1),
    ]
    ((kind, size, title),) = problems(tmp_path, path.read_text())
    assert (kind, size) == ("recompilation", 0.25)
    assert all(text in title for text in ("forward in /u/model.py:31 (2 times)", guard))
    assert "step" not in title
    many = "".join(map(recompiled, range(12)))
    assert problems(tmp_path, many)[0][:2] == ("recompilation", 0.5)


def test_recompilations_of_other_versions(tmp_path: Path) -> None:
    old = "[2023-04-13 21:42:57,808] torch._dynamo.convert_frame.__recompiles: [DEBUG] "
    line = "('Recompiling function step in /u/kf.py', \"triggered by the following guard failure: "
    text = "".join(f"{old}{line}L['t'] == {n}\")\n" for n in range(3))
    ((_, _, title),) = problems(tmp_path, text)
    assert "step in /u/kf.py (3 times)" in title
    assert "L['t'] == 0" in title
    newer = recompiled(5).replace(OF_GUARDS, f"{old}") * 2
    ((_, _, title),) = problems(tmp_path, newer)
    assert "size mismatch at index 0. expected 4, actual 5 (2 times)" in title


def test_graph_breaks_name_line_and_reason(tmp_path: Path) -> None:
    text = (
        f"{OF_BREAKS}Graph break in user code at /u/model.py:44\n"
        f"{OF_BREAKS}Graph Break Reason: Unsupported Tensor.item() call\n"
    )
    ((kind, _, title),) = problems(tmp_path, text)
    assert kind == "graph break"
    assert "/u/model.py:44 (once): Unsupported Tensor.item() call" in title


def test_compilations_of_jax_name_function_time_and_shapes(tmp_path: Path) -> None:
    steps = "".join(compiled("train_step", rows, 1.25) for rows in range(8, 14))
    ((kind, size, title),) = problems(tmp_path, steps + compiled("init", 1, 0.5))
    assert (kind, size) == ("XLA compilation", 0.25)
    assert "train_step (6 times, 7.5 s)" in title
    assert "float32[8,128]" in title
    assert "float32[9,128]" in title


@pytest.mark.parametrize(
    "text",
    [
        "".join(compiled(f"f{n}", 1, 2.0) for n in range(9)),  # each function once
        recompiled(5),
    ],
)
def test_compiling_once_is_no_problem(tmp_path: Path, text: str) -> None:
    assert not problems(tmp_path, text)
    assert ta.printed(tmp_path / "job.log").to_polars("job_events")["n"].max() == 1


@pytest.mark.parametrize("is_one_log", [True, False])
def test_compilations_of_many_ranks_are_not_added(tmp_path: Path, *, is_one_log: bool) -> None:
    for rank in range(16):
        lines = compiled("step", 1, 40.0) + recompiled(5).replace("V0", f"[rank{rank}]:V0")
        name = "job.log" if is_one_log else f"rank_{rank}.log"
        text = "".join(f"[rank{rank}]: {line}\n" if line[:5] != "[rank" else f"{line}\n"
                       for line in lines.splitlines())  # fmt: skip
        with (tmp_path / name).open("a") as file:
            file.write(text)
    assert ta.printed(tmp_path).problems == ()


@pytest.mark.parametrize(("times", "named", "size"), [(6, "train_step", 0.5), (1, "tiny", 0.25)])
def test_the_function_that_takes_the_time_of_compilations_is_named(
    tmp_path: Path, times: int, named: str, size: float
) -> None:
    text = "".join(compiled("tiny", n, 0.01) for n in range(14))
    text += "".join(compiled("train_step", n, 95.0) for n in range(times))
    ((_, found, title),) = problems(tmp_path, text)
    assert found == size
    assert f"compiles {named} (" in title


# --- failures ------------------------------------------------------------------------------------

RESTARTS = (
    "E0213 12:07:20 87 multiprocessing/api.py:869] failed (exitcode: {}) local_rank: 0 (pid: 8)\n"
    "I0213 12:07:20 87 agent/server/api.py:889] [default] Worker group FAILED. {}/3 attempts "
    "left; will restart worker group\n"
)
LOSS = "".join(f"epoch 0 batch {n} | loss: 2.1\n" for n in range(3))
RAYLET = (
    "node_manager.cc:77: {} Workers (tasks / actors) killed due to memory pressure (OOM), "
    "{} Workers crashed due to other reasons at node (ID: 8)"
)
LOW = "OutOfMemoryError: Task was killed due to the node running low on memory."
FAULT = "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
LATE = OLD.format(1) + "SeqNum=9, OpType=GATHER\n"
XID = "kernel: NVRM: Xid (PCI:0000:{}:00): {}, pid=1, name=python, and more\n"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"{STEPS}{RESTARTS.format(1, 3)}{STEPS}", "failed process 0.5"),
        (f"{LOSS}{RESTARTS.format(-9, 3)}{LOSS}", "killed process 0.5"),
        (f"{LOSS}{FAULT}{RESTARTS.format(1, 3)}{LOSS}", "GPU fault 0.5"),
        (f"{LOSS}{LATE}{RESTARTS.format(-6, 3)}{LOSS}", "timeout 0.5"),
        (f"{LOSS}{FAILED}\n{RESTARTS.format(1, 3)}{LOSS}", "GPU memory 0.5"),
        (f"{FAULT}{STEPS}", "GPU fault 0.5"),
        (f"{LOSS}{FAULT}{LOSS}", "GPU fault 0.5"),
        (f"{FAILED}\n{LOSS}", "GPU memory 0.5"),
        ("PermissionError: [Errno 13] a\n" + "{'loss': 2.5}\n" * 9, "permission 0.5"),
        # other ranks end one more step, and the last values of metrics
        (f"{LOSS}{FAULT}" + "step 4 loss: 2.5\nstep 4 loss: 2.4\n" * 4, "GPU fault 1"),
        (f"{LOSS}{FAULT}wandb: eval/loss 2.5\nwandb: train/loss 2.5\n", "GPU fault 1"),
        # no step after it
        (f"{LOSS}{RESTARTS.format(1, 3)}", "failed process 1"),
        (f"{LOSS}{FAULT}{RESTARTS.format(1, 3)}", "GPU fault 1"),
        (f"{LOSS}{FAILED}\n{RESTARTS.format(1, 3)}", "GPU memory 1"),
        (f"{STEPS}{FAULT}", "GPU fault 1"),
        # steps of others, and no restart
        (f"failed (exitcode: 1) local_rank: 0 (pid: 7)\n{STEPS}", "failed process 1"),
        # it fails again
        (
            f"{LOSS}{FAULT}{RESTARTS.format(1, 3)}{LOSS}{RESTARTS.format(-9, 2)}",
            "killed process 1, GPU fault 0.5",
        ),
        (f"{FAULT}{RESTARTS.format(1, 3)}{LOSS}{FAULT}", "GPU fault 1, failed process 0.5"),
    ],
)
def test_failures_after_which_a_job_goes_on(tmp_path: Path, text: str, kinds: str) -> None:
    assert printed(tmp_path, f"{text}\n") == kinds


def test_a_job_that_goes_on_says_after_how_many_restarts(tmp_path: Path) -> None:
    text = f"{LOSS}{RESTARTS.format(1, 3)}{LOSS}{RESTARTS.format(1, 2)}{LOSS}"
    ((_, size, title),) = problems(tmp_path, text)
    assert size == 0.5
    assert "after 2 restarts" in title


@pytest.mark.parametrize(
    ("number", "kind", "size"),
    [
        (13, "GPU fault", 1), (31, "GPU fault", 1), (43, "GPU fault", 1),
        (45, "cleanup of a GPU", 0.25), (48, "GPU memory error", 1), (63, "row remapping", 0.25),
        (64, "failed row remapping", 1), (74, "NVLink error", 1), (79, "lost GPU", 1),
        (94, "contained memory error", 1), (95, "GPU memory error", 1), (119, "hung GPU", 1),
        (120, "hung GPU", 1), (145, "NVLink error", 1), (154, "driver event", 0.25),
        (999, "other Xid", 0.5),
    ],
)  # fmt: skip
def test_errors_of_the_driver_by_class(tmp_path: Path, number: int, kind: str, size: float) -> None:
    assert printed(tmp_path, XID.format("3b", number)) == f"{kind} {size}"


def test_classes_of_errors_of_the_driver_are_disjoint() -> None:
    kinds = packaged("analyzers/printed/problems.toml").values()
    numbers = [number for one in kinds for number in one.get("xids", ())]
    assert len(numbers) == len({*numbers})


def test_errors_of_two_gpus_are_one_problem(tmp_path: Path) -> None:
    text = XID.format("3b", 31) + XID.format("5d", 31) + XID.format("3b", 45)
    ((kind, _, title),) = problems(tmp_path, text)  # 45 follows
    assert kind == "GPU fault"
    assert "0000:3b:00" in title
    assert "0000:5d:00" in title


def test_errors_of_many_gpus_are_counted_and_some_named(tmp_path: Path) -> None:
    ((_, _, title),) = problems(tmp_path, "".join(XID.format(n, 31) * 2 for n in range(10, 60)))
    assert "(100 times)" in title
    assert len(title) < 500


def test_a_long_message_ends_with_dots(tmp_path: Path) -> None:
    ((_, _, title),) = problems(tmp_path, f"OSError: [Errno 5] {'word ' * 60}\n")
    assert title.endswith("word...")


LOST = XID.format("3b", 79)
TIME = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***\n"
OOM_KILL = "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some of\n"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"{LOST}{LATE}{TIME}", "lost GPU, timeout, time limit"),
        (f"{LATE}{LOST}{TIME}", "timeout, lost GPU, time limit"),
        (f"{LATE}{FAILED}\n", "timeout, GPU memory"),
        (f"{FAILED}\n{LATE}", "GPU memory, timeout"),
        (
            f"{FAILED}\n{STEPS}{LOST}failed (exitcode: 1) local_rank: 0 (pid: 7)",
            "lost GPU, GPU memory",
        ),
        (f"{LATE}{OOM_KILL}", "host memory, timeout"),  # Slurm reports it at the end
    ],
)
def test_the_first_failure_is_the_cause(tmp_path: Path, text: str, kinds: str) -> None:
    assert ", ".join(kind for kind, _, _ in problems(tmp_path, text)) == kinds
    each = ta.printed(tmp_path / "job.log").problems
    assert [one.confidence for one in each[1:]] == ["medium"] * (len(each) - 1)
    assert ta.diagnose(tmp_path / "job.log").findings[0].title == each[0].title


def test_the_log_that_failed_first_has_the_cause(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"2026-05-04 15:20:00 {LATE}")
    (tmp_path / "b.log").write_text(f"2026-05-04 15:10:00 {LOST}")
    assert [one.kind for one in ta.printed(tmp_path).problems] == ["lost GPU", "timeout"]


def test_a_log_without_failure_has_no_cause_of_a_hang(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"{INFO}Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/3")
    result = ta.hang(tmp_path / "job.log")
    assert (result.cause, result.culprits) == ("unknown", ())
    assert "TCP sockets" not in result.verdict
    assert "TCP sockets" in str(result.notes)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (
            f"ray.exceptions.{LOW}",
            "host memory 1",
        ),
        (
            RAYLET.format(2, 0),
            "host memory 1",
        ),
        (
            RAYLET.format(0, 2),
            "failed process 1",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB", "GPU memory 1"),
        ("ray.exceptions.ObjectStoreFullError: Failed to put object ff", "full object store 1"),
        ("ray.exceptions.NodeDiedError: Task failed due to the node dying.", "node failure 1"),
        (
            "RayActorError: The actor died unexpectedly before finishing this task",
            "failed process 1",
        ),
        ("srun: error: n1: task 3: Segmentation fault (core dumped)", "crashed process 1"),
        ("srun: error: n1: tasks 0-7: Exited with exit code 1", "failed process 1"),
        ("srun: error: n1: task 3: Killed", "killed process 1"),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-05-04T15:16:02 ***",
            "cancelled 0.5",
        ),
        ("SignalException: Process 1 got signal: 15", "cancelled 0.5"),
        (
            "mpirun noticed that process rank 7 with PID 2 on node a exited on signal 9 (Killed).",
            "killed process 1",
        ),
        ("the job to be terminated. It was:\n\n  Exit code:    1", "failed process 1"),
        ("MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD", "failed process 1"),
        ("=   EXIT CODE: 139", "crashed process 1"),
        ("      Reason:       OOMKilled\n      Exit Code:    137", "host memory 1"),
        ("Warning Evicted pod/a The node was low on resource: memory. Container", "host memory 1"),
        ("Warning Evicted pod/a The node was low on resource: ephemeral-storage.", "full disk 1"),
        ("run.sh: line 5: 12 Killed                  python train.py", "killed process 1"),
        ("Segmentation fault (core dumped)", "crashed process 1"),
        ("terminate called after throwing an instance of 'c10::Error'", "crashed process 1"),
        (
            "[2023-06-07 22:16:00] ['python', 'a.py'] exits with return code = -9",
            "killed process 1",
        ),
        ("OSError: [Errno 24] Too many open files: 'a'", "open files 1"),
        ("OSError: [Errno 28] No space left on device: '/ckpt/a'", "full disk 1"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/a'", "shared memory 1"),
        ("PermissionError: [Errno 13] Permission denied: '/ckpt/a'", "permission 1"),
        ("OSError: [Errno 116] Stale file handle", "file system 1"),
        ("MemoryError: Unable to allocate 12.3 GiB for an array", "host allocation 1"),
        ("  what():  std::bad_alloc", "host allocation 1"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "GPU memory error 1"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30", "NVLink error 1"),
        ("pcieport 0000:00: AER: Uncorrected (Fatal) error received", "PCIe error 1"),
        ("Memory access fault by GPU node-2 (Agent handle: 0x56) on address 0", "GPU fault 1"),
        (
            "amdgpu: [gfxhub] page fault (src_id:0 ring:88)\namdgpu 0:00: amdgpu: GPU reset begin!",
            "GPU fault 1, hung GPU 1",
        ),
        ("RuntimeError: miopenStatusUnknownError", "GPU library 1"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "GPU library 1"),
        (
            "E cuda_dnn.cc:9] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",
            "GPU library 1",
        ),
        ("      Reason:       OOMKilled", "host memory 1"),
        ('"OOMKilled": true,', "host memory 1"),
        ("train.py[771]: segfault at 7 ip 7 sp 7 error 4 in libc.so", "crashed process 1"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `a`", "GPU library 1"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "GPU memory 1"),
        ("DistBackendError: NCCL error in: a/b.cpp:19, unhandled system error", "NCCL error 1"),
        (
            "gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]",
            "lost connection 1",
        ),
        ("Timed out after 901 seconds waiting for clients. 3/4 clients joined.", "missed start 1"),
        ("XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: a", "missed start 1"),
        (
            "Terminating process because the JAX distributed service detected fatal errors",
            "failed process 1",
        ),
        ("RuntimeError: No CUDA GPUs are available", "unusable GPU 1"),
        ("[TensorRT-LLM][ERROR] CUDA runtime error in cudaMalloc: out of memory", "GPU memory 1"),
        ("[TensorRT-LLM][ERROR] Assertion failed: a", "engine error 0.5"),
        (
            "[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)",
            "engine watchdog 1",
        ),
        (
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
            "failed process 1",
        ),
        (
            "ERROR [core.py:6] Engine core proc EngineCore_DP0 died unexpectedly, a",
            "ended engine 0.5",
        ),
        ("ValueError: No available memory for the cache blocks. Try", "no room for KV cache 1"),
        ("mlx5_core 0000:5d:00.0 ib0: Link down", "link down 0.25"),
        ("Exception: Current loss scale already at minimum - cannot decrease", "loss scale 1"),
        ("found NaN in local grad norm in backward pass", "NaN check 1"),
        ("step 1 loss: 0.9 val_loss: nan\n" * 5, "other NaN loss 0.25"),
        ("{'eval_loss': nan, 'epoch': 1}\n" * 5, "other NaN loss 0.25"),
        ("Validation loss: nan\n" * 5, "other NaN loss 0.25"),
        ("Validation: loss: nan\n" * 5, "other NaN loss 0.25"),
        ("val-loss: nan | test|loss nan\n" * 5, "other NaN loss 0.25"),
        ("loss: 0.9 moe_aux_loss: nan z_loss nan best_val_loss=nan\n" * 5, "other NaN loss 0.25"),
        ("val_loss: nan loss: nan\n" * 5, "NaN loss 0.5"),
        ("train_loss=nan val/loss=0.7\n" * 5, "NaN loss 0.5"),
        ("lm_loss: nan\n" * 5, "NaN loss 0.5"),
        ("WARNING: skipping batch with non-finite loss\n" * 5, "skipped NaN 0.25"),
        ("non-finite loss, step was skipped\n" * 5, "skipped NaN 0.25"),
        ("FloatingPointError: non-finite loss at step 4", "NaN check 1"),
        ("{'loss': nan, 'grad_norm': nan}\n" * 3, "NaN loss 0.5"),
        ("iter 9: loss nan, time 20.5ms\n" * 3, "NaN loss 0.5"),
        (
            "{'loss': 2.1, 'grad_norm': nan}\n" * 9 + "{'loss': 2.1, 'grad_norm': 1.5}",
            "NaN loss 0.25",
        ),
    ],
)
def test_failures_of_launchers_systems_and_engines(tmp_path: Path, text: str, kinds: str) -> None:
    assert printed(tmp_path, f"{text}\n") == kinds


@pytest.mark.parametrize(
    "line",
    [
        "[deepspeed] OVERFLOW! Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, but soft recovered",
        "pcieport 0000:00:01.0: AER: Corrected error received: 0000:3b:00.0",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 30",
        "wandb: WARNING Command '['git', 'log']' returned non-zero exit status 128.",
        "MIOpen(HIP): Warning [FindWinogradSolutions] unable to open database file",
        "Preempted request cmpl-1 has been resumed!",
        "W torch/distributed/elastic] Sending process 12 closing signal SIGTERM",
        "loss = torch.nan_to_num(loss)",
        "srun: Job step creation temporarily disabled, retrying",
        "step 3: Exit code 0",
        "OOMKilled: false",
        '            "OOMKilled": false,',
        "cuda_dnn.cc:1] cudnn plan: status: CUDNN_STATUS_SUCCESS",
        "a.py:7: UserWarning: Plan failed with a cudnnException: CUDNN_STATUS_NOT_SUPPORTED (at a)",
        "a.py:4: RuntimeWarning: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED: tries another one",
    ],
)
def test_lines_that_are_no_failures(tmp_path: Path, line: str) -> None:
    (tmp_path / "job.log").write_text(f"{STEPS}{line}\n{STEPS}")
    assert ta.printed(tmp_path / "job.log").problems == ()


TRACEBACK = (
    "Traceback (most recent call last):\n  File \"a.py\", line 2, in <module>\nKeyError: 'labels'\n"
)


def test_the_reason_of_a_failed_process_is_its_error(tmp_path: Path) -> None:
    caught = "ImportError: no module x\n"
    text = f"{caught}{LOSS}{TRACEBACK}failed (exitcode: 1) local_rank: 0 (pid: 7)\n"
    ((kind, _, title),) = problems(tmp_path, text)
    assert kind == "failed process"
    assert "KeyError: 'labels'" in title


def test_a_training_that_ends_with_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"{STEPS}{TRACEBACK}")
    assert [(one.kind, one.size) for one in ta.printed(path).problems] == [("error", 0.5)]
    path.write_text(f"{STEPS}{TRACEBACK}{STEPS}")
    assert ta.printed(path).problems == ()


FELL_BACK = "ModuleNotFoundError: No module named 'x'\nuse another one\n"
EXIT = "failed (exitcode: 1) local_rank: 0 (pid: 7)\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{FELL_BACK}{TRACEBACK}{EXIT}", "KeyError"),
        (
            (f"{TRACEBACK}\nDuring handling of the above exception, another exception occurred:\n\n"
            f"Traceback (most recent call last):\n  File\nValueError: b\n{EXIT}"),
            "KeyError",
        ),
        (f"{TRACEBACK}Traceback (most recent call last):\nValueError: b\n{EXIT}", "KeyError"),
        (
            f"{FELL_BACK}{LOSS * 4}" + "".join(f"[rank1]: {one}\n" for one in
            TRACEBACK.splitlines()) + EXIT, "KeyError"
        ),
    ],
)  # fmt: skip
def test_an_error_after_which_the_program_went_on_is_not_the_reason(
    tmp_path: Path, text: str, named: str
) -> None:
    ((_, _, title),) = problems(tmp_path, text)
    assert named in title


def test_an_error_that_ends_one_of_several_runs_is_counted_once(tmp_path: Path) -> None:
    runs = "".join(f"{LOSS}{FAULT}{RESTARTS.format(1, 3 - n)}" for n in range(2))
    title = problems(tmp_path, f"{runs}{LOSS}ValueError: bad\n{RESTARTS.format(1, 0)}")[0][2]
    assert "ValueError: bad" in title
    assert "times" not in title
