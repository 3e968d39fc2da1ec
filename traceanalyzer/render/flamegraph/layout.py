"""Positions of the boxes of a flame graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from traceanalyzer.drawings import Flame
from traceanalyzer.render.text import shorten, visible
from traceanalyzer.units import format_frac

_NAME_CHARS = 300


@dataclass(eq=False)
class Box:
    """One box: a row of the frame of the flame graph, its depth and its left edge (a weight)."""

    name: str
    place: str | None
    group: str | None
    is_own_code: bool
    alone: float
    total: float
    hidden: int
    base: float | None
    depth: int = 0
    left: float = 0.0
    parent: Box | None = field(default=None, repr=False)
    below: list[Box] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Layout:
    """Boxes with a width, callers before callees and left to right, and boxes without one.

    Attributes:
        boxes: the first one is the root; several roots get a common one.
        vanished: topmost boxes that exist only in the base, heaviest first.
        depth: number of rows.
    """

    boxes: list[Box]
    vanished: list[Box]
    depth: int

    @property
    def total(self) -> float:
        """Return the total weight; 0 for an empty flame graph."""
        return self.boxes[0].total if self.boxes else 0.0

    @property
    def compared(self) -> bool:
        """Return whether the boxes are compared with another run."""
        return any(box.base is not None for box in self.boxes)


def lay_out(flame: Flame) -> Layout:
    """Return the boxes with their positions.

    Callees start at the left edge of their caller, heaviest first (ties by name), the box that sums
    up small ones last. A box without weight is dropped, or listed as vanished.
    """
    root = _tree(flame)
    boxes: list[Box] = []
    vanished: list[Box] = []
    stack = [root] if root else []
    while stack:
        box = stack.pop()
        if box.total <= 0:
            if box.base:
                vanished.append(box)
            continue
        boxes.append(box)
        left = box.left
        below = sorted(box.below, key=_order)
        for child in below:
            child.depth, child.left = box.depth + 1, left
            left += child.total
        stack.extend(reversed(below))
    vanished.sort(key=lambda box: (-(box.base or 0), box.name))
    return Layout(boxes, vanished, max((box.depth for box in boxes), default=-1) + 1)


def share(value: float, of: float) -> str:
    """Return ``value`` as a percentage ``of`` a sum; tiny values as ``< 0.1 %``."""
    frac = value / of if of else 0.0
    return "< 0.1 %" if 0 < frac < 0.0005 else format_frac(frac)


def _tree(flame: Flame) -> Box | None:
    """Return the root of the boxes, an artificial one for several roots; None without boxes."""
    boxes: list[Box] = []
    roots: list[Box] = []
    for row in flame.frame.sort("id").iter_rows(named=True):
        box = _box(row)
        boxes.append(box)
        if row["parent"] is None:
            roots.append(box)
        else:
            box.parent = boxes[row["parent"]]
            box.parent.below.append(box)
    if len(roots) < 2:
        return roots[0] if roots else None
    bases = [root.base for root in roots if root.base is not None]
    total, base = sum(root.total for root in roots), sum(bases) if bases else None
    whole = Box("all", None, None, False, 0.0, total, 0, base, below=roots)
    for root in roots:
        root.parent = whole
    return whole


def _box(row: dict[str, Any]) -> Box:
    hidden = row["hidden"]
    name = row["name"] or (f"({hidden:,} frames too small to draw)" if hidden else "(no name)")
    return Box(
        shorten(visible(name), _NAME_CHARS),
        shorten(visible(row["place"]), _NAME_CHARS) if row["place"] else None,
        row["group"],
        row["is_own_code"],
        row["self"],
        row["total"],
        hidden,
        row["base"],
    )


def _order(box: Box) -> tuple[bool, float, str, str]:
    return box.hidden > 0, -box.total, box.name, box.place or ""
