"""Run tasks in worker processes or on a Dask cluster, for inputs of several files or ranks.

Analyzing a file needs many short Python calls that block on the GIL, so threads do not help. A
worker reads pickled tasks from its standard input and writes pickled results to its standard
output; this module is both ends. A worker exits when its standard input is closed.
"""

import gc
import os
import pickle
import platform
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import polars as pl

from traceanalyzer.errors import MissingExtra, OptionError
from traceanalyzer.parsers.registry import has_plug_ins

#: Same import path as this process; ``-P`` keeps the working directory out of it.
_COMMAND = (
    "import sys; sys.path[:] = {path!r}; from traceanalyzer.run import workers; workers.serve()"
)
#: Exit status of a worker without memory.
_NO_MEMORY = 12
_OUT_OF_MEMORY = ", probably out of memory"
_SOON_SECONDS = 5


@dataclass(frozen=True)
class Ended:
    """A worker that ended during a task.

    Attributes:
        why: for a sentence: ``was killed (SIGKILL)``.
    """

    why: str


def each(
    function: Callable[[Any], Any], tasks: Sequence[Any], number: int, *, threads: int = 1
) -> Generator[Any | Ended | None]:
    """Yield ``function(task)`` for each task, in order.

    None if the worker returned no result, because the task or its result cannot be pickled or the
    function raises: the caller then runs the task itself and gets the error. :class:`Ended` if the
    worker ended; another one takes its place. The workers end with the generator: close it where
    not all results are taken.

    Args:
        function: a function at module level, which a worker imports.
        tasks: any picklable objects.
        number: maximum number of workers; no more are started than there are tasks.
        threads: threads per worker. More than one only slow down the work on small frames.
    """
    started = [_start(threads) for _ in range(min(number, len(tasks)))]
    free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    for worker in started:
        free.put(worker)
    ending, closed = threading.Lock(), False

    def ask(task: Any) -> Any | Ended | None:
        worker = free.get()
        try:
            return _ask(worker, function, task)
        except (EOFError, OSError, pickle.UnpicklingError):  # its answer ends early
            ended = _ended(worker)
            with ending:
                if not closed:
                    worker = _start(threads)
                    started.append(worker)
            return ended
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(max(len(started), 1))
    try:
        yield from pool.map(ask, tasks)
    finally:
        with ending:
            closed = True
        for worker in started:
            worker.kill()
            worker.communicate()
        pool.shutdown(cancel_futures=True)


def serve() -> None:
    """Run tasks until standard input is closed; anything printed goes to standard error."""
    gc.set_threshold(20_000, 20, 20)  # as in the command
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if pl.thread_pool_size() == 1 and not has_plug_ins():
        _on_polars_thread(partial(_serve, output))
    else:
        _serve(output)


def _on_polars_thread(function: Callable[[], None]) -> None:
    """Call a function on the only thread of polars.

    A join of a few rows takes 20 us there, but 300 us in another thread, which has to wait for
    polars' thread again and again. The function must not wait for threads that use polars.
    """

    def call(column: pl.Series) -> pl.Series:
        function()
        return column

    # of two expressions, polars evaluates each on a thread of its own
    pl.select(pl.lit(0, pl.Int64).map_batches(call, pl.Int64), pl.lit(0).alias("other"))


def _serve(output: BinaryIO) -> None:
    while True:
        try:
            function, task = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
        except EOFError:
            return
        output.write(_result(function, task))
        output.flush()


