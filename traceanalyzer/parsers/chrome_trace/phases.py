"""Which phases of events become rows, and which do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceanalyzer.parsers.chrome_trace.decode import Event

SLICE_PHASES = frozenset("XiIRPNODvVc")
#: A moment each, whatever some writers say of their duration.
INSTANT_PHASES = frozenset("iIR")
PAIR_PHASES = frozenset("BEbenSTpF")
FLOW_PHASES = frozenset("stf")
IGNORED_PHASES = frozenset("()")
KNOWN_PHASES = SLICE_PHASES | PAIR_PHASES | FLOW_PHASES | IGNORED_PHASES | frozenset("MC")

#: Events of phase P that V8 packs the samples of its CPU profiler into, many in one.
_PROFILES = ("Profile", "ProfileChunk")


def slice_rows(events: Sequence[Event], phases: Sequence[Any]) -> tuple[list[int], int]:
    """The rows of the events that are rows of ``events``, and how many hold a V8 CPU profile.

    What holds a profile is no sample itself, and is left out.
    """
    rows = [row for row, phase in enumerate(phases) if phase in SLICE_PHASES]
    if "P" not in phases:
        return rows, 0
    kept = [row for row in rows if phases[row] != "P" or not _is_profile(events[row])]
    return kept, len(rows) - len(kept)


def _is_profile(event: Event) -> bool:
    return event.name in _PROFILES and event.sf is None
