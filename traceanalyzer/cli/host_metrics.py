"""``traceanalyzer host-metrics``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting


@click.command("host-metrics", short_help="Processor, memory, disk, network and other counters.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--counter",
    "counters",
    metavar="PATTERN",
    multiple=True,
    help="Only counters whose NAME/SERIES matches this regular expression. Repeatable.",
)
@plotting("counters over time")
@reading
@writing
def host_metrics(
    paths: tuple[str, ...],
    counters: tuple[str, ...],
    plot: Plot,
    reading: Reading,
    writing: Writing,
) -> None:
    """How did the host fare: processor, memory, disk, network, and what else was counted.

    PATH is a trace, several of them, or a folder.
    """
    from traceanalyzer import api

    answer(api.host_metrics, paths, reading, writing, plot, counters=counters)
