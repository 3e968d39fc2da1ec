"""Damaged and hostile databases: partial reads, no code executed."""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import InputError, MalformedInput, UnknownFormat
from traceanalyzer.parsers.sqlite import database as database_module
from traceanalyzer.render import render

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRAINING = FIXTURES / "nsys" / "training.sqlite"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copy(TRAINING, tmp_path / "copy.sqlite"))


def change(path: Path, *statements: str) -> None:
    """Run SQL on a database as somebody might who means harm."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def issues(trace: ta.Trace) -> dict[str, int]:
    read_trace = trace.issues.filter(pl.col("severity").is_in(("data_loss", "error")))
    return dict(read_trace.group_by("code").agg(pl.col("count").sum()).iter_rows())


def kernels(trace: ta.Trace) -> int:
    return trace.events.filter(pl.col("kind") == "kernel").height


def answer(path: Path, to: Path) -> None:
    """What ``kernels --to sqlite`` writes."""
    to.write_bytes(render(ta.kernels(path), "sqlite"))


def test_truncated_export_is_read_partially(copy):
    """The way to a table's last row leads through the end of the file, which is not there."""
    change(copy, *[f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL}"] * 4)
    whole = ta.read(copy, kinds=["kernel"]).events
    for share in (0.95, 0.8):
        os.truncate(copy, int(copy.stat().st_size * share))
        trace = ta.read(copy, kinds=["kernel"])
        assert 0 < trace.events.height < whole.height
        assert {"truncated", "unreadable-rows"} <= issues(trace).keys()
        key = ["ts", "dur", "name", "device", "stream"]
        there = trace.events.group_by(key).len().join(whole.group_by(key).len(), on=key)
        assert there["len"].sum() == trace.events.height
        assert (there["len"] <= there["len_right"]).all()


def test_damaged_first_page_loses_its_rows(copy):
    change(copy, *[f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL}"] * 2)
    whole = ta.read(copy, kinds=["kernel"]).events
    with closing(sqlite3.connect(copy)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        root_row = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (KERNEL,)
        )
        (page,) = root_row.fetchone()
    content = copy.read_bytes()
    while (
        content[(page - 1) * size] == 5
    ):  # it holds numbers of other pages: down to the first rows
        at = (page - 1) * size
        cell = at + int.from_bytes(content[at + 12 : at + 14])
        page = int.from_bytes(content[cell : cell + 4])
    with copy.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    trace = ta.read(copy, kinds=["kernel"])
    lost = issues(trace)["unreadable-rows"]
    assert 0 < lost < whole.height / 2
    assert trace.events.height == whole.height - lost


@pytest.mark.sample(4)
@pytest.mark.parametrize("rank", [(1 << 63) - 1, 1 << 31, -1, -(1 << 63)])
def test_ranks_that_no_job_has(copy, rank):
    """Ranks out of range are ignored in every table."""
    tid = "(SELECT globalTid FROM NVTX_EVENTS WHERE globalTid IS NOT NULL LIMIT 1)"
    change(copy, "CREATE TABLE MPI_RANKS (globalTid INTEGER, rank INTEGER)")
    plain = ta.read(copy)
    change(copy, f"INSERT INTO MPI_RANKS SELECT {tid}, {rank}")
    assert ta.read(copy).events.equals(plain.events)
    change(copy, "DELETE FROM MPI_RANKS", f"INSERT INTO MPI_RANKS SELECT {tid}, 7")
    assert 7 in ta.read(copy).events["rank"]


def test_text_that_is_not_utf8(copy):
    change(
        copy, "UPDATE StringIds SET value = CAST(x'4d61ff41' AS TEXT) WHERE value LIKE 'void at%'"
    )
    names = ta.read(copy, kinds="kernel").events["name"].unique().cast(pl.String).to_list()
    assert "Ma\ufffdA" in names


def test_nulls_everywhere(copy):
    with closing(sqlite3.connect(copy)) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({KERNEL})")]
        sql = connection.execute(
            "SELECT sql FROM sqlite_master WHERE name = ?", [KERNEL]
        ).fetchone()
    loose = sql[0].replace(" NOT NULL", "")
    change(copy, f"UPDATE sqlite_master SET sql = '{loose}' WHERE name = '{KERNEL}'")
    change(copy, f"INSERT INTO {KERNEL} VALUES ({', '.join(['NULL'] * len(columns))})")
    trace = ta.read(copy)
    assert issues(trace) == {"no-time": 1}
    assert kernels(trace) == 192
    assert schema.check(trace.tables) == []


def test_values_of_other_types(copy):
    change(
        copy,
        f"UPDATE {KERNEL} SET streamId = 'seven' WHERE rowid = 3",
        f"UPDATE {KERNEL} SET demangledName = x'00ff' WHERE rowid = 4",
        f"UPDATE {KERNEL} SET correlationId = 1.5 WHERE rowid = 5",
    )
    trace = ta.read(copy)
    assert issues(trace) == {"wrong-type": 3}
    rows = trace.events.filter(pl.col("kind") == "kernel")
    assert rows["stream"].null_count() == rows["name"].null_count() == 1
    assert rows["correlation"].null_count() == 1


def test_a_view_named_like_a_table_is_not_read(copy):
    change(
        copy,
        "ALTER TABLE NVTX_EVENTS RENAME TO mine",
        "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(x) AS"
        " (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start FROM n",
    )
    trace = ta.read(copy)
    assert "nvtx" not in trace.events["kind"].cast(pl.String)
    assert kernels(trace) == 192


def test_a_table_of_work_that_is_a_view_is_reported(copy):
    change(
        copy, f"ALTER TABLE {KERNEL} RENAME TO mine", f"CREATE VIEW {KERNEL} AS SELECT * FROM mine"
    )
    missing = ta.read(copy).issues.filter(code="missing-table")
    assert missing.select("severity", "first").rows() == [
        ("data_loss", f"{KERNEL} is a view or virtual table")
    ]


def test_missing_names_are_reported(copy):
    change(copy, "DROP TABLE StringIds")
    trace = ta.read(copy)
    assert trace.issues.filter(code="missing-table")["severity"].to_list() == ["data_loss"]
    assert "None" not in ta.kernels(trace).verdict


def test_a_virtual_table_is_not_opened(copy):
    change(copy, "CREATE VIRTUAL TABLE OSRT_API2 USING fts5(start, name)")
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET name = 'GPU_METRICS' WHERE name = 'OSRT_API2'")
        connection.commit()
    assert kernels(ta.read(copy)) == 192


def test_triggers_and_computed_columns_do_nothing(copy, tmp_path):
    change(
        copy,
        f"CREATE TRIGGER t AFTER INSERT ON {KERNEL} BEGIN DELETE FROM StringIds; END",
        f"ALTER TABLE {KERNEL} ADD COLUMN mine AS (load_extension('/tmp/no.so'))",
    )
    assert kernels(ta.read(copy)) == 192


def test_computed_column_is_not_read(copy):
    """A generated column is computed when it is read, so it is not."""
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("DROP TABLE OSRT_API")
        connection.execute(
            "CREATE TABLE OSRT_API (start, end, globalTid, nameId AS (length(zeroblob(1 << 20))))"
        )
        connection.execute("INSERT INTO OSRT_API VALUES (1, 2, 3)")
        connection.commit()
    trace = ta.read(copy)
    assert kernels(trace) == 192
    assert issues(trace) == {"missing-column": 1}


def test_a_huge_text_is_not_read(copy):
    change(
        copy,
        "UPDATE StringIds SET value = CAST(zeroblob(40000000) AS TEXT) WHERE value LIKE 'void at%'",
    )
    names = ta.read(copy, kinds="kernel").events["name"].unique().cast(pl.String)
    assert "(text of 40000000 bytes)" in names


def test_table_name_that_is_not_utf8(copy):
    data = copy.read_bytes()
    copy.write_bytes(
        data.replace(b'CREATE TABLE "GPU', b'CREATE TABLE "\xff\xfe\xfd').replace(
            b"OSRT_API", b"OSRT\xff\xffPI"
        )
    )
    trace = ta.read(copy)
    assert kernels(trace) == 192
    assert "osrt" not in trace.events["kind"].cast(pl.String)


def test_far_apart_row_ids(copy):
    change(
        copy,
        f"UPDATE {KERNEL} SET rowid = -9223372036854775808 WHERE rowid = 1",
        f"UPDATE {KERNEL} SET rowid = 9223372036854775807 WHERE rowid = 2",
    )
    assert kernels(ta.read(copy)) == 192


def test_column_called_rowid(copy):
    change(copy, f"ALTER TABLE {KERNEL} ADD COLUMN rowid INTEGER DEFAULT 7")
    assert kernels(ta.read(copy)) == 192


def test_a_table_without_row_ids(copy):
    change(
        copy,
        "DROP TABLE StringIds",
        "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT) WITHOUT ROWID",
    )
    trace = ta.read(copy)
    assert kernels(trace) == 192
    assert trace.events.filter(pl.col("kind") == "kernel")["name"].null_count() == 192


@pytest.mark.parametrize("key", ["correlationId", "start, correlationId"])
def test_rows_of_a_table_without_row_ids_are_read(key: str, copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({KERNEL})")]
        kept = len({*connection.execute(f"SELECT {key} FROM {KERNEL}")})
    change(
        copy,
        f"ALTER TABLE {KERNEL} RENAME TO before",
        f"CREATE TABLE {KERNEL} ({', '.join(f'{c} INTEGER' for c in columns)}, "
        f"PRIMARY KEY ({key})) WITHOUT ROWID",
        f"INSERT OR IGNORE INTO {KERNEL} SELECT * FROM before",
        "DROP TABLE before",
    )
    trace = ta.read(copy)
    assert kernels(trace) == kept > 0
    assert "unreadable-rows" not in issues(trace)


def test_a_table_that_lacks_a_column(copy):
    change(copy, f"ALTER TABLE {KERNEL} RENAME COLUMN deviceId TO gpu")
    trace = ta.read(copy)
    assert issues(trace) == {"missing-column": 1}
    assert kernels(trace) == 0


@pytest.mark.parametrize("table", ["KERNEL", "MEMCPY", "MEMSET"])
def test_device_work_without_correlation_is_read(table: str, copy: Path) -> None:
    columns = ["ts", "dur", "kind", "name", "device", "stream"]
    kind = "kernel" if table == "KERNEL" else f"gpu_{table.lower()}"
    before = ta.read(copy)
    whole = before.events.cast({"name": pl.String, "kind": pl.String})
    change(copy, f"ALTER TABLE CUPTI_ACTIVITY_KIND_{table} DROP COLUMN correlationId")
    trace = ta.read(copy)
    other = trace.events.cast({"name": pl.String, "kind": pl.String})
    assert issues(trace) == {"missing-column": 1}
    assert "launch calls" in trace.issues["first"][0]
    ours = pl.col("kind") == kind
    assert other.filter(ours).select(columns).equals(whole.filter(ours).select(columns))
    assert other.filter(ours)["correlation"].null_count() == whole.filter(ours).height > 0
    others = whole.filter(~ours)["correlation"]
    assert other.filter(~ours)["correlation"].equals(others)  # the other tables keep theirs
    assert ta.gpu_idle(trace).busy_ns == ta.gpu_idle(before).busy_ns > 0


# --- damage ----------------------------------------------------------------------------------


def test_damaged_pages_lose_only_their_rows(copy, monkeypatch):
    monkeypatch.setattr(database_module, "_SMALLEST", 1)
    data = bytearray(copy.read_bytes())
    with closing(sqlite3.connect(copy)) as connection:
        try:
            pages = connection.execute(
                "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", [KERNEL]
            ).fetchall()
        except sqlite3.OperationalError:
            pytest.skip("this SQLite has no dbstat")
    first = (pages[2][0] - 1) * 1024
    data[first : first + 1024] = b"\xff" * 1024
    copy.write_bytes(data)
    trace = ta.read(copy)
    lost = issues(trace)["unreadable-rows"]
    assert 0 < lost < 40
    assert kernels(trace) + lost == 192
    assert schema.check(trace.tables) == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_truncated_export(copy, share):
    data = TRAINING.read_bytes()
    copy.write_bytes(data[: int(len(data) * share)])
    trace = ta.read(copy)
    assert issues(trace)["truncated"] == 1
    assert schema.check(trace.tables) == []
    assert trace.events.height < ta.read(TRAINING).events.height


def test_truncated_compressed_export(tmp_path):
    packed = gzip.compress(TRAINING.read_bytes())
    cut = tmp_path / "cut.sqlite.gz"
    cut.write_bytes(packed[: len(packed) * 2 // 3])
    trace = ta.read(cut)
    assert {"damaged-file", "truncated"} <= issues(trace).keys()
    assert trace.events.height > 0


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"SQLite format 3\0" + b"StringIds" * 200, MalformedInput, "not an SQLite database"),
        (os.urandom(8192), UnknownFormat, "not an SQLite database.*encrypted"),
    ],
    ids=["header only", "encrypted"],
)
def test_file_that_is_not_a_database(tmp_path, data, error, text):
    path = tmp_path / "x.sqlite"
    path.write_bytes(data)
    with pytest.raises(error, match=text):
        ta.read(path)


def test_another_database(tmp_path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (name)")
    with raises_wording(UnknownFormat):
        ta.read(path)
    with raises_wording(UnknownFormat):
        ta.read(path, format="nsys-sqlite")


def test_truncated_database_without_tables_of_an_export(tmp_path):
    path = tmp_path / "cut.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (name)")
        connection.execute("INSERT INTO customers VALUES (zeroblob(50000))")
        connection.commit()
    missing = path.stat().st_size - 9000
    os.truncate(path, 9000)
    with pytest.raises(UnknownFormat, match=f"{missing:,}"):
        ta.read(path, format="nsys-sqlite")


@pytest.mark.parametrize("write", [ta.convert, answer], ids=["convert", "answer"])
def test_exported_database_is_rejected(tmp_path, write):
    path = tmp_path / "ours.sqlite"
    write(TRAINING, path)
    with raises_wording(UnknownFormat):
        ta.read(path)


def test_report_error_has_the_export_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"NVIDIA report")
    with raises_wording(UnknownFormat):
        ta.read(path)


def test_an_export_that_is_being_written(copy):
    journal = Path(f"{copy}-journal")
    journal.write_bytes(b"x" * 600)
    with raises_wording(MalformedInput):
        ta.read(copy)
    journal.unlink()
    pid = os.fork()
    if not pid:  # a lock is a process's: another one holds it
        with copy.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX, 512, 0x40000000)
            (copy.parent / "locked").touch()
            while not (copy.parent / "done").exists():
                pass
        os._exit(0)
    try:
        while not (copy.parent / "locked").exists():
            pass
        with pytest.raises(MalformedInput, match="is locked"):
            ta.read(copy)
    finally:
        (copy.parent / "done").touch()
        os.waitpid(pid, 0)


