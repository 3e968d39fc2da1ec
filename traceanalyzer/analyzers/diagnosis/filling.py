"""Rules about the memory of devices."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from traceanalyzer.analyzers.common.places import places
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule
from traceanalyzer.analyzers.memory.attribution import frame_text
from traceanalyzer.analyzers.memory.growth import MemoryGrowth
from traceanalyzer.analyzers.memory.oom import MemoryErrors
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.units import format_bytes, format_frac

#: It takes so many devices to tell which is the odd one out.
_ODD_OF = 3


def rules() -> tuple[Rule, ...]:
    """Out of memory, leaks, fragmentation, retries, uneven peaks."""
    return (
        Rule(
            "out-of-memory",
            "memory_oom",
            "memory ran out",
            "errors of one cause",
            {"critical": 1},
            _errors,
            counts=True,
        ),
        Rule(
            "memory-growth",
            "memory_growth",
            "live memory grows from step to step",
            "what was gained and never given back, as a share of what is live after the last step",
            {"warning": 0.01, "critical": 0.2},
            _growth,
        ),
        Rule(
            "memory-fragmentation",
            "memory",
            "much of what is reserved at the end is unused",
            "unused share of reserved memory",
            {"info": 0.2, "warning": 0.5},
            _fragmentation,
        ),
        Rule(
            "allocator-retries",
            "memory",
            "cached memory had to be given back before more could be had",
            "times that it happened",
            {"warning": 1, "critical": 20},
            _retries,
            counts=True,
        ),
        Rule(
            "uneven-memory",
            "memory",
            "one device's peak differs from the others'",
            "difference of its peak from the median, as a share of the median",
            {"info": 0.1, "warning": 0.25},
            _uneven,
        ),
    )


def _errors(result: MemoryErrors, _: Answers) -> Iterator[Measured]:
    for (cause, advice), rows in result.errors.group_by("cause", "advice", maintain_order=True):
        first = rows.row(0, named=True)
        asked, n = first["request_bytes"], rows.height
        line = frame_text(first["function"], first["file"], first["line"])
        yield Measured(
            size=n,
            title=f"Memory ran out{'' if n == 1 else f' {n:,} times'}: {cause}; {line} asked for "
            f"{'memory' if asked is None else format_bytes(asked)}.",
            evidence=(f"{format_bytes(first['allocated_bytes'])} were in use.",),
            advice=f"{str(advice)[:1].upper()}{str(advice)[1:]}.",
            cost_bytes=asked,
        )


def _growth(result: MemoryGrowth, _: Answers) -> Iterator[Measured]:
    found = result.suspects
    gained = int(found["grown_bytes"].sum())
    live = (
        result.steps.sort("step")
        .group_by("rank", "path", "device")
        .agg(pl.col("live_bytes").last())
    )
    whole = int(live["live_bytes"].sum())
    if not gained or not whole:
        return
    row = found.row(0, named=True)
    line = frame_text(row["function"], row["file"], row["line"])
    yield Measured(
        size=gained / whole,
        title=f"Memory grows: {format_bytes(gained)} were gained over "
        f"{result.steps['step'].n_unique():,} steps and never given back.",
        evidence=(f"Most steadily at {line}, {format_bytes(row['per_step_bytes'])} a step.",),
        advice="Something holds on to what this line allocates: a list of losses (use .item() or "
        ".detach()), a graph that is kept, a cache.",
        cost_bytes=gained,
        cost_frac=gained / whole,
        of="what is live at the end",
        confidence="medium",
    )


def _fragmentation(result: Memory, _: Answers) -> Iterator[Measured]:
    rows = result.devices.with_columns(places(result.devices)).drop_nulls("fragmentation_frac")
    if rows.is_empty():
        return
    worst = rows.sort("fragmentation_frac", "on", descending=[True, False]).row(0, named=True)
    unused = worst["reserved_end_bytes"] - worst["allocated_end_bytes"]
    where = f" on {worst['on']}" if result.devices.height > 1 else ""
    split = format_bytes(worst["inactive_split_bytes"])
    yield Measured(
        size=worst["fragmentation_frac"],
        title=f"At the end {format_frac(worst['fragmentation_frac'])} of what is reserved{where} "
        f"is unused: {format_bytes(unused)}.",
        evidence=(f"{split} of it lie between blocks in use; the rest is cached whole.",),
        advice="Pieces that no request fits can be avoided by "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; cached memory is no fault unless "
        "something else needs it.",
        cost_bytes=unused,
        cost_frac=worst["fragmentation_frac"],
        of="reserved memory",
        confidence="medium",
    )


def _retries(result: Memory, _: Answers) -> Iterator[Measured]:
    retries = int(result.devices["retries"].sum())
    if not retries:
        return
    yield Measured(
        size=retries,
        title=f"{retries:,} {'time' if retries == 1 else 'times'} cached memory had to be given "
        "back before cudaMalloc could be tried again, which stops the device.",
        advice="The memory is all but full: a smaller batch, activation checkpointing, or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    )


def _uneven(result: Memory, _: Answers) -> Iterator[Measured]:
    median = result.devices["peak_bytes"].median()
    if result.devices.height < _ODD_OF or not isinstance(median, float) or not median:
        return
    apart = result.devices.with_columns(
        places(result.devices), by=pl.col("peak_bytes") / median - 1
    )
    row = apart.sort(pl.col("by").abs(), "on", descending=[True, False]).row(0, named=True)
    if not row["by"]:
        return
    more = "more" if row["by"] > 0 else "less"
    yield Measured(
        size=abs(row["by"]),
        title=f"The peak of {row['on']} is {format_frac(abs(row['by']))} {more} than the median of "
        f"{result.devices.height:,} devices: {format_bytes(row['peak_bytes'])}.",
        advice="Uneven stages or shards, or work that only one rank does: the fullest device "
        "limits the batch.",
        cost_bytes=abs(row["peak_bytes"] - round(median)),
        cost_frac=abs(row["by"]),
        of="the median peak",
    )
