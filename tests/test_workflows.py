"""Workflows: Python versions, platforms of wheels, permissions.

``check-jsonschema`` checks their structure before each commit (``.pre-commit-config.yaml``).
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from conftest import ROOT

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / ".github" / "workflows"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def workflow(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return content


def test_every_declared_python_is_tested() -> None:
    versions = workflow("ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    classifiers = [one for one in PROJECT["project"]["classifiers"] if one.startswith(prefix)]
    assert [f"{prefix}{version.removeprefix('3.')}" for version in versions] == classifiers
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"


def test_make_targets_of_workflows_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    required = {"ci.yml": {"check", "test", "lowest"}, "scheduled.yml": {"test-all"}}
    for name, least in required.items():
        runs = re.findall(r"run: make ((?:[a-z-]+ ?)+)", (FOLDER / name).read_text())
        used = {target for line in runs for target in line.split()}
        assert least <= used <= targets


def test_only_the_publishing_job_has_a_permission() -> None:
    for path in FOLDER.glob("*.yml"):
        content = workflow(path.name)
        assert content["permissions"] == {"contents": "read"}
        granted = {name: job.get("permissions") for name, job in content["jobs"].items()}
        publish = {"id-token": "write"} if path.name == "release.yml" else None
        assert granted.pop("publish", None) == publish
        assert set(granted.values()) == {None}


def test_publishing_needs_a_tag_of_this_version_and_every_wheel() -> None:
    jobs = workflow("release.yml")["jobs"]
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert any("__version__" in step.get("run", "") for step in jobs["source"]["steps"])
    systems = jobs["wheels"]["strategy"]["matrix"]["os"]
    assert [re.sub(r"-(latest|[\d.]+)", "", one) for one in systems] == [
        "ubuntu",
        "ubuntu-arm",
        "macos",
    ]


def test_every_extension_is_tested_in_a_wheel() -> None:
    command = PROJECT["tool"]["cibuildwheel"]["test-command"]
    sources = {path.stem for path in (ROOT / "traceanalyzer").rglob("_*.c")}
    imported = set(re.findall(r"import (_\w+)", command))
    assert imported == sources
