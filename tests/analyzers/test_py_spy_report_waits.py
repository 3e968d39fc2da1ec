"""Samples that wait or import modules are no hot code; equal stacks are one row."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from diagnosing import diagnosis, measurements

import traceanalyzer as ta
from traceanalyzer.analyzers.common.own_lines import BACKGROUND, COMPILES, IMPORTS
from traceanalyzer.analyzers.common.waits import (
    DATA,
    DEVICE,
    EVENTS,
    FULL_QUEUE,
    LOCK,
    QUEUE,
    RANKS,
    REQUESTS,
    RETRY,
    THREAD,
)

MAIN = "<module> (/home/u/run.py:40);"


def sampled(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "raw.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("leaf", "doing"),
    [
        ("join (threading.py:1095)", "waits for another thread"),
        ("communicate (subprocess.py:1209)", "waits for another process"),
        ("select (selectors.py:468)", "waits for data"),
        ("recv_bytes (multiprocessing/connection.py:216)", "waits for data"),
        (
            "get (ray/_private/worker.py:2755);get_objects (ray/_private/worker.py:906)",
            "waits for another process",
        ),
        ("switch (gevent/_gevent_c_hub_primitives.py:3)", "waits for data"),
        ("wait (gevent/_threading.py:84)", "waits for another thread"),
        ("block_until_ready (jax/_src/array.py:640)", DEVICE),
        ("synchronize (/opt/lib/python3.12/site-packages/torch/cuda/__init__.py:985)", DEVICE),
        ("cache_miss (jax/_src/pjit.py:340);backend_compile (jax/_src/compiler.py:310)", COMPILES),
        ("_compile (torch/_dynamo/convert_frame.py:1);run (torch/fx/interpreter.py:1)", COMPILES),
        ("_fn (torch/_dynamo/eval_frame.py:600);forward (torch/nn/functional.py:1)", None),
        ("<module> (site-packages/mlflow/__init__.py:3)", IMPORTS),
        ("_find_and_load (<frozen importlib._bootstrap>:1007)", IMPORTS),
        ("compute (numpy/linalg.py:3)", None),
    ],
)
def test_waits_and_imports_are_not_hot(tmp_path: Path, leaf: str, doing: str | None) -> None:
    path = sampled(
        tmp_path, f"{MAIN}encode (/home/u/bpe.py:218);{leaf} 900",
        f"{MAIN}merge (/home/u/bpe.py:77) 100",
    )  # fmt: skip
    report = ta.py_spy_report(path)
    found = report.paths["doing"][0]
    assert (found or "").startswith(doing or "")
    assert (found is None) == (doing is None)
    lines = [one for one in diagnosis(path).diagnosis if " your own code" in one.title]
    assert ("bpe.py:77" in lines[0].title) == (doing is not None)


@pytest.mark.parametrize(
    "path", ["torch/serialization.py", "/v/site-packages/torch/serialization.py"]
)
def test_saves_that_are_not_most_of_their_line(path: str, tmp_path: Path) -> None:
    """A trainer of a library saves: the line of own code calls more of other functions."""
    fit = f"{MAIN}fit (/home/u/run.py:22);train (transformers/trainer.py:2240);"
    spy = sampled(
        tmp_path, f"{fit}backward (torch/_tensor.py:581) 600",
        f"{fit}_save_checkpoint (transformers/trainer.py:3290);_save ({path}:1250) 300",
        f"{fit}_load_from_checkpoint (transformers/trainer.py:310);load ({path}:1310) 100",
    )  # fmt: skip
    (one,) = (one for one in diagnosis(spy).diagnosis if "checkpoint" in one.title)
    assert one.cost_frac == pytest.approx(0.3)
    assert "fit (/home/u/run.py:22)" in one.title


def test_compilation_is_named_with_its_line(tmp_path: Path) -> None:
    step = f"{MAIN}epoch (/home/u/run.py:77);cache_miss (jax/_src/pjit.py:340);"
    spy = sampled(
        tmp_path, f"{step}backend_compile (jax/_src/compiler.py:310) 300",
        f"{step}trace_to_jaxpr_dynamic (jax/_src/interpreters/partial_eval.py:2);"
        "loss (/home/u/model.py:31) 100",
        f"{MAIN}epoch (/home/u/run.py:80);block_until_ready (jax/_src/array.py:640) 600",
    )  # fmt: skip
    (one,) = diagnosis(spy).diagnosis
    assert one.cost_frac == pytest.approx(0.4)
    assert "epoch (/home/u/run.py:77)" in one.title


def test_the_script_that_starts_a_package_is_no_own_code(tmp_path: Path) -> None:
    serve = "<module> (bin/vllm:8);run (asyncio/runners.py:118);"
    spy = sampled(
        tmp_path, f"{serve}select (selectors.py:468) 960",
        f"{serve}output_handler (vllm/v1/engine/async_llm.py:350) 40",
    )  # fmt: skip
    assert not diagnosis(spy).diagnosis


@pytest.mark.parametrize(
    ("above", "loading"),
    [
        ("__next__ (torch/utils/data/dataloader.py:701);", 60),
        ("_bootstrap (threading.py:1030);", 0),
        ("_worker_loop (torch/utils/data/_utils/worker.py:349);", 0),
    ],
)
def test_main_thread_loads_batches(tmp_path: Path, above: str, loading: int) -> None:
    """Workers and other threads load ahead."""
    fetch = "fetch (torch/utils/data/_utils/fetch.py:52);__getitem__ (/home/u/data.py:7)"
    path = sampled(tmp_path, f"{MAIN}{above}{fetch} 60", f"{MAIN}train (/home/u/run.py:20) 40")
    report = ta.py_spy_report(path)
    assert report.loading_samples == loading
    sizes = [one.size for one in measurements("hot-line", report) if "num_workers=0" in one.title]
    assert sizes == [0.6] * bool(loading)


def test_lines_that_load_batches_count_once(tmp_path: Path) -> None:
    """Of a line that is mostly called elsewhere the rest is a finding."""
    fetch = (
        "__next__ (torch/utils/data/dataloader.py:701);fetch (torch/utils/data/_utils/fetch.py:52);"
    )
    read, pad = "__getitem__ (/home/u/data.py:7)", "collate (/home/u/batch.py:3)"
    path = sampled(
        tmp_path, f"{MAIN}{fetch}{read} 600", f"{MAIN}{fetch}{pad} 300",
        f"{MAIN}train (/home/u/run.py:20);{pad} 500", f"{MAIN}train (/home/u/run.py:30) 600",
    )  # fmt: skip
    loads, *others = measurements("hot-line", ta.py_spy_report(path))
    assert (loads.size, "data.py:7" in loads.title) == (0.45, True)
    assert "batch.py:3) 15.0 %" in loads.evidence[0]
    assert [one.size for one in others] == [0.4, 0.3]
    assert not any("data.py:7" in one.title for one in others)


@pytest.mark.parametrize(
    ("wait", "pins", "advice"),
    [
        ("_get_data ({}:1432);get (queue.py:171);wait (threading.py:327)", 70, "pinned"),
        ("_get_data ({}:1432);get (queue.py:171);wait (threading.py:327)", 0, "num_workers"),
        ("_X._get_data ({0}:1448);_try_get_data ({0}:9);select (selectors.py:4)", 0, "num_workers"),
    ],
)
def test_main_thread_waits_for_the_loader(
    tmp_path: Path, wait: str, pins: int, advice: str
) -> None:
    """The samples of the thread that pins memory do not count."""
    data, boot = "torch/utils/data", "_bootstrap (threading.py:1002)"
    path = sampled(
        tmp_path, f"thread (1): MainThread;{MAIN}{wait.format(f'{data}/dataloader.py')} 40",
        f"thread (1): MainThread;{MAIN}train (/home/u/run.py:20) 60",
        f"thread (2): P;{boot};pin_memory ({data}/_utils/pin_memory.py:64) {pins}",
    )  # fmt: skip
    report = ta.py_spy_report(path)
    (one,) = (one for one in measurements("hot-line", report) if "data loader" in one.title)
    assert one.size == report.loader_wait_frac == 0.4
    assert advice in one.advice


def test_equal_stacks_of_speedscope_are_one_row(tmp_path: Path, shared: Path) -> None:
    frames = [{"name": name, "file": "/home/u/model.py", "line": 3} for name in "ab"]
    profile = {"type": "sampled", "name": "x", "unit": "seconds", "startValue": 0, "endValue": 9,
               "samples": [[0], [0, 1], [0]] * 3, "weights": [1] * 9}  # fmt: skip
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"shared": {"frames": frames}, "profiles": [profile]}))
    assert ta.py_spy_report(path).paths["samples_frac"].round(3).to_list() == [0.667, 0.333]
    other = shared / "data/causes/other"
    for name in ("s1_speedscope.json.gz", "s1_raw.txt"):
        shares = ta.py_spy_report(other / name).paths["samples_frac"].round(3).to_list()
        assert shares == [0.6, 0.3, 0.1]


def test_lines_of_definitions_are_no_lines(shared: Path) -> None:
    path = shared / "data/causes/other/pyinstrument_speedscope.json"
    assert ta.py_spy_report(path).paths["line"].null_count() == 5
    one, join, sleep = diagnosis(path).diagnosis
    assert "crunch" in one.title
    assert "function" in one.title
    assert (round(join.cost_frac, 3), "join (threading.py)" in join.title) == (0.355, True)
    assert (round(sleep.cost_frac, 3), "sleep" in sleep.title) == (0.255, True)


def test_freed_memory_is_not_damage(shared: Path) -> None:
    trace = ta.read(shared / "data/causes/other/austin_mem_negative.txt.gz")
    assert trace.meta.weight_unit == "bytes"
    assert trace.issues.select("code", "severity").rows() == [("freed-memory", "notice")]


def _threads(tmp_path: Path, *, one_at_a_time: bool) -> Path:
    """Four threads in get: one reads below line 44, the others are in line 41; or by chance."""
    frames = [
        {"name": name, "file": f"/srv/{file}.py", "line": line}
        for name, file, line in (("get", "cache", 41), ("get", "cache", 44), ("fetch", "s3", 9))
    ]
    profiles = []
    for thread in range(4):
        inside = [
            at % 4 == thread if one_at_a_time else (at // 4**thread) % 4 == 0 for at in range(200)
        ]
        stacks = [[1, 2] if each else [0] for each in inside]
        profiles.append(
            {"type": "sampled", "name": f'Process 7 Thread {thread} "w{thread}"', "unit": "seconds",
             "startValue": 0, "endValue": 2, "samples": stacks, "weights": [0.01] * 200}
        )  # fmt: skip
    path = tmp_path / "threads.speedscope.json"
    path.write_text(
        json.dumps({
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": frames}, "profiles": profiles, "exporter": "py-spy@0.4.1",
        })
    )  # fmt: skip
    return path


def test_threads_that_wait_for_one_lock_run_no_code(tmp_path: Path) -> None:
    path = _threads(tmp_path, one_at_a_time=True)
    report = ta.py_spy_report(path)
    holder = "get (/srv/cache.py:44), below it mostly in fetch (/srv/s3.py:9)"
    assert report.locks.rows() == [("get (/srv/cache.py:41)", holder, 6e9)]
    doing = dict(report.paths.select("line", "doing").iter_rows())
    assert doing == {41: LOCK, 9: None}
    first = ta.diagnose(path).findings[0]
    assert first.title.startswith("Threads wait for a lock in get (/srv/cache.py:41)")
    assert "lock" in first.advice


def test_threads_that_are_in_one_line_by_chance_wait_for_no_lock(tmp_path: Path) -> None:
    report = ta.py_spy_report(_threads(tmp_path, one_at_a_time=False))
    assert report.locks.is_empty()
    assert report.running.height == report.paths.height


STEP = "main (/home/u/train.py:9);step (/home/u/train.py:61);"


@pytest.mark.parametrize(
    ("stack", "doing"),
    [
        (
            "cudaLaunchKernel (libcudart.so.12);cuLaunchKernel (libcuda.so.1);sched_yield",
            FULL_QUEUE,
        ),
        ("hipModuleLaunchKernel (libamdhip64.so);usleep (libc.so.6)", FULL_QUEUE),
        ("cudaStreamSynchronize (libcudart.so.12);clock_gettime (libc.so.6)", DEVICE),
        ("hipStreamSynchronize (libamdhip64.so);hsa_signal_wait_scacquire (libhsa.so)", DEVICE),
        ("zeEventHostSynchronize (libze_loader.so.1)", DEVICE),
        ("cudaMemcpyAsync (libcudart.so.12);poll (libc.so.6)", DEVICE),
        ("synchronize (site-packages/torch/xpu/__init__.py:9)", DEVICE),
        ("cudaLaunchKernel (libcudart.so.12)", None),
        ("cudaMemcpyAsync (libcudart.so.12);memcpy (libc.so.6)", None),
        ("cudaLaunchKernel (libcudart.so.12);pthread_rwlock_wrlock (libc.so.6)", LOCK),
        ("all_reduce (torch/distributed/distributed_c10d.py:1);poll (libc.so.6)", RANKS),
        ("poll (libc.so.6)", DATA),
    ],
)
def test_waits_within_calls_of_gpu_runtimes(tmp_path: Path, stack: str, doing: str | None) -> None:
    report = ta.py_spy_report(sampled(tmp_path, f"{STEP}{stack} 80", f"{STEP}log (log.py:3) 20"))
    assert report.paths["doing"][0] == doing
    assert report.activities.filter(place="step (/home/u/train.py:61)")["samples"][0] >= 20


_LOOP = "run (asyncio/runners.py:1);_run_once (asyncio/base_events.py:1);select (selectors.py:4)"


@pytest.mark.parametrize(
    ("wait", "activity"),
    [
        ("cudaLaunchKernel (libcudart.so.12);sched_yield (libc.so.6)", FULL_QUEUE),
        ("synchronize (torch/cuda/__init__.py:1)", DEVICE),
        (_LOOP, EVENTS),
        ("_process_input_queue (vllm/v1/engine/core.py:6);get (queue.py:1)", REQUESTS),
    ],
)
def test_lines_have_their_share_of_all_samples(tmp_path: Path, wait: str, activity: str) -> None:
    lines = (
        f"{STEP}{wait} 930",
        f"{STEP}item (/home/u/a.py:7) 50",
        f"{STEP}log (/home/u/a.py:9) 20",
    )
    path = sampled(tmp_path, *lines)
    report = ta.py_spy_report(path)
    assert report.busy_samples == 1000
    assert all(one.size <= 0.05 for one in measurements("hot-line", report))
    assert not diagnosis(path).diagnosis
    assert "93.0 %" in report.verdict
    assert activity.removesuffix(")") in report.verdict
    assert any("93.0 %" in note and activity in note for note in diagnosis(path).notes)


def test_an_idle_server_does_not_run_one_line(tmp_path: Path) -> None:
    thread = "_bootstrap (threading.py:1);run (threading.py:2);pump (/home/u/s.py:5);"
    lines = (f"serve (/home/u/s.py:3);{_LOOP} 9000", f"{thread}parse (/home/u/s.py:6) 110")
    report = ta.py_spy_report(sampled(tmp_path, *lines))
    assert all(one.size < 0.02 for one in measurements("hot-line", report))


def test_a_thread_that_saves_and_waits_has_no_share_above_the_whole(tmp_path: Path) -> None:
    save = "_bootstrap (threading.py:1);saver (/home/u/s.py:5);save (torch/serialization.py:8)"
    lines = ("step (/home/u/s.py:3) 300", f"{save} 600", f"{save};wait (threading.py:3) 900")
    report = ta.py_spy_report(sampled(tmp_path, *lines))
    saves = next(one for one in measurements("hot-line", report) if "saver" in one.title)
    assert saves.size == pytest.approx(1500 / 1800)


def test_a_line_with_a_short_wait_has_its_share_of_all_samples(tmp_path: Path) -> None:
    path = sampled(
        tmp_path, f"{STEP}synchronize (torch/cuda/__init__.py:1) 300",
        f"{STEP}parse (/home/u/a.py:7) 600", f"{STEP}<module> (numpy/__init__.py:1) 100",
    )  # fmt: skip
    (one,) = measurements("hot-line", ta.py_spy_report(path))
    assert (one.size, "parse" in one.title) == (0.6, True)
    assert not [note for note in diagnosis(path).notes if DEVICE in note]


_THREAD = "_bootstrap (threading.py:1);_bootstrap_inner (threading.py:2);run (threading.py:3);"


def test_waits_of_other_threads_do_not_dilute_the_main_thread(tmp_path: Path) -> None:
    path = sampled(
        tmp_path, f"{STEP}parse (/home/u/a.py:7) 600", f"{STEP}sleep (libc.so.6) 400",
        f"{_THREAD}take (/home/u/b.py:7);get (queue.py:1) 8000",
    )  # fmt: skip
    sleeps, parses = measurements("hot-line", ta.py_spy_report(path))
    assert (sleeps.size, parses.size) == (0.4, 0.6)


_OF_MAIN = "samples of the main thread"
_TAKE = f"{STEP}take (/home/u/a.py:5);"


@pytest.mark.parametrize(
    ("wait", "activity"),
    [
        ("get (queue.py:171);wait (threading.py:327)", QUEUE),
        ("Queue.get (multiprocessing/queues.py:103);poll (libc.so.6)", QUEUE),
        ("join (threading.py:1);acquire (<built-in>)", THREAD),
        ("acquire (<built-in>)", LOCK),
        ("request (requests/api.py:59);sleep (urllib3/util/retry.py:362)", RETRY),
        ("call (openai/a.py:9);_sleep_for_retry (openai/_base_client.py:1100)", RETRY),
        ("get (google/a.py:9);retry_target (google/api_core/retry.py:190)", RETRY),
        ("get (google/a.py:9);retry_target (google/api_core/retry/retry_unary.py:150)", RETRY),
        ("serve_forever (socketserver.py:232);select (selectors.py:415)", None),
        ("synchronize (torch/cuda/__init__.py:1)", None),
        ("next_item (/home/u/a.py:9)", None),
    ],
)
def test_what_the_main_thread_waits_for(tmp_path: Path, wait: str, activity: str | None) -> None:
    """A server without requests and the GPU have other findings or none."""
    path = sampled(tmp_path, f"{_TAKE}{wait} 620", f"{STEP}forward (torch/a.py:1) 380")
    report = ta.py_spy_report(path)
    found = [one for one in measurements("hot-line", report) if one.of == _OF_MAIN]
    assert [one.size for one in found] == [0.62] * (activity is not None)
    assert all("take (/home/u/a.py:5)" in one.title for one in found)
    assert (activity or report.activities["activity"][0]) in report.activities["activity"]


@pytest.mark.parametrize(("works", "sizes"), [(900, []), (90, [0.62])])
def test_waits_for_a_recorded_thread_are_its_work(
    tmp_path: Path, works: int, sizes: list[float]
) -> None:
    wait = f"{_TAKE}get (queue.py:171);wait (threading.py:327) 620"
    other = f"{_THREAD}fill (/home/u/b.py:7);decode (/home/u/b.py:9) {works}"
    path = sampled(tmp_path, wait, other, f"{STEP}forward (torch/a.py:1) 380")
    found = measurements("hot-line", ta.py_spy_report(path))
    assert [one.size for one in found if one.of == _OF_MAIN] == sizes


@pytest.mark.parametrize("leaf", ["item (<built-in>)", "<built-in method cpu of Tensor object>"])
def test_reads_of_tensors_wait_for_the_gpu(tmp_path: Path, leaf: str) -> None:
    path = sampled(tmp_path, f"{_TAKE}{leaf} 700", f"{STEP}forward (torch/a.py:1) 300")
    one, *_ = measurements("hot-line", ta.py_spy_report(path))
    assert "waits until the GPU" in one.advice


@pytest.mark.parametrize(
    ("leaf", "is_python"),
    [
        ("dumps (json/__init__.py:231)", True),
        ("do_one (torch/utils/data/_utils/pin_memory.py:9)", False),
        ("send (ssl.py:9)", False),
    ],
)
def test_other_threads_of_libraries_are_named(tmp_path: Path, leaf: str, is_python: bool) -> None:
    path = sampled(
        tmp_path, f"{STEP}forward (torch/nn/modules/module.py:7) 450",
        f"{_THREAD}_handle (wandb/sdk/handler.py:200);{leaf} 500",
    )  # fmt: skip
    report = ta.py_spy_report(path)
    row = report.activities.row(by_predicate=pl.col("activity") == BACKGROUND, named=True)
    assert row["samples_frac"] == pytest.approx(500 / 950)
    found = [one for one in measurements("hot-line", report) if "wandb" in one.title]
    assert [one.size for one in found] == [pytest.approx(500 / 950)] * is_python
    assert ("wandb/sdk/handler.py" in row["calls"]) or not is_python
