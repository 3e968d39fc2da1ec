"""Pipeline stages: ranks that wait for each other in sends and receives by their schedule."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import polars as pl

from traceanalyzer.units import format_frac

#: Names of sends and receives in PyTorch and NCCL.
POINT_TO_POINT: Final = r"(?i)send|recv|p2p"

#: Ranks are pipeline stages if this share of wait time is in sends and receives.
_MOSTLY = 0.8

#: Stages have equal work if the busiest exceeds the median of the others by at most this.
_EQUAL = 0.15

#: Waits that are this many times the bubble are not those of the schedule alone.
MORE: Final = 1.25

_PAIR = 2


class Pipeline(NamedTuple):
    """Number of stages, and of micro-batches per step (None without steps)."""

    stages: int
    batches: int | None

    @property
    def bubble_frac(self) -> float | None:
        """Share of a step that a 1F1B schedule waits: (stages - 1) / (batches + stages - 1)."""
        return self.batches and (self.stages - 1) / (self.batches + self.stages - 1)

    @property
    def schedule(self) -> str:
        """A sentence on the minimum bubble; empty without steps."""
        if not self.bubble_frac:
            return ""
        return (
            f"With {self.stages} stages and {self.batches} micro-batches per step, a 1F1B schedule "
            f"has a bubble of {format_frac(self.bubble_frac)}: "
            "(stages - 1) / (micro-batches + stages - 1)."
        )


def pipeline(arrivals: pl.DataFrame) -> Pipeline | None:
    """Return the pipeline if ranks wait mostly in sends and receives between two ranks.

    Args:
        arrivals: instance, rank, step, collective, wait_ns of matched collectives.
    """
    paired = pl.len().over("instance") == _PAIR
    rows = arrivals.filter(pl.col("collective").str.contains(POINT_TO_POINT) & paired)
    waited, whole = int(rows["wait_ns"].sum()), int(arrivals["wait_ns"].sum())
    if not waited or waited < _MOSTLY * whole:
        return None
    ends = rows.group_by("instance").agg(a=pl.col("rank").min(), b=pl.col("rank").max())
    stages = _largest(ends.select("a", "b").unique().sort("a", "b").iter_rows())
    each = rows.drop_nulls("step").group_by("rank", "step").len()
    calls = each.group_by("rank").agg(pl.col("len").median())["len"].min()
    # one per direction in the first stage
    known = round(calls / _PAIR) if isinstance(calls, float) and calls >= _PAIR else None
    return Pipeline(stages, known)


def _largest(pairs: Iterable[tuple[int, int]]) -> int:
    """Return the size of the largest set of ranks that the pairs connect."""
    sets: dict[int, set[int]] = {}
    for a, b in pairs:
        joined = sets.get(a, {a}) | sets.get(b, {b})
        sets.update(dict.fromkeys(joined, joined))
    return max(map(len, sets.values()))


def are_equal(busy_ns: pl.Series) -> bool:
    """Whether the ranks work about as long: the busiest at most 15 % more than usual."""
    busy = busy_ns.drop_nulls().sort()
    usual = busy.head(max(busy.len() - 1, 1)).median()
    return isinstance(usual, float) and busy[-1] <= (1 + _EQUAL) * usual
