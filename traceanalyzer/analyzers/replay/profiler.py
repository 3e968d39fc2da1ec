"""The time that torch.profiler itself takes of the host, which a run without it does not spend.

Each recorded operator, CUDA call and Python function costs the host some microseconds, so that a
host which is far ahead of the GPU may fall behind it only while it is recorded. How many is
measured in the recording: some operators do nothing but call another one, so the difference of
their durations is what one more recorded operator costs inside another. An operator costs 2.3 such
times beside a GPU (1.2 to 1.5 without one): measured on 84 recordings of 80 programs on one H200
(torch 2.11, record_shapes) with the times of their steps without the profiler, and on CPUs by their
CPU time (torch 2.13).
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.common.names import named
from traceanalyzer.trace import Trace, of_kinds
from traceanalyzer.vocabulary import LAUNCH_KINDS

#: What gains of a run without the profiler mean.
UNPROFILED = (
    "Gains are of the run without the profiler: an estimate of the time that it takes of the host "
    "for each operator and CUDA call is left out. Other times are as recorded. To be sure, measure "
    "a step without the profiler."
)

_SLICE = ["pid", "tid", "ts", "dur"]
#: Operators that do nothing but call another one.
_EMPTY = {"aten::t": "aten::transpose", "aten::transpose": "aten::as_strided",
          "aten::reshape": "aten::view", "aten::matmul": "aten::mm"}  # fmt: skip
#: So many calls of them are enough to measure, and a slower host is slow for another reason.
_LEAST_CALLS, _MOST_NS = 8, 5_000
#: Cost of operators, of CUDA calls and functions of Python, and of built-in functions, in durations
#: of an empty operator, and the largest share of the time of operators, calls and other code.
_COSTS, _MOST_FRAC = (2.3, 1.0, 0.2), 0.75
#: Duration of an empty operator as a share of a launch call (median of both halves of the
#: recordings: 0.35 and 0.34), where none was recorded; and how many times the estimate the profiler
#: may take: as much explains the step of two in three of the recordings that it makes longer.
_OF_LAUNCH, _AT_MOST = 0.35, 2.0


def shares(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return which share of the host time before each call the profiler takes, and at most.

    Args:
        trace: the trace.
        calls: name, thread, start, end, launch_ns, code_ns, loader_ns, in order of their starts.

    Returns:
        profiler_frac: of ``launch_ns + code_ns``, as measured in the recording; 0 if unknown.
        profiler_most_frac: the largest share that is usual; 0 without operators.
    """
    is_operator = of_kinds(("cpu_op",)) & (pl.col("dur") >= 0)
    is_empty = pl.col("name").is_in([*_EMPTY, *_EMPTY.values()])
    main = calls["thread"] == -1
    measured_ns = _empty_ns(trace.events[["kind", "name", *_SLICE]].filter(is_operator, is_empty))
    known = trace.events.select(is_operator.any()).item()
    usual_ns = measured_ns or _of_launches_ns(calls) * known
    units = np.ones(calls.height)  # the call itself
    if usual_ns and main.any():
        function, builtin = of_kinds(("python_function",)), named(trace.names, ("^<built-in",))
        kinds = (is_operator, of_kinds(LAUNCH_KINDS) | function & ~builtin, function & builtin)
        start, end = (calls[side].filter(main).to_numpy() for side in ("start", "end"))
        since = np.minimum(np.maximum.accumulate(np.append(start[:1], end[:-1])), start)
        for one, each in zip(kinds, _COSTS, strict=True):
            times = trace.events[["kind", "name", "ts", "dur"]].filter(one)["ts"]
            units[main.to_numpy()] += each * _between(times, since, start)
    spent = calls.select(pl.sum_horizontal("launch_ns", "code_ns", "loader_ns").clip(1)).to_series()
    each_ns = {"profiler_frac": measured_ns, "profiler_most_frac": _AT_MOST * usual_ns}
    return pl.DataFrame(
        {name: (pl.Series(units) * main * ns / spent).clip(0, _MOST_FRAC)
         for name, ns in each_ns.items()}
    )  # fmt: skip


def _of_launches_ns(calls: pl.DataFrame) -> float:
    """Return the usual duration of an empty operator beside launch calls this long; 0 if none."""
    launches = calls.filter(pl.col("name").cast(pl.String).str.contains("^cuda?LaunchKernel"))
    median: Any = (launches["end"] - launches["start"]).median() or 0.0
    return min(_OF_LAUNCH * float(median), _MOST_NS)


def _empty_ns(operators: pl.DataFrame) -> float:
    """Return the duration of an empty operator without what it calls; 0 if unknown."""
    rows = operators.cast({"name": pl.String}).sort("pid", "tid", "ts", -pl.col("dur"))
    inner = rows.shift(-1).rename("{}_of".format)
    ends = pl.col("ts") + pl.col("dur") >= pl.col("ts_of") + pl.col("dur_of")
    same = pl.col("pid").eq_missing(pl.col("pid_of")) & pl.col("tid").eq_missing(pl.col("tid_of"))
    calls_it = pl.col("name").replace_strict(_EMPTY, default=None) == pl.col("name_of")
    empty = rows.hstack(inner).filter(same, calls_it, ends)
    if empty.height < _LEAST_CALLS:
        return 0.0
    return min(float(empty.select((pl.col("dur") - pl.col("dur_of")).median()).item()), _MOST_NS)


def _between(times: pl.Series, since: Any, until: Any) -> npt.NDArray[np.int64]:
    """Count times in each span."""
    ordered = times.sort().to_numpy()
    return np.searchsorted(ordered, until) - np.searchsorted(ordered, since)  # type: ignore[no-any-return]
