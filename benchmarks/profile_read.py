"""Where a full read spends its time and memory: ``python -m benchmarks.profile_read FILE``.

The file is read twice, in one thread each: by the profiler, which tells the functions worth a
closer look (few calls, much time), then with those functions as stages. Processor time tells what
a stage costs, also when the machine is busy otherwise. A stage's times leave out the stages inside
it. Its peak is the process's highest resident memory while it ran, with all that is held meanwhile;
``kept`` is how much more is resident after it than before, over all calls.
"""

from __future__ import annotations

import cProfile
import functools
import inspect
import pstats
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import traceanalyzer as ta
from traceanalyzer.parsers.chrome_trace import reader  # noqa: F401 - else it is loaded late

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
#: A stage costs its caller some 0.1 ms a call.
_MOST_CALLS = 2000
_LEAST_SECONDS = 0.005

Place = tuple[str, int]  # a function's file and first line


@dataclass
class Stage:
    """What a stage has used so far: wall and processor time, calls, bytes of memory."""

    name: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    calls: int = 0
    peak: int = 0
    kept: int = 0


class Stages:
    """Stages that may run inside each other."""

    def __init__(self) -> None:
        self.all: list[Stage] = []
        self._running: list[Stage] = []
        self._since = _clocks()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, as a stage."""
        stage = Stage(name)
        self.all.append(stage)

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
        """Book the time until now on the innermost stage, the peak on all that are running."""
        (wall, cpu), (wall_before, cpu_before) = _clocks(), self._since
        _, peak = _memory()
        if self._running:
            self._running[-1].seconds += wall - wall_before
            self._running[-1].cpu_seconds += cpu - cpu_before
        for stage in self._running:
            stage.peak = max(stage.peak, peak)
        _CLEAR.write_text(_RESET_PEAK)
        self._since = _clocks()


class _Here:
    """A pool of threads that has none: everything is done when it is submitted."""

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done

    def shutdown(self, **_: bool) -> None:
        pass

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def profile(path: str) -> list[Stage]:
    """Read a trace; the functions stay wrapped, so do it in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        places = apart.submit(worth_timing, path).result()
    stages = Stages()
    _replace(ThreadPoolExecutor, _Here)
    for name, function in list(_functions()):
        if inspect.isbuiltin(function) or _place(function) in places:
            _replace(function, stages.timed(name, function))
    trace = stages.timed("all else", ta.read)(path)
    tables = sum(table.estimated_size() for table in trace.tables.values())
    print(f"{trace.events.height:,} events, tables of {tables / 1e6:.0f} MB")
    return sorted(stages.all, key=lambda stage: -stage.cpu_seconds)


def worth_timing(path: str) -> set[Place]:
    """Places of the functions that take long in few calls."""
    _replace(ThreadPoolExecutor, _Here)
    profiler = cProfile.Profile()
    profiler.runcall(ta.read, path)
    stats: dict[Any, Any] = vars(pstats.Stats(profiler))["stats"]
    return {
        (file, line)
        for (file, line, _), (_, calls, _, seconds, _) in stats.items()
        if calls <= _MOST_CALLS and seconds >= _LEAST_SECONDS
    }


def _functions() -> Iterator[tuple[str, Any]]:
    """The package's functions and methods that return when they are done; compiled ones too."""
    for module in _modules():
        owners = [module, *filter(inspect.isclass, vars(module).values())]
        for owner in owners:
            for name, function in vars(owner).items():
                callable_ = inspect.isfunction(function) or inspect.isbuiltin(function)
                defined_here = callable_ and function.__module__ == module.__name__
                if defined_here and not inspect.isgeneratorfunction(function):
                    yield f"{owner.__name__.rpartition('.')[2]}.{name}", function


def _replace(old: Any, new: Any) -> None:
    """Another object wherever the package names this one."""
    for module in _modules():
        for owner in (module, *filter(inspect.isclass, vars(module).values())):
            for name in [name for name, value in vars(owner).items() if value is old]:
                setattr(owner, name, new)


def _modules() -> list[Any]:
    return [module for name, module in sys.modules.items() if name.startswith("traceanalyzer")]


def _place(function: Any) -> Place:
    return function.__code__.co_filename, function.__code__.co_firstlineno


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _memory() -> tuple[int, int]:
    """(resident bytes, highest since the last reset)."""
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return _bytes(fields["VmRSS"]), _bytes(fields["VmHWM"])


def _bytes(value: str) -> int:
    return int(value.split()[0]) * 1024


def main(path: str) -> None:
    """Print a line a stage."""
    stages = profile(path)
    print(f"{'stage':<34}{'calls':>6}{'wall s':>9}{'cpu s':>9}{'peak MB':>9}{'kept MB':>9}")
    for stage in filter(lambda stage: stage.calls, stages):
        memory = f"{stage.peak / 1e6:>9.0f}{stage.kept / 1e6:>9.0f}"
        print(f"{stage.name:<34}{stage.calls:>6}{_times(stage)}{memory}")
    total = Stage("sum", sum(s.seconds for s in stages), sum(s.cpu_seconds for s in stages))
    print(f"{total.name:<40}{_times(total)}")


def _times(stage: Stage) -> str:
    return f"{stage.seconds:>9.3f}{stage.cpu_seconds:>9.3f}"


if __name__ == "__main__":
    main(sys.argv[1])
