"""Apply single rules of ``diagnose``, to what they use; diagnose files once for all tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import traceanalyzer as ta
from traceanalyzer.analyzers.registry import REPLAY
from traceanalyzer.findings.judge import RULES, analyses, judge
from traceanalyzer.findings.rule import Answers, Measured
from traceanalyzer.result import Result
from traceanalyzer.run.loop import examine
from traceanalyzer.trace import Trace

BY_ID = {rule.id: rule for rule in RULES}
#: Analyses that the time and the program of all rules are taken from.
_COMMON = {"gpu_idle", "comm_outliers", "kernels", "info", "steps"}


def judged(rule: str, *recordings: Trace | Path) -> list[Measured]:
    """Return all measurements of a rule on recordings, of which only what it uses is measured."""
    (found,) = judged_by([rule], *recordings)
    return found


def judged_by(names: Iterable[str], *recordings: Trace | Path) -> list[list[Measured]]:
    """Return all measurements of each of several rules on recordings, read once."""
    rules = [BY_ID[name] for name in names]
    needed = (_COMMON | analyses(rules)) - {REPLAY}
    results = dict(examine(recordings, needed, use="findings").results)
    return [list(rule.judge(Answers(results))) for rule in rules]


def finding(rule: str, *recordings: Trace) -> ta.Finding:
    """Return the only finding of a rule that is applied alone."""
    rules = [BY_ID[rule]]
    examined = examine(recordings, _COMMON | analyses(rules), use="findings")
    (one,) = judge(examined, rules).findings
    return one


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
