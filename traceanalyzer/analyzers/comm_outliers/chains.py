"""Root ranks of wait times: arrival delays are followed back to the rank that caused them.

The last rank of a collective may be delayed only because it left an earlier collective of another
process group late, where it waited for another rank. For each collective with last rank L and
longest waiting rank W, both are compared since their last common collective::

    delay = arrival(L) - arrival(W)
    inherited = min(max(waits(L) - waits(W), 0), delay)

``waits`` is the wait time since then. The inherited part belongs to the root ranks for
which L waited longer than W, in proportion to the difference; the rest is due to L. This is the
delay analysis of Scalasca (Boehme et al., ICPP 2010) on the kernels of a trace. A wait that compute
overlaps delays nothing, unless the next collective was queued behind it on its stream.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, comb
from typing import Any, Final

import polars as pl

from traceanalyzer.analyzers.comm_outliers.pipelines import POINT_TO_POINT_NAME, connected
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.units import format_count, format_frac, format_ranges

#: A collective that starts this soon after the previous one on its stream was queued behind it.
_QUEUED_NS = 20_000

#: Collectives of a rank that are searched for the last common one.
_REACH = 1_000

#: Roots with a smaller share are dropped to keep chains short, unless no share is larger.
_SMALL_FRAC = 0.005

#: A collective without a stream.
_NO_STREAM = -(1 << 62)

_SCHEMA = {"instance": pl.UInt32, "root_rank": pl.Int32, "root_ns": pl.Int64}


@dataclass(frozen=True)
class _Chains:
    """The collectives of all ranks by (rank, time of leaving), and the roots found so far.

    Columns are memory views, which Python reads faster than arrays. Times are in ns on the common
    clock.

    Attributes:
        begin: first row of the rank of each row.
        instance, lane, stream, arrival, leave, wait, compute: of each row.
        members: ranks of each lane.
        roots: shares of the root ranks of each collective.
    """

    begin: memoryview
    instance: memoryview
    lane: memoryview
    stream: memoryview
    arrival: memoryview
    leave: memoryview
    wait: memoryview
    compute: memoryview
    members: dict[int, set[int]]
    roots: dict[int, dict[int, float]] = field(default_factory=dict)


def roots(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks that caused the waits of each collective.

    Args:
        rows: arrivals of matched collectives: instance, lane, rank, stream, arrival, leave,
            wait_ns, once_ns, is_last, compute_ns (overlapping compute, null if unknown).

    Returns:
        instance, root_rank, root_ns: the part of the collective's waits caused by this rank,
        largest first. The parts of one collective add up to the sum of its waits (``once_ns``).
    """
    times = ("arrival", "leave", "wait_ns", "once_ns", "compute_ns")
    ordered = rows["instance", "lane", "rank", "stream", *times, "is_last"]
    ordered = ordered.sort("rank", "leave", "arrival", "instance").with_row_index("row")
    chains = _chains(ordered)
    earliest = pl.struct("rank", "row").sort_by("arrival", "rank").first()
    summed = ordered.group_by("instance").agg(
        pl.col("arrival").max(),
        pl.col("once_ns").sum().alias("imposed"),
        pl.struct("rank", "row").filter("is_last").first().alias("last"),
        earliest.alias("first"),
    )
    waited = summed.filter(pl.col("last").struct.field("rank").is_not_null())
    parts: list[tuple[int, int, int]] = []
    for instance, _, imposed, last, first in waited.sort("arrival", "instance").iter_rows():
        shares = _shares(chains, last, first)
        chains.roots[instance] = shares
        parts += [(instance, *part) for part in _parts(shares, imposed)]
    return pl.DataFrame(parts, schema=_SCHEMA, orient="row")


def with_roots(collectives: pl.DataFrame, roots: pl.DataFrame) -> pl.DataFrame:
    """Add the rank that caused most of each collective's waits, ``root_rank``, and ``root_ns``."""
    largest = roots.unique("instance", keep="first", maintain_order=True)
    return collectives.join(largest, on="instance", how="left", maintain_order="left")


