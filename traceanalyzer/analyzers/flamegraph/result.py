"""The flamegraph and the functions that weigh most, and what is shown of them."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.flamegraph.weights import NO_STACK, TOO_DEEP
from traceanalyzer.result import Flame, Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_weight

#: What counts of a part say, where there is something to count.
_COUNTS = {
    "unweighted": "Not counted: {} samples whose weight is not above 0.",
    "overlapping": (
        "Slices that overlap others of their thread without lying in them: {}. They stand on their "
        "own, and their time counts beside that of the others."
    ),
}

#: What frames say that are no functions, by their names.
_STAND_INS = {
    NO_STACK: NO_STACK + " is {} of it: where no frame was seen, or no stack recorded.",
    TOO_DEEP: TOO_DEEP + " is in {} of it: what lies deeper is not told apart.",
}

_HEADINGS = {"name": "function", "place": "file:lines", "own": "own"}


@dataclass(frozen=True, eq=False, repr=False)
class FlameGraph(Result):
    """Where the weight of stacks lies.

    Attributes:
        total: the weight of all stacks.
        unit: of the weights: ``samples``, ``ns``, ``bytes``, or empty.
        base: the weight of the run compared with, as it was recorded, or None.
        whose: whose code is the own, in words.
        functions: one row a function, the heaviest by itself first.
        flame: the boxes to draw.
        least_frac: boxes smaller than this part of everything are summed up.
        hidden: how many boxes are summed up in others.
        hidden_frac: how much of everything these weigh.
        remarks: what was not counted, assumed or missing.
    """

    total: float
    unit: str
    base: float | None
    whose: str
    functions: pl.DataFrame
    flame: Flame
    least_frac: float
    hidden: int
    hidden_frac: float
    remarks: tuple[str, ...]

    def view(self) -> View:
        """Functions by themselves, as innermost own code, with all they call; changes first."""
        return View(
            title="Which functions does it go into?",
            verdict=_verdict(self),
            notes=self.remarks,
            tables=_tables(self.functions, self.unit, self.whose),
            scalars={
                "total": self.total,
                "unit": self.unit,
                "base_total": self.base,
                "n_functions": self.functions.height,
                "n_boxes": self.flame.frame.height,
                "hidden_boxes": self.hidden,
                "hidden_frac": self.hidden_frac,
            },
            flames=self._flames,
        )

    def _flames(self) -> tuple[Flame, ...]:
        return (self.flame,)


def column(name: str, unit: str) -> str:
    """``self_ns``, ``total_samples``: a column of weights; without a unit ``self_weight``."""
    return f"{name}_{unit or 'weight'}"


def count_notes(counts: Counter[str], functions: pl.DataFrame) -> tuple[str, ...]:
    """What was not counted, or stands for something else.

    Args:
        counts: what the parts counted.
        functions: the table of functions.
    """
    said = [text.format(f"{counts[what]:,}") for what, text in _COUNTS.items() if counts[what]]
    stand_ins = functions.filter(pl.col("place").is_null() & pl.col("name").is_in(list(_STAND_INS)))
    for name, frac in stand_ins.select("name", "total_frac").sort("name").iter_rows():
        said.append(_STAND_INS[name].format(format_frac(frac)))
    return tuple(said)


# --- verdict ---------------------------------------------------------------------------------


def _verdict(result: FlameGraph) -> str:
    """The answer in a few sentences."""
    functions, unit = result.functions, result.unit
    heaviest = functions.row(0, named=True)
    sentences = [
        f"{format_weight(result.total, unit)} in {format_count(functions.height, 'function')}.",
        f"The heaviest by itself is {_called(heaviest)}: {format_frac(heaviest['self_frac'])}.",
    ]
    inner = column("inner", unit)
    own = largest_first(functions.filter("own"), inner, "name", "place")
    if own.height:
        most = own.row(0, named=True)
        sentences.append(
            f"Of {result.whose}, {_called(most)} is most often the innermost: in "
            f"{format_frac(most['inner_frac'])}, {format_frac(most['self_frac'])} by itself."
        )
    elif functions["place"].null_count() == functions.height:
        sentences.append("Whose code they are cannot be told: the frames name no files.")
    else:
        sentences.append(f"No frame is of {result.whose}.")
    if result.base is not None:
        sentences.append(_change(functions))
    if result.hidden:
        least, gone = f"{100 * result.least_frac:.2g} %", format_frac(result.hidden_frac)
        sentences.append(
            f"Boxes below {least} are summed up: {result.hidden:,} of them, {gone} in all."
        )
    return " ".join(sentences)


def _change(functions: pl.DataFrame) -> str:
    row = _most_changed(functions).row(0, named=True)
    if not row["change_self_frac"]:
        return "No function's share differs from the base's."
    return (
        f"Against the base {_called(row)} changed most by itself: from "
        f"{format_frac(row['base_self_frac'])} to {format_frac(row['self_frac'])}."
    )


def _called(function: dict[str, Any]) -> str:
    name, place = function["name"] or "(no name)", function["place"]
    return f"{name} ({place})" if place else name


# --- tables ----------------------------------------------------------------------------------


def _tables(frame: pl.DataFrame, unit: str, whose: str) -> tuple[Table, ...]:
    """The heaviest functions: by themselves, as innermost own code, with all they call.

    Args:
        frame: what :func:`~.tree.functions` gives.
        unit: of the weights.
        whose: whose code is the own: ``your own code`` or ``the code of torch``.
    """
    own = f"{whose[0].upper()}{whose[1:]}: where stacks leave it, or end in it"
    by_inner, by_total = _ranked(frame.filter("own"), "inner", unit), _ranked(frame, "total", unit)
    made = [
        _table("by_self", "Heaviest functions by themselves", frame, "self", unit),
        _table("own_code", own, by_inner, "inner", unit),
        _table("by_total", "Functions with all that they call", by_total, "total", unit),
    ]
    if "change_self_frac" in frame.columns:
        changed = _most_changed(frame).filter(pl.col("change_self_frac") != 0)
        shown = {"base_self_frac": "base", "self_frac": "here", "change_self_frac": "change"}
        shown = {**_HEADINGS, **shown}
        made.insert(0, Table("changes", "What changed most, by itself", changed, shown))
    return tuple(made)


def _table(name: str, title: str, frame: pl.DataFrame, by: str, unit: str) -> Table:
    heads = {"self": "self", "total": "total", "inner": "as innermost"}
    other = "total" if by == "self" else "self"
    shown = {**_HEADINGS, column(by, unit): heads[by], f"{by}_frac": "share"}
    shown[f"{other}_frac"] = other
    if by == "inner":
        del shown["own"]
    return Table(name, title, frame, shown, detail=by == "total")


def _ranked(frame: pl.DataFrame, by: str, unit: str) -> pl.DataFrame:
    weight = column(by, unit)
    return largest_first(frame.filter(pl.col(weight) > 0), weight, "name", "place")


def _most_changed(functions: pl.DataFrame) -> pl.DataFrame:
    return largest_first(functions, pl.col("change_self_frac").abs(), "name", "place")
