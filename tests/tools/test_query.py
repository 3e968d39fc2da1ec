"""SQL on the tables: right rows, nothing but SELECT, one-line errors."""

from __future__ import annotations

import builtins
import csv
import io
import json
import sys

import polars as pl
import pytest
from conftest import ROOT
from hypothesis import given, settings, strategies as st

import traceanalyzer as ta
from traceanalyzer.cli.main import status
from traceanalyzer.errors import OptionError
from traceanalyzer.tools import query

RANKS = ROOT / "fixtures/nccl_8ranks"
RANK0 = RANKS / "rank0.json.gz"
TRACE = ta.read(RANK0)


def rows(sql: str, source=TRACE) -> list[tuple]:
    return ta.query(source, sql).to_polars().rows()


def by_name(trace: ta.Trace) -> list[tuple]:
    kernels = trace.events.filter(pl.col("kind") == "kernel")
    sums = kernels.group_by("name").agg(n=pl.len(), dur=pl.col("dur").sum())
    return sorted(sums.with_columns(pl.col("name").cast(pl.String)).rows())


BY_NAME = "select name, count(*) as n, sum(dur) as s from events where kind='kernel' group by name"


def test_all_ranks_equal_polars():
    traces = [ta.read(path) for path in sorted(RANKS.glob("rank*.json.gz"))]
    assert sorted(rows(BY_NAME, RANKS)) == by_name(ta.concat(traces))


@pytest.mark.parametrize(
    "name",
    ["chrome/kineto/nccl_a100_rank0of2", "nsys/power_iteration_t4"],
)
def test_real_files_equal_polars(shared, name):
    folder = shared / "data"
    path = next(p for p in sorted((folder / name).parent.glob(folder.joinpath(name).name + "*")))
    path = path if path.is_file() else next(p for p in sorted(path.rglob("*.json*")))
    expected = by_name(ta.read(path))
    assert expected
    assert sorted(rows(BY_NAME, path)) == expected


@pytest.mark.matrix
def test_collectives_join_events_of_their_rank():
    both = "select e.rank, c.rank, e.dur from events as e join collectives as c on e.event=c.event"
    result_rows = rows(both, RANKS)
    assert result_rows
    assert all(left == right for left, right, _ in result_rows)
    total = "select rank, count(*) from collectives group by rank order by rank"
    assert [rank for rank, _ in rows(total, RANKS)] == list(range(8))


def test_rank_and_window():
    sql = "select distinct rank from events"
    assert ta.query(RANKS, sql, rank=3).to_polars().rows() == [(3,)]
    part = ta.query(RANK0, "select count(*) from events", until_ns=20_000_000)
    assert part.to_polars().rows() == [(TRACE.between(None, 20_000_000).events.height,)]


def test_columns_on_request():
    assert rows("select count(args) from events", RANK0)[0][0] > 0
    expected = ta.read(RANK0).counters.height
    assert rows("select count(*) from counters", RANK0) == [(expected,)]
    assert rows("select sum(bytes) from events", RANK0) == [(TRACE.events["bytes"].sum(),)]
    assert "correlation" in ta.query(RANK0, "select * from events limit 1").to_polars().columns


def test_text_matches_patterns():
    result_rows = rows("select distinct name from events where name like 'ProfilerStep%'")
    names = TRACE.events["name"].cast(pl.String)
    expected = {name for name in names if name and name.startswith("ProfilerStep")}
    assert {name for (name,) in result_rows} == expected


def test_method_and_comments():
    sql = "select /* a ; b */ 1 as one -- DROP TABLE events\n from events limit 1;"
    assert TRACE.query(sql).to_polars().rows() == [(1,)]
    quoted = """select ''' from read_csv(''' as "drop" from events limit 1"""
    assert rows(quoted) == [("' from read_csv('",)]


