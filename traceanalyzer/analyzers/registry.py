"""The list of all analyzers.

Commands, Python functions, methods of ``Trace``, sections of a report and the reference are made
from it. It holds names and texts only: an analyzer is imported when it is used.
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
    """One analyzer, and where it is.

    The analyzer's package holds the public function, its ``options.py`` the options class and its
    ``compute.py`` the :class:`~traceanalyzer.analyzers.base.Analyzer`, named like the function in
    capitals. Package and ``options.py`` load nothing heavy, so that ``--help`` is quick. A small
    analysis may be one file.

    Attributes:
        name: of the Python function.
        summary: one line for the list of commands.
        section: heading in a report, or None for an analyzer that a report leaves out.
        plot: what ``--plot`` draws, or None where a command has no such option.
        command: on the command line, where it differs from ``name`` with hyphens.
        module: where the public function is, by default ``traceanalyzer.analyzers.NAME``.
        code: where the analyzer is, by default ``MODULE.compute``.
        options: where the options class is, and its name, by default ``MODULE.options:Options``.
        hidden: neither a command nor a function: another analyzer needs it.
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
        """The analyzer, imported now."""
        found: Analyzer[Any, Any, Any] = getattr(import_module(self.code), self.name.upper())
        return found

    def options_class(self) -> type[AnalyzerOptions]:
        """The options class, imported now."""
        module, _, name = self.options.partition(":")
        found: type[AnalyzerOptions] = getattr(import_module(module), name)
        return found

    def function(self) -> Callable[..., Any]:
        """The public function, imported now."""
        found: Callable[..., Any] = getattr(import_module(self.module), self.name)
        return found


_MEMORY = "traceanalyzer.analyzers.memory"


def _of_memory(name: str, section: str | None = None) -> Entry:
    """An analyzer that is an option of the command ``memory``."""
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
        _of_memory("oom", section="Out of memory"),
        _of_memory("growth", section="Memory growth"),
        _of_memory("diff"),
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
    """The analyzers of a report, in its order."""
    return tuple(entry for entry in ENTRIES.values() if entry.section)


def public() -> tuple[Entry, ...]:
    """The analyzers that have a Python function."""
    return tuple(entry for entry in ENTRIES.values() if not entry.hidden)
