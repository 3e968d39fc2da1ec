"""Budgets: files of limits, metrics, exit codes, Markdown and JUnit XML."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from xml.etree import ElementTree as ET

import pytest
from conftest import ROOT, once, run_cli, run_program
from hypothesis import given, strategies as st
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers import registry
from traceanalyzer.cli.main import status
from traceanalyzer.errors import MalformedInput, UnreadableFile
from traceanalyzer.findings import diagnose
from traceanalyzer.render import render
from traceanalyzer.render.junit import Case, junit
from traceanalyzer.run.read import OfAllFiles
from traceanalyzer.tools.budgets import METRICS, read_budgets

UPGRADE, RANKS = ROOT / "fixtures/upgrade/after.json.gz", ROOT / "fixtures/nccl_8ranks"
SHAPES, SNAPSHOT = ROOT / "fixtures/transformer", ROOT / "fixtures/memory/training.pickle"


@pytest.fixture
def write(tmp_path):
    def written(*budgets, text=None):
        path = tmp_path / "budgets.toml"
        each = [one if isinstance(one, str) and one.startswith("{") else json.dumps(one)
                for one in budgets]  # fmt: skip
        path.write_text(f"budgets = [{', '.join(each)}]\n" if text is None else text)
        return str(path)

    return written


def states(result) -> list[str]:
    return result.budgets["state"].to_list()


# --- metrics -------------------------------------------------------------------------------------


@cache
def _numbers(analysis: str) -> dict[str, object]:
    """Return the JSON of an analysis, which has several metrics."""
    entry = registry.ENTRIES.get(analysis)
    function = entry.function() if entry else diagnose
    run = {"efficiency": SHAPES, "memory": SNAPSHOT}.get(analysis, RANKS)
    numbers: dict[str, object] = json.loads(render(once(function, run), "json", top=None))
    return numbers


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_a_number_of_the_json_of_its_analysis(name):
    metric = METRICS[name]
    assert metric.analysis == "diagnose" or metric.analysis in registry.ENTRIES
    numbers = _numbers(metric.analysis)
    assert metric.key in numbers
    assert not isinstance(metric.divisor, str) or metric.divisor in numbers
    assert metric.of(numbers) >= 0


def test_values_of_metrics(write):
    limits = [f"{name} >= 0" for name in ("step_ms", "exposed_frac", "wait_frac", "idle_frac")]
    result = ta.check_budgets(RANKS, write(*limits))
    values = dict(result.budgets.select("metric", "value").rows())
    assert values["step_ms"] == once(ta.steps, RANKS).scalars["median_ns"] / 1e6
    overlap, comm = once(ta.overlap, RANKS).scalars, once(ta.comm_outliers, RANKS).scalars
    steps = once(ta.overlap, RANKS).counted  # without warm-up and time between steps
    exposed = steps["exposed_communication_ns"].sum() / steps["span_ns"].sum()
    assert values["exposed_frac"] == overlap["step_exposed_communication_frac"] == exposed
    assert values["wait_frac"] == comm["total_wait_ns"] / comm["total_comm_ns"]
    assert values["idle_frac"] == once(ta.gpu_idle, RANKS).scalars["step_idle_frac"]
    assert values["idle_frac"] == pytest.approx(steps["idle_ns"].sum() / steps["span_ns"].sum())


def test_the_page_lists_every_metric():
    page = (ROOT / "docs/gate.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| ([^|]+) \| `([a-z-]+)` \|", page, re.MULTILINE)
    entries = registry.ENTRIES
    known = [
        (
            name,
            metric.meaning,
            entries[metric.analysis].command if metric.analysis in entries else "diagnose",
        )
        for name, metric in METRICS.items()
    ]
    assert rows == known


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("step_ms <= 410", 410),
        ("  step_ms<=410.5 ", 410.5),
        ("step_ms < 0.41s", 410),
        ("step_ms > 410 us", 0.41),
        ("exposed_frac <= 0.15", 0.15),
        ("exposed_frac <= 15%", 0.15),
        ("mfu >= 40 %", 0.4),
        ("peak_bytes <= 70GiB", 70 << 30),
        ("peak_bytes <= 1e9", 1e9),
        ("critical_count <= 0", 0),
    ],
)
def test_limits(text, limit, write):
    (budget,) = read_budgets(write(text))
    assert budget.limit == pytest.approx(limit, rel=1e-12)


@pytest.mark.matrix
def test_comparisons_at_the_limit(write):
    expected = {
        "<=": ["violated", "met", "met"],
        ">=": ["met", "met", "violated"],
        "<": ["violated", "violated", "met"],
        ">": ["met", "violated", "violated"],
    }
    limits = [f"critical_count {sign} {limit}" for sign in expected for limit in (2, 3, 4)]
    found = states(ta.check_budgets(RANKS, write(*limits)))  # it has 3
    assert found == [state for each in expected.values() for state in each]


BAD = [
    "step_ms <= -1", "step_ms <= nan", "step_ms <= inf", "step_ms <= 1e999", "step_ms == 4",
    "step_ms <=", "<= 4", "step_ms <= 4 <= 5", "step_ms <= 70GiB", "peak_bytes <= 3s",
    "exposed_frac <= 3s", "critical_count <= 5%", "nonsense <= 4", "step_ms <= 1,5", "", 4, None,
    "{}", '{ limit = 4 }', '{ limit = "step_ms <= 4", optional = "yes" }',
    '{ limit = "step_ms <= 4", colour = "red" }', '{ optional = true }',
]  # fmt: skip


@pytest.mark.parametrize("budget", BAD)
def test_invalid_budgets_are_one_error(budget, write, capsys):
    path = write(budget)
    with pytest.raises(MalformedInput):
        read_budgets(path)
    assert status(["gate", path, str(UPGRADE)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert path in error


@pytest.mark.parametrize(
    "text", ["", "budgets = []", "budgets = 4", "budgets = [", "other = 1", "\x00", "[[budgets]]",
             'budgets = ["step_ms <= 4"]\nmore = 1', "budgets = " + "[" * 10_000],
)  # fmt: skip
def test_invalid_files_are_one_error(text, write):
    with pytest.raises(MalformedInput):
        read_budgets(write(text=text))


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(UnreadableFile):
            read_budgets(path)
    (tmp_path / "latin.toml").write_bytes(b"budgets = ['\xe9']")
    (tmp_path / "huge.toml").write_bytes(b"#" * (1 << 21))
    for name in ("latin.toml", "huge.toml"):
        with pytest.raises(MalformedInput):
            read_budgets(tmp_path / name)


def test_a_key_of_many_parts_takes_no_memory(write):
    """The parser's memory grows by the square of the parts: 16 GB for this line."""
    with raises_wording(MalformedInput):
        read_budgets(write(text="a." * 60_000 + "b = 1"))


