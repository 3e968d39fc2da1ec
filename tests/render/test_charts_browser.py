"""Charts in a browser: drawing and interaction."""

from __future__ import annotations

import polars as pl
import pytest
from browser import cleared, complaints, prefer, resize, visit
from sample_results import HOSTILE, Sample, durations, hostile, ordinary, skew

from traceanalyzer.analyzers.common.display import stacked
from traceanalyzer.drawings import Chart
from traceanalyzer.render import html
from traceanalyzer.render.marks import prepare

WIDTHS = (480, 1200)
VIEWER = "document.querySelectorAll('figure.chart')[arguments[0]].viewer"
# Scrolls to the mark of a row and returns its centre on the screen.
MARK = f"""
const viewer = {VIEWER}, row = arguments[1];
const box = viewer.places[viewer.data.panelOf[row]].box(row, viewer.data);
scrollBy(0, viewer.plot.getBoundingClientRect().top + box.y0 - innerHeight / 2);
const at = viewer.plot.getBoundingClientRect();
return [at.left + (box.x0 + box.x1) / 2, at.top + (box.y0 + box.y1) / 2];
"""
# Pairs of labels that overlap, except tilted ones; labels outside the picture.
CROWDED = """
const found = [], meet = (a, b) =>
  a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
const within = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.bottom <= b.bottom + 1;
for (const svg of document.querySelectorAll('.chart .plot > svg')) {
  const all = Array.from(svg.querySelectorAll('text:not([transform])'));
  const boxes = all.map((text) => text.getBoundingClientRect());
  boxes.forEach((box, at) => {
    if (!within(box, svg.getBoundingClientRect())) found.push([all[at].textContent, 'beyond']);
    for (let next = at + 1; next < all.length; next++) {
      if (meet(box, boxes[next])) found.push([all[at].textContent, all[next].textContent]);
    }
  });
}
return found;
"""


def spans() -> Chart:
    frame = pl.DataFrame(
        {
            "start_ns": [0, 5_000_000, 1_000_000, 8_000_000],
            "end_ns": [4_000_000, 9_000_000, 2_000_000, 8_000_100],
            "cause": ["data loading", "launch overhead", "data loading", "other host code"],
            "on": ["rank 0", "rank 0", "rank 1", "rank 1"],
            "long": [True, False, False, False],
        }
    )
    return Chart(
        "gaps", "The longest gaps", "span", frame, "start_ns", "on", "time", "", "cause",
        x2="end_ns", emphasis="long", emphasis_label="longest",
    )  # fmt: skip


