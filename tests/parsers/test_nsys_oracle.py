"""Recorded exports compared with sums of independent code."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from pathlib import Path

import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.analyzers.common.launching import launches
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_WORK

NAMES = (
    "cloverleaf_4xa100",
    "mfu_2gpu_after",
    "mfu_2gpu_before",
    "power_iteration_t4",
    "pre2022_two_long_gaps",
    "saxpy_mpi_lazy_false",
)


def oracle(shared: Path, name: str, table: str) -> pl.DataFrame:
    """A reference table, or a skip where the export has nothing of the sort."""
    folder = shared / "oracle" / "nsys" / name
    computed = [
        path for path in (folder / f"{table}.csv", folder / f"{table}.csv.gz") if path.exists()
    ]
    if not computed:
        pytest.skip(f"no {table} of {name}")
    return pl.read_csv(computed[0], infer_schema_length=None)


@pytest.fixture(scope="module")
def export(shared: Path, request: pytest.FixtureRequest) -> Trace:
    """A recorded export, read whole."""
    return ta.read(shared / "data" / "nsys" / f"{request.param}.sqlite.gz")


every = pytest.mark.parametrize("export", NAMES, indirect=True)


def name_of(trace: Trace) -> str:
    return Path(trace.meta.path).name.removesuffix(".sqlite.gz")


def rows(frame: pl.DataFrame) -> list[tuple[object, ...]]:
    return sorted(frame.rows(), key=str)


def kernels(trace: Trace) -> pl.DataFrame:
    computed = trace.events.filter(pl.col("kind") == "kernel")
    return computed.with_columns(pl.col("name").cast(pl.String))


@pytest.mark.sample(3)
@every
def test_tables_hold_the_schema(export: Trace) -> None:
    assert schema.check(export.tables) == []


@every
def test_kernel_sums(export: Trace, shared: Path) -> None:
    """As ``cuda_gpu_kern_sum``."""
    expected = oracle(shared, name_of(export), "cuda_gpu_kern_sum")
    dur = pl.col("dur")
    ours = kernels(export).group_by("name").agg(
        total_ns=dur.sum(),
        instances=pl.len().cast(pl.Int64),
        min_ns=dur.min(),
        max_ns=dur.max(),
        med_ns=dur.median(),
    )  # fmt: skip
    columns = ["name", "total_ns", "instances", "min_ns", "max_ns", "med_ns"]
    assert rows(ours.select(columns)) == rows(expected.select(columns))


@every
def test_kernels_command_has_the_same_sums(export: Trace, shared: Path) -> None:
    expected = oracle(shared, name_of(export), "cuda_gpu_kern_sum")
    ours = ta.kernels(export).names.filter(~pl.col("family").str.contains("^mem(?:cpy|set)"))
    columns = {"name": "name", "total_ns": "total_ns", "n": "instances"}
    summed = ours.group_by("name").agg(pl.col("total_ns", "n").sum()).rename(columns)
    assert rows(summed.select("name", "total_ns", "instances")) == rows(
        expected.select("name", "total_ns", "instances")
    )


@every
def test_nccl_sums(export: Trace, shared: Path) -> None:
    expected = oracle(shared, name_of(export), "nccl_kernel_sum")
    dur = pl.col("dur")
    computed = kernels(export).filter(pl.col("name").str.starts_with("nccl"))
    ours = (
        computed.with_columns(pl.col("name").str.extract(r"^(\w+)"))
        .group_by("name", "pid", "device", "stream")
        .agg(n=pl.len().cast(pl.Int64), total=dur.sum(), low=dur.min(), high=dur.max())
    )
    assert [r[1:] for r in rows(ours)] == [r[1:] for r in rows(expected)]
    assert set(ours["name"]) == set(expected["name"])


@every
def test_busy_union(export: Trace, shared: Path) -> None:
    """As the union of kernels, copies and sets of each process on each device."""
    expected = oracle(shared, name_of(export), "gpu_busy")
    work = device_work(export).filter(pl.col("start") > 0)
    keys = ["pid", "device"]
    busy = intervals.measure(work, keys).rename({"length": "busy"})
    ends = work.group_by(keys).agg(
        first=pl.col("start").min(), last=pl.col("end").max(), n=pl.len().cast(pl.Int64)
    )
    ours = busy.join(ends, on=keys).select(
        *keys,
        "first",
        "last",
        span=pl.col("last") - pl.col("first"),
        busy="busy",
        idle=pl.col("last") - pl.col("first") - pl.col("busy"),
        n="n",
    )
    assert rows(ours) == rows(expected)


@every
def test_launches(export: Trace, shared: Path) -> None:
    """Every kernel's launch call: by process and correlation id."""
    expected = oracle(shared, name_of(export), "kernel_launch")
    work = device_work(export)
    called = launches(export, work)
    joined = called.with_columns(
        work[called["work"]].select("device", "stream", "correlation", "start", "end", "kind")
    ).filter(pl.col("kind") == "kernel")
    ours = joined.select(
        "pid",
        "tid",
        "device",
        "stream",
        "correlation",
        "launch_start",
        "launch_end",
        "start",
        "end",
    )
    columns = [
        "pid", "tid", "deviceId", "streamId", "correlationId",
        "api_start_ns", "api_end_ns", "kern_start_ns", "kern_end_ns",
    ]  # fmt: skip
    assert rows(ours) == rows(expected.select(columns))


