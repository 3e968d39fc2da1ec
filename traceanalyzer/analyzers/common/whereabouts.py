"""Where in the program a thread was: its operator, annotation and Python frame at a moment."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common import libraries
from traceanalyzer.analyzers.common.names import named, python_frame
from traceanalyzer.frames import linking
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import PROFILER_STEP

THREAD = ["pid", "tid"]

#: Ranges that PyTorch marked as operators until 2021, such as ``Optimizer.step#SGD.step``.
_MARKED = "#"

#: Frames of C functions and of modules as such name no line of the program.
_NO_LINE = r"^<built-in|^nn\.Module:"


@dataclass(frozen=True)
class Places:
    """The slices of a rank's host threads that tell where each was.

    Its functions give a name for each moment (pid, tid, ts), null where the thread was in no such
    slice.

    Attributes:
        operators: pid, tid, name, start, end; in order of start, the longest first.
        annotations: the same of annotations that mark no step.
    """

    operators: pl.DataFrame
    annotations: pl.DataFrame

    def operator(self, at: pl.DataFrame) -> pl.Series:
        """The innermost operator."""
        return _innermost(at, self.operators)

    def outer_operator(self, at: pl.DataFrame) -> pl.Series:
        """The outermost operator: one that starts where all before it have ended."""
        ended = pl.col("end").cum_max().shift(1).over(THREAD)
        outer = self.operators.filter((pl.col("start") >= ended).fill_null(value=True))
        return outer["name"].gather(linking.label_by_interval(at, outer, THREAD)["interval"])

    def annotation(self, at: pl.DataFrame) -> pl.Series:
        """The innermost annotation that marks no step."""
        return _innermost(at, self.annotations)


def places_of(trace: Trace) -> Places:
    """The operators and annotations of a trace."""
    return trace.once("places", lambda: _places(trace))


def _places(trace: Trace) -> Places:
    recorded = _slices(trace, "cpu_op")
    marked = recorded.select(named(recorded, [_MARKED])).to_series()
    operators = recorded.filter(~marked) if marked.any() else recorded
    annotations = pl.concat([_slices(trace, "user_annotation", "nvtx"), recorded.filter(marked)])
    steps = named(annotations, [f"^{PROFILER_STEP}"])
    return Places(
        operators, annotations.filter(~steps).sort("start", "end", descending=[False, True])
    )


def python_frames(
    trace: Trace, at: pl.DataFrame, own: Callable[[str | None, str | None], bool] = libraries.is_own
) -> pl.Series:
    """The innermost Python frame of one's own code at each moment, else of any with a line."""
    rows = _slices(trace, "python_function")
    if rows.is_empty():
        return pl.repeat(None, at.height, dtype=rows.schema["name"], eager=True)
    lined = rows.filter(~named(rows, [_NO_LINE]))
    first = _innermost(at, lined.filter(_own(lined["name"], own)))
    return pl.select(pl.coalesce(first, _innermost(at, lined))).to_series()


def _slices(trace: Trace, *kinds: str) -> pl.DataFrame:
    wanted = trace.events.select(pl.col("kind").is_in(kinds) & (pl.col("dur") > 0)).to_series()
    end = pl.col("ts") + pl.col("dur")
    return trace.events.select(*THREAD, "name", start="ts", end=end).filter(wanted)


def _innermost(at: pl.DataFrame, slices: pl.DataFrame) -> pl.Series:
    """The names of the innermost slices."""
    return slices["name"].gather(linking.enclosing(at, slices, THREAD)["slice"])


def _own(names: pl.Series, is_own: Callable[[str | None, str | None], bool]) -> pl.Expr:
    """Whether a frame's name is that of one's own code."""
    distinct = names.unique().drop_nulls().to_frame("name")
    told = distinct.select(told=python_frame(pl.col("name").cast(pl.String))).unnest("told")
    own = [is_own(name, file) for file, name in told.select("file", "name").iter_rows()]
    return pl.col("name").is_in(distinct["name"].filter(pl.Series(own, dtype=pl.Boolean)).implode())
