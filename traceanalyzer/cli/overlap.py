"""``traceanalyzer overlap``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting


@click.command("overlap", short_help="How much communication is hidden behind compute.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--by",
    type=click.Choice(("device", "step", "stream")),
    default="device",
    show_default=True,
    help="What the first table has a row for.",
)
@click.option(
    "--pattern",
    "patterns",
    metavar="REGEX",
    multiple=True,
    help="Kernels whose names match are communication too. Repeatable.",
)
@plotting("the parts of the time and how busy devices were")
@reading
@writing
def overlap(
    paths: tuple[str, ...],
    by: str,
    patterns: tuple[str, ...],
    plot: Plot,
    reading: Reading,
    writing: Writing,
) -> None:
    """How much of the communication is hidden behind compute, and what the rest of it costs.

    Each device's time is taken apart: compute, communication without compute beside it, copies with
    neither beside them, and idle. PATH is a trace, several of them, or a folder.
    """
    from traceanalyzer import api

    answer(api.overlap, paths, reading, writing, plot, by=by, patterns=patterns)
