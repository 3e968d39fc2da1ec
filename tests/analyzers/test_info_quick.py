"""Description of files by their beginning and end."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

import traceanalyzer as ta
from traceanalyzer.analyzers.info import quick as ends
from traceanalyzer.errors import OptionError

FIXTURES = Path(__file__).parents[2] / "fixtures"
RANKS = FIXTURES / "nccl_8ranks"
KNOWN = ("format", "version", "rank", "world_size", "host", "devices")


@pytest.fixture
def large(tmp_path) -> Path:
    """Two ranks, not compressed, with a million more bytes of events in the middle."""
    for rank in (3, 6):
        text = gzip.decompress((RANKS / f"rank{rank}.json.gz").read_bytes())
        content = json.loads(text)
        events = content["traceEvents"]
        middle = [{**events[len(events) // 2], "name": "filler " * 20} for _ in range(6_000)]
        content["traceEvents"] = events[: len(events) // 2] + middle + events[len(events) // 2 :]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
    return tmp_path


def test_metadata_is_that_of_the_whole_file(large):
    quick, full = ta.info(large, quick=True), ta.info(large, quick=False)
    assert quick.files.select(KNOWN).equals(full.files.select(KNOWN))
    assert quick.files["epoch_ns"].to_list() == full.files["epoch_ns"].to_list()
    assert quick.contents["span_ns"].to_list() == full.contents["span_ns"].to_list()
    assert quick.contents["events"].null_count() == 2
    assert full.contents["events"].null_count() == 0
    assert len(quick.input_notes) == 1
    empty = {table.name: table.empty for table in quick.view().tables}
    assert "not counted" in empty["kinds"]
    assert "not counted" in empty["issues"]
    assert {table.empty for table in full.view().tables} == {"none"}
    assert "2 files" in quick.input_notes[0]
    assert not full.input_notes


def test_only_the_ends_are_read(large):
    parts = list(ends.read_ends([str(path) for path in sorted(large.iterdir())]))
    assert [one.parts for one in parts] == ["both", "both"]
    assert all(one.trace.events.height < 2_000 for one in parts)


def test_other_formats_and_small_files(tmp_path):
    shutil.copy(RANKS / "rank0.json.gz", tmp_path)
    shutil.copy(FIXTURES / "nsys" / "training.sqlite", tmp_path)
    shutil.copy(FIXTURES / "py_spy" / "default.raw.txt", tmp_path)
    (tmp_path / "bad.json").write_bytes(b'{"traceEvents": 7}')
    quick, full = ta.info(tmp_path, quick=True), ta.info(tmp_path, quick=False)
    # only a whole file has one row for each of its ranks
    assert set(quick.files["format"]) == set(full.files["format"])
    assert set(quick.files["rank"].drop_nulls()) <= set(full.files["rank"].drop_nulls())
    assert quick.skipped.equals(full.skipped)
    whole = [str(path) for path in tmp_path.iterdir() if path.suffix == ".txt"]
    assert [one.parts for one in ends.read_ends(whole)] == ["whole"]


@pytest.mark.matrix
def test_several_processes_give_the_same(tmp_path):
    paths = []
    for number in range(40):
        paths.append(str(tmp_path / f"rank{number}.json.gz"))
        shutil.copy(RANKS / f"rank{number % 8}.json.gz", paths[-1])
    one, two = (list(ends.read_ends(paths, workers)) for workers in (1, 2))
    assert [each.path for each in two] == paths
    assert [each.trace.meta for each in one] == [each.trace.meta for each in two]


def test_estimate_decides(tmp_path, monkeypatch):
    path = str(tmp_path / "rank0.json")
    shutil.copy(RANKS / "rank0.json.gz", path)
    assert not ends.takes_long([path], 1)
    assert ends.takes_long([path] * 2_500, 1)
    assert not ends.takes_long([path] * 2_500, 64)
    with pytest.raises(OptionError):
        ta.info(path, quick=True, rank=0)
