"""What was lost or odd in the input, in a line a file, on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from traceanalyzer.render.text import prose

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SAID = ("error", "data_loss", "notice")


def report(path: str, issues: Iterable[Mapping[str, object]], *, quiet: bool) -> None:
    """Prints ``PATH: what: count (first: where); ...`` when there is something to say.

    Args:
        path: the file.
        issues: its rows of the table ``issues``; severity ``info`` is left out.
        quiet: print nothing.
    """
    found = [_said(issue) for issue in issues if issue["severity"] in _SAID]
    if found and not quiet:
        click.echo(prose(f"{path}: {'; '.join(found)}"), err=True)


def _said(issue: Mapping[str, object]) -> str:
    what = str(issue["code"]).replace("_", " ")
    first = f" (first: {issue['first']})" if issue["first"] else ""
    return f"{what}: {issue['count']:,}{first}"
