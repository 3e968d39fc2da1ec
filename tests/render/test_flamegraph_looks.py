"""Flame graphs in a browser: appearance and embedding."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from browser import cleared, complaints, prefer, resize, visit
from flame_page import Page, opener
from flames import Flames, chain, compared, flame, training
from sample_results import HOSTILE

from traceanalyzer.render import flamegraph, html


@pytest.fixture(scope="module")
def window(chromium_window):
    return cleared(chromium_window)


@pytest.fixture
def viewer(window, tmp_path):
    yield from opener(window, tmp_path)


def _brightness(colour):
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_colour_scheme(viewer, window, scheme, dark):
    page = viewer(training())
    prefer(window, scheme)
    fill = "return getComputedStyle(document.querySelector(arguments[0])).fill"
    assert (_brightness(window.execute_script(fill, ".paper")) < 60) is dark
    assert (_brightness(window.execute_script(fill, ".names text")) > 200) is dark
    box = page.find("forward").value_of_css_property("fill")
    assert (_brightness(box) < 120) is dark


def test_drawing_fits_the_window(viewer, window):
    page = viewer(training())
    for width in (1200, 500):
        resize(window, width, 800)
        assert page.find("all").rect["width"] == pytest.approx(width, abs=2)
        wide = "return document.documentElement.scrollWidth"
        assert window.execute_script(wide) <= width
        fits = """return Array.from(document.querySelectorAll('.names text'), (text) =>
          text.getComputedTextLength() + 3 <= text.parentNode.width.baseVal.value)"""
        assert all(window.execute_script(fits))
    assert page.text(".bar h2") == "A small training"


def test_thin_boxes_leave_no_gap(viewer, window):
    rows = [(None, "main", None, None, True, 0, 6000, 0, None)]
    rows += [(0, f"thin {at}", None, None, True, 1, 1, 0, None) for at in range(6000)]
    viewer(flame(rows))
    edges = window.execute_script("""
      return Array.from(document.querySelectorAll('.boxes > rect:not(:first-child)'), (box) =>
        [box.x.baseVal.value, box.x.baseVal.value + box.width.baseVal.value])""")
    assert 1150 < len(edges) < 1250
    assert max(two[0] - one[1] for one, two in pairwise(edges)) < 0.5
    assert edges[0][0] < 0.5
    assert edges[-1][1] > 1199


def test_tooltip_stays_in_the_window(viewer, window):
    from selenium.webdriver import ActionChains

    page = viewer(training())
    ActionChains(window).move_to_element(page.find("run")).perform()
    tip = window.find_element("css selector", ".tip")
    assert tip.text.split("\n") == [
        "run",
        "threading.py:8",
        "10 samples, 10.0 % of all, 10.0 % of parent, self 0 samples (0.0 %)",
    ]
    assert tip.rect["x"] + tip.rect["width"] <= 1200
    assert not page.boxes()[0][3]


def test_header_stays_visible(viewer, window):
    viewer(chain([f"function {at}" for at in range(200)]))
    window.execute_script("scrollTo(0, 2000)")
    top = "return document.querySelector('.bar').getBoundingClientRect().top"
    window.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert window.execute_script(top) == pytest.approx(0, abs=1)


def test_hostile_names_are_text(viewer, window):
    page = viewer(chain(["main", *HOSTILE], title=HOSTILE[0], subtitle=HOSTILE[1]))
    assert window.execute_script("return document.querySelectorAll('script').length") == 1
    assert window.find_elements("css selector", "img, iframe") == []
    assert page.text("h2") == HOSTILE[0]
    for box in window.find_elements("css selector", ".boxes > rect")[1:]:
        window.execute_script("arguments[0].focus()", box)
        assert page.text(".status")
    page.search("script")
    page.click("main")
    page.press("c", "f", "i", "0")
    assert window.execute_script("return document.title") == HOSTILE[0]


def test_empty_flame_graph(viewer):
    page = viewer(flame([]))
    page.search("a")
    page.press("0")
    for label in ("Focus", "Callers", "Roots at bottom", "Reset"):
        page.button(label)
    assert page.boxes() == []


# --- without scripts, and in a page ----------------------------------------------------------


def test_readable_without_scripts(viewer, window):
    window.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        viewer(training())
        boxes = window.find_elements("css selector", ".boxes > rect")
        names = [text.text for text in window.find_elements("css selector", ".names text")]
        titles = [box.find_element("css selector", "title") for box in boxes]
        assert "forward" in titles[3].get_attribute("textContent")
    finally:
        window.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert boxes[0].rect["width"] == pytest.approx(1200, abs=2)
    assert {"all", "<module>", "main", "forward", "load"} <= set(names)


def test_readable_with_a_strict_policy(window, tmp_path):
    prefer(window, "light")
    policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
    drawn = flamegraph.inline(training(), "flame")
    page = f"<!doctype html>{policy}<style>{flamegraph.VIEWER.style()}</style>{drawn}"
    visit(window, tmp_path / "page.html", f"{page}<script>{flamegraph.VIEWER.script()}</script>")
    assert sum("Content Security Policy" in message for message in complaints(window)) == 2
    boxes = window.find_elements("css selector", ".boxes > rect")
    assert len(boxes) == 12
    assert boxes[3].value_of_css_property("fill") == "rgb(175, 218, 255)"
    assert boxes[3].rect["width"] == pytest.approx(600, abs=1)


def test_two_flame_graphs_on_a_page(window, tmp_path):
    resize(window, 1200, 800)
    path = tmp_path / "page.html"
    requested = visit(window, path, html.page(Flames(burning=(training(), compared()))))
    assert [url for url in requested if not url.startswith("data:")] == [path.as_uri()]
    first, second = window.find_elements("css selector", "svg.flame")
    second.find_element("css selector", "rect[aria-label^='grew']").click()
    width = "return arguments[0].querySelector('rect[aria-label^=\"' + arguments[1] + '\"]')"
    attribute = f"{width}.getAttribute('width')"
    assert window.execute_script(attribute, second, "grew") == "100%"
    assert window.execute_script(attribute, first, "forward") == "50%"
    assert window.execute_script("return location.hash") == "#1.zoom=1"
    Page(window).press("0")
    assert window.execute_script(attribute, second, "grew") == "50%"
    first.find_element("css selector", "rect[aria-label^='forward']").click()
    second.find_element("css selector", "rect[aria-label^='grew']").click()
    Page(window).press("0")
    assert window.execute_script(attribute, first, "forward") == "100%"
    window.find_element("css selector", "summary").click()
    assert "forward (torch/nn/conv.py:5)" in window.find_element("css selector", "pre").text
    assert complaints(window) == []
