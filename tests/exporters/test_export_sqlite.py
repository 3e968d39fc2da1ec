"""SQLite export: every value of every table in plain SQL, and the views."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, US, device, host, trace as traced
from hypothesis import given, settings, strategies as st
from sample_results import HOSTILE
from trace_rows import table
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import OutputError
from traceanalyzer.exporters import sqlite
from traceanalyzer.exporters.sqlite import NAMED, VIEWS, write_sqlite
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.trace import Meta, Trace

FIXTURES = Path(__file__).parents[2] / "fixtures"
FILES = (
    "nccl_8ranks/rank0.json.gz",
    "ddp_gloo_4ranks/rank0.json.gz",
    "py_spy/subprocesses.raw.txt",
    "nsys/training.sqlite",
    "nsys/tables.sqlite",
)
META = Meta("a.json", "chrome-trace")


def opened(trace: Trace, folder: Path) -> closing[sqlite3.Connection]:
    path = folder / "out.sqlite"
    with path.open("wb") as file:
        write_sqlite(trace, file)
    return closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True))


def values(connection: sqlite3.Connection, name: str, column: str) -> list[Any]:
    """A column of the schema, in the rows' order."""
    if column in ON_REQUEST:
        source = "events e LEFT JOIN arguments t ON t.event = e.id"
        query = f"SELECT t.{column} FROM {source} ORDER BY e.id"
    elif column in NAMED:
        source = f'"{name}" t LEFT JOIN names n ON n.id = t.{column}_id'
        query = f"SELECT n.name FROM {source} ORDER BY t.rowid"
    else:
        query = f'SELECT "{column}" FROM "{name}" ORDER BY rowid'
    return [value for (value,) in connection.execute(query)]


def expected(column: pl.Series) -> list[Any]:
    if column.dtype == pl.UInt64:
        return [n if n is None or n < 2**63 else n - 2**64 for n in column.to_list()]
    if column.dtype == pl.Float64:
        return [None if x is None or math.isnan(x) else x for x in column.to_list()]
    return column.to_list()


def assert_holds(connection: sqlite3.Connection, trace: Trace) -> None:
    for name, frame in trace.tables.items():
        for column in frame.columns:
            assert values(connection, name, column) == expected(frame[column]), (name, column)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FILES)
def test_every_value_of_every_table(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "_ROWS", 100)  # several batches
    monkeypatch.setattr(sqlite, "_TEXT_ROWS", 30)
    trace = ta.read(FIXTURES / name, columns=ON_REQUEST)
    with opened(trace, tmp_path) as connection:
        assert_holds(connection, trace)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        for view in VIEWS:
            connection.execute(f"SELECT * FROM {view}").fetchall()
    assert [path.name for path in tmp_path.iterdir()] == ["out.sqlite"]


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name",
    [
        "nsys/mfu_2gpu_before.sqlite.gz",
        "nsys/cloverleaf_4xa100.sqlite.gz",
        "chrome/kineto/b200_rank0of8_eager.json.gz",
    ],
)
def test_real_files(name, shared, tmp_path):
    trace = ta.read(shared / "data" / name, columns=("args",))
    with opened(trace, tmp_path) as connection:
        assert_holds(connection, trace)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_missing_values_are_null(tmp_path):
    trace = traced([device(GEMM, 1, None), host("cpu_op", "a", 0, 5)], rank=None)
    with opened(trace, tmp_path) as connection:
        result = connection.execute(
            "SELECT typeof(ts), typeof(dur), typeof(kind), typeof(rank), typeof(device) FROM events"
        ).fetchall()
    assert result == [
        ("integer", "integer", "text", "null", "null"),
        ("integer", "null", "text", "null", "integer"),
    ]