def test_an_unknown_metric_lists_the_known_ones(write):
    with pytest.raises(MalformedInput) as raised:
        read_budgets(write("step <= 4"))
    assert all(name in str(raised.value) for name in METRICS)


def test_not_recorded_is_a_violation_unless_optional(write):
    optional = '{ limit = "mfu >= 40%", optional = true }'
    result = ta.check_budgets(UPGRADE, write("mfu >= 40%", optional, "overlap_frac >= 0"))
    assert states(result) == ["not recorded", "skipped", "not recorded"]
    assert len(result.violations) == 2


def test_an_optional_budget_can_be_violated(write):
    budget = '{ limit = "mfu >= 40%", optional = true }'
    assert states(ta.check_budgets(SHAPES, write(budget))) == ["violated"]


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("budgets", [["step_ms <= 1s"], ["step_ms <= 1s", "idle_frac <= 99%"]])
def test_progress_of_all_analyses_together_is_the_size_of_the_files(write, budgets):
    done, size = [], UPGRADE.stat().st_size
    # twice the size, so that bytes above that of the files are not cut off
    files = OfAllFiles(lambda now, _: done.append(now), 2 * size)
    ta.check_budgets([UPGRADE], write(*budgets), progress=files)
    assert size - len(budgets) <= done[-1] <= size


