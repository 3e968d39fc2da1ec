"""Operators of real recordings against PyTorch's key_averages and plain loops."""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import once

import traceanalyzer as ta
from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.analyzers.common.names import ADDRESS
from traceanalyzer.analyzers.operators.compute import operators
from traceanalyzer.analyzers.operators.result import Operators
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import HOST_KINDS

RECORDINGS = [
    *(f"ddp4/rank{rank}" for rank in range(4)),
    *(f"ddp4_stack/rank{rank}" for rank in range(2)),
    "slow_loader/rank0",
]
CALLS = {kind for kind in HOST_KINDS if kind not in ("other", "osrt")}
NAMED = ("cpu_op", "user_annotation")


def close(ours_ns: float, theirs_us: float) -> bool:
    """Whether values agree within 1 us and 0.1 %."""
    return abs(ours_ns - 1e3 * theirs_us) <= 1e3 + abs(theirs_us)


@dataclass
class Call:
    """A call as in PyTorch's summary."""

    name: str
    kind: str
    thread: Any
    start: int
    end: int
    parent: Call | None = None
    children: list[Call] = field(default_factory=list)
    host_bytes: int = 0

    @property
    def length(self) -> int:
        return self.end - self.start


def plain_calls(trace: Trace) -> list[Call]:
    """Return the calls with their parents: the innermost call that contains them."""
    rows = trace.events.filter(pl.col("kind").is_in(list(CALLS)), pl.col("dur").is_not_null())
    calls = [
        Call(
            "ProfilerStep*" if name.startswith("ProfilerStep#") else plain(name),
            kind,
            (pid, tid),
            ts,
            ts + dur,
        )
        for kind, name, pid, tid, ts, dur in rows.select(
            "kind", "name", "pid", "tid", "ts", "dur"
        ).iter_rows()
    ]
    stacks: defaultdict[Any, list[Call]] = defaultdict(list)
    for call in calls:  # in order of start, the longest first
        stack = stacks[call.thread]
        while stack and (call.start >= stack[-1].end or call.end > stack[-1].end):
            stack.pop()
        if stack:
            call.parent = stack[-1]
            stack[-1].children.append(call)
        stack.append(call)
    return calls


def with_all_memory(calls: list[Call], trace: Trace) -> None:
    """Count memory as PyTorch does: an instant counts in all calls running on any thread."""
    types = dict(trace.memory_totals.select("event", "device_type").iter_rows())
    rows = trace.events.with_row_index("event").filter(pl.col("event").is_in(list(types)))
    host = [row for row in rows.select("event", "ts", "bytes").iter_rows() if types[row[0]] == 0]
    times = [ts for _, ts, _ in host]
    sums = [0, *accumulate(size for _, _, size in host)]
    for call in calls:
        call.host_bytes = sums[bisect_right(times, call.end)] - sums[bisect_left(times, call.start)]


def plain(name: str) -> str:
    """Remove the address of an object: the same function of other objects has one row."""
    return re.sub(ADDRESS, "", name)


@pytest.fixture(scope="module", params=RECORDINGS)
def recording(request: pytest.FixtureRequest, shared: Path) -> tuple[Trace, dict[str, Any]]:
    path = shared / f"data/chrome/kineto_ddp_cpu/{request.param}"
    printed = json.loads(gzip.decompress(Path(f"{path}.key_averages.json.gz").read_bytes()))
    trace, rows = ta.read(f"{path}.json.gz"), dict[str, dict[str, Any]]()
    names = set(trace.events["name"].cast(pl.String))
    for row in printed:
        # functions around the start of the profiler have no line
        name = plain(row["name"])
        without_line = re.sub(r"^(.+)\(\d+\): (.+)$", r"\2 (\1)", name)
        name = without_line if without_line in names else name
        known = rows.setdefault(name, {})
        for key, value in row.items():
            is_number = isinstance(value, int | float)
            known[key] = known.get(key, 0) + value if is_number else value
    return trace, rows


def by_name(result: Operators) -> dict[str, dict[str, Any]]:
    rows = {row["name"]: row for row in result.operators.iter_rows(named=True)}
    assert len(rows) == result.operators.height
    return rows


@pytest.mark.sample(3)
def test_names_counts_and_totals_agree_with_pytorch(
    recording: tuple[Trace, dict[str, Any]],
) -> None:
    trace, printed = recording
    ours = by_name(operators(trace))
    assert ours.keys() == printed.keys()
    for name, row in printed.items():
        assert ours[name]["calls"] == row["count"], name
        assert close(ours[name]["total_host_ns"], row["cpu_time_us"]), name


