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
            "steps",
            "How long steps take, and what makes some slower.",
            section="Steps",
            plot="the steps' times and their parts",
        ),
        Entry(
            "gpu_idle",
            "Why the GPU waits: data loading, synchronisation, launches.",
            section="Idle time",
            plot="idle time by cause, per step and over time,",
        ),
        Entry(
            "comm_outliers",
            "Unusually long communication, and who is late.",
            section="Communication",
            plot="durations and arrival skew",
        ),
        Entry(
            "overlap",
            "How much communication is hidden behind compute.",
            section="Overlap",
            plot="the parts of the time and how busy devices were",
        ),
        Entry(
            "launches",
            "How fast the host feeds the device.",
            section="Launches",
            plot="queues over time and launch delays",
        ),
        Entry(
            "operators",
            "What each operator costs, on the host and the device.",
            section="Operators",
            plot="the heaviest operators",
        ),
        Entry(
            "kernels",
            "Which kernels take the device's time, by family and name.",
            section="Kernels",
            plot="device work by family and the heaviest kernels",
        ),
        Entry(
            "annotations",
            "Host time and device work of annotated ranges.",
            section="Annotations",
            plot="device work and host time by annotation",
        ),
        Entry(
            "cuda_api",
            "What CUDA calls cost the host, and which hold it up.",
            section="CUDA calls",
            plot="the calls that take most",
            command="api",
        ),
        Entry(
            "transfers",
            "What is copied, how fast, and whether kernels hide it.",
            section="Copies",
            plot="time and bandwidth by size",
        ),
        Entry(
            "host_metrics",
            "Processor, memory, disk, network and other counters.",
            section="Host",
            plot="counters over time",
        ),
        Entry("py_spy_report", "Which code was running, and whose it is.", section="Code"),
        Entry(
            "flamegraph",
            "A flamegraph of sampled stacks or nested slices.",
            section="Flamegraph",
        ),
        Entry(
            "memory",
            "What fills the GPU's memory, why it ran out, what leaks.",
            section="Memory",
            plot="what fills the memory over time",
            options=f"{_MEMORY}.options:MemoryOptions",
        ),
        _memory_option("oom", section="Out of memory"),
        _memory_option("growth", section="Memory growth"),
        _memory_option("diff"),
        Entry("memory_fill", module=_MEMORY, code=f"{_MEMORY}.fill", hidden=True),
        Entry("info", "What files hold and what was lost in them.", section="Files, losses"),
        Entry(
            "diff",
            "Did it get slower, and where: two runs compared.",
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
