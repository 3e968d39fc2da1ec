"""From the annotated ranges of each rank to those of all ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.annotations.attribution import attribute
from traceanalyzer.analyzers.annotations.options import Options
from traceanalyzer.analyzers.annotations.result import Amount, Annotations
from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.common.columns import per_rank, ratio, sum_if_known, whole
from traceanalyzer.analyzers.common.launching import launch_rows
from traceanalyzer.analyzers.common.names import distinct, named, one_name_for_steps
from traceanalyzer.analyzers.common.step_marks import without_snapshots
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.intervals import Bools, nullable, union
from traceanalyzer.frames.nesting import ROOT, Rows
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import ANNOTATION_KINDS, DEVICE_WORK, LAUNCH_KINDS, PROFILER_STEP

#: In the names of PyTorch's own annotations, which it recorded as operators until 2021.
OWN_MARKS = (
    PROFILER_STEP,
    "(DataLoader)#",
    "(DataPipe)#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
)

_THREAD = ("pid", "tid")

#: The columns of device work, and what of it is counted.
_WORK = {
    "event": pl.UInt32, "thread": pl.Int32, "since": pl.Int64, "until": pl.Int64,
    "start": pl.Int64, "end": pl.Int64, "kernel": pl.Boolean,
}  # fmt: skip

#: What is told of each range.
MEASURES = (
    "host_ns", "self_ns", "projected_ns", "n", "kernels", "device_ns",
    "own_n", "own_kernels", "own_device_ns",
)  # fmt: skip


def needs(_options: Options) -> Needs:
    """Annotations, device work and the calls that launched it."""
    kinds = frozenset((*DEVICE_WORK, *LAUNCH_KINDS, *ANNOTATION_KINDS))
    return Needs(kinds, OWN_MARKS, unused=("device", "stream", "external_id", "bytes"))


@dataclass(frozen=True)
class Part:
    """One rank's annotations.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        ranges: one row a range: name, domain, rank and :data:`MEASURES`.
        process_wide: ranges that belong to no thread, of which only host time is known.
        all_work: all device work.
        inside: part of it that was launched in an annotation.
        beside: part of it that was launched in none of its thread, while one of another ran.
        unlaunched: part of it whose launch call was not recorded, or never ends.
        unclosed: annotations that never end, and are not counted.
    """

    rank: int | None
    path: str
    ranges: pl.DataFrame
    process_wide: int
    all_work: Amount
    inside: Amount
    beside: Amount
    unlaunched: Amount
    unclosed: int


@dataclass(frozen=True)
class Excerpt:
    """One rank's annotations, and its device work.

    Attributes:
        rank: global rank, or None.
        path: the file.
        ranges: event (row of ``events``), name, domain, thread (a number; null where the range
            belongs to the process), start, end: in the order of the trace.
        work: event, thread (as that of ranges; null for one without any), since and until (of the
            launch call), start, end, kernel (whether it is one): device work whose launch is known.
        all_work: all device work.
        unlaunched: part of it whose launch call was not recorded, or never ends.
        unclosed: annotations that never end, and are not counted.
    """

    rank: int | None
    path: str
    ranges: pl.DataFrame
    work: pl.DataFrame
    all_work: Amount
    unlaunched: Amount
    unclosed: int


def take(trace: Trace, options: Options) -> Excerpt:
    """The few columns of a trace that count, so that it can be freed.

    Raises:
        MissingData: no annotation was recorded, or none of the names that are asked for.
        OptionError: a pattern is no regular expression.
    """
    marks = trace.events.select(_is_annotation(trace.events)).to_series().arg_true()
    if marks.is_empty():
        hint = record_hint(trace.meta, "user_annotation")
        raise MissingData(f"{trace.meta.path}: no annotations were recorded; {hint}")
    ranges, unclosed = _ranges(trace, marks, options.names)
    if ranges.is_empty():
        what = "none of its annotations has an end"
        if options.names:
            what = f"no annotation matches {', '.join(options.names)}"
        raise MissingData(f"{trace.meta.path}: {what}")
    threads = ranges.select(*_THREAD, "thread").unique().drop_nulls("tid")
    work, all_work = _work(trace, threads)
    length = int((work["end"] - work["start"]).sum())
    return Excerpt(
        rank=trace.meta.rank,
        path=trace.meta.path,
        ranges=ranges.drop(_THREAD),
        work=work,
        all_work=all_work,
        unlaunched=Amount(all_work.n - work.height, all_work.total_ns - length),
        unclosed=unclosed,
    )


def measure(excerpt: Excerpt, _options: Options) -> Part:
    """The device work of one rank by annotation."""
    found = attribute(excerpt.ranges, excerpt.work)
    of_any = found.innermost != ROOT
    beside = ~of_any & _while_any_runs(excerpt)
    return Part(
        rank=excerpt.rank,
        path=excerpt.path,
        ranges=found.ranges.select(
            "name",
            "domain",
            pl.lit(excerpt.rank, pl.Int32).alias("rank"),
            (pl.col("end") - pl.col("start")).alias("host_ns"),
            "self_ns",
            (pl.col("projected_end") - pl.col("projected_start")).alias("projected_ns"),
            *MEASURES[3:],
        ),
        process_wide=excerpt.ranges["thread"].null_count(),
        all_work=excerpt.all_work,
        inside=_amount(excerpt.work, of_any),
        beside=_amount(excerpt.work, beside),
        unlaunched=excerpt.unlaunched,
        unclosed=excerpt.unclosed,
    )


def combine(parts: Sequence[Part], options: Options, _base: Sequence[Part] = ()) -> Annotations:
    """The annotations of all ranks, summed up by domain and name."""
    all_work = _added([part.all_work for part in parts])
    ranges = pl.concat(
        [part.ranges.with_columns(path=pl.lit(part.path)) for part in parts]
        if options.by and any(part.rank is None for part in parts)
        else [part.ranges for part in parts]
    )
    outer = ["path"] if "path" in ranges.columns else ["rank"] if options.by else []
    rows = _summed(ranges, [*outer, "domain", "name"], all_work)
    ranks = per_rank(parts, [_numbers(part) for part in parts])
    return Annotations(
        names=tuple(options.names),
        by=options.by,
        ranges=ranges.height,
        process_wide=sum(part.process_wide for part in parts),
        unclosed=sum(part.unclosed for part in parts),
        work=all_work,
        inside=_added([part.inside for part in parts]),
        beside=_added([part.beside for part in parts]),
        unlaunched=_added([part.unlaunched for part in parts]),
        annotations=rows,
        ranks=ranks.with_columns(inside_frac=ratio("inside_ns", "device_ns")),
    )


ANNOTATIONS = Analyzer(
    "annotations",
    Options,
    needs,
    measure,
    combine,
    take=take,
    report_parts=without_snapshots,
)


# --- ranges ------------------------------------------------------------------------------------


def _is_annotation(events: pl.DataFrame) -> pl.Expr:
    """Ranges of users and libraries; PyTorch's own, where they are recorded as operators."""
    operators = events.lazy().filter(pl.col("kind") == "cpu_op").select("name").collect()
    own = (pl.col("kind") == "cpu_op") & named(operators, [re.escape(mark) for mark in OWN_MARKS])
    return pl.col("kind").is_in(ANNOTATION_KINDS) | own


