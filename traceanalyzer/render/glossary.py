"""Links from terms in a page to their definitions at its end.

``glossary.json`` has the definitions of ``docs/glossary.md``; ``make docs`` writes it.
"""

import json
import re
from functools import cache
from html import escape

from traceanalyzer.render.pieces import resource
from traceanalyzer.units import format_count

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
