"""Queues and synchronising calls at the edges of their definitions."""

from __future__ import annotations

import polars as pl
import pytest
from comm_traces import US, device, host, trace
from hypothesis import given, settings, strategies as st

from traceanalyzer.analyzers.launches.calls import drawn, streams
from traceanalyzer.analyzers.launches.compute import launches
from traceanalyzer.analyzers.launches.launch_bound import most_launched_in, stretches

modest = settings(max_examples=60, deadline=None)


def changes(lengths: list[int], gaps: list[int], queue: int = 0) -> pl.DataFrame:
    """Return queue changes from lengths and durations."""
    frame = pl.DataFrame({"length": lengths, "lasted": gaps[: len(lengths)]})
    ts = pl.col("lasted").cum_sum().shift(1, fill_value=0)
    return frame.with_columns(queue=queue, device=0, process=7, stream=queue, ts=ts)


COURSES = st.lists(st.integers(0, 4) | st.integers(1_022, 1_025), min_size=1, max_size=12)
TIMES = st.lists(st.integers(0, 50), min_size=12, max_size=12)


@modest
@given(COURSES, TIMES)
def test_streams_are_weighted_by_time(lengths: list[int], lasted: list[int]) -> None:
    course = changes(lengths, lasted)
    calls = (
        course.select("device", "process", "stream")
        .head(1)
        .with_columns(launch_name=pl.lit("launch"), call_ns=0, full_ns=0, loading_ns=0)
        .with_columns(launch_start=0, start=0)
    )
    (row,) = streams(course, pl.concat([calls] * 3)).to_dicts()
    lasted = lasted[: len(lengths)]
    both = list(zip(lengths, lasted, strict=True))
    whole = sum(lasted)
    assert (row["launches"], row["max_queue"], row["queue_ns"]) == (3, max(lengths), whole)
    mean = sum(length * time for length, time in both) / whole if whole else None
    assert row["mean_queue"] == (None if mean is None else pytest.approx(mean))
    assert row["empty_ns"] == sum(time for length, time in both if length == 0)
    assert row["full_ns"] == 0  # no call blocks


@modest
@given(st.lists(st.integers(0, 9), min_size=1, max_size=2_000), st.integers(1, 30))
def test_chart_has_longest_and_shortest_queue_of_each_part(lengths: list[int], apart: int) -> None:
    assert_drawn(changes(lengths, [apart] * len(lengths)))


