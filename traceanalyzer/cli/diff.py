"""``traceanalyzer diff``."""

from __future__ import annotations

from typing import Any

import click

from traceanalyzer.cli.answering import FAILED
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting
from traceanalyzer.cli.progress import progress
from traceanalyzer.cli.summary import inputs_of, seen_by

_PERCENT = click.FloatRange(min=0)


@click.command("diff", short_help="Did it get slower, and where: two runs compared.")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option(
    "--fail-on-regression",
    type=_PERCENT,
    metavar="PCT",
    help=f"Exit with {FAILED} if AFTER is slower by more than PCT percent and the noise, with 1 "
    "if that cannot be told; the answer is written all the same.",
)
@click.option(
    "--min-change",
    type=_PERCENT,
    metavar="PCT",
    help="Smaller changes are none. Default: 2 percent, or what --fail-on-regression says if that "
    "is less.",
)
@click.option("--step-name", metavar="REGEX", help="Slices whose names match are the steps.")
@click.option(
    "--pattern",
    "patterns",
    metavar="REGEX",
    multiple=True,
    help="Kernels whose names match are communication too. Repeatable.",
)
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
    plot: Plot,
    **options: Any,
) -> None:
    """What changed from one run to another: did it get slower, where, and is that sure?

    BEFORE and AFTER are a trace each, or a folder of all ranks' traces; they may be of different
    formats.
    """
    from traceanalyzer import api

    writing.check()
    plot.check(writing)

    least = min(2.0, fail_on_regression or 2.0) if min_change is None else min_change
    runs = [inputs_of([path], quiet=reading.quiet) for path in (before, after)]
    with progress([path for run in runs for path in run], quiet=reading.quiet) as meter:
        result = api.diff(
            runs[0],
            runs[1],
            **options,
            min_change=least / 100,
            **reading.arguments(),
            progress=meter,
            seen=seen_by(reading),
        )
    writing.show(result)
    plot.show(result)
    if fail_on_regression is not None:
        click.get_current_context().exit(_status(result, fail_on_regression))


def _status(result: Any, percent: float) -> int:
    """What to exit with where a regression of more than so many percent is a failure."""
    if result.measure is None:
        click.echo("traceanalyzer: --fail-on-regression: the runs cannot be compared", err=True)
        return 1
    change = result.measure.change_frac
    worse = change is None or 100 * change > percent
    return FAILED if result.outcome == "regression" and worse else 0
