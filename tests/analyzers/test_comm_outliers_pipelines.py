"""Pipeline stages: wait time of the schedule, and of a stage that works longer or loads data."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, MS, US, device, host, step, trace

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers.pipelines import Pipeline
from traceanalyzer.trace import Trace

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
STEPS = 4
#: Groups of two ranks, also with numbers that each rank counts; one group with the peers as
#: arguments, or in the names of annotations.
#: A batch is described by calls before its launch only, an unknown one by nothing.
PAIRS, COUNTED, PEERS, NAMES, BATCH = FORMS = ("pairs", "counted", "peers", "names", "batch")
UNKNOWN = "unknown"
FORWARD, BACKWARD, TRANSFER = 2 * MS, 4 * MS, 100 * US


def pipeline(
    stages: int,
    batches: int,
    slower: Mapping[int, float] | None = None,
    loading: Mapping[int, int] | None = None,
    *,
    form: str = PAIRS,
    norm: bool = False,
    chunks: int = 1,
) -> list[Trace]:
    """Return ranks of steps with all forward passes, then all backward passes.

    Args:
        stages: number of ranks.
        batches: micro-batches of a step.
        slower: by stage, how many times as long its kernels take.
        loading: by stage, time of its data loader before each forward pass.
        form: how sends and receives are recorded.
        norm: whether each step ends with an all_reduce of 4 bytes over all stages.
        chunks: parts of the model on each rank; the last stage sends to the first one then.
    """
    job = _Job(stages, form, slower or {})
    for number in range(STEPS):
        begin = max(job.free)
        job.free[:] = [begin] * stages
        for what, rank in _order(stages, batches, chunks):
            if what in ("activations", "gradients"):
                job.exchange(rank, forward=what == "activations")
                continue
            if what == "forward" and loading and rank in loading:
                job.load(rank, loading[rank])
            job.work(rank, what, FORWARD if what == "forward" else BACKWARD)
        if norm:
            job.reduce_norm()
        for rank in range(stages):
            job.events[rank].append(step(number, begin, max(job.free) - begin))
    return [trace(job.events[rank], rank, world_size=stages) for rank in range(stages)]


class _Job:
    """The events of all stages, and when each stage is free."""

    def __init__(self, stages: int, form: str, slower: Mapping[int, float]) -> None:
        self.form, self.slower, self.free = form, slower, [0] * stages
        self.events = defaultdict[int, list[dict[str, Any]]](list)
        self.seq = defaultdict[int, int](int)

    def exchange(self, edge: int, *, forward: bool) -> None:
        """A transfer between two stages, which both wait for."""
        stages, free = len(self.free), self.free
        ends = (edge, (edge + 1) % stages)
        end = max(free[rank] for rank in ends) + TRANSFER
        for rank in ends:
            kind = "send" if (rank == edge) == forward else "recv"
            numbers = self.seq[-1 - rank], self.seq[edge]
            about, call = _described(self.form, kind, rank, sum(ends) - rank, stages, numbers)
            self.events[rank] += [{**row, "ts": free[rank] + row["ts"]} for row in call]
            self.events[rank].append(device(SEND, free[rank], end - free[rank], **about))
            free[rank] = end
            self.seq[-1 - rank] += 1
        self.seq[edge] += 1

    def reduce_norm(self) -> None:
        """An all_reduce of one number over all stages."""
        stages, end = len(self.free), max(self.free) + 20 * US
        for rank, start in enumerate(self.free):
            about = {"dtype": "float32", "elements_in": 1, "group": "0", "group_size": stages,
                     "group_ranks": str([*range(stages)]), "stream": 20}  # fmt: skip
            self.events[rank].append(device(ALL_REDUCE, start, end - start, **about))
        self.free[:] = [end] * stages

    def load(self, rank: int, ns: int) -> None:
        self.events[rank].append(host("user_annotation", "load_batch", self.free[rank], ns))
        self.free[rank] += ns

    def work(self, rank: int, name: str, ns: int) -> None:
        took = round(ns * self.slower.get(rank, 1))
        self.events[rank].append(device(f"{name}_gemm", self.free[rank], took))
        self.free[rank] += took


_calls = count(1)


def _described(
    form: str, kind: str, rank: int, other: int, stages: int, numbers: tuple[int, int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the description of a send or receive, and the host events that launch it."""
    members = sorted((rank, other)) if form in (PAIRS, COUNTED) else list(range(stages))
    about = {"collective": kind, "dtype": "bfloat16", "elements_in": 1 << 20, "stream": 20,
             "group": f"pp{members[0]}", "group_size": len(members),
             "group_ranks": str(members), "seq": numbers[form == PAIRS]}  # fmt: skip
    if form == PEERS:
        about["peer"] = other
    if form == UNKNOWN:
        return {"stream": 20}, []
    if form not in (NAMES, BATCH):
        return about, []
    about["correlation"] = next(_calls)
    if form == BATCH:
        stream = {name: about.pop(name) for name in ("stream", "correlation")}
        return stream, [
            host("cpu_op", "record_param_comms", 0, 2, peer=other, **about),
            host("cuda_runtime", "cudaLaunchKernelExC", 3, 2, correlation=stream["correlation"]),
        ]
    arrow = "->" if kind == "send" else "<-"
    return about, [
        host("user_annotation", f"nccl:{kind} {rank}{arrow}{other}", 0, 4),
        host("cuda_runtime", "cudaLaunchKernelExC", 1, 2, correlation=about["correlation"]),
    ]


