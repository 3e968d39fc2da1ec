"""HTA's numbers from our interval algebra: its rules live here, not in the product.

HTA (traceinsight 0.6.1) counts so:

- times are cut inwards to whole microseconds: a start is rounded up, an end down;
- device work is every row with a stream that is no annotation, waiting (``cuda_sync``) included;
- where two or more steps (``ProfilerStep#``) are marked, the last one is dropped: of the host what
  starts before the last step does, of the device what has the correlation id of one of those rows;
- communication is ``ncclKernel`` in the name, memory ``Memcpy`` or ``Memset``, compute all else;
- the gap before a piece of work on its stream is ``host_wait`` where its launch call began after
  the piece before had ended, else ``kernel_wait`` below 30 us, else ``other``. Work whose launch
  call was not recorded counts as launched by the first event that is written in the file.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer.analyzers.common.device_work import device_work, extent, measure_parts
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import COMMUNICATION_TERMS, DEVICE_WORK, LAUNCH_KINDS, PROFILER_STEP

SINGLE = (
    "nccl_a100_rank0of2",
    "v100_rank1of2_2020_allreduce",
    "a100_rank3of8_sendrecv",
    "resnet50_dataloader_workers0",
    "resnet50_dataloader_workers4",
)
TRACES = [(name, 0) for name in SINGLE] + [("dlrm_8ranks", rank) for rank in range(8)]
NS_PER_US = 1_000
KERNEL_WAIT_US = 30


PARTS = ("idle", "compute", "non_compute", "kernel")


def trace_file(shared: Path, name: str, rank: int) -> Path:
    folder = shared / "data/chrome/kineto"
    if name in SINGLE:
        return folder / f"{name}.json.gz"
    (path,) = (folder / name).glob(f"worker{rank}_*.json.gz")
    return path


@cache
def read(shared: Path, name: str, rank: int) -> Trace:
    return ta.read(
        trace_file(shared, name, rank),
        kinds=(*DEVICE_WORK, *LAUNCH_KINDS, "cuda_sync"),
        names=(PROFILER_STEP, *COMMUNICATION_TERMS),
    )


def oracle(shared: Path, name: str, table: str) -> list[dict[str, str]]:
    path = shared / "oracle/chrome" / name / "hta" / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def counted(trace: Trace, step: int = NS_PER_US) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The host's and the device's rows that HTA looks at, cut inwards to multiples of ``step``."""
    end = pl.col("ts") + pl.col("dur")
    rows = trace.events.filter(pl.col("dur").is_not_null()).select(
        "stream",
        "correlation",
        name=pl.col("name").cast(pl.String),
        start=-((-pl.col("ts")) // step) * step,
        end=end // step * step,
        work=pl.col("kind").is_in((*DEVICE_WORK, "cuda_sync")),
    )
    host, device = rows.filter(pl.col("stream").is_null()), rows.filter("work")
    steps = host.filter(pl.col("name").str.starts_with(PROFILER_STEP))
    if steps["name"].n_unique() < 2:
        return host, device
    host = host.filter(pl.col("start") < steps["start"].max())
    known = host["correlation"].drop_nulls().implode()
    return host, device.filter(pl.col("stream") > 0, pl.col("correlation").is_in(known))


def by_sort(device: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Compute and communication."""
    communication = pl.col("name").str.contains("ncclKernel")
    memory = pl.col("name").str.contains("Memcpy|Memset")
    return device.filter(~communication, ~memory), device.filter(communication)


def length(rows: pl.DataFrame) -> int:
    measured: int = intervals.measure(rows)["length"].item()
    return measured


def overlap_percent(device: pl.DataFrame) -> float:
    compute, communication = by_sort(device)
    return 100 * length(intervals.intersect(compute, communication)) / length(communication)


def first_start(path: Path) -> int:
    """When the event that is written first in the file starts, on the trace's clock."""
    with gzip.open(path, "rt", encoding="utf-8") as text:
        head = text.read(1 << 16)
    events = head.index("[", head.index('"traceEvents"'))
    event, _ = json.JSONDecoder().raw_decode(head, head.index("{", events))
    start: int = math.ceil(event["ts"]) * NS_PER_US
    return start


def of(row: dict[str, str], name: str, rank: int) -> bool:
    return name in SINGLE or row["rank"] == str(rank)


@pytest.mark.matrix
@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "rank"), TRACES)
def test_temporal_breakdown(shared: Path, name: str, rank: int) -> None:
    _, device = counted(read(shared, name, rank))
    busy, compute = length(device), length(by_sort(device)[0])
    kernel_time = device["end"].max() - device["start"].min()
    row = oracle(shared, name, "temporal_breakdown")[rank]
    assert [float(row[f"{part}_time(us)"]) * NS_PER_US for part in PARTS] == [
        kernel_time - busy,
        compute,
        busy - compute,
        kernel_time,
    ]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "rank"), TRACES)
