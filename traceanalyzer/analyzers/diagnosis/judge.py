"""Answers of analyses to findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from traceanalyzer.analyzers.diagnosis.result import FOUND, NOTHING, UNTOLD, Diagnosis
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule
from traceanalyzer.analyzers.diagnosis.rules import RULES
from traceanalyzer.result import SEVERITIES, Finding, Severity

_RULES: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("rule", "status", "why", "looks_for", "measure"), pl.String),
    **{str(severity): pl.Float64 for severity in SEVERITIES},
    "analysis": pl.String,
}


def diagnose(
    answers: Answers,
    missing: Mapping[str, str],
    *,
    rules: Sequence[Rule] = RULES,
    files: int = 1,
    notes: Sequence[str] = (),
) -> Diagnosis:
    """What is wrong, by every rule whose analysis has an answer.

    Args:
        answers: results by the name of their analysis.
        missing: why the other analyses have none, by name.
        rules: with their thresholds.
        files: how many files the answers are of.
        notes: what else is to be said.
    """
    found: list[Finding] = []
    rows = []
    for rule in rules:
        own = list(_findings(rule, answers)) if rule.analysis in answers else []
        found += own
        why = missing.get(rule.analysis) if rule.analysis not in answers else None
        status = FOUND if own else UNTOLD if rule.analysis not in answers else NOTHING
        levels = {str(name): rule.levels.get(name) for name in SEVERITIES}
        rows.append(
            {
                "rule": rule.id,
                "status": status,
                "why": why,
                "looks_for": rule.looks_for,
                "measure": rule.measure,
                **levels,
                "analysis": rule.analysis,
            }
        )
    return Diagnosis(
        tuple(sorted(found, key=_gravest_first)),
        pl.DataFrame(rows, schema=_RULES, orient="row"),
        files,
        tuple(notes),
    )


def _gravest_first(one: Finding) -> tuple[int, float, str, str]:
    """By severity, then by share; memory and time are compared by their shares."""
    return -SEVERITIES.index(one.severity), -(one.cost_frac or 0.0), one.rule, one.title


def _findings(rule: Rule, answers: Answers) -> Iterator[Finding]:
    for measured in rule.judge(answers[rule.analysis], answers):
        severity = rule.severity(measured.size)
        if severity is not None:
            yield _finding(rule, measured, severity)


def _finding(rule: Rule, measured: Measured, severity: Severity) -> Finding:
    return Finding(
        rule=rule.id,
        severity=severity,
        confidence=measured.confidence,
        title=measured.title,
        evidence=measured.evidence,
        advice=measured.advice,
        analysis=rule.analysis,
        cost_ns=measured.cost_ns,
        cost_bytes=measured.cost_bytes,
        cost_frac=measured.cost_frac,
        of=measured.of if measured.cost_frac is not None else "",
    )
