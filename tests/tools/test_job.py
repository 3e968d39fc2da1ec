"""``read_job``: the files of a job, read lazily; saving results; display in notebooks."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

import traceanalyzer as ta
from traceanalyzer.analyzers.registry import METHODS
from traceanalyzer.tools import job as module

RANKS = ROOT / "fixtures" / "nccl_8ranks"
NSYS = ROOT / "fixtures" / "nsys" / "training.sqlite"
SNAPSHOT = ROOT / "fixtures" / "memory" / "training.pickle"


def test_a_folder_is_a_job_of_its_ranks() -> None:
    job = ta.read_job(RANKS)
    assert (len(job), job.ranks) == (8, tuple(range(8)))
    assert job[5].meta.rank == 5
    assert [trace.meta.rank for trace in job] == list(job.ranks)
    assert "8 files" in repr(job)


def test_opening_and_one_rank_read_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ta.read_job([RANKS / "rank1.json.gz", RANKS / "rank5.json.gz"])
    opened: list[str] = []
    traces = job._traces
    monkeypatch.setattr(job, "_traces", lambda paths: opened.extend(paths) or traces(paths))
    monkeypatch.setattr(module, "read", lambda *_, **__: pytest.fail("read for its rank"))
    assert job[5].meta.rank == 5
    assert opened == [str(RANKS / "rank5.json.gz")]


def test_several_ranks_in_one_file() -> None:
    job = ta.read_job(NSYS)
    assert (len(job), job.ranks) == (2, (0, 1))
    assert set(job[1].events["rank"]) == {1}


def test_unknown_rank_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="rank 9"):
        ta.read_job(RANKS)[9]
    with pytest.raises(ta.UnreadableFile):
        ta.read_job(RANKS / "missing")


@pytest.mark.matrix
def test_analyses_are_methods_on_all_files() -> None:
    paths = [RANKS / "rank1.json.gz", RANKS / "rank5.json.gz"]
    job = ta.read_job(paths)
    assert set(METHODS) <= set(dir(job))
    assert job.gpu_idle(by="step").to_dict() == ta.gpu_idle(paths, by="step").to_dict()
    assert len(job.diagnose().findings) > 0


def test_reading_a_folder_as_a_file_names_read_job() -> None:
    with pytest.raises(ta.UnreadableFile, match="read_job"):
        ta.read(RANKS)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", ["a.html", "a.json", "a.csv", "a.md", "a.sqlite", "a.svg", "a.txt"]
)
def test_save_writes_the_format_of_the_suffix(name: str, tmp_path: Path) -> None:
    result = ta.kernels(RANKS / "rank0.json.gz")
    path = tmp_path / name
    result.save(str(path))
    assert path.stat().st_size > 100
    with pytest.raises(ta.OutputError, match="exists"):
        result.save(str(path))
    result.save(str(path), force=True)


def test_save_refuses_an_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(ta.OptionError, match="xlsx"):
        ta.kernels(RANKS / "rank0.json.gz").save(str(tmp_path / "a.xlsx"))


@pytest.mark.matrix
def test_display_has_a_drawing_and_the_content() -> None:
    result = ta.gpu_idle(RANKS / "rank0.json.gz")
    assert result._repr_html_().count("<iframe sandbox=") == 1
    assert ta.info(RANKS)._repr_html_().count("<iframe") == 0  # nothing to draw
    for trace in (ta.read(RANKS / "rank0.json.gz"), ta.read_job(RANKS)):
        text = trace._repr_html_()
        assert text.count("<iframe sandbox=") == 1
        assert "rank0.json.gz" in text
    without_device_work = ta.read(SNAPSHOT)._repr_html_()
    assert "training.pickle" in without_device_work
    assert "<iframe" not in without_device_work
