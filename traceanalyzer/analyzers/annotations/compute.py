"""Annotated ranges of each rank with their device work, combined over all ranks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.annotations import By, Options
from traceanalyzer.analyzers.annotations.result import Amount, Annotations
from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import columns, launching, names
from traceanalyzer.analyzers.common.device_work import work_rows
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, nesting, numbering, slice_tree
from traceanalyzer.frames.linking import RangeContents, innermost_range
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, of_kinds, record_hint

#: Parts of the names of PyTorch's annotations, which it recorded as operators until 2021.
PYTORCH_MARKS = (
    vocabulary.PROFILER_STEP,
    "(DataLoader)#",
    "(DataPipe)#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
)

_THREAD = ("pid", "tid")

#: Measures of each range.
MEASURES = (
    "host_ns", "self_ns", "projected_ns", "n", "kernels", "device_ns",
    "self_n", "self_kernels", "self_device_ns",
)  # fmt: skip


#: Annotations, device work and the calls that launched it.
NEEDS = Needs(
    {*vocabulary.DEVICE_WORK, *vocabulary.LAUNCH_KINDS, *vocabulary.ANNOTATION_KINDS},
    PYTORCH_MARKS,
    unused=("device", "stream", "external_id", "bytes"),
)


@dataclass(frozen=True)
class Part:
    """One rank's annotations.

    Attributes:
        rank: global rank, or None if the file has none.
        path: the file.
        ranges: one row per range: name, domain, :data:`MEASURES` and ``is_nested``.
        process_wide: number of ranges without a thread, with host time only.
        all_work: all device work.
        inside: part of it that was launched in an annotation.
        other_thread: part of it launched in no annotation of its thread while another thread had
            one.
        unlaunched: part of it without a recorded launch call that has an end.
        unclosed: number of annotations without an end, which are not counted.
        of_snapshot: they are marks of a memory snapshot, which repeat those of a trace.
    """

    rank: int | None
    path: str
    ranges: pl.DataFrame
    process_wide: int
    all_work: Amount
    inside: Amount
    other_thread: Amount
    unlaunched: Amount
    unclosed: int
    of_snapshot: bool


def measure(trace: Trace, options: Options) -> Part:
    """Return the device work of one rank by annotation.

    Raises:
        MissingData: no annotations were recorded, or none with a matching name.
        OptionError: a pattern is not a regular expression.
    """
    ranges, unclosed = annotated(trace, options.names)
    work, all_work = launched(trace, ranges)
    known = _amount(work)
    attribution = attribute(ranges, work)
    of_any = attribution.innermost != nesting.ROOT
    return Part(
        rank=trace.meta.rank,
        path=trace.meta.path,
        ranges=attribution.ranges.select(
            "name",
            "domain",
            (pl.col("end") - pl.col("start")).alias("host_ns"),
            "self_ns",
            (pl.col("projected_end") - pl.col("projected_start")).alias("projected_ns"),
            *MEASURES[3:],
            is_nested=_is_nested(),
        ),
        process_wide=ranges["thread"].null_count(),
        all_work=all_work,
        inside=_amount(work.filter(of_any)),
        other_thread=_amount(work.filter(~of_any & _while_any_runs(ranges, work))),
        unlaunched=Amount(all_work.n - known.n, all_work.total_ns - known.total_ns),
        unclosed=unclosed,
        of_snapshot=trace.meta.format == vocabulary.MEMORY_SNAPSHOT,
    )


def combine(parts: Sequence[Part], options: Options) -> Annotations:
    """Sum the annotations of all ranks by domain and name."""
    parts = [part for part in parts if not part.of_snapshot] or parts
    all_work = _added([part.all_work for part in parts])
    ranges = columns.joined(parts, "ranges")
    outer = "path" if any(part.rank is None for part in parts) else "rank"
    rows = _summed(ranges, [*([outer] if options.by else []), "domain", "name"], all_work)
    ranks = columns.per_rank(parts, [_numbers(part) for part in parts])
    return Annotations(
        names=tuple(options.names),
        by=options.by,
        ranges=ranges.height,
        process_wide=sum(part.process_wide for part in parts),
        unclosed=sum(part.unclosed for part in parts),
        work=all_work,
        inside=_added([part.inside for part in parts]),
        other_thread=_added([part.other_thread for part in parts]),
        unlaunched=_added([part.unlaunched for part in parts]),
        annotations=rows,
        ranks=ranks.with_columns(inside_frac=columns.ratio("inside_ns", "device_ns")),
    )


ANNOTATIONS = Analyzer("annotations", Options, NEEDS, measure, combine)


# --- ranges ------------------------------------------------------------------------------------


def _is_annotation(events: pl.DataFrame) -> pl.Expr:
    """Select ranges of users and libraries, and PyTorch's annotations recorded as operators."""
    operators = events.select(pl.col("name").filter(pl.col("kind") == "cpu_op"))
    of_pytorch = (pl.col("kind") == "cpu_op") & names.named(
        operators, [re.escape(mark) for mark in PYTORCH_MARKS]
    )
    return of_kinds(vocabulary.ANNOTATION_KINDS) | of_pytorch


