"""The options of the analyses of memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, option

#: Times in ns after the first event, None for no bound.
Window = tuple[int | None, int | None]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """What all analyses of memory share."""

    library_name: Sequence[str] = option(
        (),
        help="Name allocations by the innermost frame of this package, instead of your own code; "
        "may be repeated.",
        metavar="NAME",
    )
    min_bytes: int | None = option(
        None,
        help="List and draw only allocations of this size or more, such as 1MiB. Sums count all.",
        metavar="SIZE",
        unit="bytes",
        minimum=0,
    )
    window: Window = option(
        (None, None), help="Since and until: the history outside is read too.", command_line=False
    )

    @property
    def windowed(self) -> bool:
        """Whether only a part of the history counts."""
        return self.window != (None, None)


@dataclass(frozen=True)
class OomOptions(Options):
    """Why memory ran out, for each out-of-memory error."""

    capacity_bytes: int | None = option(
        None,
        help="Memory of the device, such as 80GiB: shows what others held when memory ran out.",
        flag="--capacity",
        metavar="SIZE",
        unit="bytes",
        above=0,
    )


@dataclass(frozen=True)
class GrowthOptions(Options):
    """What grows from step to step."""

    step_name: str | None = option(
        None,
        help="To find growth, annotations whose names match are the steps. Default: ProfilerStep#, "
        "'step 3' and the like.",
        metavar="REGEX",
    )
    step_every: str | int | None = option(
        None,
        help="To find growth, a step is such a time (250ms), or so many events, instead.",
        metavar="TIME",
    )


@dataclass(frozen=True)
class MemoryOptions(GrowthOptions, OomOptions):
    """How much memory of each GPU is in use, when most, and which code allocated it?

    PATH is a memory snapshot (torch.cuda.memory._dump_snapshot), a trace with [memory] instants
    (profile_memory=True), an nsys export with allocations, several of them, or a folder.
    """

    @property
    def steps_asked(self) -> bool:
        """Whether the user chose the steps."""
        return self.step_name is not None or self.step_every is not None


@dataclass(frozen=True)
class DiffOptions(Options):
    """What changed at the peak since another run."""

    other: object = option(
        None,
        help="What changed at the peak since another run.",
        flag="--diff",
        metavar="OTHER",
        inputs=True,
    )
