"""Scaling from the metrics of itwinai: CSV files and MLflow's file store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import traceanalyzer as ta
from traceanalyzer.errors import MissingData

FIXTURE = Path(__file__).parents[2] / "fixtures" / "itwinai"
RUNS = FIXTURE / "csv" / "scalability-metrics"
VIRGO = [RUNS / f"run{gpus}" for gpus in (4, 8, 16, 32)]


def test_virgo_is_the_oracle() -> None:
    """Epoch times of itwinai's documentation: 57.83 / 11.07 = 5.22 of 8 = 65.3 %."""
    result: Any = ta.scaling(VIRGO)
    assert result.unit == "GPUs"
    rows = result.sizes
    assert rows["count"].to_list() == [4, 8, 16, 32]
    assert (rows["epoch_ns"] / 1e9).to_list() == pytest.approx([57.83, 31.92, 18.42, 11.07])
    last = rows.row(-1, named=True)
    assert last["speedup"] == pytest.approx(57.83 / 11.07)
    assert last["ideal_speedup"] == 8
    assert last["efficiency_frac"] == pytest.approx(0.653, abs=5e-4)
    assert last["lost_ns"] == pytest.approx((11.07 - 57.83 / 8) * 1e9)


def test_repeated_runs_are_averaged() -> None:
    result: Any = ta.scaling(FIXTURE / "csv")
    first = result.sizes.row(0, named=True)
    assert (first["runs"], first["count"]) == (2, 4)
    assert first["epoch_ns"] == pytest.approx((57.83 + 58.03) / 2 * 1e9)
    assert first["spread_ns"] == pytest.approx(0.2e9)
    one: Any = ta.scaling(VIRGO)
    assert first["energy_wh"] == pytest.approx(one.sizes["energy_wh"][0])  # not added


def test_energy_is_power_times_interval() -> None:
    result: Any = ta.scaling(VIRGO)
    samples = round(57.83 * 4 / 10)
    assert result.sizes["energy_wh"][0] == pytest.approx(4 * samples * 300 * 10 / 3600)
    ratio = result.sizes["energy_wh"][0] / result.sizes["energy_wh"][3]
    assert result.sizes["energy_frac"][3] == pytest.approx(ratio)
    assert result.sizes["power_w"].to_list() == [300, 290, 270, 240]
    assert result.sizes["utilization_frac"][3] == pytest.approx(0.64)


def test_computation_is_without_steps() -> None:
    row = ta.scaling(VIRGO).sizes.row(3, named=True)
    whole = 600 + 200 + 32 + 100 + 10
    assert row["computation_frac"] == pytest.approx((600 + 200 + 100) / whole)
    assert row["communication_frac"] == pytest.approx(32 / whole)
    assert row["other_frac"] == pytest.approx(10 / whole)


def test_store_of_mlflow() -> None:
    result: Any = ta.scaling(FIXTURE / "mlflow")
    rows = result.sizes
    assert rows["strategy"].to_list() == ["ddp", "ddp"]
    assert rows["count"].to_list() == [2, 4]
    assert rows["efficiency_frac"].to_list() == pytest.approx([1, 0.8])
    # 10 samples of 2 s of each worker of the training
    expected = [sum(250 + rank for rank in range(n)) * 20 / 3600 for n in (2, 4)]
    assert rows["energy_wh"].to_list() == pytest.approx(expected)
    assert [Path(run).name for run in result.runs["run"]] == [f"{n:032x}" for n in (2, 4)]


def test_weak_scaling() -> None:
    rows = ta.scaling(VIRGO, weak=True).sizes
    assert rows["efficiency_frac"][3] == pytest.approx(57.83 / 11.07)
    assert rows["energy_frac"][1] == pytest.approx(2 * rows["energy_wh"][0] / rows["energy_wh"][1])


