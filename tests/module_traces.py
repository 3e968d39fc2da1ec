"""A small trace of modules: forward, backward on another thread, a checkpoint, an optimizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from comm_traces import GEMM

Event = dict[str, Any]

STEPS = 2


def slice_(cat: str, name: str, tid: int, start: int, end: int, **args: Any) -> Event:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": end - start,
        "args": args,
    }  # fmt: skip


def op(
    name: str, tid: int, start: int, end: int, seq: int | None = None, forward: int = 0
) -> Event:
    numbers = {} if seq is None else {"Sequence number": seq, "Fwd thread id": forward}
    return slice_("cpu_op", name, tid, start, end, **numbers)


def module(name: str, tid: int, start: int, end: int) -> Event:
    return slice_("python_function", f"nn.Module: {name}", tid, start, end)


def kernel(tid: int, at: int, dur: int, correlation: int) -> list[Event]:
    call = slice_("cuda_runtime", "cudaLaunchKernel", tid, at, at + 2, correlation=correlation)
    run = slice_("kernel", GEMM, 7, at + 500, at + 500 + dur, correlation=correlation, device=0)
    return [call, {**run, "pid": 0}]


def node(name: str, start: int, end: int, seq: int | None = None, forward: int = 1) -> Event:
    return op(f"autograd::engine::evaluate_function: {name}", 2, start, end, seq, forward)


def one_step(at: int, number: int) -> list[Event]:
    """Linear layers in Sequential, one in a checkpointed block; backward on thread 2; optimizer."""
    seq, c = 100 + 10 * number, 100 * number
    product = op("aten::addmm", 1, 12, 24, seq)
    product["args"] |= {
        "Input Dims": [[8], [4, 16], [16, 8], [], []],
        "Input type": ["float", "float", "float", "Scalar", "Scalar"],
    }
    events = [
        module("Sequential_0", 1, 0, 100),
        module("Linear_0", 1, 10, 30),
        product,
        *kernel(1, 14, 5, c + 1),
        module("Linear_1", 1, 40, 60),
        op("aten::addmm", 1, 42, 54, seq + 1),
        *kernel(1, 44, 7, c + 2),
        op("CheckpointFunction", 1, 62, 98, seq + 2),
        module("Block_0", 1, 64, 96),
        module("Linear_2", 1, 66, 86),
        op("aten::addmm", 1, 68, 78),
        *kernel(1, 70, 11, c + 3),
        op("aten::_foreach_add_", 1, 400, 420),
        *kernel(1, 402, 13, c + 9),
        node("CheckpointFunctionBackward", 200, 300, seq + 2),
        op("CheckpointFunctionBackward", 2, 202, 298, seq + 2, 1),
        module("Block_0", 2, 204, 234),
        module("Linear_2", 2, 206, 226),
        op("aten::addmm", 2, 208, 218, number),  # this thread counts from 0
        *kernel(2, 210, 11, c + 4),
        node("AddmmBackward0", 240, 270, number, 2),
        op("aten::mm", 2, 244, 264),
        *kernel(2, 246, 17, c + 5),
        node("AddmmBackward0", 310, 330, seq + 1),
        op("aten::mm", 2, 312, 328),
        *kernel(2, 314, 19, c + 6),
        node("AddmmBackward0", 340, 360, seq),
        op("aten::mm", 2, 342, 358),
        *kernel(2, 344, 23, c + 7),
        node("torch::autograd::AccumulateGrad", 370, 380),
        *kernel(2, 372, 3, c + 8),
    ]
    return [{**event, "ts": event["ts"] + at} for event in events]


def write(path: Path, events: list[Event], rank: int = 0) -> Path:
    document = {"distributedInfo": {"rank": rank}, "traceEvents": events}
    path.write_text(json.dumps(document))
    return path
