"""Self-contained HTML page of a result or a report, or a fragment for a notebook.

A report has findings first, then each result with its drawings. ``sort.js`` sorts its tables,
``report.js`` highlights the current section in the list of contents and expands everything before
printing. Pages are readable without scripts.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from types import ModuleType

from traceanalyzer.drawings import (
    Budget,
    Chart,
    Content,
    Finding,
    Flame,
    Lanes,
    Occupancy,
    ReportContent,
    Section,
    Table,
)
from traceanalyzer.render import charts, flamegraph, occupancy, palette, pieces, timeline
from traceanalyzer.render.pieces import Viewer, escaped, resource
from traceanalyzer.render.text import (
    answer,
    cells,
    first_sentence,
    further_costs,
    gain,
    row_sentences,
    shorten,
    table_cells,
)
from traceanalyzer.units import format_count, format_frac, format_ns

# Blocks network access and scripts, whatever names a trace contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CELL_CHARS = 90
#: A column with a longer sentence is below its table.
_SENTENCE_CHARS = 200
_FRAME_HEIGHT, _CHART_HEIGHT = 640, 480
_OCCUPANCY_HEIGHT, _SEGMENTS_HEIGHT = 960, 360

#: Drawings that need the width of the window.
_WIDE = {flamegraph.VIEWER, occupancy.VIEWER, timeline.VIEWER}

STYLE = "\n" + pieces.resource("traceanalyzer.render", "page.css")
CARD_STYLE = "\n" + pieces.resource("traceanalyzer.render", "cards.css") + palette.style()
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


def page(result: Content, *, top: int | None = 100) -> str:
    """Return a page with tables and charts; it fetches nothing and supports dark mode.

    The content security policy allows the scripts of the viewers only.

    Args:
        result: the result.
        top: rows per table; None means all.
    """
    if isinstance(result, ReportContent):
        return _report_page(result, top)
    viewers = viewers_of([result])
    styles = _style(result) + PAGE_STYLE + viewing(viewers)
    body = _parts(result, drawings(result), top, title="h1", heading="h2")
    return document(
        result.title, styles, viewers, ['<body class="traceanalyzer"><main>', *body, "</main>"]
    )


def _parts(
    result: Content, drawn: Iterable[str], top: int | None, *, title: str, heading: str
) -> list[str]:
    """Return title, verdict, drawings, findings, tables and notes; empty without them."""
    return [
        f"<{title}>{escaped(result.title)}</{title}>",
        recorded(result),
        _verdict(result.verdict),
        budget(result.budget_bar),
        *drawn,
        cards(result.diagnosis),
        *(table(one, top, heading=heading) for one in result.visible_tables),
        notes(result, heading=heading),
    ]


def _verdict(text: str) -> str:
    """Return a verdict as a paragraph, and a list of what does not fit into it."""
    lead, points = answer(text)
    items = "".join(f"<li>{escaped(point)}</li>" for point in points)
    listed = f'<ul class="points">{items}</ul>' if points else ""
    return f'<p class="verdict">{escaped(lead)}</p>{listed}'


def fragment(result: Content, *, top: int | None = 10) -> str:
    """Return title, verdict, drawings, tables and notes for a notebook.

    Of several charts only the first is drawn; ``Result.plot()`` draws all. A drawing with a viewer
    is a page in a sandboxed frame, from which the viewer cannot access the notebook.
    """
    drawn = (
        *(_framed(one, timeline, timeline.height(one)) for one in result.timelines),
        *(_framed(one, occupancy, _height(one)) for one in result.occupancies),
        *(_framed(flame, flamegraph, _FRAME_HEIGHT) for flame in result.flames),
        *(_framed(chart, charts, _CHART_HEIGHT) for chart in _first_chart(result)),
    )
    begin = f'<div class="traceanalyzer"><style>{_style(result)}</style>'
    parts = _parts(result, drawn, top, title="h3", heading="h4")
    return "\n".join(line for line in (begin, *parts, "</div>") if line)


def _first_chart(result: Content) -> tuple[Chart, ...]:
    """Return the most important chart of a result without another drawing."""
    other = result.timelines or result.occupancies or result.flames
    return () if other else result.charts[:1]


def _height(one: Occupancy) -> int:
    return _OCCUPANCY_HEIGHT + (_SEGMENTS_HEIGHT if one.segments.height else 0)


def _framed(drawing: Chart | Flame | Lanes | Occupancy, renderer: ModuleType, height: int) -> str:
    """Return a sandboxed frame with a page for one drawing."""
    viewer = renderer.VIEWER
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy([viewer])}">'
        f"<style>{STYLE}{PAGE_STYLE}{viewing([viewer])}</style></head>"
        f'<body class="traceanalyzer">{renderer.inline(drawing, "drawing")}'
        f"<script>{viewer.script()}</script></body></html>"
    )
    return (
        f'<iframe sandbox="allow-scripts" title="{escaped(drawing.title)}" '
        f'srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )


# --- parts of a page, also of a report ----------------------------------------------------


def document(title: str, styles: str, viewers: Sequence[Viewer], body: Iterable[str]) -> str:
    """Return a complete page.

    Args:
        title: title of the document.
        styles: style sheet.
        viewers: scripts of the page.
        body: lines from the body element on; empty ones are dropped.
    """
    text = with_glossary("\n".join(line for line in body if line))
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


def viewers_of(results: Iterable[Content]) -> list[Viewer]:
    """Return the viewers needed for the drawings of the results."""
    results = list(results)
    needed = (
        (timeline.VIEWER, any(result.timelines for result in results)),
        (occupancy.VIEWER, any(result.occupancies for result in results)),
        (flamegraph.VIEWER, any(result.flames for result in results)),
        (charts.VIEWER, any(result.charts for result in results)),
    )
    return [viewer for viewer, is_needed in needed if is_needed]


def viewing(viewers: Sequence[Viewer], *, narrow: bool = False) -> str:
    """Return the style sheets of the viewers, and of the page width they need unless narrow."""
    sheets = [viewer.style() for viewer in viewers]
    more = _FLAME_STYLE if flamegraph.VIEWER in viewers else ""
    wide = _WIDE_STYLE if not narrow and _WIDE & {*viewers} else ""
    return "".join(sheets) + wide + more


def drawings(result: Content, key: str = "") -> list[str]:
    """Return all drawings of a result; their ids start with ``key``."""
    return [
        *(timeline.inline(one, f"{key}lanes-{n}") for n, one in enumerate(result.timelines)),
        *(occupancy.inline(one, f"{key}memory-{n}") for n, one in enumerate(result.occupancies)),
        *(flamegraph.inline(flame, f"{key}flame-{n}") for n, flame in enumerate(result.flames)),
        *(charts.inline(chart, f"{key}chart-{n}") for n, chart in enumerate(result.charts)),
    ]


def recorded(result: Content) -> str:
    """Return the line that says what was recorded, or an empty text."""
    return f'<p class="soft">{escaped(result.recorded)}</p>' if result.recorded else ""


def budget(of: Budget | None) -> str:
    """Return a bar of a total and its parts, or an empty text."""
    if of is None:
        return ""
    bars, labels = [], []
    for n, part in enumerate(of.parts):
        text = f"{part.label} {format_ns(part.ns)} ({format_frac(part.frac)})"
        again = [one.state for one in of.parts[:n]].count(part.state)  # parts of one colour
        style, width = f'class="state-{part.state} again-{again}"', f"flex-grow: {part.frac:.4f}"
        bars.append(f'<span {style} style="{width}" title="{escaped(text)}"></span>')
        labels.append(f"<li><span {style}></span>{escaped(text)}</li>")
    return (
        f'<div class="budget"><p>{escaped(of.title)}</p><div aria-hidden="true">{"".join(bars)}'
        f"</div><ul>{''.join(labels)}</ul></div>"
    )


def cards(
    findings: Sequence[Finding],
    anchors: Mapping[str, str] | None = None,
    marked: Mapping[int, str] | None = None,
) -> str:
    """Return the list of findings, or an empty text.

    Args:
        findings: findings in order.
        anchors: id of the section of each analysis.
        marked: id of the timeline on which a finding is marked, by its number from 1.
    """
    if not findings:
        return ""
    cards = []
    for number, one in enumerate(findings, 1):
        links = []
        if marked and number in marked:
            link = f'<a href="#{escape(marked[number])}" data-mark="{number}">Show in timeline</a>'
            links.append(link)
        if anchor := (anchors or {}).get(one.analysis):
            links.append(f'<a href="#{escape(anchor)}">Show the numbers</a>')
        is_marked = marked is not None and number in marked
        cards.append(_card(one, number, links, is_marked=is_marked))
    items = "\n".join(cards)
    return f'<ol class="findings">\n{items}\n</ol>'


def _card(one: Finding, number: int, links: Sequence[str], *, is_marked: bool) -> str:
    cost = "".join(f' · <span class="cost">{escaped(text)}</span>' for text in further_costs(one))
    cost += f' · <span class="cost">gain {escaped(gain(one))}</span>' if gain(one) else ""
    evidence = "".join(f"<li>{escaped(sentence)}</li>" for sentence in one.evidence)
    effects = "".join(
        f"<li><code>{escaped(effect.id)}</code> {escaped(effect.title)}</li>"
        for effect in one.effects
    )
    title = ' title="Number in the timeline"' if is_marked else ""
    mark = f'<span class="at"{title}>{number}</span>'
    grade = f'{mark}<span class="grade">{one.severity}</span>'
    lines = [
        f'<li class="finding {one.severity}" id="finding-{number}">',
        f"<p>{grade}<code>{escaped(one.id)}</code>{cost}</p>",
        f'<p class="what">{escaped(one.title)}</p>',
        f'<ul class="effects" aria-label="Effects">{effects}</ul>' if effects else "",
        f"<p><strong>Try:</strong> {escaped(one.advice)}</p>" if one.advice else "",
        f"<details><summary>Evidence</summary><ul>{evidence}</ul></details>" if evidence else "",
        _example(one.id),
        f'<p class="soft">{" ".join([f"Confidence: {one.confidence}.", *links])}</p></li>',
    ]
    return "\n".join(line for line in lines if line)


def _example(rule: str) -> str:
    """Return the change in code that a rule suggests, before and after."""
    blocks = []
    for number, part in enumerate(pieces.fixes().get(rule, "").split("```")):
        text = part.partition("\n")[2].rstrip() if number % 2 else part.strip().replace("`", "")
        tag = "pre" if number % 2 else "p"
        blocks += [f"<{tag}>{escape(text)}</{tag}>"] * bool(text)
    summary = "<summary>Example of the change</summary>"
    return f"<details>{summary}{''.join(blocks)}</details>" if blocks else ""


def table(of: Table, top: int | None, *, heading: str) -> str:
    """Return a table with its heading and at most ``top`` rows."""
    rows = of.frame.height
    title = f"<{heading}>{escaped(of.title)}</{heading}>"
    if not rows:
        return f'{title}\n<p class="soft">{escaped(of.empty)}</p>'
    visible = rows if top is None else min(top, rows)
    heads, columns, below = [], [], list[str]()
    for column in table_cells(of, visible):
        is_sentence = column.name in of.sentences
        if is_sentence and max(map(len, column.texts)) > _SENTENCE_CHARS:
            below += row_sentences(of, column.name, visible)
            continue
        cell = _sentence if is_sentence else _cell
        heads.append((escaped(column.scale.heading(column.label)), column.numeric))
        columns.append([cell(text, number=column.numeric) for text in column.texts])
    counted = f"{visible:,} of {rows:,} rows" if visible < rows else format_count(rows, "row")
    caption = f'<caption class="soft">{counted}</caption>\n'
    body = pieces.table(escaped(of.title), heads, zip(*columns, strict=True), caption)
    texts = "".join(f"<li>{escaped(text)}</li>" for text in below)
    return f"{title}\n{body}" + (f'\n<ul class="soft">{texts}</ul>' if texts else "")


def _cell(text: str, *, number: bool) -> str:
    short = shorten(text, _CELL_CHARS)
    return pieces.cell(short, number=number, full=text if short != text else "")


def _sentence(text: str, *, number: bool) -> str:
    return f'<td class="{"number" if number else "sentence"}">{escaped(text)}</td>'


def notes(result: Content, *, heading: str) -> str:
    """Return the notes as a list, or an empty text."""
    if not result.notes:
        return ""
    items = "".join(f"<li>{escaped(note)}</li>" for note in result.notes)
    return f'<{heading}>Notes</{heading}>\n<ul class="soft">{items}</ul>'


def _style(result: Content) -> str:
    """Return the style sheet of a result without its drawings."""
    return STYLE + (CARD_STYLE if result.diagnosis or result.budget_bar else "")


def _policy(viewers: Sequence[Viewer]) -> str:
    """Return a Content-Security-Policy that allows these viewers only."""
    hashes = " ".join(viewer.script_hash() for viewer in viewers)
    return f"{_POLICY}; script-src {hashes}" if viewers else _POLICY


#: Elements with sentences and headings.
_SENTENCES = re.compile(
    r'(<(?:p class="(?:verdict|what)"|h[234])(?: [^>]*)?>)(.*?)(</(?:p|h\d)>)', re.DOTALL
)
_COLUMNS = re.compile(r"(<th\b[^>]*)>([^<]*)(</th>)")
_MARKUP = re.compile(r"(<[^>]*>|&\w+;)")


def with_glossary(body: str) -> str:
    """Return the body of a page with linked terms, and their definitions at the end of ``main``.

    Each sentence links a term once. The heading of a column is a sort button, so it gets the
    definition as a tooltip.
    """
    used = set[str]()
    linked = _SENTENCES.sub(lambda match: f"{match[1]}{_linked(match[2], used)}{match[3]}", body)
    linked = _COLUMNS.sub(
        lambda match: f"{match[1]}{_title(match[2], used)}>{match[2]}{match[3]}", linked
    )
    return linked.replace("</main>", f"{_section(used)}\n</main>") if used else body


def _linked(text: str, used: set[str]) -> str:
    """Return the HTML of an element with a link at the first occurrence of each term."""
    linked = set[str]()

    def link(match: re.Match[str]) -> str:
        term = _term(match[0])
        if term in linked:
            return match[0]
        linked.add(term)
        return f'<a class="term" href="#{_key(term)}">{match[0]}</a>'

    parts = _MARKUP.split(text)
    parts[::2] = [_pattern().sub(link, part) for part in parts[::2]]
    used |= linked
    return "".join(parts)


def _title(text: str, used: set[str]) -> str:
    """Return the definition of the first term of a heading as an attribute."""
    match = _pattern().search(text)
    if match is None:
        return ""
    used.add(_term(match[0]))
    return f' title="{escape(_definitions()[_term(match[0])])}"'


def _section(used: set[str]) -> str:
    definitions = _definitions()
    items = "".join(
        f'<dt id="{_key(term)}">{escape(term)}</dt><dd>{escape(definitions[term])}</dd>'
        for term in sorted(used, key=str.lower)
    )
    count = format_count(len(used), "term")
    return (
        '<section id="glossary" aria-labelledby="glossary-h"><details class="fold"><summary>'
        f'<h2 id="glossary-h">Glossary</h2><span class="soft">{count}</span>'
        f'</summary><dl class="glossary">{items}</dl></details></section>'
    )


@cache
def _definitions() -> dict[str, str]:
    definitions: dict[str, str] = json.loads(resource("traceanalyzer.render", "glossary.json"))
    return definitions


@cache
def _pattern() -> re.Pattern[str]:
    """Return a pattern of all terms, longest first, also in the plural."""
    terms = sorted(_definitions(), key=len, reverse=True)
    return re.compile(rf"(?i)(?<![\w`-])(?:{'|'.join(map(re.escape, terms))})s?(?![\w-])")


def _term(text: str) -> str:
    """Return the glossary term of a match."""
    known = {term.lower(): term for term in _definitions()}
    return known.get(text.lower()) or known[text.lower().removesuffix("s")]


def _key(term: str) -> str:
    return f"term-{re.sub(r'[^a-z0-9]+', '-', term.lower())}"


# --- a report of all analyses --------------------------------------------------------------------


#: Script and style of the page of a report.
_REPORT_VIEWER = Viewer("traceanalyzer.render", ("sort", "report"), sheet="report")


def _report_page(report: ReportContent, top: int | None) -> str:
    parts = (*([report.timeline] if report.timeline else ()), *report.sections)
    results = [report.diagnosis_result, *(section.result for section in parts)]
    viewers: list[Viewer] = [*viewers_of(results), _REPORT_VIEWER]
    styles = STYLE + CARD_STYLE + PAGE_STYLE + viewing(viewers, narrow=True)
    anchors = {section.key: section.key for section in report.sections}
    opened = {one.analysis for one in report.diagnosis if one.severity != "info"}
    if not opened and not report.timeline:  # a drawing is the answer, of memory if there is one
        drawn = [one.key for one in report.sections if _drawings(one)[0]]
        opened = {min(drawn, key=lambda key: key != "memory", default="")}
    body = [
        '<body class="traceanalyzer report">',
        '<a class="skip" href="#findings">To the findings</a>',
        _contents(report),
        "<main>",
        f'<header><h1>{escaped(report.title)}</h1><div class="in-brief">',
        recorded(report.diagnosis_result),
        _facts(report),
        '</div></header><section id="findings" aria-label="Findings">',
        _verdict(report.verdict),
        budget(report.diagnosis_result.budget_bar),
        *([] if report.timeline is None else drawings(report.timeline.result, _TIMELINE)),
        cards(report.diagnosis, anchors, _marked(report.timeline)),
        notes(report, heading="h3"),
        "</section>",
        '<section id="overview">',
        *_ranks(report.overview, top),
        "</section>",
        *(_section_of_report(one, top, is_open=one.key in opened) for one in report.sections),
        _commands(report),
        "</main>",
    ]
    return document(report.title, styles, viewers, body)


#: Rows of the table of ranks that are not collapsed.
_RANKS = 8


def _ranks(overview: Table, top: int | None) -> list[str]:
    """Return the first rows of the table of ranks, and the whole one collapsed."""
    if overview.frame.height <= _RANKS:
        return [table(overview, top, heading="h2")]
    whole = table(overview, top, heading="h3")
    summary = f"All {format_count(overview.frame.height, 'row')}"
    return [
        table(overview, _RANKS, heading="h2"),
        f"<details><summary>{summary}</summary>{whole}</details>",
    ]


#: Most panels of a chart that is not collapsed.
_PANELS = 3
#: Prefix of the id of the timeline.
_TIMELINE = "timeline-"


def _marked(section: Section | None) -> dict[int, str]:
    """Return the id of the timeline for each finding that is marked on it."""
    timelines = section.result.timelines if section else ()
    return {
        number: f"{_TIMELINE}lanes-{place}"
        for place, one in enumerate(timelines)
        for number in one.marks["number"].unique()
    }


def _contents(report: ReportContent) -> str:
    """Return the list of contents with the number of findings of each analysis."""
    findings = Counter(one.analysis for one in report.diagnosis)
    first = [
        ("findings", "Findings", len(report.diagnosis)),
        ("overview", report.overview.title.split()[0], 0),
    ]
    others = [(one.key, one.short, findings[one.key]) for one in report.sections]
    items = "".join(
        f'<li><a href="#{key}">{escaped(short)}</a>'
        f"{f' <span class=count>{n}</span>' if n else ''}</li>"
        for key, short, n in (*first, *others, ("commands", "Commands", 0))
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


#: Facts that are in the line of what was recorded, and parts of the time budget.
_ABOVE = ("ranks", "files", "step_count", "median_ns")
_IN_BUDGET = (
    "idle_frac", "dataloading_frac", "exposed_frac", "in_collectives_frac", "wait_frac",
)  # fmt: skip


def _facts(report: ReportContent) -> str:
    """Return the facts that the line of what was recorded and the budget do not have."""
    elsewhere = {*_ABOVE, *(_IN_BUDGET if report.diagnosis_result.budget_bar else ())}
    tiles = []
    for fact in report.facts:
        if fact.name in elsewhere:
            continue
        scale, (text,) = cells(fact.name, [fact.value])
        value = f"{text} {scale.unit}".strip()
        tiles.append(f"<div><dt>{escaped(fact.label)}</dt><dd>{escaped(value)}</dd></div>")
    return f"<dl>{''.join(tiles)}</dl>" if tiles else ""


def _section_of_report(section: Section, top: int | None, *, is_open: bool) -> str:
    """Return a section: verdict, first drawing, first rows of the first table; the rest collapsed.

    A section without findings is collapsed to its title and the first sentence of its verdict.
    """
    result, key = section.result, section.key
    first, more = _drawings(section)
    tables = [one for one in result.visible_tables if one.frame.height]
    more += [table(one, top, heading="h3") for one in tables]
    lines = [
        f'<section id="{key}" aria-labelledby="{key}-h">',
        f'<details class="fold"{" open" if is_open else ""}>',
        f'<summary><h2 id="{key}-h">{escaped(section.short)}</h2>',
        f'<span class="soft">{escaped(first_sentence(result.verdict))}</span></summary>',
        _verdict(result.verdict),
        *first,
        f"<details><summary>{_contained(tables, more)}</summary>" if more else "",
        f'<p class="soft"><code>{escaped(section.command)}</code></p>',
        *more,
        notes(result, heading="h3"),
        "</details>" if more else "",
        "</details></section>",
    ]
    return "\n".join(line for line in lines if line)


def _drawings(section: Section) -> tuple[list[str], list[str]]:
    """Return the first drawing without many panels, and the others."""
    result, drawn = section.result, drawings(section.result, f"{section.key}-")
    before = len(drawn) - len(result.charts)
    small = [place for place, chart in enumerate(result.charts) if _panels(chart) <= _PANELS]
    first = 0 if before else small[0] if small else None
    if first is None:
        return [], drawn
    return [drawn[first]], drawn[:first] + drawn[first + 1 :]


def _panels(chart: Chart) -> int:
    return chart.frame[chart.panel].n_unique() if chart.panel else 1


def _contained(tables: Sequence[Table], more: Sequence[str]) -> str:
    """Return the label of collapsed charts and tables."""
    charts = len(more) - len(tables)
    counts = [
        format_count(number, what)
        for number, what in ((charts, "more chart"), (len(tables), "table"))
        if number
    ]
    return " and ".join(counts)


def _commands(report: ReportContent) -> str:
    """Return the list of commands that reproduce each part."""
    sections = (*([report.timeline] if report.timeline else ()), *report.sections)
    commands = [report.command, *(section.command for section in sections)]
    items = "".join(f"<li><code>{escaped(command)}</code></li>" for command in commands)
    return (
        '<section id="commands" aria-labelledby="commands-h"><details class="fold"><summary>'
        '<h2 id="commands-h">Commands</h2><span class="soft">Commands for each part, with '
        f"more rows and options.</span></summary><ul>{items}</ul></details></section>"
    )
