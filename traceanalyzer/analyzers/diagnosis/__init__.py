"""What is wrong, what does it cost, and what helps? The findings of all analyses, by rules.

In go the answers of other analyses, by name, and why others have none; :func:`diagnose` asks each
rule of :data:`RULES` about the answer it judges and gives a :class:`Diagnosis`. The rules stand in
``communication``, ``waiting``, ``feeding``, ``work``, ``filling`` and ``recording``, a function
each; none looks at a trace. The public API imports this.
"""

from traceanalyzer.analyzers.diagnosis.judge import diagnose
from traceanalyzer.analyzers.diagnosis.result import Diagnosis
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule
from traceanalyzer.analyzers.diagnosis.rules import RULES, with_thresholds

__all__ = ["RULES", "Answers", "Diagnosis", "Measured", "Rule", "diagnose", "with_thresholds"]
