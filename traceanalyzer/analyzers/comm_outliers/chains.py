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
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

#: A collective that starts this soon after the previous one on its stream was queued behind it.
_QUEUED_NS = 20_000

#: Collectives of a rank that are searched for the last common one.
_REACH = 1_000

#: Roots with a smaller share are dropped to keep chains short.
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
            wait_ns, is_last, compute_ns (overlapping compute, null if unknown).

    Returns:
        instance, root_rank, root_ns: the part of the collective's waits caused by this rank,
        largest first. The parts of one collective add up to the sum of its waits.
    """
    ordered = rows.sort("rank", "leave", "arrival", "instance").with_row_index("row")
    chains = _chains(ordered)
    earliest = pl.struct("rank", "row").sort_by("arrival", "rank").first()
    summed = ordered.group_by("instance").agg(
        pl.col("arrival").max(),
        pl.col("wait_ns").sum().alias("imposed"),
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
    kept = {root: share for root, share in shares.items() if share >= _SMALL_FRAC}
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
