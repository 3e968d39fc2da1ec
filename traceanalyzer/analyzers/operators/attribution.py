"""Which call made the device busy, and which allocated memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.launching import launch_rows, with_told_by_id
from traceanalyzer.analyzers.operators.question import FRAMES, MARKED, OTHER
from traceanalyzer.frames.holding import innermost, nearest
from traceanalyzer.frames.intervals import Ints, nullable
from traceanalyzer.frames.nesting import ROOT, Rows
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_WORK

#: c10's device types whose memory is the host's: CPU, MKLDNN, IDEEP.
_HOST_TYPES = (0, 2, 5)


@dataclass(frozen=True)
class Memory:
    """Bytes allocated less bytes freed.

    Attributes:
        host: by each call itself, or None where no allocation of the host's memory was recorded.
        device: by each call itself, or None where none of a device's was.
        outside: in no call, host and device.
    """

    host: Ints | None
    device: Ints | None
    outside: int


def launched_work(trace: Trace, calls: pl.Series) -> pl.DataFrame:
    """All device work that has an end, with the call that launched it.

    Args:
        trace: of one rank.
        calls: the rows of ``events`` that are calls, in order.

    Returns:
        external_id, call (the place of its launch in ``calls``, null where that was not recorded or
        is none of them), start, length_ns.
    """
    recorded = pl.col("kind").is_in(DEVICE_WORK) & (pl.col("dur") >= 0)
    rows = trace.events.select(recorded).to_series().arg_true()
    work = trace.events.select("pid", "correlation", "external_id", "ts", "dur")[rows]
    found = launch_rows(trace, work)
    events, launch = calls.to_numpy(), found["launch"].to_numpy()
    at = np.minimum(np.searchsorted(events, launch), events.size - 1)
    call = np.full(work.height, ROOT, np.int32)
    call[found["work"]] = np.where(events[at] == launch, at, ROOT)
    return work.select(
        "external_id", nullable("call", call, call != ROOT), start="ts", length_ns="dur"
    )


def callers(work: pl.DataFrame, tree: pl.DataFrame) -> Rows:
    """The call that each piece of device work is counted for, a row of ``tree`` or :data:`ROOT`.

    That is the innermost operator or annotation around the launch call, else the innermost Python
    frame. Other work belongs to the operator of its external id.

    Args:
        work: rows of :func:`launched_work`.
        tree: rows of :func:`~traceanalyzer.analyzers.operators.tree.call_tree`.
    """
    call = work["call"].fill_null(ROOT).to_numpy()
    caller = np.full(work.height, ROOT, np.int32)
    for kinds in (*MARKED, OTHER), (FRAMES,):
        wanted = tree["kind"].is_in(kinds).to_numpy()
        still = np.flatnonzero((caller == ROOT) & (call != ROOT))
        if still.size and wanted.any():
            caller[still] = nearest(tree, wanted)[call[still]]
    named = pl.col("kind").is_in((*MARKED, OTHER))
    ids = tree.select("start", external_id=pl.when(named).then("external_id"))
    return with_told_by_id(caller, work, ids)


def instants_of(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """All allocations: thread (as of ``calls``, null for others), ts, bytes, of_host."""
    told = trace.memory_totals.filter(pl.col("device_type").is_not_null())
    first = calls.group_by("thread").agg(pl.col("event").first())
    threads = first.select("thread").hstack(trace.events.select("pid", "tid")[first["event"]])
    instants = trace.events.select("pid", "tid", "ts", "bytes")[told["event"]].join(
        threads, on=["pid", "tid"], how="left", nulls_equal=True, maintain_order="left"
    )
    of_host = told["device_type"].is_in(_HOST_TYPES).alias("of_host")
    return instants.select("thread", "ts", pl.col("bytes").fill_null(0), of_host)


def allocations(instants: pl.DataFrame, tree: pl.DataFrame) -> Memory:
    """What each call itself allocated and freed, by the time and thread of :func:`instants_of`."""
    if instants.is_empty():
        return Memory(None, None, 0)
    inner = innermost(instants, tree, ["thread"])
    size, of_host = instants["bytes"], instants["of_host"]
    host, device = (
        _summed(inner.filter(kept), size.filter(kept), tree.height) if kept.any() else None
        for kept in (of_host, ~of_host)
    )
    return Memory(host, device, int(size.filter(inner.is_null()).sum()))


def _summed(inner: pl.Series, size: pl.Series, height: int) -> Ints:
    known = inner.is_not_null()
    own = np.zeros(height, np.int64)
    np.add.at(own, inner.filter(known).to_numpy(), size.filter(known).to_numpy())
    return own
