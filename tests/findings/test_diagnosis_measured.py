"""Measurements of every rule on every fixture, also below the thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import device, host, trace
from conftest import ROOT
from diagnosing import BY_ID, measured, measurements
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.cuda_api.compute import cuda_api
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.analyzers.operators.result import Operators
from traceanalyzer.findings.judge import RULES
from traceanalyzer.findings.rule import Answers, Measured
from traceanalyzer.result import Result
from traceanalyzer.run.loop import examine

INPUTS = {
    "composer": ["composer"],
    "ddp_gloo": ["ddp_gloo_4ranks"],
    "nccl": ["nccl_8ranks"],
    "nccl_rank": ["nccl_8ranks/rank5.json.gz"],
    "isolated": ["nccl_8ranks_isolated"],
    "nsys": ["nsys/training.sqlite"],
    "upgrade": ["upgrade/before.json.gz"],
    "memory": [
        "memory/training.pickle", "memory/leak.pickle", "memory/two_devices.pickle",
        "memory/ring.pickle",
    ],
    "oom": ["memory/oom.pickle", "memory/oom_expandable.pickle", "memory/fragmented_oom.pickle"],
    "py_spy": ["py_spy/default.raw.txt", "py_spy/subprocesses.raw.txt"],
}  # fmt: skip
#: A file of each kind: several ranks of a kind show the same.
MEASURED_FOR_REPORTS = sorted(INPUTS.keys() - {"nccl", "isolated"})


def lines(answers: dict[str, Result]) -> Iterator[str]:
    """Yield all measurements of all rules."""
    known = Answers(answers)
    for rule in RULES:
        if rule.analysis not in answers:
            continue
        measured = list(rule.judge(known))
        yield f"## {rule.id}: {len(measured)}"
        for one in measured:
            for field in fields(one):
                if field.name == "intervals":
                    continue
                value = getattr(one, field.name)
                text = f"{value:.6g}" if isinstance(value, float) else value
                yield f"{field.name}: {text}"
            yield ""


@pytest.mark.matrix
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", INPUTS)
def test_measurements_of_all_rules(name: str, golden: Any, thorough: bool) -> None:
    paths = [str(ROOT / "fixtures" / path) for path in INPUTS[name]]
    text = "\n".join(lines(dict(examine(paths, use="findings").results)))
    if name in (MEASURED_FOR_REPORTS if thorough else ("nccl_rank", "memory", "py_spy")):
        assert text == "\n".join(lines(dict(examine(paths).results)))
    golden(f"diagnose/measured_{name}.txt", text.replace(f"{ROOT}/", "") + "\n")


@pytest.mark.matrix
def test_only_what_rules_use_is_measured() -> None:
    """Plots, arrows and the memory of operators are for reports."""
    traces: list[ta.Trace] = []
    paths = [
        str(ROOT / "fixtures" / path) for path in ("ddp_gloo_4ranks/rank0.json.gz", *INPUTS["oom"])
    ]
    results = examine(paths, use="findings", on_trace=traces.append).results
    assert isinstance(memory := results["memory"], Memory)
    assert isinstance(operators := results["operators"], Operators)
    assert not memory.maps
    assert memory.errors is None
    assert operators.operators["self_device_memory_bytes"].is_null().all()
    assert all(trace.flows.is_empty() for trace in traces)


# --- faults that no fixture has --------------------------------------------------------------


def test_no_tensor_cores() -> None:
    names = ["ampere_sgemm_128x64_tn", "ampere_sgemm_32x32_nn", "relu", "ampere_s16816gemm_bf16"]
    works = [device(name, n * 1_000, 100 * (n + 1)) for n, name in enumerate(names)]
    nameless = {**device("", 9_000, 50), "name": None}

    def judged(events: list[dict[str, Any]]) -> list[Measured]:
        results = dict(examine(trace(events), use="findings").results)
        return measurements("no-tensor-cores", results.pop("kernels"), **results)

    (one,) = judged([*works, nameless])
    assert one.size == pytest.approx(300 / 9_050)
    assert one.total_ns == 300
    check_wording(one.title, *one.evidence)
    assert not judged([*works[2:], nameless])


def test_cuda_calls_are_evidence_of_idle_time() -> None:
    events = []
    for n in range(4):
        at = n * 10_000_000
        events += [
            host("cuda_runtime", "cudaLaunchKernel", at, 100, correlation=2 * n),
            device("gemm", at + 500, 1_000, correlation=2 * n),
            host("cuda_runtime", "cudaMalloc", at + 2_000, 3_000_000),
            host("cuda_runtime", "cudaMemcpy", at + 4_000_000, 2_000_000, correlation=2 * n + 1),
            device("Memcpy HtoD (Pageable -> Device)", at + 5_900_000, 100_000,
                   correlation=2 * n + 1, kind="gpu_memcpy", bytes=1 << 20),
        ]  # fmt: skip
    traced = trace(events)
    calls = cuda_api(traced)
    idle = examine(traced, ["gpu_idle"]).results["gpu_idle"]
    copies = measured("batch-copies", idle, cuda_api=calls)
    allocations = measured("memory-management", idle, cuda_api=calls)
    assert copies.total_ns == 4 * 1_900_000
    assert any("4 MiB" in sentence for sentence in copies.evidence)
    assert allocations.total_ns == 4 * 3_000_000
    assert not [rule for rule in RULES if rule.analysis == "cuda_api"]


def test_hot_line_is_in_own_code(tmp_path: Path) -> None:
    raw = tmp_path / "raw.txt"
    raw.write_text(
        "fit (train.py:3);forward (model.py:7) 60\nfit (train.py:3);load (data.py:5) 30\n"
        "idle (threading.py:1) 10\n"
    )
    one, other = measurements("hot-line", ta.py_spy_report(raw))
    assert one.size == one.cost_frac == 0.6
    assert (other.size, "load (data.py:5)" in other.title) == (0.3, True)
    assert "forward (model.py:7)" in one.title
    check_wording(one.title, *one.evidence)
    empty = replace(ta.py_spy_report(raw), total_samples=0)
    assert not measurements("hot-line", empty)


@pytest.mark.parametrize(
    ("below", "part"),
    [
        ("log (log.py:5);_iterencode (json/encoder.py:432)", "in another thread"),
        ("fsync (io.py:5)", "in another thread"),
        ("fetch (torch/utils/data/_utils/fetch.py:5);collate_fn (batch.py:7)", "num_workers"),
        ("tokenize (text.py:5)", "--native"),
        ("tokenize (text.py:5);0x7f (libc.so.6)", "less data"),
        ("__getitem__ (ds.py:5);__getitem__ (pandas/core/indexing.py:1153)", "to_numpy()"),
        ("step (quad.py:5);do_simulation (gymnasium/envs/mujoco_env.py:215)", "SubprocVecEnv"),
        ("tokenize (text.py:5);do_spin (libgomp.so.1)", "OMP_NUM_THREADS"),
        ("tokenize (text.py:5);__kmp_fork_barrier (libomp.so)", "OMP_NUM_THREADS"),
        ("<built-in method conv2d>", "<built-in method conv2d>: call"),
        ("get (cache.py:33);acquire (filelock/_api.py:344)", "holds the lock"),
    ],
)
def test_advice_on_a_hot_line(tmp_path: Path, below: str, part: str) -> None:
    raw = tmp_path / "a.raw.txt"
    raw.write_text(f"main (train.py:1);epoch (train.py:2);{below} 90\nmain (train.py:1) 10\n")
    *_, one, _main = measurements("hot-line", ta.py_spy_report(raw))
    assert part in one.advice


_SERVER = "<module> (vllm/entrypoints/openai/api_server.py:1850);run (asyncio/runners.py:118)"
_ENGINE = "run_busy_loop (vllm/v1/engine/core.py:670)"
_SCHEDULER = "event_loop_overlap (sglang/srt/managers/scheduler.py:960)"


@pytest.mark.parametrize(
    ("stacks", "size", "part"),
    [
        (
            (
                f"{_SERVER};stream (vllm/a.py:6);model_dump_json (pydantic/main.py:480) 40\n"
                f"{_SERVER};decode_next (vllm/v1/engine/detokenizer.py:220) 35\n"
                f"{_SERVER};send (uvicorn/protocols/http/h11_impl.py:480) 5\n"
                f"{_SERVER};select (selectors.py:469) 20\n"
            ),
            0.75,
            "--api-server-count",
        ),
        (
            (
                f"{_ENGINE};synchronize (torch/cuda/streams.py:231) 61\n"
                f"{_ENGINE};fill_bitmask (xgrammar/matcher.py:250) 30\n"
                f"{_ENGINE};schedule (vllm/v1/core/sched/scheduler.py:230) 9\n"
            ),
            0.3,
            "schema",
        ),
        (
            (
                f"{_SCHEDULER};_match_prefix_helper (sglang/srt/mem_cache/radix_cache.py:460) 50\n"
                f"{_SCHEDULER};forward_batch (sglang/srt/managers/tp_worker.py:210) 50\n"
            ),
            0.5,
            "--schedule-policy fcfs",
        ),
        (
            (
                "run (lightning/a.py:1);add_prefix_space (transformers/tokenization_utils.py) 90\n"
                "run (lightning/a.py:1);run_backward (torch/autograd/graph.py:9) 10\n"
            ),
            0.9,
            "loader workers",
        ),
        (
            (
                "run (lightning/a.py:1);open (torchvision/io.py:3);load (PIL/a.py:240) 90\n"
                "run (lightning/a.py:1);run_backward (torch/autograd/graph.py:9) 10\n"
            ),
            0.9,
            "loader workers",
        ),
        (  # a healthy engine waits for the GPU, and launches its work
            (
                f"{_ENGINE};synchronize (torch/cuda/streams.py:231) 61\n"
                f"{_ENGINE};execute_model (vllm/v1/worker/gpu_model_runner.py:1810) 31\n"
                f"{_ENGINE};schedule (vllm/v1/core/sched/scheduler.py:230) 9\n"
            ),
            None,
            "",
        ),
    ],
)
def test_functions_of_servers(stacks: str, size: float | None, part: str, tmp_path: Path) -> None:
    """Servers have no own code; the share is that of all samples."""
    raw = tmp_path / "a.raw.txt"
    raw.write_text(stacks)
    found = measurements("hot-line", ta.py_spy_report(raw))
    assert [one.size for one in found] == ([] if size is None else [pytest.approx(size)])
    assert all(part in one.advice for one in found)


_WORKER = (
    'process 8 (child of 7):"python t.py";main (t.py:1);_launch (multiprocessing/popen_fork.py:71);'
    "_bootstrap (multiprocessing/process.py:314);_worker_loop (torch/utils/data/_utils/worker.py:3)"
)


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("untar (webdataset/tariterators.py:120);read (gzip.py:300)", ".tar.gz"),
        ("decode (webdataset/autodecode.py:4);load (zarr/core.py:7)", "num_workers"),
    ],
)
def test_libraries_in_loader_workers(code: str, part: str, tmp_path: Path) -> None:
    """The main process is no code of the worker that it started."""
    raw = tmp_path / "a.raw.txt"
    get = "_get_data (torch/utils/data/dataloader.py:14);wait (threading.py:359)"
    raw.write_text(f'{_WORKER};{code} 90\nprocess 7:"python t.py";main (t.py:1);{get} 90\n')
    (one,) = measurements("hot-line", ta.py_spy_report(raw))
    assert one.size == 0.5
    assert part in one.advice
    assert f"called by {code.split()[0]} (webdataset" in one.title or "zarr" in one.title


def test_a_library_in_a_shortened_path_is_no_own_code(tmp_path: Path) -> None:
    raw = tmp_path / "a.raw.txt"
    raw.write_text("run (metrics.py:3);sample_line (prometheus_client/exposition.py:16) 90\n")
    (one,) = measurements("hot-line", ta.py_spy_report(raw))
    assert "run (metrics.py:3)" in one.title


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter_tensor", "broadcast", "recv"])
def test_a_collective_is_a_wait_for_other_ranks(name: str, tmp_path: Path) -> None:
    raw = tmp_path / "a.raw.txt"
    call = f"{name} (torch/distributed/distributed_c10d.py:3840);wrapper (torch/c10d_logger.py:81)"
    encode = "_batch_encode_plus (transformers/tokenization_utils_fast.py:5)"
    raw.write_text(f"main (rl.py:1);sync (actor.py:500);{call} 60\nmain (rl.py:3);{encode} 40\n")
    waits, tokens = measurements("hot-line", ta.py_spy_report(raw))
    assert (waits.size, waits.confidence) == (0.6, "medium")
    assert "sync (actor.py:500)" in waits.title
    assert "main (rl.py:3)" in tokens.title


def test_a_line_that_allocates_is_no_slow_loop(tmp_path: Path) -> None:
    raw = tmp_path / "a.austin"
    raw.write_text("# mode: memory\nP1;T1;a.py:main:1;a.py:grow:7 9000\nP1;T1;a.py:main:1 1000\n")
    one, _ = measurements("hot-line", ta.py_spy_report(raw))
    assert (one.size, one.of) == (0.9, "allocated memory")
    assert "reuse it" in one.advice


def test_the_backward_pass_is_no_finding(tmp_path: Path) -> None:
    backward = "backward (torch/_tensor.py:5);_engine_run_backward (torch/autograd/graph.py:8)"
    raw = tmp_path / "a.raw.txt"
    raw.write_text(
        f"main (train.py:1);{backward} 70\nmain (train.py:2);forward (torch/a.py:1) 30\n"
    )
    assert not measurements("hot-line", ta.py_spy_report(raw))
    fetch = "fetch (torch/utils/data/_utils/fetch.py:5);collate_fn (collate.py:31)"
    encode = "_batch_encode_plus (transformers/tokenization_utils_fast.py:5)"
    raw.write_text(f"main (train.py:1);{backward} 60\nmain (train.py:3);{fetch};{encode} 40\n")
    (loading,) = measurements("hot-line", ta.py_spy_report(raw))
    assert loading.size == 0.4
    assert "collate_fn (collate.py:31): _batch_encode_plus" in loading.title
    assert "okenize" in loading.advice


def test_lines_of_few_samples_are_no_findings(tmp_path: Path) -> None:
    raw = tmp_path / "a.raw.txt"
    raw.write_text("".join(f"f{n} (a.py:{n});g (b.py:{n}) {n}\n" for n in (1, 2, 4)))
    (line,) = measurements("hot-line", ta.py_spy_report(raw))
    assert (line.size, line.confidence) == (4 / 7, "low")


@pytest.mark.parametrize(
    ("lines", "shares"),
    [((31, 32, 33), [0.8]), ((31, 33, 35), [0.8]), ((31, 34, 40), [0.4, 0.3, 0.1])],
)
def test_neighbouring_lines_are_one_finding(
    tmp_path: Path, lines: tuple[int, ...], shares: list[float]
) -> None:
    raw = tmp_path / "a.raw.txt"
    rows = [f"busy (work.py:{line}) {n}\n" for line, n in zip(lines, (300, 400, 100), strict=True)]
    raw.write_text("".join([*rows, f"other (work.py:{lines[1]}) 200\n"]))
    found = measurements("hot-line", ta.py_spy_report(raw))
    assert [one.size for one in found if "busy" in one.title] == pytest.approx(shares)
    assert len(found) == len(shares) + 1


@pytest.mark.parametrize(("us", "confidence"), [(60, "low"), (4_000, "low"), (90_000, "high")])
def test_little_time_says_little(tmp_path: Path, us: int, confidence: str) -> None:
    raw = tmp_path / "a.austin"
    raw.write_text(f"P403;T87;main.py:base:2;utils.py:middle:5 {us}\n" * 2)
    (line,) = measurements("hot-line", ta.py_spy_report(raw))
    assert line.confidence == confidence


def test_garbage_collections_are_one_finding(tmp_path: Path) -> None:
    """Python's own sampling profiler: FILE:FUNCTION:LINE below the thread."""
    raw = tmp_path / "a.collapsed"
    raw.write_text(
        "tid:22;<frozen runpy>:_run_code:87;main.py:main:3;parse_it.py:Parser.add:306;<GC> 178\n"
        "tid:22;main.py:main:3;parse_it.py:Parser.add:300 122\n"
    )
    gc, line = measurements("hot-line", ta.py_spy_report(raw))
    assert (gc.size, gc.evidence) == (178 / 300, ("Called by Parser.add (parse_it.py:306).",))
    assert (line.size, "(parse_it.py:300)" in line.title) == (122 / 300, True)


