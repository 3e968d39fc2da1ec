"""Weights of slices: how they nest in their thread is their stack."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from traceanalyzer.analyzers.flamegraph.part import Calls
from traceanalyzer.analyzers.names import python_frame
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, nesting
from traceanalyzer.frames.stack_weights import ROOT
from traceanalyzer.trace import Trace

_LANES = ("rank", "pid", "tid", "device", "stream")

#: Each step has a name of its own; stacks of all steps belong together.
_STEP = r"^(ProfilerStep)#\d+$"


def calls(
    trace: Trace, rows: pl.Series, weight: str | None, window: tuple[int | None, int | None]
) -> Calls:
    """The slices, each with its own time (or bytes, or 1) at its place in the nesting.

    Args:
        trace: the trace.
        rows: its rows of ``events`` that are the slices wanted, each of some duration.
        weight: ``time`` (also None), ``bytes`` or ``count``.
        window: start and end on the trace's clock; slices are cut to it.

    Raises:
        MissingData: bytes are asked for, and no slice has any.
    """
    wanted = ["name", "bytes", *_LANES]
    slices = trace.events.select(*wanted, start="ts", end=pl.col("ts") + pl.col("dur"))[rows]
    counts: Counter[str] = Counter()
    slices = slices.with_columns(_event=rows)
    slices = intervals.clip(slices, *window)
    slices = nesting.self_time(nesting.nest(slices, _LANES))
    counts["overlapping"] = int((slices["lane"] > 0).sum())
    if weight == "bytes":
        if slices["bytes"].drop_nulls().is_empty():
            raise MissingData(f"{trace.meta.path}: none of these events has a size in bytes")
        own = slices["bytes"].fill_null(0).clip(lower_bound=0)
    else:
        own = pl.Series(np.ones(slices.height)) if weight == "count" else slices["self_time"]
    at = np.flatnonzero(own.to_numpy() > 0)
    return Calls(
        frames=_frames(slices["name"]),
        parent=slices["parent"].cast(pl.Int64).fill_null(ROOT).to_numpy(),
        row=at,
        weight=own.to_numpy()[at].astype(np.float64),
        before=np.zeros(at.size, np.bool_),
        events=slices["_event"].gather(at),
        unit={"bytes": "bytes", "count": "events"}.get(weight or "time", "ns"),
        counts=counts,
    )


def _frames(names: pl.Series) -> pl.DataFrame:
    """Name, file and line of slices, by their names."""
    distinct = names.unique().to_frame("slice")
    text = pl.col("slice").cast(pl.String)
    told = python_frame(text).struct
    known = distinct.with_columns(
        name=pl.coalesce(told.field("name"), text.str.replace(_STEP, "$1")),
        file=told.field("file"),
        line=told.field("line"),
    )
    frames = names.to_frame("slice").join(
        known, on="slice", how="left", nulls_equal=True, maintain_order="left"
    )
    return frames.select("name", "file", "line")
