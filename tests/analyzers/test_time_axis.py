"""A moment has the same time in all analyses: from the first event of the first file."""

from collections.abc import Callable

import polars as pl
import pytest
from conftest import ROOT

import traceanalyzer as ta
from traceanalyzer.trace import Trace

RANKS = ROOT / "fixtures/nccl_8ranks"


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return [ta.read(RANKS / f"rank{rank}.json.gz") for rank in range(8)]


@pytest.fixture(scope="module")
def zero(traces: list[Trace]) -> dict[str, int]:
    """What is subtracted from the times of each file."""
    starts = {one.meta.path: (one.meta.epoch_ns or 0, one.meta.start_ns or 0) for one in traces}
    first = min(map(sum, starts.values()))
    return {path: first - epoch for path, (epoch, _) in starts.items()}


@pytest.mark.matrix
def test_each_analysis_counts_from_the_first_event(
    traces: list[Trace], zero: dict[str, int]
) -> None:
    def expected(frame: pl.DataFrame, column: str) -> list[int]:
        """The column, from the first event of all files on."""
        return [time - zero[path] for time, path in frame.select(column, "path").iter_rows()]

    idle, comm = ta.gpu_idle(traces), ta.comm_outliers(traces)
    assert idle.gaps["at_ns"].to_list() == expected(idle.gaps, "start")
    # which corrects clocks: those of the second host by 3 ms, of the first by some nanoseconds
    met = comm.instances.filter(pl.col("rank") < 4)
    assert met["at_ns"].to_list() == pytest.approx(expected(met, "ts"), abs=50)
    marked = pl.concat(
        one.events.filter(pl.col("name").cast(pl.String).str.starts_with("ProfilerStep#"))
        .filter(kind="user_annotation")
        .select(pl.lit(one.meta.path).alias("path"), pl.col("name").cast(pl.String), "ts")
        for one in traces
    ).sort("path", "ts")
    starts = expected(marked, "ts")
    key = ["path", "at_ns"]
    assert ta.steps(traces).steps.sort(key)["at_ns"].to_list() == starts
    assert idle.steps.sort(key)["at_ns"].to_list() == starts
    assert ta.overlap(traces, by="step").steps.sort(key)["at_ns"].to_list() == starts
    timeline = ta.timeline(traces)
    by_lane = timeline.steps.join(timeline.lanes[["lane", "path"]], on="lane")
    drawn = by_lane.sort("path", "start")["start"].to_list()
    assert drawn[: len(starts) // 2] == pytest.approx(starts[: len(starts) // 2], abs=50)
    kernels = pl.concat(
        one.events.filter(kind="kernel").select(pl.lit(one.meta.path).alias("path"), "ts")
        for one in traces
    )
    queues = ta.launches(traces).queue.lengths
    assert 0 < queues["at_ns"].min() < min(expected(kernels, "ts"))  # type: ignore[operator]


SINCE = 60_000_000


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("analyze", "table"),
    [
        (ta.gpu_idle, "gaps"),
        (ta.steps, "steps"),
        (ta.comm_outliers, "instances"),
    ],
)
def test_times_do_not_depend_on_the_window(analyze: Callable[..., ta.Result], table: str) -> None:
    file = RANKS / "rank3.json.gz"
    whole, part = (
        set(getattr(analyze(file, since_ns=since), table)["at_ns"]) for since in (None, SINCE)
    )
    later = {time for time in part if time > SINCE + 5_000_000}
    assert later
    assert later < whole


def test_a_time_of_a_table_is_a_window() -> None:
    file = RANKS / "rank3.json.gz"
    gap = ta.gpu_idle(file).gaps.drop_nulls("before").row(0, named=True)
    length = gap["end"] - gap["start"]
    window = {"since_ns": gap["at_ns"] - 1000, "until_ns": gap["at_ns"] + length + 1000}
    (row,) = ta.gpu_idle(file, **window).gaps.to_dicts()
    assert (row["at_ns"], row["start"]) == (gap["at_ns"], gap["start"])


def test_drawings_begin_with_the_first_work() -> None:
    drawing = ta.timeline(RANKS / "rank3.json.gz").drawing()
    first = ta.gpu_idle(RANKS / "rank3.json.gz").units["at_ns"].min()
    assert drawing.lanes["start"].to_list() == [first, first], "the device, and the critical path"