@every
def test_call_sums(export: Trace, shared: Path, tmp_path: Path) -> None:
    """Like ``cuda_api_sum``, whose names include the API version.

    The reference counts a call once more for the row that holds its backtrace: one export has such.
    """
    named = pl.col("name").str.replace(r"_v\d{4,}$", "")
    expected = (
        oracle(shared, name_of(export), "cuda_api_sum")
        .with_columns(named)
        .group_by("name")
        .agg(pl.col("calls", "total_ns").sum())
    )
    again = backtraces(Path(export.meta.path), tmp_path).with_columns(named)
    twice = again.group_by("name").agg(more=pl.len().cast(pl.Int64), more_ns=pl.col("ns").sum())
    once = expected.join(twice, on="name", how="left").select(
        "name",
        pl.col("calls") - pl.col("more").fill_null(0),
        pl.col("total_ns") - pl.col("more_ns").fill_null(0),
    )
    ours = (
        export.events.filter(pl.col("kind").is_in(("cuda_runtime", "cuda_driver")))
        .group_by(pl.col("name").cast(pl.String))
        .agg(calls=pl.len().cast(pl.Int64), total=pl.col("dur").sum())
    )
    assert rows(ours) == rows(once)
    assert (again.height > 0) == (name_of(export) == "saxpy_mpi_lazy_false")


def backtraces(path: Path, folder: Path) -> pl.DataFrame:
    """Name and duration of the rows that hold a backtrace, read with the standard library."""
    plain = folder / "plain.sqlite"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    query = """SELECT value, "end" - start FROM CUPTI_ACTIVITY_KIND_RUNTIME
        JOIN StringIds ON id = nameId WHERE eventClass = 67"""
    with contextlib.closing(sqlite3.connect(plain)) as connection:
        computed = connection.execute(query).fetchall()
    return pl.DataFrame(computed, schema={"name": pl.String, "ns": pl.Int64}, orient="row")


