"""Flamegraphs as self-contained SVG, interactive where scripts may run.

In: :class:`traceanalyzer.result.Flame`. Out: an SVG document, or the same drawing for the inside of
a page. ``layout`` gives the boxes their places, ``colors`` and ``weights`` their fills and words,
``picture`` draws them once, complete without scripts; ``tree.js``, ``view.js`` and ``viewer.js``
take that drawing over. Only :mod:`traceanalyzer.render` imports this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceanalyzer.render.flamegraph import colors, picture
from traceanalyzer.render.flamegraph.layout import lay_out
from traceanalyzer.render.flamegraph.outline import outline
from traceanalyzer.render.viewers import Viewer

if TYPE_CHECKING:
    from traceanalyzer.result import Flame

#: What draws in the page.
VIEWER = Viewer(__name__, ("tree.js", "view.js", "viewer.js"), fills=colors.dark_rules().strip())


def svg(flame: Flame) -> str:
    """The flamegraph as an SVG document with its style and its viewer."""
    opening, *drawing, closing = _drawing(flame, "flame")
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
    drawing = "\n".join(_drawing(flame, key))
    return f'<figure class="flamegraph">{drawing}\n{outline(flame)}</figure>'


def _drawing(flame: Flame, key: str) -> list[str]:
    layout = lay_out(flame)
    lines, height = picture.draw(flame, layout, key)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flame" width="{picture.WIDTH}" '
        f'height="{height}" viewBox="0 0 {picture.WIDTH} {height}" role="group" '
        f'aria-labelledby="{key}-title" aria-describedby="{key}-desc">'
    )
    return [opening, *lines, "</svg>"]
