"""Flamegraphs as self-contained SVG, interactive where scripts may run.

In: :class:`traceanalyzer.result.Flame`. Out: an SVG document, or the same drawing for the inside of
a page. ``layout`` gives the boxes their places, ``picture`` draws them once, complete without
scripts; ``tree.js``, ``view.js`` and ``viewer.js`` take that drawing over. Only
:mod:`traceanalyzer.render` imports this folder.
"""

from html import escape

from traceanalyzer.render.flamegraph import picture
from traceanalyzer.render.flamegraph.layout import Layout, lay_out, share
from traceanalyzer.render.pieces import Viewer
from traceanalyzer.render.text import shorten
from traceanalyzer.result import Flame
from traceanalyzer.units import format_weight

_SHARE, _LINES, _CHARS = 0.02, 100, 100
_DEEPEST = 40  # levels that are indented

#: What draws in the page.
VIEWER = Viewer(__name__, ("tree", "view", "viewer"), fills=picture.dark_rules().strip())


def svg(flame: Flame) -> str:
    """The flamegraph as an SVG document with its style and its viewer."""
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
    """The flamegraph for a page that holds the viewer's style and, at its end, its script.

    Args:
        flame: what to draw.
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
    """The boxes of at least 2 % of all, at most 100, callers first; HTML, folded away."""
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
        f'<details class="flame-text"><summary>The widest boxes as text</summary>'
        f'<pre tabindex="0">{text}</pre>'
        f'<p class="soft">{left_out:,} narrower or deeper boxes are not listed.</p></details>'
    )