def annotated(trace: Trace, patterns: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """Return the selected annotations, and the number of those without an end.

    Instant marks do not count; annotations of torch.profiler without an end are truncated.

    Returns:
        event (row of ``events``), name, pid, tid, domain, thread (a number; null for ranges of the
        process), start, end: in the order of the trace.

    Raises:
        MissingData: no annotations were recorded, or none with a matching name.
    """
    marks = trace.events.select(_is_annotation(trace.events)).to_series().arg_true()
    if marks.is_empty():
        hint = record_hint(trace.meta, "user_annotation")
        raise MissingData(f"{trace.meta.path}: no annotations were recorded; {hint}")
    rows = trace.events.select("kind", "name", "ts", "dur", "category", *_THREAD)[
        marks
    ].with_columns(event=marks)
    if patterns:
        rows = rows.filter(names.named(rows, patterns))
    ended = rows.filter(pl.col("dur") >= 0)
    if ended.is_empty():
        what = "none of its annotations has an end"
        if patterns:
            what = f"no annotation matches {', '.join(patterns)}"
        raise MissingData(f"{trace.meta.path}: {what}")
    unclosed = rows.filter(pl.col("dur").is_null(), pl.col("kind") != "nvtx").height
    steps = names.one_name_for_steps(names.distinct(ended))
    domain = pl.when(pl.col("kind") == "nvtx").then("category")
    thread = pl.Series("thread", numbering.numbered([ended[name] for name in _THREAD])[1])
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


def launched(trace: Trace, ranges: pl.DataFrame) -> tuple[pl.DataFrame, Amount]:
    """Return device work with a known launch call, and the amount of all device work.

    Returns:
        event, thread (numbered as in the ranges; null for a thread without ranges), since and until
        (of the launch call), start, end, kernel (whether it is one).
    """
    threads = ranges.select(*_THREAD, "thread").unique().drop_nulls("tid")
    events = trace.events
    pieces = work_rows(trace)
    all_work = Amount(pieces.len(), int(events["dur"].gather(pieces).sum()))
    launch = launching.launch_rows(trace, pieces.to_frame())
    known = np.flatnonzero(launch != nesting.ROOT)
    pieces, launch = pieces.gather(known), launch[known]
    thread = _threads(events, launch, threads)
    calls = events.select("ts", "dur")[launch]
    work = events.select("kind", "ts", "dur")[pieces]
    rows = pl.DataFrame(
        {
            "event": pieces,
            "thread": intervals.nullable("thread", thread, thread != nesting.ROOT),
            "since": calls["ts"],
            "until": calls["ts"] + calls["dur"],
            "start": work["ts"],
            "end": work["ts"] + work["dur"],
            "kernel": work["kind"] == "kernel",
        }
    )
    return (rows.drop_nulls("until") if rows["until"].null_count() else rows), all_work


def _threads(events: pl.DataFrame, calls: nesting.Rows, threads: pl.DataFrame) -> nesting.Rows:
    """Return the number of each call's thread, :data:`ROOT` for other threads."""
    number = columns.left_join(events.select(_THREAD)[calls], threads, _THREAD)["thread"]
    rows: nesting.Rows = number.fill_null(nesting.ROOT).to_numpy()
    return rows


def _while_any_runs(ranges: pl.DataFrame, work: pl.DataFrame) -> intervals.Bools:
    """Return a mask of the work launched while an annotation ran on any thread."""
    runs = intervals.union(ranges.drop_nulls("thread"))
    since = work["since"].to_numpy()
    begun = np.searchsorted(runs["start"].to_numpy(), since, side="right")
    ended = np.searchsorted(runs["end"].to_numpy(), since, side="right")
    inside: intervals.Bools = begun > ended
    return inside


def _amount(work: pl.DataFrame) -> Amount:
    return Amount(work.height, int((work["end"] - work["start"]).sum()))


# --- all ranks -----------------------------------------------------------------------------


def _added(amounts: Sequence[Amount]) -> Amount:
    return Amount(sum(each.n for each in amounts), sum(each.total_ns for each in amounts))


def _summed(ranges: pl.DataFrame, keys: Sequence[str], work: Amount) -> pl.DataFrame:
    """Sum the ranges by the keys, most device work first."""
    host = pl.col("host_ns")
    sums = ranges.group_by(keys).agg(
        *map(_sum, MEASURES),
        ranges=pl.len().cast(pl.Int64),
        mean_ns=columns.whole(host.mean()),
        median_ns=columns.whole(host.median()),
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
            "self_n", "self_kernels", "self_device_ns",
        )
        .sort("device_ns", "host_ns", *keys, descending=[True, True, *(False for _ in keys)])
    )  # fmt: skip


