"""Operator, annotation and Python frame that a host thread runs at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from traceanalyzer.analyzers.common import libraries
from traceanalyzer.analyzers.common.names import named, python_frame
from traceanalyzer.frames import linking, slice_tree
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import PROFILER_STEP

THREAD = ["pid", "tid"]

#: Ranges recorded as operators by PyTorch until 2021, such as ``Optimizer.step#SGD.step``.
_MARKED = "#"

#: Frames of C functions and of modules have no line in the program.
_NO_LINE = r"^<built-in|^nn\.Module:"


@dataclass(frozen=True)
class Places:
    """Operators and annotations on the host threads of a rank.

    The methods return a name for each row of pid, tid, ts; null if no such slice is open.

    Attributes:
        operators: pid, tid, name, start, end; sorted by start, longest first.
        annotations: the same columns for annotations that do not mark steps.
    """

    operators: pl.DataFrame
    annotations: pl.DataFrame

    def operator(self, at: pl.DataFrame) -> pl.Series:
        """Return the innermost operator."""
        return self.operators["name"][self._operator_rows(at)]

    def outer_operator(self, at: pl.DataFrame) -> pl.Series:
        """Return the outermost operator: one that starts when all earlier ones have ended."""
        ended = pl.col("end").cum_max().shift(1).over(THREAD)
        outer = self.operators.filter((pl.col("start") >= ended).fill_null(value=True))
        return outer["name"][linking.label_by_interval(at, outer, THREAD)["interval"]]

    def annotation(self, at: pl.DataFrame) -> pl.Series:
        """Return the innermost annotation that does not mark a step."""
        return _innermost(at, self.annotations)

    def range(self, at: pl.DataFrame) -> pl.Series:
        """Return the innermost operator or annotation that does not mark a step."""
        operators, annotations = (
            slices[["name", "start"]][rows]
            for slices, rows in (
                (self.operators, self._operator_rows(at)),
                (self.annotations, linking.enclosing(at, self.annotations, THREAD)["slice"]),
            )
        )
        later = (annotations["start"] > operators["start"]).fill_null(value=True)
        return pl.select(
            pl.when(later & annotations["name"].is_not_null())
            .then(annotations["name"])
            .otherwise(operators["name"])
        ).to_series()

    def _operator_rows(self, at: pl.DataFrame) -> pl.Series:
        return slice_tree.innermost(at, self._tree, THREAD)

    @cached_property
    def _tree(self) -> pl.DataFrame:
        """The operators with their parents: faster, as several analyses look up operators."""
        return slice_tree.build_tree(self.operators, THREAD)


def places_of(trace: Trace) -> Places:
    """Return the operators and annotations of a trace."""
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
    trace: Trace,
    at: pl.DataFrame,
    is_own_code: Callable[[str | None, str | None], bool] = libraries.is_own_code,
) -> pl.Series:
    """Return the innermost Python frame of own code at each row, else of any code with a line."""
    if "python_function" not in trace.kinds:
        return pl.repeat(None, at.height, dtype=trace.events.schema["name"], eager=True)
    rows = _slices(trace, "python_function")
    lined = rows.filter(~named(rows, [_NO_LINE]))
    first = _innermost(at, lined.filter(in_own_code(lined["name"], is_own_code)))
    return pl.select(pl.coalesce(first, _innermost(at, lined))).to_series()


def _slices(trace: Trace, *kinds: str) -> pl.DataFrame:
    columns = trace.events[["kind", *THREAD, "name", "ts", "dur"]]
    rows = columns.filter(pl.col("kind").is_in(kinds) & (pl.col("dur") > 0))
    return rows.select(*THREAD, "name", start="ts", end=pl.col("ts") + pl.col("dur"))


def _innermost(at: pl.DataFrame, slices: pl.DataFrame) -> pl.Series:
    """Return the names of the innermost slices."""
    return slices["name"][linking.enclosing(at, slices, THREAD)["slice"]]


def in_own_code(
    names: pl.Series, test: Callable[[str | None, str | None], bool] = libraries.is_own_code
) -> pl.Expr:
    """Whether the name of a frame is of own code."""
    distinct = names.unique().drop_nulls().to_frame("name")
    frames = distinct.select(frame=python_frame(pl.col("name").cast(pl.String))).unnest("frame")
    flags = [test(name, file) for file, name in frames[["file", "name"]].iter_rows()]
    kept = distinct["name"].filter(pl.Series(flags, dtype=pl.Boolean))
    return pl.col("name").is_in(kept.implode())
