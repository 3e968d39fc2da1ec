"""Errors about missing data name the option of the profiler that wrote the file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, device, host, trace as traced
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import MissingData
from traceanalyzer.parsers.nsys_sqlite import tables
from traceanalyzer.trace import Meta, Trace, record_hint
from traceanalyzer.vocabulary import KINDS

NSYS, CHROME = (Meta("x", form) for form in ("nsys-sqlite", "chrome-trace"))


#: What else a question needs.
ASKED_FOR = (
    "device work", "collective", "step", "stack", "counter", "input_dims", "other code",
)  # fmt: skip


def on_host(meta: Meta) -> Trace:
    return replace(traced([host("osrt", "poll", 0, 5)]), sources=(meta,))


def on_device(meta: Meta) -> Trace:
    return replace(traced([device(GEMM, 0, 5)]), sources=(meta,))


def with_a_range(meta: Meta, *more: dict[str, Any]) -> Trace:
    events = [host("nvtx", "forward", 0, 100), *more]
    return replace(traced(events), sources=(meta,))


ASKED = {
    "gpu-idle": (lambda meta: ta.gpu_idle(on_host(meta)), "--trace=cuda,nvtx,osrt", "CUDA"),
    "launches": (lambda meta: ta.launches(on_device(meta)), "--trace=cuda,nvtx,osrt", "CUDA"),
    "operators": (lambda meta: ta.operators(on_host(meta)), "emit_nvtx.*--trace=nvtx", "CPU"),
    "operators by device": (
        lambda meta: ta.operators(with_a_range(meta), sort_by="self_device"),
        "--trace=cuda$",
        "CUDA",
    ),
    "kernels": (lambda meta: ta.kernels(on_host(meta)), "--trace=cuda$", "CUDA"),
    "overlap": (lambda meta: ta.overlap(on_host(meta)), "--trace=cuda,nvtx,osrt", "CUDA"),
    "overlap by step": (
        lambda meta: ta.overlap(on_device(meta), by="step"),
        "NVTX.*--trace=nvtx.*--step-name",
        r"profiler\.step\(\).*--step-name",
    ),
    "steps": (
        lambda meta: ta.steps(on_device(meta)),
        "NVTX.*--trace=nvtx.*--step-name",
        r"profiler\.step\(\).*--step-name",
    ),
    "comm-outliers": (
        lambda meta: ta.comm_outliers(on_host(meta)),
        "--trace=cuda, those of MPI --trace=mpi",
        "CUDA",
    ),
    "host-metrics": (
        lambda meta: ta.host_metrics(on_host(meta)),
        "--gpu-metrics-devices=all",
        "Composer",
    ),
    "py-spy-report": (
        lambda meta: ta.py_spy_report(on_host(meta)),
        "--sample=process-tree",
        "py-spy record",
    ),
    "flamegraph": (
        lambda meta: ta.flamegraph(on_device(meta)),
        "--sample=process-tree",
        "py-spy record",
    ),
}


def with_no_shapes(meta):
    """Return a trace with an empty column of input shapes."""
    trace = with_a_range(meta)
    column = next(c for c in schema.TABLES["events"] if c.name == "input_dims")
    return replace(
        trace, events=trace.events.with_columns(pl.lit(None, column.dtype).alias(column.name))
    )


@pytest.mark.parametrize("name", ASKED)
def test_option_of_the_profiler_is_named(name):
    ask, of_nsys, of_others = ASKED[name]
    with pytest.raises(MissingData) as raised:
        ask(NSYS)
    assert re.search(of_nsys, str(raised.value))
    assert not re.search(r"torch\.profiler|py-spy|Composer", str(raised.value))
    with pytest.raises(MissingData) as raised:
        ask(CHROME)
    assert re.search(of_others, str(raised.value))
    assert "nsys" not in str(raised.value)


@pytest.mark.parametrize(
    ("option", "of_others"),
    [
        ({"group_by_stack": 1}, "with_stack=True"),
        ({"group_by_input_shape": True}, "record_shapes=True"),
        ({"sort_by": "self_device_memory"}, "profile_memory=True"),
    ],
)
def test_options_nsys_lacks_name_torch_profiler(option, of_others):
    with pytest.raises(MissingData, match=f"; record with torch.profiler {of_others}$") as raised:
        ta.operators(with_no_shapes(CHROME), **option)
    assert "nsys" not in str(raised.value)
    pattern = rf"(nsys|emit_nvtx).*; record with torch.profiler {of_others}$"
    with pytest.raises(MissingData, match=pattern):
        ta.operators(with_no_shapes(NSYS), **option)


def test_gpu_idle_notes_name_options():
    for meta, of_work, of_steps in (
        (NSYS, "--trace=cuda,nvtx,osrt", "NVTX"),
        (CHROME, "ProfilerActivity.CUDA", r"profiler\.step\(\)"),
    ):
        alone = " ".join(ta.gpu_idle(on_device(meta)).notes)
        assert re.search(f"No host activity was recorded.*{re.escape(of_work)}", alone)
        assert re.search(f"For shares of steps.*{of_steps}.*--step-name", alone)
        call = host("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=9)
        loose = replace(traced([call, device(GEMM, 2, 5)]), sources=(meta,))
        assert any("launch calls" in n and of_work in n for n in ta.gpu_idle(loose).notes)


def test_hint_for_code_outside_ranges():
    work = [device(GEMM, at, 5, correlation=at) for at in (10_000, 2_000_000)]
    calls = [
        host("cuda_runtime", "cudaLaunchKernel", at, 1, correlation=at)
        for at in (10_000, 2_000_000)
    ]
    for meta, text in (
        (NSYS, "more NVTX ranges, or py-spy"),
        (CHROME, "with_stack=True"),
    ):
        assert text in ta.operators(with_a_range(meta)).verdict
        recording = replace(traced([*calls, *work]), sources=(meta,))
        assert text in ta.gpu_idle(recording).verdict


def test_kernels_by_annotation():
    call = host("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1)
    for meta, option in ((NSYS, "--trace=nvtx"), (CHROME, "record_function")):
        trace = replace(traced([call, device(GEMM, 2, 5, correlation=1)]), sources=(meta,))
        with pytest.raises(MissingData, match=option):
            ta.kernels(trace, by="annotation")


def test_options_match_those_of_info():
    """Hints name the same options as the parser's notes on missing tables."""
    known = {recording.option for recording in tables.RECORDINGS}
    named = set()
    for what in (*KINDS, *ASKED_FOR):
        for option, values in re.findall(
            r"(--[a-z-]+)=([a-z-]+(?:,[a-z-]+)*)", record_hint(NSYS, what)
        ):
            named |= {f"{option}={value}" for value in values.split(",")}
    assert named <= known
    assert named >= {"--trace=cuda", "--trace=nvtx", "--trace=osrt", "--trace=mpi"}


def test_a_trace_converted_to_parquet_keeps_its_profiler(tmp_path):
    export = Path(__file__).parents[2] / "fixtures/nsys/tables.sqlite"
    ta.convert(export, tmp_path / "a.parquet")
    with raises_wording(MissingData):
        ta.py_spy_report(tmp_path / "a.parquet")


def test_unknown_kind_has_no_hint():
    with raises_wording(MissingData):
        on_device(CHROME).require("glow_runtime")
