"""The benchmark's machinery on a trace of 1 MB; its numbers are not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import inputs, mutants, report, results
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


def test_read_is_timed_and_its_memory_sampled(trace: Path) -> None:
    task = str(ROOT / "benchmarks" / "tasks.py")
    command: list[str | Path] = [sys.executable, "-I", task, "read", trace]
    [found] = measure([Case("read", trace, command, memory=True)], rounds=2)
    assert found.error is None
    assert len(found.seconds) == 2
    assert found.best is not None
    assert 0 < found.best < 30
    assert found.size == trace.stat().st_size
    assert found.rows is not None
    assert found.rows > 1000
    assert found.peak_rss is not None
    assert found.peak_pss is not None
    assert 20 * MB < found.peak_pss <= found.peak_rss


def test_memory_of_child_processes_counts() -> None:
    child = "import time; held = b'x' * 40_000_000; time.sleep(0.4)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    alone = run([sys.executable, "-c", child], sample_memory=True)
    together = run([sys.executable, "-c", parent], sample_memory=True)
    assert alone.peak_rss is not None
    assert together.peak_rss is not None
    assert together.peak_rss > alone.peak_rss > 40 * MB


def test_failed_command_is_an_error_and_no_time() -> None:
    [found] = measure(
        [Case("broken", None, [sys.executable, "-c", "raise SystemExit('no')"])], rounds=2
    )
    assert (found.seconds, found.error) == ([], "no")


def test_every_route_finds_the_same_events(trace: Path) -> None:
    text = trace.read_bytes()
    events, kernels = text.count(b'"ph": "'), text.count(b'"cat": "kernel"')
    rows = events - text.count(b'"ph": "M"')
    expected = {"orjson": events, "msgspec": events, "search": kernels, "package": rows}
    found = {name: run([sys.executable, "-I", ROUTES_PY, name, trace]) for name in ROUTES}
    assert [(name, done.error) for name, done in found.items() if done.error] == []
    assert found.pop("pieces_only").rows
    assert {n: done.rows for n, done in found.items()} == {
        name: expected[name.partition("_")[0]] for name in found
    }


def test_inflaters_give_all_bytes(trace: Path) -> None:
    path = inputs.gzipped(trace)
    for library in LIBRARIES:
        pytest.importorskip({"isal": "isal", "zlib_ng": "zlib_ng"}.get(library, library))
        assert inflate(library, str(path))[1] == trace.stat().st_size


def test_thinned_trace_is_whole_and_has_few_kernels(trace: Path) -> None:
    text = inputs.few_kernels(5).read_bytes()
    assert json.loads(text)["traceName"]
    assert 300 < text.count(b'"cat": "kernel"') < 500
    assert 4.5 * MB < len(text) < 6 * MB


def test_profile_shows_the_stages(trace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.profile_read", trace],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Assembler._events" in done.stdout


def test_bars_are_judged() -> None:
    found = bars(
        results_of(
            Measurement("orjson.loads", "gen200.json", 200 * MB, [2.0, 3.0]),
            Measurement("read", "gen200.json", 200 * MB, [1.2, 0.9], peak_rss=321 * MB),
            Measurement("HTA", "gen200.json", 200 * MB, [21.6]),
        )
    )
    judged = {(bar.what, bar.met): bar.value for bar in found}
    assert judged[("full table / `orjson.loads`", True)] == pytest.approx(0.45)
    assert judged[("HTA / full table", False)] == pytest.approx(24)
    assert judged[("peak memory, full table", False)] == 321
    assert judged[("`--help`", None)] is None


def test_results_survive_the_file_and_reach_the_page(tmp_path: Path) -> None:
    found = results_of(Measurement("read", "gen200.json", MB, [0.5], 7, 8 * MB, 9 * MB))
    results.save(found, tmp_path / "a.json")
    assert results.load(tmp_path / "a.json") == found
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.include(report.markdown(found), page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| read | `gen200.json` | 0.50 | 0.50 | 2 |" in text


def test_mutants_are_made_of_modules_that_there_are():
    for module in mutants.TESTS:
        assert (mutants.PACKAGE / module).exists(), module
        assert mutants.test_files(module)
