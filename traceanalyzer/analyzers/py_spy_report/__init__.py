"""Which code was running: leaf frames of sampled stacks, tagged by the library that called them.

In go traces with ``sample`` events; out comes a ``LeafPaths``. ``compute`` says of each frame
whether it counts and which library it is of, and makes of one trace the rows that it then joins
and ranks.

The method is that of itwinai's ``generate-py-spy-report``: a stack counts for its leaf, and is
tagged by the innermost frame of the library. Unlike there, every sample counts unless it is asked
to be left out: those of module code, of idle processes, of stacks without frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.py_spy_report.options import By, GroupBy, Match, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.py_spy_report.result import LeafPaths
    from traceanalyzer.reading import Inputs


def py_spy_report(
    inputs: Inputs,
    *,
    library_names: str | Sequence[str] = (),
    match: Match = "component",
    aggregate_leaf_paths: bool = False,
    group_by: GroupBy | None = None,
    by: By | None = None,
    drop_module: bool = False,
    exclude_idle_process: bool = False,
    rate: float | None = None,
    **reading: Unpack[Reading],
) -> LeafPaths:
    """Which code was running when a sampling profiler looked, and whose it is.

    A stack counts for its leaf frame, and is tagged by the innermost frame of a library, as
    :mod:`traceanalyzer.analyzers.py_spy_report` says. Any format with sampled stacks will do.

    Args:
        inputs: a trace, a file or a folder, or several of them. Of a folder or of several, what
            cannot be read or has no samples is skipped and named.
        library_names: whose frames to look for, the first listed wins; none: the user's own code,
            which is what lies outside of the standard library and the installed packages.
        match: ``component``: whole components of a path; ``substring``: anywhere in the path.
        aggregate_leaf_paths: one row for equal paths instead of one for each line of the file.
        group_by: sum by ``function``, ``line``, ``file``, ``module`` or ``library``: self, and
            total with what it calls.
        by: rows apart for each ``process``, ``thread``, ``rank`` or ``file``.
        drop_module: leave out module-level code, as itwinai's report does.
        exclude_idle_process: leave out samples without any Python frame.
        rate: samples a second; then the answer is in seconds.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no file can be read.
        MissingData: no samples.
        OptionError: an option makes no sense.
    """
    from traceanalyzer.analyzers.py_spy_report.compute import PY_SPY_REPORT
    from traceanalyzer.run import run

    options = Options(
        library_names, match, aggregate_leaf_paths, group_by, by, drop_module,
        exclude_idle_process, rate,
    )  # fmt: skip
    return run(PY_SPY_REPORT, inputs, options, **reading)
