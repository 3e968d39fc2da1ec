"""What is wrong, in whatever a job left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from traceanalyzer.analyzers import diagnosis as judging
from traceanalyzer.analyzers.diagnosis import Diagnosis, Rule
from traceanalyzer.api.examination import Examination, examine
from traceanalyzer.api.gathering import Reading, skipped_notes
from traceanalyzer.api.reading import Inputs, several


def diagnose(
    inputs: Inputs, *, thresholds: str | Sequence[str] = (), **reading: Unpack[Reading]
) -> Diagnosis:
    """What is wrong, what does it cost, and what helps?

    Every analysis that rules need and the files allow is made, each file read once, and its answer
    judged by documented rules. What no rule can judge, because it was not recorded, is said too.

    Args:
        inputs: traces, files and folders of any format, of one run.
        thresholds: other thresholds, such as ``late-rank=5%`` or ``late-rank:critical=0.3``.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: a threshold makes no sense, or no input is of the rank that is asked for.
    """
    rules = judging.with_thresholds(several(thresholds))
    analyses = {rule.analysis for rule in rules}
    return judged(examine(inputs, analyses, **reading), rules)


def judged(examined: Examination, rules: Sequence[Rule]) -> Diagnosis:
    """The findings in the answers to all questions."""
    return judging.diagnose(
        examined.answers,
        examined.missing,
        rules=rules,
        files=examined.files,
        notes=skipped_notes(examined.skipped),
    )
