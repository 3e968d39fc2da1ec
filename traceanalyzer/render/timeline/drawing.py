"""Plot of a timeline: one row per device, in each column the share of each state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceanalyzer.render import palette
from traceanalyzer.render.text import prose, scale_of, shorten, visible
from traceanalyzer.render.timeline import extent, shares, short_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from numpy.typing import NDArray

    from traceanalyzer.drawings import Lanes

_COLUMNS = 1200
#: Pixels of all rows together; of one row: at most and at least.
_PIXELS, _TALLEST, _LOWEST = 800, 24, 2
_NAMED, _LABEL_CHARS, _STEP_CHARS, _STEPS = 32, 24, 14, 24
_INK = "#1f2328"


def height(drawing: Lanes) -> float:
    """Return the height of the drawing in inches."""
    return 1.9 + min(0.26 * drawing.lanes.height, 6)


def draw(drawing: Lanes, place: Figure | SubFigure) -> Axes:
    """Draw a timeline into a part of a figure."""
    place.suptitle(prose(drawing.title), x=0.01, horizontalalignment="left")
    ax: Axes = place.subplots()
    ax.grid(visible=False)
    (begin, end), rows = extent(drawing), drawing.lanes.height
    scale = scale_of("time_ns", end)
    ax.imshow(
        _image(drawing),
        extent=(begin / scale.factor, end / scale.factor, rows, 0),
        aspect="auto",
        interpolation="nearest",
    )
    labelled = range(rows) if rows <= _NAMED else _extremes(drawing)
    names = drawing.lanes["on"].to_list()
    ax.set_yticks(
        [row + 0.5 for row in labelled],
        [shorten(visible(names[row]), _LABEL_CHARS) for row in labelled],
    )
    ax.set_xlabel(scale.heading("time"))
    _steps(drawing, ax, scale.factor)
    for lane, start, end in drawing.marks.select("lane", "start", "end").iter_rows():
        row = drawing.lanes["lane"].to_list().index(lane)
        xs = [start / scale.factor, end / scale.factor]
        ax.plot([*xs, *xs[::-1], xs[0]], [row, row, row + 1, row + 1, row], color=_INK, lw=1)
    _legend(drawing, ax, place)
    return ax


def _image(drawing: Lanes) -> NDArray[np.uint8]:
    """Return the pixels: in each column of a row the states from the bottom, by their shares."""
    parts = shares(drawing, _COLUMNS)
    lanes, columns, _ = parts.shape
    tall = int(np.clip(_PIXELS // max(lanes, 1), _LOWEST, _TALLEST))
    colors = (palette.STATES[state][0] for state in drawing.names)
    inks = np.array([*(tuple(bytes.fromhex(color[1:])) for color in colors), (255,) * 3])
    until = np.cumsum(parts, axis=2)
    level = (np.arange(tall)[::-1] + 0.5) / tall
    state = (until[:, None, :, :] <= level[None, :, None, None]).sum(axis=3)
    pixels = inks[state]
    if tall > 6:  # a line between rows
        pixels[:, -1] = 255
    image: NDArray[np.uint8] = pixels.reshape(lanes * tall, columns, 3).astype(np.uint8)
    return image


def _extremes(drawing: Lanes) -> list[int]:
    """Return the rows with most, median and least lost time, and the critical path."""
    lanes, by_loss = drawing.lanes["lane"].to_list(), drawing.by_loss
    chosen = {by_loss[0], by_loss[len(by_loss) // 2], by_loss[-1], *{*lanes} - {*by_loss}}
    return sorted(map(lanes.index, chosen))


def _steps(drawing: Lanes, ax: Axes, factor: float) -> None:
    """Draw the steps of the first lane above the rows."""
    steps = drawing.steps.filter(pl.col("lane") == drawing.lanes["lane"][0])
    if steps.is_empty():
        return
    above = ax.secondary_xaxis("top")
    above.set_xlabel("step")
    every = max(steps.height // _STEPS, 1)
    rows = steps.select("step", "start", "end").rows()[::every]
    above.set_xticks(
        [start / factor for _, start, _ in rows],
        [shorten(visible(short_step(name)), _STEP_CHARS) for name, _, _ in rows],
        ha="left",
    )


def _legend(drawing: Lanes, ax: Axes, place: Figure | SubFigure) -> None:
    used = set(drawing.states["state"].unique())
    for state, label in drawing.names.items():
        if state in used:
            ink = palette.STATES[state][0]
            ax.plot([], [], ls="", marker="s", ms=9, color=ink, label=prose(label))
    place.legend(loc="outside lower left", ncols=4)