def lengths() -> Chart:
    names = ["ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "gemm", "copy"]
    frame = pl.DataFrame({"name": names, "total_ns": [551_900_000, 182_300_000, 6_719_000]})
    frame = frame.with_columns(zero_ns=pl.lit(0))
    return Chart("names", "Kernels", "span", frame, "total_ns", "name", "total", "", x2="zero_ns")


def lines() -> Chart:
    frame = pl.select(at_ns=pl.int_range(400) * 2_500_000, turn=pl.int_range(400)).select(
        "at_ns",
        (pl.col("turn") % 50 * (1 << 28)).alias("used_bytes"),
        pl.format("counter {}", pl.col("turn") % 2).alias("counter"),
        (pl.col("turn") // 2 % 2).alias("rank"),
    )
    return Chart(
        "used", "Memory", "line", frame, "at_ns", "used_bytes", "time", "used", "rank",
        panel="counter",
    )  # fmt: skip


def steps() -> Chart:
    part = pl.Enum(["compute", "communication", "idle"])
    rows = [
        (f"ProfilerStep#{step}", name, (step + 1) * 1_000_000 + at * 400_000)
        for step in range(12)
        for at, name in enumerate(part.categories)
    ]
    frame = pl.DataFrame(
        rows, schema={"step": pl.String, "part": part, "time_ns": pl.Int64}, orient="row"
    )
    return Chart(
        "parts", "Steps", "bar", frame, "step", "time_ns", "step", "time", "part", stacked=True
    )


def shares() -> Chart:
    rows = [(at * 1_000_000, part, 0.3) for at in range(100) for part in ("compute", "copies")]
    frame = pl.DataFrame(rows, schema=["at_ns", "part", "share_frac"], orient="row")
    return Chart(
        "shares", "Utilisation", "bar", frame, "at_ns", "share_frac", "time", "share", "part",
        stacked=True,
    )  # fmt: skip


def tokens() -> Chart:
    frame = pl.DataFrame({"tokens": [0, 4_000_000_000, 9_000_000_000], "loss": [9.5, 3.25, 2.0]})
    return Chart("loss", "Loss", "line", frame, "tokens", "loss", "tokens", "loss")


EVERY = (durations(), spans(), lengths(), lines(), steps(), shares(), skew(), tokens())


class Page:
    """What a person does with the figures of a page, and what they see."""

    def __init__(self, window):
        self.window = window

    def run(self, script, *arguments):
        return self.window.execute_script(script, *arguments)

    def of(self, expression, chart=0):
        return self.run(f"return {VIEWER}.{expression}", chart)

    def view(self, chart=0):
        return self.of("view", chart)

    def texts(self, selector, chart=0):
        script = (
            "return Array.from(document.querySelectorAll('figure.chart')[arguments[0]]"
            ".querySelectorAll(arguments[1]), (e) => e.textContent)"
        )
        return self.run(script, chart, selector)

    def tooltip(self):
        return self.texts(".tip.visible dd")

    def mark(self, row, chart=0):
        return self.run(MARK, chart, row)

    def mouse(self, *events):
        kinds = {"move": "mouseMoved", "down": "mousePressed", "up": "mouseReleased"}
        for kind, x, y, *more in events:
            about = {"button": "left", "clickCount": 1} if kind != "move" else {}
            about |= dict(*more)
            self.window.execute_cdp_cmd(
                "Input.dispatchMouseEvent", {"type": kinds[kind], "x": x, "y": y, **about}
            )

    def wheel(self, x, y, turned, modifiers=0):
        about = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": turned}
        self.window.execute_cdp_cmd("Input.dispatchMouseEvent", {**about, "modifiers": modifiers})
        self.settle()

    def press(self, *keys, chart=0):
        from selenium.webdriver import ActionChains

        plot = self.window.find_elements("css selector", ".chart .plot")[chart]
        self.run("arguments[0].focus()", plot)
        for key in keys:
            ActionChains(self.window).send_keys(key).perform()
        self.settle()

    def settle(self):
        self.window.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )


@pytest.fixture(scope="module")
def window(chromium_window):
    return cleared(chromium_window)


@pytest.fixture
def opened(window, tmp_path):
    """Yield ``open_(chart, ...)``, which opens a page; no other requests, no errors."""
    prefer(window, "light")

    def open_(*drawn, width=1200):
        resize(window, width, 900)
        path = tmp_path / "page.html"
        requested = visit(window, path, html.page(Sample(drawn=drawn)))
        assert [url for url in requested if not url.startswith("data:")] == [path.as_uri()]
        return Page(window)

    yield open_
    assert complaints(window) == []
    assert window.execute_script("return performance.getEntriesByType('resource').length") == 0


# --- drawing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_all_marks_are_drawn_and_labels_do_not_overlap(opened, width):
    page = opened(*EVERY, width=width)
    for at, chart in enumerate(EVERY):
        paths = page.run(
            "return Array.from(document.querySelectorAll('figure.chart')[arguments[0]]"
            ".querySelectorAll('.marks'), (e) => [e.dataset.color, e.getAttribute('d')])",
            at,
        )
        colors = {color for color, _ in paths}
        assert len(colors) == len(set(prepare(chart).rows["color"]))
        shapes = "".join(path for _, path in paths).count("M")
        if chart.mark in ("bar", "span"):
            assert shapes == prepare(chart).rows.height
        assert shapes
    count = "return ['.tick', 'text.x'].map((one) => document.querySelectorAll(one).length)"
    ticks, named = page.run(count)
    assert ticks == named > 3 * len(EVERY)
    assert page.run(CROWDED) == []
    assert page.run("return document.documentElement.scrollWidth") == width


def test_axes_have_labels_of_the_plot(opened):
    page = opened(*EVERY)
    for at, chart in enumerate(EVERY):
        marks = prepare(chart)
        labels = page.texts("text.label", at)
        assert (marks.x.label in labels) or not marks.x.label or chart.name == "shares"
        assert (marks.y.label in labels) or chart.mark == "span"
    assert "time [ms]" in page.texts("text.label", 5)
    assert page.texts("text.panel", 3) == ["counter 0", "counter 1"]
    assert page.texts("text.length", 2) == ["6.719 ms", "182.3 ms", "551.9 ms"]
    assert page.texts("text.x", 4) == [f"ProfilerStep#{step}" for step in range(12)]


def test_stack_height_is_the_sum(opened):
    page = opened(steps())
    data = steps().frame
    tops, bottoms = (
        page.run(f"return Array.from({VIEWER}.data.{side})", 0) for side in ("y1", "y0")
    )
    sums = data.group_by("step", maintain_order=True).agg(pl.col("time_ns").sum())["time_ns"]
    assert tops[2::3] == sums.to_list()
    assert bottoms[::3] == [0] * 12
    assert bottoms[1::3] == tops[::3]


def test_dense_marks_are_drawn_once_per_pixel(opened):
    count = 100_000
    frame = pl.select(at_ns=pl.int_range(count), y_ns=(pl.int_range(count) * 7_919) % 9_973)
    about = {"x": "at_ns", "y": "y_ns", "x_label": "", "y_label": ""}
    ends = frame.with_columns(end_ns=pl.col("at_ns") + 1, lane=pl.lit("all"))
    page = opened(
        Chart("line", "Line", "line", frame, **about),
        Chart("dots", "Dots", "scatter", frame.with_columns(y_ns=7), **about),
        Chart("span", "Spans", "span", ends, **{**about, "y": "lane"}, x2="end_ns"),
    )
    sizes = page.run(
        "return Array.from(document.querySelectorAll('.marks'), (e) => e.getAttribute('d').length)"
    )
    assert max(sizes) < 50_000
    assert page.run("return document.querySelectorAll('.chart *').length") < 700
    notes = page.run(
        "return Array.from(document.querySelectorAll('.left-out'), (e) => e.textContent)"
    )
    assert [text.split(" are ")[0].split(" of ")[1] for text in notes] == [
        "100,000 points", "100,000 points", "100,000 spans",
    ]  # fmt: skip


def test_extreme_numbers_are_drawn(opened):
    columns = {
        "large": [2.0**64, 2.0**64 + 4096, 2.0**64],
        "vast": [1e99, -1e99, 1e98],
        "tiny_ns": [1e-300, 5e-324, 1e-99],
        "one": [5, 5, 5],
        "far_ns": [2**62, 2**62 + 1, 2**62 + 2],
    }
    frame = pl.DataFrame(columns)
    drawn = [
        Chart(f"{x} {y}", f"{x} {y}", "scatter", frame, x, y, x, y, log_y=log)
        for x in columns
        for y in columns
        for log in (False, True)
    ]
    page = opened(*drawn)
    lost = "return Array.from(document.querySelectorAll('.plot'), (e) => /NaN/.test(e.innerHTML))"
    assert not any(page.run(lost))
    assert len(page.window.find_elements("css selector", ".chart.live .marks")) == len(drawn)


# --- tooltips --------------------------------------------------------------------------------


def test_tooltip_shows_all_values_of_a_row(opened):
    page = opened(durations(), spans(), steps())
    ringed = durations().frame.sort("ts_ns", maintain_order=True)["outlier"].arg_max()
    page.mouse(("move", *page.mark(ringed)))
    assert page.tooltip() == ["9.81 ms", "280 ms", "1", "outlier"]
    page.mouse(("move", 5, 5))
    assert page.tooltip() == []
    rows = page.of("data.count", 1)
    tooltips = []
    for row in range(rows):
        page.mouse(("move", *page.mark(row, 1)))
        tooltips.append(page.texts(".tip.visible dd", 1))
    assert ["rank 0", "5 ms", "4 ms", "5 ms", "9 ms", "launch overhead"] not in tooltips
    assert ["rank 0", "4 ms", "5 ms", "9 ms", "launch overhead"] in tooltips
    assert ["rank 1", "100 ns", "8 ms", "8 ms", "other host code"] in tooltips
    page.mouse(("move", *page.mark(4, 2)))
    assert page.texts(".tip.visible dd", 2) == ["2.4 ms", "ProfilerStep#1", "communication"]


# --- zoom ------------------------------------------------------------------------------------


def test_wheel_zooms_with_ctrl_or_focus(opened):
    page = opened(durations(), spans(), lengths(), lines())
    whole, (x, y) = page.view(), page.mark(20)
    page.wheel(x, y, -100)
    assert page.view() == whole
    page.wheel(x, y, 100)
    assert page.view() == whole
    x, y = page.mark(20)
    page.wheel(x, y, -200, modifiers=2)
    once = page.view()
    assert once[1] - once[0] == pytest.approx((whole[1] - whole[0]) / 2)
    page.mouse(("move", x, y), ("down", x, y), ("up", x, y))
    page.wheel(x, y, -200)
    assert page.view()[1] - page.view()[0] == pytest.approx((whole[1] - whole[0]) / 4)
    page.wheel(x, y, 400)
    page.wheel(x, y, 400)
    assert page.view() == whole


def test_touch_zooms_and_moves(opened):
    page = opened(durations(), width=480)
    whole, (_, y) = page.view(), page.mark(20)
    left = page.of("left()")

    def touch(kind, *places):
        points = [{"x": left + place, "y": y, "id": at} for at, place in enumerate(places)]
        page.window.execute_cdp_cmd(
            "Input.dispatchTouchEvent", {"type": kind, "touchPoints": points}
        )

    touch("touchStart", 100)
    touch("touchStart", 100, 200)
    touch("touchMove", 50, 250)
    touch("touchEnd")
    page.settle()
    near = page.view()
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2, rel=0.05)
    touch("touchStart", 200)
    touch("touchMove", 190)
    touch("touchMove", 100)
    touch("touchEnd")
    page.settle()
    after = page.view()
    assert after[1] - after[0] == pytest.approx(near[1] - near[0])
    assert after[0] > near[0]