REFUSED = [
    "select * from read_csv('F')",
    "select * from read_parquet('F')",
    "select * from READ_JSON('F')",
    "select * from read_ipc('F')",
    "select * from scan_csv('F')",
    "select * from scan_parquet('F')",
    "select * from \"read_csv\"('F')",
    "select * from \"READ_csv\" /* x */ ('F')",
    "select * from read_csv -- x\n('F')",
    "select * from `read_csv`('F')",
    "select read_csv('F')",
    "with x as (select * from read_csv('F')) select * from x",
    "select * from events e join read_csv('F') f on e.ts=f.ts",
    "select * from events where ts in (select * from read_csv('F'))",
    "select * from pl.read_csv('F')",
    "select (select count(*) from read_csv('F'))",
    "select 1 union all select * from read_csv('F')",
    "select * from 'F'",
    'select * from "F"',
    "select * from F.csv",
    "select * from events join 'F' on true",
    "select 1 from events, 'F'",
    "select * from /etc/passwd",
    "copy events to 'F'",
    "attach 'F'",
    "create table t as select 1",
    "drop table events",
    "delete from events",
    "insert into events values (1)",
    "update events set ts=1",
    "truncate table events",
    "pragma x",
    "set x=1",
    "install httpfs",
    "load httpfs",
    "show tables",
    "describe events",
    "explain select 1",
    "from events",
    "values (1)",
    "table events",
    "select 1; select 2",
    "select 1; drop table events",
    "select 1 /* ; */ ; drop table events",
    "select 1 --x\n; drop table events",
    "/* a */ drop table events",
    "-- a\ndrop table events",
    "with x as (delete from events) select 1",
    "with x as (select 1) delete from events",
    "select * into t from events",
    "select '\\' from read_csv('F')",
    "select E'\\'' from events",
    "select $$a$$ from events",
    "select 1 /* open",
    "select 'open",
    "select /*+ hint */ x from events cross join lanes",
    "select 1 from events, lanes",
    "select * from unnest([1])",
    "select columns('.*') from events",
    "with recursive t as (select 1) select 1",
    "",
    ";",
    "select",
    "with",
    "(select 1)",
    "select " + "(" * 50 + "1" + ")" * 50,
    "select " + "1+" * 900 + "1; x",
    "select " + "1+" * 9000 + "1",
    "select '" + "x" * 30_000 + "'",
    "select \x00",
    'select U&"\\0041" from events',
]


