"""Slices that our own exporter moved to overflow tracks, put back where they were.

See ``traceanalyzer.exporters.chrome_trace.tracks``: the argument ``"traceanalyzer tid"``, always
the first, holds the own tid of a slice, flow point or thread name written under another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from traceanalyzer.parsers.chrome_trace.decode import ABSENT, NULL, Args, Event

RawArgs = Callable[[], list[msgspec.Raw]]

_origin = re.compile(rb'\{"traceanalyzer tid":(?:-?\d+|"(?:[^"\\]|\\.)*"),?')


def put_back(events: list[Event], raw_args: RawArgs) -> RawArgs:
    """Give moved events their own tid, take the names from the tracks they were moved to.

    Returns:
        What gives the arguments' texts as they were before the move.
    """
    moved = [
        row
        for row, event in enumerate(events)
        if type(event.args) is Args and event.args.original_tid != NULL
    ]
    for row in moved:
        event = events[row]
        if event.ph == "M":
            event.name = None
        elif type(event.args) is Args:
            event.tid = event.args.original_tid
    return (lambda: _own_args(raw_args(), moved)) if moved else raw_args


def _own_args(texts: list[msgspec.Raw], moved: list[int]) -> list[msgspec.Raw]:
    """The texts without the mark; null where there was nothing else."""
    own = list(texts)
    for row in moved:
        text = _origin.sub(b"{", bytes(own[row]), count=1)
        own[row] = ABSENT if text == b"{}" else msgspec.Raw(text)
    return own
