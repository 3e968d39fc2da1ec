"""``traceanalyzer info``."""

import click

from traceanalyzer.analyzers.info.options import Options
from traceanalyzer.analyzers.registry import ENTRIES
from traceanalyzer.cli.answering import progress
from traceanalyzer.cli.options import Reading, Writing, reading, writing


@click.command(short_help=ENTRIES["info"].summary, help=Options.__doc__)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@reading
@writing
def info(paths: tuple[str, ...], reading: Reading, writing: Writing) -> None:
    """Describe the files; those that cannot be read are part of the answer."""
    import traceanalyzer as ta

    writing.check()
    inputs, skipped = ta.find_inputs(paths)
    with progress(inputs, quiet=reading.quiet) as meter:
        result = ta.info(inputs, skipped=skipped, **reading.arguments(), progress=meter)
    writing.show(result)