@pytest.mark.matrix
@pytest.mark.sample(3)
def test_self_times_agree_with_pytorch_except_overlaps(
    recording: tuple[Trace, dict[str, Any]],
) -> None:
    """PyTorch's complete rule gives its numbers; ours differ only by the overlap.

    Two differences. What gloo runs on its own threads PyTorch knows to be asynchronous, which the
    file does not tell: it has no self time there, here its duration. And with Python frames an
    annotation starts within ``record_function.__enter__`` and outlives it: both are children of one
    caller, and PyTorch takes both off in full, so that the caller's self time may be negative.
    Here the time that they share is the annotation's only.
    """
    trace, printed = recording
    ours = by_name(operators(trace))
    calls = plain_calls(trace)
    theirs: defaultdict[str, int] = defaultdict(int)
    contested: list[tuple[Any, int, int]] = []
    for call in calls:
        theirs[call.name] += call.length - sum(child.length for child in call.children)
        contested += [
            (call.thread, after.start, before.end)
            for before, after in pairwise(call.children)
            if after.start < before.end
        ]
    may_differ: defaultdict[str, int] = defaultdict(int)
    for call in calls:
        for thread, start, end in contested:
            if thread == call.thread:
                may_differ[call.name] += max(min(call.end, end) - max(call.start, start), 0)
    for name, row in printed.items():
        self_ns = ours[name]["self_host_ns"]
        if name.startswith("gloo:"):
            assert row["self_cpu_time_us"] == 0
            assert self_ns == ours[name]["total_host_ns"]
            continue
        assert close(theirs[name], row["self_cpu_time_us"]), name
        assert abs(self_ns - theirs[name]) <= may_differ[name], name
        assert close(self_ns, row["self_cpu_time_us"]) or may_differ[name]
    framed = trace.events["kind"].is_in(["python_function"]).any()
    assert bool(contested) == framed
    assert framed == any(row["self_cpu_time_us"] < 0 for row in printed.values())
    assert sum(end - start for _, start, end in contested) < 0.01 * sum(theirs.values())


@pytest.mark.sample(3)
def test_memory_agrees_with_pytorch_except_other_threads(
    recording: tuple[Trace, dict[str, Any]],
) -> None:
    """PyTorch counts an allocation in all running calls on any thread.

    By that rule, in full, the numbers are PyTorch's to the byte. All allocations of these
    recordings are the main thread's, so that ours are too but for calls of other threads, which
    allocated nothing.
    """
    trace, printed = recording
    ours = by_name(operators(trace))
    calls = plain_calls(trace)
    with_all_memory(calls, trace)
    threads = set(trace.events[trace.memory_totals["event"]].select("pid", "tid").iter_rows())
    assert len(threads) == 1
    elsewhere = {call.name for call in calls if call.thread not in threads}
    sums: defaultdict[str, int] = defaultdict(int)
    total: defaultdict[str, int] = defaultdict(int)
    for call in calls:
        total[call.name] += call.host_bytes
        sums[call.name] += call.host_bytes - sum(child.host_bytes for child in call.children)
    wrong = set()
    for name, row in printed.items():
        assert total[name] == row["cpu_memory_bytes"], name
        if not name.startswith("gloo:"):  # asynchronous: no self memory
            assert sums[name] == row["self_cpu_memory_bytes"], name
        values = (ours[name]["self_host_memory_bytes"], ours[name]["total_host_memory_bytes"])
        if values != (row["self_cpu_memory_bytes"], row["cpu_memory_bytes"]):
            wrong.add(name)
    assert wrong <= elsewhere
    for name in elsewhere - {call.name for call in calls if call.thread in threads}:
        assert ours[name]["total_host_memory_bytes"] == 0


# --- device time -------------------------------------------------------------------------------

#: Recordings with valid external ids.
TRUSTED = (
    "b200_rank0of8_eager", "h100_qwen_inference", "mi250_rocm62", "mi300_rank0of8_rccl",
    "nccl_a100_rank0of2", "resnet50_dataloader_workers0", "resnet50_dataloader_workers4",
    "v100_absolute_ns_ts",
)  # fmt: skip


