"""The benchmark: ``python -m benchmarks.run [NAME]``, ``make bench``.

Makes its inputs and its peers' environment, runs every task in a fresh process three times, in
turn, so that a slow minute of the machine hits all of them, then once more with the memory of all
its processes sampled. Prints the tables and writes them to ``results/NAME.json``, into RESULTS.md,
and a summary into docs/performance.md.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks import inputs, peers, report, results
from benchmarks.inflate import LIBRARIES
from benchmarks.measure import Run, run
from benchmarks.results import Measurement, Results
from benchmarks.routes import ROUTES
from benchmarks.tasks import COMMANDS
from traceanalyzer import __version__

CORES = 2
ROUNDS = 3
SIZES_MB = (200, 1000)
#: Kernels in exports of nsys: 100 MB and 1.4 GB.
EXPORTS = (420_000, 6_000_000)
#: Events in memory snapshots.
SNAPSHOTS = (100_000, 1_000_000, 5_000_000)

#: What is timed on so many synthetic rows in memory.
ALGEBRA = ("union", "gaps", "nest", "link")
ROWS = 10_000_000

_HERE = Path(__file__).parent
_OURS = Path(sys.executable)
_COMMAND = _OURS.with_name("traceanalyzer")


@dataclass(frozen=True)
class Case:
    """A task on an input, and the command that runs it; ``memory`` where that is of interest."""

    task: str
    trace: Path | None
    command: Sequence[str | Path]
    memory: bool = False


def cases(sizes_mb: Sequence[int] = SIZES_MB) -> list[Case]:
    """Everything that is measured; without generators only what needs no input."""
    cases = [
        Case("--help", None, [_COMMAND, "--help"]),
        *(
            Case(f"imports for {command}", None, _task(_OURS, f"imports_for_{command}", "-"))
            for command in COMMANDS
        ),
        *(Case(name, None, _task(_OURS, name, str(ROWS))) for name in ALGEBRA),
    ]
    if reason := inputs.missing():
        print(f"only starting is measured: {reason}", file=sys.stderr)
        return cases
    cases.append(_comm_outliers(inputs.generated(1)))
    for megabytes in sizes_mb:
        for make in (inputs.generated, inputs.replicated):
            cases += _readers(make(megabytes))
    for make in (inputs.generated, inputs.replicated):
        for command in sorted(set(COMMANDS) - {"comm-outliers"}):
            cases += _command(command, make(sizes_mb[0]))
    cases.append(_comm_outliers(inputs.few_kernels(sizes_mb[-1])))
    cases += _stack_readers(inputs.deep_stacks(300), inputs.shallow_stacks(2_000_000))
    cases += _nsys(inputs.nsys_export(EXPORTS[0]), ["kernels"])
    cases += _nsys(inputs.nsys_export(EXPORTS[1]), ["kernels", "gpu-idle", "annotations"])
    for events in SNAPSHOTS:
        cases += _snapshots(inputs.snapshot(events), page=events == SNAPSHOTS[1])
    small = inputs.generated(sizes_mb[0])
    cases += _whole(small, inputs.replicated(sizes_mb[0]))
    cases += _whole(inputs.nsys_export(EXPORTS[0]), inputs.nsys_export(EXPORTS[0]))
    cases.append(Case("HTA", small, _task(peers.PYTHON, "hta", _alone(small)), memory=True))
    for megabytes in sizes_mb:
        for make in (inputs.generated, inputs.replicated):
            cases += _inflaters(inputs.gzipped(make(megabytes)))
    for path in inputs.recordings():
        cases += _inflaters(path)
    cases += [Case(name, small, [_OURS, "-I", _HERE / "routes.py", name, small]) for name in ROUTES]
    return cases


def _nsys(path: Path, commands: Sequence[str]) -> list[Case]:
    return [
        Case("ADBC, bare columns", path, _task(_OURS, "adbc_columns", path), memory=True),
        Case("pandas", path, _task(peers.PYTHON, "pandas_kernels", path), memory=True),
        *(Case(name, path, [_COMMAND, name, path], memory=True) for name in commands),
    ]


def _whole(path: Path, other: Path) -> list[Case]:
    """The commands that make every analysis."""
    page = inputs.FOLDER / "report.html"
    return [
        Case("diagnose", path, [_COMMAND, "diagnose", path], memory=True),
        Case("report", path, [_COMMAND, "report", path, "-o", page, "--force"], memory=True),
        Case("diff", path, [_COMMAND, "diff", path, other], memory=True),
    ]


def _snapshots(path: Path, *, page: bool) -> list[Case]:
    """Loading beside bare unpickling; drawing beside PyTorch's own viewer."""
    cases = [
        Case("pickle.load", path, _task(_OURS, "pickle_load", path), memory=True),
        Case("read snapshot", path, _task(_OURS, "read_snapshot", path), memory=True),
        Case("memory", path, [_COMMAND, "memory", path], memory=True),
    ]
    if not page:
        return cases
    cases.append(Case("memory page", path, _task(_OURS, "memory_page", path), memory=True))
    if peers.install_torch():
        viewer = _task(peers.TORCH_PYTHON, "trace_plot", path)
        cases.append(Case("trace_plot", path, viewer, memory=True))
    return cases


