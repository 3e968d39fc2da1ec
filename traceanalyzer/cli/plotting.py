"""``--plot``: the charts of an answer in a file of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from traceanalyzer.cli import output
from traceanalyzer.cli.options import Command, Writing
from traceanalyzer.errors import OptionError
from traceanalyzer.render import BINARY, Form, form_of, render

if TYPE_CHECKING:
    from traceanalyzer.result import Result


@dataclass(frozen=True)
class Plot:
    """Where the charts go.

    Attributes:
        path: a file, or None for no plot.
    """

    path: str | None = None

    def check(self, writing: Writing) -> None:
        """Refuses a plot that cannot be written, before any work is done.

        Raises:
            OptionError: the name is not that of a picture, or that of the answer.
            OutputError: the file exists and may not be overwritten.
        """
        if self.path is None:
            return
        if self._form() is None:
            raise OptionError(f"{self.path}: a plot's name ends in .svg or .png")
        if self.path == writing.output:
            raise OptionError(f"{self.path}: the plot and the answer cannot be one file")
        output.check(self.path, force=writing.force)

    def show(self, result: Result) -> None:
        """Draws all charts of the answer."""
        form = self._form()
        if form is not None:
            output.write(render(result, form), self.path, binary=form in BINARY)

    def _form(self) -> Form | None:
        form = form_of(self.path) if self.path else None
        return form if form in ("svg", "png") else None


def plotting(what: str) -> Callable[[Command], Command]:
    """Adds ``--plot FILE``, which draws ``what``; the command gets one ``plot`` argument."""

    def add(command: Command) -> Command:
        @click.option("--plot", metavar="FILE", help=f"Draw {what} to FILE.svg or .png.")
        @wraps(command)
        def wrapped(*args: Any, plot: str | None, **rest: Any) -> None:
            command(*args, plot=Plot(plot), **rest)

        return wrapped

    return add
