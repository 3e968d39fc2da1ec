"""``traceanalyzer diagnose``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.progress import progress
from traceanalyzer.cli.summary import report

_SEVERITIES = ("info", "warning", "critical")
_FOUND = 3  # the exit status of --fail-on


@click.command("diagnose", short_help="What is wrong, by every analysis that the files allow.")
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
    type=click.Choice(_SEVERITIES),
    help=f"Exit with status {_FOUND} if there is a finding of this severity or a graver one.",
)
@reading
@writing
def diagnose(
    paths: tuple[str, ...],
    thresholds: tuple[str, ...],
    fail_on: str | None,
    reading: Reading,
    writing: Writing,
) -> int:
    """What is wrong, what does it cost, and what helps?

    PATH is whatever a job left: traces of one rank or of all, nsys exports, py-spy files, memory
    snapshots, or a folder of them. Each file is read once, every analysis that it allows is made,
    and its answer judged by documented rules.
    """
    from traceanalyzer import api

    writing.check()
    inputs, _ = api.find_inputs(paths)
    with progress(inputs, quiet=reading.quiet) as meter:
        result = api.diagnose(
            inputs,
            thresholds=thresholds,
            **reading.arguments(),
            progress=meter,
            seen=lambda trace: _summed_up(trace, reading),
        )
    writing.show(result)
    return _FOUND if _reached(fail_on, result.worst) else 0


def _summed_up(trace: Any, reading: Reading) -> None:
    report(trace.meta.path, trace.issues.to_dicts(), quiet=reading.quiet)


def _reached(asked: str | None, worst: str | None, order: Sequence[str] = _SEVERITIES) -> bool:
    return asked is not None and worst is not None and order.index(worst) >= order.index(asked)
