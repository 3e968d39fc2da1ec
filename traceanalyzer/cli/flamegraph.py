"""Commands on sampled stacks: ``flamegraph`` and ``py-spy-report``."""

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from traceanalyzer.analyzers.flamegraph import Options
from traceanalyzer.analyzers.py_spy_report import Options as ReportOptions
from traceanalyzer.cli.answering import analyze, inputs_of
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.options import (
    ALL,
    ReadingOptions,
    Writing,
    reading,
    rows,
    writing,
    writing_pictures,
)
from traceanalyzer.cli.output import STDOUT
from traceanalyzer.errors import OptionError
from traceanalyzer.render import Form
from traceanalyzer.render.text import prose, visible

#: Formats written to a file by default.
PICTURES: tuple[Form, ...] = ("svg", "html")

_FORMS: tuple[Form, ...] = (*PICTURES, "table", "md", "json", "csv", "sqlite")
_ENDS = (".gz", ".zst", ".zip", ".json", ".txt", ".parquet", ".sqlite", ".db")


@click.command(help=Options.__doc__)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@writing_pictures(_FORMS)
@analyzer_options(Options)
@reading
def flamegraph(
    paths: tuple[str, ...],
    base: str | None,
    reading: ReadingOptions,
    writing: Writing,
    **options: Any,
) -> None:
    """Write the flame graph, by default to a file."""
    import traceanalyzer as ta

    form, output = writing.to, writing.output
    if form not in _FORMS:
        raise OptionError(f"{output}: unknown output format; choose one of {', '.join(_FORMS)}")
    if output is None and form in PICTURES:  # tables go to standard output
        writing = replace(writing, output=default_name(paths[0], form))
    writing.check()
    inputs = inputs_of(paths, quiet=reading.quiet)
    bases = [] if base is None else inputs_of([base], quiet=reading.quiet)
    result = analyze(
        lambda read, bases, **more: ta.flamegraph(read, base=bases or None, **more),
        *(inputs, bases),
        reading=reading,
        **options,
    )
    writing.show(result)
    if writing.output not in (None, STDOUT) and not reading.quiet:
        click.echo(prose(f"{writing.output}: {result.verdict}"), err=True)


def default_name(path: str, form: str) -> str:
    """Return the default output file of an input: ``profile.raw.svg``, in the current folder."""
    name = Path(path).name or Path(path).resolve().name  # "." is the current folder
    while name.lower().endswith(_ENDS) and name.rpartition(".")[0]:
        name = name.rpartition(".")[0]
    return f"{name or 'flamegraph'}.{form}"


#: Folders in which itwinai stores its profiles.
FOLDERS = ("py-spy-outputs", "py-spy-output")

RATE = 100.0


@click.command("py-spy-report", help=ReportOptions.__doc__)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--file", "more", multiple=True, metavar="PATH", help="Same as PATH.")
@analyzer_options(ReportOptions, only=("library_names", "match", "aggregate_leaf_paths"))
@click.option("--num-rows", metavar=f"N|{ALL}", callback=rows, help="Same as --top.  [default: 10]")
@analyzer_options(ReportOptions, only=("group_by", "by"))
@click.option("--seconds", is_flag=True, help="Show seconds instead of samples.")
@click.option(
    "--rate",
    type=float,
    default=RATE,
    show_default=True,
    metavar="HZ",
    help="Sampling rate: --rate of py-spy record.",
)
@analyzer_options(ReportOptions, only=("drop_module", "exclude_idle_process"))
@reading
@writing
def py_spy_report(
    paths: tuple[str, ...],
    more: tuple[str, ...],
    num_rows: int | str | None,
    seconds: bool,
    rate: float,
    reading: ReadingOptions,
    writing: Writing,
    **options: Any,
) -> None:
    """Read the paths, else standard input, else the default folder."""
    import traceanalyzer as ta

    if num_rows is not None:
        writing = replace(writing, top=num_rows if isinstance(num_rows, int) else None)
    writing.check()
    with _sources([*paths, *more]) as sources:
        inputs, skipped = ta.find_inputs(sources)
        for path, why in () if reading.quiet else skipped:
            click.echo(f"{visible(path)}: {visible(why)}; skipped", err=True)
        options["rate"] = rate if seconds else None
        result = analyze(ta.py_spy_report, inputs, reading=reading, **options)
    writing.show(result)


@contextmanager
def _sources(paths: list[str]) -> Iterator[list[str]]:
    """Yield the paths; without any, piped input, else a default folder.

    An empty pipe is ignored: batch systems and ssh connect one to every program.

    Raises:
        OptionError: there is no input.
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "stdin")
        if STDOUT in paths or (not paths and _piped()):
            with copy.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        if not paths and copy.exists() and copy.stat().st_size:
            paths = [STDOUT]
        paths = paths or [name for name in FOLDERS if Path(name).is_dir()][:1]
        if not paths:
            raise OptionError(
                "no input; give a file of py-spy record -f raw or a folder (the default folder "
                f"{FOLDERS[0]} does not exist)"
            )
        yield [str(copy) if path == STDOUT else path for path in paths]


def _piped() -> bool:
    """Return whether standard input is a pipe or a file; jobs without a terminal have neither."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
