"""Which events to count, and which process, thread, rank or file each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import numpy as np
import polars as pl

from traceanalyzer.errors import OptionError
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.trace import Trace

_KEYS = {"process": ["rank", "pid"], "thread": ["rank", "pid", "tid"], "rank": ["rank"]}
_SHOWN_THREADS = 5


def of_threads(trace: Trace, threads: Sequence[str]) -> pl.Expr:
    """The events of threads, each told by its number or by a part of its name.

    Raises:
        OptionError: no thread of the trace is called so; some that there are are named.
    """
    if not threads:
        return pl.lit(value=True)
    known = _labels(trace).filter(pl.col("tid").is_not_null())
    present = trace.events.select("pid", "tid").unique().drop_nulls("tid")
    named = present.join(known, on=["pid", "tid"], how="left", nulls_equal=True)
    wanted = pl.lit(value=False)
    for thread in threads:
        by_name = pl.col("label").str.contains(thread, literal=True).fill_null(value=False)
        by_number = pl.col("tid").cast(pl.String) == thread
        wanted |= by_name | by_number
    chosen = named.filter(wanted)
    if chosen.is_empty():
        some = named.select(pl.coalesce("label", pl.col("tid").cast(pl.String))).to_series()
        words = ", ".join(sorted(set(some))[:_SHOWN_THREADS]) or "none"
        raise OptionError(f"--thread {threads[0]}: no such thread; there are {words}")
    key = pl.struct(pl.col("pid", "tid").cast(pl.Int64))
    return key.is_in(chosen.select(key).to_series().implode())


def groups(trace: Trace, rows: pl.Series, by: str | None) -> tuple[Ints, tuple[str, ...]]:
    """The number of the group of each event, and what the groups are called.

    Args:
        trace: the trace.
        rows: its rows of ``events``.
        by: ``process``, ``thread``, ``rank`` or ``file``; None for a single group.
    """
    if by is None or (by == "file" and len(trace.sources) == 1):
        return np.zeros(rows.len(), np.int64), (_file(trace.meta.path),)
    keys = _KEYS["rank" if by == "file" else by]
    found = trace.events.select(keys)[rows].with_row_index("_row").group_by(keys).agg("_row")
    found = found.sort(keys)
    if by == "file":
        paths = {meta.rank: _file(meta.path) for meta in trace.sources}
        labels = [paths.get(rank, _rank(rank)) for rank in found["rank"]]
    elif by == "rank":
        labels = [_rank(rank) for rank in found["rank"]]
    else:
        labels = _lane_words(trace, found.drop("_row"))
    distinct = sorted(set(labels))
    number = np.empty(rows.len(), np.int64)
    for label, members in zip(labels, found["_row"], strict=True):
        number[members.to_numpy()] = distinct.index(label)
    return number, tuple(distinct)


def _labels(trace: Trace) -> pl.DataFrame:
    """A label for each process and thread that has one."""
    lanes = trace.lanes.select("rank", "pid", "tid", "label").drop_nulls("label")
    return lanes.unique(["rank", "pid", "tid"], keep="first", maintain_order=True)


def _lane_words(trace: Trace, lanes: pl.DataFrame) -> list[str]:
    """``rank 3, process 2311: python train.py, thread 2316: MainThread``."""
    known = {(rank, pid, tid): label for rank, pid, tid, label in _labels(trace).iter_rows()}
    several = lanes["rank"].n_unique() > 1
    words = []
    for lane in lanes.iter_rows(named=True):
        rank, pid, tid = lane["rank"], lane["pid"], lane.get("tid")
        parts = [_rank(rank)] if several or rank is not None else []
        parts.append(_named("process", pid, known.get((rank, pid, None))))
        if "tid" in lane:
            parts.append(_named("thread", tid, known.get((rank, pid, tid))))
        words.append(", ".join(parts))
    return words


def _named(what: str, number: int | None, label: str | None) -> str:
    return f"{what} {'unknown' if number is None else number}{f': {label}' if label else ''}"


def _rank(rank: int | None) -> str:
    return "no rank" if rank is None else f"rank {rank}"


def _file(path: str) -> str:
    return PurePath(path).name or path