def assert_drawn(course: pl.DataFrame) -> None:
    """Each of three hundred parts keeps the longest, the shortest and the last queue."""
    lengths, points = course["length"].to_list(), drawn(course)
    after = dict(points.gather_every(2, 1).select("ts", "length").rows())
    before = points.gather_every(2, 0)["length"].to_list()
    times, whole = course["ts"].to_list(), course["ts"][-1] + 1
    parts: dict[int, list[tuple[int, int]]] = {}
    for ts, length in zip(times, lengths, strict=True):
        parts.setdefault(ts * 300 // whole, []).append((length, ts))
    drawn_at = set()
    for points in parts.values():
        longest = max(points, key=lambda pair: (pair[0], -pair[1]))
        drawn_at |= {longest[1], min(points)[1], points[-1][1]}
    assert set(after) == drawn_at
    at = {ts: place for place, ts in enumerate(times)}
    for (ts, length), earlier in zip(after.items(), before, strict=True):
        place = at[ts]
        assert length == lengths[place]
        assert earlier == (lengths[place - 1] if place else 0)


def test_chart_keeps_dips_and_peaks() -> None:
    # alternating lengths, different in each part
    lengths = [50 if i % 7 != 3 else (40, 41, 3, 90, 42)[i * i % 5] for i in range(5_000)]
    assert_drawn(changes(lengths, [10] * len(lengths)))


def test_queues_are_reduced_independently() -> None:
    one = changes([5, 9, 2, 7] * 300, [3] * 1_200, queue=0)
    other = changes([1, 0, 4, 8, 6] * 200, [11] * 1_000, queue=1)
    later = other.with_columns(ts=pl.col("ts") + 1_000)  # a part begins at the start of its queue
    assert drawn(pl.concat([one, later])).equals(pl.concat([drawn(one), drawn(later)]))


@pytest.mark.parametrize(
    ("name", "returns", "waited"),
    [
        ("Memcpy DtoH (Device -> Pinned)", 30, 1),  # as the copy ends
        ("Memcpy DtoH (Device -> Pinned)", 29, 0),
        ("Memcpy DtoH (Device -> Pageable)", 11, 1),
        ("Memcpy DtoH (Device -> Pageable)", 10, 0),  # as the copy begins
        ("Memcpy DtoD (Device -> Device)", 40, 0),
    ],
)
def test_copies_with_late_returning_calls_are_blocking(
    name: str, returns: int, waited: int
) -> None:
    call = host("cuda_runtime", "cudaMemcpyAsync", 0, returns * US, correlation=1)
    copy = device(name, 10 * US, 20 * US, correlation=1, kind="gpu_memcpy")
    later = [
        host("cuda_runtime", "cudaLaunchKernel", 50 * US, US, correlation=2),
        device("gemm", 60 * US, US, correlation=2),
    ]
    assert launches(trace([call, copy, *later])).synchronising.by_place["n"].sum() == waited


def test_synchronising_calls_count_until_the_last_launch() -> None:
    def sync(at: int) -> dict[str, object]:
        return host("cuda_runtime", "cudaDeviceSynchronize", at * US, US)

    work = [
        host("cuda_runtime", "cudaLaunchKernel", at * US, US, correlation=at) for at in (0, 100)
    ] + [device("gemm", (at + 5) * US, 10 * US, correlation=at) for at in (0, 100)]
    result = launches(trace([*work, sync(20), sync(40), sync(100), sync(101), sync(130)]))
    assert result.unmatched.after_last == 2
    assert result.synchronising.by_place["n"].sum() == 3


def waiting(n: int, idle: int, busy: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return gaps that end with a launch, and the work around them."""
    period = idle + busy
    starts = [busy + period * i for i in range(n)]
    gaps = pl.DataFrame(
        {"device": 0, "launch": range(n), "start": starts, "end": [s + idle for s in starts],
         "synchronised": [i % 2 == 0 for i in range(n)]}
    )  # fmt: skip
    work = pl.DataFrame({"device": 0, "start": [0, *gaps["end"]]})
    return gaps, work


@pytest.mark.parametrize(("n", "stretches_expected"), [(9, 0), (10, 1)])
def test_ten_gaps_make_a_stretch(n: int, stretches_expected: int) -> None:
    gaps, work = waiting(n, 50, 50)
    result = stretches(gaps, gaps, work)
    assert result.height == stretches_expected
    if stretches_expected:
        (row,) = result.to_dicts()
        assert (row["start"], row["end"]) == (50, 50 + 100 * 9 + 50)
        assert (row["gaps"], row["waiting_ns"], row["synchronised_ns"]) == (10, 500, 250)
        assert (row["pieces"], row["busy_ns"]) == (9, 450)


@pytest.mark.parametrize(("busy", "stretches_expected"), [(1_000, 1), (1_001, 0)])
def test_a_stretch_is_busy_for_nine_tenths_at_most(busy: int, stretches_expected: int) -> None:
    # ten gaps of 100 ns, nine pieces between them: 9,000 of 10,000 ns are nine tenths
    gaps, work = waiting(10, 100, busy)
    assert stretches(gaps, gaps, work).height == stretches_expected


@pytest.mark.parametrize(("pause", "runs"), [(1_000_000, 1), (1_000_001, 2)])
def test_a_millisecond_without_such_a_gap_ends_a_stretch(pause: int, runs: int) -> None:
    gaps, work = waiting(10, 500_000, 10)
    later = gaps.with_columns(pl.col("start", "end") + gaps["end"][-1] + pause - 10)
    both = pl.concat([gaps, later])
    result = stretches(both, both, work)
    assert result.height == runs
    assert result["gaps"].sum() == 20


def test_ties_of_places_are_sorted_by_name() -> None:
    gaps, work = waiting(10, 50, 50)
    result = stretches(gaps, gaps, work)
    calls = pl.DataFrame({"device": 0, "start": [100, 200, 300, 400, 500]})
    place = pl.Series(["b", "a", "b", "a", None])
    values = most_launched_in(result, calls, {"operator": place})
    assert values["operator"].to_list() == ["a"]
    more = most_launched_in(result, calls, {"operator": pl.Series(["b", "a", "b", None, None])})
    assert more["operator"].to_list() == ["b"]


def test_calls_with_a_negative_duration_are_not_used() -> None:
    events = [device("k", at, 5, correlation=at) for at in (20, 60)]
    calls = [
        host("cuda_runtime", "cudaLaunchKernel", at - 10, dur, correlation=at)
        for at, dur in ((20, 4), (60, -4))
    ]
    (call,) = launches(trace([*events, *calls])).calls.by_name.to_dicts()
    assert (call["launches"], call["max_call_ns"], call["mean_call_ns"]) == (1, 4, 4)


def test_a_call_that_loads_the_code_of_two_kernels_counts_once() -> None:
    events = []
    for number in range(6):
        at, took = number * 5_000 * US, 2 * US if number else 900 * US
        events.append(host("cuda_runtime", "cudaLaunchKernel", at, took, correlation=number + 1))
        for n, name in enumerate("ab"):
            start = at + took + (1 + 5 * n) * US
            events.append(device(name, start, 4 * US, stream=7 + n, correlation=number + 1))
    (call,) = launches(trace(events)).calls.by_name.to_dicts()
    assert (call["launches"], call["loading_calls"]) == (6, 1)
