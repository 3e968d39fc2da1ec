"""Comparison of two runs: definitions, properties of any two runs, texts."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace
from conftest import ROOT, once
from hypothesis import given, settings, strategies as st
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.diff import Options
from traceanalyzer.analyzers.diff.compute import combine, measure
from traceanalyzer.analyzers.diff.result import Diff, _calls
from traceanalyzer.analyzers.diff.runs import (
    GONE,
    NEW,
    SAME,
    UNSURE,
    Measure,
    judged,
    judged_shares,
    standard_errors,
)
from traceanalyzer.analyzers.diff.series import diff
from traceanalyzer.cli.main import status
from traceanalyzer.errors import OptionError
from traceanalyzer.render import FORMS, render
from traceanalyzer.trace import Trace

FIXTURES = ROOT / "fixtures"
BEFORE, AFTER = FIXTURES / "upgrade/before.json.gz", FIXTURES / "upgrade/after.json.gz"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
OTHER = "void norm<4>(float*)"

#: Each pair: the same run under both names, of every sort of file.
RUNS = {
    "ranks": FIXTURES / "nccl_8ranks_isolated",
    "kineto": BEFORE,
    "gloo": FIXTURES / "ddp_gloo_4ranks",
    "composer": FIXTURES / "composer",
    "nsys": FIXTURES / "nsys/training.sqlite",
    "nsys tables": FIXTURES / "nsys/tables.sqlite",
    "memory": FIXTURES / "memory/training.pickle",
    "devices": FIXTURES / "memory/two_devices.pickle",
    "py-spy": FIXTURES / "py_spy/subprocesses.raw.txt",
    "speedscope": FIXTURES / "py_spy/subprocesses.speedscope.json",
}

Event = dict[str, Any]


def loop(
    lengths: list[int],
    *,
    compute: int | list[int] = 10,
    loader: int = 0,
    kernel: str = GEMM,
    rank: int = 0,
    **meta: Any,
) -> Trace:
    """Steps of these lengths: a loader, its kernel's launch, the kernel; the rest is idle."""
    events: list[Event] = []
    at = 0
    for number, length in enumerate(lengths):
        runs = compute if isinstance(compute, int) else compute[number]
        begin = at + loader
        events += [step(number, at, length)]
        if loader:
            events += [host("user_annotation", LOADER, at, loader)]
        launch = {"correlation": number + 1}
        events += [host("cuda_runtime", "cudaLaunchKernel", begin, 1, **launch)]
        events += [device(kernel, begin, runs, **launch)]
        at += length
    return trace(events, rank=rank, **meta)


def rows(frame: pl.DataFrame | None) -> dict[str, dict[str, Any]]:
    """Return a frame's rows by their first column."""
    assert frame is not None
    return {next(iter(row.values())): row for row in frame.iter_rows(named=True)}


def states(result: Diff) -> list[str]:
    outcome = []
    for table in result.tables:
        if "state" in table.frame.columns:
            outcome += table.frame["state"].cast(pl.String).to_list()
    return outcome


# --- definitions, by hand --------------------------------------------------------------------


def error(values: list[float]) -> float:
    """Return the standard error as defined in docs/diff.md."""
    n, middle = len(values), median(values)
    away = sorted(abs(value - middle) for value in values)
    near = away[: n - n // (3 if n >= 6 else 5)]
    scale = {2: 1.77, 3: 1.77, 4: 1.51, 5: 2.28, 6: 2.6, 7: 2.5, 8: 2.18, 9: 2.63}.get(n, 2.35)
    spread = scale * sum(near) / len(near) or 1.77 * sum(away) / n
    return (2 / n) ** 0.5 * spread


def test_the_measure_is_the_median_step_with_its_noise() -> None:
    before, after = [100, 102, 98, 101, 130, 99], [120, 121, 119, 122, 118]
    result = diff(loop([ms * MS for ms in before]), loop([ms * MS for ms in after]))
    measure = result.measure
    assert measure is not None
    assert (measure.name, measure.unit) == ("step", "ns")
    assert (measure.before, measure.after) == (100.5 * MS, 120 * MS)
    noise = 3 * (error(before) ** 2 + error(after) ** 2) ** 0.5  # type: ignore[arg-type]
    assert measure.noise == pytest.approx(noise * MS)
    assert measure.change_frac == pytest.approx(19.5 / 100.5)
    assert result.outcome == "regression"
    check_wording(result.verdict)


def test_single_outlier_does_not_increase_noise() -> None:
    usual, odd = [100, 101, 99, 100, 101], [100, 101, 99, 100, 900]
    both = [standard_errors(np.array([values], float))[0] for values in (usual, odd)]
    assert both[1] == pytest.approx(both[0], rel=0.5)


def test_two_outliers_of_six_do_not_hide_a_change() -> None:
    slow, fast = [150, 150, 150, 154, 154, 172], [123, 124, 126, 127, 163, 182]
    result = diff(loop([ms * MS for ms in slow]), loop([ms * MS for ms in fast]))
    assert result.outcome == "improvement"
    spread = [123, 134, 146, 157, 170, 182]
    assert diff(loop([ms * MS for ms in slow]), loop([ms * MS for ms in spread])).outcome == (
        "no change"
    )


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ([282, 315, 402, 463, 540, 560], [617, 700, 1100, 1580, 1700, 1787], "regression"),
        ([900, 617, 1600, 1100, 1787], [282, 560, 315, 540, 402], "improvement"),
        ([282, 315, 402, 463, 540, 640], [617, 700, 1100, 1580, 1700, 1787], "no change"),
        ([282, 402, 540, 560], [617, 1100, 1580, 1787], "no change"),
    ],
)
def test_ranges_of_five_steps_apart_are_a_change(
    before: list[int], after: list[int], outcome: str
) -> None:
    """Whatever the noise; with a common range or fewer steps, chance may be the reason."""
    result = diff(loop([ms * MS for ms in before]), loop([ms * MS for ms in after]))
    assert result.outcome == outcome
    assert result.measure is not None
    errors = [standard_errors(np.array([values], float))[0] for values in (before, after)]
    noise = 3 * float(np.hypot(*errors)) * MS
    if outcome == "no change":
        assert result.measure.noise == pytest.approx(noise)
    else:
        assert result.measure.noise <= noise
        assert result.measure.noise < abs(result.measure.change)


