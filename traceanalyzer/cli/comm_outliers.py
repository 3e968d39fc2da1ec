"""``traceanalyzer comm-outliers``."""

from __future__ import annotations

import click

from traceanalyzer.cli import output
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.progress import progress
from traceanalyzer.cli.summary import report
from traceanalyzer.errors import OptionError
from traceanalyzer.render import BINARY, Form, form_of, render


@click.command("comm-outliers", short_help="Unusually long communication, and who is late.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--baseline", metavar="OTHER", help="Compare with the same groups in OTHER.")
@click.option(
    "--factor",
    metavar="X",
    type=float,
    default=3.0,
    show_default=True,
    help="An outlier lasts longer than this many medians of its group.",
)
@click.option(
    "--pattern",
    "patterns",
    metavar="REGEX",
    multiple=True,
    help="Kernels whose names match are communication too. Repeatable.",
)
@click.option("--plot", metavar="FILE", help="Draw durations and arrival skew to FILE.svg or .png.")
@reading
@writing
def comm_outliers(
    paths: tuple[str, ...],
    baseline: str | None,
    factor: float,
    patterns: tuple[str, ...],
    plot: str | None,
    reading: Reading,
    writing: Writing,
) -> None:
    """Which communication took unusually long, and which rank the others waited for.

    PATH is a trace of one rank, several of them, or a folder of all ranks' traces.
    """
    from traceanalyzer import api

    if not factor > 1:  # nor is "nan"
        raise OptionError(f"--factor {factor:g}: an outlier lasts longer than 1 median")
    writing.check()
    picture = _picture_form(plot, force=writing.force)
    if plot is not None and plot == writing.output:
        raise OptionError(f"{plot}: the plot and the answer cannot be one file")
    inputs, _ = api.find_inputs(paths)
    with progress(inputs, quiet=reading.quiet) as meter:
        result = api.comm_outliers(
            inputs,
            baseline=baseline,
            factor=factor,
            patterns=patterns,
            **reading.arguments(),
            progress=meter,
            seen=lambda trace: report(
                trace.meta.path, trace.issues.to_dicts(), quiet=reading.quiet
            ),
        )
    writing.show(result)
    if picture:
        output.write(render(result, picture), plot, binary=picture in BINARY)


def _picture_form(plot: str | None, *, force: bool) -> Form | None:
    """What ``--plot`` asks for, refused before any work when it cannot be written."""
    if plot is None:
        return None
    form = form_of(plot)
    if form not in ("svg", "png"):
        raise OptionError(f"{plot}: a plot's name ends in .svg or .png")
    output.check(plot, force=force)
    return form
