"""Small tasks in further processes of this Python, for runs of hundreds of small files.

Reading and measuring a small file takes many short steps of Python and polars, which threads of one
process cannot share. A worker gets pickled tasks on its standard input and answers on its standard
output; both ends are this module. It ends when its standard input does.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: A worker imports what this process can import; ``-P``: nothing from the working directory.
_COMMAND = "import sys; sys.path[:] = {path!r}; from traceanalyzer import workers; workers.serve()"
#: Small frames gain nothing from threads of polars, and handing them over takes longer than they.
_ENVIRONMENT = {"POLARS_MAX_THREADS": "1"}


def each(
    function: Callable[[Any], Any], tasks: Sequence[Any], processes: int
) -> Iterator[Any | None]:
    """Yield ``function(task)`` for each task, in order; None where a worker has no answer.

    There is no answer where a task or its result cannot be pickled, the function raises, or a
    worker ends: the caller then does the task itself, and gets the error.

    Args:
        function: of a module, so that a worker can import it.
        tasks: picklable.
        processes: how many workers to start at most; one for each task suffices.
    """
    started = [_start() for _ in range(min(processes, len(tasks)))]
    free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    for worker in started:
        free.put(worker)

    def ask(task: Any) -> Any | None:
        worker = free.get()
        try:
            return _ask(worker, function, task)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(max(len(started), 1))
    try:
        yield from pool.map(ask, tasks)
    finally:
        for worker in started:
            worker.kill()
            worker.communicate()
        pool.shutdown(cancel_futures=True)


def serve() -> None:
    """Answer tasks until standard input ends; what is printed meanwhile goes to standard error."""
    gc.set_threshold(20_000, 20, 20)  # as in the command
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            task = sys.stdin.buffer
            function, argument = pickle.load(task)  # noqa: S301 - from the process that started us
        except EOFError:
            return
        answers.write(_answer(function, argument))
        answers.flush()


def _start() -> subprocess.Popen[bytes]:
    """A worker in a session of its own: Ctrl-C is for the process that started it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _COMMAND.format(path=sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **_ENVIRONMENT},
        start_new_session=True,
    )


def _ask(worker: subprocess.Popen[bytes], function: Callable[[Any], Any], task: Any) -> Any | None:
    if worker.stdin is None or worker.stdout is None:
        return None
    try:
        worker.stdin.write(pickle.dumps((function, task)))
        worker.stdin.flush()
        return pickle.load(worker.stdout)  # noqa: S301 - from a process that we started
    except Exception:  # noqa: BLE001 - whatever is wrong with the worker, the task can be done here
        return None


def _answer(function: Callable[[Any], Any], argument: Any) -> bytes:
    try:
        return pickle.dumps(function(argument))
    except Exception:  # noqa: BLE001 - the caller does the task itself and gets the error
        return pickle.dumps(None)
