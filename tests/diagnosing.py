"""Apply single rules of ``diagnose``; diagnose files once for all tests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import traceanalyzer as ta
from traceanalyzer.findings.judge import RULES
from traceanalyzer.findings.rule import Answers, Measured
from traceanalyzer.result import Result
from traceanalyzer.run.loop import examine

BY_ID = {rule.id: rule for rule in RULES}


def measurements(rule: str, result: Result, **others: Result) -> list[Measured]:
    """Return all measurements of a rule on a result, with the results of other analyses."""
    analysis = BY_ID[rule].analysis
    return list(BY_ID[rule].judge(Answers({analysis: result, **others})))


def measured(rule: str, result: Result, **others: Result) -> Measured:
    """Return the only measurement of a rule."""
    (one,) = measurements(rule, result, **others)
    return one


@cache
def diagnosis(*paths: Path) -> ta.Diagnosis:
    """Return the findings about files, computed once."""
    return ta.diagnose(paths)


@cache
def results(path: Path) -> Mapping[str, Result]:
    """Return the results that rules are applied to, computed once."""
    return examine(path).results
