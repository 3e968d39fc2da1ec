"""``traceanalyzer gate``."""

from typing import Any

import click

from traceanalyzer.cli import output
from traceanalyzer.cli.answering import FAILED, analyze, inputs_of
from traceanalyzer.cli.options import ReadingOptions, Writing, reading, writing
from traceanalyzer.errors import OptionError
from traceanalyzer.render.junit import Case, junit
from traceanalyzer.render.text import prose


@click.command("gate")
@click.argument("budgets", metavar="BUDGETS")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--junit", "xml", metavar="FILE", help="Also write JUnit XML, a test per budget.")
@reading
@writing
def gate(
    budgets: str, paths: tuple[str, ...], xml: str | None, reading: ReadingOptions, writing: Writing
) -> None:
    """Check a run against budgets, for CI: exit with status 3 if one is violated.

    BUDGETS is a TOML file, for example budgets = ["step_ms <= 410", "peak_bytes <= 70GiB"]. PATH is
    a file or a folder (searched recursively) of one run. The result is written in any case, with
    one line on standard error for each violated budget.
    """
    import traceanalyzer as ta
    from traceanalyzer.tools.budgets import read_budgets

    writing.check()
    output.check(xml, force=writing.force)
    if xml is not None and xml == writing.output:
        raise OptionError(f"{xml}: --junit and --output need different files")
    read_budgets(budgets)  # before anything is read
    inputs = inputs_of(paths, quiet=reading.quiet)

    result = analyze(ta.check_budgets, inputs, reading=reading, budgets=budgets)
    writing.show(result)
    if xml is not None:
        output.write(junit("traceanalyzer.tools.budgets", _cases(result)), xml)
    for line in result.violations:
        click.echo(prose(f"budget violated: {line}"), err=True)
    if result.violations:
        click.get_current_context().exit(FAILED)


def _cases(result: Any) -> list[Case]:
    cases = []
    for row in result.budgets.to_dicts():
        text = f"{row['budget']}: {row['state']}, {row['missing'] or row['measured']}"
        failure, skipped = row["is_violation"], row["state"] == "skipped"
        cases.append(Case(row["budget"], text if failure else "", text if skipped else ""))
    return cases