def _ranges(trace: Trace, marks: pl.Series, names: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """The annotations that are asked for, and how many of them never end.

    A mark, which is an instant, is no range; an annotation of torch.profiler that has no end was
    cut off.
    """
    columns = ("kind", "name", "ts", "dur", "category", *_THREAD)
    rows = trace.events.select(columns)[marks].with_columns(event=marks)
    if names:
        rows = rows.filter(named(rows, names))
    ended = rows.filter(pl.col("dur") >= 0)
    unclosed = rows.filter(pl.col("dur").is_null(), pl.col("kind") != "nvtx").height
    steps = one_name_for_steps(distinct(ended))
    domain = pl.when(pl.col("kind") == "nvtx").then("category")
    thread = pl.Series("thread", numbered([ended[name] for name in _THREAD])[1])
    return ended.select(
        "event",
        pl.col("name").replace(steps) if steps else "name",
        *_THREAD,
        pl.when(pl.col("tid").is_not_null()).then(thread).alias("thread"),
        domain=domain,
        start="ts",
        end=pl.col("ts") + pl.col("dur"),
    ), unclosed


# --- device work -------------------------------------------------------------------------------


def _work(trace: Trace, threads: pl.DataFrame) -> tuple[pl.DataFrame, Amount]:
    """Device work with its launch calls, in threads (pid, tid, thread) or others; and all of it."""
    events = trace.events
    is_work = pl.col("kind").is_in(DEVICE_WORK) & (pl.col("dur") >= 0)
    pieces = events.select(is_work).to_series().arg_true()
    all_work = Amount(pieces.len(), int(events["dur"].gather(pieces).sum()))
    launch = launch_rows(trace, events.select("pid", "correlation")[pieces])
    known = np.flatnonzero(launch != ROOT)
    pieces, launch = pieces.gather(known), launch[known]
    thread = _threads(events, launch, threads)
    calls = events.select("ts", "dur")[launch]
    work = events.select("kind", "ts", "dur")[pieces]
    rows = pl.DataFrame(
        {
            "event": pieces,
            "thread": nullable("thread", thread, thread != ROOT),
            "since": calls["ts"],
            "until": calls["ts"] + calls["dur"],
            "start": work["ts"],
            "end": work["ts"] + work["dur"],
            "kernel": work["kind"] == "kernel",
        },
        schema=_WORK,
    )
    return (rows.drop_nulls("until") if rows["until"].null_count() else rows), all_work


def _threads(events: pl.DataFrame, calls: Rows, threads: pl.DataFrame) -> Rows:
    """The number of each call's thread, :data:`ROOT` where it is none of these."""
    pid, tid = (events[name].gather(calls) for name in _THREAD)
    first, number = numbered([pid, tid])
    distinct = pl.DataFrame([pid.gather(first), tid.gather(first)])
    told = distinct.join(threads, on=_THREAD, how="left", nulls_equal=True, maintain_order="left")
    of_distinct = told["thread"].fill_null(ROOT).to_numpy()
    found: Rows = of_distinct[number]
    return found


def _while_any_runs(excerpt: Excerpt) -> Bools:
    """Which work was launched while an annotation ran, on any thread."""
    runs = union(excerpt.ranges.drop_nulls("thread"))
    since = excerpt.work["since"].to_numpy()
    begun = np.searchsorted(runs["start"].to_numpy(), since, side="right")
    ended = np.searchsorted(runs["end"].to_numpy(), since, side="right")
    found: Bools = begun > ended
    return found


def _amount(work: pl.DataFrame, chosen: Bools) -> Amount:
    length = (work["end"] - work["start"]).to_numpy()[chosen]
    return Amount(length.size, int(length.sum()))


# --- all ranks -----------------------------------------------------------------------------


def _added(amounts: Sequence[Amount]) -> Amount:
    return Amount(sum(each.n for each in amounts), sum(each.total_ns for each in amounts))


def _summed(ranges: pl.DataFrame, keys: Sequence[str], work: Amount) -> pl.DataFrame:
    """One row for each combination of the keys, most device work first."""
    host = pl.col("host_ns")
    sums = ranges.group_by(keys).agg(
        *map(sum_if_known, MEASURES),
        ranges=pl.len().cast(pl.Int64),
        mean_ns=whole(host.mean()),
        median_ns=whole(host.median()),
        min_ns=host.min(),
        max_ns=host.max(),
        launching=(pl.col("n") > 0).sum().cast(pl.Int64),
    )
    share = pl.col("device_ns") / work.total_ns if work.total_ns else pl.lit(None, pl.Float64)
    return (
        sums.with_columns(pl.col("domain", "name").cast(pl.String), device_frac=share)
        .select(
            *keys, "ranges", "host_ns", "self_ns", "mean_ns", "median_ns", "min_ns", "max_ns",
            "launching", "projected_ns", "n", "kernels", "device_ns", "device_frac",
            "own_n", "own_kernels", "own_device_ns",
        )
        .sort("device_ns", "host_ns", *keys, descending=[True, True, *(False for _ in keys)])
    )  # fmt: skip


def _numbers(part: Part) -> dict[str, int | None]:
    return {
        "ranges": part.ranges.height,
        "n": part.all_work.n,
        "device_ns": part.all_work.total_ns,
        "inside_n": part.inside.n,
        "inside_ns": part.inside.total_ns,
    }
