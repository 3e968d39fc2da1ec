"""A part of a timeline as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

import traceanalyzer as ta
from traceanalyzer.errors import OptionError
from traceanalyzer.result import Result, Table, View
from traceanalyzer.trace import overlaps
from traceanalyzer.units import format_count


@dataclass(frozen=True, eq=False, repr=False)
class TimelineSlice(Result):
    """A part of a timeline.

    Attributes:
        start_ns, end_ns: the part, on the axis of the timeline.
        frames: rows of lanes, states, events, steps and gaps that overlap it; times in ns.
    """

    start_ns: int
    end_ns: int
    frames: Mapping[str, pl.DataFrame]
    timeline_notes: tuple[str, ...]

    def view(self) -> View:
        """Return the frames as tables."""
        counts = [format_count(self.frames[name].height, name[:-1]) for name in self.frames]
        return View(
            title="What does each device do in a part of the timeline?",
            verdict=f"{', '.join(counts)}.",
            notes=self.timeline_notes,
            tables=tuple(Table(name, name, frame, {}) for name, frame in self.frames.items()),
            scalars=self.numbers("start_ns", "end_ns"),
        )


def timeline_slice(paths: Sequence[str], *, start: int, end: int, **reading: Any) -> TimelineSlice:
    """Return the rows of a timeline that overlap a part of its axis.

    Args:
        paths: files and folders of all ranks.
        start: start of the part in ns on the axis of :func:`traceanalyzer.timeline`.
        end: its end.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work was recorded.
        OptionError: the part is empty.
    """
    if start >= end:
        raise OptionError("start must be before end")
    timeline = ta.timeline(paths, **reading)
    inside = overlaps(pl.col("start"), pl.col("end"), [(start, end)])
    on = timeline.lanes.select("lane", "on")
    frames = {"lanes": timeline.lanes.filter(inside)}
    for name in ("states", "events", "steps", "gaps"):
        rows: pl.DataFrame = getattr(timeline, name).filter(inside)
        frames[name] = rows.join(on, on="lane", how="left", maintain_order="left")
    frames = {
        name: frame.rename({"start": "start_ns", "end": "end_ns"}) for name, frame in frames.items()
    }
    return TimelineSlice(start, end, frames, timeline.notes)
