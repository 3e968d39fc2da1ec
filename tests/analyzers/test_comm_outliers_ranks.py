"""Several ranks: matching, wait times, stragglers, clocks, and the activity of stragglers."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, BROADCAST, GEMM, MS, US, device, host, step, trace
from hypothesis import given, settings, strategies as st
from wording import check_wording

from traceanalyzer.analyzers.comm_outliers import Options
from traceanalyzer.analyzers.comm_outliers.activity import divide
from traceanalyzer.analyzers.comm_outliers.arrivals import Window
from traceanalyzer.analyzers.comm_outliers.compute import combine, comm_outliers, measure
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.trace import Trace, concat

SIZED = {"dtype": "Float", "elements_in": 1_000, "elements_out": 1_000}
WORLD = {**SIZED, "group": "0", "group_size": 4, "group_ranks": "[0, 1, 2, 3]"}


def run(arrivals: Sequence[Sequence[int]], transfer: int = 10 * US, **more: Any) -> list[Trace]:
    """Return one trace per rank: ``arrivals[collective][rank]``; all leave ``transfer`` later."""
    described = {**WORLD, **more}
    return [
        trace(
            [
                device(
                    ALL_REDUCE,
                    row[rank],
                    max(row) + transfer - row[rank],
                    **{**described, "seq": seq},
                )
                for seq, row in enumerate(arrivals)
            ],
            rank=rank,
        )
        for rank in range(len(arrivals[0]))
    ]


def by_rank(result: CommOutliers, column: str) -> dict[int, Any]:
    return dict(result.ranks.select("rank", column).iter_rows())


def test_wait_arrival_and_transfer_times() -> None:
    result = comm_outliers(run([[0, 5 * MS, 1 * MS, 2 * MS]]))
    (row,) = result.collectives.iter_rows(named=True)
    assert (row["first_rank"], row["last_rank"], row["ranks"], row["missing"]) == (0, 1, 4, 0)
    assert row["skew_ns"] == 5 * MS
    assert row["arrival_delay_ns"] == 4 * MS, "after the median of the others: 0, 1 and 2 ms"
    assert row["imposed_ns"] == (5 + 4 + 3) * MS
    assert row["transfer_ns"] == 10 * US
    assert row["end_skew_ns"] == 0
    assert by_rank(result, "wait_ns") == {0: 5 * MS, 1: 0, 2: 4 * MS, 3: 3 * MS}
    assert by_rank(result, "imposed_ns") == {0: 0, 1: 12 * MS, 2: 0, 3: 0}
    assert by_rank(result, "times_last") == {0: 0, 1: 1, 2: 0, 3: 0}
    assert by_rank(result, "times_first") == {0: 1, 1: 0, 2: 0, 3: 0}


def test_straggler_is_reported_not_the_victim() -> None:
    regular = [[i * 10 * MS + r * US for r in range(4)] for i in range(8)]
    regular[5][2] += 6 * MS
    result = comm_outliers(run(regular))
    assert set(result.outliers()["rank"]) == {0, 1, 3}
    assert set(result.outliers()["cause"]) == {"waiting for rank 2"}
    assert result.delayed.collectives["last_rank"].to_list() == [2]
    assert result.scalars["straggler"] == 2
    check_wording(result.verdict)


def test_simultaneous_arrivals_have_no_straggler() -> None:
    result = comm_outliers(run([[i * MS] * 4 for i in range(6)]))
    assert result.collectives["last_rank"].to_list() == [None] * 6
    assert result.delayed.collectives.is_empty()
    check_wording(result.verdict)
    assert set(by_rank(result, "times_first").values()) == {6}


def test_slow_on_all_ranks_is_not_a_straggler() -> None:
    traces = [
        trace(
            [device(ALL_REDUCE, i * MS, dur * US, **WORLD, seq=i) for i, dur in enumerate(durs)],
            rank=r,
        )
        for r, durs in enumerate([[10, 11, 10, 200, 9, 10]] * 4)
    ]
    result = comm_outliers(traces)
    assert result.delayed.collectives.is_empty()
    check_wording(result.verdict)
    assert set(result.outliers()["cause"]) == {"slow on all ranks"}
    assert "outlier" not in result.verdict


def test_the_root_of_a_broadcast_waits_no_longer_than_it_runs() -> None:
    root = trace([device(BROADCAST, 0, 5 * US, **WORLD)], rank=0)
    other = trace([device(BROADCAST, 9 * MS, 5 * US, **WORLD)], rank=1)
    result = comm_outliers([root, other])
    assert by_rank(result, "wait_ns") == {0: 5 * US, 1: 0}
    assert result.collectives["transfer_ns"].to_list() == [0]
    assert result.clocks.is_empty(), "a root may leave early, so its end is not used for clocks"


# --- steps -----------------------------------------------------------------------------------


def stepped(
    stragglers: dict[int, int], ranks: int = 4, steps: int = 6, by: int = 5 * MS
) -> list[Trace]:
    """Return a collective per 20 ms step; ``stragglers`` maps a step to its straggler."""
    traces = run(
        [
            [s * 20 * MS + 10 * MS + r * US + by * (stragglers.get(s) == r) for r in range(ranks)]
            for s in range(steps)
        ]
    )
    marks = [step(s, s * 20 * MS, 20 * MS) for s in range(steps)]
    return [
        trace([*marks, *_events(recording)], rank=rank) for rank, recording in enumerate(traces)
    ]


def _events(recording: Trace) -> list[dict[str, Any]]:
    described = recording.collectives.with_columns(pl.col(pl.Categorical).cast(str))
    events = recording.events.with_columns(pl.col("name", "kind").cast(str)).with_row_index("event")
    return [
        {k: v for k, v in row.items() if k not in ("event", "rank", "category") and v is not None}
        for row in events.join(described, on="event", how="left").iter_rows(named=True)
    ]


def test_stragglers_by_step() -> None:
    result = comm_outliers(stepped({1: 3, 4: 3, 5: 0}))
    steps = {row["step"]: row for row in result.steps.iter_rows(named=True)}
    assert steps["ProfilerStep#1"]["straggler"] == 3
    # waits of 5.003, 5.002, 5.001 and 0 ms
    assert steps["ProfilerStep#1"]["cost_ns"] == 5 * MS + 2_000, "the median of the others"
    assert steps["ProfilerStep#1"]["cost_frac"] == pytest.approx(0.25, abs=0.001)
    assert steps["ProfilerStep#0"]["cost_frac"] < 0.001
    assert by_rank(result, "straggler_steps") == {0: 1, 1: 0, 2: 0, 3: 2}
    assert result.delayed.collectives.sort("step").select("last_rank", "step").rows() == [
        (3, "ProfilerStep#1"),
        (3, "ProfilerStep#4"),
        (0, "ProfilerStep#5"),
    ]
    assert result.delayed.min_wait_ns == 2 * MS
    check_wording(result.verdict)


@pytest.mark.matrix
def test_cost_is_reported_from_two_steps() -> None:
    persistent = comm_outliers(stepped(dict.fromkeys(range(6), 1)))
    check_wording(persistent.verdict)
    once = comm_outliers(stepped({2: 1}, by=15 * MS))
    assert by_rank(once, "straggler_frac")[1] > 0.09
    assert "It costs" not in once.verdict
    alone = comm_outliers(stepped({0: 1}, steps=1))
    check_wording(alone.verdict)


def test_many_small_delays_of_one_rank_add_up() -> None:
    """Each is below a tenth of the step; together they are a quarter of it."""
    arrivals = [
        [s * 20 * MS + i * 2 * MS + MS * (r == 2) // 2 for r in range(4)]
        for s in range(4)
        for i in range(10)
    ]
    marks = [step(s, s * 20 * MS, 20 * MS) for s in range(4)]
    traces = [
        trace([*marks, *_events(recording)], rank=r) for r, recording in enumerate(run(arrivals))
    ]
    result = comm_outliers(traces)
    assert by_rank(result, "straggler_frac")[2] == pytest.approx(0.25 * 3 / 4)
    assert result.delayed.collectives["last_rank"].to_list() == [2, 2, 2]
    check_wording(result.verdict)


def test_overlapping_waits_count_once() -> None:
    both = [
        [device(ALL_REDUCE, at, 10 * MS - at + US, **WORLD, stream=s, seq=s) for s in (7, 8)]
        for at in (0, 9 * MS)
    ]
    mark = step(0, 0, 20 * MS)
    result = comm_outliers([trace([mark, *events], rank=r) for r, events in enumerate(both)])
    assert by_rank(result, "wait_ns")[0] == by_rank(result, "imposed_ns")[1] == 9 * MS
    assert result.totals.total_wait_ns == 9 * MS
    assert result.steps["cost_ns"].to_list() == [9 * MS], "the wait of the other rank"


# --- matching --------------------------------------------------------------------------------


def test_process_groups_are_separate() -> None:
    """Tensor-parallel pairs of one name, and a data-parallel group of all."""
    traces = []
    for rank in range(4):
        pair = f"[{rank // 2 * 2}, {rank // 2 * 2 + 1}]"
        described = {**SIZED, "group": "tp", "group_size": 2, "group_ranks": pair}
        at = 100 * MS * (rank // 2)
        traces.append(
            trace(
                [
                    device(ALL_REDUCE, at, MS, **described, seq=0),
                    device(ALL_REDUCE, at + 2 * MS, MS, **described, seq=1),
                    device(ALL_REDUCE, 300 * MS, MS, **WORLD, seq=0),
                ],
                rank=rank,
            )
        )
    result = comm_outliers(traces)
    assert result.collectives["ranks"].to_list() == [2, 2, 2, 2, 4]
    assert result.totals.n_matched == 12
    assert result.totals.total_wait_ns == 0


def test_matching_by_order_without_sequence_numbers() -> None:
    traces = [
        trace([device(ALL_REDUCE, i * MS + r * US, 20 * US) for i in range(5)], rank=r)
        for r in range(3)
    ]
    result = comm_outliers(traces)
    assert result.totals.n_collectives == 5
    assert by_rank(result, "wait_ns") == {0: 10 * US, 1: 5 * US, 2: 0}
    check_wording(*result.notes)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dropped", [(0,), (4,), (9,), (0, 1, 2), (3, 7)])
def test_missing_events_do_not_shift_the_rest(dropped: tuple[int, ...]) -> None:
    """Rank 1 lacks some of ten equal collectives; its clock is 700 ms ahead."""
    rng = random.Random(1)  # noqa: S311 - not a secret
    starts = [i * 10 * MS + rng.randrange(MS) for i in range(10)]
    waits = [rng.randrange(300 * US) for _ in range(10)]
    zero = [device(ALL_REDUCE, at, wait + 20 * US) for at, wait in zip(starts, waits, strict=True)]
    one = [
        device(ALL_REDUCE, at + wait + 700 * MS, 20 * US)
        for i, (at, wait) in enumerate(zip(starts, waits, strict=True))
        if i not in dropped
    ]
    result = comm_outliers([trace(zero, rank=0), trace(one, rank=1)])
    assert result.totals.n_collectives == 10 - len(dropped)
    assert result.clocks["offset_ns"].to_list() == [0, 700 * MS]
    expected = sum(wait for i, wait in enumerate(waits) if i not in dropped)
    assert by_rank(result, "wait_ns") == {0: expected, 1: 0}
    counts = [re.findall(r"\d+", note) for note in result.notes]
    assert [str(len(dropped)), str(20 - len(dropped))] in [numbers[:2] for numbers in counts]


def test_recordings_cut_at_other_ends_are_matched_by_time() -> None:
    """Both have the same number of events, but rank 1's recording starts and ends one later."""
    traces = run([[i * 3 * MS, i * 3 * MS + 40 * US] for i in range(8)], group=None, seq=None)
    zero, one = (
        trace([{**e, "seq": None} for e in _events(t)[k : k + 7]], rank=k)
        for k, t in enumerate(traces)
    )
    result = comm_outliers([zero, one])
    assert result.totals.n_collectives == 6
    assert by_rank(result, "wait_ns") == {0: 6 * 40 * US, 1: 0}


