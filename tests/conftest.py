"""Shared fixtures: third-party data, golden files, the command line."""

from __future__ import annotations

import difflib
import gc
import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import wording
from browser import chromium
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("TRACEANALYZER_SHARED", ROOT.parent / "shared"))
GOLDEN = Path(__file__).parent / "golden"

# deadlines fail on a loaded machine
settings.register_profile("full", deadline=None, max_examples=50)
settings.load_profile("full")
#: Without ``--hypothesis-profile`` property tests run one in so many of their examples.
ONE_IN = 6

# a test process per core: more threads only wait for each other, and waking one on another core
# costs more than most of the queries of a test
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})

# programs that tests start find the package compiled by the first of them, and the next run the
# tests, whose assertions take most of the time of collecting them
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# the terminal in which the suite runs does not decide what is printed
for _variable in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(_variable, None)
os.environ["TRACEANALYZER_PAGER"] = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bless", action="store_true", help="rewrite the golden files in tests/golden"
    )


def pytest_configure(config: pytest.Config) -> None:
    wording.BLESS = config.getoption("--bless")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_matrices(items)
    if not is_thorough(config):
        reduce_examples({getattr(item, "function", None) for item in items})


def is_thorough(config: pytest.Config) -> bool:
    """Return whether every example and every case is asked for: ``make test-all``."""
    return bool(wording.BLESS or config.getoption("--hypothesis-profile"))


def mark_matrices(items: list[pytest.Item]) -> None:
    """Mark cases outside the sample as ``matrix``.

    ``@pytest.mark.sample(n, *names)`` keeps every n-th case of a parametrized test, and at least
    one for each value of the parameters ``names``.
    """
    tests: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        every, *names = cases[0].get_closest_marker("sample").args
        values = [{(name, str(case.callspec.params[name])) for name in names} for case in cases]
        covered = set().union(*values[::every])
        for number, case in enumerate(cases):
            if number % every and values[number] <= covered:
                case.add_marker("matrix")
            covered |= values[number]


def reduce_examples(tests: set[Any]) -> None:
    """Let property tests run a sixth of their examples, at least two."""
    for test in tests:
        used = getattr(test, "_hypothesis_internal_use_settings", None)
        if used:
            few = min(max(-(-used.max_examples // ONE_IN), 2), used.max_examples)
            test._hypothesis_internal_use_settings = settings(used, max_examples=few)


def pytest_collection_finish() -> None:
    """Keep the collected tests out of each later garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_runtest_call() -> None:
    wording.start_test()


def pytest_sessionfinish() -> None:
    if wording.BLESS:
        wording.save()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of third-party files outside the project."""
    if not SHARED.is_dir():
        pytest.skip(f"no third-party data at {SHARED}; set TRACEANALYZER_SHARED")
    return SHARED


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Return whether a test with a loop runs all of it; see ``is_thorough``."""
    return is_thorough(request.config)


@pytest.fixture(scope="session")
def chromium_window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield the browser of all tests, see ``browser.cleared``; it takes seconds to start."""
    yield from chromium(tmp_path_factory.mktemp("chromium"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str | bytes], None]:
    """Return ``golden(name, text)``, which compares with ``tests/golden/name`` or rewrites it."""

    def compare(name: str, actual: str | bytes) -> None:
        text = actual if isinstance(actual, str) else actual.decode()
        path = GOLDEN / name
        if request.config.getoption("--bless"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
            return
        expected = path.read_bytes().decode() if path.exists() else ""
        if text != expected:
            lines = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), "golden", "actual", lineterm=""
            )
            difference = "\n".join(list(lines)[:60])
            pytest.fail(f"{path} differs; if the new text is right: pytest --bless\n{difference}")

    return compare


@cache
def once(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what a function returns for these arguments, computed once; do not change it.

    For analyses of fixtures that several tests look at, not for tests that patch the package.
    """
    return function(*arguments, **options)


def run_program(
    *args: str | Path,
    input: bytes | None = None,  # noqa: A002 - the name subprocess uses
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m traceanalyzer ARGS`` as a process; output and errors are text."""
    done = subprocess.run(
        [sys.executable, "-m", "traceanalyzer", *map(str, args)],
        input=input,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **(env or {})},
        cwd=cwd,
        timeout=60,
        check=False,
    )
    return _completed(done.args, done.returncode, done.stdout, done.stderr)


def run_commands(
    *commands: Sequence[str | Path], env: dict[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """Run commands one after another in one process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS],
        input=json.dumps([[str(word) for word in command] for command in commands]),
        capture_output=True, env={**os.environ, "COLUMNS": "100", **env},
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return [
        subprocess.CompletedProcess(command, *answer)
        for command, answer in zip(commands, answers, strict=True)
    ]


_COMMANDS = """
import io, json, sys, warnings
from contextlib import redirect_stderr, redirect_stdout
from traceanalyzer.cli.main import status

warnings.formatwarning = lambda text, *_, **__: f"traceanalyzer: {text}\\n"
answers = []
for command in json.load(sys.stdin):
    out, error = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(error):
        code = status(command)
    for stream in (out, error):
        stream.seek(0)
    answers.append((code, out.read(), error.read()))
json.dump(answers, sys.stdout)
"""


def run_cli(
    *args: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, which takes half a second less than a new one."""
    from traceanalyzer.cli.main import status

    arguments = list(map(str, args))
    written = io.BytesIO(), io.BytesIO()
    out, error = (io.TextIOWrapper(one, "utf-8", "surrogateescape") for one in written)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        for name, value in {"COLUMNS": "100", **(env or {})}.items():
            patch.setenv(name, value)
        if cwd:
            patch.chdir(cwd)
        code = status(arguments)
        out.flush()
        error.flush()
    return _completed(arguments, code, *(one.getvalue() for one in written))


def _completed(
    arguments: list[str], code: int, *written: bytes
) -> subprocess.CompletedProcess[str]:
    texts = (one.decode(errors="surrogateescape") for one in written)
    return subprocess.CompletedProcess(arguments, code, *texts)


@pytest.fixture(name="run_cli")
def run_cli_fixture() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return :func:`run_cli` as a fixture."""
    return run_cli


@pytest.fixture(name="run_program")
def run_program_fixture() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return :func:`run_program` as a fixture."""
    return run_program
