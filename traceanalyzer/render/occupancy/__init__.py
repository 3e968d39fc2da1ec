"""What fills a memory over time, allocation by allocation: a page's figure and a plot.

In: :class:`traceanalyzer.result.Occupancy`. ``layout`` gives each allocation its place in the
stack, ``colors``, ``scales`` and ``words`` their fills, ticks and sentences. ``drawing`` puts them
on the axes of a plot; for a page ``outline`` writes what can be read without scripts, ``data`` what
the viewer (``memory.js``, ``stage.js``, ``segments.js``, ``viewer.js``) draws. Only
:mod:`traceanalyzer.render` imports this folder.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from traceanalyzer.render.occupancy import words
from traceanalyzer.render.occupancy.data import data
from traceanalyzer.render.occupancy.layout import lay_out
from traceanalyzer.render.occupancy.outline import outline
from traceanalyzer.render.text import prose
from traceanalyzer.render.viewers import Viewer

if TYPE_CHECKING:
    from traceanalyzer.result import Occupancy

#: What draws in the page.
VIEWER = Viewer(__name__, ("memory.js", "words.js", "stage.js", "segments.js", "viewer.js"))


def inline(occupancy: Occupancy, key: str) -> str:
    """The figure for a page that holds the viewer's style and, at its end, its script.

    Args:
        occupancy: what to draw.
        key: prefix of its ids, unique on the page.
    """
    layout = lay_out(occupancy)
    said = words.drawn(occupancy, layout, np.arange(len(layout.size)))
    subtitle = f'<p class="soft">{_prose(occupancy.subtitle)}</p>\n' if occupancy.subtitle else ""
    drawn = ""
    if len(layout.live):
        drawn = (
            f'<div class="drawn"></div>\n{outline(layout)}\n'
            f'<script type="application/json">{data(occupancy, layout)}</script>\n'
        )
    return (
        f'<figure class="occupancy" id="{key}" role="group" aria-labelledby="{key}-title" '
        f'aria-describedby="{key}-said">\n'
        f'<h2 id="{key}-title">{_prose(occupancy.title)}</h2>\n{subtitle}'
        f'<p class="soft" id="{key}-said">{_prose(f"{words.summary(layout)} {said}")}</p>\n'
        f"{drawn}</figure>"
    )


def _prose(text: str) -> str:
    return escape(prose(text))