@pytest.mark.parametrize(("collective", "matched"), [("all_to_all", 9), ("all_gather", 0)])
def test_all_to_all_of_different_sizes_is_matched(collective: str, matched: int) -> None:
    """Collectives have no sequence number, and each rank has another message size."""
    kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    traces = [
        trace(
            [
                device(
                    kernel, i * 10 * MS + rank * late, 5 * MS - rank * late, collective=collective,
                    dtype="float", elements_in=1_000 + 7 * i + 13 * rank,
                    elements_out=4_000 + 3 * i + rank, group="ep", group_size=2,
                )
                for i, late in enumerate([0, 2 * MS, 0] * 3)
            ],
            rank=rank,
        )
        for rank in range(2)
    ]  # fmt: skip
    result = comm_outliers(traces)
    assert result.totals.n_collectives == matched
    assert by_rank(result, "wait_ns") == {0: 6 * MS if matched else 0, 1: 0}
    check_wording(result.verdict)


def test_kinds_in_another_order_are_matched_by_kind() -> None:
    """Two streams of one rank start their collectives in the other order."""
    a, b = {**SIZED}, {**SIZED, "elements_in": 77}
    one = [device(ALL_REDUCE, 0, 90, **a), device(ALL_REDUCE, 10, 90, **b, stream=8)]
    two = [device(ALL_REDUCE, 0, 100, **b, stream=8), device(ALL_REDUCE, 20, 70, **a)]
    result = comm_outliers([trace(one, rank=0), trace(two, rank=1)])
    assert result.collectives.select("message_bytes", "imposed_ns").sort(
        "message_bytes"
    ).rows() == [
        (308, 10),
        (4_000, 20),
    ]


