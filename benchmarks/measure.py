"""Commands in fresh processes: how long they took, and the memory of all their processes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: What polars sets when it is imported.
_ALLOCATOR = "_RJEM_MALLOC_CONF"
_INTERVAL_S = 0.01
#: Proportional memory costs the kernel a walk through all pages: one sample in so many.
_PSS_EVERY = 10


@dataclass(frozen=True)
class Run:
    """One run of a command.

    Attributes:
        seconds: what the command says it took, else the wall time of its process.
        wall: wall time of its process.
        cpu: CPU time of all its processes, user and system.
        rows: what the command says it found, or None.
        peak_rss: highest sum of the resident bytes of all its processes; None: not sampled.
        peak_pss: the same, pages shared by n processes counted 1/n in each.
        error: the last line on standard error of a command that failed, else None.
    """

    seconds: float
    rows: int | None = None
    wall: float = 0
    cpu: float = 0
    peak_rss: int | None = None
    peak_pss: int | None = None
    error: str | None = None


def run(command: Sequence[str | Path], *, sample_memory: bool = False) -> Run:
    """Run a command to its end; sampling its memory costs time, so do one or the other."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start, used = time.perf_counter(), _cpu_of_children()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=_environment()
        )
        sampler = _Sampler(process.pid) if sample_memory else None
        status = process.wait()
        wall, cpu = time.perf_counter() - start, _cpu_of_children() - used
        peak_rss, peak_pss = sampler.stop() if sampler else (None, None)
        out.seek(0)
        err.seek(0)
        seconds, rows = _parsed(out.read()) or (wall, None)
        if status:
            lines = err.read().decode(errors="replace").strip().splitlines() or [""]
            return Run(wall, wall=wall, cpu=cpu, error=lines[-1] or f"status {status}")
    return Run(seconds, rows, wall, cpu, peak_rss, peak_pss)


def _cpu_of_children() -> float:
    """Return the CPU time of all processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _environment() -> dict[str, str]:
    """Return the environment of a shell, without the allocator settings of polars."""
    return {name: value for name, value in os.environ.items() if name != _ALLOCATOR}


def _parsed(output: bytes) -> tuple[float, int] | None:
    """Seconds and rows from the last line of a task's output; None for other commands."""
    last = output.strip().rsplit(b"\n", 1)[-1]
    if not last.startswith(b'{"seconds"'):
        return None
    result = json.loads(last)
    return result["seconds"], result["rows"]


class _Sampler(threading.Thread):
    """Sum of the memory of a process and its descendants until stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._ended = threading.Event()
        self._peak_rss = self._peak_pss = 0
        self.start()

    def run(self) -> None:
        samples = 0
        while not self._ended.wait(_INTERVAL_S):
            pids = _tree(self._pid)
            memory = [_memory(pid) for pid in pids]
            # the high-water mark of a process is exact, sampling may miss a spike
            highest = max((high for _, high in memory), default=0)
            self._peak_rss = max(self._peak_rss, sum(now for now, _ in memory), highest)
            if samples % _PSS_EVERY == 0:
                self._peak_pss = max(self._peak_pss, sum(map(_proportional, pids)))
            samples += 1

    def stop(self) -> tuple[int, int]:
        """Stop and return the peaks."""
        self._ended.set()
        self.join()
        return self._peak_rss, self._peak_pss


def _tree(pid: int) -> list[int]:
    """Return a process and its running descendants."""
    pids, at = [pid], 0
    while at < len(pids):
        with suppress(OSError):  # it has ended
            for children in Path(f"/proc/{pids[at]}/task").glob("*/children"):
                pids += map(int, _text(children).split())
        at += 1
    return pids


def _memory(pid: int) -> tuple[int, int]:
    """(resident bytes now, highest so far)."""
    fields = _fields(Path(f"/proc/{pid}/status"))
    return fields.get("VmRSS", 0), fields.get("VmHWM", 0)


def _proportional(pid: int) -> int:
    return _fields(Path(f"/proc/{pid}/smaps_rollup")).get("Pss", 0)


def _fields(path: Path) -> dict[str, int]:
    """The lines ``Name: 123 kB`` of a file of /proc, in bytes."""
    lines = (line.partition(":") for line in _text(path).splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines if value.endswith(" kB")}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
