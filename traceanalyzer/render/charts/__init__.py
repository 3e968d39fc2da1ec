"""Charts in pages: drawn by the browser, to be looked into; the same marks as in a plot.

In: :class:`traceanalyzer.result.Chart`. ``data`` packs its rows and what the axes are called into
JSON, ``thinning`` chooses which rows where there are too many; ``outline`` says in words what can
be read without scripts. The viewer draws SVG: ``elements.js``, ``scale.js``, ``data.js``,
``marks.js``, ``axis.js``, ``legend.js``, ``gestures.js``, ``viewer.js``. Only
:mod:`traceanalyzer.render` imports this folder.
"""

from __future__ import annotations

from functools import cache
from html import escape
from typing import TYPE_CHECKING

from traceanalyzer.render.charts.data import pack
from traceanalyzer.render.charts.outline import outline, summary
from traceanalyzer.render.marks import prepare
from traceanalyzer.render.text import prose
from traceanalyzer.render.viewers import program, resource, source_hash

if TYPE_CHECKING:
    from traceanalyzer.result import Chart

_SCRIPTS = (
    "elements.js", "scale.js", "data.js", "marks.js", "axis.js", "legend.js",
    "gestures.js", "viewer.js",
)  # fmt: skip


def inline(chart: Chart, key: str) -> str:
    """The figure for a page that holds :func:`style` and, at its end, :func:`script`.

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


@cache
def style() -> str:
    """The style sheet of all charts."""
    return resource(__name__, "viewer.css")


@cache
def script() -> str:
    """The viewer: finds the figures of its document, asks for nothing else."""
    return program(__name__, _SCRIPTS)


def script_hash() -> str:
    """What a Content-Security-Policy says so that the viewer, and only it, may run."""
    return source_hash(script())


def _prose(text: str) -> str:
    return escape(prose(text))
