"""Write ``docs/commands.md`` and a page per group, ``commands-GROUP.md`` (``make docs``).

Groups, commands, arguments, options and defaults come from the package, so that a new command needs
no line here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.registry import GROUPS
from traceanalyzer.cli import commands

#: All commands by name.
COMMANDS = commands.all_commands()

PAGE = Path(__file__).with_name("commands.md")
_GENERATED = "<!-- Generated from the options by `make docs`; edit those, not this page. -->"

INTRODUCTION = f"""\
# Commands

{_GENERATED}

`traceanalyzer COMMAND --help` prints the same in a terminal, `traceanalyzer --version` the version.
Results go to standard output, progress and notes to standard error. Terms: [glossary](glossary.md).

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | unusable input or output: one line on standard error, and no partial file |
| 2 | wrong command line |
| 3 | success, but `--fail-on` or `--fail-on-regression` applies, or a budget is violated |
| 130, 143 | interrupted (Ctrl-C), terminated: partial output is removed |
"""

_HEAD = "| option | value | default | effect |\n|---|---|---|---|"


def cell(text: str) -> str:
    """Return text for a table cell: one line, without markup."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace("<", "&lt;")
    for mark in "|*_[]":
        plain = plain.replace(mark, "\\" + mark)
    return plain


def code(*texts: str) -> str:
    """Return words as code; a bar is escaped, because it would end the table cell."""
    return ", ".join(
        f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"
        for text in texts
    )


def value(option: click.Option) -> str:
    """Return the value of the option: its choices, otherwise its placeholder; empty for a flag."""
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice) and not option.metavar:
        return code(*option.type.choices)
    return code(option.metavar or option.type.name.upper())


def default(option: click.Option) -> str:
    """Return the default; empty if the option is off or unset by default."""
    raw = option.default
    known = isinstance(raw, (str, int, float)) and not isinstance(raw, bool)
    return code(str(raw)) if known and not option.is_flag else ""


def row(option: click.Option) -> str:
    """Return one option as a table row."""
    names = code(*option.opts, *option.secondary_opts)
    meaning = cell(option.help or "") + (" Required." if option.required else "")
    return f"| {names} | {value(option)} | {default(option)} | {meaning} |"


def options(command: click.Command) -> dict[str, str]:
    """Return the row of each option, by its last name."""
    visible = [option for option in command.params if isinstance(option, click.Option)]
    return {option.opts[-1]: row(option) for option in visible if not option.hidden}


def shared() -> dict[str, str]:
    """Return the options that are identical in more than half of the commands."""
    count = Counter(item for command in COMMANDS.values() for item in options(command).items())
    return dict(item for item, n in count.items() if 2 * n > len(COMMANDS))


def described(command: click.Command) -> str:
    """Return the help text of a command with unwrapped paragraphs."""
    paragraphs = (command.help or "").replace("\b", "").strip().split("\n\n")
    return "\n\n".join(cell(paragraph) for paragraph in paragraphs)


def usage(name: str, command: click.Command) -> str:
    """Return the usage in one line."""
    parameters = [one for one in command.params if isinstance(one, click.Argument)]
    arguments = [one.metavar or str(one.name).upper() for one in parameters]
    return " ".join(["traceanalyzer", name, "[OPTIONS]", *arguments])


def section(name: str, command: click.Command) -> str:
    """Return the section of one command."""
    common, rows = shared(), options(command)
    special = [text for key, text in rows.items() if common.get(key) != text]
    page = PAGE.with_name(f"{name}.md")
    parts = [f"## `{name}`", f"```text\n{usage(name, command)}\n```", described(command)]
    if special:
        parts.append("\n".join([_HEAD, *special]))
    parts += shared_by(rows)
    if page.exists():
        parts.append(f"Columns and definitions: [{page.name}]({page.name}).")
    if isinstance(command, click.Group):
        parts += [f"#{section(f'{name} {one}', sub)}" for one, sub in command.commands.items()]
    return "\n\n".join(parts) + "\n"


def shared_by(rows: dict[str, str]) -> list[str]:
    """Return a sentence about the shared options of a command, or nothing."""
    common = shared()
    accepted = [key for key, text in rows.items() if common.get(key) == text]
    missing = [key for key in common if key not in rows]
    link = "[shared options](commands.md#shared-options)"
    if not accepted:
        return []
    if len(missing) < len(accepted):
        return [f"It has all {link}{' except ' if missing else ''}{code(*missing)}."]
    return [f"It has these {link}: {code(*accepted)}."]


def shared_section() -> str:
    """Return the section of the options that most commands have."""
    return "\n".join(["## Shared options", "", _HEAD, *shared().values(), ""])


def group_page(group: str) -> Path:
    """Return the path of the page of a group."""
    return PAGE.with_name(f"commands-{group.lower().replace(' ', '-')}.md")


def grouped() -> dict[str, list[str]]:
    """Return the commands of each group, sorted."""
    groups = {name: listed.group for name, listed in registry.commands().items()}
    return {group: [name for name in COMMANDS if groups[name] == group] for group in GROUPS}


def overview(group: str, names: list[str]) -> str:
    """Return the commands of a group, one line each."""
    target = group_page(group).name
    rows = [
        f"| [`{name}`]({target}#{name}) | {cell(COMMANDS[name].get_short_help_str(200))} |"
        for name in names
    ]
    return "\n".join([f"## {group}", "", "| command | answers |", "|---|---|", *rows, ""])


def pages() -> dict[Path, str]:
    """Return the text of each page."""
    groups = {group: names for group, names in grouped().items() if names}
    overviews = [overview(group, names) for group, names in groups.items()]
    texts = {PAGE: "\n".join([INTRODUCTION, *overviews, shared_section()])}
    for group, names in groups.items():
        head = f"# Commands: {group}\n\n{_GENERATED}\n\n"
        head += "Exit codes and shared options: [commands](commands.md).\n"
        sections = [section(name, COMMANDS[name]) for name in names]
        texts[group_page(group)] = "\n".join([head, *sections])
    return texts


def main() -> None:
    """Write all pages, and remove those of former groups."""
    texts = pages()
    for path in {*PAGE.parent.glob("commands-*.md")} - texts.keys():
        path.unlink()
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
