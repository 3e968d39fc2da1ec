"""``traceanalyzer query``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import ReadingOptions, Writing, reading_here, writing


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
