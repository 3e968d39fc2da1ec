"""Options that commands share, and the values they turn into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from traceanalyzer.cli import output
from traceanalyzer.errors import OptionError
from traceanalyzer.render import BINARY, FORMS, TOP, Form, form_of, render
from traceanalyzer.units import parse_ns

if TYPE_CHECKING:
    from traceanalyzer.result import Result

ALL = "all"
_PICTURES = ("svg", "png")
_DATA = (".parquet", ".gz", ".zst", ".zip", ".pdf", ".xlsx", ".jpg")
Command = Callable[..., None]


def _duration(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    return None if text is None else parse_ns(text)


def rows(_context: click.Context, _option: click.Parameter, text: str | None) -> int | str | None:
    """A number of rows above 0, or ``all``; None where the option is not given."""
    if text in (None, ALL):
        return text
    if not text.isdecimal() or int(text) == 0:
        raise click.BadParameter(f"{text!r} is not a number of rows; write 20 or {ALL}")
    return int(text)


@dataclass(frozen=True)
class Reading:
    """How input files are read.

    Attributes:
        format: the parser to use whatever the content looks like, or None.
        rank: only this rank of the inputs.
        assume_rank: the rank of a single file that has none.
        since_ns: leave out what ends before, counted from the trace's start.
        until_ns: leave out what starts then or later.
        quiet: no progress and no summary on standard error.
    """

    format: str | None
    rank: int | None
    assume_rank: int | None
    since_ns: int | None
    until_ns: int | None
    quiet: bool

    def __post_init__(self) -> None:
        both = self.since_ns is not None and self.until_ns is not None
        if both and self.since_ns >= self.until_ns:  # type: ignore[operator]
            raise OptionError("--since must be before --until")

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the functions that read."""
        return {name: value for name, value in asdict(self).items() if name != "quiet"}


@dataclass(frozen=True)
class Writing:
    """Where the answer goes, and how it is shown.

    Attributes:
        output: a file, or None for standard output.
        force: the file may be overwritten.
        to: the form.
        top: rows of each table, or None for all.
        plot: the file that the charts are drawn to, or None for no plot.
    """

    output: str | None
    force: bool
    to: Form
    top: int | None
    plot: str | None = None

    def check(self) -> None:
        """Refuses what cannot be written, before any work is done.

        Raises:
            OptionError: the plot's name is not that of a picture, or that of the answer.
            OutputError: a file exists and may not be overwritten.
        """
        output.check(self.output, force=self.force, binary=self.to in BINARY)
        if self.plot is None:
            return
        if form_of(self.plot) not in _PICTURES:
            raise OptionError(f"{self.plot}: a plot's name ends in .svg or .png")
        if self.plot == self.output:
            raise OptionError(f"{self.plot}: the plot and the answer cannot be one file")
        output.check(self.plot, force=self.force)

    def show(self, result: Result) -> None:
        """Renders and writes the answer, and draws all its charts where a plot is wanted."""
        data = render(result, self.to, top=self.top)
        output.write(data, self.output, binary=self.to in BINARY)
        form = form_of(self.plot) if self.plot else None
        if form is not None:
            output.write(render(result, form), self.plot, binary=form in BINARY)


def limit(top: int | str | None, default: str) -> int | None:
    """Rows of each table: what ``--top`` says, else those of the form; None for all."""
    shown = TOP.get(default) if top is None else top
    return shown if isinstance(shown, int) else None


def _form(output: str | None) -> Form:
    """The form that a file's name asks for; a table where it asks for none.

    Raises:
        OptionError: its suffix is that of data, which is not written so.
    """
    form = form_of(output) if output else None
    if form is None and output and output.lower().endswith(_DATA):
        raise OptionError(f"{output}: no form of an answer; --to is one of {', '.join(FORMS)}")
    return form or "table"


def reading(command: Command) -> Command:
    """Adds the options of :class:`Reading`; the command gets one ``reading`` argument."""

    @click.option("--format", metavar="NAME", help="Read as this format whatever it looks like.")
    @click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only rank N.")
    @click.option(
        "--assume-rank",
        type=click.IntRange(min=0),
        metavar="N",
        help="Treat a file without a rank as rank N.",
    )
    @click.option(
        "--since",
        "since_ns",
        metavar="TIME",
        callback=_duration,
        help="Leave out what ends earlier than, say, 1.5s from the start.",
    )
    @click.option(
        "--until",
        "until_ns",
        metavar="TIME",
        callback=_duration,
        help="Leave out what starts then or later.",
    )
    @click.option("-q", "--quiet", is_flag=True, help="No progress, no summary of what was lost.")
    @wraps(command)
    def wrapped(*args: Any, **values: Any) -> None:
        how = Reading(**{field.name: values.pop(field.name) for field in fields(Reading)})
        command(*args, reading=how, **values)

    return wrapped


def writing(command: Command) -> Command:
    """Adds the options of :class:`Writing`; the command gets one ``writing`` argument."""

    @click.option("-o", "--output", metavar="FILE", help="Write to FILE, not standard output.")
    @click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
    @click.option(
        "--to",
        type=click.Choice(FORMS),
        help="Default: by FILE's suffix, else table. csv holds the first table only.",
    )
    @click.option(
        "--top",
        metavar=f"N|{ALL}",
        callback=rows,
        help=f"Rows of each table. Default: {TOP['table']}, md {TOP['md']}, html {TOP['html']}, as "
        "data all.",
    )
    @wraps(command)
    def wrapped(
        *args: Any,
        output: str | None,
        force: bool,
        to: Form | None,
        top: int | str | None,
        plot: str | None = None,
        **rest: Any,
    ) -> None:
        form = to or _form(output)
        how = Writing(output, force, form, limit(top, form), plot)
        command(*args, writing=how, **rest)

    return wrapped


def plotting(what: str) -> Callable[[Command], Command]:
    """Adds ``--plot FILE``, which draws ``what``, to a command with the options of ``writing``."""
    return click.option("--plot", metavar="FILE", help=f"Draw {what} to FILE.svg or .png.")
