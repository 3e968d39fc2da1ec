"""Traces of JAX's and TensorFlow's profiler: devices, streams, launches and steps by lanes."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceanalyzer as ta

FILE = Path(__file__).parents[2] / "fixtures" / "xla" / "gpu2.trace.json.gz"
Json = dict[str, Any]


def raw() -> list[Json]:
    """The file's events, read with the standard library."""
    return json.loads(gzip.decompress(FILE.read_bytes()))["traceEvents"]


def written(folder: Path, events: list[Json], **head: object) -> str:
    """A file of these events, as XLA lays one out."""
    path = folder / "host.trace.json"
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, **head}
    path.write_text(json.dumps({**document, "traceEvents": events}))
    return str(path)


def lanes(events: list[Json]) -> dict[tuple[int, int | None], str]:
    """What processes and threads are called."""
    named = [e for e in events if e.get("name") in ("process_name", "thread_name")]
    return {(e["pid"], e.get("tid")): e["args"]["name"] for e in named}


def on_streams(events: list[Json]) -> list[Json]:
    """The slices that lie on streams."""
    labels = lanes(events)
    return [
        e
        for e in events
        if e.get("ph") == "X" and labels.get((e["pid"], e["tid"]), "").startswith("Stream #")
    ]


def test_device_work_is_on_streams() -> None:
    work = on_streams(raw())
    events = ta.read(FILE).events
    kinds = Counter(events["kind"].cast(pl.String))
    assert kinds["kernel"] == sum("kernel_details" in e["args"] for e in work)
    assert kinds["gpu_memcpy"] == sum("memcpy_details" in e["args"] for e in work)
    assert kinds["kernel"] + kinds["gpu_memcpy"] == len(work) > 100
    rows = events.filter(pl.col("kind").is_in(["kernel", "gpu_memcpy"]))
    result = {
        (row["device"], row["stream"], row["ts"], row["dur"], row["correlation"])
        for row in rows.iter_rows(named=True)
    }
    labels = lanes(raw())
    assert result == {
        (
            int(labels[e["pid"], None][-1]),
            int(re.findall(r"\d+", labels[e["pid"], e["tid"]])[0]),
            round(e["ts"] * 1000),
            round(e["dur"] * 1000),
            int(e["args"]["correlation_id"]),
        )
        for e in work
    }
    assert rows["pid"].null_count() == rows["tid"].null_count() == rows.height


def test_lanes_that_repeat_work_are_annotations() -> None:
    events = ta.read(FILE).events
    again = events.filter(pl.col("kind") == "gpu_user_annotation")
    names = set(again["name"].cast(pl.String))
    assert "jit_train_step(4411)" in names
    assert "all-reduce-start.3" in names
    assert set(again["device"]) == {0, 1}
    assert again["stream"].n_unique() == 2


def test_driver_calls_launch_the_work() -> None:
    events = ta.read(FILE).events
    calls = events.filter(pl.col("kind") == "cuda_driver")
    work = events.filter(pl.col("kind").is_in(["kernel", "gpu_memcpy"]))
    assert set(calls["correlation"]) == set(work["correlation"])
    assert calls.height == work.height
    launches = ta.launches(FILE).scalars
    assert (launches["launches"], launches["unlaunched"]) == (work.height, 0)


def test_copies_have_kineto_names_and_sizes() -> None:
    copies = ta.read(FILE).events.filter(pl.col("kind") == "gpu_memcpy")
    assert set(copies["name"].cast(pl.String)) == {"Memcpy HtoD (Pageable -> Device)"}
    assert set(copies["bytes"]) == {8 << 20}
    table = ta.transfers(FILE).to_polars("copies")
    assert table.select("direction", "memory", "n").row(0) == ("HtoD", "Pageable -> Device", 16)


def test_launch_configs_of_kernels() -> None:
    trace = ta.read(FILE)
    configs = trace.launch_configs
    kernels = trace.events.with_row_index("event").filter(pl.col("kind") == "kernel")
    assert configs["event"].to_list() == kernels["event"].to_list()
    labels = configs.select(pl.exclude("event", "grid_x")).unique().rows()
    assert labels == [(1, 1, 256, 1, 1, 64, 3072, None)]
    assert set(configs["grid_x"]) == {24, 512, 2048}


