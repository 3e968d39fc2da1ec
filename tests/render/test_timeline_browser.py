"""The timeline in a browser: drawing and interaction."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import pytest
from browser import cleared, complaints, prefer, resize, visit
from conftest import once
from timelines import RANKS, STEP, of_many

from traceanalyzer.analyzers.timeline.compute import timeline
from traceanalyzer.render import html

#: The state painted most in the column of a moment of a row.
PAINTED = """
const { picture, plan, timeline } = document.querySelector('.timeline').viewer;
const [place, moment] = arguments, x = Math.round(picture.x(moment));
const context = picture.canvas.getContext('2d');
const pixels = context.getImageData(x, picture.y(place), 1, plan.row).data, counts = {};
for (let y = 0; y < plan.row; y++) {
  const [red, green, blue] = pixels.slice(4 * y, 4 * y + 3);
  const color = '#' + [red, green, blue].map((one) => one.toString(16).padStart(2, '0')).join('');
  const known = timeline.stateKinds.find(([, , light, dark]) => [light, dark].includes(color));
  const state = known ? known[0] : color;
  counts[state] = (counts[state] ?? 0) + 1;
}
return Object.entries(counts).sort((a, b) => b[1] - a[1])[0][0];
"""
#: Where a moment of a row is in the window.
PLACE = """
const { picture, plan, plot } = document.querySelector('.timeline').viewer;
const box = plot.getBoundingClientRect();
return [box.left + picture.x(arguments[1]), box.top + picture.y(arguments[0]) + plan.row / 2];
"""
VIEWER = "document.querySelector('.timeline').viewer"
#: The least contrast of a name on its block, as WCAG defines it, of all names drawn anew.
LEAST_CONTRAST = """
const { viewer } = document.querySelector('.timeline'), { context } = viewer.picture, found = [];
const weights = [0.2126, 0.7152, 0.0722];
const light = (rgb) => weights.reduce((sum, one, at) => sum + one * (rgb[at] / 255) ** 2.2, 0.05);
context.fillText = function (text, x, y) {
  if (this.font.startsWith('10px')) {
    const rgb = [1, 3, 5].map((at) => parseInt(this.fillStyle.slice(at, at + 2), 16));
    const ratio = light(this.getImageData(x + 2, y, 1, 1).data) / light(rgb);
    found.push(Math.max(ratio, 1 / ratio));
  }
};
viewer.show();
delete context.fillText;
return found.length ? Math.min(...found) : null;
"""


@pytest.fixture(scope="module")
def window(chromium_window):
    return cleared(chromium_window)


class Page:
    def __init__(self, window, path: Path, content: str):
        self.window = window
        resize(window, 1400, 900)
        self.requests = visit(window, path, content)
        window.execute_async_script(
            f"const poll = () => ({VIEWER} ? arguments[0]() : setTimeout(poll, 20)); poll();"
        )

    def run(self, script: str, *arguments):
        return self.window.execute_script(script, *arguments)

    @property
    def view(self) -> list[float]:
        return self.run(f"return {VIEWER}.view")

    def pointer(self, kind: str, lane: int, moment: float, **more) -> None:
        """Send a pointer event at a moment of a row."""
        x, y = self.run(PLACE, lane, moment)
        script = f"{VIEWER}.plot.dispatchEvent(new PointerEvent(arguments[0], arguments[1]))"
        self.run(script, kind, {"clientX": x, "clientY": y, "bubbles": True, **more})

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).innerText", selector)


@pytest.fixture
def page(window, tmp_path: Path) -> Page:
    return Page(window, tmp_path / "timeline.html", once(html.page, once(timeline, RANKS)))


def test_page_is_drawn_without_requests(page: Page) -> None:
    assert page.requests == [(page.window.current_url)]
    assert complaints(page.window) == []
    middle = 35_000_000  # rank 5 loads data, the others wait for it
    assert page.run(PAINTED, 5, middle) == "dataloading"
    assert page.run(PAINTED, 4, middle) == "waiting"


def test_legend_lists_the_states_that_occur(page: Page) -> None:
    text = page.text(".timeline .keys")
    assert "waiting for another rank" in text
    assert "idle: data loading" in text


def test_pointer_shows_what_a_rank_does(page: Page) -> None:
    page.pointer("pointermove", 4, 40_000_000)
    tip = page.text(".timeline .tip")
    for part in ("rank 4", "waiting for rank 5", "all_gather", "64 MiB", "ProfilerStep#12"):
        assert part in tip
    page.pointer("pointermove", 5, 35_000_000)
    assert "_MultiProcessingDataLoaderIter" in page.text(".timeline .tip")


def test_drag_zooms_and_keys_move(page: Page) -> None:
    whole = page.view
    page.pointer("pointerdown", 0, 40_000_000, pointerId=1)
    page.pointer("pointermove", 0, 60_000_000, pointerId=1)
    page.pointer("pointerup", 0, 60_000_000, pointerId=1)
    view = page.view
    assert view == pytest.approx([40_000_000, 60_000_000], rel=0.01)
    key = f"{VIEWER}.plot.dispatchEvent(new KeyboardEvent('keydown', {{ key: arguments[0] }}))"
    page.run(key, "ArrowRight")
    assert page.view[0] == pytest.approx(view[0] + 2_000_000, rel=0.01)
    page.run(key, "+")
    assert page.view[1] - page.view[0] == pytest.approx(10_000_000, rel=0.01)
    page.run(key, "0")
    assert page.view == whole


def test_click_keeps_the_description(page: Page) -> None:
    page.pointer("pointerdown", 5, 35_000_000, pointerId=1)
    page.pointer("pointerup", 5, 35_000_000, pointerId=1)
    assert "rank 5" in page.text(".timeline .pinned")
    page.run("document.querySelector('.timeline .pinned button').click()")
    assert page.text(".timeline .pinned") == ""


@pytest.mark.parametrize("width", [800, 1280])
def test_tooltip_leaves_the_kept_description_visible(page: Page, width: int) -> None:
    resize(page.window, width, 800)
    last = page.run(f"return {VIEWER}.timeline.order.at(-1)")
    for kind in ("pointerdown", "pointerup", "pointermove"):
        page.pointer(kind, last, 35_000_000, pointerId=1)
    box = "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()"
    tip, kept = (page.run(box, f".timeline {name}") for name in (".tip.visible", ".pinned"))
    assert kept["height"] > 0
    assert tip["bottom"] <= kept["top"]
    assert tip["top"] >= 0


def test_keys_describe_rows(page: Page) -> None:
    press = f"{VIEWER}.plot.dispatchEvent(new KeyboardEvent('keydown', {{ key: arguments[0] }}))"
    described = []
    for key in ("ArrowUp", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.run(press, key)
        described.append(page.text(".pinned dd"))
    assert described == [f"rank {n} (host0)" for n in (0, 1, 2, 1)]


def test_rows_are_sorted(page: Page) -> None:
    page.run("document.querySelector('[data-by=lost]').click()")
    assert page.run(f"return {VIEWER}.timeline.order[0]") == 5
    page.run("document.querySelector('[data-by=rank]').click()")
    assert page.run(f"return {VIEWER}.timeline.order") == list(range(9))  # with the critical path


def test_steps_as_a_heat_map(page: Page) -> None:
    page.run(f"{VIEWER}.measure('waiting for other ranks')")
    rows = page.run(f"return {VIEWER}.timeline.measured('waiting for other ranks').rows")
    waits = once(timeline, RANKS).states.filter(state="waiting", lane=4)
    assert sum(rows[4]) == pytest.approx(waits.select(pl.col("end") - pl.col("start")).sum().item())
    assert max(rows[4]) == max(rows[4][2], rows[4][5])  # ProfilerStep#12 and #15
    for _ in range(40):  # until the heat map is drawn
        page.pointer("pointermove", 4, 2.5)
        if "not recorded" not in page.text(".timeline .tip"):
            break
        time.sleep(0.05)
    assert "ProfilerStep#12" in page.text(".timeline .tip")
    page.pointer("pointerdown", 4, 2.5, pointerId=1)
    page.pointer("pointerup", 4, 2.5, pointerId=1)
    step = once(timeline, RANKS).steps.filter(lane=4).row(2, named=True)
    assert page.view[0] < step["start"] < step["end"] < page.view[1]


@pytest.mark.matrix
def test_findings_of_a_report_are_marked(window, tmp_path: Path) -> None:
    from traceanalyzer import report
    from traceanalyzer.render.html import page as report_page

    page = Page(window, tmp_path / "report.html", report_page(once(report, RANKS)))
    numbers = {mark[3] for mark in page.run(f"return {VIEWER}.timeline.marks")}
    links = page.run(
        "return [...document.querySelectorAll('[data-mark]')].map((one) => one.dataset.mark)"
    )
    assert {str(number) for number in numbers} == set(links)
    whole = page.view
    page.run("document.querySelector('[data-mark=\"2\"]').click()")
    assert page.view[1] - page.view[0] < whole[1] - whole[0]
    assert complaints(window) == []


@pytest.mark.matrix
def test_sixty_four_ranks_fit_one_screen(window, tmp_path: Path) -> None:
    page = Page(window, tmp_path / "many.html", html.page(of_many()))
    assert page.run(f"return {VIEWER}.plan.height") < 700
    assert page.run(PAINTED, 37, 1_000_000) == "dataloading"
    assert page.run(PAINTED, 36, STEP - 1_000_000) == "transfer"
    labelled = page.run(f"return [...{VIEWER}.timeline.labelled.keys()]")
    assert 37 in labelled
    page.pointer("pointermove", 36, 7_000_000)
    assert "waiting for rank 37" in page.text(".timeline .tip")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1400])
def test_width_and_colours(page: Page, scheme: str, width: int) -> None:
    prefer(page.window, scheme)
    resize(page.window, width, 800)
    page.run(f"{VIEWER}.show()")
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.run(PAINTED, 4, 40_000_000) == "waiting"
    prefer(page.window, "light")


def test_critical_path_is_a_row_and_a_line_below_rows(page: Page) -> None:
    rows = once(timeline, RANKS).path.filter(kind="data loading")
    start, end = rows.sort(pl.col("end") - pl.col("start"))[-1].select("start", "end").row(0)
    middle = (start + end) / 2
    assert page.run(PAINTED, 8, middle) == "dataloading"
    below = """
const { picture, plan } = document.querySelector('.timeline').viewer;
const x = Math.round(picture.x(arguments[1])), y = picture.y(arguments[0]) + plan.row + 1;
return picture.canvas.getContext('2d').getImageData(x, Math.round(y), 1, 1).data[3];"""
    assert [page.run(below, place, middle) > 0 for place in range(8)] == [n == 5 for n in range(8)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_are_legible_on_their_blocks(window, tmp_path: Path, scheme: str) -> None:
    prefer(window, scheme)
    page = Page(window, tmp_path / "names.html", html.page(once(timeline, RANKS)))
    assert page.run(LEAST_CONTRAST) >= 3.5
