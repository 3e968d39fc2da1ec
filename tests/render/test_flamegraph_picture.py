"""SVG of flame graphs; test_flamegraph_browser.py opens it in a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from flames import Flames, chain, compared, flame, training
from hypothesis import given, settings, strategies as st
from sample_results import HOSTILE, groups
from wording import raises_wording

from traceanalyzer.errors import OptionError
from traceanalyzer.render import flamegraph, html, render
from traceanalyzer.render.flamegraph import lay_out, share
from traceanalyzer.units import format_weight

SVG = "{http://www.w3.org/2000/svg}"


def _parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314 - our own


def _boxes(root: ElementTree.Element) -> list[ElementTree.Element]:
    return root.findall(f".//{SVG}g[@class='boxes']/{SVG}rect")


def _titles(root: ElementTree.Element) -> list[list[str]]:
    return [(box.findtext(f"{SVG}title") or "").split("\n") for box in _boxes(root)]


def _named(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return dict(zip((lines[0] for lines in _titles(root)), _boxes(root), strict=True))


def _drawing(text: str) -> str:
    """The document without style and script, which have tests of their own."""
    return re.sub(r"<(style|script)>.*?</\1>\n", "", text, flags=re.DOTALL)


# --- the picture -----------------------------------------------------------------------------


def test_golden_drawing(golden):
    golden("flamegraph/training.svg", _drawing(flamegraph.svg(training())))


def test_golden_comparison(golden):
    golden("flamegraph/compared.svg", _drawing(flamegraph.svg(compared())))


def test_several_roots_get_a_common_root():
    assert [box.name for box in lay_out(training()).boxes][:2] == ["all", "<module>"]
    assert lay_out(training()).total == 100
    assert lay_out(compared()).boxes[0].name == "main"


def test_boxes_are_inside_their_callers():
    layout = lay_out(training())
    for box in layout.boxes[1:]:
        assert box.parent
        assert box.depth == box.parent.depth + 1
        assert box.parent.left <= box.left
        assert box.left + box.total <= box.parent.left + box.parent.total
    for depth in range(layout.depth):
        row = [box for box in layout.boxes if box.depth == depth]
        assert all(one.left + one.total <= two.left for one, two in pairwise(row))


def test_order_of_callees():
    below_main = [box.name for box in lay_out(training()).boxes if box.depth == 3]
    assert below_main == ["forward", "load", "(7 frames below 1 %)"]


def test_title_of_a_box():
    titles = _titles(_parsed(flamegraph.svg(training())))
    assert titles[3] == [
        "forward",
        "torch/nn/conv.py:5",
        "50 samples, 50.0 % of all, 55.6 % of parent, self 10",
    ]


def test_summed_boxes_are_hatched():
    root = _parsed(flamegraph.svg(training()))
    box = _named(root)["(7 frames below 1 %)"]
    assert box.get("fill") == "url(#flame-hatch)"
    assert root.find(f".//{SVG}pattern[@id='flame-hatch']") is not None
    assert float(box.get("width", 0)) == pytest.approx(1200 * 0.03)
    nameless = flame([(None, "", None, None, False, 4, 4, 4, None)])
    assert "(4 frames too small to draw)" in flamegraph.svg(nameless)


def test_colours_of_packages_and_own_code():
    boxes = _named(_parsed(flamegraph.svg(training())))
    assert boxes["forward"].get("fill") == boxes["relu"].get("fill") == "#afdaff"
    assert boxes["main"].get("fill") == flamegraph.OWN_CODE
    assert flamegraph.OWN_CODE not in {
        flamegraph.fill_of_package(name, own_code=False) for name in map(str, range(999))
    }


def test_common_packages_have_different_colours():
    names = ["torch", "standard library", "numpy", "libtorch_cpu.so", "libc.so.6", "triton"]
    assert len({flamegraph.fill_of_package(name, own_code=False) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("total", "base", "fill"), [(5, 0, -1), (0, 5, 0), (5, 5, 4), (0, 0, 4), (10, 5, 6), (5, 10, 2)]
)
def test_colours_of_a_comparison(total, base, fill):
    assert flamegraph.fill_of_change(total, base) == flamegraph.CHANGES[fill]


def test_topmost_vanished_frames_are_listed():
    root = _parsed(flamegraph.svg(compared()))
    foot = root.find(f"{SVG}svg[@class='foot']")
    assert foot is not None
    lines = [text.text for text in foot.iter(f"{SVG}text")]
    assert lines == ["Only in the base", "35.0 %, 14 samples: gone (b.py:4), below main"]


def test_many_vanished_frames_are_counted():
    rows = [(None, "main", None, None, True, 9, 9, 0, 9)]
    rows += [(0, f"gone {at}", None, None, True, 0, 0, 0, 1) for at in range(40)]
    drawn = flamegraph.svg(flame(rows))
    assert drawn.count("below main") == 15
    assert "277.8 %: 25 more" in drawn


def test_names_fit_their_box():
    root = _parsed(flamegraph.svg(chain(["x" * 10_000, "y" * 200])))
    for label in root.findall(f".//{SVG}g[@class='names']/{SVG}svg"):
        text = label.findtext(f"{SVG}text") or ""
        assert text.endswith("…")
        assert len(text) * 7.3 <= float(label.get("width", 0))


def test_long_name_is_shortened_in_its_title():
    assert len(flamegraph.svg(chain(["x" * 10_000]))) < len(flamegraph.svg(chain(["x"]))) + 2_000


def test_empty_flame_graph():
    root = _parsed(flamegraph.svg(flame([])))
    assert root.findtext(f"{SVG}desc") == "Nothing to draw."
    assert _boxes(root) == []


@pytest.mark.matrix
def test_deep_stack():
    root = _parsed(flamegraph.svg(chain([f"f{at}" for at in range(20_000)])))
    assert len(_boxes(root)) == 20_000


def test_size_of_ten_thousand_boxes():
    rows = [(None, "main", "train.py:1", None, True, 0, 30_000, 0, None)]
    for at in range(9_999):
        place = f"site/package{at % 40}/module_{at % 300}.py:{at % 900}"
        caller = at // 3
        name = f"Something.forward_{at % 500}"
        rows.append((caller, name, place, f"p{at % 40}", False, 1, 30_000 // (at + 2) + 1, 0, None))
    text = flamegraph.svg(flame(rows))
    assert len(_boxes(_parsed(text))) == 10_000
    assert len(text) < 2_000_000


# --- texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1, "samples", "1 sample"),
        (1234, "samples", "1,234 samples"),
        (0.5, "samples", "0.50 samples"),
        (0.0004, "samples", "0.0004 samples"),
        (7_640_000, "ns", "7.64 ms"),
        (26_528_973, "bytes", "25.3 MiB"),
        (3, "", "3"),
    ],
)
def test_weights_have_units(value, unit, text):
    assert format_weight(value, unit) == text


def test_small_share_is_not_zero():
    assert share(1, 10_000) == "< 0.1 %"
    assert share(0, 10_000) == share(0, 0) == "0.0 %"


def test_description_of_times_and_comparisons():
    box = lay_out(training(unit="ns")).boxes[3]
    assert (
        flamegraph.describe(box, 100, "ns") == "50 ns, 50.0 % of all, 55.6 % of parent, self 10 ns"
    )
    grew = next(box for box in lay_out(compared()).boxes if box.name == "grew")
    assert flamegraph.describe(grew, 40, "samples").endswith("base 25.0 %")


# --- names from elsewhere --------------------------------------------------------------------


@given(st.lists(st.text(), min_size=1, max_size=6), st.text())
@settings(deadline=None, max_examples=60)
def test_document_is_well_formed_for_any_names(names, title):
    names = [name.encode("utf-8", "replace").decode() for name in names]  # as polars holds them
    text = flamegraph.svg(chain(names, title=title, subtitle=title))
    root = _parsed(text)
    assert len(_titles(root)) == len(names)
    assert all(2 <= len(lines) <= 3 for lines in _titles(root))
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {
        *("svg", "style", "title", "desc", "metadata", "defs", "pattern", "rect", "path", "g"),
        *("text", "script"),
    }


@pytest.mark.parametrize("name", [*HOSTILE, "a]]>b", "\ufffe\uffff", "a\nb\r\nc"])
def test_hostile_names_are_text(name):
    text = flamegraph.svg(chain(["main", name], title=name, subtitle=name))
    root = _parsed(text)
    assert len(root.findall(f".//{SVG}script")) == 1
    assert not [a for node in root.iter() for a in node.attrib if a.startswith("on")]
    assert "\u202e" not in text
    assert "\x00" not in text


def test_viewer_can_be_embedded():
    source = flamegraph.VIEWER.script() + flamegraph.VIEWER.style()
    assert "]]>" not in source
    assert "</" not in source
    assert "<!--" not in source
    assert not re.search(r"\b(innerHTML|eval|Function|fetch|XMLHttpRequest|import)\b", source)
    assert "http" not in re.sub(r"http://www\.w3\.org/(2000/svg|1999/xhtml)", "", source)


# --- legibility ------------------------------------------------------------------------------


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, two: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(two)))
    return (light + 0.05) / (dark + 0.05)


def test_names_are_legible_on_every_fill():
    inks = re.findall(r"--ink: (#\w{6})", flamegraph.VIEWER.style())
    hits = re.findall(r"--hit: (#\w{6})", flamegraph.VIEWER.style())
    assert inks[0] == flamegraph.INK
    assert len(inks) == len(hits) == 2
    for light, dark in [*flamegraph.FILLS.items(), tuple(hits)]:
        assert _contrast(light, inks[0]) >= 4.5
        assert _contrast(dark, inks[1]) >= 4.5


# --- by way of a result ----------------------------------------------------------------------


def test_a_result_with_a_flame_renders_to_svg():
    drawn = render(Flames(burning=(training(),)), "svg")
    assert drawn.decode() == flamegraph.svg(training())


def test_unsupported_images_are_refused():
    with raises_wording(OptionError):
        render(Flames(burning=(training(),)), "png")
    with raises_wording(OptionError):
        render(Flames(burning=(training(), compared())), "svg")


def test_page_with_several_flame_graphs_has_unique_ids():
    page = html.page(Flames(table_list=(groups(),), burning=(training(), compared())))
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert len([key for key in ids if key.startswith("flame-")]) == 6
    assert page.count("<script>") == 1
    assert f"script-src {flamegraph.VIEWER.script_hash()}" in page
    assert "Communication by group" in page


def test_page_without_flame_graphs_has_no_script():
    page = html.page(Flames(table_list=(groups(),)))
    assert "script" not in page


def test_page_lists_the_widest_boxes():
    page = html.page(Flames(burning=(training(),)))
    lines = page[page.index("<pre") : page.index("</pre>")].split("\n")
    assert lines[3].split() == ["50.0", "%", "50", "samples", "forward", "(torch/nn/conv.py:5)"]
    assert len(lines[3]) - len(lines[3].split("samples  ")[1].lstrip()) > len("50.0 %  50 samples")
    assert "0 narrower or deeper boxes" in page


def test_hostile_names_in_a_page():
    hostile = chain(list(HOSTILE), title=HOSTILE[0], subtitle=HOSTILE[1])
    page = html.page(replace(Flames(), burning=(hostile,)))
    assert page.count("<script") == 1
    assert "<img" not in page
