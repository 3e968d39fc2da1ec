"""A sample of the steps, for runs with more device work than is replayed.

It consists of steps that follow each other, the same ones of all ranks. Its first and last step are
replayed but not counted: they depend on steps that are not replayed. A run with longer steps, or
without any, is divided into parts, which take their place: of one rank with as many launches each,
of several ranks with as many collectives each, the same ones on all ranks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.device_steps import device_steps, launching_step
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, device_work
from traceanalyzer.analyzers.common.launching import launch_rows
from traceanalyzer.analyzers.gpu_idle.host import recorded_until
from traceanalyzer.analyzers.replay import program
from traceanalyzer.analyzers.replay.program import Program
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import nesting
from traceanalyzer.trace import Trace, in_spans, is_truncated, of_kinds
from traceanalyzer.vocabulary import LAUNCH_KINDS

#: Of a run with more device work on all ranks, a sample of the steps is replayed.
MOST_WORK = 200_000
#: Each rank takes time to read, so that many ranks may have so much more: a share of it.
_MORE_WORK = 1 / 128
#: Of several ranks, a sample of the fewest steps may have so many times as much.
_MOST_TIMES = 10
#: Fewer steps are no sample; more are taken if they fit.
LEAST_STEPS, _USUAL_STEPS = 3, 4
#: Number of parts of :data:`MOST_WORK` pieces of work, and their name.
_PARTS, PART = 8, "part"
_AT_COLLECTIVE = f"{PART} at collective"
#: Each rank of a job keeps an equal share for at most so many ranks; fewer steps remain later.
_MOST_SHARES = 8
#: Samples whose time differs by less from the median are typical.
_TYPICAL = 0.02


def measure(trace: Trace, _options: Any = None, *, is_limited: bool = False) -> Program:
    """Return the program of the rank of a trace, or of a sample of its steps.

    Raises:
        MissingData: no program is known; or, with ``is_limited``, it is above the limit.
    """
    trace = _until_end(trace)
    work, ranks = device_work(trace), trace.meta.world_size or 1
    most_of_rank = _MOST_TIMES * MOST_WORK / ranks if is_limited and ranks > 1 else np.inf
    if work.height <= min(MOST_WORK, most_of_rank):
        return program.measure(trace)
    steps = device_steps(trace)
    is_long = work.height * min(LEAST_STEPS / max(steps.height, 1), 1) > most_of_rank
    if work.height <= MOST_WORK and not is_long:
        return program.measure(trace)
    launched_by = launch_rows(trace, work)
    known = launched_by != nesting.ROOT
    launched = trace.events["ts"][np.maximum(launched_by, 0)].set(pl.Series(~known), None)
    number, chosen = _chosen(steps, work, launched, 0 if is_long else ranks)
    if chosen is None and is_limited:
        parts = _parts(trace, work, launched, min(ranks, _MOST_SHARES))
        number, chosen = _chosen(parts, work, launched, 1 if ranks == 1 else 0)
        steps = steps if chosen is None else parts
    if chosen is None:
        require_few(work.height * is_limited)
        return program.measure(trace)
    some = steps[chosen]
    of_sample = number.is_in(chosen).fill_null(value=False).to_numpy()
    begin, until, end = some.select("host_start", "host_end", "end").row(-1)
    begin = some["host_start"][0]
    on_device = pl.col("device").is_not_null() & in_spans([(begin, end)])
    is_kept = in_spans([(begin, until)], with_start=True) | on_device
    kept = trace.events.select(is_kept).to_series().to_numpy(writable=True)
    kept[work["event"].to_numpy()] = of_sample
    kept[launched_by[of_sample & known]] = True
    one = program.measure(trace.select(pl.lit(pl.Series(kept))), steps=some)
    return replace(one, recorded_steps=steps.height)


def _until_end(trace: Trace) -> Trace:
    """Return the complete part of a truncated trace, the same as for idle time."""
    if not is_truncated(trace):
        return trace
    until = recorded_until(trace, device_work(trace), device_steps(trace))
    return trace if until is None else trace.select(pl.col("ts") < until)


def _chosen(
    steps: pl.DataFrame, work: pl.DataFrame, launched: pl.Series, ranks: int
) -> tuple[pl.Series, range | None]:
    """Return the step of each row of work, and those of the sample: typical, or parts (0 ranks).

    The same parts of all ranks are those in the middle.
    """
    number = launching_step(steps, launched, work["start"])
    if not ranks:
        first = (steps.height - _PARTS) // 2
        in_parts = first >= 0 and str(steps["step"][0]).startswith(PART)
        return number, range(first, first + _PARTS) if in_parts else None
    counts = np.bincount(number.drop_nulls().to_numpy(), minlength=steps.height)
    return number, typical(counts, steps["end"].to_numpy(), ranks)


def _parts(trace: Trace, work: pl.DataFrame, launched: pl.Series, shares: int) -> pl.DataFrame:
    """Return parts of a run with as much device work each, in place of its steps.

    Those of several ranks have as many collectives each: their number is a power of 2, because
    ranks differ a little in their other work.
    """
    rows = work.select("work_kind", at=pl.coalesce(launched, "start"), end="end").sort("at")
    each, name = 1, PART
    if shares == 1:
        edges = rows["at"].gather_every(MOST_WORK // _PARTS + 1)
    else:
        met = rows.filter(pl.col("work_kind") == COMMUNICATION)["at"]
        count = 1 << max(int(np.ceil(np.log2(work.height * _PARTS * shares / MOST_WORK))), 0)
        each = max(met.len() // count, 1)
        edges, name = met.gather_every(each).head(count), _AT_COLLECTIVE
    edges = edges.append(rows["at"].tail(1) + 1).unique()
    last = rows["at"].search_sorted(edges[1:]) - 1
    thread = trace.events.filter(of_kinds(LAUNCH_KINDS))[["pid", "tid"]].head(1)
    return thread.join(
        pl.DataFrame({"host_start": edges[:-1], "host_end": edges[1:]}).with_columns(
            step=pl.format(f"{name} {{}}", 1 + each * pl.int_range(pl.len())), start="host_start",
            end=pl.max_horizontal("host_end", rows["end"].cum_max()[last]),
        ), how="cross",
    )  # fmt: skip


def typical(counts: Any, ends: Any, ranks: int = 1, limit: int = 0) -> range | None:
    """Return as many typical steps as stay below the limit; None if three are above it.

    Of all runs of so many steps, those with a time within 2 % of the median are typical; of these,
    the one next to the middle of the recording.

    Args:
        counts: device work of each step.
        ends: when each step ends.
        ranks: number of ranks of the job.
        limit: of device work; default: :data:`MOST_WORK`.
    """
    limit = limit or MOST_WORK
    until = np.append(0, np.cumsum(counts))
    each = max(until[-1] / max(len(counts), 1), 1)
    most = max(limit // min(ranks, _MOST_SHARES) // each, _USUAL_STEPS)
    for size in range(int(min(most, len(counts))), LEAST_STEPS - 1, -1):
        lengths = ends[size - 1 :] - ends[: len(ends) - size + 1]
        fitting = until[size:] - until[:-size] <= limit
        usual = np.sort(lengths[fitting])[fitting.sum() // 2] if fitting.any() else 0
        first = np.flatnonzero(fitting & (abs(lengths - usual) <= _TYPICAL * usual))
        if first.size:
            chosen = int(first[np.argmin(abs(first - (lengths.size - 1) / 2))])
            return range(chosen, chosen + size)
    return None


def require_few(count: int, ranks: int = 1) -> None:
    """Require no more device work than is replayed.

    Raises:
        MissingData: there is more.
    """
    if count > (MOST_WORK if ranks == 1 else _MOST_TIMES * MOST_WORK):
        raise MissingData(
            f"{count:,} kernels and copies in so few or long steps take long to replay; "
            "traceanalyzer what-if does it"
        )


def common(programs: Sequence[Program]) -> Sequence[Program]:
    """Return the programs of all ranks, of the same steps if any is a sample or all are too large.

    Raises:
        MissingData: the samples of the ranks have too few steps in common.
    """
    is_sample = any(one.is_sample for one in programs)
    limit = int(MOST_WORK * (1 + _MORE_WORK * (len(programs) - 1)))
    if not is_sample and sum(one.work.height for one in programs) <= limit:
        return programs
    names = [one.steps["step"].to_list() for one in programs]
    shared = [name for name in names[0] if name and all(name in one for one in names)]
    rows = [[of_rank.index(name) for name in shared] for of_rank in names]
    counts = np.zeros(len(shared), np.int64)
    for one, of_rank in zip(programs, rows, strict=True):
        steps = one.work["step"].drop_nulls().to_numpy()
        counts += np.bincount(steps, minlength=one.steps.height)[of_rank]
    ends = programs[0].steps["end"].to_numpy()[rows[0]]
    chosen = typical(counts, ends, 1, limit) or typical(
        counts, ends, _MOST_SHARES, MOST_WORK * (_MOST_TIMES if len(programs) > 1 else 1)
    )
    alike = len({one.recorded_steps for one in programs}) == 1
    alike &= len(programs) == 1 or shared[0].startswith(_AT_COLLECTIVE)
    if chosen is not None and (alike or not shared[0].startswith(PART)):
        return [
            _cut(one, of_rank[chosen[0]], of_rank[chosen[-1]])
            for one, of_rank in zip(programs, rows, strict=True)
        ]
    if is_sample:
        raise MissingData("the ranks have too few steps in common to replay a sample of them")
    return programs


def _cut(one: Program, first: int, last: int) -> Program:
    """Return the program of some of its steps, the last one included."""
    steps = one.steps[first : last + 1]
    if steps.height == one.steps.height:
        return one
    is_work = one.work["step"].is_between(first, last).fill_null(value=False)
    within = pl.col("start").is_between(steps["host_start"][0], steps["host_end"][-1])
    launches = one.work["call"].filter(is_work).drop_nulls().implode()
    is_call = one.calls.select(within | pl.int_range(pl.len()).is_in(launches)).to_series()

    def moved(name: str, rows: pl.DataFrame, kept: pl.Series) -> pl.Series:
        number = (kept.cum_sum().cast(pl.Int64) - 1).set(~kept, None)
        return number.gather(rows[name].cast(pl.Int64).replace(-1, None)).alias(name)

    work, waits = one.work.filter(is_work), one.waits
    step = pl.when(pl.col("step").is_between(first, last)).then(pl.col("step") - first)
    ends = moved("work", waits, is_work), moved("call", waits, is_call)
    waits = waits.with_columns(*ends, moved("after", waits, is_work))
    return replace(
        one,
        calls=one.calls.filter(is_call).with_columns(step=step),
        work=work.with_columns(
            moved("after", work, is_work).fill_null(-1), moved("call", work, is_call), step=step
        ),
        waits=waits.filter(pl.col("after") >= 0, pl.any_horizontal(pl.col("work", "call") >= 0)),
        steps=steps,
    )
