"""Write the reference of Python from the docstrings of the package (``make docs``).

``docs/python.md`` has the text above the mark, written by hand, and lists all functions;
``python-GROUP.md`` has the functions of a group of commands and the classes of their results,
``python-reading.md`` everything else.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import traceanalyzer
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.registry import ENTRIES, GROUPS
from traceanalyzer.result import Result

PAGE = Path(__file__).with_name("python.md")
MARK = "<!-- below: generated from the docstrings by `make docs` -->\n"

_GENERATED = "<!-- Generated from the docstrings by `make docs`; edit those, not this page. -->"

#: Page of everything without a command.
READING = "Reading"
#: Commands of functions with another name.
_COMMANDS = {
    "check_budgets": "gate",
    "diff_runs": "diff",
    "list_baselines": "baseline",
    "save_baseline": "baseline",
}

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


def parts_of(thing: object) -> dict[str, str]:
    """Return the sections of a docstring by name; the text before them is ``""``."""
    pieces = _SECTION.split(inspect.getdoc(thing) or "")
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def items(section: str) -> dict[str, str]:
    """Return the entries of a section of arguments, attributes or errors."""
    pieces = _ITEM.split("\n" + section)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def bullets(entries: dict[str, str]) -> str:
    """Return entries as a Markdown list."""
    texts = {name: plain(text).replace("\n\n", "\n\n    ") for name, text in entries.items()}
    return "\n".join(f"- `{name}`: {text}" for name, text in texts.items())


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
    doc = parts_of(function)
    arguments = items(doc.get("Args", ""))
    special = {key: text for key, text in arguments.items() if key not in SHARED}
    lines = [f"### `{name}`", f"```text\n{signature(name, function)}\n```", plain(doc[""])]
    if (result := result_class(name)) is not None:
        lines.append(f"Returns [`{result}`](#{result.lower()}).")
    if special:
        lines.append(bullets(special))
    if "Raises" in doc:
        lines.append("Raises:\n\n" + bullets(items(doc["Raises"])))
    return "\n\n".join(lines) + "\n"


def attributes(kind: type) -> dict[str, str]:
    """Return the attributes of a class, and those of records in them: ``queue.streams``."""
    hints = get_type_hints(kind) if is_dataclass(kind) else {}
    listed = {}
    for name, text in items(parts_of(kind).get("Attributes", "")).items():
        listed[name] = text
        record = hints.get(name)
        is_record = is_dataclass(record) and record.__name__ not in traceanalyzer.__all__
        if is_record and issubclass(kind, Result):
            listed |= {f"{name}.{key}": text for key, text in attributes(record).items()}
    return listed


def class_section(name: str) -> str:
    """Return the section of one class: description and attributes."""
    kind = getattr(traceanalyzer, name)
    lines, listed = [f"### `{name}`", plain(parts_of(kind)[""])], attributes(kind)
    return "\n\n".join([*lines, *([bullets(listed)] if listed else [])]) + "\n"


def shared() -> str:
    """Return the arguments that all questions have."""
    inputs = items(parts_of(traceanalyzer.gpu_idle)["Args"])["inputs"]
    return bullets({"inputs": inputs, **items(parts_of(Reading)["Attributes"])})


def names_of(*, classes: bool, errors: bool = False) -> list[str]:
    """Return public names: functions, classes, or errors."""
    things = {name: getattr(traceanalyzer, name) for name in traceanalyzer.__all__}
    types = [name for name, thing in things.items() if isinstance(thing, type)]
    failures = [name for name in types if issubclass(things[name], Exception)]
    if errors:
        return failures
    return [name for name in things if (name in types) == classes and name not in failures]


def result_class(function: str) -> str | None:
    """Return the documented class of the result of an analysis."""
    name = str(getattr(traceanalyzer, function).__annotations__.get("return")).rpartition(".")[2]
    known = name in traceanalyzer.__all__ and group_of(function) != READING
    return name if known else None


def group_of(function: str) -> str:
    """Return the group of a function: that of its command."""
    command = _COMMANDS.get(function, function.replace("_", "-"))
    if function in ENTRIES:
        command = ENTRIES[function].command.partition(" ")[0]
    listed = registry.commands()
    return listed[command].group if command in listed else READING


def group_page(group: str) -> Path:
    """Return the path of the page of a group."""
    return PAGE.with_name(f"python-{group.lower().replace(' ', '-')}.md")


def grouped() -> dict[str, tuple[list[str], list[str]]]:
    """Return functions and classes of each group; a class belongs to the first that returns it."""
    functions, classes = names_of(classes=False), names_of(classes=True)
    groups: dict[str, str] = {}
    for function in functions:
        if (result := result_class(function)) is not None:
            groups.setdefault(result, group_of(function))
    return {
        group: (
            [name for name in functions if group_of(name) == group],
            [name for name in classes if groups.get(name, READING) == group],
        )
        for group in (*GROUPS, READING)
    }


def overview() -> str:
    """Return the list of all functions and the arguments that all questions have."""
    rows = ["| group | functions |", "|---|---|"]
    for group, (functions, _) in grouped().items():
        page = group_page(group).name
        links = ", ".join(f"[`{name}`]({page}#{name})" for name in functions)
        rows.append(f"| [{group}]({page}) | {links} |")
    common = "## Arguments of all questions\n\nThey are `...` in the signatures.\n"
    return "\n".join(["## All functions", "", *rows, "", common, shared(), ""])


def group_text(group: str, functions: list[str], classes: list[str]) -> str:
    """Return the page of a group."""
    head = f"# Python API: {group}\n\n{_GENERATED}\n\n"
    head += "Examples, all functions, and the arguments `...`: [Python API](python.md).\n"
    parts = [head, "## Functions\n", *map(function_section, functions)]
    parts += ["## Classes\n", *map(class_section, classes)]
    if group == READING:
        errors = names_of(classes=True, errors=True)
        texts = {name: parts_of(getattr(traceanalyzer, name))[""] for name in errors}
        parts += ["## Errors\n", bullets(texts) + "\n"]
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    """Return the text of each page; that of the first is the text written by hand and the list."""
    texts = {PAGE: PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "\n" + overview()}
    for group, (functions, classes) in grouped().items():
        if functions:
            texts[group_page(group)] = group_text(group, functions, classes)
    return texts


def main() -> None:
    """Write all pages, and remove those of former groups."""
    texts = pages()
    for path in {*PAGE.parent.glob("python-*.md")} - texts.keys():
        path.unlink()
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
