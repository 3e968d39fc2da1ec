"""Host slices that make steps slow: checkpoints, evaluation, compilation."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.common import device_steps
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, device_work
from traceanalyzer.analyzers.common.host_code import THREAD, common_places, places_of, python_frames
from traceanalyzer.analyzers.common.launching import launch_rows
from traceanalyzer.analyzers.common.names import ADDRESS, BACKWARD, LAYERS, matching
from traceanalyzer.analyzers.common.step_marks import STEP
from traceanalyzer.analyzers.gpu_idle.causes import MAKES_CODE, OPERATOR
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import Trace, of_kinds
from traceanalyzer.units import NS_PER_MS

#: A step that takes more than this many times the median is slow.
SLOW = 1.1

#: Least share of the excess of a slow step over the median, for slices to count ...
_LEAST_FRAC = 0.3

#: ... and most share of their time in other steps.
_ELSEWHERE_FRAC = 0.2

#: Kinds of slices that say which code runs: annotations, Python functions, and copies.
CODE = (*vocabulary.ANNOTATION_KINDS, "python_function", "other", "gpu_memcpy")

#: Kinds of slices, user-named ones first: of nested slices of equal duration the first counts.
_KINDS = (*CODE, "cpu_op", *vocabulary.LAUNCH_KINDS)

#: Slices with more than this share of their time in another one have the same cause ...
_SAME_FRAC = 0.5

#: ... which one within another names if it has this share of the other one's excess.
_MOST_FRAC = 0.7

#: Functions of decorators, such as ``torch.no_grad``: they call what they decorate.
_DECORATORS = r"(?:^|[/\\])(?:_contextlib|contextlib|functools)\.py\("

_SCHEMA = {
    "step": pl.String,
    "kind": pl.String,
    "name": pl.String,
    "n": pl.Int64,
    "total_ns": pl.Int64,
    "usual_ns": pl.Int64,
}


def only_slow(trace: Trace, steps: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return host slices of slow steps, rare in others, with at least 30 % of the excess time.

    Args:
        trace: the trace of one rank.
        steps: step, start, end, ``host_start`` and ``host_end``, in which their slices begin.
        calls: rows of :func:`calls_of_steps`.

    Returns:
        step, kind, name, n, ``total_ns`` (of slices that begin in the step), ``usual_ns`` (the mean
        of steps that are not slow; null if these have no such slice), the largest excess over the
        usual first; of nested slices one is kept, see :func:`_without_nested`. Python functions
        count on threads that mark steps: other threads wait for work most of the time.
    """
    each = _counted(steps[["step", "start", "end", "host_start", "host_end"]])
    length = pl.col("end") - pl.col("start")
    usual_ns = device_steps.usual_ns(length)
    slow = each.with_columns(over=length - usual_ns).filter(length > SLOW * usual_ns)
    each = each.select("step", start="host_start", end="host_end")
    if slow.is_empty() or 2 * slow.height > each.height:
        return pl.DataFrame(schema=_SCHEMA)
    least: float = slow["over"].min()  # type: ignore[assignment]
    of_all = [_forward_only(trace, calls, slow)]
    if device_work(trace).is_empty():
        of_all.append(_all_operators(calls, slow))
    slices = _in_steps(trace, each, int(_LEAST_FRAC * least) // _MANY)
    if slices.is_empty():
        return pl.concat(of_all)
    sums = slices.group_by("step", "name").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("dur").sum(), kind=pl.col("kind").first()
    )
    # a number in a name, such as that of a layer, may be another one in each step
    sums = sums.with_columns(pl.col("name", "kind").cast(pl.String))
    sums = sums.with_columns(plain=pl.col("name").str.replace_all(r"\d+", "0"))
    others = max(each.height - slow.height, 1)
    usual = (
        sums.join(slow, on="step", how="anti")
        .group_by("plain")
        .agg(usual_ns=(pl.col("total_ns").sum() / others).round().cast(pl.Int64))
    )
    candidates = sums.join(slow[["step", "over"]], on="step").join(usual, on="plain", how="left")
    kept = candidates.filter(
        pl.col("total_ns") - pl.col("usual_ns").fill_null(0) >= _LEAST_FRAC * pl.col("over"),
        pl.col("usual_ns").fill_null(0) <= _ELSEWHERE_FRAC * pl.col("total_ns"),
        ~pl.col("name").str.contains(_DECORATORS),
    )
    if kept.is_empty():
        return pl.concat(of_all)
    short = _in_steps(trace, each.join(slow, on="step", how="anti"), 0, kept["name"])
    elsewhere = pl.col("name").is_in(short["name"].cast(pl.String).unique().implode())
    elsewhere |= pl.col("usual_ns").is_not_null()
    kept = kept.with_columns(usual_ns=pl.when(elsewhere).then(pl.col("usual_ns").fill_null(0)))
    spans = slices.select(
        pl.col("step", "name").cast(pl.String), start="ts", end=pl.col("ts") + pl.col("dur")
    )
    rows = _without_nested(_without_waiting(kept, spans, trace), spans).select(
        pl.col(name).cast(of) for name, of in _SCHEMA.items()
    )
    return pl.concat([rows, *of_all])


