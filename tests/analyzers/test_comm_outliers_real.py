"""Real recordings against independent counts and against the peers' numbers.

The independent counts read the JSON with the standard library, times as decimals, and join by
loops; nothing of the package is used for them.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers import Options
from traceanalyzer.analyzers.comm_outliers.activity import divide
from traceanalyzer.analyzers.comm_outliers.compute import (
    CONTEXT,
    NEEDS,
    Part,
    combine,
    measure,
)
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers

US = 1_000
KINETO = "data/chrome/kineto"
BYTES = {"Float": 4, "float": 4, "int": 4, "BFloat16": 2, "Long": 8, "long int": 8}


def extracted(path: Path) -> Part:
    return measure(ta.read(path, kinds=NEEDS.kinds, names=NEEDS.names), Options())


def analyse(*paths: Path) -> CommOutliers:
    """Run the whole analysis like the command: only the required intervals are read again."""
    result = combine([extracted(path) for path in paths], Options())
    windows: dict[str, list[tuple[int, int]]] = {}
    for window in result.delayed.windows:
        windows.setdefault(window.path, []).append((window.start_ns, window.end_ns))
    traces = [ta.read(p, kinds=CONTEXT.kinds, windows=w) for p, w in windows.items()]
    return replace(
        result,
        delayed=replace(result.delayed, context=divide(result.delayed.windows, traces)),
    )


def events_of(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes())
    loaded = json.loads(text, parse_float=Decimal, parse_int=Decimal, strict=False)
    return [e for e in loaded["traceEvents"] if e.get("ph") == "X"]


def ns(us: Decimal) -> int:
    return int(us * 1_000)


def oracle(shared: Path, *parts: str) -> list[dict[str, str]]:
    with Path(shared, "oracle/chrome", *parts).open() as file:
        return list(csv.DictReader(file))


# --- one rank --------------------------------------------------------------------------------

FILES = {
    "nccl_a100_rank0of2": {"AllReduce": 15, "Broadcast": 6},
    "v100_rank1of2_2020_allreduce": {"AllReduce": 2_020},
    "mi300_rank0of8_rccl": {"Generic": 17},
    "b200_rank0of8_eager": {"AllGather": 1, "multimem_all_reduce": 73},
    "a100_rank3of8_sendrecv": {"SendRecv": 42, "AllReduce": 18},
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FILES)
def test_counts_and_totals_are_exact(shared: Path, name: str) -> None:
    path = shared / KINETO / f"{name}.json.gz"
    named = re.compile("^nccl|multimem_all_reduce")
    kernels = [e for e in events_of(path) if e["cat"] == "kernel" and named.search(e["name"])]
    counts = Counter(part for e in kernels for part in FILES[name] if part in e["name"])
    assert counts == FILES[name], "the names"
    durations = [ns(e["dur"]) for e in kernels]
    result = analyse(path)
    assert result.totals.n_events == len(kernels)
    assert result.totals.total_comm_ns == sum(durations)
    assert sorted(result.instances["duration_ns"]) == sorted(durations)
    assert result.groups["n"].sum() == len(kernels)
    assert result.groups["total_ns"].sum() == sum(durations)
    assert result.groups["max_ns"].max() == max(durations)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["nccl_a100_rank0of2", "b200_rank0of8_eager"])
def test_groups_match_kernel_arguments(shared: Path, name: str) -> None:
    path = shared / KINETO / f"{name}.json.gz"
    expected: Counter[tuple[object, ...]] = Counter()
    for e in events_of(path):
        a = e.get("args", {})
        if e["cat"] == "kernel" and "Collective name" in a:
            key = "Out msg nelems" if "allgather" in a["Collective name"] else "In msg nelems"
            size = int(a[key]) * BYTES[a["dtype"]]
            expected[size, a["Process Group Name"], int(a["Group size"]), ns(e["dur"])] += 1
    columns = ["message_bytes", "group", "group_size", "duration_ns"]
    # the all-reduces of PyTorch's symmetric memory, in one of them, have no such arguments
    instances = analyse(path).instances.filter(pl.col("group").is_not_null())
    assert Counter(instances.select(columns).rows()) == expected


@pytest.mark.matrix
def test_generic_kernels_are_described_by_host_calls(shared: Path) -> None:
    """RCCL's kernels have no arguments and one name; five were issued before the recording."""
    path = shared / KINETO / "mi300_rank0of8_rccl.json.gz"
    events = events_of(path)
    calls = {
        e["args"]["External id"]: e["args"] for e in events if e["name"] == "record_param_comms"
    }
    expected: Counter[tuple[object, ...]] = Counter()
    for e in events:
        if e["cat"] == "kernel" and "nccl" in e["name"]:
            call = calls.get(e["args"].get("External id"), {})
            size = int(call["In msg nelems"]) * BYTES[call["dtype"]] if call else None
            expected[size, ns(e["dur"])] += 1
    result = analyse(path)
    assert Counter(result.instances.select("message_bytes", "duration_ns").rows()) == expected
    assert dict(result.groups.group_by("collective").agg(pl.col("n").sum()).iter_rows()) == {
        "all_reduce": 6,
        "broadcast": 6,
        "ncclDevKernel_Generic": 5,
    }