def test_ranks_of_unknown_groups_without_overlap_are_left_out() -> None:
    far = [
        trace(
            [device(ALL_REDUCE, (r * 50 + i * 100) * MS, US) for i in range(4)], rank=r, host=None
        )
        for r in range(2)
    ]
    jitter = [MS, 3 * MS, 2 * MS, 7 * MS]
    far[1] = trace(
        [device(ALL_REDUCE, (50 + i * 100) * MS + j, US) for i, j in enumerate(jitter)], rank=1
    )
    result = comm_outliers(far)
    assert result.totals.total_wait_ns == 0
    check_wording(*result.notes)


def test_sends_are_matched_in_pairs_only() -> None:
    def pair(size: int) -> list[Trace]:
        described = {"group": "pp", "group_size": size}
        return [
            trace(
                [device("ncclDevKernel_SendRecv()", r * 9, 50 - r * 9, collective=c, **described)],
                rank=r,
            )
            for r, c in enumerate(["send", "recv"])
        ]

    assert comm_outliers(pair(2)).totals.total_wait_ns == 9
    assert comm_outliers(pair(4)).totals.n_matched == 0


def test_missing_ranks_are_tolerated_and_counted() -> None:
    traces = run([[at, at + 3 * MS, at + MS, at] for at in (0, 10 * MS, 20 * MS)])
    result = comm_outliers([traces[1], traces[3]])
    assert result.collectives["missing"].to_list() == [2, 2, 2]
    assert by_rank(result, "wait_ns") == {1: 0, 3: 9 * MS}
    eight = [trace([device(ALL_REDUCE, 0, 5)], rank=r, world_size=8) for r in (0, 5, 6)]
    assert any("3 of 8" in note for note in comm_outliers(eight).notes)


