"""A result as one self-contained HTML page, or as a fragment for a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from traceanalyzer.render import cards, flamegraph, occupancy, pieces

if TYPE_CHECKING:
    from types import ModuleType

    from traceanalyzer.result import Flame, Occupancy, Result

_FRAME_HEIGHT = 640
_OCCUPANCY_HEIGHT, _SEGMENTS_HEIGHT = 960, 360


def page(result: Result, *, top: int | None = 100) -> str:
    """A whole page with tables and charts: nothing fetched, dark where wished.

    No script, but for the viewers of what is drawn; the policy lets these run and no other.

    Args:
        result: what to show.
        top: rows shown of each table; None shows all.
    """
    viewers = pieces.viewers_of([result])
    styles = pieces.style(result) + pieces.PAGE_STYLE + pieces.viewing(viewers)
    lines = [
        *pieces.head(result.title, styles, viewers),
        '<body class="traceanalyzer"><main>',
        f"<h1>{pieces.escaped(result.title)}</h1>",
        f'<p class="verdict">{pieces.escaped(result.verdict)}</p>',
        cards.cards(result.diagnosis),
        *pieces.drawings(result),
        *(pieces.table(table, top, heading="h2") for table in result.tables_shown),
        pieces.notes(result, heading="h2"),
        "</main>",
        *(f"<script>{viewer.script()}</script>" for viewer in viewers),
        "</body></html>",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def fragment(result: Result, *, top: int | None = 10) -> str:
    """Title, verdict, occupancies, flamegraphs, tables and notes for a notebook.

    Charts are drawn by ``Result.plot()``. A drawing with a viewer is a page of its own in a frame:
    the viewer runs there, and cannot reach the notebook.
    """
    lines = [
        f'<div class="traceanalyzer"><style>{pieces.style(result)}</style>',
        f"<h3>{pieces.escaped(result.title)}</h3>",
        f'<p class="verdict">{pieces.escaped(result.verdict)}</p>',
        cards.cards(result.diagnosis),
        *(_framed(one, occupancy, _height(one)) for one in result.occupancies),
        *(_framed(flame, flamegraph, _FRAME_HEIGHT) for flame in result.flames),
        *(pieces.table(table, top, heading="h4") for table in result.tables_shown),
        pieces.notes(result, heading="h4"),
        "</div>",
    ]
    return "\n".join(line for line in lines if line)


def _height(one: Occupancy) -> int:
    return _OCCUPANCY_HEIGHT + (_SEGMENTS_HEIGHT if one.segments.height else 0)


def _framed(drawing: Flame | Occupancy, ink: ModuleType, height: int) -> str:
    """A page of its own for a drawing, its viewer in a sandbox."""
    viewer = ink.VIEWER
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{pieces.policy([viewer])}">'
        f"<style>{pieces.STYLE}{pieces.PAGE_STYLE}{pieces.viewing([viewer])}</style></head>"
        f'<body class="traceanalyzer">{ink.inline(drawing, "drawing")}'
        f"<script>{viewer.script()}</script></body></html>"
    )
    return (
        f'<iframe sandbox="allow-scripts" title="{pieces.escaped(drawing.title)}" '
        f'srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )
