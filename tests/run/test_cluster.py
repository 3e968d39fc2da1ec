"""Inputs read by the workers of a Dask cluster on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from worker_tasks import measured_or_killed, measured_or_killed_once

import traceanalyzer as ta
from traceanalyzer.cli.main import status
from traceanalyzer.errors import InputError, OptionError
from traceanalyzer.render import render
from traceanalyzer.run import workers

pytest.importorskip("distributed", reason="Dask is not installed: pip install '.[dask]'")

RANKS = ROOT / "fixtures" / "nccl_8ranks"


@pytest.fixture(scope="module")
def client(thorough: bool) -> Iterator[Any]:
    import distributed

    workers = 2 if thorough else 1
    local = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0", processes=True
    )
    with (
        local,
        distributed.Client(local) as client,
    ):
        yield client


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of 4 ranks, each a task of its own."""
    monkeypatch.setattr("traceanalyzer.run.measure._SMALL_BYTES", 0)
    others = shutil.ignore_patterns("rank[2367].json.gz")
    return Path(shutil.copytree(RANKS, tmp_path / "run", ignore=others))


def test_a_cluster_gives_the_result_of_one_process(client: Any, ranks: Path) -> None:
    alone, apart = (render(ta.steps(ranks, **how), "json") for how in ({}, {"client": client}))
    assert alone == apart


def test_a_worker_that_ends_changes_nothing(
    client: Any, ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceanalyzer.run.measure._measured_on_host", measured_or_killed_once)
    alone, apart = (render(ta.gpu_idle(ranks, **how), "json") for how in ({}, {"client": client}))
    assert alone == apart
    assert len(list(ranks.glob("*.killed"))) == 1


@pytest.mark.matrix
def test_a_file_that_ends_every_worker_is_skipped(
    client: Any, ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceanalyzer.run.measure._measured_on_host", measured_or_killed)
    result = ta.kernels(ranks, client=client)
    assert set(result.devices["rank"]) == {0, 1, 4}
    assert any("rank5.json.gz" in note for note in result.notes)


def test_a_file_that_a_worker_cannot_see_is_named_with_the_host(
    client: Any, ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    # the worker looks for the file in another folder
    monkeypatch.setattr("traceanalyzer.run.measure._measured_on_host", _elsewhere)
    with pytest.raises(InputError, match=socket.gethostname()):
        ta.kernels(ranks / "rank0.json.gz", client=client)


def _elsewhere(task: Any) -> Any:
    from traceanalyzer.run.measure import _measured_on_host

    for path in task[0].items:
        Path(path).unlink()
    return _measured_on_host(task)


@pytest.mark.matrix
def test_the_scheduler_of_the_command(
    client: Any, ranks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = client.scheduler.address
    (tmp_path / "scheduler.json").write_text(json.dumps({"address": address}))
    options = [[], ["--scheduler", address], ["--scheduler-file", str(tmp_path / "scheduler.json")]]
    printed = []
    for option in options:
        assert status(["kernels", str(ranks), "--quiet", *option]) == 0
        printed.append(capfd.readouterr().out)
    assert printed[0]
    assert printed == [printed[0]] * 3


def test_a_scheduler_that_does_not_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_WAIT_SECONDS", 1)
    for where in ({"address": "tcp://127.0.0.1:9"}, {"file": str(tmp_path / "missing.json")}):
        with pytest.raises(OptionError), workers.connected(**where):
            pass


@pytest.mark.matrix
def test_workers_of_another_version_are_refused(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_version", lambda: "0.0.1")
    monkeypatch.setattr(client, "run", lambda _: {"tcp://w:1": "0.0.2"})
    with pytest.raises(OptionError, match=r"0\.0\.2"):
        workers._check_versions(client)
