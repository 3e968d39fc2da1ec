"""Several answers about one run, as one."""

from dataclasses import dataclass

from traceanalyzer.result.base import Result, View
from traceanalyzer.result.shown import Table


@dataclass(frozen=True)
class Fact:
    """One number to show large.

    Attributes:
        name: a column's name, whose suffix gives the unit (``median_ns``, ``busy_frac``).
        label: what it is.
        value: the number.
    """

    name: str
    label: str
    value: float


@dataclass(frozen=True)
class Section:
    """One answer in a report.

    Attributes:
        key: of the analysis; findings refer to it.
        short: what it is called in a list of contents.
        command: what gives the same on the command line.
        result: the answer.
    """

    key: str
    short: str
    command: str
    result: Result


@dataclass(frozen=True, eq=False, repr=False)
class Report(Result):
    """Several answers about one run, what is wrong first.

    Attributes:
        about: what was looked at, in a few words.
        told: the answer that holds the findings, and what cannot be told.
        facts: the run in a few numbers.
        overview: a table with a row a rank.
        sections: the other answers, in order.
        command: what makes this report.
    """

    about: str
    told: Result
    facts: tuple[Fact, ...]
    overview: Table
    sections: tuple[Section, ...]
    command: str

    def view(self) -> View:
        """The ranks side by side; findings and rules; every other result by its name."""
        return View(
            title=f"Report on {self.about}",
            verdict=self.told.verdict,
            notes=self.told.notes,
            tables=(self.overview, *self.told.tables),
            scalars={
                **{fact.name: fact.value for fact in self.facts},
                **self.told.scalars,
                **{section.key: section.result.to_dict() for section in self.sections},
            },
            findings=self.told.diagnosis,
        )
