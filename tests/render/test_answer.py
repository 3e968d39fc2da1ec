"""A verdict shows at most three sentences and five numbers; the rest are points below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import traceanalyzer as ta
from traceanalyzer.render.html import fragment
from traceanalyzer.render.markdown import render as markdown
from traceanalyzer.render.table import render as table
from traceanalyzer.render.text import answer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("verdict", "lead", "points"),
    [
        ("A is 1 ms. B is 2 ms. C is 3 ms. D is 4 ms.", 3, 1),
        ("A is 1, 2 and 3 ms. B is 4, 5 and 6 ms. C is 7 ms.", 1, 2),
        ("Rank 5 waits in ProfilerStep#12 at train.py:19 for 1 ms. B is 2, 3, 4 and 5 ms.", 2, 0),
        ("A is 1, 2, 3, 4, 5 and 6 ms. B.", 1, 1),
        ("torch.cuda is used. Call aten::item less often.", 2, 0),
        ("A kernel x... 2.14 ms. nvme0 is busy, e.g. 2 ms.", 2, 0),
        ("", 1, 0),
    ],
)
def test_what_does_not_fit_is_a_point(verdict: str, lead: int, points: int) -> None:
    first, rest = answer(verdict)
    assert len(re.split(r"(?<=\w\.)(?<!e\.g\.) ", first)) == lead
    assert len(rest) == points
    assert " ".join([first, *rest]) == verdict


def test_all_forms_show_the_points() -> None:
    result = ta.overlap(ROOT / "fixtures" / "nccl_8ranks")
    lead, points = answer(result.verdict)
    assert points
    start = points[0][:40]
    assert f"- {start}" in table(result, width=120)
    assert f"\n- {start}" in markdown(result)
    assert f"<li>{start}" in fragment(result)
    assert lead[:40] in table(result, width=120)


def test_where_to_read_more_stays_with_its_sentence() -> None:
    lead, rest = answer("A 1. B 2. C 3. See traceanalyzer memory --growth. D 4.")
    assert (lead, rest) == ("A 1. B 2. C 3. See traceanalyzer memory --growth.", ["D 4."])