def _readers(path: Path) -> list[Case]:
    return [
        Case("orjson.loads", path, _task(peers.PYTHON, "orjson_loads", path), memory=True),
        Case("read", path, _task(_OURS, "read", path), memory=True),
        *_command("comm-outliers", path),
    ]


def _command(command: str, path: Path) -> list[Case]:
    """Reading what a command needs, and all of it."""
    task = _task(_OURS, f"read_for_{command}", path)
    return [
        Case(f"read for {command}", path, task, memory=True),
        Case(command, path, [_COMMAND, command, path], memory=True),
    ]


def _stack_readers(deep: Path, shallow: Path) -> list[Case]:
    peer = _task(peers.PYTHON, "itwinai_report", deep)
    script = peers.flamegraph_pl()
    drawn = [Case("flamegraph.pl", deep, ["perl", script, deep], memory=True)] if script else []
    return [
        *drawn,
        Case("plain loop", deep, _task(_OURS, "plain_loop", deep), memory=True),
        Case("itwinai", deep, peer, memory=True),
        *(_py_spy_report(path) for path in (deep, shallow)),
        Case("flamegraph", deep, _flamegraph(deep), memory=True),
    ]


def _py_spy_report(path: Path) -> Case:
    options = ["--library-name", "torch", "--aggregate-leaf-paths"]
    return Case("py-spy-report", path, [_COMMAND, "py-spy-report", path, *options], memory=True)


def _flamegraph(path: Path) -> list[str | Path]:
    return [_COMMAND, "flamegraph", path, "-o", inputs.FOLDER / "flamegraph.svg", "--force"]


def _inflaters(path: Path) -> list[Case]:
    script = _HERE / "inflate.py"
    bare = [
        Case(f"inflate {library}", path, [peers.PYTHON, "-I", script, library, path])
        for library in LIBRARIES
    ]
    return [*bare, _comm_outliers(path)]


def _comm_outliers(path: Path) -> Case:
    return Case("comm-outliers", path, [_COMMAND, "comm-outliers", path], memory=True)


def _task(python: Path, name: str, argument: str | Path) -> list[str | Path]:
    return [python, "-I", _HERE / "tasks.py", name, argument]


def _alone(path: Path) -> Path:
    """A folder that holds nothing but this trace, for HTA."""
    folder = inputs.FOLDER / f"{path.stem}_alone"
    folder.mkdir(exist_ok=True)
    link = folder / path.name
    if not link.is_symlink():
        link.symlink_to(path)
    return folder


def measure(planned: Sequence[Case], rounds: int) -> list[Measurement]:
    """Run all cases in turn, ``rounds`` times, then once more for memory; a failed one stops."""
    timed: list[tuple[Case, list[Run]]] = [(case, []) for case in planned]
    for number in range(rounds):
        for case, runs in timed:
            if not any(done.error for done in runs):
                runs.append(run(case.command))
                _report(f"{number + 1}/{rounds}", case, runs[-1])
    measurements = []
    for case, runs in timed:
        sampled = None
        if case.memory and not any(done.error for done in runs):
            sampled = run(case.command, sample_memory=True)
            _report("memory", case, sampled)
        name = case.trace.name if case.trace else None
        measurements.append(results.joined(case.task, name, _text_size(case.trace), runs, sampled))
    return measurements


def _report(stage: str, case: Case, done: Run) -> None:
    what = f"{case.task} {case.trace.name if case.trace else ''}"
    print(f"{stage}: {what}: {done.error or f'{done.seconds:.3f} s'}", file=sys.stderr)


def _text_size(path: Path | None) -> int | None:
    """Decompressed bytes; gzip notes them in its last four bytes, modulo 4 GiB."""
    if path is None or path.suffix != ".gz":
        return path.stat().st_size if path else None
    with path.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(), "little")


def _machine(cores: Iterable[int]) -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return {
        "processor": model or platform.machine(),
        "cores": f"{len(set(cores))} of {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"Python {platform.python_version()}",
    }


def main(name: str, rounds: int = ROUNDS) -> None:
    """Measure, print, write."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)  # and all processes started from here
    if not inputs.missing():
        peers.install()
    planned = cases()
    before = os.getloadavg()[0]
    measurements = measure(planned, rounds)
    measured = Results(
        taken=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=_machine(cores),
        versions={"traceanalyzer": __version__}
        | {library: version(library) for library in ("polars", "msgspec")}
        | (peers.versions() if not inputs.missing() else {}),
        load=(before, os.getloadavg()[0]),
        measurements=measurements,
    )
    results.save(measured, results.FOLDER / f"{name}.json")
    print(report.write(measured))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else __version__)
