"""GitHub-flavoured Markdown of a result, for a pull request or an issue.

Words of letters, digits and plain punctuation are kept. Any other word becomes code, so that it
cannot be HTML, a link, an image, emphasis, an ``@mention`` or a link to an issue (``#12``).
"""

import re

from traceanalyzer.drawings import Content, Finding, Table
from traceanalyzer.render.text import answer, costs, gain, prose, shorten, table_cells
from traceanalyzer.units import format_frac, format_ns

_CELL_CHARS = 90

_PLAIN = re.compile(
    r"""[("']*(?:[-+±]?[^\W_](?:[^\W_]|[-.,%/+=']|(?<=\d):(?=\d))*|[%±/])[)"'.,;:!?]*"""
)
# GitHub links text that looks like a commit, an issue or a host
_LINKED = re.compile(r"(?i)\W*(?:(?=\w*\d)(?=\w*[a-f])[\da-f]{7,40}|[a-z]+-\d+|www\..*)\W*")
_SPAN = re.compile(r"`[^`]+`")
_LIST = re.compile(r"\d+[.)]")  # at the start of a line it would start a list
# punctuation around a term
_BEFORE, _AFTER = "(\"'", ")\"'.,;:!?"
_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
# most terms of one expression
_EXPRESSION = 24
# most words between ##
_NAME = 8
# in a table this is an escaped backslash and the end of a cell
_ENDS_CELL = "\\|"


def render(result: Content, *, top: int | None = 20) -> str:
    """Return title, verdict, findings, tables and notes.

    Args:
        result: the result.
        top: rows per table, without detail tables; None means all rows of all tables.
    """
    tables = [table for table in result.visible_tables if top is None or not table.detail]
    more = [table.title for table in result.visible_tables if top is not None and table.detail]
    lead, points = answer(result.verdict)
    parts = [f"## {_line(result.title)}", _line(result.recorded), _line(lead)]
    parts.append("\n".join(f"- {_line(point)}" for point in points))
    if bar := result.budget_bar:
        each = [f"{one.label} {format_ns(one.ns)} ({format_frac(one.frac)})" for one in bar.parts]
        parts.append(_line(f"{bar.title}: {', '.join(each)}."))
    parts += [_finding(number, one) for number, one in enumerate(result.diagnosis, 1)]
    parts += [_table(table, top) for table in tables]
    if more:
        parts.append(f"More with `--top all`: {_line('; '.join(more))}.")
    if result.notes:
        parts.append("\n".join(f"- {_line(note)}" for note in result.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _finding(number: int, one: Finding) -> str:
    cost = ", ".join([*costs(one), *([f"gain {gain(one)}"] if gain(one) else [])])
    head = f"### {number}\\. {one.severity}: {_line(one.id)}{f' ({_line(cost)})' if cost else ''}"
    items = [*one.evidence, *((f"Try: {one.advice}",) if one.advice else ())]
    items += [f"Effect: {effect.id}: {effect.title}" for effect in one.effects]
    items.append(f"Confidence: {one.confidence}.")
    return "\n\n".join((head, _line(one.title), "\n".join(f"- {_line(text)}" for text in items)))


def _table(table: Table, top: int | None) -> str:
    title = f"### {_line(table.title)}"
    rows = table.frame.height
    if not rows:
        return f"{title}\n\n{_line(table.empty)}"
    visible = rows if top is None else min(top, rows)
    heads, rules, columns = [], [], []
    for column in table_cells(table, visible):
        heads.append(column.scale.heading(_cell(prose(column.label))))
        rules.append("---:" if column.numeric else "---")
        whole = column.name in table.sentences
        texts = column.texts if whole else [shorten(text, _CELL_CHARS) for text in column.texts]
        columns.append([_cell(text) for text in texts])
    lines = [heads, rules, *map(list, zip(*columns, strict=True))]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    rest = ""
    if visible < rows:
        rest = f"\n\n({visible:,} of {rows:,} rows; `--top all` shows the rest)"
    return f"{title}\n\n{body}{rest}"


def _line(text: str) -> str:
    """Return sentences in one line that cannot start a list or, by spaces, a block of code."""
    first, *rest = _expressions(prose(text).strip(" ").split(" "))
    begin = _code(first) if _LIST.fullmatch(first) else _term(first)
    return " ".join([begin, *map(_term, rest)])


def _expressions(terms: list[str]) -> list[str]:
    """Join the terms of one name: between brackets (``f(a, b)``), and words that are not plain."""
    joined, at = [], 0
    while at < len(terms):
        end = at + 1
        if not _is_plain(terms[at]) and _open(terms[at]) > 0:
            ends = range(at + 2, min(at + _EXPRESSION, len(terms)) + 1)
            end = next((n for n in ends if _open(" ".join(terms[at:n])) <= 0), end)
        if terms[at] and not terms[at].strip("#"):  # ## backward ## of FBGEMM and TorchRec
            following = [term.rstrip(_AFTER) for term in terms[end : end + _NAME]]
            end += following.index(terms[at]) + 1 if terms[at] in following else 0
        while end < len(terms) and _continues(terms[end - 1], terms[end]):
            end += 1
        joined.append(" ".join(terms[at:end]))
        at = end
    return joined


def _continues(term: str, following: str) -> bool:
    """Return whether two terms are of one name: neither is plain, nothing ends between them."""
    if _is_plain(term) or _is_plain(following) or "`" in term + following:
        return False
    return bool(term) and term[-1] not in _AFTER and following[:1] not in {*_BEFORE, ""}


def _open(text: str) -> int:
    """Return the number of unclosed brackets after the punctuation at the start of a text."""
    body = text.lstrip(_BEFORE).replace("->", "").replace("<=", "").replace(">=", "")
    return sum(body.count(begin) - body.count(end) for begin, end in _BRACKETS.items())


def _term(text: str) -> str:
    """Return a plain term unchanged; otherwise the text between its punctuation becomes code.

    A bracket that the term opens is part of it: ``f(x)``. A term in backticks is code already.
    """
    if _is_plain(text):
        return text
    inner = text.lstrip(_BEFORE)
    before, after = text[: len(text) - len(inner)], ""
    while inner[-1:] and inner[-1] in _AFTER:
        if inner[-1] == ")" and inner.count("(") >= inner.count(")"):
            break
        inner, after = inner[:-1], inner[-1] + after
    if _SPAN.fullmatch(inner):
        return text
    return f"{before}{_code(inner)}{after}" if inner else text


def _cell(text: str) -> str:
    """Return a plain cell unchanged, any other as code."""
    if all(map(_is_plain, text.split())):
        return text
    if _ENDS_CELL in text:
        spelled = "".join(c if c.isalnum() else f"&#{ord(c)};" for c in text)
        return f"<code>{spelled}</code>"
    return _code(text).replace("|", _ENDS_CELL)


def _is_plain(word: str) -> bool:
    return _PLAIN.fullmatch(word) is not None and _LINKED.fullmatch(word) is None


def _code(text: str) -> str:
    """Return a code span, its fence longer than any backticks in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text[:1] in "` " or text[-1:] in "` " else ""
    return f"{fence}{pad}{text}{pad}{fence}"
