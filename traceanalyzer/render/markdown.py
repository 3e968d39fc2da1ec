"""A result as GitHub-flavoured Markdown, for a pull request or an issue.

Words of letters, figures and plain punctuation stand as they are. Any other word is set as code, in
which nothing means anything: no HTML, link, picture or emphasis, no ``@mention``, no ``#12`` that
links to an issue.
"""

import re

from traceanalyzer.render.text import costs, prose, shorten, shown_cells
from traceanalyzer.result import Finding, Result, Table

_CELL_CHARS = 90

_PLAIN = re.compile(
    r"""[("']*(?:[-+±]?[^\W_](?:[^\W_]|[-.,%/+=']|(?<=\d):(?=\d))*|[%±/])[)"'.,;:!?]*"""
)
# GitHub links what looks like a commit, an issue elsewhere, or a host
_LINKED = re.compile(r"(?i)\W*(?:(?=\w*\d)(?=\w*[a-f])[\da-f]{7,40}|[a-z]+-\d+|www\..*)\W*")
_LIST = re.compile(r"\d+[.)]")  # begins one, as the first word of a line
# the marks around a word
_BEFORE, _AFTER = "(\"'", ")\"'.,;:!?"
_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
# so many words with spaces between are one expression at most
_EXPRESSION = 24
# a table takes both for an escaped backslash and the end of a cell
_ENDS_CELL = "\\|"


def render(result: Result, *, top: int | None = 20) -> str:
    """Title, verdict, tables and notes.

    Args:
        result: what to show.
        top: rows shown of each table that is no detail; None shows all of all.
    """
    shown = [table for table in result.tables_shown if top is None or not table.detail]
    more = [table.title for table in result.tables_shown if top is not None and table.detail]
    parts = [f"## {_line(result.title)}", _line(result.verdict)]
    parts += [_finding(number, one) for number, one in enumerate(result.diagnosis, 1)]
    parts += [_table(table, top) for table in shown]
    if more:
        parts.append(f"More with `--top all`: {_line('; '.join(more))}.")
    if result.notes:
        parts.append("\n".join(f"- {_line(note)}" for note in result.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _finding(number: int, one: Finding) -> str:
    cost = ", ".join(costs(one))
    head = f"### {number}\\. {one.severity}: {_line(one.id)}{f' ({_line(cost)})' if cost else ''}"
    said = [*one.evidence, *((f"To try: {one.advice}",) if one.advice else ())]
    said += [f"Effect: {effect.id}: {effect.title}" for effect in one.effects]
    said.append(f"Confidence: {one.confidence}.")
    return "\n\n".join((head, _line(one.title), "\n".join(f"- {_line(text)}" for text in said)))


def _table(table: Table, top: int | None) -> str:
    title = f"### {_line(table.title)}"
    rows = table.frame.height
    if not rows:
        return f"{title}\n\n{_line(table.empty)}"
    shown = rows if top is None else min(top, rows)
    heads, rules, columns = [], [], []
    for name, label in table.columns.items():
        scale, texts, numeric = shown_cells(table, name, shown)
        heads.append(scale.heading(_cell(prose(label))))
        rules.append("---:" if numeric else "---")
        columns.append([_cell(shorten(text, _CELL_CHARS)) for text in texts])
    lines = [heads, rules, *map(list, zip(*columns, strict=True))]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    rest = f"\n\n({shown:,} of {rows:,} rows; `--top all` shows the rest)" if shown < rows else ""
    return f"{title}\n\n{body}{rest}"


def _line(text: str) -> str:
    """Sentences in one line; whatever it begins with, it is no list."""
    first, *rest = _expressions(prose(text).split(" "))
    begin = _code(first) if _LIST.fullmatch(first) else _word(first)
    return " ".join([begin, *map(_word, rest)])


def _expressions(words: list[str]) -> list[str]:
    """The words, those between brackets that a word opens joined to it: ``f(a, b)``."""
    joined, at = [], 0
    while at < len(words):
        end = at + 1
        if not _is_plain(words[at]) and _open(words[at]) > 0:
            ends = range(at + 2, min(at + _EXPRESSION, len(words)) + 1)
            end = next((n for n in ends if _open(" ".join(words[at:n])) <= 0), end)
        joined.append(" ".join(words[at:end]))
        at = end
    return joined


def _open(text: str) -> int:
    """How many brackets behind the marks at its start a text opens and does not close."""
    body = text.lstrip(_BEFORE).replace("->", "").replace("<=", "").replace(">=", "")
    return sum(body.count(begin) - body.count(end) for begin, end in _BRACKETS.items())


def _word(text: str) -> str:
    """A word as it is, or what lies between its punctuation marks as code.

    A bracket that it opens itself is part of it: ``f(x)``.
    """
    if _is_plain(text):
        return text
    inner = text.lstrip(_BEFORE)
    before, after = text[: len(text) - len(inner)], ""
    while inner[-1:] and inner[-1] in _AFTER:
        if inner[-1] == ")" and inner.count("(") >= inner.count(")"):
            break
        inner, after = inner[:-1], inner[-1] + after
    return f"{before}{_code(inner)}{after}" if inner else text


def _cell(text: str) -> str:
    """A cell as it is, or all of it as code."""
    if all(map(_is_plain, text.split())):
        return text
    if _ENDS_CELL in text:
        spelled = "".join(c if c.isalnum() else f"&#{ord(c)};" for c in text)
        return f"<code>{spelled}</code>"
    return _code(text).replace("|", _ENDS_CELL)


def _is_plain(word: str) -> bool:
    return _PLAIN.fullmatch(word) is not None and _LINKED.fullmatch(word) is None


def _code(text: str) -> str:
    """A code span that ends where the text does, whatever backticks are in it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text[:1] in "` " or text[-1:] in "` " else ""
    return f"{fence}{pad}{text}{pad}{fence}"
