"""Types of the package: a user program is checked strictly, and runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import consumer
import pytest
from conftest import ROOT

import traceanalyzer as ta
from traceanalyzer.analyzers.methods import AnalysisMethods

TRACE = ROOT / "fixtures" / "nccl_8ranks" / "rank5.json.gz"

#: What a type checker must refuse, and what it says.
REFUSED = {
    'ta.kernels("a", by="magic")': "arg-type",
    'ta.read("a").kernels(nonsense=1)': "call-arg",
    'ta.read("a").gpu_idle(since_ns="1s")': "arg-type",
    "ta.gpu_idle(1)": "arg-type",
    'ta.read("a").nonsense()': "attr-defined",
    'ta.info("a").plot(ax=1)': "call-overload",
}


@pytest.mark.matrix
def test_user_program_is_type_checked(tmp_path: Path) -> None:
    names = [f"ta.{name}" for name in (*ta.__all__, "__version__")]
    names += [f"ta.Trace.{name}" for name in vars(AnalysisMethods) if not name.startswith("_")]
    names += [f"ta.Result.{name}" for name in dir(ta.Result) if not name.startswith("_")]
    names.remove("ta.Result.to_pandas")  # pandas has no types
    lines = ["import traceanalyzer as ta", *(f"reveal_type({name})" for name in names), *REFUSED]
    probe = tmp_path / "probe.py"
    probe.write_text("\n".join(lines) + "\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/consumer.py", str(probe)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines_of_output = checked.stdout.splitlines()
    revealed = [line for line in lines_of_output if "Revealed type is" in line]
    assert len(revealed) == len(names), checked.stdout + checked.stderr
    assert [line for line in revealed if re.search(r'is "(Any|.* -> Any)"', line)] == []
    errors = [re.search(r":(\d+): error: .*\[([\w-]+)\]$", line) for line in lines_of_output]
    refused = {lines[int(match[1]) - 1]: match[2] for match in errors if match}
    assert refused == REFUSED, checked.stdout
    assert "consumer.py" not in checked.stdout


def test_user_program_runs(tmp_path: Path) -> None:
    assert consumer.slowest_kernels(str(TRACE))
    idle, *others = consumer.answers(ta.read(TRACE), [str(TRACE)])
    assert consumer.drawn(idle)
    assert all(isinstance(one, ta.Result) for one in others)
    (tmp_path / "a.json").write_text("no trace")
    assert consumer.refused(str(tmp_path / "a.json"))


def test_py_typed_exists() -> None:
    assert Path(ta.__file__).with_name("py.typed").exists()
