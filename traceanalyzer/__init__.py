"""Why is training slow? Reads what profilers wrote and names the cause.

>>> import traceanalyzer as ta
>>> trace = ta.read("fixtures/nccl_8ranks/rank5.json.gz")  # any format, detected by content
>>> trace.events.select("ts", "dur", "kind").height        # a polars table, whole nanoseconds
489
>>> idle = trace.gpu_idle()                                # each question is a method of a trace
>>> print(idle.verdict)
The GPU is idle for 5.339 ms per step and GPU (25.1 % of step time). ...
>>> late = ta.comm_outliers("fixtures/nccl_8ranks")        # and a function of files and folders
>>> late.to_polars("ranks").select("rank", "imposed_ns").row(0)
(5, 185107732)
>>> axes = idle.plot("gaps")                               # matplotlib axes, yours to adapt

A result shows itself in a notebook; ``print(result)`` is what the command line prints. Its
``verdict`` is the answer in words, ``to_polars(name)`` one of its tables, ``scalars`` its numbers:
names carry the unit (``_ns``, ``_bytes``, ``_frac``). ``help(trace.gpu_idle)`` says what a question
answers and takes. What was not recorded raises ``MissingData``, which says how to record it.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from traceanalyzer.analyzers import registry

#: Version of the package; ``pyproject.toml`` reads it from here.
__version__ = "0.1.0"

#: Public names by the module they are in, besides those of the registry. ``make docs`` writes
#: ``__init__.pyi`` for type checkers.
_MODULES = {
    "errors": "InputError MalformedInput MissingData MissingExtra OptionError OutputError "
    "TraceAnalyzerError UnknownFormat UnreadableFile",
    "run.find": "find_inputs",
    "run.read": "read",
    "tools.budgets": "check_fix",
    "tools.job": "Job read_job",
    "drawings": "Chart",
    "result": "Finding Report Result Table",
    "trace": "Device Meta Trace concat",
}
_HOME = {name: f"{__name__}.{home}" for home, names in _MODULES.items() for name in names.split()}
_HOME |= registry.NAMES

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif _is_of_package(name) and name in registry.plugin_names():
        value = registry.entry(name).function()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_similar(name)}")
    globals()[name] = value
    return value


def _is_of_package(name: str) -> bool:
    """Whether a name may be of another package; ``from traceanalyzer import files`` asks too."""
    return not name.startswith("_") and find_spec(f"{__name__}.{name}") is None


def _similar(name: str) -> str:
    """Return a suggestion for a misspelt name; only names that people type get one."""
    if name.startswith("_"):
        return ""
    from difflib import get_close_matches

    # functions are last in __all__, classes first
    known = {one.lower(): one for one in (__all__ if name.islower() else __all__[::-1])}
    close = get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[close[0]]}?" if close else ""


def __dir__() -> list[str]:
    return [*__all__, "__version__", *registry.plugin_names()]
