"""The page scan reads the same rows as SQLite, or none."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from traceanalyzer.parsers.sqlite import pages
from traceanalyzer.parsers.sqlite.database import Database

pytestmark = pytest.mark.skipif(pages._pages is None, reason="built without a compiler")

NUMBERS = st.one_of(
    st.none(),
    st.sampled_from((0, 1, -1, 127, 128, -129, 1 << 15, -(1 << 23) - 1, 1 << 31, 1 << 47)),
    st.integers(-(1 << 63) + 1, (1 << 63) - 1),
)
SKIPPED = st.none() | st.text(max_size=9) | st.binary(max_size=9) | st.floats(allow_nan=False)


def create(path: Path, rows: list[tuple[object, ...]], page: int = 512, columns: str = "") -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page}")
        connection.execute(f"CREATE TABLE t ({columns or 'a INTEGER, s, b INTEGER, c INTEGER'})")
        marks = ", ".join("?" * len(rows[0])) if rows else "?, ?, ?, ?"
        connection.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        connection.commit()
    return path


def both(path: Path, names: tuple[str, ...]) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """The columns by pages, and by SQLite."""
    with Database(str(path), str(path)) as opened:
        place = opened._places["t"]
        leaves = opened._pages.leaves(place.root)
        parts = [] if leaves is None else [leaves]
        columns_of = [opened._pages.numbers(part, place, names) for part in parts]
        whole = [part for part in columns_of if part is not None]
        by_pages = pl.concat(whole) if parts and len(whole) == len(columns_of) else None
        return by_pages, opened.read("t", integers=names, where="1")


@given(
    rows=st.lists(st.tuples(NUMBERS, SKIPPED, NUMBERS, NUMBERS), max_size=80),
    page=st.sampled_from((512, 1024, 4096)),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_pages_hold_what_sqlite_reads(rows, page, tmp_path):
    by_pages, by_sqlite = both(create(tmp_path / "t.sqlite", rows, page), ("b", "a"))
    assert by_pages is not None
    assert by_pages.equals(by_sqlite)
    assert by_sqlite.rows() == [(row[2], row[0]) for row in rows]


@given(
    rows=st.lists(
        st.tuples(st.none() | st.integers(0, 99), st.none() | st.integers(0, 99)),
        min_size=1,
        max_size=60,
    ),
    windows=st.lists(st.tuples(st.integers(-9, 99), st.integers(-9, 120)), min_size=1, max_size=3),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_windows_select_what_sqlite_selects(rows, windows, tmp_path):
    path = create(tmp_path / "t.sqlite", [(i, *row) for i, row in enumerate(rows)],
                  columns='a INTEGER, "start" INTEGER, "end" INTEGER')  # fmt: skip
    names = ("start", "a", "end")
    with Database(str(path), str(path)) as opened, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "AT_ONCE", 1)
        scanned = opened.read("t", integers=names, windows=windows)
        assert scanned.equals(opened.read("t", integers=names, where="1", windows=windows))
    end = [start if end is None else end for start, end in rows]
    expected = [
        i
        for i, (start, _) in enumerate(rows)
        if start is not None and any(start < high and end[i] > low for low, high in windows)
    ]
    assert scanned["a"].to_list() == expected


def test_long_texts_between_numbers(tmp_path):
    rows = [(i, "x" * size, i * 7, -i) for i, size in enumerate((0, 400, 500, 3000, 90_000, 5))]
    path = create(tmp_path / "t.sqlite", rows)
    by_pages, by_sqlite = both(path, ("a",))
    assert by_pages is not None
    assert by_pages.equals(by_sqlite)
    behind, by_sqlite = both(path, ("a", "c"))
    assert behind is None  # the last columns of long rows lie on other pages
    assert by_sqlite["c"].to_list() == [-i for i in range(6)]


@pytest.mark.parametrize("value", [1.5, "text", b"bytes", -(1 << 63)], ids=repr)
def test_other_types_are_left_to_sqlite(tmp_path, value):
    rows = [(i, None, i, i) for i in range(50)]
    rows[30] = (30, None, value, 30)
    path = create(tmp_path / "t.sqlite", rows, columns="a INTEGER, s, b, c INTEGER")
    by_pages, by_sqlite = both(path, ("b",))
    assert by_pages is None
    assert by_sqlite.height == 50


def test_the_row_id_by_its_name(tmp_path):
    rows = [(7 * i, None, i, i) for i in range(1, 300)]
    path = create(tmp_path / "t.sqlite", rows, columns="a INTEGER PRIMARY KEY, s, b, c")
    by_pages, by_sqlite = both(path, ("c", "a"))
    assert by_pages is not None
    assert by_pages.equals(by_sqlite)


def test_added_column_is_left_to_sqlite(tmp_path):
    path = create(tmp_path / "t.sqlite", [(1, None, 2, 3)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 9")
        connection.commit()
    by_pages, by_sqlite = both(path, ("a", "d"))
    assert by_pages is None
    assert by_sqlite.rows() == [(1, 9)]


def test_computed_columns_and_other_tables_are_not_located(tmp_path):
    path = create(tmp_path / "t.sqlite", [(1, None, 2, 3)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE u (a, b AS (a + 1), c)")
        connection.execute("CREATE VIEW v AS SELECT a FROM t")
        connection.commit()
    with Database(str(path), str(path)) as opened:
        assert set(opened._places) == {"t"}


def test_same_result_without_extension(tmp_path, monkeypatch):
    rows = [(i, "s", i * i, None) for i in range(2000)]
    path = create(tmp_path / "t.sqlite", rows)
    with Database(str(path), str(path)) as opened:
        scanned = opened.read("t", integers=("a", "b", "c"))
    monkeypatch.setattr(pages, "_pages", None)
    with Database(str(path), str(path)) as opened:
        assert opened.read("t", integers=("a", "b", "c")).equals(scanned)


def test_random_damage_never_reads_outside(tmp_path):
    """Whatever the bytes are, the scan answers or gives up; SQLite has the last word."""
    rows = [(i, "text" * (i % 9), i * 1000, -i) for i in range(400)]
    data = create(tmp_path / "t.sqlite", rows).read_bytes()
    chance = random.Random(5)  # noqa: S311 - damage, not secrets
    gave_up = 0
    for _ in range(400):
        mutated = bytearray(data)
        for _ in range(chance.choice((1, 4, 30))):
            mutated[chance.randrange(512, len(data))] = chance.choice(
                (0, 255, chance.randrange(256))
            )
        opened = pages._pages.numbers(bytes(mutated), 512, 512, b"\x00\x00\x03\x00", -1)
        below = pages._pages.children(bytes(mutated), 512, 512)
        gave_up += opened is None and below is None
    assert gave_up == 400  # a file has pages of both sorts
    for start in range(512, len(data), 512):
        page = bytearray(data[start : start + 512])
        for _ in range(20):
            page[chance.randrange(512)] = chance.randrange(256)
            pages._pages.numbers(bytes(page), 512, 512, b"\x00\x00\x03\x00", -1)
            pages._pages.children(bytes(page), 512, 512)


def test_pages_that_point_at_each_other(tmp_path):
    path = create(tmp_path / "t.sqlite", [(i, None, i, i) for i in range(3000)])
    with Database(str(path), str(path)) as opened:
        root = opened._places["t"].root
    data = bytearray(path.read_bytes())
    at = (root - 1) * 512
    assert data[at] == 5
    data[at + 8 : at + 12] = root.to_bytes(4, "big")  # its own child
    path.write_bytes(data)
    with Database(str(path), str(path)) as opened:
        assert opened.read("t", integers=("a",)).height < 3000
        assert opened.losses.rows


@pytest.mark.parametrize("first", [1, 1 << 20, 1 << 40, (1 << 63) - 3_000, -3_000])
def test_last_row_id_from_interior_pages(tmp_path, first):
    path = tmp_path / "rows.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
        rows = ((first + at, "x" * 40) for at in range(3_000))
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        connection.commit()
    file = pages.PageFile(str(path))
    last_known = file.last_row_id(2)
    file.close()
    last = first + 2_999
    assert last_known is not None
    assert last - 300 < last_known <= last


def test_last_row_id_without_interior_pages(tmp_path):
    path = tmp_path / "rows.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
    file = pages.PageFile(str(path))
    assert [file.last_row_id(root) for root in (0, 1, 2, 3, 1 << 40)] == [None] * 5
    file.close()