def test_steps_have_numbers() -> None:
    steps = ta.steps(FILE).to_polars("steps").filter(pl.col("device") == 0)
    assert set(steps["step"]) == {f"train step {number}" for number in range(8)}
    assert sorted(steps["step"].head(2)) == ["train step 3", "train step 6"]


def test_analyses_work() -> None:
    work = on_streams(raw())
    kernels = ta.kernels(FILE)
    assert kernels.scalars["total_ns"] == sum(round(e["dur"] * 1000) for e in work)
    families = set(kernels.to_polars("families")["family"])
    assert {"communication", "memcpy HtoD"} <= families
    sums = ta.overlap(FILE).to_polars("devices")
    nccl = [e for e in work if e["name"].startswith("nccl")]
    for device, pid in ((0, 1), (1, 2)):
        sums_of_device = sums.filter(pl.col("device") == device).to_dicts()[0]
        expected = sum(round(e["dur"] * 1000) for e in nccl if e["pid"] == pid)
        assert (
            sums_of_device["communication_ns"]
            == sums_of_device["exposed_communication_ns"]
            == expected
        )
    causes = ta.gpu_idle(FILE).to_polars("causes")
    loading = causes.filter(pl.col("cause") == "dataloading")["idle_ns"].item()
    assert loading == 2 * (2 * 4_300_000 + 6 * 300_000)
    assert ta.comm_outliers(FILE).scalars["n_events"] == 16


@pytest.mark.parametrize(
    "kinds",
    [["kernel"], ["cuda_driver", "gpu_memcpy"], ["user_annotation"], ["other"], ["gpu_memset"]],
    ids="+".join,
)
def test_selection_is_a_subset(kinds: list[str]) -> None:
    whole, part = ta.read(FILE), ta.read(FILE, kinds=kinds)
    expected = whole.events.with_row_index().filter(pl.col("kind").is_in(kinds))
    assert part.events.equals(expected.drop("index"))
    of = dict(zip(expected["index"], range(expected.height), strict=True))
    configs = [of[e] for e in whole.launch_configs["event"] if e in of]
    assert part.launch_configs["event"].to_list() == configs
    assert "args" not in part.events.columns
    assert "args" in ta.read(FILE, kinds=kinds, columns=["args"]).events.columns


def test_names_are_selected_whatever_their_kind() -> None:
    events = ta.read(FILE, kinds=["gpu_memset"], names=["try_to_block"]).events
    assert events.height == 8


