"""Report as one self-contained page: findings first, then each result with its drawings.

In: :class:`traceanalyzer.result.Report`. ``report.css`` is the layout; ``sort.js`` sorts tables,
``report.js`` highlights the current section in the list of contents and expands everything before
printing. The page is readable without scripts. Only :mod:`traceanalyzer.render` imports this
package.
"""

from collections import Counter

from traceanalyzer.render import html
from traceanalyzer.render.pieces import Viewer, escaped
from traceanalyzer.render.text import cells
from traceanalyzer.result import Fact, Report, Section

#: Script and style of the page.
VIEWER = Viewer(__name__, ("sort", "report"), sheet="report")


def page(report: Report, *, top: int | None = 50) -> str:
    """Return the page.

    Args:
        report: the report.
        top: rows per table; None means all.
    """
    results = [report.diagnosis_result, *(section.result for section in report.sections)]
    viewers: list[Viewer] = [*html.viewers_of(results), VIEWER]
    styles = html.STYLE + html.CARD_STYLE + html.PAGE_STYLE + html.viewing(viewers, narrow=True)
    anchors = {section.key: section.key for section in report.sections}
    body = [
        '<body class="traceanalyzer report">',
        '<a class="skip" href="#findings">To the findings</a>',
        _contents(report),
        "<main>",
        f"<header><h1>{escaped(report.title)}</h1>{_facts(report.facts)}</header>",
        '<section id="findings" aria-labelledby="findings-h"><h2 id="findings-h">Findings</h2>',
        f'<p class="verdict">{escaped(report.verdict)}</p>',
        html.cards(report.diagnosis, anchors),
        html.notes(report, heading="h3"),
        "</section>",
        '<section id="overview">',
        html.table(report.overview, top, heading="h2"),
        "</section>",
        *(_section(section, top) for section in report.sections),
        _commands(report),
        "</main>",
    ]
    return html.document(report.title, styles, viewers, body)


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


def _facts(facts: tuple[Fact, ...]) -> str:
    tiles = []
    for fact in facts:
        scale, (text,) = cells(fact.name, [fact.value])
        value = f"{text} {scale.unit}".strip()
        tiles.append(f"<div><dt>{escaped(fact.label)}</dt><dd>{escaped(value)}</dd></div>")
    return f'<dl class="in-brief">{"".join(tiles)}</dl>' if tiles else ""


def _section(section: Section, top: int | None) -> str:
    """Return a section: verdict, drawings, tables; detail tables are collapsed."""
    result, key = section.result, section.key
    tables = [table for table in result.visible_tables if not table.detail]
    details = [table for table in result.visible_tables if table.detail]
    lines = [
        f'<section id="{key}" aria-labelledby="{key}-h">',
        f'<h2 id="{key}-h">{escaped(result.title)}</h2>',
        f'<p class="verdict">{escaped(result.verdict)}</p>',
        f'<p class="soft"><code>{escaped(section.command)}</code></p>',
        *html.drawings(result, f"{key}-"),
        *(html.table(table, top, heading="h3") for table in tables),
        *(
            f"<details><summary>{escaped(table.title)}</summary>"
            f"{html.table(table, top, heading='h3')}</details>"
            for table in details
        ),
        html.notes(result, heading="h3"),
        "</section>",
    ]
    return "\n".join(line for line in lines if line)


def _commands(report: Report) -> str:
    """Return the list of commands that reproduce each part."""
    commands = [report.command, *(section.command for section in report.sections)]
    items = "".join(f"<li><code>{escaped(command)}</code></li>" for command in commands)
    return (
        '<section id="commands" aria-labelledby="commands-h"><h2 id="commands-h">Commands</h2>'
        f"<p>Commands for each part, with more rows and options:</p><ul>{items}</ul></section>"
    )