def test_a_rank_without_communication_is_named() -> None:
    result = comm_outliers([*run([[0, 1]]), trace([device(GEMM, 0, 5)], rank=2)])
    check_wording(*result.notes)
    assert by_rank(result, "n") == {0: 1, 1: 1, 2: 0}


def test_files_without_rank_are_numbered_by_name() -> None:
    def unnamed(path: str, at: int) -> Trace:
        return trace([device(ALL_REDUCE, at, 50 - at)], rank=None, path=path)

    result = comm_outliers([unnamed("b.json", 9), unnamed("a.json", 0)])
    assert by_rank(result, "wait_ns") == {0: 9, 1: 0}
    check_wording(*result.notes)


def test_duplicate_file_counts_once() -> None:
    traces = run([[0, 5, 3, 1]])
    assert comm_outliers([*traces, traces[2]]).to_dict() == comm_outliers(traces).to_dict()


def test_several_files_of_one_rank_are_one_rank() -> None:
    early, late = run([[0, 5 * US]]), run([[MS, MS + 3 * US]])
    result = comm_outliers([*late, *early])
    assert result.totals.n_ranks == 2
    assert by_rank(result, "n") == {0: 2, 1: 2}


# --- clocks ----------------------------------------------------------------------------------


def ahead(
    traces: Sequence[Trace], offsets: Sequence[int], hosts: Sequence[str | None]
) -> list[Trace]:
    return [
        trace(
            [{**event, "ts": event["ts"] + by} for event in _events(recording)],
            rank=recording.meta.rank,
            host=name,
        )
        for recording, by, name in zip(traces, offsets, hosts, strict=True)
    ]


