"""Attribution of recorded time to causes, in cases where durations alone mislead."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, US, device, host, trace

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.analyzers.common import launching
from traceanalyzer.analyzers.common.names import matcher
from traceanalyzer.analyzers.gpu_idle.causes import CAUSES, DATALOADER
from traceanalyzer.result import Finding

DTOH = "Memcpy DtoH (Device -> Pageable)"


def launched(at: int, start: int, dur: int, number: int, **more: Any) -> list[dict[str, Any]]:
    """Return a launch call of 5 us and its kernel; times in us."""
    call = more.pop("call", "cudaLaunchKernel")
    name = more.pop("name", GEMM)
    return [
        host("cuda_runtime", call, at * US, 5 * US, correlation=number),
        device(name, start * US, dur * US, correlation=number, **more),
    ]


def findings(*events: list[dict[str, Any]] | dict[str, Any]) -> dict[str, Finding]:
    rows: list[dict[str, Any]] = []
    for one in events:
        rows += one if isinstance(one, list) else [one]
    return {one.id: one for one in ta.diagnose(trace(rows)).diagnosis}


# --- queued work ---------------------------------------------------------------------------------


def test_synchronisation_with_queued_work_is_not_a_cause() -> None:
    result = findings(
        launched(0, 10, 5, 1),
        host("cuda_runtime", "cudaStreamWaitEvent", 16 * US, 2 * US),
        launched(20, 10_000, 20, 2),
        host("cuda_runtime", "cudaStreamSynchronize", 30 * US, 10_000 * US),
        launched(10_040, 10_050, 20, 3),
    )
    assert set(result) == {"device-wait"}
    wait = result["device-wait"]
    assert wait.cost_ns == (10_000 - 25) * US
    assert any("cudaStreamWaitEvent" in sentence for sentence in wait.evidence)
    assert "save" not in wait.advice


def test_queued_collective_is_not_waiting_for_ranks() -> None:
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    result = findings(
        launched(0, 10, 5, 1),
        launched(20, 9_000, 1_000, 2, call="cudaGraphLaunch"),
        launched(40, 10_010, 100, 3, name=reduce, stream=20),
        host("cpu_op", "aten::foo", 60 * US, 9_900 * US),
        launched(10_200, 10_210, 10, 4),
    )
    assert "waiting-for-ranks" not in result
    assert result["device-wait"].cost_ns == (9_000 - 25 + 10) * US


@pytest.mark.parametrize(
    ("stream", "expected"),
    [(7, "cudaStreamWaitEvent (an event of stream 7)"), (-1, "cudaStreamWaitEvent")],
)
def test_device_side_wait_names_its_stream(tmp_path: Path, stream: int, expected: str) -> None:
    """``enable_cuda_sync_events`` records it in arguments, which are read only if needed."""

    def event(cat: str, name: str, ts: int, dur: int, tid: int = 1, **args: Any) -> dict[str, Any]:
        pid = int(cat not in on_device)
        of = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur}
        return {**of, "pid": pid, "tid": tid, "args": args}

    on_device = ("kernel", "cuda_sync")
    events = [
        event("cuda_runtime", "cudaLaunchKernel", 0, 5, correlation=1),
        event("kernel", "k0", 10, 5, 7, device=0, stream=7, correlation=1),
        event("cuda_runtime", "cudaStreamWaitEvent", 16, 2, correlation=90),
        event("cuda_sync", "Stream Wait Event", 17, 1, 20, stream=20, wait_on_stream=stream,
              correlation=90, device=0),
        event("cuda_runtime", "cudaLaunchKernel", 20, 5, correlation=2),
        event("kernel", "k1", 10_000, 20, 20, device=0, stream=20, correlation=2),
    ]  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    gap = ta.gpu_idle(path).gaps.row(0, named=True)
    assert gap["waits_for"] == expected


# --- cost is idle time, not host time ------------------------------------------------------------


@pytest.mark.parametrize("copy", ["cudaMemcpyAsync", "hipMemcpyWithStream"])
def test_read_of_a_value_while_busy_costs_nothing(copy: str) -> None:
    events: list[Any] = []
    for step in range(6):
        at = step * 10_000
        events += [
            host("user_annotation", f"ProfilerStep#{step}", at * US, 9_990 * US),
            launched(at + 10, at + 20, 9_900, 10 * step + 1),
            host("cpu_op", "aten::item", (at + 20) * US, 9_930 * US),
            host("cuda_runtime", copy, (at + 25) * US, 9_915 * US, correlation=10 * step + 2),
            device(DTOH, (at + 9_930) * US, 4 * US, correlation=10 * step + 2, bytes=4,
                   kind="gpu_memcpy"),
        ]  # fmt: skip
    assert findings(*events) == {}


def test_blocking_copy_to_the_host_is_a_synchronisation() -> None:
    events = [
        *launched(0, 10, 90, 1),
        host("cuda_runtime", "cudaMemcpyAsync", 20 * US, 400 * US, correlation=9),
        device(DTOH, 110 * US, 5 * US, correlation=9, bytes=1 << 20, kind="gpu_memcpy"),
        *launched(500, 510, 90, 2),
    ]
    idle = ta.gpu_idle(trace(events)).idle_by_cause
    assert idle["synchronisation"] == (10 + 305) * US
    pinned = [{**row, "dur": 4 * US} if row["name"] == "cudaMemcpyAsync" else row for row in events]
    assert ta.gpu_idle(trace(pinned)).idle_by_cause["synchronisation"] == 0


def test_findings_do_not_share_idle_time() -> None:
    """Short gaps, blocking copies and allocations: the causes add up to the idle time once."""
    events: list[Any] = []
    for n in range(200):
        at = 40 * n
        events += [launched(at, at + 7, 6, 2 * n + 1), launched(at + 9, at + 16, 4, 2 * n + 2)]
        events.append(host("cuda_runtime", "cudaMalloc", (at + 24) * US, 12 * US))
    rows = [row for event in events for row in (event if isinstance(event, list) else [event])]
    idle = ta.gpu_idle(trace(rows))
    result = findings(*events)
    assert {"launch-bound", "memory-management"} <= set(result)
    claimed = [one.cost_ns or 0 for one in result.values() if one.analysis == "gpu_idle"]
    assert sum(claimed) <= idle.idle_ns
    assert sum(idle.idle_by_cause.values()) == idle.idle_ns
    # 3 us between the kernels of a pair: the second was launched after the end of the first
    assert result["launch-bound"].cost_ns == idle.idle_by_cause["launch_overhead"] >= 200 * 3 * US


# --- data loading --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "loads"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("torch/utils/data/dataloader.py(630): __next__", True),
        ("/opt/venv/lib/python3.11/site-packages/webdataset/pipeline.py(64): iterator", True),
        ("train.py(33): load_batch", True),
        ("data.py(10): get_next_batch", True),
        ("trainer.py(5): wait_for_data", True),
        ("next batch", True),
        ("dataloader", True),
        ("Trainer.DataLoader.next", True),
        ("[_TrainingEpochLoop].train_dataloader_next", True),
        ("batch-generator", True),
        ("data-iterator", True),
        ("prefetch", True),
        ("diffusers/loaders/lora_pipeline.py(120): load_lora_weights", False),
        ("flashinfer/jit/cubin_loader.py(12): get_cubin", False),
        ("vllm/model_executor/model_loader/loader.py(9): load_model", False),
        ("myproject/data_loader/model.py(9): forward", False),
        ("importlib/_bootstrap_external.py(940): exec_module", False),
        ("transformers/cache_utils.py(7): prefetch_layer", False),
        ("data_time", True),
        ("batch_time", False),
        ("forward_batch", False),
        ("update_metadata", False),
        ("batchnorm", False),
    ],
)
def test_data_loading_by_functions_and_annotations(name: str, loads: bool) -> None:
    assert matcher(DATALOADER)(name) is loads


def test_loading_weights_is_not_data_loading() -> None:
    frame = "diffusers/loaders/lora_pipeline.py(120): load_lora_weights"
    result = findings(
        launched(0, 10, 5, 1),
        host("python_function", frame, 100 * US, 50_000 * US),
        launched(50_200, 50_210, 500, 2),
    )
    assert set(result) == {"checkpoints"}
    named = "load_lora_weights (diffusers/loaders/lora_pipeline.py:120)"
    assert any(named in sentence for sentence in result["checkpoints"].evidence)


def loading(*inside: dict[str, Any]) -> ta.GpuIdle:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    return ta.gpu_idle(
        trace(
            [
                *launched(0, 10, 90, 1),
                host("user_annotation", name, 100 * US, 800 * US),
                *inside,
                *launched(905, 915, 85, 2),
            ]
        )
    )


def test_loader_function_with_most_time_is_named() -> None:
    fetch = host(
        "python_function", "torch/utils/data/_utils/fetch.py(51): fetch", 110 * US, 780 * US
    )
    item = host("python_function", "dataset.py(7): __getitem__", 120 * US, 700 * US)
    decode = host("python_function", "dataset.py(20): decode_image", 150 * US, 600 * US)
    idle = loading(fetch, item, decode)
    assert idle.idle_by_cause["dataloading"] == 800 * US
    assert idle.host.loader["name"].to_list()[0].startswith("enumerate(DataLoader)#")
    assert idle.host.loader_code.row(0) == ("dataset.py(20): decode_image", 600 * US)
    rows = dict(idle.host.loader_code.rows())
    assert rows["dataset.py(7): __getitem__"] == 100 * US
    tensor = host("python_function", "<built-in method tensor of type object>", 160 * US, 300 * US)
    inner = host("python_function", "dataset.py(21): <listcomp>", 470 * US, 200 * US)
    again = loading(fetch, item, decode, tensor, inner)
    assert dict(again.host.loader_code.rows()) == rows, "calls belong to the own code around them"
    gap = idle.gaps.row(0, named=True)
    assert gap["own_code"] == "dataset.py(20): decode_image"
    assert idle.coverage.stacks_known


def test_user_patterns_replace_known_loaders() -> None:
    events = [
        *launched(0, 10, 90, 1),
        host("user_annotation", "prefetch", 100 * US, 400 * US),
        host("user_annotation", "read_shards", 500 * US, 400 * US),
        *launched(905, 915, 85, 2),
    ]
    by_default = ta.gpu_idle(trace(events))
    assert by_default.host.loader["name"].to_list() == ["prefetch"]
    selected = ta.gpu_idle(trace(events), dataloader="^read_shards$")
    assert selected.host.loader.rows() == [("read_shards", 1, 400 * US)]
    assert selected.idle_by_cause["dataloading"] == 400 * US


# --- recorded evidence ---------------------------------------------------------------------------


def test_recorded_stacks_are_not_advised() -> None:
    work = [*launched(0, 10, 90, 1), *launched(905, 915, 85, 2)]
    frame = host("python_function", "train.py(8): tokenize", 110 * US, 780 * US)
    bare = {one.id: one for one in ta.diagnose(trace(work)).diagnosis}
    known = {one.id: one for one in ta.diagnose(trace([*work, frame])).diagnosis}
    assert "with_stack" in bare["host-code"].advice
    assert "with_stack" not in known["host-code"].advice
    assert any("tokenize (train.py:8)" in sentence for sentence in known["host-code"].evidence)


def test_stacks_sampled_in_a_gap_explain_it() -> None:
    samples = [
        {"kind": "sample", "name": None, "ts": at * US, "pid": 1, "tid": 1, "external_id": stack}
        for at, stack in ((50, 1), (200, 1), (300, 2), (400, 2), (500, 2), (950, 1))
    ]
    frames = {"id": [0, 1, 2], "parent": [None, 0, 0], "name": ["main", "forward", "read"]}
    of_stacks = schema.empty("stacks").schema
    stacks = pl.DataFrame({**frames, "file": None, "line": None}, schema=of_stacks)
    work = [*launched(0, 10, 90, 1), *launched(905, 915, 85, 2)]
    recorded = trace([*work, *samples])
    events = recorded.events.with_columns(stack=pl.col("external_id").cast(pl.UInt32))
    sampled = replace(recorded, stacks=stacks, events=events)
    gap = ta.gpu_idle(sampled).gaps.row(0, named=True)
    assert (gap["sampled"], gap["sampled_frac"]) == ("read", 0.75)


# --- work before the recording -------------------------------------------------------------------


def launched_before_ns(result: Any) -> int | None:
    return (result.unmatched if isinstance(result, ta.Launches) else result).launched_before_ns


def test_work_launched_before_the_recording_is_reported(shared: Any) -> None:
    path = shared / "data/chrome/kineto/h100_qwen_inference.json.gz"
    results = [ta.kernels(path), ta.overlap(path), ta.launches(path)]
    total = results[0].total_ns
    for result in results:
        assert launched_before_ns(result) == results[0].launched_before_ns
        assert any("before the recording" in note for note in result.notes)
    assert results[0].launched_before_ns / total == pytest.approx(0.301, abs=0.001)


def queued_trace(tmp_path: Path, later: int) -> str:
    """Write two kernels of 40 us launched before the recording, then ``later`` ones of 10 us."""

    def event(cat: str, name: str, ts: int, dur: int, number: int) -> dict[str, Any]:
        of = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1}
        return {**of, "args": {"correlation": number, "device": 0, "stream": 7}}

    rows = [event("cpu_op", "aten::mm", 0, 50, 0)]
    rows += [event("kernel", GEMM, at, 40, 3 + at) for at in (10, 50)]
    for number in range(later):
        rows += [
            event("cuda_runtime", "cudaLaunchKernel", 60 + 20 * number, 5, 100 + number),
            event("kernel", GEMM, 100 + 20 * number, 10, 100 + number),
        ]
    path = tmp_path / f"queued{later}.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    return str(path)


def test_work_launched_before_the_recording_by_first_launches(
    tmp_path: Path,
) -> None:
    path = queued_trace(tmp_path, 8)
    for source in (path, ta.read(path)):
        for command in (ta.kernels, ta.overlap, ta.launches):
            assert launched_before_ns(command(source)) == 80 * US


def test_launch_calls_are_not_read_for_little_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_MOST_QUEUED", 4)
    short, long = queued_trace(tmp_path, 8), queued_trace(tmp_path, 300)
    assert ta.kernels(short).launched_before_ns == 80 * US
    read: list[ta.Trace] = []
    assert ta.kernels(long, on_trace=read.append).launched_before_ns is None
    kinds = {kind for trace in read for kind in trace.events["kind"].unique()}
    assert "cuda_runtime" not in kinds


def test_every_cause_has_a_check() -> None:
    from traceanalyzer.findings.judge import RULES

    assert sum(rule.analysis == "gpu_idle" for rule in RULES) == len(CAUSES)
