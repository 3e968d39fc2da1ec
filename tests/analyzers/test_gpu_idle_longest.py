"""Slices that fill a gap, compared with a plain Python definition on generated slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, MS, US, device, host, step, trace
from hypothesis import assume, given, settings, strategies as st

from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.activities import (
    Activity,
    advice_on_launches,
    main_place,
)
from traceanalyzer.analyzers.gpu_idle.compute import gpu_idle
from traceanalyzer.findings import diagnose
from traceanalyzer.findings.launching import at_gaps, at_rival, at_stops, by_range
from traceanalyzer.trace import Trace

modest = settings(max_examples=50, deadline=None)
Event = dict[str, Any]
KINDS = ("cpu_op", "user_annotation", "python_function")
#: The one gap, in us.
START, END = 100, 180


def work(number: int, start: int, end: int, name: str = GEMM, **more: Any) -> list[Event]:
    """Return a kernel and its launch call; times in us."""
    call = host("cuda_runtime", "cudaLaunchKernel", (start - 1) * US, 10, correlation=number)
    return [device(name, start * US, (end - start) * US, correlation=number, **more), call]


WORK = [*work(1, 0, START, "before()"), *work(2, END, 1000, "after()")]


@st.composite
def slices(draw: st.DrawFn) -> list[Event]:
    """Draw nested or separate calls of one thread, numbered by name."""
    result = []
    lows = draw(st.lists(st.integers(0, 16), min_size=1, max_size=6))
    for number, low in enumerate(lows):
        start, length = 60 + 10 * low, draw(st.sampled_from([20, 40, 50, 80, 120]))
        kind = draw(st.sampled_from(KINDS))
        name = f"own.py({number}): f" if kind == "python_function" else f"op{number}"
        result.append(host(kind, name, start * US, length * US))
    return result


def innermost(events: list[Event], *kinds: str) -> str | None:
    """The shortest that fills half of the gap or more and runs in its middle; the last to start."""
    middle = (START + END) // 2 * US
    matches = []
    for event in events:
        start, end = event["ts"], event["ts"] + event["dur"]
        shared = min(end, END * US) - max(start, START * US)
        if event["kind"] in kinds and start <= middle < end and 2 * shared >= (END - START) * US:
            matches.append((event["dur"], -start, event["name"]))
    return min(matches)[2] if matches else None


@pytest.mark.matrix
@modest
@given(slices())
def test_innermost_slice_of_half_the_gap_is_reported(events: list[Event]) -> None:
    gap, *others = gpu_idle(trace([*WORK, *events])).gaps.to_dicts()
    assume(not others)  # the next test is about gaps in parts
    assert gap["host_event"] == innermost(events, "cpu_op", "user_annotation")
    assert gap["python"] == innermost(events, "python_function")
    assert gap["own_code"] == gap["python"]
    assert gap["annotation"] == innermost(events, "user_annotation")


@pytest.mark.parametrize(
    ("spans", "lengths"),
    [
        ([("f", 90, 40), ("g", 130, 60)], [50, 30]),  # one after another
        ([("f", 90, 20), ("g", 110, 60), ("h", 170, 90)], [60, 10, 10]),
        ([("f", 100, 20), ("g", 150, 30)], [30, 30, 20]),  # other code in between
        ([("f", 90, 100), ("g", 100, 40), ("h", 142, 38)], [40, 40]),  # called by one function
        ([("f", 90, 40), ("f", 130, 60)], [80]),  # again and again
        ([("f", 90, 16), ("g", 106, 90)], [80]),  # too short to count
    ],
)
def test_functions_in_one_gap_have_their_parts(
    spans: list[tuple[str, int, int]], lengths: list[int]
) -> None:
    calls = [host("python_function", f"own.py(1): {name}", start * US, ns * US)
             for name, start, ns in spans]  # fmt: skip
    result = gpu_idle(trace([*WORK, *calls]))
    parts = (result.gaps["end"] - result.gaps["start"]) // US
    assert parts.to_list() == sorted(lengths, reverse=True)
    assert result.gaps["cause_ns"].sum() == (END - START - 1) * US  # 1 us: the launch
    assert result.gap_count == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("start", "length", "fills"),
    [
        (120, 40, True),
        (121, 40, True),
        (121, 39, False),  # less than half
        (140, 40, True),  # from the middle on
        (141, 40, False),  # behind the middle; more than half it cannot be
        (100, 40, False),  # up to the middle
        (100, 41, True),
        (0, 1000, True),
    ],
)
def test_half_of_a_gap_and_its_middle(start: int, length: int, fills: bool) -> None:
    event = host("cpu_op", "op", start * US, length * US)
    (gap,) = gpu_idle(trace([*WORK, event])).gaps.to_dicts()
    assert gap["host_event"] == ("op" if fills else None)


def test_adjacent_work_is_the_first_by_name() -> None:
    adjacent = [
        *work(3, 50, START, "a()", stream=8), *work(4, 60, START - 1, "0()", stream=9),
        *work(5, END, 300, "aa()", stream=8), *work(6, END + 1, 300, "1()", stream=9),
    ]  # fmt: skip
    (gap,) = gpu_idle(trace([*WORK, *adjacent])).gaps.to_dicts()
    assert (gap["before"], gap["after"]) == ("a()", "aa()")


def test_gap_belongs_to_the_step_of_its_middle() -> None:
    steps = [step(1, 0, 139 * US), step(2, 140 * US, 860 * US)]
    (gap,) = gpu_idle(trace([*WORK, *steps])).gaps.to_dicts()
    assert gap["step"] == "ProfilerStep#2"


def test_gaps_of_one_length_are_in_order_of_time() -> None:
    pieces = [work(n, n * 200, n * 200 + 100 + n % 2) for n in range(8)]
    result = gpu_idle(trace([event for piece in pieces for event in piece])).gaps
    lengths = (result["end"] - result["start"]).to_list()
    assert lengths == sorted(lengths, reverse=True)
    long = [start for start, length in zip(result["at_ns"], lengths, strict=True)
            if length == 100 * US]  # fmt: skip
    assert long == sorted(long)
    assert len(long) == 4


def test_longest_cause_is_the_main_cause() -> None:
    gap = [*work(1, 0, 100), *work(2, 300, 1000)]
    sync = host("cuda_runtime", "cudaStreamSynchronize", 100 * US, 120 * US)
    alloc = host("cuda_runtime", "cudaMalloc", 220 * US, 79 * US)
    (row,) = gpu_idle(trace([*gap, sync, alloc])).gaps.to_dicts()
    assert (row["cause"], row["cause_ns"]) == ("synchronisation", 120 * US)
    sync, alloc = {**sync, "dur": 70 * US}, {**alloc, "ts": 170 * US, "dur": 129 * US}
    (row,) = gpu_idle(trace([*gap, sync, alloc])).gaps.to_dicts()
    assert (row["cause"], row["cause_ns"]) == ("memory_management", 129 * US)


@pytest.mark.parametrize(
    ("call", "part"),
    [("cudaMallocAsync", "ReleaseThreshold"), ("hipFreeAsync", "ReleaseThreshold"),
     ("cudaMalloc", "from a pool")],
)  # fmt: skip
def test_calls_of_memory_pools_have_their_advice(call: str, part: str) -> None:
    gap = [*work(1, 0, 100), *work(2, 300, 1000), host("cuda_runtime", call, 110 * US, 180 * US)]
    assert part in gpu_idle(trace(gap)).advice("memory_management")


def test_two_hundred_gaps_are_analysed() -> None:
    pieces = [event for n in range(260) for event in work(n, n * 200, n * 200 + 100)]
    longer = work(999, 260 * 200 + 50, 260 * 200 + 90)
    result = gpu_idle(trace([*pieces, *longer])).gaps
    assert result.height == 200
    assert result["end"][0] - result["start"][0] == 150 * US
    assert result["at_ns"][1] == 100 * US
    assert gpu_idle(trace(pieces[:40])).gaps.height == 19


# --- display -----------------------------------------------------------------------------------


def table_row(*events: Event) -> dict[str, Any]:
    """Return the only row of the table of longest gaps."""
    (table,) = (
        one for one in gpu_idle(trace([*WORK, *events])).view().tables if one.name == "gaps"
    )
    (row,) = table.frame.to_dicts()
    return row


SLEEP = "<built-in function sleep>"


def test_the_innermost_function_in_a_range_is_the_host_activity() -> None:
    around = host("user_annotation", "train_step", 90 * US, 200 * US)
    main = host("python_function", "train.py(3): main", 80 * US, 300 * US)
    sleep = host("python_function", SLEEP, START * US, (END - START) * US)
    row = table_row(around, main, sleep)
    assert (row["activity"], row["range"]) == (SLEEP, "train_step")
    assert row["own_code"] == "train.py(3): main"
    # own code has a column
    assert table_row(around, main)["activity"] == "train_step"
    # operators and calls say more than the library's functions in them
    operator = host("cpu_op", "aten::randperm", 95 * US, 100 * US)
    assert table_row(around, operator, sleep)["activity"] == "aten::randperm"


@pytest.mark.parametrize(("later", "called"), [(0, "compile"), (2, "torch/fx.py(1): generate")])
def test_of_slices_of_equal_times_none_is_inside_another(later: int, called: str) -> None:
    """A range and the function that own code calls: which one is inside is known by times only."""
    start, length = (START + 5) * US, (END - START - 8) * US
    events = [
        host("python_function", "train.py(88): step", (START + 1) * US, (END - START - 2) * US),
        host("python_function", "torch/fx.py(1): generate", start, length),
        host("user_annotation", "compile", start + later * US, length - 2 * later * US),
    ]
    gaps = gpu_idle(trace([*WORK, *events])).gaps.sort("cause_ns")
    row = gaps.row(-1, named=True)
    assert (row["innermost"], row["own_code"]) == ("compile", "train.py(88): step")
    assert row["called"] == called


def test_a_loader_is_named_by_its_range() -> None:
    loader = host("user_annotation", "enumerate(DataLoader)#Iter.__next__", 90 * US, 200 * US)
    poll = host("python_function", "<built-in method poll>", START * US, (END - START) * US)
    assert table_row(loader, poll)["activity"] == "enumerate(DataLoader)#Iter.__next__"


def test_numbered_ranges_are_one_place() -> None:
    events = []
    for number in range(4):
        start = 500 * number
        events += work(number, start, start + 100)
        events += [host("nvtx", f"IO {number}", (start + 100) * US, 390 * US)]
    result = gpu_idle(trace([*events, *work(9, 2000, 2100)]))
    name, _, n = main_place(result.of_cause("host_code"))
    assert (name, n) == ("IO *", 4)
    assert "IO *" in result.verdict


def test_a_gap_of_several_parts_is_explained_in_a_note() -> None:
    note = "A gap can have several causes, one after another"
    calls = [
        host("cuda_runtime", "cudaMalloc", at * US, 2 * US) for at in (110, 120, 130, 140, 150)
    ]
    around = host("nvtx", "prepare", 90 * US, 100 * US)
    several = gpu_idle(trace([*WORK, around, *calls])).view().notes
    one = gpu_idle(trace([*WORK, around])).view().notes
    assert any(text.startswith(note) for text in several)
    assert not any(text.startswith(note) for text in one)


def contended(forward: int, *, runs: str = "metrics.py(57): aggregate") -> list[dict[str, Any]]:
    """Nine calls of a function; during every third one another thread runs, and it takes 5 ms.

    ``forward`` is its time in us while no other thread runs.
    """
    events, at = [], 0
    for n in range(9):
        length = forward if n % 3 else 5_000
        events += work(n, at, at + 20)
        events.append(host("python_function", "model.py(64): forward", (at + 25) * US, length * US))
        if n % 3 == 0:
            events.append(host("python_function", runs, (at + 25) * US, length * US, tid=7))
        at += 60 + length
    return [*events, *work(99, at, at + 20)]


def test_a_thread_that_holds_the_interpreter_lock() -> None:
    result = gpu_idle(trace(contended(40)))
    name = "aggregate (metrics.py:57) in thread 7"
    assert result.gaps["rival"].to_list() == [name] * 3 + [None] * 6
    assert "thread 7" in result.waiting("host_code")
    late = result.gaps["cause"].cast(pl.Enum(causes.CAUSES))
    late = late.replace(causes.HOST_CODE, causes.LAUNCH)  # in an operator that launches nothing
    within = replace(result, gaps=result.gaps.with_columns(late))
    inside, rest = at_rival(within)
    assert inside.gaps["rival"].to_list() == [name] * 3
    assert {*inside.gaps["cause"].cast(pl.String)} == {causes.HOST_CODE}
    assert rest.gaps["rival"].count() == 0
    assert "process" in result.advice("host_code")


@pytest.mark.parametrize(
    "events",
    [
        contended(4_000),  # forward takes as long alone
        contended(40, runs="threading.py(355): wait"),
        # it runs all the time: launches do not stop
        [
            *[event for event in contended(40) if event.get("tid") != 7],
            host("python_function", "log.py(3): loop", 0, 50_000 * US, tid=8),
        ],
    ],
)
def test_other_threads_that_do_not_hold_the_lock(events: list[dict[str, Any]]) -> None:
    rivals = gpu_idle(trace(events)).gaps["rival"]
    assert rivals.count() == 0


def launched(calls: Sequence[int], *, queued: int = 0, between: int = 5) -> list[Event]:
    """Launch kernels of 20 us by calls of these lengths in operators of PyTorch; times in us.

    ``queued`` is the time from the end of each call to the start of its kernel.
    """
    events, at = [], 0
    for n, length in enumerate(calls):
        call = host("cuda_runtime", "cudaLaunchKernel", at * US, length * US, correlation=n)
        kernel = device(GEMM, (at + length + queued) * US, 20 * US, correlation=n)
        operator = host("cpu_op", "aten::mm", at * US, length * US)
        events, at = [*events, operator, call, kernel], at + length + between
    return events


def thread(start: int, end: int, name: str = "metrics.py(20): poll_forever") -> Event:
    return host("python_function", name, start * US, (end - start) * US, tid=7)


#: What a thread calls while it works.
CALLS = [thread(at, at + 60, "json/encoder.py(200): iterencode") for at in range(0, 2_400, 100)]


SLOWED = launched([60] * 40)
POLLS = "poll_forever (metrics.py:20) in thread 7"


def test_a_thread_that_slows_all_launches_down_is_the_cause_of_all_idle_time() -> None:
    result = gpu_idle(trace([*SLOWED, thread(-100, 3_000), *CALLS]))
    assert {*result.gaps["rival"]} == {POLLS}
    idle = result.idle_by_cause
    assert idle[causes.LAUNCH] == 0
    assert idle[causes.HOST_CODE] >= 39 * 44 * US
    assert result.gaps["python"].count() == 0  # its function is none of the launching thread
    assert "process" in result.advice("host_code")


def test_a_thread_that_slows_some_launches_down() -> None:
    events = launched([5] * 30 + [40] * 30)
    result = gpu_idle(trace([*events, thread(300, 3_000)]))
    slow = result.gaps.filter(pl.col("start") > 320 * US)
    assert {*slow["rival"]} == {POLLS}
    assert result.idle_by_cause["host_code"] >= slow["cause_ns"].sum() > 0


@pytest.mark.parametrize(
    "events",
    [
        [*launched([6] * 40, between=60), thread(-100, 3_000)],  # usual launches
        [*launched([40] * 60), thread(1_000, 2_000)],  # as slow before and after
        [*launched([60] * 40, queued=500), thread(-100, 3_000)],  # the calls wait for the queue
        [*SLOWED, thread(-100, 3_000, "threading.py(355): wait")],
        [*SLOWED, thread(-100, 3_000, "ipykernel/heartbeat.py(108): run")],  # waits in native code
        [*launched([60] * 10), thread(-100, 3_000)],  # few launches
        SLOWED,
    ],
)
def test_threads_that_slow_no_launches_down(events: list[Event]) -> None:
    result = gpu_idle(trace(events))
    assert result.gaps["rival"].count() == 0
    assert result.idle_by_cause[causes.HOST_CODE] == 0


def test_a_thread_that_saves_a_checkpoint_is_named_and_moves_to_a_process() -> None:
    rows = [
        thread(0, 2_800, "<built-in method dump of _pickle.Pickler object at 0x7f>"),
        thread(-50, 2_900, "torch/serialization.py(850): save"),
    ]
    loads = [thread(-50, 2_900, "torch/serialization.py(900): load")]
    result, loading = (gpu_idle(trace([*SLOWED, *CALLS, *more])) for more in (rows, loads))
    assert {*result.gaps["rival"]} == {"save (torch/serialization.py:850) in thread 7"}
    assert "AsyncCheckpointerType.PROCESS" in result.advice("host_code")
    assert loading.gaps["rival"].count()
    assert "AsyncCheckpointerType" not in loading.advice("host_code")


def test_copies_during_slow_launches_are_not_exposed() -> None:
    """A kernel that starts right after its launch waits for no copy."""
    to_host = "Memcpy DtoH (Device -> Pinned)"
    copies = [
        host("cuda_runtime", "cudaMemcpyAsync", -20 * US, 5 * US, correlation=900),
        device(to_host, 90 * US, 2_000 * US, kind="gpu_memcpy", stream=9, correlation=900),
    ]
    rules = []
    for rows in ([*SLOWED, *copies], [*SLOWED, *copies, *CALLS, thread(-100, 3_000)]):
        rules.append({one.id for one in diagnose(trace(rows)).findings})
    assert "exposed-copies" in rules[0]
    assert "exposed-copies" not in rules[1]


def pausing(pauses: dict[int, int], rank: int = 0, *, place: str = "forward") -> Trace:
    """Return steps of 5 kernels in ``forward``; in step N the host pauses before a kernel."""
    events, at = [], 0
    for number in range(8):
        begin = at
        for nth in range(5):
            pause = 5_000 * (pauses.get(number) == nth)
            if pause and place != "forward":
                events.append(host("user_annotation", place, at * US, (pause - 2) * US))
            events += work(10 * number + nth, at + pause, at + pause + 100)
            at += pause + 105
        events.append(host("user_annotation", "forward", begin * US, (at - begin) * US))
        events.append(step(number, begin * US, (at - begin) * US))
    return trace(events, rank)


@pytest.mark.parametrize(
    ("traces", "found"),
    [
        ([pausing({1: 1, 4: 3}), pausing({3: 4}, 1)], [(0, 1), (0, 4), (1, 3)]),
        ([pausing({1: 1, 4: 3, 6: 2})], [(0, 1), (0, 4), (0, 6)]),
        ([pausing({1: 3, 4: 3, 6: 3})], []),  # the same code
        ([pausing({1: 1, 4: 3, 6: 2}, place="save")], []),  # code that launches nothing
        ([pausing({1: 1, 4: 3}), pausing({})], []),  # too few
        ([pausing(dict(zip(range(1, 7), (1, 3, 2, 1, 4, 2), strict=True)))], []),  # most steps
        ([pausing({1: 1, 4: 3, 6: 2}), pausing({}, 1)], []),  # one rank of two
    ],
)
def test_pauses_at_any_place(traces: list[Trace], found: list[tuple[int, int]]) -> None:
    result = gpu_idle(traces)
    steps = [(rank, int(name[-1])) for rank, name in result.pauses["rank", "step"].iter_rows()]
    assert sorted(steps) == found
    assert ("gc.collect()" in result.advice("host_code")) == bool(found)


def stopped(
    ends_ms: tuple[float, ...], rank: int, *, part: bool = False, late_ms: float = 0, works=995
) -> Trace:
    """Return 60 steps of 7 ms in operators; the host stops for 20 ms before each of these ends."""
    events, at, ends = [], 0, [round(1000 * (end + late_ms)) for end in ends_ms]
    for number in range(60):
        begin = at
        for nth in range(7):
            start = at
            if ends and at >= ends[0] - 20_000:
                at = ends.pop(0)
            kernels = work(10 * number + nth, at, at + works)
            if part and at > start + 995:  # a kernel that was queued runs in the middle
                kernels += work(10_000 + number, at - 9_000, at - 8_990)
            events += kernels
            at += 1_000
            events.append(host("cpu_op", f"aten::op{nth}", start * US, (at - start) * US))
        events.append(step(number, begin * US, (at - begin) * US))
    return trace(events, rank, epoch_ns=0)


@pytest.mark.parametrize(
    ("ends", "late", "ranks", "advice"),
    [
        ((69, 169, 369), 0.0, 1, "nr_throttled"),
        ((69, 168, 370), 40.0, 2, "nr_throttled"),  # containers of two hosts
        ((69, 130, 250), 0.0, 2, "/proc/pressure/cpu"),
        ((69, 130, 250), 0.0, 1, ""),
        ((69, 130, 191, 313), 0.0, 1, "pidstat"),
        ((69, 130, 191), 0.0, 1, "pidstat"),
        ((69, 130, 202, 313), 0.0, 1, ""),
        ((69, 130, 250), 40.0, 2, ""),
        ((69, 169), 0.0, 1, ""),
    ],
)
def test_stops_of_the_host(ends: tuple[float, ...], late: float, ranks: int, advice: str) -> None:
    result = gpu_idle([stopped(ends, r, part=r == 0, late_ms=r * late) for r in range(ranks)])
    assert result.idle_by_cause["launch_overhead"] > 30_000_000
    stop = "nr_throttled" in result.advice("launch_overhead")
    assert stop == bool(advice)
    assert advice in result.advice("launch_overhead")
    assert len(result.pauses_of("launch_overhead")[0]) == (len(ends) * ranks if advice else 0)
    # what remains without them is not named a pause
    inside, rest = at_stops(result)
    assert (inside.gaps.height > 0) == bool(advice)
    assert inside.gaps.height + rest.gaps.height == result.gaps.height
    assert not rest.stops[1]


def test_waits_for_a_rank_at_its_stops() -> None:
    """They count as the stop: those of the same step that are half as long or longer."""
    place = {"path": "a", "rank": 0, "device": 0, "start": 0, "end": 20 * MS, "step": "1"}
    gaps = pl.DataFrame([place, {**place, "end": MS, "step": "2"}])
    waits = [("1", 0, 18 * MS), ("1", 0, 9 * MS), ("2", 0, 18 * MS), ("1", 2, 18 * MS)]
    losses = pl.DataFrame(
        {"path": "b", "rank": 1, "device": 0, "start": 0, "end": ns, "step": step}
        | {"waited": True, "root_rank": root, "lost_ns": ns}
        for step, root, ns in waits
    )
    assert at_gaps(losses, gaps).to_list() == [True, False, False, False]
    assert not at_gaps(losses.with_columns(waited=pl.lit(value=False)), gaps).any()


@pytest.mark.parametrize(("ends", "found"), [((69, 169, 369), 3), ((69, 130, 250), 0)])
def test_stops_with_slow_launches(ends: tuple[float, ...], found: int) -> None:
    """Half of the late launches is enough for those of a quota; the others are a second finding."""
    recorded = stopped(ends, 0, works=900)
    result = gpu_idle(recorded)
    assert 120_000_000 > result.idle_by_cause["launch_overhead"] > 1.5 * 60_000_000
    assert len(result.pauses_of("launch_overhead")[0]) == found
    stops, *others = (f for f in diagnose(recorded).findings if f.id == "launch-bound")
    assert ("pauses" in stops.title, len(others)) == (bool(found), int(bool(found)))


def test_recorded_garbage_collection() -> None:
    collector = host("python_function", "Python GC", START * US, (END - START) * US)
    assert "gc.collect()" in gpu_idle(trace([*WORK, collector])).advice("host_code")


@pytest.mark.parametrize("known", ["", "step", "own_code", "python"])
def test_gaps_are_summed_by_range_where_nothing_else_was_recorded(known: str) -> None:
    columns = {"annotation": ["data", "log", "data", None], "cause_ns": [3, 9, 4, 20]}
    others = {name: ["x" if name == known else None] * 4 for name in ("step", "own_code", "python")}
    gaps = pl.DataFrame(columns | others)
    texts = list(by_range(gaps))
    assert len(texts) == (not known)
    assert all("log 9 ns and data 7 ns" in text for text in texts)


@pytest.mark.parametrize(
    ("after", "frame", "foreach"),
    [
        ("multi_tensor_apply_kernel<Adam>", "", False),
        ("vectorized_elementwise_kernel<4>", "torch/distributed/tensor/_dispatch.py(9): f", False),
        ("vectorized_elementwise_kernel<4>", "", True),
    ],
)
def test_an_optimizer_with_foreach_operators(after: str, frame: str, foreach: bool) -> None:
    one = Activity(place="Optimizer.step#AdamW.step", after=after, frame=frame)
    text = advice_on_launches(one, one.place, "")
    assert "fused=True" in text
    assert ("foreach=True" in text) == foreach
    assert ("DTensor" in text) != foreach


@pytest.mark.parametrize("place", ["_fused_adam", "_fused_adamw", "fused_lamb.py(9): step"])
def test_a_fused_optimizer_is_not_to_be_fused(place: str) -> None:
    one = Activity(place=place, range="Optimizer.step#AdamW.step")
    text = advice_on_launches(one, one.range, "")
    assert "fused=True" not in text
    assert "no CPU" in text


@pytest.mark.parametrize("name", ["Optimizer.step#Adam.step", "Strategy.optimizer_step"])
@pytest.mark.parametrize("node", [START + 90, START - 30, None])
def test_a_closure_of_an_optimizer_is_no_update(name: str, node: int | None) -> None:
    """Lightning runs forward and backward pass in it: only what follows them updates."""
    events = [*WORK, host("user_annotation", name, 10 * US, 400 * US)]
    if node is not None:
        operator = "autograd::engine::evaluate_function: MmBackward0"
        events.append(host("cpu_op", operator, node * US, 5 * US))
    (range_,) = gpu_idle(trace(events)).gaps["annotation"]
    assert range_ == (None if node == START + 90 else name)


@pytest.mark.parametrize(("copies", "kernels"), [(110, 300), (24, 150), (150, 24)])
def test_most_launches_are_of_all_late_ones(copies: int, kernels: int) -> None:
    """Only the longest gaps are recorded: few long ones before copies are not most of the time."""
    events, at = [], 0
    for number in range(copies + kernels):
        is_copy = number < copies
        at += 60 if is_copy else 40
        name = "Memcpy HtoD (Pinned -> Device)" if is_copy else GEMM
        kind = {"kind": "gpu_memcpy"} if is_copy else {}
        events.append(device(name, at * US, 3 * US, correlation=number + 1) | kind)
        events.append(host("cuda_runtime", "x", (at - 3) * US, 2 * US, correlation=number + 1))
    result = gpu_idle(trace(events))
    assert result.launched.startswith("Memcpy") == (copies > kernels)


@pytest.mark.parametrize(
    ("frames", "place", "part"),
    [
        (["a.py(3): log", "torch/cuda/memory.py(2): empty_cache"], "log", "empty_cache"),
        (["pool.py(5): __del__"], "__del__", "objects"),
        (["a.py(3): log"], "", ""),
    ],
)
def test_place_that_frees_device_memory(frames: list[str], place: str, part: str) -> None:
    events = [*work(1, 10, 100), *work(2, 300, 400)]
    events += [
        host("python_function", name, (100 + n) * US, (195 - n) * US)
        for n, name in enumerate(frames)
    ]
    events += [host("cuda_runtime", "cudaFree", at * US, 90 * US) for at in (105, 196)]
    where, advice = gpu_idle(trace(events)).freeing
    assert place in where
    assert part in advice
    assert bool(where) == bool(advice) == bool(place)


def test_the_verdict_names_the_code_in_steps() -> None:
    events = []
    for number in range(6):
        at, ids = 300 * US * number, {"correlation": number + 1}
        events += [
            step(number, at, 100 * US),
            host("cuda_runtime", "cudaLaunchKernel", at, US, **ids),
            device("k", at + 2 * US, 18 * US, **ids),
            host("python_function", "own.py(1): f", at + 20 * US, 60 * US),
            host("python_function", "own.py(9): between_steps", at + 80 * US, 215 * US),
        ]
    text = gpu_idle(trace(events)).verdict
    assert "The largest part is waiting while the host runs f (own.py:1)" in text
