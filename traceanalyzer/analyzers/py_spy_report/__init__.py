"""Lines of own code by the time of sampled stacks, and leaf frames tagged by library.

The input are traces with ``sample`` events. ``compute`` selects the frames that count, finds their
library, and combines the rows of all files; ``result`` has the data, verdict, notes and tables. The
lines of own code are those of :mod:`traceanalyzer.analyzers.common.own_lines`.

The method of leaf paths is that of itwinai's ``generate-py-spy-report``: a stack counts for its
leaf, and is tagged by the innermost frame of the library. In contrast, all samples count by
default: also those of module code, of idle processes and of stacks without frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.py_spy_report.options import By, GroupBy, Match, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.py_spy_report.result import LeafPaths
    from traceanalyzer.trace import Inputs


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
    """Return which lines of own code take the time of the samples.

    A stack counts for its innermost line of own code; as leaf path it counts for its leaf frame and
    is tagged by the innermost frame of a library. All formats with sampled stacks are supported.

    Args:
        inputs: a trace, a file or a folder, or several of them. In a folder or several inputs,
            files that cannot be read or have no samples are skipped and reported.
        library_names: libraries to tag by, the first listed wins; none: the user's own code, which
            is all code outside the standard library and the installed packages.
        match: ``component``: whole components of a path; ``substring``: anywhere in the path.
        aggregate_leaf_paths: one row for equal paths instead of one for each line of the file.
        group_by: self and total sums by ``function``, ``line``, ``file``, ``module`` or
            ``library``.
        by: also group by ``process``, ``thread``, ``rank`` or ``file``.
        drop_module: ignore module-level code, as itwinai's report does.
        exclude_idle_process: ignore samples without a Python frame.
        rate: samples per second; the result is then in seconds.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no file can be read.
        MissingData: no samples were recorded.
        OptionError: an option is invalid.
    """
    from traceanalyzer.analyzers.py_spy_report.compute import PY_SPY_REPORT
    from traceanalyzer.run.loop import run

    options = Options(
        library_names, match, aggregate_leaf_paths, group_by, by, drop_module,
        exclude_idle_process, rate,
    )  # fmt: skip
    return run(PY_SPY_REPORT, inputs, options, **reading)
