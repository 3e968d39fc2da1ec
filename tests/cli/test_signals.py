"""Ctrl-C and SIGTERM at any time: exit status 130 or 143, no traceback, no partial file."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT, environment

TRACE = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"

# stops, prints "here" and waits: during an import, or when a function is called
_PREAMBLE = """
import sys, time, importlib
def here(*_, **__):
    print("here", flush=True)
    time.sleep(30)
def at(module, name):
    setattr(importlib.import_module(module), name, here)
"""
MOMENTS = {
    "while loading": """
import builtins
from traceanalyzer import cli
real = builtins.__import__
def slow(name, *rest):
    if name == "traceanalyzer.cli.commands":
        here()
    return real(name, *rest)
builtins.__import__ = slow
""",
    "while looking through folders": 'at("traceanalyzer.run.find", "collect_inputs")',
    "while reading": 'at("traceanalyzer.parsers.chrome_trace.arrays", "process")',
    "while drawing": 'at("traceanalyzer.render.html", "page")',
    "while writing": """
from traceanalyzer import files
from contextlib import contextmanager
whole = files.opened
@contextmanager
def half(path):
    with whole(path) as file:
        file.write(b"half")
        file.flush()
        here()
        yield file
files.opened = half
""",
    "in a destructor": """
class Dying:
    def __del__(self):
        here()
from traceanalyzer.cli import options
real = options.render
def render(*what, **how):
    dying = Dying()
    del dying
    return real(*what, **how)
options.render = render
""",
}
_RUN = "\nfrom traceanalyzer import cli\ncli.run()\n"


def _stopped(moment: str, number: int, folder: Path) -> tuple[int, bytes]:
    """Return exit status and standard error of the program when it gets a signal."""
    command = [sys.executable, "-c", _PREAMBLE + MOMENTS[moment] + _RUN]
    command += ["comm-outliers", str(TRACE), "-o", str(folder / "out.html")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(number)
        _, error = process.communicate(timeout=120)  # longer than the program sleeps
    return process.returncode, error


@pytest.mark.sample(15, "moment")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_the_program_quietly(tmp_path, moment, number, status):
    code, error = _stopped(moment, number, tmp_path)
    assert code == status
    assert error.strip() == b""
    assert list(tmp_path.iterdir()) == []


def test_inherited_ignored_signal_stays_ignored(tmp_path):
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + _RUN
    code = code.replace("cli.run()", "import os; os.kill(os.getpid(), 2); cli.run()")
    done = subprocess.run(
        [sys.executable, "-c", code, "info", str(TRACE), "-o", str(tmp_path / "out")],
        env=environment(),
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
