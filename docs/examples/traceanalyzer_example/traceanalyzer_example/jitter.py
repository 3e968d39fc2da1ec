"""Which kernels take unequally long, although they do the same?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer import Chart, Result, Table, Trace


def jitter(trace: Trace, *, at_least: int = 5) -> Jitter:
    """Compares the longest run of each kernel with its median.

    Args:
        trace: of any format.
        at_least: kernels that run less often are not judged.

    Raises:
        MissingData: no kernels were recorded; the message says how to record them.
    """
    runs = trace.require("kernel").drop_nulls("dur")
    names = runs.group_by(pl.col("name").cast(pl.String).alias("kernel")).agg(
        n=pl.len(),
        median_ns=pl.col("dur").median(),
        max_ns=pl.col("dur").max(),
    )
    judged = names.filter(pl.col("n") >= at_least, pl.col("median_ns") > 0)
    ranked = judged.with_columns(ratio=pl.col("max_ns") / pl.col("median_ns"))
    # of equal ones the first by name, so that the same input gives the same bytes
    kernels = ranked.sort("ratio", "kernel", descending=[True, False])
    return Jitter(kernels, names.height - judged.height)


@dataclass(frozen=True, eq=False, repr=False)
class Jitter(Result):
    """What :func:`jitter` found.

    Attributes:
        kernels: kernel, n, median_ns, max_ns, ratio (max / median), the largest ratio first.
        unjudged: kernels that ran too seldom.
    """

    kernels: pl.DataFrame
    unjudged: int

    @property
    def title(self) -> str:
        """The question."""
        return "Which kernels take unequally long?"

    @property
    def verdict(self) -> str:
        """The kernel that varies most."""
        if self.kernels.is_empty():
            return "No kernel runs often enough to be judged."
        worst = self.kernels.row(0, named=True)
        return f"{worst['kernel']} takes up to {worst['ratio']:.3g} times its median."

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not judged."""
        return (f"{self.unjudged} kernels ran too seldom to be judged.",) if self.unjudged else ()

    @property
    def tables(self) -> tuple[Table, ...]:
        """A row a kernel; units follow from the columns' names."""
        shown = {"kernel": "kernel", "n": "n", "median_ns": "median", "max_ns": "max"}
        return (Table("kernels", "Kernels", self.kernels, {**shown, "ratio": "max / median"}),)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The same as bars."""
        return (
            Chart(
                name="ratio",
                title="Longest run over median",
                mark="bar",
                frame=self.kernels.head(10),
                x="kernel",
                y="ratio",
                x_label="kernel",
                y_label="max / median",
            ),
        )

    @property
    def scalars(self) -> dict[str, Any]:
        """Counts."""
        return {"unjudged": self.unjudged}
