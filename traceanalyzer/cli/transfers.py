"""``traceanalyzer transfers``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting


@click.command("transfers", short_help="What is copied, how fast, and whether kernels hide it.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@plotting("time and bandwidth by size")
@reading
@writing
def transfers(paths: tuple[str, ...], plot: Plot, reading: Reading, writing: Writing) -> None:
    """What is copied and set, by direction, memory and size, how fast, and is it hidden?

    PATH is a trace, several of them, or a folder.
    """
    from traceanalyzer import api

    answer(api.transfers, paths, reading, writing, plot)
