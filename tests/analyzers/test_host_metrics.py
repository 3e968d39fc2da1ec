"""Counters over time; Composer's counters with corrected names and units."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from trace_rows import table
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.host_metrics.compute import host_metrics
from traceanalyzer.analyzers.host_metrics.result import HostMetrics
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.parsers.chrome_trace.producers import true_counter
from traceanalyzer.trace import Meta, Trace

COMPOSER = ROOT / "fixtures/composer"
RANK0, RANK1 = sorted(COMPOSER.iterdir())
S = 1_000_000_000


def events_of(path: Path) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
    return result


def readings(
    *rows: tuple[int, float], name: str = "c", series: str = "s", **more: Any
) -> list[dict[str, Any]]:
    """Readings at seconds."""
    lane = {"rank": 0, "pid": 1, **more}
    return [{"ts": ts * S, "name": name, "series": series, "value": v, **lane} for ts, v in rows]


def trace(*rows: dict[str, Any], start: int | None = 0, path: str = "a.json", **meta: Any) -> Trace:
    source = Meta(path=path, format="test", start_ns=start, **meta)
    return Trace((source,), counters=table("counters", *sorted(rows, key=lambda row: row["ts"])))


def only(result: HostMetrics) -> dict[str, Any]:
    (row,) = result.counters.to_dicts()
    return row


# --- Composer's units ------------------------------------------------------------------------


def test_fixture_matches_its_script(tmp_path: Path) -> None:
    script = ROOT / "fixtures/make_composer.py"
    subprocess.run([sys.executable, "-B", script, tmp_path], check=True)
    written = {path.name: gzip.decompress(path.read_bytes()) for path in tmp_path.rglob("*.gz")}
    assert written == {p.name: gzip.decompress(p.read_bytes()) for p in COMPOSER.iterdir()}


@pytest.mark.parametrize(
    ("name", "series", "expected"),
    [
        ("memory/swap", "used_gb", ("memory/swap", "used_bytes", 512)),
        ("memory/swap", "free_gb", ("memory/swap", "free_bytes", 512)),
        ("memory/virtual", "used_gb", ("memory/virtual", "used_bytes", 512)),
        ("memory/virtual", "available_gb", ("memory/virtual", "available_bytes", 512)),
        ("network/eth0/kb_sent", "kb_sent", ("network/eth0", "sent_bytes", 8)),
        ("network/a/b/kb_recv", "kb_recv", ("network/a/b", "recv_bytes", 8)),
        ("disk/sda/read_bytes", "field_name", ("disk/sda", "read_bytes", 1)),
        ("disk/sda/write_count", "field_name", ("disk/sda", "write_count", 1)),
        ("disk/sda/busy_time", "field_name", ("disk/sda", "busy_time_ms", 1)),
        (
            "memory/cuda/current_allocated_mem",
            "current_allocated_mem",
            ("memory/cuda", "current_allocated_bytes", 10**9),
        ),
        ("memory/cuda/alloc_retries", "alloc_retries", ("memory/cuda", "alloc_retries", 1)),
        # a spelling of Composer only
        ("cpu", "cpu_percent", None),
        ("memory/swap", "used_bytes", None),
        ("memory/swap[1]", "used_gb", None),
        ("my/memory/swap", "used_gb", None),
        ("memory/virtual", "percent", None),
        ("network/eth0/kb_sent", "kb_recv", None),
        ("network/eth0", "sent_bytes", None),
        ("disk/sda/read_bytes", "read_bytes", None),
        ("disk/sda/reads", "field_name", None),
        ("disk/sda", "read_bytes", None),
        ("memory/cuda/allocated_mem", "allocated_mem", None),
        ("memory/cuda", "current_allocated_bytes", None),
    ],
)
def test_composer_spellings_are_corrected(
    name: str, series: str, expected: tuple[str, str, int] | None
) -> None:
    assert true_counter(name, series) == expected


@settings(max_examples=50)
@given(
    st.sampled_from(["memory/swap", "memory/cuda/peak_active_mem", "disk/x/read_time"])
    | st.text("disk/networkb_", max_size=20),
    st.sampled_from(["used_gb", "field_name", "kb_sent", "peak_active_mem", "alloc_retries"]),
)
def test_corrected_counters_are_not_corrected_again(name: str, series: str) -> None:
    once = true_counter(name, series)
    if once is not None and (once.name, once.series) != (name, series):
        assert true_counter(once.name, once.series) in (None, (once.name, once.series, 1))


def test_tables_have_the_simulated_values() -> None:
    expected = defaultdict(list)
    for event in events_of(RANK1):
        if event["ph"] != "C":
            continue
        ((series, value),) = list(event["args"].items())[:1]
        kind = event["name"].split("/")
        if kind[0] == "network":
            key, value = (f"network/{kind[1]}", series[3:] + "_bytes"), value * 8
        elif kind[0] == "disk":
            key = (f"disk/{kind[1]}", kind[2] + ("_ms" if kind[2].endswith("_time") else ""))
        elif kind[:2] == ["memory", "cuda"]:
            key = ("memory/cuda", series.replace("_mem", "_bytes"))
            value = round(value * 1e9) if series.endswith("_mem") else value
        elif kind[0] == "memory":
            key, value = (event["name"], series.replace("_gb", "_bytes")), value * 512
        else:
            key = (event["name"], series)
        expected[key].append((event["ts"] * 1000, value))
    counters = ta.read(RANK1, kinds=["counter"]).counters
    for key, values in expected.items():
        name, series = key
        readings = counters.filter(pl.col("name") == name, pl.col("series") == series)
        assert readings.select("ts", "value").rows() == values, key


def test_memory_matches_the_simulated_host() -> None:
    counters = ta.read(RANK0, kinds=["counter"]).counters
    both = (
        counters.filter(pl.col("name") == "memory/virtual")
        .group_by("ts")
        .agg(pl.col("value").sum())
    )
    assert both["value"].unique().to_list() == [62 * 2**30]
    swap = (
        counters.filter(pl.col("name") == "memory/swap").group_by("ts").agg(pl.col("value").sum())
    )
    assert swap["value"].unique().to_list() == [8 * 2**30]


def test_correction_is_reported_once(tmp_path: Path) -> None:
    trace = ta.read(RANK0)
    values = trace.issues.filter(pl.col("code") == "composer-units").to_dicts()
    changed = sum(len(e["args"]) for e in events_of(RANK0) if e["ph"] == "C" and e["name"] != "cpu")
    assert [(row["severity"], row["count"]) for row in values] == [("info", changed)]
    ta.convert(RANK0, tmp_path / "again.json")
    again = ta.read(tmp_path / "again.json")
    assert again.counters.equals(trace.counters)
    assert "composer-units" not in again.issues["code"].to_list()


def test_files_without_counters_have_no_issue() -> None:
    issues = ta.read(RANK0, kinds=["other"]).issues
    assert "composer-units" not in issues["code"].to_list()


# --- statistics ------------------------------------------------------------------------------


def test_means_are_weighted_by_time() -> None:
    result = only(host_metrics(trace(*readings((0, 10), (1, 40), (5, 20)))))
    assert (result["n"], result["first"], result["last"]) == (3, 10, 20)
    assert (result["min"], result["median"], result["max"]) == (10, 20, 40)
    # 10 for 1 s and 40 for 4 s; the duration of 20 is unknown
    assert result["mean"] == pytest.approx((10 + 4 * 40) / 5)
    assert (result["unit"], result["rate"]) == ("", False)


def test_single_reading_equals_its_mean() -> None:
    result = host_metrics(trace(*readings((3, 7))))
    assert (only(result)["mean"], only(result)["n"], result.span_ns) == (7, 1, 0)
    assert result.table()
    check_wording(result.verdict)


def test_cumulative_counters_become_rates() -> None:
    rows = readings((0, 100), (2, 300), (3, 350), name="disk/sda", series="read_bytes")
    result = only(host_metrics(trace(*rows)))
    assert (result["unit"], result["n"], result["rate"]) == ("bytes/s", 2, True)
    assert (result["first"], result["last"]) == (100, 50)
    assert result["mean"] == pytest.approx(250 / 3)


def test_counter_reset_has_no_rate() -> None:
    rows = readings((0, 900), (1, 1000), (2, 5), (4, 105), name="network/lo", series="sent_bytes")
    result = host_metrics(trace(*rows))
    assert (only(result)["n"], only(result)["min"], only(result)["max"]) == (2, 50, 100)
    assert result.resets == 1
    check_wording(*result.notes)


def test_readings_at_equal_times_have_no_rate() -> None:
    rows = readings((0, 1), (1, 2), (1, 8), (2, 9), name="disk/sda", series="read_count")
    result = only(host_metrics(trace(*rows)))
    assert (result["n"], result["min"], result["max"]) == (2, 1, 1)
    assert result["unit"] == "1/s"


def test_single_reading_of_a_cumulative_counter_has_no_rate() -> None:
    rows = readings((0, 1), name="disk/sda", series="read_count")
    result = host_metrics(trace(*rows, *readings((0, 1))))
    assert result.counters["counter"].to_list() == ["c"]
    alone = host_metrics(trace(*rows))
    assert alone.counters.is_empty()
    assert alone.verdict
    assert alone.table()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 100)),
        min_size=1,
        max_size=12,
        unique_by=lambda reading: reading[0],
    )
)
def test_means_and_rates_agree_with_a_plain_loop(values: list[tuple[int, int]]) -> None:
    values.sort()
    steps = list(pairwise(values))
    weighted = sum((b - a) * v for (a, v), (b, _) in steps)
    span = values[-1][0] - values[0][0]
    result = only(host_metrics(trace(*readings(*values))))
    assert result["mean"] == pytest.approx(weighted / span if span else values[0][1])
    up = [((w - v), (b - a)) for (a, v), (b, w) in steps if w >= v]
    rows = readings(*values, name="disk/sda", series="read_bytes")
    rates = host_metrics(trace(*rows))
    assert rates.resets == len(steps) - len(up)
    if up:
        mean = sum(more for more, _ in up) / sum(lasted for _, lasted in up)
        assert only(rates)["mean"] == pytest.approx(mean)
        assert only(rates)["max"] == pytest.approx(max(more / lasted for more, lasted in up))


# --- which counter of whom -------------------------------------------------------------------


def test_processes_are_labelled_by_rank_name_or_number() -> None:
    lanes = table("lanes", {"rank": None, "pid": 7, "label": "loader", "textual": False})
    rows = [*readings((0, 1), rank=None, pid=7), *readings((0, 2), rank=None, pid=8)]
    recorded = trace(*rows)
    named = Trace(recorded.sources, counters=recorded.counters, lanes=lanes)
    assert host_metrics(named).counters["on"].to_list() == ["loader", "process 8"]
    ranks = [trace(*readings((0, r), rank=r), path=f"{r}.json") for r in range(2)]
    result = host_metrics(ranks)
    assert result.counters["on"].to_list() == ["rank 0", "rank 1"]
    assert result.series.select("n", "min", "max", "max_on").rows() == [(2, 0, 1, "rank 1")]


def test_files_with_absolute_times_share_a_clock() -> None:
    origin = 1_700_000_000 * S
    early = trace(*readings((1_700_000_000, 1), (1_700_000_001, 2), rank=0), start=origin)
    late = trace(*readings((1_700_000_005, 3), rank=1), start=origin + 5 * S, path="b.json")
    result = host_metrics([early, late])
    assert result.readings["at_ns"].to_list() == [0, S, 5 * S]
    # a clock that starts with the machine cannot be compared with other files
    apart = host_metrics([trace(*readings((5, 1))), trace(*readings((9, 1)), start=9 * S)])
    assert apart.readings["at_ns"].to_list() == [5 * S, 0]


def test_patterns_select_counters() -> None:
    rows = [*readings((0, 1)), *readings((0, 1), name="disk/a", series="x"), *readings((1, 2))]
    assert host_metrics(trace(*rows), counters=["^c/s$"]).counters.height == 1
    with raises_wording(MissingData):
        host_metrics(trace(*rows), counters=["q"])
    with raises_wording(OptionError):
        host_metrics(trace(*rows), counters=["("])


def test_missing_counters_error_has_a_recording_hint() -> None:
    with raises_wording(MissingData):
        host_metrics(trace())
    with pytest.raises(OptionError, match="no input"):
        host_metrics([])


# --- what stands out -------------------------------------------------------------------------


def test_problems_of_the_fixture_are_named() -> None:
    text = ta.host_metrics(COMPOSER).verdict
    check_wording(text)


def test_idle_host_has_no_problem() -> None:
    rows = [
        *readings((0, 50), (1, 60), (2, 50), name="cpu", series="cpu_percent"),
        *readings((0, 60), (1, 61), name="memory/virtual", series="used_bytes"),
        *readings((0, 40), (1, 39), name="memory/virtual", series="available_bytes"),
        *readings((0, 0), (1, 0), name="memory/swap", series="used_bytes"),
        *readings((0, 3), (1, 3), name="memory/cuda", series="alloc_retries"),
        *readings((0, 0), (1, 0), name="network/lo", series="sent_bytes"),
    ]
    text = host_metrics(trace(*rows)).verdict
    check_wording(text)


def test_charts_omit_constant_series() -> None:
    rows = [*readings((0, 1), (1, 1)), *readings((0, 1), (1, 2), series="t")]
    (chart,) = host_metrics(trace(*rows)).charts
    assert chart.frame["counter"].unique().to_list() == ["t"]
    (chart,) = host_metrics(trace(*readings((0, 1), (1, 1)))).charts
    assert chart.frame.height == 2


# --- the command -----------------------------------------------------------------------------


def test_text_output(run_cli: Callable[..., Any], golden: Callable[..., None]) -> None:
    done = run_cli("host-metrics", "fixtures/composer", "-q", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    golden("host_metrics_composer.txt", done.stdout)


def test_csv_has_all_series_in_base_units(run_cli: Callable[..., Any]) -> None:
    done = run_cli(
        "host-metrics", RANK0, "-q", "--to", "csv", "--counter", "^memory/swap", "--counter", "^cpu"
    )
    head, *lines = done.stdout.splitlines()
    assert head.startswith("on,rank,path,pid,process,counter,series,unit,rate,n,first,min,mean")
    assert [line.split(",")[5:8] for line in lines] == [
        ["cpu", "cpu_percent", "%"],
        ["memory/swap", "free_bytes", "bytes"],
        ["memory/swap", "used_bytes", "bytes"],
    ]


@pytest.mark.matrix
def test_plot_is_written(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    plot = tmp_path / "a.svg"
    chosen = ("--counter", "cpu|read_bytes|virtual/used")
    done = run_cli("host-metrics", COMPOSER, "-q", *chosen, "-o", tmp_path / "a", "--plot", plot)
    assert (done.returncode, done.stderr) == (0, "")
    drawn = plot.read_text()
    for title in ("cpu", "disk, per second", "memory/virtual", "counter nvme0n1 read_bytes"):
        assert f">{title}<" in drawn


def test_command_without_counters_has_a_recording_hint(run_cli: Callable[..., Any]) -> None:
    done = run_cli("host-metrics", "fixtures/nccl_8ranks/rank0.json.gz", cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Profiler(sys_prof_cpu=True" in done.stderr


def test_counters_of_other_writers_are_read(shared: Path) -> None:
    path = shared / "data/chrome/conformance/malformed/51_counter_multi_series.json"
    result = ta.host_metrics(path)
    assert result.counters.height == result.counters.select("counter", "series").n_unique()
    assert result.counters["n"].sum() == ta.read(path).counters.height


# --- counters of kernels -----------------------------------------------------------------------


def kernel(name: str, start: float, end: float, device: int = 0) -> dict[str, Any]:
    ts = round(start * S)
    dur = round(end * S) - ts
    return {"kind": "kernel", "name": name, "ts": ts, "dur": dur, "device": device, "rank": 0}


def with_kernels(*kernels: dict[str, Any]) -> Trace:
    values = readings((0, 10.0), (1, 30.0), (3, 50.0), (4, 0.0), name="SMs Active", series="GPU 0")
    return replace(trace(*values), events=table("events", *kernels))


def test_counter_of_a_kernel_is_the_mean_while_it_ran() -> None:
    recording = with_kernels(
        kernel("a", 0.5, 1.5), kernel("b", 1, 2), kernel("a", 3, 9), kernel("c", 0, 4, device=1)
    )
    result = host_metrics(recording, by="kernel")
    # a: 0.5 s of 10, 0.5 s of 30 and, up to the last reading, 1 s of 50
    assert result.kernels.rows() == [
        ("a", "SMs Active", 2 * S, 35.0),
        ("b", "SMs Active", S, 30.0),
    ]
    (by_kernel,) = (table for table in result.view().tables if table.name == "kernels")
    assert by_kernel.frame.rows() == [("a", 2 * S, 35.0), ("b", S, 30.0)]
    assert host_metrics(recording).kernels.is_empty()


@given(st.lists(st.tuples(st.floats(-1, 5), st.floats(0, 5)), min_size=1, max_size=9))
def test_counter_of_a_kernel_is_between_its_readings(spans: list[tuple[float, float]]) -> None:
    recording = with_kernels(*(kernel("a", start, start + dur) for start, dur in spans))
    covered = sum(max(0, min(4, start + dur) - max(0, start)) for start, dur in spans)
    if covered < 1e-6:
        return
    (row,) = host_metrics(recording, by="kernel").kernels.rows(named=True)
    assert row["dur_ns"] / S == pytest.approx(covered, abs=1e-6)
    assert 10 - 1e-6 <= row["mean"] <= 50 + 1e-6


def test_counters_by_kernel_without_both_are_an_error() -> None:
    with pytest.raises(MissingData):
        host_metrics(with_kernels(kernel("c", 0, 4, device=1)), by="kernel")