@pytest.mark.parametrize("width", WIDTHS)
def test_drag_zooms_and_double_click_resets(opened, width):
    page = opened(spans(), width=width)
    whole = page.view()
    left, top, wide = page.run(
        f"const v = {VIEWER}; v.plot.scrollIntoView(); const at = v.plot.getBoundingClientRect();"
        "return [v.left(), at.top + v.plan.tops[0] + 20, v.pixels()]",
        0,
    )
    quarter, half = left + wide / 4, left + wide / 2
    page.mouse(
        ("move", quarter, top), ("down", quarter, top), ("move", half, top), ("up", half, top)
    )
    page.settle()
    span = whole[1] - whole[0]
    assert page.view() == pytest.approx([whole[0] + span / 4, whole[0] + span / 2], rel=0.02)
    assert "visible" in page.run("return document.querySelector('.whole').className")
    shift = {"modifiers": 8}
    page.mouse(
        ("move", half, top), ("down", half, top, shift), ("move", quarter, top, shift),
        ("up", quarter, top, shift),
    )  # fmt: skip
    page.settle()
    assert page.view()[0] == pytest.approx(whole[0] + span * 5 / 16, rel=0.02)
    page.mouse(("down", half, top), ("up", half, top))
    page.mouse(("down", half, top, {"clickCount": 2}), ("up", half, top, {"clickCount": 2}))
    page.settle()
    assert page.view() == whole


