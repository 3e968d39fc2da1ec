"""``traceanalyzer diff``."""

import math
from typing import Any

import click

from traceanalyzer.analyzers.diff import Options
from traceanalyzer.cli import output
from traceanalyzer.cli.answering import FAILED, analyze, inputs_of
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.options import ReadingOptions, Writing, plotting, reading, writing
from traceanalyzer.errors import OptionError
from traceanalyzer.render.junit import Case, junit


class _Percent(click.FloatRange):
    """A percentage, with or without the sign: ``5`` or ``5%``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number in percent."""
        number: Any = value.removesuffix("%").rstrip() if isinstance(value, str) else value
        percent = super().convert(number, param, ctx)
        if not math.isfinite(percent):
            self.fail(f"{value!r} is not a percentage", param, ctx)
        return percent


_PERCENT = _Percent(min=0)


@click.command("diff", help=Options.__doc__)
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.argument("others", metavar="[MORE...]", nargs=-1)
@click.option(
    "--bisect",
    is_flag=True,
    help="Several runs in order, such as versions: the first run in which each role changed.",
)
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
@click.option(
    "--more-before",
    metavar="PATH",
    multiple=True,
    help="A further run of BEFORE, so that the noise between runs is known. Repeatable.",
)
@click.option(
    "--more-after", metavar="PATH", multiple=True, help="A further run of AFTER. Repeatable."
)
@click.option(
    "--expected",
    metavar="FINDING",
    help="Also compare the gain that the diagnosis of BEFORE predicts with the measured one: the "
    "finding that was fixed, such as data-loading, or a saved diagnosis (diagnose -o found.json).",
)
@click.option(
    "--junit",
    "xml",
    metavar="FILE",
    help="Also write JUnit XML: a test that fails if --fail-on-regression applies.",
)
@analyzer_options(Options)
@plotting("steps of both runs and the largest changes")
@reading
@writing
def diff(
    before: str,
    after: str,
    others: tuple[str, ...],
    bisect: bool,
    fail_on_regression: float | None,
    min_change: float | None,
    more_before: tuple[str, ...],
    more_after: tuple[str, ...],
    expected: str | None,
    xml: str | None,
    reading: ReadingOptions,
    writing: Writing,
    **options: Any,
) -> None:
    """Compare two runs; exit with a failure status on a regression if requested."""
    import traceanalyzer as ta
    from traceanalyzer.run import baselines

    writing.check(junit=xml)
    least = min(2.0, fail_on_regression or 2.0) if min_change is None else min_change
    sides = [
        [
            inputs_of([path], quiet=reading.quiet)
            for one in (first, *more)
            for path in baselines.run_paths(one)
        ]
        for first, more in ((before, more_before), (after, more_after))
    ]
    runs = [*sides[0], *sides[1], *(inputs_of([path], quiet=reading.quiet) for path in others)]
    if others and not bisect:
        raise OptionError(
            "more than two runs: --bisect compares runs in order, --more-after adds one"
        )
    if bisect and (fail_on_regression is not None or xml or expected):
        raise OptionError("--bisect: without --fail-on-regression, --junit and --expected")

    if expected is not None and (len(runs) > 2 or any(options.values())):
        raise OptionError("--expected: only for two runs, without --step-name or --comm-pattern")

    def compare(*_: object, **how: Any) -> Any:
        if expected is not None:
            known: Any = {name: value for name, value in how.items() if name not in options}
            return ta.check_fix(runs[0], runs[1], expected, **known)
        if bisect:
            return ta.diff_series(runs, **how)
        if len(runs) > 2:
            return ta.diff_runs(*sides, **how)
        return ta.diff(*runs, **how)

    result = analyze(compare, *runs, reading=reading, min_change=least / 100, **options)
    writing.show(result)
    status = 0 if fail_on_regression is None else _status(result, fail_on_regression)
    if xml is not None:
        failure = result.verdict if status else ""
        limit = "" if fail_on_regression is None else f" above {fail_on_regression:g} %"
        skipped = "" if limit else "no limit was given (--fail-on-regression PCT)"
        case = Case(f"no regression{limit}: {before} and {after}", failure, skipped)
        output.write(junit("traceanalyzer.diff", [case]), xml)
    click.get_current_context().exit(status)


def _status(result: Any, percent: float) -> int:
    """Return the exit status if a regression above ``percent`` is a failure."""
    if result.measure is None:
        click.echo("traceanalyzer: --fail-on-regression: the runs cannot be compared", err=True)
        return 1
    if result.outcome == "not judged":
        why = "the total of samples depends on duration and threads, so it is not judged"
        if result.measure.name != "samples":
            why = "one step in a run is not enough to tell; record more steps, or several runs"
        click.echo(f"traceanalyzer: --fail-on-regression: {why}", err=True)
        return 1
    change = result.measure.change_frac
    worse = change is None or 100 * change > percent
    return FAILED if result.outcome == "regression" and worse else 0