@every
def test_range_sums(export: Trace, shared: Path) -> None:
    """Like ``nvtx_sum``, without the details that ``emit_nvtx`` appends to names, and MPI calls."""
    named = pl.col("range").str.replace(r", (?:seq|op_id) = .*$", "")
    expected = (
        oracle(shared, name_of(export), "nvtx_sum")
        .filter(~pl.col("range").str.starts_with("MPI_"))
        .with_columns(named)
        .group_by("range", "domainId")
        .agg(pl.col("instances", "total_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max())
        .drop("domainId")
    )
    dur = pl.col("dur")
    ours = (
        export.events.filter(pl.col("kind") == "nvtx", dur.is_not_null())
        .group_by(pl.col("name").cast(pl.String), "category")
        .agg(instances=pl.len().cast(pl.Int64), total=dur.sum(), low=dur.min(), high=dur.max())
        .drop("category")
    )
    assert rows(ours) == rows(expected)


@every
def test_copy_sums(export: Trace, shared: Path) -> None:
    expected = oracle(shared, name_of(export), "cuda_gpu_mem_sum").drop_nulls("copyKind")
    dur = pl.col("dur")
    ours = (
        export.events.filter(pl.col("kind") == "gpu_memcpy")
        .group_by(pl.col("name").cast(pl.String))
        .agg(
            n=pl.len().cast(pl.Int64), total=dur.sum(), bytes=pl.col("bytes").sum(),
            low=dur.min(), high=dur.max(),
        )
    )  # fmt: skip
    assert rows(ours.drop("name")) == rows(expected.drop("copyKind", "srcKind", "dstKind"))
    directions = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
    expected_names = {directions[kind] for kind in expected["copyKind"]}
    assert {name.split()[1] for name in ours["name"]} == expected_names


def test_two_processes_are_two_ranks(shared: Path) -> None:
    trace = ta.read(shared / "data" / "nsys" / "mfu_2gpu_before.sqlite.gz")
    of = trace.events.filter(pl.col("kind").is_in(DEVICE_WORK)).group_by("rank", "pid").agg(
        pl.col("device").unique()
    )  # fmt: skip
    assert rows(of) == [(0, 144, [0]), (1, 145, [1])]
    # the export has all of it on device 0
    waits = trace.events.filter(pl.col("kind") == "cuda_sync").select("pid", "device").unique()
    assert rows(waits) == [(144, 0), (145, 1)]
    assert trace.issues.filter(pl.col("code") == "ranks-numbered")["severity"].to_list() == [
        "notice"
    ]


@pytest.mark.matrix
def test_baseline_gives_the_ratio_of_two_runs(shared: Path) -> None:
    """``mfu_2gpu_after`` against ``mfu_2gpu_before``: medians of all SendRecv kernels."""
    folder = shared / "data" / "nsys"
    after, before = (folder / f"mfu_2gpu_{which}.sqlite.gz" for which in ("after", "before"))
    result = ta.comm_outliers(after, baseline=before)
    medians = []
    for path in (after, before):
        computed = kernels(ta.read(path, kinds="kernel"))
        medians.append(computed.filter(pl.col("name").str.starts_with("nccl"))["dur"].median())
    table = result.baseline
    assert table is not None
    assert table["ratio"].to_list() == pytest.approx([medians[0] / medians[1]], rel=1e-6)  # type: ignore[operator]
    assert table["n"].to_list() == [62]


def without_overhead(export: Trace, gaps: pl.DataFrame) -> list[tuple[int, ...]]:
    """Gaps of the reference without profiler overhead, computed by a plain loop.

    nsys takes overhead between the first and the last operation for busy, as the reference's notes
    have it; its tables do so only where none of the overhead lies in a gap. Overhead of threads
    that never launch work does not delay it.
    """
    ends: dict[int, tuple[int, int]] = {}
    for pid, start, end in device_work(export).select("pid", "start", "end").iter_rows():
        first, last = ends.get(pid, (start, end))
        ends[pid] = min(first, start), max(last, end)
    work = export.events.filter(pl.col("device").is_not_null())["correlation"].drop_nulls()
    calls = export.events.filter(
        pl.col("tid").is_not_null(), pl.col("correlation").is_in(work.implode())
    )
    profiler = export.events.filter(
        pl.col("kind") == "overhead", pl.col("tid").is_in(calls["tid"].implode())
    ).select("pid", "ts", "dur")
    left = []
    for pid, device, start, end, _ in gaps.iter_rows():
        first, last = ends[pid]
        spans = sorted((ts, ts + dur) for p, ts, dur in profiler.iter_rows() if p == pid)
        since = start
        for lo, hi in spans:
            if first < lo and hi < last and lo < end and hi > since:
                left.append((pid, device, since, max(lo, since)))
                since = hi
        left.append((pid, device, since, max(end, since)))
    return [row for row in left if row[3] > row[2]]


@pytest.mark.sample(4, "least")
@every
@pytest.mark.parametrize("least", [500_000_000, 20_000_000, 1_000_000], ids="{}ns".format)
def test_gaps_by_process_are_those_of_nsys(export: Trace, shared: Path, least: int) -> None:
    """``gpu_gaps``, but for its limit of rows."""
    gaps = oracle(shared, name_of(export), "gpu_gaps_all")
    expected = [row for row in without_overhead(export, gaps) if row[3] - row[2] >= least]
    ours = ta.gpu_idle(export, by="process", min_gap_ns=least).gaps
    assert rows(ours.select("pid", "device", "start", "end")) == sorted(expected, key=str)
    if least == 500_000_000:
        plain = gaps.filter(pl.col("duration_ns") >= least)
        assert rows(ours.select("pid", "device", "start", "end")) == rows(plain.drop("duration_ns"))


@pytest.mark.sample(3)
@every
def test_all_gaps_and_overhead_are_the_idle_time(export: Trace, shared: Path) -> None:
    name = name_of(export)
    expected: dict[tuple[int, int], int] = {}
    for pid, device, start, end in without_overhead(export, oracle(shared, name, "gpu_gaps_all")):
        expected[pid, device] = expected.get((pid, device), 0) + end - start
    units = ta.gpu_idle(export, by="process").units
    idle = pl.col("end") - pl.col("start") - pl.col("busy_ns") - pl.col("profiler_overhead_ns")
    expected_names = units.select("pid", "device", idle.alias("idle")).iter_rows()
    assert {(pid, device): gaps for pid, device, gaps in expected_names} == expected
    busy = oracle(shared, name, "gpu_busy").select("pid", "deviceId", "busy_union_ns")
    assert rows(units.select("pid", "device", "busy_ns")) == rows(busy)
