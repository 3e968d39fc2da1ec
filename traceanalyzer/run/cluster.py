"""Run tasks on the workers of a Dask cluster (extra ``dask``).

A local cluster, one that runs already, or one that dask-jobqueue starts in SLURM. The workers need
this package in the same version, and the input files under the same paths.
"""

import os
import platform
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from traceanalyzer.errors import MissingExtra, OptionError
from traceanalyzer.run.workers import Ended

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


def each(
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
