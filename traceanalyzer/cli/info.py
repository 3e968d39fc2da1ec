"""``traceanalyzer info``."""

from __future__ import annotations

import click

from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.progress import progress


@click.command(short_help="What files hold and what was lost in them.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@reading
@writing
def info(paths: tuple[str, ...], reading: Reading, writing: Writing) -> None:
    """What files hold: format, rank, host, time, events by kind, communication, losses.

    PATH is a file or a folder, searched recursively; foreign files are listed and skipped.
    """
    from traceanalyzer import api

    writing.check()
    inputs, skipped = api.find_inputs(paths)
    with progress(inputs, quiet=reading.quiet) as meter:
        result = api.info(inputs, skipped=skipped, **reading.arguments(), progress=meter)
    writing.show(result)
