"""Write the reference in ``docs/python.md`` from the docstrings of the package (``make docs``).

The text above the mark is written by hand.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import traceanalyzer
from traceanalyzer.analyzers.base import Reading
from traceanalyzer.result import Result

PAGE = Path(__file__).with_name("python.md")
MARK = "<!-- below: generated from the docstrings by `make docs` -->\n"

#: Arguments of all questions, documented once.
SHARED = ("inputs", "reading")
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$", re.MULTILINE)
_ITEM = re.compile(r"^ {4}(?:\*\*)?(\w+): ", re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|mod|data):`~?([^`]+)`")


def plain(text: str) -> str:
    """Return the text of a docstring as Markdown, one line per paragraph."""
    roles = _ROLE.sub(lambda match: f"`{match[1]}`", text).replace("``", "`")
    paragraphs = [" ".join(part.split()) for part in roles.strip().split("\n\n")]
    outside = [re.split(r"(`[^`]*`)", paragraph) for paragraph in paragraphs]
    return "\n\n".join("".join(map(_escaped, parts)) for parts in outside)


def _escaped(part: str) -> str:
    return part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part)


def parts(thing: object) -> dict[str, str]:
    """Return the sections of a docstring by name; the text before them is ``""``."""
    pieces = _SECTION.split(inspect.getdoc(thing) or "")
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def items(section: str) -> dict[str, str]:
    """Return the entries of a section of arguments, attributes or errors."""
    pieces = _ITEM.split("\n" + section)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def bullets(entries: dict[str, str]) -> str:
    """Return entries as a Markdown list."""
    return "\n".join(f"- `{name}`: {plain(text)}" for name, text in entries.items())


def signature(name: str, function: Any) -> str:
    """Return the call of a function, without types."""
    arguments = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.append("...")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        arguments.append(parameter.name + default)
    return f"{name}({', '.join(arguments)})"


def function_section(name: str) -> str:
    """Return the section of one function."""
    function = getattr(traceanalyzer, name)
    doc = parts(function)
    arguments = items(doc.get("Args", ""))
    special = {key: text for key, text in arguments.items() if key not in SHARED}
    lines = [f"### `{name}`", f"```text\n{signature(name, function)}\n```", plain(doc[""])]
    if special:
        lines.append(bullets(special))
    if "Raises" in doc:
        lines.append("Raises:\n\n" + bullets(items(doc["Raises"])))
    return "\n\n".join(lines) + "\n"


def attributes(kind: type) -> dict[str, str]:
    """Return the attributes of a class, and those of records in them: ``queue.streams``."""
    hints = get_type_hints(kind) if is_dataclass(kind) else {}
    listed = {}
    for name, text in items(parts(kind).get("Attributes", "")).items():
        listed[name] = text
        record = hints.get(name)
        is_record = is_dataclass(record) and record.__name__ not in traceanalyzer.__all__
        if is_record and issubclass(kind, Result):
            listed |= {f"{name}.{key}": text for key, text in attributes(record).items()}
    return listed


def class_section(name: str) -> str:
    """Return the section of one class: description and attributes."""
    kind = getattr(traceanalyzer, name)
    lines, listed = [f"### `{name}`", plain(parts(kind)[""])], attributes(kind)
    return "\n\n".join([*lines, *([bullets(listed)] if listed else [])]) + "\n"


def shared() -> str:
    """Return the arguments that all questions have."""
    inputs = items(parts(traceanalyzer.gpu_idle)["Args"])["inputs"]
    return bullets({"inputs": inputs, **items(parts(Reading)["Attributes"])})


def derived() -> str:
    """Return the reference."""
    names = traceanalyzer.__all__
    things = {name: getattr(traceanalyzer, name) for name in names}
    errors = [
        n for n, thing in things.items() if isinstance(thing, type) and issubclass(thing, Exception)
    ]
    classes = [n for n, thing in things.items() if isinstance(thing, type) and n not in errors]
    functions = [name for name in names if name not in {*errors, *classes}]
    return "\n".join(
        [
            "## Functions",
            "",
            "Arguments of all questions, `...` below:",
            "",
            shared(),
            "",
            *map(function_section, functions),
            "## Classes",
            "",
            *map(class_section, classes),
            "## Errors",
            "",
            bullets({name: parts(things[name])[""] for name in errors}),
            "",
        ]
    )


def page() -> str:
    """Return the whole page: the text written by hand, and the reference."""
    return PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "\n" + derived()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
