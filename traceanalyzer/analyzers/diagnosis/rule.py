"""What a rule is, and what it measures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from traceanalyzer.result import SEVERITIES, Confidence, Result, Severity

#: The answers of analyses by name, as far as there are any.
Answers = Mapping[str, Result]


@dataclass(frozen=True)
class Measured:
    """What a rule measured of one thing, whether it is worth a finding or not.

    Attributes:
        size: what is compared with the rule's thresholds.
        title: what is wrong, one sentence with numbers.
        evidence: further numbers, a sentence each.
        advice: what to try.
        cost_ns, cost_bytes: what it costs, or None.
        cost_frac: the cost as a share of ``of``, or None; by default the size, where that is a
            share.
        confidence: how sure it is.
    """

    size: float
    title: str
    evidence: tuple[str, ...] = ()
    advice: str = ""
    cost_ns: int | None = None
    cost_bytes: int | None = None
    cost_frac: float | None = None
    of: str = "the devices' time"
    confidence: Confidence = "high"


#: Measures an answer; the second argument are the answers of the other analyses.
Measure = Callable[[Any, Answers], Iterable[Measured]]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong, and from when on it counts.

    Attributes:
        id: what the rule is called, in options and in answers.
        analysis: the analysis whose answer it judges.
        looks_for: what is wrong where it finds something, in a few words.
        measure: what is compared with the thresholds, in a few words.
        levels: the least size of a finding of each severity; a severity that it lacks is not given.
        function: the function that measures.
        counts: the measure is a number of things, not a share.
        uses: analyses whose results are evidence, where there are any.
    """

    id: str
    analysis: str
    looks_for: str
    measure: str
    levels: Mapping[Severity, float]
    function: Measure = field(repr=False)
    counts: bool = False
    uses: tuple[str, ...] = ()

    def judge(self, result: Result, answers: Answers) -> Iterator[Measured]:
        """What it measures of the answer of its analysis."""
        for one in self.function(result, answers):
            is_share = one.cost_frac is None and not self.counts
            yield replace(one, cost_frac=one.size) if is_share else one

    def severity(self, size: float) -> Severity | None:
        """How grave a size is; None where it is not worth a finding."""
        reached = [name for name, least in self.levels.items() if size >= least]
        return max(reached, key=SEVERITIES.index, default=None)


def rule(
    analysis: str,
    looks_for: str,
    measure: str,
    levels: Mapping[Severity, float],
    *,
    counts: bool = False,
    uses: tuple[str, ...] = (),
) -> Callable[[Measure], Rule]:
    """Makes a rule of the function that measures, whose name is its id; see :class:`Rule`."""

    def make(function: Measure) -> Rule:
        name = function.__name__.strip("_").replace("_", "-")
        return Rule(name, analysis, looks_for, measure, levels, function, counts, uses)

    return make
