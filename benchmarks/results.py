"""Measurements as data and as a file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.measure import Run

FOLDER = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Measurement:
    """One task on one input, run several times.

    Attributes:
        task: what was run.
        trace: the input's name, or None.
        size: its decompressed bytes, or None.
        seconds: the time of each run.
        rows: rows reported by the task.
        peak_rss: highest sum of the resident bytes of all its processes, in a run of its own.
        peak_pss: the same, shared pages divided among their users.
        error: why there is no time.
    """

    task: str
    trace: str | None
    size: int | None
    seconds: list[float]
    rows: int | None = None
    peak_rss: int | None = None
    peak_pss: int | None = None
    error: str | None = None

    @property
    def best(self) -> float | None:
        """The shortest time."""
        return min(self.seconds, default=None)

    @property
    def median(self) -> float | None:
        """The time in the middle."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def megabytes_per_second(self) -> float | None:
        """Decompressed text per second, in 10^6 bytes."""
        return self.size / 1e6 / self.best if self.size and self.best else None


@dataclass(frozen=True)
class Results:
    """Everything of one run of the benchmark.

    Attributes:
        taken: when, UTC.
        machine: processor, cores used, kernel, Python.
        versions: of us and of the peers.
        load: the machine's load average before and after; beyond the cores used it was not alone.
        measurements: in the order they are shown.
    """

    taken: str
    machine: dict[str, str]
    versions: dict[str, str]
    load: tuple[float, float]
    measurements: list[Measurement]

    def best(self, task: str, trace: str | None = None) -> float | None:
        """The shortest time of a task on an input, or None: not measured."""
        measurement = self.find(task, trace)
        return measurement.best if measurement else None

    def find(self, task: str, trace: str | None = None) -> Measurement | None:
        """The measurement of a task on an input."""
        same = (m for m in self.measurements if (m.task, m.trace) == (task, trace))
        return next(same, None)

    def of(self, *tasks: str) -> list[Measurement]:
        """All measurements of some tasks."""
        return [m for m in self.measurements if m.task in tasks]


def joined(
    task: str, trace: str | None, size: int | None, timed: Iterable[Run], sampled: Run | None
) -> Measurement:
    """Several runs as one measurement."""
    runs = list(timed)
    every = runs if sampled is None else [*runs, sampled]
    return Measurement(
        task,
        trace,
        size,
        seconds=[run.seconds for run in runs if run.error is None],
        rows=next((run.rows for run in runs), None),
        peak_rss=sampled.peak_rss if sampled else None,
        peak_pss=sampled.peak_pss if sampled else None,
        error=next((run.error for run in every if run.error), None),
    )


def save(results: Results, path: Path) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def load(path: Path) -> Results:
    """The results :func:`save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Results)
