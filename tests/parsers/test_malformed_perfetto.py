"""``fixtures/malformed_perfetto``: damaged Perfetto traces: what is read and counted."""

from __future__ import annotations

import runpy
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from harness import differences

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.cli.main import status
from traceanalyzer.errors import InputError
from traceanalyzer.parsers.perfetto import wire

FIXTURES = Path(__file__).parents[2] / "fixtures"
FOLDER = FIXTURES / "malformed_perfetto"
CASES = runpy.run_path(str(FIXTURES / "make_malformed_perfetto.py"))["CASES"]


def test_files_are_what_the_script_writes() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{case.name}.pftrace" for case in CASES}
    for case in CASES:
        assert (FOLDER / f"{case.name}.pftrace").read_bytes() == case.data, case.name


@pytest.mark.sample(3, "case")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_rest_is_read_and_the_fault_counted(
    case: Any, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FOLDER / f"{case.name}.pftrace"
    if not compiled:
        monkeypatch.setattr(wire, "_wire", None)
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_commands_end_without_a_traceback(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / f"{case.name}.pftrace")
    for command in ("info", "timeline"):
        code = status([command, path, "--input-format", "perfetto"])
        assert code in (0, 1)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert "\x1b" not in error


def test_compiled_and_python_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [FOLDER / f"{case.name}.pftrace" for case in CASES if case.names is not None]
    first = [ta.read(path, format="perfetto", columns=("args",)) for path in paths]
    monkeypatch.setattr(wire, "_wire", None)
    for path, trace in zip(paths, first, strict=True):
        assert differences(trace, ta.read(path, format="perfetto", columns=("args",))) == []
