"""``traceanalyzer kernels``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting

BY = ("device", "stream", "rank", "operator", "annotation")


@click.command("kernels", short_help="Which kernels take the device's time, by family and name.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--by", type=click.Choice(BY), help="Tell kernels apart by this too.")
@click.option(
    "--pattern",
    "patterns",
    metavar="REGEX",
    multiple=True,
    help="Kernels whose names match are communication too. Repeatable.",
)
@plotting("device work by family and the heaviest kernels")
@reading
@writing
def kernels(
    paths: tuple[str, ...],
    by: str | None,
    patterns: tuple[str, ...],
    plot: Plot,
    reading: Reading,
    writing: Writing,
) -> None:
    """Which kernels, copies and sets take the time of the devices, by family and by name.

    PATH is a trace, several of them, or a folder.
    """
    from traceanalyzer import api

    answer(api.kernels, paths, reading, writing, plot, by=by, patterns=patterns)
