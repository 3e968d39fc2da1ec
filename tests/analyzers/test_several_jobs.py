"""Files of different jobs in one folder are detected and not compared."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, device, host, step, trace
from conftest import ROOT
from hypothesis import given, strategies as st
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.common.jobs import _nearest, recording, several_jobs
from traceanalyzer.run.find import each
from traceanalyzer.run.ranks import split_by_rank
from traceanalyzer.trace import Device, Trace

FIXTURES = ROOT / "fixtures"
NOON = 1_700_000_000 * 10**9
HOUR = 3_600 * 10**9
H100, MI300 = (Device(0, "NVIDIA H100 80GB HBM3"),), (Device(0, "AMD Instinct MI300X"),)
JOB: dict[str, Any] = {"world_size": 2, "backend": "nccl", "epoch_ns": NOON, "devices": H100}


def rank(number: int | None, pid: int = 1, late: int = 0, **meta: Any) -> Trace:
    """Return two steps with an all-reduce each; ``late`` is the delay in the second one."""
    rows = []
    for i in range(2):
        at, more = i * 100 * MS, late * i
        rows.append(step(i, at, 100 * MS) | {"pid": pid})
        rows.append(host("cpu_op", "aten::mm", at, MS, pid=pid))
        rows.append(device(GEMM, at, 20 * MS + more))
        reduce = device(ALL_REDUCE, at + 20 * MS + more, 70 * MS - more, stream=20)
        rows.append(reduce | {"dtype": "float", "elements_in": 4096, "elements_out": 4096})
    return trace(rows, number, **{"path": f"{number}-{pid}.json", **JOB, **meta})


OTHER_JOBS = {
    "world size": rank(1, world_size=8, late=50 * MS),
    "backend": rank(1, backend="gloo", late=50 * MS),
    "vendor": rank(1, devices=MI300, late=50 * MS),
    "time": rank(1, epoch_ns=NOON + 2 * HOUR, late=50 * MS),
    "process": rank(0, 2, late=50 * MS),
}


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("differ", OTHER_JOBS)
def test_ranks_of_different_jobs_are_not_compared(differ: str) -> None:
    traces = [rank(0), OTHER_JOBS[differ]]
    result = ta.comm_outliers(traces)
    assert (result.totals.n_matched, result.delayed.collectives.height) == (0, 0)
    assert all(one.meta.path in result.notes[0] for one in traces)
    diagnosis = ta.diagnose(traces)
    assert result.notes[0] in diagnosis.notes
    status = dict(diagnosis.rules.select("rule", "status").rows())
    assert {status[name] for name in ("straggler", "missing-ranks", "uneven-memory")} == {"skipped"}
    check_wording(result.verdict, result.notes[0], diagnosis.verdict)


ONE_JOB = {
    "two ranks": (rank(0), rank(1, 2)),
    "cycles of one process, hours apart": (rank(0), rank(0, epoch_ns=NOON + 5 * HOUR)),
    "nothing recorded": (rank(0), rank(1, 2, world_size=None, backend=None, devices=())),
    "no clocks": (rank(0, epoch_ns=None), rank(1, 2, epoch_ns=None)),
    "no ranks": tuple(rank(None, pid, world_size=None, backend=None) for pid in (1, 2)),
    "a memory snapshot": (rank(0), rank(0, epoch_ns=NOON + 5 * HOUR, format="memory-snapshot")),
    "within the hour": (rank(0), rank(1, 2, epoch_ns=NOON + HOUR // 2)),
    "GPUs of one vendor": (rank(0), rank(1, 2, devices=(Device(0, "NVIDIA A100-SXM4-80GB"),))),
}


@pytest.mark.parametrize("name", ONE_JOB)
def test_possible_single_jobs(name: str) -> None:
    assert several_jobs(recording(one) for one in ONE_JOB[name]) == ""


def test_straggler_of_one_job_is_reported() -> None:
    result = ta.comm_outliers([rank(0), rank(1, 2, late=50 * MS)])
    assert result.delayed.collectives["root_rank"].to_list() == [1]


def test_the_ranks_of_a_job_stay_together() -> None:
    """Two runs of four ranks, an hour and more apart, and a file that records nothing."""
    runs = [rank(n, 10 * n + k, epoch_ns=NOON + 2 * k * HOUR) for n in range(4) for k in (1, 2)]
    text = several_jobs(
        recording(one) for one in [*runs, rank(None, world_size=None, backend=None, epoch_ns=None)]
    )
    check_wording(text)
    assert "2 different jobs" in text


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "folder",
    ["nccl_8ranks", "nccl_8ranks_isolated", "ddp_gloo_4ranks", "composer", "nsys", "upgrade"],
)
def test_fixtures_are_one_job(folder: str) -> None:
    assert _of_files(FIXTURES / folder) == ""


@pytest.mark.matrix
@pytest.mark.sample(12)
@pytest.mark.parametrize(
    "folder",
    [
        "chrome/kineto_ddp_cpu/ddp4", "chrome/kineto/dlrm_8ranks",
        "chrome/kineto_ddp_cpu/ddp4_stack",
        "attribution/fsdp", "composer/repro/alcf_names", "composer/repro/nsys_names",
        "composer/repro/two_cycles_one_rank", "composer/repro/folder_with_merged",
        "composer/repro/embedded", "chrome/composer",
    ],
)  # fmt: skip
def test_real_folders_of_one_job_are_one(folder: str, shared: Path) -> None:
    notes = ta.diagnose(shared / "data" / folder).notes
    assert not any("different jobs" in note for note in notes)


def test_real_files_of_different_jobs(shared: Path) -> None:
    files = ["a100_rank3of8_sendrecv", "nccl_a100_rank0of2", "mi300_rank0of8_rccl"]
    paths = [shared / "data/chrome/kineto" / f"{name}.json.gz" for name in files]
    result = ta.comm_outliers(paths)
    assert "3 different jobs" in result.notes[0]
    check_wording(result.notes[0])


def _of_files(folder: Path) -> str:
    return several_jobs(
        recording(one) for path in each(folder) for one in split_by_rank([ta.read(path)])
    )


def _program(name: str, kernels: str, gpu: str | None = None) -> Trace:
    """Return a program without rank, world size and clock; each letter is the name of a kernel."""
    rows = [step(0, 0, 100 * MS), step(1, 100 * MS, 100 * MS)]
    rows += [
        device(f"void {kernel}_kernel<float>(int)", i * 10 * MS, 5 * MS)
        for i, kernel in enumerate(kernels * 2)
    ]
    devices = () if gpu is None else (Device(0, gpu),)
    return trace(rows, None, path=name, devices=devices)


UNRELATED = {
    "kernels": (_program("a.json", "abc"), _program("b.json", "def")),
    "GPUs": (_program("a.json", "abc", "Tesla T4"), _program("b.json", "abc", "NVIDIA A10G")),
}


def test_diff_is_suggested_for_two_files_of_two_jobs() -> None:
    two = UNRELATED["GPUs"]
    suggested = "traceanalyzer diff a.json b.json."
    assert suggested in several_jobs(map(recording, two))
    three = (*two, _program("c.json", "abc", "Tesla K80"))
    assert "3 different jobs" in several_jobs(map(recording, three))
    assert "traceanalyzer diff" not in several_jobs(map(recording, three))


@pytest.mark.parametrize("differ", UNRELATED)
def test_unrelated_programs_are_not_one_job(differ: str) -> None:
    programs = UNRELATED[differ]
    result = ta.kernels(programs)
    assert result.verdict.startswith(result.input_warning)
    assert all(one.meta.path in result.notes[-1] for one in programs)
    assert result.to_dict()["notes"][-1] == result.notes[-1]
    assert any(one.input_warning for one in (ta.info(programs), ta.steps(programs)))
    assert ta.diagnose(programs).notes.count(result.notes[-1]) == 1
    for replayed in (ta.what_if, ta.critical_path):
        with pytest.raises(ta.MissingData) as error:
            replayed(programs)
        assert all(one.meta.path in str(error.value) for one in programs)


@pytest.mark.parametrize(
    "programs",
    [
        (_program("a.json", "abc"), _program("b.json", "cde")),
        (_program("a.json", "ab"), _program("b.json", "cd")),
        (_program("a.json", "abc", "Tesla T4"), _program("b.json", "abc")),
    ],
    ids=["a kernel in common", "few kernels", "no name of a GPU"],
)
def test_programs_that_may_be_one_job_are(programs: Sequence[Trace]) -> None:
    result = ta.kernels(programs)
    assert (result.input_warning, result.notes) == ("", ta.kernels(programs[:1]).notes)


def test_gains_of_several_jobs_are_not_replayed_together() -> None:
    diagnosis = ta.diagnose([rank(0), OTHER_JOBS["time"]])
    assert {one.gain_basis for one in diagnosis.diagnosis} <= {"", "bound"}


def test_an_old_file_of_one_rank_is_apart_from_the_files_of_the_new_run() -> None:
    old = [rank(1, 9, epoch_ns=NOON - HOUR // 3, path="old.json")]
    new = [rank(number, number + 1) for number in (0, 1)]
    text = several_jobs(map(recording, [*old, *new]))
    assert "2 different jobs" in text
    assert "old.json (2023-11-14 21:53 UTC); 0-1.json, 1-2.json (2023-11-14 22:13 UTC)" in text


def test_a_run_has_one_process_of_each_rank() -> None:
    begins = {"a": (0, 1000), "b": (0, 2000), "c": (0, 3000), "d": (1, 1990), "e": (1, 2050)}
    files = [
        rank(number, pid, epoch_ns=NOON + at * 10**9, path=path)
        for pid, (path, (number, at)) in enumerate(begins.items(), 1)
    ]
    text = several_jobs(map(recording, files))
    assert "3 different jobs" in text
    assert "d, b (" in text
    assert "e, c (" in text


@given(st.data())
def test_processes_belong_to_the_nearest_runs_in_order(data: st.DataObject) -> None:
    runs = sorted(data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=7)))
    begins = sorted(data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=len(runs))))
    chosen = _nearest(begins, runs)
    numbers = [chosen[number] for number in range(len(begins))]
    assert numbers == sorted(set(numbers))

    def apart(chosen: Sequence[int]) -> int:
        return sum(abs(begins[n] - runs[run]) for n, run in enumerate(chosen))

    every = itertools.combinations(range(len(runs)), len(begins))
    assert apart(numbers) == min(map(apart, every))