def test_keys_zoom_move_and_reset(opened):
    from selenium.webdriver import Keys

    page = opened(lines(), steps())
    whole = page.view()
    span = whole[1] - whole[0]
    page.press("+")
    assert page.view() == pytest.approx([whole[0] + span / 4, whole[1] - span / 4])
    page.press(Keys.ARROW_RIGHT)
    assert page.view()[0] == pytest.approx(whole[0] + span * 0.3)
    page.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert page.view()[0] == pytest.approx(whole[0] + span * 0.2)
    page.press("-", "-")
    assert page.view() == whole
    page.press("+", Keys.ESCAPE)
    assert page.view() == whole
    page.press("+", "+", "0")
    assert page.view() == whole
    assert page.view(1) == [-0.5, 11.5]
    page.press("+", "+", "+", "+", "+", chart=1)
    assert page.view(1)[1] - page.view(1)[0] == 1


def test_zoomed_axis_changes_its_unit(opened):
    page = opened(lines())
    units = [page.texts("text.label")[-1]]
    while page.view()[1] - page.view()[0] > 4:
        page.press(*"++++")
        units.append(page.texts("text.label")[-1])
        assert page.run(CROWDED) == []
    assert units[0] == "time [ms]"
    names = dict.fromkeys(text.rsplit("[")[-1] for text in units)
    assert list(names) == ["ms]", "us]", "ns]"]
    assert "after" in units[-1]
    assert page.view()[1] - page.view()[0] == 4


