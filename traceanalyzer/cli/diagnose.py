"""``traceanalyzer diagnose``."""

import click

from traceanalyzer.cli.answering import FAILED, answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing

#: The least grave first.
SEVERITIES = ("info", "warning", "critical")


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
