"""Requests: times against those of the simulated engine and of the logs, division by steps."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer.analyzers.requests.compute import requests
from traceanalyzer.errors import MissingData

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "requests"
ENGINE = FIXTURES / "engine.pt.trace.json.gz"


@cache
def simulated() -> Any:
    """Return the requests that the simulated engine of the fixtures served."""
    sys.path.insert(0, str(ROOT / "fixtures"))
    import make_requests

    return make_requests.served()[0], make_requests


@cache
def result(*names: str) -> Any:
    """Return the requests of these files."""
    return requests([FIXTURES / name for name in names])


def latency(name: str, time: str, of: Any) -> float:
    """Return a statistic of a time."""
    return float(of.latencies.filter(pl.col("time") == time)[name][0])


@pytest.mark.parametrize(
    ("name", "whole"), [("vllm.json", "e2el"), ("sglang.jsonl", "e2e_latency")]
)
def test_statistics_equal_those_in_the_log(name: str, whole: str) -> None:
    log = json.loads((FIXTURES / name).read_text().splitlines()[0])
    of_run = result(name)
    for time, key in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", whole)):
        for column, stat in (("mean_ns", "mean"), ("p50_ns", "median"), ("p99_ns", "p99")):
            expected = 1e6 * log[f"{stat}_{key}_ms"]
            assert latency(column, time, of_run) == pytest.approx(expected, rel=1e-12)
            if stat != "median":
                assert latency(f"stated_{column}", time, of_run) == pytest.approx(expected)
    assert of_run.runs["failed"][0] == 1
    assert of_run.runs["requests"][0] - 1 == log["completed"]
    assert of_run.runs["request_throughput"][0] == log["request_throughput"]
    assert of_run.requests["error"].drop_nulls().to_list() == ["TimeoutError"]


@pytest.mark.parametrize("name", ["spans.json", "jaeger.json", "journey.json"])
def test_parts_are_those_of_the_engine(name: str) -> None:
    served, script = simulated()
    rows = result(name).requests.sort("start_ns")
    assert rows["request"].to_list() == [f"cmpl-{number}" for number in range(len(served))]
    for key in ("ttft", "e2e", "queue"):
        expected = [1e9 * script.times(one)[key] for one in served]
        assert rows[f"{key}_ns"].to_list() == pytest.approx(expected, rel=1e-9, abs=2)
    paused = [sum(1000 * (end - begin) for begin, end in one.paused_us) for one in served]
    assert sum(paused) > 1e6
    in_decode = rows["decode_ns"] + rows["preempted_ns"].fill_null(0)
    decode = [1e9 * script.times(one)["decode"] for one in served]
    assert in_decode.to_list() == pytest.approx(decode, rel=1e-9, abs=2)
    if name == "journey.json":
        assert rows["preempted_ns"].to_list() == pytest.approx(paused, abs=2)
        assert rows["preemptions"].to_list() == [len(one.paused_us) for one in served]
    other = rows["other_ns"].to_list()
    assert other == pytest.approx([1000 * script.API_US] * len(served), abs=2_000)


def test_decode_in_prefill_steps() -> None:
    """A prefill step is one in which a request gets its first token, or one again."""
    served, _ = simulated()
    divided = result("spans.json", ENGINE.name)
    assert divided.engine == str(ENGINE)
    of_prefill = divided.phases.filter(pl.col("part") == "prefill")
    shares = dict(of_prefill[["phase", "share_frac"]].iter_rows())
    assert shares["mixed"] + shares["prefill"] > 0.95
    sums = divided.phases.group_by("part").agg(pl.col("total_ns").sum(), pl.col("share_frac").sum())
    for part, total, frac in sums.iter_rows():
        assert frac == pytest.approx(1)
        of_requests = divided.requests[f"{part}_ns"].sum()
        assert total == pytest.approx(of_requests, abs=2 * len(served))
    # the simulated steps end when all of their requests have a token
    begins = sorted(
        {us for one in served for us in (one.scheduled_us, *(e for _, e in one.paused_us))}
    )
    ends = sorted({us for one in served for us in one.token_us})
    prefills = [(begin, min(end for end in ends if end > begin)) for begin in begins]
    for one, ns in zip(served, divided.requests.sort("start_ns")["in_prefill_ns"], strict=True):
        first, last = one.token_us[0], one.token_us[-1]
        within = sum(max(0, min(end, last) - max(begin, first)) for begin, end in prefills)
        # a step on the device is shorter than the time from its schedule to its tokens
        assert 0.5 * within - 100 <= ns / 1000 <= within + 100


def test_without_a_common_clock_requests_are_not_divided() -> None:
    of_benchmark = result("vllm.json", ENGINE.name)
    assert of_benchmark.engine is not None
    assert of_benchmark.phases.is_empty()
    assert of_benchmark.requests["queue_ns"].null_count() == of_benchmark.requests.height
    assert len(result("vllm.json").view().notes) >= 1


def test_a_log_without_details_shows_what_it_states(tmp_path: Path) -> None:
    line = (FIXTURES / "sglang.jsonl").read_text().splitlines()[1]
    (tmp_path / "short.jsonl").write_text(line)
    short = requests(tmp_path / "short.jsonl")
    assert short.requests.is_empty()
    stated = json.loads(line)["mean_ttft_ms"] * 1e6
    assert latency("stated_mean_ns", "ttft", short) == pytest.approx(stated)
    assert f"{short}"


def test_statistics_of_other_requests_are_noted(tmp_path: Path) -> None:
    log = json.loads((FIXTURES / "vllm.json").read_text())
    equal = len(result("vllm.json").view().notes)
    (tmp_path / "log.json").write_text(json.dumps({**log, "mean_ttft_ms": 2 * log["mean_ttft_ms"]}))
    assert len(requests(tmp_path / "log.json").view().notes) == equal + 1


def test_percentiles_are_those_of_numpy() -> None:
    rows = result("spans.json").requests["ttft_ns"].to_numpy()
    for q in (50, 90, 99):
        assert latency(f"p{q}_ns", "ttft", result("spans.json")) == pytest.approx(
            np.percentile(rows, q)
        )


def test_inputs_without_requests() -> None:
    with pytest.raises(MissingData):
        requests(ENGINE)
    with pytest.raises(MissingData):
        requests(ROOT / "fixtures" / "nccl_8ranks" / "rank0.json.gz")
    with pytest.raises(MissingData):
        ta.kernels(FIXTURES / "vllm.json")


def test_a_trace_of_spans_in_memory_has_the_method() -> None:
    of_trace = ta.read(FIXTURES / "spans.json").requests()
    assert of_trace.requests.height == result("spans.json").requests.height


@pytest.mark.parametrize(
    ("more", "failed"),
    [
        ({"ttfts": [0, 0], "itls": [[], []], "errors": ["x", "y"]}, 2),
        ({"p99_ttft_ms": 5.0}, 0),
    ],
)
def test_verdict_without_answered_requests(
    more: dict[str, Any], failed: int, tmp_path: Path
) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"request_throughput": 1, "completed": 2, "duration": 1, **more}))
    result = ta.requests(path)
    assert result.scalars["n_failed"] == failed
    assert bool(result.verdict) == bool(failed)  # a mean that is not in the log is not shown


def test_charts_do_not_add_requests_of_several_logs() -> None:
    several = result("spans.json", "journey.json")
    parts, first_tokens = several.charts
    whole = parts.frame.group_by(parts.x).agg(pl.col(parts.y).sum())[parts.y]
    assert whole.max() == pytest.approx(several.requests["e2e_ns"].max())
    assert first_tokens.color is not None
    assert set(first_tokens.frame[first_tokens.color]) == {"spans.json", "journey.json"}


def write_benchmark(folder: Path, places: int, prompts: list[int], every_s: float) -> Path:
    """Write the log of an engine that serves so many requests at a time.

    A step takes 10 ms and 10 us per token of the prompts that begin in it; each request gets a
    token in each step, 20 in all. Requests arrive at equal distance.
    """
    now, at, waiting, running = 0.0, [i * every_s for i in range(len(prompts))], [], []
    tokens: list[list[float]] = [[] for _ in prompts]
    arrived = 0
    while min(map(len, tokens)) < 20:
        while arrived < len(at) and at[arrived] <= now:
            waiting.append(arrived)
            arrived += 1
        new = waiting[: places - len(running)]
        del waiting[: len(new)]
        running += new
        now += 0.01 + 1e-5 * sum(prompts[one] for one in new)
        for one in running:
            tokens[one].append(now)
        running = [one for one in running if len(tokens[one]) < 20]
    log = {
        "backend": "vllm", "num_prompts": len(prompts), "completed": len(prompts), "duration": now,
        "input_lens": prompts, "output_lens": [20] * len(prompts), "start_times": at,
        "ttfts": [each[0] - begin for each, begin in zip(tokens, at, strict=True)],
        "itls": [np.diff(each).tolist() for each in tokens], "errors": [""] * len(prompts),
        "mean_ttft_ms": 1.0, "request_throughput": 1.0,
    }  # fmt: skip
    (folder / "log.json").write_text(json.dumps(log))
    return folder / "log.json"


@pytest.mark.parametrize("places", [4, 100])
def test_requests_that_wait_for_a_place(tmp_path: Path, places: int) -> None:
    log = requests(write_benchmark(tmp_path, places, [100] * 120, 0.02))
    (run,) = log.runs.iter_rows(named=True)
    expected = log.requests["ttft_ns"].median() > 1e9
    assert expected == (places == 4)
    assert (run["most_running"] <= 4) == expected
    assert run["full_frac"] > 0.5
    assert any("max_num_seqs" in text for text in log.verdict.split(". ")) == expected
    assert log.stalls.is_empty()


def test_a_long_prompt_that_stalls_all_requests(tmp_path: Path) -> None:
    prompts = [20_000 if i in (30, 60) else 100 + i % 7 for i in range(90)]
    log = requests(write_benchmark(tmp_path, 100, prompts, 0.02))
    assert log.stalls["input_tokens"].to_list() == [20_000, 20_000]
    assert log.stalls["duration_ns"].to_list() == pytest.approx([0.21e9] * 2, rel=0.05)
    assert "20,000" in log.verdict


def test_a_stall_is_explained_by_prompts_of_the_same_run(tmp_path: Path) -> None:
    logs = []
    for tokens in (20_000, 30_000):
        (folder := tmp_path / str(tokens)).mkdir()
        logs.append(write_benchmark(folder, 100, [100] * 30 + [tokens] + [100] * 30, 0.02))
    assert requests(logs).stalls["input_tokens"].to_list() == [20_000, 30_000]


@pytest.mark.parametrize(
    ("every_s", "late_s", "grows"),
    [(0.1, 0.06, True), (0.1, 0.12, True), (0.1, 0.0, False), (0.01, 0.06, False)],
)
def test_requests_that_arrive_faster_than_they_are_answered(
    tmp_path: Path, every_s: float, late_s: float, grows: bool
) -> None:
    """Each request waits longer than the one before; in a burst at the begin that is no queue."""
    path = write_benchmark(tmp_path, 1000, [100] * 80, 0.1)
    values = json.loads(path.read_text())
    values["start_times"] = [every_s * i for i in range(80)]
    values["ttfts"] = [0.05 + late_s * i for i in range(80)]
    path.write_text(json.dumps(values))
    assert ("last quarter" in requests(path).verdict) == grows


@pytest.mark.parametrize(("every", "stalls"), [(20, 12), (6, 40)])
def test_frequent_stalls_are_stalls(tmp_path: Path, every: int, stalls: int) -> None:
    prompts = [20_000 if i % every == every - 1 else 100 + i % 7 for i in range(240)]
    path = write_benchmark(tmp_path, 100, prompts, 0.04)
    path.write_text(json.dumps({"date": "20260901-101010"} | json.loads(path.read_text())))
    assert requests(path).stalls.height == pytest.approx(stalls, abs=1)


@pytest.mark.parametrize("at_once", [1, 4])
def test_tokens_that_come_at_once_are_no_stalls(tmp_path: Path, at_once: int) -> None:
    """With speculative decoding most gaps are short; the wait of all for a prompt is a stall."""
    prompts = [20_000 if i == 30 else 100 for i in range(90)]
    path = write_benchmark(tmp_path, 100, prompts, 0.02)
    values = json.loads(path.read_text())
    values["itls"] = [
        [gap for long in each for gap in (*[0.0001] * (at_once - 1), long)]
        for each in values["itls"]
    ]
    path.write_text(json.dumps({"date": "20260901-101010"} | values, sort_keys=True))
    assert requests(path).stalls["input_tokens"].to_list() == [20_000]


def test_keys_of_a_log_are_in_any_order(tmp_path: Path) -> None:
    """Sorted keys, with long lists before the statistics."""
    path = write_benchmark(tmp_path, 4, [100] * 300, 0.02)
    values = json.loads(path.read_text()) | {"date": "20260901-101010"}
    path.write_text(json.dumps(values, sort_keys=True))
    assert path.read_bytes().index(b"request_throughput") > 1 << 16
    assert requests(path).requests.height == 300


def write_changed(folder: Path, prompts: int, change: Any) -> Path:
    """Write the log of requests with 80 tokens each, after a change of its values."""
    rng = np.random.default_rng(5)
    values = {
        "backend": "vllm", "completed": prompts, "duration": 60.0, "request_throughput": 1.0,
        "mean_ttft_ms": 1.0, "input_lens": [500] * prompts, "output_lens": [80] * prompts,
        "start_times": [0.3 * i for i in range(prompts)], "ttfts": [0.05] * prompts,
        "itls": [rng.uniform(0.018, 0.022, 79).tolist() for _ in range(prompts)],
    }  # fmt: skip
    change(values)
    (folder / "log.json").write_text(json.dumps(values))
    return folder / "log.json"


@pytest.mark.parametrize("mean_ms", [0.0, 12.5])
def test_a_stated_time_of_0_was_not_measured(tmp_path: Path, mean_ms: float) -> None:
    values = {"backend": "sglang", "completed": 3, "duration": 6.0, "request_throughput": 0.5,
              "mean_ttft_ms": mean_ms, "mean_tpot_ms": 9.0, "mean_itl_ms": 9.0}  # fmt: skip
    (tmp_path / "log.json").write_text(json.dumps(values))
    assert ("time to first token" in requests(tmp_path / "log.json").verdict) is bool(mean_ms)


@pytest.mark.parametrize("paused", [(), (3, 17, 18)])
def test_requests_that_pause_while_others_run(tmp_path: Path, paused: tuple[int, ...]) -> None:
    def pause(values: dict[str, Any]) -> None:
        for one in paused:
            values["itls"][one][40] = 2.5

    log = requests(write_changed(tmp_path, 40, pause))
    rows = log.requests.drop_nulls("paused_ns")
    assert tuple(rows["row"]) == paused
    assert rows["paused_ns"].to_list() == [2.5e9] * len(paused)
    assert ("3 of 40 requests get no token" in log.verdict) == bool(paused)


@pytest.mark.parametrize(("paused", "gaps"), [(1, [1.25, 0.5, 0.75]), (40, [0.3])])
def test_pauses_of_most_requests_are_no_preemptions(
    tmp_path: Path, paused: int, gaps: list[float]
) -> None:
    """One request pauses for its longest gap, not for the sum of all."""

    def pause(values: dict[str, Any]) -> None:
        for one in range(20, 20 + paused):
            for place, gap in enumerate(gaps):
                values["itls"][one % 40][20 + 10 * place] = gap

    log = requests(write_changed(tmp_path, 40, pause))
    rows = log.requests.drop_nulls("paused_ns")
    assert 2 * rows.height > paused
    assert {*rows["longest_pause_ns"]} == {1e9 * max(gaps)}
    assert ("1 of 40 requests gets no token for 1.25 s while" in log.verdict) == (paused == 1)
    assert ("KV cache is full" in log.verdict) == (paused == 1)


@pytest.mark.parametrize(("slow", "named"), [((0, 1, 2), True), ((0, 1, 9), False), ((), False)])
def test_slow_requests_are_the_first_ones(
    tmp_path: Path, slow: tuple[int, ...], named: bool
) -> None:
    def start(values: dict[str, Any]) -> None:
        for one in slow:
            values["ttfts"][one] = 0.8

    assert ("first 3 of 40" in requests(write_changed(tmp_path, 40, start)).verdict) == named


@pytest.mark.parametrize("concurrency", [2, 8])
def test_the_first_batch_of_a_closed_loop_is_not_slow(tmp_path: Path, concurrency: int) -> None:
    """Its requests begin together, so that one prefill has all of them."""

    def start(values: dict[str, Any]) -> None:
        for one in range(40):
            later = 0.05 + one // concurrency * 1.7 + 0.2 * (one % concurrency)
            is_first = one < concurrency
            values["start_times"][one] = 1e-4 * one if is_first else later
            values["ttfts"][one] = 0.8 + 0.002 * one if is_first else 0.05

    assert "warm up" not in requests(write_changed(tmp_path, 40, start)).verdict


def test_slow_first_requests_of_several_runs_have_one_sentence(tmp_path: Path) -> None:
    def start(values: dict[str, Any]) -> None:
        values["ttfts"][0] = 0.8

    logs = []
    for run in range(3):
        (folder := tmp_path / str(run)).mkdir()
        logs.append(write_changed(folder, 40, start if run else lambda _: None))
    verdict = requests(logs).verdict
    assert verdict.count("warm up") == 1
    assert "first one of 40 in 2 of 3 runs" in verdict


@pytest.mark.parametrize(("factor", "grows"), [(2, False), (8, True)])
def test_attention_over_a_longer_context_is_no_growth(
    tmp_path: Path, factor: float, grows: bool
) -> None:
    def lengthen(values: dict[str, Any]) -> None:
        gaps = (0.01 * (1 + (factor - 1) * np.arange(4_000) / 4_000)).tolist()
        values |= {"itls": [gaps] * 8, "output_lens": [4_001] * 8}

    (run,) = requests(write_changed(tmp_path, 8, lengthen)).runs.iter_rows(named=True)
    assert (run["late_gap_ns"] is not None) == grows


@pytest.mark.parametrize(("within", "over_time"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_time_between_tokens_grows_within_answers(
    tmp_path: Path, within: float, over_time: float
) -> None:
    """What grows with the time of the run is load."""

    def grow(values: dict[str, Any]) -> None:
        for i, gaps in enumerate(values["itls"]):
            values["itls"][i] = [
                gap * (1 + within * n / 40 + over_time * i / 10) for n, gap in enumerate(gaps)
            ]

    (run,) = requests(write_changed(tmp_path, 40, grow)).runs.iter_rows(named=True)
    if within:
        assert run["early_gap_ns"] == pytest.approx(25e6, rel=0.05)
        assert run["late_gap_ns"] == pytest.approx(55e6, rel=0.05)
    else:
        assert run["late_gap_ns"] is None
