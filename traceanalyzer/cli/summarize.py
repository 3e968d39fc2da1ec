"""``traceanalyzer summarize``."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any, Literal

import click

from traceanalyzer.analyzers import registry
from traceanalyzer.cli.answering import inputs_of, report
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.options import workers_option
from traceanalyzer.cli.progress import progress
from traceanalyzer.render.text import prose

#: Number and count of the processes of a job step, in the environment that srun sets.
_NUMBER, _COUNTS = "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def _shard(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, int]:
    """Return (i, n) of ``i/n``; by default those of the SLURM task, or (0, 1)."""
    if text is None:
        count = next((os.environ[name] for name in _COUNTS if name in os.environ), "")
        text = f"{os.environ.get(_NUMBER, '')}/{count}"
        if text == "/":
            return 0, 1
    match = re.fullmatch(r"(\d{1,7})/(\d{1,7})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise click.BadParameter(f"{text!r} is not a shard; write for example 0/64, up to 63/64")
    return int(match[1]), int(match[2])


def _analyses(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> list[tuple[str, Any]]:
    """Return the analyzer and the options of each command line."""
    return [_analysis(text) for text in texts]


def _analysis(text: str) -> tuple[str, Any]:
    try:
        name, *arguments = shlex.split(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a command with options") from None
    entry = next((e for e in registry.ENTRIES.values() if e.summary and e.command == name), None)
    if entry is None:
        raise click.BadParameter(f"{name!r} is not an analysis")
    options = entry.options_class()
    command = click.command(name)(analyzer_options(options)(lambda **_: None))
    values = command.make_context(name, arguments).params
    return entry.name, options(**values)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", "out", required=True, metavar="FOLDER", help="Output folder.")
@click.option(
    "--shard",
    metavar="I/N",
    callback=_shard,
    help="Summarize every N-th input from number I on (0/64 to 63/64). Default: the number of the "
    "SLURM task, else all inputs.",
)
@click.option(
    "--analysis",
    "analyses",
    multiple=True,
    metavar="COMMAND",
    callback=_analyses,
    help="Also measure an analysis with other options, for example 'kernels --by operator'. "
    "Repeatable.",
)
@click.option("--force", is_flag=True, help="Summarize unchanged inputs again.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar, no data-loss summary.")
@workers_option
def summarize(
    paths: tuple[str, ...],
    out: str,
    shard: tuple[int, int],
    analyses: list[tuple[str, Any]],
    force: bool,
    quiet: bool,
    workers: int | Literal["auto"],
) -> None:
    """Write the measured parts of each rank, a small file for each, to combine them later.

    PATH is a file or a folder (searched recursively), of any format. Every command accepts FOLDER
    in place of the files, with the same answer; only other options, a time window and what needs
    single events still need the files. Several processes may write to one FOLDER, one shard each:

    srun -n 64 traceanalyzer summarize run/ -o sums/

    Summaries of unchanged files are kept, so that an interrupted run can be repeated.
    """
    import traceanalyzer as ta

    inputs = inputs_of(paths, quiet=quiet)
    number, shards = shard
    with progress(inputs[number::shards], quiet=quiet) as meter:
        done = ta.summarize(
            inputs,
            out,
            shard=shard,
            analyses=analyses,
            force=force,
            workers=workers,
            progress=meter,
            on_trace=lambda trace: report(trace.meta.path, trace.issues.to_dicts(), quiet=quiet),
        )
    if quiet:
        return
    for one in done.skipped:
        click.echo(prose(f"{one.path}: {one.why}; skipped"), err=True)
    click.echo(prose(f"{out}: {done.verdict}"), err=True)