@pytest.mark.parametrize("sql", REFUSED, ids=lambda sql: sql[:40])
def test_everything_else_is_refused(sql, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\nsecret,1\n")
    with pytest.raises(OptionError) as caught:
        ta.query(TRACE, sql.replace("F", str(secret)))
    assert "\n" not in str(caught.value)
    assert "secret,1" not in str(caught.value)
    assert secret.read_text() == "a,b\nsecret,1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_durations_are_text():
    assert rows("select interval '90 minutes' as x from events limit 1") == [("PT1H30M",)]
    (found,) = rows("select ts as t, cast(ts as interval) as x from events limit 1")
    assert isinstance(found[1], str)


@pytest.mark.matrix
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory")
@pytest.mark.parametrize(
    "sql",
    [
        "select lpad(name, 2000000000, 'x') as n from events",
        (
            "select count(*) as n from events a join events b on a.kind = b.kind "
            "join events c on c.kind = b.kind join events d on d.kind = c.kind "
            "join events e on e.kind = d.kind join events f on f.kind = e.kind"
        ),
    ],
)
def test_a_query_that_inflates_the_data_is_stopped(sql, monkeypatch):
    monkeypatch.setattr(query, "_MEMORY_BYTES", 1 << 29)
    monkeypatch.setattr(query, "_SECONDS", 10)
    with pytest.raises(OptionError, match="stopped"):
        rows(sql)


@pytest.mark.matrix
def test_queries_with_limits_give_the_same_rows_and_errors():
    assert rows("select lpad('a', 3, 'x') as n from events limit 1") == [("xxa",)]
    with pytest.raises(OptionError, match="unknown column"):
        rows("select lpad(nothing, 3, 'x') as n from events")


def test_long_expressions_do_not_exhaust_the_stack():
    assert rows("select " + "1+" * 400 + "1 as n from events limit 1") == [(401,)]


def test_errors_name_tables_and_columns():
    with pytest.raises(OptionError, match="unknown table 'evts'; tables: events, stacks"):
        rows("select 1 from evts")
    with pytest.raises(OptionError, match="unknown column 'nme'; columns of events: event, ts"):
        rows("select nme from events")
    with pytest.raises(OptionError, match=r"cannot be executed: [^\n]*$"):
        rows("select name from events where")


_PIECES = st.sampled_from(
    [
        "select",
        "from",
        "events",
        "where",
        "name",
        "dur",
        "(",
        ")",
        ",",
        "*",
        "'",
        '"',
        ";",
        "--",
        "/*",
        "*/",
        "with",
        "as",
        "read_csv(",
        "'x'",
        '"a"',
        "group",
        "by",
        "sum(",
        "1",
        "0",
        "/",
        "=",
        "join",
        "on",
        "lanes",
        "using",
        "order",
        "limit",
        "case",
        "when",
        "end",
        "over",
        "(",
        "partition",
        "::",
        "int",
    ]
)


def message_of(trace: ta.Trace, sql: str) -> str:
    """Return the error of a query, or an empty text."""
    try:
        ta.query(trace, sql)
    except OptionError as error:
        return str(error)
    return ""


@pytest.mark.matrix
@settings(max_examples=100)
@given(st.one_of(st.text(max_size=60), st.lists(_PIECES, max_size=12).map(" ".join)))
def test_any_text_gives_rows_or_one_line(text):
    small = TRACE.between(0, 10_000)
    opened: list[object] = []
    messages: list[str] = []
    real = builtins.open
    builtins.open = lambda *args, **more: opened.append(args) or real(*args, **more)
    try:
        for sql in (text, f"select {text}", f"select * from {text}"):
            messages.append(message_of(small, sql))
    finally:
        builtins.open = real
    assert opened == []
    assert [one for one in messages if len(one.splitlines()) > 1] == []


@pytest.mark.parametrize("form", ["table", "md", "csv", "json", "html", "sqlite"])
def test_command_writes_every_format(form, tmp_path):
    out = tmp_path / "out"
    sql = "select name, cast(dur as varchar) as d, ts from events limit 3"
    assert status(["query", str(RANK0), sql, "--to", form, "-o", str(out), "-q"]) == 0
    assert out.stat().st_size
    if form == "json":
        assert len(json.loads(out.read_text())["rows"]) == 3


ODD_NAMES = [
    'select name, kind as "NAME", rank as "Name" from events',
    """select name as "=cmd|x", kind as "'=cmd|x" from events""",
    'select name as "x_bytes", kind as "x_ns", name is null as "x_frac" from events',
    'select 1/0 as "x_ns", -1/0 as "y_ns", 0/0 as "x_bytes", -5 as "y_bytes" from events',
]


@pytest.mark.sample(5, "form")
@pytest.mark.parametrize("form", ["table", "md", "csv", "json", "sqlite", "html"])
@pytest.mark.parametrize("sql", ODD_NAMES)
def test_any_name_and_value_can_be_written(sql, form, tmp_path, capfd):
    """Names in another case, formulas as names, texts and infinity with the name of a time."""
    path = tmp_path / "rows"
    assert status(["query", str(RANK0), f"{sql} limit 2", "--to", form, "-qo", str(path)]) == 0
    assert capfd.readouterr().err == ""
    if form == "csv":
        head, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
        assert len(lines) == 2
        assert not any(name.startswith("=") for name in head)


def test_command_refuses_in_one_line(capfd):
    assert status(["query", str(RANK0), "select * from read_csv('/etc/passwd')"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
