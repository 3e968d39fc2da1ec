"""Requests of logs, statistics of their times, and the engine's steps that run meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.common import aggregates
from traceanalyzer.analyzers.common.aggregates import Aggregates
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.device_steps import device_steps
from traceanalyzer.analyzers.common.step_marks import MIXED, PREFILL, with_phases
from traceanalyzer.analyzers.requests import Options
from traceanalyzer.analyzers.requests.result import LABELS, PARTS, Requests
from traceanalyzer.analyzers.steps import Options as StepOptions, compute as steps
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.units import NS_PER_MS, NS_PER_S
from traceanalyzer.vocabulary import REQUEST_FORM

#: Numbers of a request in ``aggregates``.
_NUMBERS = dict.fromkeys(("start_ns", "ttft_ns", "e2e_ns", *PARTS, "preemptions"), pl.Float64) | {
    "input_tokens": pl.Int64,
    "output_tokens": pl.Int64,
}
#: Numbers and texts of a run; mean and p99 of the times in a log.
_OF_RUN: dict[str, type[pl.DataType]] = dict.fromkeys(
    ("request_rate", "max_concurrency", "duration", "completed", "request_throughput",
     "output_throughput"), pl.Float64,
)  # fmt: skip
_TEXTS = ("backend", "model_id", "date")
_STATED = r"^(mean|p99)_(ttft|tpot|itl|e2e)(?:l|_latency)?_ms$"
#: Times outside of the steps of the engine, and outside of the recording.
BETWEEN, UNRECORDED = "between steps", "not recorded"
_LOGS = "pass the log of a benchmark, or spans of OpenTelemetry as JSON"
_SPAN = {"start": pl.Int64, "end": pl.Int64, "phase": pl.String}


@dataclass(frozen=True)
class Requested:
    """The requests of one log.

    Attributes:
        epoch_ns: absolute time of its first request, or None.
        log: its rows of ``aggregates``.
    """

    epoch_ns: int | None
    log: Aggregates


@dataclass(frozen=True)
class Engine:
    """Steps of an engine on one rank: start and end on the wall clock, phase."""

    rank: int | None
    path: str
    steps: pl.DataFrame


def measure(trace: Trace, _options: Options) -> Requested | Engine:
    """Return the requests of a log, or the steps of the engine in a trace.

    Raises:
        MissingData: the input is neither a request log nor the trace of an inference engine.
    """
    if log := aggregates.of_forms(trace, (REQUEST_FORM,)):
        return Requested(trace.meta.epoch_ns, log)
    # time between the ranges of steps is that of no phase here
    rows = device_steps(trace).select("step", "end", start=pl.max_horizontal("start", "host_start"))
    rows = with_phases(rows).drop_nulls("phase").select(*_SPAN)
    if rows.is_empty():
        what = "neither a request log nor the trace of an inference engine with annotated steps"
        raise MissingData(f"{trace.meta.path}: {what}; {_LOGS}")
    epoch = trace.meta.epoch_ns
    absolute = rows.with_columns(pl.col("start", "end") + epoch) if epoch else rows.clear()
    return Engine(trace.meta.rank, trace.meta.path, absolute)


def combine(parts: Sequence[Requested | Engine], _options: Options) -> Requests:
    """Return the requests of all logs, and their division by the steps of the first rank.

    Raises:
        MissingData: no input is a request log.
    """
    logs = [part for part in parts if isinstance(part, Requested)]
    engines = sorted(
        (part for part in parts if isinstance(part, Engine)),
        key=lambda one: (one.rank is None, one.rank or 0, one.path),
    )
    if not logs:
        raise MissingData(f"{engines[0].path}: a trace without a request log; {_LOGS}")
    rows = aggregates.joined([part.log for part in logs])
    each = _requests(rows)
    epochs = {part.log.path: part.epoch_ns for part in logs}
    used = next((one for one in engines if one.steps.height), None)
    gaps = _gaps(each, rows)
    long = gaps.filter(pl.col("gap") > _LONG_GAP * pl.col("usual"), pl.col("usual") > 0)
    counts = _counted(
        running=_served(each).select("path", "run", start="first", end="last"),
        pausing=long.select("path", "run", "start", "end"),
    )
    stalls = _stalls(each, long, counts)
    each = each.join(_paused(long, counts), on=_REQUEST, how="left", maintain_order="left")
    each, phases = _by_phase(each, epochs, None if used is None else used.steps)
    return Requests(
        requests=each,
        latencies=_latencies(each, rows),
        runs=_runs(rows, each)
        .join(_at_a_time(each), on=["path", "run"], how="left")
        .join(_growth(gaps), on=["path", "run"], how="left"),
        stalls=stalls,
        phases=phases,
        engine=None if used is None else used.path,
        unused=tuple(one.path for one in engines if one is not used),
    )


REQUESTS = Analyzer("requests", Options, steps.needs(StepOptions()), measure, combine)


# --- requests ------------------------------------------------------------------------------------


def _requests(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per request, see :attr:`Requests.requests`; by file, run and start."""
    key = ["path", "block", "row"]
    of_requests = rows.drop_nulls("row")
    wide = aggregates.wide(of_requests, REQUEST_FORM, _NUMBERS, ("error",))
    gaps = of_requests.filter(pl.col("metric") == "itl_ns").group_by(key)
    wide = wide.join(gaps.agg(max_itl_ns=pl.col("value").max()), on=key, how="left")
    more = pl.col("output_tokens") - 1
    decoding = pl.col("e2e_ns") - pl.col("ttft_ns")
    known = pl.sum_horizontal(pl.col(PARTS).fill_null(0))
    divided = pl.any_horizontal(pl.col(PARTS).is_not_null())
    return wide.select(
        "path",
        run=pl.col("block").cast(pl.Int64),
        request=pl.coalesce("name", pl.col("row").cast(pl.String)),
        row=pl.col("row").cast(pl.Int64),
        start_ns=pl.col("start_ns").round().cast(pl.Int64),
        **{name: pl.col(name) for name in ("input_tokens", "output_tokens", "ttft_ns", "e2e_ns")},
        tpot_ns=pl.when(more > 0).then(decoding / more),
        max_itl_ns="max_itl_ns",
        **{name: pl.col(name) for name in PARTS},
        preemptions=pl.col("preemptions").cast(pl.Int64),
        other_ns=pl.when(divided).then((pl.col("e2e_ns") - known).clip(lower_bound=0)),
        error="error",
    ).sort("path", "run", "start_ns", "row", nulls_last=True)