@pytest.mark.parametrize(
    ("call", "share"),
    [
        ("post (requests/api.py:115);readinto (socket.py:718)", 0.6),
        ("sleep_in_c (app.py:45);wait (threading.py:320)", 0.6),
        ("synchronize (torch/cuda/streams.py:231)", None),  # an engine waits for the GPU
        ("_next_data (torch/utils/data/dataloader.py:1);wait (threading.py:320)", None),
        ("run_cell (ipykernel/zmqshell.py:549);f (cell.py:1);wait (threading.py:320)", None),
    ],
)
def test_a_wait_in_a_callback_blocks_the_event_loop(
    call: str, share: float | None, tmp_path: Path
) -> None:
    loop = "main (app.py:9);_run_once (asyncio/base_events.py:1986)"
    (raw := tmp_path / "a.raw.txt").write_text(
        f"{loop};_run (asyncio/events.py:88);embed (app.py:44);{call} 60\n"
        f"{loop};_run (asyncio/events.py:88);embed (app.py:48);dumps (json/a.py:2) 16\n"
        f"{loop};select (selectors.py:468) 24\n"
    )
    found = {one.size: one.title for one in measurements("hot-line", ta.py_spy_report(raw))}
    assert ("asyncio" in found.get(0.6, "")) == (share is not None)
    assert "app.py:48" in found[0.16]  # of all samples


