"""What was lost or odd in the input, in a line a file, on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from traceanalyzer.render.text import prose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from traceanalyzer.cli.options import Reading

#: Lines about files that cannot be read; a folder may hold thousands.
_MOST = 10
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


def seen_by(reading: Reading) -> Callable[[Any], None]:
    """What tells of each trace, when it is read, what was lost or odd in it."""
    return lambda trace: report(trace.meta.path, trace.issues.to_dicts(), quiet=reading.quiet)


def inputs_of(paths: Sequence[str], *, quiet: bool) -> list[str]:
    """The files to read of these and the folders among them; says which cannot be read.

    Foreign files in a folder are no loss and nothing is said of them.

    Raises:
        UnreadableFile: a path that does not exist, or a folder with nothing to read in it.
    """
    from traceanalyzer import api

    inputs, skipped = api.find_inputs(paths)
    lost = [f"{path}: {why}; skipped" for path, why in skipped if why != api.NO_FORMAT]
    more = [f"{len(lost) - _MOST:,} more skipped"] if len(lost) > _MOST else []
    for line in () if quiet else (*lost[:_MOST], *more):
        click.echo(prose(line), err=True)
    return inputs


def _said(issue: Mapping[str, object]) -> str:
    first = str(issue["first"] or "")
    place = f" at {first}" if first.startswith("byte ") else f" ({first})" if first else ""
    count = f"{issue['count']:,}"
    counted = f"{count} found" if issue["severity"] == "notice" else f"{count} lost"
    return f"{issue['code']}{place}: {counted}"
