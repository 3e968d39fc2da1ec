"""Result of ``printed``: the tables of each form of text, the verdict and notes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import polars as pl

from traceanalyzer.analyzers.common.display import headings, rank_column, sentences, table_of_known
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Confidence, Result, Table, View

_NOTE = (
    "Printed text has no timeline, and numbers are rounded as printed. torch.profiler "
    "export_chrome_trace(FILE) records what ran when."
)
#: Most forms that the verdict has a sentence on.
_NAMED = 3


class Problem(NamedTuple):
    """A problem that a log names.

    Attributes:
        kind: see ``problems.toml``.
        title: one sentence.
        advice: what to try, without a capital and full stop.
        size: 1 if the job failed, 0.5 if it is limited, 0.25 if that is possible.
        ranks: the ranks that cause it, if known.
        confidence: that this is the cause.
        at: order of its first line in the logs, among failures.
    """

    kind: str
    title: str
    advice: str
    size: float
    ranks: tuple[int, ...] = ()
    confidence: Confidence = "high"
    at: int = 0


@dataclass(frozen=True)
class Form:
    """The tables of one form of printed text.

    Attributes:
        tables: with rows, the most important first.
        verdict: one sentence with at most two numbers.
        notes: limits of the numbers.
        scalars: numbers by name.
        charts: creates the charts.
        urgent: whether its sentence comes first, such as that on out-of-memory errors.
        problems: of the job.
    """

    tables: tuple[Table, ...]
    verdict: str
    notes: tuple[str, ...] = ()
    scalars: Mapping[str, Any] = field(default_factory=dict)
    charts: Callable[[], tuple[Chart, ...]] = tuple
    urgent: bool = False
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Printed(Result):
    """Tables and lines that PyTorch and DeepSpeed printed; ``to_polars(name)`` has each table.

    Attributes:
        forms: the tables by form of text. Every table has ``rank`` and ``path``.
    """

    forms: tuple[Form, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that logs of jobs name: failures first, in their order in the logs.

        The first failure is the cause; those after it may follow from it.
        """
        each = [one for form in self.forms for one in form.problems]
        each.sort(key=lambda one: (-one.size, one.at))
        later = (one.size >= 1 and one.confidence == "high" for one in each[1:])
        return (
            *each[:1],
            *(
                one._replace(confidence="medium") if is_later else one
                for one, is_later in zip(each[1:], later, strict=True)
            ),
        )

    def view(self) -> View:
        """Build the view: the tables and charts of all forms."""
        each = self.forms
        ordered = sorted(each, key=lambda form: not form.urgent)
        texts = [form.verdict for form in ordered if form.verdict]
        return View(
            title="What did PyTorch and DeepSpeed print?",
            verdict=sentences(*texts[:_NAMED]),
            notes=(_NOTE, *chain.from_iterable(form.notes for form in each)),
            tables=tuple(chain.from_iterable(form.tables for form in each)),
            scalars={name: value for form in each for name, value in form.scalars.items()},
            charts=lambda: tuple(chain.from_iterable(form.charts() for form in each)),
        )


def table(
    name: str, title: str, frame: pl.DataFrame, columns: str, *, detail: bool = False
) -> Table:
    """Return a table with a column of ranks or files if there are several.

    Args:
        name: key of the table.
        title: its title.
        frame: its rows, with ``rank`` and ``path``.
        columns: see :func:`~traceanalyzer.analyzers.common.display.headings`.
        detail: whether a terminal prints its name only.
    """
    by = rank_column(frame) if frame.select("rank", "path").n_unique() > 1 else {}
    if "rank" in by and frame.select("rank", "path").n_unique() > frame["rank"].n_unique():
        by |= {"path": "file"}
    return table_of_known(name, title, frame, {**by, **headings(columns)}, detail=detail)
