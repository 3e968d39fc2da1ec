"""Distributions: version, dependencies, wheel and source archive."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from lowest import constraints
from package_sources import FILES, source_of
from packaging.requirements import Requirement
from wording import check_wording

from traceanalyzer import __version__

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "pyproject.toml").read_text()
PROJECT: dict[str, Any] = tomllib.loads(TEXT)["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


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


@pytest.mark.matrix
def test_version_and_name_of_the_distribution(built: Path) -> None:
    """The name ``traceanalyzer`` on the package index belongs to an unrelated project."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        name = next(one for one in wheel.namelist() if one.endswith("/METADATA"))
        about = wheel.read(name).decode()
    assert f"Name: {PROJECT['name']}\nVersion: {__version__}\n" in about
    assert PROJECT["name"] != "traceanalyzer"


def test_changelog_starts_with_the_version_and_is_short() -> None:
    page = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[([^]]+)\].*\n((?s:.*?))(?=^## |\Z)", page, re.MULTILINE)
    assert versions[0][0] == __version__
    assert [name for name, text in versions if text.count("\n") > 40] == []


def test_every_dependency_has_a_reason() -> None:
    for requirement in PROJECT["dependencies"]:
        line = next(line for line in TEXT.splitlines() if f'"{requirement}"' in line)
        assert re.search(r"# \S+ \S+", line), f"no reason for {requirement}"


def _installed(requirements: list[str]) -> set[str]:
    """Return what pip installs for requirements: they, and what they need."""
    names: set[str] = set()
    while requirements:
        requirement = Requirement(requirements.pop())
        name = requirement.name.lower().replace("_", "-")
        if name not in names and (
            not requirement.marker or requirement.marker.evaluate({"extra": ""})
        ):
            names.add(name)
            requirements += metadata.requires(name) or []
    return names


def test_installation_is_small_and_described() -> None:
    names = _installed([*PROJECT["dependencies"]])
    assert {"polars-runtime-32", "fonttools"} < names
    assert len(names) < 40
    page = (ROOT / "docs" / "install.md").read_text()
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


def test_every_import_is_declared() -> None:
    """Every import, also in functions, is a dependency or part of an extra."""
    wanted = list(PROJECT["dependencies"])
    for extra in set(EXTRAS) - {"dev", "docs"}:
        wanted += EXTRAS[extra]
    declared = {re.split(r"[^\w-]", one)[0].replace("-", "_").lower() for one in wanted}
    imported = {name.partition(".")[0] for path in FILES for name in source_of(path).imports}
    of_nvidia = {"ncu_report"}  # comes with Nsight Compute
    foreign = imported - sys.stdlib_module_names - {"traceanalyzer"} - of_nvidia
    assert {"polars", "zstandard"} <= foreign
    assert foreign <= declared


def test_every_dependency_has_a_lowest_version() -> None:
    for constraint in constraints():
        assert re.fullmatch(r"[\w-]+==\d+(\.\d+)*", constraint), constraint


def test_missing_extra_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    code = "import sys; sys.modules['zstandard'] = None\nfrom traceanalyzer import cli; cli.run()"
    command = [sys.executable, "-c", code, "info", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    check_wording(done.stderr)


@pytest.mark.matrix
def test_wheel_works_without_the_checkout(built: Path, tmp_path: Path) -> None:
    """Uses the installed dependencies; ``make installs`` tests without them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    place = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(place.stdout.strip())  # noqa: S202 - trusted
    # paths listed in a .pth file come later; files they list (the checkout) are not followed
    Path(place.stdout.strip(), "beside.pth").write_text(sysconfig.get_path("purelib"))
    code = (
        "import traceanalyzer; print(traceanalyzer.__file__)\n"
        "from traceanalyzer import cli; cli.run()"
    )
    given = ["comm-outliers", ROOT / "fixtures/nccl_8ranks", "-o", "answer.html"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", code, *given]
    how: dict[str, Any] = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    done = subprocess.run(command, check=True, **how)
    assert done.stdout.startswith(place.stdout.strip())
    assert "Rank 5 is a" in (tmp_path / "answer.html").read_text()
    command = [python, "-m", "traceanalyzer", "--version"]
    version = subprocess.run(command, check=True, **how)
    assert version.stdout == f"traceanalyzer {__version__}\n"


def test_content_of_the_wheel(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        entry_points = wheel.read(next(n for n in names if n.endswith("entry_points.txt")))
    dist_info = f"{PROJECT['name'].replace('-', '_')}-{__version__}.dist-info/"
    others = [n for n in names if not n.startswith(("traceanalyzer/", dist_info))]
    (manual,) = others
    assert manual.endswith("/data/share/man/man1/traceanalyzer.1")
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "traceanalyzer").rglob("*.py")}
    assert modules <= set(names)
    viewers = {str(p.relative_to(ROOT)) for p in (ROOT / "traceanalyzer").rglob("*.[cj]s*")}
    assert viewers <= set(names)
    assert {"traceanalyzer/tools/view.html", "traceanalyzer/exporters/views.sql"} <= {*names}
    render = "traceanalyzer/render"
    assert {f"{render}/flamegraph/viewer.js", f"{render}/occupancy/viewer.js"} <= viewers
    assert {f"{render}/flamegraph/viewer.css", f"{render}/occupancy/viewer.css"} <= viewers
    assert any(re.fullmatch(r"traceanalyzer/.*/_scan\.abi3\.\w+", name) for name in names)
    assert {"traceanalyzer/py.typed", f"{dist_info}licenses/LICENSE"} <= set(names)
    assert b"traceanalyzer = traceanalyzer.cli:run" in entry_points


def test_content_of_the_source_archive(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    files = (ROOT / "traceanalyzer").rglob("*")
    sources = {str(p.relative_to(ROOT)) for p in files if p.suffix in (".c", ".h", ".js", ".css")}
    assert len(sources) > 20
    assert sources <= set(names)
    assert {"pyproject.toml", "LICENSE", "README.md", "Makefile", "tests/conftest.py"} <= set(names)
    leftovers = re.compile(r"(^|/)(\.venv|\.git|\.bench|__pycache__|\.\w+_cache|dist)(/|$)")
    assert [name for name in names if leftovers.search(name)] == []
