"""No result depends on the order in which files are given."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from conftest import ROOT
from snapshots import MIB, START_US, Snapshot

import traceanalyzer as ta
from traceanalyzer.run.find import find_inputs

BASE = 0x7F00_0000_0000
FIXTURES = ROOT / "fixtures"


def failing(path: Path, late_us: int, gib: int) -> Path:
    """Write a snapshot of a process that runs out of memory so late."""
    snapshot = Snapshot(now=late_us).note("segment_alloc", BASE, 20 * MIB)
    snapshot.alloc(BASE, gib * MIB).note("oom", MIB, gib << 30)
    return snapshot.hold(BASE, 20 * MIB, (0, gib * MIB)).write(path)


@pytest.mark.matrix
@pytest.mark.parametrize("names", [("a", "b", "c"), ("rank0", "rank1", "rank2")])
def test_the_first_error_is_the_earliest(names: tuple[str, ...], tmp_path: Path) -> None:
    late = (900, 40, 300)
    paths = [
        failing(tmp_path / f"{name}.pickle", us, gib)
        for gib, (name, us) in enumerate(zip(names, late, strict=True), 2)
    ]
    views = [ta.memory_oom(list(order)).view() for order in permutations(paths)]
    assert len({view.verdict for view in views}) == 1
    errors = ta.memory_oom(paths[::-1]).errors
    assert errors["request_bytes"].to_list() == [3 << 30, 4 << 30, 2 << 30]
    assert errors["unix_ns"].to_list() == [(START_US + us + 20) * 1000 for us in sorted(late)]
    assert "3 GiB" in views[0].verdict


SETS = {
    "composer": sorted((FIXTURES / "composer").glob("*")),
    "nccl": sorted((FIXTURES / "nccl_8ranks_isolated").glob("rank*"))[:2],
    "snapshots": [FIXTURES / f"memory/{name}.pickle" for name in ("oom", "training", "leak")],
    "stacks": sorted((FIXTURES / "py_spy").glob("*.txt"))[:3],
}


@pytest.mark.parametrize(
    ("command", "files"),
    [
        *((command, "nccl") for command in (
            "comm_outliers", "gpu_idle", "kernels", "launches", "overlap", "steps", "timeline",
        )),
        *((command, "composer") for command in ("host_metrics", "info", "steps")),
        *((command, "snapshots") for command in ("memory", "memory_oom", "memory_growth")),
        ("py_spy_report", "stacks"),
    ],
)  # fmt: skip
def test_results_are_the_same_in_any_order(command: str, files: str) -> None:
    paths = SETS[files]
    assert len(paths) > 1
    first, *others = ([*order] for order in (paths, paths[::-1], paths[1:] + paths[:1]))
    expected = getattr(ta, command)(first).to_dict()
    assert all(getattr(ta, command)(order).to_dict() == expected for order in others)


def test_files_are_read_in_natural_order(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"rank{rank}.json") for rank in (10, 2, 1)]
    for path in paths:
        Path(path).write_text("[]")
    assert find_inputs(paths) == (paths[::-1], [])
