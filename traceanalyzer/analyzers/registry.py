"""The registry of all commands: analyzers, and tools that write or serve.

``commands.toml`` has the list. Commands, Python functions, public names, methods of ``Trace``,
sections of a report and the reference are generated from it. It contains names and texts only:
modules are imported on use.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceanalyzer.errors import PluginError
from traceanalyzer.files import packaged

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

    from traceanalyzer.analyzers.base import Analyzer, AnalyzerOptions


#: Groups of commands, in the order of ``--help``.
GROUPS = ("Start here", "Time", "Communication", "Memory", "Code", "Files")

#: Replays the run for the gains of findings; no section of a report.
REPLAY = "what_if_replay"
#: Analyzers whose parts of the same inputs others use in a report.
COMPANIONS = {"comm_outliers": "memory_usage"}

#: Other packages register an :class:`Entry` under this entry-point group, by its name.
ENTRY_POINTS = "traceanalyzer.analyzers"


@dataclass(frozen=True)
class Command:
    """Registry entry of a command, and of the public names that belong to it.

    Attributes:
        name: name of the command, with underscores.
        summary: one line for the list of commands.
        group: group in the list of commands, one of :data:`GROUPS`.
        examples: arguments of two example command lines, for the help of the command.
        module: module or package of the command; default: ``traceanalyzer.tools.NAME``.
        functions: public functions.
        result: public result class, or several separated by spaces; ``file:Name`` if it is in a
            module of the package ``module``.
        method: whether the functions are methods of a trace too.
        command: name on the command line; default: ``name`` with hyphens.
        cli: module of the command in ``traceanalyzer.cli``; default: ``name``.
        code: module of the public functions; default: ``module``.
    """

    name: str
    summary: str = ""
    group: str = "Files"
    examples: tuple[str, ...] = ()
    module: str = ""
    functions: tuple[str, ...] = ()
    result: str | None = None
    method: bool = False
    command: str = ""
    cli: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        self._set(module=self.module or f"traceanalyzer.tools.{self.name}")
        self._set(code=self.code or self.module)
        self._set(command=self.command or self.name.replace("_", "-"), cli=self.cli or self.name)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def public_names(self) -> dict[str, str]:
        """Return the module of each public name."""
        classes = (one.rpartition(":") for one in (self.result or "").split())
        modules = {name: f"{self.module}.{file}".rstrip(".") for file, _, name in classes}
        return {**dict.fromkeys(self.functions, self.code), **modules}


@dataclass(frozen=True)
class Entry(Command):
    """Registry entry of an analyzer.

    The ``__init__.py`` of the analyzer's package contains the options class and imports nothing
    heavy, to keep ``--help`` fast; its ``compute.py`` contains the public function and the
    :class:`~traceanalyzer.analyzers.base.Analyzer`, named like the function in capitals. A small
    analyzer may be one file.

    Attributes:
        name: name of the Python function.
        module: package of the analyzer; default: ``traceanalyzer.analyzers.NAME``.
        functions: further public functions.
        result: public result class, in ``MODULE.result`` if no file is given; default: like the
            name. Empty for none.
        cli: module of a command that is written by hand.
        section: heading in a report, or None for an analyzer that is not in reports.
        plot: content of ``--plot``, or None for a command without this option.
        code: module of analyzer and functions; default: ``MODULE.compute``.
        options: module and name of the options class; default: ``MODULE:Options``.
        hidden: whether the analyzer is only used by others, without a command or function.
        one_file: function, options, analyzer and result are all in ``module``.
        variants: analyzers that are options of the command (``memory --oom``) with a function each
            (``memory_oom``), in modules of the package, and their sections in a report, or "".
        helpers: hidden analyzers in modules of the package.
        package: package that adds the analyzer; empty for a built-in one.
    """

    group: str = "Time"
    examples: tuple[str, ...] = ("run/", "run/ --rank 5 --top all")
    method: bool = True
    section: str | None = None
    plot: str | None = None
    options: str = ""
    hidden: bool = False
    one_file: bool = False
    variants: Mapping[str, str] = field(default_factory=dict)
    helpers: tuple[str, ...] = ()
    package: str = ""

    def __post_init__(self) -> None:
        module = self.module or f"traceanalyzer.analyzers.{self.name}"
        code, file = ("", "") if self.one_file else (".compute", "result:")
        titled = "".join(map(str.capitalize, self.name.split("_")))
        result = titled if self.result is None else self.result
        self._set(
            module=module,
            functions=() if self.hidden else (self.name, *self.functions),
            result=result if ":" in result else result and file + result,
            command=self.command or self.name.replace("_", "-"),
            code=self.code or f"{module}{code}",
            options=self.options or f"{module}:Options",
        )

    def expanded(self) -> Iterator[Entry]:
        """Yield the entry, and those of the other analyzers of its package."""
        yield self
        for name, section in (*self.variants.items(), *((name, "") for name in self.helpers)):
            yield Entry(
                f"{self.name}_{name}",
                section=section or None,
                command=f"{self.command} --{name}" if name in self.variants else "",
                module=self.module,
                code=f"{self.module}.{name}",
                options=f"{self.module}:{name.capitalize()}Options",
                hidden=name in self.helpers,
                result="",
            )

    def analyzer(self) -> Analyzer[Any, Any, Any]:
        """Import and return the analyzer."""
        analyzer: Analyzer[Any, Any, Any] = getattr(import_module(self.code), self.name.upper())
        return analyzer

    def options_class(self) -> type[AnalyzerOptions]:
        """Import and return the options class."""
        module, _, name = self.options.partition(":")
        options: type[AnalyzerOptions] = getattr(import_module(module), name)
        return options

    def function(self) -> Callable[..., Any]:
        """Import and return the public function."""
        function: Callable[..., Any] = getattr(import_module(self.code), self.name)
        return function


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a command in ``commands.toml``."""
    return {key: tuple(one) if isinstance(one, list) else one for key, one in values.items()}


