"""What is handed out: version, dependencies, the wheel and the source archive."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "pyproject.toml").read_text()
PROJECT: dict[str, Any] = tomllib.loads(TEXT)["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive."""
    folder, tree = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("tree") / "project"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, tracked.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    build = "import sys; from setuptools import build_meta as b; b.{}(sys.argv[1])"
    for what in ("build_wheel", "build_sdist"):
        command = [sys.executable, "-c", build.format(what), str(folder)]
        subprocess.run(command, cwd=tree, check=True, capture_output=True)
    return folder


def test_installed_version_is_the_one_in_pyproject() -> None:
    assert metadata.version("traceanalyzer") == PROJECT["version"]


def test_changelog_begins_with_the_version() -> None:
    headings = re.findall(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == PROJECT["version"]


def test_every_dependency_has_a_reason() -> None:
    for requirement in PROJECT["dependencies"]:
        line = next(line for line in TEXT.splitlines() if f'"{requirement}"' in line)
        assert re.search(r"# \S+ \S+", line), f"no reason beside {requirement}"


def test_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        entry_points = wheel.read(next(n for n in names if n.endswith("entry_points.txt")))
    dist_info = f"traceanalyzer-{PROJECT['version']}.dist-info/"
    assert {n for n in names if not n.startswith(("traceanalyzer/", dist_info))} == set()
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "traceanalyzer").rglob("*.py")}
    assert modules <= set(names)
    viewers = {str(p.relative_to(ROOT)) for p in (ROOT / "traceanalyzer").rglob("*.[cj]s*")}
    assert viewers <= set(names)
    render = "traceanalyzer/render"
    assert {f"{render}/flamegraph/viewer.js", f"{render}/occupancy/viewer.js"} <= viewers
    assert {f"{render}/flamegraph/viewer.css", f"{render}/occupancy/viewer.css"} <= viewers
    assert any(re.fullmatch(r"traceanalyzer/.*/_scan\.abi3\.\w+", name) for name in names)
    assert {"traceanalyzer/py.typed", f"{dist_info}licenses/LICENSE"} <= set(names)
    assert b"traceanalyzer = traceanalyzer.cli.start:run" in entry_points


def test_source_archive_holds_what_a_build_needs_and_no_leftovers(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "LICENSE", "README.md", "Makefile", "tests/conftest.py"} <= set(names)
    leftovers = re.compile(r"(^|/)(\.venv|\.git|\.bench|__pycache__|\.\w+_cache|dist)(/|$)")
    assert [name for name in names if leftovers.search(name)] == []
