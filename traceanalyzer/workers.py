"""Run tasks in worker processes, for inputs of hundreds of small files.

Small files need many short Python calls that block on the GIL, so threads do not help. A worker
reads pickled tasks from its standard input and writes pickled results to its standard output; this
module is both ends. A worker exits when its standard input is closed.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: Same import path as this process; ``-P`` keeps the working directory out of it.
_COMMAND = "import sys; sys.path[:] = {path!r}; from traceanalyzer import workers; workers.serve()"
#: For small frames a handover between threads of polars takes longer than the work itself.
_ENVIRONMENT = {"POLARS_MAX_THREADS": "1"}


def each(
    function: Callable[[Any], Any], tasks: Sequence[Any], processes: int
) -> Generator[Any | None]:
    """Yield ``function(task)`` for each task, in order; None if the worker returned no result.

    That is the case if the task or its result cannot be pickled, the function raises, or the worker
    exits. The caller then runs the task itself and gets the error. The workers end with the
    generator: close it where not all results are taken.

    Args:
        function: a function at module level, which a worker imports.
        tasks: any picklable objects.
        processes: maximum number of workers; no more are started than there are tasks.
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
    """Run tasks until standard input is closed; anything printed goes to standard error."""
    gc.set_threshold(20_000, 20, 20)  # as in the command
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            function, task = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
        except EOFError:
            return
        output.write(_result(function, task))
        output.flush()


def _start() -> subprocess.Popen[bytes]:
    """Start a worker in a new session, so that Ctrl-C reaches only this process."""
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
        return pickle.load(worker.stdout)  # noqa: S301 - from our own worker
    except Exception:  # noqa: BLE001 - the caller runs the task itself
        return None


def _result(function: Callable[[Any], Any], task: Any) -> bytes:
    try:
        return pickle.dumps(function(task))
    except Exception:  # noqa: BLE001 - the caller runs the task itself and gets the error
        return pickle.dumps(None)
