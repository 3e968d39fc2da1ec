"""Commands that write or serve: ``convert``, ``query``, ``summarize``, ``baseline``, ``mcp``."""

from __future__ import annotations

import os
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from traceanalyzer.analyzers import registry
from traceanalyzer.cli import output
from traceanalyzer.cli.answering import answer, inputs_of, progress, report
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.options import ReadingOptions, Writing, reading_here, workers_option, writing
from traceanalyzer.errors import MissingExtra, OptionError
from traceanalyzer.render.text import prose

_STEM_ENDS = (".gz", ".zst", ".zip", ".json", ".pfw", ".parquet", ".trace", ".pt", ".sqlite", ".db")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="IN...")
@click.option(
    "-o", "--output", "out", required=True, metavar="OUT", help="File; folder for several inputs."
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@reading_here
def convert(paths: tuple[str, ...], out: str, force: bool, reading: ReadingOptions) -> None:
    """Convert traces to Parquet, Chrome JSON, an SQLite database or speedscope stacks.

    The suffix of OUT selects the format: .parquet, .json or .json.gz (for Perfetto), .sqlite or
    .db (for SQL and Datasette), .speedscope.json. If IN is several files or a folder, OUT is a
    folder with one Parquet file per input; every command accepts such a folder in place of the
    original files.
    """
    import traceanalyzer as ta
    from traceanalyzer.exporters import writer_for

    inputs = inputs_of(paths, quiet=reading.quiet)
    for flag, rank in (("--rank", reading.rank), ("--assume-rank", reading.assume_rank)):
        if rank is not None and len(inputs) > 1:
            raise OptionError(f"{flag} takes one input file (got {len(inputs)})")
    targets = _targets(list(dict.fromkeys(inputs)), out)
    for target in targets:
        writer_for(target)
        output.check(target, force=force)
    with progress(inputs, quiet=reading.quiet) as meter:
        for target, path in targets.items():
            trace = ta.convert(path, target, force=force, **reading.arguments(), progress=meter)
            report(trace, quiet=reading.quiet)


def _targets(inputs: list[str], out: str) -> dict[str, str]:
    """Return the input of each file to write."""
    folder = Path(out)
    if folder.is_dir():
        return {str(folder / name): path for name, path in _names(inputs).items()}
    if len(inputs) == 1:
        return {out: inputs[0]}
    if folder.suffix:
        raise OptionError(
            f"{out}: {len(inputs)} inputs need an output folder; use -o FOLDER. To write them to "
            "one timeline, use traceanalyzer merge -o run.pftrace"
        )
    folder.mkdir()
    return _targets(inputs, out)


def _names(inputs: list[str]) -> dict[str, str]:
    """Return the Parquet file name of each input, from its path below the common folder."""
    common = os.path.commonpath([Path(path).absolute().parent for path in inputs])
    names = ["_".join(Path(path).absolute().relative_to(common).parts) for path in inputs]
    stems = [_stem(name) for name in names]
    distinct = stems if len(set(stems)) == len(stems) else names
    return {f"{name}.parquet": path for name, path in zip(distinct, inputs, strict=True)}


def _stem(name: str) -> str:
    while name.lower().endswith(_STEM_ENDS):
        name = name.rpartition(".")[0]
    return name


@click.command()
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.argument("sql", metavar="SQL")
@reading_here
@writing
def query(paths: tuple[str, ...], sql: str, reading: ReadingOptions, writing: Writing) -> None:
    """Select rows from the tables of all files with SQL, read-only.

    PATH is a file or a folder (searched recursively), of any format. SQL is one SELECT on the
    tables of docs/schema.md: events, collectives, counters, ... Times are ns, on one clock for all
    ranks. Statements that change data and functions that read files are rejected.
    """
    import traceanalyzer as ta

    if not paths:
        raise click.UsageError(
            f"only {sql!r} is given; add the SQL after the files (--help has examples)"
        )
    answer(ta.query, paths, reading, writing, sql=sql)


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
    return entry.name, options(**command.make_context(name, arguments).params)


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
    callback=lambda _context, _option, texts: [_analysis(text) for text in texts],
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
            on_trace=partial(report, quiet=quiet),
        )
    if quiet:
        return
    for one in done.skipped:
        click.echo(prose(f"{one.path}: {one.why}; skipped"), err=True)
    click.echo(prose(f"{out}: {done.verdict}"), err=True)


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
    from traceanalyzer.run import baselines

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
            on_trace=partial(report, quiet=quiet),
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
    from traceanalyzer.run import baselines

    baselines.remove(name)


@click.command()
@click.option(
    "--root",
    "roots",
    multiple=True,
    required=True,
    metavar="FOLDER",
    help="Folder whose files may be read. Repeatable.",
)
def mcp(roots: tuple[str, ...]) -> None:
    """Serve the analyses as tools for language models, over stdio (Model Context Protocol).

    A client starts this command and calls its tools: diagnose, query, and every analysis. They read
    files below the roots only, and write nothing. Needs the extra mcp.
    """
    try:
        import mcp as _sdk  # noqa: F401 - whether it is installed
    except ImportError:
        raise MissingExtra("traceanalyzer mcp", "mcp") from None
    from traceanalyzer.tools.mcp.protocol import serve
    from traceanalyzer.tools.mcp.tools import Roots

    serve(Roots(roots).folders)
