"""Several ranks: in one export, in separate exports, and their identification."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.parsers.sqlite import rows
from traceanalyzer.render import render
from traceanalyzer.run.ranks import by_rank
from traceanalyzer.run.read import ranks_apart, read_ranks

TRAINING = Path(__file__).parents[2] / "fixtures" / "nsys" / "training.sqlite"
MS = 1_000_000
TIMES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "globalPid",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "globalPid",
    "CUPTI_ACTIVITY_KIND_MEMSET": "globalPid",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "globalPid",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "globalTid",
    "NVTX_EVENTS": "globalTid",
    "OSRT_API": "globalTid",
    "PROFILER_OVERHEAD": "globalTid",
    "SCHED_EVENTS": "globalTid",
    "COMPOSITE_EVENTS": "globalTid",
}


def export_of(rank: int, folder: Path, name: str, *, began: int = 0) -> Path:
    """The export of one of two processes, with a session offset in ns."""
    path = Path(shutil.copy(TRAINING, folder / name))
    with closing(sqlite3.connect(path)) as connection:
        for table, who in TIMES.items():
            connection.execute(
                f"DELETE FROM {table} WHERE ({who} >> 24) & 16777215 <> {4000 + rank}"
            )
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for column in {"start", "end"} & set(columns):
                connection.execute(f'UPDATE {table} SET "{column}" = "{column}" - {began}')
        connection.execute(
            f"UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + {began}"
        )
        connection.execute(f"DELETE FROM TARGET_INFO_CUDA_DEVICE WHERE pid <> {4000 + rank}")
        connection.execute(f"DELETE FROM PROCESSES WHERE pid <> {4000 + rank}")
        connection.commit()
    return path


def without_blobs(path: Path) -> Path:
    """Exported without ``--include-blobs``: ranks are not recorded."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")
        connection.commit()
    return path


def ranks(path: Path) -> set[int | None]:
    return set(ta.read(path).events["rank"])


