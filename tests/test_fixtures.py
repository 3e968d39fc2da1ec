"""Bundled fixtures equal the output of their scripts and match their README."""

from __future__ import annotations

import gzip
import json
import runpy
import subprocess
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import traceanalyzer as ta

FIXTURES = Path(__file__).parents[1] / "fixtures"
CASES = runpy.run_path(str(FIXTURES / "make_malformed.py"))["CASES"]
NCCL_FOLDERS = ("nccl_8ranks", "nccl_8ranks_isolated")
Json = dict[str, Any]


def run(script: str, folder: Path, *options: str) -> dict[str, bytes]:
    """What a fixture script writes, by path below the folder."""
    command = [sys.executable, "-B", str(FIXTURES / script), *options, str(folder)]
    subprocess.run(command, check=True)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def text(data: bytes) -> bytes:
    """A gzip file's first member; compressed bytes differ between versions of zlib."""
    return zlib.decompressobj(31).decompress(data)


def events_of(folder: str) -> dict[int, list[Json]]:
    """All events by rank, read with the standard library."""
    paths = sorted((FIXTURES / folder).glob("rank*.json.gz"))
    files = [json.loads(gzip.decompress(path.read_bytes())) for path in paths]
    return {file["distributedInfo"]["rank"]: file["traceEvents"] for file in files}


def step_of(events: list[Json], ts: float) -> int:
    """The ProfilerStep a time lies in."""
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    inside = next(e for e in steps if e["ts"] <= ts < e["ts"] + e["dur"])
    return int(inside["name"].partition("#")[2])


def test_nccl_ranks_equal_the_output_of_the_script(tmp_path: Path) -> None:
    written = run("make_nccl_ranks.py", tmp_path / "once")
    assert run("make_nccl_ranks.py", tmp_path / "again") == written
    committed = {
        f"{folder}/{path.name}": path.read_bytes()
        for folder in NCCL_FOLDERS
        for path in (FIXTURES / folder).iterdir()
    }
    assert {n: text(d) for n, d in written.items()} == {n: text(d) for n, d in committed.items()}


@pytest.mark.matrix
def test_nccl_training_on_many_ranks(tmp_path: Path) -> None:
    files = run("make_nccl_ranks.py", tmp_path, "--ranks", "34", "--straggler", "9")
    assert len(files) == 34
    assert all(10_000 < len(data) < 15_000 for data in files.values())
    outliers = ta.comm_outliers(tmp_path)
    assert outliers.stragglers()["rank"].to_list() == [9]
    assert outliers.instances["group_size"].unique().sort().to_list() == [2, 4, 34]


def test_faults_of_nccl_ranks() -> None:
    ranks = events_of("nccl_8ranks")
    instances: dict[tuple[str, int], dict[int, Json]] = defaultdict(dict)
    for rank, events in ranks.items():
        for event in events:
            if event.get("cat") == "kernel" and "Seq" in event["args"]:
                key = (event["args"]["Process Group Name"], event["args"]["Seq"])
                instances[key][rank] = event
    late, slow = [], []
    for (group, _), of_rank in instances.items():
        assert len(of_rank) == (8 if group == "0" else 4)
        start = {r: e["ts"] - (3000 if r >= 4 else 0) for r, e in of_rank.items()}
        step = step_of(ranks[0], min(start.values()))
        last = max(start, key=start.__getitem__)
        skew = start[last] - min(start.values())
        assert skew < 100 or skew > 12_000
        late += [(step, last)] if skew > 100 else []
        shortest = min(e["dur"] for e in of_rank.values())
        slow += [(step, of_rank[last]["args"]["Collective name"])] if shortest > 5_000 else []
    assert late == [(12, 5), (15, 5)]
    assert slow == [(13, "_reduce_scatter_base")]


def test_straggler_of_the_gloo_recording() -> None:
    ranks = events_of("ddp_gloo_4ranks")
    started: dict[int, dict[int, float]] = defaultdict(dict)
    for rank, events in ranks.items():
        reduces = sorted(e["ts"] for e in events if e["name"] == "gloo:all_reduce")
        assert len(reduces) == 8
        for step, first in zip((2, 3, 4, 5), reduces[::2], strict=True):
            started[step][rank] = first
    for step, start in started.items():
        others = max(ts for rank, ts in start.items() if rank != 3)
        assert (start[3] - others > 50_000) is (step in (3, 5))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_malformed_files_equal_the_output_of_the_script(case: Any) -> None:
    assert (FIXTURES / "malformed" / case.name).read_bytes() == case.data


def test_size_of_fixtures() -> None:
    size = {f: sum(p.stat().st_size for p in (FIXTURES / f).iterdir()) for f in NCCL_FOLDERS}
    size["ddp"] = sum(p.stat().st_size for p in (FIXTURES / "ddp_gloo_4ranks").iterdir())
    assert sum(size.values()) < 700_000, size


def test_jax_trace_equals_the_output_of_the_script(tmp_path: Path) -> None:
    written = run("make_xla.py", tmp_path)
    committed = {f"xla/{p.name}": p.read_bytes() for p in (FIXTURES / "xla").iterdir()}
    assert {n: text(d) for n, d in written.items()} == {n: text(d) for n, d in committed.items()}


def test_transformer_equals_the_output_of_the_script(tmp_path: Path) -> None:
    written = run("make_transformer.py", tmp_path)
    committed = {
        f"transformer/{p.name}": p.read_bytes() for p in (FIXTURES / "transformer").iterdir()
    }
    assert {n: text(d) for n, d in written.items()} == {n: text(d) for n, d in committed.items()}


def test_upgrade_equals_the_output_of_the_script(tmp_path: Path) -> None:
    written = run("make_upgrade.py", tmp_path)
    committed = {f"upgrade/{p.name}": p.read_bytes() for p in (FIXTURES / "upgrade").iterdir()}
    assert {n: text(d) for n, d in written.items()} == {n: text(d) for n, d in committed.items()}


def test_files_of_nccl_inspector_equal_the_output_of_the_script(tmp_path: Path) -> None:
    folder = FIXTURES / "nccl_inspector"
    committed = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.log")}
    assert run("make_nccl_inspector.py", tmp_path) == committed


def test_request_logs_equal_the_output_of_the_script(tmp_path: Path) -> None:
    committed = {path.name: path.read_bytes() for path in (FIXTURES / "requests").iterdir()}
    assert run("make_requests.py", tmp_path) == committed


def test_reports_of_ncu_equal_the_output_of_the_script(tmp_path: Path) -> None:
    committed = {f"ncu/{path.name}": path.read_bytes() for path in (FIXTURES / "ncu").iterdir()}
    assert run("make_ncu.py", tmp_path) == committed


def test_itwinai_equals_the_output_of_the_script(tmp_path: Path) -> None:
    committed = FIXTURES / "itwinai"
    files = [path for path in sorted(committed.rglob("*")) if path.is_file()]
    expected = {str(path.relative_to(committed)): path.read_bytes() for path in files}
    assert run("make_itwinai.py", tmp_path) == expected
