"""The few columns of a rank's trace that its annotations are measured on."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.annotations.question import ANNOTATIONS, OWN_MARKS, Question
from traceanalyzer.analyzers.names import named
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.intervals import nullable
from traceanalyzer.frames.matching import first_match
from traceanalyzer.frames.nesting import ROOT, Rows
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS, PROFILER_STEP

#: Every step in one row.
ANY_STEP = f"{PROFILER_STEP[:-1]}*"

_STEP = re.compile(rf"{PROFILER_STEP}\d+")
_THREAD = ("pid", "tid")

#: The columns of device work, and what of it is counted.
_WORK = {
    "event": pl.UInt32, "thread": pl.Int32, "since": pl.Int64, "until": pl.Int64,
    "start": pl.Int64, "end": pl.Int64, "kernel": pl.Boolean,
}  # fmt: skip


@dataclass(frozen=True)
class Amount:
    """Pieces of device work, and their summed durations."""

    n: int = 0
    total_ns: int = 0


@dataclass(frozen=True)
class Ground:
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


def lay(trace: Trace, question: Question) -> Ground:
    """What is needed of one rank's trace, read with :data:`~.question.NEEDS`.

    Raises:
        MissingData: no annotation was recorded, or none of the names that are asked for.
        OptionError: a pattern is no regular expression.
    """
    marks = trace.events.select(_is_annotation(trace.events)).to_series().arg_true()
    if marks.is_empty():
        hint = record_hint(trace.meta, "user_annotation")
        raise MissingData(f"{trace.meta.path}: no annotations were recorded; {hint}")
    ranges, unclosed = _ranges(trace, marks, question)
    if ranges.is_empty():
        words = ", ".join(question.names)
        what = f"no annotation matches {words}" if words else "none of its annotations has an end"
        raise MissingData(f"{trace.meta.path}: {what}")
    threads = ranges.select(*_THREAD, "thread").unique().drop_nulls("tid")
    work, all_work = _work(trace.events, threads)
    length = int((work["end"] - work["start"]).sum())
    return Ground(
        rank=trace.meta.rank,
        path=trace.meta.path,
        ranges=ranges.drop(_THREAD),
        work=work,
        all_work=all_work,
        unlaunched=Amount(all_work.n - work.height, all_work.total_ns - length),
        unclosed=unclosed,
    )


# --- ranges ------------------------------------------------------------------------------------


def _is_annotation(events: pl.DataFrame) -> pl.Expr:
    """Ranges of users and libraries; PyTorch's own, where they are recorded as operators."""
    operators = events.lazy().filter(pl.col("kind") == "cpu_op").select("name").collect()
    own = (pl.col("kind") == "cpu_op") & named(operators, [re.escape(mark) for mark in OWN_MARKS])
    return pl.col("kind").is_in(ANNOTATIONS) | own


def _ranges(trace: Trace, marks: pl.Series, question: Question) -> tuple[pl.DataFrame, int]:
    """The annotations that are asked for, and how many of them never end.

    A mark, which is an instant, is no range; an annotation of torch.profiler that has no end was
    cut off.
    """
    columns = ("kind", "name", "ts", "dur", "category", *_THREAD)
    rows = trace.events.select(columns)[marks].with_columns(event=marks)
    if question.names:
        rows = rows.filter(named(rows, question.names))
    ended = rows.filter(pl.col("dur") >= 0)
    unclosed = rows.filter(pl.col("dur").is_null(), pl.col("kind") != "nvtx").height
    names = ended["name"].unique().drop_nulls().cast(pl.String)
    steps = {name: ANY_STEP for name in names if _STEP.fullmatch(name)}
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


def _work(events: pl.DataFrame, threads: pl.DataFrame) -> tuple[pl.DataFrame, Amount]:
    """Device work with its launch calls, in threads (pid, tid, thread) or others; and all of it."""
    is_work = pl.col("kind").is_in(DEVICE_WORK) & (pl.col("dur") >= 0)
    pieces = events.select(is_work).to_series().arg_true()
    all_work = Amount(pieces.len(), int(events["dur"].gather(pieces).sum()))
    launch = _launches(events, pieces)
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


def _launches(events: pl.DataFrame, pieces: pl.Series) -> Rows:
    """The row of the call that launched each piece, :data:`ROOT` where it was not recorded."""
    is_call = pl.col("kind").is_in(LAUNCH_KINDS) & pl.col("correlation").is_not_null()
    calls = events.select(is_call).to_series().arg_true()
    work = events.select("pid", "correlation")[pieces]
    # a file that does not tell the process of device work is one process's
    within = ["correlation"] if work["pid"].null_count() else ["pid", "correlation"]
    found = first_match(events.select(within)[calls], work, within)
    launched = found != ROOT
    found[launched] = calls.to_numpy()[found[launched]]
    return found


def _threads(events: pl.DataFrame, calls: Rows, threads: pl.DataFrame) -> Rows:
    """The number of each call's thread, :data:`ROOT` where it is none of these."""
    pid, tid = (events[name].gather(calls) for name in _THREAD)
    first, number = numbered([pid, tid])
    distinct = pl.DataFrame([pid.gather(first), tid.gather(first)])
    told = distinct.join(threads, on=_THREAD, how="left", nulls_equal=True, maintain_order="left")
    of_distinct = told["thread"].fill_null(ROOT).to_numpy()
    found: Rows = of_distinct[number]
    return found