def test_progress_bars_are_one_finding(tmp_path: Path) -> None:
    raw = tmp_path / "a.raw.txt"
    raw.write_text(
        "main (train.py:1);update (tqdm/std.py:1242);write (tqdm/utils.py:196) 20\n"
        "main (train.py:2);set_postfix (tqdm/std.py:1431);fp_write (tqdm/std.py:453) 15\n"
        "main (train.py:3);load (data.py:5) 65\n"
    )
    bars, line = measurements("hot-line", ta.py_spy_report(raw))
    assert (bars.size, line.size) == (0.35, 0.65)
    assert bars.evidence == ("Called by main (train.py:1).", "Called by main (train.py:2).")


@pytest.mark.parametrize(
    ("bar", "caller"),
    [
        (
            "on_batch (lightning/callbacks/progress/rich.py:52);print (rich/console.py:17)",
            "on_batch",
        ),
        ("step_end (transformers/callback.py:7);update (tqdm/std.py:12)", "step_end"),
        ("hook (alive_progress/core.py:19)", "loop"),
    ],
)
def test_a_library_below_a_line_that_trains(bar: str, caller: str, tmp_path: Path) -> None:
    """The line has most samples in the backward pass; its other calls count without these."""
    (raw := tmp_path / "a.raw.txt").write_text(
        f"main (fit.py:60);loop (lightning/a.py:2);{bar} 30\n"
        "main (fit.py:60);loop (lightning/a.py:2);run_backward (torch/autograd/graph.py:8) 45\n"
        "main (fit.py:60);loop (lightning/a.py:2);log (wandb/run.py:9) 25\n"
    )
    (line, bars) = sorted(measurements("hot-line", ta.py_spy_report(raw)), key=lambda one: one.size)
    assert (line.size, bars.size) == (0.25, 0.3)
    assert bars.evidence[0].startswith(f"Called by {caller} (")


