"""A result as one self-contained HTML page, or as a fragment for a notebook."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from types import ModuleType

from traceanalyzer.render import charts, flamegraph, glossary, occupancy, pieces
from traceanalyzer.render.pieces import Viewer, escaped
from traceanalyzer.render.text import costs, shorten, shown_cells
from traceanalyzer.result import Finding, Flame, Occupancy, Result, Table

# Nothing may be fetched or run, whatever a trace's names hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CELL_CHARS = 90
_FRAME_HEIGHT = 640
_OCCUPANCY_HEIGHT, _SEGMENTS_HEIGHT = 960, 360

STYLE = "\n" + pieces.resource("traceanalyzer.render", "page.css")
CARD_STYLE = "\n" + pieces.resource("traceanalyzer.render", "cards.css")
PAGE_STYLE = """
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
    viewers = viewers_of([result])
    styles = _style(result) + PAGE_STYLE + viewing(viewers)
    body = [
        '<body class="traceanalyzer"><main>',
        f"<h1>{escaped(result.title)}</h1>",
        f'<p class="verdict">{escaped(result.verdict)}</p>',
        cards(result.diagnosis),
        *drawings(result),
        *(table(one, top, heading="h2") for one in result.tables_shown),
        notes(result, heading="h2"),
        "</main>",
    ]
    return document(result.title, styles, viewers, body)


def fragment(result: Result, *, top: int | None = 10) -> str:
    """Title, verdict, occupancies, flamegraphs, tables and notes for a notebook.

    Charts are drawn by ``Result.plot()``. A drawing with a viewer is a page of its own in a frame:
    the viewer runs there, and cannot reach the notebook.
    """
    lines = [
        f'<div class="traceanalyzer"><style>{_style(result)}</style>',
        f"<h3>{escaped(result.title)}</h3>",
        f'<p class="verdict">{escaped(result.verdict)}</p>',
        cards(result.diagnosis),
        *(_framed(one, occupancy, _height(one)) for one in result.occupancies),
        *(_framed(flame, flamegraph, _FRAME_HEIGHT) for flame in result.flames),
        *(table(one, top, heading="h4") for one in result.tables_shown),
        notes(result, heading="h4"),
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
        f'<meta http-equiv="Content-Security-Policy" content="{_policy([viewer])}">'
        f"<style>{STYLE}{PAGE_STYLE}{viewing([viewer])}</style></head>"
        f'<body class="traceanalyzer">{ink.inline(drawing, "drawing")}'
        f"<script>{viewer.script()}</script></body></html>"
    )
    return (
        f'<iframe sandbox="allow-scripts" title="{escaped(drawing.title)}" '
        f'srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )


# --- the parts of a page, for reports too ----------------------------------------------------


def document(title: str, styles: str, viewers: Sequence[Viewer], body: Iterable[str]) -> str:
    """A whole page.

    Args:
        title: what the browser calls it.
        styles: its style sheet.
        viewers: what may run in it.
        body: lines from the start of the body on; empty ones are left out.
    """
    text = glossary.with_glossary("\n".join(line for line in body if line))
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(viewers)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escaped(title)}</title>",
        f"<style>{styles}</style></head>",
        text,
        *(f"<script>{viewer.script()}</script>" for viewer in viewers),
        "</body></html>",
    ]
    return "\n".join(lines) + "\n"


def viewers_of(results: Iterable[Result]) -> list[Viewer]:
    """The viewers that their drawings need."""
    held = list(results)
    needed = (
        (occupancy.VIEWER, any(result.occupancies for result in held)),
        (flamegraph.VIEWER, any(result.flames for result in held)),
        (charts.VIEWER, any(result.charts for result in held)),
    )
    return [viewer for viewer, wanted in needed if wanted]


def viewing(viewers: Sequence[Viewer], *, narrow: bool = False) -> str:
    """The style sheets of these viewers, and the width they ask of the page, unless narrow."""
    sheets = [viewer.style() for viewer in viewers]
    more = _FLAME_STYLE if flamegraph.VIEWER in viewers else ""
    wide = _WIDE_STYLE if not narrow and {flamegraph.VIEWER, occupancy.VIEWER} & {*viewers} else ""
    return "".join(sheets) + wide + more