@pytest.mark.matrix
def test_sizes_come_from_the_host_through_correlation(shared: Path) -> None:
    path = shared / KINETO / "a100_rank3of8_sendrecv.json.gz"
    events = events_of(path)
    launches = {
        e["args"]["correlation"]: e for e in events if e["cat"] in ("cuda_runtime", "Runtime")
    }
    calls = [e for e in events if e["name"].startswith("nccl:")]
    expected: Counter[tuple[object, ...]] = Counter()
    for e in events:
        if e["cat"].lower() == "kernel" and "nccl" in e["name"]:
            at = launches[e["args"]["correlation"]]
            (call,) = (
                c
                for c in calls
                if c["tid"] == at["tid"] and c["ts"] <= at["ts"] < c["ts"] + c["dur"]
            )
            elements = math.prod(int(n) for n in call["args"]["Input Dims"][0])
            size = elements * BYTES[call["args"]["Input type"][0]]
            expected[call["name"].removeprefix("nccl:"), size, ns(e["dur"])] += 1
    columns = ["collective", "message_bytes", "duration_ns"]
    assert Counter(analyse(path).instances.select(columns).rows()) == expected


def test_outliers_of_unknown_size_are_in_one_step(shared: Path) -> None:
    result = analyse(shared / KINETO / "v100_rank1of2_2020_allreduce.json.gz")
    assert set(result.instances["judged_by"]) == {"place"}
    assert set(result.outliers()["step"]) == {"ProfilerStep#6"}


def test_collectives_on_a_cpu(shared: Path) -> None:
    path = shared / KINETO / "cpu_only_rank34of300.json.gz"
    durations = [ns(e["dur"]) for e in events_of(path) if e["name"] == "gloo:all_reduce"]
    result = analyse(path)
    assert (result.totals.n_events, result.totals.total_comm_ns) == (10, sum(durations))
    check_wording(*result.notes)


# --- eight ranks on GPUs: HTA and TraceLens --------------------------------------------------


@pytest.fixture(scope="module")
def dlrm(shared: Path) -> CommOutliers:
    return analyse(*sorted((shared / KINETO / "dlrm_8ranks").glob("*.gz")))


@pytest.mark.matrix
def test_waits_match_tracelens(shared: Path, dlrm: CommOutliers) -> None:
    """Wait times by start, as in TraceLens: the last arrival less the start of the rank."""
    ranks = {row["rank"]: row for row in dlrm.ranks.iter_rows(named=True)}
    for row in oracle(shared, "dlrm_8ranks/tracelens/straggler_summary.csv"):
        ours = ranks[int(row["rank"])]
        assert abs(ours["wait_ns"] - int(row["total_wait_time_us"]) * US) <= US
        assert ours["times_last"] == int(row["times_arrived_last"])
        assert ours["comm_ns"] == int(row["total_nccl_dur_us"]) * US
        # of ranks that arrive together TraceLens counts one as first, we count all
        assert ours["times_first"] >= int(row["times_arrived_first"])


def test_every_collective_matches_tracelens(shared: Path, dlrm: CommOutliers) -> None:
    rows = oracle(shared, "dlrm_8ranks/tracelens/implicit_sync_detailed.csv")
    assert dlrm.totals.n_collectives == len(rows) == 8
    for row, ours in zip(rows, dlrm.collectives.iter_rows(named=True), strict=True):
        assert ours["skew_ns"] == int(row["skew in start time"]) * US
        assert ours["end_skew_ns"] == int(row["skew in end time"]) * US
        waits = dlrm.arrivals.filter(pl.col("instance") == ours["instance"]).sort("rank")
        assert waits["wait_ns"].to_list() == [
            int(row[f"rank_{r}_wait_time"]) * US for r in range(8)
        ]
        # theirs is the shortest duration, ours ends with the first rank that leaves
        assert 0 <= int(row["comm_latency"]) * US - ours["transfer_ns"] <= 7 * US


def test_idle_and_overlap_match_hta(shared: Path, dlrm: CommOutliers) -> None:
    ranks = {row["rank"]: row for row in dlrm.ranks.iter_rows(named=True)}
    for row in oracle(shared, "dlrm_8ranks/hta/temporal_breakdown.csv"):
        ours = ranks[int(row["rank"])]
        assert abs(ours["idle_ns"] - float(row["idle_time(us)"]) * US) <= US
        assert abs(ours["span_ns"] - float(row["kernel_time(us)"]) * US) <= US
    for row in oracle(shared, "dlrm_8ranks/hta/comm_comp_overlap.csv"):
        ours = ranks[int(row["rank"])]
        assert 100 * ours["overlap_frac"] == pytest.approx(
            float(row["comp_comm_overlap_pctg"]), abs=0.01
        )


