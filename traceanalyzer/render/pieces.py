"""Parts of pages and drawings: text, tables, data and viewers."""

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

_BREAKING = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass(frozen=True)
class Viewer:
    """Script and style of a drawing; the script finds its elements by class and fetches nothing.

    Attributes:
        package: package of its files.
        scripts: names of its ``.js`` files, in order.
        sheet: name of its ``.css`` file.
        fills: rules that replace ``/* fills */`` in the style sheet.
    """

    package: str
    scripts: tuple[str, ...]
    sheet: str = "viewer"
    fills: str = ""

    def style(self) -> str:
        """Return the style sheet."""
        return resource(self.package, f"{self.sheet}.css").replace("/* fills */", self.fills)

    def script(self) -> str:
        """Return its scripts as one, in a scope of its own."""
        sources = "\n".join(resource(self.package, f"{name}.js") for name in self.scripts)
        return f"(() => {{\n'use strict';\n{sources}}})();\n"

    def script_hash(self) -> str:
        """Return the hash by which a Content-Security-Policy allows this script."""
        return f"'sha256-{b64encode(sha256(self.script().encode()).digest()).decode()}'"


@cache
def resource(package: str, name: str) -> str:
    """Return the text of a file in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


@cache
def fixes() -> dict[str, str]:
    """Return the change in code that each rule suggests, in Markdown (``docs/fixes.md``)."""
    texts: dict[str, str] = json.loads(resource("traceanalyzer.render", "fixes.json"))
    return texts


def escaped(text: str) -> str:
    """Return a sentence escaped for HTML."""
    return escape(prose(text))


def figure(kind: str, key: str, content: str) -> str:
    """Return a figure that a viewer finds by its class.

    Args:
        kind: the class.
        key: the id. Title and description have the ids ``key-title`` and ``key-summary``.
        content: HTML content.
    """
    return (
        f'<figure class="{kind}" id="{key}" role="group" aria-labelledby="{key}-title" '
        f'aria-describedby="{key}-summary">\n{content}</figure>'
    )


def caption(key: str, title: str, summary: str) -> str:
    """Return the caption of a figure with its summary, see :func:`figure`."""
    return (
        f'<figcaption id="{key}-title">{escaped(title)}</figcaption>\n'
        f'<p class="soft summary" id="{key}-summary">{escaped(summary)}</p>\n'
    )


def drawn(outline: str, packed: str) -> str:
    """Return the element a viewer draws in, the content without scripts, and the data."""
    return (
        f'<div class="drawn"></div>\n{outline}\n<script type="application/json">{packed}</script>\n'
    )


def pack(content: dict[str, Any]) -> str:
    """Return JSON that cannot end the ``script`` element it is in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character, safe in _BREAKING.items():  # much faster than translate()
        text = text.replace(character, safe)
    return text


def differences(values: Iterable[int | None]) -> list[int | None]:
    """Return the difference of each value from the last known one."""
    last, steps = 0, []
    for value in values:
        steps.append(None if value is None else value - last)
        last = last if value is None else value
    return steps


def table(
    label: str, heads: Sequence[tuple[str, bool]], rows: Iterable[Iterable[str]], caption: str = ""
) -> str:
    """Return a table that scrolls if it is wider than the page.

    Args:
        label: accessible name, escaped.
        heads: heading of each column, escaped, and whether it contains numbers.
        rows: cells of each row, see :func:`cell`.
        caption: a ``caption`` element, if any.
    """
    names = "".join(f'<th scope="col"{_align(number)}>{name}</th>' for name, number in heads)
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table>{caption}'
        f"<thead><tr>{names}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def cell(text: str, *, number: bool = False, full: str = "") -> str:
    """Return a cell of a table; ``full`` is its tooltip."""
    title = f' title="{escape(full)}"' if full else ""
    return f"<td{_align(number)}{title}>{escape(text)}</td>"


def _align(number: bool) -> str:
    return ' class="number"' if number else ""
