"""``traceanalyzer flamegraph``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from traceanalyzer.cli.options import ALL, Reading, Writing, reading, rows
from traceanalyzer.cli.output import STDOUT
from traceanalyzer.cli.progress import progress
from traceanalyzer.cli.summary import inputs_of, report
from traceanalyzer.errors import OptionError
from traceanalyzer.render import TOP, Form, form_of
from traceanalyzer.render.text import prose

#: Forms that are written to a file unless told otherwise.
PICTURES: tuple[Form, ...] = ("svg", "html")

_FORMS = (*PICTURES, "table", "md", "json", "csv", "sqlite")
_ENDS = (".gz", ".zst", ".zip", ".json", ".txt", ".parquet", ".sqlite", ".db")


@click.command(short_help="A flamegraph of sampled stacks or nested slices.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write to FILE, - for standard output. Default: the first PATH's name with .svg, here.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@click.option("--to", type=click.Choice(_FORMS), help="Default: by FILE's suffix, else svg.")
@click.option("--top", metavar=f"N|{ALL}", callback=rows, help="Rows of each table.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Kind of events, such as kernel. Repeatable. Default: samples, else python_function, else "
    "all of the host.",
)
@click.option(
    "--thread",
    "threads",
    multiple=True,
    metavar="TID|NAME",
    help="Only this thread, by its number or a part of its name. Repeatable.",
)
@click.option(
    "--weight",
    type=click.Choice(("time", "count", "bytes")),
    help="What makes a box wide. Default: as sampled; of slices, their time.",
)
@click.option(
    "--by",
    type=click.Choice(("process", "thread", "rank", "file")),
    help="A root for each; else all are added up.",
)
@click.option("--reverse", is_flag=True, help="From the functions that ran up to their callers.")
@click.option(
    "--focus", metavar="REGEX", help="Only stacks through matching functions, from there."
)
@click.option(
    "--min-frac",
    type=float,
    metavar="X",
    help="Sum up boxes below this part of everything. Default: draw the 5,000 heaviest at least.",
)
@click.option("--diff", "base", metavar="BASE", help="Compare with BASE, scaled to the same sum.")
@click.option(
    "--library-name",
    "libraries",
    multiple=True,
    metavar="NAME",
    help="Code that stands out. Repeatable. Default: your own.",
)
@click.option("--title", metavar="TEXT", help="Of the picture. Default: the files.")
@reading
def flamegraph(
    paths: tuple[str, ...],
    output: str | None,
    force: bool,
    to: Form | None,
    top: int | str | None,
    kinds: tuple[str, ...],
    threads: tuple[str, ...],
    weight: Literal["time", "count", "bytes"] | None,
    by: Literal["process", "thread", "rank", "file"] | None,
    reverse: bool,
    focus: str | None,
    min_frac: float | None,
    base: str | None,
    libraries: tuple[str, ...],
    title: str | None,
    reading: Reading,
) -> None:
    """Which functions does the time go into? Writes an interactive SVG, or HTML by FILE's suffix.

    PATH holds sampled stacks (py-spy raw, collapsed, speedscope), or a trace whose slices nest
    (Chrome JSON, Parquet); several, or a folder of ranks, are added up.
    """
    from traceanalyzer import api

    writing = _writing(paths[0], output, to, top, force=force)
    writing.check()
    inputs = inputs_of(paths, quiet=reading.quiet)
    bases = [] if base is None else inputs_of([base], quiet=reading.quiet)
    with progress([*inputs, *bases], quiet=reading.quiet) as meter:
        result = api.flamegraph(
            inputs,
            base=bases or None,
            kinds=kinds,
            threads=threads,
            weight=weight,
            by=by,
            reverse=reverse,
            focus=focus,
            min_frac=min_frac,
            library_names=libraries,
            title=title,
            **reading.arguments(),
            progress=meter,
            seen=lambda trace: report(
                trace.meta.path, trace.issues.to_dicts(), quiet=reading.quiet
            ),
        )
    writing.show(result)
    if writing.output not in (None, STDOUT) and not reading.quiet:
        click.echo(prose(f"{writing.output}: {result.verdict}"), err=True)


def _writing(
    first: str, output: str | None, to: Form | None, top: int | str | None, *, force: bool
) -> Writing:
    """Where the answer goes: a picture to a file, a table to standard output, unless told."""
    form = to or (form_of(output) if output else None) or "svg"
    if form not in _FORMS:
        raise OptionError(f"{output}: a flamegraph is one of {', '.join(_FORMS)}")
    if output is None and form in PICTURES:
        output = default_name(first, form)
    shown = TOP.get(form) if top is None else top
    return Writing(output, force, form, shown if isinstance(shown, int) else None)


def default_name(path: str, form: str) -> str:
    """The file written for an input when none is named: ``profile.raw.svg``, in this folder."""
    name = Path(path).name or Path(path).resolve().name  # "." is the folder we are in
    while name.lower().endswith(_ENDS) and name.rpartition(".")[0]:
        name = name.rpartition(".")[0]
    return f"{name or 'flamegraph'}.{form}"
