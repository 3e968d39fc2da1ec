"""Cores and memory that this process may use, and the compiled parts of the installation."""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

#: Largest number of threads that read one file; more do not help.
_MAX_THREADS = 8
_CGROUPS = Path("/sys/fs/cgroup")
#: The package, and its compiled parts.
_PACKAGE = Path(__file__).parent
_COMPILED = {"_follow", "_frames", "_machine", "_pages", "_scan", "_wire"}


def not_compiled() -> str:
    """Return what an installation without compiled parts cannot do; empty if all are there."""
    libraries = (path for path in _PACKAGE.glob("*/*/_*") if path.suffix in {".so", ".pyd"})
    missing = _COMPILED - {path.name.partition(".")[0] for path in libraries}
    if not missing:
        return ""
    return (
        f"Compiled parts are missing ({', '.join(sorted(missing))}): reading is slower, "
        "without _wire no Perfetto trace is read, and without _follow nothing is replayed. Install "
        "a wheel, or a C compiler and reinstall."
    )


def cores() -> int:
    """Return the number of cores to use.

    That is the smallest of: the cores this process may run on, the CPU limits of its container or
    job (control groups), and ``SLURM_CPUS_PER_TASK``.
    """
    of_task = os.environ.get("SLURM_CPUS_PER_TASK", "")
    limit = int(of_task) if of_task.isdecimal() and int(of_task) else math.inf
    return max(1, math.ceil(min(_cores_of_process(), limit)))


@cache
def _cores_of_process() -> float:
    known = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    return min([float(allowed), *map(_quota, _cgroups())])


def threads() -> int:
    """Return the number of threads that read one file: POLARS_MAX_THREADS, else the cores."""
    given = os.environ.get("POLARS_MAX_THREADS", "")
    return min(int(given) if given.isdecimal() and int(given) else cores(), _MAX_THREADS)


def executor(number: int) -> Executor:
    """Return an executor of up to so many threads; none are started if :func:`threads` is 1.

    In a worker the caller is polars' only thread (:func:`traceanalyzer.run.workers.serve`): threads
    that use polars would wait for it while it waits for them.
    """
    return _Immediate() if threads() == 1 else ThreadPoolExecutor(number)


class _Immediate(Executor):
    """Runs each task when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised where the result is used
            future.set_exception(error)
        return future


def free_memory() -> float:
    """Return the bytes of memory that can still be used; infinite if unknown."""
    free = [math.inf]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        free.append(int(available.split()[1]) * 1024)
    for folder in _cgroups():
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):
                free.append(_number(folder / limit) - _number(folder / used))
    return max(0.0, min(free))


#: Of ``malloc.h``.
_M_MMAP_THRESHOLD = -3


def give_back() -> None:
    """Return freed memory to the system: glibc keeps it, and polars uses another allocator.

    Saves a fifth of the peak memory of a 1 GB trace (benchmarks/profile_read.py).
    """
    import ctypes

    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def return_large() -> None:
    """Let glibc return each freed array of 4 MiB and more at once, for large inputs."""
    import ctypes

    if sys.platform == "linux" and (option := getattr(ctypes.CDLL(None), "mallopt", None)):
        option(_M_MMAP_THRESHOLD, 4 << 20)


def _cgroups() -> Iterator[Path]:
    """Yield the folders of this process's control groups, version 2 and 1."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = _CGROUPS / controllers if controllers else _CGROUPS
        folder = root / path.lstrip("/")
        while folder != root:
            yield folder
            folder = folder.parent
        yield root


def _quota(folder: Path) -> float:
    """Return the cores that a control group may use; infinite without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota_us = _number(folder / "cpu.cfs_quota_us")
        return math.inf if quota_us <= 0 else quota_us / _number(folder / "cpu.cfs_period_us")
    return math.inf


def _number(file: Path) -> float:
    text = file.read_text(encoding="ascii").strip()
    return math.inf if text == "max" else int(text)