def test_a_function_that_is_named_progress_and_prints_is_no_progress_bar(tmp_path: Path) -> None:
    (raw := tmp_path / "a.raw.txt").write_text("log_progress (fit.py:60);print (rich/a.py:2) 30\n")
    assert "progress bar" not in measured("hot-line", ta.py_spy_report(raw)).title


@pytest.mark.parametrize(
    ("stacks", "sizes"),
    [
        ("python3;_start;_PyEval_EvalFrameDefault;voxelize(at::Tensor const&);malloc", [0.7]),
        ("solver;__libc_start_main;main;assemble;std::vector<int>::push_back", [0.7]),
        ("python3;_start;_PyEval_EvalFrameDefault;list_append", []),  # of the interpreter
        ("python3;_start;_PyEval_Eval;py::step:/a/fit.py;py::add:/a/site-packages/b.py", [0.7]),
        ("python3;_start;_PyEval_Eval;py::add:/a/site-packages/b.py;py::<module>:<string>", []),
        ("a;b;c", []),  # no native stacks
    ],
)
def test_a_hot_native_function(stacks: str, sizes: list[float], tmp_path: Path) -> None:
    """Files are unknown: the innermost function is named that is not of a runtime or library."""
    (raw := tmp_path / "a.txt").write_text(f"{stacks} 70\n{stacks.split(';')[0]};memcpy 30\n")
    assert [one.size for one in measurements("hot-line", ta.py_spy_report(raw))] == sizes


