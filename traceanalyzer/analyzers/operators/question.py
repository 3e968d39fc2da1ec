"""What can be asked about operators, and what must be read to answer it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.errors import OptionError
from traceanalyzer.vocabulary import DEVICE_WORK, HOST_KINDS

SortBy = Literal[
    "self_host", "total_host", "mean_host", "self_device", "total_device", "mean_device", "calls",
    "self_host_memory", "total_host_memory", "self_device_memory", "total_device_memory",
]  # fmt: skip

#: What rows can be sorted by.
SORT_BY: tuple[SortBy, ...] = get_args(SortBy)

#: Slices that code was given a name by, and what device work is counted for.
MARKED = ("cpu_op", "user_annotation", "nvtx")

#: Python frames, where they were recorded.
FRAMES = "python_function"

#: Slices of traces that know none of these.
OTHER = "other"

#: Calls that operators make: rows of their own, as PyTorch has them, but without device work.
CALLS = tuple(kind for kind in HOST_KINDS if kind not in (*MARKED, FRAMES, OTHER, "osrt"))

#: Instants that tell of allocations.
ALLOCATIONS = "cpu_instant_event"


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        sort_by: the column to sort by, the largest first; None for self device time where there is
            device work, else self host time.
        by_input_shape: calls with other input shapes are other rows.
        by_stack: calls from other Python frames are other rows: so many of the innermost count.

    Raises:
        OptionError: there is nothing of that name to sort by, or the number of frames is negative.
    """

    sort_by: SortBy | None = None
    by_input_shape: bool = False
    by_stack: int = 0

    def __post_init__(self) -> None:
        if self.sort_by is not None and self.sort_by not in SORT_BY:
            known = ", ".join(SORT_BY)
            raise OptionError(f"operators cannot be sorted by {self.sort_by!r}; known are {known}")
        if self.by_stack < 0:
            raise OptionError(f"a stack of {self.by_stack} frames makes no sense")

    @property
    def needs(self) -> Needs:
        """What to read."""
        host = (*MARKED, FRAMES, OTHER, *CALLS)
        columns = ("input_dims",) if self.by_input_shape else ()
        kinds = frozenset((*host, *DEVICE_WORK, ALLOCATIONS))
        return Needs(kinds, columns=columns, unused=("category", "stream"))

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""
        shape = ("input_dims",) if self.by_input_shape else ()
        return ("name", "kind", *shape, *(("stack",) if self.by_stack else ()))


def column(word: SortBy) -> str:
    """The column of the result that a word to sort by stands for."""
    return word if word == "calls" else f"{word}_{'bytes' if 'memory' in word else 'ns'}"