def test_addresses_beyond_the_largest_integer_show_their_bits(tmp_path):
    addresses = [2**63 - 1, 2**63, 2**64 - 1, None]
    rows = [{"ts": at, "kind": "alloc", "address": address} for at, address in enumerate(addresses)]
    with opened(Trace((META,), table("events", *rows)), tmp_path) as connection:
        result = connection.execute("SELECT address, printf('%x', address) FROM events").fetchall()
    assert result[:3] == [
        (2**63 - 1, "7fffffffffffffff"),
        (-(2**63), "8000000000000000"),
        (-1, "ffffffffffffffff"),
    ]
    assert result[3][0] is None


HOSTILE_SQL = (
    *HOSTILE,
    "'; DROP TABLE events; --",
    '"',
    "a\x00b",
    "name_id",
    "sqlite_master",
    "%s",
)


def test_names_hostile_to_sql_are_values(tmp_path):
    rows = [
        {"ts": at, "kind": "other", "name": name, "category": name, "args": name}
        for at, name in enumerate(HOSTILE_SQL)
    ]
    lanes = [{"pid": at, "label": name, "textual": False} for at, name in enumerate(HOSTILE_SQL)]
    meta = replace(META, path=HOSTILE_SQL[-6], host=HOSTILE_SQL[0], extra=HOSTILE_SQL[5])
    trace = Trace((meta,), table("events", *rows), lanes=table("lanes", *lanes))
    with opened(trace, tmp_path) as connection:
        assert_holds(connection, trace)
        assert connection.execute("SELECT path, host, extra FROM sources").fetchall() == [
            (HOSTILE_SQL[-6], HOSTILE_SQL[0], HOSTILE_SQL[5])
        ]
        result = [name for (name,) in connection.execute("SELECT name FROM event_summary")]
    assert sorted(result) == sorted(HOSTILE_SQL)


_id = st.none() | st.integers(-(2**63), 2**63 - 1)
_text = st.none() | st.text(max_size=5)
_rows = st.lists(
    st.fixed_dictionaries(
        {
            "ts": _id,
            "dur": _id,
            "kind": st.sampled_from(("kernel", "sample", "other")),
            "category": _text,
            "name": _text,
            "pid": _id,
            "address": st.none() | st.integers(0, 2**64 - 1),
            "weight": st.none() | st.floats(),
            "args": _text,
            "input_dims": _text,
            "input_types": _text,
            "concrete_inputs": _text,
        }
    ),
    max_size=9,
)


@settings(max_examples=25, deadline=None)
@given(rows=_rows)
def test_any_values(rows, tmp_path_factory):
    trace = Trace((META,), table("events", *rows))
    with opened(trace, tmp_path_factory.mktemp("any")) as connection:
        assert_holds(connection, trace)


def test_an_empty_trace(tmp_path):
    with opened(Trace((META,)), tmp_path) as connection:
        tables = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
        assert set(schema.TABLES) < tables
        assert connection.execute("SELECT COUNT(*) FROM events_readable").fetchone() == (0,)


# --- what the database says about itself ------------------------------------------------------


