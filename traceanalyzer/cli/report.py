"""``traceanalyzer report``."""

import click

from traceanalyzer.cli import output
from traceanalyzer.cli.answering import ask, inputs_of
from traceanalyzer.cli.options import Reading, limit, reading, rows
from traceanalyzer.errors import OptionError
from traceanalyzer.render import TOP, Form, form_of, render


@click.command("report")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="Write to FILE; a name that ends in .json gets the same as data.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@click.option(
    "--top",
    metavar="N|all",
    callback=rows,
    help=f"Rows of each table. Default: {TOP['report']}, as data all.",
)
@click.option(
    "--threshold",
    "thresholds",
    metavar="RULE=N",
    multiple=True,
    help="Another threshold of findings, as for diagnose. Repeatable.",
)
@reading
def report(
    paths: tuple[str, ...],
    target: str,
    force: bool,
    top: int | str | None,
    thresholds: tuple[str, ...],
    reading: Reading,
) -> None:
    """What is wrong, and everything that can be told of a run, as one page for a browser.

    PATH is whatever a job left: traces of one rank or of all, nsys exports, py-spy files, memory
    snapshots, or a folder of them. Each file is read once. The page fetches nothing and can be
    copied anywhere.
    """
    import traceanalyzer as ta

    form: Form = form_of(target) or "html"
    if form not in ("html", "json"):
        raise OptionError(f"{target}: a report's name ends in .html or .json")
    output.check(target, force=force)
    inputs = inputs_of(paths, quiet=reading.quiet)
    result = ask(ta.report, inputs, reading=reading, thresholds=thresholds, named=paths)
    shown = limit(top, "report" if form == "html" else form)
    output.write(render(result, form, top=shown), target)
    if target != output.STDOUT and not reading.quiet:
        click.echo(f"{target}: {result.verdict}", err=True)