DEVICE = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:3"}}
STREAM = {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name", "args": {"name": "Stream #7"}}


def slice_(name: str, at: float = 1.0, **args: object) -> Json:
    return {"ph": "X", "pid": 1, "tid": 7, "ts": at, "dur": 2.5, "name": name, "args": args}


@pytest.mark.parametrize(
    ("event", "kind", "name"),
    [
        (slice_("gemm"), "kernel", "gemm"),
        (slice_("MemcpyD2H"), "gpu_memcpy", "Memcpy DtoH"),
        (slice_("MemcpyP2P", memcpy_details="kind:pageable size:8"), "gpu_memcpy", "Memcpy PtoP"),
        (slice_("MemcpyOther"), "gpu_memcpy", "MemcpyOther"),
        (slice_("Memset"), "gpu_memset", "Memset"),
        (slice_("MemoryAlloc"), "gpu_user_annotation", "MemoryAlloc"),
        ({**slice_("fusion"), "tid": 99}, "gpu_user_annotation", "fusion"),
        ({**slice_("cuLaunchKernel"), "pid": 701}, "cuda_driver", "cuLaunchKernel"),
        ({**slice_("hipLaunchKernel"), "pid": 701}, "cuda_runtime", "hipLaunchKernel"),
        ({**slice_("MemcpyD2H"), "pid": 701}, "cuda_driver", "MemcpyD2H"),
        ({**slice_("custom"), "pid": 701}, "other", "custom"),
        ({**slice_("step", step_num="4"), "pid": 701}, "user_annotation", "step 4"),
        ({**slice_("eval", step_num=4), "pid": 701}, "user_annotation", "eval step 4"),
        ({**slice_("train", step_num="x"), "pid": 701}, "other", "train"),
        ({**slice_("gemm"), "cat": "cpu_op"}, "cpu_op", "gemm"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_type_of_event(tmp_path: Path, event: Json, kind: str, name: str) -> None:
    trace = ta.read(written(tmp_path, [DEVICE, STREAM, event, {}]))
    assert trace.events.select(pl.col("kind", "name").cast(pl.String)).rows() == [(kind, name)]
    on_device = kind.startswith(("kernel", "gpu_"))
    assert trace.events["device"].to_list() == [3 if on_device else None]


def test_odd_lanes_and_arguments(tmp_path: Path) -> None:
    odd = [
        {**DEVICE, "args": {"name": 5}},
        {**DEVICE, "pid": 2, "args": {}},
        {**DEVICE, "pid": 3, "args": {"name": "/device:GPU:99999999999"}},
        {**STREAM, "pid": 3, "args": {"name": "Stream #99999999999999999999999"}},
        slice_("a", correlation_id="99999999999999999999"),
        {**slice_("b", kernel_details="grid:x regs:99999999999999"), "pid": 3},
        {**slice_("c"), "args": "text"},
        {"ph": "X", "pid": 1, "ts": 1, "name": None},
    ]
    trace = ta.read(written(tmp_path, odd))
    assert not trace.events["kind"].is_in(["kernel"]).any()
    good = [DEVICE, STREAM, slice_("k", correlation_id="99999999999999999999", memcpy_details=[1])]
    rows = ta.read(written(tmp_path, good)).events
    assert rows.select(pl.col("kind").cast(pl.String), "correlation").row(0) == ("gpu_memcpy", None)


def test_other_traces_are_not_classified_by_lanes(tmp_path: Path) -> None:
    path = written(tmp_path, [slice_("gemm", note="x" * 5000), DEVICE, STREAM])
    assert ta.read(path).events["kind"].to_list() == ["other"]


def test_without_metadata_as_for_perfetto(tmp_path: Path) -> None:
    path = tmp_path / "perfetto_trace.json"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": raw()[:-1]}, indent=1))
    mine, theirs = ta.read(FILE), ta.read(path)
    assert mine.events.equals(theirs.events)


def test_a_real_recording_on_a_cpu() -> None:
    path = FILE.parents[1] / "jax_cpu" / "host.trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    marked = [e for e in events if e.get("args", {}).get("step_num")]
    trace = ta.read(path)
    assert trace.events.height == sum(e.get("ph") == "X" for e in events) > 500
    steps = trace.events.filter(pl.col("kind") == "user_annotation")
    assert steps["name"].to_list() == [f"train step {e['args']['step_num']}" for e in marked]
    assert steps["dur"].to_list() == [round(e["dur"] * 1000) for e in marked]
    assert len(marked) == 4
    functions = trace.events.filter(pl.col("kind") == "python_function")
    assert functions.height == sum(e.get("name", "").startswith("$") for e in events) > 500
    assert "profiler.py(151): start_trace" in functions["name"].to_list()
    assert "<built-in function sleep>" in functions["name"].to_list()
    operators = trace.events.filter(pl.col("kind") == "cpu_op")
    named = [e["name"] for e in events if "hlo_op" in e.get("args", {})]
    assert sorted(operators["name"]) == sorted(named) != []
    assert "other" in set(trace.events["kind"])
    assert ta.steps(path).to_polars("steps").height == 4


def test_a_callback_of_the_host_is_the_cause_of_idle_time(tmp_path: Path) -> None:
    """The program on the GPU waits for a Python function that it calls on another thread."""
    stream = {"ph": "M", "pid": 1, "tid": 13, "name": "thread_name"}
    events = [DEVICE, {**stream, "args": {"name": "Stream #13(Compute)"}},
              {**DEVICE, "pid": 701, "args": {"name": "/host:CPU"}}]  # fmt: skip
    for step in range(4):
        at, host = 1000.0 * step, {"ph": "X", "pid": 701}
        events += [
            {"ph": "X", "pid": 1, "tid": 13, "ts": at + start, "dur": 100, "name": "fusion",
             "args": {"hlo_op": "fusion"}} for start in (0, 900)
        ]  # fmt: skip
        events += [
            {**host, "tid": tid, "ts": at + start, "dur": dur, "name": name}
            for tid, start, dur, name in (
                (1, 5, 985, "$array.py:640 block_until_ready"),
                (2, 110, 780, "xla_ffi_python_gpu_callback"),
                (2, 120, 765, "$train.py:57 log_histograms"),
            )
        ]
    first = ta.diagnose(written(tmp_path, [*events, {}])).findings[0]
    assert first.id == "host-code"
    assert "log_histograms" in first.advice


@pytest.mark.parametrize("thread", [1, 2])
def test_arrays_that_the_host_reads_are_copied_in_a_function(tmp_path: Path, thread: int) -> None:
    """The thread that waits for the array calls the copy, or another one does it."""
    events, host = [DEVICE, STREAM, {**DEVICE, "pid": 701, "args": {"name": "/host:CPU"}}], 701
    for number in range(4):
        at, link = 1000.0 * number, {"correlation_id": str(number)}
        for name, pid, tid, start, dur, args in (
            ("fusion", 1, 7, 10, 600, {}),
            ("MemcpyD2H", 1, 7, 615, 300, link),
            ("MemcpyD2H", host, thread, 602, 8, link),
            ("$history.py:44 record", host, 1, 100, 830, {}),
            ("$array.py:612 __array__", host, 1, 110, 815, {}),
        ):
            event = {"pid": pid, "tid": tid, "dur": dur}
            events.append(slice_(name, at + start, **args) | event)
    found = ta.diagnose(written(tmp_path, [*events, {}])).findings
    (copies,) = (one for one in found if one.id == "exposed-copies")
    assert "copies in __array__ (array.py:612), record (history.py:44)" in copies.title


def test_operators_of_tensorflow_run_on_any_thread_of_its_pool(tmp_path: Path) -> None:
    host = {**DEVICE, "pid": 701, "args": {"name": "/host:CPU"}}
    events = [DEVICE, STREAM, host]
    for tid in (2, 3):
        args = {"name": f"tf_Compute/{tid}"}
        events.append({"ph": "M", "name": "thread_name", "pid": 701, "tid": tid, "args": args})
    for number in range(4):
        at, link = 1000.0 * number, {"correlation_id": str(number)}
        for name, pid, tid, start, dur in (
            ("fusion", 1, 7, 410, 590),
            ("cuLaunchKernel", 701, 2, 402, 5),
            ("PyFunc", 701, 3, 2, 395),
        ):
            event = {"pid": pid, "tid": tid, "dur": dur}
            events.append(slice_(name, at + start, **({} if tid == 3 else link)) | event)
    one = ta.diagnose(written(tmp_path, [*events, {}])).findings[0]
    assert (one.id, "PyFunc" in one.title) == ("host-code", True)
    assert "tf.data" in one.advice


@pytest.mark.parametrize("call", ["xla_python_gpu_callback", "xla_ffi_python_gpu_callback"])
def test_callbacks_of_a_jitted_function_run_on_another_thread(tmp_path: Path, call: str) -> None:
    host = {**DEVICE, "pid": 701, "args": {"name": "/host:CPU"}}
    events = [DEVICE, STREAM, host]
    for number in range(4):
        at, link = 1000.0 * number, {"correlation_id": str(number)}
        for name, pid, tid, start, dur in (
            ("fusion", 1, 7, 410, 590),
            ("$train.py:9 main", 701, 2, 0, 999),
            ("PjitFunction(train_step)", 701, 2, 1, 990),
            ("cuLaunchKernel", 701, 2, 402, 5),
            (call, 701, 3, 2, 395),
            ("$callbacks.py:31 log_activations", 701, 3, 3, 390),
        ):
            event = {"pid": pid, "tid": tid, "dur": dur}
            linked = link if tid == 7 or name == "cuLaunchKernel" else {}
            events.append(slice_(name, at + start, **linked) | event)
    one = ta.diagnose(written(tmp_path, [*events, {}])).findings[0]
    assert (one.id, "callbacks.py:31" in one.title) == ("host-code", True)


def test_steps_without_any_gpu(tmp_path: Path) -> None:
    host = {**DEVICE, "pid": 701, "args": {"name": "/host:CPU"}}
    step = {**slice_("train", step_num="2"), "pid": 701}
    events = ta.read(written(tmp_path, [host, step, {}])).events
    assert events["name"].to_list() == ["train step 2"]
    assert events["kind"].to_list() == ["user_annotation"]


@pytest.mark.parametrize("wait", ["IteratorGetNext", "IteratorGetNextOp::DoCompute"])
@pytest.mark.parametrize("linked", [False, True])
def test_waits_for_tf_data(tmp_path: Path, wait: str, *, linked: bool) -> None:
    """A graph that waits for its dataset is data loading, with advice for tf.data only."""
    named = {1: "/device:GPU:0", 701: "/host:CPU"}
    events: list[Json] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in named.items()
    ]
    label = {"name": "Stream #20(Compute)"}
    events.append({"ph": "M", "pid": 1, "tid": 20, "name": "thread_name", "args": label})
    for n in range(8):
        at = n * 1000
        args = {"step_num": str(n)}
        events += [
            {"ph": "X", "pid": 701, "tid": 1, "ts": at, "dur": 999, "name": "train", "args": args},
            {"ph": "X", "pid": 701, "tid": 33, "ts": at + 5, "dur": 395, "name": wait},
            {"ph": "X", "pid": 701, "tid": 40, "ts": at, "dur": 390, "name": "Iterator::Map"},
        ]
        number = {"correlation_id": str(n)} if linked else {}
        kernel = {"kernel_details": "", **number}
        events.append(
            {
                "ph": "X",
                "pid": 1,
                "tid": 20,
                "ts": at + 410,
                "dur": 590,
                "name": "k",
                "args": kernel,
            }
        )
        if linked:
            call = {"ph": "X", "pid": 701, "tid": 34, "ts": at + 402, "dur": 5, "args": number}
            events.append({**call, "name": "cuLaunchKernel"})
    result = ta.diagnose(written(tmp_path, events))
    one = result.findings[0]
    assert (one.id, one.cost_frac) == ("data-loading", pytest.approx(0.395, abs=0.02))
    assert "tf.data.AUTOTUNE" in one.advice
    assert "unknown-idleness" not in [other.id for other in result.findings]
    assert "torch" not in f"{result.findings} {result.view().notes}"


def test_operations_of_a_tpu_are_device_work(tmp_path: Path) -> None:
    """Loops contain other operations, and other threads repeat them."""
    named = (("process_name", None, "/device:TPU:0"), ("process_name", None, "/host:CPU"))
    threads = (("thread_name", 1, "Steps"), ("thread_name", 2, "XLA Modules"))
    events: list[Json] = [
        {"ph": "M", "pid": pid, "name": what, "args": {"name": name}}
        for pid, (what, _, name) in zip((3, 701), named, strict=True)
    ]
    events += [
        {"ph": "M", "pid": 3, "tid": tid, "name": what, "args": {"name": name}}
        for what, tid, name in (*threads, ("thread_name", 3, "XLA Ops"))
    ]
    for start in range(0, 6000, 2000):
        rows = ((1, "0", 0, 1000), (2, "jit_call(42)", 0, 1000), (3, "while.1", 50, 900))
        rows += ((3, "dense_linear.20", 100, 400), (3, "all-reduce.1", 600, 200))
        events += [
            {"ph": "X", "pid": 3, "tid": tid, "name": name, "ts": start + at, "dur": length}
            for tid, name, at, length in rows
        ]
    trace = ta.read(written(tmp_path, events))
    work = trace.events.filter(pl.col("kind") == "kernel")
    assert Counter(work["name"].cast(pl.String)) == {"dense_linear.20": 3, "all-reduce.1": 3}
    assert (work["dur"].sum(), work["device"].unique().to_list()) == (3 * 600_000, [0])
    assert trace.collectives["collective"].cast(pl.String).to_list() == ["all_reduce"] * 3
    assert ta.kernels(trace).busy_ns == 3 * 600_000
