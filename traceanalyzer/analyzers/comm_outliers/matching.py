"""Which collectives of different ranks are one and the same.

Ranks that record the group's running number (``Seq``) are matched by it. The others are matched by
order: the n-th of one rank is the n-th of another, where name, dtype and size agree and they end
together. Where that fails, because a recording started later, lost events, or has another clock,
the distance of the ends that most pairs of like events agree on is the clocks' (a collective ends
everywhere at once), and each event goes to the like one that ends nearest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

#: One process group; where no group is recorded, one stream. ``group_ranks`` keeps apart groups
#: of one name on different ranks.
LANE = ("group", "group_ranks", "stream_key")

#: What has to agree between two ranks' records of one collective; the size where all have one.
KIND = ("collective", "dtype", "message_bytes")

#: Collectives in which a rank may be done before the last one arrives.
ROOTED = ("broadcast", "reduce", "gather", "scatter", "send", "recv")

#: The collective in which each rank may have data of another size, as experts get theirs.
_UNEVEN = "all_to_all"

_POINT_TO_POINT = ("send", "recv")
_PAIR = 2

#: How far apart in the two sequences a pair is looked for.
_SHIFTS = 64

#: How well ends have to agree, in ns: kernels to microseconds, collectives on CPUs to milliseconds.
_AGREEMENTS = (20_000, 100_000, 1_000_000, 10_000_000)

#: A distance that this share of the most votes speaks for is as good: then the smallest counts,
#: because even collectives at even intervals are seldom a whole interval apart.
_ALMOST = 0.75

_Ints = npt.NDArray[np.int64]


def match(frame: pl.DataFrame) -> pl.DataFrame:
    """Adds ``instance`` and ``lane``, equal for the rows of one collective and of one group.

    Both are null for a row without a partner.

    Args:
        frame: collectives of all ranks in order of (rank, ts), with ``id``, ``rank`` and
            ``end``; ``group``, ``group_ranks`` and ``seq`` null where not recorded.
    """
    candidates = _candidates(frame)
    if candidates["rank"].n_unique() < _PAIR:
        return frame.with_columns(pl.lit(None, pl.UInt32).alias(n) for n in ("instance", "lane"))
    pieces = [_by_seq(lane) if _numbered(lane) else _by_order(lane) for lane in _lanes(candidates)]
    placed = pl.concat([p.with_columns(lane=pl.lit(i, pl.UInt32)) for i, p in enumerate(pieces)])
    shared = placed.filter(pl.col("rank").n_unique().over("lane", "place") >= _PAIR)
    first = shared.select("lane", "place").unique().sort("lane", "place").with_row_index("instance")
    found = shared.join(first, on=["lane", "place"]).select("id", "instance", "lane")
    return frame.join(found, on="id", how="left", maintain_order="left")


def _candidates(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows that can have a partner, with the columns of :data:`LANE`.

    A send or recv can be matched only in a group of two: elsewhere the file does not say with whom.
    """
    pointwise = pl.col("collective").is_in(_POINT_TO_POINT)
    alone = (pl.col("group_size") < _PAIR).fill_null(value=False)
    unpaired = pointwise & (pl.col("group_size") != _PAIR).fill_null(value=True)
    return frame.filter(~alone & ~unpaired).with_columns(
        collective=pl.when(pointwise).then(pl.lit("send_recv")).otherwise("collective"),
        stream_key=_stream_key(frame),
    )


def _stream_key(frame: pl.DataFrame) -> pl.Expr:
    """The stream where no group is recorded and all ranks use the same streams; else null."""
    unknown = frame.filter(pl.col("group").is_null(), pl.col("stream").is_not_null())
    streams = unknown.group_by("rank").agg(pl.col("stream").unique().sort())
    if streams["stream"].n_unique() != 1:
        return pl.lit(None, dtype=pl.Int64)
    return pl.when(pl.col("group").is_null()).then("stream")


def _lanes(candidates: pl.DataFrame) -> list[pl.DataFrame]:
    """One frame a lane, in the lanes' order, so that the result does not depend on the rows'."""
    groups = candidates.partition_by(*LANE, as_dict=True)
    return [groups[key] for key in sorted(groups, key=repr)]


def _numbered(lane: pl.DataFrame) -> bool:
    return lane["seq"].null_count() == 0


