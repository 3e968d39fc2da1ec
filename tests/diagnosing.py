"""Rules of ``diagnose``, asked one by one."""

from __future__ import annotations

from traceanalyzer.analyzers.diagnosis.judge import RULES
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured
from traceanalyzer.result import Result

BY_ID = {rule.id: rule for rule in RULES}


def measurements(rule: str, result: Result, **others: Result) -> list[Measured]:
    """All that a rule measures of a result, beside the results of other analyses."""
    analysis = BY_ID[rule].analysis
    return list(BY_ID[rule].judge(Answers({analysis: result, **others})))


def measured(rule: str, result: Result, **others: Result) -> Measured:
    """The one thing that a rule measures."""
    (one,) = measurements(rule, result, **others)
    return one
