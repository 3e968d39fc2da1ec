"""``traceanalyzer steps``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting


@click.command("steps", short_help="How long steps take, and what makes some slower.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--step-name",
    metavar="REGEX",
    help="Slices of the host whose names match are the steps. Default: ProfilerStep#, else "
    "annotations like '## train', else batches of Composer.",
)
@plotting("the steps' times and their parts")
@reading
@writing
def steps(
    paths: tuple[str, ...],
    step_name: str | None,
    plot: Plot,
    reading: Reading,
    writing: Writing,
) -> None:
    """How long training steps take, how much that varies, and what the slow ones spend it on.

    PATH is a trace, several of them, or a folder: of one rank, of all ranks, or a file for each
    batch, as Composer writes them.
    """
    from traceanalyzer import api

    answer(api.steps, paths, reading, writing, plot, step_name=step_name)
