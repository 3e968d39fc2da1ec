import polars as pl
import pytest
from sample_results import Sample, groups

from traceanalyzer.errors import OptionError
from traceanalyzer.render import render, table
from traceanalyzer.render.table import arranged
from traceanalyzer.result import Table

RANKS = pl.DataFrame(
    {
        "rank": [0, 1, 2],
        "wait_ns": [5, None, 7],
        "host": pl.Series(["b", "a", "c"], dtype=pl.Categorical),
        "ids": [[1], [1, 2, 3], [1, 2]],
    }
)
RESULT = Sample(
    table_list=(groups(), Table("ranks", "Ranks", RANKS, {"rank": "rank", "wait_ns": "wait time"}))
)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        (["ranks.wait_ns"], [2, 0, 1]),
        (["wait"], [2, 0, 1]),
        (["wait time:asc"], [0, 2, 1]),
        (["host"], [1, 0, 2]),
        (["HOST:desc"], [2, 0, 1]),
        (["ranks.ids"], [1, 2, 0]),
        (["count"], [0, 1, 2]),
    ],
)
def test_sort(sort, order):
    assert arranged(RESULT, sort=sort).to_polars("ranks")["rank"].to_list() == order


def test_headings_may_contain_a_colon():
    frame = pl.DataFrame({"idle_ns": [1, 2, 3], "launch_ns": [2, 3, 1]})
    labels = {"idle_ns": "idle", "launch_ns": "idle: launches"}
    result = Sample(table_list=(Table("a", "A", frame, labels),))
    for sort, order in (("idle: launches", [2, 1, 3]), ("idle: launches:asc", [3, 1, 2])):
        assert arranged(result, sort=[sort]).tables[0].frame["idle_ns"].to_list() == order
    with pytest.raises(OptionError, match="unknown order"):
        arranged(result, sort=["idle: launches:up"])


def test_bare_column_sorts_every_table_that_has_it():
    frame = pl.DataFrame({"n": [1, 2]})
    result = Sample(
        table_list=(Table("a", "A", frame, {"n": "n"}), Table("b", "B", frame, {"n": "n"}))
    )
    both, one = arranged(result, sort=["n"]), arranged(result, sort=["b.n"])
    assert [t.frame["n"].to_list() for t in both.tables] == [[2, 1], [2, 1]]
    assert [t.frame["n"].to_list() for t in one.tables] == [[1, 2], [2, 1]]


def test_columns_in_the_given_order():
    result = arranged(RESULT, columns=["wait_time", "ids", "ranks.rank"])
    assert result.to_polars("ranks").columns == ["wait_ns", "ids", "rank"]
    assert result.tables[1].columns == {"wait_ns": "wait time", "ids": "ids", "rank": "rank"}
    # groups has no such column except ranks' own
    assert result.to_polars("groups").columns == RESULT.to_polars("groups").columns


@pytest.mark.parametrize("to", ["json", "csv", "md", "table", "html", "sqlite"])
def test_every_format_is_arranged(to):
    assert render(arranged(RESULT, columns=["count"]), to) != render(RESULT, to)


@pytest.mark.parametrize(
    "names", [{"sort": ["none"]}, {"columns": ["ranks.count"]}, {"sort": ["wait:up"]}]
)
def test_unknown_name_lists_the_columns_or_names_the_nearest(names):
    with pytest.raises(OptionError) as error:
        arranged(RESULT, **names)
    assert any(part in str(error.value) for part in ("ranks: rank, wait", ":asc", "mean 'ranks'"))


def test_chosen_and_sorted_columns_are_not_hidden():
    wide = {name: name for name in groups().frame.columns}
    every = Sample(table_list=(Table("groups", "Groups", groups().frame, wide),))
    assert "hidden" in table.render(every, width=60)
    assert "hidden" not in table.render(arranged(every, columns=list(wide)), width=60)
    assert "| ranks" in table.render(arranged(every, sort=["ranks"]), width=60)


def test_the_result_is_unchanged():
    before = RESULT.to_dict()
    arranged(RESULT, sort=["wait"], columns=["rank"])
    assert RESULT.to_dict() == before


def test_all_columns_at_any_width() -> None:
    frame = pl.DataFrame({f"column_{n}": ["value"] for n in range(20)})
    wide = Table("wide", "Wide", frame, {name: name for name in frame.columns})
    result = Sample(table_list=(wide,))
    for columns in (["all"], ["all", "column_3"], ["column_3", "all"]):
        (complete,) = arranged(result, columns=columns).tables
        assert not complete.hiding_order
        assert list(complete.columns) == frame.columns
    assert result.tables[0].hiding_order
    with pytest.raises(OptionError, match="unknown column 'column_x'"):
        arranged(result, columns=["all", "column_x"])
