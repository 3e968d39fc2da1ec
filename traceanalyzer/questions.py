"""What a trace can be asked: the functions of analyzers as methods of ``Trace``.

``trace.kernels(by="rank")`` is ``traceanalyzer.kernels(trace, by="rank")``: the same function, not
a copy of it, so that keywords, help and types are the same. It is loaded when it is first used.
``make docs`` writes ``questions.pyi`` for type checkers.
Here and in the notebook methods of ``Result`` a lower room reaches for a higher one.
"""

from importlib import import_module
from types import MethodType
from typing import Any

from traceanalyzer.analyzers import registry


class _Method:
    """A function of the package by its name; of an instance, the method."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, trace: Any, owner: type) -> Any:
        function = getattr(import_module("traceanalyzer"), self.name)
        return function if trace is None else MethodType(function, trace)


class Questions:
    """Methods that answer; each is the function of the same name, the trace its first argument."""


#: Functions whose first argument are the inputs; ``diff`` has two runs.
METHODS = sorted(("diagnose", "report", *(e.name for e in registry.public() if e.name != "diff")))
for _name in METHODS:
    setattr(Questions, _name, _Method(_name))
