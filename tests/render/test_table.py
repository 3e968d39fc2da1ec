import os
import re
from dataclasses import replace
from itertools import zip_longest

import polars as pl
import pytest
from hypothesis import given, strategies as st
from sample_results import LONG_KERNEL, Sample, empty, groups, hostile, ordinary, wrong

from traceanalyzer.errors import OptionError
from traceanalyzer.render import table
from traceanalyzer.render.text import cells, prose, shorten, visible
from traceanalyzer.result import Table

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("width", [60, 100, 200])
def test_golden(golden, width):
    golden(f"table_{width}.txt", table.render(ordinary(), width=width))


def test_long_names_fit_the_terminal():
    text = table.render(Sample(table_list=(_only("group", "median_ns"),)), width=50)
    assert max(map(len, text.splitlines())) <= 50
    assert "..." in text


def test_names_are_complete_in_a_wide_terminal():
    assert LONG_KERNEL in table.render(ordinary(), width=250)


def test_top_limits_rows():
    text = table.render(ordinary(), top=2, width=200)
    assert "(2 of 3 rows; --top all shows the rest)" in text
    assert "all_gather" in text
    assert "ncclDev" not in text


def test_all_rows_without_note():
    assert "rows;" not in table.render(ordinary(), top=None)


def test_width_from_the_environment(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    assert table.render(ordinary()) == table.render(ordinary(), width=70)


def test_a_number_stays_with_its_unit() -> None:
    text = "waits 12.5 ms for it, 20 % of 3 GiB, 7 steps and 11 s"
    for width in range(12, 60):
        lines = table._filled(text, width).splitlines()
        assert " ".join(lines) == text
        assert not [line for line in lines if re.match(r"(?:ms|%|GiB|s)\b", line)]


def test_empty_table():
    assert "Groups: none" in table.render(empty())


def test_hostile_names_are_inert():
    text = table.render(hostile(), width=200)
    assert not UNSAFE.search(text)
    assert "\\x1b[31m" in text
    assert "\\u202egpj.exe" in text
    assert max(map(len, text.splitlines())) < 500


@pytest.mark.parametrize(
    ("column", "values", "unit", "texts"),
    [
        ("dur_ns", [7_635_000, 10_000, 7_000_000], "ms", ["7.635", "0.010", "7.000"]),
        ("dur_ns", [812, 5, None], "ns", ["812", "5", ""]),
        ("dur_ns", [0, 0], "ns", ["0", "0"]),
        ("dur_ns", [1_234_567_890_123], "s", ["1,235"]),
        ("dur_ns", [-2_500, 2_500], "us", ["-2.500", "2.500"]),
        ("share_frac", [0.2289, 1.0], "%", ["22.9", "100.0"]),
        ("sent_bytes", [26_529_792, 4, None], "", ["25.3 MiB", "4 B", ""]),
        ("busbw_gbps", [178.312], "GB/s", ["178.3"]),
        ("factor", [3.04159, 12.0], "", ["3.04", "12.00"]),
        ("count", [28_010, 2**60 + 1], "", ["28,010", "1,152,921,504,606,846,977"]),
        ("pid", [1_234_567], "", ["1234567"]),
        ("late", [True, False, None], "", ["yes", "no", ""]),
        ("ranks", [[0, 1], []], "", ["0, 1", ""]),
        ("name", ["a\nb"], "", ["a\\nb"]),
    ],
)
def test_one_unit_per_column(column, values, unit, texts):
    scale, strings = cells(column, values)
    assert (scale.unit, strings) == (unit, texts)


@given(st.text(max_size=300))
def test_visible_text_is_safe(text):
    assert not UNSAFE.search(visible(text))
    assert "\n" not in visible(text)
    assert visible(visible(text)) == visible(text)


@given(st.text(max_size=100), st.integers(min_value=5, max_value=60))
def test_shorten_keeps_both_ends(text, width):
    short = shorten(text, width)
    assert len(short) <= width
    assert short == text or (text.startswith(short[:1]) and text.endswith(short[-1:]))


def test_prose_shortens_long_texts():
    assert len(prose("see " + "x" * 10_000)) < 100


def test_rendering_does_not_change_the_result():
    result = ordinary()
    before = [t.frame.clone() for t in result.tables]
    table.render(result)
    assert all(t.frame.equals(b) for t, b in zip(result.tables, before, strict=True))


def _only(*names: str) -> Table:
    whole = groups()
    return Table("g", "G", whole.frame, {name: whole.columns[name] for name in names})


def test_column_of_nulls_is_empty():
    frame = pl.DataFrame({"a_ns": [None, None]}, schema={"a_ns": pl.Int64})
    text = table.render(Sample(table_list=(Table("t", "T", frame, {"a_ns": "a"}),)))
    assert "None" not in text


def _headings(table_: Table) -> str:
    return table.render(Sample(table_list=(table_,)), width=100).split("T\n")[1].split("\n")[0]


@pytest.mark.parametrize(
    ("before", "after", "units"),
    [
        ([900_000, 800_000], [2_000_000, 3_000_000], ["ms", "ms"]),
        ([2_000, 3_000], [2_000_000_000], ["us", "s"]),
        ([20_000_000], [12_000_000_000], ["s", "s"]),
        ([6_200], [5_000_000], ["us", "us"]),
        ([0], [5_000_000], ["ms", "ms"]),
        ([None], [5_000_000], ["ms", "ms"]),
    ],
)
def test_times_of_a_table_have_one_unit_where_possible(before, after, units):
    rows = zip_longest(before, after, fillvalue=after[-1])
    frame = pl.DataFrame(list(rows), schema=dict.fromkeys(("a_ns", "b_ns"), pl.Int64), orient="row")
    headings = _headings(Table("t", "T", frame, {"a_ns": "a", "b_ns": "b"}))
    assert [text.strip() for text in headings.split("|")] == [
        f"{name} [{unit}]" for name, unit in zip("ab", units, strict=True)
    ]


def test_a_large_change_is_a_multiple() -> None:
    changes = [0.5, -0.9, 1.999, 2.0, 17.527, None]
    texts = ["50.0", "-90.0", "199.9", "3 times", "18.5 times", ""]
    assert cells("change_frac", changes)[1] == texts
    assert cells("share_frac", [17.527])[1] == ["1,752.7"]


def test_alike_columns_have_one_unit():
    frame = pl.DataFrame({"before_ns": [2_000, 3_000], "after_ns": [2_000_000_000, 3_000_000_000]})
    apart = Table("t", "T", frame, {"before_ns": "before", "after_ns": "after"})
    together = replace(apart, alike=(("before_ns", "after_ns"),))
    assert "before [us] | after [s]" in _headings(apart)
    assert "before [s] | after [s]" in _headings(together)


def test_narrow_terminal_hides_the_least_important_columns():
    columns = {name: name for name in ("group", "count", "sent_bytes", "pid", "late", "ranks")}
    table_ = Table("g", "G", groups().frame, columns, hide_first=("count",))
    text = table.render(Sample(table_list=(table_,)), width=50)
    assert "(3 columns hidden at this width: count, late, ranks;" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 50
    assert "hidden" not in table.render(Sample(table_list=(table_,)), width=120)


def test_columns_are_selected_by_their_headings():
    frame = pl.DataFrame({"cause": ["launch_overhead"], "why": ["launch overhead"],
                          "idle_ns": [1], "idle_frac": [0.5]})  # fmt: skip
    columns = {"why": "cause", "idle_ns": "idle", "idle_frac": "idle"}
    result = Sample(table_list=(Table("t", "T", frame, columns),))
    for text, name in (("cause", "why"), ("idle", "idle_ns"), ("idle_frac", "idle_frac")):
        (chosen,) = table.arranged(result, columns=(text,)).tables
        assert chosen.frame.columns == [name]
    with pytest.raises(OptionError, match=r"cause, idle_ns, idle_frac$"):
        table.arranged(result, columns=("q",))


def test_columns_of_both_runs_are_hidden_together():
    columns = {name: name for name in ("kernel", "before_n", "after_n", "change_ns")}
    frame = pl.DataFrame({"kernel": ["gemm"], "before_n": [1], "after_n": [2], "change_ns": [3]})
    table_ = Table("g", "G", frame, columns, hide_first=("before_n",))
    text = table.render(Sample(table_list=(table_,)), width=30)
    assert "(2 columns hidden at this width: before_n, after_n;" in " ".join(text.split())


def test_without_a_terminal_no_column_is_hidden(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback: os.terminal_size(fallback))
    wide = Table("g", "G", groups().frame, {name: name * 4 for name in groups().frame.columns})
    assert "hidden" not in table.render(Sample(table_list=(wide,)))


@pytest.mark.parametrize("severity", ["critical", "warning", "info"])
def test_colours_of_severities(severity):
    finding = replace(wrong("x")[0], severity=severity)
    plain, colored = (
        table.render(Sample(wrong=(finding,)), color=color) for color in (False, True)
    )
    assert "\x1b" not in plain
    assert f"m{severity.upper()}\x1b[0m" in colored
    assert re.sub("\x1b\\[[0-9;]*m", "", colored) == plain


def test_own_code_is_coloured_and_aligned():
    frame = pl.DataFrame({"name": ["mine", "theirs"], "is_own_code": [True, False], "n": [1, 2]})
    result = Sample(table_list=(Table("t", "T", frame, {"name": "name", "n": "n"}),))
    plain, colored = (table.render(result, color=color) for color in (False, True))
    assert colored.replace("\x1b[1;38;5;166mmine\x1b[0m", "mine") == plain != colored


def test_details_need_all_rows():
    detail = replace(groups(), title="A detail", detail=True)
    result = Sample(table_list=(groups(), detail))
    brief, whole = table.render(result, top=1), table.render(result, top=None)
    assert "More with --top all, or in html and json: A detail." in brief
    assert "\nA detail\n" not in brief
    assert "\nA detail\n" in whole
    assert "--top all" not in whole
