"""What pages and the drawings in them are made of: text, tables, data and viewers."""

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from traceanalyzer.render.text import prose

_BREAKING = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(frozen=True)
class Viewer:
    """A program that draws in a page: it finds what is its own there, and asks for nothing else.

    Attributes:
        package: the package that its files lie in.
        scripts: the names of its ``.js`` files, in order.
        sheet: the name of its ``.css`` file.
        fills: rules that stand in the sheet for ``/* fills */``.
    """

    package: str
    scripts: tuple[str, ...]
    sheet: str = "viewer"
    fills: str = ""

    def style(self) -> str:
        """The style sheet of all that it draws."""
        return resource(self.package, f"{self.sheet}.css").replace("/* fills */", self.fills)

    def script(self) -> str:
        """Its scripts as one, which shares nothing with the page's others."""
        sources = "\n".join(resource(self.package, f"{name}.js") for name in self.scripts)
        return f"(() => {{\n'use strict';\n{sources}}})();\n"

    def script_hash(self) -> str:
        """What a Content-Security-Policy says so that it, and no other script, may run."""
        return f"'sha256-{b64encode(sha256(self.script().encode()).digest()).decode()}'"


@cache
def resource(package: str, name: str) -> str:
    """The text of a file that lies in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def escaped(text: str) -> str:
    """A sentence for a page, harmless whatever names are in it."""
    return escape(prose(text))


def figure(kind: str, key: str, content: str) -> str:
    """A figure that a viewer finds by its class.

    Args:
        kind: the class.
        key: the id. The title and the description have the ids ``key-title`` and ``key-said``.
        content: what is in it.
    """
    return (
        f'<figure class="{kind}" id="{key}" role="group" aria-labelledby="{key}-title" '
        f'aria-describedby="{key}-said">\n{content}</figure>'
    )


def drawn(outline: str, packed: str) -> str:
    """Where a viewer draws, what can be read without scripts, and the viewer's data."""
    return (
        f'<div class="drawn"></div>\n{outline}\n<script type="application/json">{packed}</script>\n'
    )


def pack(content: dict[str, Any]) -> str:
    """JSON for the inside of a ``script`` element, which no text in it can end."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.translate(_BREAKING)


def differences(values: Iterable[int | None]) -> list[int | None]:
    """Each value less the last one that is known."""
    last, steps = 0, []
    for value in values:
        steps.append(None if value is None else value - last)
        last = last if value is None else value
    return steps


def table(
    label: str, heads: Sequence[tuple[str, bool]], rows: Iterable[Iterable[str]], caption: str = ""
) -> str:
    """A table that scrolls by itself where it is wider than the page.

    Args:
        label: its name for those who cannot see it, escaped.
        heads: the heading of each column, escaped, and whether it holds numbers.
        rows: the cells of each row, see :func:`cell`.
        caption: a ``caption`` element, if any.
    """
    names = "".join(f'<th scope="col"{_align(number)}>{name}</th>' for name, number in heads)
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table>{caption}'
        f"<thead><tr>{names}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def cell(text: str, *, number: bool = False, full: str = "") -> str:
    """A cell of a table; ``full`` is shown where the pointer rests on it."""
    title = f' title="{escape(full)}"' if full else ""
    return f"<td{_align(number)}{title}>{escape(text)}</td>"


def _align(number: bool) -> str:
    return ' class="number"' if number else ""
