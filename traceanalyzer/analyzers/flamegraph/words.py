"""A flamegraph in words: the verdict and the notes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.flamegraph.functions import column
from traceanalyzer.analyzers.flamegraph.part import NO_STACK, TOO_DEEP
from traceanalyzer.units import format_frac, format_weight

if TYPE_CHECKING:
    from traceanalyzer.analyzers.flamegraph.result import FlameGraph

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


def verdict(result: FlameGraph) -> str:
    """The answer in a few sentences."""
    functions, unit = result.functions, result.unit
    heaviest = functions.row(0, named=True)
    sentences = [
        f"{format_weight(result.total, unit)} in {_counted(functions.height, 'function')}.",
        f"The heaviest by itself is {_called(heaviest)}: {format_frac(heaviest['self_frac'])}.",
    ]
    inner = column("inner", unit)
    own = functions.filter(pl.col("own")).sort(
        inner, "name", "place", descending=[True, False, False]
    )
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


def notes(counts: Counter[str], functions: pl.DataFrame) -> tuple[str, ...]:
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


def _change(functions: pl.DataFrame) -> str:
    change = pl.col("change_self_frac")
    most = functions.sort(change.abs(), "name", "place", descending=[True, False, False])
    row = most.row(0, named=True)
    if not row["change_self_frac"]:
        return "No function's share differs from the base's."
    return (
        f"Against the base {_called(row)} changed most by itself: from "
        f"{format_frac(row['base_self_frac'])} to {format_frac(row['self_frac'])}."
    )


def _called(function: dict[str, object]) -> str:
    place = function["place"]
    return (
        f"{function['name'] or '(no name)'} ({place})"
        if place
        else str(function["name"] or "(no name)")
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
