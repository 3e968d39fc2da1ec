"""Commands made from the registry of analyzers."""

from collections.abc import Callable, Collection
from dataclasses import fields
from importlib import import_module
from inspect import formatannotation
from typing import Any

import click

from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import AnalyzerOptions, Option
from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Command, plotting, reading, writing
from traceanalyzer.units import parse_bytes, parse_ns

#: Commands that are written by hand, and a line on those that are no analyzer.
_BY_HAND = {
    "report": "One page for whatever a job left, what is wrong first.",
    "diagnose": "What is wrong, by every analysis that the files allow.",
    "convert": "To Parquet, to Chrome JSON for Perfetto, to SQLite.",
    **dict.fromkeys(("info", "memory", "diff", "py-spy-report", "flamegraph"), ""),
}

#: What options call a file in their help; arguments are files all of them.
_FILES = ("FILE", "PATH", "OTHER", "BASE", "OUT")

#: Types of values by the annotation of the field; other values are text.
_TYPES = {"int": int, "float": float}
_PARSED: dict[str, tuple[Callable[[str], int], str]] = {
    "time": (parse_ns, "ns"),
    "bytes": (parse_bytes, "B"),
}


class Commands(click.Group):
    """The commands of the registry and those written by hand, imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of all commands, sorted."""
        return sorted(_summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """One command by its name."""
        return _command(cmd_name) if cmd_name in _summaries() else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands in ``--help``, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_summaries().items()))


def all_commands() -> dict[str, click.Command]:
    """Every command by its name, for the reference."""
    return {name: _command(name) for name in sorted(_summaries())}


def _command(name: str) -> click.Command:
    if name in _BY_HAND:
        function = name.replace("-", "_")
        module = "job" if name in ("info", "diagnose", "report") else function
        found: click.Command = getattr(import_module(f"traceanalyzer.cli.{module}"), function)
        found.short_help = _summaries()[name]
    else:
        found = command(next(e for e in registry.ENTRIES.values() if e.command == name))
    return completing(found)


def _summaries() -> dict[str, str]:
    """Each command and what it answers, in a line."""
    listed = {one.command: one.summary for one in registry.ENTRIES.values() if one.summary}
    return {name: text for name, text in _BY_HAND.items() if text} | listed


def command(entry: registry.Entry) -> click.Command:
    """The command of an analyzer: its options, then those that all commands share."""
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
    """Adds an option for each field of an options class, or for some of them."""

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
    settings: dict[str, Any] = {"help": about.help, "metavar": about.metavar}
    if default is False:
        return click.option(flag, name, is_flag=True, help=about.help)
    if isinstance(default, tuple):
        return click.option(flag, name, multiple=True, **settings)
    shown = about.default_text or default
    if about.unit:
        parse, unit = _PARSED[about.unit]
        settings["callback"] = lambda _context, _option, text: None if text is None else parse(text)
        shown = about.default_text or f"{default}{unit}"
    elif about.choices:
        settings["type"] = click.Choice(about.choices)
    elif annotation.removesuffix(" | None") in _TYPES:
        settings["type"] = _TYPES[annotation.removesuffix(" | None")]
        if about.minimum is not None and settings["type"] is int:
            settings["type"] = click.IntRange(min=int(about.minimum))
    if default is not None:
        settings |= {"default": shown, "show_default": about.show_default}
    return click.option(flag, name, **settings)


def completing(command: click.Command) -> click.Command:
    """The command, for which shells offer files where it takes files."""
    for parameter in command.params:
        if isinstance(parameter, click.Argument) or parameter.metavar in _FILES:
            # a name is passed on as it is given: what is wrong with it is said later
            parameter.type = click.Path(readable=False)
    return command
