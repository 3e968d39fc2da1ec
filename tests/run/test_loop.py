"""The loop over inputs for all analyzers: ranks, truncated and unreadable inputs."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT
from perfetto_files import slice_
from wording import check_wording, raises_wording
from worker_tasks import (
    counts,
    counts_off_main_thread,
    measured_or_killed,
    measured_or_killed_on_rank_1,
)

import traceanalyzer as ta
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Skipped
from traceanalyzer.cli.main import status
from traceanalyzer.errors import (
    InputError,
    MissingData,
    OptionError,
    OutputError,
    UnreadableFile,
)
from traceanalyzer.parsers import itwinai
from traceanalyzer.render import render
from traceanalyzer.run import pieces, workers
from traceanalyzer.run.loop import examine, skipped_notes
from traceanalyzer.run.ranks import by_rank
from traceanalyzer.schema import ON_REQUEST

FIXTURES = ROOT / "fixtures"
EXPORT = FIXTURES / "nsys" / "training.sqlite"
RANKS = FIXTURES / "nccl_8ranks"
NO_RANK = FIXTURES / "py_spy" / "subprocesses.raw.txt"

#: ``memory_diff``, ``diff`` and ``scaling`` compare runs. ``hang`` compares the dumps of all ranks
#: whatever ``rank`` is (tests/analyzers/test_hang.py).
_OTHERS = ("memory_diff", "diff", "scaling", "hang")
NAMES = [entry.name for entry in registry.public() if entry.name not in _OTHERS]


def _kinds() -> dict[str, Callable[[Path], Any]]:
    """Inputs of several ranks."""

    def joined(_: Path) -> ta.Trace:
        return ta.concat([ta.read(RANKS / f"rank{rank}.json.gz") for rank in (0, 1, 2)])

    def parquet(folder: Path) -> Path:
        target = folder / "ranks.parquet"
        ta.convert(joined(folder), target)
        return target

    def files(folder: Path) -> Path:
        for rank in (0, 1, 2):
            shutil.copy(RANKS / f"rank{rank}.json.gz", folder)
        return folder

    return {"export": lambda _: EXPORT, "memory": joined, "parquet": parquet, "folder": files}


def _alone(inputs: Any, rank: int) -> ta.Trace:
    """Return one rank of an input as a trace."""
    if isinstance(inputs, Path) and inputs.is_dir():
        return ta.read(inputs / f"rank{rank}.json.gz", columns=ON_REQUEST)
    whole = inputs if isinstance(inputs, ta.Trace) else ta.read(inputs, columns=ON_REQUEST)
    return next(trace for trace in by_rank(whole) if trace.meta.rank == rank)


def _answer(function: Callable[..., ta.Result], *args: Any, **more: Any) -> str:
    """Return a result as text, or the error."""
    try:
        return json.dumps(function(*args, **more).to_dict(), default=str, sort_keys=True)
    except MissingData as error:
        return str(error)


@pytest.fixture(scope="module", params=list(_kinds()))
def inputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _kinds()[request.param](tmp_path_factory.mktemp("ranks"))


@pytest.mark.sample(9, "inputs")
@pytest.mark.parametrize("name", NAMES)
def test_rank_selects_one_rank(name: str, inputs: Any) -> None:
    function = getattr(ta, name)
    assert _answer(function, inputs, rank=1) == _answer(function, _alone(inputs, 1))


@pytest.mark.sample(9, "inputs")
@pytest.mark.parametrize("name", NAMES)
def test_missing_rank_is_an_error(name: str, inputs: Any) -> None:
    known = "0-1" if inputs == EXPORT else "0-2"
    if name in ("host_metrics", "printed") and inputs == EXPORT:  # it has no counters, no text
        with pytest.raises(MissingData):
            getattr(ta, name)(inputs, rank=7)
        return
    with pytest.raises(OptionError, match=rf"rank 7; there are ranks {known}$"):
        getattr(ta, name)(inputs, rank=7)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["diff", "memory_diff"])
def test_rank_selects_in_both_runs(name: str) -> None:
    function, one = getattr(ta, name), _alone(EXPORT, 1)
    assert _answer(function, EXPORT, EXPORT, rank=1) == _answer(function, one, one)
    with raises_wording(OptionError):
        function(EXPORT, EXPORT, rank=7)


@pytest.mark.matrix
@pytest.mark.sample(4)
def test_rank_in_report_and_diagnose(inputs: Any) -> None:
    one = _alone(inputs, 1)
    assert _answer(ta.diagnose, inputs, rank=1) == _answer(ta.diagnose, one)
    result = ta.report(inputs, rank=1)
    assert result.overview.frame["rank"].unique().to_list() == [1]


def test_rank_of_a_file_without_rank_is_an_error() -> None:
    with raises_wording(OptionError):
        ta.py_spy_report(NO_RANK, rank=3)


def test_assumed_rank_of_a_file_without_rank() -> None:
    result = ta.info(NO_RANK, assume_rank=3)
    assert result.to_polars("files")["rank"].to_list() == [3]
    assert ta.read(NO_RANK, assume_rank=3).events["rank"].unique().to_list() == [3]


@pytest.mark.parametrize("name", ["kernels", "info", "flamegraph"])
def test_assumed_rank_of_a_file_with_rank_is_an_error(name: str) -> None:
    with pytest.raises(OptionError, match="has rank 5"):
        getattr(ta, name)(RANKS / "rank5.json.gz", assume_rank=3)
    with pytest.raises(OptionError, match="has rank 0, 1"):
        getattr(ta, name)(EXPORT, assume_rank=3)


def test_assumed_rank_of_several_files_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["kernels", str(RANKS), "--assume-rank", "1"]) == 2
    check_wording(capsys.readouterr().err)


@pytest.fixture(scope="module")
def truncated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a trace that is truncated near its end."""
    import gzip

    whole = gzip.decompress((RANKS / "rank5.json.gz").read_bytes())
    path = tmp_path_factory.mktemp("cut") / "rank5.json"
    path.write_bytes(whole[: len(whole) * 9 // 10])
    return path


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [*NAMES, "diagnose", "report"])
def test_truncated_input_is_noted(name: str, truncated: Path) -> None:
    try:
        notes = getattr(ta, name)(truncated).notes
    except MissingData as error:
        notes = (str(error),)
    assert any("truncated" in note for note in notes)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [*NAMES, "diagnose"])
