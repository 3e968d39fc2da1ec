"""What most commands do: find the inputs, show progress and losses, ask, write the result."""

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

#: The exit status where an option says that what was found is a failure.
FAILED = 3

#: A progress bar appears after this time.
DELAY_SECONDS = 1.0

#: Lines about files that cannot be read; a folder may hold thousands.
_MOST = 10
_SAID = ("error", "data_loss", "notice")


def answer(
    question: Callable[..., R],
    paths: Sequence[str],
    reading: Reading,
    writing: Writing,
    **options: Any,
) -> R:
    """Asks a function of the package about the files and writes its result, and the plot if wanted.

    What cannot be written is refused before anything is read.
    """
    writing.check()
    result = ask(question, inputs_of(paths, quiet=reading.quiet), reading=reading, **options)
    writing.show(result)
    return result


def ask(question: Callable[..., R], *inputs: Sequence[str], reading: Reading, **options: Any) -> R:
    """The result of a function of the package for these inputs, with progress and losses shown."""
    from traceanalyzer.reading import threads

    read = [path for paths in inputs for path in paths]
    with progress(read, quiet=reading.quiet) as meter:
        return question(
            *inputs,
            **options,
            **reading.arguments(),
            processes=threads(),
            progress=meter,
            seen=lambda trace: report(
                trace.meta.path, trace.issues.to_dicts(), quiet=reading.quiet
            ),
        )


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


def inputs_of(paths: Sequence[str], *, quiet: bool) -> Sequence[str]:
    """The files to read of these and the folders among them; says which cannot be read.

    Foreign files in a folder are no loss and nothing is said of them.

    Raises:
        UnreadableFile: a path that does not exist, or a folder with nothing to read in it.
    """
    from traceanalyzer.reading import NO_FORMAT, found_inputs

    inputs, skipped = found_inputs(paths)
    lost = [f"{path}: {why}; skipped" for path, why in skipped if why != NO_FORMAT]
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


@contextmanager
def progress(paths: Sequence[str], *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A callback ``(bytes done, bytes in all)`` of the file being read; None when not shown.

    The bar covers all files and appears after a second. Without a terminal there is none.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread of its own: workers may be started meanwhile
    size = sum(os.path.getsize(path) for path in paths)  # noqa: PTH202 - names, not Paths
    with tqdm(
        total=size, unit="B", unit_scale=True, delay=DELAY_SECONDS, leave=False, file=sys.stderr
    ) as bar:
        yield Files(bar.update)


class Files:
    """Adds up the bytes of files read one after another."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        self._advance = advance
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        """``done`` bytes of a file are read; fewer than last time means the next file."""
        self._advance(done - self._done if done >= self._done else done)
        self._done = 0 if done >= total else done
