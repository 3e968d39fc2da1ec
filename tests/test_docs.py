"""The documentation says what is so: derived pages, links, and the names of things."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("fixtures/*.md")])


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_schema_page_is_current() -> None:
    make_schema = runpy.run_path(str(ROOT / "docs" / "make_schema.py"))
    assert make_schema["PAGE"].read_text() == make_schema["page"](), "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    files = [link.partition("#")[0] for link in links if "://" not in link]
    assert [file for file in files if not (page.parent / file).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:`|^ {4})make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert used <= targets


def test_architecture_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "traceanalyzer"
    rooms = [f"`{path.parent.name}/`" for path in package.glob("*/__init__.py")]
    rooms += [f"`{path.name}`" for path in package.glob("*.py") if not path.name.startswith("__")]
    assert [room for room in rooms if room not in page] == []


def test_every_malformed_fixture_is_described() -> None:
    described = set(
        re.findall(r"`(\w+\.json(?:\.gz)?)`", (ROOT / "docs/chrome-trace.md").read_text())
    )
    assert described == {path.name for path in (ROOT / "fixtures" / "malformed").iterdir()}


def test_every_fixture_folder_is_described() -> None:
    page = (ROOT / "fixtures" / "README.md").read_text()
    paths = [path for path in (ROOT / "fixtures").glob("[a-z]*") if path.is_dir()]
    assert [path.name for path in paths if f"`{path.name}/`" not in page] == []
