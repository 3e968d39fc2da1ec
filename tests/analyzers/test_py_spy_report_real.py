"""The report on real recordings: equal cells to itwinai's tool, and extensions."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from conftest import SHARED

import traceanalyzer as ta
from traceanalyzer.analyzers.py_spy_report.result import LeafPaths
from traceanalyzer.render import table

ORACLES = sorted((SHARED / "oracle/pyspy").glob("*.txt"))
RECORDINGS = {"default": 1902, "subproc_threads": 2170, "subproc_threads_spawn": 2586,
              "native": 2597, "nolineno": 1690, "threads_idle": 4398, "function": 1593}  # fmt: skip


def rows_of(text: str) -> list[list[str]]:
    """The cells of a presto table."""
    lines = text.split("\n")
    (rule,) = (n for n, line in enumerate(lines) if line.startswith("--") and "+" in line)
    body = lines[rule - 1 : rule] + [x for x in lines[rule + 1 :] if " | " in x]
    return [[cell.strip() for cell in line.split(" | ")] for line in body]


def recording(command: str) -> tuple[Path, str, bool]:
    """Return file, library and aggregation of the command in a reference's first line."""
    arguments = shlex.split(command.lstrip("# "))
    name = arguments[arguments.index("--library-name") + 1]
    folder = SHARED / "data/pyspy"
    reference = folder / Path(arguments[1]).name
    file = reference if reference.exists() else folder / "flameshow_third_party.raw.txt"
    return file, name, "--aggregate-leaf-paths" in arguments


@pytest.mark.sample(9)
@pytest.mark.parametrize("oracle", ORACLES, ids=lambda path: path.name)
def test_cells_agree_with_itwinai(oracle: Path) -> None:
    text = oracle.read_text()
    path, library, aggregate = recording(text.split("\n")[0])
    result = ta.py_spy_report(
        path,
        library_names=library,
        match="substring",
        aggregate_leaf_paths=aggregate,
        drop_module=True,
    )
    assert rows_of(table.render(result, top=None, width=100_000)) == rows_of(text)


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", RECORDINGS)
def test_no_sample_is_lost(shared: Path, name: str) -> None:
    path = shared / f"data/pyspy/{name}.raw.txt"
    for result in (ta.py_spy_report(path), ta.py_spy_report(path, aggregate_leaf_paths=True)):
        assert result.total_samples == RECORDINGS[name]
        assert result.paths["samples"].sum() == RECORDINGS[name]


@pytest.mark.sample(9)
@pytest.mark.parametrize("group_by", ["function", "line", "file", "module", "library"])
@pytest.mark.parametrize("name", ["default", "native", "subproc_threads", "threads_idle"])
def test_self_adds_up_and_total_agrees_with_a_plain_loop(
    shared: Path, name: str, group_by: str
) -> None:
    result = ta.py_spy_report(shared / f"data/pyspy/{name}.raw.txt", group_by=group_by)
    assert result.groups is not None
    assert result.groups["self"].sum() == RECORDINGS[name]
    assert (result.groups["self"] <= result.groups["total"]).all()
    assert result.groups["total"].max() <= RECORDINGS[name]


def test_functions_count_once_per_stack(shared: Path) -> None:
    path = shared / "data/pyspy/default.raw.txt"
    counted: dict[tuple[str, str | None], list[int]] = {}
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_function(frame) for frame in stack.split(";") if frame]
        for function in set(frames):
            counted.setdefault(function, [0, 0])[1] += int(count)
        leaf = frames[-1] if frames else ("(no Python frame)", None)
        counted.setdefault(leaf, [0, 0])[0] += int(count)
        if not frames:
            counted[leaf][1] += int(count)
    result = ta.py_spy_report(path, group_by="function")
    assert result.groups is not None
    outcome = {
        (row["key"], row["path"]): [row["self"], row["total"]] for row in result.groups.to_dicts()
    }
    assert outcome == counted


def _function(frame: str) -> tuple[str, str | None]:
    name, _, where = frame.rstrip(")").partition(" (")
    path = where.rpartition(":")[0]
    return name, "built-in" if "frozen importlib" in path else path


def test_forked_workers_do_not_count_for_parent_code(shared: Path) -> None:
    path = shared / "data/pyspy/subproc_threads.raw.txt"
    result = ta.py_spy_report(path, group_by="function")
    assert set(result.processes["role"]) == {"main process", "DataLoader worker"}
    main = result.processes.filter(role="main process")["samples"].sum()
    assert result.groups is not None
    train = result.groups.filter(key="<module>", path="train.py")["total"].sum()
    assert train <= main
    assert result.processes["samples"].sum() == RECORDINGS["subproc_threads"]


@pytest.mark.matrix
def test_grouping_keeps_the_sum(shared: Path) -> None:
    path = shared / "data/pyspy/subproc_threads.raw.txt"
    for by in ("process", "thread", "rank", "file"):
        result: LeafPaths = ta.py_spy_report(path, by=by, aggregate_leaf_paths=True)
        assert result.paths["samples"].sum() == RECORDINGS["subproc_threads"]
        assert result.paths["group"].null_count() == 0