def _order(stages: int, batches: int, chunks: int) -> Iterator[tuple[str, int]]:
    """Yield the work of a step: a kernel of a stage, or a transfer from a stage to the next.

    With chunks, as many micro-batches as there are stages pass the first chunk, then the next one.
    """
    passes = [c for _ in range(0, batches, stages) for c in range(chunks) for _ in range(stages)]
    for chunk in passes if chunks > 1 else [0] * batches:
        for rank in range(stages):
            yield from [("activations", (rank - 1) % stages)] * (rank > 0 or chunk > 0)
            yield "forward", rank
    for chunk in reversed(passes) if chunks > 1 else [0] * batches:
        for rank in reversed(range(stages)):
            yield from [("gradients", rank)] * (rank < stages - 1 or chunk < chunks - 1)
            yield "backward", rank


def bubble_frac(stages: int, batches: int, chunks: int = 1) -> float:
    return (stages - 1) / (chunks * batches + stages - 1)


@pytest.mark.parametrize(("batches", "chunks"), [(8, 2), (4, 3)])
@pytest.mark.parametrize("form", [PAIRS, PEERS])
def test_interleaved_stages(batches: int, chunks: int, form: str) -> None:
    traces = pipeline(4, batches, chunks=chunks, form=form)
    known = ta.comm_outliers(traces).pipeline
    assert known == (4, batches, chunks)
    assert known.bubble_frac == pytest.approx(bubble_frac(4, batches, chunks))
    assert f"{100 * bubble_frac(4, batches, chunks):.1f} %" in known.schedule(1)


def test_waits_below_those_of_1f1b_are_another_schedule() -> None:
    """Zero-bubble schedules: the sends and receives are those of 1F1B, the waits are not."""
    known = Pipeline(4, 8)
    assert "27.3 %" in known.schedule(0.28)
    # 11 passes for 8 micro-batches, or 35 for 32
    assert known.gain_frac == pytest.approx(1 - (35 / 32) / (11 / 8))
    assert "%" not in known.schedule(0.1)


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 8), (4, 4)])
def test_equal_stages_wait_for_the_schedule(stages: int, batches: int) -> None:
    traces = pipeline(stages, batches)
    comm = ta.comm_outliers(traces)
    assert comm.pipeline == (stages, batches, 1)
    assert comm.waits_for_schedule
    assert comm.view().scalars["straggler"] is None
    found = {one.id: one for one in ta.diagnose(traces).findings}
    assert "straggler" not in found
    assert 0 < (found["pipeline-bubble"].cost_frac or 0) <= bubble_frac(stages, batches) + 1e-6
    assert f"{100 * bubble_frac(stages, batches):.1f} %" in found["pipeline-bubble"].evidence[0]


@pytest.mark.sample(3)
@pytest.mark.sample(3, "form")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("norm", [False, True])
def test_forms_of_sends_and_receives(form: str, norm: bool) -> None:
    traces = pipeline(4, 4, form=form, norm=norm)
    comm = ta.comm_outliers(traces)
    assert comm.totals.n_matched == comm.totals.n_events
    assert comm.pipeline == (4, 4, 1)
    assert comm.slow_links.is_empty()
    found = {one.id for one in ta.diagnose(traces).findings}
    assert "pipeline-bubble" in found
    # without a last collective, stages are idle at the end of a step
    assert found <= {"pipeline-bubble", "unknown-idleness", "host-code"}


