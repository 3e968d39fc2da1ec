"""Flow points to the ``flows`` table: numbered arrows, each point bound to its slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames.linking import enclosing
from traceanalyzer.parsers.chrome_trace.columns import Collected, Ints, text_series
from traceanalyzer.parsers.chrome_trace.decode import NULL

_PHASES = pl.Series(("start", "step", "end"), dtype=schema.FLOW_PHASE)
_PHASE_CODE = np.zeros(256, dtype=np.uint8)
_PHASE_CODE[[ord("s"), ord("t"), ord("f")]] = 0, 1, 2
_NONE = -1

Lanes = npt.NDArray[np.int32]


def flow_table(
    collected: Collected,
    texts: pl.Series,
    rank: int | None,
    *,
    ts: Ints,
    dur: Ints,
    pid: Ints,
    tid: Ints,
) -> pl.DataFrame:
    """The ``flows`` table; ``ts`` to ``tid`` are the sorted events' columns as the file has them.

    A point belongs to the arrow of its (id, category, name). A start, a step and an end with
    ``bp: "e"`` are bound to the innermost slice around them, other ends to the next slice.
    """
    flows = collected.flows
    if not flows.height:
        return schema.empty("flows")
    to_next = np.zeros(flows.height, dtype=bool)
    to_next[collected.at_next] = True
    in_file = np.argsort(flows.whole("order"), kind="stable")
    to_next = to_next[in_file]

    def column(of: str) -> Any:
        return flows.whole(of)[in_file]

    phase = _PHASE_CODE[column("phase")]
    at, category, name = column("ts"), column("category"), column("name")
    point_pid, point_tid = column("pid"), column("tid")
    point_pid = np.where(point_pid == NULL, 0, point_pid)
    point_tid = np.where(point_tid == NULL, point_pid, point_tid)
    event = _bound(at, point_pid, point_tid, to_next, ts, dur, pid, tid)
    order = np.argsort(at, kind="stable")
    event = event[order]
    arrow = _numbered(column("id")[order], category[order], name[order])
    return pl.DataFrame(
        {
            "ts": pl.Series(at[order]),
            "phase": _PHASES.gather(phase[order]),
            "category": text_series(category[order], texts),
            "name": text_series(name[order], texts),
            "flow": pl.Series(arrow),
            "rank": pl.repeat(rank, len(at), dtype=pl.Int32, eager=True),
            "pid": pl.Series(point_pid[order]),
            "tid": pl.Series(point_tid[order]),
            "event": pl.Series(event).cast(pl.UInt32, strict=False),
        }
    )


def _numbered(ids: Ints, category: Any, name: Any) -> npt.NDArray[np.uint32]:
    """Arrows, known by (id, category, name), numbered in the order of their first points."""
    label = category.astype(np.uint64) << np.uint64(32) | name
    labels, label_of = np.unique(label, return_inverse=True)
    _, id_of = np.unique(ids, return_inverse=True)
    key = id_of * len(labels) + label_of if len(labels) > 1 else id_of
    _, first, dense = np.unique(key, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.uint32)
    number[np.argsort(first)] = np.arange(len(first))
    numbered: npt.NDArray[np.uint32] = number[dense]
    return numbered


def _bound(
    at: Ints,
    point_pid: Ints,
    point_tid: Ints,
    to_next: npt.NDArray[np.bool_],
    ts: Ints,
    dur: Ints,
    pid: Ints,
    tid: Ints,
) -> Ints:
    """The event row each point is bound to, -1 for none.

    Nearly always the slice that started last before the point is still running, so one binary
    search decides; only for the other points the slices' nesting is worked out.
    """
    lane, point_lane = _lanes(pid, tid, point_pid, point_tid)
    by_lane = np.flatnonzero(lane >= 0)
    by_lane = by_lane[np.argsort(lane[by_lane], kind="stable")]  # in a lane still by (ts, -dur)
    if not len(by_lane):
        return np.full(len(at), _NONE)
    width = len(ts) + 1
    keys = lane[by_lane].astype(np.int64) * width + by_lane
    begun = np.searchsorted(ts, at, side="right")
    position = np.searchsorted(keys, point_lane.astype(np.int64) * width + begun) - 1
    found = np.where(position >= 0, by_lane[position] if len(by_lane) else 0, _NONE)
    found[(found >= 0) & (lane[found] != point_lane)] = _NONE
    end = np.where(dur == NULL, ts, ts + np.maximum(dur, 0))
    running = (found >= 0) & (end[found] >= at)
    bound = np.where(running & ~to_next, found, _NONE)
    rest = ~running & (found >= 0) & ~to_next
    if rest.any():
        bound[rest] = _innermost(at[rest], point_lane[rest], lane, ts, end)
    if to_next.any():
        begun = np.searchsorted(ts, at[to_next], side="left")
        position = np.searchsorted(keys, point_lane[to_next].astype(np.int64) * width + begun)
        inside = position < len(by_lane)
        following = np.where(inside, by_lane[np.minimum(position, len(by_lane) - 1)], _NONE)
        following[(following >= 0) & (lane[following] != point_lane[to_next])] = _NONE
        bound[to_next] = following
    return bound


def _lanes(pid: Ints, tid: Ints, point_pid: Ints, point_tid: Ints) -> tuple[Lanes, Lanes]:
    """Small numbers for (pid, tid), the same for slices and points."""
    processes, threads = np.unique(point_pid), np.unique(point_tid)
    known = len(threads)

    def numbers(pids: Ints, tids: Ints) -> Lanes:
        process = np.searchsorted(processes, pids).clip(max=len(processes) - 1)
        thread = np.searchsorted(threads, tids).clip(max=known - 1)
        lanes = process * known + thread
        lanes[(processes[process] != pids) | (threads[thread] != tids)] = -1  # no flow there
        small: Lanes = lanes.astype(np.int32)
        return small

    return numbers(pid, tid), numbers(point_pid, point_tid)


def _innermost(at: Ints, point_lane: Lanes, lane: Lanes, ts: Ints, end: Ints) -> Ints:
    used = np.isin(lane, np.unique(point_lane))
    rows = np.flatnonzero(used)
    # the last nanosecond of a slice still counts: Kineto ends an arrow where its launch ended
    slices = pl.DataFrame({"start": ts[rows], "end": end[rows] + 1, "lane": lane[rows]})
    points = pl.DataFrame({"ts": at, "lane": point_lane})
    inner = enclosing(points, slices, by=["lane"])["slice"]
    number = inner.cast(pl.Int64).fill_null(_NONE).to_numpy()
    return np.where(number >= 0, rows[number], _NONE)
