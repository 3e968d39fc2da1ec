"""Markdown as read by a parser: tables, and inert names."""

import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given, strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from sample_results import HOSTILE, Sample, empty, groups, hostile, ordinary

import traceanalyzer as ta
from traceanalyzer.render import form_of, markdown, render
from traceanalyzer.render.text import prose, visible
from traceanalyzer.result import Result, Table

ROOT = Path(__file__).parents[2]
READER = MarkdownIt("gfm-like", {"linkify": False, "html": True}).disable("linkify")

#: Text that GitHub links: mentions, issues, links, commits.
LINKED = re.compile(r"@\w|#\d|://|www\.|\bGH-\d|\b(?=\w*[a-f])(?=\w*\d)[\da-f]{7,40}\b")

BLOCKS = {
    *("heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline"),
    *("table_open", "table_close", "thead_open", "thead_close", "tbody_open", "tbody_close"),
    *("tr_open", "tr_close", "th_open", "th_close", "td_open", "td_close"),
    *("bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"),
}


def tokens(text: str) -> list[Token]:
    return READER.parse(text)


def inner(text: str) -> list[Token]:
    return [child for token in tokens(text) for child in token.children or ()]


def assert_inert(text: str) -> None:
    """Assert that there are known blocks only, with text and code."""
    assert {token.type for token in tokens(text)} <= BLOCKS
    depth = 0
    for token in inner(text):
        assert token.type in {"text", "code_inline", "softbreak", "html_inline"}, token
        if token.type == "html_inline":
            assert token.content in ("<code>", "</code>")
            depth += 1 if token.content == "<code>" else -1
        if token.type == "text" and not depth:
            assert not LINKED.search(token.content), token.content
            assert not re.search(r"[<>`*_$|\\&~]", token.content), token.content


def cells_of(text: str) -> list[list[str]]:
    """Return the rows of all tables as text."""
    rows: list[list[str]] = []
    for token in tokens(text):
        if token.type == "tr_open":
            rows.append([])
        if token.type == "inline" and token.level >= 4:
            cell = "".join(c.content for c in token.children or () if c.type != "html_inline")
            rows[-1].append(cell)
    return rows


def named(*names: str, **more: object) -> Result:
    frame = pl.DataFrame({"name": names})
    return Sample(table_list=(Table("t", "T", frame, {"name": "name"}),), **more)


def test_golden(golden):
    golden("groups.md", markdown.render(ordinary()))


@pytest.mark.parametrize("make", [ordinary, hostile, empty])
def test_results_contain_text_and_code_only(make):
    assert_inert(markdown.render(make()))
    assert_inert(markdown.render(make(), top=1))


def test_table_has_a_cell_per_value():
    head, *rows = cells_of(markdown.render(Sample(table_list=(groups(),))))
    assert [len(row) for row in rows] == [len(head)] * 3
    assert head[:3] == ["group", "count", "median [ms]"]
    assert rows[0][:5] == ["all_reduce bfloat16", "28,010", "0.799", "17.57", "24.41 MiB"]


def test_numbers_are_right_aligned():
    ruled = markdown.render(Sample(table_list=(groups(),))).splitlines()[7]
    assert ruled.startswith("| --- | ---: | ---: |")


def test_names_round_trip():
    names = [name for name in HOSTILE if len(name) < 80]
    _, *rows = cells_of(markdown.render(named(*names)))
    assert [row[0] for row in rows] == [visible(name) for name in names]


@given(st.text(max_size=60))
@example("a\\|b")
@example("`` ` ```")
@example("|")
@example(" x` ")
@example("<code>a\\|</code>")
def test_any_name_is_inert(name):
    text = markdown.render(named(name, text=f"{name} took long, {name}", noted=(name,)))
    assert_inert(text)
    (_, (cell,)) = cells_of(text)
    # a reader strips a cell, and folds the spaces between words
    assert cell.split() == visible(name).split()


