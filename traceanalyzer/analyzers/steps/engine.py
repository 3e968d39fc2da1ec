"""Steps of inference engines: phase, requests, tokens, CUDA graphs, and exposed host time.

A step is a range that the engine marks around its model (:data:`~.vocabulary.ENGINE_STEPS`). Before
each step the engine receives results, chooses the requests of the next step and prepares its
inputs. This time is exposed where the devices are idle: from the end of all work launched before
the step to the first kernel of its graph, or to its first kernel without one.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import step_marks
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.device_steps import launching_step
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, device_work
from traceanalyzer.analyzers.common.host_code import THREAD, places_of, python_frames
from traceanalyzer.analyzers.common.kernel_names import GEMM, families_of
from traceanalyzer.analyzers.common.launching import GRAPH_LAUNCH, launch_rows
from traceanalyzer.analyzers.common.names import matching, named
from traceanalyzer.analyzers.common.waits import REQUESTS, wait_of
from traceanalyzer.frames import intervals, linking, nesting
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ANNOTATION_KINDS

GRAPH, PIECEWISE, EAGER = "graph", "piecewise", "eager"

#: Columns that steps of an engine are grouped by.
PHASE = ("phase", "batch")

#: A step of so many graph launches with kernels between them runs the model in pieces.
_PIECES = 8
#: From this share of the kernel time on, a step runs as a graph.
_MOST = 0.5
_ENGINE = re.compile(r"(?:^|[/\\])(?:vllm|sglang|tensorrt_llm|lmdeploy|atom)\w*[/\\]")


# --- one rank --------------------------------------------------------------------------------

#: Names of code that no function or range around it names.
IN_STEP, BETWEEN = "(inside the range of the step)", "(between the ranges of steps)"

_EXPOSED = {"step": pl.String, "start": pl.Int64, "end": pl.Int64, "function": pl.String}
_CODE = {"step": pl.String, "function": pl.String, "total_ns": pl.Int64}


class Measured(NamedTuple):
    """Steps of an engine on one rank.

    Attributes:
        steps: one row per step: mode (graph, piecewise or eager), null without known launches and
            for other steps of a trace without graphs, and ``exposed_ns``, null for other steps and
            for the first one.
        exposed: step, start, end, function: exposed host time before each step.
    """

    steps: pl.DataFrame
    exposed: pl.DataFrame


def measured(trace: Trace, steps: pl.DataFrame) -> Measured:
    """Return how steps were launched, and the exposed host time before each of an engine.

    The function is the innermost one of the engine on the thread that marks the steps, else the
    innermost one of other code, range or operator. Time in which it waits for requests is not
    exposed.

    Args:
        trace: the trace of one rank.
        steps: rows of :func:`~.device_steps.device_steps`.
    """
    of_engine = step_marks.with_phases(steps)["phase"].is_not_null()
    has_modes = of_engine.any() or matching(trace.names, [GRAPH_LAUNCH])
    work = _launched(trace, steps) if has_modes else None
    unknown = {"mode": pl.lit(None, pl.String), "exposed_ns": pl.lit(None, pl.Int64)}
    if work is None:
        return Measured(steps.with_columns(**unknown)[[*unknown]], pl.DataFrame(schema=_EXPOSED))
    rows = steps.with_row_index("row").join(_modes(work), "row", "left", maintain_order="left")
    if not of_engine.any():
        rows = rows.select("mode", exposed_ns=unknown["exposed_ns"])
        return Measured(rows, pl.DataFrame(schema=_EXPOSED))
    rows = rows.filter(of_engine)
    windows = _windows(work, rows)
    exposed = _with_functions(trace, intervals.subtract(windows, work), rows.row(0, named=True))
    is_wait = [wait_of(name) == REQUESTS for name in exposed["function"]]
    exposed = exposed.filter(~pl.Series(is_wait, dtype=pl.Boolean))
    before = linking.label_by_interval(exposed.select(ts="start"), windows)["interval"]
    exposed = exposed.with_columns(row=windows["row"][before])
    sums = exposed.group_by("row").agg(exposed_ns=(pl.col("end") - pl.col("start")).sum())
    known = windows[["row"]].join(sums, on="row", how="left").fill_null(0)
    of_steps = steps[["step"]].with_row_index("row").join(rows[["row", "mode"]], "row", "left")
    of_steps = of_steps.join(known, on="row", how="left", maintain_order="left")
    named_steps = exposed.join(of_steps[["row", "step"]], on="row", maintain_order="left")
    return Measured(of_steps[["mode", "exposed_ns"]], named_steps[[*_EXPOSED]])


def _launched(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame | None:
    """Return device work with a known launch: start, end, kernel, launch, launched, graph, row.

    Also work without one, with nulls; None if no launch call is known. ``row`` is the step.
    """
    work = device_work(trace)[["kind", "name", "start", "end"]]
    families = families_of(work["name"].unique().drop_nulls())
    products, transfers = (
        [name for name, one in families.items() if one == of] for of in (GEMM, COMMUNICATION)
    )
    launch = nesting.row_numbers(launch_rows(trace, device_work(trace)), "launch")
    if launch.null_count() == launch.len() or step_marks.by_kernels(steps):
        return None
    calls = trace.events[["name", "ts"]][launch]
    is_graph = named(trace.names, [GRAPH_LAUNCH])
    return work.with_columns(
        launch, calls["ts"].alias("launched"), calls.with_columns(graph=is_graph)["graph"],
        kernel=pl.col("kind") == "kernel", product=pl.col("name").is_in(products),
        transfer=pl.col("name").is_in(transfers),
        row=launching_step(steps, calls["ts"], work["start"]),
    )  # fmt: skip


def _modes(work: pl.DataFrame) -> pl.DataFrame:
    """Return mode and the start of the first main kernel (``main``) of each step (``row``).

    A step is a graph if graph launches have at least half of the kernel time (without transfers,
    which may be waits for other ranks), piecewise if it launches at least 8 graphs and a kernel
    between most of them: the model runs in pieces. A matrix product before the graphs is one of a
    model, too: of a draft without graphs.
    """
    kernels = work.filter("kernel").drop_nulls(["row", "launch"])
    length = (pl.col("end") - pl.col("start")) * ~pl.col("transfer")
    graph, of_graphs = pl.col("graph"), pl.col("launched").filter("graph")
    between = ~graph & pl.col("launched").is_between(of_graphs.min(), of_graphs.max())
    sums = kernels.group_by("row").agg(
        graphs=pl.col("launch").filter("graph").n_unique(),
        between=pl.col("launch").filter(between).n_unique(),
        graph_frac=(length.filter("graph").sum() / length.sum()).fill_nan(0),
        first_graph=pl.col("start").filter(graph | pl.col("product")).min(),
        first=pl.col("start").min(),
    )
    pieces = (pl.col("graphs") >= _PIECES) & (2 * pl.col("between") >= pl.col("graphs"))
    whole = pl.when(pl.col("graph_frac") >= _MOST).then(pl.lit(GRAPH)).otherwise(pl.lit(EAGER))
    mode = pl.when(pieces).then(pl.lit(PIECEWISE)).otherwise(whole)
    main = pl.when(mode == EAGER).then("first").otherwise("first_graph")
    return sums.select("row", mode=mode, main=main)


def _windows(work: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return from when all earlier work has ended until the first main kernel of each step.

    Returns:
        row, start, end; without steps before which no work was recorded.
    """
    earlier = work.drop_nulls("launched").sort("launched")
    reached = np.maximum.accumulate(earlier["end"].to_numpy())
    place = np.searchsorted(earlier["launched"].to_numpy(), rows["host_start"].to_numpy())
    windows = rows.select(
        "row", start=pl.Series(reached[np.maximum(place - 1, 0)]), end="main", known=place > 0
    )
    known = windows.filter(pl.col("known")).drop_nulls("end")
    return known.select("row", start=pl.min_horizontal("start", "end"), end="end")


