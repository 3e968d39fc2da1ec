"""From one rank's trace: what each of the other questions finds in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import polars as pl

from traceanalyzer.analyzers import (
    comm_outliers,
    flamegraph,
    gpu_idle,
    kernels,
    memory,
    operators,
    steps,
)
from traceanalyzer.analyzers.device_work import device_work
from traceanalyzer.analyzers.diff import stepwise
from traceanalyzer.analyzers.diff.part import Facts, Part
from traceanalyzer.analyzers.diff.question import Question
from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSES
from traceanalyzer.analyzers.memory.samples import is_snapshot
from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Meta, Trace, is_cut_off

Found = TypeVar("Found")

#: Columns of a step: what the device, or the training thread, was at.
BEHAVIOUR = tuple(f"{sort}_ns" for sort in (BUSY, *CAUSES))

#: Keys of metadata that hold a version.
_SOFTWARE = {
    "cuda_driver_version": "CUDA driver",
    "cuda_runtime_version": "CUDA runtime",
    "nccl_version": "NCCL",
}

#: What costs time where it is recorded, by the kind of its events.
_EXTRAS = {
    "python_function": "Python frames (with_stack)",
    "cpu_instant_event": "allocations (profile_memory)",
    "osrt": "calls of the operating system",
}


def extract(trace: Trace, question: Question) -> Part:
    """What one rank contributes.

    Args:
        trace: one rank, read with what the question needs.
        question: what is asked.

    Raises:
        MissingData: there is nothing in it to compare.
        OptionError: a pattern is not a regular expression.
    """
    lacking: dict[str, str] = {}

    def ask(what: str, answer: Callable[..., Found], *more: Any, **options: Any) -> Found | None:
        try:
            return answer(trace, *more, **options)
        except MissingData as error:
            lacking[what] = str(error).removeprefix(f"{trace.meta.path}: ")
            return None

    # a snapshot's times are those of the allocator's calls: it is there for its memory
    snapshot = is_snapshot(trace)
    found_steps = None if snapshot else ask("steps", steps.extract, question.step_name)
    idle = ask("idle", gpu_idle.extract, patterns=question.patterns, step_name=question.step_name)
    work = ask("kernels", kernels.extract, kernels.Question(patterns=question.patterns))
    ground = ask("operators", operators.lay, operators.Question())
    marks = None if found_steps is None else found_steps.steps.select("start", "end").unique()
    pieces = device_work(trace, question.patterns)
    own_memory = None
    if question.in_memory and _has_memory(trace):
        own_memory = ask("memory", memory.extract, drawn=False)
    part = Part(
        facts=_facts(trace),
        steps=None if found_steps is None else _with_behaviour(found_steps, idle),
        idle=idle,
        kernels=work,
        work=None if work is None else stepwise.work(pieces, work, marks),
        operators=None if ground is None else stepwise.operators(ground, marks),
        comm=ask("collectives", comm_outliers.extract, question.patterns),
        memory=own_memory,
        stacks=ask("samples", flamegraph.extract, kinds=("sample",)),
        lacking=lacking,
    )
    if not any((part.steps, part.idle, part.kernels, part.memory, part.stacks)):
        raise MissingData(f"{trace.meta.path}: nothing in it can be compared with another run")
    return part


def _has_memory(trace: Trace) -> bool:
    kinds = memory.NEEDS.kinds - {"cpu_op", "nvtx", "python_function", "user_annotation"}
    return trace.segments.height > 0 or bool(trace.events["kind"].is_in(kinds).any())


def _facts(trace: Trace) -> Facts:
    meta = trace.meta
    kinds = set(trace.events["kind"].unique().cast(pl.String))
    return Facts(
        rank=meta.rank,
        path=meta.path,
        format=meta.format,
        version=meta.version,
        software=_software(meta),
        world_size=meta.world_size,
        gpus=tuple(device.name for device in meta.devices if device.name),
        extras=tuple(said for kind, said in _EXTRAS.items() if kind in kinds),
        cut_off=is_cut_off(trace),
    )


def _software(meta: Meta) -> tuple[str, ...]:
    """Versions that the file's own metadata tells."""
    try:
        told = json.loads(meta.extra or "{}")
    except ValueError:
        return ()
    if not isinstance(told, dict):
        return ()
    job = told.get("distributedInfo")
    all_of_it = {**told, **(job if isinstance(job, dict) else {})}
    return tuple(f"{said} {all_of_it[key]}" for key, said in _SOFTWARE.items() if key in all_of_it)


def _with_behaviour(found: steps.Part, idle: gpu_idle.Part | None) -> steps.Part:
    """The steps with where they are marked, and why their devices were idle."""
    rows = found.steps.with_columns(source=pl.lit(found.path), mark="start")
    if idle is None:
        unknown = [pl.lit(None, pl.Int64).alias(name) for name in BEHAVIOUR]
        return replace(found, steps=rows.drop("busy_ns").with_columns(unknown))
    units = idle.units.select("unit", "device")
    told = idle.steps.select("unit", "start", *BEHAVIOUR).join(units, on="unit").drop("unit")
    joined = rows.drop("busy_ns").join(
        told, on=["device", "start"], how="left", nulls_equal=True, maintain_order="left"
    )
    return replace(found, steps=joined)
