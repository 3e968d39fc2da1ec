"""Energy of steps from readings of power, against sums over the recorded rows."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from comm_traces import GEMM, MS, device, step, trace
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.trace import Trace

POWER = Path(__file__).parents[2] / "fixtures/power"
US = 1_000
NSYS_READINGS = (
    "SELECT m.typeId & 255, m.timestamp, m.value / 1e3 FROM GPU_METRICS m"
    " JOIN TARGET_INFO_GPU_METRICS n USING (typeId, metricId) WHERE n.metricName LIKE '%Power%'"
)
NSYS_STEPS = "SELECT start, \"end\" FROM NVTX_EVENTS WHERE text GLOB 'step *' ORDER BY globalTid"
RPD_STEPS = (
    'SELECT a.start, a."end" FROM rocpd_api a JOIN rocpd_string s ON s.id = a.args_id'
    " WHERE s.string GLOB 'train_step *' ORDER BY a.tid"
)
RPD_READINGS = "SELECT deviceId, start, value + 0.0 FROM rocpd_monitor WHERE monitorType = 'power'"


def rows(path: Path, sql: str) -> np.ndarray:
    with closing(sqlite3.connect(path)) as connection:
        return np.array(connection.execute(sql).fetchall())


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_fixtures_equal_the_output_of_their_script(tmp_path):
    script = POWER.parent / "make_power.py"
    subprocess.run([sys.executable, "-B", str(script), str(tmp_path)], check=True)
    paths = [path.relative_to(POWER) for path in sorted(POWER.rglob("*")) if path.is_file()]
    assert len(paths) == 4
    for path in paths:
        assert dump(tmp_path / "power" / path) == dump(POWER / path)


def joules(readings: np.ndarray, steps: np.ndarray) -> float:
    """Mean energy of a step, from the power at every microsecond of it."""
    at, watts = readings[readings[:, 1].argsort()][:, 1:].T
    sums = []
    for begin, end in steps:
        moments = np.arange(begin, end, US)
        sums.append(watts[np.searchsorted(at, moments, side="right") - 1].sum() * US / 1e9)
    return float(np.mean(sums))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("form", "name", "readings", "steps"),
    [
        ("nsys", "profile.sqlite", NSYS_READINGS, NSYS_STEPS),
        ("rpd", "trace.rpd", RPD_READINGS, RPD_STEPS),
    ],
    ids=["nsys", "rpd"],
)
def test_energy_equals_the_sum_over_every_microsecond(form, name, readings, steps):
    result = ta.scaling([POWER / form / "run2", POWER / form / "run4"])
    for row in result.sizes.iter_rows(named=True):
        path = POWER / form / f"run{row['gpus']}" / name
        read, marked = rows(path, readings), rows(path, steps)
        expected = [joules(read[read[:, 0] == gpu], marked) for gpu in range(row["gpus"])]
        assert row["energy_j"] == pytest.approx(np.mean(expected), rel=1e-6)
        assert row["power_w"] == pytest.approx(row["energy_j"] / row["step_ns"] * 1e9)
    first, last = result.sizes["energy_j"]
    assert result.sizes["energy_frac"].to_list() == [1, pytest.approx(first / last / 2)]
    assert result.runs["covered_frac"].to_list() == [1, 1]
    check_wording(result.verdict, *result.notes)


@pytest.mark.matrix
def test_energy_of_weak_scaling_is_compared_per_gpu():
    result = ta.scaling([POWER / "rpd/run2", POWER / "rpd/run4"], weak=True)
    first, last = result.sizes["energy_j"]
    assert result.sizes["energy_frac"].to_list() == [1, pytest.approx(first / last)]


@pytest.mark.matrix
def test_of_more_gpus_with_readings_those_with_most_energy_count():
    (row,) = ta.scaling([POWER / "rpd/run2", POWER / "rpd/run4"]).runs.rows(named=True)[:1]
    assert (row["power_gpus"], row["energy_gpus"]) == (8, 2)
    assert row["energy_j"] == pytest.approx((625.25 * 32 + 210.5 * 8) / 1000)  # not the idle ones


def test_the_end_of_the_last_row_of_a_monitor_is_a_reading():
    counters = ta.read(POWER / "rpd/run2/trace.rpd").counters
    unused = counters.filter(pl.col("series").cast(pl.String) == "GPU 7")
    assert unused["value"].to_list() == [90, 90]
    assert unused["ts"].to_list() == [0, 210 * MS]


def with_power(
    readings: list[tuple[int, float]], name: str = "power", *, gpus: int = 1, series: str = "GPU 0"
) -> Trace:
    """Two steps of 10 ms on one rank, with readings of power."""
    starts = (0, 10 * MS)
    events = [step(number, at, 10 * MS) for number, at in enumerate(starts)]
    events += [device(GEMM, at, 9 * MS) for at in starts]
    counters = pl.DataFrame(
        [
            {"ts": ts, "name": name, "series": series, "rank": None, "pid": None, "value": value}
            for ts, value in readings
        ],
        schema={column.name: column.dtype for column in schema.TABLES["counters"]},
    )
    recorded = trace(events, 0, path=f"run{gpus}/0.json", world_size=gpus)
    return replace(recorded, counters=counters)


def only_run(*args, **more) -> dict:
    compared = [with_power(*args, **more), with_power([], gpus=2)]
    return ta.scaling(compared).runs.row(0, named=True)


def test_steps_outside_of_the_readings_are_not_counted():
    row = only_run([(5 * MS, 900.0), (10 * MS, 100.0), (15 * MS, 300.0), (20 * MS, 0.0)])
    assert row["energy_j"] == pytest.approx(0.5 + 1.5)
    assert row["covered_frac"] == 0.5
    assert only_run([(5 * MS, 900.0), (15 * MS, 1.0)])["energy_j"] is None


def test_runs_without_readings_have_no_energy():
    result = ta.scaling([with_power([]), with_power([], gpus=2)])
    assert result.sizes["energy_j"].null_count() == 2
    assert "energy" not in " ".join(result.notes).lower()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "series", "joules_of_step"),
    [
        ("power", "GPU 0", 2.0),
        ("GPU Power [mW]", "value", 0.002),
        ("Average power (kW)", "GPU 3", 2000.0),
        ("power [%]", "GPU 0", None),
        ("power limit [W]", "GPU 0", None),
        ("power", "CPU 0", None),
        ("temperature [C]", "GPU 0", None),
    ],
)
def test_which_counters_are_power(name, series, joules_of_step):
    row = only_run([(0, 200.0), (20 * MS, 200.0)], name, series=series)
    assert row["energy_j"] == (joules_of_step and pytest.approx(joules_of_step))


def test_readings_less_often_than_steps_are_noted():
    one = with_power([(-50 * MS, 200.0), (50 * MS, 400.0)])
    result = ta.scaling([one, with_power([], gpus=2)])
    assert result.runs["energy_j"][0] == pytest.approx(2)
    assert result.runs["interval_ns"][0] == 100 * MS
    check_wording(*result.notes)