@pytest.mark.matrix
def test_exit_codes_of_the_process(write, tmp_path):
    def gate(limit: str, run=UPGRADE, start=run_cli) -> subprocess.CompletedProcess:
        return start("gate", write(limit), run, "-q", cwd=tmp_path)

    met = gate("step_ms <= 9")
    assert (met.returncode, met.stderr) == (0, "")
    violated = gate("step_ms <= 8", start=run_program)
    assert violated.returncode == 3
    assert violated.stderr.count("\n") == 1
    assert "step_ms <= 8" in violated.stderr
    assert gate("step_ms <= 8", tmp_path / "missing").returncode == 1


def test_outputs_are_written_when_budgets_are_violated(write, tmp_path, capsys):
    page, xml = tmp_path / "gate.md", tmp_path / "gate.xml"
    limits = write("step_ms <= 8", "step_ms <= 9", "mfu >= 1", '{limit="hfu > 1",optional=true}')
    command = ["gate", limits, str(UPGRADE), "-q", "-o", str(page), "--junit", str(xml)]
    assert status(command) == 3
    lines = capsys.readouterr().err.splitlines()
    assert ["step_ms <= 8" in lines[0], "mfu >= 1" in lines[1], len(lines)] == [True, True, 2]
    assert "| `step_ms <= 8` | 8.133 ms | violated |" in page.read_text()
    suites = ET.parse(xml).getroot()  # noqa: S314 - our own file
    (suite,) = suites
    assert [suites.tag, suite.get("name")] == ["testsuites", "traceanalyzer.gate"]
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "2", "errors": "0", "skipped": "1",
    }  # fmt: skip
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("step_ms <= 8", ["failure"]),
        ("step_ms <= 9", []),
        ("mfu >= 1", ["failure"]),
        ("hfu > 1", ["skipped"]),
    ]
    assert all(case.get("classname") and case.get("time") for case in suite)
    # existing files are kept without --force
    assert status(command) == 1
    assert status([*command, "--force"]) == 3
    assert status(["gate", limits, str(UPGRADE), "-o", "x.md", "--junit", "x.md"]) == 2


def test_hostile_names_are_escaped(write, tmp_path):
    run = tmp_path / "a|<b>`x`@team.json.gz"
    run.write_bytes(UPGRADE.read_bytes())
    reason = "<script>x</script> | @team"
    result = ta.check_budgets(run, write({"limit": "mfu > 1"}["limit"], _table("mfu > 1", reason)))
    page = render(result, "html", top=None).decode()
    assert "<script>x" not in page
    rows = [line for line in render(result, "md").decode().splitlines() if line.startswith("| `")]
    for line in rows:
        outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line)  # without code
        assert outside.count("|") - outside.count("\\|") == 5
        assert "<" not in outside
        assert "@" not in outside


def _table(limit: str, reason: str) -> str:
    return f"{{ limit = {json.dumps(limit)}, reason = {json.dumps(reason)} }}"


@given(st.text(), st.text(), st.text())
def test_junit_keeps_any_text(name, failure, skipped):
    root = ET.fromstring(junit(name, [Case(name, failure), Case(name, "", skipped)]))  # noqa: S314
    cases = root.findall("testsuite/testcase")
    assert len(cases) == 2
    assert [len(case) for case in cases] == [bool(failure), bool(skipped)]
    assert cases[0].get("name") == re.sub(
        "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", name
    )


@pytest.mark.matrix
def test_a_metric_that_is_not_recorded_has_its_reason_in_a_note(write, shared):
    trace = shared / "data/chrome/kineto/resnet50_dataloader_workers0.json.gz"
    result = ta.check_budgets(trace, write("mfu >= 40%", "peak_bytes <= 70GiB"))
    assert result.budgets["measured"].to_list() == ["not recorded"] * 2
    mfu, peak = result.budgets["missing"]
    assert "--peak" in mfu
    assert "profile_memory=True" in peak
    assert [note.partition(":")[0] for note in result.notes][:2] == ["mfu", "peak_bytes"]
    assert "--peak" in result.violations[0]


def test_a_trace_in_place_of_the_budgets():
    with pytest.raises(MalformedInput, match="budgets first"):
        read_budgets(UPGRADE)
    assert status(["gate", str(UPGRADE)]) == 1  # not an error of the command line
