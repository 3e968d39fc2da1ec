"""Flamegraphs as self-contained SVG, interactive where scripts may run.

In: :class:`traceanalyzer.result.Flame`. Out: an SVG document, or the same drawing for the inside of
a page. ``layout`` gives the boxes their places, ``colors`` and ``weights`` their fills and words,
``picture`` draws them once, complete without scripts; ``tree.js``, ``view.js`` and ``viewer.js``
take that drawing over. Only :mod:`traceanalyzer.render` imports this folder.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from traceanalyzer.render.flamegraph import colors, picture
from traceanalyzer.render.flamegraph.layout import lay_out
from traceanalyzer.render.flamegraph.outline import outline
from traceanalyzer.render.viewers import program, resource, source_hash

if TYPE_CHECKING:
    from traceanalyzer.result import Flame

_SCRIPTS = ("tree.js", "view.js", "viewer.js")


def svg(flame: Flame) -> str:
    """The flamegraph as an SVG document with its style and its viewer."""
    opening, *drawing, closing = _drawing(flame, "flame")
    return "\n".join(
        (
            '<?xml version="1.0" encoding="UTF-8"?>',
            opening,
            f"<style><![CDATA[\n{style()}]]></style>",
            *drawing,
            f"<script><![CDATA[\n{script()}]]></script>",
            closing,
            "",
        )
    )


def inline(flame: Flame, key: str) -> str:
    """The flamegraph for a page that holds :func:`style` and, at its end, :func:`script`.

    Args:
        flame: what to draw.
        key: prefix of its ids, unique on the page.
    """
    drawing = "\n".join(_drawing(flame, key))
    return f'<figure class="flamegraph">{drawing}\n{outline(flame)}</figure>'


@cache
def style() -> str:
    """The style sheet of all flamegraphs."""
    return resource(__name__, "viewer.css").replace("/* fills */", colors.dark_rules().strip())


@cache
def script() -> str:
    """The viewer: finds the drawings of its document, asks for nothing else."""
    return program(__name__, _SCRIPTS)


def script_hash() -> str:
    """What a Content-Security-Policy says so that the viewer, and only it, may run."""
    return source_hash(script())


def _drawing(flame: Flame, key: str) -> list[str]:
    layout = lay_out(flame)
    lines, height = picture.draw(flame, layout, key)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flame" width="{picture.WIDTH}" '
        f'height="{height}" viewBox="0 0 {picture.WIDTH} {height}" role="group" '
        f'aria-labelledby="{key}-title" aria-describedby="{key}-desc">'
    )
    return [opening, *lines, "</svg>"]
