"""The answer: what is wrong, what was looked at in vain, and what cannot be told."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traceanalyzer.result import SEVERITIES, Finding, Result, Severity, Table, View

FOUND, NOTHING, UNTOLD = "found", "nothing found", "cannot tell"

_FINDINGS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rule": pl.String,
    "severity": pl.Enum(SEVERITIES),
    "confidence": pl.String,
    "title": pl.String,
    "evidence": pl.List(pl.String),
    "advice": pl.String,
    "analysis": pl.String,
    "cost_ns": pl.Int64,
    "cost_bytes": pl.Int64,
    "cost_frac": pl.Float64,
    "of": pl.String,
}


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
        told = [f"{self._count(name)} {name}" for name in reversed(SEVERITIES) if self._count(name)]
        silent = self.rules.filter(pl.col("status") == UNTOLD).height
        quiet = self.rules.filter(pl.col("status") == NOTHING).height
        n = len(self.found)
        opening = (
            f"{n} {'finding' if n == 1 else 'findings'}: {', '.join(told)}."
            if n
            else "Nothing found."
            if quiet
            else "Nothing can be told."
        )
        said = [opening, f"{_rules(quiet)} found nothing." if quiet and n else ""]
        if silent:
            said.append(f"{_rules(silent)} cannot tell, because what they need was not recorded.")
        return " ".join(one for one in said if one)

    def _notes(self) -> tuple[str, ...]:
        """How costs are meant; what cannot be told, and why."""
        overlap = (
            "Costs overlap and do not add up: waiting for a late rank is exposed communication on "
            "the others."
        )
        untold = self.rules.filter(pl.col("status") == UNTOLD)
        reasons = untold.group_by("why", maintain_order=True).agg(pl.col("rule").str.join(", "))
        silent = [f"Cannot tell {rules}: {why}." for why, rules in reasons.rows()]
        return (*((overlap,) if len(self.found) > 1 else ()), *silent)

    def _tables(self) -> tuple[Table, ...]:
        shown = {
            "rule": "rule",
            "status": "status",
            "looks_for": "what it looks for",
            "measure": "measure",
            "info": "info from",
            "warning": "warning from",
            "critical": "critical from",
        }
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


def _rules(n: int) -> str:
    return f"{n} {'rule' if n == 1 else 'rules'}"
