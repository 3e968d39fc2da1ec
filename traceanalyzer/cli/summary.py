"""What was lost or odd in the input, in a line a file, on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from traceanalyzer.render.text import prose

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SAID = ("error", "data_loss", "notice")


def report(path: str, issues: Iterable[Mapping[str, object]], *, quiet: bool) -> None:
    """Prints ``PATH: truncated at byte 66: 1 lost; ...`` when there is something to say.

    Args:
        path: the file.
        issues: its rows of the table ``issues``; severity ``info`` is left out.
        quiet: print nothing.
    """
    found = [_said(issue) for issue in issues if issue["severity"] in _SAID]
    if found and not quiet:
        click.echo(prose(f"{path}: {'; '.join(found)}"), err=True)


def _said(issue: Mapping[str, object]) -> str:
    first = str(issue["first"] or "")
    place = f" at {first}" if first.startswith("byte ") else f" ({first})" if first else ""
    count = f"{issue['count']:,}"
    counted = f"{count} found" if issue["severity"] == "notice" else f"{count} lost"
    return f"{issue['code']}{place}: {counted}"