def _by_seq(lane: pl.DataFrame) -> pl.DataFrame:
    """``place`` by (collective, seq); several rows of one number count up."""
    key = ["collective", "seq"]
    again = pl.int_range(pl.len()).over("rank", *key)
    places = pl.struct(*key, again.alias("again")).rank("dense").cast(pl.Int64)
    return lane.select("id", "rank", place=places)


def _by_order(lane: pl.DataFrame) -> pl.DataFrame:
    """``place`` in the sequence of the rank that recorded most."""
    even = pl.col("collective").ne_missing(_UNEVEN)
    lane = lane.with_columns(message_bytes=pl.when(even).then("message_bytes"))
    kinds = lane.select(*KIND).unique(maintain_order=True).with_row_index("kind")
    coded = lane.join(kinds, on=list(KIND), nulls_equal=True, maintain_order="left")
    ranks = coded.partition_by("rank", maintain_order=True)
    reference = max(ranks, key=lambda rows: (rows.height, -rows["rank"][0]))
    placed = [
        rows.select("id", "rank", place=pl.Series(align(reference, rows), dtype=pl.Int64))
        for rows in ranks
    ]
    return pl.concat(placed).filter(pl.col("place") >= 0)


# --- two sequences ---------------------------------------------------------------------------


def align(reference: pl.DataFrame, own: pl.DataFrame) -> _Ints:
    """The row of ``reference`` that each row of ``own`` belongs to; -1 where there is none.

    Both hold ``kind`` (what has to agree), ``start`` and ``end``, in order of time.
    """
    same = reference["kind"].to_list() == own["kind"].to_list()
    if same and _meet(reference, own):
        return np.arange(own.height)
    offset = _clock_distance(reference, own)
    return np.full(own.height, -1) if offset is None else _nearest(reference, own, offset)


def _meet(reference: pl.DataFrame, own: pl.DataFrame) -> bool:
    """Whether most rows overlap in time, one by one."""
    started = np.maximum(reference["start"].to_numpy(), own["start"].to_numpy())
    ended = np.minimum(reference["end"].to_numpy(), own["end"].to_numpy())
    return float(np.mean(started <= ended)) > 1 / 2


def _clock_distance(reference: pl.DataFrame, own: pl.DataFrame) -> int | None:
    """How far ``own``'s ends lie behind, by the vote of all near pairs; None without a pair."""
    behind = np.sort(_pair_distances(reference, own))
    if not behind.size:
        return None
    needed = min(reference.height, own.height) / 2
    for width in _AGREEMENTS:
        votes = np.searchsorted(behind, behind + width, side="right") - np.arange(behind.size)
        if votes.max() >= needed:
            break
    good = np.flatnonzero(votes >= _ALMOST * votes.max())
    best = good[np.argmin(np.abs(behind[good]))]
    return int(np.median(behind[best : best + votes[best]]))


def _pair_distances(reference: pl.DataFrame, own: pl.DataFrame) -> _Ints:
    """End less end of all like events whose places differ little, from either end."""
    ref_kind, ref_end = reference["kind"].to_numpy(), reference["end"].to_numpy()
    kind, end = own["kind"].to_numpy(), own["end"].to_numpy()
    n, m = len(ref_kind), len(kind)
    shifts = {*range(-_SHIFTS, _SHIFTS + 1), *range(n - m - _SHIFTS, n - m + _SHIFTS + 1)}
    found = [np.empty(0, np.int64)]
    for shift in sorted(shifts):
        lo, hi = max(0, -shift), min(m, n - shift)
        if lo < hi:
            alike = kind[lo:hi] == ref_kind[lo + shift : hi + shift]
            found.append((end[lo:hi] - ref_end[lo + shift : hi + shift])[alike])
    return np.concatenate(found)


def _nearest(reference: pl.DataFrame, own: pl.DataFrame, offset: int) -> _Ints:
    """Each event to the like one that ends nearest, each of those to one only."""
    ends = own.select("kind", row=pl.int_range(pl.len()), when=pl.col("end") - offset)
    theirs = reference.select("kind", place=pl.int_range(pl.len()), there="end")
    pairs = (
        ends.sort("when")
        .join_asof(
            theirs.sort("there"),
            left_on="when",
            right_on="there",
            by="kind",
            strategy="nearest",
            check_sortedness=False,
        )
        .drop_nulls("place")
        .with_columns(apart=(pl.col("when") - pl.col("there")).abs())
        .sort("apart", "row")
        .unique("place", keep="first")
    )
    places = np.full(own.height, -1)
    places[pairs["row"].to_numpy()] = pairs["place"].to_numpy()
    return places
