"""``fixtures/malformed_perfetto``: damaged Perfetto traces: what is read and counted."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from perfetto_files import slice_, thread
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.cli.main import status
from traceanalyzer.errors import InputError
from traceanalyzer.parsers.perfetto import wire

FIXTURES = Path(__file__).parents[2] / "fixtures"
FOLDER = FIXTURES / "malformed_perfetto"
compiled = pytest.mark.skipif(not wire.is_compiled(), reason="built without a compiler")
CASES = runpy.run_path(str(FIXTURES / "make_malformed_perfetto.py"))["CASES"]


def test_files_are_what_the_script_writes() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{case.name}.pftrace" for case in CASES}
    for case in CASES:
        assert (FOLDER / f"{case.name}.pftrace").read_bytes() == case.data, case.name


@compiled
@pytest.mark.sample(3, "case")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_rest_is_read_and_the_fault_counted(case: Any) -> None:
    path = FOLDER / f"{case.name}.pftrace"
    if case.names is None:
        with pytest.raises(InputError):
            ta.read(path, format="perfetto")
        return
    tracemalloc.start()
    try:
        trace = ta.read(path, format="perfetto", columns=("args",))
        assert tracemalloc.get_traced_memory()[1] < 256 << 20
    finally:
        tracemalloc.stop()
    assert schema.check(trace.tables) == []
    assert trace.events["name"].to_list() == case.names
    assert dict(trace.issues.select("code", "count").iter_rows()) == case.issues


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_commands_end_without_a_traceback(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / f"{case.name}.pftrace")
    for command in ("info", "timeline"):
        code = status([command, path, "--input-format", "perfetto"])
        assert code in (0, 1)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert "\x1b" not in error


def _info_without_extension(*args: object) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; sys.modules['traceanalyzer.parsers.perfetto._wire'] = None\n"
        "from traceanalyzer import cli; cli.run()"
    )
    command = [sys.executable, "-c", code, "info", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["x.pftrace", "x.bin"])
def test_without_the_extension_one_line_says_what_to_install(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(thread(2, 1, 10, 11, "main") + slice_(5, 9, 2, "step"))
    done = _info_without_extension(path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    check_wording(done.stderr.replace(str(path), "FILE"))


@pytest.mark.matrix
def test_other_files_are_no_packets_without_the_extension(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"\n\x02\xff\xff" * 9)
    done = _info_without_extension(path)
    assert done.returncode == 1
    assert "compiled" not in done.stderr