def test_equal_values_with_one_outlier_have_noise() -> None:
    assert standard_errors(np.array([[5.0] * 9 + [50.0]]))[0] > 0


@pytest.mark.parametrize("n", [3, 6, 12, 40])
def test_equal_runs_are_rarely_called_different(n: int) -> None:
    dice = np.random.default_rng(n)
    one, other = dice.normal(100, 5, (2, 4000, n))
    apart = np.abs(np.median(one, axis=1) - np.median(other, axis=1))
    noise = 3 * np.hypot(standard_errors(one), standard_errors(other))
    assert (apart > noise).mean() < 0.02


def test_parts_are_means_over_typical_steps_and_add_up() -> None:
    # the middle half of eight: without the two shortest and the two longest
    lengths = [50, 100, 101, 102, 103, 104, 300, 60]
    result = diff(
        loop([ms * MS for ms in lengths], compute=30 * MS, loader=10 * MS),
        loop([(ms + 8) * MS for ms in lengths], compute=30 * MS, loader=18 * MS),
    )
    parts = rows(result.parts)
    typical = [100, 101, 102, 103]
    assert sum(row["before_ns"] for row in parts.values()) == sum(typical) / 4 * MS
    assert sum(row["change_ns"] for row in parts.values()) == 8 * MS
    assert parts["compute"]["before_ns"] == parts["compute"]["after_ns"] == 30 * MS
    assert parts["data loading"]["before_ns"] == 10 * MS
    assert parts["data loading"]["change_ns"] == 8 * MS
    assert next(iter(parts)) == "data loading"
    assert parts["data loading"]["state"] == "slower"


def test_warm_up_is_left_out() -> None:
    slow_start = loop([900 * MS, *[100 * MS] * 5])
    result = diff(loop([100 * MS] * 5), slow_start)
    assert result.outcome == "no change"
    assert result.measure is not None
    assert result.measure.change == 0


@pytest.mark.matrix
def test_kernel_sums_per_step_do_not_depend_on_steps_and_ranks() -> None:
    few = loop([100] * 4, compute=40)
    many = [loop([100] * 9, compute=50, rank=rank) for rank in range(3)]
    result = diff(few, many)
    kernel = rows(result.kernels)["gemm"]
    assert (kernel["before_ns"], kernel["after_ns"], kernel["noise_ns"]) == (40, 50, 0)
    assert (kernel["before_n"], kernel["after_n"]) == (1, 1)
    assert kernel["state"] == "slower"
    assert rows(result.families)["gemm"]["change_frac"] == 0.25
    check_wording(*result.notes)


def test_a_kernel_of_one_run_is_new_or_gone() -> None:
    result = diff(loop([100] * 4), loop([100] * 4, kernel=OTHER))
    kernels = rows(result.kernels)
    assert kernels["norm"]["state"] == "new"
    assert kernels["norm"]["before_ns"] is None
    assert kernels["gemm"]["state"] == "gone"
    assert kernels["gemm"]["change_ns"] == -10
    assert [kernels[name]["change_frac"] for name in ("norm", "gemm")] == [None, None]
    check_wording(result.verdict)


@pytest.mark.matrix
def test_varying_kernels_are_within_noise() -> None:
    wild = [10, 30, 12, 40, 11, 35]
    result = diff(loop([100] * 6, compute=wild), loop([100] * 6, compute=wild[::-1]))
    assert rows(result.kernels)["gemm"]["state"] == "no change"
    more = [value + 4 for value in wild]
    result = diff(loop([100] * 6, compute=wild), loop([100] * 6, compute=more))
    row = rows(result.kernels)["gemm"]
    assert row["state"] == "within noise"
    each = [error([float(v) for v in values]) for values in (wild, more)]
    assert row["noise_ns"] == round(3 * (each[0] ** 2 + each[1] ** 2) ** 0.5)


def test_operators_are_compared_by_self_time_per_step() -> None:
    def run(inner: int) -> Trace:
        events: list[Event] = []
        for number in range(5):
            at = 1000 * number
            events += [
                step(number, at, 1000),
                host("cpu_op", "aten::linear", at + 10, 100 + inner),
                host("cpu_op", "aten::mm", at + 20, inner),
                host("cuda_runtime", "cudaLaunchKernel", at + 22, 5, correlation=number + 1),
                device(GEMM, at + 40, 300, correlation=number + 1),
            ]
        return trace(events)

    result = diff(run(50), run(80))
    on_host = rows(result.on_host)
    assert on_host["aten::mm"]["before_ns"] == 45
    assert on_host["aten::mm"]["change_ns"] == 30
    assert on_host["aten::linear"]["change_ns"] == 0
    assert rows(result.on_device)["aten::mm"]["after_ns"] == 300


