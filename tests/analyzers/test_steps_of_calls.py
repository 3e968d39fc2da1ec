"""Detected steps are not the layers of a module or annotation that is called in each step."""

from __future__ import annotations

from typing import Any

import pytest
from comm_traces import US, device, host, trace

import traceanalyzer as ta
from traceanalyzer.analyzers.common.step_marks import steps
from traceanalyzer.trace import Trace

LAYER = ("gemm", "gelu", "gemm2", "norm", "add")
KERNEL, GAP = 100 * US, 2 * US


def passes(calls: int, layers: int, around: str, kind: str, *, outer: str = "") -> Trace:
    """Return calls of a model of equal layers, launched one kernel ahead of the device.

    Args:
        calls: number of calls.
        layers: layers of the model.
        around: name of the slice of each call.
        kind: kind of these slices.
        outer: name of a slice around all calls.
    """
    events: list[dict[str, Any]] = []
    at = correlation = 0
    for _ in range(calls):
        begin = at
        for layer in range(layers):
            at += 4 * GAP
            inner = at
            for name in LAYER:
                correlation += 1
                ids = {"correlation": correlation}
                events.append(host("cuda_runtime", "cudaLaunchKernel", at, US, **ids))
                events.append(device(name, at + 5 * US, KERNEL, **ids))
                at += KERNEL + GAP
            events.append(host("python_function", f"nn.Module: Block_{layer}", inner, at - inner))
        events.append(host(kind, around, begin, at - begin))
    if outer:
        events.append(host("python_function", outer, 0, at))
    return trace(events, 0)


@pytest.mark.parametrize("calls", [2, 3, 12])
@pytest.mark.parametrize(
    ("around", "kind"),
    [
        ("nn.Module: FluxTransformer2DModel_0", "python_function"),
        ("denoise", "user_annotation"),
        ("denoise", "nvtx"),
    ],
)
def test_a_layer_is_no_step(calls: int, around: str, kind: str) -> None:
    recorded = passes(calls, 19, around, kind)
    assert ta.steps(recorded).steps.height == calls
    idle = ta.gpu_idle(recorded)
    assert idle.steps.height == calls
    assert not idle.coverage.steps_by_kernels  # a step is a call, with its host range


@pytest.mark.parametrize(("decoders", "n"), [(2, 0), (1, 40), (0, 40)])
def test_repeats_before_work_of_another_kind_are_no_steps(decoders: int, n: int) -> None:
    """A decoder with 20 times the work of a repeat follows the repeats of an image."""
    events, at = [], 0
    for number in range(40):
        decodes = number in (12, 25)[:decoders]
        for name, length in [*((name, KERNEL) for name in LAYER), ("decoder", 100 * KERNEL)]:
            if name != "decoder" or decodes:
                events.append(device(name, at, length))
                at += length + GAP
        at += 20 * GAP
    assert steps(trace(events, 0)).height == n


def test_the_module_in_a_sampling_loop_is_a_step() -> None:
    """One module runs the loop, another one is called in it."""
    recorded = passes(6, 8, "nn.Module: UNet_0", "python_function", outer="nn.Module: Sampler_0")
    assert ta.steps(recorded).steps.height == 6


def test_one_call_keeps_the_repeats() -> None:
    recorded = passes(1, 12, "nn.Module: Loop_0", "python_function")
    assert ta.steps(recorded).steps.height == 12


def test_short_annotations_do_not_count() -> None:
    """A range that contains few of the launches marks no step."""
    events = passes(1, 12, "nn.Module: Loop_0", "python_function").events.to_dicts()
    short = [host("user_annotation", "log", ts, 4 * US) for ts in (0, 2_000_000)]
    assert ta.steps(trace([*events, *short], 0)).steps.height == 12


def iterations(*parts: tuple[str, int, str], around: int = 0) -> Trace:
    """Return 6 iterations of annotations, each with a number of launches of one kernel.

    Args:
        parts: name, launches (one more of the first part in each iteration) and kernel.
        around: launches after each iteration, outside of annotations.
    """
    events: list[dict[str, Any]] = []
    at = 0
    for number in range(6):
        for name, count, kernel in (*parts, ("", around, "outside")):
            begin = at
            for _ in range(count + number * (name == parts[0][0])):
                ids = {"correlation": len(events) + 1}
                events.append(host("cuda_runtime", "cudaLaunchKernel", at, US, **ids))
                events.append(device(kernel, at + 5 * US, KERNEL, **ids))
                at += KERNEL + 8 * US
            if name:
                events.append(host("user_annotation", f"{name}_{number}", begin, at - begin))
    return trace(events, 0)


ROLLOUT = (("rollout", 40, "decode"), ("reward", 1, "score"), ("update", 20, "train"))


def test_an_iteration_of_several_annotations_is_a_step() -> None:
    found = steps(iterations(*ROLLOUT))
    assert found["step"].to_list() == [f"iteration {number}" for number in range(1, 7)]
    lengths = [(61 + number) * (KERNEL + 8 * US) for number in range(6)]
    assert (found["end"] - found["start"]).to_list() == lengths


@pytest.mark.parametrize(
    ("parts", "around"),
    [(ROLLOUT, 60), ((("execute_model", 60, "decode"), ("sample", 2, "argmax")), 0)],
)
def test_other_annotations_make_no_iterations(parts: Any, around: int) -> None:
    """Many launches are outside of them, or one of them has most launches and time."""
    assert not steps(iterations(*parts, around=around))["step"].str.starts_with("iter").any()
