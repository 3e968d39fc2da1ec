"""A result as one self-contained HTML page, or as a fragment for a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from traceanalyzer.render import cards, charts, flamegraph, occupancy
from traceanalyzer.render.scale import cells, is_number
from traceanalyzer.render.text import prose, shorten

if TYPE_CHECKING:
    from types import ModuleType

    from traceanalyzer.result import Flame, Occupancy, Result, Table

# Nothing may be fetched or run, whatever a trace's names hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CELL_CHARS = 90
_FRAME_HEIGHT = 640
_OCCUPANCY_HEIGHT, _SEGMENTS_HEIGHT = 960, 360

_STYLE = """
.traceanalyzer { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0;
  --paper: #fff; --band: #f6f8fa; color: var(--ink); background: var(--paper);
  font: 14px/1.5 system-ui, sans-serif; }
@media screen and (prefers-color-scheme: dark) {
  .traceanalyzer { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --paper: #0d1117;
    --band: #151b23; } }
.traceanalyzer .verdict { font-size: 1.15em; max-width: 50em; }
.traceanalyzer .scroll { overflow-x: auto; }
.traceanalyzer table { border-collapse: collapse; margin: 0.5em 0; color: var(--ink); }
.traceanalyzer caption { text-align: left; font-weight: 600; padding: 0.5em 0; }
.traceanalyzer .scroll th, .traceanalyzer .scroll td { padding: 0.25em 0.8em; text-align: left;
  border-bottom: 1px solid var(--line); white-space: nowrap; unicode-bidi: isolate; }
.traceanalyzer .scroll th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
.traceanalyzer .scroll .number { text-align: right; font-variant-numeric: tabular-nums; }
.traceanalyzer tbody tr:nth-child(even) { background: var(--band); }
.traceanalyzer .soft { color: var(--soft); }
.traceanalyzer svg { max-width: 100%; height: auto; }
.traceanalyzer figure { margin: 1.5em 0; overflow-x: auto; }
"""
_PAGE_STYLE = """
body { margin: 0; }
main { max-width: 75em; margin: 0 auto; padding: 1em 2em 3em; }
"""
_WIDE_STYLE = """
main { max-width: none; padding: 1em 1em 3em; }
"""
_FLAME_STYLE = """
.traceanalyzer .flamegraph { overflow: visible; margin: 1em 0; }
.traceanalyzer .flame-text pre { overflow-x: auto; font-size: 12px; }
"""


def page(result: Result, *, top: int | None = 100) -> str:
    """A whole page with tables and charts: nothing fetched, dark where wished.

    No script, but for the viewers of what is drawn; the policy lets these run and no other.

    Args:
        result: what to show.
        top: rows shown of each table; None shows all.
    """
    drawings = [
        *(occupancy.inline(one, f"memory-{at}") for at, one in enumerate(result.occupancies)),
        *(flamegraph.inline(flame, f"flame-{at}") for at, flame in enumerate(result.flames)),
        *(charts.inline(chart, f"chart-{at}") for at, chart in enumerate(result.charts)),
    ]
    viewers = [occupancy] if result.occupancies else []
    viewers += [flamegraph] if result.flames else []
    viewers += [charts] if result.charts else []
    style, policy = _PAGE_STYLE + _viewing(viewers), _policy(viewers)
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{_prose(result.title)}</title>",
        f"<style>{_style(result)}{style}</style></head>",
        '<body class="traceanalyzer"><main>',
        f"<h1>{_prose(result.title)}</h1>",
        f'<p class="verdict">{_prose(result.verdict)}</p>',
        cards.cards(result.diagnosis),
        *drawings,
        *(_table(table, top, heading="h2") for table in result.tables),
        _notes(result, heading="h2"),
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
        f'<div class="traceanalyzer"><style>{_style(result)}</style>',
        f"<h3>{_prose(result.title)}</h3>",
        f'<p class="verdict">{_prose(result.verdict)}</p>',
        cards.cards(result.diagnosis),
        *(_framed(one, occupancy, _height(one)) for one in result.occupancies),
        *(_framed(flame, flamegraph, _FRAME_HEIGHT) for flame in result.flames),
        *(_table(table, top, heading="h4") for table in result.tables),
        _notes(result, heading="h4"),
        "</div>",
    ]
    return "\n".join(line for line in lines if line)


def _style(result: Result) -> str:
    return _STYLE + (cards.STYLE if result.diagnosis else "")


def _viewing(viewers: list[ModuleType]) -> str:
    """The style sheets of these viewers, and what they ask of the page."""
    sheets = [viewer.style() for viewer in viewers]
    more = _FLAME_STYLE if flamegraph in viewers else ""
    wide = _WIDE_STYLE if {flamegraph, occupancy} & {*viewers} else ""
    return "".join(sheets) + wide + more


def _policy(viewers: list[ModuleType]) -> str:
    hashes = " ".join(viewer.script_hash() for viewer in viewers)
    return f"{_POLICY}; script-src {hashes}" if viewers else _POLICY


def _height(one: Occupancy) -> int:
    return _OCCUPANCY_HEIGHT + (_SEGMENTS_HEIGHT if one.segments.height else 0)


def _framed(drawing: Flame | Occupancy, viewer: ModuleType, height: int) -> str:
    """A page of its own for a drawing, its viewer in a sandbox."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy([viewer])}">'
        f"<style>{_STYLE}{_PAGE_STYLE}{_viewing([viewer])}</style></head>"
        f'<body class="traceanalyzer">{viewer.inline(drawing, "drawing")}'
        f"<script>{viewer.script()}</script></body></html>"
    )
    return (
        f'<iframe sandbox="allow-scripts" title="{_prose(drawing.title)}" srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )


def _prose(text: str) -> str:
    return escape(prose(text))


def _table(table: Table, top: int | None, *, heading: str) -> str:
    rows = table.frame.height
    title = f"<{heading}>{_prose(table.title)}</{heading}>"
    if not rows:
        return f'{title}\n<p class="soft">{_prose(table.empty)}</p>'
    shown = rows if top is None else min(top, rows)
    heads, columns = [], []
    for name, label in table.columns.items():
        values = table.frame[name].head(shown).to_list()
        scale, texts = cells(name, values, table.missing.get(name, ""))
        align = ' class="number"' if is_number(values) else ""
        heads.append(f'<th scope="col"{align}>{_prose(scale.heading(label))}</th>')
        columns.append([_cell(text, align) for text in texts])
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
    counted = f"{shown:,} of {rows:,} rows" if shown < rows else f"{rows:,} rows"
    return (
        f'{title}\n<div class="scroll" role="region" aria-label="{_prose(table.title)}" '
        f'tabindex="0"><table><caption class="soft">{counted}</caption>\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(text: str, align: str) -> str:
    short = shorten(text, _CELL_CHARS)
    full = f' title="{escape(text)}"' if short != text else ""
    return f"<td{align}{full}>{escape(short)}</td>"


def _notes(result: Result, *, heading: str) -> str:
    if not result.notes:
        return ""
    items = "".join(f"<li>{_prose(note)}</li>" for note in result.notes)
    return f'<{heading}>Notes</{heading}>\n<ul class="soft">{items}</ul>'
