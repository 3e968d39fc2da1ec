"""``traceanalyzer baseline``."""

from __future__ import annotations

from typing import Literal

import click

from traceanalyzer.cli.answering import inputs_of, report
from traceanalyzer.cli.options import Writing, workers_option, writing
from traceanalyzer.cli.progress import progress
from traceanalyzer.errors import OptionError
from traceanalyzer.render.text import prose
from traceanalyzer.run import baselines


@click.group("baseline")
def baseline() -> None:
    """Save runs by name, as small summaries; baseline:NAME then means this run in every command.

    Baselines are folders in .traceanalyzer/baselines, or in $TRACEANALYZER_BASELINES. They can be
    committed.
    """


@baseline.command("save")
@click.argument("name")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--add", is_flag=True, help="Add a further run to the baseline, for the noise.")
@click.option("--force", is_flag=True, help="Replace the runs of an existing baseline.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar, no data-loss summary.")
@workers_option
def save(
    name: str,
    paths: tuple[str, ...],
    add: bool,
    force: bool,
    quiet: bool,
    workers: int | Literal["auto"],
) -> None:
    """Save the files of one run as the baseline NAME.

    PATH is a file or a folder (searched recursively), of any format, or the summaries of a run.
    """
    import traceanalyzer as ta

    if add and force:
        raise OptionError("--add and --force exclude each other")
    baselines.checked(name)
    inputs = inputs_of(paths, quiet=quiet)
    with progress(inputs, quiet=quiet) as meter:
        result = ta.save_baseline(
            name,
            inputs,
            add=add,
            force=force,
            workers=workers,
            progress=meter,
            on_trace=lambda trace: report(trace.meta.path, trace.issues.to_dicts(), quiet=quiet),
        )
    if not quiet:
        click.echo(prose(f"{baselines.PREFIX}{name}: {result.verdict}"), err=True)


@baseline.command("list")
@writing
def list_all(writing: Writing) -> None:
    """List all saved runs, damaged ones too."""
    import traceanalyzer as ta

    writing.check()
    writing.show(ta.list_baselines())


@baseline.command("show")
@click.argument("name")
@writing
def show(name: str, writing: Writing) -> None:
    """Show the runs of one baseline; its GPUs, versions, steps. All numbers with --to json."""
    import traceanalyzer as ta

    writing.check()
    writing.show(ta.list_baselines(name))


@baseline.command("rm")
@click.argument("name")
def rm(name: str) -> None:
    """Remove a baseline with all its runs."""
    baselines.remove(name)
