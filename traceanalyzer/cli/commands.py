"""Commands built from the registry, and the defaults of their options.

Defaults are in ``traceanalyzer.toml``, or ``[tool.traceanalyzer]`` of a project.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import Field, fields
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from inspect import formatannotation
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

import click

from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import AnalyzerOptions
from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import (
    AliasedOption,
    Decorator,
    plotting,
    reading,
    with_options,
    writing,
)
from traceanalyzer.units import parse_bytes, parse_ns

# click wraps help with it: names of rules and options have hyphens, at which no line breaks
TextWrapper.wordsep_re = TextWrapper.wordsep_simple_re

#: Options that may have a default; the others belong to one call.
WITH_DEFAULT = ("library-name", "color", "workers", "top")
_DEFAULTS = {"traceanalyzer.toml": (), "pyproject.toml": ("tool", "traceanalyzer")}


def defaults(command: click.Command) -> dict[str, Any]:
    """Return the defaults of a command by the names of its parameters.

    Raises:
        click.UsageError: the file has another key or type.
    """
    try:
        folder = Path.cwd()
    except OSError:  # it was removed
        return {}
    given = {f"--{name}": value for name, value in _given(folder).items()}
    return {
        str(option.name): [*map(str, given[flag])] if option.multiple else str(given[flag][0])
        for option in command.params
        for flag in option.opts
        if flag in given and isinstance(option, click.Option)
    }


@cache
def _given(folder: Path) -> dict[str, list[str | int]]:
    """Return the values of the nearest file with defaults, in a folder or one above it."""
    for place in (folder, *folder.parents):
        for name, keys in _DEFAULTS.items():
            path = place / name
            if (table := _table(path, keys)) is not None:
                return {key: _values(path, key, value) for key, value in table.items()}
    return {}


def _table(path: Path, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the defaults in a file; None if it has none, or if it is not readable."""
    try:
        text = path.read_bytes()
    except OSError:
        return None
    import tomllib

    try:
        table: Any = tomllib.loads(text.decode())
    except ValueError as error:
        if keys:  # the file of another tool
            return None
        raise click.UsageError(f"{path}: {error}") from None
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None


def _values(path: Path, key: str, value: object) -> list[str | int]:
    if key not in WITH_DEFAULT:
        known = ", ".join(WITH_DEFAULT)
        raise click.UsageError(f"{path}: {key!r} has no default here; known: {known}")
    given = value if isinstance(value, list) and key == "library-name" else [value]
    values = [one for one in given if isinstance(one, str | int)]
    if not values or len(values) < len(given):
        raise click.UsageError(f"{path}: {key} must be a text or a number")
    return values


#: Former names of commands, still accepted.
_RENAMED_COMMANDS = {"api": "cuda-api"}

#: Placeholders of options that take a file; every argument is a file.
_FILES = ("FILE", "FOLDER", "PATH", "OTHER", "BASE", "OUT")

#: Value types by annotation of the field; other values are text.
_TYPES = {"int": int, "float": float}
_PARSED: dict[str, tuple[Callable[[str, str], int], str]] = {
    "time": (parse_ns, "ns"),
    "bytes": (parse_bytes, "B"),
}