def _sum(name: str) -> pl.Expr:
    """Sum a measure; ranges inside one of their name count in self values only."""
    value = pl.col(name) if name.startswith("self_") else pl.col(name).filter(~pl.col("is_nested"))
    return pl.when(pl.col(name).count() > 0).then(value.sum()).alias(name)


def _is_nested() -> pl.Expr:
    """Whether a range is inside another one of its name in its thread."""
    keys = ("domain", "name", "thread")
    before = pl.col("end").cum_max().shift(1).over(*keys, order_by=["start", -pl.col("end")])
    inside = (pl.col("start") < before) & (pl.col("end") <= before)
    return inside.fill_null(value=False) & pl.col("thread").is_not_null()


def _numbers(part: Part) -> dict[str, int | None]:
    return {
        "ranges": part.ranges.height,
        "n": part.all_work.n,
        "device_ns": part.all_work.total_ns,
        "inside_n": part.inside.n,
        "inside_ns": part.inside.total_ns,
    }


# --- attribution -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Attribution:
    """Device work by range.

    Attributes:
        ranges: the ranges with ``self_ns``, host time without nested ranges (null for ranges of the
            process); ``n``, ``kernels`` and ``device_ns``, number of device events launched in it,
            number of kernels, and the sum of durations; ``projected_start`` and ``projected_end``,
            when the first of them starts and the last one ends, null without any; and ``self_n``,
            ``self_kernels``, ``self_device_ns``: those with this range as the innermost.
        innermost: the row of the innermost range of each device event, or -1.
    """

    ranges: pl.DataFrame
    innermost: nesting.Rows


