"""Rules for memory: out-of-memory errors, growth, fragmentation, retries, imbalance."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import display
from traceanalyzer.analyzers.memory.attribution import frame_text
from traceanalyzer.analyzers.memory.growth import COLLECTED_ADVICE, GROWTH_ADVICE, MemoryGrowth
from traceanalyzer.analyzers.memory.oom import MemoryErrors, located
from traceanalyzer.analyzers.memory.oom_causes import (
    DEMAND,
    ELSEWHERE,
    EVALUATES,
    FRAGMENTATION,
    MUCH_LIVE,
    is_growth,
    may_be_kept,
)
from traceanalyzer.analyzers.memory.result import Memory, PrivatePools, private_pools
from traceanalyzer.analyzers.printed.memory import OUT_OF_MEMORY
from traceanalyzer.analyzers.printed.result import Printed
from traceanalyzer.findings.rule import Answers, Measured, Rule, rule
from traceanalyzer.units import format_bytes, format_count, format_frac

_PLACE = ["rank", "path", "device"]
#: Measure of errors after which the program goes on.
_HANDLED = 0.5
#: The rule that explains out-of-memory errors of a cause.
_BY_CAUSE = {FRAGMENTATION: "memory-fragmentation"}
#: The rule that explains fragmentation at an error: without a leak, with a leak.
_OF_LEAK = ("out-of-memory", "memory-growth")


@rule(
    "memory_oom",
    "out-of-memory errors",
    "errors (half if handled)",
    {"warning": _HANDLED, "critical": 1},
    counts=True,
    uses=("memory_growth", "memory"),
)
def _out_of_memory(result: MemoryErrors, answers: Answers) -> Iterator[Measured]:
    leak, evaluated = _leak_that_filled(answers), _evaluated(answers)
    # later errors of a device are consequences of its first one
    first_ones = result.errors.unique(_PLACE, keep="first", maintain_order=True)
    for (cause, advice), firsts in first_ones.group_by("cause", "advice", maintain_order=True):
        first = firsts.row(0, named=True)
        errors = result.errors.join(firsts, on=_PLACE, how="semi", nulls_equal=True)
        asked, n = first["request_bytes"], errors.height
        line = frame_text(first["function"], first["file"], first["line"])
        why = "" if leak else f" (cause: {cause})"
        many = "" if n == 1 else f", the first of {n:,} errors"
        of_demand = cause == DEMAND and not evaluated
        fills, is_sure = _filling(result, first) if of_demand else ("", True)
        pools = _pools(answers.of(Memory), first["unused_bytes"]) if cause == ELSEWHERE else None
        others = errors.filter(pl.col("cause") != cause)["cause"].value_counts().sort("cause")
        went_on = errors["recovered"].all()
        yield Measured(
            size=_HANDLED if went_on else n,
            title=f"{line} requested {'memory' if asked is None else format_bytes(asked)} and ran "
            f"out of memory{why}{many}{', but went on' * went_on}.",
            evidence=(
                f"{format_bytes(first['allocated_bytes'])} were allocated{located(first)}{fills}.",
                *((pools.text,) if pools else evaluated),
                *(f"{format_count(n, 'later error')}: {other}." for other, n in others.rows()),
            ),
            advice=_NO_GRAD
            if evaluated and cause == DEMAND
            else (pools.advice if pools else _capital(advice)),
            confidence="high" if is_sure else "medium",
            cost_bytes=asked,
            explained=_explained("memory-growth" if leak else _BY_CAUSE.get(str(cause))),
        )


@rule(
    "printed",
    "problems in logs of jobs",
    "1 if the job failed",
    {"info": 0.25, "warning": 0.5, "critical": 1},
    counts=True,
)
def _problems_in_logs(result: Printed, _: Answers) -> Iterator[Measured]:
    for one in result.problems:
        yield Measured(
            size=one.size,
            title=one.title,
            advice=_capital(one.advice),
            confidence=one.confidence,
            rank=one.ranks[0] if len(one.ranks) == 1 else None,
            explained=_explained("out-of-memory" if one.kind == OUT_OF_MEMORY else None),
        )


_NO_GRAD = (
    "Evaluate under torch.no_grad() or torch.inference_mode(): otherwise each batch keeps its "
    "activations for a backward pass, as long as its loss or outputs are kept. With it already, "
    "move outputs to the host batch by batch, or use smaller batches."
)


#: Lines with less of the live memory are not named, and the most that are.
_LARGE, _NAMED = 0.15, 3


def _filling(result: MemoryErrors, error: Mapping[str, Any]) -> tuple[str, bool]:
    """Return a phrase on the lines with most live memory at an error, and whether it is in use."""
    same = (pl.col(name).eq_missing(error[name]) for name in (*_PLACE, "event"))
    rows = result.alive.filter(*same)
    is_sure = may_be_kept(rows, error["request_bytes"] or 0).is_empty()
    large = rows.head(_NAMED).filter(pl.col("live_frac") >= _LARGE)
    each = [
        f"{format_frac(frac)} at {frame_text(*line)} ({format_count(n, 'block')})"
        for frac, n, *line in large.select("live_frac", "n", "function", "file", "line").iter_rows()
    ]
    return f": {', '.join(each)}" if each else "", is_sure


def _evaluated(answers: Answers) -> tuple[str, ...]:
    """Return a sentence on activations of an evaluation, if much of the live memory is of it."""
    if (memory := answers.of(Memory)) is None:
        return ()
    live = memory.alive.filter(category="activations").with_columns(
        at=pl.col("stack").str.extract(EVALUATES)
    )
    sums = live.drop_nulls("at").group_by("at").agg(pl.col("live_bytes", "n").sum())
    rows = sums.sort("live_bytes", "at", descending=[True, False]).head(1)
    whole = int(memory.alive["live_bytes"].sum())
    return tuple(
        f"{format_bytes(size)} of activations ({format_frac(size / whole)} of live memory, "
        f"{format_count(n, 'block')}) were allocated in {at}."
        for at, size, n in rows.rows()
        if size > MUCH_LIVE * whole
    )


def _capital(advice: object) -> str:
    return f"{str(advice)[:1].upper()}{str(advice)[1:]}."


def _explained(rule: str | None) -> dict[str, float]:
    """Return the share of a finding that another rule explains completely."""
    return {rule: 1.0} if rule else {}


def _leak_that_filled(answers: Answers) -> int:
    """Return the steady growth on the first device with an error; 0 if it is not the cause."""
    errors, growth = answers.of(MemoryErrors), answers.of(MemoryGrowth)
    if errors is None or growth is None:
        return 0
    first = errors.errors.head(1)
    of_device = growth.suspects.join(first, on=_PLACE, how="semi", nulls_equal=True)
    grown = int(of_device["grown_bytes"].sum())
    is_cause = any(is_growth(grown, row) for row in first.iter_rows(named=True))
    return grown if is_cause else 0


#: Least share of live memory that is freed only every few steps for a finding.
_COLLECTED = 0.05


@rule(
    "memory_growth",
    "live memory that grows from step to step",
    "growth that is never freed, as a share of live memory after the last step",
    {"warning": 0.01, "critical": 0.2},
    uses=("memory_oom",),
)
def _memory_growth(result: MemoryGrowth, answers: Answers) -> Iterator[Measured]:
    gained = int(result.suspects["grown_bytes"].sum())
    last = result.steps.sort("step").group_by(_PLACE).agg(pl.col("live_bytes").last())
    whole = int(last["live_bytes"].sum())
    collected = int(result.growth["collected_bytes"].sum())
    highest = result.steps.group_by(_PLACE).agg(pl.col("live_bytes").max())
    peak = int(highest["live_bytes"].sum())
    if collected > _COLLECTED * peak:
        yield Measured(
            size=collected / peak,
            title=result.collected(),
            advice=COLLECTED_ADVICE,
            cost_bytes=collected,
            cost_frac=collected / peak,
            of="live memory at its highest end of a step",
            confidence="medium",
        )
    if not gained or not whole:
        return
    # growth that fills the memory ends the program, whatever its share
    yield Measured(
        size=1.0 if _leak_that_filled(answers) else gained / whole,
        title=result.summary(),
        evidence=(f"{format_bytes(whole)} are live after the last step.",),
        advice=GROWTH_ADVICE,
        cost_bytes=gained,
        cost_frac=gained / whole,
        of="live memory at the end",
        confidence="medium",
    )


@rule(
    "memory",
    "reserved memory that is free between allocated blocks",
    "its share of reserved memory at an out-of-memory error, or at peak reserved",
    {"info": 0.2, "warning": 0.3, "critical": 1.0},
    uses=("memory_oom", "memory_growth"),
)
def _memory_fragmentation(result: Memory, answers: Answers) -> Iterator[Measured]:
    split = pl.col("fullest_split_bytes") / pl.col("fullest_reserved_bytes")
    rows = result.devices.with_columns(display.places(result.devices), split=split)
    rows = rows.filter(pl.col("fullest_reserved_bytes") > 0)
    if rows.is_empty():
        return
    worst = rows.sort("split", "on", descending=[True, False]).row(0, named=True)
    when = "at the out-of-memory error" if worst["ooms"] else "at peak reserved"
    where = f" on {worst['on']}" if result.devices.height > 1 else ""
    free = format_bytes(worst["fullest_free_bytes"])
    error = _first_error(answers) if worst["ooms"] else None
    leak = _leak_that_filled(answers)
    is_root = error is not None and error["cause"] == FRAGMENTATION and not leak
    pools = _pools(result, worst["fullest_split_bytes"])
    advice = _capital(error["advice"]) if error and is_root else _fragmentation_advice(worst)
    yield Measured(
        size=1.0 if is_root and worst["split"] else worst["split"],
        title=pools.text
        if pools
        else f"{format_frac(worst['split'])} of "
        f"{format_bytes(worst['fullest_reserved_bytes'])} reserved memory was free between "
        f"allocated blocks {when}{where}.",
        evidence=(f"{free} of reserved memory was free, between blocks or in unused segments.",),
        advice=pools.advice if pools else advice,
        cost_bytes=worst["fullest_split_bytes"],
        cost_frac=worst["split"],
        of="reserved memory",
        confidence="high" if is_root else "medium",
        explained=_explained(None if is_root or not error else _OF_LEAK[bool(leak)]),
    )


def _pools(memory: Memory | None, free_bytes: int | None) -> PrivatePools | None:
    """Return several private pools that have most of the free memory; None if there are none."""
    pools = private_pools(memory) if memory else None
    is_most = pools is not None and 2 * pools.free_bytes > (free_bytes or 0)
    return pools if pools and is_most and pools.n > 1 else None


def _fragmentation_advice(device: Mapping[str, Any]) -> str:
    if device["expandable"]:
        return "Allocate long-lived tensors first, and pad variable sizes to a few lengths."
    return (
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that segments can grow in place."
    )


def _first_error(answers: Answers) -> dict[str, Any] | None:
    """Return the first out-of-memory error, or None."""
    if (errors := answers.of(MemoryErrors)) is None or errors.errors.is_empty():
        return None
    return errors.errors.row(0, named=True)


@rule(
    "memory",
    "allocations that had to free cached memory first",
    "number of allocator retries",
    {"warning": 1, "critical": 20},
    counts=True,
)
def _allocator_retries(result: Memory, answers: Answers) -> Iterator[Measured]:
    retries = int(result.devices["retries"].sum())
    if not retries:
        return
    setting = ", or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    setting *= not result.devices["expandable"].all()
    yield Measured(
        size=retries,
        title=f"The allocator freed cached memory and retried cudaMalloc "
        f"{format_count(retries, 'time')}, which synchronises the device.",
        advice=f"Use a smaller batch or activation checkpointing{setting}: the memory is almost "
        "full.",
        explained=_explained("out-of-memory" if _first_error(answers) else None),
    )


@rule(
    "memory",
    "peak memory of one device that differs from the others",
    "difference of its peak from the median, as a share of the median",
    {"info": 0.1, "warning": 0.25},
    compares_ranks=True,
)
def _uneven_memory(result: Memory, _: Answers) -> Iterator[Measured]:
    row = result.outlier()
    if row is None or not row["by"]:
        return
    side, more = "above" if row["by"] > 0 else "below", abs(row["peak_bytes"] - row["median"])
    place, advice = _only_there(result, row, round(more))
    yield Measured(
        size=abs(row["by"]),
        title=f"Peak memory of {row['on']} is {format_frac(abs(row['by']))} {side} the median of "
        f"{result.devices.height:,} devices: {format_bytes(row['peak_bytes'])}{place}.",
        advice=advice
        or "Balance stages and shards, and check for work that only one rank does: "
        "the fullest device limits the batch size.",
        cost_bytes=round(more),
        of="the median peak",
    )


def _only_there(result: Memory, device: Mapping[str, Any], more: int) -> tuple[str, str]:
    """Return the line with most of the memory that other devices do not have, and advice."""
    line, same = ["function", "file", "line"], [pl.col(k).eq_missing(device[k]) for k in _PLACE]
    is_it, size = pl.all_horizontal(same), pl.col("live_bytes")
    usual = size.filter(~is_it).sum() / (result.devices.height - 1)
    sums = result.alive.group_by(line).agg(
        more=size.filter(is_it).sum() - usual, stack=pl.col("stack").filter(is_it).first()
    )
    rows = sums.sort("more", *line, descending=[True, *[False] * 3]).filter(
        2 * pl.col("more") > more
    )
    for *frame, extra, stack in rows.head(1).rows():
        loads = re.search(_LOADS, stack or "")
        place = f", {format_bytes(extra)} more than the others at {frame_text(*frame)}"
        return place, _LOAD_ELSEWHERE * bool(loads)
    return "", ""


#: Functions that load a checkpoint.
_LOADS = r"torch[/\\]serialization\.py|safetensors[/\\]"
_LOAD_ELSEWHERE = (
    "Load checkpoints to the host or to the rank's own device (torch.load(..., "
    "map_location='cpu')): without that, every rank loads tensors to the device that saved them, "
    "usually the first one."
)


RULES: tuple[Rule, ...] = (
    _out_of_memory, _problems_in_logs, _memory_growth,
    _memory_fragmentation, _allocator_retries, _uneven_memory,
)  # fmt: skip
