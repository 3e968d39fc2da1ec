"""Recordings of AMD GPUs: RPD and rocprofv3 databases, real, synthetic, damaged and hostile."""

from __future__ import annotations

import gzip
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from polars.testing import assert_frame_equal

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput, UnknownFormat
from traceanalyzer.parsers.rocpd import v3
from traceanalyzer.parsers.rocpd.recording import copy_name
from traceanalyzer.render import render

FILES = ROOT / "fixtures" / "rocpd"
RPD, V3, MERGED = FILES / "training.rpd", FILES / "training.db", FILES / "merged.db"
REAL = ("mytrace.rpd.gz", "matmul_result.rpd", "matmul_result_large.rpd")
KIND_OF = {
    "KernelExecution": "kernel",
    "CopyHostToDevice": "gpu_memcpy",
    "CopyDeviceToHost": "gpu_memcpy",
    "CopyDeviceToDevice": "gpu_memcpy",
    "FillBuffer": "gpu_memset",
}
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def query(path: Path, sql: str, folder: Path) -> list[tuple[Any, ...]]:
    """Rows of a file, read by SQLite alone."""
    data = path.read_bytes()
    copy = folder / "copy.rpd"
    copy.write_bytes(gzip.decompress(data) if path.suffix == ".gz" else data)
    with closing(sqlite3.connect(copy)) as connection:
        return connection.execute(sql).fetchall()


def codes(trace: ta.Trace) -> dict[str, str]:
    return dict(trace.issues.select("code", "severity").cast(pl.String).iter_rows())


