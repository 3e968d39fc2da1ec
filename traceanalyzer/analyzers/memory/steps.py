"""Ends of the steps in the history of a device.

Steps are annotated, or detected from training code: the optimizer runs once per step after the
backward pass. In other code, steps are detected where the same sequence of allocations repeats, or
where live memory is low between peaks.
"""

import re
from collections.abc import Iterator

import numpy as np
import polars as pl

from traceanalyzer.analyzers.memory import attribution, ledger, rank_memory
from traceanalyzer.errors import OptionError
from traceanalyzer.frames import stack_weights
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.units import parse_ns
from traceanalyzer.vocabulary import PROFILER_STEP

#: How steps were defined.
STEP_EVERY = "--step-every"
ANNOTATIONS = "annotations"
OPTIMIZER = "optimizer calls"
BACKWARD = "backward passes"
REPETITION = "repeated allocations"
LOW = "lows of live memory"

#: Minimum number of repetitions of a pattern.
_MIN_REPEATS = 4
#: Minimum share of allocations equal to that one period earlier.
_EQUAL_FRAC = 0.8
#: Minimum share of allocated bytes freed per period: layers of one forward pass repeat too.
_FREED_FRAC = 0.5
#: Share of the largest fall of live memory that counts as the end of a step.
_SWING = 0.5
#: The same for steps within which not all is freed; they are at least this many times as frequent.
_FINER, _OFTEN = 0.3, 3
#: A step has so many allocations of the size of the largest one.
_MANY = 8
#: Number of periods to try.
_CANDIDATES = 50
_UNKNOWN, _OTHER, _FORWARD, _BACKWARD, _OPTIMIZER = -1, 0, 1, 2, 3
_EVENTS = re.compile(r"\d+")
_EMPTY = {"step": pl.Int64, "name": pl.String, "by": pl.String} | dict.fromkeys(
    ("position", "time_ns"), pl.Int64
)


def boundaries(
    history: ledger.Ledger, rank: rank_memory.RankMemory, step_every: str | None
) -> pl.DataFrame:
    """Return the ends of steps in the time window: step (a number), name, by, position, time_ns.

    Args:
        history: history of the device.
        rank: the rank with its annotations and stacks.
        step_every: length of a step as a time or a number of events; None to detect steps.

    Returns:
        The first method with at least two ends: annotations, ends of optimizer calls after a
        backward pass, ends of backward passes, repeated allocations, lows between peaks; ``by`` is
        the method. No rows if all fail.
    """
    first, last = history.between(*rank.window)
    ends = pl.DataFrame(schema=_EMPTY)
    for ends in _attempts(history, rank, step_every):
        ends = ends.filter(pl.col("position").is_between(first, last))
        if ends.height > 1:
            break
    return ends if ends.height > 1 else ends.clear()


def _attempts(
    history: ledger.Ledger, rank: rank_memory.RankMemory, step_every: str | None
) -> Iterator[pl.DataFrame]:
    if step_every is not None:
        yield _table(*_every(history, step_every), STEP_EVERY)
        return
    if not history.rows["ts"].null_count():
        steps = _one_family(rank, history.device)
        at = rank_memory.positions(history, steps["end"])
        yield _table(at, steps["end"], ANNOTATIONS, steps["name"].to_list())
    phase = _phases(history, rank.lines)
    for by, at in _passes(phase):
        yield _table(at, history.times(pl.Series(at)), by)
    at = _repetitions(history, phase)
    yield _table(at, history.times(pl.Series(at)), REPETITION)
    at, finer = _lows(history, _SWING), _lows(history, _FINER)
    # memory that is freed only every few steps hides the lows between them
    at = finer if finer.size >= _OFTEN * at.size else at
    yield _table(at, history.times(pl.Series(at)), LOW)
    at = _one_by_one(history, rank.lines)
    yield _table(at, history.times(pl.Series(at)), REPETITION)


def _table(at: Ints, times: pl.Series, by: str, names: list[str] | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "step": range(at.size),
            "name": names or [None] * at.size,
            "by": [by] * at.size,
            "position": at,
            "time_ns": times,
        },
        schema=_EMPTY,
    )


# --- annotations and --step-every ------------------------------------------------------------


def _one_family(rank: rank_memory.RankMemory, device: int | None) -> pl.DataFrame:
    """Return the steps with one name, ignoring numbers: a range in a step may be named step too.

    The profiler's name comes first, else the most frequent name. A device without steps gets those
    of all devices.
    """
    steps = rank.steps_of(device)
    steps = (rank.steps if steps.is_empty() else steps).unique(["name", "end"]).with_columns(
        family=pl.col("name").str.replace_all(r"\d+", "#")
    )  # fmt: skip
    profilers = pl.col("family") == f"{PROFILER_STEP}#"
    families = steps.group_by("family").agg(pl.len(), profilers.any().alias("first"))
    best = families.sort("first", "len", "family", descending=[True, True, False])["family"].head(1)
    return steps.filter(pl.col("family").is_in(best.implode())).sort("end", "name")