@pytest.mark.parametrize("name", ["a100_rank3of8_sendrecv", "v100_rank1of2_2020_allreduce"])
def test_single_ranks_match_hta_once_the_last_step_is_dropped(shared: Path, name: str) -> None:
    """HTA leaves out the last ProfilerStep; on times in whole microseconds all else agrees."""
    path = shared / KINETO / f"{name}.json.gz"
    trace = ta.read(path, kinds=NEEDS.kinds, names=NEEDS.names)
    is_step = pl.col("name").cast(pl.String).str.starts_with("ProfilerStep")
    last = trace.events.filter(is_step)["ts"].max()
    part = measure(trace.select(pl.col("device").is_null() | (pl.col("ts") < last)), Options())
    (time,) = oracle(shared, name, "hta/temporal_breakdown.csv")
    (both,) = oracle(shared, name, "hta/comm_comp_overlap.csv")
    assert part.activity.span_ns == float(time["kernel_time(us)"]) * US
    assert part.activity.busy_ns is not None
    assert part.activity.span_ns - part.activity.busy_ns == float(time["idle_time(us)"]) * US
    assert part.activity.overlap_ns is not None
    share = 100 * part.activity.overlap_ns / part.activity.comm_ns
    assert share == pytest.approx(float(both["comp_comm_overlap_pctg"]), abs=0.01)


def test_dlrm_straggler_is_reported_not_its_victim(dlrm: CommOutliers) -> None:
    (delayed,) = dlrm.delayed.collectives.iter_rows(named=True)
    first = dlrm.collectives.row(0, named=True)
    assert delayed["instance"] == first["instance"], "the first SendRecv"
    assert (delayed["last_rank"], delayed["collective"]) == (7, "all_to_all")
    longest = dlrm.outliers().row(0, named=True)
    assert (longest["rank"], longest["duration_ns"]) == (1, 7_635 * US)
    assert longest["cause"] == "waiting for rank 7"
    check_wording(dlrm.verdict)
    assert delayed["into_step_ns"] == 4_523 * US, "most of its 4,669 us at the start of the step"


def test_one_host_needs_no_clock_correction(dlrm: CommOutliers) -> None:
    assert dlrm.clocks["offset_ns"].abs().max() <= US
    assert not dlrm.clocks["applied"].any()


def test_half_of_the_ranks_have_the_same_collectives(shared: Path) -> None:
    files = sorted((shared / KINETO / "dlrm_8ranks").glob("*.gz"))
    result = analyse(*files[1::2])
    assert (result.totals.n_ranks, result.totals.n_collectives, result.totals.n_matched) == (
        4,
        8,
        32,
    )
    check_wording(*result.notes)


# --- gloo on CPUs: a known straggler ---------------------------------------------------------


def test_sleeping_rank_is_straggler_in_its_steps(shared: Path) -> None:
    """Rank 2 sleeps 50 ms before its first and fourth all_reduce."""
    folder = shared / "data/chrome/kineto_ddp_cpu/ddp4"
    result = analyse(*(folder / f"rank{r}.json.gz" for r in range(4)))
    straggler = result.delayed.with_activity().filter(pl.col("rank") == 2).sort("step")
    assert straggler["step"].to_list() == ["ProfilerStep#2", "ProfilerStep#5"]
    order = result.collectives.filter(pl.col("last_rank") == 2)["first_arrival_ns"]
    places = [result.collectives["first_arrival_ns"].to_list().index(at) for at in order]
    assert places == [0, 3]
    assert straggler["arrival_delay_ns"].min() > 45_000 * US
    for text in straggler["host"]:
        assert text.startswith("train_step ")
    slept = result.delayed.context.filter(name="train_step")["overlap_ns"].sort(descending=True)[:2]
    assert (slept > 45_000 * US).all()
    check_wording(result.verdict)


def test_python_frames_show_the_sleep_and_the_loader(shared: Path) -> None:
    folder = shared / "data/chrome/kineto_ddp_cpu/ddp4_stack"
    result = analyse(*(folder / f"rank{r}.json.gz" for r in range(2)))
    host = {
        (row["rank"], row["step"]): row["host"]
        for row in result.delayed.with_activity().iter_rows(named=True)
    }
    for number in (2, 5):
        assert host[1, f"ProfilerStep#{number}"].startswith("sleep in train_step")
    for number in (3, 4, 6):
        assert "enumerate(DataLoader)" in host[0, f"ProfilerStep#{number}"]
