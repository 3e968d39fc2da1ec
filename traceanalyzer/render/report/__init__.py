"""Report as one self-contained page: findings first, then each result with its drawings.

In: :class:`traceanalyzer.result.Report`. ``report.css`` is the layout; ``sort.js`` sorts tables,
``report.js`` highlights the current section in the list of contents and expands everything before
printing. The page is readable without scripts. Only :mod:`traceanalyzer.render` imports this
package.
"""

import re
from collections import Counter
from collections.abc import Sequence

from traceanalyzer.drawings import Chart
from traceanalyzer.render import html
from traceanalyzer.render.pieces import Viewer, escaped
from traceanalyzer.render.text import cells
from traceanalyzer.result import Report, Section, Table
from traceanalyzer.units import format_count

#: Script and style of the page.
VIEWER = Viewer(__name__, ("sort", "report"), sheet="report")


def page(report: Report, *, top: int | None = 50) -> str:
    """Return the page.

    Args:
        report: the report.
        top: rows per table; None means all.
    """
    drawn = (*([report.timeline] if report.timeline else ()), *report.sections)
    results = [report.diagnosis_result, *(section.result for section in drawn)]
    viewers: list[Viewer] = [*html.viewers_of(results), VIEWER]
    styles = html.STYLE + html.CARD_STYLE + html.PAGE_STYLE + html.viewing(viewers, narrow=True)
    anchors = {section.key: section.key for section in report.sections}
    judged = {one.analysis for one in report.diagnosis if one.severity != "info"}
    body = [
        '<body class="traceanalyzer report">',
        '<a class="skip" href="#findings">To the findings</a>',
        _contents(report),
        "<main>",
        f'<header><h1>{escaped(report.title)}</h1><div class="in-brief">',
        html.recorded(report.diagnosis_result),
        _facts(report),
        '</div></header><section id="findings" aria-label="Findings">',
        f'<p class="verdict">{escaped(report.verdict)}</p>',
        html.budget(report.diagnosis_result.budget_bar),
        *_timeline(report.timeline),
        html.cards(report.diagnosis, anchors, _marked(report.timeline)),
        html.notes(report, heading="h3"),
        "</section>",
        '<section id="overview">',
        html.table(report.overview, top, heading="h2"),
        "</section>",
        *(_section(one, top, is_open=one.key in judged) for one in report.sections),
        _commands(report),
        "</main>",
    ]
    return html.document(report.title, styles, viewers, body)


#: Most panels of a chart that is not collapsed.
_PANELS = 3
#: Prefix of the id of the timeline.
_TIMELINE = "timeline-"


def _timeline(section: Section | None) -> list[str]:
    """Return the timeline, above the findings that it shows."""
    return [] if section is None else html.drawings(section.result, _TIMELINE)


def _marked(section: Section | None) -> dict[int, str]:
    """Return the id of the timeline for each finding that is marked on it."""
    timelines = section.result.timelines if section else ()
    return {
        number: f"{_TIMELINE}lanes-{place}"
        for place, one in enumerate(timelines)
        for number in one.marks["number"].unique()
    }


def _contents(report: Report) -> str:
    """Return the list of contents with the number of findings of each analysis."""
    findings = Counter(one.analysis for one in report.diagnosis)
    first = [("findings", "Findings", len(report.diagnosis)), ("overview", "Ranks", 0)]
    others = [(one.key, one.short, findings[one.key]) for one in report.sections]
    items = "".join(
        f'<li><a href="#{key}">{escaped(short)}</a>'
        f"{f' <span class=count>{n}</span>' if n else ''}</li>"
        for key, short, n in (*first, *others, ("commands", "Commands", 0))
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


#: Facts that are in the line of what was recorded, and parts of the time budget.
_ABOVE = ("ranks", "files", "step_count", "median_ns")
_IN_BUDGET = ("idle_frac", "dataloading_frac", "exposed_frac", "wait_frac")


def _facts(report: Report) -> str:
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


def _section(section: Section, top: int | None, *, is_open: bool) -> str:
    """Return a section: verdict, first drawing, first rows of the first table; the rest collapsed.

    A section without findings is collapsed to its title and the first sentence of its verdict.
    """
    result, key = section.result, section.key
    first, more = _drawings(section)
    tables = [one for one in result.visible_tables if one.frame.height]
    more += [html.table(one, top, heading="h3") for one in tables]
    lines = [
        f'<section id="{key}" aria-labelledby="{key}-h">',
        f'<details class="fold"{" open" if is_open else ""}>',
        f'<summary><h2 id="{key}-h">{escaped(section.short)}</h2>',
        f'<span class="soft">{escaped(_first_sentence(result.verdict))}</span></summary>',
        f'<p class="verdict">{escaped(result.verdict)}</p>',
        *first,
        f"<details><summary>{_contained(tables, more)}</summary>" if more else "",
        f'<p class="soft"><code>{escaped(section.command)}</code></p>',
        *more,
        html.notes(result, heading="h3"),
        "</details>" if more else "",
        "</details></section>",
    ]
    return "\n".join(line for line in lines if line)


def _drawings(section: Section) -> tuple[list[str], list[str]]:
    """Return the first drawing without many panels, and the others."""
    result, drawings = section.result, html.drawings(section.result, f"{section.key}-")
    before = len(drawings) - len(result.charts)
    small = [place for place, chart in enumerate(result.charts) if _panels(chart) <= _PANELS]
    first = 0 if before else small[0] if small else None
    if first is None:
        return [], drawings
    return [drawings[first]], drawings[:first] + drawings[first + 1 :]


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


def _first_sentence(text: str) -> str:
    """Return the text up to the first full stop before a space."""
    return re.split(r"(?<=[.!?]) (?=[A-Z0-9])", text, maxsplit=1)[0]


def _commands(report: Report) -> str:
    """Return the list of commands that reproduce each part."""
    sections = (*([report.timeline] if report.timeline else ()), *report.sections)
    commands = [report.command, *(section.command for section in sections)]
    items = "".join(f"<li><code>{escaped(command)}</code></li>" for command in commands)
    return (
        '<section id="commands" aria-labelledby="commands-h"><details class="fold"><summary>'
        '<h2 id="commands-h">Commands</h2><span class="soft">Commands for each part, with '
        f"more rows and options.</span></summary><ul>{items}</ul></details></section>"
    )
