"""A progress bar by bytes read, on standard error, when somebody is there to see it."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DELAY_SECONDS = 1.0


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
