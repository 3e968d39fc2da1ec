"""``traceanalyzer diff``."""

from typing import Any

import click

from traceanalyzer.analyzers.diff.options import Options
from traceanalyzer.cli.answering import FAILED, analyze, inputs_of
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.options import Reading, Writing, plotting, reading, writing

_PERCENT = click.FloatRange(min=0)


@click.command("diff", help=Options.__doc__)
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option(
    "--fail-on-regression",
    type=_PERCENT,
    metavar="PCT",
    help=f"Exit with status {FAILED} if AFTER is significantly slower by more than PCT percent, "
    "with 1 if the runs cannot be compared. The result is written in any case.",
)
@click.option(
    "--min-change",
    type=_PERCENT,
    metavar="PCT",
    help="Ignore changes below PCT percent. Default: 2, or the value of --fail-on-regression if "
    "smaller.",
)
@analyzer_options(Options)
@plotting("steps of both runs and the largest changes")
@reading
@writing
def diff(
    before: str,
    after: str,
    fail_on_regression: float | None,
    min_change: float | None,
    reading: Reading,
    writing: Writing,
    **options: Any,
) -> None:
    """Compare two runs; exit with a failure status on a regression if requested."""
    import traceanalyzer as ta

    writing.check()
    least = min(2.0, fail_on_regression or 2.0) if min_change is None else min_change
    runs = [inputs_of([path], quiet=reading.quiet) for path in (before, after)]
    result = analyze(ta.diff, *runs, reading=reading, min_change=least / 100, **options)
    writing.show(result)
    if fail_on_regression is not None:
        click.get_current_context().exit(_status(result, fail_on_regression))


def _status(result: Any, percent: float) -> int:
    """Return the exit status if a regression above ``percent`` is a failure."""
    if result.measure is None:
        click.echo("traceanalyzer: --fail-on-regression: the runs cannot be compared", err=True)
        return 1
    change = result.measure.change_frac
    worse = change is None or 100 * change > percent
    return FAILED if result.outcome == "regression" and worse else 0
