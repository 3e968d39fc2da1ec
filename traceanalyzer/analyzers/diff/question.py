"""What can be asked of two runs, and what must be read to answer it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers import comm_outliers as comm
from traceanalyzer.analyzers import gpu_idle, memory, steps
from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.analyzers.operators.question import Question as OfOperators
from traceanalyzer.errors import OptionError

#: A change of less than this is none, however sure it is.
MIN_CHANGE = 0.02


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        step_name: a regular expression of the slices that are steps, or None for the usual ones.
        patterns: regular expressions of further kernels that are communication.
        min_change: the least change that counts, as a part of the smaller of two values.
        in_memory: whether memory is looked at, whose history counts as a whole.

    Raises:
        OptionError: a change cannot be so small.
    """

    step_name: str | None = None
    patterns: Sequence[str] = ()
    min_change: float = MIN_CHANGE
    in_memory: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.min_change) and self.min_change >= 0):
            raise OptionError(f"a least change of {100 * self.min_change:g} % makes no sense")

    @property
    def needs(self) -> Needs:
        """What to read: all that any of the comparisons needs."""
        asked = [steps.needs(self.step_name), gpu_idle.NEEDS, OfOperators().needs, comm.LAUNCHES]
        asked += [memory.NEEDS] if self.in_memory else []
        kinds = frozenset(("sample", "lane")).union(*(needs.kinds for needs in asked))
        names = dict.fromkeys(name for needs in asked for name in needs.names)
        return Needs(kinds, tuple(names), samples=True)
