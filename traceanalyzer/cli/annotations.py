"""``traceanalyzer annotations``."""

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting

BY = ("rank",)


@click.command("annotations", short_help="Host time and device work of annotated ranges.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--name",
    "names",
    metavar="REGEX",
    multiple=True,
    help="Only annotations whose names match, as if there were no others. Repeatable.",
)
@click.option("--by", type=click.Choice(BY), help="Tell annotations apart by this too.")
@plotting("device work and host time by annotation")
@reading
@writing
def annotations(
    paths: tuple[str, ...],
    names: tuple[str, ...],
    by: str | None,
    plot: Plot,
    reading: Reading,
    writing: Writing,
) -> None:
    """What annotated ranges cost: host time, and the device work that is launched in them.

    Annotations are NVTX ranges and record_function. PATH is a trace, several of them, or a folder.
    """
    from traceanalyzer import api

    answer(api.annotations, paths, reading, writing, plot, names=names, by=by)
