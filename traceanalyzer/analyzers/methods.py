"""The functions of analyzers as methods of ``Trace`` and ``Job``.

``trace.kernels(by="rank")`` is ``traceanalyzer.kernels(trace, by="rank")``: the same function with
the same keywords, help and types, imported on first use. ``make docs`` writes ``methods.pyi`` for
type checkers. Here and in the notebook methods of ``Result`` a lower layer imports a higher one.
"""

from contextlib import suppress
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
        return function if trace is None else MethodType(function, trace._inputs)


class AnalysisMethods:
    """Methods that call the function of the same name with the inputs as first argument."""

    @property
    def _inputs(self) -> Any:
        """The first argument of the functions."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Return the method of an analysis that another package adds."""
        if name.startswith("_") or name not in registry.plugin_names():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return MethodType(registry.entry(name).function(), self._inputs)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *registry.plugin_names()]

    def _repr_html_(self) -> str:
        """Return the contents of the files and what the devices do over time, for a notebook."""
        package = import_module("traceanalyzer")
        parts = [package.info(self._inputs)]
        with suppress(package.TraceAnalyzerError):  # a file without device work has no timeline
            parts.append(package.timeline(self._inputs))
        fragment = import_module("traceanalyzer.render.html").fragment
        return "\n".join(fragment(part, top=5) for part in parts)


for _name in registry.METHODS:
    setattr(AnalysisMethods, _name, _Method(_name))
