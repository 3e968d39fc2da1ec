"""Libraries and process entries of frames against plain string rules."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from traceanalyzer import schema
from traceanalyzer.analyzers.py_spy_report import Match, Options
from traceanalyzer.analyzers.py_spy_report.compute import Frames, frames_of
from traceanalyzer.frames.stack_weights import ROOT as NONE
from traceanalyzer.trace import Meta, Trace

modest = settings(max_examples=60, deadline=None)
Node = tuple[int | None, str | None, str | None, int | None]

PROCESS = "/usr/lib/python3.11/multiprocessing/process.py"
SERVER = "multiprocessing/forkserver.py"
TRACKER = "C:\\Python\\multiprocessing\\resource_tracker.py"
WORKER = "/venv/torch/utils/data/_utils/worker.py"
FROZEN = "<frozen importlib._bootstrap>"
NAMES = ("_bootstrap", "BaseProcess._bootstrap", "main", "_worker_loop", "<module>", "fit", None)
FILES = (PROCESS, SERVER, TRACKER, WORKER, FROZEN, "train.py", "torch/nn/conv.py",
         "torchvision/ops.py", None)  # fmt: skip


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    """Nodes of stacks: parent, name, file, line; callers come first."""
    result: list[Node] = []
    for number in range(draw(st.integers(1, 12))):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        line = draw(st.sampled_from([None, 1, 2]))
        result.append((parent, draw(st.sampled_from(NAMES)), draw(st.sampled_from(FILES)), line))
    return result


def parsed(nodes: list[Node], options: Options) -> Frames:
    types = schema.types("stacks")
    values = dict(zip(("parent", "name", "file", "line"), zip(*nodes, strict=True), strict=True))
    columns = {name: values.get(name, [None] * len(nodes)) for name in types}
    stacks = pl.DataFrame(columns, schema=types)
    source = Meta(path="x", format="test", rank=None, epoch_ns=None)
    return frames_of(Trace(sources=(source,), stacks=stacks), options)


def begins_a_process(name: str | None, file: str | None) -> bool:
    entry = name in ("_bootstrap", "main") or (name or "").endswith("._bootstrap")
    return entry and file in (PROCESS, SERVER, TRACKER)


LIBRARIES: list[tuple[tuple[str, ...], Match]] = [
    ((), "component"), (("torch",), "component"), (("torchvision", "torch"), "component"),
    (("torch", "vision"), "substring"),
]  # fmt: skip


def library(file: str | None, asked: tuple[str, ...], match: Match) -> int:
    """Return the first library that a path belongs to."""
    parts = (file or "").replace("\\", "/").split("/")
    for number, name in enumerate(asked):
        matches = name in (file or "") if match == "substring" else name in parts
        if matches:
            return number
    return NONE


@modest
@given(trees(), st.sampled_from(LIBRARIES), st.booleans())
def test_frames_match_libraries_by_path(
    nodes: list[Node], asked: tuple[tuple[str, ...], Match], drop_module: bool
) -> None:
    names, match = asked
    result = parsed(nodes, Options(names, match, drop_module=drop_module))
    assert result.distinct.height == len({node[1:] for node in nodes})
    for at, (parent, name, file, line) in enumerate(nodes):
        frame = int(result.frame[at])
        displayed = result.distinct.row(frame, named=True)
        frozen = file == FROZEN
        assert displayed["name"] == (name or "")
        assert displayed["path"] == ("built-in" if frozen else file)
        assert displayed["line"] == (-1 if frozen else line)
        assert displayed["file"] == file
        child = begins_a_process(name, file)
        assert result.child[at] == child
        assert result.worker[at] == (name == "_worker_loop" and file == WORKER)
        is_root = parent is None or (child and match != "substring")
        assert result.parent[at] == (NONE if is_root else parent)
        assert result.kept[frame] == (not drop_module or name != "<module>")
        if names:
            path = "built-in" if frozen and match == "substring" else file
            assert result.library[frame] == library(path, names, match)


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [("fit", "train.py", 0), ("fit", "/venv/lib/python3.11/site-packages/torch/x.py", NONE)],
)
def test_own_code_is_the_default_library(name: str, file: str, expected: int) -> None:
    assert parsed([(None, name, file, 1)], Options()).library.tolist() == [expected]
