"""``traceanalyzer py-spy-report``."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceanalyzer.cli.options import ALL, Reading, Writing, reading, rows, writing
from traceanalyzer.cli.output import STDOUT
from traceanalyzer.cli.progress import progress
from traceanalyzer.cli.summary import report
from traceanalyzer.errors import OptionError
from traceanalyzer.render.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceanalyzer.api import By, GroupBy, Match

#: Where itwinai writes its profiles.
FOLDERS = ("py-spy-outputs", "py-spy-output")

RATE = 100.0


@click.command("py-spy-report", short_help="Which code was running, and whose it is.")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--file", "more", multiple=True, metavar="PATH", help="The same as PATH.")
@click.option(
    "--library-name",
    "libraries",
    multiple=True,
    metavar="NAME",
    help="Tag stacks by the innermost frame of NAME. Repeatable, the first wins. Default: your own "
    "code.",
)
@click.option(
    "--match",
    type=click.Choice(("component", "substring")),
    default="component",
    show_default=True,
    help="NAME is a whole component of a path, or stands anywhere in it.",
)
@click.option("--aggregate-leaf-paths", is_flag=True, help="One row for equal paths.")
@click.option(
    "--num-rows", metavar=f"N|{ALL}", callback=rows, help="The same as --top.  [default: 10]"
)
@click.option(
    "--group-by",
    type=click.Choice(("function", "line", "file", "module", "library")),
    help="Sums instead of paths: alone, and with what is called.",
)
@click.option(
    "--by", type=click.Choice(("process", "thread", "rank", "file")), help="Rows apart for each."
)
@click.option("--seconds", is_flag=True, help="Seconds instead of samples.")
@click.option(
    "--rate",
    type=float,
    default=RATE,
    show_default=True,
    metavar="HZ",
    help="Samples a second, as py-spy record was told.",
)
@click.option("--drop-module", is_flag=True, help="Leave out module-level code.")
@click.option(
    "--exclude-idle-process", is_flag=True, help="Leave out samples without a Python frame."
)
@reading
@writing
def py_spy_report(
    paths: tuple[str, ...],
    more: tuple[str, ...],
    libraries: tuple[str, ...],
    match: Match,
    aggregate_leaf_paths: bool,
    num_rows: int | str | None,
    group_by: GroupBy | None,
    by: By | None,
    seconds: bool,
    rate: float,
    drop_module: bool,
    exclude_idle_process: bool,
    reading: Reading,
    writing: Writing,
) -> None:
    """Which code was running when the profiler looked, and whose it is.

    PATH is what `py-spy record -f raw` wrote, any other file with sampled stacks, or a folder of
    them; `-` or a pipe is read from standard input. Without any, the folder py-spy-outputs or
    py-spy-output is looked for.
    """
    from traceanalyzer import api

    if num_rows is not None:
        writing = replace(writing, top=num_rows if isinstance(num_rows, int) else None)
    writing.check()
    with _given([*paths, *more]) as found:
        inputs, foreign = api.find_inputs(found)
        for path, why in () if reading.quiet else foreign:
            click.echo(f"{visible(path)}: {visible(why)}; skipped", err=True)
        with progress(inputs, quiet=reading.quiet) as meter:
            result = api.py_spy_report(
                inputs,
                library_names=libraries,
                match=match,
                aggregate_leaf_paths=aggregate_leaf_paths,
                group_by=group_by,
                by=by,
                drop_module=drop_module,
                exclude_idle_process=exclude_idle_process,
                rate=rate if seconds else None,
                **reading.arguments(),
                progress=meter,
                seen=lambda trace: report(
                    trace.meta.path, trace.issues.to_dicts(), quiet=reading.quiet
                ),
            )
    writing.show(result)


@contextmanager
def _given(paths: list[str]) -> Iterator[list[str]]:
    """The paths given; without any, what is piped, else a folder with a usual name.

    A pipe that holds nothing is none: batch systems and ssh give every program one.

    Raises:
        OptionError: nothing is given and nothing is found.
    """
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
                "nothing to read: give a file of py-spy record -f raw, or a folder (no "
                f"{FOLDERS[0]} here)"
            )
        yield [str(copy) if path == STDOUT else path for path in paths]


def _piped() -> bool:
    """Whether standard input is a pipe or a file; a job without a terminal has neither."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
