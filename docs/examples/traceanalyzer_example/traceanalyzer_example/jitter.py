"""Which kernels vary most in duration?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, AnalyzerOptions, Needs, Reading, option
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run import run
from traceanalyzer.trace import Inputs, Trace

COLUMNS = ("kernel", "n", "median_ns", "max_ns", "ratio")


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Compare the longest run of each kernel with its median."""

    min_runs: int = option(5, help="Ignore kernels that run less often.", metavar="N", minimum=1)


def jitter(inputs: Inputs, *, min_runs: int = 5, **reading: Unpack[Reading]) -> Jitter:
    """Find the kernels that vary most in duration.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        min_runs: ignore kernels that run less often.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        MissingData: no kernels were recorded.
    """
    return run(JITTER, inputs, Options(min_runs), **reading)


def measure(trace: Trace, _options: Options) -> pl.DataFrame:
    """Return kernel and dur of each run of one rank; raise MissingData if there is none."""
    return trace.require("kernel").select(kernel=pl.col("name").cast(pl.String), dur="dur")


def combine(parts: Sequence[pl.DataFrame], options: Options) -> Jitter:
    """Combine all ranks; ties are sorted by name, so that the output is stable."""
    median, longest = pl.col("dur").median(), pl.col("dur").max()
    sums = pl.concat(parts).group_by("kernel").agg(n=pl.len(), median_ns=median, max_ns=longest)
    judged = sums.filter(pl.col("n") >= options.min_runs, pl.col("median_ns") > 0)
    ranked = judged.with_columns(ratio=pl.col("max_ns") / pl.col("median_ns"))
    return Jitter(ranked.sort("ratio", "kernel", descending=[True, False]))


@dataclass(frozen=True, eq=False, repr=False)
class Jitter(Result):
    """Kernels by how much their durations vary.

    Attributes:
        kernels: kernel, n, median_ns, max_ns, ratio (max / median); largest ratio first.
    """

    kernels: pl.DataFrame

    def view(self) -> View:
        """Return one row per kernel; units follow from the column names."""
        labels = dict(zip(COLUMNS, ("kernel", "n", "median", "max", "max / median"), strict=True))
        verdict = "No kernel runs often enough."
        for worst in self.kernels.head(1).iter_rows(named=True):
            verdict = f"{worst['kernel']} takes up to {worst['ratio']:.3g} times its median."
        bars = ("ratio", "Longest run over median", "bar", self.kernels.head(10))
        chart = Chart(*bars, x="kernel", y="ratio", x_label="kernel", y_label="max / median")
        table = Table("kernels", "Kernels", self.kernels, labels)
        return View("Which kernels vary?", verdict, tables=(table,), charts=lambda: (chart,))


JITTER = Analyzer("jitter", Options, lambda _: Needs(frozenset({"kernel"})), measure, combine)
