"""Steps common to most commands: find the inputs, analyze them, show progress, write the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import click

from traceanalyzer.cli.options import ReadingOptions, Writing
from traceanalyzer.render.text import prose

if TYPE_CHECKING:
    from rich.progress import Progress

    from traceanalyzer.result import Result
    from traceanalyzer.trace import Trace

R = TypeVar("R", bound="Result")
T = TypeVar("T")

#: Exit status of ``--fail-on`` and ``--fail-on-regression``.
FAILED = 3

#: Most lines about unreadable files; a folder may contain thousands.
_MOST = 10
_PRINTED = ("error", "data_loss", "notice")

#: Issues of a truncated compressed file: of the file, and of its text.
_DAMAGED, _TRUNCATED = "damaged-file", "truncated"

#: What was lost and what to do, by the issue of printed text.
_REMEDIES = {
    "truncated-table": "later rows are missing, print the table again",
    "truncated-line": "its last number is not used, copy the file again when the job has ended",
    "number-out-of-range": "not used because no run can have this number, check the line",
    "bad-row": "not used, check whether the line is mixed with others",
    "long-line": "not read because it exceeds 64 KiB, remove other output from it",
}

#: Characters of a line on stderr.
LINE = 100

#: Delay before a progress bar appears, and between two updates.
DELAY_SECONDS = 1.0
UPDATE_SECONDS = 0.1


def answer(
    analysis: Callable[..., R],
    paths: Sequence[str],
    reading: ReadingOptions,
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
    analysis: Callable[..., T], *inputs: Sequence[str], reading: ReadingOptions, **options: Any
) -> T:
    """Return the result of an analysis of the inputs; print progress and data loss."""
    read = [path for paths in inputs for path in paths]
    with reading.cluster() as client, progress(read, quiet=reading.quiet) as meter:
        return analysis(
            *inputs,
            **options,
            **reading.arguments(),
            **({} if client is None else {"client": client}),
            progress=meter,
            on_trace=partial(report, quiet=reading.quiet),
        )


def report(trace: Trace, *, quiet: bool) -> None:
    """Print ``PATH: truncated at byte 66 (1 dropped); ...`` if a file has issues.

    Args:
        trace: the file; issues of severity ``info`` are not printed.
        quiet: print nothing.
    """
    printed = [issue for issue in trace.issues.to_dicts() if issue["severity"] in _PRINTED]
    if any(issue["code"] == _DAMAGED for issue in printed):  # then the text is truncated, too
        printed = [issue for issue in printed if issue["code"] != _TRUNCATED]
    messages = [_message(issue) for issue in printed]
    if quiet or not messages:
        return
    text = prose(f"{trace.meta.path}: {'; '.join(messages)}")
    if len(messages) > 1 and len(text) > LINE:  # one line each
        text = "\n  ".join(map(prose, [f"{trace.meta.path}:", *messages]))
    click.echo(text, err=True)


def inputs_of(paths: Sequence[str], *, quiet: bool) -> Sequence[str]:
    """Return the files to read, those in folders included; print which are unreadable.

    Other files in a folder are ignored without a message.

    Raises:
        UnreadableFile: a path does not exist, or a folder contains no readable file.
    """
    from traceanalyzer.run.find import NO_FORMAT, collect_inputs

    inputs, skipped = collect_inputs(paths)
    unreadable = [f"{path}: {why}; skipped" for path, why in skipped if why != NO_FORMAT]
    more = [f"{len(unreadable) - _MOST:,} more skipped"] if len(unreadable) > _MOST else []
    for line in () if quiet else (*unreadable[:_MOST], *more):
        click.echo(prose(line), err=True)
    return inputs


def _message(issue: Mapping[str, object]) -> str:
    first = str(issue["first"] or "")
    place = f" at {first}" if first.startswith("byte ") else f": {first}" if first else ""
    if issue["code"] == _DAMAGED:  # one file, not one event
        return f"{issue['code']}{place}"
    dropped = "" if issue["severity"] == "notice" else " dropped"
    remedy = _REMEDIES.get(str(issue["code"])) if first.startswith("line ") else None
    advice = f": {remedy}" if remedy else ""
    return f"{issue['code']}{place} ({issue['count']:,}{dropped}){advice}"


@contextmanager
def progress(paths: Sequence[str], *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback ``(bytes done, total bytes)`` of the current file; None without a bar.

    The bar covers all files and appears after a second, in terminals only.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from traceanalyzer.run.find import size_of
    from traceanalyzer.run.read import OfAllFiles

    bar = _Bar()
    try:
        yield OfAllFiles(bar.show, sum(map(size_of, paths)))
    finally:
        bar.erase()


class _Bar:
    """A bar that appears late; rich is imported only then."""

    def __init__(self) -> None:
        self._next = monotonic() + DELAY_SECONDS
        self._display: Progress | None = None

    def show(self, done: int, size: int) -> None:
        if monotonic() < self._next and done < size:
            return
        if self._display is None and monotonic() >= self._next:
            self._display = _started(size, done)
        if self._display:
            text = "Reading" if done < size else "Analyzing"
            (task,) = self._display.task_ids
            self._display.update(task, completed=done, description=text, refresh=True)
            self._next = monotonic() + UPDATE_SECONDS

    def erase(self) -> None:
        if self._display:
            self._display.stop()


def _started(size: int, done: int) -> Progress:
    """Show a bar with the share, bytes, rate and remaining time; messages appear above it."""
    from rich import progress as rich
    from rich.console import Console

    display = rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.TaskProgressColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TextColumn("remaining"),
        rich.TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        auto_refresh=False,  # no thread: worker processes may be forked meanwhile
        transient=True,
        redirect_stdout=False,
    )
    display.add_task("Reading", total=size, completed=done)
    display.start()
    return display