def _runs(rows: pl.DataFrame, each: pl.DataFrame) -> pl.DataFrame:
    """Return one row per run: its options and throughput, as the log states them."""
    stated = aggregates.wide(rows.filter(pl.col("row").is_null()), REQUEST_FORM, _OF_RUN, _TEXTS)
    counts = each.group_by("path", "run").agg(
        requests=pl.len().cast(pl.Int64), failed=pl.col("error").count().cast(pl.Int64)
    )
    at_a_time = pl.col("max_concurrency").cast(pl.Int64, strict=False)
    runs = stated.with_columns(at_a_time, run=pl.col("block").cast(pl.Int64))
    joined = runs.join(counts, on=["path", "run"], how="full", coalesce=True)
    names = [name for name in ("requests", "failed", *_OF_RUN) if name != "duration"]
    return joined.sort("path", "run").select(
        "path", "run", *_TEXTS, *names, duration_ns=pl.col("duration") * NS_PER_S
    )


def _latencies(each: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per run and time, see :attr:`Requests.latencies`."""
    key = ["path", "run", "time"]
    of_block = rows.with_columns(run=pl.col("block").cast(pl.Int64))
    names = [f"{name}_ns" for name in LABELS if name != "itl"]
    good = each.filter(pl.col("error").is_null())
    long = good.unpivot(names, index=key[:2], variable_name="time", value_name="value")
    gaps = of_block.filter(pl.col("metric") == "itl_ns").rename({"metric": "time"})
    times = pl.concat([long, gaps.select(long.columns)]).drop_nulls("value")
    ns = pl.col("value")
    sums = times.with_columns(pl.col("time").str.strip_suffix("_ns")).group_by(key).agg(
        n=pl.len().cast(pl.Int64),
        mean_ns=ns.mean(),
        **{f"p{q}_ns": ns.quantile(q / 100, "linear") for q in (50, 90, 99)},
        max_ns=ns.max(),
        total_ns=ns.sum(),
    )  # fmt: skip
    time, statistic = (pl.col("metric").str.extract(_STATED, group) for group in (2, 1))
    of_log = of_block.with_columns(time=time, statistic=statistic).drop_nulls("time")
    ms = {
        f"stated_{name}_ns": NS_PER_MS * ns.filter(pl.col("statistic") == name).first()
        for name in ("mean", "p99")
    }
    joined = sums.join(of_log.group_by(key).agg(**ms), on=key, how="full", coalesce=True)
    whole = pl.col("total_ns").filter(pl.col("time") == "e2e").first().over(key[:2])
    is_part = pl.col("time").is_in([*LABELS][4:])
    order = pl.col("time").replace_strict({name: place for place, name in enumerate(LABELS)})
    frac = pl.when(is_part).then(ratio("total_ns", whole)).alias("share_frac")
    return joined.sort("path", "run", order).with_columns(frac).drop("total_ns")


# --- requests at a time --------------------------------------------------------------------------

#: Gaps between tokens, and stalls, are longer than this many times the median gap.
_LONG_GAP = 10
#: Tokens came at once (speculative decoding) if the gap between them is shorter than a step of a
#: model, and at least this share of the gaps is longer.
_STEP_NS, _STEPS = 1e6, 0.05
#: Requests, and answers of so many tokens whose gaps grow: by this factor from the first quarter to
#: the last one (or as fast, within so many tokens), from about the same.
_REQUEST = ["path", "run", "row"]
_MANY_TOKENS, _QUARTER, _GROWN, _WITHIN, _ALIKE = 64, 0.25, 1.5, 1_000, 1.3
#: All requests pause if at least this share of those that receive tokens does.
_ALL = 0.9
#: So many requests run at a time as can, from this share of the most on.
_NEARLY = 0.8


def _begun(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return +1 at each start and -1 at each end: path, run, at, and the change by this name."""
    sides = (("start", 1), ("end", -1))
    return pl.concat(
        frame.select("path", "run", at=side, **{name: pl.lit(change)}) for side, change in sides
    )


def _counted(**intervals_of: pl.DataFrame) -> pl.DataFrame:
    """Return how many intervals of each name are open from start to end, by path and run."""
    key, names = ["path", "run"], list(intervals_of)
    changes = [_begun(frame.drop_nulls(), name) for name, frame in intervals_of.items()]
    at = pl.concat(changes, how="diagonal").group_by(*key, "at").agg(pl.col(names).sum())
    at = at.sort(*key, "at").with_columns(pl.col(names).cum_sum().over(key))
    spans = at.with_columns(start="at", end=pl.col("at").shift(-1).over(key)).drop("at")
    return spans.drop_nulls("end").with_columns(ns=pl.col("end") - pl.col("start"))


def _served(each: pl.DataFrame) -> pl.DataFrame:
    """Return the requests without failed ones, with their first and last token as ``ns``."""
    good = each.filter(pl.col("error").is_null())
    first, last = (
        (pl.col("start_ns") + pl.col(name)).round().cast(pl.Int64) for name in ("ttft_ns", "e2e_ns")
    )
    return good.with_columns(first=first, last=last).drop_nulls(["first", "last"])


def _at_a_time(each: pl.DataFrame) -> pl.DataFrame:
    """Return per run ``most_running`` and ``full_frac``, see :attr:`Requests.runs`."""
    key, served = ["path", "run"], _served(each)
    counts = _counted(
        running=served.select(*key, start="first", end="last"),
        waiting=served.select(*key, start="start_ns", end="first"),
    )
    most = pl.col("running").max().over(key)
    waited = pl.col("ns") * pl.col("waiting")
    full = waited.filter(pl.col("running") >= _NEARLY * most)
    return counts.group_by(key).agg(
        most_running=pl.col("running").max().cast(pl.Int64),
        full_frac=ratio(full.sum(), waited.sum()),
    )


def _gaps(each: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps before the tokens of requests: path, run, row, gap, start, end, usual, place.

    ``usual`` is the median gap of the run without those before tokens that came at once
    (speculative decoding), ``place`` the part of the answer: 0 to 1.
    """
    key, served = ["path", "run"], _served(each)
    tokens = rows.filter(pl.col("metric") == "itl_ns").select(
        "path", run=pl.col("block").cast(pl.Int64), row=pl.col("row").cast(pl.Int64), gap="value"
    )
    tokens = tokens.join(served[[*_REQUEST, "first"]], on=_REQUEST, maintain_order="left")
    ends = (pl.col("first") + pl.col("gap").cum_sum().over(_REQUEST)).round().cast(pl.Int64)
    gap = pl.col("gap")
    return tokens.with_columns(
        start=ends - gap.round().cast(pl.Int64), end=ends,
        usual=_usual(gap).over(key),
        place=pl.int_range(pl.len()).over(_REQUEST) / pl.len().over(_REQUEST),
    )  # fmt: skip


def _usual(gap: pl.Expr) -> pl.Expr:
    """Return the median gap, without those before tokens that came at once."""
    steps = gap.filter(gap >= _STEP_NS)
    return pl.when(steps.len() >= _STEPS * gap.len()).then(steps.median()).otherwise(gap.median())


def _paused(long: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """Return ``paused_ns`` of requests: long gaps while most other ones receive tokens."""
    others = counts.filter(2 * pl.col("pausing") < pl.col("running"))
    rows = intervals.overlap_with(long, others, ["path", "run"])
    alone, gap = rows.filter(2 * pl.col("overlap") > pl.col("gap")), pl.col("gap")
    return alone.group_by(_REQUEST).agg(paused_ns=gap.sum(), longest_pause_ns=gap.max())


def _growth(gaps: pl.DataFrame) -> pl.DataFrame:
    """Return per run the median gap in the first and last quarter of answers, if these grow.

    They grow alike in early and late requests: not with the load. Only requests with many tokens
    count. In longer answers they grow by more, as attention over a longer context does not.
    """
    key = ["path", "run"]
    rows = gaps.drop_nulls("first").filter(pl.len().over(_REQUEST) >= _MANY_TOKENS)
    is_late = pl.col("first") > pl.col("first").median().over(key)
    place, gap = pl.col("place"), pl.col("gap")
    each = rows.group_by(*key, half=is_late).agg(
        tokens=pl.len() / pl.col("row").n_unique(),
        early=gap.filter(place < _QUARTER).median(),
        late=gap.filter(place >= 1 - _QUARTER).median(),
    )
    early, late = pl.col("early"), pl.col("late")
    apart = ((1 - _QUARTER) * pl.col("tokens") / _WITHIN).clip(1)
    is_grown = (late >= (1 + (_GROWN - 1) * apart) * early).all()
    grows = is_grown & (early.max() <= _ALIKE * early.min()) & (pl.len() > 1)
    both = each.group_by(key).agg(grows=grows, early_gap_ns=early.mean(), late_gap_ns=late.mean())
    return both.filter("grows").drop("grows")


def _stalls(each: pl.DataFrame, long: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """Return the times in which no request receives a token, see :attr:`Requests.stalls`."""
    key, served = ["path", "run"], _served(each)
    all_pause = (pl.col("pausing") > 1) & (pl.col("pausing") >= _ALL * pl.col("running"))
    stalled = intervals.union(counts.filter(all_pause)[[*key, "start", "end"]], key)
    stalled = stalled.join(long.group_by(key).agg(pl.col("usual").first()), on=key)
    ns = pl.col("end") - pl.col("start")
    stalled = stalled.filter(ns > _LONG_GAP * pl.col("usual")).drop("usual")
    first = served.select(*key, "start_ns", "first", "input_tokens")
    overlap = pl.min_horizontal("first", "end") - pl.max_horizontal("start_ns", "start")
    same = [pl.col(name) == pl.col(f"{name}_right") for name in key]  # as a join: all pairs
    met = stalled.join_where(
        first, pl.col("start_ns") < pl.col("end"), pl.col("first") > pl.col("start")
    )
    during = met.filter(*same, 2 * overlap >= ns)
    prompts = during.group_by(*key, "start").agg(input_tokens=pl.col("input_tokens").max())
    return (
        stalled.join(prompts, on=[*key, "start"], how="left")
        .sort(*key, "start")
        .select(*key, "input_tokens", start_ns="start", duration_ns=ns)
    )


# --- steps of the engine -------------------------------------------------------------------------


def _by_phase(
    each: pl.DataFrame, epochs: dict[str, int | None], steps: pl.DataFrame | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Divide queue, prefill and decode of requests by the phase of the steps in this time.

    The first token ends prefill and begins decode, the queue ends where prefill begins; preempted
    requests have no such order and are not divided.

    Returns:
        The requests with ``in_prefill_ns``, decode time during prefill or mixed steps, and
        :attr:`Requests.phases`.
    """
    zero = pl.DataFrame(list(epochs.items()), ["path", "epoch"], orient="row")
    rows = each.join(zero.cast({"epoch": pl.Int64}), on="path", how="left", maintain_order="left")
    first = pl.col("start_ns") + pl.col("ttft_ns")
    begin = first - pl.col("prefill_ns")
    bounds = {
        "queue": (begin - pl.col("queue_ns"), begin),
        "prefill": (begin, first),
        "decode": (first, first + pl.col("decode_ns")),
    }
    plain = pl.col("preemptions").fill_null(0) == 0
    stages = pl.concat(
        rows.with_row_index("at").filter(plain).select(
            "at", part=pl.lit(part),
            start=pl.col("epoch") + start.round().cast(pl.Int64),
            end=pl.col("epoch") + end.round().cast(pl.Int64),
        )
        for part, (start, end) in bounds.items()
    ).drop_nulls()  # fmt: skip
    empty = {"part": pl.String, "phase": pl.String, "total_ns": pl.Int64, "share_frac": pl.Float64}
    if steps is None or stages.is_empty():
        return each.with_columns(in_prefill_ns=pl.lit(None, pl.Int64)), pl.DataFrame(schema=empty)
    names = steps["phase"].unique(maintain_order=True).to_list()
    of_phases = [steps.filter(pl.col("phase") == name) for name in names]
    whole = steps.select(pl.col("start").min(), pl.col("end").max())
    *inside, recorded = intervals.overlaps(stages, [*of_phases, whole])
    times = pl.DataFrame(
        dict(zip(names, inside, strict=True))
        | {UNRECORDED: stages["end"] - stages["start"] - recorded}
    )
    times = times.with_columns((recorded - pl.sum_horizontal(pl.col(names))).alias(BETWEEN))
    long = stages.hstack(times).unpivot(
        times.columns, index=["at", "part"], variable_name="phase", value_name="ns"
    )
    sums = long.group_by("part", "phase").agg(total_ns=pl.col("ns").sum())
    phases = sums.filter(pl.col("total_ns") > 0).with_columns(
        share_frac=ratio("total_ns", pl.col("total_ns").sum().over("part"))
    )
    order = pl.col("part").replace_strict({part: place for place, part in enumerate(bounds)})
    blocking = pl.col("phase").is_in((PREFILL, MIXED)) & (pl.col("part") == "decode")
    known = stages.filter(recorded.gt(0))[["at"]].unique()
    blocked = known.join(
        long.filter(blocking).group_by("at").agg(in_prefill_ns=pl.col("ns").sum()), "at", "left"
    )
    rows = each.with_row_index("at").join(blocked, "at", "left", maintain_order="left").drop("at")
    return rows, phases.sort(order, "total_ns", "phase", descending=[False, True, False])


def requests(inputs: Inputs, **reading: Unpack[Reading]) -> Requests:
    """Return the time to first token and per output token of requests, and their parts.

    Time per output token = (end of the request - first token) / (output tokens - 1), as in the
    benchmarks of vLLM and SGLang; percentiles interpolate linearly. Failed requests are not
    counted. Queue, prefill, decode and preempted time are known for spans only. With traces of the
    engine, whose clock is the wall clock, each part is divided by the phase of the steps that run
    at the same time, on the devices of the first rank.

    Args:
        inputs: a request log, a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no input is a request log, or a time window is given.
    """
    return run(REQUESTS, inputs, Options(), **reading)
