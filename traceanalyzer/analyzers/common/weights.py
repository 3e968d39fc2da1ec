"""Which files' weights can be added."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import polars as pl

from traceanalyzer.analyzers.base import Skipped
from traceanalyzer.limits import MOST_WEIGHT
from traceanalyzer.trace import Meta


class Weighted(Protocol):
    """A part whose weights have a unit."""

    @property
    def path(self) -> str:
        """The file."""

    @property
    def unit(self) -> str | None:
        """Of the weights; None or empty where that is not known."""


W = TypeVar("W", bound=Weighted)


def of_one_unit(parts: Sequence[tuple[Meta, W]]) -> tuple[list[W], list[Skipped]]:
    """The parts of one unit, samples if there are any, and the others with the reason."""
    units = [part.unit for _, part in parts]
    unit = "samples" if "samples" in units else units[0]
    alike = [part for _, part in parts if part.unit == unit]
    others = [part for _, part in parts if part.unit != unit]
    return alike, [Skipped(part.path, f"counts {part.unit or 'nothing known'}") for part in others]


def is_whole(weights: pl.Series) -> bool:
    """Whether all weights are whole numbers, and exact as such."""
    return bool(((weights == weights.round()) & (weights.abs() <= MOST_WEIGHT)).all())
