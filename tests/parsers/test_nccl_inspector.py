"""Lines of NCCL Inspector: rows, events, ranks, damaged and hostile lines, the straggler."""

from __future__ import annotations

import json
import runpy
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput, MissingData
from traceanalyzer.vocabulary import NCCL_INSPECTOR

FIXTURES = Path(__file__).parents[2] / "fixtures"
FOLDER = FIXTURES / "nccl_inspector"
SCRIPT = runpy.run_path(str(FIXTURES / "make_nccl_inspector.py"))
LATE = SCRIPT["LATE_US"] * 1000


def records(kind: str) -> list[dict[str, Any]]:
    """All lines, read with the standard library."""
    paths = sorted((FOLDER / kind).iterdir())
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def written(tmp_path: Path, *lines: dict[str, Any] | str | bytes, name: str = "one.log") -> Path:
    texts = [json.dumps(one) if isinstance(one, dict) else one for one in lines]
    path = tmp_path / name
    path.write_bytes(b"\n".join(t.encode() if isinstance(t, str) else t for t in texts) + b"\n")
    return path


def changed(record: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A record with other values, wherever their keys are."""
    return {
        section: {key: values.get(key, value) for key, value in of_section.items()}
        for section, of_section in record.items()
    }


def issues(trace: ta.Trace) -> dict[str, int]:
    return dict(trace.issues.select("code", "count").iter_rows())


def expected() -> tuple[Counter[int], dict[int, float], int]:
    """Times last, imposed wait time in ns by rank, and the sum: by the definition, in Python.

    Ranks of a communicator of one host are converted to ranks of the job.
    """
    durations: dict[tuple[str, str, int], list[tuple[float, int]]] = defaultdict(list)
    for one in records("brief"):
        perf, pid = one["coll_perf"], one["metadata"]["pid"]
        key = (one["header"]["id"], perf["coll"], perf["coll_sn"])
        durations[key].append((perf["coll_exec_time_us"] * 1000, pid - 4000))
    last: Counter[int] = Counter()
    imposed: dict[int, float] = defaultdict(float)
    for rows in durations.values():
        shortest, rank = min(rows)
        waits = sum(time - shortest for time, _ in rows)
        if waits:
            last[rank] += 1
            imposed[rank] += waits
    return last, imposed, int(sum(imposed.values()))


def test_durations_are_rows_of_aggregates() -> None:
    for path in sorted((FOLDER / "brief").iterdir()):
        trace = ta.read(path)
        assert schema.check(trace.tables) == []
        rank = int(path.stem[-1])
        assert (trace.meta.format, trace.meta.rank, trace.meta.world_size) == (
            NCCL_INSPECTOR,
            rank,
            4,
        )
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        rows = trace.aggregates.filter(pl.col("metric") == "total_ns").sort("line")
        assert rows["value"].to_list() == [
            one["coll_perf"]["coll_exec_time_us"] * 1000 for one in lines
        ]
        assert rows["row"].to_list() == [one["coll_perf"]["coll_sn"] for one in lines]
        assert {*rows["name"]} == {"all_reduce", "all_gather"}
        assert trace.issues.is_empty()


def test_times_make_events() -> None:
    path = FOLDER / "verbose/node1-pid4002.log"
    trace = ta.read(path)
    assert schema.check(trace.tables) == []
    lines = [json.loads(line)["coll_perf"] for line in path.read_text().splitlines()]
    assert trace.meta.epoch_ns is not None
    ends = [
        max(event["kernel_stop_ts"] for event in one["event_trace_ts"]["kernel_events"]) * 1000
        for one in lines
    ]
    events = trace.events
    assert (events["ts"] + events["dur"] + trace.meta.epoch_ns).to_list() == ends
    assert events["dur"].to_list() == [one["coll_exec_time_us"] * 1000 for one in lines]
    assert trace.collectives["seq"].to_list() == [one["coll_sn"] for one in lines]


def test_shortest_duration_is_the_straggler() -> None:
    last, imposed, total = expected()
    result = ta.comm_outliers(FOLDER / "brief")
    assert result.totals.total_wait_ns == total
    rows = {row["rank"]: row for row in result.ranks.iter_rows(named=True)}
    assert {rank: row["imposed_ns"] for rank, row in rows.items() if row["imposed_ns"]} == imposed
    assert {rank: row["times_last"] for rank, row in rows.items() if row["times_last"]} == last
    assert result.ranks["rank"][0] == SCRIPT["STRAGGLER"]
    assert {*result.delayed.collectives["last_process"]} == {"rank 2"}
    assert result.delayed.collectives.height == SCRIPT["N_ALL_REDUCE"] / 3
    assert result.delayed.collectives["arrival_delay_ns"].to_list() == [LATE - 20_000] * 4


def test_durations_and_times_agree() -> None:
    brief, verbose = (ta.comm_outliers(FOLDER / kind) for kind in ("brief", "verbose"))
    assert brief.totals.total_wait_ns == verbose.totals.total_wait_ns
    columns = ["rank", "comm_ns", "wait_ns", "imposed_ns", "times_last"]
    one, other = (result.ranks.select(columns).sort("rank") for result in (brief, verbose))
    assert one.rows() == other.rows()
    sizes = [{*result.groups["message_bytes"]} for result in (brief, verbose)]
    assert sizes[0] == sizes[1] == {64 << 20, 16 << 20}  # all_gather counts its output
    # other device work is not recorded
    assert verbose.ranks["busy_ns"].null_count() == 4
    assert verbose.delayed.windows == ()


def test_bandwidth_is_that_of_the_line_without_wait_time(tmp_path: Path) -> None:
    """The rank that arrived last measures the transfer alone: NCCL's busbw of it is ours."""
    result = ta.comm_outliers(FOLDER / "brief")
    best = max(one["coll_perf"]["coll_busbw_gbs"] for one in records("brief")
               if one["coll_perf"]["coll"] == "AllReduce")  # fmt: skip
    assert result.groups.filter(collective="all_reduce")["busbw_gbps"][0] == pytest.approx(best)
    # a version whose message is the full one has a bandwidth of it
    one = next(r for r in records("brief") if r["coll_perf"]["coll"] == "AllGather")
    perf = one["coll_perf"]
    rate = perf["coll_msg_size_bytes"] / perf["coll_exec_time_us"] / 1000
    full = changed(one, coll_algobw_gbs=rate)
    assert ta.comm_outliers(written(tmp_path, full)).groups["message_bytes"].to_list() == [8 << 20]


def test_joined_files_and_one_file(tmp_path: Path) -> None:
    joined = written(tmp_path, *[json.dumps(one) for one in records("brief")])
    result = ta.comm_outliers(joined)
    assert result.totals.total_wait_ns == expected()[2]
    assert result.ranks["rank"].to_list()[0] == 2
    alone = ta.comm_outliers(FOLDER / "brief/node0-pid4000.log")
    assert (alone.totals.n_collectives, alone.totals.total_wait_ns) == (0, 0)


def test_ranks_that_are_not_unique(tmp_path: Path) -> None:
    """Without a communicator of all ranks, a rank in one of them is no rank of the job."""
    rows = [one for one in records("brief") if one["coll_perf"]["coll"] == "AllGather"]
    result = ta.comm_outliers(written(tmp_path, *rows))
    assert {*result.ranks["process"]} == {f"node{rank // 2} pid {4000 + rank}" for rank in range(4)}
    assert result.totals.n_collectives == 2 * SCRIPT["N_ALL_GATHER"]


def test_missing_ranks_roots_and_repeated_lines(tmp_path: Path) -> None:
    first, *others = (one for one in records("brief") if one["coll_perf"]["coll_sn"] == 0)
    all_reduce = [one for one in (first, *others) if one["coll_perf"]["coll"] == "AllReduce"]
    partial = written(tmp_path, *all_reduce[:3], all_reduce[0])
    result = ta.comm_outliers(partial)
    assert (result.totals.n_events, result.totals.n_collectives) == (3, 1)
    assert result.collectives["missing"].to_list() == [1]
    rooted = written(tmp_path, *(changed(one, coll="Broadcast") for one in all_reduce))
    assert ta.comm_outliers(rooted).totals.n_collectives == 0
    hosts = (changed(one, coll_timing_source="collective_cpu") for one in all_reduce)
    assert ta.comm_outliers(written(tmp_path, *hosts)).totals.n_collectives == 0


def test_damaged_lines_are_counted(tmp_path: Path) -> None:
    good = [json.dumps(one) for one in records("brief")[:3]]
    bad = written(tmp_path, good[0], "{", "", b"\xff\xfe", good[1], "[1]", good[2])
    assert issues(ta.read(bad)) == {"bad-line": 3}
    truncated = tmp_path / "truncated.log"
    truncated.write_text("\n".join(good)[:-40])
    trace = ta.read(truncated)
    assert issues(trace) == {"truncated-line": 1}
    assert trace.aggregates.filter(pl.col("metric") == "total_ns").height == 2
    other = written(tmp_path, good[0], {"header": json.loads(good[0])["header"], "p2p_perf": {}})
    assert issues(ta.read(other)) == {"other-record": 1}


@pytest.mark.parametrize(
    "values",
    [
        {"coll_sn": -1},
        {"coll_sn": 1 << 80},
        {"rank": 4},
        {"n_ranks": 0},
        {"n_ranks": 1 << 40},
        {"coll_exec_time_us": 0},
        {"coll_exec_time_us": 1e300},
        {"coll_msg_size_bytes": -5},
    ],
)
def test_impossible_numbers_are_counted(values: dict[str, Any], tmp_path: Path) -> None:
    good = records("brief")[0]
    assert issues(ta.read(written(tmp_path, good, changed(good, **values)))) == {
        "number-out-of-range": 1
    }


def test_hostile_texts(tmp_path: Path) -> None:
    good = records("brief")[0]
    hostile = changed(good, coll="<script>\x1b[31m" * 100, hostname="\u202e=1+1", id="\0" * 999)
    trace = ta.read(written(tmp_path, hostile))
    assert schema.check(trace.tables) == []
    text = ta.comm_outliers(written(tmp_path, hostile)).view().verdict
    assert "\x1b" not in text
    deep = written(tmp_path, good, "[" * 100_000)
    assert issues(ta.read(deep)) == {"truncated-line": 1}


def test_no_collective_is_an_error(tmp_path: Path) -> None:
    header = json.dumps({"header": records("brief")[0]["header"], "coll_perf": {}})
    with pytest.raises(MalformedInput):
        ta.read(written(tmp_path, header))
    with pytest.raises(MissingData):
        ta.diagnose(FOLDER / "brief")


@pytest.mark.parametrize("function", [ta.overlap, ta.gpu_idle, ta.timeline])
def test_idle_time_is_unknown(function: Any) -> None:
    """Other kernels are not recorded, so that time without a collective is not idle."""
    with pytest.raises(MissingData, match="NCCL Inspector"):
        function(FOLDER / "verbose")
