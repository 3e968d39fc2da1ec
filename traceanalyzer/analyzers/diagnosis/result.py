"""The answer: what is wrong, what was looked at in vain, and what cannot be told."""

from dataclasses import dataclass, fields

import polars as pl

from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.result import SEVERITIES, Finding, Result, Severity, Table, View
from traceanalyzer.units import format_count

FOUND, NOTHING, UNTOLD = "found", "nothing found", "cannot tell"

#: Types of the columns that are no text.
_TYPES: dict[str, pl.DataType | type[pl.DataType]] = {
    "severity": pl.Enum(SEVERITIES),
    "evidence": pl.List(pl.String),
    "cost_ns": pl.Int64,
    "cost_bytes": pl.Int64,
    "cost_frac": pl.Float64,
}
_FINDINGS = {one.name: _TYPES.get(one.name, pl.String) for one in fields(Finding)}


#: Analyses whose findings may claim the same time: it is one chain of causes.
_COMMUNICATION = ("comm_outliers", "overlap")


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Result):
    """What :func:`traceanalyzer.diagnose` found.

    Attributes:
        found: the findings, the gravest and then the costliest first.
        rules: a row a rule: rule, status (``found``, ``nothing found`` or ``cannot tell``), why (it
            cannot be told), looks_for, measure, info, warning and critical (thresholds, null where
            the rule does not give that severity), analysis.
        files: how many files were read.
    """

    found: tuple[Finding, ...]
    rules: pl.DataFrame
    files: int

    def view(self) -> View:
        """The findings, and all rules with what came of each, as data."""
        counts = {f"{name}_count": self._count(name) for name in SEVERITIES}
        return View(
            title="What is wrong, and what does it cost?",
            verdict=self._verdict(),
            notes=self._notes(),
            tables=self._tables(),
            scalars={"files": self.files, **counts},
            findings=self.found,
        )

    @property
    def worst(self) -> Severity | None:
        """The gravest severity found."""
        return self.found[0].severity if self.found else None

    def _verdict(self) -> str:
        """How many findings of which severity, and what could not be judged."""
        counts = [(self._count(name), name) for name in reversed(SEVERITIES)]
        silent = self.rules.filter(pl.col("status") == UNTOLD).height
        quiet = self.rules.filter(pl.col("status") == NOTHING).height
        said = []
        if self.found:
            each = ", ".join(f"{n} {name}" for n, name in counts if n)
            said.append(f"{format_count(len(self.found), 'finding')}: {each}.")
            if quiet:
                said.append(f"{format_count(quiet, 'rule')} found nothing.")
        else:
            said.append("Nothing found." if quiet else "Nothing can be told.")
        if silent:
            told = format_count(silent, "rule")
            said.append(f"{told} cannot tell, because what they need was not recorded.")
        return " ".join(said)

    def _notes(self) -> tuple[str, ...]:
        """How costs are meant; what cannot be told, and why."""
        overlap = (
            "Costs of communication overlap and do not add up: wait time for a straggler is "
            "exposed communication on the other ranks."
        )
        of_communication = [one for one in self.found if one.analysis in _COMMUNICATION]
        untold = self.rules.filter(pl.col("status") == UNTOLD)
        reasons = untold.group_by("why", maintain_order=True).agg(pl.col("rule").str.join(", "))
        silent = [f"Cannot tell {rules}: {why}." for why, rules in reasons.rows()]
        return (*((overlap,) if len(of_communication) > 1 else ()), *silent)

    def _tables(self) -> tuple[Table, ...]:
        shown = headings(
            "rule, status, looks_for: what it looks for, measure, info: info from, "
            "warning: warning from, critical: critical from"
        )
        return (
            Table("findings", "Findings", self._frame(), columns={}),
            Table("rules", "Rules", self.rules, shown, detail=True),
        )

    def _frame(self) -> pl.DataFrame:
        """The findings as a table, a row each."""
        rows = [vars(one) | {"evidence": list(one.evidence)} for one in self.found]
        return pl.DataFrame(rows, schema=_FINDINGS, orient="row")

    def _count(self, severity: Severity) -> int:
        return sum(one.severity == severity for one in self.found)