ARRIVALS = [[i * 10 * MS + (i * 7 + r * 13) % 5 * 100 * US for r in range(4)] for i in range(9)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("hosts", [("a", "a", "b", "b"), (None, None, None, None)])
def test_clock_offsets_between_hosts_are_corrected(hosts: tuple[str | None, ...]) -> None:
    straight = comm_outliers(run(ARRIVALS))
    result = comm_outliers(ahead(run(ARRIVALS), [0, 0, 3 * MS, 3 * MS], hosts))
    assert result.clocks["offset_ns"].to_list() == [0, 0, 3 * MS, 3 * MS]
    assert result.clocks["applied"].to_list() == [False, False, True, True]
    assert by_rank(result, "wait_ns") == by_rank(straight, "wait_ns")
    assert (
        result.collectives["transfer_ns"].to_list() == straight.collectives["transfer_ns"].to_list()
    )
    check_wording(*result.notes)


def test_one_host_has_one_clock() -> None:
    """A constant difference of 60 us between ends is no clock offset."""
    result = comm_outliers(ahead(run(ARRIVALS), [0, 0, 0, 60 * US], ["a"] * 4))
    assert result.clocks["offset_ns"].to_list() == [0, 0, 0, 60 * US]
    assert not result.clocks["applied"].any()


def test_hosts_are_joined_through_common_groups() -> None:
    """Only the pairs across hosts show the offset."""
    traces = []
    for rank in range(4):
        late_clock = 5 * MS * (rank // 2)
        groups = {
            "tp": [2 * (rank // 2), 2 * (rank // 2) + 1],
            "dp": [rank % 2, rank % 2 + 2],
        }
        events = []
        for i in range(20):
            name = "dp" if i % 5 == 4 else "tp"
            described = {"group": name, "group_size": 2, "group_ranks": str(groups[name])}
            events.append(
                device(ALL_REDUCE, i * 10 * MS + late_clock, MS, **SIZED, **described, seq=i)
            )
        traces.append(trace(events, rank=rank, host=f"host{rank // 2}"))
    result = comm_outliers(traces)
    assert result.clocks["offset_ns"].to_list() == [0, 0, 5 * MS, 5 * MS]
    assert result.totals.total_wait_ns == 0


def test_file_without_absolute_time_is_aligned() -> None:
    epoch = 1_790_857_026_000_000_000
    traces = run(ARRIVALS)
    known = [trace(_events(t), rank=t.meta.rank, epoch_ns=epoch) for t in traces[:3]]
    lost = trace(_events(traces[3]), rank=3, epoch_ns=None)
    result = comm_outliers([*known, lost])
    assert by_rank(result, "wait_ns") == by_rank(comm_outliers(traces), "wait_ns")


def test_charts_circle_outliers() -> None:
    arrivals = [[i * 10 * MS + r * US for r in range(4)] for i in range(8)]
    arrivals[5][2] += 6 * MS
    arrived, durations = comm_outliers(run(arrivals)).charts
    assert (durations.frame.height, durations.frame["outlier"].sum()) == (32, 3)
    assert arrived.frame.filter("straggler").select("rank", "after_first_ns").rows() == [
        ("rank 2", 6 * MS + 2 * US)
    ]
    assert arrived.frame["at_ns"].min() == 0


# --- activity of the straggler ---------------------------------------------------------------


def with_straggler(extra: Sequence[dict[str, Any]]) -> CommOutliers:
    """Return a result in which rank 1 arrives 10 ms after rank 0, with events ``extra``."""
    zero = trace([device(ALL_REDUCE, 10 * MS, 11 * MS, **WORLD)], rank=0)
    issued = host("cpu_op", "c10d::allreduce_", 19 * MS, MS)
    one = trace([device(ALL_REDUCE, 20 * MS, MS, **WORLD), issued, *extra], rank=1, epoch_ns=0)
    return comm_outliers([zero, one])


def parts(result: CommOutliers, side: str) -> dict[str, int]:
    rows = result.delayed.context.filter(pl.col("side") == side)
    return dict(rows.select("name", "overlap_ns").iter_rows())


def test_window_is_from_median_arrival_to_last_arrival() -> None:
    assert with_straggler([]).delayed.windows == (Window("rank1.json", 1, 10 * MS, 20 * MS, 0),)


def test_time_outside_operators_belongs_to_annotation() -> None:
    result = with_straggler(
        [
            step(0, 0, 100 * MS),
            host("user_annotation", "train_step", 5 * MS, 90 * MS),
            host("cpu_op", "aten::mm", 8 * MS, 4 * MS),
        ]
    )
    actual = {"train_step": 7 * MS, "aten::mm": 2 * MS, "c10d::allreduce_": MS}
    assert parts(result, "host") == actual
    check_wording(*result.delayed.with_activity()["host"], result.verdict)


def test_the_innermost_event_counts() -> None:
    result = with_straggler(
        [
            host("python_function", "<module>", 0, 90 * MS),
            host("python_function", "train.py(3): main", 1 * MS, 80 * MS),
            host(
                "python_function",
                "<built-in method poll of select.poll object at 0x7f1ddb69b660>",
                11 * MS,
                7 * MS,
            ),
            host("python_function", "waits(1)", 10 * MS, 10 * MS, tid=99),
        ]
    )
    assert parts(result, "host") == {
        "<built-in method poll of select.poll object>": 7 * MS,
        "train.py(3): main": 2 * MS,
        "c10d::allreduce_": MS,
    }


def test_other_threads_count_if_the_issuing_thread_is_idle() -> None:
    """Autograd's thread issues the collective; before it wakes the main thread computes."""
    result = with_straggler(
        [
            step(0, 0, 100 * MS),
            host("cpu_op", "aten::conv2d", 11 * MS, 7 * MS),
            host("cpu_op", "MulBackward", 17 * MS, 2 * MS, tid=2),
            host("cpu_op", "record_param_comms", 19 * MS, MS // 2, tid=2),
        ]
    )
    assert parts(result, "host") == {
        "aten::conv2d": 6 * MS,
        "MulBackward": 2 * MS,
        "ProfilerStep#0": MS,
        "record_param_comms": MS // 2,
        "c10d::allreduce_": MS // 2,
    }


def test_work_of_one_name_on_several_streams_counts_once() -> None:
    kernels = [device(GEMM, at * MS, 6 * MS, stream=stream) for stream, at in ((7, 11), (9, 13))]
    assert parts(with_straggler(kernels), "device") == {GEMM: 8 * MS, "idle": 2 * MS}


def test_device_parts_and_idle_time() -> None:
    result = with_straggler(
        [
            device(GEMM, 12 * MS, 3 * MS),
            device("Memcpy", 14 * MS, 2 * MS, kind="gpu_memcpy", stream=9),
        ]
    )
    assert parts(result, "device") == {"idle": 6 * MS, GEMM: 3 * MS, "Memcpy": 2 * MS}
    assert result.delayed.with_activity()["device"].to_list() == [
        "idle 6 ms (60.0 %), " + GEMM + " 3 ms (30.0 %)"
    ]


def test_unrecorded_time_is_reported() -> None:
    result = with_straggler([])
    assert parts(result, "host") == {"nothing recorded": 9 * MS, "c10d::allreduce_": MS}
    without = replace(
        result,
        delayed=replace(result.delayed, context=divide(result.delayed.windows, [])),
    )
    assert without.delayed.context.is_empty()
    assert len(without.verdict) < len(result.verdict)
    assert without.tables[0].frame["host"].to_list() == [None]


def test_delay_at_the_start_of_the_step() -> None:
    zero = trace([step(0, 0, 50 * MS), device(ALL_REDUCE, 10 * MS, 11 * MS, **WORLD)], rank=0)
    one = trace([step(0, 9 * MS, 50 * MS), device(ALL_REDUCE, 20 * MS, MS, **WORLD)], rank=1)
    result = comm_outliers([zero, one])
    assert result.delayed.collectives["into_step_ns"].to_list() == [9 * MS]
    check_wording(result.verdict)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 60), st.integers(1, 3)), max_size=12))
def test_host_parts_add_up_to_the_window(drawn: list[tuple[int, int, int]]) -> None:
    issuing = [host("cpu_op", "c10d::allreduce_", i, 1, tid=i) for i in (1, 2, 3)]
    extra = [
        host("cpu_op", f"op{i % 2}", at * MS // 3, dur * MS // 3, tid=tid)
        for i, (at, dur, tid) in enumerate(drawn)
    ]
    assert sum(parts(with_straggler([*issuing, *extra]), "host").values()) == 10 * MS


# --- invariants ------------------------------------------------------------------------------

some_arrivals = st.integers(2, 4).flatmap(
    lambda ranks: st.lists(
        st.lists(st.integers(0, 5 * MS), min_size=ranks, max_size=ranks), min_size=1, max_size=6
    )
)


def spaced(arrivals: list[list[int]]) -> list[list[int]]:
    return [[i * 20 * MS + at for at in row] for i, row in enumerate(arrivals)]


@settings(max_examples=12, deadline=None)
@given(some_arrivals, st.booleans())
def test_waits_are_not_negative_and_equal_imposed_time(
    arrivals: list[list[int]], grouped: bool
) -> None:
    more = {} if grouped else {"group": None, "group_size": None, "group_ranks": None}
    result = comm_outliers(run(spaced(arrivals), **more))
    expected = [sum(max(row) - row[rank] for row in arrivals) for rank in range(len(arrivals[0]))]
    assert by_rank(result, "wait_ns") == dict(enumerate(expected))
    assert (result.arrivals["wait_ns"] >= 0).all()
    assert result.ranks["imposed_ns"].sum() == result.totals.total_wait_ns == sum(expected)
    assert result.collectives["imposed_ns"].sum() == sum(expected)


@pytest.mark.matrix
@settings(max_examples=8, deadline=None)
@given(some_arrivals, st.integers(-(10**18), 10**18))
def test_shifting_all_clocks_changes_nothing(arrivals: list[list[int]], by: int) -> None:
    traces = run(spaced(arrivals))
    moved = ahead(traces, [by] * len(traces), [None] * len(traces))
    one, other = comm_outliers(traces), comm_outliers(moved)
    assert one.ranks.equals(other.ranks)
    assert one.verdict == other.verdict


@pytest.mark.matrix
@settings(max_examples=6, deadline=None)
@given(some_arrivals, st.randoms(use_true_random=False))
def test_the_order_of_ranks_and_rows_does_not_matter(
    arrivals: list[list[int]], rng: random.Random
) -> None:
    traces = run(spaced(arrivals))
    mixed = [trace(rng.sample(e := _events(t), len(e)), rank=t.meta.rank) for t in traces]
    rng.shuffle(mixed)
    one, other = comm_outliers(traces), comm_outliers(mixed)
    assert one.to_dict() == other.to_dict()
    assert comm_outliers(concat(traces)).ranks.equals(one.ranks)


def test_combining_measured_parts_gives_the_same_verdict() -> None:
    traces = run(ARRIVALS)
    assert combine([measure(t, Options()) for t in traces], Options()).verdict == (
        comm_outliers(traces).verdict
    )


def test_two_files_of_one_rank_are_noted() -> None:
    early, late, other = (
        trace([device(ALL_REDUCE, at * MS, US)], rank=rank, path=f"{at}.json")
        for at, rank in ((0, 0), (50, 0), (0, 1))
    )
    (note,) = [n for n in comm_outliers([early, late, other]).notes if "of rank 0" in n]
    check_wording(note, *comm_outliers([early, other]).notes)


@pytest.mark.parametrize("moved", [0, -100 * MS])
def test_steps_of_a_negative_clock_without_host_calls(moved: int) -> None:
    marks = [step(n, n * 10 * MS + moved, 10 * MS) for n in range(3)]
    traces = [
        trace(
            [*marks, *(device(ALL_REDUCE, n * 10 * MS + moved + MS, MS, seq=n) for n in range(3))],
            rank=rank,
        )
        for rank in range(2)
    ]
    assert comm_outliers(traces).instances["step"].null_count() == 0


def test_waits_of_buckets_in_flight(shared: Path) -> None:
    path = shared / "data/causes/chrome/two_buckets_in_flight"
    if not path.exists():
        pytest.skip(f"no folder {path}")
    result = comm_outliers(path)
    assert result.totals.total_wait_ns == pytest.approx(600.1 * MS, rel=0.001)
    assert by_rank(result, "imposed_ns") == {0: 0, 1: result.totals.total_wait_ns}
    assert by_rank(result, "straggler_frac")[1] == pytest.approx(0.943 / 2, abs=0.001)
