"""What a trace can be asked: the functions of ``traceanalyzer.api`` as methods of ``Trace``.

``trace.kernels(by="rank")`` is ``traceanalyzer.kernels(trace, by="rank")``: the same function, not
a copy of it, so that keywords, help and types are the same. For the type checker an attribute below
is that function; when the package runs it is a descriptor, which loads the function on demand. Here
and in the notebook methods of ``Result`` a lower room reaches for a higher one.
"""

from __future__ import annotations

from importlib import import_module
from types import MethodType
from typing import TYPE_CHECKING, Any


class _Question:
    """A function of the API by its name; of an instance, the method."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, trace: Any, owner: type) -> Any:
        function = getattr(import_module("traceanalyzer.api"), self.name)
        return function if trace is None else MethodType(function, trace)


class _Api:
    """Stands for ``traceanalyzer.api``, and loads nothing."""

    def __getattr__(self, name: str) -> _Question:
        return _Question(name)


if TYPE_CHECKING:
    from traceanalyzer import api
else:
    api = _Api()


class Questions:
    """Methods that answer; each is the function of the same name, the trace its first argument."""

    annotations = api.annotations
    comm_outliers = api.comm_outliers
    cuda_api = api.cuda_api
    diagnose = api.diagnose
    flamegraph = api.flamegraph
    gpu_idle = api.gpu_idle
    host_metrics = api.host_metrics
    info = api.info
    kernels = api.kernels
    launches = api.launches
    memory = api.memory
    memory_diff = api.memory_diff
    memory_growth = api.memory_growth
    memory_oom = api.memory_oom
    operators = api.operators
    overlap = api.overlap
    py_spy_report = api.py_spy_report
    report = api.report
    steps = api.steps
    transfers = api.transfers