@pytest.mark.matrix
def test_separate_exports_equal_a_joint_one(tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    export_of(0, folder, "a.sqlite")
    export_of(1, folder, "b.sqlite", began=700_000)
    apart, together = ta.comm_outliers(folder), ta.comm_outliers(TRAINING)
    assert apart.verdict == together.verdict
    assert apart.ranks.equals(together.ranks)
    assert apart.ranks["imposed_ns"].to_list() == [5_850_000, 0]


def test_exports_are_joined_on_one_clock(tmp_path):
    paths = [
        export_of(0, tmp_path, "a.sqlite"),
        export_of(1, tmp_path, "b.sqlite", began=700_000),
    ]
    joined = ta.concat([ta.read(path) for path in paths])
    whole = ta.read(TRAINING)
    starts = [t.events.filter(pl.col("kind") == "kernel")["ts"].to_list() for t in (joined, whole)]
    assert starts[0] == starts[1]


def test_rank_comes_from_the_largest_communicator(tmp_path):
    assert ranks(export_of(1, tmp_path, "x.sqlite")) == {1}


def test_rank_comes_from_the_export_name(tmp_path):
    assert ranks(without_blobs(export_of(1, tmp_path, "report_rank5.sqlite"))) == {5}


@pytest.mark.parametrize(
    ("environment", "rank", "size"),
    [
        ("HOME=/root;RANK=3;WORLD_SIZE=8", 3, 8),
        ("OMPI_COMM_WORLD_RANK=2;OMPI_COMM_WORLD_SIZE=4;X=1", 2, 4),
        ("SLURM_PROCID=7;SLURM_NTASKS=16", 7, 16),
        ("MY_RANK=3;RANKS=4", None, None),
    ],
)
def test_rank_comes_from_the_launcher(tmp_path, environment, rank, size):
    path = without_blobs(export_of(1, tmp_path, "x.sqlite"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'Local', 'DeviceEnvironment', 610, ?)",
            [environment],
        )
        connection.commit()
    assert ranks(path) == {rank}
    assert ta.read(path).meta.world_size == size


def test_processes_without_rank_are_numbered_by_gpu(tmp_path):
    path = without_blobs(Path(shutil.copy(TRAINING, tmp_path / "x.sqlite")))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE TARGET_INFO_CUDA_DEVICE SET gpuId = 1 - gpuId")
        connection.commit()
    trace = ta.read(path)
    placed = trace.events.drop_nulls("device").select("rank", "pid", "device").unique().sort("rank")
    assert placed.rows() == [(0, 4001, 0), (1, 4000, 1)]
    numbered = trace.issues.filter(pl.col("code") == "ranks-numbered")
    assert numbered.select("severity", "count").rows() == [("notice", 2)]


def test_a_rank_is_the_same_whatever_is_read():
    whole = ta.read(TRAINING).events.select("rank", "pid").unique().sort("rank").rows()
    for kinds in ("kernel", "nvtx", "osrt"):
        part = ta.read(TRAINING, kinds=kinds).events.select("rank", "pid").unique().sort("rank")
        assert part.rows() == whole


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_an_export_is_selected(rank, tmp_path):
    """The same is found as in the export of that process alone."""
    alone = export_of(rank, tmp_path, "alone.sqlite")
    described, its = ta.info(TRAINING, rank=rank), ta.info(alone)
    assert described.files["rank"].to_list() == [rank]
    for column in ("events", "communication", "communication_ns"):
        assert described.contents[column].equals(its.contents[column])
    assert described.kinds.equals(its.kinds)
    for kinds in (["sample"], ["nvtx"], ["cuda_runtime"]):
        drawn = ta.flamegraph(TRAINING, kinds=kinds, rank=rank)
        assert drawn.functions.equals(ta.flamegraph(alone, kinds=kinds).functions)
    assert ta.flamegraph(TRAINING, by="rank", rank=rank).flame.frame["name"][0] == f"rank {rank}"
    code = ta.py_spy_report(TRAINING, rank=rank, aggregate_leaf_paths=True)
    assert code.total_samples == ta.py_spy_report(alone).total_samples


@pytest.mark.parametrize("ask", [ta.info, ta.flamegraph, ta.py_spy_report])
def test_a_rank_that_an_export_does_not_have_is_an_error(ask):
    with raises_wording(ta.OptionError):
        ask(TRAINING, rank=7)


def assert_same(one: ta.Trace, other: ta.Trace) -> None:
    assert one.sources == other.sources
    for name, table in one.tables.items():
        assert table.equals(other.tables[name]), name


@pytest.mark.parametrize("kinds", [None, ("kernel", "nvtx")])
def test_ranks_one_by_one_equal_the_split_trace(kinds):
    apart = [build() for build in read_ranks(TRAINING, kinds=kinds)]
    together = by_rank(ta.read(TRAINING, kinds=kinds))
    assert [trace.meta.rank for trace in apart] == [0, 1]
    for one, other in zip(apart, together, strict=True):
        assert_same(one, other)


def test_a_process_without_rank_and_device_is_no_rank(tmp_path):
    path = Path(shutil.copy(TRAINING, tmp_path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            'INSERT INTO OSRT_API ("start", "end", eventClass, globalTid, nameId, returnValue,'
            " callchainId) VALUES (1, 2, 27, ?, 5, 0, 0)",
            (77 << 24 | 77,),
        )
        connection.commit()
    assert None in ranks(path)
    apart, together = [build() for build in read_ranks(path)], by_rank(ta.read(path))
    assert [trace.meta.rank for trace in apart] == [0, 1]
    assert_same(apart[0], together[0])


def test_a_rank_is_built_when_it_is_requested(monkeypatch):
    built = []
    assemble = rows.assemble
    monkeypatch.setattr(rows, "assemble", lambda parts: built.append(1) or assemble(parts))
    for number, build in enumerate(read_ranks(TRAINING)):
        assert len(built) == number
        assert build().meta.rank == number


@pytest.mark.parametrize("kinds", [None, ("kernel", "nvtx", "sample")])
def test_one_rank_read_apart_equals_the_split_trace(kinds, monkeypatch):
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    assert ranks_apart(TRAINING) == [0, 1]
    for rank, other in enumerate(by_rank(ta.read(TRAINING, kinds=kinds))):
        (build,) = read_ranks(TRAINING, kinds=kinds, ranks=[rank])
        one = build()
        for name in ("flows", "stacks"):  # numbers of frames count from the first rank read
            assert getattr(one, name).is_empty() == getattr(other, name).is_empty()
        assert one.sources == other.sources
        drop = [name for name in ("stack",) if name in other.events.columns]
        assert one.events.drop(drop).equals(other.events.drop(drop))
        assert one.collectives.equals(other.collectives)
        assert one.lanes.equals(other.lanes)


def test_ranks_are_not_read_apart_if_device_work_would_be_lost(tmp_path, monkeypatch):
    assert ranks_apart(TRAINING) == []  # small: read once
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    export_of(0, tmp_path, "alone.sqlite")
    assert ranks_apart(tmp_path / "alone.sqlite") == []
    assert ranks_apart(tmp_path / "alone.sqlite", "nsys-sqlite") == []
    (tmp_path / "packed.sqlite.gz").write_bytes(gzip.compress(TRAINING.read_bytes()))
    assert ranks_apart(tmp_path / "packed.sqlite.gz") == []
    changes = (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = 99 << 24 WHERE rowid % 9 = 0",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL WHERE rowid % 9 = 0",
    )
    for number, change in enumerate(changes):
        assert ranks_apart(_changed(tmp_path / f"{number}.sqlite", change)) == []
    without_names = "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName"
    path = without_blobs(_changed(tmp_path / "unnamed.sqlite", without_names))
    assert ranks_apart(path) == sorted(ranks(path) - {None})


def _changed(path: Path, *changes: str) -> Path:
    """The training export after SQL statements."""
    shutil.copy(TRAINING, path)
    with closing(sqlite3.connect(path)) as connection:
        for change in changes:
            connection.execute(change)
        connection.commit()
    return path


def test_the_only_rank_with_the_events_is_named(tmp_path):
    tables = ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION")
    of_1 = "(globalPid >> 24) & 16777215 = 4001"
    path = _changed(
        tmp_path / "x.sqlite",
        *(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table} WHERE {of_1}" for table in tables),
    )
    assert ta.kernels(path).devices["rank"].to_list() == [0]
    assert ta.kernels(path, rank=0).devices["rank"].to_list() == [0]
    (trace,) = by_rank(ta.read(path, kinds="kernel"))
    assert trace.meta.rank == 0


@pytest.mark.matrix
@pytest.mark.sample(4)
@pytest.mark.parametrize("rank", [0, 1, 7])
def test_only_the_selected_rank_of_a_large_export_is_read(rank, monkeypatch):
    def answers() -> list[str]:
        try:
            results = ta.gpu_idle(TRAINING, rank=rank), ta.diagnose(TRAINING, rank=rank)
        except ta.OptionError as error:
            return [str(error)]
        return [render(result, "json") for result in results]

    read: list[set[int]] = []
    split = rows.split_by_rank
    whole = answers()
    monkeypatch.setattr("traceanalyzer.run.read._LARGE_BYTES", 0)
    monkeypatch.setattr(
        rows, "split_by_rank", lambda table: read.append(set(table["rank"])) or split(table)
    )
    assert answers() == whole
    assert set.union(*read) == ({rank} if rank < 2 else {0, 1})
