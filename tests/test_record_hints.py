"""What was not recorded: the error names the option of the profiler that wrote the file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from comm_traces import GEMM, device, host
from comm_traces import trace as traced

import traceanalyzer as ta
from traceanalyzer.errors import MissingData
from traceanalyzer.parsers.nsys_sqlite import layout
from traceanalyzer.trace import RECORD_HINTS, Meta, Trace, record_hint
from traceanalyzer.vocabulary import KINDS

NSYS, CHROME = (Meta("x", form) for form in ("nsys-sqlite", "chrome-trace"))


def on_host(meta: Meta) -> Trace:
    return replace(traced([host("osrt", "poll", 0, 5)]), sources=(meta,))


def on_device(meta: Meta) -> Trace:
    return replace(traced([device(GEMM, 0, 5)]), sources=(meta,))


ASKED = {
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


@pytest.mark.parametrize("name", ASKED)
def test_the_profilers_own_option_is_named(name):
    ask, of_nsys, of_others = ASKED[name]
    with pytest.raises(MissingData) as raised:
        ask(NSYS)
    assert re.search(of_nsys, str(raised.value))
    assert not re.search(r"torch\.profiler|py-spy|Composer", str(raised.value))
    with pytest.raises(MissingData) as raised:
        ask(CHROME)
    assert re.search(of_others, str(raised.value))
    assert "nsys" not in str(raised.value)


def test_kernels_by_annotation():
    call = host("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1)
    for meta, option in ((NSYS, "--trace=nvtx"), (CHROME, "record_function")):
        trace = replace(traced([call, device(GEMM, 2, 5, correlation=1)]), sources=(meta,))
        with pytest.raises(MissingData, match=option):
            ta.kernels(trace, by="annotation")


def test_options_are_those_that_info_names():
    """The parser tells which tables are missing; both must say the same."""
    known = {recording.option for recording in layout.RECORDINGS}
    named = set()
    for what in (*KINDS, *RECORD_HINTS):
        for option, values in re.findall(
            r"(--[a-z-]+)=([a-z-]+(?:,[a-z-]+)*)", record_hint(NSYS, what)
        ):
            named |= {f"{option}={value}" for value in values.split(",")}
    assert named <= known
    assert named >= {"--trace=cuda", "--trace=nvtx", "--trace=osrt", "--trace=mpi"}


def test_a_trace_converted_to_parquet_keeps_its_profiler(tmp_path):
    export = Path(__file__).parents[1] / "fixtures/nsys/tables.sqlite"
    ta.convert(export, tmp_path / "a.parquet")
    with pytest.raises(MissingData, match="nsys profile --sample=process-tree"):
        ta.py_spy_report(tmp_path / "a.parquet")


def test_nothing_is_said_where_nothing_is_known():
    with pytest.raises(MissingData, match=r"no glow_runtime events were recorded$"):
        on_device(CHROME).require("glow_runtime")