def test_a_checkpoint_counts_with_its_waits_and_background_threads_do_not_count(
    tmp_path: Path,
) -> None:
    main = 'process 9:"python train.py";thread (9): MainThread;fit (train.py:3);'
    saves = "save (ckpt.py:5);async_save (torch/distributed/checkpoint/state_dict_saver.py:287);"
    thread = 'process 9:"python train.py";thread (8): Executor_0;_bootstrap (threading.py:1032);'
    raw = tmp_path / "a.raw.txt"
    raw.write_text(
        f"{main}backward (torch/_tensor.py:5);_engine_run_backward (torch/autograd/graph.py:8) 50\n"
        f"{main}{saves}cpu_offload (torch/distributed/_state_dict_utils.py:361) 25\n"
        f"{main}{saves}wait (threading.py:327) 5\n"
        f"{main}load (data.py:5) 20\n"
        f"{thread}write_data (torch/distributed/checkpoint/filesystem.py:712) 40\n"
    )
    report = ta.py_spy_report(raw)
    assert report.lines["samples_frac"].to_list() == [50 / 95, 25 / 95, 20 / 95]
    assert dict(report.activities.select("activity", "samples").rows()) == {
        "runs own code": 95, "runs in background threads": 40, "waits for another thread": 5,
    }  # fmt: skip
    save, load = measurements("hot-line", report)
    assert (save.size, "save (ckpt.py:5)" in save.title) == (0.3, True)
    assert (load.size, "load (data.py:5)" in load.title) == (0.2, True)


