"""What pages are made of: tables, notes, drawings, their style and what may run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from traceanalyzer.render import cards, charts, flamegraph, occupancy
from traceanalyzer.render.scale import shown_cells
from traceanalyzer.render.text import prose, shorten

if TYPE_CHECKING:
    from traceanalyzer.render.viewers import Viewer
    from traceanalyzer.result import Result, Table

# Nothing may be fetched or run, whatever a trace's names hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CELL_CHARS = 90

STYLE = """
.traceanalyzer { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0;
  --paper: #fff; --band: #f6f8fa; color: var(--ink); background: var(--paper);
  font: 14px/1.5 system-ui, sans-serif; }
@media screen and (prefers-color-scheme: dark) {
  .traceanalyzer { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --paper: #0d1117;
    --band: #151b23; } }
.traceanalyzer .verdict { font-size: 1.15em; max-width: 50em; overflow-wrap: anywhere; }
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
PAGE_STYLE = """
body { margin: 0; }
main { max-width: 75em; margin: 0 auto; padding: 1em 2em 3em; }
"""
WIDE_STYLE = """
main { max-width: none; padding: 1em 1em 3em; }
"""
FLAME_STYLE = """
.traceanalyzer .flamegraph { overflow: visible; margin: 1em 0; }
.traceanalyzer .flame-text pre { overflow-x: auto; font-size: 12px; }
"""


def drawings(result: Result, key: str = "") -> list[str]:
    """Everything that a result draws, each with its viewer's ids beginning with ``key``."""
    return [
        *(occupancy.inline(one, f"{key}memory-{n}") for n, one in enumerate(result.occupancies)),
        *(flamegraph.inline(flame, f"{key}flame-{n}") for n, flame in enumerate(result.flames)),
        *(charts.inline(chart, f"{key}chart-{n}") for n, chart in enumerate(result.charts)),
    ]


def viewers_of(results: Iterable[Result]) -> list[Viewer]:
    """The viewers that their drawings need."""
    held = list(results)
    needed = (
        (occupancy.VIEWER, any(result.occupancies for result in held)),
        (flamegraph.VIEWER, any(result.flames for result in held)),
        (charts.VIEWER, any(result.charts for result in held)),
    )
    return [viewer for viewer, wanted in needed if wanted]


def head(title: str, styles: str, viewers: Sequence[Viewer]) -> list[str]:
    """The beginning of a page, up to its body."""
    return [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy(viewers)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escaped(title)}</title>",
        f"<style>{styles}</style></head>",
    ]


def style(result: Result) -> str:
    """The style sheet of a result without its drawings."""
    return STYLE + (cards.STYLE if result.diagnosis else "")


def viewing(viewers: Sequence[Viewer], *, narrow: bool = False) -> str:
    """The style sheets of these viewers, and the width they ask of the page, unless narrow."""
    sheets = [viewer.style() for viewer in viewers]
    more = FLAME_STYLE if flamegraph.VIEWER in viewers else ""
    wide = WIDE_STYLE if not narrow and {flamegraph.VIEWER, occupancy.VIEWER} & {*viewers} else ""
    return "".join(sheets) + wide + more


def policy(viewers: Sequence[Viewer]) -> str:
    """A Content-Security-Policy under which these viewers run, and nothing else."""
    hashes = " ".join(viewer.script_hash() for viewer in viewers)
    return f"{POLICY}; script-src {hashes}" if viewers else POLICY


def escaped(text: str) -> str:
    """A sentence for a page, harmless whatever names are in it."""
    return escape(prose(text))


def table(of: Table, top: int | None, *, heading: str) -> str:
    """A table with its heading; no more than ``top`` rows."""
    rows = of.frame.height
    title = f"<{heading}>{escaped(of.title)}</{heading}>"
    if not rows:
        return f'{title}\n<p class="soft">{escaped(of.empty)}</p>'
    shown = rows if top is None else min(top, rows)
    heads, columns = [], []
    for name, label in of.columns.items():
        scale, texts, numeric = shown_cells(of, name, shown)
        align = ' class="number"' if numeric else ""
        heads.append(f'<th scope="col"{align}>{escaped(scale.heading(label))}</th>')
        columns.append([_cell(text, align) for text in texts])
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
    counted = f"{shown:,} of {rows:,} rows" if shown < rows else f"{rows:,} rows"
    return (
        f'{title}\n<div class="scroll" role="region" aria-label="{escaped(of.title)}" '
        f'tabindex="0"><table><caption class="soft">{counted}</caption>\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(text: str, align: str) -> str:
    short = shorten(text, _CELL_CHARS)
    full = f' title="{escape(text)}"' if short != text else ""
    return f"<td{align}{full}>{escape(short)}</td>"


def notes(result: Result, *, heading: str) -> str:
    """What was not counted, assumed or missing; nothing where there is none."""
    if not result.notes:
        return ""
    items = "".join(f"<li>{escaped(note)}</li>" for note in result.notes)
    return f'<{heading}>Notes</{heading}>\n<ul class="soft">{items}</ul>'
