"""A flamegraph in words: an indented list of its widest boxes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from traceanalyzer.render.flamegraph.layout import lay_out
from traceanalyzer.render.flamegraph.weights import share
from traceanalyzer.render.text import shorten
from traceanalyzer.units import format_weight

if TYPE_CHECKING:
    from traceanalyzer.result import Flame

_SHARE, _LINES, _CHARS = 0.02, 100, 100
_DEEPEST = 40  # levels that are indented


def outline(flame: Flame) -> str:
    """The boxes of at least 2 % of all, at most 100, callers first; HTML, folded away."""
    layout = lay_out(flame)
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
