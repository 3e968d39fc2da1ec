"""What is usual for a step of a run: means over its typical steps, and what they vary by.

Typical are the steps whose time (mean over ranks and devices) lies in the middle half of all that
are no warm-up. Means over one set of steps add up, and no single odd step moves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.diff.noise import Floats, standard_errors
from traceanalyzer.analyzers.diff.run import Run
from traceanalyzer.frames.numbering import numbered

_PLACE = ("rank", "source", "mark")


@dataclass(frozen=True)
class Basis:
    """What sums of a run are divided by.

    Attributes:
        places: rank, source and mark of each step that counts, and ``at``, which step it is; None
            where the recording counts as a whole.
        devices: devices (or training threads) in each step.
        ranks: ranks in each step.
        typical: which steps are typical.
    """

    places: pl.DataFrame | None
    devices: Floats
    ranks: Floats
    typical: npt.NDArray[np.bool_]


def by_step(run: Run) -> Basis:
    """The steps of a run that has some."""
    rows = run.counted.sort("number")
    at = rows["number"].rank("dense").cast(pl.Int64) - 1
    held = rows.select(*_PLACE, "duration_ns").with_columns(at=at)
    places = held.select(*_PLACE, "at").unique()
    each = held.group_by("at").agg(pl.col("duration_ns").mean(), n=pl.len()).sort("at")
    return Basis(
        places=places,
        devices=each["n"].to_numpy().astype(np.float64),
        ranks=places.group_by("at").len().sort("at")["len"].to_numpy().astype(np.float64),
        typical=_middle_half(each["duration_ns"].to_numpy()),
    )


def as_whole(run: Run, work: float) -> Basis:
    """A recording whose steps are not known, or not comparable; it holds so much work."""
    devices = run.kernels.devices.height if run.kernels else 0
    units = run.idle.units.height if run.idle else 0
    return Basis(
        places=None,
        devices=np.array([work * (devices or units or 1)]),
        ranks=np.array([work * run.ranks]),
        typical=np.array([True]),
    )


def _middle_half(times: Floats) -> npt.NDArray[np.bool_]:
    ordered, off = np.sort(times), times.size // 4
    found: npt.NDArray[np.bool_] = (times >= ordered[off]) & (times <= ordered[-1 - off])
    return found


def usual(
    rows: pl.DataFrame, keys: Sequence[str], column: str, basis: Basis, each: Floats
) -> pl.DataFrame:
    """What a typical step has of each row.

    Args:
        rows: ``keys``, ``column`` (whole numbers) and where each belongs: rank, source, mark.
        keys: what tells rows apart.
        column: what is summed up.
        basis: of the run.
        each: how many devices or ranks there are in each step: sums are divided by it.

    Returns:
        ``keys``, ``value`` (a mean over typical steps), ``error`` (its standard error, null for
        fewer than two steps). Rows that no step has are left out.
    """
    placed = (
        rows.with_columns(at=pl.lit(0, pl.Int64))
        if basis.places is None
        else rows.join(basis.places, on=_PLACE, nulls_equal=True)
    ).drop_nulls(column)
    sums = placed.group_by(*keys, "at").agg(pl.col(column).sum()).sort(*keys, "at")
    told = sums.select(keys)
    first, number = numbered(told.get_columns())
    values = np.zeros((len(first), each.size))
    values[number, sums["at"].to_numpy()] = sums[column].to_numpy()
    values /= each
    error = pl.Series("error", standard_errors(values)).fill_nan(None)
    value = pl.Series("value", values[:, basis.typical].mean(axis=1))
    return told[first].hstack([value, error])
