"""A run in a few numbers, and its ranks side by side, from the answers of other analyses.

In go results by the name of their analysis; :func:`facts` picks the numbers people ask for first,
:func:`overview` joins what each answer knows of a rank. The public API imports this.
"""

from traceanalyzer.analyzers.summary.facts import facts
from traceanalyzer.analyzers.summary.overview import overview

__all__ = ["facts", "overview"]
