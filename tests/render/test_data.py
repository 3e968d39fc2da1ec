"""CSV, JSON and SQLite."""

import csv
import io
import json
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from hypothesis import given, strategies as st
from sample_results import HOSTILE, Sample, groups, hostile, ordinary
from wording import raises_wording

from traceanalyzer.drawings import Flame
from traceanalyzer.errors import OptionError
from traceanalyzer.render import FORMS, data, form_of, render
from traceanalyzer.result import Table


def _result(frame: pl.DataFrame) -> Sample:
    return Sample(table_list=(Table("t", "T", frame, {name: name for name in frame.columns}),))


def test_csv_golden(golden):
    golden("groups.csv", data.to_csv(ordinary()))


def test_csv_contains_all_rows_in_raw_units():
    rows = list(csv.DictReader(io.StringIO(data.to_csv(ordinary()))))
    assert [row["max_ns"] for row in rows] == ["17570000", "25050000", "7635000"]
    assert rows[2]["pid"] == ""
    assert rows[0]["ranks"] == "[0, 1, 2]"
    assert list(rows[0]) == groups().frame.columns


def test_csv_of_a_chosen_table():
    assert data.to_csv(ordinary(), table="none") == "rank\n"


def test_csv_is_of_the_first_table_with_rows():
    empty = Table("none", "Outliers", pl.DataFrame({"rank": []}), {"rank": "rank"})
    assert data.to_csv(Sample(table_list=(empty, groups()))) == data.to_csv(ordinary())


def test_csv_top():
    assert len(data.to_csv(ordinary(), top=1).splitlines()) == 2


def test_csv_text_is_not_a_formula():
    rows = list(csv.reader(io.StringIO(data.to_csv(hostile()), newline="")))[1:]
    for (name, *_), name_in_file in zip(rows, HOSTILE, strict=True):
        assert not name.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert name.lstrip("'") == name_in_file


def test_csv_negative_numbers_stay_numbers():
    assert data.to_csv(_result(pl.DataFrame({"a": [-5], "b": [-0.5]}))) == "a,b\n-5,-0.5\n"


@given(st.lists(st.text(max_size=20), min_size=1, max_size=8))
def test_csv_round_trip(names):
    text = data.to_csv(_result(pl.DataFrame({"name": names, "n": range(len(names))})))
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    assert [row[0] for row in rows] == [
        f"'{name}" if name[:1] in tuple("=+-@\t\r\n") and name else name for name in names
    ]


def test_json_golden(golden):
    golden("groups.json", data.to_json(ordinary()))


def test_json_contains_everything_in_raw_units():
    values = json.loads(data.to_json(ordinary()))
    assert values["wait_ns"] == 48_200_000
    assert values["groups"] == groups().frame.to_dicts()
    assert values["verdict"].startswith("Rank 2")
    assert len(values["notes"]) == 1
    assert list(values) == sorted(values)


def test_json_has_no_nan():
    frame = pl.DataFrame({"a": [float("nan"), float("inf"), 1.0]})
    text = data.to_json(_result(frame)).decode()
    rows = json.loads(text, parse_constant=pytest.fail)["t"]
    assert [row["a"] for row in rows] == [None, None, 1.0]


def test_json_top():
    assert len(json.loads(data.to_json(ordinary(), top=2))["groups"]) == 2


def test_json_keeps_hostile_names():
    rows = json.loads(data.to_json(hostile()))["bad"]
    assert [row["name"] for row in rows] == list(HOSTILE)


def _database(image: bytes) -> closing[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(image)
    return closing(connection)


def test_sqlite_contains_all_rows_in_raw_units():
    frame = groups().frame
    with _database(data.to_sqlite(ordinary())) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
        assert names == ["about", *(table.name for table in ordinary().tables)]
        rows = connection.execute("SELECT * FROM groups")
        assert [column[0] for column in rows.description] == frame.columns
        rows = rows.fetchall()
        about = connection.execute("SELECT key, value FROM about").fetchall()
    lists = {name for name, dtype in frame.schema.items() if dtype.is_nested()}
    assert [
        tuple(
            json.loads(value) if name in lists and value else value
            for name, value in zip(frame.columns, row, strict=True)
        )
        for row in rows
    ] == [tuple(row[name] for name in frame.columns) for row in frame.to_dicts()]
    assert about[:2] == [("title", ordinary().title), ("verdict", ordinary().verdict)]
    assert ("wait_ns", 48_200_000) in about
    assert about[-1] == ("note", ordinary().notes[0])


def test_sqlite_value_conversion():
    frame = pl.DataFrame(
        {
            "real": [float("nan"), float("inf"), 0.5],
            "large": pl.Series([2**64 - 1, 1, None], dtype=pl.UInt64),
            "word": pl.Series(["a", None, "b"], dtype=pl.Categorical),
            "flag": [True, None, False],
            "group": [[1], None, []],
        }
    )
    with _database(data.to_sqlite(_result(frame))) as connection:
        assert connection.execute("SELECT * FROM t").fetchall() == [
            (None, -1, "a", 1, "[1]"),
            (None, 1, None, None, None),
            (0.5, None, "b", 0, "[]"),
        ]


def test_sqlite_keeps_hostile_names():
    with _database(data.to_sqlite(hostile())) as connection:
        rows = connection.execute("SELECT name FROM bad").fetchall()
    assert [name for (name,) in rows] == list(HOSTILE)


def test_sqlite_top_and_flame_graph():
    boxes = pl.DataFrame({"id": [0, 1], "name": ["a", "b"]})

    class Burning(Sample):
        flames = (Flame("fire", "Fire", "", "ns", boxes),)

    with _database(data.to_sqlite(Burning(table_list=(groups(),)), top=1)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM groups").fetchone() == (1,)
        assert connection.execute("SELECT * FROM fire").fetchall() == [(0, "a")]


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", FORMS)
def test_rendering_is_deterministic(form):
    assert render(ordinary(), form) == render(ordinary(), form) != b""


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a.csv", "csv"),
        ("b/c.HTML", "html"),
        ("x.png", "png"),
        ("x.txt", "table"),
        ("x.sqlite", "sqlite"),
        ("x.DB", "sqlite"),
        ("x", None),
    ],
)
def test_format_by_suffix(path, form):
    assert form_of(path) == form


def test_image_without_chart_is_refused():
    with raises_wording(OptionError):
        render(Sample(), "svg")