def kineto(shared: Path) -> dict[str, Path]:
    """Return all recordings by file name."""
    folder = shared / "data/chrome/kineto"
    paths = sorted([*folder.glob("*.json.gz"), *folder.glob("dlrm_8ranks/*.gz")])
    assert len(paths) >= 22
    return {path.name.partition(".")[0]: path for path in paths}


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", TRUSTED)
def test_device_time_agrees_with_external_ids(name: str, shared: Path) -> None:
    """Kineto records the operator id of each kernel: a lookup instead of the call tree."""
    trace = once(ta.read, kineto(shared)[name])
    ours = dict(operators(trace).operators.select("name", "self_device_ns").iter_rows())
    operator: dict[int, str] = {}
    for kind, called, external in trace.events.select("kind", "name", "external_id").iter_rows():
        if kind in NAMED and external:
            step = called.startswith("ProfilerStep#")
            operator.setdefault(external, "ProfilerStep*" if step else called)
    expected: defaultdict[str, int] = defaultdict(int)
    strays = 0
    for start, end, external in (
        device_work(trace).select("start", "end", "external_id").iter_rows()
    ):
        if external in operator:
            expected[operator[external]] += end - start
        else:
            strays += end - start
    # NCCL's kernels have the id of record_param_comms, and are launched in the nccl: range in it
    apart = {n: (ours.get(n, 0), expected.get(n, 0)) for n in {*expected, *ours}}
    moved = {n: both for n, both in apart.items() if both[0] != both[1]}
    nccl = [moved.pop(n) for n in [*moved] if n.startswith(("nccl:", "record_param_comms"))]
    assert sum(mine for mine, _ in nccl) == sum(theirs for _, theirs in nccl)
    # two kernels of b200 have no id, but were launched in a range
    assert all(theirs == 0 for _, theirs in moved.values())
    assert sum(mine for mine, _ in moved.values()) == (strays if name.startswith("b200") else 0)
    assert len(ours.keys() & expected.keys()) > 5


def test_sums_add_up_on_every_trace(shared: Path, thorough: bool) -> None:
    for name, path in [*kineto(shared).items()][:: 1 if thorough else 4]:
        trace = once(ta.read, path)
        result = operators(trace)
        rows = result.operators
        calls = trace.events.filter(pl.col("kind").is_in(list(CALLS)), pl.col("dur") >= 0)
        spans = calls.select("pid", "tid", start="ts", end=pl.col("ts") + pl.col("dur"))
        measured = intervals.measure(spans, ["pid", "tid"])["length"].sum()
        assert rows["self_host_ns"].sum() == result.host_ns == measured, name
        assert rows["self_host_ns"].min() >= 0
        assert (rows["self_host_ns"] <= rows["total_host_ns"]).all()
        work = device_work(trace)
        if work.is_empty():
            assert result.device_ns is None
            assert rows["self_device_ns"].null_count() == rows.height
            continue
        length = (work["end"] - work["start"]).sum()
        assert rows["self_device_ns"].sum() + result.unlaunched_ns == result.device_ns == length
        assert (rows["self_device_ns"] <= rows["total_device_ns"]).all()
        for of, type_ in (("host", 0), ("device", 1)):
            self_bytes = rows[f"self_{of}_memory_bytes"]
            assert self_bytes.is_null().all() == (
                type_ not in trace.memory_totals["device_type"]
            ), name
        if trace.memory_totals.height:
            events = trace.events[trace.memory_totals["event"]]
            counted = sum(rows[f"self_{of}_memory_bytes"].sum() for of in ("host", "device"))
            assert counted + result.outside_bytes == events["bytes"].sum(), name


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name", ["mfu_2gpu_before", "mfu_2gpu_after", "power_iteration_t4", "saxpy_mpi_lazy_false"]
)
def test_nvtx_ranges_launch_the_work_inside(name: str, shared: Path) -> None:
    """Return kernel sums by the innermost range around the launch, by SQL."""
    trace = ta.read(shared / f"data/nsys/{name}.sqlite.gz")
    kernels = trace.select(~pl.col("kind").is_in(("gpu_memcpy", "gpu_memset")))
    rows = operators(kernels).operators.filter(pl.col("kind") == "nvtx")
    ours = rows.group_by("name").agg(kernel_ns=pl.col("self_device_ns").sum())
    result = next((shared / "oracle/nsys" / name).glob("nvtx_innermost_kern_sum.csv*"))
    call = pl.col("range").str.replace(r", (seq|op_id) = .*", "")
    theirs = pl.read_csv(result).group_by(name=call).agg(pl.col("kernel_ns").sum())
    assert dict(ours.filter(pl.col("kernel_ns") > 0).iter_rows()) == dict(theirs.iter_rows())


def test_composer_slices_are_operators(shared: Path) -> None:
    result = operators(ta.read(shared / "data/chrome/composer/ep0-ba0-rank0.json"))
    assert {"forward", "backward"} <= set(result.operators["name"].str.split("/").list.last())
    assert result.device_ns is None
