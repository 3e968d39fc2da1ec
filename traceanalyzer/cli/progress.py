"""The progress bar: bytes read of all files, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

#: Delay before a progress bar appears, and between two updates.
DELAY_SECONDS = 1.0
UPDATE_SECONDS = 0.1


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
