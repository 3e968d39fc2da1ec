"""The functions of analyzers as methods of ``Trace``.

``trace.kernels(by="rank")`` is ``traceanalyzer.kernels(trace, by="rank")``: the same function with
the same keywords, help and types, imported on first use. ``make docs`` writes ``questions.pyi`` for
type checkers. Here and in the notebook methods of ``Result`` a lower layer imports a higher one.
"""

from importlib import import_module
from types import MethodType
from typing import Any

from traceanalyzer.analyzers import registry


class _Method:
    """A function of the package by name; for an instance, a bound method."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, trace: Any, owner: type) -> Any:
        function = getattr(import_module("traceanalyzer"), self.name)
        return function if trace is None else MethodType(function, trace)


class Questions:
    """Methods that call the function of the same name with the trace as first argument."""


#: Functions of several runs.
_OF_RUNS = ("diff", "scaling")
#: Functions whose first argument is the inputs.
METHODS = sorted(
    ("diagnose", "query", "report", *(e.name for e in registry.public() if e.name not in _OF_RUNS))
)
for _name in METHODS:
    setattr(Questions, _name, _Method(_name))
