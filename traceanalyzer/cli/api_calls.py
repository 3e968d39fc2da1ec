"""``traceanalyzer api``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting


@click.command("api", short_help="What CUDA calls cost the host, and which hold it up.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@plotting("the calls that take most")
@reading
@writing
def api_calls(paths: tuple[str, ...], plot: Plot, reading: Reading, writing: Writing) -> None:
    """What calls of the CUDA or HIP runtime and driver cost the host, and which hold it up.

    Found are copies and sets that block, calls that wait for the device, and memory allocated
    between the first and the last launch. PATH is a trace, several of them, or a folder.
    """
    from traceanalyzer import api

    answer(api.cuda_api, paths, reading, writing, plot)
