"""Result of ``requests``: data, verdict, notes, tables and charts."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import display
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns, format_times

#: Disjoint parts of a request, in its order.
PARTS = ("queue_ns", "prefill_ns", "preempted_ns", "decode_ns")
#: Times with statistics, in the order of tables; the first four are of whole requests.
LABELS = {
    "ttft": "time to first token", "tpot": "time per output token", "itl": "time between tokens",
    "e2e": "whole request", "queue": "queue", "prefill": "prefill", "preempted": "preempted",
    "decode": "decode", "other": "other",
}  # fmt: skip
_LATENCIES = (
    "label: time, n: count, mean_ns: mean, p50_ns: p50, p90_ns: p90, p99_ns: p99, max_ns: max, "
    "share_frac: share, stated_mean_ns: mean in log, stated_p99_ns: p99 in log"
)
#: The verdict has median and 99th percentile.
_LESS = ("stated_p99_ns", "stated_mean_ns", "share_frac", "max_ns", "mean_ns", "p90_ns")
_REQUESTS = (
    "request, start_ns: start, input_tokens: input, output_tokens: output, ttft_ns: first token, "
    "tpot_ns: per token, max_itl_ns: longest gap, e2e_ns: whole, queue_ns: queue, "
    "prefill_ns: prefill, preempted_ns: preempted, decode_ns: decode, "
    "in_prefill_ns: decode in prefill steps, other_ns: other, error"
)
_RUNS = (
    "backend, model_id: model, request_rate: request rate, max_concurrency: max concurrency, "
    "most_running: most running, "
    "requests, failed, duration_ns: duration, request_throughput: requests/s, "
    "output_throughput: output tokens/s"
)
_PHASES = "part, phase: step of the engine, total_ns: total, share_frac: share"
#: The slowest requests have the time of p90 or more.
_SLOWEST = 0.9
#: Most requests in the chart of parts, and points of the other one.
_BARS, _POINTS = 40, 5_000
#: Statistics that differ by more from those of the log are noted.
_EQUAL = 0.01


#: Requests wait for a place from this ``full_frac`` of :attr:`Requests.runs` on, if the median time
#: to first token is so many times the shortest (5th percentile).
_FULL, _WAITING = 0.5, 10
#: Requests queue up if the times to first token of each quarter of the requests are longer than
#: before, those of the last one so many times those of the first one, and longer by at least this
#: share of the time between the two, and less than this multiple (else they all arrive at once).
_QUARTERS, _GROWS, _BEHIND, _AT_ONCE = 4, 3, 0.05, 1.5
#: A prompt is long from so many times the median on; so many stalls have one if they are the cause.
_LONG_PROMPT, _OF_STALLS = 4, 0.8


@dataclass(frozen=True, eq=False, repr=False)
class Requests(Result):
    """Requests to inference engines, from their logs.

    Attributes:
        requests: one row per request, by start: path, run (in the file, from 0), request (its id,
            or number), row, ``start_ns`` (since the first one of the run), ``input_tokens``,
            ``output_tokens``, ``ttft_ns``, ``e2e_ns`` (the whole request), ``tpot_ns``
            ((e2e - ttft) / (output tokens - 1)), ``max_itl_ns`` (the longest gap between tokens),
            ``queue_ns``, ``prefill_ns``, ``preempted_ns``, ``decode_ns`` (disjoint),
            ``preemptions``, ``other_ns`` (the rest of the request: tokenizer, API server),
            ``in_prefill_ns`` (decode time while a prefill or mixed step runs), error, ``paused_ns``
            (gaps of more than ten times the median while most other requests receive tokens),
            ``longest_pause_ns`` (the longest of these gaps).
        latencies: one row per run and time (ttft, tpot, itl, e2e, queue, prefill, preempted,
            decode, other): n (requests; of itl gaps), ``mean_ns``, ``p50_ns``, ``p90_ns``,
            ``p99_ns``, ``max_ns``, ``share_frac`` (of the time of all requests),
            ``stated_mean_ns``, ``stated_p99_ns`` (as in the log). Without failed requests.
        runs: one row per run: backend, ``model_id``, ``request_rate`` (asked for), requests,
            failed, ``max_concurrency``, ``duration_ns``, completed, ``request_throughput``,
            ``output_throughput``, as the log states them; ``most_running`` (requests that receive
            tokens at a time), ``full_frac`` (the share of the waiting time for first tokens in
            which at least 80 % of these run), ``early_gap_ns``, ``late_gap_ns`` (median time
            between tokens in the first and last quarter of each answer, if it grows by more than a
            longer context does).
        stalls: times in which at least 90 % of the requests that receive tokens, two or more, are
            in a gap of more than ten times the median: path, run, ``input_tokens`` (the longest
            prompt of the requests that wait for their first token for at least half of it),
            ``start_ns``, ``duration_ns``.
        phases: one row per part of the requests and phase of the engine's step that runs
            meanwhile, ``between steps``, or ``not recorded``: ``total_ns`` (of all requests),
            ``share_frac`` (of the part). Empty without a trace.
        engine: the trace whose steps these are, or None.
        unused: traces whose steps are not used: other ranks, or without a wall clock.
    """

    question = "How long do requests take, and what do they wait for?"

    requests: pl.DataFrame
    latencies: pl.DataFrame
    runs: pl.DataFrame
    stalls: pl.DataFrame
    phases: pl.DataFrame
    engine: str | None
    unused: tuple[str, ...]

    @cached_property
    def answered(self) -> pl.DataFrame:
        """Requests that did not fail."""
        return self.requests.filter(pl.col("error").is_null(), pl.col("ttft_ns").is_not_null())

    def view(self) -> View:
        """Build the view: times, runs, requests with the slowest first token first."""
        return self.view_from(_verdict, _notes, _tables, _charts, scalars=_scalars(self))


def _scalars(result: Requests) -> dict[str, Any]:
    answered = result.answered
    numbers = {
        f"{name}_p{q}_ns": answered[f"{name}_ns"].quantile(q / 100, "linear")
        for name in ("ttft", "tpot", "e2e")
        for q in (50, 90, 99)
    }
    failed = result.requests["error"].is_not_null().sum()
    return {"n_requests": result.requests.height, "n_failed": int(failed), **numbers}


def _verdict(result: Requests) -> str:
    return display.sentences(*_sentences(result))


def _sentences(result: Requests) -> Iterator[str]:
    """Describe the times of all requests, the parts of the slowest ones, and failures."""
    sums, count = _scalars(result), result.answered.height
    failed = f"{format_count(sums['n_failed'], 'request')} failed." if sums["n_failed"] else ""
    if not count:
        stated = result.latencies.filter(pl.col("stated_mean_ns") > 0, time="ttft")
        for mean, last in stated[["stated_mean_ns", "stated_p99_ns"]].head(1).iter_rows():
            p99 = f", {format_ns(last)} (p99)" if last is not None else ""
            yield f"The log states a time to first token of {format_ns(mean)} (mean){p99}."
        if "completed" in result.runs.columns and result.runs["completed"].eq(0).any():
            none = result.runs.filter(completed=0).height
            yield f"No request was completed{_in_runs(result, none)}."
        yield failed
        return
    each = sums["tpot_p50_ns"]
    per_token = f"; time per output token {format_ns(each)} (median)" if each is not None else ""
    yield (
        f"{format_count(count, 'request')}: time to first token {format_ns(sums['ttft_p50_ns'])} "
        f"(median), {format_ns(sums['ttft_p99_ns'])} (p99){per_token}."
    )
    yield from _of_slowest(result)
    yield from _explained(result)
    known = result.answered.drop_nulls("in_prefill_ns")
    blocked, decode = (float(known[name].sum()) for name in ("in_prefill_ns", "decode_ns"))
    if blocked and decode:
        share = format_frac(blocked / decode)
        yield f"Prefill or mixed steps run during {share} of the decode time of requests."
    yield failed


def _of_slowest(result: Requests) -> Iterator[str]:
    """Describe the parts of the time to first token of the slowest tenth."""
    rows = result.answered.drop_nulls(["queue_ns", "prefill_ns"])
    if rows.is_empty():
        return
    slow = rows.filter(pl.col("ttft_ns") >= pl.col("ttft_ns").quantile(_SLOWEST, "linear"))
    whole = float(slow["ttft_ns"].sum())
    shares = {
        part: float(slow[f"{part}_ns"].sum()) / whole for part in ("queue", "prefill") if whole
    }
    texts = [f"{part} {format_frac(share)}" for part, share in shares.items()]
    yield f"Time to first token of the slowest tenth of the requests: {display.listed(texts)}."
    preempted = rows.filter(pl.col("preemptions") > 0)
    if preempted.height:
        lost = format_ns(float(preempted["preempted_ns"].sum()))
        verb = "was" if preempted.height == 1 else "were"
        yield f"{format_count(preempted.height, 'request')} {verb} preempted, for {lost} in total."


def _explained(result: Requests) -> Iterator[str]:
    """Describe why requests are slow, as far as their times show it."""
    yield from [*_full(result)] or _queueing(result)
    yield from _stalled(result)
    yield from _started(result)
    yield from _paused(result)
    grown = result.runs.drop_nulls("late_gap_ns").sort("late_gap_ns", descending=True)
    for early, late in grown[["early_gap_ns", "late_gap_ns"]].head(1).rows():
        yield (
            f"Time between tokens grows within each answer{_in_runs(result, grown.height)}, from "
            f"{format_ns(early)} (first quarter of the tokens) to {format_ns(late)} (last one), "
            "however many requests run: check that the engine keeps a KV cache, and what it does "
            "for each token with all earlier ones (penalties, stop strings, detokenization)."
        )


def _in_runs(result: Requests, n: int) -> str:
    """Return in how many runs something is, if there are several."""
    return f" in {n:,} of {result.runs.height:,} runs" * (result.runs.height > 1)


def _started(result: Requests) -> Iterator[str]:
    """Say that slow requests are exactly the first ones of a run; of several runs, the slowest."""
    found = list[tuple[float, float, int, int]]()
    key = ["path", "run"]
    rows = result.answered.drop_nulls("start_ns").sort(*key, "start_ns", "row")
    for _, one in rows.group_by(key, maintain_order=True):
        times = one["ttft_ns"].to_numpy()
        is_slow = times > _GROWS * np.median(times)
        n = int(is_slow.sum())
        if not 0 < n <= one.height / _QUARTERS or not is_slow[:n].all():
            continue
        first, later = (float(np.median(part)) for part in (times[:n], times[n:]))
        if (first > _WAITING * later) if n == 1 else not _together(one, n):
            found.append((first, later, n, one.height))
    for first, later, n, of in sorted(found)[-1:]:
        are = f"requests are the first {n:,}" if n > 1 else "request is the first one"
        yield (
            f"The slow {are} of {of:,}{_in_runs(result, len(found))}: time to first token "
            f"{format_ns(first)}, of later ones {format_ns(later)} (median), as if the engine "
            "still compiles or captures graphs: send requests to warm up first."
        )


def _together(rows: pl.DataFrame, n: int) -> bool:
    """Whether the first requests of a run begin together, so that one prefill has them all.

    They begin before the first of them has its first token, and closer than later ones.
    """
    start = rows["start_ns"].to_numpy()
    is_before = start[n - 1] < (start + rows["ttft_ns"].to_numpy())[:n].min()
    each, later = (start[n - 1] - start[0]) / (n - 1), (start[-1] - start[n - 1]) / (start.size - n)
    return bool(is_before and _QUARTERS * each <= later)


def _paused(result: Requests) -> Iterator[str]:
    """Say how many requests, less than half of a run, pause while others receive tokens."""
    is_paused = pl.col("paused_ns").fill_null(0) > 0
    is_few = 2 * is_paused.mean().over("path", "run") < 1
    rows = result.answered.filter(is_paused, is_few, pl.col("preempted_ns").is_null())
    if rows["paused_ns"].sum() <= _EQUAL * np.nansum(result.answered["e2e_ns"].to_numpy()):
        return
    times = dict.fromkeys(map(format_ns, rows["longest_pause_ns"].sort()[[0, -1]]))
    get = "gets" if rows.height == 1 else "get"
    yield (
        f"{rows.height:,} of {format_count(result.answered.height, 'request')} {get} no token for "
        f"{' to '.join(times)} while others do, as if preempted because the KV cache is full: give "
        "it more memory (gpu_memory_utilization of vLLM, mem_fraction_static of SGLang), or allow "
        "fewer requests at a time."
    )


def _full(result: Requests) -> Iterator[str]:
    """Name the runs whose requests wait because no more can run at a time."""
    waits = result.answered.group_by("path", "run").agg(
        least_ns=pl.col("ttft_ns").quantile(0.05), usual_ns=pl.col("ttft_ns").median()
    )
    rows = result.runs.join(waits, on=["path", "run"]).filter(
        pl.col("full_frac") >= _FULL, pl.col("usual_ns") > _WAITING * pl.col("least_ns")
    )
    for row in rows.sort("usual_ns", descending=True).head(1).iter_rows(named=True):
        yield (
            f"At most {row['most_running']:,} requests receive tokens at a time, and other ones "
            "wait for them: allow more at a time (max_num_seqs of vLLM, max_running_requests of "
            "SGLang) if the KV cache has room, or add replicas."
        )


def _queueing(result: Requests) -> Iterator[str]:
    """Name the runs in which requests arrive faster than they are answered, so that a queue grows.

    Not those whose requests all arrive at the start, or with a time to first token that grows by
    little of the time that has passed.
    """
    key = ["path", "run"]
    rows = result.answered.drop_nulls("start_ns").sort(*key, "start_ns")
    quarter = pl.int_range(pl.len()).over(key) * _QUARTERS // pl.len().over(key)
    each = rows.group_by(*key, quarter=quarter).agg(
        ttft=pl.col("ttft_ns").median(), at=pl.col("start_ns").median()
    )
    each = each.sort(*key, "quarter")
    runs = each.group_by(key, maintain_order=True).agg("ttft", "at")
    for times, at in runs.filter(pl.col("ttft").list.len() == _QUARTERS)[["ttft", "at"]].rows():
        grows = all(late > early for early, late in itertools.pairwise(times))
        passed, more = at[-1] - at[0], times[-1] - times[0]
        is_queue = _AT_ONCE * passed > more > _BEHIND * passed
        if grows and times[-1] > _GROWS * times[0] and is_queue:
            yield (
                "Requests arrive faster than they are answered: the median time to first token "
                f"grows from {format_ns(times[0])} (first quarter of the requests) to "
                f"{format_ns(times[-1])} (last quarter). Add replicas, allow more requests at a "
                "time, or send fewer."
            )
            return


def _stalled(result: Requests) -> Iterator[str]:
    """Describe times without a token, and the long prompts that are processed meanwhile."""
    stalls = result.stalls
    if stalls.is_empty():
        return
    total = format_ns(int(stalls["duration_ns"].sum()))
    stated = f"All wait for their next token {format_times(stalls.height)}, {total} in total"
    usual = float(result.answered["input_tokens"].fill_null(0).median())  # type: ignore[arg-type]
    prompts = stalls.filter(pl.col("input_tokens") > _LONG_PROMPT * usual)["input_tokens"].to_list()
    if len(prompts) < _OF_STALLS * stalls.height:
        yield f"{stated}."
        return
    yield (
        f"{stated}, while a prompt of {min(prompts):,} or more tokens (median {usual:,.0f}) is "
        "processed: divide long prompts (chunked prefill: max_num_batched_tokens of vLLM, "
        "chunked_prefill_size of SGLang)."
    )


def _notes(result: Requests) -> Iterator[str]:
    """Describe what is not known, and statistics that differ from those of the log."""
    of_benchmark = result.answered.height == result.answered["queue_ns"].null_count() > 0
    if of_benchmark and not any(_explained(result)):
        yield (
            "A benchmark does not know what its requests wait for. Spans of the engine do: vllm "
            "serve --otlp-traces-endpoint URL, with a collector that writes JSON."
        )
    if result.requests.is_empty():
        yield (
            "The log has no times of each request; record with --save-detailed (SGLang: "
            "--output-details)."
        )
    rows = result.latencies.drop_nulls(["mean_ns", "stated_mean_ns"])
    apart = (pl.col("mean_ns") / pl.col("stated_mean_ns") - 1).abs() > _EQUAL
    for time, mean, stated in rows.filter(apart)[["time", "mean_ns", "stated_mean_ns"]].iter_rows():
        yield (
            f"The mean {LABELS[time]} is {format_ns(mean)}, in the log {format_ns(stated)}: the "
            "log counts other requests."
        )
    if result.phases.height:
        yield (
            "Steps of the engine: device time of one rank, matched with the spans by the wall "
            "clock. Requests that were preempted are not divided by steps."
        )
    elif result.engine or result.unused:
        yield "Requests are not divided by steps: that needs spans and traces with absolute times."
    if result.engine and result.unused:
        yield f"Steps of {format_count(len(result.unused), 'other trace')} are not used."


def _tables(result: Requests) -> Iterator[Table]:
    several = result.runs.height > 1
    run = _run_columns(result) if several else {}

    def table(name: str, title: str, frame: pl.DataFrame, columns: str, **more: Any) -> Table:
        if several and "path" in frame.columns:
            frame = frame.with_columns(file=display.short_paths(frame["path"]))
        return display.table_of_known(
            name, title, frame, {**run, **display.headings(columns)}, **more
        )

    labels = pl.col("time").replace_strict(LABELS).alias("label")
    latencies = result.latencies.with_columns(labels)
    yield table("latencies", "Times of requests", latencies, _LATENCIES, hide_first=_LESS)
    if result.phases.height:
        title = "What the engine runs during the parts of requests"
        yield Table("phases", title, result.phases, display.headings(_PHASES))
    if result.runs["duration_ns"].null_count() < result.runs.height:
        yield table("runs", "Runs", result.runs, _RUNS)
    slowest = result.requests.sort("ttft_ns", "path", "run", "row", descending=[True] + 3 * [False],
                                   nulls_last=True)  # fmt: skip
    if slowest.height:
        yield table("requests", "Requests, the slowest first token first", slowest, _REQUESTS)


def _run_columns(result: Requests) -> dict[str, str]:
    """Return the columns that name a run if there are several."""
    files = {"file": "file"} if result.runs["path"].n_unique() > 1 else {}
    several = result.runs["path"].is_duplicated().any()
    return {**files, **({"run": "run"} if several else {})}


def _charts(result: Requests) -> Iterator[Chart]:
    """Draw the parts of the slowest requests, and the time to first token over time."""
    log = [*_run_columns(result)]
    rows = result.answered.with_columns(file=display.short_paths(result.answered["path"]))
    for name, of in (("request", [*log, "request"]), ("run", log or ["run"])):
        rows = rows.with_columns(pl.concat_str(of, separator=" ").alias(name))
    slowest = rows.drop_nulls("other_ns").sort(-pl.col("ttft_ns"), "row").head(_BARS)
    parts = {name: LABELS[name.removesuffix("_ns")] for name in PARTS if slowest[name].sum()}
    if parts:
        title = "Parts of the requests with the slowest first token"
        frame = display.by_part(slowest, ["request"], {**parts, "other_ns": "other"})
        yield display.stacked("parts", title, frame, "request")
    if rows["start_ns"].null_count() < rows.height:
        yield Chart(
            name="first_token", title="Time to first token over time", mark="scatter",
            frame=rows.drop_nulls("start_ns").head(_POINTS), x="start_ns", y="ttft_ns",
            x_label="start of the request", y_label="time to first token",
            color="run" if log else None, label="request",
        )  # fmt: skip
