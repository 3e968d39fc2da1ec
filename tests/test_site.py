"""The site of docs/: a strict build without external resources."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest
from browser import cleared, complaints, resize

ROOT = Path(__file__).parents[1]
PAGES = {
    "index",
    "quick-start",
    "how-to-stragglers",
    "questions",
    "commands",
    "commands-time",
    "python-memory",
    "definitions",
    "benchmark-notes",
    "schema",
    "changelog",
    "fixtures",
}
#: Attributes by which a page makes the browser fetch something.
FETCHES = {"src", "srcset", "data", "poster", "action", "formaction", "background"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built site; missing navigation entries and broken links are errors."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    # not --quiet: it drops warnings before they count
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


class Fetches(HTMLParser):
    """Addresses that a page loads: all except those of ``a`` elements."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loads = FETCHES | ({"href"} if tag != "a" else set())
        self.addresses += [value or "" for name, value in attrs if name in loads]


def fetched(page: str) -> list[str]:
    parser = Fetches()
    parser.feed(page)
    return parser.addresses


@pytest.mark.matrix
def test_pages_load_local_files_only(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {page.stem for page in pages} >= PAGES
    addresses = [address for page in pages for address in fetched(page.read_text())]
    assert len(addresses) > 100
    assert [address for address in addresses if re.match(r"([a-z]+:)?//", address)] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"@import[^;]*//[^;]*|url\([\"']?(?:https?:)?//[^)]*", styles) == []


def test_external_address_is_detected() -> None:
    page = '<a href="https://a"><link href="//b"><script src="https://c"></script></a>'
    assert fetched(page) == ["//b", "https://c"]


def test_formulas_need_no_script(site: Path) -> None:
    page = (site / "definitions.html").read_text()
    assert page.count("<math ") > 10
    assert "arithmatex" not in page
    assert "\\max" not in page


def test_links_into_the_site_have_targets() -> None:
    moved = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))["moved"]
    text = "[a](docs/steps.md#x) [b](fixtures/README.md) [c](https://d/e.md) [f](#g)"
    moved_text = "[a](steps.md#x) [b](fixtures.md) [c](https://d/e.md) [f](#g)"
    assert moved(text, "CONTRIBUTING.md") == moved_text
    assert moved("![h](images/i.png) [j](../README.md)", "docs/k.md") == (
        "![h](images/i.png) [j](index.md)"
    )


class Quiet(SimpleHTTPRequestHandler):
    """Serve files without a log."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """Return the address of the site on a local web server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def window(chromium_window: Any) -> Any:
    return cleared(chromium_window)


@pytest.mark.parametrize("name", ["index", "definitions", "commands", "commands-time"])
def test_browser_loads_local_files_only(window: Any, served: str, name: str) -> None:
    complaints(window)
    resize(window, 1200, 800)
    window.get(f"{served}{name}.html")
    entries = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    deadline = monotonic() + 20  # a browser that has just started may not have them at once
    while ".js" not in " ".join(loaded := window.execute_script(entries)):
        assert monotonic() < deadline
        sleep(0.1)
    assert [address for address in loaded if not address.startswith(served)] == []
    assert complaints(window) == []
    for width in (1200, 400):
        resize(window, width, 800)
        scrolls = "return document.scrollingElement.scrollWidth > innerWidth"
        assert not window.execute_script(scrolls), "wider than the window"


def test_every_page_is_in_the_navigation_and_the_search(site: Path) -> None:
    pages = {page.name for page in site.glob("*.html")} - {"404.html"}
    assert pages >= {path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md")}
    links = set(re.findall(r'href="([\w-]+\.html)"', (site / "index.html").read_text()))
    assert pages - links <= {"index.html"}
    index = (site / "search" / "search_index.js").read_text()
    assert [page for page in pages if f'"location":"{page}"' not in index] == []


def test_search_works_from_disk(window: Any, site: Path) -> None:
    resize(window, 1200, 800)
    window.get((site / "index.html").as_uri())
    field = window.find_element("css selector", "[data-md-component=search-query]")
    field.click()
    field.send_keys("straggler")
    links = "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    deadline = monotonic() + 20
    while not (found := window.execute_script(links)) and monotonic() < deadline:
        sleep(0.1)
    assert found
    assert all(address.startswith(site.as_uri()) for address in found)
    assert any("comm-outliers.html" in address or "stragglers" in address for address in found)