def _with_functions(trace: Trace, idle: pl.DataFrame, mark: Mapping[str, Any]) -> pl.DataFrame:
    """Divide idle intervals by what the thread of the marks runs: start, end, function."""
    on_thread = [pl.col(name).eq_missing(mark[name]) for name in THREAD]
    is_code = pl.col("kind").is_in(("python_function", "cpu_op", *ANNOTATION_KINDS))
    slices = trace.events[["kind", *THREAD, "ts", "dur"]].filter(
        is_code, pl.col("dur") > 0, *on_thread
    )
    edges = slices.select(start="ts", end=pl.col("ts") + pl.col("dur"))
    edges = edges.filter(pl.Series(intervals.meets(edges, idle)))
    points = pl.concat([idle["start"], edges["start"], edges["end"]]).unique().sort()
    cuts = linking.label_by_interval(points.to_frame("ts"), idle).drop_nulls("interval")
    after = pl.col("ts").shift(-1).over("interval")
    rows = cuts.select(
        start="ts", end=pl.coalesce(after, pl.Series(idle["end"][cuts["interval"]])),
    )  # fmt: skip
    at = rows.select(**{name: pl.lit(mark[name], pl.Int64) for name in THREAD}, ts="start")
    around = places_of(trace).range(at).cast(pl.String)
    is_mark = [step_marks.described(name or "") is not None for name in around]
    frames = python_frames(trace, at, _is_of_engine).cast(pl.String)
    inside = pl.when(pl.Series(is_mark, dtype=pl.Boolean)).then(pl.lit(IN_STEP)).otherwise(around)
    function = rows.select(pl.coalesce(frames, inside, pl.lit(BETWEEN))).to_series()
    return rows.with_columns(function.alias("function"))