def test_database_describes_itself(tmp_path):
    trace = ta.read(FIXTURES / "nsys/training.sqlite")
    with opened(trace, tmp_path) as connection:
        about = dict(connection.execute("SELECT key, value FROM about"))
        assert (about["schema_version"], about["start_ns"]) == (schema.VERSION, 1_000_000)
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        recorded = connection.execute(
            "SELECT table_name, column_name FROM about_columns"
        ).fetchall()
        for name, columns in schema.TABLES.items():
            there = {row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')}
            on_request = {column.name for column in columns if column.on_request}
            assert there - {"id"} <= {c for t, c in recorded if t == name} - on_request
        source = connection.execute("SELECT format, world_size, host, weight_unit FROM sources")
        assert source.fetchall() == [("nsys-sqlite", 2, "node1", "samples")]
        devices = connection.execute("SELECT source, id, name FROM devices").fetchall()
    assert devices == [(0, 0, "NVIDIA H100 80GB HBM3"), (0, 1, "NVIDIA H100 80GB HBM3")]


def test_several_files_are_several_sources(tmp_path):
    ranks = ta.concat([traced([device(GEMM, 5, 1)], rank=rank) for rank in (0, 1)])
    with opened(ranks, tmp_path) as connection:
        assert connection.execute("SELECT id, path, rank FROM sources").fetchall() == [
            (0, "rank0.json", 0),
            (1, "rank1.json", 1),
        ]
        assert connection.execute("SELECT rank, COUNT(*) FROM events GROUP BY rank").fetchall() == [
            (0, 1),
            (1, 1),
        ]


@pytest.mark.parametrize(
    ("where", "index"),
    [
        ("ts BETWEEN 1 AND 2", "ix_events_ts"),
        ("name_id = 3", "ix_events_name_id"),
        ("kind = 'kernel' AND name_id = 3", "ix_events_kind_name_id_dur"),
        ("rank = 0 AND ts > 5", "ix_events_rank_ts"),
        ("correlation = 7", "ix_events_correlation"),
    ],
)
def test_common_filters_use_an_index(where, index, tmp_path):
    with opened(Trace((META,)), tmp_path) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN SELECT * FROM events WHERE {where}")
        assert f"USING INDEX {index} " in " ".join(row[3] for row in plan)


# --- views ------------------------------------------------------------------------------------

START = 10_000


def _launched() -> Trace:
    return traced(
        [
            host("cuda_runtime", "cudaLaunchKernel", START, 2 * US, correlation=1, pid=9),
            host("cuda_runtime", "cudaLaunchKernel", START, 9 * US, correlation=1, pid=8),
            device(GEMM, START + 5 * US, 10 * US, correlation=1, pid=9),
            device("tiny", START + 50 * US, 2 * US, correlation=2),
            device("tiny", START + 60 * US, 4 * US, correlation=3),
            device("endless", START + 70 * US, None),
        ],
        start_ns=START,
    )


def test_kernel_summary(tmp_path):
    with opened(_launched(), tmp_path) as connection:
        assert connection.execute("SELECT * FROM kernel_summary").fetchall() == [
            (GEMM, 1, 10_000, 0.625, 10_000.0, 10_000, 10_000),
            ("tiny", 2, 6_000, 0.375, 3_000.0, 2_000, 4_000),
            ("endless", 1, None, None, None, None, None),
        ]


def test_events_readable_count_from_the_start(tmp_path):
    lanes = table(
        "lanes",
        {"rank": 0, "pid": 9, "label": "python", "textual": False},
        {"rank": 1, "pid": 9, "label": "of another rank", "textual": False},
        {"rank": 0, "pid": 9, "tid": 1, "label": "main", "textual": False},
    )
    with opened(replace(_launched(), lanes=lanes), tmp_path) as connection:
        result = connection.execute(
            "SELECT start_s, dur_us, name, process, thread FROM events_readable "
            "WHERE kind = 'cuda_runtime' AND pid = 9"
        ).fetchall()
        later = connection.execute("SELECT MAX(start_s) FROM events_readable").fetchone()
    assert result == [(0.0, 2.0, "cudaLaunchKernel", "python", "main")]
    assert later == (70e-6,)


def test_launches_join_within_a_process(tmp_path):
    with opened(_launched(), tmp_path) as connection:
        result = connection.execute(
            "SELECT name, call_name, pid, call_s, call_us, to_start_us, dur_us FROM launches"
        ).fetchall()
    assert result == [(GEMM, "cudaLaunchKernel", 9, 0.0, 2.0, 5.0, 10.0)]


def test_collectives_readable(tmp_path):
    trace = ta.read(FIXTURES / FILES[0])
    recorded = trace.collectives["collective"].cast(pl.String).to_list()
    with opened(trace, tmp_path) as connection:
        rows = connection.execute(
            "SELECT collective, process_group, name FROM collectives_readable"
        )
        result = rows.fetchall()
    assert Counter(row[0] for row in result) == Counter(recorded)
    assert len(result) == trace.collectives.height > 0
    assert all(row[2] for row in result)


def test_counters_readable(tmp_path):
    trace = ta.read(FIXTURES / "nsys/tables.sqlite")
    with opened(trace, tmp_path) as connection:
        result = connection.execute("SELECT at_s, name, series, value FROM counters_readable")
        assert result.fetchall()[0] == (0.0, "SMs Active [Throughput %]", "GPU 1", 30.0)


def test_folded_stacks_are_those_of_the_file(tmp_path):
    trace = ta.read(FIXTURES / "py_spy/subprocesses.raw.txt")
    frames = trace.stacks.select("parent", pl.col("name").cast(pl.String)).rows()
    weights: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for leaf, weight in trace.events.select("stack", "weight").drop_nulls().rows():
        path, node = [], leaf
        while node is not None:
            node, name = frames[node]
            path.append(name)
        weights[";".join(reversed(path))] += weight
        functions[path[0]] += weight
    with opened(trace, tmp_path) as connection:
        folded = connection.execute("SELECT folded, SUM(weight) FROM folded_stacks GROUP BY folded")
        assert dict(folded.fetchall()) == weights
        sums = connection.execute("SELECT name, SUM(weight) FROM sampled_functions GROUP BY name")
        assert dict(sums.fetchall()) == functions


# --- the command ------------------------------------------------------------------------------


def test_convert_writes_the_database_atomically(tmp_path, run_cli):
    source, out = FIXTURES / FILES[0], tmp_path / "out.sqlite"
    assert run_cli("convert", source, "-o", out, "-q").returncode == 0
    before = out.read_bytes()
    refused = run_cli("convert", FIXTURES / FILES[3], "-o", out)
    assert refused.returncode == 1
    check_wording(refused.stderr)
    assert out.read_bytes() == before
    assert run_cli("convert", FIXTURES / FILES[3], "-o", out, "--force").returncode == 0
    with closing(sqlite3.connect(out)) as connection:
        assert connection.execute("SELECT format FROM sources").fetchall() == [("nsys-sqlite",)]
    assert [path.name for path in tmp_path.iterdir()] == ["out.sqlite"]


def test_database_is_not_written_to_a_device(tmp_path):
    (tmp_path / "out.sqlite").symlink_to("/dev/null")
    with raises_wording(OutputError):
        ta.convert(FIXTURES / FILES[0], tmp_path / "out.sqlite")


def test_sqlite_error_leaves_no_file(tmp_path):
    twice = table("stacks", {"id": 0, "name": "a"}, {"id": 0, "name": "b"})
    with raises_wording(OutputError):
        ta.convert(Trace((META,), stacks=twice), tmp_path / "a.db")
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_odd_characters(tmp_path):
    path = tmp_path / "a?mode=ro&x#%41 é.sqlite"
    ta.convert(FIXTURES / FILES[4], path)
    assert [result.name for result in tmp_path.iterdir()] == [path.name]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM events").fetchone() == (17,)


def test_the_queries_of_the_documentation_run(tmp_path):
    page = (FIXTURES.parent / "docs/convert.md").read_text(encoding="utf-8")
    block = page.split("```sql\n", 1)[1].split("```", 1)[0]
    queries = [query for query in block.split(";\n") if query.strip()]
    assert len(queries) == 6
    filled = set()
    for name in (FILES[0], FILES[4]):
        trace = ta.read(FIXTURES / name, columns=ON_REQUEST)
        with opened(trace, tmp_path) as connection:
            filled |= {query for query in queries if connection.execute(query).fetchall()}
    assert filled == set(queries)


def test_the_documentation_names_every_view():
    page = (FIXTURES.parent / "docs/convert.md").read_text(encoding="utf-8")
    rows = page.split("| view |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    assert {row.split("`")[1] for row in rows} == set(VIEWS)
