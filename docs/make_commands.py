"""Writes ``docs/commands.md`` from the commands of :mod:`traceanalyzer.cli`; ``make docs`` runs it.

Commands, arguments, options and defaults are asked of click itself, so that a new command needs no
line here.
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

<!-- Derived from the options of analyzers by `make docs`; edit these, not this page. -->

`traceanalyzer COMMAND --help` prints the same in a terminal, `traceanalyzer --version` the version.
Data goes to standard output, progress and remarks to standard error.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | unusable input or output: one line on standard error, and no file half-written |
| 2 | a wrong command line |
| 3 | done, and what was to fail the run (`--fail-on`, `--fail-on-regression`) was found |
| 130, 143 | interrupted (Ctrl-C), terminated: what was being written is removed |
"""

_HEAD = "| option | value | default | what it does |\n|---|---|---|---|"


def cell(text: str) -> str:
    """Text of a table's cell, on one line, nothing of it read as markup."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace("<", "&lt;")
    for mark in "|*_[]":
        plain = plain.replace(mark, "\\" + mark)
    return plain


def code(*words: str) -> str:
    """Words as code; a bar in one would end the table's cell."""
    return ", ".join(
        f"<code>{word.replace('|', '&#124;')}</code>" if "|" in word else f"`{word}`"
        for word in words
    )


def value(option: click.Option) -> str:
    """What follows the option: its choices, else its placeholder; nothing after a flag."""
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice) and not option.metavar:
        return code(*option.type.choices)
    return code(option.metavar or option.type.name.upper())


def default(option: click.Option) -> str:
    """The default; empty for what is off, or unset, without the option."""
    given = option.default
    known = isinstance(given, (str, int, float)) and not isinstance(given, bool)
    return code(str(given)) if known and not option.is_flag else ""


def row(option: click.Option) -> str:
    """One option as a row of a table."""
    names = code(*option.opts, *option.secondary_opts)
    meaning = cell(option.help or "") + (" Required." if option.required else "")
    return f"| {names} | {value(option)} | {default(option)} | {meaning} |"


def options(command: click.Command) -> dict[str, str]:
    """Each option's row, by its last name."""
    found = [option for option in command.params if isinstance(option, click.Option)]
    return {option.opts[-1]: row(option) for option in found if not option.hidden}


def shared() -> dict[str, str]:
    """Options that are the same, word by word, in more than half of the commands."""
    count = Counter(item for command in COMMANDS.values() for item in options(command).items())
    return dict(item for item, n in count.items() if 2 * n > len(COMMANDS))


def described(command: click.Command) -> str:
    """A command's help text, its paragraphs unwrapped; what is code there is code here."""
    paragraphs = (command.help or "").replace("\b", "").strip().split("\n\n")
    return "\n\n".join(cell(paragraph) for paragraph in paragraphs)


def usage(name: str, command: click.Command) -> str:
    """The command line in one line."""
    found = [option for option in command.params if isinstance(option, click.Argument)]
    arguments = [one.metavar or str(one.name).upper() for one in found]
    return " ".join(["traceanalyzer", name, "[OPTIONS]", *arguments])


def section(name: str, command: click.Command) -> str:
    """One command."""
    common = shared()
    rows = options(command)
    own = [text for key, text in rows.items() if common.get(key) != text]
    others = code(*(key for key, text in rows.items() if common.get(key) == text))
    page = PAGE.with_name(f"{name}.md")
    parts = [f"## `{name}`", f"```text\n{usage(name, command)}\n```", described(command)]
    if own:
        parts.append("\n".join([_HEAD, *own]))
    if others:
        parts.append(f"{'And' if own else 'Options:'} {others}, as [above](#shared-options).")
    if page.exists():
        parts.append(f"Columns and definitions: [{page.name}]({page.name}).")
    return "\n\n".join(parts) + "\n"


def shared_section() -> str:
    """The options that most commands have."""
    return "\n".join(["## Shared options", "", _HEAD, *shared().values(), ""])


def overview() -> str:
    """All commands, a line each."""
    rows = [
        f"| [`{name}`](#{name}) | {cell(command.get_short_help_str(200))} |"
        for name, command in COMMANDS.items()
    ]
    return "\n".join(["| command | answers |", "|---|---|", *rows, ""])


def page() -> str:
    """The whole page."""
    sections = [section(name, command) for name, command in COMMANDS.items()]
    return "\n".join([INTRODUCTION, overview(), shared_section(), *sections])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
