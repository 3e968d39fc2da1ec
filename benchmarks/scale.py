"""Many ranks and large files: ``python -m benchmarks.scale [--large] [--only TEXT]``.

Runs each command once in a fresh process on two cores, with the memory of all its processes
sampled, and prints wall time, CPU time, peak memory and bar of each. ``make bench-scale`` also
writes the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from benchmarks import inputs, peers, report
from benchmarks.measure import Run, run
from benchmarks.report import table

CORES = 2
BEGIN, END = "<!-- begin: make bench-scale -->", "<!-- end: make bench-scale -->"
STRAGGLER = 300
KERNELS = 6_000_000
#: With ``--large``: the size of one trace, and the number of copies of another one, in MB.
LARGE_MB, SMALL_MB, COPIES = 10_000, 200, 100
#: Least share of the speed on the small trace.
STEADY = 0.85

_HERE = Path(__file__).parent
_TRACEANALYZER = [sys.executable, "-m", "traceanalyzer"]


@dataclass(frozen=True)
class Case:
    """A command on an input, and its bars; None: for comparison, or without a bar.

    Attributes:
        task: name of the command or of the peer.
        trace: the input, as text.
        command: what is run.
        seconds: most wall time.
        megabytes: most memory of all processes, in 10^6 bytes.
        like: (task, trace) and ratio of the sizes: the time of that case bounds this one.
    """

    task: str
    trace: str
    command: Sequence[str | Path]
    seconds: float | None = None
    megabytes: float | None = None
    like: tuple[str, str, float] | None = None


def cases(*, large: bool) -> Iterator[Case]:
    """Yield all cases; their inputs are made when they are needed."""
    few, many = "512 ranks of 12 KB", "1,024 ranks of 12 KB"
    folder = inputs.many_ranks(512, STRAGGLER)
    yield _command("comm-outliers", few, folder, 5)
    yield _command("gpu-idle", few, folder)
    yield _command("diagnose", few, folder, 25)
    yield from _peers(few, folder)
    yield _command("info", many, inputs.many_ranks(1024, STRAGGLER), 10)
    combine = [sys.executable, "-m", "benchmarks.many_ranks", "--ranks", "1024"]
    yield Case("combine", "1,024 ranks, 2,000 collectives, 10 groups", combine, 30, 3000)
    if why := inputs.missing():
        print(f"no large files are measured: {why}", file=sys.stderr)
        return
    export, what = inputs.nsys_export(KERNELS), f"export of {KERNELS:,} kernels"
    yield _command("kernels", what, export)
    yield _command("gpu-idle", what, export, 6, 1500)
    yield _command("diagnose", what, export, 15, 2000)
    trace, what = inputs.generated(SMALL_MB), f"Kineto JSON of {SMALL_MB} MB"
    yield _command("diagnose", what, trace, 2.2)
    if large:
        yield from _large()


def _large() -> Iterator[Case]:
    """Yield one large trace, and many of medium size, beside one of them."""
    whole, what = inputs.few_kernels(LARGE_MB), f"trace of {LARGE_MB:,} MB, few kernels"
    small, short = inputs.few_kernels(SMALL_MB), f"trace of {SMALL_MB} MB, few kernels"
    for name, megabytes in (("comm-outliers", 300), ("diagnose", 1200)):
        yield _command(name, short, small)
        like = (name, short, LARGE_MB / SMALL_MB)
        yield _command(name, what, whole, megabytes=megabytes, like=like)
    folder = inputs.ranks_of(inputs.generated(SMALL_MB), COPIES)
    single, what = f"Kineto JSON of {SMALL_MB} MB", f"{COPIES} ranks of {SMALL_MB} MB"
    yield _command("comm-outliers", single, inputs.generated(SMALL_MB))
    for name in ("comm-outliers", "diagnose"):
        # a worker per core
        like = (name, single, COPIES / CORES)
        yield _command(name, what, folder, megabytes=1200 * CORES, like=like)
    yield from _peers(what, folder)


def _command(
    name: str,
    what: str,
    path: Path,
    seconds: float | None = None,
    megabytes: float | None = None,
    like: tuple[str, str, float] | None = None,
) -> Case:
    return Case(name, what, [*_TRACEANALYZER, name, "-q", path], seconds, megabytes, like)


def _peers(what: str, folder: Path) -> Iterator[Case]:
    """Yield a plain loop over orjson in one process per core, and HTA's loader."""
    tasks = _HERE / "tasks.py"
    python = Path(sys.executable) if find_spec("orjson") else peers.PYTHON
    yield Case("`multiprocessing` and orjson", what, [python, "-I", tasks, "orjson_pool", folder])
    yield Case("HTA's loader", what, [peers.PYTHON, "-I", tasks, "hta", folder])


def measured(planned: Iterator[Case], only: str = "") -> Iterator[Sequence[str]]:
    """Run the cases and yield the rows of the table."""
    seconds: dict[tuple[str, str], float] = {}
    for case in planned:
        if only not in f"{case.task} {case.trace}":
            continue
        python = Path(case.command[0])
        lacks = None if python.is_file() else "not installed: no environment of peers"
        done = Run(0, error=lacks) if lacks else _run(case.command)
        seconds[case.task, case.trace] = done.wall
        limit = case.seconds
        if case.like and case.like[:2] in seconds:
            limit = round(seconds[case.like[:2]] * case.like[2] / STEADY, 1)
        print(f"{case.task}, {case.trace}: {done.error or f'{done.wall:.1f} s'}", file=sys.stderr)
        yield _row(case, done, limit)


def _run(command: Sequence[str | Path]) -> Run:
    """Run a command for its time, and again for its memory, which costs time to sample."""
    done = run(command)
    return done if done.error else replace(done, peak_rss=run(command, sample_memory=True).peak_rss)


def _row(case: Case, done: Run, limit: float | None) -> Sequence[str]:
    name = case.task if " " in case.task else f"`{case.task}`"
    if done.error or done.peak_rss is None:
        return name, case.trace, f"failed: {done.error}".replace("|", "\\|"), "", "", "", ""
    peak = done.peak_rss / 1e6
    bars = [f"{value:,g} {unit}" for value, unit in ((limit, "s"), (case.megabytes, "MB")) if value]
    met = done.wall <= (limit or done.wall) and peak <= (case.megabytes or peak)
    return (
        name,
        case.trace,
        f"{done.wall:.2f}",
        f"{done.cpu:.2f}",
        f"{peak:,.0f}",
        ", ".join(bars),
        ("met" if met else "**missed**") if bars else "",
    )


def main() -> None:
    """Measure, print, and write the table into the documentation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--large", action="store_true", help="also 10 GB and 100 files of 200 MB")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains it")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)  # and all processes started from here
    before = os.getloadavg()[0]
    rows = list(measured(cases(large=given.large), given.only))
    headings = ("task", "input", "wall, s", "CPU, s", "memory, MB", "bar", "")
    text = (
        f"Taken {datetime.now(UTC):%Y-%m-%d}; {len(cores)} of {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; load average {before:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after; a run for the time and one for the memory.\n\n"
        + table("<<>>><<", headings, rows)
        + "\n"
    )
    print(text)
    if given.write:
        report.include(text, markers=(BEGIN, END))


if __name__ == "__main__":
    main()