def test_unreadable_input_is_noted(name: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    function, good = getattr(ta, name), ta.read(RANKS / "rank5.json.gz")
    try:
        result = function([good, bad])
    except MissingData:  # not in this fixture
        return
    texts = [*result.notes, *(str(t.frame.to_dicts()) for t in result.tables)]
    assert any("bad.json" in text for text in texts)
    with pytest.raises(InputError):
        function(bad)


@pytest.mark.parametrize(
    "error",
    [ValueError("odd\nvalue"), KeyError("name"), RecursionError(), OSError("no data"),
     pl.exceptions.PanicException("odd")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_exception_of_a_reader_costs_its_file_only(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(itwinai, "_table", fails)
    shutil.copy(RANKS / "rank5.json.gz", tmp_path)
    (tmp_path / "epochs.csv").write_text("epoch_id,time,name,nodes\n1,2.0,ddp,1\n")
    for analysis in (ta.diagnose, ta.kernels) if thorough else (ta.kernels,):
        assert any("epochs.csv" in note for note in analysis(tmp_path).notes)
    with pytest.raises(InputError):
        ta.read(tmp_path / "epochs.csv")


_CSV_WITH_A_STRAY_QUOTE = {
    "epochs": 'epoch_id,time,name,nodes\n1,2".0,ddp,1\n2,2.0,ddp,1\n',
    "names": 'name,self_cuda_time_total,strategy,num_gpus,global_rank\n"mm,1,ddp,1,0\n',
}


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("text", _CSV_WITH_A_STRAY_QUOTE.values(), ids=_CSV_WITH_A_STRAY_QUOTE)
def test_a_damaged_table_is_skipped(text: str, tmp_path: Path) -> None:
    shutil.copy(RANKS / "rank5.json.gz", tmp_path)
    (tmp_path / "table.csv").write_text(text)
    result = ta.diagnose(tmp_path)
    assert any("table.csv" in note for note in result.notes)


def test_the_trace_next_to_a_damaged_table_is_analysed(shared: Path) -> None:
    result = ta.diagnose(shared / "data/causes/other/run_with_damaged_csv")
    assert any("itwinai_min.csv" in note for note in result.notes)


def test_order_of_parts() -> None:
    traces = [ta.read(RANKS / f"rank{rank}.json.gz") for rank in (0, 1, 2)]
    for name in ("kernels", "comm_outliers", "overlap", "gpu_idle"):
        one, other = (getattr(ta, name)(run) for run in (traces, traces[::-1]))
        for table in one.tables:
            frame = other.to_polars(table.name)
            assert isinstance(frame, pl.DataFrame)
            assert frame.equals(table.frame), (name, table.name)


@pytest.mark.matrix
def test_number_of_files() -> None:
    joined = ta.concat([ta.read(RANKS / f"rank{rank}.json.gz") for rank in (0, 3, 5)])
    assert joined.diagnose().scalars["files"] == 3
    assert ta.diagnose(joined, rank=3).scalars["files"] == 1
    assert ta.diagnose(EXPORT).scalars["files"] == 1


def _small_ranks(folder: Path, number: int = 30) -> Path:
    """Write files of ``number`` ranks that are small enough for workers."""
    for rank in range(number):
        shutil.copy(RANKS / f"rank{rank % 8}.json.gz", folder / f"rank{rank}.json.gz")
    return folder


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["comm_outliers", "diagnose"])
def test_workers_give_the_results_of_one_process(name: str, tmp_path: Path) -> None:
    inputs = _small_ranks(tmp_path, 12)
    (tmp_path / "rank7.json.gz").write_bytes(b"{ no trace")
    (tmp_path / "rank9.json.gz").write_bytes((RANKS / "rank1.json.gz").read_bytes()[:9_000])
    issues: dict[int, list[tuple[str, int]]] = {1: [], 2: []}
    results = [
        getattr(ta, name)(
            [*ta.find_inputs(inputs)[0], tmp_path / "rank7.json.gz"],
            workers=number,
            on_trace=lambda trace, messages=issues[number]: messages.append(
                (trace.meta.path, trace.issues.height)
            ),
        )
        for number in issues
    ]
    assert render(results[0], "json") == render(results[1], "json")
    assert issues[1] == issues[2]
    assert len(issues[1]) >= 11


def test_an_input_that_is_read_again_in_a_worker_is_compared_with_earlier_ones(
    tmp_path: Path,
) -> None:
    for name, first in (("a", 0), ("b", 15)):  # both record steps 15 to 29
        events = [
            {"ph": "X", "cat": cat, "name": text, "pid": pid, "tid": 7, "dur": dur,
             "ts": 1000 * number + at, "args": {"device": 0, "stream": 7, "correlation": number}}
            for number in range(first, first + 30)
            for cat, text, pid, at, dur in (
                ("user_annotation", f"ProfilerStep#{number}", 9, 0, 990),
                ("cuda_runtime", "cudaGraphLaunch", 9, 10, 20),
                ("kernel", "one", 0, 100, 150),
                ("kernel", "two", 0, 300, 150),
            )
        ]  # fmt: skip
        job = {"distributedInfo": {"rank": 0, "world_size": 1}, "baseTimeNanoseconds": 10**18}
        (tmp_path / f"{name}.json").write_text(json.dumps({**job, "traceEvents": events}))
    alone, apart = (ta.critical_path(tmp_path, workers=number) for number in (1, 2))
    assert render(alone, "json") == render(apart, "json")


def _recorded_tasks(
    monkeypatch: pytest.MonkeyPatch, *, apart: bool = True
) -> list[tuple[int, int]]:
    """Return a list that gets the number of tasks and of workers of each use of workers.

    Without ``apart`` no process is started: the tasks run here.
    """
    uses: list[tuple[int, int]] = []
    each = workers.each

    def counted(function: Any, given: Any, number: int, *, threads: int = 1) -> Any:
        uses.append((len(given), number))
        run = each(function, given, number, threads=threads) if apart else map(function, given)
        answers = list(run)
        assert None not in answers
        return (answer for answer in answers)

    monkeypatch.setattr(workers, "each", counted)
    return uses


@pytest.mark.matrix
def test_workers_are_used_where_they_are_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = _recorded_tasks(monkeypatch, apart=False)
    monkeypatch.setattr("traceanalyzer.run.measure.cores", lambda: 4)
    inputs = _small_ranks(tmp_path)
    ta.kernels(inputs)
    ta.kernels(RANKS, workers="auto")
    ta.kernels(RANKS / "rank0.json.gz", workers=2)
    assert not uses  # one process by default, few small files, one file
    ta.kernels(inputs, workers="auto")
    ta.kernels(RANKS, workers=3)
    assert uses == [(8, 4), (2, 3)]


@pytest.mark.matrix
def test_files_that_fill_the_memory_are_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    uses = _recorded_tasks(monkeypatch, apart=False)
    monkeypatch.setattr("traceanalyzer.run.measure.cores", lambda: 64)
    inputs = _small_ranks(tmp_path)
    cases = ((float("inf"), 30), (800 << 20, 5), (200 << 20, None))
    for free, number in cases if thorough else cases[1:]:
        monkeypatch.setattr("traceanalyzer.run.measure.free_memory", lambda free=free: free)
        ta.kernels(inputs, workers="auto")
        assert uses == ([] if number is None else [(8, number)])
        uses.clear()


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("large", [False, True])
def test_a_file_that_ends_its_worker_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool, *, large: bool
) -> None:
    monkeypatch.setattr("traceanalyzer.run.measure._measured_apart", measured_or_killed)
    if large:
        monkeypatch.setattr("traceanalyzer.run.measure._SMALL_BYTES", 0)
    inputs = _small_ranks(tmp_path, 8)
    result = ta.kernels(inputs, workers=2)
    assert set(result.devices["rank"]) == {0, 1, 2, 3, 4, 6, 7}
    (note,) = (note for note in result.notes if "rank5.json.gz" in note)
    assert "SIGKILL" in note
    if not thorough:  # nothing else can be read: test_a_killed_share_skips_its_file
        return
    shutil.copy(RANKS / "rank1.json.gz", inputs / "rank5.b.json.gz")
    with pytest.raises(InputError, match="SIGKILL"):
        ta.kernels(sorted(inputs.glob("rank5.*")), workers=2)


@pytest.mark.matrix
def test_large_files_in_workers_give_the_results_of_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traceanalyzer.run.measure._SMALL_BYTES", 0)
    ranks = [RANKS / f"rank{rank}.json.gz" for rank in (0, 5)]
    alone, apart = (render(ta.gpu_idle(ranks, workers=number), "json") for number in (1, 2))
    assert alone == apart


@pytest.mark.matrix
@pytest.mark.sample(5)
@pytest.mark.parametrize("name", ["diagnose", "gpu_idle", "launches", "operators", "timeline"])
def test_workers_that_share_the_ranks_of_a_file_give_the_results_of_one_process(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    uses = _recorded_tasks(monkeypatch)
    issues: dict[int, list[pl.DataFrame]] = {1: [], 2: []}
    alone, apart = (
        render(
            getattr(ta, name)(
                EXPORT,
                workers=number,
                on_trace=lambda trace, found=issues[number]: found.append(trace.issues),
            ),
            "json",
        )
        for number in issues
    )
    assert uses == [(2, 2)]
    assert alone == apart
    assert [len(found) for found in issues.values()] == [1, 1]
    assert issues[1][0].equals(issues[2][0])


@pytest.mark.matrix
def test_ranks_are_shared_if_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    monkeypatch.setattr("traceanalyzer.run.measure._START_SECONDS", 0)
    uses = _recorded_tasks(monkeypatch, apart=False)
    cases = ((3, 0, []), (4, 1 << 28, []), (4, 0, [(2, 2)]), (64, 0, [(2, 2)]))
    for cores, least, used in cases if thorough else cases[:3]:
        monkeypatch.setattr("traceanalyzer.run.measure.cores", lambda cores=cores: cores)
        monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", least)
        ta.gpu_idle(EXPORT, workers="auto")
        assert uses == used
        uses.clear()
    ta.kernels(EXPORT, workers="auto")  # reading takes longer than measuring
    ta.gpu_idle(EXPORT, workers="auto", rank=1)
    monkeypatch.setattr("traceanalyzer.run.measure.free_memory", lambda: 200 << 20)
    ta.gpu_idle(EXPORT, workers="auto")
    assert not uses


@pytest.mark.matrix
def test_a_share_that_lacks_data_is_measured_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 has no kernels: the skipped rank is named as in one process."""
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    path = Path(shutil.copy(EXPORT, tmp_path))
    with closing(sqlite3.connect(path)) as connection:
        for kind in ("KERNEL", "MEMCPY", "MEMSET"):
            connection.execute(
                f"DELETE FROM CUPTI_ACTIVITY_KIND_{kind} WHERE (globalPid >> 24) & 16777215 = 4001"
            )
        connection.commit()
    uses = _recorded_tasks(monkeypatch)
    alone, apart = (ta.launches(path, workers=number) for number in (1, 2))
    assert uses == [(2, 2)]
    assert alone.notes == apart.notes
    assert render(alone, "json") == render(apart, "json")


#: A rank without events, readings of GPU metrics that belong to no rank, rows that end early.
_UNUSUAL = (
    "CREATE TABLE MPI_RANKS (globalTid INTEGER, rank INTEGER)",
    *(f"INSERT INTO MPI_RANKS VALUES ({pid} << 24, {pid - 4000})" for pid in (4000, 4001, 4002)),
    "CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT)",
    "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (256, 1, 'SMs Active [Throughput %]')",
    "CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER)",
    *(f"INSERT INTO GPU_METRICS VALUES ({at} * 1000000, 256, 1, 50)" for at in range(9)),
    *(
        f"""UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = start - 5 WHERE rowid =
        (SELECT min(rowid) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid >> 24 & 16777215 = {pid})
        """
        for pid in (4000, 4001)
    ),
)


def _unusual_export(folder: Path) -> Path:
    path = Path(shutil.copy(EXPORT, folder))
    with closing(sqlite3.connect(path)) as connection:
        for statement in _UNUSUAL:
            connection.execute(statement)
        connection.commit()
    return path


def test_ranks_of_a_large_file_are_read_in_two_passes_with_the_same_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, passes, answers = _unusual_export(tmp_path), [], []
    reading = pieces.read_ranks
    monkeypatch.setattr(
        pieces,
        "read_ranks",
        lambda *a, ranks=None, **more: passes.append(ranks) or reading(*a, ranks=ranks, **more),
    )
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    for least in (1 << 40, 0):
        monkeypatch.setattr(pieces, "_LARGE_BYTES", least)
        issues: list[Any] = []
        read: list[int] = []
        found = examine(
            path,
            ["kernels", "host_metrics", "operators"],
            on_trace=lambda trace, to=issues: to.append(trace.issues.rows()),
            progress=lambda done, size, to=read: to.append(done),
        )
        answers.append({name: render(one, "json") for name, one in found.results.items()})
        answers[-1] |= {"missing": found.missing, "notes": found.notes, "issues": issues}
        assert read == sorted(read)
        assert read[-1] > path.stat().st_size / 2
    assert answers[0] == answers[1]
    assert "negative-duration" in str(answers[0]["issues"])
    assert passes == [None, [0, 1], [2]]


def test_a_large_file_without_the_data_raises_the_same_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    errors = []
    for least in (1 << 40, 0):
        monkeypatch.setattr(pieces, "_LARGE_BYTES", least)
        with pytest.raises(MissingData) as raised:
            ta.roofline(EXPORT)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


@pytest.mark.matrix
@pytest.mark.parametrize("number", [2, 3])
def test_shares_of_an_unusual_export_give_the_results_of_one_process(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    path = _unusual_export(tmp_path)
    issues: dict[int, list[Any]] = {1: [], number: []}
    alone, apart = (
        examine(path, workers=workers, on_trace=lambda trace, to=to: to.append(trace.issues.rows()))
        for workers, to in issues.items()
    )
    assert alone.notes == apart.notes
    assert alone.missing == apart.missing
    assert issues[1] == issues[number]
    assert alone.results.keys() == apart.results.keys()
    for name, result in alone.results.items():
        assert render(result, "json") == render(apart.results[name], "json"), name
    assert ta.host_metrics(path).counters["n"].to_list() == [9]
    assert alone.results["host_metrics"].view().tables[0].frame["n"].sum() == 9


@pytest.mark.matrix
def test_what_is_read_again_depends_on_all_ranks_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are read for the gaps of rank 1 and explain one of rank 0, which allocates memory."""
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    gaps = ta.gpu_idle(EXPORT).gaps.filter(pl.col("rank") == 0, pl.col("cause") == "dataloading")
    path = Path(shutil.copy(EXPORT, tmp_path))
    of_0 = "(globalTid >> 24) & 16777215 = 4000"
    calls = f"CUPTI_ACTIVITY_KIND_RUNTIME WHERE {of_0}"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO StringIds VALUES (9001, 'cudaMalloc_v3020')")
        connection.execute(f"DELETE FROM NVTX_EVENTS WHERE {of_0} AND text LIKE '%load%'")
        for number, (start, end) in enumerate(gaps.select("start", "end").iter_rows()):
            connection.execute(
                f"""INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT ?, ?, eventClass, globalTid, ?,
                9001, returnValue, callchainId FROM {calls} LIMIT 1""",
                (start - 50_000, end + 1_000, 900_000 + number),
            )
            connection.execute(
                f"""UPDATE COMPOSITE_EVENTS SET start = ? WHERE id =
                (SELECT min(id) + ? FROM COMPOSITE_EVENTS WHERE {of_0})""",
                ((start + end) // 2, number),
            )
        connection.commit()
    uses = _recorded_tasks(monkeypatch)
    alone, apart = (ta.gpu_idle(path, workers=number) for number in (1, 2))
    assert uses == [(2, 2)]
    sampled = alone.gaps.filter(pl.col("rank") == 0, pl.col("cause") == "memory_management")
    assert sampled["sampled"].drop_nulls().len()
    assert render(alone, "json") == render(apart, "json")


@pytest.mark.matrix
def test_a_killed_share_skips_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    monkeypatch.setattr("traceanalyzer.run.measure._measured_apart", measured_or_killed_on_rank_1)
    with pytest.raises(InputError, match="SIGKILL"):
        ta.gpu_idle(EXPORT, workers=2)


@pytest.mark.matrix
def test_an_error_in_a_worker_is_raised_by_the_caller(tmp_path: Path) -> None:
    inputs = _small_ranks(tmp_path)
    with pytest.raises(OptionError):
        ta.comm_outliers(inputs, comm_patterns="(", workers=2)


@pytest.mark.matrix
def test_a_worker_without_result_gives_none() -> None:
    """The task cannot be pickled; the function raises."""
    tasks = [lambda: None, -1, 2]
    assert list(workers.each(math.sqrt, tasks, 2)) == [None, None, math.sqrt(2)]


@pytest.mark.matrix
def test_workers_with_one_thread_read_every_format(tmp_path: Path, thorough: bool) -> None:
    """Readers start no threads there: these would wait for polars' only thread."""
    large = tmp_path / "pieces.json"  # of more than two pieces
    event = '{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1,"name":"a"}'
    large.write_text(f"[{','.join([event] * 200_000)}]")
    files = [path for path in FIXTURES.rglob("*") if path.is_file() and path.suffix != ".py"]
    merged = tmp_path / "slices.pftrace"
    merged.write_bytes(b"".join(slice_(row, row + 1, 1, "a") for row in range(20_000)))
    files = [large, merged, *sorted(files)[:: 1 if thorough else 12]]
    read = list(workers.each(counts_off_main_thread, files, 2, threads=1))
    assert read == [counts(path) for path in files]
    assert sum(isinstance(one, dict) for one in read) > len(files) // 2


@pytest.mark.matrix
def test_a_worker_that_ends_is_replaced() -> None:
    ended = list(workers.each(os._exit, [0, 3, 12], 1))
    assert all(isinstance(one, workers.Ended) for one in ended)
    assert len({one.why for one in ended}) == 3


@pytest.mark.parametrize(
    ("name", "path", "command"),
    [
        ("gpu_idle", "memory/leak.pickle", "memory"),
        ("py_spy_report", "memory/leak.pickle", "memory"),
        ("kernels", "py_spy/subprocesses.raw.txt", "py-spy-report"),
        ("operators", "py_spy/subprocesses.speedscope.json", "flamegraph"),
        ("py_spy_report", "nccl_8ranks/rank0.json.gz", "flamegraph"),
    ],
)
def test_wrong_command_names_the_one_that_fits(name: str, path: str, command: str) -> None:
    with pytest.raises(MissingData, match=f": .*: (.* or )?traceanalyzer {command} FILE"):
        getattr(ta, name)(FIXTURES / path)


def test_dumps_of_several_ranks_name_their_folder(shared: Path) -> None:
    folder = shared / "data/flight_recorder/nccl_like_missing"
    files = sorted(folder.iterdir())
    for analysis in (ta.diagnose, ta.kernels):
        with pytest.raises(MissingData, match=f"traceanalyzer hang {re.escape(str(folder))}/$"):
            analysis(folder)
        with pytest.raises(MissingData, match=f"traceanalyzer hang {re.escape(str(folder))}/$"):
            analysis(files)
        with pytest.raises(MissingData, match=r"traceanalyzer hang FILE$"):
            analysis(files[0])


def test_text_next_to_traces_does_not_hide_their_error(shared: Path) -> None:
    with pytest.raises(MissingData, match=r"rank0\.json\.gz: no device work"):
        ta.overlap(shared / "data/chrome/kineto_ddp_cpu/ddp4")


def test_trace_with_memory_only_names_the_command(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    event = {"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event", "pid": 1,
             "tid": 1, "ts": 1, "args": {"Addr": 1, "Bytes": 512, "Total Allocated": 512,
                                         "Device Type": 1, "Device Id": 0}}  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    with pytest.raises(MissingData, match="only memory events: traceanalyzer memory FILE"):
        ta.gpu_idle(path)


def test_missing_data_of_a_suitable_file_names_no_other_command() -> None:
    with pytest.raises(MissingData) as error:
        ta.kernels(FIXTURES / "ddp_gloo_4ranks" / "rank0.json.gz")
    assert "traceanalyzer " not in str(error.value)


@pytest.mark.parametrize("name", ["kernels", "diagnose", "info", "comm_outliers"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_empty_time_window_is_not_missing_data(name: str, in_memory: bool) -> None:
    path = FIXTURES / "nccl_8ranks" / "rank0.json.gz"
    inputs = ta.read(path) if in_memory else path
    with pytest.raises(OptionError, match=r"time window \(--since 500 s\).* and 127.\d ms"):
        getattr(ta, name)(inputs, since_ns=500_000_000_000)


def test_time_window_with_events_of_one_file_only() -> None:
    files = [FIXTURES / "nccl_8ranks" / "rank0.json.gz", FIXTURES / "nsys" / "training.sqlite"]
    assert ta.kernels(files, since_ns=50_000_000, until_ns=60_000_000).names.height


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("analysis", "path"),
    [
        (ta.py_spy_report, "fixtures/py_spy/subprocesses.raw.txt"),
        (ta.flamegraph, "fixtures/py_spy/subprocesses.raw.txt"),
        (ta.info, "fixtures/py_spy/subprocesses.raw.txt"),
        (ta.report, "fixtures/py_spy/subprocesses.raw.txt"),
        (ta.hang, "fixtures/flight_recorder/gloo_json"),
        (ta.diagnose, "fixtures/flight_recorder/gloo_json"),
        (ta.memory, "fixtures/memory/torch20_block_history.pickle"),
        (ta.diagnose, "fixtures/memory/torch20_block_history.pickle"),
        (ta.diagnose, "fixtures/memory/training.pickle"),
        (ta.printed, "fixtures/printed_text/job.log"),
        (ta.roofline, "fixtures/ncu/byte_order_mark.csv"),
    ],
)
def test_time_windows_of_inputs_without_timeline_are_rejected(analysis: Any, path: str) -> None:
    with pytest.raises(MissingData, match="--since and --until"):
        analysis(str(ROOT / path), since_ns=1)


@pytest.mark.matrix
def test_inputs_without_timeline_are_skipped_next_to_others() -> None:
    trace = str(ROOT / "fixtures/nccl_8ranks/rank0.json.gz")
    dump = str(ROOT / "fixtures/flight_recorder/gloo_json/nccl_trace_rank_0.json")
    result = ta.diagnose([trace, dump], since_ns=1)
    assert any("no timeline" in note for note in result.notes)


@pytest.mark.parametrize(
    "analysis", [ta.gpu_idle, ta.diagnose, ta.report, ta.memory_growth, ta.diff, ta.hang]
)
def test_unknown_keywords_name_the_function_and_its_keywords(analysis: Any) -> None:
    inputs = ["a.json", "b.json"] if analysis is ta.diff else ["a.json"]
    with pytest.raises(TypeError, match=rf"^{analysis.__name__}\(\) got an .* 'nope'; .*rank, "):
        analysis(*inputs, nope=1)


def test_saving_names_the_keyword_that_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "out.md"
    path.touch()
    with pytest.raises(OutputError, match="force=True overwrites it"):
        ta.info(str(ROOT / "fixtures/nccl_8ranks/rank0.json.gz")).save(str(path))


def rewritten_while_read(path: Path, *, truncate: bool) -> Callable[[int, int], None]:
    """Return a progress callback that writes the file once, as another program would."""
    left, size = [path], path.stat().st_size

    def write(_read: int, total: int) -> None:
        if total == size and left:
            data = left.pop().read_bytes()
            path.write_bytes(data[: len(data) // 2] if truncate else data + b" ")

    return write


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("name", ["nccl_8ranks/rank0.json.gz", "py_spy/default.raw.txt"])
def test_an_input_that_changes_while_it_is_read_is_an_error(
    name: str, truncate: bool, tmp_path: Path
) -> None:
    path = Path(shutil.copy(FIXTURES / name, tmp_path))
    with pytest.raises(UnreadableFile, match="changed while it was read"):
        ta.info(path, progress=rewritten_while_read(path, truncate=truncate))
    others = [FIXTURES / "nccl_8ranks" / "rank1.json.gz", path]
    result = ta.info(others, progress=rewritten_while_read(path, truncate=truncate))
    assert result.files["path"].to_list() == [str(others[0])]
    assert any("changed" in row for row in map(str, result.to_dict().items()))


def test_inputs_skipped_for_one_reason_have_one_note() -> None:
    skipped = [Skipped(name, why) for name, why in (("a", "old"), ("b", "new"), ("c", "old"))]
    assert skipped_notes(skipped) == ("Skipped: a, c: old.", "Skipped: b: new.")