def test_overlap_of_communication_and_compute(shared: Path, name: str, rank: int) -> None:
    expected = oracle(shared, name, "comm_comp_overlap")[rank]["comp_comm_overlap_pctg"]
    _, device = counted(read(shared, name, rank))
    if expected:
        assert overlap_percent(device) == pytest.approx(float(expected), abs=0.005001)
    else:
        assert by_sort(device)[1].is_empty()


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "rank"), TRACES)
def test_idle_time_breakdown(shared: Path, name: str, rank: int) -> None:
    host, device = counted(read(shared, name, rank))
    calls = linking.link(host, device, ["correlation"])
    first = first_start(trace_file(shared, name, rank))
    launched = pl.Series("launched", [first] * device.height, dtype=pl.Int64).scatter(
        calls["right"], host["start"].gather(calls["left"])
    )
    idle = (
        device.with_columns(launched)
        .sort("stream", "start", maintain_order=True)
        .with_columns(before=pl.col("end").shift(1).over("stream"))
        .with_columns(gap=pl.col("start") - pl.col("before"))
    )
    category = (
        pl.when(pl.col("launched") > pl.col("before"))
        .then(pl.lit("host_wait"))
        .when(pl.col("gap") < KERNEL_WAIT_US * NS_PER_US)
        .then(pl.lit("kernel_wait"))
        .otherwise(pl.lit("other"))
    )
    result = idle.group_by("stream", idle_category=category).agg(
        pl.col("gap").sum(), n=pl.col("gap").count(), longest=pl.col("gap").max()
    )
    ours = {(str(row["stream"]), row["idle_category"]): row for row in result.iter_rows(named=True)}
    rows = [row for row in oracle(shared, name, "idle_time_breakdown_0") if of(row, name, rank)]
    assert {(row["stream"], row["idle_category"]) for row in rows} == set(ours)
    for row in rows:
        expected = ours[row["stream"], row["idle_category"]]
        assert float(row["idle_time"]) * NS_PER_US == expected["gap"]
    for row in oracle(shared, name, "idle_time_breakdown_1"):
        if of(row, name, rank):
            expected = ours[row["stream"], row["idle_category"]]
            assert float(row["count"]) == expected["n"]
            assert float(row["max"] or 0) * NS_PER_US == (expected["longest"] or 0)


# --- where the product's numbers differ ------------------------------------------------------


def test_overlap_of_nccl_a100_differs_only_by_rounding(
    shared: Path,
) -> None:
    trace = read(shared, "nccl_a100_rank0of2", 0)
    whole, exact = (counted(trace, step)[1] for step in (NS_PER_US, 1))
    assert whole.height == exact.height
    assert f"{overlap_percent(whole):.2f}" == "14.31"
    assert f"{overlap_percent(exact):.2f}" == "14.76"
    # hundreds of short kernels run beside the few long collectives, and each loses up to 2 us
    lost = [
        [length(rows) for rows in (intervals.intersect(*by_sort(work)), by_sort(work)[1])]
        for work in (whole, exact)
    ]
    assert lost == [[3_473_000, 24_278_000], [3_585_679, 24_289_050]]


def test_last_step_and_nanoseconds_are_kept(shared: Path) -> None:
    trace = read(shared, "nccl_a100_rank0of2", 0)
    work = device_work(trace)
    row = measure_parts(work, extent(work)).row(0, named=True)
    assert (row["overlapped_communication_ns"], row["communication_ns"]) == (7_317_025, 46_876_493)
    steps = trace.events.filter(pl.col("name").cast(pl.String).str.starts_with(PROFILER_STEP))
    assert steps.height == 3