def test_the_model_below_other_lines_is_no_finding(tmp_path: Path) -> None:
    """The forward pass has more samples than the line that saves pictures."""
    raw = tmp_path / "a.raw.txt"
    raw.write_text(
        "main (train.py:9);fetch (torch/utils/data/dataloader.py:6);pad (collate.py:4) 40\n"
        "main (train.py:5);forward (net.py:6);forward (torch/nn/modules/linear.py:9) 35\n"
        "main (train.py:7);flush (logs.py:2);savefig (matplotlib/figure.py:9) 25\n"
    )
    found = measurements("hot-line", ta.py_spy_report(raw))
    assert [one.size for one in found] == [0.4, 0.25]
    assert "flush (logs.py:2)" in found[1].title


def test_allocator_retries() -> None:
    memory = ta.memory(ROOT / "fixtures" / "memory" / "training.pickle")
    for retries in (1, 3):
        devices = memory.devices.with_columns(retries=pl.lit(retries))
        (one,) = measurements("allocator-retries", replace(memory, devices=devices))
        assert (one.size, one.total_ns, one.cost_frac) == (retries, None, None)
        check_wording(one.title)


@pytest.mark.parametrize(
    ("retries", "severity"), [(0, None), (1, "warning"), (19, "warning"), (20, "critical")]
)
def test_severity_of_allocator_retries(retries: int, severity: str | None) -> None:
    memory = ta.memory(ROOT / "fixtures" / "memory" / "training.pickle")
    devices = memory.devices.with_columns(retries=pl.lit(retries))
    sizes = [
        one.size for one in measurements("allocator-retries", replace(memory, devices=devices))
    ]
    rule = BY_ID["allocator-retries"]
    assert [rule.severity(size) for size in sizes] == ([severity] if severity else [])


