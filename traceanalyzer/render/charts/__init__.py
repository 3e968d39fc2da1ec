"""Charts in pages: drawn by the browser, to be looked into; the same marks as in a plot.

In: :class:`traceanalyzer.result.Chart`. ``data`` packs its rows and what the axes are called into
JSON, ``thinning`` chooses which rows where there are too many; ``outline`` says in words what can
be read without scripts. The viewer draws SVG: ``elements.js``, ``scale.js``, ``data.js``,
``marks.js``, ``axis.js``, ``legend.js``, ``gestures.js``, ``viewer.js``. Only
:mod:`traceanalyzer.render` imports this folder.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from traceanalyzer.render.charts.data import pack
from traceanalyzer.render.charts.outline import outline, summary
from traceanalyzer.render.marks import prepare
from traceanalyzer.render.text import prose
from traceanalyzer.render.viewers import Viewer

if TYPE_CHECKING:
    from traceanalyzer.result import Chart

#: What draws in the page.
VIEWER = Viewer(
    __name__,
    (
        "elements.js",
        "scale.js",
        "data.js",
        "marks.js",
        "axis.js",
        "legend.js",
        "gestures.js",
        "viewer.js",
    ),
)


def inline(chart: Chart, key: str) -> str:
    """The figure for a page that holds the viewer's style and, at its end, its script.

    Args:
        chart: what to draw.
        key: prefix of its ids, unique on the page.
    """
    marks = prepare(chart)
    packed = pack(marks)
    said = f'<p class="soft said" id="{key}-said">{_prose(summary(marks))}</p>\n'
    drawn = ""
    if packed.drawn:
        left = (
            f'<p class="soft left-out">{_prose(packed.left_out)}</p>\n' if packed.left_out else ""
        )
        drawn = (
            f'<div class="drawn"></div>\n{left}{outline(marks)}\n'
            f'<script type="application/json">{packed.json}</script>\n'
        )
    return (
        f'<figure class="chart" id="{key}" role="group" aria-labelledby="{key}-title" '
        f'aria-describedby="{key}-said">\n'
        f'<figcaption id="{key}-title">{_prose(chart.title)}</figcaption>\n{said}{drawn}</figure>'
    )


def _prose(text: str) -> str:
    return escape(prose(text))