def texts(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame without categories, which files number differently."""
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


# --- real recordings -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
def test_device_work_of_real_recordings(name: str, shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "rocpd" / name
    trace = ta.read(path)
    assert schema.check(trace.tables) == []
    expected: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    sql = 'SELECT opType, description, "end" - start, gpuId FROM op'
    rows = query(path, sql, tmp_path)
    for kind, text, dur, _ in rows:
        if kind in KIND_OF or (kind == "Task" and text):
            key = (KIND_OF.get(kind, "kernel"), text or kind)
            expected[key][0] += 1
            expected[key][1] += dur
    work = (
        texts(trace.events)
        .filter(pl.col("kind").is_in(WORK))
        .with_columns(key=pl.when(pl.col("kind") == "kernel").then("name").otherwise("category"))
    )
    sums = work.group_by("kind", "key").agg(pl.len(), pl.col("dur").sum())
    assert {(k, n): [count, dur] for k, n, count, dur in sums.iter_rows()} == dict(expected)
    assert set(work["device"]) == {row[3] for row in rows} == {2}


@pytest.mark.parametrize("name", REAL)
def test_calls_of_real_recordings(name: str, shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "rocpd" / name
    events = texts(ta.read(path).events)
    calls = events.filter(pl.col("kind") == "cuda_runtime")
    sums = calls.group_by("name").agg(pl.len(), pl.col("dur").sum()).sort("name")
    sql = (
        "SELECT apiName, count(*), sum(\"end\" - start) FROM api WHERE apiName GLOB 'hip*'"
        " GROUP BY apiName ORDER BY apiName"
    )
    assert sums.rows() == query(path, sql, tmp_path)
    sql = "SELECT a.apiName, count(*) FROM rocpd_api_ops l JOIN api a ON a.id = l.api_id GROUP BY 1"
    device = events.filter(pl.col("device").is_not_null())
    launched = device.join(calls, on=["pid", "correlation"], suffix="_call")
    assert dict(launched.group_by("name_call").len().iter_rows()) == dict(
        query(path, sql, tmp_path)
    )


@pytest.mark.parametrize("name", REAL)
def test_sizes_and_monitors_of_real_recordings(name: str, shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "rocpd" / name
    trace = ta.read(path)
    sql = "SELECT sum(size) FROM rocpd_copyapi WHERE typeof(size) = 'integer'"
    assert [(trace.events["bytes"].sum(),)] == query(path, sql, tmp_path)
    # the end of the last row of a device is a reading too
    sql = (
        "SELECT 'GPU ' || deviceId, count(*), sum(CAST(value AS REAL)) FROM (SELECT deviceId, value"
        " FROM rocpd_monitor UNION ALL SELECT deviceId, value FROM rocpd_monitor m WHERE start ="
        " (SELECT max(start) FROM rocpd_monitor n WHERE n.deviceId = m.deviceId))"
        " GROUP BY 1 ORDER BY 1"
    )
    sums = texts(trace.counters).group_by("series").agg(pl.len(), pl.col("value").sum())
    assert sums.sort("series").rows() == query(path, sql, tmp_path)
    sql = (
        'SELECT "end" - start, gridX / workgroupX, workgroupX FROM kernel'
        " WHERE kernelName GLOB 'Cijk*' ORDER BY start"
    )
    if name != REAL[0]:  # launched by hipExtModuleLaunchKernel, whose grid is in work items
        shapes = trace.launch_configs.join(trace.events.with_row_index("event"), on="event").filter(
            pl.col("name").cast(pl.String).str.starts_with("Cijk")
        )
        assert shapes.select("dur", "grid_x", "block_x").rows() == query(path, sql, tmp_path)


RUNS = 'SELECT start, "end" FROM rocpd_op ORDER BY start'


def busy_ns(spans: list[tuple[int, int]]) -> int:
    """Return the time in which any operation runs."""
    busy, reached = 0, 0
    for start, end in spans:
        busy += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return busy


def test_operators_and_tasks_of_a_real_recording(shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "rocpd" / REAL[0]
    trace = ta.read(path)
    events = texts(trace.events)
    sql = "SELECT autogradName, count(*) FROM autograd GROUP BY 1"
    operators = events.filter(pl.col("kind") == "cpu_op")
    assert dict(operators.group_by("name").len().iter_rows()) == dict(query(path, sql, tmp_path))
    tasks = events.filter(pl.col("category") == "Task")
    assert (tasks["kind"].unique().to_list(), tasks.height) == (["kernel"], 7720)
    assert trace.issues.is_empty()
    assert ta.kernels(trace).to_dict()["busy_ns"] == busy_ns(query(path, RUNS, tmp_path))


def test_a_database_of_rocprofv3_without_underscore(shared: Path) -> None:
    trace = ta.read(shared / "data" / "rocpd" / "bt2_test.db")
    rows = texts(trace.events).select("kind", "name", "ts", "dur", "pid", "device")
    assert rows.filter(kind="kernel").rows() == [
        ("kernel", "vector_add_kernel", 1_001_500_000, 2_000_000, 1234, 0),
        ("kernel", "matrix_multiply_kernel", 1_002_000_000, 1_000_000, 1234, 0),
    ]
    assert rows.filter(kind="nvtx")["name"].to_list() == ["main_region", "gpu_computation"]
    assert trace.launch_configs.select("grid_x", "grid_y", "block_x", "block_y").rows() == [
        (4, 1, 256, 1),
        (4, 4, 16, 16),
    ]
    assert (trace.meta.host, trace.events["bytes"].sum()) == ("test_host", 2 << 20)


# --- synthetic recordings ------------------------------------------------------------------------


def test_both_formats_have_the_same_training() -> None:
    columns = ("rank", "kind", "ts", "dur", "name", "device", "bytes", "category")
    parts = []
    for path in (RPD, V3, MERGED):
        trace = ta.read(path)
        assert schema.check(trace.tables) == []
        work = texts(trace.events).filter(pl.col("kind").is_in(WORK))
        # RPD has no dispatch of a graph's kernels
        work = work.filter(pl.col("category").fill_null("") != "Task").select(columns[:-1])
        steps = texts(trace.events).filter(pl.col("name").str.starts_with("train_step"))
        parts.append((work.sort("ts", "device"), steps.select(columns[:-3]).sort("ts", "rank")))
    for work, steps in parts[1:]:
        assert_frame_equal(work, parts[0][0])
        assert_frame_equal(steps, parts[0][1])
    assert parts[0][1].height == 8


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", [RPD, V3, MERGED], ids=lambda path: path.name)
def test_the_straggler_is_named(path: Path) -> None:
    result = ta.comm_outliers(path).to_dict()
    ranks = [(row["rank"], row["imposed_ns"]) for row in result["ranks"]]
    assert ranks == [(1, 3_000_000), (0, 0)]


def test_each_piece_of_work_has_its_launch_call() -> None:
    for path in (RPD, V3):
        events = texts(ta.read(path).events)
        work = events.filter(pl.col("kind").is_in(WORK))
        calls = events.filter(kind="cuda_runtime")
        joined = work.join(calls, on=["rank", "pid", "correlation"], suffix="_call")
        assert joined.height == work.height
        assert (joined["ts_call"] <= joined["ts"]).all()
        copies = joined.filter(kind="gpu_memcpy")["name_call"].unique().to_list()
        assert copies == ["hipMemcpyAsync"]


def test_allocations_counters_and_collectives_of_rocprofv3() -> None:
    trace = ta.read(V3)
    memory = trace.events.with_row_index("event").join(trace.memory_totals, on="event")
    rows = texts(memory).select("kind", "bytes", "allocated_bytes").unique().sort("bytes")
    assert rows.rows() == [
        ("free_completed", -(1 << 30), 0),
        ("alloc", 1 << 30, 1 << 30),
    ]
    counters = texts(trace.counters).group_by("name", "series").agg(pl.col("value").sum())
    assert sorted(counters.rows()) == [
        ("GPU Busy [%]", "GPU 0", 150.0),
        ("GPU Busy [%]", "GPU 1", 150.0),
        ("SQ_WAVES", "GPU 0", 768.0),
        ("SQ_WAVES", "GPU 1", 768.0),
    ]
    rows = texts(trace.collectives).select("collective", "dtype", "elements_in", "group")
    assert rows.unique().rows() == [("all_reduce", "bfloat16", 1 << 20, "0x5eed")]
    assert rows.height == 8
    assert trace.meta.world_size == 2


@pytest.mark.matrix
def test_a_file_can_be_converted(tmp_path: Path) -> None:
    for path in (RPD, V3):
        target = tmp_path / f"{path.name}.parquet"
        ta.convert(path, target)
        for name, frame in ta.read(target).tables.items():
            assert_frame_equal(texts(frame), texts(ta.read(path).tables[name]))


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", [RPD, V3, MERGED], ids=lambda path: path.name)
@given(
    kinds=st.sets(st.sampled_from(("kernel", "gpu_memcpy", "nvtx", "cuda_runtime", "cpu_op"))),
    low=st.integers(-5, 60),
    length=st.integers(0, 60),
)
@settings(max_examples=8, deadline=None)
def test_a_selection_reads_the_same_rows(
    path: Path, kinds: set[str], low: int, length: int
) -> None:
    whole = ta.read(path)
    start = whole.meta.start_ns or 0
    window = (start + low * 1_000_000, start + (low + length) * 1_000_000)
    part = ta.read(path, kinds=sorted(kinds)).between(low * 1_000_000, (low + length) * 1_000_000)
    expected = whole.events.filter(
        pl.col("kind").cast(pl.String).is_in(sorted(kinds)),
        pl.col("ts") < window[1],
        pl.col("ts") + pl.col("dur") > window[0],
    )
    if low >= 0:
        assert_frame_equal(texts(part.events), texts(expected))


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("KernelExecution", "CopyDeviceToHost", "FillBuffer", "Task", "Barrier")),
        st.integers(0, 3),
        st.integers(0, 1 << 50),
        st.integers(0, 10_000_000),  # one that is longer than all others may be damaged
    ),
    max_size=20,
)


@given(rows=OPERATIONS)
@settings(max_examples=25, deadline=None)
def test_any_operations_keep_their_times(
    rows: list[tuple[str, int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rpd") / "any.rpd"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId, queueId, start, 'end',"
            " description_id, opType_id);"
            "CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string)"
        )
        for number, (kind, gpu, start, length) in enumerate(rows):
            values = (number, gpu, 0, start, start + length, -1, number)
            database.execute("INSERT INTO rocpd_op VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            database.execute("INSERT INTO rocpd_string VALUES (?, ?)", (number, kind))
        database.commit()
    events = texts(ta.read(path).events)
    work = events.filter(pl.col("kind").is_in(WORK)).select("kind", "device", "ts", "dur")
    assert sorted(work.rows()) == sorted(
        (KIND_OF[kind], gpu, start, length) for kind, gpu, start, length in rows if kind in KIND_OF
    )
    assert events.height == len(rows)


# --- damaged and hostile files -------------------------------------------------------------------

FAULTS = {
    "no_api.rpd": {"missing-table"},
    "no_strings.rpd": {"missing-table"},
    "no_end.rpd": {"missing-column"},
    "absurd.rpd": {"time-out-of-range", "wrong-type", "negative-duration"},
    "truncated_training.rpd": {"truncated", "unreadable-rows"},
    "no_info.db": {"missing-table"},
    "absurd.db": {"time-out-of-range", "wrong-type", "number-out-of-range"},
    "truncated_training.db": {"truncated", "unreadable-rows"},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FAULTS)
def test_damaged_files_are_read_as_far_as_possible(name: str) -> None:
    trace = ta.read(FILES / name)
    assert schema.check(trace.tables) == []
    assert codes(trace).keys() >= FAULTS[name]
    assert trace.events.height > 5
    whole = texts(ta.read(RPD if name.endswith("rpd") else V3).events)
    readable = {"truncated_training.rpd": ["ts"], "truncated_training.db": ["ts", "dur", "name"]}
    if columns := readable.get(name):
        rows = texts(trace.events).filter(pl.col("dur") >= 0).select(columns)
        assert rows.join(whole.select(columns), on=columns, how="semi").height >= rows.height - 1


def test_every_file_without_api_rows_keeps_its_kernels() -> None:
    kernels = texts(ta.read(FILES / "no_api.rpd").events).filter(kind="kernel")
    whole = texts(ta.read(RPD).events).filter(kind="kernel")
    columns = ["ts", "dur", "name", "device", "stream"]
    assert_frame_equal(kernels.select(columns), whole.select(columns))
    assert kernels["pid"].null_count() == kernels.height


@pytest.mark.matrix
def test_names_of_a_hostile_file_are_escaped() -> None:
    result = ta.kernels(FILES / "hostile.rpd")
    for form in ("html", "svg", "text", "md"):
        page = render(result, form)
        text = page.decode() if isinstance(page, bytes) else page
        assert "<script>alert" not in text
        assert "\x1b[31m" not in text


def test_scratch_of_kernels(tmp_path: Path) -> None:
    path = tmp_path / "scratch.db"
    path.write_bytes(V3.read_bytes())
    assert ta.read(path).launch_configs["local_memory"].null_count() > 0
    with closing(sqlite3.connect(path)) as database:
        table = "rocpd_kernel_dispatch_0000a1b2"
        database.execute(f"ALTER TABLE {table} ADD private_segment_size INTEGER DEFAULT 2064")
        database.commit()
    assert set(ta.read(path).launch_configs["local_memory"]) == {2064}


def test_views_and_triggers_do_nothing(tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    path.write_bytes(V3.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP VIEW rocpd_kernel_dispatch")
        database.execute("CREATE VIEW rocpd_kernel_dispatch AS SELECT load_extension('evil')")
        database.execute("CREATE VIEW rocpd_op AS SELECT 1")
        database.commit()
    assert_frame_equal(texts(ta.read(path).events), texts(ta.read(V3).events))
    assert {file.name for file in tmp_path.iterdir()} == {"views.db"}


def test_another_database_with_the_prefix(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE rocpd_notes (id INTEGER)")
        database.commit()
    with pytest.raises(UnknownFormat, match="not a recording of RPD or rocprofv3"):
        ta.read(path)


def test_a_recording_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.rpd"
    path.write_bytes(RPD.read_bytes())
    Path(f"{path}-wal").write_bytes(b"x")
    with pytest.raises(MalformedInput, match="is being written"):
        ta.read(path)
    os.truncate(f"{path}-wal", 0)
    assert ta.read(path).events.height == ta.read(RPD).events.height


# --- names ---------------------------------------------------------------------------------------


def test_copies_are_named_as_in_kineto() -> None:
    assert copy_name("CopyHostToDevice") == "Memcpy HtoD (Host -> Device)"
    assert copy_name("MEMORY_COPY_DEVICE_TO_HOST") == "Memcpy DtoH (Device -> Host)"
    assert copy_name("CopyDeviceToDevice") == "Memcpy DtoD (Device -> Device)"
    assert copy_name(None) == "Memcpy Unknown (Unknown -> Unknown)"


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("rocpd_region_0000a1b2", "rocpd_region"),
        ("rocpd_regioncc3883073c204c7da65be8c5f67fa23c", "rocpd_region"),
        ("rocpd_info_process_00ab_12cd", "rocpd_info_process"),
        ("rocpd_region_notes", None),
        ("rocpd_eventful", None),
        ("other", None),
    ],
)
def test_tables_are_found_without_their_uuid(table: str, name: str | None) -> None:
    assert v3.logical_name(table) == name


def test_fixtures_equal_the_output_of_their_script(tmp_path: Path) -> None:
    script = ROOT / "fixtures" / "make_rocpd.py"
    subprocess.run([sys.executable, "-B", str(script), str(tmp_path)], check=True)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FILES.iterdir()}
    for path in FILES.iterdir():
        if not path.name.startswith("truncated"):
            with (
                closing(sqlite3.connect(path)) as ours,
                closing(sqlite3.connect(tmp_path / path.name)) as written,
            ):
                ours.text_factory = written.text_factory = bytes
                for (table,) in ours.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                ).fetchall():
                    rows = f'SELECT * FROM "{table.decode()}"'
                    assert ours.execute(rows).fetchall() == written.execute(rows).fetchall()