def _is_of_engine(_name: str | None, file: str | None) -> bool:
    return file is not None and _ENGINE.search(file) is not None


# --- all ranks -------------------------------------------------------------------------------


def by_phase(steps: pl.DataFrame) -> pl.DataFrame:
    """Summarize the steps of engines by phase, batch size and mode, over all ranks.

    Args:
        steps: one row per step and device, with ``phase``, ``batch``, ``tokens``, ``mode``.

    Returns:
        phase, batch (requests in a step), mode, steps (of all ranks), tokens (mean of a step),
        total_ns, total_frac (of all these steps), mean_ns, median_ns, min_ns, max_ns, busy_ns (mean
        of a step and device), exposed_ns (mean exposed host time before a step), idle_frac (share
        of the steps in which the devices are idle); null without device work; the largest total
        first.
    """
    keys = [*PHASE, "mode"]
    rows = steps.drop_nulls("phase")
    each = rows.unique(["rank", "path", "number"], keep="first", maintain_order=True)
    length = pl.col("duration_ns")
    sums = each.group_by(keys).agg(
        steps=pl.len().cast(pl.Int64),
        tokens=pl.col("tokens").mean(),
        total_ns=length.sum(),
        mean_ns=length.mean(),
        median_ns=length.median(),
        min_ns=length.min(),
        max_ns=length.max(),
        exposed_ns=pl.col("exposed_ns").mean(),
    )
    known = rows.drop_nulls("idle_ns").group_by(keys)
    idle = known.agg(
        idle_frac=pl.col("idle_ns").sum() / length.sum(),
        busy_ns=(length - pl.col("idle_ns")).mean(),
    )
    ordered = sums.join(idle, on=keys, how="left", nulls_equal=True).sort(
        "total_ns", *keys, descending=[True, False, False, False]
    )
    whole = pl.lit(int(ordered["total_ns"].sum()))
    return ordered.select(
        *keys, "steps", "tokens", "total_ns", total_frac=ratio("total_ns", whole),
        **{name: pl.col(name) for name in ("mean_ns", "median_ns", "min_ns", "max_ns")},
        busy_ns="busy_ns", exposed_ns="exposed_ns", idle_frac=pl.col("idle_frac"),
    )  # fmt: skip


def by_function(exposed: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Sum the exposed host time by phase of the step after it and by function.

    Args:
        exposed: step, start, end, function, of all ranks.
        steps: one row per step: step, phase, ``exposed_ns`` (null if it is not known).

    Returns:
        phase, function, total_ns, each_ns (per step of the phase with known exposed time),
        total_frac (of the exposed time of all phases); the largest total first.
    """
    length = pl.col("end") - pl.col("start")
    sums = step_marks.with_phases(exposed).group_by("phase", "function").agg(total_ns=length.sum())
    counts = steps.drop_nulls("exposed_ns").group_by("phase").agg(n=pl.len())
    whole = pl.lit(int(sums["total_ns"].sum()))
    rows = sums.join(counts, on="phase").select(
        "phase", "function", "total_ns", each_ns=pl.col("total_ns") / pl.col("n"),
        total_frac=ratio("total_ns", whole),
    )  # fmt: skip
    return rows.sort("total_ns", "phase", "function", descending=[True, False, False])
