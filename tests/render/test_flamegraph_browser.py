"""Flame graphs in a browser: interaction."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from browser import cleared, complaints, visit
from flame_page import Page, opener
from flames import compared, flame, training

from traceanalyzer.render import html
from traceanalyzer.result import Result, View


@pytest.fixture(scope="module")
def window(chromium_window):
    return cleared(chromium_window)


@pytest.fixture
def viewer(window, tmp_path):
    yield from opener(window, tmp_path)


WHOLE = [("all", 100)]


def test_page_opens_with_everything_drawn(viewer):
    page = viewer(training())
    assert page.row(0) == WHOLE
    assert page.row(1) == [("<module>", 90), ("run", 10)]
    assert page.row(3) == [("forward", 50), ("load", 32), ("(7 frames below 1 %)", 3)]
    assert page.text("h2") == "A small training"
    assert "own code" in page.text(".keys")


# --- zoom ------------------------------------------------------------------------------------


def test_click_zooms_and_reset(viewer):
    page = viewer(training())
    page.click("forward")
    assert page.row(3) == [("forward", 100)]
    assert page.row(4) == [("forward", 60), ("relu", 20)]
    assert [name for name, _, _, kind in page.boxes() if "caller" in kind] == [
        "all", "<module>", "main",
    ]  # fmt: skip
    assert page.text(".path").split() == ["all", "<module>", "main", "forward"]
    page.button("Reset")
    assert page.row(3)[0] == ("forward", 50)
    assert page.fragment in ("", "#")


def test_double_click_zooms_once(viewer):
    from selenium.webdriver import ActionChains

    page = viewer(training())
    ActionChains(page.window).double_click(page.find("load")).perform()
    assert page.row(3) == [("load", 100)]
    page.window.back()
    assert page.row(3)[0] == ("forward", 50)


def test_path_zooms_out(viewer):
    page = viewer(training())
    page.click("forward")
    page.button("main")
    assert page.row(2) == [("main", 100)]
    assert page.row(3)[0] == ("forward", 55.6)


# --- keys ------------------------------------------------------------------------------------


def test_keys(viewer):
    from selenium.webdriver import Keys

    page = viewer(training())
    page.press(Keys.ARROW_DOWN)
    assert page.focused == "all"
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert page.focused == "run"
    page.press(Keys.ARROW_LEFT, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert page.focused == "forward"
    assert "50 samples, 50.0 % of all, 55.6 % of parent, self 10" in page.text(".status")
    ring = page.window.find_element("css selector", ".ring")
    assert ring.get_attribute("visibility") == "visible"
    assert ring.get_attribute("width") == page.find("forward").get_attribute("width")
    page.press(Keys.ENTER)
    assert page.row(3) == [("forward", 100)]
    assert page.focused == "forward"
    page.press("/", "relu")
    assert page.text(".matched") == "30.0 % of all matched"
    page.press(Keys.ESCAPE)
    assert page.row(3)[0] == ("forward", 50)
    assert page.text(".matched") == ""
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    assert page.row(1) == [("<module>", 100)]
    page.press("0")
    assert page.row(1) == [("<module>", 90), ("run", 10)]


def test_one_box_is_in_the_tab_order(viewer):
    page = viewer(training())
    page.click("load")
    stops = page.window.find_elements("css selector", ".boxes > [tabindex='0']")
    assert [stop.get_attribute("aria-label") for stop in stops] == ["load, 32 samples"]


def test_the_first_tab_selects_a_box(viewer):
    from selenium.webdriver import Keys

    page = viewer(training())
    page.press(Keys.TAB)
    script = "return document.activeElement.getAttribute('role')"
    assert page.window.execute_script(script) == "treeitem"


def test_browser_shortcuts_are_not_captured(viewer):
    from selenium.webdriver import ActionChains, Keys

    page = viewer(training())
    page.click("load")
    ActionChains(page.window).key_down(Keys.CONTROL).send_keys("0").key_up(Keys.CONTROL).perform()
    assert page.row(3) == [("load", 100)]


# --- search ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "share"),
    [
        ("forward", "50.0 %"),  # calls itself: counted once
        ("forward|relu", "60.0 %"),
        ("RELU", "30.0 %"),
        (r"^main train\.py", "90.0 %"),  # name and place
        ("nothing", "0.0 %"),
    ],
)
def test_search_shows_the_matched_share(viewer, pattern, share):
    page = viewer(training())
    page.search(pattern)
    assert page.text(".matched") == f"{share} of all matched"


def test_search_highlights_matches(viewer):
    page = viewer(training())
    page.search("relu")
    kinds = {name: kind for name, _, _, kind in page.boxes()}
    assert kinds["relu"] == "hit"
    assert kinds["forward"] == "miss"
    page.search("")
    assert {kind for _, _, _, kind in page.boxes()} == {""}


def test_search_matches_case_on_request(viewer):
    page = viewer(training())
    page.search("RELU")
    page.button("Aa")
    assert page.text(".matched") == "0.0 % of all matched"
    assert "case=1" in page.fragment


def test_invalid_pattern_is_reported(viewer):
    page = viewer(training())
    page.search("(")
    assert "not a regular expression" in page.text(".matched")
    assert page.row(0) == WHOLE


# --- views -----------------------------------------------------------------------------------


def test_inverted_direction(viewer):
    page = viewer(training())
    page.button("Roots at bottom")
    rows = {name: row for name, _, row, _ in page.boxes()}
    assert rows["all"] == max(rows.values()) == 5
    assert rows["run"] == 4
    page.press("i")
    assert page.row(0) == WHOLE


def test_callers_and_callees(viewer):
    page = viewer(training())
    page.click("relu")
    page.button("Callers")
    rows = {}
    for name, width, row, _ in page.boxes():
        rows.setdefault(row, []).append((name, width))
    middle = next(row for row, boxes in rows.items() if boxes == [("relu", 100)])
    # twice below forward, once of these below the inner one; once below run
    assert rows[middle - 1] == [("forward", 33.3), ("forward", 33.3), ("run", 33.3)]
    assert middle + 1 not in rows
    assert "callers and callees of relu" in page.text(".path")


def test_recursion_counts_once_in_callers(viewer):
    page = viewer(training(), "#view=callers&of=3")
    assert page.find("forward").get_attribute("aria-label") == "forward, 50 samples"
    middle = next(row for name, width, row, _ in page.boxes() if (name, width) == ("forward", 100))
    assert page.row(middle - 1) == [("main", 100)]
    assert page.row(middle + 1) == [("forward", 60), ("relu", 20)]
    page.click("main")
    assert "callers and callees of main" in page.text(".path")
    page.button("all stacks")
    assert page.row(1) == [("<module>", 90), ("run", 10)]


def test_callers_in_an_inverted_tree(viewer):
    rows = [
        (None, "leaf", None, None, True, 0, 10, 0, None),
        (0, "middle", None, None, True, 0, 10, 0, None),
        (1, "root", None, None, True, 10, 10, 0, None),
    ]
    page = viewer(flame(rows, inverted=True), "#view=callers&of=1")
    assert [name for name, _, _, _ in sorted(page.boxes(), key=lambda box: box[2])] == [
        "root", "middle", "leaf",
    ]  # fmt: skip


def test_focus(viewer):
    page = viewer(training())
    page.click("relu")
    page.press("f")
    assert page.find("all").get_attribute("aria-label") == "all, 30 samples"
    assert page.row(1) == [("<module>", 66.7), ("run", 33.3)]
    assert "load" not in {name for name, _, _, _ in page.boxes()}
    page.press("f")
    assert page.row(1) == [("<module>", 90), ("run", 10)]


def hiding():
    """100 samples: 40 in libraries below own code, 20 imports, 10 of a thread, 30 own."""
    return flame([
        (None, "<module>", "train.py:30", None, True, 0, 90, 0, None),  # 0
        (0, "main", "train.py:4", None, True, 20, 70, 0, None),  # 1
        (1, "forward", "torch/nn/conv.py:5", "torch", False, 10, 50, 0, None),  # 2
        (2, "hook", "train.py:9", None, True, 10, 25, 0, None),  # 3
        (3, "mm", "torch/x.py:1", "torch", False, 15, 15, 0, None),  # 4
        (2, "relu", "torch/nn/relu.py:2", "torch", False, 15, 15, 0, None),  # 5
        (0, "import torch", "<frozen importlib._bootstrap>:7", None, False, 5, 20, 0, None),  # 6
        (6, "load", "torch/__init__.py:1", "torch", False, 15, 15, 0, None),  # 7
        (None, "run", "threading.py:8", "standard library", False, 10, 10, 0, None),  # 8
    ])  # fmt: skip


def label(page, name):
    return page.find(name).get_attribute("aria-label")


def test_imports_are_hidden_on_request(viewer):
    page = viewer(hiding())
    page.button("Hide imports")
    assert label(page, "<module>") == "<module>, 70 samples"
    assert page.row(1) == [("<module>", 87.5), ("run", 12.5)]
    assert "import torch" not in {name for name, *_ in page.boxes()}
    assert "imports=1" in page.fragment
    page.button("Hide imports")
    assert page.row(1) == [("<module>", 90), ("run", 10)]


def test_library_code_is_added_to_its_caller(viewer):
    page = viewer(hiding())
    page.button("Hide library code")
    assert [name for name, *_ in page.boxes()] == ["all", "<module>", "main", "hook", "run"]
    page.press("/", "main|hook")
    assert page.text(".matched") == "70.0 % of all matched"
    page.press("\ue00c")
    assert len(page.boxes()) == 9 + 1


def test_only_own_code(viewer):
    page = viewer(hiding())
    page.button("Own code only")
    assert [name for name, *_ in page.boxes()] == ["own code", "<module>", "main", "hook"]
    assert label(page, "own code") == "own code, 90 samples"
    page.click("hook")
    assert "25 samples, 27.8 % of all" in page.text(".status")
    page.button("Hide imports")
    assert label(page, "own code") == "own code, 70 samples"
    again = viewer(hiding(), "#onlyOwn=1&view=focus&of=5&zoom=2")
    assert [name for name, *_ in again.boxes()] == ["own code", "<module>", "main", "hook"]
    again.button("Reset")
    assert len(again.boxes()) == 9 + 1


def test_views_work_without_the_hidden_code(viewer):
    page = viewer(hiding(), "#libraries=1")
    page.click("hook")
    page.button("Callers")
    assert {name for name, *_ in page.boxes()} == {"all", "<module>", "main", "hook"}
    page.button("Callers")
    page.button("Focus")
    assert page.row(0) == [("all", 100)]
    assert label(page, "main") == "main, 25 samples"


def test_buttons_without_use_are_hidden(viewer):
    buttons = "button:not([hidden])"
    page = viewer(training())
    texts = [one.text for one in page.window.find_elements("css selector", buttons)]
    assert "Hide imports" not in texts
    assert "Own code only" in texts
    page = viewer(flame([(None, "f", "a.py:1", None, True, 5, 5, 0, None)]))
    texts = [one.text for one in page.window.find_elements("css selector", buttons)]
    assert not {"Hide imports", "Hide library code", "Own code only"} & {*texts}


def test_comparison_shows_the_base(viewer):
    page = viewer(compared())
    page.click("grew")
    assert "base 25.0 % of all, now +25.0 points" in page.text(".status")
    page.press("0")
    assert page.row(1) == [("grew", 50), ("new", 30), ("shrank", 20)]
    foot = page.window.find_element("css selector", ".foot")
    stage = page.window.find_element("css selector", ".stage")
    assert "gone (b.py:4)" in foot.text
    assert foot.rect["y"] >= stage.rect["y"] + stage.rect["height"]


# --- the address -----------------------------------------------------------------------------


def test_state_is_stored_in_the_address(viewer):
    page = viewer(training())
    page.button("Roots at bottom")
    page.search("relu")
    page.click("forward", 1)
    before, fragment = page.boxes(), page.fragment
    assert {"find=relu", "order=flame"} < set(fragment[1:].split("&"))
    again = viewer(training(), fragment)
    assert again.boxes() == before
    assert again.text(".matched") == "30.0 % of all matched"


@pytest.mark.parametrize(
    "fragment", ["#zoom=length", "#view=x&of=2", "#view=focus&of=-1", "#zoom=99&of=NaN", "#%ff&&="]
)
def test_invalid_address_shows_everything(viewer, fragment):
    page = viewer(training(), fragment)
    assert page.row(1) == [("<module>", 90), ("run", 10)]


# --- in a notebook -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn(Result):
    def view(self):
        return View("Where?", "There.", flames=lambda: (training(),))


TIP = """
const [[last], tip] = [[...document.querySelectorAll('.boxes > rect')].slice(-1), '.flame .tip'];
const box = last.getBoundingClientRect(), at = { clientX: box.x + 1, clientY: box.y + 1 };
last.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, ...at }));
const { bottom } = document.querySelector(`${tip}.visible`).getBoundingClientRect();
const root = document.querySelector('svg.flame'), { overflow } = getComputedStyle(root);
return { bottom, end: root.getBoundingClientRect().bottom, overflow };
"""


def test_tooltip_below_the_last_row_is_not_cut(window, tmp_path):
    visit(window, tmp_path / "page.html", html.page(Drawn()))
    size = window.execute_script(TIP)
    assert size["bottom"] > size["end"]
    assert size["overflow"] == "visible"


def test_notebook_frame_is_isolated(window, tmp_path):
    notebook = f"<!doctype html><body>{Drawn()._repr_html_()}</body>"
    assert visit(window, tmp_path / "notebook.html", notebook) == [
        (tmp_path / "notebook.html").as_uri()
    ]
    window.switch_to.frame(window.find_element("css selector", "iframe"))
    page = Page(window)
    assert page.row(3)[0] == ("forward", 50)
    page.click("forward")
    assert page.row(3) == [("forward", 100)]
    with pytest.raises(Exception, match="cross-origin"):
        window.execute_script("return parent.document.title")
    window.switch_to.default_content()
    assert complaints(window) == []
