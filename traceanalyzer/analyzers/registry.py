"""The registry of all analyzers.

Commands, Python functions, methods of ``Trace``, sections of a report and the reference are
generated from it. It contains names and texts only: analyzers are imported on use.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceanalyzer.analyzers.base import Analyzer, AnalyzerOptions


#: Groups of commands, in the order of ``--help``.
GROUPS = ("Start here", "Time", "Communication", "Memory", "Code", "Files")


@dataclass(frozen=True)
class Entry:
    """Registry entry of an analyzer.

    The package of the analyzer contains the public function, its ``options.py`` the options class
    and its ``compute.py`` the :class:`~traceanalyzer.analyzers.base.Analyzer`, named like the
    function in capitals. The package and ``options.py`` import nothing heavy, to keep ``--help``
    fast. A small analyzer may be one file.

    Attributes:
        name: name of the Python function.
        summary: one line for the list of commands.
        group: group in the list of commands, one of :data:`GROUPS`.
        examples: arguments of two example command lines, for the help of the command.
        section: heading in a report, or None for an analyzer that is not in reports.
        plot: content of ``--plot``, or None for a command without this option.
        command: name on the command line; default: ``name`` with hyphens.
        module: module of the public function; default: ``traceanalyzer.analyzers.NAME``.
        code: module of the analyzer; default: ``MODULE.compute``.
        options: module and name of the options class; default: ``MODULE.options:Options``.
        hidden: whether the analyzer is only used by others, without a command or function.
        one_file: function, options and analyzer are all in ``module``.
    """

    name: str
    summary: str = ""
    group: str = "Time"
    examples: tuple[str, ...] = ("run/", "run/ --rank 5 --top all")
    section: str | None = None
    plot: str | None = None
    command: str = ""
    module: str = ""
    code: str = ""
    options: str = ""
    hidden: bool = False
    one_file: bool = False

    def __post_init__(self) -> None:
        module = self.module or f"traceanalyzer.analyzers.{self.name}"
        object.__setattr__(self, "module", module)
        code, options = ("", "") if self.one_file else (".compute", ".options")
        object.__setattr__(self, "code", self.code or f"{module}{code}")
        object.__setattr__(self, "options", self.options or f"{module}{options}:Options")
        object.__setattr__(self, "command", self.command or self.name.replace("_", "-"))

    def analyzer(self) -> Analyzer[Any, Any, Any]:
        """Import and return the analyzer."""
        analyzer: Analyzer[Any, Any, Any] = getattr(import_module(self.code), self.name.upper())
        return analyzer

    def combine_printed(self) -> Callable[[Any, Any], Any]:
        """Import and return ``combine(rows, options)`` of the module ``printed`` of the analyzer.

        It returns the result from rows of ``aggregates`` with the column ``path``.
        """
        combine: Callable[[Any, Any], Any] = import_module(f"{self.module}.printed").combine
        return combine

    def options_class(self) -> type[AnalyzerOptions]:
        """Import and return the options class."""
        module, _, name = self.options.partition(":")
        options: type[AnalyzerOptions] = getattr(import_module(module), name)
        return options

    def function(self) -> Callable[..., Any]:
        """Import and return the public function."""
        function: Callable[..., Any] = getattr(import_module(self.module), self.name)
        return function


_MEMORY = "traceanalyzer.analyzers.memory"


def _memory_option(name: str, section: str | None = None) -> Entry:
    """Return the entry of an analyzer that is an option of the command ``memory``."""
    return Entry(
        f"memory_{name}",
        section=section,
        command=f"memory --{name}",
        module=_MEMORY,
        code=f"{_MEMORY}.{name}",
        options=f"{_MEMORY}.options:{name.capitalize()}Options",
    )


#: All analyzers by name, in the order of a report.
ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "timeline",
            "What each GPU does over time, all ranks on one axis.",
            group="Start here",
            examples=("run/", "run/ -o timeline.html"),
            section="Timeline",
            plot="states of all devices over time",
        ),
        Entry(
            "steps",
            "Step times, and the causes of slow steps.",
            examples=("run/", "run/ --rank 5 --plot steps.svg"),
            section="Steps",
            plot="step times and their parts",
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
            "Samples by code and package.",
            group="Code",
            examples=("profile.raw.txt", "profile.raw.txt --library-name torch --top all"),
            section="Code",
        ),
        Entry(
            "flamegraph",
            "Flame graph of sampled stacks or nested slices.",
            group="Code",
            examples=("profile.raw.txt -o profile.svg", "rank0.json.gz --inverted -o rank0.html"),
            section="Flame graph",
        ),
        Entry(
            "memory",
            "GPU memory: peak, out-of-memory errors, leaks.",
            group="Memory",
            examples=("snapshot.pickle -o memory.html", "snapshot.pickle --oom"),
            section="Memory",
            plot="memory over time by category",
            options=f"{_MEMORY}.options:MemoryOptions",
        ),
        _memory_option("oom", section="Out of memory"),
        _memory_option("growth", section="Memory growth"),
        _memory_option("diff"),
        Entry("memory_fill", module=_MEMORY, code=f"{_MEMORY}.usage", hidden=True),
        Entry(
            "info",
            "Contents of files, and dropped events.",
            group="Files",
            examples=("run/", "rank0.json.gz --to json"),
            section="Files",
        ),
        Entry(
            "scaling",
            "Speed-up and parallel efficiency of runs on more GPUs.",
            group="Files",
            examples=("run4/ run8/ run16/", "run4/ run8/ --weak"),
            plot="the speed-up and the parts of a step",
        ),
        Entry(
            "diff",
            "Compare two runs: regressions and their location.",
            group="Files",
            examples=("before/ after/", "before/ after/ --fail-on-regression 5"),
            plot="steps of both runs and the largest changes",
        ),
    )
}


def in_report() -> tuple[Entry, ...]:
    """Return the analyzers of a report, in order."""
    return tuple(entry for entry in ENTRIES.values() if entry.section)


def public() -> tuple[Entry, ...]:
    """Return the analyzers with a Python function."""
    return tuple(entry for entry in ENTRIES.values() if not entry.hidden)
