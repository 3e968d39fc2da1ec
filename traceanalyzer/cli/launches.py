"""``traceanalyzer launches``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting


@click.command("launches", short_help="How fast the host feeds the device.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--step-name", metavar="REGEX", help="Host ranges whose names match are steps.")
@plotting("queues over time and launch delays")
@reading
@writing
def launches(
    paths: tuple[str, ...],
    step_name: str | None,
    plot: Plot,
    reading: Reading,
    writing: Writing,
) -> None:
    """How fast does the host feed the device: delays, queues, launch-bound time, synchronisation.

    PATH is a trace, several of them, or a folder.
    """
    from traceanalyzer import api

    answer(api.launches, paths, reading, writing, plot, step_name=step_name)
