"""What values of one run vary by, and whether two runs differ by more.

The spread is the mean distance from the median, the furthest fifth of the values left out, scaled
to the standard deviation of a normal distribution. How often three standard errors so estimated
call two equal runs different, measured on normal, log-normal and one-sided values with a tenth of
outliers (60,000 pairs each): 3 % of pairs of two steps, 1 % of three or of five, below 0.6 % of
four, six and more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]

#: A change within so many standard errors may be chance.
ERRORS = 3

#: One value of so many is left out.
_LEFT_OUT = 5

#: What the mean distance of so many normal values is multiplied by: 1 / its mean in 40,000 draws;
#: from ten values on between 1.72 and 1.95.
_SCALE = {2: 1.77, 3: 1.77, 4: 1.51, 5: 2.28, 6: 1.93, 7: 1.88, 8: 1.74, 9: 1.71}
_SCALE_OF_MANY = 1.85

#: The standard error of a mean over half of n values is the square root of this over n times their
#: standard deviation; that of the median of all is smaller (1.57).
_OF_HALF = 2.0

#: How a row may have changed.
STATES = ("slower", "faster", "in the noise", "no change", "new", "gone")
STATE = pl.Enum(STATES)
SLOWER, FASTER, UNSURE, SAME, NEW, GONE = STATES


def standard_errors(values: Floats, count: int | None = None) -> Floats:
    """The standard error of what is usual, of each row of values; NaN for fewer than two.

    Args:
        values: a row of values each, one a step.
        count: how many of them are independent, where not all are.
    """
    n = values.shape[1] if count is None else count
    if n < 2:
        return np.full(values.shape[0], np.nan)
    away = np.sort(np.abs(values - np.median(values, axis=1, keepdims=True)), axis=1)
    near = away[:, : away.shape[1] - away.shape[1] // _LEFT_OUT].mean(axis=1)
    # where most are equal, the few others still tell something
    spread = _SCALE.get(n, _SCALE_OF_MANY) * np.where(near > 0, near, away.mean(axis=1))
    found: Floats = np.sqrt(_OF_HALF / n) * spread
    return found


def noise_of(before: Any, after: Any) -> Any:
    """What a difference may be by chance, from two standard errors: numbers, arrays or columns."""
    return ERRORS * (before**2 + after**2) ** 0.5


def is_change(before: float, after: float, noise: float | None, least: float) -> bool:
    """Whether two values differ by more than the noise and the least change."""
    change, floor = abs(after - before), least * min(abs(before), abs(after))
    return change > floor and change > (noise or 0)


def judged(rows: pl.DataFrame, unit: str, least: float) -> pl.DataFrame:
    """The rows with ``change_*``, ``change_frac`` and ``state``.

    Args:
        rows: ``before_*`` and ``after_*`` (null where only the other run has the row), ``noise_*``
            (null where it is not known).
        unit: of the values, the suffix of their columns.
        least: the least change that counts, as a part of the smaller value.
    """
    before, after, noise = (pl.col(f"{name}_{unit}") for name in ("before", "after", "noise"))
    change = after.fill_null(0) - before.fill_null(0)
    both = before.is_not_null() & after.is_not_null()
    floor = least * pl.min_horizontal(before.abs(), after.abs())
    return rows.with_columns(
        change.alias(f"change_{unit}"),
        pl.when(both & (before != 0)).then(change / before).alias("change_frac"),
        state=_state(before, after, change, floor, noise),
    )


def judged_shares(rows: pl.DataFrame, least: float) -> pl.DataFrame:
    """The same for shares of a whole, which change by a difference, to ``more`` or ``less``.

    The largest change comes first.
    """
    before, after, noise = (pl.col(f"{name}_frac") for name in ("before", "after", "noise"))
    change = after.fill_null(0) - before.fill_null(0)
    floor = least * pl.min_horizontal(before, after)
    state = _state(before, after, change, floor, noise).cast(pl.String)
    shares = state.replace({SLOWER: "more", FASTER: "less"})
    found = rows.with_columns(change_frac=change, state=shares)
    return found.sort(pl.col("change_frac").abs(), "name", "place", descending=[True, False, False])


def _state(
    before: pl.Expr, after: pl.Expr, change: pl.Expr, floor: pl.Expr, noise: pl.Expr
) -> pl.Expr:
    sure = (change.abs() > floor) & (change.abs() > noise.fill_null(0))
    state = (
        pl.when(before.is_null())
        .then(pl.lit(NEW))
        .when(after.is_null())
        .then(pl.lit(GONE))
        .when(sure & (change > 0))
        .then(pl.lit(SLOWER))
        .when(sure)
        .then(pl.lit(FASTER))
        .when(change.abs() > floor)
        .then(pl.lit(UNSURE))
        .otherwise(pl.lit(SAME))
    )
    return state.cast(STATE)
