"""HTML page as text and in a browser."""

import re
from functools import cache
from html.parser import HTMLParser

import pytest
from browser import cleared, complaints, prefer, visit
from sample_results import HOSTILE, LONG_KERNEL, Sample, empty, groups, hostile, ordinary

from traceanalyzer.render import charts, html

RESULTS = {"ordinary": ordinary(), "hostile": hostile(), "empty": empty()}

VOID = {"meta", "link", "br", "img"}
ALLOWED = {
    *("html", "head", "meta", "link", "title", "style", "body", "main", "h1", "h2", "h3", "h4"),
    *("p", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "ul", "li", "figure"),
    *("figcaption", "details", "summary", "script"),
    *("ol", "span", "code", "strong", "section", "dl", "dt", "dd", "a"),
}


@cache
def _page(name: str) -> str:
    return html.page(RESULTS[name])


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_golden_without_charts(golden):
    golden("page.html", html.page(Sample(table_list=(groups(),), noted=("A note.",))))


@pytest.mark.parametrize("name", RESULTS)
def test_page_is_well_formed(name):
    tags = _Tags(_page(name))
    assert tags.open == []
    assert {tag for tag, _ in tags.tags} <= ALLOWED
    attributes = {name for _, attrs in tags.tags for name in attrs}
    assert not [name for name in attributes if name.startswith("on")]


def test_ids_are_unique():
    attributes = [attrs for _, attrs in _Tags(_page("ordinary")).tags]
    ids = [attrs["id"] for attrs in attributes if "id" in attrs]
    assert len(ids) == len(set(ids))
    names = ("aria-labelledby", "aria-describedby")
    assert {attrs[name] for attrs in attributes for name in names if name in attrs} <= {*ids}


def test_policy_allows_needed_viewers_only():
    drawn, plain = _page("ordinary"), html.page(Sample(table_list=(groups(),)))
    assert f"script-src {charts.VIEWER.script_hash()}" in drawn
    assert drawn.count("<script>") == 1
    assert "script" not in plain


def test_page_has_no_external_links():
    tags = _Tags(_page("ordinary")).tags
    links = [v for _, attrs in tags for k, v in attrs.items() if k in ("src", "href")]
    assert all(link.startswith(("data:", "#")) for link in links)


def test_long_names_are_shortened():
    page = html.page(Sample(table_list=(groups(),)))
    assert LONG_KERNEL.replace("<", "&lt;").replace(">", "&gt;") in page
    assert "x" * 10_000 not in re.sub(r'title="[^"]*"', "", _page("hostile"))


def test_caption_counts_rows():
    assert "2 of 3 rows" in html.page(ordinary(), top=2)


def test_fragment_is_inert():
    text = hostile()._repr_html_()
    tags = _Tags(text)
    assert tags.open == []
    assert {tag for tag, _ in tags.tags} <= ALLOWED - {"script", "figure"} | {"iframe"}
    frames = [dict(attributes) for tag, attributes in tags.tags if tag == "iframe"]
    assert [frame["sandbox"] for frame in frames] == ["allow-scripts"]
    assert text.startswith('<div class="traceanalyzer">')


# --- in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(chromium_window):
    return cleared(chromium_window)


@pytest.mark.parametrize("name", ["ordinary", "hostile"])
def test_browser_fetches_nothing(browser, tmp_path, name):
    path = tmp_path / "page.html"
    requested = visit(browser, path, _page(name))
    assert [url for url in requested if not url.startswith("data:")] == [path.as_uri()]
    assert complaints(browser) == []
    drawn = browser.find_elements("css selector", "figure.live .plot > svg")
    assert len(drawn) == len(RESULTS[name].charts)


def test_browser_shows_hostile_names_as_text(browser, tmp_path):
    visit(browser, tmp_path / "page.html", _page("hostile"))
    assert "pwned" not in browser.execute_script("return document.title.replace(/'pwned'/g, '')")
    assert browser.execute_script("return document.images.length") == 0
    running = "return Array.from(document.scripts, (one) => one.type).filter((type) => !type)"
    assert len(browser.execute_script(running)) == 1
    elements = browser.find_elements("css selector", "main > .scroll td:first-child")
    cells = [cell.text for cell in elements]
    assert cells[0] == HOSTILE[0]
    assert cells[2] == HOSTILE[2]
    assert "\\x00" in cells[5]
    assert "\\u202e" in cells[4]
    assert len(cells) == len(HOSTILE)
    assert len(cells[9]) < 100


def test_policy_blocks_scripts_and_images(browser, tmp_path):
    page = _page("ordinary").replace(
        "<main>", "<main><script>document.title='ran'</script><img src='http://127.0.0.1:9/x'>"
    )
    visit(browser, tmp_path / "page.html", page)
    assert browser.title == ordinary().title
    assert " ".join(complaints(browser)).count("Content Security Policy") >= 2


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_browser_follows_the_colour_scheme(browser, tmp_path, scheme, dark):
    prefer(browser, scheme)
    visit(browser, tmp_path / "page.html", _page("ordinary"))
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    ink = browser.execute_script("return getComputedStyle(document.querySelector('svg text')).fill")
    assert (_brightness(paper) < 100) is dark
    assert (_brightness(ink) > 150) is dark


#: How Jupyter styles the tables of outputs.
JUPYTER = ".jp-RenderedHTMLCommon:not(.jp-RenderedMarkdown) td { text-align: right; }"


def test_table_alignment_in_a_notebook(browser, tmp_path):
    fragment = html.fragment(ordinary())
    page = f'<style>{JUPYTER}</style><div class="jp-RenderedHTMLCommon">{fragment}</div>'
    visit(browser, tmp_path / "notebook.html", f"<!doctype html><body>{page}</body>")
    script = (
        "return [...document.querySelectorAll('td')].map("
        "td => [td.className === 'number', getComputedStyle(td).textAlign])"
    )
    alignments = {tuple(one) for one in browser.execute_script(script)}
    assert alignments == {(True, "right"), (False, "left")}


def _brightness(color: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 3
