"""Flame graphs as self-contained SVG, interactive with scripts.

In: :class:`traceanalyzer.drawings.Flame`. Out: an SVG document, or the same drawing for a page.
The drawing is complete without scripts; ``tree.js``, ``view.js`` and ``viewer.js`` make it
interactive. Only
:mod:`traceanalyzer.render` imports this package.

A drawing is 1200 units wide and scales with the page. The viewer uses the same elements: boxes are
in the order of the numbers in ``metadata``, and their names are in their titles.

The colour of a box depends on its package, on whether it is the user's own code, or on the change
of its weight. Every fill has a counterpart for dark screens; the style sheet of :func:`dark_rules`
replaces it by the value of the attribute, so that a picture without styles has light colours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any
from zlib import crc32

from traceanalyzer.drawings import Flame
from traceanalyzer.render.pieces import Viewer
from traceanalyzer.render.text import SIZES, TIMES, prose, shorten, visible
from traceanalyzer.units import format_frac, format_weight

PAPER, INK = "#ffffff", "#1f2328"

# Twelve hues in two tones, even in brightness (OKLCH: L .87 and .80, on dark .43 and .36), without
# the oranges, which mark the user's own code.
# fmt: off
_PACKAGES = {
    "#dfd6a1": "#595019", "#caddab": "#465726", "#b4e2bc": "#2f5b39", "#a3e4d2": "#115d4d",
    "#9de3e5": "#005c5f", "#a1dff5": "#0d596d", "#afdaff": "#295376", "#c2d3ff": "#404d79",
    "#d6ccff": "#524775", "#e8c6f3": "#61426a", "#f6c3e1": "#6c3e5b", "#fec2cd": "#723d49",
    "#c6bf93": "#463d00", "#b5c59b": "#344412", "#a3c9aa": "#1b4827", "#95cbbb": "#00493b",
    "#90cacc": "#00484b", "#93c7da": "#004559", "#9fc2e3": "#154062", "#aebde5": "#2e3a64",
    "#bfb7e1": "#403460", "#ceb2d7": "#4d2f56", "#daafc9": "#572c48", "#e1aeb8": "#5d2b37",
}
# From "only in the base" (blue) over "the same share" (grey) to "only here" (red).
_CHANGES = {
    "#59a3ff": "#005bb5", "#7bb2f7": "#1f5596", "#9bbfee": "#2d4e78", "#b9cce3": "#37465a",
    "#d7d7d7": "#3d3d3d", "#e2c1bd": "#593d3a", "#eaa9a3": "#733a36", "#ef9189": "#8c3432",
    "#f3766f": "#a5292b",
}
# fmt: on
OWN_CODE = "#fea247"
PLAIN = "#d7dade"
HATCHED = "hatch"

#: Light fill -> fill on a dark screen.
FILLS = {**_PACKAGES, **_CHANGES, OWN_CODE: "#a04a08", PLAIN: "#4a5058"}

_BY_HASH = tuple(_PACKAGES)
# A seed of the hash for which fourteen common packages have different colours: torch, the standard
# library, numpy, libtorch_cpu.so, libc.so.6, transformers, triton and so on.
_SEED = 22_795
CHANGES = tuple(_CHANGES)

WIDTH, ROW, MARGIN = 1200, 18, 12
_CHAR = 7.3  # advance of a 12 px monospace letter, rounded up
_SOFT_CHAR = 7  # of a 12 px proportional one, generously
_NARROWEST = 24  # width of two letters and the ellipsis
_THIN = 1  # narrower boxes have no edges, which would hide them
_SHARE_OF_PARENT = 0.01
_LEGEND, _VANISHED = 12, 15  # most entries
_FONT = f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}"'
_BIG = 'font-size="17" font-weight="bold"'
_NAME_FONT = f'font-family="ui-monospace, monospace" font-size="12" fill="{INK}"'
_STEPS = ("less than in base", "", "", "", "same share", "", "", "", "more or new")


def draw(flame: Flame, layout: Layout, key: str) -> tuple[list[str], int]:
    """Return the elements of the drawing for an ``svg`` element, and its height.

    Args:
        flame: the flame graph.
        layout: its boxes.
        key: prefix of the ids, unique on the page.
    """
    legend, top = _legend(layout, 56 if flame.subtitle else 38)
    foot, below = _foot(layout, top + max(layout.depth, 1) * ROW, flame.unit)
    lines = [
        f'<title id="{key}-title">{_prose(flame.title)}</title>',
        f'<desc id="{key}-desc">{_prose(_description(flame, layout))}</desc>',
        f"<metadata>{escape(_numbers(flame, layout), quote=False)}</metadata>",
        _hatch(key),
        f'<rect class="paper" width="100%" height="100%" fill="{PAPER}"/>',
        f'<g class="head" {_FONT}>',
        f'<text class="title" x="{MARGIN}" y="24" {_BIG}>{_line(flame.title, 120)}</text>',
        f'<text class="subtitle" x="{MARGIN}" y="44">{_line(flame.subtitle, 180)}</text>',
        *legend,
        "</g>",
        *_stage(flame, layout, top, key),
        *foot,
    ]
    return lines, top + max(layout.depth, 1) * ROW + below


def _description(flame: Flame, layout: Layout) -> str:
    order = "callers below callees" if flame.inverted else "callees below their callers"
    if not layout.boxes:
        return "Nothing to draw."
    text = (
        f"{len(layout.boxes):,} boxes, {order}; the width of a box is its weight; total "
        f"{format_weight(layout.total, flame.unit)}."
    )
    if layout.compared:
        text += " Red boxes have a larger share than in the base, blue ones a smaller share."
    return text


def _numbers(flame: Flame, layout: Layout) -> str:
    """Return the data that the viewer needs besides the drawing, as JSON."""
    boxes = layout.boxes
    scales = {"ns": TIMES, "bytes": SIZES}
    return json.dumps(
        {
            "unit": flame.unit,
            "scales": scales.get(flame.unit, ()),
            "inverted": flame.inverted,
            "changes": CHANGES if layout.compared else None,
            "total": [_number(box.total) for box in boxes],
            "self": [_number(box.alone) for box in boxes],
            "base": [_number(box.base or 0) for box in boxes] if layout.compared else None,
            "hidden": [index for index, box in enumerate(boxes) if box.hidden],
            "own_code": [index for index, box in enumerate(boxes) if box.is_own_code],
            "imports": [index for index, box in enumerate(boxes) if box.imports],
        },
        separators=(",", ":"),
    )


def _number(value: float) -> float:
    return int(value) if float(value).is_integer() else float(f"{value:.9g}")


def _hatch(key: str) -> str:
    return (
        f'<defs><pattern id="{key}-{HATCHED}" width="6" height="6" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="6" height="6" fill="{PLAIN}" stroke="none"/>'
        '<path class="hatch" d="M1 0v6" stroke="#fff" stroke-width="2"/></pattern></defs>'
    )


def _stage(flame: Flame, layout: Layout, top: int, key: str) -> list[str]:
    """Return the boxes, and the names that fit."""
    return [
        f'<svg class="stage" y="{top}" width="{WIDTH}" height="{max(layout.depth, 1) * ROW}">',
        f'<g class="boxes" stroke="{PAPER}" stroke-width=".5">',
        *(_rect(box, layout.total, flame.unit, key) for box in layout.boxes),
        "</g>",
        f'<g class="names" {_NAME_FONT} pointer-events="none">',
        *filter(None, (_label(box, layout.total) for box in layout.boxes)),
        "</g></svg>",
    ]


def _rect(box: Box, total: float, unit: str, key: str) -> str:
    scale = WIDTH / total
    edge = ' stroke="none"' if box.total * scale < _THIN else ""
    lines = "\n".join(filter(None, (box.name, box.place, describe(box, total, unit))))
    return (
        f'<rect x="{_short(box.left * scale)}" y="{box.depth * ROW}" '
        f'width="{_short(box.total * scale)}" height="{ROW}" fill="{_fill(box, key)}"{edge}>'
        f"<title>{escape(lines, quote=False)}</title></rect>"
    )


def describe(box: Box, total: float, unit: str) -> str:
    """Return total, share of all and of the caller, self and base of a box in one line.

    The share of the caller is omitted for the many boxes below 1 % of all, which dominate the size
    of the file; the viewer computes it.
    """
    parts = [f"{format_weight(box.total, unit)}, {share(box.total, total)} of all"]
    if box.parent and box.total >= _SHARE_OF_PARENT * total:
        parts.append(f"{share(box.total, box.parent.total)} of parent")
    if box.alone:
        parts.append(f"self {format_weight(box.alone, '' if unit == 'samples' else unit)}")
    if box.base is not None:
        parts.append(f"base {share(box.base, total)}")
    return ", ".join(parts)


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".").removeprefix("0") or "0"


def _fill(box: Box, key: str) -> str:
    if box.hidden:
        return f"url(#{key}-{HATCHED})"
    if box.base is not None:
        return fill_of_change(box.total, box.base)
    return fill_of_package(box.group, own_code=box.is_own_code)


def _label(box: Box, total: float) -> str:
    """Return the name cut to the width of the box; a nested ``svg`` clips wide fonts."""
    width = box.total / total * WIDTH
    if width < _NARROWEST:
        return ""
    room = int((width - 6) / _CHAR)
    text = box.name if len(box.name) <= room else box.name[: room - 1] + "…"
    bold = ' font-weight="bold"' if box.is_own_code else ""
    return (
        f'<svg x="{box.left / total * WIDTH:.1f}" y="{box.depth * ROW}" width="{width:.1f}" '
        f'height="{ROW}"><text x="3" y="13"{bold}>{escape(text, quote=False)}</text></svg>'
    )


def _legend(layout: Layout, top: int) -> tuple[list[str], int]:
    """Return the legend, in lines from ``top`` on, and the top of the boxes."""
    changes = [(fill, text, 8) for fill, text in zip(CHANGES, _STEPS, strict=True)]
    keys = changes if layout.compared else _groups(layout.boxes)
    lines, x = [], MARGIN
    for fill, text, gap in keys:
        wide = 18 + len(text) * _SOFT_CHAR + gap if text else 15
        if x + wide > WIDTH - MARGIN:
            x, top = MARGIN, top + 18
        label = f'<text x="{x + 18}" y="{top + 10}">{_prose(text)}</text>' if text else ""
        lines.append(
            f'<g class="key"><rect x="{x}" y="{top}" width="13" height="12" fill="{fill}"/>'
            f"{label}</g>"
        )
        x += wide
    return lines, top + 24


def _groups(boxes: Sequence[Box]) -> list[tuple[str, str, int]]:
    """Return a legend entry per package, largest self weight first, and one for the others."""
    weights: dict[tuple[str, str], float] = {}
    for box in boxes:
        if not box.hidden:
            name = "own code" if box.is_own_code else box.group or "no package"
            key = (fill_of_package(box.group, own_code=box.is_own_code), name)
            weights[key] = weights.get(key, 0.0) + box.alone
    ranked = sorted(weights, key=lambda key: (key[0] != OWN_CODE, -weights[key], key[1]))
    keys = [(fill, shorten(name, 30), 14) for fill, name in ranked[:_LEGEND]]
    left_out = len(ranked) - len(keys)
    return keys + ([(PLAIN, f"{left_out:,} more packages", 14)] if left_out > 0 else [])


def _foot(layout: Layout, top: int, unit: str) -> tuple[list[str], int]:
    """Return the list of boxes that exist only in the base, which have no width; and its height."""
    gone, rest = layout.vanished[:_VANISHED], layout.vanished[_VANISHED:]
    if not gone:
        return [], MARGIN
    lines = [_gone(box, layout.total, unit) for box in gone]
    if rest:
        weight_of_rest = share(sum(box.base or 0 for box in rest), layout.total)
        lines.append(f"{weight_of_rest}: {len(rest):,} more")
    height = len(lines) * 16 + 48
    return [
        f'<svg class="foot" y="{top}" width="{WIDTH}" height="{height}" {_FONT}>',
        f'<text x="{MARGIN}" y="26" font-weight="bold">Only in the base</text>',
        *(
            f'<rect x="{MARGIN}" y="{36 + at * 16}" width="13" height="12" '
            f'fill="{CHANGES[0]}"/>'
            f'<text x="{MARGIN + 18}" y="{46 + at * 16}">{_line(line, 150)}</text>'
            for at, line in enumerate(lines)
        ),
        "</svg>",
    ], height


def _gone(box: Box, total: float, unit: str) -> str:
    base = box.base or 0.0
    place = f" ({box.place})" if box.place else ""
    caller = f", below {box.parent.name}" if box.parent else ""
    return f"{share(base, total)}, {format_weight(base, unit)}: {box.name}{place}{caller}"


def _prose(text: str) -> str:
    return escape(prose(text), quote=False)


def _line(text: str, width: int) -> str:
    return escape(shorten(prose(text), width), quote=False)


# --- colours -----------------------------------------------------------------------------------


def fill_of_package(group: str | None, *, own_code: bool) -> str:
    """Return the fill of a package, which is the same in every picture, or of own code."""
    if own_code:
        return OWN_CODE
    named = group and not group.startswith("(")  # (outside modules)
    return _BY_HASH[crc32(group.encode(), _SEED) % len(_BY_HASH)] if group and named else PLAIN


def fill_of_change(total: float, base: float) -> str:
    """Return the fill for ``(total - base)`` divided by the larger of both, in nine steps."""
    largest = max(total, base)
    change = (total - base) / largest if largest > 0 else 0.0
    return CHANGES[round((change + 1) / 2 * (len(CHANGES) - 1))]


def dark_rules() -> str:
    """Return style rules with the dark counterpart of every fill."""
    return "\n".join(
        f'  .flame [fill="{light}"] {{ fill: {dark}; }}' for light, dark in FILLS.items()
    )


_NAME_CHARS = 300


@dataclass(eq=False)
class Box:
    """One box: a row of the frame of the flame graph, its depth and its left edge (a weight)."""

    name: str
    place: str | None
    group: str | None
    is_own_code: bool
    imports: bool
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
    whole = Box("all", None, None, False, False, 0.0, total, 0, base, below=roots)
    for root in roots:
        root.parent = whole
    return whole


def _box(row: dict[str, Any]) -> Box:
    hidden = row["hidden"]
    name = row["name"] or (f"({hidden:,} frames too small to draw)" if hidden else "(no name)")
    place = shorten(visible(row["place"]), _NAME_CHARS) if row["place"] else None
    same = ("group", "is_own_code", "imports", "total", "hidden", "base")
    return Box(
        shorten(visible(name), _NAME_CHARS), place, alone=row["self"], **{n: row[n] for n in same}
    )


def _order(box: Box) -> tuple[bool, float, str, str]:
    return box.hidden > 0, -box.total, box.name, box.place or ""


_SHARE, _LINES, _CHARS = 0.02, 100, 100
_DEEPEST = 40  # largest number of indented levels

#: Script and style of flame graphs.
VIEWER = Viewer(__name__, ("tree", "view", "viewer"), fills=dark_rules().strip())


def svg(flame: Flame) -> str:
    """Return a flame graph as an SVG document with style and script."""
    opening, *drawing, closing = _drawing(flame, lay_out(flame), "flame")
    return "\n".join(
        (
            '<?xml version="1.0" encoding="UTF-8"?>',
            opening,
            f"<style><![CDATA[\n{VIEWER.style()}]]></style>",
            *drawing,
            f"<script><![CDATA[\n{VIEWER.script()}]]></script>",
            closing,
            "",
        )
    )


def inline(flame: Flame, key: str) -> str:
    """Return the flame graph for a page with the style and, at its end, the script of the viewer.

    Args:
        flame: the flame graph.
        key: prefix of its ids, unique on the page.
    """
    layout = lay_out(flame)
    drawing = "\n".join(_drawing(flame, layout, key))
    return f'<figure class="flamegraph">{drawing}\n{_outline(flame, layout)}</figure>'


def _drawing(flame: Flame, layout: Layout, key: str) -> list[str]:
    lines, height = draw(flame, layout, key)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flame" width="{WIDTH}" '
        f'height="{height}" viewBox="0 0 {WIDTH} {height}" role="group" '
        f'aria-labelledby="{key}-title" aria-describedby="{key}-desc">'
    )
    return [opening, *lines, "</svg>"]


def _outline(flame: Flame, layout: Layout) -> str:
    """Return up to 100 boxes of at least 2 % of the total as collapsed HTML, callers first."""
    wide = [box for box in layout.boxes if box.total >= _SHARE * layout.total]
    lines = []
    for box in wide[:_LINES]:
        place = f" ({box.place})" if box.place else ""
        name = shorten(f"{box.name}{place}", _CHARS)
        numbers = f"{share(box.total, layout.total):>7}  {format_weight(box.total, flame.unit)}"
        lines.append(f"{numbers}  {'  ' * min(box.depth, _DEEPEST)}{name}")
    text = escape("\n".join(lines), quote=False)
    left_out = len(layout.boxes) - len(lines)
    return (
        f'<details class="flame-text"><summary>Widest boxes as text</summary>'
        f'<pre tabindex="0">{text}</pre>'
        f'<p class="soft">{left_out:,} narrower or deeper boxes are not listed.</p></details>'
    )