def drawings(result: Result, key: str = "") -> list[str]:
    """Everything that a result draws, each with its viewer's ids beginning with ``key``."""
    return [
        *(occupancy.inline(one, f"{key}memory-{n}") for n, one in enumerate(result.occupancies)),
        *(flamegraph.inline(flame, f"{key}flame-{n}") for n, flame in enumerate(result.flames)),
        *(charts.inline(chart, f"{key}chart-{n}") for n, chart in enumerate(result.charts)),
    ]


def cards(findings: Sequence[Finding], anchors: Mapping[str, str] | None = None) -> str:
    """A list of findings; nothing where there are none.

    Args:
        findings: in order.
        anchors: where on the page an analysis is shown, by its name.
    """
    if not findings:
        return ""
    items = "\n".join(_card(one, (anchors or {}).get(one.analysis)) for one in findings)
    return f'<ol class="findings">\n{items}\n</ol>'


def _card(one: Finding, anchor: str | None) -> str:
    cost = "".join(f' · <span class="cost">{escaped(text)}</span>' for text in costs(one))
    evidence = "".join(f"<li>{escaped(sentence)}</li>" for sentence in one.evidence)
    effects = "".join(
        f"<li><code>{escaped(effect.id)}</code> {escaped(effect.title)}</li>"
        for effect in one.effects
    )
    link = f' <a href="#{escape(anchor)}">Show the numbers</a>' if anchor else ""
    grade = f'<span class="grade">{one.severity}</span>'
    lines = [
        f'<li class="finding {one.severity}">',
        f"<p>{grade}<code>{escaped(one.id)}</code>{cost}</p>",
        f'<p class="what">{escaped(one.title)}</p>',
        f"<ul>{evidence}</ul>" if evidence else "",
        f"<p><strong>To try:</strong> {escaped(one.advice)}</p>" if one.advice else "",
        f'<p>Effects:</p><ul class="effects">{effects}</ul>' if effects else "",
        f'<p class="soft">Confidence: {one.confidence}.{link}</p></li>',
    ]
    return "\n".join(line for line in lines if line)


def table(of: Table, top: int | None, *, heading: str) -> str:
    """A table with its heading; no more than ``top`` rows."""
    rows = of.frame.height
    title = f"<{heading}>{escaped(of.title)}</{heading}>"
    if not rows:
        return f'{title}\n<p class="soft">{escaped(of.empty)}</p>'
    shown = rows if top is None else min(top, rows)
    heads, columns = [], []
    for name, label in of.columns.items():
        scale, texts, number = shown_cells(of, name, shown)
        heads.append((escaped(scale.heading(label)), number))
        columns.append([_cell(text, number=number) for text in texts])
    counted = f"{shown:,} of {rows:,} rows" if shown < rows else f"{rows:,} rows"
    caption = f'<caption class="soft">{counted}</caption>\n'
    return f"{title}\n{pieces.table(escaped(of.title), heads, zip(*columns, strict=True), caption)}"


def _cell(text: str, *, number: bool) -> str:
    short = shorten(text, _CELL_CHARS)
    return pieces.cell(short, number=number, full=text if short != text else "")


def notes(result: Result, *, heading: str) -> str:
    """What was not counted, assumed or missing; nothing where there is none."""
    if not result.notes:
        return ""
    items = "".join(f"<li>{escaped(note)}</li>" for note in result.notes)
    return f'<{heading}>Notes</{heading}>\n<ul class="soft">{items}</ul>'


def _style(result: Result) -> str:
    """The style sheet of a result without its drawings."""
    return STYLE + (CARD_STYLE if result.diagnosis else "")


def _policy(viewers: Sequence[Viewer]) -> str:
    """A Content-Security-Policy under which these viewers run, and nothing else."""
    hashes = " ".join(viewer.script_hash() for viewer in viewers)
    return f"{_POLICY}; script-src {hashes}" if viewers else _POLICY
