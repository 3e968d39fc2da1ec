"""Functions that tests run in workers: some read files, some kill the worker."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import polars as pl

import traceanalyzer as ta
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.run.measure import _measured_apart, _measured_on_host

#: Part of the name of the file that needs too much memory.
TOO_LARGE = "rank5."


def measured_or_killed(task: Any) -> Any:
    """Measure the files of a task; the kernel kills the process."""
    if any(TOO_LARGE in str(item) for item in task[0].items):
        os.kill(os.getpid(), signal.SIGKILL)
    return _measured_apart(task)


def measured_or_killed_on_rank_1(task: Any) -> Any:
    """Measure some ranks of a file; the kernel kills the process that has rank 1."""
    if 1 in task[0].how.ranks:
        os.kill(os.getpid(), signal.SIGKILL)
    return _measured_apart(task)


def measured_or_killed_once(task: Any) -> Any:
    """Measure the files of a task on a cluster; the first worker with the file is killed."""
    for path in map(Path, task[0].items):
        mark = path.with_suffix(".killed")
        if TOO_LARGE in path.name and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return _measured_on_host(task)


def counts(path: Path) -> dict[str, int] | str:
    """Return the number of rows of each table of a file, or the error."""
    try:
        tables = ta.read(path).tables
    except TraceAnalyzerError as error:
        return str(error)
    return {name: table.height for name, table in tables.items()}


def counts_off_main_thread(path: Path) -> dict[str, int] | str | None:
    """Return :func:`counts`; None on the main thread, or if polars has several threads."""
    main = threading.current_thread() is threading.main_thread()
    return None if main or pl.thread_pool_size() > 1 else counts(path)
