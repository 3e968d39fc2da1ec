"""py-spy's begin and end events, named as its other formats name frames.

Their arguments tell file and line, which no other column of the tables could hold; frames that
stand for a thread or a process are lanes, as in its raw format.
"""

from __future__ import annotations

from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, Args, Event
from traceanalyzer.parsers.chrome_trace.overflow import RawArgs
from traceanalyzer.parsers.collapsed import labels
from traceanalyzer.parsers.sampled import Lanes

_CATEGORY = "py-spy"
#: A phase that means nothing.
_NOTHING = "("


class _Place(msgspec.Struct, gc=False):
    """Where a function is."""

    filename: Any = None
    line: Any = None


_place = msgspec.json.Decoder(_Place)


def rename(events: list[Event], raw_args: RawArgs) -> None:
    """Call py-spy's slices ``NAME (FILE:LINE)``, let its labels name processes and threads.

    Args:
        events: events of any writer, which are changed.
        raw_args: gives the arguments' text of every event.
    """
    own = [row for row, e in enumerate(events) if e.cat == _CATEGORY and e.ph in ("B", "E")]
    texts = raw_args() if own else []
    for row in own:
        event = events[row]
        try:
            place = _place.decode(texts[row])
        except BAD_TEXT:
            continue
        if not isinstance(event.name, str) or not isinstance(place.filename, str):
            continue
        if place.filename:
            event.name = _frame(event.name, place.filename, place.line)
        elif event.name.encode(errors="replace").startswith(labels.LABELLED):
            _label(event, event.name)


def _frame(name: str, file: str, line: Any) -> str:
    """A function as py-spy's raw format writes it, without a line where it tells none."""
    return f"{name} ({file}:{line})" if type(line) is int and line > 0 else f"{name} ({file})"


def _label(event: Event, text: str) -> None:
    """Make of the begin of a label the metadata that names its lane, of its end nothing."""
    lanes = Lanes()
    _, rest = labels.py_spy(text.encode(errors="replace"), lanes)
    if rest:
        return
    begins, event.ph = event.ph == "B", _NOTHING
    for (_, tid), name in lanes.threads.items() if begins else ():
        event.ph, event.name, event.args = "M", "thread_name", Args(name=name or f"thread {tid}")
    for pid, command in lanes.commands.items() if begins else ():
        event.ph, event.name, event.args = "M", "process_name", Args(name=command)
        event.pid = pid
