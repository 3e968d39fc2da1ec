"""Sampled stacks of a chrome trace: top-level ``samples`` and ``stackFrames``, and ``sf``."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.chrome_trace.columns import Collected
from traceanalyzer.parsers.chrome_trace.decode import integer, label, nanosecond, text_of
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.trace import overlaps

#: Integers up to this are exact as Float64.
_MAX_WEIGHT = 1 << 53


@dataclass
class _Frames:
    """``stackFrames`` as rows of ``stacks``."""

    given: dict[str, Any]
    rows: list[tuple[int, int | None, str, str | None, None]] = field(default_factory=list)
    row_of: dict[str, int | None] = field(default_factory=dict)

    def row(self, frame: Any) -> int | None:
        """Return the row of a frame, adding its callers before it; None for an unknown frame."""
        chain: dict[str, None] = {}
        key = str(frame)
        while key not in self.row_of and isinstance(self.given.get(key), dict):
            if key in chain:
                break  # a frame that is its own caller
            chain[key] = None
            key = str(self.given[key].get("parent"))
        parent = self.row_of.get(key)
        for frame_id in reversed(chain):
            entry = self.given[frame_id]
            row = len(self.rows)
            name, where = text_of(entry.get("name")), text_of(entry.get("category"))
            self.rows.append((row, parent, name or "", where, None))
            parent = self.row_of[frame_id] = row
        return self.row_of.get(str(frame))


def add_samples(
    frames: dict[str, pl.DataFrame],
    metadata: dict[str, Any],
    collected: Collected,
    selection: Selection,
    rank: int | None,
    row_of: npt.NDArray[np.uint32],
) -> dict[str, pl.DataFrame]:
    """Return the tables with ``stacks``, the ``stack`` of slices, and samples after the events.

    ``row_of`` is the row in ``events`` of each slice, in the order of collection.
    """
    given = metadata.get("stackFrames")
    samples = metadata.get("samples") if selection.wants("sample", None) else None
    if not samples and not (given and collected.stack_frames):
        return frames
    stacks = _Frames(given if isinstance(given, dict) else {})
    for frame in stacks.given:  # all of them, so that row numbers do not depend on the selection
        stacks.row(frame)
    events = frames["events"]
    if collected.stack_frames:
        leaf: list[int | None] = [None] * events.height
        for row, frame in collected.stack_frames.items():
            leaf[int(row_of[row])] = stacks.row(frame)
        events = events.with_columns(stack=pl.Series(leaf, dtype=pl.UInt32))
    sampled = _samples(samples, selection, stacks, collected, rank)
    table = pl.DataFrame(stacks.rows, schema=schema.types("stacks", plain=True), orient="row")
    table = table.cast({"name": schema.NAME, "file": schema.NAME})
    lanes = frames["lanes"]
    if selection.wants("lane", None) and collected.labels:
        lanes = pl.concat([lanes, _textual(sampled, lanes, collected, rank)])
        lanes = lanes.sort("pid", "tid", maintain_order=True)
    if sampled.height:
        events = pl.concat([events, sampled], how="diagonal")
    return {**frames, "events": events, "stacks": table, "lanes": lanes}


def _samples(
    samples: Any, selection: Selection, stacks: _Frames, collected: Collected, rank: int | None
) -> pl.DataFrame:
    rows = []
    for sample in samples if isinstance(samples, list) else ():
        ts = nanosecond(str(sample.get("ts")).encode()) if isinstance(sample, dict) else None
        if ts is None:
            collected.issues.note("bad-sample", -1)
            continue
        if selection.windows and not overlaps(ts, ts, selection.windows):
            continue
        pid, tid = _lane(sample, collected)
        rows.append(
            {
                "ts": ts,
                "kind": "sample",
                "name": text_of(sample.get("name")),
                "rank": rank,
                "pid": pid,
                "tid": tid,
                "stack": stacks.row(sample.get("sf")),
                "weight": _weight(sample),
            }
        )
    return pl.DataFrame(rows, schema=schema.types("events"), orient="row")


def _lane(sample: dict[str, Any], collected: Collected) -> tuple[int | None, int | None]:
    """Return process and thread; the process of a thread without one is 0, as for slices."""
    ids = (sample.get("pid"), sample.get("tid"))
    pid, tid = (collected.lane_id(integer(raw), label(raw, integer(raw))) for raw in ids)
    return 0 if pid is None and tid is not None else pid, tid


def _textual(
    sampled: pl.DataFrame, lanes: pl.DataFrame, collected: Collected, rank: int | None
) -> pl.DataFrame:
    """Return ``lanes`` of the textual ids that occur in samples only."""
    text_of = {number: text for text, number in collected.labels.items()}
    known = set(lanes.select("pid", "tid").rows())
    used = sampled.select("pid", "tid").unique(maintain_order=True).rows()
    keys = [(pid, None) for pid, _ in used if pid in text_of]
    keys += [(pid, tid) for pid, tid in used if tid in text_of]
    rows = [
        (rank, pid, tid, text_of[pid if tid is None else tid], None, None, True)
        for pid, tid in dict.fromkeys(keys)
        if (pid, tid) not in known
    ]
    return pl.DataFrame(rows, schema=lanes.schema, orient="row")


def weight_unit(metadata: dict[str, Any]) -> str | None:
    """Return ``samples`` if the file has any with a weight, selected or not; else None."""
    samples = metadata.get("samples")
    given = samples if isinstance(samples, list) else ()
    counted = (_weight(s) is not None for s in given if isinstance(s, dict))
    return "samples" if any(counted) else None


def _weight(sample: dict[str, Any]) -> float | None:
    """Return the weight of a sample; 1 by default, None if it is not a number."""
    value = sample.get("weight", 1)
    try:
        weight = math.nan if isinstance(value, bool) else float(value)  # decoded as text if 1.5
    except (TypeError, ValueError, OverflowError):
        return None
    return weight if abs(weight) <= _MAX_WEIGHT else None
