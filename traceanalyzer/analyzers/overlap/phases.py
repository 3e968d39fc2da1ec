"""Phases of training in which work is launched: forward, backward and optimizer.

The innermost range with such a name on the launching thread decides. Without one, PyTorch runs the
backward pass on threads of its own: work that they launch is of the backward pass, work of the
thread that marks the steps is of the forward pass. If one thread launches all work, the phase is
unknown.
"""

import polars as pl

from traceanalyzer.analyzers.common.device_steps import device_steps
from traceanalyzer.analyzers.common.names import matching
from traceanalyzer.frames import linking
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ANNOTATION_KINDS

FORWARD, BACKWARD, OPTIMIZER, UNKNOWN = "forward", "backward", "optimizer", "unknown"

#: Names of ranges, the first match counts.
_RANGES = {
    OPTIMIZER: r"(?i)^Optimizer\.step#|\boptim(?:izer)?[ _.:-]*step|^optimizer$",
    BACKWARD: r"(?i)backward|\bbwd\b",
    FORWARD: r"(?i)forward|\bfwd\b",
}
_THREAD = ["pid", "tid"]


def phases(trace: Trace, calls: pl.DataFrame, threads: pl.DataFrame) -> pl.Series:
    """Return the phase of each launch call.

    Args:
        trace: the trace of one rank.
        calls: pid, tid, ``launch_start``.
        threads: pid and tid of all threads that launch work.
    """
    known: dict[str, str] = {}
    for phase, pattern in _RANGES.items():
        known = dict.fromkeys(matching(trace.names, [pattern]), phase) | known
    is_range = pl.col("kind").is_in(ANNOTATION_KINDS) & pl.col("name").is_in(list(known))
    events = trace.events[["kind", "name", *_THREAD, "ts", "dur"]].filter(
        is_range, pl.col("tid").is_not_null(), pl.col("dur") > 0
    )
    ranges = events.select("name", *_THREAD, start="ts", end=pl.col("ts") + pl.col("dur"))
    at = calls.select(*_THREAD, ts="launch_start")
    rows = linking.enclosing(at, ranges, _THREAD)["slice"]
    names = ranges["name"].cast(pl.String)[rows]
    named = names.replace_strict(known, default=None, return_dtype=pl.String)
    main = _main_threads(trace, ranges)
    if main.is_empty() or threads.join(main, on=_THREAD, how="anti").is_empty():
        return named.fill_null(UNKNOWN).alias("phase")
    is_main = pl.struct(_THREAD).is_in(main.to_struct().implode())
    by_thread = pl.when(is_main).then(pl.lit(FORWARD)).otherwise(pl.lit(BACKWARD))
    return calls.select(phase=pl.coalesce(named, by_thread)).to_series()


def _main_threads(trace: Trace, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the threads that mark steps, or run the optimizer."""
    steps = device_steps(trace).drop_nulls("tid")[_THREAD]
    is_optimizer = pl.col("name").cast(pl.String).str.contains(_RANGES[OPTIMIZER])
    return pl.concat([steps, ranges.filter(is_optimizer)[_THREAD]]).unique()
