"""Outliers, groups, bandwidth and the comparison with a baseline: one rank."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_GATHER, ALL_REDUCE, GEMM, GENERIC, MS, US, device, host, step, trace
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

from traceanalyzer.analyzers.comm_outliers.compute import comm_outliers
from traceanalyzer.analyzers.comm_outliers.outliers import compare
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.trace import Trace

SIZED = {
    "dtype": "Float",
    "elements_in": 1_000,
    "elements_out": 1_000,
    "group": "0",
    "group_size": 4,
}


def kernels(durations: list[int], name: str = ALL_REDUCE, **more: Any) -> list[dict[str, Any]]:
    """One after the other, a millisecond apart."""
    described = {**SIZED, **more}
    return [device(name, i * 100 * MS, dur, **described) for i, dur in enumerate(durations)]


def outliers(result: CommOutliers) -> list[int]:
    return result.outliers()["duration_ns"].to_list()


def run(events: list[dict[str, Any]], **options: Any) -> CommOutliers:
    return comm_outliers(trace(events), **options)


def test_an_outlier_is_beyond_factor_and_z() -> None:
    usual = [100, 101, 99, 102, 98]
    result = run(kernels([*usual, 1_000]))
    (row,) = result.outliers().iter_rows(named=True)
    middle = statistics.median([*usual, 1_000])
    mad = statistics.median(abs(x - middle) for x in [*usual, 1_000])
    assert row["factor"] == pytest.approx(1_000 / middle)
    assert row["z"] == pytest.approx(0.6745 * (1_000 - middle) / mad)
    assert row["judged_by"] == "group"
    assert outliers(run(kernels([*usual, 250]))) == [], "a large z alone is not enough"
    wide = [10, 500, 1_000, 20, 700, 2_000, 30]
    assert outliers(run(kernels(wide))) == [], "a large factor alone is not enough"
    assert outliers(run(kernels([*usual, 250]), factor=2)) == [250]
    assert outliers(run(kernels([*usual, 1_000]), z=1e6)) == []


def test_equal_durations_fall_back_to_the_mean_deviation() -> None:
    result = run(kernels([100] * 9 + [1_000]))
    (row,) = result.outliers().iter_rows(named=True)
    assert row["z"] == pytest.approx(900 / (1.253314 * 90))
    assert outliers(run(kernels([100] * 10))) == []


def test_groups_are_separate() -> None:
    small, large = kernels([10] * 5), kernels([1_000] * 5, elements_in=10**6, elements_out=10**6)
    other = kernels([500] * 5, group="1")
    result = run([*small, *large, *other])
    assert result.groups["n"].to_list() == [5, 5, 5]
    assert outliers(result) == []


def test_few_events_are_judged_by_bandwidth() -> None:
    # latency 10 us, 100 GB/s: five sizes once each, and one that is ten times too slow
    sizes = [10**5, 10**6, 10**7, 10**8, 10**9]
    described = [{"elements_in": s // 4, "elements_out": s // 4} for s in sizes]
    fit = [kernels([10 * US + s // 100], **t)[0] for s, t in zip(sizes, described, strict=True)]
    slow = kernels([10 * (10 * US + 10**7 // 100)], **described[2])
    result = run([*fit, *slow])
    assert result.instances["judged_by"].to_list() == ["bandwidth"] * 6
    (row,) = result.outliers().iter_rows(named=True)
    assert row["duration_ns"] == slow[0]["dur"]
    assert 3 < row["factor"] < 11
    check_wording(*result.notes)


def test_small_groups_are_not_compared() -> None:
    result = run(kernels([10, 10, 10, 10_000]))
    assert outliers(result) == []
    assert result.instances["judged_by"].null_count() == 4
    assert result.instances["z"].null_count() == 4


def unsized(count: int, steps: int, slow: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """The same ``count`` sizes in every step, none recorded: 10 us, 20 us, 30 us ..."""
    events = []
    for number in range(steps):
        events.append(step(number, number * 10 * MS, 10 * MS))
        for place in range(count):
            dur = (place + 1) * 10 * US * (20 if (number, place) == slow else 1)
            events.append(device(ALL_REDUCE, number * 10 * MS + place * MS, dur))
    return events


def test_unknown_sizes_are_compared_by_position_in_step() -> None:
    result = run(unsized(6, steps=5, slow=(3, 1)))
    assert set(result.instances["judged_by"]) == {"place"}
    (row,) = result.outliers().iter_rows(named=True)
    assert (row["step"], row["duration_ns"]) == ("ProfilerStep#3", 400 * US)
    assert row["factor"] == pytest.approx(20)


def test_a_mixture_of_unknown_sizes_has_no_outliers() -> None:
    spread = [10, 11, 12, 9] * 3 + [1_000] * 4
    mixed = [device(ALL_REDUCE, i * MS, dur * US) for i, dur in enumerate(spread)]
    result = run(mixed)
    assert outliers(result) == []
    assert set(result.instances["judged_by"]) == {None}
    alike = [device(ALL_REDUCE, i * MS, (10 if i else 999) * US) for i in range(16)]
    assert outliers(run(alike)) == [999 * US]


def test_groups_have_counts_times_and_bandwidth() -> None:
    durations = [10 * US, 20 * US, 30 * US, 40 * US]
    compute = device(GEMM, 0, 5 * US, stream=8)
    result = run([*kernels(durations), compute])
    (row,) = result.groups.iter_rows(named=True)
    assert (row["n"], row["ranks"], row["message_bytes"]) == (4, 1, 4_000)
    assert (row["median_ns"], row["max_ns"], row["total_ns"]) == (25 * US, 40 * US, 100 * US)
    assert row["p95_ns"] == 38_500
    assert row["p99_ns"] == 39_700
    assert row["algbw_gbps"] == pytest.approx(4_000 / 25_000)
    assert row["busbw_gbps"] == pytest.approx(4_000 / 25_000 * 2 * 3 / 4)
    span = 300 * MS + 40 * US
    assert row["share_frac"] == pytest.approx(100 * US / span)
    assert row["compute_frac"] == pytest.approx(0.05)


def test_bandwidth_of_an_all_gather_is_that_of_its_output() -> None:
    described = {"elements_in": 250, "elements_out": 1_000}
    (row,) = run(kernels([1_000], ALL_GATHER, **described)).groups.iter_rows(named=True)
    assert row["algbw_gbps"] == pytest.approx(4.0)
    assert row["busbw_gbps"] == pytest.approx(3.0)


def test_unknown_sizes_have_no_bandwidth() -> None:
    (row,) = run([device(ALL_REDUCE, 0, 5)]).groups.iter_rows(named=True)
    assert row["algbw_gbps"] is None
    assert row["kernel"] == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def test_baseline_ratio_of_medians_largest_first() -> None:
    now = [*kernels([500, 500, 900]), *kernels([20], elements_in=7), *kernels([9], group_size=2)]
    before = [*kernels([1, 1, 1], group="other name"), *kernels([10], elements_in=7)]
    result = run(now, baseline=trace(before))
    assert result.baseline is not None
    columns = ["message_bytes", "group_size", "n", "n_before", "median_ns", "baseline_ns", "ratio"]
    assert result.baseline.select(columns).rows() == [
        (4_000, 4, 3, 3, 500, 1, 500.0),
        (28, 4, 1, 1, 20, 10, 2.0),
    ]
    check_wording(result.verdict)
    assert result.tables[0].name == "baseline"


def test_zero_baseline_has_no_ratio_and_is_last() -> None:
    sizes = [*kernels([10], elements_in=7), *kernels([20])]
    before = [*kernels([0], elements_in=7), *kernels([20])]
    result = run(sizes, baseline=trace(before))
    assert result.baseline is not None
    assert result.baseline["ratio"].to_list() == [1.0, None]


def test_baseline_of_unknown_sizes_is_joined_by_kernel() -> None:
    now = [device(GENERIC, i, 30) for i in range(3)] + [device(ALL_REDUCE, 0, 10)]
    result = run(now, baseline=trace([device(GENERIC, 0, 10)]))
    assert result.baseline is not None
    assert result.baseline.select("kernel", "ratio").rows() == [("ncclDevKernel_Generic", 3.0)]


def test_verdict_with_too_few_collectives() -> None:
    few = run(kernels([100, 100]))
    assert few.instances["judged_by"].null_count() == 2
    check_wording(few.verdict)


@pytest.mark.parametrize(
    ("overlap", "total", "expected"),
    [
        ((0.5, 0.1), (30, 10), 0.4),  # by time
        ((None, None), (30, 10), None),
        ((0.5, 0.5), (0, 0), None),
    ],
)
def test_groups_of_one_key_share_overlap(overlap, total, expected) -> None:
    groups = pl.DataFrame(
        {"collective": "all_reduce", "dtype": "Float", "message_bytes": 8, "group_size": 4,
         "kernel": "k", "n": 1, "median_ns": [10, 20], "compute_frac": overlap, "total_ns": total},
        schema_overrides={"compute_frac": pl.Float64},
    )  # fmt: skip
    (row,) = compare(groups, groups).iter_rows(named=True)
    assert (row["n"], row["median_ns"], row["ratio"]) == (2, 15, 1.0)
    assert row["compute_frac"] == row["compute_before_frac"] == pytest.approx(expected)


def test_unknown_sizes_outside_steps_are_compared_by_kernel() -> None:
    events = unsized(1, steps=6)
    twice = device(ALL_REDUCE, 51 * MS, 10 * US)  # in the last step, which is not like the others
    outside = device(ALL_REDUCE, 70 * MS, 10 * US)
    result = run([*events, twice, outside])
    assert result.instances["judged_by"].to_list() == ["place"] * 5 + ["kernel"] * 3


def test_equal_baseline_is_no_problem() -> None:
    recording = trace(kernels([100] * 6))
    result = comm_outliers(recording, baseline=recording)
    assert result.baseline is not None
    assert result.baseline["ratio"].to_list() == [1.0]
    check_wording(result.verdict)


def test_missing_communication_error_names_recording_option() -> None:
    silent = trace([host("cpu_op", "aten::mm", 0, 5)], path="quiet.json")
    with raises_wording(MissingData):
        comm_outliers(silent)
    with raises_wording(MissingData):
        comm_outliers(trace([device(GEMM, 0, 5)], path="busy.json"))
    with raises_wording(MissingData):
        comm_outliers([replace(silent) for _ in range(5)])
    with pytest.raises(MissingData, match=r"quiet.json"):
        comm_outliers(trace(kernels([1])), baseline=silent)
    with pytest.raises(MissingData):
        comm_outliers(Trace(sources=silent.sources))


def test_no_input_is_a_usage_error() -> None:
    with pytest.raises(OptionError, match="no input"):
        comm_outliers([])


@pytest.mark.parametrize("options", [{"factor": 0}, {"z": -1}, {"min_wait_ns": -1}])
def test_invalid_numbers_are_rejected(options: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        run(kernels([1]), **options)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**7), st.sampled_from([None, 1, 10**6]))))
def test_any_durations_give_numbers(drawn: list[tuple[int, int | None]]) -> None:
    drawn = [*drawn, (0, None), (5, 1)]
    events = [
        device(ALL_REDUCE, i, dur, dtype="Float", elements_in=size, group_size=2)
        for i, (dur, size) in enumerate(drawn)
    ]
    result = run(events)
    assert result.totals.n_events == len(drawn)
    assert result.totals.total_comm_ns == sum(dur for dur, _ in drawn)
    assert result.groups["n"].sum() == len(drawn)
    assert result.groups["total_ns"].sum() == result.totals.total_comm_ns
    for frame in (result.instances, result.groups, result.ranks):
        for column in frame.select(pl.selectors.float()):
            assert not any(map(math.isnan, column.drop_nulls()))
            assert not any(map(math.isinf, column.drop_nulls()))
    assert (result.outliers()["factor"] > 3).all()
    assert result.verdict


@settings(max_examples=6, deadline=None)
@given(st.permutations(range(8)))
def test_the_order_of_the_events_does_not_matter(order: list[int]) -> None:
    events = kernels([100, 100, 100, 100, 100, 5_000, 90, 110])
    one, other = run(events), run([events[i] for i in order])
    assert one.to_dict() == other.to_dict()
