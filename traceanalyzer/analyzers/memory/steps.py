"""Where the steps of a device's history end.

Annotations say it. Without them, training code shows it: the optimizer runs once in each step after
the backward pass. Other code shows it where it allocates the same sizes in the same order again and
again.
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

#: How steps were found.
ASKED = "--step-every"
ANNOTATIONS = "annotations"
OPTIMIZER = "optimizer calls"
BACKWARD = "backward passes"
REPETITION = "repeated allocations"

#: From so many steps on, a pattern is no coincidence.
_LEAST = 4
#: This share of allocations must be equal to that one period earlier.
_ALIKE = 0.8
#: This share of what a period allocates must be freed: the layers of one forward pass repeat too.
_FREED = 0.5
#: Periods that are tried.
_CANDIDATES = 50
_UNKNOWN, _OTHER, _FORWARD, _BACKWARD, _OPTIMIZER = -1, 0, 1, 2, 3
_EVENTS = re.compile(r"\d+")
_EMPTY = {"step": pl.Int64, "name": pl.String, "by": pl.String} | dict.fromkeys(
    ("position", "time_ns"), pl.Int64
)


def boundaries(
    of: ledger.Ledger, rank: rank_memory.RankMemory, step_every: str | None
) -> pl.DataFrame:
    """The ends of steps in the window: step (a number), name, by, position, time_ns.

    Args:
        of: the device's history.
        rank: with its annotations and stacks.
        step_every: a time or a number of events that is a step; None to find the steps.

    Returns:
        The first of these that gives two or more: annotations, the ends of the optimizer's calls
        after a backward pass, the ends of backward passes, repetitions; ``by`` says which. Without
        any, no rows.
    """
    first, last = of.between(*rank.window)
    found = pl.DataFrame(schema=_EMPTY)
    for found in _attempts(of, rank, step_every):
        found = found.filter(pl.col("position").is_between(first, last))
        if found.height > 1:
            break
    return found if found.height > 1 else found.clear()


def _attempts(
    of: ledger.Ledger, rank: rank_memory.RankMemory, step_every: str | None
) -> Iterator[pl.DataFrame]:
    if step_every is not None:
        yield _table(*_every(of, step_every), ASKED)
        return
    if not of.rows["ts"].null_count():
        marked = _one_family(rank, of.device)
        at = rank_memory.positions(of, marked["end"])
        yield _table(at, marked["end"], ANNOTATIONS, marked["name"].to_list())
    phase = _phases(of, rank.lines)
    for by, at in _passes(phase):
        yield _table(at, of.times(pl.Series(at)), by)
    at = _repetitions(of, phase)
    yield _table(at, of.times(pl.Series(at)), REPETITION)


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


# --- asked for, annotated --------------------------------------------------------------------


def _one_family(rank: rank_memory.RankMemory, device: int | None) -> pl.DataFrame:
    """The steps of one name but for its number: a range in a step may be called a step too.

    Of several names the profiler's, else that of which there are most; of a device that has none,
    those of all devices.
    """
    marked = rank.steps_of(device)
    marked = (rank.steps if marked.is_empty() else marked).unique(["name", "end"]).with_columns(
        family=pl.col("name").str.replace_all(r"\d+", "#")
    )  # fmt: skip
    profilers = pl.col("family") == f"{PROFILER_STEP}#"
    families = marked.group_by("family").agg(pl.len(), profilers.any().alias("first"))
    best = families.sort("first", "len", "family", descending=[True, True, False])["family"].head(1)
    return marked.filter(pl.col("family").is_in(best.implode())).sort("end", "name")


def _every(of: ledger.Ledger, step_every: str) -> tuple[Ints, pl.Series]:
    ts = of.rows["ts"]
    if _EVENTS.fullmatch(step_every):
        size = int(step_every)
        if not size:
            raise OptionError("--step-every is a time, or a number of events above 0")
        at = np.arange(size, of.positions, size)
        return at, ts.gather(at - 1)
    length = parse_ns(step_every)
    if length <= 0:
        raise OptionError("--step-every is a time above 0, or a number of events")
    if ts.null_count() or not ts.len():
        raise OptionError("--step-every: the file has no times; give a number of events")
    if (int(ts[-1]) - int(ts[0])) // length > ts.len():
        raise OptionError(f"--step-every {step_every}: shorter than the time between two events")
    times = pl.Series(np.arange(int(ts[0]) + length, int(ts[-1]) + 1, length), dtype=pl.Int64)
    return rank_memory.positions(of, times), times


# --- passes of a training --------------------------------------------------------------------


def _phases(of: ledger.Ledger, lines: attribution.Lines) -> Ints:
    """What the code of each event does; _UNKNOWN without a stack."""
    if not lines.parent.size:
        return np.full(of.rows.height, _UNKNOWN)
    signs = attribution.signs(lines)
    backward = np.maximum(signs["backward"], signs["accumulate"]) != stack_weights.ROOT
    forward = signs["forward"] > signs["optimizer"]
    optimizer = signs["optimizer"] > signs["forward"]
    phase = np.select([backward, forward, optimizer], [_BACKWARD, _FORWARD, _OPTIMIZER], _OTHER)
    stack = of.rows["stack"]
    found: Ints = np.where(stack.is_null(), _UNKNOWN, phase[stack.fill_null(0).to_numpy()])
    return found


def _passes(phase: Ints) -> Iterator[tuple[str, Ints]]:
    """Positions after the optimizer's last event of each step, and after each backward pass."""
    rows = np.flatnonzero(phase >= _FORWARD)
    yield OPTIMIZER, _ends(rows, phase[rows], _OPTIMIZER, _BACKWARD) + 1
    yield BACKWARD, _ends(rows, phase[rows], _BACKWARD, _FORWARD) + 1