def _start(threads: int) -> subprocess.Popen[bytes]:
    """Start a worker in a new session, so that Ctrl-C reaches only this process."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _COMMAND.format(path=sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "POLARS_MAX_THREADS": str(threads)},
        start_new_session=True,
    )


def _ask(worker: subprocess.Popen[bytes], function: Callable[[Any], Any], task: Any) -> Any | None:
    """Return the answer of a worker.

    Raises:
        OSError: the worker does not take the task.
        EOFError: it ended.
        UnpicklingError: it ended while it answered.
    """
    if worker.stdin is None or worker.stdout is None:
        return None
    try:
        message = pickle.dumps((function, task))
    except Exception:  # noqa: BLE001 - the caller runs the task itself
        return None
    worker.stdin.write(message)
    worker.stdin.flush()
    return pickle.load(worker.stdout)  # noqa: S301 - from our own worker


def _ended(worker: subprocess.Popen[bytes]) -> Ended:
    """Return how a worker ended; end it if it still runs."""
    try:
        status = worker.wait(timeout=_SOON_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        status = worker.wait()
    if status >= 0:
        return Ended("ran out of memory" if status == _NO_MEMORY else f"ended ({status})")
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return Ended(f"was killed ({name}{_OUT_OF_MEMORY if status == -signal.SIGKILL else ''})")


def _result(function: Callable[[Any], Any], task: Any) -> bytes:
    try:
        return pickle.dumps(function(task))
    except MemoryError:
        os._exit(_NO_MEMORY)
    except Exception:  # noqa: BLE001 - the caller runs the task itself and gets the error
        return pickle.dumps(None)


#: Seconds to wait for the scheduler of a cluster.
_WAIT_SECONDS = 30


@contextmanager
def connected(address: str | None = None, file: str | None = None) -> Generator[Any]:
    """Connect to a cluster; disconnect at the end.

    Args:
        address: of the scheduler, such as ``tcp://node1:8786``.
        file: scheduler file, as ``dask scheduler --scheduler-file`` writes it. Without address and
            file a cluster on this machine is started, one worker per core, and ended.

    Raises:
        MissingExtra: Dask is not installed.
        OptionError: the scheduler does not answer, or its workers have another version of this
            package.
    """
    try:
        import distributed
    except ImportError as error:
        raise MissingExtra("a Dask cluster", "distributed") from error
    start: Any = distributed  # its functions have no types
    if address is None and file is None:
        from traceanalyzer.machine import cores

        with (
            start.LocalCluster(
                n_workers=cores(),
                threads_per_worker=1,
                processes=True,
                dashboard_address="127.0.0.1:0",
            ) as cluster,
            start.Client(cluster) as client,
        ):
            yield client
        return
    where = address or file
    if file and not os.path.exists(file):  # noqa: PTH110
        raise OptionError(f"{file}: no such scheduler file")
    try:
        client = start.Client(address=address, scheduler_file=file, timeout=_WAIT_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        raise OptionError(f"{where}: no Dask scheduler answers there") from error
    with client:
        _check_versions(client)
        yield client


def each_on_cluster(
    client: Any, function: Callable[[Any], Any], tasks: Sequence[Any]
) -> Generator[Any | Ended | None]:
    """Yield ``function(task)`` for each task, in order, computed by the workers of a cluster.

    As :func:`~traceanalyzer.run.workers.each`: None if the function raised an error,
    :class:`Ended` if workers ended during the task; the scheduler has tried others before.

    Args:
        client: a ``distributed.Client``.
        function: a function at module level.
        tasks: any picklable objects.
    """
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    futures = [client.submit(function, task, pure=False) for task in tasks]
    try:
        for future in futures:
            try:
                answer = future.result()
            except (KilledWorker, FutureCancelledError):
                answer = Ended("ended on several workers of the cluster, probably out of memory")
            except Exception:  # noqa: BLE001 - the caller runs the task itself and gets the error
                answer = None
            future.release()
            yield answer
    finally:
        client.cancel(futures)


def unseen(path: str) -> str | None:
    """Return why a worker cannot read an input file of the caller; None if it can."""
    if os.path.exists(path):  # noqa: PTH110
        return None
    return f"not visible on {platform.node()}; put it on a file system of all workers"


def _version() -> str:
    import traceanalyzer

    return traceanalyzer.__version__


def _check_versions(client: Any) -> None:
    """Check that the workers that have joined the cluster have this version of the package.

    Raises:
        OptionError: they do not.
    """
    try:
        versions = client.run(_version)
    except Exception as error:
        raise OptionError(
            "the workers of the Dask cluster cannot import traceanalyzer; install it in their "
            "environment"
        ) from error
    for worker, version in versions.items():
        if version != _version():
            raise OptionError(
                f"the Dask worker {worker} has traceanalyzer {version}, not {_version()}"
            )
