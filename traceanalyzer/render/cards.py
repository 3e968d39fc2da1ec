"""Findings as cards in a page: what is wrong, what it costs, what to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from traceanalyzer.render.text import costs, prose

if TYPE_CHECKING:
    from traceanalyzer.result import Finding

STYLE = """
.traceanalyzer .findings { list-style: none; padding: 0; margin: 1.5em 0; display: grid; gap: 1em;
  grid-template-columns: minmax(0, 1fr); overflow-wrap: anywhere; }
.traceanalyzer .finding { border: 1px solid var(--line); border-left: 5px solid var(--grade);
  border-radius: 6px; padding: 0.8em 1.1em; break-inside: avoid; background: var(--band); }
.traceanalyzer .finding.critical { --grade: #cf222e; }
.traceanalyzer .finding.warning { --grade: #bf8700; }
.traceanalyzer .finding.info { --grade: #218bff; }
.traceanalyzer .finding p { margin: 0.4em 0; max-width: 62em; overflow-wrap: anywhere; }
.traceanalyzer .finding .what { font-weight: 600; font-size: 1.05em; }
.traceanalyzer .finding .grade { display: inline-block; border: 1px solid var(--grade);
  border-radius: 1em; padding: 0 0.7em; margin-right: 0.6em; font-size: 0.85em; }
.traceanalyzer .finding .cost { font-variant-numeric: tabular-nums; }
.traceanalyzer .finding ul { margin: 0.4em 0; padding-left: 1.3em; }
"""


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
    cost = "".join(f' · <span class="cost">{_prose(text)}</span>' for text in costs(one))
    evidence = "".join(f"<li>{_prose(sentence)}</li>" for sentence in one.evidence)
    link = f' <a href="#{escape(anchor)}">Show the numbers</a>' if anchor else ""
    grade = f'<span class="grade">{one.severity}</span>'
    lines = [
        f'<li class="finding {one.severity}">',
        f"<p>{grade}<code>{_prose(one.rule)}</code>{cost}</p>",
        f'<p class="what">{_prose(one.title)}</p>',
        f"<ul>{evidence}</ul>" if evidence else "",
        f"<p><strong>To try:</strong> {_prose(one.advice)}</p>" if one.advice else "",
        f'<p class="soft">How sure: {one.confidence}.{link}</p></li>',
    ]
    return "\n".join(line for line in lines if line)


def _prose(text: str) -> str:
    return escape(prose(text))
