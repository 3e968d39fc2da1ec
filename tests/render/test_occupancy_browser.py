"""Memory over time in a browser: drawing and interaction."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from browser import cleared, complaints, prefer, resize, visit
from flames import training as burning
from occupancies import BREAKOUT, Memory, empty, hostile, large, plain, training

from traceanalyzer.render import html
from traceanalyzer.render.occupancy import columns, lay_out, stack

STACKS = """
const { memory } = document.querySelector('.occupancy').viewer;
return Array.from(memory.event, (_, level) => memory.stackAt(level));
"""
LEVELS = """
const { viewer } = document.querySelector('.occupancy');
return Array.from(viewer.memory.columns(viewer.view, arguments[0], viewer.timed));
"""
# Painted pixels of each column, and how many bytes high they are.
PAINTED = """
const { stage } = document.querySelector('.occupancy').viewer, { width, height } = stage.canvas;
const pixels = stage.canvas.getContext('2d').getImageData(0, 0, width, height).data;
return [Array.from(stage.levels), Array.from({ length: width }, (_, x) => {
  let count = 0;
  for (let y = 0; y < height; y++) count += pixels[4 * (y * width + x) + 3] === 255;
  return count / stage.scale;
}), 1 / stage.scale];
"""
# Where a box or block is on the screen: the middle of what is seen of it, from the window's corner.
BOX = """
const { stage, memory } = document.querySelector('.occupancy').viewer;
const bottom = memory.bottoms(arguments[0]), from = memory.first[arguments[0]];
const columns = Array.from(stage.levels).map((level, column) => [level, column])
  .filter(([level]) => bottom[level - from] !== undefined);