def test_no_file_is_created_next_to_the_export(tmp_path):
    folder = tmp_path / "read only"
    folder.mkdir()
    path = Path(shutil.copy(TRAINING, folder / "50 % #1 ?x.sqlite"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)
    before = path.read_bytes()
    folder.chmod(0o555)
    try:
        assert kernels(ta.read(path)) == 192
        assert [p.name for p in folder.iterdir()] == [path.name]
        assert path.read_bytes() == before
    finally:
        folder.chmod(0o755)


def mutations(size: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(
        st.tuples(st.integers(0, size - 1), st.integers(0, 255)), min_size=1, max_size=12
    )


@given(changes=mutations(TRAINING.stat().st_size), cut=st.none() | st.integers(100, 60_000))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_damage_is_skipped_or_rejected(changes, cut, tmp_path):
    data = bytearray(TRAINING.read_bytes())
    for place, value in changes:
        data[place] = value
    path = tmp_path / "mutated.sqlite"
    path.write_bytes(data[:cut])
    try:
        trace = ta.read(path, format="nsys-sqlite")
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either way is right
    else:
        assert schema.check(trace.tables) == []


def test_data_of_a_truncated_export_needs_no_other_recording(copy: Path) -> None:
    """Its tables are damaged: no option of the profiler adds them."""
    os.truncate(copy, copy.stat().st_size // 3)
    with pytest.raises(ta.MissingData) as error:
        ta.kernels(copy)
    assert "--trace" not in str(error.value)
    diagnosis = ta.diagnose(copy)
    whys = diagnosis.rules["why"].drop_nulls()
    assert whys.str.contains("damaged").any()
    assert not whys.filter(whys.str.contains("damaged")).str.contains("nsys profile").any()
    assert "nsys profile" not in " ".join(diagnosis.notes)
    dropped = next(one for one in diagnosis.diagnosis if one.id == "dropped-events")
    assert "profiler" not in dropped.advice
