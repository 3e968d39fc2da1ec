"""Every question that is asked of all files at once: how each is extracted, and combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from traceanalyzer.analyzers import annotations as marks
from traceanalyzer.analyzers import (
    api_calls,
    flamegraph,
    gpu_idle,
    host_metrics,
    info,
    launches,
    leaf_paths,
    memory,
    overlap,
    steps,
    transfers,
)
from traceanalyzer.analyzers import comm_outliers as comm
from traceanalyzer.analyzers import kernels as kernel
from traceanalyzer.analyzers import operators as operator
from traceanalyzer.analyzers.memory import growth, oom
from traceanalyzer.errors import MissingData
from traceanalyzer.result import Result
from traceanalyzer.trace import Trace, record_hint

#: Of these the whole history counts.
SNAPSHOT = "memory-snapshot"
_Weighed = TypeVar("_Weighed", flamegraph.Part, leaf_paths.Part)

_WORK, _OPERATORS = kernel.Question(), operator.Question()
_RANGES, _CODE = marks.Question(), leaf_paths.Question()


@dataclass(frozen=True)
class Question:
    """One analysis, in two halves.

    Attributes:
        name: of the analysis, which is that of its function.
        short: what a report calls it.
        command: what asks it on the command line.
        extract: what one rank's trace contributes.
        combine: the answer of all contributions; the second argument are further notes.
        timed: what a memory snapshot contributes does not count beside that of traces.
    """

    name: str
    short: str
    command: str
    extract: Callable[[Trace], Any]
    combine: Callable[[list[Any], Sequence[str]], Result]
    timed: bool = False


def _collectives(trace: Trace) -> comm.Part:
    """The communication of a rank; what has neither that nor a device is no rank."""
    part = comm.extract(trace)
    if part.instances.is_empty() and part.busy_ns is None:
        hint = f"; {part.record_hint}" if part.record_hint else ""
        raise MissingData(f"{part.path}: no communication was recorded{hint}")
    return part


def _flame_part(trace: Trace) -> flamegraph.Part:
    """Stacks of time or samples; the bytes of a snapshot are another question."""
    if trace.meta.format == SNAPSHOT:
        raise MissingData(
            f"{trace.meta.path}: no stacks of time; {record_hint(trace.meta, 'stack')}"
        )
    return flamegraph.extract(trace)


def _flames(parts: list[flamegraph.Part], _: Sequence[str]) -> Result:
    own, left_out = _alike(parts)
    return flamegraph.combine(own, skipped=left_out)


def _code(parts: list[leaf_paths.Part], _: Sequence[str]) -> Result:
    own, left_out = _alike(parts)
    return leaf_paths.combine(own, _CODE, skipped=left_out)


def _alike(parts: list[_Weighed]) -> tuple[list[_Weighed], list[tuple[str, str]]]:
    """Those that count the same, samples before times, and the others with the reason."""
    unit = "samples" if any(part.unit == "samples" for part in parts) else parts[0].unit
    own = [part for part in parts if part.unit == unit]
    others = [part for part in parts if part.unit != unit]
    return own, [(part.path, f"counts {part.unit or 'nothing known'}") for part in others]


#: All of them, in the order in which a report answers them.
QUESTIONS: tuple[Question, ...] = (
    Question(
        "steps",
        "Steps",
        "steps",
        steps.extract,
        lambda p, notes: steps.combine(p, remarks=notes),
        timed=True,
    ),
    Question(
        "gpu_idle",
        "Idle time",
        "gpu-idle",
        gpu_idle.extract,
        lambda parts, notes: gpu_idle.combine(parts, notes=notes),
    ),
    Question(
        "comm_outliers",
        "Communication",
        "comm-outliers",
        _collectives,
        lambda parts, _: comm.combine(parts),
    ),
    Question(
        "overlap",
        "Overlap",
        "overlap",
        overlap.extract,
        lambda parts, notes: overlap.combine(parts, remarks=notes),
    ),
    Question("launches", "Launches", "launches", launches.extract, launches.combine),
    Question(
        "operators",
        "Operators",
        "operators",
        lambda trace: operator.measure(operator.lay(trace, _OPERATORS), _OPERATORS),
        lambda parts, notes: operator.combine(parts, _OPERATORS, notes),
    ),
    Question(
        "kernels",
        "Kernels",
        "kernels",
        lambda trace: kernel.extract(trace, _WORK),
        lambda parts, notes: kernel.combine(parts, _WORK, notes),
    ),
    Question(
        "annotations",
        "Annotations",
        "annotations",
        lambda trace: marks.measure(marks.lay(trace, _RANGES)),
        lambda parts, notes: marks.combine(parts, _RANGES, notes),
        timed=True,
    ),
    Question("cuda_api", "CUDA calls", "api", api_calls.extract, api_calls.combine),
    Question("transfers", "Copies", "transfers", transfers.extract, transfers.combine),
    Question("host_metrics", "Host", "host-metrics", host_metrics.extract, host_metrics.combine),
    Question(
        "py_spy_report",
        "Code",
        "py-spy-report",
        lambda trace: leaf_paths.extract(trace, _CODE),
        _code,
    ),
    Question("flamegraph", "Flamegraph", "flamegraph", _flame_part, _flames),
    Question("memory", "Memory", "memory", memory.extract, memory.combine),
    Question("memory_oom", "Out of memory", "memory --oom", oom.extract, memory.errors_of),
    Question("memory_growth", "Memory growth", "memory --growth", growth.extract, memory.growth_of),
    Question("info", "Files, losses", "info", info.look, lambda parts, _: info.combine(parts)),
)