def test_nodes_without_the_number_of_gpus(tmp_path: Path) -> None:
    for run in VIRGO:
        shutil.copytree(run / "epoch-time", tmp_path / run.name / "epoch-time")
    result: Any = ta.scaling(tmp_path)
    assert result.unit == "nodes"
    assert result.sizes["count"].to_list() == [1, 2, 4, 8]


def test_charts_have_the_content_of_itwinai() -> None:
    charts = {chart.name: chart for chart in ta.scaling(VIRGO).charts}
    assert list(charts) == ["epoch_time", "speedup", "energy", "utilization", "computation"]
    speedup = charts["speedup"]
    assert speedup.log_x
    assert speedup.log_y
    ideal = speedup.frame.filter(series="ideal")
    assert ideal["speedup"].to_list() == [1, 2, 4, 8]


def test_damaged_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "run4" / "epoch-time" / "a.csv"
    path.parent.mkdir(parents=True)
    path.write_text("epoch_id,time,name,nodes\n0,1.5,ddp,1\n1,nan,ddp,1\n2,x,ddp,1\n3\n")
    trace = ta.read(path)
    assert trace.aggregates.filter(metric="time_ns")["value"].to_list() == [1.5e9]
    assert trace.issues.filter(code="incomplete-row")["count"].to_list() == [3]


@pytest.mark.parametrize("row", ["", "0,x,a,1"])
def test_files_without_numbers_are_an_error(tmp_path: Path, row: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"epoch_id,time,name,nodes\n{row}")
    with pytest.raises(ta.InputError, match="no row"):
        ta.read(path)


def test_one_number_of_gpus_is_an_error() -> None:
    with pytest.raises(ta.MissingData, match="4 GPUs"):
        ta.scaling(RUNS / "run4")


def test_other_analyses_name_the_command() -> None:
    with pytest.raises(ta.MissingData, match="traceanalyzer scaling"):
        ta.kernels(VIRGO[0] / "epoch-time")
    with pytest.raises(ta.MissingData, match="traceanalyzer scaling"):
        ta.report(VIRGO[0])


def test_impossible_efficiency_is_named() -> None:
    """The fixture is a strong scaling, so read as weak it is far above ideal."""
    above = ta.scaling(FIXTURE / "csv", weak=True)
    assert (above.sizes["efficiency_frac"] > 1.05).any()
    assert "above ideal" in above.view().verdict
    assert "above ideal" not in ta.scaling(FIXTURE / "csv").view().verdict


def test_links_and_pipes_among_parameters_are_not_read(tmp_path: Path) -> None:
    store = tmp_path / "mlflow"
    shutil.copytree(FIXTURE / "mlflow", store)
    (tmp_path / "secret").write_text("secret")
    for params in store.glob("**/params"):
        (params / "strategy").unlink(missing_ok=True)
        (params / "strategy").symlink_to(tmp_path / "secret")
        (params / "probing_interval").unlink(missing_ok=True)
        os.mkfifo(params / "probing_interval")
    result: Any = ta.scaling(store)
    assert "secret" not in str(result.runs.rows())


@pytest.mark.matrix
def test_metrics_given_with_traces_are_named_once() -> None:
    power = FIXTURE.parent / "power" / "rpd"
    result: Any = ta.scaling([power / "run2", power / "run4", RUNS])
    (note,) = [note for note in result.notes if "Skipped" in note]
    assert "averages_16.csv and 14 more files" in note
    with pytest.raises(ta.MissingData, match="and 14 more files"):
        ta.scaling([power / "run2", RUNS])


def test_runs_of_unknown_size_are_left_out(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURE / "mlflow", tmp_path / "mlflow")
    for path in folder.rglob("global_world_size"):
        path.unlink()
    rest: Any = ta.scaling([*VIRGO, folder])
    assert (rest.unit, rest.runs.height) == ("GPUs", len(VIRGO))
    with pytest.raises(MissingData, match="not recorded"):
        ta.scaling(folder)