const [level, column] = columns[columns.length >> 1], at = stage.canvas.getBoundingClientRect();
const height = bottom[level - from] + memory.size[arguments[0]] / 2;
return [at.left + column + 0.5, at.bottom - height * stage.scale];
"""


class Page:
    """Actions and content of the first figure of a page."""

    def __init__(self, window):
        self.window = window

    def run(self, script, *arguments):
        return self.window.execute_script(script, *arguments)

    @property
    def view(self):
        return self.run("return document.querySelector('.occupancy').viewer.view")

    @property
    def pinned(self):
        return self.run("return document.querySelector('.occupancy').viewer.pinned")

    def text(self, selector):
        return self.window.find_element("css selector", selector).text

    def texts(self, selector):
        script = "return Array.from(document.querySelectorAll(arguments[0]), (e) => e.textContent)"
        return self.run(script, selector)

    def button(self, label):
        self.window.find_element("xpath", f"//button[text()='{label}']").click()

    def search(self, text):
        field = self.window.find_element("css selector", "input")
        field.clear()
        field.send_keys(text)

    def mouse(self, *events):
        """Events of the pointer at places of the window: ``("move", x, y)``, ``("down", x, y)``."""
        kinds = {"move": "mouseMoved", "down": "mousePressed", "up": "mouseReleased"}
        for kind, x, y, *more in events:
            about = {"button": "left", "clickCount": 1} if kind != "move" else {}
            about |= dict(*more)
            self.window.execute_cdp_cmd(
                "Input.dispatchMouseEvent", {"type": kinds[kind], "x": x, "y": y, **about}
            )

    def wheel(self, x, y, turned):
        wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": turned}
        self.window.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
        self.settle()

    def click(self, x, y):
        self.mouse(("move", x, y), ("down", x, y), ("up", x, y))

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        plot = self.window.find_element("css selector", ".plot")
        self.run("arguments[0].focus()", plot)
        for key in keys:
            ActionChains(self.window).send_keys(key).perform()
        self.settle()

    def settle(self):
        """Waits for what is drawn with the next frame."""
        self.window.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )

    def box(self, number):
        return self.run(BOX, number)


@pytest.fixture(scope="module")
def window(chromium_window):
    return cleared(chromium_window)


@pytest.fixture
def opened(window, tmp_path):
    """Yield ``open_(occupancy, ...)``, which opens a page; no other requests, no errors."""
    resize(window, 1400, 1000)
    prefer(window, "light")

    def open_(*memory):
        path = tmp_path / "page.html"
        requested = visit(window, path, html.page(Memory(filled=memory)))
        assert [url for url in requested if not url.startswith("data:")] == [path.as_uri()]
        return Page(window)

    yield open_
    assert complaints(window) == []
    assert window.execute_script("return performance.getEntriesByType('resource').length") == 0


# --- drawing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [training(), plain(), large(300, boxes=150, depth=5)])
def test_stack_equals_that_of_python(opened, memory):
    page, layout = opened(memory), lay_out(memory)
    every, levels = np.arange(len(layout.size)), np.arange(len(layout.event))
    ours = stack(layout, every, levels, np.arange(len(levels) + 1.0))
    for level, spots in enumerate(page.run(STACKS)):
        edges = [0, *(top for _, _, top in spots)]
        assert [low for _, low, _ in spots] == edges[: len(spots)]
        assert edges[-1] == layout.live[level]
        boxes = {box: low for box, low, _ in spots if box >= 0}
        assert list(boxes) == np.flatnonzero(~np.isnan(ours.bottom[:, level])).tolist()
        assert [ours.bottom[box, level] for box in boxes] == list(boxes.values())


def test_outline_follows_its_box(opened):
    memory = training()
    page, layout = opened(memory), lay_out(memory)
    every, levels = np.arange(len(layout.size)), np.arange(len(layout.event))
    ours = stack(layout, every, levels, np.arange(len(levels) + 1.0))
    script = (
        "const { memory } = document.querySelector('.occupancy').viewer;"
        "return Array.from(memory.size, (_, box) => Array.from(memory.bottoms(box)))"
    )
    for bottoms, drawn in zip(page.run(script), ours.bottom, strict=True):
        assert bottoms == drawn[~np.isnan(drawn)].tolist()


@pytest.mark.parametrize("memory", [training(), plain()])
def test_columns_equal_those_of_the_plot(opened, memory):
    page, layout = opened(memory), lay_out(memory)
    for count in (50, 333, 1_000):
        levels = columns(layout, count)[0]
        assert layout.live[page.run(LEVELS, count)].tolist() == layout.live[levels].tolist()


def test_painted_height_is_the_live_bytes(opened):
    memory = large(600, boxes=300, depth=5)
    page = opened(memory)
    levels, painted, pixel = page.run(PAINTED)
    live = memory.levels["live_bytes"].to_numpy()[levels]
    assert np.abs(live - painted).max() <= pixel
    assert max(painted) > 0.8 * live.max()


def test_labels_of_axes_marks_steps_and_legend(opened):
    memory = training()
    page = opened(memory)
    assert page.texts(".lines text") == ["peak: 1,344 MiB", "out of memory: 512 MiB asked for"]
    named = page.texts(".axes text")
    assert {"0 B", "256 MiB", "1.25 GiB", "20 ms", "180 ms", "time", "step 0", "step 3"} <= {*named}
    legend = page.text(".keys")
    assert "optimizer state 528 MiB" in legend
    assert "other allocations 141 MiB" in legend
    assert "reserved" in legend
    steps = page.run("return document.querySelector('.reserved').getAttribute('d')").count("V")
    assert steps == memory.levels["reserved_bytes"][page.run(PAINTED)[0]].n_unique() - 1


def test_labels_of_close_marks_do_not_overlap(opened):
    memory = training(oom=56)
    page = opened(memory)
    rows = page.run(
        "const labels = Array.from(document.querySelectorAll('.lines .label'));"
        "return labels.map((label) => label.getBoundingClientRect().top)"
    )
    assert len(rows) == len(set(rows)) == 2


def test_large_page_is_fast(opened):
    page = opened(large(4_000))
    ready = "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    assert page.run(ready) < 5_000
    spent = (
        "const from = performance.now();"
        "document.querySelector('.occupancy').viewer.show();"
        "return performance.now() - from"
    )
    assert page.run(spent) < 1_000


# --- details ---------------------------------------------------------------------------------


def test_hover_shows_details_of_an_allocation(opened):
    page = opened(training())
    assert "128 MiB, the largest at the peak" in page.text(".details")
    page.mouse(("move", *page.box(9)))
    details = page.text(".details").splitlines()
    assert details[0] == "57 MiB"
    assert "from 4.6 ms to 30.75 ms, 26.15 ms" in details
    assert page.texts(".details li") == [
        "forward (layers.py:13)", "block3 (model.py:63)", "main (train.py:30)",
        "<module> (train.py:41)",
    ]  # fmt: skip
    assert "57 MiB" in page.text(".tip.visible")
    assert page.run("return document.querySelector('.ring').getAttribute('d')").startswith("M")
    x, y = page.box(0)
    page.mouse(("move", x, y))
    assert "always" in page.text(".details")
    page.mouse(("move", x, 2))
    assert not page.window.find_elements("css selector", ".tip.visible")
    assert "the largest at the peak" in page.text(".details")


def test_click_pins_an_allocation(opened):
    page = opened(training())
    page.click(*page.box(9))
    assert page.pinned == 9
    page.mouse(("move", *page.box(0)))
    assert page.text(".details").startswith("57 MiB")
    page.click(*page.box(9))
    assert page.pinned is None
    page.click(*page.box(9))
    page.press("\ue00c")
    assert page.pinned is None


def test_details_of_the_rest(opened):
    memory = training()
    page = opened(memory)
    top = page.run(
        "const { stage, memory } = document.querySelector('.occupancy').viewer;"
        "const at = stage.canvas.getBoundingClientRect(), top = memory.live[memory.peak];"
        "const column = stage.levels.indexOf(memory.peak);"
        "return [at.left + column + 0.5, at.bottom - (top - 1e6) * stage.scale]"
    )
    page.mouse(("move", *top))
    assert page.text(".details").startswith("Other allocations")


def test_arrows_move_through_the_stack(opened):
    from selenium.webdriver import Keys

    page, layout = opened(training()), lay_out(training())
    there = np.flatnonzero(layout.at_peak).tolist()
    largest = max(there, key=lambda box: layout.size[box])
    page.press(Keys.ARROW_UP)
    assert page.pinned == largest
    page.press(Keys.ARROW_DOWN)
    assert page.pinned == there[there.index(largest) - 1]
    page.press(Keys.ARROW_UP, Keys.ARROW_UP)
    assert page.pinned == there[there.index(largest) + 1]


@pytest.mark.parametrize(
    "wanted", ["layers.py", "LAYERS", "backward", "no such frame", "optimizer"]
)
def test_search_shows_matching_bytes_at_the_peak(opened, wanted):
    memory = training()
    page, layout = opened(memory), lay_out(memory)
    frames = dict(memory.stacks.iter_rows())
    result = [
        any(
            wanted.lower() in text.lower()
            for text in (*frames[row["stack"]], row["category"] or "")
        )
        for row in memory.boxes.iter_rows(named=True)
    ]
    matching = int(layout.size[layout.at_peak & np.array(result)].sum()) >> 20
    page.search(wanted)
    share = f"({100 * matching / 1344:.1f} %)"
    size = f"{matching} MiB" if matching else "0 B"
    assert page.text(".matched") == f"{sum(result)} found: {size} at the peak {share}"


def test_slider_moves_small_allocations_to_the_rest(opened):
    memory = training()
    page = opened(memory)
    before = page.run(STACKS)
    power = 27
    page.run(
        "const { least } = document.querySelector('.occupancy').viewer;"
        "least.value = arguments[0]; least.dispatchEvent(new Event('input'))",
        power,
    )
    after, sizes = page.run(STACKS), memory.boxes["live_bytes"].to_list()
    kept = [box for box, size in enumerate(sizes) if size >= 1 << power]
    assert 0 < len(kept) < len(sizes)
    assert page.text(".sized") == f"128 MiB or more: {len(kept)} of {len(sizes)}"
    for level, stacked in enumerate(after):
        assert {box for box, _, _ in stacked} <= {*kept, -1}
        assert max((top for _, _, top in stacked), default=0) == max(
            (top for _, _, top in before[level]), default=0
        )


def test_search_fades_other_boxes(opened):
    page = opened(training())
    color = (
        "const { canvas } = document.querySelector('.occupancy').viewer.stage;"
        "const at = canvas.getBoundingClientRect(), [x, y] = arguments[0];"
        "const pixel = canvas.getContext('2d').getImageData(x - at.left, y - at.top, 1, 1);"
        "return Array.from(pixel.data)"
    )
    inside, outside = page.box(9), page.box(0)
    before = [page.run(color, place) for place in (inside, outside)]
    page.search("layers.py:13")
    page.settle()
    after = [page.run(color, place) for place in (inside, outside)]
    assert after[0] == before[0]
    assert min(after[1][:3]) > 220 > min(before[1][:3])


# --- zoom ------------------------------------------------------------------------------------


def test_wheel_zooms_around_the_pointer(opened):
    page = opened(training())
    whole, (x, y) = page.view, page.box(9)
    page.wheel(x, y, 300)
    assert page.view == whole  # the page scrolled instead
    page.run("scrollTo(0, 0)")
    page.wheel(x, y, -200)
    once = page.view
    assert once[1] - once[0] < 0.6 * whole[1]
    assert once[0] < 17e6 < once[1]
    page.wheel(x, y, -200)
    assert page.view[1] - page.view[0] < once[1] - once[0]
    page.button("Reset")
    page.settle()
    assert page.view == whole


def test_drag_zooms_and_double_click_resets(opened):
    page = opened(training())
    whole = page.view
    canvas = page.run(
        "const at = document.querySelector('.plot canvas').getBoundingClientRect();"
        "return [at.left, at.top + 100, at.width]"
    )
    left, y, width = canvas
    quarter, half = left + width / 4, left + width / 2
    page.mouse(("move", quarter, y), ("down", quarter, y), ("move", half, y), ("up", half, y))
    page.settle()
    assert page.view == pytest.approx([whole[1] / 4, whole[1] / 2], rel=1e-3)
    assert page.pinned is None
    page.mouse(
        ("move", half, y),
        ("down", half, y, {"modifiers": 8}),
        ("move", quarter, y, {"modifiers": 8}),
        ("up", quarter, y, {"modifiers": 8}),
    )
    page.settle()
    assert page.view == pytest.approx([whole[1] * 5 / 16, whole[1] * 9 / 16], rel=1e-3)
    page.click(half, y)
    page.mouse(("down", half, y, {"clickCount": 2}), ("up", half, y, {"clickCount": 2}))
    page.settle()
    assert page.view == whole
    assert page.pinned is None


def test_keys_zoom_move_and_reset(opened):
    from selenium.webdriver import Keys

    page = opened(training())
    whole = page.view
    page.press("+")
    assert page.view == [whole[1] / 4, whole[1] * 3 / 4]
    page.press(Keys.ARROW_RIGHT)
    assert page.view == pytest.approx([whole[1] * 0.35, whole[1] * 0.85])
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.view[1] == whole[1]
    page.press("-")
    assert page.view == whole
    page.press("+", "+", "0")
    assert page.view == whole
    page.press("/", "adam")
    assert "found" in page.text(".matched")


def test_zoom_has_a_limit(opened):
    page = opened(plain())
    page.press(*"+" * 12)
    assert page.view[1] - page.view[0] == 4


def test_fit_height(opened):
    memory = training()
    page = opened(memory)
    page.button("Fit height")
    page.settle()
    low, high = memory.levels["live_bytes"].min(), memory.levels["live_bytes"].max()
    floor, ceiling = page.run(
        "const { stage } = document.querySelector('.occupancy').viewer;"
        "return [stage.floor, stage.ceiling]"
    )
    assert 0 < floor < low < high < ceiling < high * 1.1
    assert "0 B" not in page.texts(".axes text")
    levels, painted, pixel = page.run(PAINTED)
    live = memory.levels["live_bytes"].to_numpy()[levels]
    assert np.abs(live - floor - painted).max() <= pixel
    page.mouse(("move", *page.run(BOX.replace("height *", "(height - stage.floor) *"), 30)))
    size = memory.boxes["live_bytes"][30] >> 20
    assert page.text(".details").startswith(f"{size} MiB")
    page.press("f")
    assert "0 B" in page.texts(".axes text")


def test_switch_between_time_and_events(opened):
    memory = training()
    page = opened(memory)
    page.press("+")
    before = page.view
    first, last = page.run(LEVELS, 200)[0], page.run(LEVELS, 200)[-1]
    page.button("Events")
    page.settle()
    assert "event" in page.texts(".axes text")
    events = memory.levels["event"].to_list()
    assert events[first] <= page.view[0] <= events[first + 1]
    assert events[last] <= page.view[1] <= events[last + 1]
    page.button("Time")
    assert page.view == pytest.approx(before)
    page.button("Reset")
    page.button("Events")
    page.settle()
    assert page.view == [0, 160]


# --- segments --------------------------------------------------------------------------------


def test_tooltip_of_segments(opened):
    memory = training()
    page = opened(memory)
    free = memory.blocks.filter(state="free")["total_bytes"]
    live = memory.blocks.filter(state="live")["total_bytes"].sum()
    assert f"{free.sum() >> 20} MiB free" in page.text(".occupancy")
    assert f"in {free.len()} holes, the largest {free.max() >> 20} MiB" in page.text(".occupancy")
    script = """
    const { segments } = document.querySelector('.occupancy').viewer;
    segments.canvas.scrollIntoView({ block: 'center' });
    const at = segments.canvas.getBoundingClientRect();
    return segments.pieces.map((piece) => [piece.segment, piece.until - piece.from,
      at.left + piece.x + Math.min(piece.wide / 2, 8), at.top + piece.row * 23 + 9]);
    """
    pieces = page.run(script)
    assert sum(size for _, size, _, _ in pieces) == memory.segments["total_bytes"].sum()
    assert live + free.sum() == memory.segments["total_bytes"].sum()
    page.mouse(("move", *pieces[0][2:]))
    details = page.text(".tip.visible")
    assert "MiB live" in details
    assert "<module> (train.py:41)" in details
    page.button("Most free first")
    unused = (
        memory.blocks.filter(state="free")
        .group_by("segment")
        .agg(total=pl.col("total_bytes").sum())
    )
    assert page.run(
        "const { segments } = document.querySelector('.occupancy').viewer;"
        "return segments.free[segments.pieces[0].segment]"
    ) == max(unused["total"])


# --- the page --------------------------------------------------------------------------------


def test_hostile_texts_are_text(opened):
    page = opened(hostile())
    page.mouse(("move", *page.box(12)))
    assert BREAKOUT in page.text(".details")
    assert BREAKOUT in page.text(".tip.visible")
    page.search("</script>")
    assert page.text(".matched").startswith("13 found")
    assert page.run("return document.images.length") == 0
    assert page.window.title != "pwned"
    assert len(page.run("return Array.from(document.scripts, (e) => e.type)")) == 2


def test_several_figures_are_independent(opened):
    page = opened(training(), plain(), empty())
    page.press("+")
    views = page.run(
        "return Array.from(document.querySelectorAll('.occupancy'), (e) => e.viewer?.view ?? null)"
    )
    assert views[0][0] > 0
    assert views[1:] == [[0, 160], None]


@pytest.mark.parametrize("width", [700, 1_400])
def test_drawing_fits_the_window(opened, window, width):
    resize(window, width, 900)
    page = opened(training())
    assert page.run("return document.documentElement.scrollWidth") == width
    at = page.run("return document.querySelector('.plot').getBoundingClientRect().width")
    assert width - 60 < at < width
    for moved in (1_000, width):
        resize(window, moved, 900)
        page.settle()
    size = "return document.querySelector('.plot').getBoundingClientRect().width"
    assert page.run(size) == at


def test_dark_scheme_and_print(opened, window):
    pixel = (
        "const { canvas } = document.querySelector('.occupancy').viewer.stage;"
        "return canvas.getContext('2d').getImageData(200, canvas.height - 20, 1, 1).data[0]"
    )
    page = opened(training())
    light = page.run(pixel)
    prefer(window, "dark")
    page.settle()
    assert page.run(pixel) < light - 40
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(pixel) == light
    assert page.run("return document.querySelector('details').open")
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run(pixel) < light - 40


def test_both_viewers_on_one_page(opened, window, tmp_path):
    class Both(Memory):
        flames = (burning(),)

    path = tmp_path / "both.html"
    visit(window, path, html.page(Both(filled=(training(),))))
    assert len(window.find_elements("css selector", ".live")) == 2


def test_notebook_frame(window, tmp_path):
    resize(window, 1000, 1400)
    notebook = f"<!doctype html><body>{Memory(filled=(training(),))._repr_html_()}</body>"
    path = tmp_path / "notebook.html"
    assert visit(window, path, notebook) == [path.as_uri()]
    window.switch_to.frame(window.find_element("css selector", "iframe"))
    page = Page(window)
    page.press("+")
    assert page.view[0] > 0
    assert page.run("return document.documentElement.scrollHeight") <= 1_320
    window.switch_to.default_content()
    assert complaints(window) == []
