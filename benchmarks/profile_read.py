"""Where a full read spends its time and memory: ``python -m benchmarks.profile_read FILE``.

Everything is done in one process, so that a stage's time is what it costs one core; what crosses a
pipe to a worker otherwise is packed and unpacked here too. A stage's time leaves out the stages
inside it. Its peak is the process's highest resident memory while it ran, with all that is held
meanwhile; ``kept`` is how much more is resident after the stage than before, over all calls.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceanalyzer import api
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.chrome_trace import (
    assemble,
    columns,
    container,
    extract,
    parser,
    pool,
    text,
    worker,
)
from traceanalyzer.parsers.chrome_trace.batch import Batch, pack, unpack

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"

#: The functions that are timed, in the order a piece of text meets them.
STAGES: list[tuple[Any, str]] = [
    (registry, "require"),
    (parser, "_read"),
    (text._PlainText, "read"),
    (container, "_cut"),
    (worker, "decode_quick"),
    (worker, "decode_events"),
    (worker, "extract"),
    (extract, "_slices"),
    (extract, "_device_columns"),
    (extract, "_collective_columns"),
    (extract, "_memory_columns"),
    (extract, "_rare_columns"),
    (extract, "_others"),
    (extract, "_flows"),
    (columns.Collected, "add"),
    (parser, "describe"),
    (assemble.Assembler, "__init__"),
    (assemble, "_time_order"),
    (assemble.Assembler, "_events"),
    (assemble.Assembler, "_kernels"),
    (assemble.Assembler, "_collectives"),
    (assemble.Assembler, "_memory"),
    (assemble.Assembler, "_flows"),
    (assemble.Assembler, "_counters"),
    (assemble.Assembler, "_lanes"),
    (parser, "issue_rows"),
    (parser, "Trace"),
]


@dataclass
class Stage:
    """What a stage has used so far: seconds and calls, bytes of memory."""

    name: str
    seconds: float = 0.0
    calls: int = 0
    peak: int = 0
    kept: int = 0


class Profile:
    """Stages that may run inside each other."""

    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}
        self._running: list[Stage] = []
        self._since = time.perf_counter()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, as a stage."""
        stage = self.stages.setdefault(name, Stage(name))

        @functools.wraps(function, updated=())
        def inner(*args: Any, **options: Any) -> Any:
            self._switch()
            before, _ = _memory()
            self._running.append(stage)
            try:
                return function(*args, **options)
            finally:
                self._switch()
                self._running.pop()
                stage.calls += 1
                stage.kept += _memory()[0] - before

        return inner

    def _switch(self) -> None:
        """Book the time and peak until now on the innermost stage; what encloses it shares it."""
        now = time.perf_counter()
        _, peak = _memory()
        if self._running:
            self._running[-1].seconds += now - self._since
        for stage in self._running:
            stage.peak = max(stage.peak, peak)
        _CLEAR.write_text(_RESET_PEAK)
        self._since = time.perf_counter()


def profile(path: str) -> list[Stage]:
    """Read a trace in this process; the functions stay wrapped, so do it in one of its own."""
    found = Profile()
    for owner, name in STAGES:
        label = f"{owner.__name__.rsplit('.', 1)[-1]}.{name}"
        setattr(owner, name, found.timed(label, getattr(owner, name)))
    packed, unpacked = found.timed("batch.pack", pack), found.timed("batch.unpack", unpack)
    process = found.timed("worker.process", worker.process)

    def through_a_pipe(*args: Any) -> Batch:
        batch: Batch = unpacked(packed(process(*args)))
        return batch

    replaced: list[tuple[Any, str, Any]] = [
        (pool, "process", through_a_pipe),
        (parser, "worker_count", lambda *_: 0),
    ]
    for module, name, function in replaced:
        setattr(module, name, function)
    read = found.timed("all else", api.read)
    trace = read(path)
    tables = sum(table.estimated_size() for table in trace.tables.values())
    print(f"{trace.events.height:,} events, tables of {tables / 1e6:.0f} MB")
    return list(found.stages.values())


def _memory() -> tuple[int, int]:
    """(resident bytes, highest since the last reset)."""
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return _bytes(fields["VmRSS"]), _bytes(fields["VmHWM"])


def _bytes(value: str) -> int:
    return int(value.split()[0]) * 1024


def main(path: str) -> None:
    """Print a line a stage."""
    stages = profile(path)
    print(f"{'stage':<34}{'calls':>6}{'seconds':>9}{'peak MB':>9}{'kept MB':>9}")
    for stage in stages:
        memory = f"{stage.peak / 1e6:>9.0f}{stage.kept / 1e6:>9.0f}"
        print(f"{stage.name:<34}{stage.calls:>6}{stage.seconds:>9.3f}{memory}")
    print(f"{'sum':<40}{sum(stage.seconds for stage in stages):>9.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
