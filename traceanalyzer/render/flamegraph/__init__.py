"""Flame graphs as self-contained SVG, interactive with scripts.

In: :class:`traceanalyzer.drawings.Flame`. Out: an SVG document, or the same drawing for a page.
``layout`` computes the positions of the boxes, ``picture`` draws them, complete without scripts;
``tree.js``, ``view.js`` and ``viewer.js`` make the drawing interactive. Only
:mod:`traceanalyzer.render` imports this package.
"""

from html import escape

from traceanalyzer.drawings import Flame
from traceanalyzer.render.flamegraph import picture
from traceanalyzer.render.flamegraph.picture import Layout, lay_out, share
from traceanalyzer.render.pieces import Viewer
from traceanalyzer.render.text import shorten
from traceanalyzer.units import format_weight

_SHARE, _LINES, _CHARS = 0.02, 100, 100
_DEEPEST = 40  # largest number of indented levels

#: Script and style of flame graphs.
VIEWER = Viewer(__name__, ("tree", "view", "viewer"), fills=picture.dark_rules().strip())


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
    lines, height = picture.draw(flame, layout, key)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flame" width="{picture.WIDTH}" '
        f'height="{height}" viewBox="0 0 {picture.WIDTH} {height}" role="group" '
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