_COMMANDS = packaged("analyzers/commands.toml")
#: Commands that write or serve.
TOOLS = tuple(Command(name, **_fields(values)) for name, values in _COMMANDS["tools"].items())
#: All built-in analyzers by name, in the order of a report.
ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for name, values in _COMMANDS["analyzers"].items()
    for entry in Entry(name, **_fields(values)).expanded()
}

#: Public names of all commands, with their modules.
NAMES = {
    name: module
    for entry in (*TOOLS, *ENTRIES.values())
    for name, module in entry.public_names().items()
}
#: Functions whose first argument is the inputs of one run.
METHODS = sorted(
    name for one in (*TOOLS, *ENTRIES.values()) if one.method for name in one.functions
)


def commands() -> dict[str, Command]:
    """Return the built-in commands by their names on the command line, in the order of the help."""
    entries = [entry for entry in ENTRIES.values() if entry.summary]
    return {one.command: one for one in (*TOOLS, *entries)}


def entry(name: str) -> Entry:
    """Return the entry of a built-in analyzer, or of one of another package.

    Raises:
        KeyError: there is none of this name.
        PluginError: another package has it, and cannot be loaded.
    """
    return ENTRIES.get(name) or _loaded(_entry_points()[name])


def public() -> tuple[Entry, ...]:
    """Return the built-in analyzers with a Python function."""
    return tuple(entry for entry in ENTRIES.values() if not entry.hidden)


def in_report() -> tuple[Entry, ...]:
    """Return the analyzers of a report, in order; those of other packages come last."""
    return tuple(entry for entry in (*ENTRIES.values(), *plugins()) if entry.section)


# --- analyzers of other packages -------------------------------------------------------------


def plugin_names() -> dict[str, str]:
    """Return the analyzers of other packages and the packages, without an import."""
    return {name: point.dist.name if point.dist else "" for name, point in _entry_points().items()}


@cache
def plugins() -> tuple[Entry, ...]:
    """Import and return the analyzers of other packages; warn once of each that is unusable."""
    loaded = []
    for point in _entry_points().values():
        try:
            loaded.append(_loaded(point))
        except PluginError as error:
            warnings.warn(str(error), stacklevel=2)
    return tuple(loaded)


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of other packages by name; built-in names win."""
    if not _is_any_recorded():
        return {}
    from importlib.metadata import entry_points  # takes as long as the rest of --help

    points = sorted(entry_points(group=ENTRY_POINTS), key=lambda one: (one.name, one.value))
    used = NAMES.keys() | ENTRIES.keys() | {one.name for one in TOOLS}
    return {one.name: one for one in reversed(points) if one.name not in used}


def _is_any_recorded() -> bool:
    """Whether an installed package may have entry points of the group, by their files."""
    if any(place and Path(place).is_file() for place in sys.path):  # packages in an archive
        return True
    files = (file for place in sys.path for file in Path(place).glob("*-info/entry_points.txt"))
    try:
        return any(ENTRY_POINTS.encode() in file.read_bytes() for file in files)
    except OSError:  # a file that cannot be read: importlib.metadata decides
        return True


def _loaded(point: EntryPoint) -> Entry:
    """Return the entry of an entry point; its module and those that it names must be importable.

    Raises:
        PluginError: something is missing, or raises an error.
    """
    package = point.dist.name if point.dist else point.value
    try:
        entry = point.load()
        if not isinstance(entry, Entry) or entry.name != point.name:
            raise TypeError(f"{point.value} is not an Entry of this name")
        entry.options_class()()
        entry.function()
        entry.analyzer()
    except Exception as error:  # noqa: BLE001 - a third-party module may raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise PluginError(f"{point.name} of {package} cannot be loaded: {reason}") from None
    return replace(entry, package=package)
