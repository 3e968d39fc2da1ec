"""Request logs: layouts of benchmarks and spans, damage, and values that are not numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.source import Source
from traceanalyzer.vocabulary import REQUEST_LOG

FIXTURES = Path(__file__).parents[2] / "fixtures" / "requests"
LOGS = ("vllm.json", "sglang.jsonl", "spans.json", "journey.json", "jaeger.json")


def written(folder: Path, text: str | bytes) -> Path:
    """Return a file with this content."""
    path = folder / "log.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def values(path: Path, metric: str) -> list[float]:
    """Return the numbers of a metric in a file."""
    rows = ta.read(path).aggregates
    return rows.filter(pl.col("metric") == metric)["value"].to_list()


def counts(path: Path) -> dict[str, int]:
    """Return the issues of a file by code."""
    return dict(ta.read(path).issues.select("code", "count").iter_rows())


@pytest.mark.parametrize("name", LOGS)
def test_layouts_are_detected_and_valid(name: str) -> None:
    detected = registry.detect(Source(FIXTURES / name))
    assert detected is not None
    assert detected.name == REQUEST_LOG
    trace = ta.read(FIXTURES / name)
    assert not schema.check(trace.tables)
    answered = 19 if name in ("vllm.json", "sglang.jsonl") else 20
    assert len(values(FIXTURES / name, "ttft_ns")) == answered


def bench(**more: Any) -> dict[str, Any]:
    """Return a small result of a benchmark."""
    head = {
        "duration": 1.0,
        "completed": 2,
        "request_throughput": 2.0,
        "request_rate": float("inf"),
    }
    lists = {"ttfts": [0.5, 0.25], "itls": [[0.1, 0.2], [0.1]], "output_lens": [3, 2]}
    return {**head, **lists, **more}


def test_python_infinity_and_pretty_printed_objects(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(bench(), indent=2))
    assert values(path, "ttft_ns") == [5e8, 2.5e8]
    assert values(path, "e2e_ns") == pytest.approx([8e8, 3.5e8])
    assert not counts(path)


def test_a_list_of_results_and_statistics_alone(tmp_path: Path) -> None:
    """As ``vllm bench sweep`` writes, and what scripts keep of a result."""
    times = {f"mean_{of}_ms": 5.0 for of in ("ttft", "tpot", "itl")}
    path = written(tmp_path, json.dumps([bench(), bench()], indent=4))
    assert values(path, "ttft_ns") == [5e8, 2.5e8] * 2
    stated = written(tmp_path, json.dumps({"num_prompts": 2, **times}))
    assert values(stated, "mean_ttft_ms") == [5.0]
    none = bench(completed=0, ttfts=[], itls=[], output_lens=[], **dict.fromkeys(times, 0.0))
    assert values(written(tmp_path, json.dumps(none)), "mean_ttft_ms") == []
    assert ta.requests(tmp_path / "log.json").verdict == "No request was completed."


def test_stages_of_sglang_divide_a_request(tmp_path: Path) -> None:
    """Times of a real request in ms, whose answer was not streamed."""
    times = {
        "Req a": ("r", "", 0, 192), "Scheduler [TP 0] [PP 0]": ("s", "r", 5, 190),
        "prefill_waiting": ("w", "s", 6, 28), "prefill_forward": ("p", "s", 28, 53),
        "decode_forward": ("d", "s", 53, 190),
    }  # fmt: skip
    stated = {"time_to_first_token": 0.1917, "e2e": 0.1918, "time_in_model_decode": 0.00004}
    attributes = [
        {"key": f"gen_ai.latency.{key}", "value": {"doubleValue": value}}
        for key, value in stated.items()
    ]
    spans = [
        {
            "name": name,
            "spanId": key,
            "parentSpanId": parent,
            "startTimeUnixNano": f"{10**18 + begin * 10**6}",
            "endTimeUnixNano": f"{10**18 + end * 10**6}",
            "attributes": attributes if key == "r" else [],
        }
        for name, (key, parent, begin, end) in times.items()
    ]
    text = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    path = written(tmp_path, text)
    parts = {part: values(path, f"{part}_ns") for part in ("queue", "prefill", "decode", "ttft")}
    assert parts == {"queue": [22e6], "prefill": [25e6], "decode": [137e6], "ttft": [53e6]}
    streamed = written(tmp_path, text.replace("0.1917", "0.0601"))
    assert values(streamed, "ttft_ns") == [60.1e6]


def test_lines_of_several_runs_and_a_truncated_one(tmp_path: Path) -> None:
    line = json.dumps(bench())
    path = written(tmp_path, f"{line}\n\n{line}\n{line[: len(line) // 2]}")
    assert values(path, "ttft_ns") == [5e8, 2.5e8] * 2
    assert counts(path) == {"bad-line": 1}


@pytest.mark.parametrize(
    ("more", "ttfts", "issues"),
    [
        ({"ttfts": [-1, 0.25]}, [2.5e8], {"number-out-of-range": 1}),
        ({"ttfts": [10**400, 0.25]}, [2.5e8], {"number-out-of-range": 1}),
        ({"ttfts": ["x", 0.25]}, [2.5e8], {"number-out-of-range": 1}),
        ({"ttfts": [0.5]}, [5e8], {"unequal-lists": 1}),
        ({"itls": 3, "errors": {}}, [5e8, 2.5e8], {}),
        ({"itls": [[-1, None, "x"], []]}, [5e8, 2.5e8], {"number-out-of-range": 2}),
        ({"completed": 10**400, "mean_ttft_ms": []}, [5e8, 2.5e8], {"number-out-of-range": 2}),
        ({"ttfts": None}, [], {"no-details": 1}),
        ({"errors": ["", "HTTP 500"]}, [5e8], {}),
        ({"start_times": [1e300, "x"]}, [5e8, 2.5e8], {}),
    ],
)
def test_impossible_values(
    more: dict[str, Any], ttfts: list[float], issues: dict[str, int], tmp_path: Path
) -> None:
    path = written(tmp_path, json.dumps(bench(**more)))
    assert values(path, "ttft_ns") == ttfts
    assert counts(path) == issues
    assert not schema.check(ta.read(path).tables)


def test_files_without_requests_are_refused(tmp_path: Path) -> None:
    spans = {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET /", "attributes": []}]}]}]}
    for text in (
        json.dumps(spans),
        '{"request_throughput": "completed", "duration": ' + "[" * 10**5,
    ):
        with pytest.raises(MalformedInput):
            ta.read(written(tmp_path, text), format=REQUEST_LOG)


def test_absolute_time_of_spans_is_the_epoch() -> None:
    epochs = {name: ta.read(FIXTURES / name).meta.epoch_ns for name in LOGS}
    assert epochs["vllm.json"] is epochs["sglang.jsonl"] is None
    assert epochs["spans.json"] == epochs["journey.json"]
    assert abs(epochs["spans.json"] - epochs["jaeger.json"]) < 1000


def test_start_of_a_span_without_one_is_that_of_its_events(tmp_path: Path) -> None:
    text = (FIXTURES / "journey.json").read_text().replace("startTimeUnixNano", "unknown")
    starts = values(written(tmp_path, text), "start_ns")
    assert len(starts) == 20
    assert starts[0] == 0
    assert max(starts) < 1e9  # since the first one
