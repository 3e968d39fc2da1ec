"""The schedule of a pipeline: closed formulas on simulated jobs, job ST, and an interleaved one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count as count_from
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
import pytest
from comm_traces import MS, US, device, host, step, trace
from replays import job_st, usual_changes

import traceanalyzer as ta
from benchmarks.accuracy.programs import new_job, train
from benchmarks.accuracy.simulator import simulate
from benchmarks.accuracy.write import write_kineto
from traceanalyzer.analyzers.replay.changes import Change, changed
from traceanalyzer.analyzers.replay.engine import replay, step_times
from traceanalyzer.analyzers.what_if import ReplayOptions
from traceanalyzer.analyzers.what_if.replay import WHAT_IF_REPLAY
from traceanalyzer.analyzers.what_if.schedule import EITHER, LESS, ZB_H1
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Trace

#: Start, order at one time, name, duration and more fields of device work.
Row = tuple[int, int, str, int, dict[str, Any]]


def simulated(
    folder: Path, stages: int, batches: int, *, alternating: bool, layers: Mapping[int, int]
) -> Any:
    """Return the answer on a simulated job with 2 layers in each stage, or as many as given."""
    job = new_job("pipeline", 5, stages, 3)
    job.marks = True
    job.options.micro_batches, job.options.one_forward_one_backward = batches, alternating
    job.options.layers = lambda rank, _step: layers.get(rank, 2)
    write_kineto(job, simulate(job, train), folder)
    return usual_changes(folder)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("stages", "batches", "alternating", "name"),
    [
        (4, 8, True, "1F1B"),
        (4, 8, False, "all forward, then all backward"),
        (4, 2, True, "1F1B"),
        (2, 6, True, "1F1B"),
    ],
)
def test_bubble_of_equal_stages(
    stages: int, batches: int, alternating: bool, name: str, tmp_path: Path
) -> None:
    result = simulated(tmp_path, stages, batches, alternating=alternating, layers={})
    one = result.pipeline
    assert (one.name, one.batches, one.chunks) == (name, batches, 1)
    assert one.ideal_frac == pytest.approx((stages - 1) / (batches + stages - 1))
    assert one.ideal_frac < one.bubble_frac < one.ideal_frac + 0.07
    assert one.parts["time_ns"].sum() == pytest.approx(one.span_ns)
    times = dict(one.parts[["part", "time_ns"]].iter_rows())
    compute = times["compute of the mean stage"]
    assert times["bubble of the schedule"] == pytest.approx(compute * (stages - 1) / batches)
    assert times["unequal stages"] < 0.01 * compute
    for column in ("forward_ns", "backward_ns"):
        assert one.stages[column].max() == pytest.approx(one.stages[column].min(), rel=0.01)
    assert one.span_ns < result.recorded_ns
    gains = dict(result.changes[["change", "gain_frac"]].iter_rows())
    assert abs(gains["equal pipeline stages"]) < 0.01
    counts = one.passes.group_by("stage", "kind").agg(pl.col("batch").n_unique())
    assert set(counts["batch"]) == {batches}


@pytest.mark.sample(3)
@pytest.mark.parametrize("slow", [0, 2, 3])
def test_an_unequal_stage(slow: int, tmp_path: Path) -> None:
    """One stage has 3 layers, the others 2: its passes take 1.5 times as long."""
    result = simulated(tmp_path, 4, 8, alternating=True, layers={slow: 3})
    one = result.pipeline
    assert one.name == "1F1B"
    each = one.stages["forward_ns"] + one.stages["backward_ns"]
    assert each.arg_max() == slow
    assert each[slow] == pytest.approx(1.5 * each.median(), rel=0.01)
    times = dict(one.parts[["part", "time_ns"]].iter_rows())
    most = 7 * (1.5 / 1.125 - 1) * times["compute of the mean stage"] / 8
    if slow:
        assert times["unequal stages"] == pytest.approx(most, rel=0.01)
    given = ta.what_if(tmp_path, equal_stages=True, network=2.0).changes
    (tmp_path / "equal").mkdir()
    equal = simulated(tmp_path / "equal", 4, 8, alternating=True, layers={})
    # with 2.25 layers each, compute takes 1.125 times as long as with 2
    compute = sum(equal.pipeline.parts["time_ns"][:2])
    true = result.recorded_ns - equal.recorded_ns - 0.125 * compute
    gains = dict(result.changes[["change", "gain_ns"]].iter_rows())
    assert gains["equal pipeline stages"] == pytest.approx(true, rel=0.25)
    assert times["unequal stages"] > 0.9 * true
    assert given["change"].to_list() == ["equal pipeline stages, network 2 times as fast"]
    assert given["gain_ns"][0] >= gains["equal pipeline stages"]


# --- job ST --------------------------------------------------------------------------------------


class Replay:
    """An independent replay of a step by the dependencies of operations, without launch delays."""

    def __init__(self, rules: Any, rows: pl.DataFrame, factors: Mapping[int, float]) -> None:
        self.ops = {(row["dp_rank"], row["op"]): row for row in rows.iter_rows(named=True)}
        self.ends: dict[tuple[int, str], float] = {}
        self.depends_on, self.factors = rules["depends_on"], factors
        self.members = {op: group for group in rules["groups"] for op in group}
        self.over_dp = {*rules["synchronised_over_dp"]}

    def begin(self, key: tuple[int, str]) -> float:
        waits = [self.end((key[0], op)) for op in self.depends_on.get(key[1], ())]
        return max(waits, default=0.0)

    def end(self, key: tuple[int, str]) -> float:
        if key not in self.ends:
            row, op = self.ops[key], key[1]
            if row["transfer_duration"] is None:
                scaled = "compute" in op or op.startswith("optimizer_")
                factor = self.factors.get(row["stage"], 1.0) if scaled else 1.0
                self.ends[key] = self.begin(key) + row["duration"] * factor
            else:
                dps = {dp for dp, _ in self.ops} if op in self.over_dp else {key[0]}
                group = [(dp, one) for dp in dps for one in self.members.get(op, (op,))]
                arrived = max(self.begin(one) for one in group if one in self.ops)
                self.ends[key] = arrived + row["transfer_duration"]
        return self.ends[key]


def replayed(shared: Path, factors: Mapping[int, float]) -> float:
    """Return the mean step time in s if the compute of stages takes so many times as long."""
    folder = shared / "data" / "whatif"
    rules = json.loads((folder / "dependencies-ST.json").read_text())
    steps = pl.read_csv(folder / "ops-expected-ST.csv.gz").partition_by("step")
    replays = [Replay(rules, rows, factors) for rows in steps]
    return sum(max(map(one.end, one.ops)) for one in replays) / len(replays)


@pytest.mark.matrix
def test_gain_of_equal_stages_is_that_of_an_independent_replay(shared: Path) -> None:
    result = usual_changes(job_st(shared))
    one, ops = result.pipeline, pl.read_csv(shared / "data/whatif/ops-expected-ST.csv.gz")
    assert (one.name, one.batches, one.stages["ranks"].to_list()) == (
        "1F1B", 4, ["0, 4", "1, 5", "2, 6", "3, 7"],
    )  # fmt: skip
    for kind in ("forward", "backward"):
        rows = ops.filter(pl.col("op").str.starts_with(f"{kind}-compute"))
        means = rows.group_by("stage").agg(pl.col("duration").mean()).sort("stage")["duration"]
        measured = (one.stages[f"{kind}_ns"] / 1e9).to_list()
        assert measured == pytest.approx(means.to_list(), rel=1e-4)
    compute = ops.filter(pl.col("op").str.contains("-compute_"))
    spans = compute.group_by("step", "dp_rank").agg(
        (pl.col("start_ts") + pl.col("duration")).max() - pl.col("start_ts").min()
    )
    assert one.span_ns / 1e9 == pytest.approx(spans["start_ts"].mean(), rel=1e-3)
    gains = dict(result.changes[["change", "gain_ns"]].iter_rows())
    scaled = ops.filter(pl.col("op").str.contains("-compute_|^optimizer_"))
    busy = scaled.group_by("stage").agg(pl.col("duration").sum()).sort("stage")["duration"]
    factors = {stage: busy.mean() / ns for stage, ns in enumerate(busy)}
    before, after = replayed(shared, {}), replayed(shared, factors)
    assert before == pytest.approx(2.172697, rel=1e-6)  # published
    change = Change(free=("launches", "short-gaps", "host-code"), equal_stages=True)
    job = run(WHAT_IF_REPLAY, job_st(shared), ReplayOptions()).job
    ends = [one.end for one in replay(job, changed(job, change))]
    steps = step_times(job, ends)
    assert sum(steps) / len(steps) / 1e9 == pytest.approx(after, rel=1e-4)
    assert gains["equal pipeline stages"] / 1e9 == pytest.approx(before - after, rel=0.02)


# --- interleaved ---------------------------------------------------------------------------------

FORWARD, BACKWARD, TRANSFER, STAGES, CHUNKS = 2 * MS, 4 * MS, 20 * US, 4, 2
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def interleaved(batches: int, streams: int = 1) -> list[Trace]:
    """Return ranks of a job with the interleaved 1F1B schedule of Megatron, 2 chunks a rank.

    Each pass runs as many kernels at the same time as there are streams.
    """
    count, orders = batches * CHUNKS, []
    for rank in range(STAGES):
        early = min(count, 2 * (STAGES - rank - 1) + (CHUNKS - 1) * STAGES)
        order = [("f", n) for n in range(early)]
        for n in range(count):
            order += [("f", early + n)] * (early + n < count) + [("b", n)]
        orders.append(order)
    return job_of(orders, CHUNKS, streams=streams)


#: Forward, backward for inputs and for weights of a zero-bubble schedule.
EQUAL = {"f": 2 * MS, "b": 2 * MS, "w": 2 * MS}


def zb_h1(batches: int, *, late: bool = False, early: bool = False, **more: Any) -> list[Trace]:
    """Return ranks of a job with the schedule ZB-H1 of Qi et al. (ICLR 2024).

    A stage delays the gradients of weights by as many micro-batches as there are stages before it.

    Args:
        batches: number of micro-batches.
        late: they follow the next forward pass.
        early: a receive is launched before them.
        more: see :func:`job_of`.
    """
    orders = []
    for rank in range(STAGES):
        order = [("f", n) for n in range(STAGES - rank)]
        for n in range(batches):
            weights = [("w", n - rank)] * (n >= rank)
            forward = [("f", n + STAGES - rank)] * (n + STAGES - rank < batches)
            order += [("b", n), *(forward + weights if late else weights + forward)]
        orders.append(order + [("w", n) for n in range(batches - rank, batches)])
    return job_of(orders, 1, times={**EQUAL, **more.pop("times", {})}, early=early, **more)


def job_of(
    orders: list[list[tuple[str, int]]],
    chunks: int,
    *,
    times: Mapping[str, int] = MappingProxyType({"f": FORWARD, "b": BACKWARD}),
    streams: int = 1,
    early: bool = False,
    ending: tuple[str, int] | None = None,
    mark: str | None = None,
    ends_on: Sequence[int] = range(STAGES),
) -> list[Trace]:
    """Return the ranks that run passes in these orders.

    Args:
        orders: kind and number of each pass, by rank.
        chunks: parts of the model on each rank.
        times: ns of a pass of each kind.
        streams: kernels of a pass, which run at the same time.
        early: a receive is launched before the gradients of weights ahead of its pass.
        ending: name and ns of a kernel after the passes.
        mark: name of the range around it.
        ends_on: the ranks with this kernel.
    """
    rows: dict[int, list[Row]] = defaultdict(list)
    done, free, number = dict[tuple[str, int, int], int](), [0] * STAGES, count_from(1)
    posted = [0] * STAGES
    while any(orders):
        for rank, order in enumerate(orders):
            if not order:
                continue
            kind, n = order[0]
            place, batch = _place(kind, n, rank, chunks)
            before = place + {"f": -1, "b": 1, "w": 0}[kind]
            first = before in (-1, STAGES * chunks)
            needed = ("f", place, batch) if first and kind == "b" else (kind, before, batch)
            if kind != "w" and not (first and kind == "f") and needed not in done:
                continue
            start = free[rank]
            if kind != "w" and not first:
                end = max(start, done[needed]) + TRANSFER
                begin = posted[rank] if early else start
                ranks = before % STAGES, rank
                _exchange(rows, ranks, (done[needed], begin, end), next(number))
                start = end
            rows[rank] += [(start, 2, f"{kind}_gemm", times[kind], {"stream": 7 + n})
                           for n in range(streams)]  # fmt: skip
            done[kind, place, batch] = free[rank] = start + times[kind]
            if kind != "w":
                posted[rank] = free[rank]
            order.pop(0)
    if ending:
        rows_of_end = (max(free), 2, *ending, {"stream": 7})
        for rank in ends_on:
            rows[rank].append(rows_of_end)
    length = max(free) + (ending[1] if ending else 0)
    marks = [host("user_annotation", mark, max(free) - 20 * US, 19 * US)] if mark else []
    return [
        _launched(sorted(rows[r], key=lambda row: row[:2]), r, length, marks) for r in range(STAGES)
    ]


def _place(kind: str, n: int, rank: int, chunks: int) -> tuple[int, int]:
    """Return the part of the model and the micro-batch of a pass."""
    chunk = n % (STAGES * chunks) // STAGES
    place = (chunk if kind == "f" else chunks - 1 - chunk) * STAGES + rank
    return place, n // (STAGES * chunks) * STAGES + n % STAGES


def _exchange(
    rows: Mapping[int, list[Row]], ranks: tuple[int, int], times: tuple[int, int, int], seq: int
) -> None:
    """Add a send and its receive: start of the send, start of the receive, and end of both."""
    sent, start, end = times
    ends = sorted(ranks)
    about = {"dtype": "bfloat16", "elements_in": 1 << 20, "stream": 20, "group_size": 2,
             "group": f"pp{ends[0]}", "group_ranks": str(ends), "seq": seq}  # fmt: skip
    rows[ranks[0]].append((sent, 0, SEND, end - sent, {**about, "collective": "send"}))
    rows[ranks[1]].append((start, 1, SEND, end - start, {**about, "collective": "recv"}))


def _launched(
    rows: list[Row],
    rank: int,
    length: int,
    marks: list[dict[str, Any]],
) -> Trace:
    """Return a rank whose work is launched in this order, shortly before it starts."""
    events, at = [step(1, 0, length), *marks], 0
    for n, (start, _, name, ns, about) in enumerate(rows):
        at = max(start - 6 * US, at + 2)
        events.append(host("cuda_runtime", "cudaLaunchKernel", at, 1, correlation=n + 1))
        events.append(device(name, start, ns, correlation=n + 1, **about))
    return trace(events, rank, world_size=STAGES)


@pytest.mark.parametrize("streams", [1, 2])
def test_interleaved_schedule(streams: int) -> None:
    batches = 8
    one = usual_changes(interleaved(batches, streams)).pipeline
    assert (one.name, one.batches, one.chunks) == ("interleaved 1F1B", batches, CHUNKS)
    assert one.ideal_frac == pytest.approx(3 / (CHUNKS * batches + 3))
    assert one.bubble_frac == pytest.approx(one.ideal_frac, abs=0.05)
    assert one.passes.group_by("kind", "batch", "chunk").len()["len"].to_list() == [STAGES] * 32
    # a micro-batch passes the stages of a chunk one after the other, then the next chunk
    rows = one.passes.filter(kind="forward", batch=5).sort("start_ns")
    assert rows[["chunk", "stage"]].rows() == [(c, s) for c in range(CHUNKS) for s in range(STAGES)]
    rows = one.passes.filter(kind="backward", batch=5).sort("start_ns")
    assert rows[["chunk", "stage"]].rows() == [
        (c, s) for c in (1, 0) for s in reversed(range(STAGES))
    ]


OPTIMIZER = ("multi_tensor_apply_kernel", 3 * MS)
MUON = ("muon_gemm", 3 * MS)


def one_each(**more: Any) -> list[Trace]:
    """Return ranks of a job with 8 micro-batches and the schedule 1F1B."""
    orders = []
    for rank in range(STAGES):
        order = [("f", n) for n in range(STAGES - 1 - rank)]
        for n in range(8):
            order += [("f", n + STAGES - 1 - rank)] * (n + STAGES - 1 - rank < 8) + [("b", n)]
        orders.append(order)
    return job_of(orders, 1, **more)


@pytest.mark.parametrize(
    ("batches", "more"),
    [
        (4, {"ending": OPTIMIZER}),
        (8, {"late": True}),
        (8, {"ending": OPTIMIZER, "early": True}),
        (8, {"ending": MUON, "mark": "Optimizer.step#Muon.step", "late": True, "early": True}),
        (8, {"times": {"f": 2 * MS, "b": 3 * MS, "w": 1 * MS}}),
        (12, {"ending": OPTIMIZER}),
    ],
)
def test_zero_bubble_counts_gradients_of_weights(batches: int, more: dict[str, Any]) -> None:
    """Qi et al.: the bubble of ZB-H1 is (p - 1) (F + B - W); with equal passes (p - 1) F."""
    times = {**EQUAL, **more.get("times", {})}
    one = usual_changes(zb_h1(batches, **more)).pipeline
    compute = batches * sum(times.values())
    bubble = (STAGES - 1) * (times["f"] + times["b"] - times["w"])
    assert (one.name, one.batches, one.chunks) == (ZB_H1, batches, 1)
    assert one.ideal_frac == pytest.approx(bubble / (compute + bubble), rel=1e-3)
    assert one.bubble_frac == pytest.approx(one.ideal_frac, abs=0.01)
    assert one.stages["busy_ns"].to_list() == pytest.approx([compute] * STAGES, rel=1e-3)
    assert one.stages["forward_ns"].to_list() == pytest.approx([times["f"]] * STAGES, rel=1e-3)
    assert one.parts["time_ns"].to_list()[:2] == pytest.approx([compute, bubble], rel=1e-3)


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"ending": OPTIMIZER}, "1F1B"),
        ({"ending": MUON, "mark": "Optimizer.step#Muon.step"}, "1F1B"),
        ({"ending": MUON}, EITHER),  # gradients of weights, or the optimizer?
        ({"ending": ("gemm of the output layer", 3 * MS), "ends_on": [3]}, "1F1B"),
    ],
)
def test_products_after_the_passes_of_1f1b(more: dict[str, Any], name: str) -> None:
    one = usual_changes(one_each(**more)).pipeline
    assert one.name == name
    assert one.bubble_frac == pytest.approx(3 / 11, abs=0.01)
    assert one.ideal_frac == pytest.approx(3 / 11)
    assert set(one.passes["kind"]) == {"forward", "backward"}


def test_a_schedule_with_less_waits_is_only_compared_with_1f1b() -> None:
    """The minimum of 1F1B is not the ideal of a schedule that idles for less."""
    one = usual_changes(interleaved(8)).pipeline
    less = replace(one, name=LESS, bubble_frac=one.ideal_frac / 2)
    for schedule, is_ideal in ((one, True), (less, False)):
        assert ("equal stages" in schedule.text()) == is_ideal
        assert ("in 1F1B" in schedule.text()) != is_ideal


def test_a_job_without_stages_has_no_schedule(tmp_path: Path) -> None:
    job = new_job("data-parallel", 5, 2, 3)
    write_kineto(job, simulate(job, train), tmp_path)
    assert usual_changes(tmp_path).pipeline is None
    with pytest.raises(ta.OptionError, match="not the stages of a pipeline"):
        ta.what_if(tmp_path, equal_stages=True)


@pytest.mark.parametrize("layers", [0, 1, 4])
def test_equal_stages_launch_no_more_than_all_stages_do(layers: int, tmp_path: Path) -> None:
    """The launches of a stage with few kernels are not those of a stage without any."""
    job = new_job("pipeline", 5, 4, 3)
    job.options.micro_batches, job.options.one_forward_one_backward = 8, True
    job.options.layers = lambda rank, _: layers if rank == 3 else 2
    write_kineto(job, simulate(job, train), tmp_path)
    one = ta.what_if(tmp_path, equal_stages=True)
    gain = one.changes["gain_ns"].item() / one.recorded_ns
    assert (gain > 0.15) == (layers == 4)
    assert -0.1 < gain < 0.5
