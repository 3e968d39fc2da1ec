"""Whose each frame is, and which begin a process, against what their words say."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from traceanalyzer import schema
from traceanalyzer.analyzers.py_spy_report.compute import Frames, frames_of
from traceanalyzer.analyzers.py_spy_report.options import Match, Options
from traceanalyzer.frames.stack_weights import ROOT as NONE
from traceanalyzer.trace import Meta, Trace

modest = settings(max_examples=150, deadline=None)
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
    found: list[Node] = []
    for number in range(draw(st.integers(1, 12))):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        line = draw(st.sampled_from([None, 1, 2]))
        found.append((parent, draw(st.sampled_from(NAMES)), draw(st.sampled_from(FILES)), line))
    return found


def told(nodes: list[Node], options: Options) -> Frames:
    types = {column.name: column.dtype for column in schema.STACKS}
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
    """The first of the libraries that a path belongs to."""
    parts = (file or "").replace("\\", "/").split("/")
    for number, name in enumerate(asked):
        held = name in (file or "") if match == "substring" else name in parts
        if held:
            return number
    return NONE


@modest
@given(trees(), st.sampled_from(LIBRARIES), st.booleans())
def test_frames_are_told_by_their_words(
    nodes: list[Node], asked: tuple[tuple[str, ...], Match], drop_module: bool
) -> None:
    names, match = asked
    found = told(nodes, Options(names, match, drop_module=drop_module))
    assert found.shown.height == len({node[1:] for node in nodes})
    for at, (parent, name, file, line) in enumerate(nodes):
        frame = int(found.frame[at])
        shown = found.shown.row(frame, named=True)
        frozen = file == FROZEN
        assert shown["name"] == (name or "")
        assert shown["path"] == ("built-in" if frozen else file)
        assert shown["line"] == (-1 if frozen else line)
        assert shown["file"] == file
        child = begins_a_process(name, file)
        assert found.child[at] == child
        assert found.worker[at] == (name == "_worker_loop" and file == WORKER)
        is_root = parent is None or (child and match != "substring")
        assert found.parent[at] == (NONE if is_root else parent)
        assert found.kept[frame] == (not drop_module or name != "<module>")
        if names:
            path = "built-in" if frozen and match == "substring" else file
            assert found.library[frame] == library(path, names, match)


@pytest.mark.parametrize(
    ("name", "file", "own"),
    [("fit", "train.py", 0), ("fit", "/venv/lib/python3.11/site-packages/torch/x.py", NONE)],
)
def test_without_libraries_the_users_own_code_counts(name: str, file: str, own: int) -> None:
    assert told([(None, name, file, 1)], Options()).library.tolist() == [own]
