"""Ranges without numbers that stand around each step: ``timestep`` of HPC codes, ``Step``."""

from __future__ import annotations

from typing import Any

import pytest
from comm_traces import MS, US, device, host, trace

import traceanalyzer as ta
from traceanalyzer.trace import Trace

KERNEL = 100 * US


class Program:
    """A host that launches kernels of 100 us faster than the device runs them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.at = self.free = self.calls = 0

    def launch(self, *names: str) -> None:
        for name in names:
            self.calls += 1
            call = {"correlation": self.calls}
            self.rows.append(host("cuda_runtime", "cudaLaunchKernel", self.at, 4 * US, **call))
            self.at += 5 * US
            start = max(self.at + 3 * US, self.free)
            self.rows.append(device(name, start, KERNEL, **call))
            self.free = start + KERNEL

    def synchronise(self) -> None:
        wait = max(self.free - self.at, US)
        self.rows.append(host("cuda_runtime", "cudaDeviceSynchronize", self.at, wait))
        self.at += wait

    def pause(self, name: str, ns: int, kind: str = "nvtx") -> None:
        self.rows.append(host(kind, name, self.at, ns))
        self.at += ns

    def since(self, begin: int, name: str, kind: str = "nvtx") -> None:
        self.rows.append(host(kind, name, begin, self.at - begin))

    def trace(self) -> Trace:
        self.synchronise()
        return trace(self.rows, 0)


def simulation(name: str, kind: str = "nvtx") -> Trace:
    """Return 12 steps of three kernels; each fourth one ends with a pause of the device."""
    one = Program()
    for number in range(12):
        begin = one.at
        one.launch("stencil", "reduce", "update")
        if number % 4 == 3:
            one.synchronise()
            one.pause("build_neighbor_list", 3 * MS, kind)
        one.since(begin, name.format(number), kind)
    return one.trace()


@pytest.mark.parametrize(
    "name",
    [
        "timestep", "Step", "md_step", "Time step", "iter", "cg_iteration", "predict_batch",
        "render_frame", "timestep {}", "Cycle_{}", "Integrator::step(int)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["nvtx", "user_annotation"])
def test_a_range_around_each_step(name: str, kind: str) -> None:
    recorded = simulation(name, kind)
    steps = ta.steps(recorded).steps
    assert steps.height == 12
    length = steps["duration_ns"].to_list()
    assert [n for n, ns in enumerate(length) if ns > MS] == [3, 7, 11]
    idle = ta.gpu_idle(recorded).by_device.counted_steps
    assert (idle["end"] - idle["start"]).to_list() == length
    assert ta.overlap(recorded, by="step").steps["span_ns"].to_list() == length


def test_what_all_steps_run_is_not_only_in_slow_steps() -> None:
    """Every step is a range ``md_step``; only the slow ones build the list."""
    (slow,) = (one for one in ta.diagnose(simulation("md_step")).findings)
    texts = " ".join(text for one in (slow, *slow.effects) for text in (one.title, *one.evidence))
    assert "build_neighbor_list" in texts
    assert "run md_step" not in texts
    assert "in md_step." not in texts


def test_the_host_range_of_steps_detected_from_kernels() -> None:
    """The host is four steps ahead: what it runs counts for the step that it launches."""
    one = Program()
    for number in range(24):
        one.launch("force", "integrate", "constrain", "thermostat")
        if number % 4 == 3:
            one.synchronise()
            one.pause("build_neighbor_list", 3 * MS)
    result = ta.steps(one.trace())
    assert result.by_kernels
    diagnosis = ta.diagnose(one.trace())
    (slow,) = (effect for found in diagnosis.findings for effect in found.effects)
    assert "only slow steps run build_neighbor_list (3 ms)" in slow.title


def test_step_after_forward_and_backward_is_that_of_the_optimizer() -> None:
    """Apex's examples mark forward, backward and step."""
    one = Program()
    for _ in range(8):
        for name, kernels in (("forward", 4), ("backward", 6), ("step", 1)):
            begin = one.at
            one.launch(*(f"{name}_{n}" for n in range(kernels)))
            one.since(begin, name)
        one.synchronise()
    result = ta.steps(one.trace())
    assert result.by_kernels
    assert result.steps.height == 8


def test_loading_a_batch_is_no_step() -> None:
    one = Program()
    for _ in range(8):
        one.pause("get_batch", 5 * MS)
        one.launch("gemm", "gelu", "norm")
        one.synchronise()
    assert ta.steps(one.trace()).by_kernels


def test_code_between_ranges_is_named() -> None:
    """Writing begins with a synchronisation, while the device still runs the step."""
    one = Program()
    for number in range(20):
        begin = one.at
        one.launch("predict", "density", "update")
        one.since(begin, "Step")
        if number % 5 == 4:
            begin = one.at
            one.synchronise()
            one.at += 4 * MS
            one.since(begin, "OutputPositionData")
    result = ta.steps(one.trace())
    assert result.steps.height == 20
    (first, *_) = ta.diagnose(one.trace()).findings
    assert first.id == "time-between-steps"
    assert "OutputPositionData for 12" in " ".join(first.evidence)


def test_long_copies_are_part_of_the_sequence() -> None:
    """A model of equal layers; only the copy of the result says where a batch ends."""
    one = Program()
    for _ in range(6):
        for _ in range(12):
            one.launch("gemm", "gelu", "norm")
        one.calls += 1
        call = {"correlation": one.calls}
        one.rows.append(host("cuda_runtime", "cudaMemcpyAsync", one.at, 9 * MS, **call))
        copy = {**device("Memcpy DtoH", one.free, 4 * MS, **call), "kind": "gpu_memcpy"}
        one.rows.append(copy)
        one.at = one.free = one.free + 4 * MS
    assert ta.steps(one.trace()).steps.height == 6


@pytest.mark.parametrize(
    ("names", "between", "steps"),
    [
        (("gemm", "attention", "norm"), "graph", 6),
        (("stencil", "reduce", "update"), "graph", 6),
        (("gemm", "attention", "norm"), "Memcpy DtoH (Device -> Pinned)", 6),
        (("gemm", "attention", "adam_kernel"), "Memcpy DtoH (Device -> Pinned)", 71),
        (("stencil", "reduce", "update"), "Memcpy DtoH (Device -> Pinned)", 71),
        (("gemm", "attention", "norm"), "Memcpy DtoD (Device -> Device)", 71),
    ],
)
def test_layers_in_one_graph_or_between_copies(
    names: tuple[str, ...], between: str, steps: int
) -> None:
    """12 layers per token; training, solvers and copies on the device keep their repeats."""
    one = Program()
    for _ in range(6):
        begin = len(one.rows)
        one.launch(*names * 12)
        if between == "graph":
            kernels = [row for row in one.rows[begin:] if row["kind"] == "kernel"]
            launch = host("cuda_runtime", "cudaGraphLaunch", one.at, 4 * US)
            one.rows[begin:] = [{**row, "correlation": one.calls} for row in [launch, *kernels]]
            continue
        one.calls += 1
        call = {"correlation": one.calls}
        one.rows.append(host("cuda_runtime", "cudaMemcpyAsync", one.at, 9 * US, **call))
        one.rows.append({**device(between, one.free, US, **call), "kind": "gpu_memcpy"})
        one.free += US
        one.synchronise()
    assert ta.steps(one.trace()).steps.height == steps
