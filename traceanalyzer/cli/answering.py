"""Steps common to most commands: find the inputs, show progress, analyze, write the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from traceanalyzer.cli.options import Reading, Writing
from traceanalyzer.render.text import prose

if TYPE_CHECKING:
    from traceanalyzer.result import Result

R = TypeVar("R", bound="Result")

#: Exit status of ``--fail-on`` and ``--fail-on-regression``.
FAILED = 3

#: Delay before a progress bar appears.
DELAY_SECONDS = 1.0

#: Most lines about unreadable files; a folder may contain thousands.
_MOST = 10
_PRINTED = ("error", "data_loss", "notice")


def answer(
    analysis: Callable[..., R],
    paths: Sequence[str],
    reading: Reading,
    writing: Writing,
    **options: Any,
) -> R:
    """Run an analysis on the files and write its result, and the plot if requested.

    The output is checked before anything is read.
    """
    writing.check()
    result = analyze(analysis, inputs_of(paths, quiet=reading.quiet), reading=reading, **options)
    writing.show(result)
    return result


def analyze(
    analysis: Callable[..., R], *inputs: Sequence[str], reading: Reading, **options: Any
) -> R:
    """Return the result of an analysis of the inputs; print progress and data loss."""
    from traceanalyzer.reading import threads

    read = [path for paths in inputs for path in paths]
    with progress(read, quiet=reading.quiet) as meter:
        return analysis(
            *inputs,
            **options,
            **reading.arguments(),
            processes=threads(),
            progress=meter,
            on_trace=lambda trace: report(
                trace.meta.path, trace.issues.to_dicts(), quiet=reading.quiet
            ),
        )


def report(path: str, issues: Iterable[Mapping[str, object]], *, quiet: bool) -> None:
    """Print ``PATH: truncated at byte 66 (1 dropped); ...`` if the file has issues.

    Args:
        path: the file.
        issues: its rows of the table ``issues``; severity ``info`` is not printed.
        quiet: print nothing.
    """
    messages = [_message(issue) for issue in issues if issue["severity"] in _PRINTED]
    if messages and not quiet:
        click.echo(prose(f"{path}: {'; '.join(messages)}"), err=True)


def inputs_of(paths: Sequence[str], *, quiet: bool) -> Sequence[str]:
    """Return the files to read, those in folders included; print which are unreadable.

    Other files in a folder are ignored without a message.

    Raises:
        UnreadableFile: a path does not exist, or a folder contains no readable file.
    """
    from traceanalyzer.reading import NO_FORMAT, collect_inputs

    inputs, skipped = collect_inputs(paths)
    unreadable = [f"{path}: {why}; skipped" for path, why in skipped if why != NO_FORMAT]
    more = [f"{len(unreadable) - _MOST:,} more skipped"] if len(unreadable) > _MOST else []
    for line in () if quiet else (*unreadable[:_MOST], *more):
        click.echo(prose(line), err=True)
    return inputs


def _message(issue: Mapping[str, object]) -> str:
    first = str(issue["first"] or "")
    place = f" at {first}" if first.startswith("byte ") else f": {first}" if first else ""
    dropped = "" if issue["severity"] == "notice" else " dropped"
    return f"{issue['code']}{place} ({issue['count']:,}{dropped})"


@contextmanager
def progress(paths: Sequence[str], *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback ``(bytes done, total bytes)`` of the current file; None without a bar.

    The bar covers all files and appears after a second, in terminals only.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no monitor thread: worker processes may be forked meanwhile
    size = sum(os.path.getsize(path) for path in paths)  # noqa: PTH202 - names, not Paths
    with tqdm(
        total=size, unit="B", unit_scale=True, delay=DELAY_SECONDS, leave=False, file=sys.stderr
    ) as bar:
        yield Files(bar.update)


class Files:
    """Sum of the bytes of files that are read one after another."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        self._advance = advance
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        """Record ``done`` bytes of a file; fewer than last time means the next file."""
        self._advance(done - self._done if done >= self._done else done)
        self._done = 0 if done >= total else done
