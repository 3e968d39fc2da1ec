"""What most commands do: find the files, ask the question, show the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from traceanalyzer.cli.options import Reading, Writing
from traceanalyzer.cli.plotting import Plot
from traceanalyzer.cli.progress import progress
from traceanalyzer.cli.summary import inputs_of, seen_by

if TYPE_CHECKING:
    from traceanalyzer.result import Result


#: The exit status where an option says that what was found is a failure.
FAILED = 3


def answer(
    question: Callable[..., Result],
    paths: Sequence[str],
    reading: Reading,
    writing: Writing,
    plot: Plot,
    **options: Any,
) -> Result:
    """Asks a function of ``api`` about the files and writes its result, and the plot if wanted.

    What cannot be written is refused before anything is read.
    """
    writing.check()
    plot.check(writing)

    seen = seen_by(reading)
    inputs = inputs_of(paths, quiet=reading.quiet)
    with progress(inputs, quiet=reading.quiet) as meter:
        result = question(inputs, **options, **reading.arguments(), progress=meter, seen=seen)
    writing.show(result)
    plot.show(result)
    return result
