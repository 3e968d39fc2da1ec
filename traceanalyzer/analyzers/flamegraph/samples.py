"""Weights of sampled stacks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from traceanalyzer.analyzers.flamegraph.part import Calls
from traceanalyzer.errors import InputError, OptionError
from traceanalyzer.frames.stack_weights import ROOT
from traceanalyzer.trace import Trace

#: What ``--weight`` asks for, in the unit that samples have it.
UNITS = {"time": "ns", "bytes": "bytes"}

_ADVICE = {
    "time": "the rate is not recorded; without --weight samples are counted",
    "bytes": "leave --weight out",
}


def calls(trace: Trace, rows: pl.Series, weight: str | None) -> Calls:
    """The stacks of sample events, each with its weight.

    Args:
        trace: the trace.
        rows: its rows of ``events`` to count.
        weight: ``time``, ``bytes`` or ``count``; None takes the weights as they are recorded.

    Raises:
        OptionError: the samples do not have such a weight.
        InputError: the table ``stacks`` is no tree.
    """
    units = {meta.weight_unit for meta in trace.sources}
    unit = trace.meta.weight_unit or ""
    if len(units) > 1:
        words = ", ".join(sorted(other or "of no known unit" for other in units))
        raise InputError(trace.meta.path, f"weights are {words}, which cannot be added")
    if weight in UNITS and unit != UNITS[weight]:
        has = unit or "of no known unit"
        raise OptionError(f"--weight {weight}: what the samples count is {has}; {_ADVICE[weight]}")
    events = trace.events.select(
        "stack", "weight", before=pl.col("category").cast(pl.String).eq_missing("before")
    )
    chosen = events[rows]
    counts: Counter[str] = Counter()
    if weight == "count" and unit != "samples":
        chosen, unit = chosen.with_columns(weight=1.0), "samples"
    counted = chosen.select(
        ((pl.col("weight") > 0) & pl.col("weight").is_finite()).fill_null(False)
    )
    keep = counted.to_series()
    counts["unweighted"] = chosen.height - int(keep.sum())
    chosen, rows = chosen.filter(keep), rows.filter(keep)
    parent = trace.stacks["parent"].cast(pl.Int64).fill_null(ROOT).to_numpy()
    row = chosen["stack"].cast(pl.Int64).fill_null(ROOT).to_numpy()
    if (parent >= np.arange(parent.size)).any() or row.max(initial=ROOT) >= parent.size:
        raise InputError(trace.meta.path, "the table of stacks is no tree", hint="convert it again")
    return Calls(
        frames=trace.stacks.select("name", "file", "line"),
        parent=parent,
        row=row,
        weight=chosen["weight"].to_numpy(),
        before=chosen["before"].to_numpy(),
        events=rows,
        unit=unit,
        counts=counts,
    )
