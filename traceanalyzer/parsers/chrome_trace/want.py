"""What of a chrome trace is wanted, in the words of the file."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace.coerce import text_of
from traceanalyzer.parsers.chrome_trace.decode import Event
from traceanalyzer.vocabulary import kind_of_category

#: The name of Kineto's allocator events, which had no category before 2022.
MEMORY = "[memory]"
#: Kinds that the phase tells, whatever the category says.
PHASE_KINDS = {"P": "sample", "N": "object", "O": "object", "D": "object"}


class Want(msgspec.Struct):
    """A Selection in the words of the file.

    Attributes:
        kinds: event kinds, or None for all.
        names: substrings of names wanted whatever their kind.
        flows, counters, lanes: the side tables asked for.
        args, input_dims: the columns asked for.
        windows: (start, end) in ns: only slices that overlap one of them; empty for all.
    """

    kinds: list[str] | None = None
    names: list[str] = []
    flows: bool = True
    counters: bool = True
    lanes: bool = True
    args: bool = False
    input_dims: bool = False
    windows: list[tuple[int, int]] = []

    @property
    def keep(self) -> Callable[[Event], bool] | None:
        """A test for slices by kind and name, or None when all are wanted."""
        if self.kinds is None:
            return None
        kinds = frozenset(self.kinds)
        by_category: dict[Any, bool] = {}
        named = re.compile("|".join(map(re.escape, self.names))).search if self.names else None

        def keep(event: Event) -> bool:
            category = event.cat
            try:
                wanted = by_category.get(category)
            except TypeError:
                category, wanted = str(category), None
            if event.ph in PHASE_KINDS:
                wanted = PHASE_KINDS[event.ph] in kinds
            elif event.name == MEMORY and kind_of_category(text_of(category)) == "other":
                wanted = "cpu_instant_event" in kinds
            elif wanted is None:
                text = category if isinstance(category, str) else None
                wanted = by_category[category] = kind_of_category(text) in kinds
            if wanted or named is None:
                return wanted
            return isinstance(event.name, str) and named(event.name) is not None

        return keep

    def inside(self, ts: array[int], dur: array[int]) -> list[int] | None:
        """Rows that overlap a window, or None for all."""
        if not self.windows:
            return None
        return [
            row
            for row, (start, length) in enumerate(zip(ts, dur, strict=True))
            if any(start < hi and start + max(length, 0) > lo for lo, hi in self.windows)
        ]