def test_one_step_gives_a_note_on_unknown_noise() -> None:
    result = diff(loop([100 * MS]), loop([110 * MS]))
    assert result.measure is not None
    assert result.measure.noise is None
    assert result.outcome == "not judged"
    assert "record more steps" in result.verdict.lower()
    assert "significant" not in result.verdict
    assert (result.measure.change_frac, diff(loop([MS]), loop([MS])).outcome) == (
        pytest.approx(0.1), "no change",
    )  # fmt: skip
    check_wording(result.verdict)
    check_wording(*result.notes)


@pytest.mark.matrix
def test_change_below_the_minimum_is_no_change() -> None:
    runs = loop([100_000] * 5), loop([101_500] * 5)
    assert diff(*runs).outcome == "no change"
    assert diff(*runs, min_change=0.01).outcome == "regression"
    with pytest.raises(OptionError, match="min_change"):
        diff(*runs, min_change=float("nan"))


@pytest.mark.parametrize(
    ("after", "outcome", "name"),
    [
        ([130, 100, 100] * 3, "regression", "mean"),
        ([100] * 6 + [300] * 3, "no change", "step"),
        ([100, 300, 300, *[100] * 6, 300, 100, 100], "no change", "step"),
        ([100, 100, 100, 180] * 3, "regression", "mean"),
        ([100, 300, *[100] * 3] * 8, "regression", "mean"),
        ([180, *[100, 180] * 10], "regression", "mean"),  # and just over half of them are
        ([100, 180] * 6, "regression", "mean"),  # half of the steps: the median is in between
        ([100] * 11 + [900], "no change", "step"),
        ([100, 104] * 6, "no change", "step"),
        ([140] * 9 + [400] * 3, "regression", "step"),
    ],
)
def test_slow_steps_count_if_the_median_is_unchanged(
    after: list[int], outcome: str, name: str
) -> None:
    jitter = [1 + (at * 7 % 5) / 500 for at in range(len(after))]
    before = loop([round(100 * MS * more) for more in jitter])
    runs = loop([round(ms * MS * more) for ms, more in zip(after, jitter, strict=True)])
    result = diff(before, runs)
    assert (result.outcome, result.measure and result.measure.name) == (outcome, name)
    back = diff(runs, before)
    assert back.outcome == outcome.replace("regression", "improvement")
    if name == "mean":
        more = sum((ms - 100) * by for ms, by in zip(after, jitter, strict=True)) / len(after)
        assert result.measure is not None
        assert result.measure.change == pytest.approx(more * MS)
        assert result.parts is not None
        assert int(result.parts["change_ns"].sum()) == pytest.approx(more * MS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([300, *[100] * 4] * 3 + [300], [*[100] * 4, 300] * 3 + [100]),  # one more is recorded
        ([300, *[100, 300] * 10], [100, *[300, 100] * 10]),  # every second one, from another one on
        ([100, 300] * 10, [100, *[300, 100] * 10]),
        ([100, 100, 100, 400] * 3, [*[100] * 3, 500, *[100] * 3, 300, *[100] * 3, 550]),
    ],
)
def test_equal_runs_with_regular_slow_steps_do_not_differ(
    before: list[int], after: list[int]
) -> None:
    runs = [
        loop([ms * MS + at * 7 % 5 * MS // 5 for at, ms in enumerate(each)])
        for each in (before, after)
    ]
    assert [diff(*runs).outcome, diff(*runs[::-1]).outcome] == ["no change"] * 2


@pytest.mark.parametrize(("seed", "usual"), [(3, 5), (5, 5), (0, 2)])
def test_half_of_the_steps_are_slow_only_if_every_second_one_is(seed: int, usual: int) -> None:
    rng = np.random.default_rng(seed)
    sides = [100 + rng.normal(0, 6, 41), 102.5 + rng.normal(0, 6, 41)]
    sides[1][::usual] += 200
    result = diff(*(loop([round(ms * MS) for ms in side]) for side in sides))
    assert result.measure is not None
    assert result.measure.name == "mean"
    assert result.outcome == "regression"
    assert ("Every second step" in result.verdict) == (usual == 2)
    assert ("one step in a few" in result.verdict) == (usual != 2)


def test_a_run_judged_by_its_mean_hides_no_change_of_another_one() -> None:
    usual, slower, regular = [100] * 12, [108] * 11 + [900], [100, 100, 100, 180] * 3
    several = [
        loop([ms * MS + at * 7 % 5 * MS // 5 for at, ms in enumerate(each)])
        for each in (usual, slower, regular)
    ]
    series = ta.diff_series(several).runs
    assert series["outcome"].to_list() == [None, "regression", "regression"]
    assert series["value_ns"][1] == pytest.approx(174 * MS, rel=0.01)
    assert series["basis"].unique().to_list() == ["mean of all steps"]
    changes, noises = series["change_frac"][1:], series["noise_frac"][1:]
    assert (noises > 0).all()
    assert (noises < changes).all()


@pytest.mark.parametrize(("count", "asks"), [(6, True), (16, False)])
def test_ten_steps_are_no_advice_for_more_of_them(count: int, asks: bool) -> None:
    lengths = [(60 + 97 * at % 80) * MS for at in range(count)]
    result = diff(loop(lengths), loop(lengths[::-1]))
    assert result.outcome == "no change"
    assert result.measure is not None
    assert (result.measure.noise_frac or 0) > 0.1
    assert ("(10 in each run)" in result.verdict) == asks


def test_lost_graphs_are_named() -> None:
    def run(*calls: str) -> Trace:
        events: list[Event] = []
        for number in range(6):
            events.append(step(number, 1000 * number, 1000))
            for at, call in enumerate(calls):
                one = {"correlation": 100 * number + at + 1}
                events.append(host("cuda_runtime", call, 1000 * number + 10 * at, 5, **one))
                events.append(device(GEMM, 1000 * number + 10 * at + 5, 5, **one))
        return trace(events)

    graph, single = run("cudaGraphLaunch", "cudaLaunchKernel"), run(*["cudaLaunchKernel"] * 9)
    assert "graphs are lost" in diff(graph, single).verdict
    assert "graphs are new" in diff(single, graph).verdict
    assert "graphs" not in diff(single, run(*["cudaLaunchKernel"] * 5)).verdict
    assert "graphs" not in diff(graph, run("cudaLaunchKernel", "cudaLaunchKernel")).verdict


def test_numbers_of_launches_are_plain() -> None:
    rows = {
        "name": ["cudaGraphLaunch", "cudaLaunchKernel"], "kind": "cuda_runtime",
        "before_n": [1.5, 0.0], "after_n": [0.0, 12345.0], "state": "slower",
    }  # fmt: skip
    one: Any = SimpleNamespace(on_host=pl.DataFrame(rows))
    (text,) = _calls(one, Measure("step", "ns", 1.0, 1.0, None, 0.0))
    assert "0 graph and 12,345 single launches per step, before 1.5 and 0" in text


def _job(late: int | None, us: int = 600) -> list[Trace]:
    """Return four ranks with an all_reduce in each step, before which one rank runs ``decode``."""
    ranks = []
    for rank in range(4):
        events: list[Event] = []
        for number in range(8):
            begin = 2000 * US * number
            ready = begin + (us * US if rank == late else 0)
            end = begin + (us * US if late is not None else 0) + 300 * US
            one, two = {"correlation": 2 * number + 1}, {"correlation": 2 * number + 2}
            events += [
                step(number, begin, end + 5 * US - begin),
                host("python_function", "train.py(5): main", begin, end - begin),
                host("cuda_runtime", "cudaLaunchKernel", ready + 5 * US, 5 * US, **one),
                device(GEMM, ready + 20 * US, 180 * US, **one),
                host("cuda_runtime", "cudaLaunchKernel", ready + 12 * US, 5 * US, **two),
                device(ALL_REDUCE, ready + 200 * US, end - ready - 200 * US, stream=9, **two),
            ]
            if rank == late:
                name = "dataset.py(77): decode"
                events.append(host("python_function", name, begin + US, us * US - 2 * US))
        ranks.append(trace(events, rank=rank, world_size=4))
    return ranks


@pytest.mark.parametrize("late", [0, 2])
def test_the_rank_that_others_wait_for_is_named(late: int) -> None:
    both = [[measure(one, Options()) for one in _job(rank)] for rank in (None, late)]
    result = combine(both[1], Options(), both[0])
    assert result.outcome == "regression"
    assert result.places["exposed communication"] == f"waiting for rank {late}"
    assert result.places["other host code"] == f"in decode (dataset.py:77) on rank {late}"
    back = combine(both[0], Options(), both[1])
    assert back.outcome == "improvement"
    assert back.places == result.places
    slower = [measure(one, Options()) for one in _job(late, us=900)]
    further = combine(slower, Options(), both[1])
    assert further.places == {"exposed communication": f"waiting for rank {late}"}


def test_memory_is_the_measure_only_without_steps() -> None:
    result = ta.diff(FIXTURES / "memory/training.pickle", FIXTURES / "memory/leak.pickle")
    peaks = ta.memory_diff(FIXTURES / "memory/leak.pickle", FIXTURES / "memory/training.pickle")
    assert result.measure is not None
    assert result.measure.name == "memory"
    assert (result.measure.before, result.measure.after) == (peaks.base_bytes, peaks.peak_bytes)
    assert result.outcome == "regression"
    check_wording(result.verdict)
    assert result.to_polars("memory")["changed_bytes"].sum() == peaks.peak_bytes - peaks.base_bytes


def test_sample_shares_agree_with_the_differential_flamegraph() -> None:
    paths = FIXTURES / "py_spy/default.raw.txt", FIXTURES / "py_spy/subprocesses.raw.txt"
    result = ta.diff(*paths)
    flame = ta.flamegraph(paths[1], base=paths[0]).functions
    expected = {(row["name"], row["place"]): row for row in flame.iter_rows(named=True)}
    assert result.functions is not None
    for row in result.functions.iter_rows(named=True):
        twin = expected[row["name"], row["place"]]
        assert row["change_frac"] == pytest.approx(twin["change_self_frac"])
        variance = sum(
            share * (1 - share) / total
            for share, total in ((twin["base_self_frac"], 198), (twin["self_frac"], 563))
        )
        assert row["noise_frac"] == pytest.approx(3 * variance**0.5)
    assert result.measure is not None
    assert (result.measure.before, result.measure.after) == (198, 563)
    assert result.measure.noise == pytest.approx(3 * (198 + 563) ** 0.5)
    assert len(result.flames) == 1


def test_collectives_are_compared_as_comm_outliers_does() -> None:
    ranks = [f"rank{rank}.json.gz" for rank in (0, 1)]
    folders = [
        [FIXTURES / run / rank for rank in ranks] for run in ("nccl_8ranks", "nccl_8ranks_isolated")
    ]
    result = ta.diff(*folders)
    theirs = ta.comm_outliers(folders[1], baseline=folders[0]).baseline
    keys = ["collective", "dtype", "message_bytes", "group_size"]
    assert theirs is not None
    assert result.collectives is not None
    assert result.collectives.height == theirs.height == 4
    both = result.collectives.join(theirs, on=keys)
    assert both["before_ns"].equals(both["baseline_ns"], check_names=False)
    assert both["after_ns"].equals(both["median_ns"], check_names=False)
    assert (result.collectives["noise_ns"] > 0).all()


def test_times_without_steps_are_scaled_to_equal_work() -> None:
    def run(kernels: int, each: int) -> Trace:
        return trace([device(GEMM, at * each, 40) for at in range(kernels)])

    # a recording of 1 ms has 10 of them, then 8: the same work takes 1.25 ms
    result = diff(run(10, 100), run(8, 125))
    assert result.measure is not None
    assert result.measure.name == "device"
    assert result.measure.work == 0.8
    assert result.measure.change_frac == pytest.approx((915 / 0.8 - 940) / 940)
    kernel = rows(result.kernels)["gemm"]
    assert (kernel["before_ns"], kernel["after_ns"], kernel["after_n"]) == (400, 400, 10)
    assert kernel["noise_ns"] is None
    check_wording(result.verdict)
    check_wording(*result.notes)


def repeats(names: str, lengths: list[int], each: int = 10 * US) -> Trace:
    """Kernels without marks: the sequence of names, again and again; the rest is idle."""
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return trace(
        device(name, start + place * each, each)
        for start in starts
        for place, name in enumerate(names)
    )


@pytest.mark.matrix
def test_inferred_steps_are_compared_if_their_work_is_equal() -> None:
    before = repeats("abcd", [100 * US] * 8)
    slower = repeats("abcd", [150 * US] * 8)
    result = diff(before, slower)
    assert result.measure is not None
    assert result.measure.name == "step"
    assert (result.measure.before, result.measure.after) == (100 * US, 150 * US)
    assert result.measure.noise is not None  # the last step lacks the pause after its kernels
    assert result.outcome == "regression"
    assert rows(result.parts)["compute"]["change_ns"] == 0
    for other in (repeats("abcabcd", [200 * US] * 8), loop([100 * US] * 8, kernel="a")):
        for pair in ((before, other), (other, before)):
            measure_of = diff(*pair).measure
            assert measure_of is not None
            assert measure_of.name == "device"


@pytest.mark.matrix
def test_headline_agrees_with_the_parts() -> None:
    """Step time is the same, and data loading is not."""
    before = loop([100 * US] * 8, compute=60 * US, loader=10 * US)
    after = loop([100 * US] * 8, compute=60 * US, loader=1 * US)
    result = diff(before, after)
    assert result.outcome == "no change"
    assert rows(result.parts)["data loading"]["state"] == "faster"
    check_wording(result.verdict)


@pytest.mark.matrix
def test_parts_add_up_to_the_span_if_one_run_has_steps() -> None:
    """The span includes the steps: the loader runs before the first kernel."""
    marked = loop([100 * US], compute=20 * US, loader=60 * US)
    plain = trace([row for row in _events(marked) if row["kind"] != "user_annotation"])
    for before, after in ((marked, plain), (plain, marked)):
        result = diff(before, after)
        assert result.measure is not None
        assert result.measure.name == "device"
        parts = result.parts
        assert parts is not None
        assert (parts["before_ns"].sum(), parts["after_ns"].sum()) == (
            result.measure.before,
            result.measure.after,
        )
        assert {result.measure.before, result.measure.after} == {100 * US, 20 * US}
        check_wording(*result.notes)


@pytest.mark.matrix
def test_operators_without_steps_are_scaled_to_equal_work() -> None:
    def run(operators: int) -> list[Trace]:
        events = [host("cpu_op", "aten::add", at * 100, 40) for at in range(operators)]
        return [trace(events, rank=rank) for rank in range(2)]

    operator = rows(diff(run(10), run(8)).on_host)["aten::add"]
    assert (operator["before_ns"], operator["after_ns"]) == (400, 400)


def test_work_ratio_is_one_if_runs_share_little() -> None:
    before = trace([device(GEMM, 100 * at, 10) for at in range(9)] + [device(OTHER, 950, 500)])
    other = trace([device(GEMM, 100 * at, 10) for at in range(3)] + [device("x", 950, 500)])
    result = diff(before, other)
    assert result.measure is not None
    assert result.measure.work == 1


# --- what cannot be compared, and what weakens it --------------------------------------------


def test_runs_without_common_data_cannot_be_compared() -> None:
    result = ta.diff(BEFORE, FIXTURES / "py_spy/default.raw.txt")
    assert (result.outcome, result.measure) == ("cannot be compared", None)
    check_wording(result.verdict)
    assert result.scalars["outcome"] == "cannot be compared"


def test_samples_and_time_cannot_be_compared(tmp_path: Path) -> None:
    counted, timed = FIXTURES / "py_spy/default.raw.txt", tmp_path / "timed.json"
    profile = {
        "type": "sampled", "name": "main", "unit": "seconds", "startValue": 0, "endValue": 2,
        "samples": [[0]], "weights": [2],
    }  # fmt: skip
    schema = "https://www.speedscope.app/file-format-schema.json"
    shared = {"frames": [{"name": "f"}]}
    timed.write_text(json.dumps({"$schema": schema, "shared": shared, "profiles": [profile]}))
    for runs, before, after in (
        ((counted, timed), "samples", "time"),
        ((timed, counted), "time", "samples"),
    ):
        result = ta.diff(*runs)
        assert result.outcome == "cannot be compared"
        verdict = result.verdict
        assert verdict.index(f"{before} before") < verdict.index(f"{after} after")


def test_different_kernels_without_steps_cannot_be_compared() -> None:
    result = diff(trace([device(GEMM, 0, 10)]), trace([device(OTHER, 0, 10)]))
    assert result.outcome == "cannot be compared"
    check_wording(result.verdict)


@pytest.mark.matrix
def test_different_machines_and_sizes_are_noted() -> None:
    gpus = [(ta.Device(0, name),) for name in ("V100", "H100")]
    frames = [host("python_function", "train.py(1): f", 0, 90)]
    plain = loop([100] * 4, devices=gpus[0], world_size=4, extra='{"cuda_driver_version": 12}')
    stacked = trace(
        [*_events(loop([100] * 4)), *frames], devices=gpus[1], world_size=8, extra="no json",
    )  # fmt: skip
    text = " ".join(diff(plain, stacked).notes)
    check_wording(text)


@pytest.mark.matrix
@pytest.mark.parametrize("extra", ["python_function", "cpu_instant_event"])
@pytest.mark.parametrize(("shorter", "judged"), [(True, False), (False, True)])
def test_overhead_of_one_recording_is_no_regression(
    extra: str, shorter: bool, judged: bool
) -> None:
    with_extras = trace([*_events(loop([100, 101] * 4)), host(extra, "train.py(1): f", 0, 9)])
    plain = loop([60, 61] * 4 if shorter else [160, 161] * 4)
    for result in (diff(plain, with_extras), diff(with_extras, plain)):
        overhead = [text for text in result.reservations if "only the run" in text]
        assert (overhead == []) == judged
        assert ("profiling options" in result.verdict) == judged
        assert result.verdict.startswith(("Regression", "Improvement")) == judged


@pytest.mark.matrix
@pytest.mark.parametrize(("length", "text"), [(1853, "18.5 times"), (150, "+50.0 %")])
def test_large_changes_are_factors(length: int, text: str) -> None:
    verdict = diff(loop([100] * 6), loop([length] * 6)).verdict
    assert text in verdict
    assert ("+" in verdict) == (length == 150)


@pytest.mark.matrix
def test_large_noise_names_the_way_out() -> None:
    verdict = diff(loop([100, 900, 200, 500]), loop([150, 800, 300, 450])).verdict
    assert "--more-before" in verdict


def _events(recorded: Trace) -> list[Event]:
    return recorded.events.select(
        "kind", "name", "ts", "dur", "pid", "tid", "device", "stream", "correlation"
    ).to_dicts()


@pytest.mark.matrix
def test_new_software_is_noted() -> None:
    text = " ".join(once(ta.diff, BEFORE, AFTER).notes)
    check_wording(text)


@pytest.mark.matrix
def test_truncated_file_is_named(tmp_path: Path) -> None:
    text = gzip.decompress(AFTER.read_bytes())
    (tmp_path / "cut.json").write_bytes(text[: int(len(text) * 0.7)])
    result = ta.diff(BEFORE, tmp_path / "cut.json")
    assert any(note.startswith("Truncated") for note in result.notes)
    assert result.outcome == "regression"


@pytest.mark.matrix
def test_unusable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(AFTER.read_bytes())
    (tmp_path / "bad.json").write_text('{"traceEvents": [')
    result = ta.diff(BEFORE, tmp_path)
    assert result.outcome == "regression"
    assert any("bad.json" in note for note in result.notes)


@pytest.mark.matrix
def test_formats_may_differ(tmp_path: Path) -> None:
    ta.convert(BEFORE, tmp_path / "before.parquet")
    result = ta.diff(BEFORE, tmp_path / "before.parquet")
    assert result.outcome == "no change"
    assert set(states(result)) == {"no change"}


def test_collectives_known_by_their_kernels_are_no_recorded_operators() -> None:
    """Without operators in one run, kernels pair by name and order; both have collectives."""
    result = ta.diff(FIXTURES / "nccl_8ranks/rank0.json.gz", FIXTURES / "nsys/training.sqlite")
    assert result.paired_frac > 0.4


@pytest.mark.matrix
def test_kineto_and_nsys_runs_are_compared_by_common_data() -> None:
    result = ta.diff(FIXTURES / "nccl_8ranks", FIXTURES / "nsys/training.sqlite")
    assert result.measure is not None
    assert result.measure.name == "step"
    assert {"compute", "data loading"} <= set(rows(result.parts))
    assert result.families is not None
    assert "gemm" in result.families["family"]
    check_wording(*result.notes)


@pytest.mark.matrix
def test_time_window_excludes_memory() -> None:
    path = FIXTURES / "ddp_gloo_4ranks/rank0.json.gz"
    result = ta.diff(path, path, since_ns=0)
    assert result.memory is None
    check_wording(*result.notes)


def test_empty_run_is_refused() -> None:
    with pytest.raises(OptionError, match="no input"):
        diff([], loop([10]))


# --- properties of any two runs --------------------------------------------------------------


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_does_not_differ_from_itself(name: str) -> None:
    result = ta.diff(RUNS[name], RUNS[name])
    sampled = result.measure is not None and result.measure.name == "samples"
    assert result.outcome == ("not judged" if sampled else "no change")
    assert result.measure is not None
    assert result.measure.change == 0
    assert set(states(result)) <= {"no change"}
    for table in result.tables:
        changes = [c for c in table.frame.columns if c.startswith("change")]
        assert all((table.frame[name].fill_null(0) == 0).all() for name in changes)


LENGTHS = st.lists(st.integers(1_000, 5_000), min_size=1, max_size=12)


@st.composite
def runs(draw: Callable[..., Any]) -> list[Trace]:
    """One or two ranks with varying steps, loader and kernel."""
    ranks = draw(st.integers(1, 2))
    lengths = draw(LENGTHS)
    return [
        loop(
            lengths,
            compute=draw(
                st.lists(st.integers(0, 900), min_size=len(lengths), max_size=len(lengths))
            ),
            loader=draw(st.integers(0, 90)),
            kernel=draw(st.sampled_from((GEMM, OTHER))),
            rank=rank,
        )
        for rank in range(ranks)
    ]


_MIRROR = {
    "slower": "faster", "faster": "slower", "new": "gone", "gone": "new",
    "regression": "improvement", "improvement": "regression",
}  # fmt: skip


@pytest.mark.matrix
@given(runs(), runs())
@settings(max_examples=8)
def test_swapped_runs_give_mirrored_changes(one: list[Trace], other: list[Trace]) -> None:
    there, back = diff(one, other), diff(other, one)
    assert back.outcome == _MIRROR.get(there.outcome, there.outcome)
    assert there.measure is not None
    assert back.measure is not None
    assert there.measure.noise == back.measure.noise
    assert there.measure.change == -back.measure.change
    for name in ("parts", "kernels", "families", "on_host"):
        direct, twin = rows(getattr(there, name)), rows(getattr(back, name))
        assert direct.keys() == twin.keys()
        for key, row in direct.items():
            assert twin[key]["state"] == _MIRROR.get(row["state"], row["state"])
            assert twin[key]["change_ns"] == -row["change_ns"]
            assert twin[key]["noise_ns"] == row["noise_ns"]
            assert (twin[key]["before_ns"], twin[key]["after_ns"]) == (
                row["after_ns"],
                row["before_ns"],
            )


@pytest.mark.matrix
@given(runs(), runs(), st.randoms(use_true_random=False))
@settings(max_examples=5)
def test_the_order_of_ranks_and_rows_does_not_matter(
    one: list[Trace], other: list[Trace], dice: random.Random
) -> None:
    parts = [[measure(recorded, Options()) for recorded in run] for run in (one, other)]
    plain = combine(parts[1], Options(), parts[0])
    for run in parts:
        dice.shuffle(run)
    assert combine(parts[1], Options(), parts[0]).to_dict() == plain.to_dict()


@given(runs(), runs())
@settings(max_examples=6)
def test_parts_add_up_to_the_mean_of_typical_steps(one: list[Trace], other: list[Trace]) -> None:
    result = diff(one, other)
    assert result.parts is not None
    for when in ("before", "after"):
        kept = result.steps.filter(pl.col("run") == when, ~pl.col("warm_up"))
        times = kept.group_by("number").agg(pl.col("duration_ns").mean())["duration_ns"].sort()
        low, high = times[times.len() // 4], times[-1 - times.len() // 4]
        typical = times.filter((times >= low) & (times <= high)).mean()
        assert result.parts[f"{when}_ns"].sum() == pytest.approx(typical, abs=len(result.parts))


# --- an independent computation --------------------------------------------------------------


def test_numbers_agree_with_a_plain_json_reader() -> None:
    result = once(ta.diff, BEFORE, AFTER)
    sides = {"before": _by_hand(BEFORE), "after": _by_hand(AFTER)}
    assert result.kernels is not None
    assert result.measure is not None
    for when, (times, kernels) in sides.items():
        assert getattr(result.measure, when) == pytest.approx(median(times), abs=1)
        typical = sorted(range(12), key=times.__getitem__)[3:9]
        for name, sums in kernels.items():
            (row,) = result.kernels.filter(pl.col("name") == name).to_dicts()
            usual = sum(sums[at] for at in typical) / 6
            assert row[f"{when}_ns"] == pytest.approx(usual, abs=2)
    assert {name for _, kernels in sides.values() for name in kernels} == set(
        result.kernels["name"]
    )


def _by_hand(path: Path) -> tuple[list[float], dict[str, list[float]]]:
    """Return step times, and the sum of each kernel in each step, in ns."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    kernels: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy"):
            at = next(n for n, s in enumerate(steps) if s["ts"] <= event["ts"] < s["ts"] + s["dur"])
            sums = kernels.setdefault(event["name"], [0.0] * len(steps))
            sums[at] += event["dur"] * US
    return [one["dur"] * US for one in steps], kernels


@pytest.mark.matrix
def test_exposed_communication_is_a_part() -> None:
    def run(wait: int) -> Trace:
        events: list[Event] = []
        for number in range(4):
            at = number * 1000
            events += [
                step(number, at, 1000),
                device(GEMM, at, 600),
                device(ALL_REDUCE, at + 500, 100 + wait, stream=9),
            ]
        return trace(events)

    parts = rows(diff(run(50), run(150)).parts)
    assert parts["exposed communication"]["change_ns"] == 100
    assert parts["compute"]["before_ns"] == 600


# --- the command line ------------------------------------------------------------------------


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 0),
        (("--fail-on-regression", "30"), 3),
        (("--fail-on-regression", "40"), 0),
        (("--fail-on-regression", "0"), 3),
        (("--fail-on-regression", "30", "--min-change", "50"), 0),
    ],
)
def test_exit_status_signals_a_regression(run_cli, options, code) -> None:
    done = run_cli("diff", BEFORE, AFTER, "--to", "json", *options)
    assert done.returncode == code, done.stderr
    measure = json.loads(done.stdout)
    assert measure["change_frac"] == pytest.approx(0.38, abs=0.01)
    assert measure["least"] == (0.5 if "--min-change" in options else 0.02)


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), ["skipped"]), (("--fail-on-regression", "30"), ["failure"])],
)
def test_the_junit_test_of_a_regression_does_not_pass(tmp_path, options, expected) -> None:
    xml = tmp_path / "diff.xml"
    status(["diff", str(BEFORE), str(AFTER), "-q", "--junit", str(xml), *options])
    (case,) = ET.parse(xml).getroot().iter("testcase")  # noqa: S314 - our own file
    assert [child.tag for child in case] == expected


@pytest.mark.matrix
def test_improvement_exits_with_success(run_cli) -> None:
    done = run_cli("diff", AFTER, BEFORE, "--fail-on-regression", "1")
    assert done.returncode == 0
    assert "Improvement" in done.stdout


def test_incomparable_runs_fail_with_fail_on_regression(run_cli, tmp_path: Path) -> None:
    paths = BEFORE, FIXTURES / "py_spy/default.raw.txt"
    done = run_cli("diff", *paths, "--fail-on-regression", "5", "-o", tmp_path / "x.md")
    assert done.returncode == 1
    check_wording(done.stderr)
    assert "Cannot be compared" in (tmp_path / "x.md").read_text()
    assert run_cli("diff", *paths).returncode == 0


def test_fail_on_regression_lowers_the_minimum_change(run_cli) -> None:
    done = run_cli("diff", BEFORE, AFTER, "--fail-on-regression", "0.5", "--to", "json")
    assert json.loads(done.stdout)["least"] == 0.005


@pytest.mark.matrix
def test_every_form_is_rendered() -> None:
    result = once(ta.diff, BEFORE, AFTER)
    for form in FORMS:
        assert len(render(result, form, top=3)) > 200


@pytest.mark.matrix
def test_a_file_and_a_plot_are_written(run_cli, tmp_path: Path) -> None:
    done = run_cli("diff", BEFORE, AFTER, "-o", tmp_path / "x.md", "--plot", tmp_path / "x.svg")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "| data loading |" in (tmp_path / "x.md").read_text()
    assert "<svg" in (tmp_path / "x.svg").read_text()


def test_golden(golden, run_cli) -> None:
    done = run_cli("diff", BEFORE, AFTER, "--to", "md", "--top", "all", cwd=ROOT)
    golden("diff_upgrade.md", done.stdout.replace(f"{ROOT}/", ""))


def test_errors_are_one_line(run_cli, tmp_path: Path) -> None:
    done = run_cli("diff", BEFORE, tmp_path / "none.json")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert run_cli("diff", BEFORE).returncode == 2
    assert run_cli("diff", BEFORE, AFTER, "--fail-on-regression", "-1").returncode == 2


def test_unknown_noise_leaves_the_minimum_change() -> None:
    noise = [None, None, 0.3, 0.1, None, None]
    shares = pl.DataFrame(
        {
            "name": list("abcdef"),
            "place": "here",
            "before_frac": [0.2, 0.2, 0.2, 0.2, None, 0.2],
            "after_frac": [0.4, 0.201, 0.4, 0.4, 0.1, None],
            "noise_frac": pl.Series(noise, dtype=pl.Float64),
        }
    )
    result = dict(judged_shares(shares, 0.05).select("name", "state").rows())
    assert result == {"a": "more", "b": SAME, "c": UNSURE, "d": "more", "e": NEW, "f": GONE}
    times = shares.select(
        "name",
        *((pl.col(f"{of}_frac") * 1000).alias(f"{of}_ns") for of in ("before", "after", "noise")),
    )
    states = dict(judged(times, "ns", 0.05).select("name", "state").rows())
    assert states == {name: state.replace("more", "slower") for name, state in result.items()}


def test_totals_of_samples_are_not_judged(tmp_path: Path, capfd: Any) -> None:
    paths = [tmp_path / "before.txt", tmp_path / "after.txt"]
    for path, n in zip(paths, (100, 1000), strict=True):
        path.write_text(f"main (a.py:1);work (a.py:2) {n}\nmain (a.py:1);wait (a.py:3) {n}\n")
    result = ta.diff(*map(str, paths))
    check_wording(result.verdict)
    assert result.outcome == "not judged"
    assert "egression" not in result.verdict
    assert status(["diff", *map(str, paths), "--fail-on-regression", "5"]) == 1
    assert "not judged" in capfd.readouterr().err


def test_reservations_about_gpus_come_first(tmp_path: Path) -> None:
    paths = []
    for gpu, length in (("A100", 200), ("MI250", 100)):
        steps = [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1,
             "ts": 1000 * n, "dur": length}
            for n in range(4)
        ]  # fmt: skip
        kernels = [
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1000 * n + 10,
             "dur": length - 20, "args": {"device": 0, "stream": 7}}
            for n in range(4)
        ]  # fmt: skip
        path = tmp_path / f"{gpu}.json"
        devices = [{"id": 0, "name": gpu}]
        path.write_text(json.dumps({"deviceProperties": devices, "traceEvents": steps + kernels}))
        paths.append(str(path))
    result = ta.diff(*paths)
    check_wording(result.verdict)
    assert result.outcome == "improvement"
    assert result.verdict.startswith("Comparable with reservations: the GPUs differ")
    assert "mprovement" not in result.verdict


def test_parts_within_noise_are_no_reason() -> None:
    result = diff(loop([100] * 6), loop([150] * 6, compute=40))
    assert result.parts is not None
    assert "compute" in result.verdict
    unsure = pl.when(pl.col("part") == "compute").then(pl.lit(UNSURE)).otherwise("state")
    parts = result.parts.with_columns(state=unsure)
    assert "compute" not in replace(result, parts=parts).verdict