@pytest.mark.parametrize("stages", [4, 6])
def test_sends_and_receives_without_a_partner_are_not_compared(stages: int) -> None:
    """Nothing says with which rank: no rank is late, no exchange takes longer than others."""
    traces = pipeline(stages, 4, form=UNKNOWN)
    comm = ta.comm_outliers(traces)
    assert comm.totals.n_matched == 0
    assert comm.totals.n_outliers == 0
    assert comm.instances["judged_by"].is_null().all()
    for found in ta.diagnose(traces).findings:
        assert found.id in {"exposed-communication", "host-code", "unknown-idleness"}
        assert found.severity != "critical"


@pytest.mark.parametrize("ranks", [2, 4])
def test_exchanges_of_all_ranks_without_a_group_are_compared(ranks: int) -> None:
    """The all_to_all of old recordings runs on all ranks, and ends on them together."""
    each = []
    for rank in range(ranks):
        rows = []
        for number in range(12):
            late = 300 * US * (number % ranks == rank)
            begin = number * 5 * MS + late
            rows.append(device("gemm", begin - 200 * US, 200 * US))
            rows.append(device(SEND, begin, 1 * MS - late + 2 * rank * US, stream=20))
        each.append(trace(rows, rank, world_size=ranks))
    comm = ta.comm_outliers(each)
    assert comm.totals.n_matched == 12 * ranks
    assert comm.totals.total_wait_ns == 12 * (ranks - 1) * 300 * US


def combined(
    stages: int, batches: int, collective: str | None, layers: Mapping[int, int] | None = None
) -> list[Trace]:
    """Return ranks of 1F1B steps in which one kernel sends and receives (batch_isend_irecv).

    Args:
        stages: number of ranks.
        batches: micro-batches of a step.
        collective: what the kernels of exchanges are called.
        layers: by stage, the kernels of a forward pass (2 unless given).
    """
    free, hosts, layers = [0] * stages, [0] * stages, layers or {}
    events = defaultdict[int, list[dict[str, Any]]](list)

    def launch(rank: int, name: str, until: int, **about: Any) -> None:
        """A kernel that its host launches long before it starts."""
        number = next(_calls)
        call = host("cuda_runtime", "cudaLaunchKernel", hosts[rank] + US, US, correlation=number)
        kernel = device(name, free[rank], until - free[rank], correlation=number)
        events[rank] += [call, kernel]
        if about:
            events[rank].append(host("cpu_op", "record_param_comms", hosts[rank], 3 * US, **about))
        free[rank], hosts[rank] = until, hosts[rank] + 5 * US

    def meet(ranks: range, group: str, kernel: str, collective: str | None) -> None:
        end = max(free[rank] for rank in ranks) + TRANSFER
        for rank in ranks:
            about = {"collective": collective, "group": group, "group_size": len(ranks)}
            launch(rank, kernel, end, group_ranks=str([*ranks]), elements_in=9, **about)

    for number in range(STEPS):
        begins = hosts.copy()
        todo = [list(_joined(rank, stages, batches, layers.get(rank, 2))) for rank in range(stages)]
        while any(todo):
            for rank, rest in enumerate(todo):
                while rest and isinstance(rest[0], int):
                    launch(rank, "gemm", free[rank] + rest.pop(0) * MS)
            for edge in range(stages - 1):
                if todo[edge][:1] == ["next"] and todo[edge + 1][:1] == ["before"]:
                    meet(range(edge, edge + 2), f"pp{edge}", SEND, collective)
                    del todo[edge][0], todo[edge + 1][0]
        meet(range(stages), "world", ALL_REDUCE, "all_reduce")
        for rank, begin in enumerate(begins):
            events[rank].append(step(number, begin, hosts[rank] - begin))
    return [trace(events[rank], rank, world_size=stages) for rank in range(stages)]


def _joined(rank: int, stages: int, batches: int, layers: int) -> Iterator[str | int]:
    """Yield the work of a 1F1B step: milliseconds of kernels, and exchanges with other stages."""
    before, after = ["before"] * (rank > 0), ["next"] * (rank < stages - 1)
    forward, backward = [1] * layers, [2] * layers
    first = min(stages - 1 - rank, batches)
    for _ in range(first):
        yield from (*before, *forward, *after)
    yield from before
    for _ in range(batches - first):
        yield from (*forward, *after, *backward, *before)
    for _ in range(first):
        yield from (*after, *backward, *before)


