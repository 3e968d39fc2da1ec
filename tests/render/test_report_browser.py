"""Report in a browser at two widths: drawing, sorting, navigation, printing."""

from __future__ import annotations

from typing import Any

import pytest
from browser import cleared, complaints, prefer, resize, visit
from conftest import ROOT

import traceanalyzer as ta
from traceanalyzer.render import render

FIXTURES = ROOT / "fixtures"
WIDTHS = (480, 1400)


@pytest.fixture(scope="module")
def page() -> str:
    inputs = [FIXTURES / "nccl_8ranks", FIXTURES / "memory/oom.pickle"]
    return render(ta.report([*inputs, FIXTURES / "py_spy/native.raw.txt"]), "html").decode()


@pytest.fixture(scope="module")
def browser(chromium_window: Any) -> Any:
    return cleared(chromium_window)


@pytest.fixture(params=[WIDTHS[1], pytest.param(WIDTHS[0], marks=pytest.mark.matrix)])
def window(request: pytest.FixtureRequest, browser: Any, page: str, tmp_path: Any) -> Any:
    resize(browser, request.param, 900)
    prefer(browser, "light")
    requested = visit(browser, tmp_path / "report.html", page)
    assert requested == [(tmp_path / "report.html").as_uri()]
    yield browser
    assert complaints(browser) == []


@pytest.mark.matrix
@pytest.mark.sample(2)
def test_drawings_fit_the_window(window: Any) -> None:
    drawn = window.execute_script(
        "return [...document.querySelectorAll('figure')].map((one) => [one.id,"
        " one.querySelectorAll('svg *, canvas').length, one.getBoundingClientRect().width])"
    )
    assert len(drawn) > 15
    assert [key for key, marks, _ in drawn if not marks] == []
    wide = window.execute_script("return document.documentElement.scrollWidth")
    assert wide <= window.execute_script("return innerWidth")


@pytest.mark.parametrize("width", [600, 800, 1000])
def test_findings_take_the_width(browser: Any, page: str, tmp_path: Any, width: int) -> None:
    resize(browser, width, 900)
    visit(browser, tmp_path / "report.html", page)
    widths = browser.execute_script(
        "return ['#findings', '.findings', '.finding'].map("
        "one => document.querySelector(one).getBoundingClientRect().width)"
    )
    assert min(widths) > 0.95 * max(widths)


def test_heading_sorts_its_table(window: Any) -> None:
    column = (
        "const table = document.querySelector('#overview table');"
        "return [...table.tBodies[0].rows].map((row) => row.cells[arguments[0]].textContent)"
    )
    heads = window.execute_script(
        "return [...document.querySelectorAll('#overview th')].map((one) => one.textContent)"
    )
    at = next(n for n, head in enumerate(heads) if head.startswith("wait of others"))
    before = window.execute_script(column, at)
    click = (
        "document.querySelectorAll('#overview th button')[arguments[0]].click();"
        "return document.querySelectorAll('#overview th')[arguments[0]].ariaSort"
    )
    assert window.execute_script(click, at) == "descending"
    numbers = [one for one in window.execute_script(column, at) if one]
    values = [float(one.replace(",", "")) for one in numbers]
    assert values == sorted(values, reverse=True)
    assert sorted(before) == sorted(window.execute_script(column, at))
    assert window.execute_script(click, at) == "ascending"
    again = window.execute_script(column, at)
    assert [one for one in again if one] == numbers[::-1]
    assert "" not in again[:-1] or again[-1] == ""  # unknown values stay last


def test_sizes_are_sorted_by_unit(window: Any) -> None:
    texts = window.execute_script(
        "const tables = [...document.querySelectorAll('#memory .scroll table')];"
        "const place = (one) => [...one.tHead.rows[0].cells].findIndex("
        "  (head) => head.textContent === 'bytes');"
        "const table = tables.find((one) => place(one) >= 0), at = place(table);"
        "table.tHead.rows[0].cells[at].querySelector('button').click();"
        "return [...table.tBodies[0].rows].map((row) => row.cells[at].textContent)"
    )
    sizes = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
    values = [float(text.split()[0]) * sizes[text.split()[1]] for text in texts]
    assert len({text.split()[1] for text in texts}) > 1
    assert values in (sorted(values), sorted(values, reverse=True))


def test_contents_highlight_the_current_section(window: Any) -> None:
    window.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    window.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    for key in ("kernels", "memory", "commands"):
        window.execute_script("document.getElementById(arguments[0]).scrollIntoView()", key)
        window.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )
        marked = window.execute_script(
            "return [...document.querySelectorAll('nav a[aria-current]')].map((one) => one.hash)"
        )
        assert marked == [f"#{key}"]


def test_finding_links_to_its_numbers(window: Any) -> None:
    window.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    target = window.execute_script(
        "const link = document.querySelector('.finding a:not(.term)');"
        "link.click(); return link.hash"
    )
    top = window.execute_script(
        "return document.querySelector(arguments[0]).getBoundingClientRect().top", target
    )
    assert -5 <= top <= 120


def test_print_expands_details(window: Any) -> None:
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    window.execute_script("dispatchEvent(new Event('beforeprint'))")
    nav, closed = window.execute_script(
        "return [getComputedStyle(document.querySelector('nav')).display,"
        " document.querySelectorAll('details:not([open])').length]"
    )
    assert (nav, closed) == ("none", 0)
    window.execute_script("dispatchEvent(new Event('afterprint'))")
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert window.execute_script("return document.querySelectorAll('details:not([open])').length")


def test_dark_scheme(window: Any) -> None:
    light, dark = [], []
    for scheme, colors in (("light", light), ("dark", dark)):
        prefer(window, scheme)
        colors += window.execute_script(
            "return ['body', '.finding'].map((one) => getComputedStyle(document.querySelector(one))"
            ".backgroundColor)"
        )
    assert not set(light) & set(dark)


def test_keys_reach_links_headings_and_tables(window: Any) -> None:
    unreachable = window.execute_script(
        "return [...document.querySelectorAll('nav a, th button, .scroll, summary')]"
        ".filter((one) => one.tabIndex < 0).length"
    )
    assert unreachable == 0
    assert window.execute_script("return document.querySelector('.skip').hash") == "#findings"


def test_first_screen_has_the_timeline_and_two_findings(browser: Any, tmp_path: Any) -> None:
    text = render(ta.report(FIXTURES / "nccl_8ranks"), "html").decode()
    resize(browser, 1400, 900)
    visit(browser, tmp_path / "run.html", text)
    ends = browser.execute_script(
        "return ['.timeline canvas', '#finding-1 .effects', '#finding-2 .what'].map("
        "(one) => document.querySelector(one).getBoundingClientRect().bottom)"
    )
    assert max(ends) <= 900
    numbers = browser.execute_script(
        "return [...document.querySelectorAll('.finding .at')].map((one) => one.textContent)"
    )
    assert numbers == ["1", "2", "3"]
