"""Where in the program a thread was when ``torch.profiler`` noted an allocation.

A ``[memory]`` instant has no stack, but a thread and a time: the Python frame or the operator that
was running then tells what the stack of a snapshot would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers import libraries
from traceanalyzer.analyzers.names import python_frame
from traceanalyzer.analyzers.whereabouts import moments, places_of, python_frames
from traceanalyzer.trace import Trace


@dataclass(frozen=True)
class Where:
    """The slices of a trace's threads.

    Attributes:
        trace: with its operators and Python frames.
        own: whether a frame, by its function and file, is the user's or of the library asked for.
    """

    trace: Trace
    own: Callable[[str | None, str | None], bool]

    def of(self, events: pl.Series) -> pl.DataFrame:
        """``function``, ``file``, ``line`` and ``own`` at rows of ``events``; null for null."""
        known = events.drop_nulls()
        at = moments(self.trace.events.select("pid", "tid", "ts")[known])
        frame = python_frames(self.trace, at, self.own).cast(pl.String)
        functions = (
            frame.unique().to_frame("slice").with_columns(told=python_frame(pl.col("slice")))
        )
        told = (
            frame.to_frame("slice")
            .join(functions, on="slice", how="left", nulls_equal=True, maintain_order="left")
            .unnest("told")
        )
        operator = places_of(self.trace).operator(at).cast(pl.String)
        found = told.select(
            function=pl.coalesce("name", operator),
            file="file",
            line="line",
        )
        distinct = found.select("function", "file").unique()
        own = [file is not None and self.own(name, file) for name, file in distinct.rows()]
        flagged = found.join(
            distinct.with_columns(own=pl.Series(own, dtype=pl.Boolean)),
            on=["function", "file"],
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        row = pl.select(pl.when(events.is_not_null()).then(events.is_not_null().cum_sum() - 1))
        return flagged[row.to_series()]


def where(trace: Trace, library_names: Sequence[str] = ()) -> Where:
    """Where the threads of a trace were.

    Args:
        trace: with operators and Python frames.
        library_names: libraries whose frames count as one's own; by default the user's code does.
    """
    match = libraries.by_component(library_names)
    by_library = (lambda _, file: match(file) is not None) if library_names else libraries.is_own
    return Where(trace, by_library)