def _chains(ordered: pl.DataFrame) -> _Chains:
    numbers = ordered.select(
        pl.col("row").first().over("rank").alias("begin"),
        "instance",
        "lane",
        pl.col("stream").fill_null(_NO_STREAM),
        "arrival",
        "leave",
        "wait_ns",
        pl.col("compute_ns").fill_null(0),
    ).cast(pl.Int64)
    views = [memoryview(column.to_numpy().data) for column in numbers.get_columns()]
    lanes = ordered.select("lane", "rank").unique()
    members: dict[int, set[int]] = defaultdict(set)
    for lane, rank in lanes.iter_rows():
        members[lane].add(rank)
    begin, instance, lane, stream, arrival, leave, wait, compute = views
    return _Chains(begin, instance, lane, stream, arrival, leave, wait, compute, members)


def _shares(chains: _Chains, last: Mapping[str, int], first: Mapping[str, int]) -> dict[int, float]:
    """Return the share of each root rank in the wait of one collective; shares add up to 1.

    ``last`` and ``first`` are the rank that arrived last (first), and its row.
    """
    waits = _waits(chains, last["row"], first["rank"])
    others = _waits(chains, first["row"], last["rank"])
    delay = chains.arrival[last["row"]] - chains.arrival[first["row"]]
    longer = sum(waits.values()) - sum(others.values())
    inherited = min(max(longer, 0), delay) / delay if delay else 0.0
    excess = {root: max(wait - others.get(root, 0), 0) for root, wait in waits.items()}
    shares = defaultdict(float, {last["rank"]: 1.0 - inherited})
    if inherited:
        for root, wait in excess.items():
            shares[root] += inherited * wait / sum(excess.values())
    least = min(_SMALL_FRAC, max(shares.values()) / 2)
    kept = {root: share for root, share in shares.items() if share >= least}
    return {root: share / sum(kept.values()) for root, share in kept.items()}


def _waits(chains: _Chains, row: int, other: int) -> dict[int, float]:
    """Return the wait time of a row's rank since its last collective with ``other``, by root."""
    waits: dict[int, float] = defaultdict(float)
    arrival, stream = chains.arrival[row], chains.stream[row]
    for visit in range(row - 1, max(row - _REACH, chains.begin[row]) - 1, -1):
        leave = chains.leave[visit]
        if leave > arrival:
            continue
        if other in chains.members[chains.lane[visit]]:
            break
        wait = chains.wait[visit]
        if not (chains.stream[visit] == stream and arrival - leave < _QUEUED_NS):
            wait -= min(wait, chains.compute[visit])
        for root, share in chains.roots.get(chains.instance[visit], {}).items():
            waits[root] += share * wait
    return waits


def _parts(shares: dict[int, float], imposed: int) -> list[tuple[int, int]]:
    """Return whole ns of each root, largest first; the largest gets the rounding difference."""
    ordered = sorted(shares.items(), key=lambda share: (-share[1], share[0]))
    parts = [(root, int(share * imposed)) for root, share in ordered]
    root, largest = parts[0]
    return [(root, largest + imposed - sum(part for _, part in parts)), *parts[1:]]


#: From this number of ranks on, texts name the host and GPU of a rank.
MANY_RANKS: Final = 32
#: Share of the ranks that are called the worst.
WORST_FRAC: Final = 0.03
#: A group is named in the verdict from this share on, and from this multiple of an even share.
_LEAST_FRAC, _TIMES_EVEN = 0.2, 3
_STAGE, _GPU, _HOST = "pipeline stage", "GPU index", "host"
_GROUPS = {
    "part": pl.String,
    "name": pl.String,
    "ranks": pl.UInt32,
    "ranks_frac": pl.Float64,
    "imposed_ns": pl.Int64,
    "imposed_frac": pl.Float64,
}


