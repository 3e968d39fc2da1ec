"""Several answers about one run, as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from traceanalyzer.result.base import Result
from traceanalyzer.result.shown import Finding, Table


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

    @property
    def title(self) -> str:
        """What it is about."""
        return f"Report on {self.about}"

    @property
    def verdict(self) -> str:
        """How much is wrong."""
        return self.told.verdict

    @property
    def diagnosis(self) -> tuple[Finding, ...]:
        """What is wrong, the gravest first."""
        return self.told.diagnosis

    @property
    def tables(self) -> tuple[Table, ...]:
        """The ranks side by side; findings and rules."""
        return (self.overview, *self.told.tables)

    @property
    def notes(self) -> tuple[str, ...]:
        """What cannot be told, and why."""
        return self.told.notes

    @property
    def scalars(self) -> dict[str, Any]:
        """The run in a few numbers; the findings; every other answer by its name."""
        return {
            **{fact.name: fact.value for fact in self.facts},
            **self.told.scalars,
            **{section.key: section.result.to_dict() for section in self.sections},
        }
