"""The examples of docs/ci.md: their scripts are run, with recorded files as the benchmark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from conftest import ROOT

import traceanalyzer as ta
from traceanalyzer.tools.budgets import read_budgets

yaml = pytest.importorskip("yaml")
PAGE = (ROOT / "docs/ci.md").read_text()
(BUDGETS,) = re.findall(
    r"^```toml\n((?s:.*?))^```$", (ROOT / "docs/gate.md").read_text(), re.MULTILINE
)
BEFORE, AFTER = ROOT / "fixtures/upgrade/before.json.gz", ROOT / "fixtures/upgrade/after.json.gz"


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"^```{language}\n((?s:.*?))^```$", PAGE, re.MULTILINE)[number]


def github() -> str:
    """Return the steps of the workflow as a script: later steps run unless cancelled."""
    (job,) = yaml.safe_load(block("yaml", 0))["jobs"].values()
    lines = ["status=0"]
    for step in job["steps"]:
        if "run" in step:
            always = "!cancelled()" in step.get("if", "")
            lines.append(f"if [ $status = 0 ] || {str(always).lower()}; then")
            lines.append(f"  ( set -e; {step['run'].partition(' #')[0]} ) || status=$?")
            lines.append("fi")
    return "\n".join([*lines, "exit $status", ""])


def gitlab() -> str:
    (job,) = yaml.safe_load(block("yaml", 1)).values()
    return "set -e\n" + "\n".join(line.partition(" #")[0] for line in job["script"]) + "\n"


@pytest.fixture
def project(tmp_path):
    """A project with a baseline, the budgets of the page and a benchmark; pip does nothing."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    work = tmp_path / "project"
    work.mkdir()
    programs = {
        "traceanalyzer": f'exec {sys.executable} -m traceanalyzer "$@"',
        "python": f'exec {sys.executable} "$@"',
        "pip": "exit 0",
        "git": 'echo "$@" > git.txt',
    }
    for name, text in programs.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / name).chmod(0o755)
    (work / "benchmark.py").write_text(
        "import os, shutil, sys\n"
        "os.makedirs(sys.argv[2])\n"
        "shutil.copy(os.environ['RECORDING'], sys.argv[2] + '/rank0.json.gz')\n"
    )
    (work / "budgets.toml").write_text(BUDGETS)

    def run(script: str, recording: Path) -> subprocess.CompletedProcess:
        shutil.rmtree(work / "after", ignore_errors=True)
        known = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RECORDING": str(recording),
            "GITHUB_STEP_SUMMARY": str(work / "summary.md"),
        }
        (work / "script.sh").write_text(script)
        return subprocess.run(
            ["bash", "script.sh"], cwd=work, env={**os.environ, **known},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    run.folder = work
    return run


@pytest.mark.matrix
def test_the_examples_fail_on_a_regression_only(project):
    saved = project(block("bash"), BEFORE)
    assert (saved.returncode, (project.folder / "git.txt").read_text()) == (
        0, "add .traceanalyzer/baselines\n"
    )  # fmt: skip
    same = project(gitlab(), BEFORE)
    assert same.returncode == 0, same.stderr
    _check_outputs(project.folder, failures=0)
    slower = project(github(), AFTER)
    assert slower.returncode == 3, slower.stderr
    _check_outputs(project.folder, failures=1)


def _check_outputs(folder: Path, failures: int) -> None:
    """Check that both results were written, with this number of regressions; remove them."""
    counts = []
    for name in ("diff", "gate"):
        suite = ET.parse(folder / f"{name}.xml").getroot()  # noqa: S314 - our own file
        counts.append(int(suite.get("failures")))
        assert (folder / f"{name}.md").read_text().startswith("## ")
    assert counts == [failures, 0]
    summary = folder / "summary.md"
    assert not summary.exists() or summary.read_text().count("\n## ") == 1
    for path in (*folder.glob("*.md"), *folder.glob("*.xml")):
        path.unlink()


def test_uploaded_files_are_those_that_the_scripts_write():
    (job,) = yaml.safe_load(block("yaml", 1)).values()
    artifacts = job["artifacts"]
    written = re.findall(r"(?:-o|--junit) (\S+)", " ".join(job["script"]))
    assert sorted([*artifacts["paths"], *artifacts["reports"]["junit"]]) == sorted(written)
    assert artifacts["when"] == "always"


def test_the_budgets_of_the_page_are_valid(tmp_path):
    path = tmp_path / "budgets.toml"
    path.write_text(BUDGETS)
    assert len(read_budgets(path)) == len(tomllib.loads(BUDGETS)["budgets"])


@pytest.mark.matrix
def test_the_python_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, path in (("run", BEFORE), ("after", AFTER)):
        Path(name).mkdir()
        shutil.copy(path, name)
    Path("budgets.toml").write_text('budgets = ["step_ms <= 8"]')
    exec(compile(block("python"), "ci.md", "exec"), {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.splitlines() == [
        "with reservations", "('step_ms <= 8: measured 8.133 ms',)",
    ]  # fmt: skip
    assert ta.list_baselines().runs["name"].to_list() == ["main"]
