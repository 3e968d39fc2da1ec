"""Exports of nsys of type ``parquetdir`` and ``arrowdir``: folders with a file for each table."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.analyzers import registry
from traceanalyzer.errors import MissingData, UnknownFormat
from traceanalyzer.parsers.source import size_of
from traceanalyzer.render import render

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRAINING, TABLES = (FIXTURES / "nsys" / f"{name}.sqlite" for name in ("training", "tables"))
KERNEL, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"
MS = 1_000_000
SELECTIONS = {
    "all": {},
    "kernels and arguments": {"kinds": "kernel", "columns": ["args"]},
    "names": {"kinds": (), "names": "GEMM".lower()},
    "arguments": {"columns": ["args"]},
    "windows": {"windows": [(5 * MS, 6 * MS), (20 * MS, 21 * MS)]},
}


@pytest.fixture(scope="module")
def write():
    sys.path.insert(0, str(FIXTURES))
    import nsys_folder

    sys.path.remove(str(FIXTURES))
    return nsys_folder.write


@pytest.fixture(scope="module")
def folder(write, tmp_path_factory) -> Path:
    return write(TRAINING, tmp_path_factory.mktemp("nsys") / "training_pqtdir")


@pytest.fixture
def damaged(folder, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(folder, tmp_path / "run_pqtdir"))


def assert_same(trace: ta.Trace, expected: ta.Trace) -> None:
    assert replace(trace.meta, path="") == replace(expected.meta, path="")
    for name, table in expected.tables.items():
        texts = pl.col(pl.Categorical, pl.Enum).cast(pl.String)
        assert_frame_equal(trace.tables[name].with_columns(texts), table.with_columns(texts))


@pytest.mark.parametrize("name", SELECTIONS)
def test_same_trace_as_the_database(name, folder):
    expected = ta.read(TRAINING, **SELECTIONS[name])
    assert expected.events.height
    assert_same(ta.read(folder, **SELECTIONS[name]), expected)


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
def test_same_trace_in_every_form(form, write, tmp_path):
    assert_same(ta.read(write(TABLES, tmp_path / "tables", form)), ta.read(TABLES))


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*(entry.name for entry in registry.public()), "diagnose"])
def test_same_answer_of_every_command(name, folder):
    def answer(path: Path) -> str:
        paths = (path, path) if name in ("diff", "memory_diff") else (path,)
        try:
            text = render(getattr(ta, name)(*paths), "json", top=None).decode()
        except (MissingData, ta.TraceAnalyzerError) as error:
            text = f"{type(error).__name__}: {error}"
        return text.replace(str(path), "PATH").replace(path.name, "PATH")

    assert answer(folder) == answer(TRAINING)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["mfu_2gpu_before", "saxpy_mpi_lazy_false", "nvtx_only_2022"])
def test_same_trace_of_a_recording(name, shared, write, tmp_path):
    import gzip

    packed = shared / "data" / "nsys" / f"{name}.sqlite.gz"
    database = tmp_path / f"{name}.sqlite"
    database.write_bytes(gzip.decompress(packed.read_bytes()))
    assert_same(ta.read(write(database, tmp_path / "folder")), ta.read(database))


def test_one_input_for_each_folder(write, folder, tmp_path):
    for rank in (0, 1):
        write(TABLES, tmp_path / f"rank{rank}_pqtdir")
    (tmp_path / "rank0_pqtdir" / "other.json").write_text('{"traceEvents": []}')
    inputs, skipped = ta.find_inputs(tmp_path)
    assert [Path(path).relative_to(tmp_path).as_posix() for path in inputs] == [
        "rank0_pqtdir",
        "rank0_pqtdir/other.json",
        "rank1_pqtdir",
    ]
    assert skipped == []
    assert size_of(inputs[0]) == sum(
        path.stat().st_size for path in Path(inputs[0]).glob("*.parquet")
    )


def test_forms_of_one_recording_count_once(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run_pqtdir")
    (tmp_path / "run.nsys-rep").write_bytes(b"NVIDIA report")
    assert ta.find_inputs(tmp_path)[0] == [str(tmp_path / "run_pqtdir")]
    shutil.copy(TRAINING, tmp_path / "run.sqlite")
    inputs, skipped = ta.find_inputs(tmp_path)
    assert inputs == [str(tmp_path / "run.sqlite")]
    assert {Path(path).name for path, _ in skipped} == {"run_pqtdir", "run.nsys-rep"}


def lost(trace: ta.Trace) -> list[tuple[str, int, str | None]]:
    issues = trace.issues.filter(pl.col("severity") == "data_loss")
    return issues.select("code", "count", "first").rows()


def test_a_damaged_table_costs_only_this_table(damaged):
    file = damaged / f"{KERNEL}.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    trace = ta.read(damaged)
    assert ("unreadable-rows", 1, f"{KERNEL}, row 0") in lost(trace)
    whole = ta.read(TRAINING).events
    assert trace.events.height == whole.filter(pl.col("kind") != "kernel").height


def test_damage_costs_a_group_of_rows(damaged):
    file = damaged / f"{KERNEL}.parquet"
    table = pq.read_table(file)
    pq.write_table(table, file, row_group_size=64, compression="zstd", use_dictionary=False)
    metadata = pq.read_metadata(file)
    data = bytearray(file.read_bytes())
    first = metadata.row_group(1).column(0).data_page_offset
    data[first : first + 200] = b"\xff" * 200
    file.write_bytes(data)
    trace = ta.read(damaged)
    assert trace.events.filter(pl.col("kind") == "kernel").height == table.num_rows - 64
    assert lost(trace) == [("unreadable-rows", 64, f"{KERNEL}, row 64")]


def test_no_table_can_be_read(damaged):
    for path in damaged.iterdir():
        path.write_bytes(b"PAR1")
    with raises_wording(UnknownFormat):
        ta.read(damaged)


def test_a_single_table_is_no_input(folder):
    with raises_wording(UnknownFormat):
        ta.read(folder / "StringIds.parquet")


def changed(path: Path, name: str, column: pa.Array | list) -> None:
    table = pq.read_table(path)
    at = table.schema.get_field_index(name)
    pq.write_table(table.set_column(at, name, pa.array(column)), path)


WRONG = {
    "texts": (["1"], "wrong-type"),
    "fractions": ([1.5], "wrong-type"),
    "nothing": ([None], "no-time"),
    "lists": ([[1, 2]], "unreadable-rows"),
    "bytes": ([b"\xff"], "wrong-type"),
}


@pytest.mark.parametrize("name", WRONG)
def test_columns_of_other_types(name, damaged):
    values, code = WRONG[name]
    path = damaged / f"{KERNEL}.parquet"
    rows = pq.read_metadata(path).num_rows
    changed(path, "start", values * rows)
    trace = ta.read(damaged)
    assert schema.check(trace.tables) == []
    assert trace.events.filter(pl.col("kind") == "kernel").is_empty()
    assert (code, rows) in [row[:2] for row in lost(trace)]


def test_names_of_other_types(damaged):
    path = damaged / "StringIds.parquet"
    rows = pq.read_metadata(path).num_rows
    changed(path, "value", pa.array([1] * rows, pa.duration("ns")))
    trace = ta.read(damaged)
    assert ("wrong-type", rows, "StringIds") in lost(trace)
    assert trace.events.filter(pl.col("kind") == "kernel")["name"].null_count() > 0
    changed(path, "value", pa.array(["name"] * rows).dictionary_encode())
    kernels = ta.read(damaged, kinds="kernel").events
    assert kernels["name"].cast(pl.String).unique().to_list() == ["name"]


def test_texts_and_ids_of_other_machines(write, tmp_path):
    """Names in the encoding of the machine, and ids above Int64, which SQLite has as negative."""
    database = tmp_path / "run.sqlite"
    shutil.copy(TRAINING, database)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "UPDATE StringIds SET value = CAST(x'D6D0B9FA' AS TEXT) WHERE id ="
            f" (SELECT demangledName FROM {KERNEL} LIMIT 1)"
        )
        for table, column in ((KERNEL, "globalPid"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid")):
            connection.execute(f"UPDATE {table} SET {column} = {column} | (1 << 63)")
        connection.commit()
    expected = ta.read(database)
    assert any("\ufffd" in name for name in expected.events["name"].cast(pl.String).drop_nulls())
    assert_same(ta.read(write(database, tmp_path / "run")), expected)


def test_a_table_with_more_rows_than_its_bytes_can_hold(damaged):
    path = damaged / f"{NVTX}.parquet"
    rows = 5_000_000
    pq.write_table(pa.table({"start": pa.array([1] * rows, pa.int64())}), path)
    trace = ta.read(damaged)
    assert ("unreadable-rows", 1, f"{NVTX}, row 0") in lost(trace)


def test_json_of_the_command_line(folder, run_cli):
    done = run_cli("kernels", folder, "--to", "json")
    assert json.loads(done.stdout)["busy_ns"] == ta.kernels(TRAINING).busy_ns