# --- legend, keys, hostile texts, papers -----------------------------------------------------


def test_a_legend_is_complete_on_a_narrow_screen(opened):
    names = [f"idle: a cause with number {at}" for at in range(10)]
    frame = pl.DataFrame({"on": ["one GPU"] * 10, "part": names, "time_ns": [1000] * 10})
    page = opened(stacked("parts", "Parts", frame, x="on"), width=420)
    rooms = "const e = document.querySelector('.keys'); return [e.scrollHeight, e.clientHeight]"
    needed, room = page.run(rooms)
    assert needed <= room


def test_legend_hides_a_category(opened):
    from selenium.webdriver import Keys

    page = opened(steps())
    idle = page.window.find_element("xpath", "//button[span='idle']")
    before = page.of("data.up[1]")
    idle.click()
    page.settle()
    labels = "return Array.from(document.querySelectorAll('.marks'), (e) => e.dataset.color)"
    assert page.run(labels) == ["0", "1"]
    assert idle.get_attribute("aria-pressed") == "false"
    assert page.of("data.up[1]") < before
    page.window.find_element("xpath", "//button[span='compute']").click()
    page.settle()
    assert page.run(labels) == ["1"]
    assert page.run(f"return Array.from({VIEWER}.data.y0)", 0)[1::3] == [0] * 12
    page.window.find_element("xpath", "//button[span='compute']").click()
    idle.send_keys(Keys.ENTER)
    page.settle()
    assert page.run(labels) == ["0", "1", "2"]
    assert page.of("data.up[1]") == before


def test_figures_are_accessible_by_keyboard(opened):
    page = opened(*EVERY)
    named = page.run(
        "return Array.from(document.querySelectorAll('.chart .plot'),"
        " (e) => [e.tabIndex, e.getAttribute('aria-label').split('. ')[0]])"
    )
    assert named == [[0, chart.title] for chart in EVERY]
    page.press("x")
    outline = "return getComputedStyle(document.querySelector('.plot')).outlineStyle"
    assert page.run(outline) == "solid"


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_texts_are_text(opened, width):
    page = opened(*hostile().charts, width=width)
    assert page.run("return document.images.length") == 0
    assert "pwned" not in page.window.title
    assert page.run(CROWDED) == []
    for chart in range(4):
        page.mouse(("move", *page.mark(0, chart)))
        assert HOSTILE[0] in " ".join(page.texts(".tip.visible dd", chart))
    assert HOSTILE[2] in page.texts(".keys button")


def test_chart_fits_the_window(opened, window):
    page = opened(*ordinary().charts)
    for width in (700, 480, 1200):
        resize(window, width, 900)
        page.settle()
        assert page.run("return document.documentElement.scrollWidth") == width
        box = "return document.querySelector('.plot > svg').viewBox.baseVal.width"
        assert page.run(box) == page.of("plot.clientWidth")
        assert page.run(CROWDED) == []


def test_dark_scheme_and_print(opened, window):
    ink = "return getComputedStyle(document.querySelector('.chart figcaption')).color"
    page = opened(durations())
    light = page.run(ink)
    prefer(window, "dark")
    assert page.run(ink) != light
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    assert page.run(ink) == light
    assert page.run("return getComputedStyle(document.querySelector('.hint')).display") == "none"
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_content_without_scripts(window, tmp_path):
    path = tmp_path / "page.html"
    window.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    visit(window, path, html.page(ordinary()))
    window.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    summary = window.find_element("css selector", ".chart .summary")
    assert summary.text.startswith("48 points; duration")
    assert summary.size["width"] > 200
    assert len(window.find_elements("css selector", ".chart svg")) == 0
    assert window.find_element("css selector", ".chart summary").text == "First 10 of 48 rows"
