"""The registry of all commands: analyzers, and tools that write or serve.

Commands, Python functions, public names, methods of ``Trace``, sections of a report and the
reference are generated from it. It contains names and texts only: modules are imported on use.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceanalyzer.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

    from traceanalyzer.analyzers.base import Analyzer, AnalyzerOptions


#: Groups of commands, in the order of ``--help``.
GROUPS = ("Start here", "Time", "Communication", "Memory", "Code", "Files")

#: Replays the run for the gains of findings; no section of a report.
REPLAY = "what_if_replay"
#: Analyzers whose parts of the same inputs others use in a report.
COMPANIONS = {"comm_outliers": "memory_usage"}

#: Other packages register an :class:`Entry` under this entry-point group, by its name.
ENTRY_POINTS = "traceanalyzer.analyzers"


@dataclass(frozen=True)
class Command:
    """Registry entry of a command, and of the public names that belong to it.

    Attributes:
        name: name of the command, with underscores.
        summary: one line for the list of commands.
        group: group in the list of commands, one of :data:`GROUPS`.
        examples: arguments of two example command lines, for the help of the command.
        module: module or package of the command; default: ``traceanalyzer.tools.NAME``.
        functions: public functions.
        result: public result class, or several separated by spaces; ``file:Name`` if it is in a
            module of the package ``module``.
        method: whether the functions are methods of a trace too.
        command: name on the command line; default: ``name`` with hyphens.
        cli: module of the command in ``traceanalyzer.cli``; default: ``name``.
        code: module of the public functions; default: ``module``.
    """

    name: str
    summary: str = ""
    group: str = "Files"
    examples: tuple[str, ...] = ()
    module: str = ""
    functions: tuple[str, ...] = ()
    result: str | None = None
    method: bool = False
    command: str = ""
    cli: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        self._set(module=self.module or f"traceanalyzer.tools.{self.name}")
        self._set(code=self.code or self.module)
        self._set(command=self.command or self.name.replace("_", "-"), cli=self.cli or self.name)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def public_names(self) -> dict[str, str]:
        """Return the module of each public name."""
        classes = (one.rpartition(":") for one in (self.result or "").split())
        modules = {name: f"{self.module}.{file}".rstrip(".") for file, _, name in classes}
        return {**dict.fromkeys(self.functions, self.code), **modules}


@dataclass(frozen=True)
class Entry(Command):
    """Registry entry of an analyzer.

    The ``__init__.py`` of the analyzer's package contains the options class and imports nothing
    heavy, to keep ``--help`` fast; its ``compute.py`` contains the public function and the
    :class:`~traceanalyzer.analyzers.base.Analyzer`, named like the function in capitals. A small
    analyzer may be one file.

    Attributes:
        name: name of the Python function.
        module: package of the analyzer; default: ``traceanalyzer.analyzers.NAME``.
        functions: further public functions.
        result: public result class, in ``MODULE.result`` if no file is given; default: like the
            name. Empty for none.
        cli: module of a command that is written by hand.
        section: heading in a report, or None for an analyzer that is not in reports.
        plot: content of ``--plot``, or None for a command without this option.
        code: module of analyzer and functions; default: ``MODULE.compute``.
        options: module and name of the options class; default: ``MODULE:Options``.
        hidden: whether the analyzer is only used by others, without a command or function.
        one_file: function, options, analyzer and result are all in ``module``.
        variants: analyzers that are options of the command (``memory --oom``) with a function each
            (``memory_oom``), in modules of the package, and their sections in a report.
        helpers: hidden analyzers in modules of the package.
        package: package that adds the analyzer; empty for a built-in one.
    """

    group: str = "Time"
    examples: tuple[str, ...] = ("run/", "run/ --rank 5 --top all")
    method: bool = True
    section: str | None = None
    plot: str | None = None
    options: str = ""
    hidden: bool = False
    one_file: bool = False
    variants: Mapping[str, str | None] = field(default_factory=dict)
    helpers: tuple[str, ...] = ()
    package: str = ""

    def __post_init__(self) -> None:
        module = self.module or f"traceanalyzer.analyzers.{self.name}"
        code, file = ("", "") if self.one_file else (".compute", "result:")
        titled = "".join(map(str.capitalize, self.name.split("_")))
        result = titled if self.result is None else self.result
        self._set(
            module=module,
            functions=() if self.hidden else (self.name, *self.functions),
            result=result if ":" in result else result and file + result,
            command=self.command or self.name.replace("_", "-"),
            code=self.code or f"{module}{code}",
            options=self.options or f"{module}:Options",
        )

    def expanded(self) -> Iterator[Entry]:
        """Yield the entry, and those of the other analyzers of its package."""
        yield self
        for name, section in (*self.variants.items(), *((name, None) for name in self.helpers)):
            yield Entry(
                f"{self.name}_{name}",
                section=section,
                command=f"{self.command} --{name}" if name in self.variants else "",
                module=self.module,
                code=f"{self.module}.{name}",
                options=f"{self.module}:{name.capitalize()}Options",
                hidden=name in self.helpers,
                result="",
            )

    def analyzer(self) -> Analyzer[Any, Any, Any]:
        """Import and return the analyzer."""
        analyzer: Analyzer[Any, Any, Any] = getattr(import_module(self.code), self.name.upper())
        return analyzer

    def options_class(self) -> type[AnalyzerOptions]:
        """Import and return the options class."""
        module, _, name = self.options.partition(":")
        options: type[AnalyzerOptions] = getattr(import_module(module), name)
        return options

    def function(self) -> Callable[..., Any]:
        """Import and return the public function."""
        function: Callable[..., Any] = getattr(import_module(self.code), self.name)
        return function


#: Commands that write or serve.
TOOLS = (
    Command(
        "diagnose",
        "Find performance problems and their cost.",
        group="Start here",
        examples=("run/", "run/ --fail-on critical"),
        module="traceanalyzer.findings",
        functions=("diagnose",),
        result="result:Diagnosis",
        method=True,
        cli="job",
    ),
    Command(
        "report",
        "Write one HTML page with all analyses, problems first.",
        group="Start here",
        examples=("run/ -o report.html", "run/ --since 10s --until 20s -o report.html"),
        functions=("report",),
        method=True,
        cli="job",
    ),
    Command(
        "merge",
        "Write all ranks to one timeline for Perfetto, clocks aligned.",
        examples=("run/ -o run.pftrace", "run/ --around straggler -o straggler.pftrace"),
        functions=("merge",),
        result="Merged",
    ),
    Command(
        "view",
        "Show all ranks in Perfetto, at the first finding.",
        examples=("run/", "run/ --around straggler --no-open"),
        cli="merge",
    ),
    Command(
        "demo",
        "Write a small recording and its report, to try the program.",
        group="Start here",
        examples=("demo/", "demo/ --force"),
        cli="job",
    ),
    Command(
        "query",
        "Select rows from the tables of all files with SQL.",
        examples=(
            'run/ "select name, sum(dur) from events group by name order by 2 desc"',
            'run/ "select * from collectives" --rank 5 -o collectives.csv',
        ),
        functions=("query",),
        result="QueryResult",
        method=True,
        cli="files",
    ),
    Command(
        "summarize",
        "Write the measured parts of each rank, to combine them without the files.",
        examples=("run/ -o sums/", "run/ -o sums/ --shard 3/64"),
        functions=("summarize",),
        result="Summarized",
        cli="files",
    ),
    Command(
        "mcp",
        "Serve the analyses as tools for language models (MCP).",
        examples=("--root runs/", "--root runs/ --root dumps/"),
        cli="files",
    ),
    Command(
        "gate",
        "Check a run against budgets, for CI.",
        group="Start here",
        examples=("budgets.toml run/", "budgets.toml run/ -o gate.md --junit gate.xml"),
        module="traceanalyzer.tools.budgets",
        functions=("check_budgets",),
        result="Budgets",
        cli="job",
    ),
    Command(
        "baseline",
        "Save runs by name, to compare later runs with baseline:NAME.",
        examples=("save main run/", "list"),
        module="traceanalyzer.tools.baselines",
        functions=("list_baselines", "save_baseline"),
        result="Baselines",
        cli="files",
    ),
    Command(
        "convert",
        "Convert to Parquet, Chrome JSON (Perfetto) or SQLite.",
        examples=("run/ -o parquet/", "training.sqlite -o training.json.gz"),
        functions=("convert",),
        cli="files",
    ),
)

#: All built-in analyzers by name, in the order of a report.
ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for package in (
        Entry(
            "timeline",
            "What each GPU does over time, all ranks on one axis.",
            group="Start here",
            examples=("run/", "run/ -o timeline.html"),
            section="Timeline",
            plot="states of all devices over time",
            result="",
        ),
        Entry(
            "steps",
            "Step times, and the causes of slow steps.",
            examples=("run/", "run/ --rank 5 --plot steps.svg"),
            section="Steps",
            plot="step times and their parts",
        ),
        Entry(
            "requests",
            "Latency of requests to an inference engine: queue, prefill, decode.",
            examples=("bench.json", "spans.json trace/ -o requests.html"),
            plot="parts of the slowest requests, and time to first token",
        ),
        Entry(
            "gpu_idle",
            "GPU idle time by cause: data loading, synchronisation, launches.",
            examples=("run/", "run/ --rank 5 --by step"),
            section="Idle time",
            plot="idle time by cause, per step and over time,",
        ),
        Entry(
            "comm_outliers",
            "Outliers of communication, and stragglers.",
            group="Communication",
            examples=("run/", "run/ --baseline isolated/"),
            section="Communication",
            plot="durations and arrival skew",
        ),
        Entry(
            "hang",
            "Find the rank that a hanging job waits for, from Flight Recorder dumps.",
            group="Communication",
            examples=("dumps/", "dumps/ stacks/ -o hang.html"),
            plot="collectives by rank and sequence number",
        ),
        Entry(
            "overlap",
            "Overlapped and exposed communication.",
            group="Communication",
            examples=("run/", "run/ --by step"),
            section="Overlap",
            plot="time breakdown and busy time per device",
        ),
        Entry(
            "what_if",
            "What a fix would gain: the run replayed with changes.",
            group="Start here",
            examples=("run/", "run/ --free data-loading --scale 'gemm=2'"),
            code="traceanalyzer.findings.what_if",
            plot="gain of each change",
            result="compute:WhatIf",
            helpers=("replay",),
        ),
        Entry(
            "critical_path",
            "What the run waited for at each moment: the longest path through all ranks.",
            examples=("run/", "run/ --top all"),
            plot="classes on the longest path",
            one_file=True,
            options="traceanalyzer.analyzers.what_if:PathOptions",
        ),
        Entry(
            "launches",
            "Launch delays, launch queue, launch-bound phases.",
            examples=("run/", "rank0.json.gz --plot launches.svg"),
            section="Launches",
            plot="launch queue over time and launch delays",
        ),
        Entry(
            "operators",
            "Self and total time of each operator, on host and device.",
            examples=("run/", "run/ --sort self_host --columns operator,calls,self_host"),
            section="Operators",
            plot="operators with the highest self time",
        ),
        Entry(
            "kernels",
            "Kernel time by family and name.",
            examples=("run/", "run/ --sort names.n --columns names.kernel,n,total"),
            section="Kernels",
            plot="device work by family, kernels with the highest total time",
        ),
        Entry(
            "efficiency",
            "FLOP/s, bandwidth and MFU against the peaks of the GPU.",
            examples=("run/", "run/ --peak bf16=989.4 --bandwidth 3350"),
            section="Efficiency",
            plot="operators by time above the roof",
        ),
        Entry(
            "roofline",
            "FLOP/s over arithmetic intensity of kernels (Nsight Compute) or operators.",
            examples=("report.csv -o roofline.html", "run/ --peak bf16=989.4 --bandwidth 3350"),
            plot="FLOP/s over arithmetic intensity with the roofs",
            result="",
        ),
        Entry(
            "annotations",
            "Host time and device work of annotated ranges.",
            examples=("run/", "run/ --name forward"),
            section="Annotations",
            plot="device work and host time by annotation",
        ),
        Entry(
            "cuda_api",
            "Host time of CUDA calls, and which calls block the host.",
            examples=("run/", "rank0.json.gz --since 1s --until 2s"),
            section="CUDA calls",
            plot="calls with the highest total time",
        ),
        Entry(
            "transfers",
            "Copies and memsets: size, bandwidth, overlap with kernels.",
            examples=("run/", "rank0.json.gz --to json"),
            section="Copies",
            plot="time and bandwidth by size",
        ),
        Entry(
            "host_metrics",
            "CPU, memory, disk, network and other counters.",
            examples=("run/", "run/ --counter cpu"),
            section="Host",
            plot="counters over time",
        ),
        Entry(
            "modules",
            "Time, memory and FLOPs of each nn.Module, forward and backward.",
            group="Code",
            examples=("run/ -o modules.html", "run/ --depth 2"),
            section="Modules",
            plot="modules with the highest self time",
        ),
        Entry(
            "py_spy_report",
            "Lines of your code by sampled time.",
            group="Code",
            examples=("profile.raw.txt", "profile.raw.txt --library-name torch --top all"),
            section="Code",
            result="LeafPaths",
            cli="analyses",
        ),
        Entry(
            "flamegraph",
            "Flame graph of sampled stacks or nested slices.",
            group="Code",
            examples=("profile.raw.txt -o profile.svg", "rank0.json.gz --inverted -o rank0.html"),
            section="Flame graph",
            result="FlameGraph",
            cli="analyses",
        ),
        Entry(
            "memory",
            "GPU memory: peak, out-of-memory errors, leaks.",
            group="Memory",
            examples=("snapshot.pickle -o memory.html", "snapshot.pickle --oom"),
            section="Memory",
            plot="memory over time by category",
            result="result:Memory diff:MemoryDiff growth:MemoryGrowth oom:MemoryErrors",
            options="traceanalyzer.analyzers.memory:MemoryOptions",
            variants={"oom": "Out of memory", "growth": "Memory growth", "diff": None},
            helpers=("usage",),
            cli="analyses",
        ),
        Entry(
            "printed",
            "Tables that PyTorch and DeepSpeed print, in files and job logs.",
            group="Files",
            examples=("job.log", "job.log --peak bf16=989.4"),
            section="Printed tables",
            plot="step times, operators, modules and memory",
        ),
        Entry(
            "info",
            "Contents of files, and dropped events.",
            group="Files",
            examples=("run/", "rank0.json.gz --to json"),
            section="Files",
            code="traceanalyzer.analyzers.info.quick",
            result="compute:Info",
            cli="job",
        ),
        Entry(
            "scaling",
            "Speed-up and parallel efficiency of runs on more GPUs.",
            group="Files",
            examples=("run4/ run8/ run16/", "run4/ run8/ --weak"),
            plot="the speed-up and the parts of a step",
            method=False,
        ),
        Entry(
            "diff",
            "Compare two runs: regressions and their location.",
            group="Files",
            examples=("before/ after/", "before/ after/ --fail-on-regression 5"),
            plot="steps of both runs and the largest changes",
            result="result:Diff series:DiffSeries",
            code="traceanalyzer.analyzers.diff.series",
            functions=("diff_runs", "diff_series"),
            method=False,
            cli="analyses",
        ),
    )
    for entry in package.expanded()
}

#: Public names of all commands, with their modules.
NAMES = {
    name: module
    for entry in (*TOOLS, *ENTRIES.values())
    for name, module in entry.public_names().items()
}
#: Functions whose first argument is the inputs of one run.
METHODS = sorted(
    name for one in (*TOOLS, *ENTRIES.values()) if one.method for name in one.functions
)


def commands() -> dict[str, Command]:
    """Return the built-in commands by their names on the command line, in the order of the help."""
    entries = [entry for entry in ENTRIES.values() if entry.summary]
    return {one.command: one for one in (*TOOLS, *entries)}


def entry(name: str) -> Entry:
    """Return the entry of a built-in analyzer, or of one of another package.

    Raises:
        KeyError: there is none of this name.
        PluginError: another package has it, and cannot be loaded.
    """
    return ENTRIES.get(name) or _loaded(_entry_points()[name])


def public() -> tuple[Entry, ...]:
    """Return the built-in analyzers with a Python function."""
    return tuple(entry for entry in ENTRIES.values() if not entry.hidden)


def in_report() -> tuple[Entry, ...]:
    """Return the analyzers of a report, in order; those of other packages come last."""
    return tuple(entry for entry in (*ENTRIES.values(), *plugins()) if entry.section)


# --- analyzers of other packages -------------------------------------------------------------


def plugin_names() -> dict[str, str]:
    """Return the analyzers of other packages and the packages, without an import."""
    return {name: point.dist.name if point.dist else "" for name, point in _entry_points().items()}


@cache
def plugins() -> tuple[Entry, ...]:
    """Import and return the analyzers of other packages; warn once of each that is unusable."""
    loaded = []
    for point in _entry_points().values():
        try:
            loaded.append(_loaded(point))
        except PluginError as error:
            warnings.warn(str(error), stacklevel=2)
    return tuple(loaded)


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of other packages by name; built-in names win."""
    if not _is_any_recorded():
        return {}
    from importlib.metadata import entry_points  # takes as long as the rest of --help

    points = sorted(entry_points(group=ENTRY_POINTS), key=lambda one: (one.name, one.value))
    used = NAMES.keys() | ENTRIES.keys() | {one.name for one in TOOLS}
    return {one.name: one for one in reversed(points) if one.name not in used}


def _is_any_recorded() -> bool:
    """Whether an installed package may have entry points of the group, by their files."""
    if any(place and Path(place).is_file() for place in sys.path):  # packages in an archive
        return True
    files = (file for place in sys.path for file in Path(place).glob("*-info/entry_points.txt"))
    try:
        return any(ENTRY_POINTS.encode() in file.read_bytes() for file in files)
    except OSError:  # a file that cannot be read: importlib.metadata decides
        return True


def _loaded(point: EntryPoint) -> Entry:
    """Return the entry of an entry point; its module and those that it names must be importable.

    Raises:
        PluginError: something is missing, or raises an error.
    """
    package = point.dist.name if point.dist else point.value
    try:
        entry = point.load()
        if not isinstance(entry, Entry) or entry.name != point.name:
            raise TypeError(f"{point.value} is not an Entry of this name")
        entry.options_class()()
        entry.function()
        entry.analyzer()
    except Exception as error:  # noqa: BLE001 - a third-party module may raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise PluginError(f"{point.name} of {package} cannot be loaded: {reason}") from None
    return replace(entry, package=package)
