"""Nsight Systems exports: the bundled files, and selections."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.parsers.nsys_sqlite import tables
from traceanalyzer.vocabulary import KINDS

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRAINING, TABLES = (FIXTURES / "nsys" / f"{name}.sqlite" for name in ("training", "tables"))
MS = 1_000_000


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    texts = [n for n, t in frame.schema.items() if isinstance(t, pl.Categorical | pl.Enum)]
    return frame.with_columns(pl.col(texts).cast(pl.String)) if texts else frame


def of_kind(trace: ta.Trace, *kinds: str) -> pl.DataFrame:
    return plain(trace.events.filter(pl.col("kind").is_in(kinds)))


def dump(path: Path) -> str:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return "\n".join(connection.iterdump())


@pytest.mark.parametrize("path", [TRAINING, TABLES], ids=lambda path: path.stem)
def test_fixtures_are_what_the_script_writes(path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FIXTURES))
    import make_nsys

    {"training": make_nsys.training, "tables": make_nsys.tables}[path.stem](tmp_path / path.name)
    for module in ("make_nsys", "nsys_tables"):
        sys.modules.pop(module)
    assert dump(tmp_path / path.name) == dump(path)


@pytest.mark.parametrize("path", [TRAINING, TABLES], ids=lambda path: path.stem)
def test_tables_hold_the_schema(path):
    assert schema.check(ta.read(path).tables) == []


def test_metadata_of_the_export():
    meta = ta.read(TRAINING, kinds="kernel").meta
    assert (meta.format, meta.version) == ("nsys-sqlite", "2026.5.1.1 (schema 3.30.1)")
    assert (meta.host, meta.epoch_ns) == ("node1", 1_780_000_000_000_000_000)
    assert (meta.rank, meta.world_size) == (None, 2)
    assert [(d.id, d.name, d.total_bytes) for d in meta.devices] == [
        (0, "NVIDIA H100 80GB HBM3", 80 << 30),
        (1, "NVIDIA H100 80GB HBM3", 80 << 30),
    ]
    assert meta.start_ns == MS


def test_ranks_are_those_of_the_largest_communicator():
    events = ta.read(TRAINING).events
    distinct = events.select("rank", "pid").unique().sort("rank")
    assert distinct.rows() == [(0, 4000), (1, 4001)]


def test_device_ordinals_become_gpu_numbers():
    work = of_kind(ta.read(TRAINING), "kernel", "gpu_memcpy", "gpu_memset")
    assert set(work.select("rank", "device").rows()) == {(0, 0), (1, 1)}


def test_a_launch_and_its_kernel():
    trace = ta.read(TRAINING)
    kernel = of_kind(trace, "kernel").row(0, named=True)
    call = of_kind(trace, "cuda_runtime").filter(
        pl.col("correlation") == kernel["correlation"], pl.col("pid") == kernel["pid"]
    )
    assert call.select("name", "dur", "device").rows() == [("cudaLaunchKernel", 6_000, None)]
    assert (kernel["dur"], kernel["stream"], kernel["tid"]) == (220_000, 7, None)
    shape = trace.launch_configs.row(0, named=True)
    grid = [shape[f"grid_{axis}"] for axis in "xyz"]
    assert (grid, shape["registers"], shape["shared_memory"]) == ([108, 2, 1], 96, 33_792)


def test_local_memory_of_kernels(tmp_path: Path) -> None:
    path = Path(shutil.copy(TRAINING, tmp_path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET localMemoryPerThread = 24")
        connection.commit()
    assert set(ta.read(path).launch_configs["local_memory"]) == {24}


def test_copies_and_memsets_have_kineto_names():
    trace = ta.read(TRAINING)
    copies = of_kind(trace, "gpu_memcpy").select("name", "bytes").unique().sort("bytes")
    assert copies.rows() == [
        ("Memcpy HtoD (Pageable -> Device)", 4_096),
        ("Memcpy HtoD (Pinned -> Device)", 9_600_000),
    ]
    assert set(of_kind(trace, "gpu_memset")["name"]) == {"Memset (Device)"}
    assert set(of_kind(trace, "cuda_sync")["name"]) == {"Stream Sync"}


def test_ranges_marks_and_domains():
    ranges = of_kind(ta.read(TRAINING, columns=["args"]), "nvtx")
    assert set(ranges.filter(pl.col("category") == "NCCL")["name"]) == {
        "ncclAllReduce",
        "ncclCommInitRank",
    }
    mark = ranges.filter(pl.col("name") == "step done")
    assert mark["dur"].null_count() == mark.height == 12
    assert json.loads(mark["args"][0])["payload"] > 100
    step = ranges.filter(pl.col("name") == "step 0", pl.col("rank") == 0)
    assert step.select("ts", "category", "tid").rows() == [(1_800_000, None, 4000)]


def test_nccl_payloads_have_sizes_and_groups():
    trace = ta.read(TRAINING)
    distinct = plain(trace.collectives)
    assert set(
        distinct.select("collective", "elements_in", "dtype", "group", "group_size").rows()
    ) == {("all_reduce", 50_000_000, "byte", "0x5eedc0de", 2)}
    assert set(trace.events["name"].gather(distinct["event"]).cast(pl.String)) == {"ncclAllReduce"}


def test_samples_have_stacks():
    trace = ta.read(TRAINING)
    samples = of_kind(trace, "sample")
    stacks = plain(trace.stacks)
    leaf = stacks.row(samples["stack"][0], named=True)
    assert (leaf["name"], leaf["file"]) == ("read", "/usr/lib/libc.so.6")
    above = stacks.row(leaf["parent"], named=True)
    assert (above["name"], stacks["name"][above["parent"]]) == ("load_batch", "main")
    assert trace.meta.weight_unit == "samples"
    assert samples["weight"].sum() == samples.height


def test_functions_without_symbols_are_merged_per_library(tmp_path):
    path = Path(shutil.copy(TRAINING, tmp_path / "copy.sqlite"))
    with closing(sqlite3.connect(path)) as connection:
        distinct = connection.execute("SELECT id, stackDepth FROM SAMPLING_CALLCHAINS")
        for row, (sample, depth) in enumerate(distinct.fetchall()):
            connection.execute("INSERT INTO StringIds VALUES (?, ?)", (9000 + row, hex(row)))
            connection.execute(
                "UPDATE SAMPLING_CALLCHAINS SET symbol = ? WHERE id = ? AND stackDepth = ?",
                (9000 + row, sample, depth),
            )
        connection.commit()
    trace, named = ta.read(path, kinds="sample"), ta.read(TRAINING, kinds="sample")
    assert set(trace.stacks["name"]) == {"[unresolved]"}
    assert set(trace.stacks["file"]) == set(named.stacks["file"])
    # main and load_batch lie in one program, read in a library
    assert trace.stacks["parent"].to_list() == [None, 0, 1]
    assert trace.events["stack"].null_count() == named.events["stack"].null_count()


def test_events_of_openacc_are_ranges(tmp_path):
    path = Path(shutil.copy(TRAINING, tmp_path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            'CREATE TABLE OPENACC_DATA_EVENTS (nameId INTEGER, "start" INTEGER, "end" INTEGER, '
            "globalTid INTEGER)"
        )
        name = "Enqueue Upload@laplace2d.c:88"
        connection.execute("INSERT INTO StringIds VALUES (9000, ?)", (name,))
        first = connection.execute("SELECT start, end, globalTid FROM OSRT_API").fetchone()
        connection.execute("INSERT INTO OPENACC_DATA_EVENTS VALUES (9000, ?, ?, ?)", first)
        connection.commit()
    rows = ta.read(path).events.filter(pl.col("category") == "openacc")
    assert rows["name"].to_list() == [name]
    assert rows.select("kind", "dur").row(0) == ("nvtx", first[1] - first[0])


def test_thread_scheduling():
    running = of_kind(ta.read(TRAINING), "sched")
    assert set(running.select("name", "category", "dur").rows()) == {
        ("running", "cpu 3", MS),
        ("running", "cpu 4", MS),
    }


def test_names_of_processes_and_threads():
    lanes = ta.read(TRAINING).lanes.filter(pl.col("rank") == 0)
    assert lanes.select("pid", "tid", "label").rows() == [
        (4000, None, "python3"),
        (4000, 4000, "pt_main_thread"),
    ]


def test_whole_graphs_are_device_work():
    graphs = of_kind(ta.read(TABLES), "kernel")
    assert graphs.select("name", "dur").unique().rows() == [("CUDA graph 7", 500_000)]
    assert ta.kernels(TABLES).n == 3


def test_allocations_add_up():
    trace = ta.read(TABLES)
    events = of_kind(trace, "alloc", "free_completed")
    assert events.select("kind", "bytes", "name").rows() == [
        ("alloc", 2 << 30, "Device"),
        ("alloc", 512 << 20, "Device"),
        ("free_completed", -(512 << 20), "Device"),
    ]
    assert trace.memory_totals["allocated_bytes"].to_list() == [2 << 30, 2560 << 20, 2 << 30]
    assert events["address"].to_list()[0] == 0x7F00_0000_0000


def test_metrics_of_gpus_are_counters():
    counters = plain(ta.read(TABLES).counters)
    assert counters.filter(pl.col("name") == "DRAM Read Bandwidth").select(
        "ts", "series", "value", "pid"
    ).rows() == [(n * MS, "GPU 1", 39.0 + n, None) for n in range(1, 5)]


def test_calls_of_mpi():
    trace = ta.read(TABLES)
    calls = of_kind(trace, "mpi")
    assert calls.select("name", "bytes").rows() == [
        ("MPI_Allreduce", 8_192),
        ("MPI_Send", 64),
        ("MPI_Wait", None),
        ("MPI_Finalize", None),
    ]
    assert plain(trace.collectives).select("collective", "elements_in", "group").rows() == [
        ("all_reduce", 8_192, "91")
    ]
    assert set(trace.events["rank"]) == {2}


def test_calls_of_mpi_as_ranges(tmp_path):
    """Before 2023, nsys wrote calls of MPI as ranges of the domain MPI."""
    path = tmp_path / "old.sqlite"
    path.write_bytes(TRAINING.read_bytes())
    names = {"NCCL": "MPI", "ncclAllReduce": "MPI_Allreduce", "ncclCommInitRank": "MPI_Comm_dup"}
    with closing(sqlite3.connect(path)) as connection:
        for old, new in names.items():
            connection.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text = ?", (new, old))
            connection.execute("UPDATE StringIds SET value = ? WHERE value = ?", (new, old))
        connection.commit()
    expected = of_kind(ta.read(TRAINING), "nvtx").filter(pl.col("category") == "NCCL")
    trace = ta.read(path)
    calls = of_kind(trace, "mpi")
    times = ["ts", "dur", "pid", "tid"]
    assert calls.select(times).equals(expected.select(times))
    assert set(calls["name"]) == {"MPI_Allreduce", "MPI_Comm_dup"}
    reduced = calls.filter(pl.col("name") == "MPI_Allreduce").height
    assert plain(trace.collectives)["collective"].to_list() == ["all_reduce"] * reduced
    only = ta.read(path, kinds="mpi").events
    assert set(only["kind"]) == {"mpi"}
    assert only.height == calls.height


def test_range_across_threads_has_no_thread():
    ranges = of_kind(ta.read(TABLES), "nvtx").select("name", "tid").sort("name")
    assert ranges.rows() == [("epoch", None), ("evaluate", 4002)]


def test_missing_recordings_are_reported_with_their_option():
    issues = ta.read(TABLES).issues
    messages = issues.filter(pl.col("code") == "not-recorded")["first"].to_list()
    check_wording(messages)
    assert not [text for text in messages if "--trace=cuda" in text]


def test_nsys_messages_are_reported():
    issues = ta.read(TRAINING).issues
    messages = issues.filter(pl.col("code") == "nsys-message").select("severity", "first").rows()
    assert messages == [("info", "Not all NVTX events might have been collected.")]


# --- only what is asked for ------------------------------------------------------------------

ONLY = ("ts", "dur", "kind", "name", "rank", "pid", "tid", "device", "stream", "correlation")


@pytest.mark.matrix
@given(
    kinds=st.sets(st.sampled_from(("kernel", "gpu_memcpy", "nvtx", "osrt", "cuda_sync", "sched"))),
    windows=st.lists(
        st.tuples(st.integers(0, 30 * MS), st.integers(1, 9 * MS)).map(lambda w: (w[0], sum(w))),
        max_size=2,
    ),
    names=st.sampled_from(((), ("Launch",), ("step", "nccl"), ("Memcpy",))),
)
@settings(max_examples=25, deadline=None)
def test_selection_equals_filtered_rows(kinds, windows, names):
    part = ta.read(TRAINING, kinds=kinds, windows=windows, names=names).events
    whole = ta.read(TRAINING).events
    end = pl.col("ts") + pl.col("dur").fill_null(0)
    wanted = pl.col("kind").is_in(sorted(kinds))
    if names:
        wanted |= (
            pl.col("name").cast(pl.String).str.contains_any(list(names)).fill_null(value=False)
        )
    inside = [(pl.col("ts") < high) & (end > low) for low, high in windows]
    expected = whole.filter(wanted, *([pl.any_horizontal(inside)] if inside else []))
    # samples belong to a table of their own and are asked for by kind
    expected = expected.filter(pl.col("kind") != "sample")
    assert plain(part.select(ONLY)).equals(plain(expected.select(ONLY)))


def test_unused_columns_are_left_out():
    trace = ta.read(TRAINING, kinds="kernel", unused=("correlation", "launch_configs"))
    assert trace.events["correlation"].null_count() == trace.events.height > 0
    assert trace.launch_configs.is_empty()


def test_a_compressed_export_is_the_same(tmp_path):
    import gzip

    packed = tmp_path / "training.sqlite.gz"
    packed.write_bytes(gzip.compress(TRAINING.read_bytes()))
    one, other = ta.read(TRAINING), ta.read(packed)
    assert all(plain(one.tables[n]).equals(plain(other.tables[n])) for n in one.tables)


def test_one_rank_of_an_export_of_two():
    result = ta.kernels(TRAINING, rank=1)
    assert result.devices["rank"].to_list() == [1]
    with raises_wording(ta.OptionError):
        ta.kernels(TRAINING, rank=7)


# --- versions --------------------------------------------------------------------------------


def schemas(shared: Path) -> list[Path]:
    return sorted((shared / "data" / "nsys" / "schema").glob("*.sql"))


def test_every_version_has_the_columns_that_are_read(shared):
    """Empty tables of every known version: no column is missing."""
    read_tables = set()
    for path in schemas(shared):
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(path.read_text(encoding="utf-8"))
            for table, required in tables.REQUIRED.items():
                columns = {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}
                if columns:
                    read_tables.add(table)
                    assert set(required) <= columns, f"{path.name}: {table}"
    # no recorded version at hand has their rows
    described_elsewhere = {tables.NIC_METRIC_NAMES, *tables.OPENACC}
    assert read_tables | described_elsewhere == set(tables.REQUIRED)


@pytest.mark.matrix
def test_empty_export_of_every_version(shared, tmp_path):
    for path in schemas(shared):
        database = tmp_path / f"{path.stem}.sqlite"
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript(path.read_text(encoding="utf-8"))
        trace = ta.read(database)
        assert trace.events.is_empty()
        assert schema.check(trace.tables) == []


def test_a_newer_schema_is_read_with_a_notice(tmp_path):
    path = tmp_path / "newer.sqlite"
    path.write_bytes(TRAINING.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "UPDATE META_DATA_EXPORT SET value = '4.1.0' WHERE name = 'EXPORT_SCHEMA_VERSION'"
        )
        connection.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN somethingNew INTEGER")
        connection.execute("CREATE TABLE SOMETHING_NEW (start INTEGER, end INTEGER)")
        connection.commit()
    trace = ta.read(path)
    messages = dict(trace.issues.select("code", "first").iter_rows())
    check_wording(messages["newer-schema"])
    assert messages["not-read"] == "SOMETHING_NEW"
    assert trace.events.height == ta.read(TRAINING).events.height


def test_kinds_are_known():
    assert {"sched", "mpi"} <= set(KINDS)