def _without_waiting(rows: pl.DataFrame, spans: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Remove operators, calls and built-in functions that mostly wait for the device.

    Its work is what takes long. Named parts of the program, such as autotuning, are kept: they may
    wait for their own work.

    Args:
        rows: step, kind, name, ``total_ns``.
        spans: step, name, start, end of the slices.
        trace: of one rank.
    """
    names = matching(trace.names, vocabulary.SYNCHRONISING_CALLS)
    calls = trace.events[["kind", "name", "ts", "dur"]].filter(
        of_kinds(vocabulary.LAUNCH_KINDS), pl.col("name").is_in(names)
    )
    waits = calls.select(start="ts", end=pl.col("ts") + pl.col("dur"))
    of_rows = spans.join(rows, on=("step", "name"), how="semi")
    waiting = intervals.overlap_with(of_rows, waits).group_by("step", "name")
    sums = waiting.agg(waited_ns=pl.col("overlap").sum())
    is_call = pl.col("name").str.contains(rf"{OPERATOR}|^<built-in ")
    is_operator = of_kinds(vocabulary.LAUNCH_KINDS) | is_call
    mostly_waits = 2 * pl.col("waited_ns") > pl.col("total_ns")
    joined = rows.join(sums, on=("step", "name"), how="left", maintain_order="left")
    return joined.filter(~(is_operator & mostly_waits.fill_null(value=False)))


def _in_steps(
    trace: Trace,
    each: pl.DataFrame,
    least_ns: int,
    names: pl.Series | None = None,
    short: tuple[str, ...] = (),
) -> pl.DataFrame:
    """Return slices of at least ``least_ns`` that begin in a step: ts, dur, name, kind, step.

    Those of the kinds ``short`` may take less. Slices without an end do not count.
    """
    least = pl.when(of_kinds(short)).then(0).otherwise(least_ns)
    chosen = [of_kinds(_KINDS), pl.col("dur") >= least]
    if names is not None:
        chosen.append(pl.col("name").is_in([*names.unique(), *each.select(STEP)["step"]]))
    slices = trace.events[["ts", "dur", "tid", "name", "kind"]].filter(chosen)
    marks = each.select(STEP).to_series().implode()
    marking = slices.filter(pl.col("name").is_in(marks))["tid"].unique()
    if marking.len() and "python_function" in trace.kinds:
        elsewhere = ~pl.col("tid").is_in(marking.implode())
        slices = slices.filter(~(elsewhere & (pl.col("kind") == "python_function")))
    # a slice within one of the same name is a part of it
    ends = (pl.col("ts") + pl.col("dur")).cum_max().shift(1).over("tid", "name")
    slices = slices.filter((pl.col("ts") + pl.col("dur") > ends).fill_null(value=True))
    number = linking.label_by_interval(slices[["ts"]], each)["interval"]
    of_step = slices[["ts", "dur", "name", "kind"]].hstack([each["step"][number]])
    return of_step.filter(pl.col("step").is_not_null() & ~pl.col("name").is_in(marks))


_BETWEEN = {name: of for name, of in _SCHEMA.items() if name not in ("step", "usual_ns")}

#: What slow steps run that have many layers more than others, but no more of a backward pass.
FORWARD_ONLY = "forward passes without a backward pass"

#: From so many times as many layers on.
_MORE = 1.5


def _forward_only(trace: Trace, calls: pl.DataFrame, slow: pl.DataFrame) -> pl.DataFrame:
    """Rows for steps that evaluate: ``total_ns`` is their time beyond the median step.

    Steps that compile do not: tracing runs layers, too.
    """
    named = [matching(trace.names, [one]) for one in (LAYERS, BACKWARD, r"\(dynamo_timed\)$")]
    if not all(named[:2]):
        return pl.DataFrame(schema=_SCHEMA)
    layers, backward, compiled = (
        calls.filter(pl.col("name").is_in(names)).group_by("step").len("n") for names in named
    )
    rows = slow.join(compiled, on="step", how="anti").join(layers, on="step")
    rows = rows.join(backward, on="step", how="left", suffix="_backward")
    rows = rows.with_columns(pl.col("n_backward").fill_null(0))
    usual, usual_backward = (
        counts.join(slow, on="step", how="anti").select(pl.col("n").median()).item() or 0
        for counts in (layers, backward)
    )
    is_more = (pl.col("n") >= _MORE * usual) & (pl.col("n_backward") <= _MORE * usual_backward)
    steps = rows.filter(is_more, usual > 0, usual_backward > 0).with_columns(
        kind=pl.lit("other"), name=pl.lit(FORWARD_ONLY), total_ns="over", usual_ns=None
    )
    return steps.select(pl.col(name).cast(of) for name, of in _SCHEMA.items())


def between(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """What the host runs between steps, if that takes 30 % of the time between them or more.

    Args:
        trace: of one rank.
        steps: start, end, ``host_start``, ``host_end``.

    Returns:
        kind, name, n, ``total_ns`` between two steps of slices that begin and end between them on
        the host, the longest first; of nested slices one is kept.
    """
    each = steps[["start", "end", "host_start", "host_end"]].unique("start").sort("start")
    windows, on_host = (
        edges.select(start=pl.col("end").shift(1), end="start").filter(
            pl.col("end") > pl.col("start")
        )
        for edges in (each, device_steps.on_host(each))
    )
    length = int((windows["end"] - windows["start"]).sum())
    if not length:
        return pl.DataFrame(schema=_BETWEEN)
    slices = linking.label_by_interval(trace.events[["kind", "name", "ts", "dur"]], on_host)
    begun = pl.col("interval").is_not_null()  # first, as these are few
    slices = slices.filter(begun & of_kinds(_KINDS) & (pl.col("dur") > 0))
    marks = matching(trace.names, [f"^{vocabulary.PROFILER_STEP}"])
    inside = slices.select("kind", "name", start="ts", end=pl.col("ts") + pl.col("dur")).filter(
        pl.col("end") <= on_host["end"][slices["interval"]], ~pl.col("name").is_in(marks)
    )
    inside = inside.with_columns(dur=intervals.overlap_with(inside, windows)["overlap"])
    inside = inside.filter(pl.col("dur") > 0)
    sums = inside.group_by("name").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("dur").sum(), kind=pl.col("kind").first()
    )
    kept = sums.with_columns(pl.col("name", "kind").cast(pl.String)).filter(
        pl.col("total_ns") >= _LEAST_FRAC * length
    )
    if kept.is_empty():
        return pl.DataFrame(schema=_BETWEEN)
    of_kept = inside.filter(pl.col("name").is_in(kept["name"].implode()))
    spans = of_kept.select(pl.col("name").cast(pl.String), "start", "end", step=pl.lit(""))
    none = pl.lit(None, pl.Int64)
    rows = _without_nested(kept.with_columns(step=pl.lit(""), usual_ns=none), spans)
    return rows.select(pl.col(name).cast(of) for name, of in _BETWEEN.items())


#: Least share of the median step of slices that are compared between ranks, and most names.
LONG_FRAC, _MOST_NAMES = 0.01, 200

_CODE = {
    "kind": pl.String,
    "name": pl.String,
    "n": pl.Int64,
    "total_ns": pl.Int64,
    "median_ns": pl.Int64,
}


def code(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return annotations, compilations and Python functions that run long in or between steps.

    Args:
        trace: of one rank.
        steps: step, start, end, ``host_start``, ``host_end``.

    Returns:
        kind, name (without addresses), n, ``median_ns`` (on the host), ``total_ns`` of annotations,
        and of functions of at least 1 % of the median step, that begin after the first step that is
        not warm-up begins, largest first. Total time of a slice is that on the host, or that of the
        device work that it launches if this is longer.
    """
    each = _counted(steps[["step", "start", "end", "host_start", "host_end"]])
    least = int(LONG_FRAC * float((each["end"] - each["start"]).median() or 0))  # type: ignore[arg-type]
    until = pl.col("host_start").shift(-1).fill_null(pl.col("host_end"))
    spans = each.select("step", start="host_start", end=until)
    slices = _in_steps(trace, spans, max(least, 1), short=vocabulary.ANNOTATION_KINDS)
    compiles = pl.col("name").is_in(matching(trace.names, [MAKES_CODE[1]]))  # of torch.compile
    in_later = compiles & (pl.col("step").cast(pl.String) != each["step"].cast(pl.String).first())
    compiles &= in_later.any()  # in the first step alone it is setup
    kinds = (*vocabulary.ANNOTATION_KINDS, "python_function")
    slices = slices.filter(pl.col("kind").is_in(kinds) | compiles)
    time = pl.max_horizontal("dur", pl.lit(_launched_ns(trace, slices))).alias("total_ns")
    sums = slices.select("kind", "name", time, median_ns="dur").group_by("kind", "name")
    plain = pl.col("name").cast(pl.String).str.replace(ADDRESS, "")
    usual = pl.col("median_ns").median()
    summed = sums.agg(pl.col("total_ns").sum(), usual, n=pl.len().cast(pl.Int64))
    named = summed.select(pl.col("kind").cast(pl.String), plain, "n", "total_ns", "median_ns")
    summed = named.group_by("kind", "name").agg(pl.col("n", "total_ns").sum(), usual)
    largest = summed.sort("total_ns", "name", "kind", descending=[True, False, False])
    return largest.head(_MOST_NAMES).select(pl.col(one).cast(of) for one, of in _CODE.items())


def _launched_ns(trace: Trace, slices: pl.DataFrame) -> pl.Series:
    """Return the sum of the device work, without communication, that is launched in each slice."""
    work = device_work(trace)
    rows = launch_rows(trace, work)
    kept = (rows >= 0) & (work["work_kind"] != COMMUNICATION).to_numpy()
    launched = trace.events["ts"].to_numpy()[rows[kept]]
    order = np.argsort(launched, kind="stable")
    times = (work["end"] - work["start"]).to_numpy()[kept][order]
    before = np.append(0, np.cumsum(times))
    first, last = (
        before[np.searchsorted(launched[order], ends.to_numpy())]
        for ends in (slices["ts"], slices["ts"] + slices["dur"])
    )
    return pl.Series(last - first)


_CALLS = ["name", "number"]

#: Calls grow if their number and that of the step are correlated this much, over so many steps ...
_STEADY, _LEAST_STEPS = 0.95, 5
#: ... and the last step has this many times as many as the first.
_GROWN = 1.05

#: Number of the steps, and durations of all and of the last one.
_STEPS = dict.fromkeys(("steps", "steps_ns", "last_step_ns"), pl.Int64)

_GROWING = {
    **dict.fromkeys(("name", "outer", "code", "called"), pl.String),
    **dict.fromkeys(("first", "last", "more_ns", "last_ns"), pl.Int64),
    **_STEPS,
}


def growing(trace: Trace, steps: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the operators, else kernels, of which no step runs less than the one before.

    Args:
        trace: the trace of one rank.
        steps: step, start, end of its steps.
        calls: rows of :func:`calls_of_steps`.

    Returns:
        One row at most: name (with the longest time), its calls in the first and last step,
        ``more_ns`` and ``last_ns`` (self time of all growing calls beyond as many as in the first
        step, over all steps and in the last one, at the time of a call in the fastest step), and
        outer, code and called of :func:`~.host_code.common_places` around all of them, steps.
    """
    each = steps["start"].n_unique()
    sums = calls.group_by(_CALLS).agg(n=pl.len().cast(pl.Int64), ns=pl.col("ns").sum())
    numbers = pl.int_range(each, dtype=pl.UInt32, eager=True).alias("number").to_frame()
    every = sums.select("name").unique().join(numbers, how="cross")
    n, first = pl.col("n"), pl.col("n").first()
    known = every.join(sums, on=_CALLS, how="left").with_columns(n.fill_null(0)).sort(_CALLS)
    more, usual = n - first, (pl.col("ns") / n).min()
    rows = known.group_by("name").agg(
        first=first, last=n.last(), more_ns=more.sum() * usual, last_ns=more.last() * usual,
        steady=(n.diff() >= 0).all() & (pl.corr("number", "n") >= _STEADY),
    )  # fmt: skip
    least = pl.max_horizontal(_GROWN * pl.col("first"), pl.col("first") + each)
    rows = rows.filter("steady", pl.col("last") >= least, each >= _LEAST_STEPS)
    if rows.is_empty():
        return pl.DataFrame(schema=_GROWING)
    of_rows = calls.filter(pl.col("name").is_in(rows["name"].implode()))
    around = common_places(trace, of_rows.select(*THREAD, "ts", "ns", group=pl.lit(0)))
    main = rows.sort("more_ns", "name", descending=[True, False]).head(1)
    sums = main.with_columns(rows.select(pl.col("more_ns", "last_ns").sum()))
    joined = sums.with_columns(group=pl.lit(0), **_lengths(steps)).join(
        around, on="group", how="left"
    )
    return joined.select(pl.col(one).cast(of) for one, of in _GROWING.items())


_HOST_MEMORY = {
    **dict.fromkeys(("outer", "code", "called"), pl.String),
    **dict.fromkeys(("steps", "first_bytes", "last_bytes"), pl.Int64),
}
#: Memory grows steadily if no step adds less than this share of what another one adds, and at least
#: so many bytes: less is that of losses and metrics that a program may keep.
_EVENLY, _LEAST_BYTES = 0.5, 1 << 20


def host_memory(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the growth of PyTorch's memory of the host, if each step keeps about as much.

    Returns:
        One row at most: steps, ``first_bytes`` and ``last_bytes`` (allocated at the end of the
        first and of the last step since the recording began), and outer, code and called of
        :func:`~.host_code.common_places` around the blocks that the steps allocate and do not free.
    """
    none = pl.DataFrame(schema=_HOST_MEMORY)
    if "cpu_instant_event" not in trace.kinds:
        return none
    columns = trace.events[["kind", *THREAD, "ts", "device", "bytes", "address"]]
    events = columns.filter(
        pl.col("kind") == "cpu_instant_event", pl.col("device").is_null(), pl.col("bytes") != 0
    ).sort("ts", maintain_order=True)
    ends = steps["host_end"].unique().sort()
    before = events["ts"].search_sorted(ends)
    live = [int(events["bytes"].head(n).sum()) for n in before]
    more = np.diff(live)
    if more.size + 1 < _LEAST_STEPS or more.min() < max(_EVENLY * more.max(), _LEAST_BYTES):
        return none
    last = events.group_by("address").last().filter(pl.col("bytes") > 0)
    kept = last.filter(pl.col("ts").is_between(steps["host_start"].min(), ends[-1]))
    around = common_places(trace, kept.select(*THREAD, "ts", ns="bytes", group=pl.lit(0, pl.Int64)))
    numbers = {"group": 0, "steps": ends.len(), "first_bytes": live[0], "last_bytes": live[-1]}
    row = pl.DataFrame([numbers]).join(around, on="group", how="left")
    return row.select(pl.col(one).cast(of) for one, of in _HOST_MEMORY.items())


def _counted(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that are no warm-up, in order, each once."""
    each = steps.unique("start").sort("start")
    return each.filter(~device_steps.is_warm_up(each, ()))


def _lengths(steps: pl.DataFrame) -> dict[str, Any]:
    lengths = steps.unique("start").sort("start").select(pl.col("end") - pl.col("start"))["end"]
    return {"steps": lengths.len(), "steps_ns": lengths.sum(), "last_step_ns": lengths[-1]}


#: Operators that multiply matrices, none of which calls another one, and modules of PyTorch.
_PRODUCTS, _MODULE = r"^aten::(?:(?:add|b|baddb)?mm|convolution(?:_backward)?)$", "^nn.Module: "

_DOUBLES = {"name": pl.String, "code": pl.String} | dict.fromkeys(
    ("n", "others", "ns", "others_ns", *_STEPS), pl.Int64
)


def doubles(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the matrix products of the CPU in double precision, if others have a lower one.

    Returns:
        One row at most: name (of the first module with one, else of the operator), code (its own
        code), n and ns (of these products from the first to the last step after warm-up), others,
        ``others_ns``.
    """
    none = pl.DataFrame(schema=_DOUBLES)
    if "input_types" not in trace.events.columns or device_work(trace).height:
        return none
    steps = _counted(steps)
    within = pl.col("ts").is_between(steps["host_start"].min(), steps["host_end"].max())
    products = pl.col("name").is_in(matching(trace.names, [_PRODUCTS]))
    calls = trace.events.filter(pl.col("kind") == "cpu_op", within, products, pl.col("dur") > 0)
    is_double = pl.col("input_types").cast(pl.String).str.contains(r"^\W*double\b")
    rows, others = (calls.filter(of_them) for of_them in (is_double, ~is_double))
    if rows.is_empty() or others.is_empty():
        return none
    modules = trace.events.filter(pl.col("name").is_in(matching(trace.names, [_MODULE])))
    spans = modules.select(*THREAD, "name", start="ts", end=pl.col("ts") + pl.col("dur"))
    layer = spans["name"][linking.enclosing(rows, spans, THREAD)["slice"]]
    named = rows.select("name", layer=layer, code=python_frames(trace, rows))
    first = named.sort(pl.col("layer").is_null(), maintain_order=True).head(1)
    row = first.select(pl.coalesce("layer", "name").alias("name"), "code").with_columns(
        n=rows.height,
        others=others.height,
        ns=rows["dur"].sum(),
        others_ns=others["dur"].sum(),
        **_lengths(steps),
    )
    return row.select(pl.col(one).cast(of) for one, of in _DOUBLES.items())


#: Operators, none of which waits, their least time in a step, and least number of steps.
_COMPUTES, _LEAST_NS, _SEVERAL = r"^aten::", 20 * NS_PER_MS, 3
#: Calls take so many times as long as their fastest ones in each step where threads lack CPUs.
_CONTENDED = 2
#: Calls from this time on depend on their inputs. They are longer as the next ones are from this
#: correlation on (without CPUs: 0.03 to 0.08).
_LARGE_NS, _ALIKE_CALLS = 20_000, 0.4
_OF_CALLS = dict.fromkeys(("ns", "fast_ns", "least_ns", *_STEPS), pl.Int64)


def contended(trace: Trace, steps: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return how much longer operators of the CPU take in every step than the same calls can.

    The nth call of an operator on a thread is the same in all steps, if they have as many. Larger
    inputs, or a stall, make it longer in some steps: the fastest step then has the fastest calls.
    If each step has others, threads did not get a CPU whenever they needed one.

    Inputs of other sizes (sequences, tokens of experts) change calls that follow each other alike;
    a lack of CPUs delays some of them. Steps of warm-up do not count.

    Returns:
        One row at most: ns and ``fast_ns`` of these calls in all steps, and in one step if each
        call was as fast as in its fastest step; ``least_ns`` in the fastest step; steps.
    """
    none, steps = pl.DataFrame(schema=_OF_CALLS), _counted(steps)
    n, calls = steps.height, calls.filter(pl.col("step").is_in(steps["step"].implode()))
    if n < _SEVERAL or device_work(trace).height or "cpu_op" not in trace.kinds:
        return none
    place = pl.int_range(pl.len()).over("number", "tid", "name")
    computes = pl.col("name").is_in(matching(trace.names, [_COMPUTES]))
    rows = calls.sort("ts").filter(computes).with_columns(place=place)
    key = ["tid", "name", "place"]
    rows = rows.with_columns(fast=pl.col("ns").min().over(key)).filter(pl.len().over(key) == n)
    each = rows.group_by("number").agg(pl.col("ns", "fast").sum())
    if each.is_empty() or each["ns"].min() < max(_LEAST_NS, _CONTENDED * each["fast"][0]):
        return none
    large = rows.filter(pl.col("fast") >= _LARGE_NS)
    longer = (pl.col("ns") / pl.col("fast")).log()
    following = longer.shift(-1).over("number", "tid")
    if not large.select(pl.corr(longer, following) < _ALIKE_CALLS).item():
        return none
    sums = {"ns": each["ns"].sum(), "fast_ns": each["fast"][0], "least_ns": each["ns"].min()}
    return pl.DataFrame([sums | _lengths(steps)], schema=_OF_CALLS)


def calls_of_steps(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return pid, tid, name, ts, ns (self time), number, step of operators, else of kernels."""
    each = steps[["step", "start", "end", "host_start", "host_end"]].unique("start").sort("start")
    rows, windows = places_of(trace).tree, device_steps.on_host(each)
    if rows.is_empty():
        work = device_work(trace).with_columns(tid=pl.lit(None, pl.Int64))
        rows, windows = work.with_columns(self_time=pl.col("end") - pl.col("start")), each
    calls = rows.select(*THREAD, "name", ts="start", ns="self_time")
    number = linking.label_by_interval(calls, windows)["interval"].alias("number")
    return calls.hstack([number, each["step"][number]]).drop_nulls("number")


#: All operators of the CPU, which take longer in slow steps although no single one explains it, and
#: the least share of the excess for that.
ALL_OPERATORS, _BY_CHANCE = "all operators", 0.7
#: All of a step takes longer if operators do by this share of the ratio by which the step does.
_ALIKE = 0.8
#: Comes after it, before the name of the operator that takes most of the excess.
MOSTLY = ", mostly "


def _all_operators(calls: pl.DataFrame, slow: pl.DataFrame) -> pl.DataFrame:
    """Rows for slow steps whose operators take longer by chance: ``usual_ns`` is for as many calls.

    They take 70 % of the excess, or are at least 30 % of the steps and longer by 80 % of the ratio
    by which these are: then what runs between them is longer, too. No operator with less than 30 %
    of the time of other steps takes 30 % of the excess of each. One with 70 % of it is named.
    """
    sums = calls.group_by("step", "name").agg(n=pl.len(), total_ns=pl.col("ns").sum())
    of_others = sums.join(slow, on="step", how="anti").group_by("name")
    usual = of_others.agg(pl.col("n", "total_ns").sum())
    usual_ns = pl.col("n") * pl.col("total_ns_usual") / pl.col("n_usual")
    rows = sums.join(slow, on="step").join(usual, on="name", suffix="_usual")
    rows = rows.with_columns(usual_ns=usual_ns, more=pl.col("total_ns") - usual_ns)
    is_small = pl.col("total_ns_usual") < pl.lit(_LEAST_FRAC) * usual["total_ns"].sum()
    longer = rows.filter(is_small, pl.col("more") >= _LEAST_FRAC * pl.col("over"))
    in_each = bool((longer["name"].value_counts()["count"] == slow.height).any())
    most = rows["more"].sum() >= pl.lit(_BY_CHANCE) * slow["over"].sum()
    totals = rows.group_by("step").agg(pl.col("n", "total_ns", "usual_ns").sum())
    more = pl.col("total_ns") / pl.col("usual_ns") - 1
    step_ns = pl.col("end") - pl.col("start") - pl.col("over")
    much = pl.col("usual_ns") >= _LEAST_FRAC * step_ns
    alike = totals.join(slow, on="step").select(much & (more >= _ALIKE * pl.col("over") / step_ns))
    most |= totals.height == slow.height and alike.to_series().all()
    one = rows.filter(pl.col("more") >= _BY_CHANCE * pl.col("over")).sort("more", "name")
    one = one.group_by("step").agg(one=pl.format(MOSTLY + "{}", pl.col("name").last()))
    totals = totals.filter(most, not in_each).join(one, on="step", how="left")
    name = pl.concat_str(pl.lit(ALL_OPERATORS), pl.col("one").fill_null(""))
    totals = totals.with_columns(kind=pl.lit("cpu_op"), name=name)
    return totals.select(pl.col(name).cast(of) for name, of in _SCHEMA.items())


def _without_nested(rows: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Keep one of the slices of a step that run at the same time; the largest excess first.

    The slice with the largest excess over the usual is kept, but one with 70 % of this excess
    replaces it if it is better: code before other slices, then slices that the other steps do not
    have, then by kind, the share in other steps, and duration.

    Args:
        rows: step, kind, name, ``total_ns``, ``usual_ns``.
        spans: step, name, start, end of the slices.
    """
    usual = pl.col("usual_ns").fill_null(0)
    order = pl.col("kind").replace_strict({kind: place for place, kind in enumerate(_KINDS)})
    ranked = rows.with_row_index("row").with_columns(
        excess=pl.col("total_ns") - usual,
        rank=pl.concat_list(
            (~pl.col("kind").is_in(CODE)).cast(pl.Int64),
            pl.col("usual_ns").is_not_null().cast(pl.Int64),
            order.cast(pl.Int64),
            (100 * usual / pl.col("total_ns")).round().cast(pl.Int64),
            -pl.col("total_ns"),
        ),
    )
    ranked = ranked.sort("excess", "step", "name", descending=[True, False, False])
    times = _runs(spans.join(rows.select("step", "name"), on=("step", "name"), how="semi"))
    chosen: dict[str, list[dict[str, Any]]] = {}
    for row in ranked.iter_rows(named=True):
        kept = chosen.setdefault(row["step"], [])
        same = [one for one in kept if _shared(times, row, one) > _SAME_FRAC]
        if not same:
            kept.append(row)
        elif row["excess"] >= _MOST_FRAC * same[0]["excess"] and row["rank"] < same[0]["rank"]:
            kept[kept.index(same[0])] = row
    of_all = [row["row"] for kept in chosen.values() for row in kept]
    return ranked.filter(pl.col("row").is_in(of_all))


#: Disjoint intervals of the slices of a name in a step, sorted, by step and name.
_Runs = Mapping[tuple[str, str], list[tuple[int, int]]]


def _runs(spans: pl.DataFrame) -> _Runs:
    runs: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    columns = spans.sort("start").select("step", "name", "start", "end")
    for step, name, start, end in columns.iter_rows():
        of_name = runs[step, name]
        if of_name and start <= of_name[-1][1]:
            of_name[-1] = (of_name[-1][0], max(end, of_name[-1][1]))
        else:
            of_name.append((start, end))
    return runs


def _shared(runs: _Runs, one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the time that two names of a step share, as a share of the shorter one."""
    a, b = (runs[row["step"], row["name"]] for row in (one, other))
    shared, place = 0, 0
    for start, end in a:
        while place < len(b) and b[place][1] <= start:
            place += 1
        for begin, until in b[place:]:
            if begin >= end:
                break
            shared += min(end, until) - max(start, begin)
    shorter = min(sum(end - start for start, end in rows) for rows in (a, b))
    return shared / shorter if shorter else 0.0


#: Slices that are this many times shorter than the least excess are not summed.
_MANY = 100
