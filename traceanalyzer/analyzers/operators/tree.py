"""The calls of each thread and what each had for itself, as PyTorch builds them."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from traceanalyzer.analyzers.names import distinct
from traceanalyzer.analyzers.operators.question import CALLS, FRAMES, MARKED, OTHER
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.holding import hold, parents
from traceanalyzer.frames.nesting import ROOT, Rows
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import PROFILER_STEP

#: Every step in one row.
ANY_STEP = "ProfilerStep*"

_STEP = re.compile(rf"{PROFILER_STEP}\d+")

#: Bookkeeping of autograd and of the profiler: PyTorch counts it as its caller's own time.
_UNNAMED = (
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
)


def call_tree(calls: pl.DataFrame) -> pl.DataFrame:
    """What holds each of :func:`all_calls`.

    Returns:
        The calls, each with ``depth``, ``parent`` (row), and ``self_time``, which adds up to the
        time in which the thread was in any call.
    """
    return hold(calls, ["thread"])


def counted_as(tree: pl.DataFrame) -> Rows:
    """The call that each call is counted as: itself but for an operator, the only one in its like.

    PyTorch takes a call whose only call has the same name for one with it: a wrapper and what it
    wraps. A function that calls itself is called again.
    """
    parent, name = parents(tree), tree["name"].to_physical().to_numpy()
    is_operator = (tree["kind"] == "cpu_op").to_numpy()
    held = np.flatnonzero((parent != ROOT) & is_operator).astype(np.int32)
    like = held[name[held] == name[parent[held]]]
    calls = np.bincount(parent[held], minlength=tree.height)
    again = like[calls[parent[like]] == 1]
    found = np.arange(tree.height, dtype=np.int32)
    found[again] = parent[again]
    while (further := found[found] != found).any():
        found[further] = found[found[further]]
    return found


def unclosed(trace: Trace) -> int:
    """Operators and annotations that never end, and are not counted; NVTX marks need no end."""
    open_ended = pl.col("kind").is_in(MARKED) & (pl.col("kind") != "nvtx") & pl.col("dur").is_null()
    return trace.events.filter(open_ended).height


def all_calls(trace: Trace) -> pl.DataFrame:
    """Every call of a rank's threads, in the order of the trace.

    Calls are operators, annotations, NVTX ranges, Python frames and the runtime calls they make; in
    traces without any of these but the last, all other host slices. The steps of the profiler have
    one name.

    Returns:
        ``event`` (row of ``events``), ``kind``, ``name``, ``external_id``, ``thread`` (a number),
        ``start``, ``end``.

    Raises:
        MissingData: no call was recorded.
    """
    on_host = pl.col("device").is_null() & pl.col("tid").is_not_null() & (pl.col("dur") >= 0)
    of_kind = pl.col("kind") == OTHER
    if trace.events["kind"].is_in((*MARKED, FRAMES)).any():
        of_kind = pl.col("kind").is_in((*MARKED, FRAMES, *CALLS))
    names = distinct(trace.events)
    unnamed = [name for name in names if name in _UNNAMED]
    is_named = pl.col("name").is_not_null() & ~pl.col("name").is_in(unnamed)
    event = trace.events.select(on_host & of_kind & is_named).to_series().arg_true()
    if event.is_empty():
        hint = record_hint(trace.meta, "cpu_op")
        raise MissingData(f"{trace.meta.path}: no operators were recorded; {hint}")
    thread = numbered([trace.events[name].gather(event) for name in ("pid", "tid")])[1]
    steps = {name: ANY_STEP for name in names if _STEP.fullmatch(name)}
    calls = trace.events.select("kind", "name", "external_id", "ts", "dur")[event]
    return calls.select(
        event.alias("event"), "kind",
        pl.col("name").replace(steps) if steps else "name",
        "external_id",
        pl.Series("thread", thread),
        start="ts", end=pl.col("ts") + pl.col("dur"),
    )  # fmt: skip
