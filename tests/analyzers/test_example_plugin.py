"""The example of docs/extending.md: a package that adds a format and an analysis."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, run_commands, run_program
from package_sources import source_of
from test_imports import ALLOWED, _room_of_import
from wording import check_wording

EXAMPLE = ROOT / "docs" / "examples" / "traceanalyzer_example"
FILE = EXAMPLE / "run0.gputimes"
PAGE = ROOT / "docs" / "extending.md"
QUOTED = (
    "pyproject.toml",
    *(f"traceanalyzer_example/{name}.py" for name in ("parser", "jitter", "entry")),
)
RANK = ROOT / "fixtures" / "nccl_8ranks" / "rank5.json.gz"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process with the example installed from its wheel."""
    tree = tmp_path_factory.mktemp("tree") / "example"
    shutil.copytree(EXAMPLE, tree)
    folder = tmp_path_factory.mktemp("installed")
    build = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(tree)], cwd=tree, check=True, capture_output=True
    )
    with zipfile.ZipFile(next(tree.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


def test_commands_read_the_new_format(installed: dict[str, str], tmp_path: Path) -> None:
    unknown = shutil.copyfile(FILE, tmp_path / "unknown")
    kernels = ("kernels", unknown, "--to", "json")
    commands = [("info", *kernels[1:], "-q"), kernels, (*kernels, "-q", "--since", "61us")]
    done, answer, cut = run_commands(*commands, env=installed)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["files"]
    assert (row["format"], row["version"], row["rank"]) == ("gputimes", "1", 0)
    assert answer.returncode == 0, answer.stderr
    assert "bad-line" in answer.stderr
    families = {row["family"]: row["total_ns"] for row in json.loads(answer.stdout)["families"]}
    assert families == {"gemm": 63_000, "communication": 3_000, "embedding": 2_500}
    assert sum(row["n"] for row in json.loads(cut.stdout)["families"]) == 2


@pytest.mark.matrix
def test_format_is_unknown_without_the_package() -> None:
    done = run_program("info", FILE)
    assert (done.returncode, done.stdout) == (1, "")
    check_wording(done.stderr)


def test_tables_follow_the_schema_and_analysis_runs(installed: dict[str, str]) -> None:
    code = """
import sys
import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer_example.jitter import jitter

trace = ta.read(sys.argv[1])
assert schema.check(trace.tables) == [], schema.check(trace.tables)
assert ta.read(sys.argv[1], kinds=["cpu_op"]).events.is_empty()
print(jitter(trace))
assert jitter(trace).plot("ratio").get_ylabel() == "max / median"
assert "<table" in jitter(trace)._repr_html_()
print(jitter(sys.argv[2], min_runs=6).verdict)
"""
    command = [sys.executable, "-c", code, str(FILE), str(RANK)]
    done = subprocess.run(command, env=installed, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "gemm takes up to 3 times its median." in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ncclDevKernel_ReduceScatter")


@pytest.mark.matrix
def test_analysis_of_the_package(installed: dict[str, str], tmp_path: Path) -> None:
    page = tmp_path / "report.json"
    jitter = ("jitter", RANK, "--min-runs")
    listed, helped, done, written, *failed = run_commands(
        ["--help"], ["jitter", "--help"], [*jitter, "6", "--to", "json"],
        ["report", RANK, "-o", page], [*jitter, "0"], ["jittr"], env=installed,
    )  # fmt: skip
    assert re.search(r"\nOther packages:\n  jitter +traceanalyzer-example\n", listed.stdout)
    assert "--min-runs N" in helped.stdout
    assert "  traceanalyzer jitter run/ --min-runs 3\n" in helped.stdout
    kernels = json.loads(done.stdout)["kernels"]
    assert min(row["n"] for row in kernels) >= 6
    assert [(one.returncode, one.stdout) for one in failed] == [(2, "")] * 2
    assert "Did you mean 'jitter'?" in failed[1].stderr
    assert (written.returncode, written.stderr.count("\n")) == (0, 1), written.stderr
    assert json.loads(page.read_text())["jitter"]["kernels"]
    code = """
import pickle, sys
import traceanalyzer as ta
from traceanalyzer.tools.mcp.tools import tools

assert "traceanalyzer_example.jitter" not in sys.modules and "jitter" not in ta.__all__
trace = pickle.loads(pickle.dumps(ta.read(sys.argv[1])))
verdict = trace.jitter(min_runs=6).verdict
assert verdict == ta.jitter(trace, min_runs=6).verdict and "jitter" in dir(trace) and dir(ta)
assert tools()["jitter"].schema()["properties"]["min_runs"]["minimum"] == 1
assert not hasattr(trace, "nonsense") and not hasattr(ta, "nonsense")
"""
    command = [sys.executable, "-c", code, str(RANK)]
    done = subprocess.run(command, env=installed, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
def test_summaries_are_read_with_and_without_the_package(
    installed: dict[str, str], tmp_path: Path
) -> None:
    sums, page = tmp_path / "sums", tmp_path / "report.json"
    command = ("summarize", RANK, "-o", sums, "-q", "--workers", "1")
    written, done = run_commands(command, ("jitter", sums), env=installed)
    assert written.returncode == 0
    assert (done.returncode, done.stdout) == (1, "")
    assert "do not have jitter; pass the traces" in done.stderr
    for env in (None, installed):
        done = run_program("report", sums, "-o", page, "--force", "-q", env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert "jitter" not in json.loads(page.read_text())


@pytest.mark.matrix
def test_unusable_analyses_cost_a_warning(installed: dict[str, str], tmp_path: Path) -> None:
    code = """
from traceanalyzer_example.entry import JITTER
from traceanalyzer.analyzers.registry import Entry

MISNAMED = JITTER
MISSING = Entry("missing", section="Missing", module="not_there", one_file=True)
CRASHING = Entry("crashing", section="Crashing", module="crashing", one_file=True)
"""
    crashing = """
from dataclasses import replace
from traceanalyzer_example.jitter import JITTER, Options, jitter as crashing

def measure(trace, options):
    raise KeyError("a bug")

CRASHING = replace(JITTER, name="crashing", measure=measure)
"""
    (tmp_path / "broken.py").write_text(code)
    (tmp_path / "crashing.py").write_text(crashing)
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    names = ("misnamed", "missing", "crashing", "kernels")
    points = "".join(f"{name} = broken:{name.upper()}\n" for name in names)
    (about / "entry_points.txt").write_text(f"[traceanalyzer.analyzers]\n{points}")
    env = {"PYTHONPATH": f"{tmp_path}:{installed['PYTHONPATH']}"}
    page = tmp_path / "report.json"
    helped, missing, done = run_commands(
        ["--help"], ["missing", RANK], ["report", RANK, "-o", page, "-q"], env=env
    )
    assert "  misnamed " in helped.stdout
    assert (missing.returncode, missing.stdout) == (1, "")
    check_wording(missing.stderr)
    assert done.returncode == 0
    check_wording(done.stderr)
    assert {"jitter", "kernels"} <= json.loads(page.read_text()).keys()
    assert "crashing" not in json.loads(page.read_text())


def _quote(name: str) -> str:
    language = "toml" if name.endswith(".toml") else "python"
    return f"`{name}`\n\n```{language}\n{(EXAMPLE / name).read_text()}```\n"


@pytest.mark.parametrize("name", QUOTED)
def test_page_quotes_the_files(name: str, request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    start = text.index(f"`{name}`\n\n```")
    end = text.index("\n```\n", start + len(name) + 8) + len("\n```\n")
    if request.config.getoption("--bless"):
        PAGE.write_text(text[:start] + _quote(name) + text[end:])
    else:
        assert text[start:end] == _quote(name), "run: make bless"


ENTRY = re.compile(r"^   (\[analyzers\.jitter\]\n.*?)^   ```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process with the file and registry line of the example."""
    tree = tmp_path_factory.mktemp("extended")
    shutil.copytree(
        ROOT / "traceanalyzer", tree / "traceanalyzer", ignore=shutil.ignore_patterns("__pycache__")
    )
    analyzers = tree / "traceanalyzer" / "analyzers"
    shutil.copy(EXAMPLE / "traceanalyzer_example" / "jitter.py", analyzers)
    entry = ENTRY.search(PAGE.read_text())
    assert entry
    commands = (analyzers / "commands.toml").read_text()
    last = "[analyzers.info]\n"
    assert commands.count(last) == 1
    (analyzers / "commands.toml").write_text(commands.replace(last, f"{entry[1]}\n{last}"))
    return {"PYTHONPATH": str(tree)}


def test_imports_of_the_file_are_allowed(extended: dict[str, str]) -> None:
    path = Path(extended["PYTHONPATH"], "traceanalyzer", "analyzers", "jitter.py")
    rooms = {_room_of_import(module) for module in source_of(path).imports} - {None, "package"}
    assert {"run", "tables"} <= rooms
    assert rooms <= ALLOWED["analyzers"]


@pytest.mark.matrix
def test_one_file_and_one_line_add_an_analysis(extended: dict[str, str], tmp_path: Path) -> None:
    assert len((EXAMPLE / "traceanalyzer_example" / "jitter.py").read_text().splitlines()) <= 80
    folder = ROOT / "fixtures" / "nccl_8ranks"
    helped = run_program("jitter", "--help", env=extended, cwd=tmp_path)
    assert "--min-runs N" in helped.stdout
    assert "--assume-rank" in helped.stdout
    done = run_program(
        "jitter",
        folder,
        "--rank",
        "5",
        "--min-runs",
        "6",
        "--to",
        "json",
        env=extended,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)["kernels"]
    assert min(row["n"] for row in kernels) >= 6
    bad = run_program("jitter", folder, "--min-runs", "0", env=extended, cwd=tmp_path)
    assert bad.returncode == 2
    page = tmp_path / "report.json"
    written = run_program("report", folder, "-o", page, env=extended, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert json.loads(page.read_text())["jitter"]["kernels"]
    code = (
        "import sys, traceanalyzer as ta; sys.path.insert(0, sys.argv[2]); import make_commands\n"
        "print(ta.read(sys.argv[1]).jitter(min_runs=6).verdict)\n"
        "import make_stubs\n"
        "print(*make_commands.pages().values(), make_stubs.names(), make_stubs.methods())"
    )
    command = [sys.executable, "-c", code, str(folder / "rank5.json.gz"), str(ROOT / "docs")]
    done = subprocess.run(
        command, env=extended, cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "times its median" in done.stdout
    assert "## `jitter`" in done.stdout
    assert "from traceanalyzer.analyzers.jitter import jitter as jitter\n" in done.stdout
    assert "    jitter = functions.jitter\n" in done.stdout