@pytest.mark.parametrize("collective", ["coalesced", "send", None])
def test_one_kernel_sends_and_receives(collective: str | None) -> None:
    for stages, batches in ((4, 6), (2, 4)):
        comm = ta.comm_outliers(combined(stages, batches, collective))
        assert comm.pipeline == (stages, batches, 1)
        assert comm.waits_for_schedule


def test_the_kernel_names_a_coalesced_exchange(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": SEND, "pid": 0, "tid": 7, "ts": 1, "dur": 5,
              "args": {"Collective name": "coalesced", "stream": 7}}  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [kernel]}))
    assert ta.read(path).collectives["collective"].to_list() == ["send_recv"]


def test_a_stage_with_more_layers_gains_what_equal_stages_would() -> None:
    """The wait time of the schedule, also without the straggler, is no cost of the straggler."""
    stages, batches = 4, 12
    ranks = combined(stages, batches, "coalesced", layers={2: 3})
    found = {one.id: one for one in ta.diagnose(ranks).findings}
    straggler, frac = found["straggler"], bubble_frac(stages, batches)
    step_ns, usual_ns = (
        ta.steps(each).steps["duration_ns"].median()
        for each in (ranks, combined(stages, batches, "coalesced"))
    )
    saved = 1 - usual_ns / step_ns  # type: ignore[operator]
    assert straggler.rank == 2
    assert straggler.gain_basis == "replay"
    equal = ta.what_if(ranks, equal_stages=True).changes["gain_frac"][0]
    assert straggler.gain_frac == pytest.approx(equal, rel=0.05)
    assert 0.5 * saved < equal < saved  # the layers run on the other stages then
    assert straggler.cost_frac == pytest.approx(saved, rel=0.1)
    assert found["pipeline-bubble"].cost_frac == pytest.approx(frac * (1 - saved), rel=0.15)


@pytest.mark.parametrize("form", [PEERS, NAMES])
def test_a_long_stage_of_one_group(form: str) -> None:
    traces = pipeline(4, 8, slower={2: 1.8}, form=form, norm=True)
    first = ta.diagnose(traces).findings[0]
    assert (first.id, first.rank) == ("straggler", 2)
    assert "stage 2" in first.title


def test_a_stage_with_more_layers_in_all_replicas() -> None:
    """Two pipelines side by side: the last stage of both works longer."""
    two = [pipeline(4, 8, slower={3: 1.8}, form=form) for form in (PEERS, PEERS)]
    second = [
        replace(
            one,
            sources=(replace(one.sources[0], path=f"rank{rank + 4}.json", rank=rank + 4),),
            events=one.events.with_columns(rank=pl.lit(rank + 4, pl.Int32)),
            collectives=one.collectives.with_columns(
                group=pl.lit("pp1").cast(pl.Categorical),
                group_ranks=pl.lit("[4, 5, 6, 7]").cast(pl.Categorical),
                peer=pl.col("peer") + 4,
            ),
        )
        for rank, one in enumerate(two[1])
    ]
    first, *others = ta.diagnose([*two[0], *second]).findings
    assert first.id == "straggler"
    assert "stage 3 (ranks 3, 7) works 1.8" in first.title
    assert "straggler" not in {one.id for one in others}
    assert 0.2 < (first.cost_frac or 0) < 0.5


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_ring_is_no_pipeline(ranks: int) -> None:
    """Context parallelism: each rank sends keys to the next one, around the ring."""
    traces = []
    for rank in range(ranks):
        rows: list[dict[str, Any]] = []
        for number in range(STEPS):
            at = number * 20 * MS
            late = 3 * MS * (rank == 1)
            rows += [step(number, at, 20 * MS), device("attention_gemm", at, 5 * MS + late)]
            for kind, other in (("send", (rank + 1) % ranks), ("recv", (rank - 1) % ranks)):
                about, _ = _described(PEERS, kind, rank, other, ranks, (number, 0))
                about |= {"stream": 20 + (kind == "recv")}
                in_it = rank == 1 or other == 1
                begin = at + 5 * MS + late
                end = at + 9 * MS if in_it else at + 6 * MS
                rows.append(device(SEND, begin, end - begin, **about))
        traces.append(trace(rows, rank, world_size=ranks))
    comm = ta.comm_outliers(traces)
    assert comm.arrivals["wait_ns"].sum() > 0
    assert comm.pipeline is None
    assert comm.view().scalars["straggler"] == 1