@given(st.lists(st.sampled_from("ab1@#[]()!*_`|<>&~$:/\\-+=. \n"), max_size=12).map("".join))
@example("`a`")
@example("(`a`")
@example("    a")
def test_any_sentence_is_inert(sentence):
    text = markdown.render(Sample(text=sentence, noted=(sentence,)))
    assert_inert(text)
    paragraphs = [token for token in tokens(text) if token.type == "inline"][1:]
    for token in paragraphs:
        content = "".join(child.content for child in token.children or ())
        # a term in backticks is code, without them
        assert _unquoted(content) == _unquoted(prose(sentence))


def _unquoted(text: str) -> str:
    return "".join(text.replace("`", "").split())


@pytest.mark.parametrize(
    "markup",
    ["@team", "user@host", "#12", "a/b#12", "GH-12", "deadbeef1", "www.a.b", "https://a.b", ":up:",
     "![x](y)", "[a](b)", "f(x)", "[^1]", "<b>", "&lt;", "**a**", "_a_", "~~a~~",
     "$a$", "1.", "-", "#"],
)  # fmt: skip
def test_markup_becomes_code(markup):
    text = markdown.render(Sample(text=markup))
    code = [token.content for token in inner(text) if token.type == "code_inline"]
    assert markup.strip(":;") in [part.strip(":") for part in code]


@pytest.mark.parametrize(
    "sentence",
    [
        'Rank 2 is late: the others waited 48.2 ms (6.8 %) for it, at worst +3.5 ms; "why"?',
        "A step takes 12.1 ms longer (+9.3 %, noise 1.1 %): 10.2 ms of it is data loading.",
        "It's well-known: 1,024 x 2, at 12:30.",
    ],
)
def test_plain_sentences_are_unchanged(sentence):
    assert markdown.render(Sample(text=sentence)).split("\n\n")[1].strip() == sentence


def test_names_in_sentences_become_code():
    text = markdown.render(Sample(text="Most often flip (augment_v2.py:6), then aten::mm."))
    assert "flip (`augment_v2.py:6`), then `aten::mm`." in text


def test_omitted_details_and_rows_are_named():
    result = Sample(table_list=(groups(), replace(groups(), title="A detail", detail=True)))
    brief, whole = markdown.render(result, top=1), markdown.render(result, top=None)
    assert "More with `--top all`: A detail." in brief
    assert "(1 of 3 rows; `--top all` shows the rest)" in brief
    assert "### A detail" in whole
    assert "--top all" not in whole


def test_empty_table():
    assert "### Groups\n\nnone" in markdown.render(empty())


def test_md_suffix_is_markdown():
    assert form_of("a/B.MD") == "md"
    assert render(ordinary(), "md", top=20) == markdown.render(ordinary()).encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("with activities=[A.CPU, A.CUDA].", "with `activities=[A.CPU, A.CUDA]`."),
        ("(DDP, prefetch_factor, more_workers), x", "(DDP, `prefetch_factor`, `more_workers`), x"),
        ("(call P(cpu_=True, net_=True))", "(call `P(cpu_=True, net_=True)`)"),
        ("in void k_<4, at::F<float>>(int) now", "in void `k_<4, at::F<float>>(int)` now"),
        ("an open_(bracket stays", "an `open_(bracket` stays"),
        ("f(x), (a_b) and 'c_d'.", "`f(x)`, (`a_b`) and '`c_d`'."),
    ],
)
def test_an_expression_is_one_code_span(text: str, expected: str) -> None:
    assert markdown._line(text) == expected


def test_code_in_backticks_stays_code():
    text = markdown.render(Sample(noted=("See `gpu-idle` and (`a_b`), but ``c`.",)))
    assert "`gpu-idle` and (`a_b`)," in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in ## backward ## make up", "in `## backward ##` make up"),
        ("in ## a_b pass ##.", "in `## a_b pass ##`."),
        ("see <b> *x*, _y_ and", "see `<b> *x*`, `_y_` and"),
        ("only ## here", "only `##` here"),
    ],
)
def test_a_name_with_spaces_is_one_span(text: str, expected: str) -> None:
    assert markdown._line(text) == expected


def test_diagnosis_has_ranks_and_the_time_budget() -> None:
    result = ta.diagnose(ROOT / "fixtures/nccl_8ranks")
    text = markdown.render(result)
    assert result.budget_bar is not None
    assert "8 ranks" in text.split("\n\n")[1]
    assert result.budget_bar.title in text
