"""What of a chrome trace is wanted, in the words of the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace.decode import Event
from traceanalyzer.parsers.chrome_trace.times import Times
from traceanalyzer.vocabulary import SPELLINGS, kind_of_category

#: Kinds whose events all carry one of the kind's categories, and are few enough for a search.
SEARCHABLE = frozenset(
    (
        "kernel",
        "gpu_memcpy",
        "gpu_memset",
        "gpu_user_annotation",
        "user_annotation",
        "cuda_sync",
        "cuda_event",
        "collective_comm",
        "overhead",
        "trace",
    )
)


class Want(msgspec.Struct):
    """A Selection, ready to cross a pipe and to judge events.

    Attributes:
        kinds: event kinds, or None for all.
        names: substrings of names wanted whatever their kind.
        flows, counters, lanes: the side tables asked for.
        args, input_dims: the columns asked for.
        windows: (start, end) in ns: only slices that overlap one of them; empty for all.
        boundary: text between two events, when a byte search may cut there; else empty.
        text_times: the file's times are too large for doubles, so do not try.
    """

    kinds: list[str] | None = None
    names: list[str] = []
    flows: bool = True
    counters: bool = True
    lanes: bool = True
    args: bool = False
    input_dims: bool = False
    windows: list[tuple[int, int]] = []
    boundary: bytes = b""
    text_times: bool = False

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
            if wanted is None:
                text = category if isinstance(category, str) else None
                wanted = by_category[category] = kind_of_category(text) in kinds
            if wanted or named is None:
                return wanted
            return isinstance(event.name, str) and named(event.name) is not None

        return keep

    def inside(self, ts: Times, dur: Times) -> list[int] | None:
        """Rows that overlap a window, or None for all."""
        if not self.windows:
            return None
        rows = []
        for row, (start, length) in enumerate(
            zip(ts.nanoseconds(), dur.nanoseconds(), strict=True)
        ):
            end = start + max(length, 0)
            if any(start < hi and end > lo for lo, hi in self.windows):
                rows.append(row)
        return rows

    @property
    def searchable(self) -> bool:
        """Whether the wanted events can be found by their bytes."""
        return (
            self.kinds is not None
            and SEARCHABLE.issuperset(self.kinds)
            and not (self.flows or self.counters or self.lanes)
        )

    def patterns(self) -> list[re.Pattern[bytes]]:
        """Searches that together hit every wanted event."""
        words = [word for kind in self.kinds or () for word in SPELLINGS[kind]]
        found = []
        if words:
            spelled = "|".join(map(re.escape, sorted(words)))
            found.append(re.compile(rf'"cat"\s*:\s*"\s*(?i:{spelled})\s*"'.encode()))
        return found + [re.compile(re.escape(name.encode())) for name in self.names]
