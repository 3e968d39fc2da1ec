"""Cores and memory that the process may use."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from traceanalyzer import machine
from traceanalyzer.cli.main import status


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of control groups, the process being in ``job/task``."""
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.setattr(machine, "_cgroups", lambda: iter([tmp_path / "job", tmp_path]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    (tmp_path / "job").mkdir()
    machine._cores_of_process.cache_clear()
    yield tmp_path
    machine._cores_of_process.cache_clear()


def test_missing_compiled_parts_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in ("parsers/collapsed/_frames.abi3.so", "parsers/sqlite/_pages.cp311-win_amd64.pyd"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    (tmp_path / "parsers" / "sqlite" / "_wire.c").touch()
    monkeypatch.setattr(machine, "_PACKAGE", tmp_path)
    text = machine.not_compiled()
    assert re.findall(r"_\w+", text.partition(":")[0]) == ["_follow", "_machine", "_scan", "_wire"]
    assert status(["info", "-q", "fixtures/upgrade/before.json.gz"]) == 0
    assert text in capsys.readouterr().err
    monkeypatch.setattr(machine, "_COMPILED", {"_frames"})
    assert machine.not_compiled() == ""


def test_cores_of_the_affinity(groups: Path) -> None:
    assert machine.cores() == 64
    assert machine.threads() <= 8


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", 64), ("250000 100000", 3), ("junk", 64)]
)
def test_cores_of_a_container(groups: Path, text: str, cores: int) -> None:
    (groups / "job" / "cpu.max").write_text(f"{text}\n")
    assert machine.cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 64), ("400000", 4)])
def test_cores_of_old_control_groups(groups: Path, quota: str, cores: int) -> None:
    (groups / "cpu.cfs_quota_us").write_text(quota)
    (groups / "cpu.cfs_period_us").write_text("100000")
    assert machine.cores() == cores


def test_cores_of_a_slurm_task(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert machine.cores() == 6
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "0")
    assert machine.cores() == 64


def test_threads_of_a_worker(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_MAX_THREADS", "2")
    assert machine.threads() == 2


@pytest.mark.parametrize(
    ("limit", "used"),
    [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")],
)
def test_memory_of_a_container(groups: Path, limit: str, used: str) -> None:
    unlimited = machine.free_memory()
    (groups / "job" / limit).write_text("3000000\n")
    (groups / "job" / used).write_text("1000000\n")
    assert machine.free_memory() == 2_000_000
    (groups / "job" / limit).write_text("max\n")
    assert machine.free_memory() > 2_000_000
    assert unlimited > 2_000_000


def test_groups_of_this_process() -> None:
    folders = list(machine._cgroups())
    assert all(folder.is_relative_to("/sys/fs/cgroup") for folder in folders)


def test_one_thread_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in ("1", "2"):
        monkeypatch.setenv("POLARS_MAX_THREADS", number)
        with machine.executor(2) as pool:
            threads = set(pool.map(lambda _: threading.get_ident(), range(4)))
            assert (threads == {threading.get_ident()}) == (number == "1")
            failed = pool.submit(int, "x")
        with pytest.raises(ValueError, match="x"):
            failed.result()
