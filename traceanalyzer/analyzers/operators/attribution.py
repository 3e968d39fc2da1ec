"""Which call made the device busy, and which allocated memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.launching import launch_rows
from traceanalyzer.analyzers.operators.question import FRAMES, MARKED, OTHER
from traceanalyzer.frames import linking
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


def launched_work(trace: Trace) -> pl.DataFrame:
    """All device work that has an end, with the call that launched it.

    Returns:
        external_id, launch (row of ``events``, null where it was not recorded), start, length_ns.
    """
    recorded = pl.col("kind").is_in(DEVICE_WORK) & (pl.col("dur") >= 0)
    rows = trace.events.select(recorded).to_series().arg_true()
    work = trace.events.select("pid", "correlation", "external_id", "ts", "dur")[rows]
    found = launch_rows(trace, work)
    launch, known = np.zeros(work.height, np.uint32), np.zeros(work.height, np.bool_)
    launch[found["work"]], known[found["work"]] = found["launch"], True
    return work.select(
        "external_id", nullable("launch", launch, known), start="ts", length_ns="dur"
    )


def callers(trace: Trace, work: pl.DataFrame, tree: pl.DataFrame) -> Rows:
    """The call that each piece of device work is counted for, a row of ``tree`` or :data:`ROOT`.

    That is the innermost operator or annotation around the launch call, else the innermost Python
    frame. Work whose launch was not recorded belongs to the operator of its external id.

    Args:
        trace: of one rank.
        work: rows of :func:`launched_work`.
        tree: rows of :func:`~traceanalyzer.analyzers.operators.tree.call_tree`.
    """
    launched = work["launch"].is_not_null().to_numpy()
    call = _rows(tree, work["launch"].drop_nulls())
    caller = np.full(work.height, ROOT, np.int32)
    found = np.full(call.size, ROOT, np.int32)
    for kinds in (*MARKED, OTHER), (FRAMES,):
        wanted = tree["kind"].is_in(kinds).to_numpy()
        still = np.flatnonzero((found == ROOT) & (call != ROOT))
        if still.size and wanted.any():
            found[still] = nearest(tree, wanted)[call[still]]
    caller[launched] = found
    _by_external_id(trace, work, tree, caller)
    return caller


def _rows(tree: pl.DataFrame, event: pl.Series) -> Rows:
    """The rows of the tree that are these events, :data:`ROOT` for an event that is no call."""
    events, asked = tree["event"].to_numpy(), event.to_numpy()
    at = np.minimum(np.searchsorted(events, asked), tree.height - 1)
    return np.where(events[at] == asked, at, ROOT).astype(np.int32)


def _by_external_id(trace: Trace, work: pl.DataFrame, tree: pl.DataFrame, caller: Rows) -> None:
    """Fills in the callers that only an external id tells, unless the ids prove to mean nothing.

    Some versions of PyTorch number operators anew when they write the file, so that an id leads to
    an unrelated operator. They are trusted where most of the work with a known caller agrees.
    """
    told = pl.col("external_id") > 0  # 0 is no operator's
    rest = work.select("external_id", "start").with_row_index("work")
    rest = rest.filter(told, pl.Series(caller == ROOT))
    if rest.is_empty():
        return
    ids = trace.events["external_id"].gather(tree["event"])
    known = np.flatnonzero(caller != ROOT)
    agree = (work["external_id"].gather(known) == ids.gather(caller[known])).mean()
    if isinstance(agree, float) and agree < 0.5:
        return
    asked = pl.col("external_id").is_in(rest["external_id"].unique().implode())
    rows = tree.select("kind", "start", external_id=ids).with_row_index("row")
    rows = rows.filter(asked, pl.col("kind").is_in((*MARKED, OTHER)))
    pairs = linking.link(rows, rest, ["external_id"])
    left, right = rows[pairs["left"]], rest[pairs["right"]]
    possible = left["start"] <= right["start"]
    caller[right["work"].filter(possible)] = left["row"].filter(possible)


def allocations(trace: Trace, tree: pl.DataFrame) -> Memory:
    """What each call itself allocated and freed, by the time and thread of the instants."""
    told = trace.memory["device_type"].is_not_null()
    event, device_type = (trace.memory[name].filter(told) for name in ("event", "device_type"))
    if event.is_empty():
        return Memory(None, None, 0)
    ids = trace.events.select("pid", "tid")
    first = tree.group_by("thread").agg(pl.col("event").first())
    threads = first.select("thread").hstack(ids[first["event"]])
    instants = trace.events.select("pid", "tid", "ts", "bytes")[event].join(
        threads, on=["pid", "tid"], how="left", nulls_equal=True, maintain_order="left"
    )
    inner = innermost(instants, tree, ["thread"])
    size = instants["bytes"].fill_null(0)
    of_host = device_type.is_in(_HOST_TYPES)
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
