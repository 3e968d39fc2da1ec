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
from dataclasses import dataclass

import polars as pl

#: A collective that starts this soon after the previous one on its stream was queued behind it.
_QUEUED_NS = 20_000

#: Collectives of a rank that are searched for the last common one.
_REACH = 1_000

#: Roots with a smaller share are dropped to keep chains short.
_SMALL_FRAC = 0.005

_SCHEMA = {"instance": pl.UInt32, "root_rank": pl.Int32, "root_ns": pl.Int64}


@dataclass(frozen=True)
class _Visit:
    """One rank in one collective, in order of leaving; times in ns on the common clock."""

    instance: int
    lane: int
    stream: int | None
    arrival: int
    leave: int
    wait: int
    compute: int


@dataclass(frozen=True)
class _Chains:
    """State while collectives are followed in order of their last arrival."""

    visits: dict[int, list[_Visit]]
    places: dict[tuple[int, int], int]
    members: dict[int, set[int]]
    roots: dict[int, dict[int, float]]


def roots(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks that caused the waits of each collective.

    Args:
        rows: arrivals of matched collectives: instance, lane, rank, stream, arrival, leave,
            wait_ns, is_last, compute_ns (overlapping compute, null if unknown).

    Returns:
        instance, root_rank, root_ns: the part of the collective's waits caused by this rank,
        largest first. The parts of one collective add up to the sum of its waits.
    """
    chains = _chains(rows)
    parts: list[tuple[int, int, int]] = []
    summed = rows.group_by("instance").agg(
        pl.col("arrival").max(),
        pl.col("wait_ns").sum().alias("imposed"),
        pl.col("rank").filter("is_last").first().alias("last"),
        pl.col("rank").sort_by("arrival", "rank").first().alias("first"),
    )
    waited = summed.filter(pl.col("last").is_not_null()).sort("arrival", "instance")
    for instance, _, imposed, last, first in waited.iter_rows():
        shares = _shares(chains, instance, last, first)
        chains.roots[instance] = shares
        parts += [(instance, *part) for part in _parts(shares, imposed)]
    return pl.DataFrame(parts, schema=_SCHEMA, orient="row")


def with_roots(collectives: pl.DataFrame, roots: pl.DataFrame) -> pl.DataFrame:
    """Add the rank that caused most of each collective's waits, ``root_rank``, and ``root_ns``."""
    largest = roots.unique("instance", keep="first", maintain_order=True)
    return collectives.join(largest, on="instance", how="left", maintain_order="left")


def _chains(rows: pl.DataFrame) -> _Chains:
    columns = ("instance", "lane", "stream", "arrival", "leave", "wait_ns")
    ordered = rows.sort("rank", "leave", "arrival", "instance")
    chains = _Chains(defaultdict(list), {}, defaultdict(set), {})
    compute = pl.col("compute_ns").fill_null(0)
    for rank, *values in ordered.select("rank", *columns, compute).iter_rows():
        visit = _Visit(*values)
        chains.places[visit.instance, rank] = len(chains.visits[rank])
        chains.visits[rank].append(visit)
        chains.members[visit.lane].add(rank)
    return chains


def _shares(chains: _Chains, instance: int, last: int, first: int) -> dict[int, float]:
    """Return the share of each root rank in the wait of one collective; shares add up to 1."""
    at_last, at_first = (
        chains.visits[rank][chains.places[instance, rank]] for rank in (last, first)
    )
    waits, others = _waits(chains, instance, last, first), _waits(chains, instance, first, last)
    delay = at_last.arrival - at_first.arrival
    longer = sum(waits.values()) - sum(others.values())
    inherited = min(max(longer, 0), delay) / delay if delay else 0.0
    excess = {root: max(wait - others.get(root, 0), 0) for root, wait in waits.items()}
    shares = defaultdict(float, {last: 1.0 - inherited})
    if inherited:
        for root, wait in excess.items():
            shares[root] += inherited * wait / sum(excess.values())
    kept = {root: share for root, share in shares.items() if share >= _SMALL_FRAC}
    return {root: share / sum(kept.values()) for root, share in kept.items()}


def _waits(chains: _Chains, instance: int, rank: int, other: int) -> dict[int, float]:
    """Return the wait time of ``rank`` since its last collective with ``other``, by root rank."""
    waits: dict[int, float] = defaultdict(float)
    visits, place = chains.visits[rank], chains.places[instance, rank]
    arrival, stream = visits[place].arrival, visits[place].stream
    for visit in reversed(visits[max(place - _REACH, 0) : place]):
        if visit.leave > arrival:
            continue
        if other in chains.members[visit.lane]:
            break
        queued = visit.stream == stream and arrival - visit.leave < _QUEUED_NS
        wait = visit.wait if queued else visit.wait - min(visit.wait, visit.compute)
        for root, share in chains.roots.get(visit.instance, {}).items():
            waits[root] += share * wait
    return waits


def _parts(shares: dict[int, float], imposed: int) -> list[tuple[int, int]]:
    """Return whole ns of each root, largest first; the largest gets the rounding difference."""
    ordered = sorted(shares.items(), key=lambda share: (-share[1], share[0]))
    parts = [(root, int(share * imposed)) for root, share in ordered]
    root, largest = parts[0]
    return [(root, largest + imposed - sum(part for _, part in parts)), *parts[1:]]
