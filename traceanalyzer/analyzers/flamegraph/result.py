"""The answer: the flamegraph, and the functions that weigh most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.flamegraph import words
from traceanalyzer.analyzers.flamegraph.functions import tables
from traceanalyzer.result import Flame, Result, Table


@dataclass(frozen=True, eq=False, repr=False)
class FlameGraph(Result):
    """Where the weight of stacks lies.

    Attributes:
        total: the weight of all stacks.
        unit: of the weights: ``samples``, ``ns``, ``bytes``, or empty.
        base: the weight of the run compared with, as it was recorded, or None.
        whose: whose code is the own, in words.
        functions: one row a function, the heaviest by itself first.
        flame: the boxes to draw.
        least_frac: boxes smaller than this part of everything are summed up.
        hidden: how many boxes are summed up in others.
        hidden_frac: how much of everything these weigh.
        remarks: what was not counted, assumed or missing.
    """

    total: float
    unit: str
    base: float | None
    whose: str
    functions: pl.DataFrame
    flame: Flame
    least_frac: float
    hidden: int
    hidden_frac: float
    remarks: tuple[str, ...]

    @property
    def title(self) -> str:
        """The question."""
        return "Which functions does it go into?"

    @property
    def verdict(self) -> str:
        """The sum, the heaviest function, the heaviest own one, what changed, what is summed up."""
        return words.verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not counted, assumed or missing."""
        return self.remarks

    @property
    def tables(self) -> tuple[Table, ...]:
        """Functions by themselves, as innermost own code, with all they call; changes first."""
        return tables(self.functions, self.unit, self.whose)

    @property
    def flames(self) -> tuple[Flame, ...]:
        """The flamegraph."""
        return (self.flame,)

    @property
    def scalars(self) -> dict[str, Any]:
        """The sum with its unit, and what the picture leaves out."""
        return {
            "total": self.total,
            "unit": self.unit,
            "base_total": self.base,
            "n_functions": self.functions.height,
            "n_boxes": self.flame.frame.height,
            "hidden_boxes": self.hidden,
            "hidden_frac": self.hidden_frac,
        }
