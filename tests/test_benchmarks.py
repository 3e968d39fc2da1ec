"""The benchmark on a trace of 1 MB; numbers are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import traceanalyzer as ta
from benchmarks import inputs, mutants, report, results, scale
from benchmarks.bars import bars
from benchmarks.inflate import LIBRARIES, inflate
from benchmarks.measure import run
from benchmarks.results import Measurement, Results
from benchmarks.routes import ROUTES
from benchmarks.run import Case, measure

ROOT = Path(__file__).parents[1]
ROUTES_PY = ROOT / "benchmarks" / "routes.py"
MB = 1_000_000


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A generated trace of 1 MB."""
    if reason := inputs.missing():
        pytest.skip(reason)
    patch = pytest.MonkeyPatch()
    patch.setattr(inputs, "FOLDER", tmp_path_factory.mktemp("inputs"))
    yield inputs.generated(1)
    patch.undo()


def results_of(*measurements: Measurement) -> Results:
    return Results("2026-01-01", {"cores": "2"}, {"orjson": "3"}, (0.5, 0.5), list(measurements))


def test_time_and_memory_of_a_read(trace: Path) -> None:
    task = str(ROOT / "benchmarks" / "tasks.py")
    command: list[str | Path] = [sys.executable, "-I", task, "read", trace]
    [measured] = measure([Case("read", trace, command, memory=True)], rounds=2)
    assert measured.error is None
    assert len(measured.seconds) == 2
    assert measured.best is not None
    assert 0 < measured.best < 30
    assert measured.size == trace.stat().st_size
    assert measured.rows is not None
    assert measured.rows > 1000
    assert measured.peak_rss is not None
    assert measured.peak_pss is not None
    assert 20 * MB < measured.peak_pss <= measured.peak_rss


def test_memory_of_child_processes_counts() -> None:
    child = "import time; held = b'x' * 40_000_000; time.sleep(0.4)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    alone = run([sys.executable, "-c", child], sample_memory=True)
    together = run([sys.executable, "-c", parent], sample_memory=True)
    assert alone.peak_rss is not None
    assert together.peak_rss is not None
    assert together.peak_rss > alone.peak_rss > 40 * MB


def test_rows_of_the_large_inputs() -> None:
    quick = [sys.executable, "-c", "pass"]
    cases = [
        scale.Case("info", "few", quick, 30, 1000),
        scale.Case("info", "many", quick, like=("info", "few", 1000)),
        scale.Case("HTA's loader", "few", [Path("no") / "python"]),
        scale.Case("kernels", "few", quick, 0.0001),
    ]
    met, like, peer, missed = scale.measured(iter(cases))
    assert met[0] == "`info`"
    assert met[-2:] == ("30 s, 1,000 MB", "met")
    assert 0 < float(met[2]) < 30
    assert 0 < float(met[3]) < 30
    assert float(met[4]) > 1
    assert like[-1] == "met"
    assert peer[2].startswith("failed: not installed")
    assert missed[-1] == "**missed**"


def test_copies_of_a_trace_are_other_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "FOLDER", tmp_path)
    trace = tmp_path / "one.json"
    trace.write_text(
        '{"distributedInfo": {"rank": 0, "world_size": 8},'
        ' "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}]}'
    )
    folder = inputs.ranks_of(trace, 3)
    assert [ta.read(path).meta.rank for path in sorted(folder.iterdir())] == [0, 1, 2]


def test_failed_command_has_no_time() -> None:
    [measured] = measure(
        [Case("broken", None, [sys.executable, "-c", "raise SystemExit('no')"])], rounds=2
    )
    assert (measured.seconds, measured.error) == ([], "no")


@pytest.mark.matrix
def test_routes_read_the_same_events(trace: Path) -> None:
    text = trace.read_bytes()
    events, kernels = text.count(b'"ph": "'), text.count(b'"cat": "kernel"')
    rows = events - text.count(b'"ph": "M"')
    expected = {"orjson": events, "msgspec": events, "search": kernels, "package": rows}
    measured = {name: run([sys.executable, "-I", ROUTES_PY, name, trace]) for name in ROUTES}
    assert [(name, done.error) for name, done in measured.items() if done.error] == []
    assert measured.pop("pieces_only").rows
    assert {n: done.rows for n, done in measured.items()} == {
        name: expected[name.partition("_")[0]] for name in measured
    }


def test_inflaters_return_all_bytes(trace: Path) -> None:
    path = inputs.gzipped(trace)
    for library in LIBRARIES:
        pytest.importorskip({"isal": "isal", "zlib_ng": "zlib_ng"}.get(library, library))
        assert inflate(library, str(path))[1] == trace.stat().st_size


def test_thinned_trace_is_complete(trace: Path) -> None:
    text = inputs.few_kernels(5).read_bytes()
    assert json.loads(text)["traceName"]
    assert 300 < text.count(b'"cat": "kernel"') < 500
    assert 4.5 * MB < len(text) < 6 * MB


@pytest.mark.matrix
def test_profile_lists_the_stages(trace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.profile_read", trace],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()  # which stages take long depends on the machine
    assert "events" in first
    assert last.startswith("sum")


def test_bars_are_evaluated() -> None:
    measured = bars(
        results_of(
            Measurement("orjson.loads", "gen200.json", 200 * MB, [2.0, 3.0]),
            Measurement("read", "gen200.json", 200 * MB, [1.2, 0.9], peak_rss=321 * MB),
            Measurement("HTA", "gen200.json", 200 * MB, [21.6]),
        )
    )
    judged = {(bar.what, bar.met): bar.value for bar in measured}
    assert judged[("full table / `orjson.loads`", True)] == pytest.approx(0.45)
    assert judged[("HTA / full table", False)] == pytest.approx(24)
    assert judged[("peak memory, full table", False)] == 321
    assert judged[("`--help`", None)] is None


def test_results_round_trip(tmp_path: Path) -> None:
    measured = results_of(Measurement("read", "gen200.json", MB, [0.5], 7, 8 * MB, 9 * MB))
    results.save(measured, tmp_path / "a.json")
    assert results.load(tmp_path / "a.json") == measured
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.include(report.markdown(measured), page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| read | `gen200.json` | 0.50 | 0.50 | 2 |" in text


def test_summary_lists_commands_and_missed_targets() -> None:
    measured = results_of(
        Measurement("comm-outliers", "gen200.json", 200 * MB, [0.6], peak_rss=147 * MB),
        Measurement("HTA", "gen200.json", 200 * MB, [21.0], peak_rss=1091 * MB),
        Measurement("--help", None, None, [0.4]),
    )
    text = report.summary(measured)
    row = "| `comm-outliers` | Chrome trace, 200 MB | 0.60 | 147 | HTA | 21.00 | 1091 |"
    assert row in text
    assert "| `gpu-idle` | Chrome trace, 200 MB | not measured |  |  |  |  |" in text
    assert "| `--help` |  | 0.40 s | ≤ 0.30 s |" in text
    assert report.PAGE.read_text().count(report.BEGIN) == 1


def test_tables_of_the_pages_are_those_of_the_recorded_run() -> None:
    [recorded] = results.FOLDER.glob("*.json")
    measured = results.load(recorded)
    assert report.summary(measured) in report.PAGE.read_text()
    assert report.markdown(measured) in report.FULL_PAGE.read_text()


def test_mutants_are_of_existing_modules():
    for module in mutants.TESTS:
        assert (mutants.PACKAGE / module).exists(), module
        assert mutants.test_files(module)
