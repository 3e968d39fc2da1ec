"""Tables of large inputs in temporary files."""

import errno
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import traceanalyzer as ta
from traceanalyzer.analyzers.kernels import compute
from traceanalyzer.run import questions, read as reading
from traceanalyzer.trace import Trace

FIXTURES = Path(__file__).parents[2] / "fixtures"
FILES = ("nsys/training.sqlite", "nsys/tables.sqlite", "rocpd/training.db")


@pytest.fixture(name="limits")
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all files as large."""
    monkeypatch.setattr(reading, "_LEAST_EVENTS", 0)
    monkeypatch.setattr(reading, "_LEAST_BYTES", 1)
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
    return len(reading._files)


@pytest.mark.usefixtures("limits")
def test_a_frame_is_the_same_in_files() -> None:
    before = _columns_in_files()
    frame = reading.spilled(FRAME)
    assert _columns_in_files() == before + 3  # number, real, small
    reading.unload()
    assert_frame_equal(frame, FRAME)
    sliced = reading.spilled(FRAME[1:])
    assert_frame_equal(sliced, FRAME[1:])
    parts = reading.spilled(pl.concat([FRAME, FRAME], rechunk=False))
    assert_frame_equal(parts, pl.concat([FRAME, FRAME]))


@pytest.mark.usefixtures("limits")
def test_a_column_is_written_once_and_deleted_with_its_frame() -> None:
    before = _columns_in_files()
    frame = reading.spilled(FRAME)
    again = reading.spilled(frame.select("number", twice="real"))
    assert _columns_in_files() == before + 3
    del frame, again
    assert _columns_in_files() == before


@pytest.mark.usefixtures("limits")
def test_frames_in_lists_and_dataclasses() -> None:
    before = _columns_in_files()
    moved = reading.spilled(Nested([FRAME], 3))
    assert _columns_in_files() == before + 3
    assert moved.number == 3
    assert_frame_equal(moved.frames[0], FRAME)


@pytest.mark.usefixtures("limits")
def test_without_space_a_column_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reading, "TemporaryFile", full)
    before = _columns_in_files()
    assert_frame_equal(reading.spilled(FRAME), FRAME)
    assert _columns_in_files() == before


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
