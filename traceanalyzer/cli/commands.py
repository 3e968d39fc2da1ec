"""Commands built from the registry of analyzers."""

from collections.abc import Callable, Collection
from dataclasses import fields
from importlib import import_module
from inspect import formatannotation
from typing import Any

import click

from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import AnalyzerOptions, Option
from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import (
    AliasedOption,
    Command,
    plotting,
    reading,
    writing,
)
from traceanalyzer.units import parse_bytes, parse_ns

#: Commands with a function of their own, and the summary of those without an analyzer.
_BY_HAND = {
    "report": "Write one HTML page with all analyses, problems first.",
    "diagnose": "Find performance problems and their cost.",
    "convert": "Convert to Parquet, Chrome JSON (Perfetto) or SQLite.",
    **dict.fromkeys(("info", "memory", "diff", "py-spy-report", "flamegraph"), ""),
}

#: Former names of commands, still accepted.
_RENAMED_COMMANDS = {"api": "cuda-api"}

#: Placeholders of options that take a file; every argument is a file.
_FILES = ("FILE", "PATH", "OTHER", "BASE", "OUT")

#: Value types by annotation of the field; other values are text.
_TYPES = {"int": int, "float": float}
_PARSED: dict[str, tuple[Callable[[str], int], str]] = {
    "time": (parse_ns, "ns"),
    "bytes": (parse_bytes, "B"),
}


class Commands(click.Group):
    """The commands of the registry and the hand-written ones, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, sorted."""
        return sorted(_summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command by its name or former name."""
        name = _RENAMED_COMMANDS.get(cmd_name, cmd_name)
        return _command(name) if name in _summaries() else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands of ``--help`` without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_summaries().items()))


def all_commands() -> dict[str, click.Command]:
    """Return every command by its name, for the reference."""
    return {name: _command(name) for name in sorted(_summaries())}


def _command(name: str) -> click.Command:
    if name in _BY_HAND:
        function = name.replace("-", "_")
        module = "job" if name in ("info", "diagnose", "report") else function
        result: click.Command = getattr(import_module(f"traceanalyzer.cli.{module}"), function)
        result.short_help = _summaries()[name]
    else:
        result = command(next(e for e in registry.ENTRIES.values() if e.command == name))
    return completing(result)


def _summaries() -> dict[str, str]:
    """Return the one-line summary of each command."""
    listed = {one.command: one.summary for one in registry.ENTRIES.values() if one.summary}
    return {name: text for name, text in _BY_HAND.items() if text} | listed


def command(entry: registry.Entry) -> click.Command:
    """Return the command of an analyzer: its options, then the shared ones."""
    options = entry.options_class()

    def run(paths: tuple[str, ...], **rest: Any) -> None:
        answer(entry.function(), paths, **rest)

    for decorate in (
        writing,
        reading,
        plotting(entry.plot or "the charts"),
        analyzer_options(options),
    ):
        run = decorate(run)
    run = click.argument("paths", nargs=-1, required=True, metavar="PATH...")(run)
    return click.command(entry.command, short_help=entry.summary, help=options.__doc__)(run)


def analyzer_options(
    options: type[AnalyzerOptions], *, skip: Collection[str] = (), only: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Add an option for each field of an options class, or for some of them."""

    def add(command: Command) -> Command:
        for item in reversed(fields(options)):
            name, about = item.name, item.metadata["option"]
            annotation = item.type if isinstance(item.type, str) else formatannotation(item.type)
            if about.command_line and name not in skip and (not only or name in only):
                command = _option(name, annotation, item.default, about)(command)
        return command

    return add


def _option(
    name: str, annotation: str, default: Any, about: Option
) -> Callable[[Command], Command]:
    flag = about.flag or "--" + name.replace("_", "-")
    settings: dict[str, Any] = {"help": about.help, "metavar": about.metavar, "cls": AliasedOption}
    if default is False:
        return click.option(flag, name, is_flag=True, help=about.help, cls=AliasedOption)
    if isinstance(default, tuple):
        return click.option(flag, name, multiple=True, **settings)
    default_text = about.default_text or default
    if about.unit:
        parse, unit = _PARSED[about.unit]
        settings["callback"] = lambda _context, _option, text: None if text is None else parse(text)
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
