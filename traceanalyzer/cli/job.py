"""Commands that accept all files of a job, ``gate`` and ``demo``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from traceanalyzer import files
from traceanalyzer.analyzers.info import Options
from traceanalyzer.cli import output
from traceanalyzer.cli.answering import FAILED, analyze, answer, inputs_of, progress
from traceanalyzer.cli.options import ReadingOptions, Writing, limit, reading, rows, writing
from traceanalyzer.errors import OptionError, OutputError
from traceanalyzer.machine import not_compiled
from traceanalyzer.render import TOP, Form, form_of, render
from traceanalyzer.render.junit import Case, junit
from traceanalyzer.render.pieces import fixes
from traceanalyzer.render.text import costs, prose, without
from traceanalyzer.units import one_of

if TYPE_CHECKING:
    from traceanalyzer.findings.result import Diagnosis
    from traceanalyzer.result import Finding


#: Status of a check without the data that it needs.
SKIPPED = "skipped"

#: In ascending order.
SEVERITIES = ("info", "warning", "critical")


@click.command(help=Options.__doc__)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--quick",
    is_flag=True,
    help="Read only the beginning and the end of large files. Default if reading all takes long.",
)
@click.option("--full", is_flag=True, help="Read all files as a whole.")
@reading
@writing
def info(
    paths: tuple[str, ...], quick: bool, full: bool, reading: ReadingOptions, writing: Writing
) -> None:
    """Describe the files; unreadable ones are listed in the result."""
    import traceanalyzer as ta

    if quick and full:
        raise OptionError("--quick and --full exclude each other")
    writing.check()
    inputs, skipped = ta.find_inputs(paths)
    with reading.cluster() as client, progress(inputs, quiet=reading.quiet) as meter:
        how = {**reading.arguments(), "client": client, "progress": meter}
        how["quick"] = True if quick else False if full else None
        result = ta.info(inputs, skipped=skipped, **how)
    click.echo(not_compiled(), nl=bool(not_compiled()), err=True)
    writing.show(result)


def _rules(_context: click.Context, _option: click.Parameter, start: str) -> list[str]:
    return [name for name in fixes() if name.startswith(start)]


@click.command("diagnose")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--threshold",
    "thresholds",
    metavar="RULE=N",
    multiple=True,
    shell_complete=_rules,
    help="Override a threshold, for example straggler=5% or straggler:critical=30%. --top all "
    "lists all checks and thresholds. Repeatable.",
)
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help=f"Exit with status {FAILED} on a finding of this or a higher severity.",
)
@click.option(
    "--junit",
    "xml",
    metavar="FILE",
    help="Also write JUnit XML, a test per check, which fails like --fail-on (without it, on any "
    "finding).",
)
@click.option(
    "--explain",
    metavar="RULE",
    is_eager=True,
    shell_complete=_rules,
    expose_value=False,
    callback=lambda context, _, rule: _explain(context, rule),
    help="Show the change that a rule suggests, as code before and after, and exit.",
)
@reading
@writing
def diagnose(
    paths: tuple[str, ...],
    thresholds: tuple[str, ...],
    fail_on: str | None,
    xml: str | None,
    reading: ReadingOptions,
    writing: Writing,
) -> None:
    """Find performance problems, what they cost and how to fix them.

    PATH is a trace, an nsys export, a py-spy file, a memory snapshot, or a folder with files of
    one or all ranks. Each file is read once; documented checks evaluate the results of every
    analysis.
    """
    import traceanalyzer as ta

    writing.check(junit=xml)
    result = answer(ta.diagnose, paths, reading, writing, thresholds=thresholds)
    failing = SEVERITIES[SEVERITIES.index(fail_on) :] if fail_on else ()
    if xml is not None:
        cases = tuple(_cases(result, failing or SEVERITIES))
        output.write(junit("traceanalyzer.diagnose", cases), xml)
    if any(one.severity in failing for one in result.diagnosis):
        click.get_current_context().exit(FAILED)


def _explain(context: click.Context, rule: str | None) -> None:
    """Print the change that a rule suggests."""
    if rule is None:
        return
    text = fixes().get(rule)
    if text is None:
        raise OptionError(f"--explain: unknown rule {rule!r}; {one_of(rule, fixes())}")
    click.echo(re.sub(r"^```.*\n?", "", text, flags=re.MULTILINE).rstrip())
    context.exit()


def _cases(result: Diagnosis, failing: Sequence[str]) -> Iterator[Case]:
    """Return a test per check; it fails if one of its findings has one of the severities.

    An effect does not fail its own test: it is listed with its cause, and as output of its check.
    """
    for rule, status, why in result.rules.select("rule", "status", "why").iter_rows():
        roots = [one for one in result.findings if one.id == rule]
        lines = [line for one in roots for line in (_line(one), *map(_effect, one.effects))]
        effects = [
            f"Effect of {root.id}: {_line(one)}"
            for root in result.findings for one in root.effects if one.id == rule
        ]  # fmt: skip
        is_failure = any(one.severity in failing for one in roots)
        skipped = why if status == SKIPPED else ""
        failure = "\n".join(lines) if is_failure else ""
        output = "\n".join(effects if is_failure else [*lines, *effects])
        yield Case(rule, failure, skipped, output)


def _effect(finding: Finding) -> str:
    return f"  effect: {_line(finding)}"


def _line(finding: Finding) -> str:
    """Return severity, problem and cost of a finding."""
    cost = ", ".join(costs(finding))
    return f"{finding.severity}: {finding.title}{f' Cost: {cost}.' if cost else ''}"


@click.command("report")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="Output file; a .json suffix writes the same data as JSON.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing FILE.")
@click.option(
    "--top",
    metavar="N|all",
    callback=rows,
    help=f"Rows per table. Default: {TOP['report']}; all in JSON.",
)
@click.option(
    "--threshold",
    "thresholds",
    metavar="RULE=N",
    multiple=True,
    help="Override a threshold, as for diagnose. Repeatable.",
)
@reading
def report(
    paths: tuple[str, ...],
    target: str,
    force: bool,
    top: int | str | None,
    thresholds: tuple[str, ...],
    reading: ReadingOptions,
) -> None:
    """Write one HTML page with all analyses of a run, problems first.

    PATH is a trace, an nsys export, a py-spy file, a memory snapshot, or a folder with files of
    one or all ranks. Each file is read once. The page is self-contained and works offline.
    """
    import traceanalyzer as ta

    form: Form | None = form_of(target) if PurePath(target).suffix else "html"
    if form not in ("html", "json"):
        raise OptionError(f"{target}: unknown output format; use .html or .json")
    inputs = inputs_of(paths, quiet=reading.quiet)
    output.check(target, force=force)
    result = analyze(ta.report, inputs, reading=reading, thresholds=thresholds, named=paths)
    rows_per_table = limit(top, "report" if form == "html" else form)
    with without(output.input_folders() if form == "html" else ()):
        data = render(result, form, top=rows_per_table)
    output.write(data, target)
    if target != output.STDOUT and not reading.quiet:
        click.echo(f"{target}: {result.verdict}", err=True)


_ARCHIVE = "demo.zip"


@click.command()
@click.argument("folder", default="traceanalyzer-demo", metavar="[FOLDER]")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def demo(folder: str, force: bool) -> None:
    """Write a small recording and its report to FOLDER (default: traceanalyzer-demo).

    The recording is synthetic: traces of a training on 8 GPUs, in which the data loader of rank 5
    is slow twice, and a memory snapshot. It is part of the package; nothing is downloaded.
    """
    from importlib import resources
    from zipfile import ZipFile

    import traceanalyzer as ta

    run, page = Path(folder, "run"), Path(folder, "report.html")
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{run}: cannot be created: {error.strerror}") from None
    archive = resources.files(__package__).joinpath(_ARCHIVE)
    with archive.open("rb") as data, ZipFile(data) as recording:
        targets = {name: str(run / name) for name in recording.namelist()}
        for path in (*targets.values(), str(page)):
            files.check(path, force=force, keyword="--force")
        for name, path in targets.items():
            output.write(recording.read(name), path)
    report = ta.report([run], named=[str(run)])
    output.write(render(report, "html", top=TOP["report"]), str(page))
    lines = (
        f"{run}: {len(targets)} files of a training on 8 GPUs",
        f"{page}: {report.verdict}",
        "",
        f"Open {page} in a browser. More of the same recording:",
        f"  traceanalyzer diagnose {run}",
        f"  traceanalyzer comm-outliers {run}",
        f"  traceanalyzer memory {run / 'memory.pickle'} --growth",
    )
    click.echo("\n".join(lines))


@click.command("gate")
@click.argument("budgets", metavar="BUDGETS")
@click.argument("paths", nargs=-1, metavar="PATH...")
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

    writing.check(junit=xml)
    read_budgets(budgets)  # before anything is read
    if not paths:
        raise click.UsageError("Missing argument 'PATH...'.")
    result = answer(ta.check_budgets, paths, reading, writing, budgets=budgets)
    if xml is not None:
        output.write(junit("traceanalyzer.gate", tuple(_budget_cases(result))), xml)
    for line in result.violations:
        click.echo(prose(f"budget violated: {line}"), err=True)
    if result.violations:
        click.get_current_context().exit(FAILED)


def _budget_cases(result: Any) -> Iterator[Case]:
    for row in result.budgets.to_dicts():
        text = f"{row['budget']}: {row['state']}, {row['missing'] or row['measured']}"
        failure, skipped = row["is_violation"], row["state"] == "skipped"
        yield Case(row["budget"], text if failure else "", text if skipped else "")