def _ends(rows: Ints, phases: Ints, wanted: int, before: int) -> Ints:
    """The last row of each run of one phase that another one came before since the last."""
    last = np.flatnonzero(np.diff(phases, append=0) != 0)
    needed = bool((phases == before).any())
    found, ready = [], False
    for at in last.tolist():
        ready |= phases[at] == before
        if phases[at] == wanted and (ready or not needed):
            found.append(int(rows[at]))
            ready = False
    return np.array(found, np.int64)


# --- repetition ------------------------------------------------------------------------------


def _repetitions(of: ledger.Ledger, phase: Ints) -> Ints:
    """Positions before an allocation that occurs once a period; none without a clear period.

    It must be outside of modules and of the backward pass, as the layers of one pass repeat too.
    """
    made = of.rows.with_row_index("row").with_columns(phase=phase).filter(pl.col("change") == 1)
    token = pl.struct("stack", "bytes").rank("dense").alias("token")
    made = made.select("row", "phase", token).cast(pl.Int64)
    period = _period(made["token"].to_numpy())
    at = np.array([], np.int64) if period is None else _anchored(made, period, of.live)
    if at.size < _LEAST:
        return at[:0]
    inside = of.allocations.filter(pl.col("start") > at[0], pl.col("start") <= at[-1])
    freed = int(inside.filter(pl.col("end") <= at[-1])["bytes"].sum())
    return at if freed >= _FREED * int(inside["bytes"].sum()) else at[:0]


def _period(token: Ints) -> int | None:
    """The shortest distance at which most allocations equal each other; None without one."""
    spacing = (
        pl.DataFrame({"token": token, "at": np.arange(token.size)})
        .group_by("token")
        .agg(n=pl.len(), spacing=pl.col("at").diff().median())
        .filter(pl.col("n") >= _LEAST, pl.col("spacing") * _LEAST <= token.size)
    )
    sizes = spacing["spacing"].cast(pl.Int64).value_counts(sort=True)["spacing"]
    alike = {size: _alike(token, size) for size in sizes.head(_CANDIDATES).to_list() if size > 1}
    best = max(alike.values(), default=0.0)
    near = [size for size, share in alike.items() if share >= max(_ALIKE, best - 0.02)]
    return min(near, default=None)


def _alike(token: Ints, period: int) -> float:
    """The share of allocations of the second half that equal those one period earlier."""
    since = max(period, token.size // 2)
    return float((token[since:] == token[since - period : token.size - period]).mean())


def _anchored(made: pl.DataFrame, period: int, live: Ints) -> Ints:
    """Rows of the allocation that occurs once a period, and before which least is live."""
    each = made.with_columns(live=live[made["row"].to_numpy()], at=pl.int_range(pl.len()))
    each = each.group_by("token").agg(
        "row", once=(pl.col("at").diff() == period).sum(), n=pl.len(),
        live=pl.col("live").mean(), outside=(pl.col("phase") == _OTHER).all(),
    )  # fmt: skip
    regular = each.filter("outside", pl.col("once") >= (pl.col("n") - 1) * _ALIKE, pl.col("n") > 1)
    rows = regular.sort("live", "token")["row"].head(1)
    found: Ints = rows.explode().to_numpy() if rows.len() else np.array([], np.int64)
    return found