def test_stages_with_one_batch_in_flight() -> None:
    """Decoding: a stage sends activations, the last one broadcasts tokens; the other one waits."""
    traces = []
    for rank in range(2):
        rows: list[dict[str, Any]] = []
        for number in range(STEPS):
            at = number * 12 * MS
            about = {"group": "1", "group_ranks": "[0, 1]", "group_size": 2, "seq": 2 * number}
            sent, begin = {**about, "collective": "send_recv"}, at + 5 * MS * rank
            rows += [step(number, at, 11 * MS), device("gemm", begin + MS * rank, 5 * MS)]
            rows.append(device(SEND, at + 5 * MS * (not rank), MS + 5 * MS * rank - US, **sent))
            about |= {"seq": 2 * number + 1, "collective": "broadcast"}
            done = at + (11 if rank else 6) * MS
            name = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            rows.append(device(name, done, at + 11 * MS + 100 * US - done, **about))
        traces.append(trace(rows, rank, world_size=2))
    first, *others = ta.diagnose(traces).findings
    assert first.id == "pipeline-bubble"
    assert first.cost_frac == pytest.approx(5 / 12, abs=0.05)
    assert "in flight" in first.advice
    assert "unequal-work" not in {one.id for one in others}


@pytest.mark.matrix
def test_many_micro_batches_are_healthy() -> None:
    traces = pipeline(4, 24, form=PEERS, norm=True)
    comm = ta.comm_outliers(traces)
    assert comm.waits_for_schedule
    assert comm.outliers().filter(comm.outliers()["cause"].is_null()).is_empty()
    assert {one.severity for one in ta.diagnose(traces).findings} <= {"info"}


def test_a_straggler_of_data_parallel_ranks_is_no_stage() -> None:
    """Ranks that exchange little, and wait for one of them in collectives."""
    events: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for number in range(STEPS):
        begin = number * 20 * MS
        for rank in (0, 1):
            late = 8 * MS * rank
            about = {"dtype": "float32", "elements_in": 1 << 20, "group": "0", "group_size": 2,
                     "group_ranks": "[0, 1]", "stream": 20}  # fmt: skip
            exchange = {**about, "collective": "recv" if rank else "send", "seq": number}
            events[rank] += [
                step(number, begin, 19 * MS),
                device("gemm", begin, 6 * MS + late),
                device(ALL_REDUCE, begin + 6 * MS + late, 9 * MS - late, **about),
                device(SEND, begin + 16 * MS, 100 * US, **exchange),
            ]
    comm = ta.comm_outliers([trace(events[rank], rank) for rank in (0, 1)])
    assert comm.pipeline is None
    assert comm.view().scalars["straggler"] == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_slow_stage_is_the_straggler(stage: int) -> None:
    traces = pipeline(4, 8, slower={stage: 1.8})
    comm = ta.comm_outliers(traces)
    assert not comm.waits_for_schedule
    assert comm.view().scalars["straggler"] == stage
    found = {one.id: one for one in ta.diagnose(traces).findings}
    assert found["straggler"].rank == stage
    assert " 1.80 times" in found["straggler"].title
    bubble = found.get("pipeline-bubble")
    assert bubble is None or (bubble.cost_frac or 0) <= bubble_frac(4, 8)


@pytest.mark.matrix
def test_waits_beyond_the_bubble_go_to_the_cause_on_the_late_stage() -> None:
    """Stages work as long, but the first one loads data before each micro-batch."""
    traces = pipeline(2, 8, loading={0: 10 * MS})
    assert not ta.comm_outliers(traces).waits_for_schedule
    found = {one.id: one for one in ta.diagnose(traces).findings}
    cause = next(iter(found.values()))
    assert cause.rank == 0
    assert cause.id in ("data-loading", "unknown-idleness", "host-code")
    assert [effect.id for effect in cause.effects] == ["straggler"]
    assert sum(one.cost_frac or 0 for one in found.values()) < 1


def test_balanced_pipeline_of_others(shared: Path) -> None:
    path = shared / "data/causes/chrome/balanced_pipeline"
    if not path.exists():
        pytest.skip(f"no folder {path}")
    comm = ta.comm_outliers(path)
    assert comm.pipeline == (2, 4, 1)
    assert comm.waits_for_schedule
    assert comm.view().scalars["straggler"] is None
    assert ta.diagnose(path).findings[0].id == "pipeline-bubble"
