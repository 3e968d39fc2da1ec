"""Shares of each state in the columns of a drawing."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceanalyzer.drawings import Lanes


def shares(drawing: Lanes, columns: int, only: Sequence[int] | None = None) -> NDArray[np.float64]:
    """Return the share of each state in each column: an array (lane, column, state).

    The columns divide the axis evenly. The shares of a column sum to 1, or less where a lane was
    not recorded.

    Args:
        drawing: the timeline.
        columns: number of columns.
        only: numbers of lanes; default: all, in the order of the drawing.
    """
    lanes = drawing.lanes["lane"].to_list() if only is None else only
    edges = np.linspace(*extent(drawing), columns + 1)
    width = edges[1] - edges[0] or 1
    result = np.zeros((len(lanes), columns, len(drawing.names)))
    for place, lane in enumerate(lanes):
        rows = drawing.states.filter(lane=lane)
        for number, state in enumerate(drawing.names):
            of_state = rows.filter(pl.col("state") == state)
            covered = _covered(of_state["start"].to_numpy(), of_state["end"].to_numpy(), edges)
            result[place, :, number] = np.diff(covered) / width
    return result


def extent(drawing: Lanes) -> tuple[int, int]:
    """Return the first and the last time that is drawn."""
    begin, end = drawing.lanes["start"].min(), drawing.lanes["end"].max()
    return (begin, end) if isinstance(begin, int) and isinstance(end, int) else (0, 0)


def length(drawing: Lanes) -> int:
    """Return the length of the time that is drawn."""
    begin, end = extent(drawing)
    return end - begin


def short_step(name: str) -> str:
    """Return the end of a step's name, mostly its number: ``12`` of ``ProfilerStep#12``."""
    return name.rpartition("#" if "#" in name else " ")[2] or name


def _covered(
    start: NDArray[np.int64], end: NDArray[np.int64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how much of disjoint, ordered intervals lies before each time."""
    if not start.size:
        return np.zeros(at.size)
    begun = np.searchsorted(start, at, side="right")
    total = np.concatenate(([0], np.cumsum(end - start)))
    beyond = np.where(begun > 0, np.maximum(end[begun - 1] - at, 0), 0)
    covered: NDArray[np.float64] = total[begun] - beyond
    return covered
