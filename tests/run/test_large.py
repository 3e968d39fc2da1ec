"""Tables of large inputs in temporary files."""

import errno
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from processes import environment

import traceanalyzer as ta
from traceanalyzer.analyzers.kernels import compute
from traceanalyzer.errors import OutputError
from traceanalyzer.parsers import tables as spill
from traceanalyzer.parsers.chrome_trace import arrays, columns
from traceanalyzer.run import questions, read as reading
from traceanalyzer.trace import Trace

FIXTURES = Path(__file__).parents[2] / "fixtures"
FILES = (
    "nsys/training.sqlite",
    "nsys/tables.sqlite",
    "rocpd/training.db",
    "nccl_8ranks/rank0.json.gz",
    "transformer/rank0.json.gz",
)


@pytest.fixture(name="limits")
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all files as large."""
    monkeypatch.setattr(reading, "_LEAST_EVENTS", 0)
    monkeypatch.setattr(spill, "_LEAST_BYTES", 1)
    monkeypatch.setattr(columns, "SPILLED_BYTES", 1)
    monkeypatch.setattr(arrays, "PIECE_BYTES", 1 << 13)
    monkeypatch.setattr(compute, "_MANY_ROWS", 0)


@dataclass(frozen=True)
class Nested:
    frames: list[pl.DataFrame]
    number: int


FRAME = pl.DataFrame(
    {
        "number": [1, None, 3],
        "real": [0.5, 1.5, None],
        "small": pl.Series([1, 2, 3], dtype=pl.UInt8),
        "same": [7, 7, 7],
        "none": pl.Series([None] * 3, dtype=pl.Int32),
        "flag": [True, None, False],
        "text": ["a", "b", None],
        "name": pl.Series(["x", "y", "x"], dtype=pl.Categorical()),
    }
)


def _columns_in_files() -> int:
    return len(spill._files)


@pytest.mark.usefixtures("limits")
def test_a_frame_is_the_same_in_files() -> None:
    before = _columns_in_files()
    frame = spill.spilled(FRAME)
    assert _columns_in_files() == before + 6  # all but same and none
    spill.unload()
    assert_frame_equal(frame, FRAME)
    sliced = spill.spilled(FRAME[1:])
    assert_frame_equal(sliced, FRAME[1:])
    parts = spill.spilled(pl.concat([FRAME, FRAME], rechunk=False))
    assert_frame_equal(parts, pl.concat([FRAME, FRAME]))


@pytest.mark.usefixtures("limits")
def test_a_column_is_written_once_and_deleted_with_its_frame() -> None:
    before = _columns_in_files()
    frame = spill.spilled(FRAME)
    again = spill.spilled(frame.select("number", "text", twice="real"))
    assert _columns_in_files() == before + 6
    del frame, again
    assert _columns_in_files() == before


@pytest.mark.usefixtures("limits")
def test_frames_in_lists_and_dataclasses() -> None:
    before = _columns_in_files()
    moved = spill.spilled(Nested([FRAME], 3))
    assert _columns_in_files() == before + 6
    assert moved.number == 3
    assert_frame_equal(moved.frames[0], FRAME)


@pytest.mark.usefixtures("limits")
def test_arrays() -> None:
    array = np.arange(5, dtype=np.uint16)
    before = _columns_in_files()
    moved = spill.spilled(array)
    assert _columns_in_files() == before + 1
    assert moved.tolist() == array.tolist()
    assert spill.Growing(np.int64).whole().size == 0


@pytest.mark.usefixtures("limits")
def test_without_space_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = _columns_in_files()
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    for value in (FRAME, np.arange(3)):
        with pytest.raises(OutputError, match=r"no space left on device.* MB .*--temp DIR"):
            spill.spilled(value)
    with pytest.raises(OutputError, match="--temp DIR"):
        ta.diagnose(FIXTURES / FILES[-1])
    assert _columns_in_files() == before


#: Analyses a trace whose tables are in files, and waits when they are.
_STOPPED = """
import sys, time
from traceanalyzer.parsers import tables as spill
from traceanalyzer.cli.main import status
from traceanalyzer.parsers.chrome_trace import columns, assemble
columns.SPILLED_BYTES = spill._LEAST_BYTES = 1
def stop(self):
    print(len(spill._files), flush=True)
    time.sleep(30)
assemble.Assembler._launch_configs = stop
status(["diagnose", "-q", "--temp", *sys.argv[1:]])
"""


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_process_that_ends(stop: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _STOPPED, tmp_path, FIXTURES / FILES[-1]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 10
        in_folder = [path for path in files_of(process.pid) if path.is_relative_to(tmp_path)]
        process.send_signal(stop)
    assert in_folder
    assert not [*tmp_path.iterdir()]


def files_of(pid: int) -> set[Path]:
    """Return the files that a process has in memory."""
    lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if line.count("/")}


@pytest.fixture(name="in_files")
def _in_files(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the traces that were measured are in files."""
    in_files: list[bool] = []

    def ask(self: questions.Question, traces: list[Trace], **how: bool) -> None:
        in_files.append(isinstance(traces[0]._computed, reading._Computed))
        measured(self, traces, **how)

    measured = questions.Question.ask
    monkeypatch.setattr(questions.Question, "ask", ask)
    return in_files


@pytest.mark.parametrize("name", FILES)
def test_answers_are_the_same(
    name: str, in_files: list[bool], request: pytest.FixtureRequest
) -> None:
    path = str(FIXTURES / name)
    expected = [ta.diagnose(path).to_dict(), ta.gpu_idle(path).to_dict()]
    assert not any(in_files)
    request.getfixturevalue("limits")
    assert [ta.diagnose(path).to_dict(), ta.gpu_idle(path).to_dict()] == expected
    assert any(in_files)


@pytest.mark.usefixtures("limits")
def test_a_trace_in_memory_stays_there(in_files: list[bool]) -> None:
    ta.kernels(ta.read(FIXTURES / FILES[0]))
    assert in_files
    assert not any(in_files)
