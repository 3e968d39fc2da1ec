"""What one rank contributes: its device work, each piece with its family and its group."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.device_work import COMMUNICATION, DEVICE, device_work
from traceanalyzer.analyzers.kernel_families import OTHER, family
from traceanalyzer.analyzers.kernels.question import ANNOTATIONS, OWN_MARK, Question
from traceanalyzer.analyzers.launching import launches, with_told_by_id
from traceanalyzer.analyzers.names import matcher
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.frames.holding import hold, innermost
from traceanalyzer.frames.intervals import nullable
from traceanalyzer.frames.nesting import ROOT
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import CUDA_CALLS, DEVICE_WORK, LAUNCH_KINDS, steps_pattern


@dataclass(frozen=True)
class Part:
    """One rank's device work.

    Attributes:
        path: the file.
        work: one row a piece: kernel (row of ``kernels``), length_ns, and what tells its group
            where that was asked: rank, device, stream, or the operator or annotation around it.
        kernels: name and family of each kernel, copy and set.
        devices: one row a device: rank, path, device, n, total_ns, busy_ns, span_ns.
        unfinished: pieces without an end, which are not counted.
    """

    path: str
    work: pl.DataFrame
    kernels: pl.DataFrame
    devices: pl.DataFrame
    unfinished: int


def extract(trace: Trace, question: Question) -> Part:
    """The device work of one rank.

    Raises:
        MissingData: no device work was recorded, or not what tells the groups apart.
        OptionError: a pattern is not a regular expression.
    """
    _require(trace, DEVICE_WORK)
    work = device_work(trace, question.patterns)
    if work.is_empty():
        raise MissingData(f"{trace.meta.path}: no device work that was recorded ever ends")
    length = (pl.col("end") - pl.col("start")).alias("length_ns")
    recorded = int(trace.events["kind"].is_in(DEVICE_WORK).sum())
    unfinished = recorded - work.height
    told = [name for name in question.group if name in work.columns]
    with ThreadPoolExecutor(1) as pool:
        summed = pool.submit(_devices, trace, work)
        number, kernels = _kernels(work)
        devices = summed.result()
    rows = work.select(*told, length).with_columns(number)
    if question.by in ("operator", "annotation"):
        rows = rows.with_columns(_launched_in(trace, work, question.by))
    return Part(trace.meta.path, rows, kernels, devices, unfinished)


def _kernels(work: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """The kernel that each piece of work is of, ``kernel``, and name and family of the kernels."""
    keys = ["kind", "name", "sort"]
    first, number = numbered([work[key] for key in keys])
    distinct = work.select(keys)[first]
    families = [
        COMMUNICATION if sort == COMMUNICATION else OTHER if name is None else family(name, kind)
        for kind, name, sort in distinct.iter_rows()
    ]
    told = distinct.select("name", pl.Series("family", families, dtype=pl.String))
    return pl.Series("kernel", number), told


def _launched_in(trace: Trace, work: pl.DataFrame, of: str) -> pl.Series:
    """The innermost operator or annotation around each piece's launch call, by name.

    Work that no such call tells of belongs to the operator of its external id.
    """
    by_id = of == "operator" and work["external_id"].null_count() < work.height
    if not by_id and not trace.events["kind"].is_in(LAUNCH_KINDS).any():
        trace.require(*CUDA_CALLS)
    wanted = _operators(trace) if of == "operator" else _annotations(trace)
    launched = launches(trace, work).select("work", "pid", "tid", ts="launch_start")
    slices = (
        trace.events.lazy()
        .filter(wanted, pl.col("dur") >= 0)
        .select("pid", "tid", "name", "external_id", start="ts", end=pl.col("ts") + pl.col("dur"))
        .collect()
    )
    tree = hold(slices, ("pid", "tid"))
    inner = innermost(launched, tree, ("pid", "tid")).cast(pl.Int32).fill_null(ROOT)
    caller = np.full(work.height, ROOT, np.int32)
    caller[launched["work"]] = inner
    if by_id:
        caller = with_told_by_id(caller, work, slices)
    return slices["name"].gather(nullable("row", caller, caller != ROOT)).cast(pl.String).alias(of)


def _require(trace: Trace, kinds: Sequence[str]) -> None:
    """The error that says how to record these kinds, where there is none."""
    if not trace.events["kind"].is_in(kinds).any():
        trace.require(*kinds)


def _operators(trace: Trace) -> pl.Expr:
    _require(trace, ("cpu_op",))
    return pl.col("kind") == "cpu_op"


def _annotations(trace: Trace) -> pl.Expr:
    """The user's ranges and PyTorch's own, without those that are steps."""
    marks = pl.col("name").cast(pl.String).str.contains(OWN_MARK, literal=True)
    own = pl.col("kind").is_in(ANNOTATIONS) | ((pl.col("kind") == "cpu_op") & marks)
    names = trace.events.lazy().filter(own).select(pl.col("name").unique()).collect()
    is_step = matcher([steps_pattern()])
    told = [name for name in names["name"].drop_nulls().cast(pl.String) if not is_step(name)]
    if not told:
        hint = record_hint(trace.meta, "user_annotation")
        raise MissingData(f"{trace.meta.path}: no annotation but steps was recorded; {hint}")
    return own & pl.col("name").is_in(told)


def _devices(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    sums = intervals.summary(work, DEVICE)
    path = pl.lit(trace.meta.path).alias("path")
    return sums.sort(DEVICE).select(
        "rank", path, "device", "n", total_ns="total", busy_ns="length",
        span_ns=pl.col("end") - pl.col("start"),
    )  # fmt: skip
