"""Name the commands that fit a file without the data that an analysis needs."""

import shlex
from collections.abc import Callable, Sequence

from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Meta, Trace
from traceanalyzer.vocabulary import (
    ALLOCATOR_KINDS,
    FLIGHT_RECORDER,
    ITWINAI,
    MEMORY_SNAPSHOT,
    NCCL_INSPECTOR,
    NCU_CSV,
    NCU_REP,
    PRINTED_TEXT,
    PY_SPY_DUMP,
    REQUEST_LOG,
)

_STACKS = ("py_spy_report", "flamegraph")
_NCU = ("this is a report of Nsight Compute, without a timeline", ("roofline",))
#: By format: what a file is, and the analyzers for it.
_OF_FORMAT = {
    MEMORY_SNAPSHOT: ("this is a memory snapshot", ("memory",)),
    FLIGHT_RECORDER: ("this is a Flight Recorder dump", ("hang",)),
    NCCL_INSPECTOR: ("these are lines of NCCL Inspector", ("comm_outliers",)),
    PY_SPY_DUMP: ("these are the stacks of one moment", ("hang", "flamegraph")),
    NCU_CSV: _NCU,
    NCU_REP: _NCU,
    REQUEST_LOG: ("this is a request log, without a timeline", ("requests",)),
    ITWINAI: ("these are metrics of itwinai, without a timeline", ("scaling",)),
    "collapsed": ("these are sampled stacks", _STACKS),
    "speedscope": ("these are sampled stacks", _STACKS),
}
_IN_REPORTS = (MEMORY_SNAPSHOT, "collapsed", "speedscope")
#: Analyzers of printed text, which has no timeline.
_OF_TEXT = ("printed", "info")
#: By kinds of events, if a file of another format has no others.
_OF_KINDS = (
    ({*ALLOCATOR_KINDS, "cpu_instant_event"}, "the file has only memory events", ("memory",)),
    ({"sample"}, "the file has only sampled stacks", _STACKS),
    ({"python_function"}, "the file has only Python stacks", ("flamegraph",)),
)
_INCIDENTAL = {"trace", "other"}


def with_fitting_command(
    error: MissingData,
    meta: Meta,
    analyzer: str,
    read: Callable[[], Trace] | None,
    folder: str | None = None,
) -> MissingData:
    """Return an error with ``this is a memory snapshot: traceanalyzer memory FILE``.

    For a format of its own this replaces the advice on recording.

    Args:
        error: the error of the analyzer.
        meta: metadata of the file.
        analyzer: name of the analyzer.
        read: reads all events of the file; None if that takes long.
        folder: see :func:`not_for_reports`.
    """
    begin, (what, names) = f"{meta.path}: ", _OF_FORMAT.get(meta.format, ("", ()))
    if not what and read is not None:
        recorded = {*read().events["kind"].unique()} - _INCIDENTAL
        matches = ((text, names) for kinds, text, names in _OF_KINDS if recorded <= kinds)
        begin, (what, names) = f"{error}; ", next(matches, ("", ())) if recorded else ("", ())
    if analyzer == "py_spy_report" and not names:
        begin, what, names = f"{error}; ", "this is a trace", ("flamegraph", "diagnose")
    if analyzer in ("hang", "printed") and not names:
        begin, what, names = f"{error}; ", "this is a trace", ("diagnose",)
    if not names or analyzer.startswith(names):
        return error
    several = folder if meta.format in _OF_FORMAT else None
    return MissingData(f"{begin}{what}: {_lines(names, several)}")


def not_for(analyzer: str, meta: Meta) -> MissingData | None:
    """Return the error for printed text, unless it is for this analyzer."""
    if meta.format != PRINTED_TEXT or analyzer in _OF_TEXT:
        return None
    return MissingData(
        f"{meta.path}: this is printed text without a timeline: traceanalyzer printed FILE"
    )


def not_for_reports(meta: Meta, folder: str | None = None) -> MissingData | None:
    """Return the error for a file that no analysis of a report uses, with its command.

    Args:
        meta: metadata of the file.
        folder: folder of all inputs, if there are several: dumps of all ranks are analyzed at once.
    """
    if meta.format not in _OF_FORMAT or meta.format in _IN_REPORTS:
        return None
    what, names = _OF_FORMAT[meta.format]
    return MissingData(f"{meta.path}: {what}: {_lines(names, folder)}")


def _lines(names: Sequence[str], folder: str | None = None) -> str:
    """Return the commands; with a slash at its end a folder is the same with a full stop after."""
    place = shlex.quote(f"{folder.rstrip('/')}/") if folder else "FILE"
    return " or ".join(f"traceanalyzer {name.replace('_', '-')} {place}" for name in names)
