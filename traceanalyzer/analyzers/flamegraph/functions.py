"""How much each function weighs, alone and with all that it calls."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceanalyzer.analyzers.flamegraph.joining import Joined
from traceanalyzer.frames.stack_weights import ROOT, added, by_frame, innermost
from traceanalyzer.limits import MOST_WEIGHT
from traceanalyzer.result import Table

_HEADINGS = {"name": "function", "place": "file:lines", "own": "own"}


def functions(whole: Joined, known: pl.DataFrame) -> pl.DataFrame:
    """One row a function that has a weight, the heaviest by itself first, ties by name and place.

    ``self_*`` is the weight of the stacks that end in it, ``total_*`` of those that it is in
    (recursion counts once), ``inner_*`` of those in which it is the innermost own function (null
    for others). ``*_frac`` are parts of everything; ``base_*`` those of the base, and ``change_*``
    how much larger they are here.

    Args:
        whole: weights on the call tree.
        known: ``name``, ``place``, ``group`` and ``own`` of its functions.
    """
    own = added(whole.node, whole.weights, whole.forest.parent.size)
    alone, within = by_frame(whole.forest, own, known.height)
    nearest = innermost(whole.forest, known["own"].to_numpy())
    inside = nearest != ROOT
    inner = added(nearest[inside], own[:, inside], known.height)
    all_of_it = own[0].sum()
    frame = known.rename({"group": "package"})
    named = {"self": alone, "total": within, "inner": inner}
    columns: list[pl.Expr | pl.Series] = []
    for name, weights in named.items():
        columns.append(_weight(column(name, whole.unit), weights[0]))
        columns.append(pl.Series(f"{name}_frac", weights[0] / all_of_it))
    if whole.base is not None:
        for name, weights in named.items():
            now, before = weights / all_of_it  # the base is scaled to the same sum
            columns.append(pl.Series(f"base_{name}_frac", before))
            columns.append(pl.Series(f"change_{name}_frac", now - before))
    theirs = [
        name for name in (c.name for c in columns if isinstance(c, pl.Series)) if "inner" in name
    ]
    weighs = within.any(axis=0)
    return (
        frame.with_columns(columns)
        .with_columns(pl.when("own").then(pl.col(theirs)))
        .filter(pl.Series(weighs))
        .sort(column("self", whole.unit), "name", "place", descending=[True, False, False])
    )


def column(name: str, unit: str) -> str:
    """``self_ns``, ``total_samples``: a column of weights; without a unit ``self_weight``."""
    return f"{name}_{unit or 'weight'}"


def tables(frame: pl.DataFrame, unit: str, whose: str) -> tuple[Table, ...]:
    """The heaviest functions: by themselves, as innermost own code, with all they call.

    Args:
        frame: what :func:`functions` gives.
        unit: of the weights.
        whose: whose code is the own: ``your own code`` or ``the code of torch``.
    """
    made = [
        _table("by_self", "Heaviest functions by themselves", frame, "self", unit),
        _table(
            "own_code",
            f"{whose[0].upper()}{whose[1:]}: where stacks leave it, or end in it",
            _ranked(frame.filter(pl.col("own")), "inner", unit),
            "inner",
            unit,
        ),
        _table(
            "by_total",
            "Functions with all that they call",
            _ranked(frame, "total", unit),
            "total",
            unit,
        ),
    ]
    if "change_self_frac" in frame.columns:
        change = pl.col("change_self_frac")
        changed = frame.filter(change != 0).sort(
            change.abs(), "name", "place", descending=[True, False, False]
        )
        shown = {
            **_HEADINGS,
            "base_self_frac": "base",
            "self_frac": "here",
            "change_self_frac": "change",
        }
        made.insert(0, Table("changes", "What changed most, by itself", changed, shown))
    return tuple(made)


def _table(name: str, title: str, frame: pl.DataFrame, by: str, unit: str) -> Table:
    others = {"self": "total", "inner": "self", "total": "self"}
    heads = {"self": "self", "total": "total", "inner": "as innermost"}
    shown = {**_HEADINGS, column(by, unit): heads[by], f"{by}_frac": "share"}
    other = others[by]
    shown[f"{other}_frac"] = heads[other]
    if by == "inner":
        del shown["own"]
    return Table(name, title, frame, shown, detail=by == "total")


def _ranked(frame: pl.DataFrame, by: str, unit: str) -> pl.DataFrame:
    weight = column(by, unit)
    heavy = frame.filter(pl.col(weight) > 0)
    return heavy.sort(weight, "name", "place", descending=[True, False, False])


def _weight(name: str, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> pl.Series:
    """Whole weights as whole numbers."""
    series = pl.Series(name, values)
    whole = (values == np.floor(values)) & (np.abs(values) <= MOST_WEIGHT)
    return series.cast(pl.Int64) if whole.all() else series
