"""``traceanalyzer flamegraph``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from traceanalyzer.analyzers.flamegraph import Options
from traceanalyzer.cli.answering import analyze, inputs_of
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.options import (
    ALL,
    ReadingOptions,
    Writing,
    form_by_suffix,
    limit,
    reading,
    rows,
    table_options,
)
from traceanalyzer.cli.output import STDOUT
from traceanalyzer.errors import OptionError
from traceanalyzer.render import Form
from traceanalyzer.render.text import prose

#: Formats written to a file by default.
PICTURES: tuple[Form, ...] = ("svg", "html")

_FORMS = (*PICTURES, "table", "md", "json", "csv", "sqlite")
_ENDS = (".gz", ".zst", ".zip", ".json", ".txt", ".parquet", ".sqlite", ".db")


@click.command(help=Options.__doc__)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Output file; - for standard output. Default: name of the first PATH with .svg, in the "
    "current folder.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing FILE.")
@click.option(
    "--to", type=click.Choice(_FORMS), help="Format. Default: by suffix of FILE, else svg."
)
@click.option("--top", metavar=f"N|{ALL}", callback=rows, help="Rows per table.")
@table_options
@analyzer_options(Options)
@reading
def flamegraph(
    paths: tuple[str, ...],
    output: str | None,
    force: bool,
    to: Form | None,
    top: int | str | None,
    table_sort: tuple[str, ...],
    table_columns: tuple[str, ...],
    color: bool | None,
    base: str | None,
    reading: ReadingOptions,
    **options: Any,
) -> None:
    """Write the flame graph, by default to a file."""
    import traceanalyzer as ta

    writing = _writing(paths[0], output, to, top, force=force)
    writing = replace(writing, sort=table_sort, columns=table_columns, color=color)
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


def _writing(
    first: str, output: str | None, to: Form | None, top: int | str | None, *, force: bool
) -> Writing:
    """Return the output settings: pictures go to a file, tables to standard output by default."""
    form = to or form_by_suffix(output, "svg")
    if form not in _FORMS:
        raise OptionError(f"{output}: unknown output format; choose one of {', '.join(_FORMS)}")
    if output is None and form in PICTURES:
        output = default_name(first, form)
    return Writing(output, force, form, limit(top, form))


def default_name(path: str, form: str) -> str:
    """Return the default output file of an input: ``profile.raw.svg``, in the current folder."""
    name = Path(path).name or Path(path).resolve().name  # "." is the current folder
    while name.lower().endswith(_ENDS) and name.rpartition(".")[0]:
        name = name.rpartition(".")[0]
    return f"{name or 'flamegraph'}.{form}"
