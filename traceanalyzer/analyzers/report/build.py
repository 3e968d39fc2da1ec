"""From the results of all analyzers to a report: findings, a few numbers, ranks side by side."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import polars as pl

from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Examination
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.places import places
from traceanalyzer.analyzers.diagnosis.judge import judge
from traceanalyzer.analyzers.diagnosis.rule import Rule
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.info.result import Info
from traceanalyzer.analyzers.memory.oom import MemoryErrors
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.analyzers.py_spy_report.result import LeafPaths
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.result import Fact, Report, Result, Section, Table

#: Inputs that the title names.
_NAMED = 3


def build(found: Examination, rules: Sequence[Rule], paths: Sequence[str]) -> Report:
    """The report of a run.

    Args:
        found: the results of all analyzers.
        rules: what they are judged by.
        paths: what to call the inputs in the title and in commands.
    """
    told = judge(found.results, found.missing, rules=rules, files=found.files, notes=found.notes)
    return Report(
        about=_about(paths),
        told=told,
        facts=facts(found.results),
        overview=overview(found.results),
        sections=_sections(found, paths),
        command=_command("report", paths),
    )


def _about(paths: Sequence[str]) -> str:
    names = [PurePath(path).name or path for path in paths[:_NAMED]]
    more = len(paths) - _NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _command(command: str, paths: Sequence[str]) -> str:
    return f"traceanalyzer {command} {shlex.join(paths)}"


def _sections(found: Examination, paths: Sequence[str]) -> tuple[Section, ...]:
    return tuple(
        Section(entry.name, entry.section or "", _command(entry.command, paths), result)
        for entry in registry.in_report()
        if (result := found.results.get(entry.name)) is not None
        and not (isinstance(result, MemoryErrors) and result.errors.is_empty())
    )


# --- the run in a few numbers ----------------------------------------------------------------


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


_KEYS = ("rank", "path")

#: Columns and their headings; those of which nothing is known are left out.
_SHOWN = {
    "on": "rank",
    "format": "format",
    "host": "host",
    "events": "events",
    "lost": "lost",
    "steps": "steps",
    "median_ns": "median step",
    "busy_frac": "busy",
    "idle_frac": "idle",
    "dataloading_frac": "waiting for data",
    "compute_frac": "compute",
    "exposed_frac": "exposed communication",
    "wait_ns": "waited for others",
    "imposed_ns": "others waited for it",
    "peak_bytes": "peak memory",
}


def overview(answers: Mapping[str, Result]) -> Table:
    """A row a file and rank, with what is known of it.

    Columns: ``on`` (the rank, or the file's name), rank, path, format, host, events, lost (events
    that the file lost), steps, median_ns, busy_frac, idle_frac and dataloading_frac (of the time of
    its devices), compute_frac and exposed_frac (exposed communication), wait_ns (for others),
    imposed_ns (that others waited for it), peak_bytes.
    """
    info = answers["info"]
    if not isinstance(info, Info):
        raise TypeError("the answer of info is that of another analysis")
    rows = info.files.select(*_KEYS, "format", "host").with_columns(info.contents["events", "lost"])
    for result in answers.values():
        known = _of(result)
        if known is not None:
            rows = rows.join(
                known, on=list(_KEYS), how="left", nulls_equal=True, maintain_order="left"
            )
    found = rows.with_columns(_names(rows))
    empty = {name for name in found.columns if found[name].null_count() == found.height}
    if not (found["lost"].sum() or 0):
        empty.add("lost")
    shown = {name: label for name, label in _SHOWN.items() if name in {*found.columns} - empty}
    shown["on"] = "rank" if found["rank"].null_count() < found.height else "file"
    return Table("overview", "Ranks", found, shown)


def _names(rows: pl.DataFrame) -> pl.Series:
    """The rank, where files of ranks are told apart by it; of files without one the name."""
    ranked = rows["rank"].is_not_null()
    own, others = (
        places(part.select(*_KEYS)).cast(pl.String)
        for part in (rows.filter(ranked), rows.filter(~ranked))
    )
    number = pl.int_range(pl.len())
    order = pl.concat([rows.select(number).filter(ranked), rows.select(number).filter(~ranked)])
    return pl.concat([own, others]).gather(order.to_series().arg_sort()).alias("on")


def _of(result: Result) -> pl.DataFrame | None:
    """What an answer knows of each rank: the keys, and columns of :data:`_SHOWN`."""
    if isinstance(result, Steps):
        return result.ranks.select(*_KEYS, "steps", "median_ns")
    if isinstance(result, GpuIdle):
        span = (pl.col("end") - pl.col("start")).sum()
        busy, loading = pl.col("busy_ns").sum(), pl.col("dataloading_ns").sum()
        return result.units.group_by(_KEYS).agg(
            busy_frac=pl.when(span > 0).then(busy / span),
            idle_frac=pl.when(span > 0).then(1 - busy / span),
            dataloading_frac=pl.when(span > 0).then(loading / span),
        )
    if isinstance(result, Overlap):
        span = pl.col("span_ns").sum()
        compute, exposed = (pl.col(f"{n}_ns").sum() for n in ("compute", "exposed_communication"))
        return result.devices.group_by(_KEYS).agg(
            compute_frac=pl.when(span > 0).then(compute / span),
            exposed_frac=pl.when(span > 0).then(exposed / span),
        )
    if isinstance(result, CommOutliers):
        paths = result.instances.select(*_KEYS).unique()
        own = result.ranks.select("rank", "wait_ns", "imposed_ns")
        return paths.join(own, on="rank", nulls_equal=True)
    if isinstance(result, Memory):
        return result.devices.group_by(_KEYS).agg(pl.col("peak_bytes").max())
    return None
