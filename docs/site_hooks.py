"""MkDocs hooks (``mkdocs.yml``): pages from other folders, their links, and formulas.

Pages of other folders are added to the site, links to them are adapted, and formulas become MathML,
which browsers draw without a script.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
#: Pages outside docs/, and their names on the site.
ELSEWHERE = {
    "benchmarks/NOTES.md": "benchmark-notes.md",
    "benchmarks/RESULTS.md": "benchmark-results.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "fixtures/README.md": "fixtures.md",
}
#: Entry of the navigation with the pages of commands.
COMMANDS = "Pages of commands"
#: Links to the README lead to the start page of the site.
_PLACES = {"README.md": "index.md", **ELSEWHERE}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.S)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List pages that are missing in ``mkdocs.yml`` under *Pages of commands*."""
    nav: list[dict[str, Any]] = config.nav or []
    placed = set(re.findall(r"[\w-]+\.md", repr(nav)))
    reference = next(entry["Reference"] for entry in nav if "Reference" in entry)
    commands = next(one[COMMANDS] for one in reference if COMMANDS in one)
    commands += [path.name for path in sorted(DOCS.glob("*.md")) if path.name not in placed]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of :data:`ELSEWHERE`."""
    for source, name in ELSEWHERE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Adapt links to the places of their targets on the site."""
    names = {name: source for source, name in ELSEWHERE.items()}
    return moved(markdown, names.get(page.file.src_uri, f"docs/{page.file.src_uri}"))


def moved(markdown: str, source: str) -> str:
    """Return the text of the file ``source`` with its links adapted to the site."""

    def place(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        return _PLACES.get(target, target.removeprefix("docs/"))

    return _LINK.sub(place, markdown)


def on_page_content(text: str, **_: Any) -> str:
    """Return the page with each formula as MathML."""
    return _FORMULA.sub(lambda match: convert(html.unescape(match[2])), text)
