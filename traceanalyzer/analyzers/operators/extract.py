"""What one rank contributes: its calls summed up by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.operators.attribution import allocations, callers
from traceanalyzer.analyzers.operators.ground import Ground, lay
from traceanalyzer.analyzers.operators.question import Question
from traceanalyzer.analyzers.operators.stacks import python_stacks
from traceanalyzer.analyzers.operators.tree import call_tree, counted_as
from traceanalyzer.frames.holding import with_descendants
from traceanalyzer.frames.intervals import Bools, Ints
from traceanalyzer.frames.nesting import ROOT, Rows
from traceanalyzer.frames.numbering import Numbers, numbered
from traceanalyzer.trace import Trace

#: Sums of a row; null where nothing of the sort was recorded.
SUMS = (
    "calls", "self_host_ns", "total_host_ns", "self_device_ns", "total_device_ns",
    "self_host_memory_bytes", "total_host_memory_bytes",
    "self_device_memory_bytes", "total_device_memory_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One rank's operators.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        rows: the keys of the question, and :data:`SUMS`.
        running: ``name``, ``kind`` and ``self_host_ns`` in the threads that run operators.
        device_ns: all device work, summed; None where there is none.
        unlaunched_ns: part of it that no call is known for.
        threads: threads that made calls.
        outside_bytes: allocated less freed in no call.
        unclosed: operators without an end, which are not counted.
        hints: how the profiler that wrote the file records what it lacks, by kind.
    """

    rank: int | None
    path: str
    rows: pl.DataFrame
    running: pl.DataFrame
    device_ns: int | None
    unlaunched_ns: int
    threads: int
    outside_bytes: int
    unclosed: int
    hints: Mapping[str, str]


def extract(trace: Trace, question: Question) -> Part:
    """The operators of one rank: :func:`~.ground.lay`, then :func:`measure`."""
    return measure(lay(trace, question), question)


def measure(ground: Ground, question: Question) -> Part:
    """What one rank contributes."""
    work, tree = ground.work, call_tree(ground.calls)
    length = work["length_ns"].to_numpy()
    caller = callers(work, tree)
    known = caller != ROOT
    device = np.zeros(tree.height, np.int64)
    np.add.at(device, caller[known], length[known])
    memory = allocations(ground.instants, tree)
    counted = counted_as(tree)
    columns = _keys(tree, question, counted)
    first, row = numbered(columns.get_columns())
    keys = columns[first].with_columns(pl.col("name", "kind").cast(pl.String))
    own = counted == np.arange(tree.height)
    self_host = tree["self_time"].to_numpy()
    sums = [
        _summed("calls", own.astype(np.int64), row, keys),
        _summed("self_host_ns", self_host, row, keys),
        _summed("total_host_ns", (tree["end"] - tree["start"]).to_numpy() * own, row, keys),
    ]
    for name, values in (
        ("device_ns", device if work.height else None),
        ("host_memory_bytes", memory.host),
        ("device_memory_bytes", memory.device),
    ):
        sums.append(_summed(f"self_{name}", values, row, keys))
        total = None if values is None else with_descendants(values, tree) * own
        sums.append(_summed(f"total_{name}", total, row, keys))
    runs = _runs_operators(tree)
    running = _summed("self_host_ns", self_host * runs, row, keys)
    return Part(
        rank=ground.rank,
        path=ground.path,
        rows=keys.hstack(sums),
        running=keys.select("name", "kind").hstack([running]),
        device_ns=int(length.sum()) if work.height else None,
        unlaunched_ns=int(length[~known].sum()),
        threads=tree["thread"].n_unique(),
        outside_bytes=memory.outside,
        unclosed=ground.unclosed,
        hints=ground.hints,
    )


def _summed(name: str, values: Ints | None, row: Numbers, keys: pl.DataFrame) -> pl.Series:
    """The sum of the values of each row, exactly; null where there are none."""
    if values is None:
        return pl.Series(name, [None] * keys.height, dtype=pl.Int64)
    total = np.zeros(keys.height, np.int64)
    np.add.at(total, row, values)
    return pl.Series(name, total)


def _runs_operators(tree: pl.DataFrame) -> Bools:
    """Which calls are in a thread that runs operators; in any, where no thread does.

    Threads that only wait for others, or for the network, are in Python or in an annotation.
    """
    threads = tree["thread"].filter(tree["kind"] == "cpu_op").unique()
    if threads.is_empty():
        return np.ones(tree.height, np.bool_)
    return tree["thread"].is_in(threads.implode()).to_numpy()


def _keys(tree: pl.DataFrame, question: Question, counted: Rows) -> pl.DataFrame:
    """The columns that tell rows apart, of the call that each one is counted as."""
    columns = [tree["name"], tree["kind"].gather(counted)]
    if question.by_input_shape:
        columns.append(tree["input_dims"].gather(counted))
    if question.by_stack:
        columns.append(python_stacks(tree, question.by_stack).gather(counted))
    return pl.DataFrame(columns)
