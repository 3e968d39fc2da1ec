"""Commands about whatever a job left: ``info``, ``diagnose`` and ``report``."""

import click

from traceanalyzer.analyzers.info.options import Options
from traceanalyzer.analyzers.registry import ENTRIES
from traceanalyzer.cli import output
from traceanalyzer.cli.answering import FAILED, answer, ask, inputs_of, progress
from traceanalyzer.cli.options import Reading, Writing, limit, reading, rows, writing
from traceanalyzer.errors import OptionError
from traceanalyzer.render import TOP, Form, form_of, render

#: The least grave first.
SEVERITIES = ("info", "warning", "critical")


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


@click.command("diagnose")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--threshold",
    "thresholds",
    metavar="RULE=N",
    multiple=True,
    help="Another threshold, such as late-rank=5% or late-rank:critical=30%. --top all lists rules "
    "and thresholds. Repeatable.",
)
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help=f"Exit with status {FAILED} if there is a finding of this severity or a graver one.",
)
@reading
@writing
def diagnose(
    paths: tuple[str, ...],
    thresholds: tuple[str, ...],
    fail_on: str | None,
    reading: Reading,
    writing: Writing,
) -> None:
    """What is wrong, what does it cost, and what helps?

    PATH is whatever a job left: traces of one rank or of all, nsys exports, py-spy files, memory
    snapshots, or a folder of them. Each file is read once, every analysis that rules need is made,
    and its answer judged by documented rules.
    """
    import traceanalyzer as ta

    result = answer(ta.diagnose, paths, reading, writing, thresholds=thresholds)
    grave = SEVERITIES[SEVERITIES.index(fail_on) :] if fail_on else ()
    if any(one.severity in grave for one in result.diagnosis):
        click.get_current_context().exit(FAILED)


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
    inputs = inputs_of(paths, quiet=reading.quiet)
    output.check(target, force=force)
    result = ask(ta.report, inputs, reading=reading, thresholds=thresholds, named=paths)
    shown = limit(top, "report" if form == "html" else form)
    output.write(render(result, form, top=shown), target)
    if target != output.STDOUT and not reading.quiet:
        click.echo(f"{target}: {result.verdict}", err=True)