def attribute(ranges: pl.DataFrame, work: pl.DataFrame) -> Attribution:
    """Attribute device work to the ranges of the launching thread that contain the launch call.

    Args:
        ranges: thread, start, end and other columns; in the order of start, longest first.
        work: thread (null: without ranges), since and until (of the launch call), start, end,
            kernel.
    """
    sums = {name: np.zeros(ranges.height, np.int64) for name in ("n", "kernels", "device_ns")}
    self_sums = {f"self_{name}": values.copy() for name, values in sums.items()}
    bounds = [np.zeros(ranges.height, np.int64) for _ in range(2)]
    innermost = np.full(work.height, nesting.ROOT, np.int32)
    start, end = (ranges[name].to_numpy() for name in ("start", "end"))
    since, until = work["since"].to_numpy(), work["until"].to_numpy()
    begun, ended = work["start"].to_numpy(), work["end"].to_numpy()
    kernel = work["kernel"].cast(pl.Int64).to_numpy()
    for rows, pieces in _by_thread(ranges, work):
        calls = since[pieces], until[pieces]
        inner = innermost_range(start[rows], end[rows], *calls)
        known = inner != nesting.ROOT
        innermost[pieces[known]] = rows[inner[known]]
        values = {"kernels": kernel[pieces], "device_ns": ended[pieces] - begun[pieces]}
        inside = RangeContents(start[rows], end[rows], *calls)
        sums["n"][rows] = inside.count
        for name, value in values.items():
            sums[name][rows] = inside.sum(value)
            np.add.at(self_sums[f"self_{name}"], rows[inner[known]], value[known])
        np.add.at(self_sums["self_n"], rows[inner[known]], 1)
        bounds[0][rows] = inside.lowest(begun[pieces])
        bounds[1][rows] = inside.highest(ended[pieces])
    some = sums["n"] > 0
    projected = [
        intervals.nullable(f"projected_{name}", values, some)
        for name, values in zip(("start", "end"), bounds, strict=True)
    ]
    attributed = ranges.with_columns(_self_time(ranges), *projected, **sums, **self_sums)
    return Attribution(attributed, innermost)


def _by_thread(
    ranges: pl.DataFrame, work: pl.DataFrame
) -> Iterator[tuple[intervals.Ints, intervals.Ints]]:
    """Yield each thread's ranges, by start and the longest first, and its work, by launch call."""
    rows = np.flatnonzero(ranges["thread"].is_not_null().to_numpy())
    of_range = ranges["thread"].gather(rows).to_numpy().astype(np.int64)
    start, end = (ranges[name].gather(rows).to_numpy() for name in ("start", "end"))
    order = nesting.slice_order(of_range, start, end)
    rows, of_range = rows[order], of_range[order]
    pieces = np.flatnonzero(work["thread"].is_not_null().to_numpy())
    of_work = work["thread"].gather(pieces).to_numpy().astype(np.int64)
    order = intervals.stable_order(of_work, work["since"].gather(pieces).to_numpy())
    pieces, of_work = pieces[order], of_work[order]
    for low, high in nesting.blocks(of_work):
        first, last = np.searchsorted(of_range, [of_work[low], of_work[low] + 1])
        yield rows[first:last], pieces[low:high]


def _self_time(ranges: pl.DataFrame) -> pl.Series:
    """Return the host time of each range without nested ranges of its thread."""
    threads = ranges.select("thread", "start", "end")
    self_time = slice_tree.build_tree(threads, ["thread"])["self_time"]
    of_thread = ranges["thread"].is_not_null()
    return pl.select(pl.when(of_thread).then(self_time).alias("self_ns")).to_series()


def annotations(
    inputs: "Inputs",
    *,
    names: str | Sequence[str] = (),
    by: By | None = None,
    **reading: Unpack[Reading],
) -> "Annotations":
    """Return host and device time of annotated ranges (``record_function``, NVTX).

    One file is in memory at a time; the ranks are summed.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        names: regular expressions; only annotations with matching names count, as if there were no
            others. Default: all.
        by: also group by ``rank``.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no annotations were recorded, or none with a matching name.
        OptionError: ``by`` is unknown, or a pattern is not a regular expression.
    """
    return run(ANNOTATIONS, inputs, Options(names, by), **reading)
