"""The answer: what is wrong, what was looked at in vain, and what cannot be told."""

import re
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.result import SEVERITIES, Finding, Result, Severity, Table, View
from traceanalyzer.units import format_count

FOUND, NOTHING, SKIPPED = "found", "nothing found", "skipped"

#: Version of the keys and meanings of the JSON of a diagnosis, see ``docs/diagnosis.schema.json``.
SCHEMA_VERSION = 1

#: Types of the columns that are no text.
_TYPES: dict[str, pl.DataType | type[pl.DataType]] = {
    "severity": pl.Enum(SEVERITIES),
    "evidence": pl.List(pl.String),
    "effects": pl.List(pl.String),
    "rank": pl.Int32,
    "device": pl.Int32,
    "cost_ns": pl.Int64,
    "cost_bytes": pl.Int64,
    "cost_frac": pl.Float64,
}
_FINDINGS = {
    one.name: _TYPES.get(one.name, pl.String) for one in fields(Finding) if one.name != "intervals"
}

_BUDGET = headings("part, name, each_ns: mean, time_frac: of time")


#: What follows the reason of a skipped check: how it is recorded, what else there is.
_AFTER_REASON = re.compile(r"; |\. | \(this file is|, so |, and no ")


def _reason(why: str) -> str:
    """The reason of a skipped check in a few words."""
    return _AFTER_REASON.split(why, maxsplit=1)[0]


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Result):
    """What :func:`traceanalyzer.diagnose` found.

    Attributes:
        found: root causes, the gravest and then the costliest first, each with its effects.
        budget: where the time of all devices goes, see
            :func:`~traceanalyzer.analyzers.diagnosis.budget.budget`.
        rules: a row a rule: rule, status (``found``, ``nothing found`` or ``skipped``), why (it was
            skipped), looks_for, measure, info, warning and critical (thresholds, null where
            the rule does not give that severity), analysis.
        inputs: paths of the files that were read.
        per: what times in ``budget`` are the mean of: ``step and GPU``, ``GPU`` ...
        warning: what weakens all findings, such as a truncated file; empty for nothing.
    """

    found: tuple[Finding, ...]
    budget: pl.DataFrame
    rules: pl.DataFrame
    inputs: tuple[str, ...]
    per: str = ""
    warning: str = ""

    def view(self) -> View:
        """The findings, the budget, and all rules with what came of each."""
        counts = {f"{name}_count": self._count(name) for name in SEVERITIES}
        return View(
            title="What is wrong, and what does it cost?",
            verdict=self._verdict(),
            notes=self._notes(),
            tables=self._tables(),
            scalars={"files": len(self.inputs), **counts},
            findings=self.found,
        )

    @property
    def worst(self) -> Severity | None:
        """The gravest severity found."""
        return self.found[0].severity if self.found else None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values; ``docs/diagnosis.schema.json`` describes the keys."""
        versions = {"schema_version": SCHEMA_VERSION, "tool_version": version("traceanalyzer")}
        lists = {
            "inputs": list(self.inputs),
            "findings": [one.to_dict() for one in self.found],
        }
        return versions | super().to_dict() | lists

    def _verdict(self) -> str:
        """How many findings of which severity; how many rules found nothing or were skipped."""
        counts = [(self._count(name), name) for name in reversed(SEVERITIES)]
        skipped = self.rules.filter(pl.col("status") == SKIPPED).height
        quiet = self.rules.filter(pl.col("status") == NOTHING).height
        texts = []
        if self.found:
            each = ", ".join(f"{n} {name}" for n, name in counts if n)
            texts.append(f"{format_count(len(self.found), 'finding')}: {each}.")
        else:
            texts.append("Nothing found." if quiet else "No check was possible.")
        checks = [f"{format_count(quiet, 'check')} passed"] if quiet else []
        checks += [f"{skipped:,} skipped"] if skipped else []
        texts += [f"{', '.join(checks)}."] if checks else []
        return " ".join([self.warning, *texts]).strip()

    def _notes(self) -> tuple[str, ...]:
        """How costs are meant; which checks were skipped, and what to record for them."""
        costs = (
            "A cost is the most that removing its cause can gain; no two findings count the same "
            "time."
        )
        skipped = self.rules.filter(pl.col("status") == SKIPPED)
        short = pl.col("why").map_elements(_reason, pl.String)
        reasons = skipped.group_by(short, maintain_order=True).len().rows()
        return (
            *((costs,) if any(one.cost_ns for one in self.found) else ()),
            *(f"{format_count(n, 'check')} skipped: {why}." for why, n in reasons),
            *(("What to record for skipped checks: --top all.",) if reasons else ()),
        )

    def _tables(self) -> tuple[Table, ...]:
        shown = headings(
            "rule, status, why: why skipped, looks_for: what it looks for, measure, "
            "info: info from, warning: warning from, critical: critical from"
        )
        grave = any(one.severity != "info" for one in self.found)
        return (
            Table("findings", "Findings", self._frame(), columns={}),
            *(
                (Table("budget", self._budget_title(), self.budget, _BUDGET, detail=grave),)
                if self.budget.height
                else (Table("budget", "Where the time goes", self.budget, {}),)
            ),
            Table("rules", "Rules", self.rules, shown, detail=True),
        )

    def _frame(self) -> pl.DataFrame:
        """The findings as a table, a row each."""
        rows = [
            one.to_dict() | {"effects": [effect.title for effect in one.effects]}
            for one in self.found
        ]
        return pl.DataFrame(rows, schema=_FINDINGS, orient="row")

    def _budget_title(self) -> str:
        return f"Where the time goes{f' (mean per {self.per})' if self.per else ''}"

    def _count(self, severity: Severity) -> int:
        return sum(one.severity == severity for one in self.found)
