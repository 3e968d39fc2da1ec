"""Rules about the host's counters, and about the files themselves."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule
from traceanalyzer.analyzers.host_metrics.result import BUSY_PERCENT, HostMetrics
from traceanalyzer.analyzers.info.result import Info
from traceanalyzer.units import format_bytes, format_frac

_LOSSES = ("error", "data_loss")


def rules() -> tuple[Rule, ...]:
    """Processors, memory, swap and disks of the host; lost events, missing ranks."""
    return (
        Rule(
            "busy-processors",
            "host_metrics",
            f"the host's processors are at {BUSY_PERCENT} % or more",
            "share of the time in which they are",
            {"warning": 0.05, "critical": 0.5},
            _processors,
        ),
        Rule(
            "full-host-memory",
            "host_metrics",
            "the host's memory is nearly full",
            "share that is used at worst",
            {"warning": 0.9, "critical": 0.98},
            _memory,
        ),
        Rule(
            "swapping",
            "host_metrics",
            "swap is in use",
            "bytes of it at worst",
            {"warning": 1},
            _swap,
            counts=True,
        ),
        Rule(
            "busy-disk",
            "host_metrics",
            "a disk is at its limit",
            "share of the time in which it was busy, at worst",
            {"warning": 0.8},
            _disk,
        ),
        Rule(
            "lost-events",
            "info",
            "events of a file were lost: it is cut off or damaged",
            "files that lost events",
            {"warning": 1},
            _lost,
            counts=True,
        ),
        Rule(
            "missing-ranks",
            "info",
            "files of some ranks are not there",
            "ranks that are missing",
            {"info": 1},
            _missing,
            counts=True,
        ),
    )


def _processors(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    found = result.busy_processors()
    if found is not None:
        share, mean = found
        yield Measured(
            size=share,
            title=f"The host's processors were at {BUSY_PERCENT} % or more for "
            f"{format_frac(share)} of the time ({mean:.0f} % on average).",
            advice="Whatever runs on the host competes, data loading and the launching of kernels "
            "among it: fewer loader workers than cores, OMP_NUM_THREADS, nothing else on the node.",
            cost_frac=share,
            of="the time",
            confidence="medium",
        )


def _memory(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    row = result.fullest_memory()
    if row is not None:
        yield Measured(
            size=row["frac"],
            title=f"The host's memory was up to {format_frac(row['frac'])} full: "
            f"{format_bytes(row['value'])} of {format_bytes(row['total'])}.",
            advice="Fewer loader workers or less prefetching; memory-mapped data.",
            cost_bytes=round(row["value"]),
            cost_frac=row["frac"],
            of="the host's memory",
        )


def _swap(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    row = result.most_swap()
    if row is not None:
        yield Measured(
            size=row["max"],
            title=f"Swap is in use: up to {format_bytes(row['max'])}.",
            advice="The host has too little memory for what runs on it.",
            cost_bytes=round(row["max"]),
            confidence="medium",
        )


def _disk(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    row = result.busiest_disk()
    if row is not None:
        yield Measured(
            size=row["max"] / 1000,
            title=f"{row['counter'].removeprefix('disk/')} was busy for "
            f"{format_frac(row['max'] / 1000)} of the time at worst.",
            evidence=(f"{format_frac(row['mean'] / 1000)} on average.",),
            advice="Faster or local storage, larger reads, fewer small files.",
            cost_frac=row["max"] / 1000,
            of="the time",
            confidence="medium",
        )


def _lost(result: Info, _: Answers) -> Iterator[Measured]:
    lost = result.issues.filter(pl.col("severity").is_in(_LOSSES))
    files = lost["path"].n_unique()
    if not files:
        return
    first = lost.row(0, named=True)
    yield Measured(
        size=files,
        title=f"{files:,} {'file' if files == 1 else 'files'} of {result.files.height:,} lost "
        f"events: {', '.join(sorted(lost['code'].unique()))}.",
        evidence=(f"{first['path']}: {first['code']}{_first(first['first'])}.",),
        advice="All numbers are of what is left; stop the profiler before the job ends, so that it "
        "can finish its file.",
    )


def _missing(result: Info, _: Answers) -> Iterator[Measured]:
    world = result.files["world_size"].max()
    ranks = result.files["rank"].drop_nulls().n_unique()
    if not isinstance(world, int) or not ranks or ranks >= world:
        return
    yield Measured(
        size=world - ranks,
        title=f"Files of {ranks:,} of {world:,} ranks are there.",
        advice="With all ranks' files, waiting for late ranks can be told from slow communication.",
    )


def _first(place: str | None) -> str:
    return f", first at {place}" if place else ""
