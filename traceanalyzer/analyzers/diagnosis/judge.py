"""All rules with their thresholds, and the results of analyzers judged by them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import polars as pl

from traceanalyzer.analyzers.diagnosis import busy, result, waiting, work
from traceanalyzer.analyzers.diagnosis.rule import Answers, Rule
from traceanalyzer.errors import OptionError
from traceanalyzer.result import SEVERITIES, Finding, Severity

RULES: tuple[Rule, ...] = (*waiting.RULES, *busy.RULES, *work.RULES)


def with_thresholds(texts: str | Iterable[str]) -> tuple[Rule, ...]:
    """The rules with other thresholds: ``late-rank=5%``, ``late-rank:critical=0.3``.

    Without a severity the least grave one that the rule has is meant.

    Raises:
        OptionError: a text is no threshold, or names a rule or a severity that is not there.
    """
    rules = {rule.id: rule for rule in RULES}
    for text in (texts,) if isinstance(texts, str) else texts:
        name, _, value = text.partition("=")
        id_, _, severity = name.partition(":")
        rule = rules.get(id_)
        if rule is None:
            raise OptionError(f"no rule is called {id_!r}; known are {', '.join(sorted(rules))}")
        own = _severity(rule, severity)
        rules[id_] = replace(rule, levels={**rule.levels, own: _number(text, value)})
    return tuple(rules.values())


def _severity(rule: Rule, word: str) -> Severity:
    if not word:
        return min(rule.levels, key=SEVERITIES.index)
    found = next((severity for severity in SEVERITIES if severity == word), None)
    if found is None:
        raise OptionError(f"{word!r} is no severity; known are {', '.join(SEVERITIES)}")
    return found


def _number(text: str, value: str) -> float:
    percent = value.strip().endswith("%")
    try:
        number = float(value.strip().rstrip("%"))
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise OptionError(f"{text!r} is no threshold; write it like late-rank=10%")
    return number / 100 if percent else number


_TYPES = {"why": pl.String, **{str(severity): pl.Float64 for severity in SEVERITIES}}


def judge(
    answers: Answers,
    missing: Mapping[str, str],
    *,
    rules: Sequence[Rule] = RULES,
    files: int = 1,
    notes: Sequence[str] = (),
) -> result.Diagnosis:
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
        is_answered = rule.analysis in answers
        own = list(_findings(rule, answers)) if is_answered else []
        found += own
        rows.append(
            {
                "rule": rule.id,
                "status": result.FOUND if own else result.NOTHING if is_answered else result.UNTOLD,
                "why": None if is_answered else missing.get(rule.analysis),
                "looks_for": rule.looks_for,
                "measure": rule.measure,
                **{str(name): rule.levels.get(name) for name in SEVERITIES},
                "analysis": rule.analysis,
            }
        )
    return result.Diagnosis(
        tuple(sorted(found, key=_gravest_first)),
        pl.DataFrame(rows, schema_overrides=_TYPES),
        files,
        input_notes=tuple(notes),
    )


def _gravest_first(one: Finding) -> tuple[int, float, str, str]:
    """By severity, then by share; memory and time are compared by their shares."""
    return -SEVERITIES.index(one.severity), -(one.cost_frac or 0.0), one.rule, one.title


def _findings(rule: Rule, answers: Answers) -> Iterator[Finding]:
    for measured in rule.judge(answers[rule.analysis], answers):
        severity = rule.severity(measured.size)
        if severity is not None:
            facts = {name: fact for name, fact in vars(measured).items() if name != "size"}
            if measured.cost_frac is None:
                facts["of"] = ""
            yield Finding(rule=rule.id, severity=severity, analysis=rule.analysis, **facts)
