"""Commands built from the registry of analyzers."""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from difflib import get_close_matches
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

#: Commands with a function of their own.
_BY_HAND = (
    "report",
    "diagnose",
    "convert",
    "summarize",
    "baseline",
    "gate",
    "merge",
    "mcp",
    "query",
    "view",
    "demo",
    "info",
    "memory",
    "diff",
    "py-spy-report",
    "flamegraph",
)


@dataclass(frozen=True)
class _Listed:
    """A command in ``--help``: its group, summary, and the arguments of its examples."""

    group: str
    summary: str
    examples: tuple[str, ...]


#: Commands without an analyzer.
_WITHOUT_ANALYZER = {
    "diagnose": _Listed(
        "Start here",
        "Find performance problems and their cost.",
        ("run/", "run/ --fail-on critical"),
    ),
    "report": _Listed(
        "Start here",
        "Write one HTML page with all analyses, problems first.",
        ("run/ -o report.html", "run/ --since 10s --until 20s -o report.html"),
    ),
    "merge": _Listed(
        "Files",
        "Write all ranks to one timeline for Perfetto, clocks aligned.",
        ("run/ -o run.pftrace", "run/ --around straggler -o straggler.pftrace"),
    ),
    "view": _Listed(
        "Files",
        "Show all ranks in Perfetto, at the first finding.",
        ("run/", "run/ --around straggler --no-open"),
    ),
    "demo": _Listed(
        "Start here",
        "Write a small recording and its report, to try the program.",
        ("demo/", "demo/ --force"),
    ),
    "query": _Listed(
        "Files",
        "Select rows from the tables of all files with SQL.",
        (
            'run/ "select name, sum(dur) from events group by name order by 2 desc"',
            'run/ "select * from collectives" --rank 5 -o collectives.csv',
        ),
    ),
    "summarize": _Listed(
        "Files",
        "Write the measured parts of each rank, to combine them without the files.",
        ("run/ -o sums/", "run/ -o sums/ --shard 3/64"),
    ),
    "mcp": _Listed(
        "Files",
        "Serve the analyses as tools for language models (MCP).",
        ("--root runs/", "--root runs/ --root dumps/"),
    ),
    "gate": _Listed(
        "Start here",
        "Check a run against budgets, for CI.",
        ("budgets.toml run/", "budgets.toml run/ -o gate.md --junit gate.xml"),
    ),
    "baseline": _Listed(
        "Files",
        "Save runs by name, to compare later runs with baseline:NAME.",
        ("save main run/", "list"),
    ),
    "convert": _Listed(
        "Files",
        "Convert to Parquet, Chrome JSON (Perfetto) or SQLite.",
        ("run/ -o parquet/", "training.sqlite -o training.json.gz"),
    ),
}

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
    """The commands of the registry and the hand-written ones, imported on use.

    Files in place of a command are arguments of ``diagnose``.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, sorted."""
        return sorted(_listed())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command by its name or former name."""
        name = _RENAMED_COMMANDS.get(cmd_name, cmd_name)
        return _command(name) if name in _listed() else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument; ``diagnose`` if it is a file or folder."""
        name = args[0]
        known = [*_listed(), *_RENAMED_COMMANDS]
        if name in known or name.startswith("-"):
            return super().resolve_command(ctx, args)
        if os.path.exists(name):  # noqa: PTH110 - a name, not a Path
            return "diagnose", self.get_command(ctx, "diagnose"), args
        close = get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise click.UsageError(f"{name!r} is not a command, a file or a folder.{hint}", ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete commands, otherwise files."""
        from click.shell_completion import CompletionItem

        return super().shell_complete(ctx, incomplete) or [CompletionItem(incomplete, "file")]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the groups of commands of ``--help`` without importing them."""
        listed = _listed()
        width = max(map(len, listed))
        for group in registry.GROUPS:
            rows = [
                (f"{n:{width}}", one.summary) for n, one in listed.items() if one.group == group
            ]
            with formatter.section(group):
                formatter.write_dl(rows)


def all_commands() -> dict[str, click.Command]:
    """Return every command by its name, for the reference."""
    return {name: _command(name) for name in sorted(_listed())}


def _command(name: str) -> click.Command:
    if name in _BY_HAND:
        function = name.replace("-", "_")
        module = "job" if name in ("info", "diagnose", "report") else function
        result: click.Command = getattr(import_module(f"traceanalyzer.cli.{module}"), function)
        result.short_help = _listed()[name].summary
    else:
        result = command(next(e for e in registry.ENTRIES.values() if e.command == name))
    lines = (f"  traceanalyzer {name} {arguments}" for arguments in _listed()[name].examples)
    result.epilog = "\n".join(("\b", "Examples:", *lines))
    return completing(result)


def _listed() -> dict[str, _Listed]:
    """Return all commands by name, in the order of ``--help``."""
    entries = [one for one in registry.ENTRIES.values() if one.summary]
    analyses = {one.command: _Listed(one.group, one.summary, one.examples) for one in entries}
    return _WITHOUT_ANALYZER | analyses


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