def _every(history: ledger.Ledger, step_every: str) -> tuple[Ints, pl.Series]:
    ts = history.rows["ts"]
    if _EVENTS.fullmatch(step_every):
        size = int(step_every)
        if not size:
            raise OptionError("--step-every must be a time or a number of events above 0")
        at = np.arange(size, history.positions, size)
        return at, ts.gather(at - 1)
    length = parse_ns(step_every, "--step-every")
    if length <= 0:
        raise OptionError("--step-every must be a time above 0 or a number of events")
    if ts.null_count() or not ts.len():
        raise OptionError("--step-every: the file has no times. Use a number of events.")
    if (int(ts[-1]) - int(ts[0])) // length > ts.len():
        raise OptionError(f"--step-every {step_every}: shorter than the time between two events")
    times = pl.Series(np.arange(int(ts[0]) + length, int(ts[-1]) + 1, length), dtype=pl.Int64)
    return rank_memory.positions(history, times), times


# --- passes of training code -----------------------------------------------------------------


def _phases(history: ledger.Ledger, lines: attribution.Lines) -> Ints:
    """Return the training phase of each event; _UNKNOWN without a stack."""
    if not lines.parent.size:
        return np.full(history.rows.height, _UNKNOWN)
    markers = attribution.markers(lines)
    backward = np.maximum(markers["backward"], markers["accumulate"]) != stack_weights.ROOT
    forward = markers["forward"] > markers["optimizer"]
    optimizer = markers["optimizer"] > markers["forward"]
    phase = np.select([backward, forward, optimizer], [_BACKWARD, _FORWARD, _OPTIMIZER], _OTHER)
    stack = history.rows["stack"]
    # PyTorch records the stack of the allocation at a free, unless it records those of frees, too
    if history.allocations.filter(pl.col("freed_by") != pl.col("stack")).is_empty():
        stack = stack.to_frame().select(pl.when(history.rows["change"] == 1).then("stack"))["stack"]
    of_events: Ints = np.where(stack.is_null(), _UNKNOWN, phase[stack.fill_null(0).to_numpy()])
    return of_events


def _passes(phase: Ints) -> Iterator[tuple[str, Ints]]:
    """Yield positions after the last optimizer event of each step, and after backward passes."""
    rows = np.flatnonzero(phase >= _FORWARD)
    yield OPTIMIZER, _ends(rows, phase[rows], _OPTIMIZER, _BACKWARD) + 1
    yield BACKWARD, _ends(rows, phase[rows], _BACKWARD, _FORWARD) + 1


def _ends(rows: Ints, phases: Ints, phase: int, before: int) -> Ints:
    """Return the last row of each run of a phase that follows a run of another phase."""
    last = np.flatnonzero(np.diff(phases, append=0) != 0)
    needed = bool((phases == before).any())
    ends, ready = [], False
    for at in last.tolist():
        ready |= phases[at] == before
        if phases[at] == phase and (ready or not needed):
            ends.append(int(rows[at]))
            ready = False
    return np.array(ends, np.int64)


# --- repetition ------------------------------------------------------------------------------


def _repetitions(history: ledger.Ledger, phase: Ints) -> Ints:
    """Return positions before an allocation that occurs once a period; none without a period.

    It must be outside modules and the backward pass, because layers of one pass repeat too.
    """
    allocs = (
        history.rows.with_row_index("row").with_columns(phase=phase).filter(pl.col("change") == 1)
    )
    token = pl.struct("stack", "bytes").rank("dense").alias("token")
    allocs = allocs.select("row", "phase", token).cast(pl.Int64)
    period = _period(allocs["token"].to_numpy())
    at = np.array([], np.int64) if period is None else _anchored(allocs, period, history.live)
    if at.size < _MIN_REPEATS:
        return at[:0]
    inside = history.allocations.filter(pl.col("start") > at[0], pl.col("start") <= at[-1])
    freed = int(inside.filter(pl.col("end") <= at[-1])["bytes"].sum())
    return at if freed >= _FREED_FRAC * int(inside["bytes"].sum()) else at[:0]


def _period(token: Ints) -> int | None:
    """Return the shortest distance at which most allocations are equal; None if there is none."""
    spacing = (
        pl.DataFrame({"token": token, "at": np.arange(token.size)})
        .group_by("token")
        .agg(n=pl.len(), spacing=pl.col("at").diff().median())
        .filter(pl.col("n") >= _MIN_REPEATS, pl.col("spacing") * _MIN_REPEATS <= token.size)
    )
    sizes = spacing["spacing"].cast(pl.Int64).value_counts(sort=True)["spacing"]
    candidates = [size for size in sizes.head(_CANDIDATES).to_list() if size > 1]
    equal = {size: _equal_frac(token, size) for size in candidates}
    best = max(equal.values(), default=0.0)
    near = [size for size, share in equal.items() if share >= max(_EQUAL_FRAC, best - 0.02)]
    return min(near, default=None)