def test_most_fragmented_device_is_named() -> None:
    one = ta.memory(ROOT / "fixtures" / "memory" / "training.pickle").devices.with_columns(
        fullest_reserved_bytes=100, fullest_free_bytes=70, fullest_split_bytes=60
    )
    other = one.with_columns(device=pl.lit(1, pl.Int32), fullest_split_bytes=70)
    memory = ta.memory(ROOT / "fixtures" / "memory" / "training.pickle")
    (alone,) = measurements("memory-fragmentation", replace(memory, devices=one))
    assert (alone.size, alone.cost_bytes) == (0.6, 60)
    (both,) = measurements("memory-fragmentation", replace(memory, devices=pl.concat([one, other])))
    assert (round(both.size, 9), both.cost_bytes) == (0.7, 70)
    assert "device 1" in both.title
    check_wording(both.title)


def test_uneven_memory_above_and_below_the_median() -> None:
    memory = ta.memory(ROOT / "fixtures" / "memory" / "training.pickle")
    rows = [memory.devices.with_columns(rank=pl.lit(n, pl.Int32)) for n in range(4)]
    for factor in (2, 0.5):
        odd = rows[1].with_columns((pl.col("peak_bytes") * factor).cast(pl.Int64))
        (one,) = measurements("uneven-memory", replace(memory, devices=pl.concat([odd, *rows[1:]])))
        check_wording(one.title)


@pytest.mark.parametrize(("waits", "share"), [(60, "60.0 %"), (5, "")])
def test_a_main_process_that_waits_for_the_workers(tmp_path: Path, waits: int, share: str) -> None:
    """The line of the worker is the cause; the title says that the main process waits for it."""
    main = 'process 100:"python train.py";<module> (train.py:8);main (train.py:6);'
    worker = main.replace(";", ';process 101:"python train.py";', 1)
    lines = [
        f"{main}__next__ (torch/utils/data/dataloader.py:630);wait (threading.py:320) {waits}",
        f"{main}step (model.py:3) {100 - waits}",
        f"{worker}_worker_loop (torch/utils/data/_utils/worker.py:308);read (data.py:7) 300",
    ]
    raw = tmp_path / "two.raw.txt"
    raw.write_text("\n".join(lines) + "\n")
    (one,) = measurements("hot-line", ta.py_spy_report(raw))
    assert "read (data.py:7)" in one.title
    assert ("waits for the data loader" in one.title) == bool(share)
    assert share in one.title
