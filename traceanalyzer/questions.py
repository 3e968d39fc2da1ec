"""What a trace can be asked: the functions of analyzers as methods of ``Trace``.

``trace.kernels(by="rank")`` is ``traceanalyzer.kernels(trace, by="rank")``: the same function, not
a copy of it, so that keywords, help and types are the same. It is loaded when it is first used.
Here and in the notebook methods of ``Result`` a lower room reaches for a higher one.
"""

from __future__ import annotations

from importlib import import_module
from types import MethodType
from typing import TYPE_CHECKING, Any

from traceanalyzer.analyzers import registry

if TYPE_CHECKING:
    import traceanalyzer as functions


class _Method:
    """A function of the package by its name; of an instance, the method."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, trace: Any, owner: type) -> Any:
        function = getattr(import_module("traceanalyzer"), self.name)
        return function if trace is None else MethodType(function, trace)


class Questions:
    """Methods that answer; each is the function of the same name, the trace its first argument."""

    if TYPE_CHECKING:  # as the loop below makes them
        annotations = functions.annotations
        comm_outliers = functions.comm_outliers
        cuda_api = functions.cuda_api
        diagnose = functions.diagnose
        flamegraph = functions.flamegraph
        gpu_idle = functions.gpu_idle
        host_metrics = functions.host_metrics
        info = functions.info
        kernels = functions.kernels
        launches = functions.launches
        memory = functions.memory
        memory_diff = functions.memory_diff
        memory_growth = functions.memory_growth
        memory_oom = functions.memory_oom
        operators = functions.operators
        overlap = functions.overlap
        py_spy_report = functions.py_spy_report
        report = functions.report
        steps = functions.steps
        transfers = functions.transfers


#: Functions whose first argument are the inputs; ``diff`` has two runs.
METHODS = sorted(("diagnose", "report", *(e.name for e in registry.public() if e.name != "diff")))
for _name in METHODS:
    setattr(Questions, _name, _Method(_name))