def _equal_frac(token: Ints, period: int) -> float:
    """Return the share of allocations in the second half that equal those one period earlier."""
    since = max(period, token.size // 2)
    return float((token[since:] == token[since - period : token.size - period]).mean())


def _anchored(allocs: pl.DataFrame, period: int, live: Ints) -> Ints:
    """Return rows of the allocation that occurs once a period when the fewest bytes are live."""
    each = allocs.with_columns(live=live[allocs["row"].to_numpy()], at=pl.int_range(pl.len()))
    each = each.group_by("token").agg(
        "row", once=(pl.col("at").diff() == period).sum(), n=pl.len(),
        live=pl.col("live").mean(), outside=(pl.col("phase") == _OTHER).all(),
    )  # fmt: skip
    regular = each.filter(
        "outside", pl.col("once") >= (pl.col("n") - 1) * _EQUAL_FRAC, pl.col("n") > 1
    )
    rows = regular.sort("live", "token")["row"].head(1)
    at: Ints = rows.explode().to_numpy() if rows.len() else np.array([], np.int64)
    return at


def _lows(history: ledger.Ledger, part: float) -> Ints:
    """Return positions at which live memory is lowest between two peaks; none without several.

    Memory falls before and rises after each of them by at least this part of its largest fall, over
    many allocations: single layers free their temporary tensors, too.
    """
    live = history.live
    fall = int((np.maximum.accumulate(live) - live).max())
    swing = part * fall
    slope = np.sign(np.diff(live))
    turns = np.flatnonzero(slope != 0)
    turns = np.append(turns[np.diff(slope[turns], append=0) != 0] + 1, live.size - 1)
    lows, top, low, rises = list[int](), int(live[0]), 0, True
    for at in turns.tolist() if swing else ():
        size = int(live[at])
        if rises:
            top = max(top, size)
            rises = top - size < swing
            low = at
        elif size <= live[low]:
            low = at
        elif size - live[low] >= swing:
            lows.append(low)
            rises, top = True, size
    lows += [] if rises else [low]
    if len(lows) >= _MIN_REPEATS:
        inside = history.allocations.filter(pl.col("start").is_between(lows[0] + 1, lows[-1]))
        most = (fall if part == _SWING else swing) / _MANY
        lows = [] if (inside["bytes"] > most).any() else lows
    return np.array(lows if len(lows) >= _MIN_REPEATS else [], np.int64)


#: What fills the memory until an error one by one: blocks of unknown use from one stack that are
#: not freed, so many of about one size, over at least this share of the time, no pause longer than
#: a part of it, with some memory before them: not the weights of a model, or one forward pass.
_BLOCKS, _SAME, _MOST_TIME, _PAUSE, _BEFORE = 8, 1.1, 0.5, 0.25, 0.1
_LOADS = r"(?i)\b(?:__init__|\w*(?:load|init|pretrained|compile|warm_?up|capture)\w*|_apply) \("


def _one_by_one(history: ledger.Ledger, lines: attribution.Lines) -> Ints:
    """Return positions of such blocks; none without an error, or if there are none."""
    none, failed = np.array([], np.int64), history.rows["kind"].cast(pl.String) == "oom"
    if not failed.any():
        return none
    last = int(failed.arg_max() or 0)
    rows = history.allocations.filter(
        pl.col("start").is_between(1, last), category=attribution.UNKNOWN
    )
    size, ends = pl.col("bytes"), pl.col("end").fill_null(last + 1)
    kept = (pl.len() >= _BLOCKS) & (size.max() <= _SAME * size.min()) & (ends.min() > last)
    sums = rows.group_by("stack").agg(kept=kept, total=size.sum(), at=pl.col("start").sort())
    most = sums.filter("kept").sort("total", "stack").tail(1)
    for stack, at in most.select("stack", "at").iter_rows():
        (frames,) = lines.paths(pl.Series([stack], dtype=pl.UInt32))
        places = pl.Series([1, *at, last])
        times = history.times(places, clamp=True)
        time = (places if times.null_count() else times).to_numpy()
        whole, pause = time[-1] - time[0], np.diff(time)[1:].max()
        alone = history.live[at[0] - 1] >= _BEFORE * history.live[last]
        steady = whole * _MOST_TIME <= time[-1] - time[1] and pause <= _PAUSE * whole
        if alone and steady and not re.search(_LOADS, frames or ""):
            return np.array(at, np.int64)
    return none
