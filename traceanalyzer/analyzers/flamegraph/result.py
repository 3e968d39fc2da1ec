"""Result of the flame graph analysis: functions and boxes, verdict, notes, tables."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import own_lines
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.flamegraph.weights import NO_STACK, TOO_DEEP
from traceanalyzer.drawings import Flame
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac

#: Notes on the counts of a part, if not zero.
_COUNTS = {
    "unweighted": "Not counted: {} samples with a weight of 0 or less.",
    "overlapping": (
        "Slices that overlap others of their thread without nesting: {}. They are separate roots, "
        "and their time counts in addition."
    ),
}

#: Notes on frames that are not functions, by name.
_STAND_INS = {
    NO_STACK: NO_STACK + " has {} of the weight: no frame or no stack was recorded.",
    TOO_DEEP: TOO_DEEP + " is in {} of the weight: deeper frames are merged.",
}

_HEADINGS = {"name": "function", "place": "file:lines", "is_own_code": "own code"}


@dataclass(frozen=True, eq=False, repr=False)
class FlameGraph(Result):
    """Weights of stacks by function and as boxes of a flame graph.

    Attributes:
        total: the weight of all stacks.
        unit: unit of the weights: ``samples``, ``ns``, ``bytes``, or empty.
        base: the recorded weight of the base run, or None.
        on_device: whether all stacks are device work, which has no lines of code.
        names: libraries with highlighted code; empty for own code.
        functions: one row per function, the highest self weight first.
        lines: the functions of the highlighted code that run, as ``lines`` of
            :func:`traceanalyzer.py_spy_report`; ``samples`` is their weight.
        activities: what the stacks do, as there.
        flame: the boxes to draw.
        least_frac: boxes smaller than this fraction of the total are merged.
        hidden: number of merged boxes.
        hidden_frac: their fraction of the total.
        remarks: remarks on what was not counted, assumed or missing.
    """

    question = "Where does the time go?"

    total: float
    unit: str
    base: float | None
    on_device: bool
    names: tuple[str, ...]
    functions: pl.DataFrame
    lines: pl.DataFrame
    activities: pl.DataFrame
    flame: Flame
    least_frac: float
    hidden: int
    hidden_frac: float
    remarks: tuple[str, ...]

    @property
    def code(self) -> str:
        """Return the label of the highlighted code: ``own code`` or ``code of torch``."""
        return f"code of {' or '.join(self.names)}" if self.names else "own code"

    def view(self) -> View:
        """Build the view: functions by self, innermost own code and total weight; changes first."""
        scalars = {
            "total": self.total,
            "unit": self.unit,
            "base_total": self.base,
            "n_functions": self.functions.height,
            "n_boxes": self.flame.frame.height,
            "hidden_boxes": self.hidden,
            "hidden_frac": self.hidden_frac,
        }
        return self.view_from(_verdict, _notes, _tables, scalars=scalars, flames=self._flames)

    def _flames(self) -> tuple[Flame, ...]:
        return (self.flame,)


def column(name: str, unit: str) -> str:
    """Return the name of a column of weights: ``self_ns``, ``total_samples``, ``self_weight``."""
    return f"{name}_{unit or 'weight'}"


def count_notes(counts: Counter[str], functions: pl.DataFrame) -> tuple[str, ...]:
    """Describe what was not counted or merged.

    Args:
        counts: the counts of the parts.
        functions: the table of functions.
    """
    notes = [text.format(f"{counts[what]:,}") for what, text in _COUNTS.items() if counts[what]]
    stand_ins = functions.filter(pl.col("place").is_null() & pl.col("name").is_in(list(_STAND_INS)))
    for name, frac in stand_ins.select("name", "total_frac").sort("name").iter_rows():
        notes.append(_STAND_INS[name].format(format_frac(frac)))
    return tuple(notes)


# --- verdict ---------------------------------------------------------------------------------


def _verdict(result: FlameGraph) -> str:
    """Describe the highlighted code with most weight as ``py-spy-report`` does, and changes."""
    functions = result.functions
    if result.lines.height:
        sentences = [own_lines.answer(result.lines, result.activities, result.unit)]
    else:
        heaviest = functions.row(0, named=True)
        share = format_frac(heaviest["self_frac"])
        sentences = [f"{_called(heaviest)} has the highest self share: {share}."]
        if not result.on_device:
            sentences.append(own_lines.unknown(functions["place"], result.names))
    if result.base is not None:
        sentences.append(_change(functions))
    return " ".join(sentences)


def _notes(result: FlameGraph) -> Iterator[str]:
    """Yield the remarks, and describe the boxes that are too small to be drawn."""
    yield from result.remarks
    if result.hidden:
        least, merged = f"{100 * result.least_frac:.2g} %", format_frac(result.hidden_frac)
        boxes = format_count(result.hidden, "box", "es")
        yield f"{boxes} below {least} merged ({merged} in total)."


def _change(functions: pl.DataFrame) -> str:
    row = _most_changed(functions).row(0, named=True)
    if not row["change_self_frac"]:
        return "No function's share differs from the base."
    return (
        f"Largest change of self share against the base: {_called(row)}, from "
        f"{format_frac(row['base_self_frac'])} to {format_frac(row['self_frac'])}."
    )


def _called(function: dict[str, Any]) -> str:
    name, place = function["name"] or "(no name)", function["place"]
    return f"{name} ({place})" if place else name


# --- tables ----------------------------------------------------------------------------------


def _tables(result: FlameGraph) -> Iterator[Table]:
    """Build the tables: changes, functions by self weight, by innermost own code, by total."""
    frame, unit = result.functions, result.unit
    if "change_self_frac" in frame.columns:
        changed = _most_changed(frame).filter(pl.col("change_self_frac") != 0)
        columns = {"base_self_frac": "base", "self_frac": "here", "change_self_frac": "change"}
        columns = {**_HEADINGS, **columns}
        yield Table("changes", "Largest changes of self share", changed, columns)
    by_inner = _ranked(frame.filter("is_own_code"), "inner", unit)
    yield _table("by_self", "Functions by self weight", frame, "self", unit)
    yield _table("own_code", f"Innermost functions in {result.code}", by_inner, "inner", unit)
    by_total = _ranked(frame, "total", unit)
    yield _table("by_total", "Functions by total weight", by_total, "total", unit)


def _table(name: str, title: str, frame: pl.DataFrame, by: str, unit: str) -> Table:
    heads = {"self": "self", "total": "total", "inner": "innermost"}
    other = "total" if by == "self" else "self"
    columns = {**_HEADINGS, column(by, unit): heads[by], f"{by}_frac": "share"}
    columns[f"{other}_frac"] = other
    if by == "inner":
        del columns["is_own_code"]
    return Table(name, title, frame, columns, detail=by == "total")


def _ranked(frame: pl.DataFrame, by: str, unit: str) -> pl.DataFrame:
    weight = column(by, unit)
    return largest_first(frame.filter(pl.col(weight) > 0), weight, "name", "place")


def _most_changed(functions: pl.DataFrame) -> pl.DataFrame:
    return largest_first(functions, pl.col("change_self_frac").abs(), "name", "place")
