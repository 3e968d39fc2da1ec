"""``traceanalyzer comm-outliers``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting
from traceanalyzer.errors import OptionError


@click.command("comm-outliers", short_help="Unusually long communication, and who is late.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--baseline", metavar="OTHER", help="Compare with the same groups in OTHER.")
@click.option(
    "--memory",
    metavar="PATH",
    multiple=True,
    help="Memory snapshots, or traces with [memory] instants: was the device nearly full when "
    "collectives were slow? Snapshots among PATH... are found by themselves. Repeatable.",
)
@click.option(
    "--factor",
    metavar="X",
    type=float,
    default=3.0,
    show_default=True,
    help="An outlier lasts longer than this many medians of its group.",
)
@click.option(
    "--pattern",
    "patterns",
    metavar="REGEX",
    multiple=True,
    help="Kernels whose names match are communication too. Repeatable.",
)
@plotting("durations and arrival skew")
@reading
@writing
def comm_outliers(
    paths: tuple[str, ...],
    baseline: str | None,
    memory: tuple[str, ...],
    factor: float,
    patterns: tuple[str, ...],
    plot: Plot,
    reading: Reading,
    writing: Writing,
) -> None:
    """Which communication took unusually long, and which rank the others waited for.

    PATH is a trace of one rank, several of them, or a folder of all ranks' traces.
    """
    from traceanalyzer import api

    if not factor > 1:  # nor is "nan"
        raise OptionError(f"--factor {factor:g}: an outlier lasts longer than 1 median")
    options = {"baseline": baseline, "memory": memory, "factor": factor, "patterns": patterns}
    answer(api.comm_outliers, paths, reading, writing, plot, **options)