def positions(ranks: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """Return rank, host, gpu, stage and imposed_ns of each rank.

    ``gpu`` is the device of its collectives; if ranks of one host have the same, for example
    because each process sees one GPU, its number among the ranks of the host. ``stage`` is its
    place among the ranks that send to each other; null if that is not recorded.
    """
    device = instances.group_by("rank").agg(device=pl.col("device").drop_nulls().mode().min())
    placed = ranks.select("rank", "host", "imposed_ns").join(device, on="rank", how="left")
    distinct = (pl.col("device").is_unique().over("host") & pl.col("device").is_not_null()).all()
    order = pl.col("rank").rank("ordinal").over("host").cast(pl.Int32) - 1
    number = pl.when(distinct.over("host")).then("device").otherwise(order)
    gpu = pl.when(pl.col("host").is_not_null()).then(number)
    stages = pl.DataFrame(_stages(instances), schema={"rank": pl.Int32, "stage": pl.Int32})
    known = placed.with_columns(gpu=gpu)
    return (
        known.join(stages, on="rank", how="left")
        .select("rank", "host", "gpu", "stage", "imposed_ns")
        .sort("rank")
    )


def _stages(instances: pl.DataFrame) -> dict[str, list[int]]:
    """Return the ranks that send to each other, and the place of each in its pipeline."""
    texts = (
        instances.filter(pl.col("collective").str.contains(POINT_TO_POINT_NAME))["group_ranks"]
        .drop_nulls()
        .unique()
        .sort()
    )
    listed = [[one.strip() for one in text.strip("[]").split(",")] for text in texts]
    groups = [map(int, ranks) for ranks in listed if all(one.isdecimal() for one in ranks)]
    stages = {rank: sorted(ranks).index(rank) for rank, ranks in connected(groups).items()}
    return {"rank": list(stages), "stage": list(stages.values())}


def concentration(placed: pl.DataFrame) -> pl.DataFrame:
    """Return the share of the wait time that groups of ranks cause, by kind of group.

    Args:
        placed: rows of :func:`positions`.

    Returns:
        part (``worst 3 % of ranks``, ``host``, ``GPU index``, ``pipeline stage``), name, ranks (of
        the group), ranks_frac, imposed_ns and imposed_frac; of each kind the group with most.
    """
    worst = placed.sort("imposed_ns", "rank", descending=[True, False])
    worst = worst.head(ceil(WORST_FRAC * placed.height))
    label = f"worst {WORST_FRAC:.0%} of ranks".replace("%", " %")
    first = pl.DataFrame(
        {
            "part": [label],
            "name": [format_ranges(worst["rank"].sort().to_list())],
            "ranks": [worst.height],
            "imposed_ns": [worst["imposed_ns"].sum()],
        }
    )
    rows = [first]
    for part, column in ((_HOST, "host"), (_GPU, "gpu"), (_STAGE, "stage")):
        known = placed.drop_nulls(column)
        if known[column].n_unique() < 2:
            continue
        sums = known.group_by(name=pl.col(column).cast(pl.String)).agg(
            pl.len().alias("ranks"), pl.col("imposed_ns").sum()
        )
        most = sums.sort("imposed_ns", "name", descending=[True, False]).head(1)
        rows.append(most.with_columns(part=pl.lit(part)))
    total, count = int(placed["imposed_ns"].sum()), placed.height
    return (
        pl.concat(rows, how="diagonal_relaxed")
        .with_columns(whole=pl.lit(total), count=pl.lit(count))
        .with_columns(ranks_frac=ratio("ranks", "count"), imposed_frac=ratio("imposed_ns", "whole"))
        .select(pl.col(name).cast(dtype) for name, dtype in _GROUPS.items())
    )


def persistence(
    rank: int, steps: pl.DataFrame, collectives: pl.DataFrame, arrivals: pl.DataFrame
) -> tuple[int, int, int, int]:
    """Return in how many steps and recordings a rank is the straggler, each with their number.

    A recording (a cycle of the profiler) is one file of each rank; its straggler is the rank that
    caused most wait time in it.
    """
    files = arrivals.group_by("rank", "path").agg(pl.col("arrival").min())
    cycles = files.with_columns(cycle=pl.col("arrival").rank("ordinal").over("rank"))
    of_instance = (
        arrivals.join(cycles.select("rank", "path", "cycle"), on=["rank", "path"])
        .group_by("instance")
        .agg(pl.col("cycle").min())
    )
    caused = (
        collectives.drop_nulls("root_rank")
        .join(of_instance, on="instance")
        .group_by("cycle", "root_rank")
        .agg(pl.col("root_ns").sum())
        .sort("cycle", "root_ns", "root_rank", descending=[False, True, False])
        .unique("cycle", keep="first", maintain_order=True)
    )
    return (
        int((steps["straggler"] == rank).sum()),
        steps.height,
        int((caused["root_rank"] == rank).sum()),
        int(cycles["cycle"].max() or 0),  # type: ignore[arg-type]
    )


#: From this share on, one step has nearly all wait time.
_NEARLY_ALL = 0.9
#: Steps with at least this share of the median wait time have equal wait times.
_EQUAL = 0.4
#: A step with less than this share of the largest wait time of a step has none.
_NO_WAIT = 0.05
#: Share of what exceeds the even share that is not by chance.
_MUCH = 0.75
#: Greatest probability that a rank is last as often by chance.
_CHANCE = 0.05


def is_steady(waits: pl.DataFrame, rank: int, ranks: int) -> bool:
    """Whether one rank is the straggler, not by chance the last one in some steps.

    It is if one rank of many causes wait time, or a few ranks the same in each step or much in some
    steps only, or it nearly all of it, or most of one step with nearly all.
    Otherwise, it causes at least twice the even share (of few ranks: half of the others' too), and
    most wait time in all steps, or in so many that equal ranks would by chance with a probability
    below 5 %.

    Args:
        waits: step (or another unit), rank that caused the wait time, ns.
        rank: the rank.
        ranks: number of ranks.
    """
    sums = waits.group_by("step", "rank").agg(pl.col("ns").sum())
    whole, even = max(int(sums["ns"].sum()), 1), 1 / max(ranks, 2)
    steps = sums.group_by("step").agg(pl.col("ns").sum())["ns"]
    shares = sums.group_by("rank").agg(pl.col("ns").sum() / whole)
    causing = shares.filter(pl.col("ns") >= even / 2).height
    share = float(shares.filter(rank=rank)["ns"].sum())
    least, median, most = (int(steps.quantile(q) or 0) for q in (0, 0.5, 1))
    is_usual = causing == 1 or least >= _EQUAL * median or least < _NO_WAIT * most
    are_few = 2 * causing <= min(ranks, steps.len()) and is_usual
    if are_few or share >= even + _MUCH * (1 - even):
        return True
    if share < min(2 * even, even + (1 - even) / 2):
        return False
    largest = sums.sort("step", "ns", "rank", descending=[False, True, False])
    firsts = largest.unique("step", keep="first", maintain_order=True)["rank"]
    times, n = int((firsts == rank).sum()), steps.len()
    tail = (comb(n, k) * even**k * (1 - even) ** (n - k) for k in range(times, n + 1))
    return most >= _NEARLY_ALL * whole or times == n or ranks * sum(tail) < _CHANCE


def rank_label(placed: pl.DataFrame, rank: int) -> str:
    """Return ``rank 437 (node54, GPU 5)``; ``rank 5`` of few ranks."""
    if placed.height < MANY_RANKS:
        return f"rank {rank}"
    row = placed.filter(pl.col("rank") == rank).row(0, named=True)
    where = [row["host"]] if row["host"] is not None else []
    where += [f"GPU {row['gpu']}"] if row["gpu"] is not None else []
    return f"rank {rank} ({', '.join(where)})" if where else f"rank {rank}"


def texts(rows: pl.DataFrame, steady: Sequence[int]) -> str:
    """Return sentences about what causes the wait time, and whether the same rank always does.

    Args:
        rows: of :func:`concentration`.
        steady: of :func:`persistence`.
    """
    worst, *others = rows.iter_rows(named=True)
    also = "".join(f" {_named(row)}." for row in others if _stands_out(row))
    text = (
        f"The {worst['part']} ({format_count(worst['ranks'], 'rank')}) cause "
        f"{format_frac(worst['imposed_frac'])} of all wait time.{also}"
    )
    in_steps, steps, in_recordings, recordings = steady
    if steps:
        text += f" The same rank is the straggler in {in_steps:,} of {format_count(steps, 'step')}"
        if recordings > 1:
            text += f" and in {in_recordings:,} of {format_count(recordings, 'recording')}"
        text += "."
    return text


def _named(row: Mapping[str, Any]) -> str:
    share = f"{format_frac(row['imposed_frac'])} (even share: {format_frac(row['ranks_frac'])})"
    part = f"{row['part'][:1].upper()}{row['part'][1:]}"
    return f"{part} {row['name']} causes {share}"


def _stands_out(row: Mapping[str, Any]) -> bool:
    share = row["imposed_frac"] or 0.0
    return bool(share >= max(_LEAST_FRAC, min(_TIMES_EVEN * row["ranks_frac"], 0.9)))
