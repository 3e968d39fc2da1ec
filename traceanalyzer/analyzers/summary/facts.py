"""The numbers that people ask for first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from traceanalyzer.analyzers.comm_outliers import CommOutliers
from traceanalyzer.analyzers.gpu_idle import GpuIdle
from traceanalyzer.analyzers.info import Info
from traceanalyzer.analyzers.leaf_paths import LeafPaths
from traceanalyzer.analyzers.memory import Memory
from traceanalyzer.analyzers.overlap import Overlap
from traceanalyzer.analyzers.steps import Steps
from traceanalyzer.result import Fact, Result


def facts(answers: Mapping[str, Result]) -> tuple[Fact, ...]:
    """Ranks, span, steps, how busy, what waits, what fills the memory: as far as it is known."""
    return tuple(
        fact
        for of, told in _TOLD.items()
        for result in answers.values()
        if isinstance(result, of)
        for fact in told(result)
    )


def _files(result: Info) -> Iterator[Fact]:
    ranks = result.files["rank"].drop_nulls().n_unique()
    name, count = ("ranks", ranks) if ranks else ("files", result.files.height)
    yield Fact(name, name, count)
    span = result.contents["span_ns"].max()
    if isinstance(span, int):
        yield Fact("span_ns", "recorded", span)


def _steps(result: Steps) -> Iterator[Fact]:
    sums, most = result.scalars, result.ranks["steps"].max()
    if isinstance(most, int):
        yield Fact("step_count", "steps", most)
    if sums["median_ns"] is not None:
        yield Fact("median_ns", "median step", sums["median_ns"])


def _idleness(result: GpuIdle) -> Iterator[Fact]:
    if not result.span_ns:
        return
    who = "training thread idle" if result.on_host else "GPU idle"
    yield Fact("idle_frac", who, result.idle_ns / result.span_ns)
    share = result.step_dataloading_frac
    if share is None:
        share = result.idle_by_cause["dataloading"] / result.span_ns
    yield Fact("dataloading_frac", "waiting for data", share)


def _exposed(result: Overlap) -> Iterator[Fact]:
    sums = result.scalars
    if sums["communication_ns"] and sums["span_ns"]:
        share = sums["exposed_communication_ns"] / sums["span_ns"]
        yield Fact("exposed_frac", "exposed communication", share)


def _waiting(result: CommOutliers) -> Iterator[Fact]:
    if result.n_matched and result.total_comm_ns:
        share = result.total_wait_ns / result.total_comm_ns
        yield Fact("wait_frac", "of communication waiting", share)


def _filled(result: Memory) -> Iterator[Fact]:
    peak = result.devices["peak_bytes"].max()
    if isinstance(peak, int):
        yield Fact("peak_bytes", "peak memory", peak)


def _sampled(result: LeafPaths) -> Iterator[Fact]:
    suffix = {"ns": "_ns", "bytes": "_bytes"}.get(result.unit, "")
    yield Fact(f"total{suffix}", result.unit or "weight", result.total_samples)


_TOLD: dict[type[Result], Callable[[Any], Iterator[Fact]]] = {
    Info: _files,
    Steps: _steps,
    GpuIdle: _idleness,
    Overlap: _exposed,
    CommOutliers: _waiting,
    Memory: _filled,
    LeafPaths: _sampled,
}
