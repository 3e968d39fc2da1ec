"""Options shared by several commands, and their parsed values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

import click

from traceanalyzer.cli import output
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.render import BINARY, FORMS, SUFFIXES, TOP, Form, form_of, render
from traceanalyzer.render.text import shorten, without
from traceanalyzer.units import parse_ns

if TYPE_CHECKING:
    from traceanalyzer.result import Result

ALL, AUTO = "all", "auto"
_PICTURES = ("svg", "png")
Command = Callable[..., None]
Decorator = Callable[[Command], Command]

#: Former spellings of options, still accepted.
RENAMED_OPTIONS = {
    "--format": "--input-format",
    "--pattern": "--comm-pattern",
    "--reverse": "--inverted",
}


class AliasedOption(click.Option):
    """An option that also accepts its former spelling, which help and completion omit."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add the option with its former spelling to the parser."""
        names = self.opts
        self.opts = names + [old for old, new in RENAMED_OPTIONS.items() if new in names]
        super().add_to_parser(parser, ctx)
        self.opts = names


def _duration(_context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    return None if text is None else parse_ns(text, option.opts[0])


def _input_format(context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    """Return the name of an input format; that of an output format is an error.

    ``help`` prints the formats, and the command ends.
    """
    if name == "help":
        from traceanalyzer.run.find import known_formats

        formats = known_formats()
        width = max(map(len, formats))
        click.echo("\n".join(f"{one:{width}}  {text}" for one, text in formats.items()))
        context.exit()
    form = "md" if name == "markdown" else name
    if form in FORMS:
        raise OptionError(
            f"{name!r} is an output format: use --to {form} (--format and --input-format are about "
            "the input)"
        )
    return name


def _temporary(_context: click.Context, _option: click.Parameter, folder: str | None) -> None:
    """Set the folder for temporary files of this process and its workers."""
    if folder:
        import tempfile

        os.environ["TMPDIR"] = tempfile.tempdir = folder


#: Most digits of a number of rows, and most characters of a wrong one in its error.
_ROW_DIGITS, _CHARS = 9, 40


def rows(_context: click.Context, _option: click.Parameter, text: str | None) -> int | str | None:
    """Return a number of rows above 0, or ``all``; None without the option."""
    if text in (None, ALL):
        return text
    if not text.isdecimal() or len(text) > _ROW_DIGITS or int(text) == 0:
        text = shorten(text, _CHARS)
        raise click.BadParameter(f"{text!r} is not a number of rows; use for example 20, or {ALL}")
    return int(text)


def _workers(_context: click.Context, _option: click.Parameter, text: str) -> int | str:
    if text == AUTO:
        return text
    if not text.isdecimal() or int(text) == 0:
        raise click.BadParameter(f"{text!r} is not a number of processes; use 1 or more, or {AUTO}")
    return int(text)


#: Fields of :class:`ReadingOptions` that are no keywords of functions.
_OF_COMMAND = ("quiet", "dask", "scheduler", "scheduler_file")


@dataclass(frozen=True)
class ReadingOptions:
    """How input files are read.

    Attributes:
        format: the input format, or None to detect it by content.
        rank: only this rank of the inputs.
        assume_rank: the rank of a single file without one.
        since_ns: ignore events that end earlier, from the start of the trace.
        until_ns: ignore events that start at this time or later.
        quiet: no progress and no data-loss summary on standard error.
        workers: number of processes that read several files, or ``auto``.
        dask: read on a Dask cluster, a local one if no scheduler is given.
        scheduler: address of a running Dask scheduler.
        scheduler_file: its scheduler file.
    """

    format: str | None
    rank: int | None
    assume_rank: int | None
    since_ns: int | None
    until_ns: int | None
    quiet: bool
    workers: int | Literal["auto"] = 1
    dask: bool = False
    scheduler: str | None = None
    scheduler_file: str | None = None

    def __post_init__(self) -> None:
        both = self.since_ns is not None and self.until_ns is not None
        if both and self.since_ns >= self.until_ns:  # type: ignore[operator]
            raise OptionError("--since must be before --until")
        if self.scheduler and self.scheduler_file:
            raise OptionError("--scheduler and --scheduler-file exclude each other")

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of functions that read files."""
        return {name: value for name, value in asdict(self).items() if name not in _OF_COMMAND}

    @contextmanager
    def cluster(self) -> Iterator[Any]:
        """Connect to the Dask cluster; None without one.

        Raises:
            MissingExtra: Dask is not installed.
            OptionError: the scheduler does not answer.
        """
        if not (self.dask or self.scheduler or self.scheduler_file):
            yield None
            return
        from traceanalyzer.run.workers import connected

        with connected(self.scheduler, self.scheduler_file) as client:
            yield client


@dataclass(frozen=True)
class Writing:
    """Where and how a result is written.

    Attributes:
        output: a file, or None for standard output.
        force: overwrite existing files.
        to: the output format.
        top: rows per table, or None for all.
        plot: the file for the charts, or None for no plot.
        sort: columns to sort tables by, see :func:`~traceanalyzer.render.table.arranged`.
        columns: columns to keep, likewise.
        color: whether a table is coloured; None for a terminal only.
        table: the table of a CSV file, or None for the first with rows.
    """

    output: str | None
    force: bool
    to: Form
    top: int | None
    plot: str | None = None
    sort: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    color: bool | None = None
    table: str | None = None

    def check(self, *, junit: str | None = None) -> None:
        """Check that the files can be written, before any work is done.

        Args:
            junit: a further file, in JUnit XML.

        Raises:
            OptionError: the plot is not an .svg or .png file, or two files are the same.
            OutputError: a file exists and ``force`` is not set.
        """
        if self.table is not None and self.to != "csv":
            raise OptionError("--table selects the table of --to csv; other formats have all")
        output.check(self.output, force=self.force, binary=self.to in BINARY)
        if self.plot is not None and form_of(self.plot) not in _PICTURES:
            raise OptionError(f"{self.plot}: unknown plot format; use .svg or .png")
        for flag, path in (("--plot", self.plot), ("--junit", junit)):
            if path is not None and path == self.output:
                raise OptionError(f"{path}: {flag} and --output need different files")
            output.check(path, force=self.force)

    def show(self, result: Result) -> None:
        """Render and write a result, and draw its charts if a plot is requested."""
        if self.sort or self.columns:
            from traceanalyzer.render.table import arranged

            result = arranged(result, sort=self.sort, columns=self.columns)
        color = self.to == "table" and output.is_colored(self.output, self.color)
        with without(output.input_folders() if self.to == "html" else ()):
            data = render(result, self.to, top=self.top, color=color, table=self.table)
        output.write(data, self.output, binary=self.to in BINARY, colored=color)
        form = form_of(self.plot) if self.plot else None
        if form is not None:
            if not (result.charts or result.timelines or result.occupancies):
                raise MissingData(
                    f"{self.plot}: nothing to plot: the data for a chart was not recorded; the "
                    "notes of the result name what to record"
                )
            output.write(render(result, form), self.plot, binary=form in BINARY)


_COLORS = {"auto": None, "always": True, "never": False}


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Return the names of a list separated by commas."""
    return tuple(name for one in (text or "").split(",") if (name := one.strip()))


#: ``--sort`` and ``--columns``, two tuples of names, and ``--color``.
_TABLE_OPTIONS = (
    click.option(
        "--sort",
        metavar="COLUMN",
        callback=_names,
        help="Sort by COLUMN in every table that has it, or by TABLE.COLUMN: numbers in descending "
        "order, text ascending; COLUMN:asc or COLUMN:desc to override. A,B sorts by A, then B.",
    ),
    click.option(
        "--columns",
        metavar="A,B,...",
        callback=_names,
        help="Show only these columns, in every table that has one (TABLE.COLUMN: in one table); "
        "all: also those that do not fit into the terminal.",
    ),
    click.option(
        "--color",
        type=click.Choice(tuple(_COLORS)),
        default="auto",
        show_default=True,
        callback=lambda _context, _option, text: _COLORS[text],
        help="Colour in tables; auto: in a terminal, unless NO_COLOR is set.",
    ),
)


def limit(top: int | str | None, default: str) -> int | None:
    """Return the rows per table: ``--top``, else the default of the format; None for all."""
    rows_per_table = TOP.get(default) if top is None else top
    return rows_per_table if isinstance(rows_per_table, int) else None


def form_by_suffix(output: str | None, default: Form) -> Form:
    """Return the output format by the suffix of a file; the default without a file or a suffix.

    Raises:
        OptionError: the suffix is unknown.
    """
    suffix = PurePath(output).suffix if output else ""
    form = form_of(output) if output else None
    if form is None and suffix:
        known = ", ".join(SUFFIXES)
        raise OptionError(f"{output}: unknown output format {suffix}; use {known}, or --to")
    return form or default


#: Options of :class:`ReadingOptions`, and those of commands that read files in several processes.
_FILE_OPTIONS = (
    click.option(
        "--input-format",
        "format",
        cls=AliasedOption,
        metavar="NAME",
        callback=_input_format,
        is_eager=True,
        help="Input format, instead of detecting it by content.",
    ),
    click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only rank N."),
    click.option(
        "--assume-rank",
        type=click.IntRange(min=0),
        metavar="N",
        help="Treat a file without a rank as rank N.",
    ),
    click.option(
        "--since",
        "since_ns",
        metavar="TIME",
        callback=_duration,
        help="Ignore events that end before TIME (for example 1.5s or 300us) from the start of the "
        "trace.",
    ),
    click.option(
        "--until",
        "until_ns",
        metavar="TIME",
        callback=_duration,
        help="Ignore events that start at TIME or later.",
    ),
    click.option(
        "--temp",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False, writable=True, resolve_path=True),
        expose_value=False,
        callback=_temporary,
        help="Folder for temporary files, of large inputs about half their size. Default: TMPDIR.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="No progress bar, no data-loss summary."),
)
workers_option = click.option(
    "--workers",
    metavar="N|auto",
    default="auto",
    show_default=True,
    callback=_workers,
    help="Processes that read several files or ranks at once; auto: one per core, as far as the "
    "free memory allows.",
)
_WORKER_OPTIONS = (
    workers_option,
    click.option("--dask", is_flag=True, help="Read on a Dask cluster (extra dask)."),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        envvar="DASK_SCHEDULER_ADDRESS",
        help="Scheduler of the cluster. Default: DASK_SCHEDULER_ADDRESS, else a cluster on this "
        "machine.",
    ),
    click.option("--scheduler-file", metavar="FILE", help="Scheduler file of the cluster."),
)


def reading(command: Command) -> Command:
    """Add the options of :class:`ReadingOptions`; the command gets one ``reading`` argument."""
    return _with_reading(command, (*_FILE_OPTIONS, *_WORKER_OPTIONS))


def reading_here(command: Command) -> Command:
    """Add the options of :class:`ReadingOptions` to a command that reads one file after another."""
    return _with_reading(command, _FILE_OPTIONS)


def _with_reading(command: Command, options: Sequence[Decorator]) -> Command:
    @wraps(command)
    def wrapped(*args: Any, **values: Any) -> None:
        command(*args, reading=_taken(ReadingOptions, values), **values)

    return with_options(*options)(wrapped)


def _taken(kind: Any, values: dict[str, Any]) -> Any:
    """Remove the values of the fields of a dataclass, and return them as one object."""
    known = {field.name for field in fields(kind)} & values.keys()
    return kind(**{name: values.pop(name) for name in known})


def with_options(*options: Decorator) -> Decorator:
    """Return the decorator that adds these options to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_FORCE = click.option("--force", is_flag=True, help="Overwrite an existing FILE.")


class _Forms(click.Choice[str]):
    """The output formats; ``markdown`` is another name of ``md``."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Return the format of a name."""
        return super().convert("md" if value == "markdown" else value, param, ctx)


def writing(command: Command) -> Command:
    """Add the options of :class:`Writing`; the command gets one ``writing`` argument."""
    options = (
        click.option(
            "-o", "--output", metavar="FILE", help="Output file. Default: standard output."
        ),
        _FORCE,
        click.option(
            "--to",
            type=_Forms(FORMS),
            help="Output format. Default: by suffix of FILE, else table. csv has one table.",
        ),
        click.option(
            "--table", metavar="NAME", help="Table of --to csv. Default: first with rows."
        ),
        click.option(
            "--top",
            metavar=f"N|{ALL}",
            callback=rows,
            help=f"Rows per table. Default: {TOP['table']}; {TOP['md']} in md, {TOP['html']} in "
            "html, all in data formats.",
        ),
        *_TABLE_OPTIONS,
    )
    return _with_writing(command, options, "table")


def writing_pictures(forms: Sequence[Form]) -> Decorator:
    """Like :func:`writing`, for a command that by default writes an SVG file, in these formats."""
    options = (
        click.option(
            "-o",
            "--output",
            metavar="FILE",
            help="Output file; - for standard output. Default: name of the first PATH with .svg, "
            "in the current folder.",
        ),
        _FORCE,
        click.option(
            "--to", type=click.Choice(forms), help="Format. Default: by suffix of FILE, else svg."
        ),
        click.option("--top", metavar=f"N|{ALL}", callback=rows, help="Rows per table."),
        *_TABLE_OPTIONS,
    )
    return lambda command: _with_writing(command, options, "svg")


def _with_writing(command: Command, options: Sequence[Decorator], default: Form) -> Command:
    @wraps(command)
    def wrapped(*args: Any, **values: Any) -> None:
        form = values["to"] or form_by_suffix(values["output"], default)
        values |= {"to": form, "top": limit(values["top"], form)}
        command(*args, writing=_taken(Writing, values), **values)

    return with_options(*options)(wrapped)


def plotting(what: str) -> Decorator:
    """Add ``--plot FILE``, which draws ``what``, to a command with the options of ``writing``."""
    return click.option("--plot", metavar="FILE", help=f"Draw {what} to FILE.svg or .png.")
