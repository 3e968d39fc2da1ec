"""Write ``docs/commands.md`` from the commands of :mod:`traceanalyzer.cli` (``make docs``).

Commands, arguments, options and defaults come from click, so that a new command needs no line here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from traceanalyzer.cli.commands import all_commands

#: All commands by name.
COMMANDS = all_commands()

PAGE = Path(__file__).with_name("commands.md")

INTRODUCTION = """\
# Commands

<!-- Generated from the options of analyzers by `make docs`; edit those, not this page. -->

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
    common = shared()
    rows = options(command)
    special = [text for key, text in rows.items() if common.get(key) != text]
    others = code(*(key for key, text in rows.items() if common.get(key) == text))
    page = PAGE.with_name(f"{name}.md")
    parts = [f"## `{name}`", f"```text\n{usage(name, command)}\n```", described(command)]
    if special:
        parts.append("\n".join([_HEAD, *special]))
    if others:
        parts.append(f"{'And' if special else 'Options:'} {others}, as [above](#shared-options).")
    if page.exists():
        parts.append(f"Columns and definitions: [{page.name}]({page.name}).")
    if isinstance(command, click.Group):
        parts += [f"#{section(f'{name} {one}', sub)}" for one, sub in command.commands.items()]
    return "\n\n".join(parts) + "\n"


def shared_section() -> str:
    """Return the section of the options that most commands have."""
    return "\n".join(["## Shared options", "", _HEAD, *shared().values(), ""])


def overview() -> str:
    """Return all commands, one line each."""
    rows = [
        f"| [`{name}`](#{name}) | {cell(command.get_short_help_str(200))} |"
        for name, command in COMMANDS.items()
    ]
    return "\n".join(["| command | answers |", "|---|---|", *rows, ""])


def page() -> str:
    """Return the whole page."""
    sections = [section(name, command) for name, command in COMMANDS.items()]
    return "\n".join([INTRODUCTION, overview(), shared_section(), *sections])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