class Commands(click.Group):
    """The commands of the registry, imported on use.

    Files in place of a command are arguments of ``diagnose``.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, sorted."""
        return sorted({*registry.commands(), *_of_other_packages()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command by its name or former name."""
        name = _RENAMED_COMMANDS.get(cmd_name, cmd_name)
        entry = registry.commands().get(name)
        if entry is None and name in _of_other_packages():
            entry = registry.entry(name.replace("-", "_"))
        if entry is None:
            return None
        command = _command(entry)
        command.context_settings = {**command.context_settings, "default_map": defaults(command)}
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument; ``diagnose`` if it is a file or folder."""
        name = args[0]
        known = [*registry.commands(), *_RENAMED_COMMANDS]
        if name in known or name.startswith("-") or name in _of_other_packages():
            return super().resolve_command(ctx, args)
        if os.path.exists(name) or "." in name or os.sep in name:  # noqa: PTH110 - a name
            return "diagnose", self.get_command(ctx, "diagnose"), args
        close = get_close_matches(name, [*known, *_of_other_packages()], n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise click.UsageError(f"{name!r} is not a command, a file or a folder.{hint}", ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete commands, otherwise files."""
        from click.shell_completion import CompletionItem

        return super().shell_complete(ctx, incomplete) or [CompletionItem(incomplete, "file")]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the groups of commands of ``--help`` without importing them."""
        rows = [(one.group, name, one.summary) for name, one in registry.commands().items()]
        rows += [("Other packages", name, text) for name, text in _of_other_packages().items()]
        width = max(len(name) for _, name, _ in rows)
        for group in dict.fromkeys((*registry.GROUPS, *(group for group, _, _ in rows))):
            with formatter.section(group):
                listed = [(f"{name:{width}}", text) for one, name, text in rows if one == group]
                formatter.write_dl(listed)


def all_commands() -> dict[str, click.Command]:
    """Return every built-in command by its name, for the reference."""
    return {name: _command(entry) for name, entry in sorted(registry.commands().items())}


def _of_other_packages() -> dict[str, str]:
    """Return the commands of other packages with the names of the packages."""
    return {name.replace("_", "-"): text for name, text in registry.plugin_names().items()}


def _command(entry: registry.Command) -> click.Command:
    if isinstance(entry, registry.Entry) and not entry.cli:
        result = command(entry)
    else:
        result = getattr(import_module(f"traceanalyzer.cli.{entry.cli}"), entry.name)
        result.short_help = entry.summary
    lines = (f"  traceanalyzer {entry.command} {arguments}" for arguments in entry.examples)
    result.epilog = "\n".join(("\b", "Examples:", *lines))
    return completing(result)


def command(entry: registry.Entry) -> click.Command:
    """Return the command of an analyzer: its options, then the shared ones."""
    options = entry.options_class()

    def run(paths: tuple[str, ...], **rest: Any) -> None:
        answer(entry.function(), paths, **rest)

    paths = click.argument("paths", nargs=-1, required=True, metavar="PATH...")
    drawn = plotting(entry.plot or "the charts")
    run = with_options(paths, analyzer_options(options), drawn, reading, writing)(run)
    return click.command(entry.command, short_help=entry.summary, help=options.__doc__)(run)


def analyzer_options(
    options: type[AnalyzerOptions], *, skip: Collection[str] = (), only: Collection[str] = ()
) -> Decorator:
    """Add an option for each field of an options class, or for some of them."""
    chosen = [
        one
        for one in fields(options)
        if one.metadata["option"].command_line
        and one.name not in skip
        and (not only or one.name in only)
    ]
    return with_options(*map(_option, chosen))


def _option(field: Field[Any]) -> Decorator:
    name, default, about = field.name, field.default, field.metadata["option"]
    annotation = field.type if isinstance(field.type, str) else formatannotation(field.type)
    flag = about.flag or "--" + name.replace("_", "-")
    settings: dict[str, Any] = {"help": about.help, "metavar": about.metavar, "cls": AliasedOption}
    if default is False:
        return click.option(flag, name, is_flag=True, help=about.help, cls=AliasedOption)
    if isinstance(default, tuple):
        return click.option(flag, name, multiple=True, **settings)
    default_text = about.default_text or default
    if about.unit:
        parse, unit = _PARSED[about.unit]
        settings["callback"] = lambda _, option, text: (
            None if text is None else parse(text, option.opts[0])
        )
        default_text = about.default_text or f"{default}{unit}"
    elif about.choices:
        settings["type"] = click.Choice(about.choices)
    elif annotation.removesuffix(" | None") in _TYPES:
        settings["type"] = _TYPES[annotation.removesuffix(" | None")]
        if about.minimum is not None and settings["type"] is int:
            settings["type"] = click.IntRange(min=int(about.minimum))
    if default is not None:
        settings |= {"default": default_text, "show_default": about.show_default}
    return click.option(flag, name, **settings)


def completing(command: click.Command) -> click.Command:
    """Return the command with shell completion of files where it takes files."""
    for parameter in command.params:
        if isinstance(parameter, click.Argument) or parameter.metavar in _FILES:
            # names are passed on unchecked: errors are reported by the reader
            parameter.type = click.Path(readable=False)
    return command
