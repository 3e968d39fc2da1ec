"""GPU memory: peaks, allocation sites, out-of-memory errors, growth, and comparison of runs.

Input are traces of one rank each: memory snapshots, traces with ``[memory]`` instants, or with
allocations of the process. ``ledger`` builds the history and the allocations of each device,
``attribution`` finds the code and the category of each allocation, ``rank_memory`` combines both
for one rank. ``regions`` reconstructs reserved and free memory at a position. The analyzers are in
``compute`` (memory live at the peak, and the plots), ``oom``, ``growth``, ``diff`` and ``usage``;
``result`` is the result of the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, option

#: Times in ns after the first event, None for no bound.
Window = tuple[int | None, int | None]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Options shared by all memory analyses."""

    library_name: Sequence[str] = option(
        (),
        help="Name allocations by the innermost frame of this package instead of your own code. "
        "Repeatable.",
        metavar="NAME",
    )
    min_bytes: int | None = option(
        None,
        help="List and draw only allocations of at least SIZE (for example 1MiB). Totals count "
        "all.",
        metavar="SIZE",
        unit="bytes",
        minimum=0,
    )
    window: Window = option(
        (None, None), help="Time window (since, until) to analyze.", command_line=False
    )

    @property
    def windowed(self) -> bool:
        """Whether only a time window of the history is analyzed."""
        return self.window != (None, None)


@dataclass(frozen=True)
class OomOptions(Options):
    """Find the cause of each out-of-memory error."""

    capacity_bytes: int | None = option(
        None,
        help="Memory of the device (for example 80GiB), to show memory used outside PyTorch at an "
        "out-of-memory error.",
        flag="--capacity",
        metavar="SIZE",
        unit="bytes",
        above=0,
    )


@dataclass(frozen=True)
class GrowthOptions(Options):
    """Find memory that grows from step to step."""

    step_name: str | None = option(
        None,
        help="For growth: annotations whose names match are steps. Default: ProfilerStep#, "
        "'step 3' and similar.",
        metavar="REGEX",
    )
    step_every: str | int | None = option(
        None,
        help="For growth: length of a step as a time (for example 250ms) or a number of events.",
        metavar="TIME",
    )


@dataclass(frozen=True)
class MemoryOptions(GrowthOptions, OomOptions):
    """How much memory does each GPU use, when is the peak, and which code allocated it?

    PATH is a memory snapshot (torch.cuda.memory._dump_snapshot), a trace with [memory] instants
    (profile_memory=True), an nsys export with allocations, or a folder; several are allowed.
    Text of memory_summary() or DeepSpeed's see_memory_usage gives the peaks.
    """

    @property
    def has_step_options(self) -> bool:
        """Whether the user defined the steps."""
        return self.step_name is not None or self.step_every is not None


@dataclass(frozen=True)
class DiffOptions(Options):
    """Compare the memory live at the peak with another run."""

    other: object = option(
        None,
        help="Compare the memory live at the peak with another run.",
        flag="--diff",
        metavar="OTHER",
        inputs=True,
    )
