"""Every rule, and thresholds as people write them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traceanalyzer.analyzers.diagnosis import (
    communication,
    feeding,
    filling,
    recording,
    waiting,
    work,
)
from traceanalyzer.analyzers.diagnosis.rule import Rule
from traceanalyzer.errors import OptionError
from traceanalyzer.result import SEVERITIES, Severity

RULES: tuple[Rule, ...] = (
    *communication.rules(),
    *waiting.rules(),
    *feeding.rules(),
    *work.rules(),
    *filling.rules(),
    *recording.rules(),
)


def with_thresholds(texts: Iterable[str]) -> tuple[Rule, ...]:
    """The rules with other thresholds: ``late-rank=5%``, ``late-rank:critical=0.3``.

    Without a severity the least grave one that the rule has is meant.

    Raises:
        OptionError: a text is no threshold, or names a rule or a severity that is not there.
    """
    rules = {rule.id: rule for rule in RULES}
    for text in texts:
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
