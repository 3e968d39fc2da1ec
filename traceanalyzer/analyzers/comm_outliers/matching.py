"""Match the events of one collective across ranks, on one clock.

Ranks that record the group's sequence number (``Seq``) are matched by it. The others are matched by
order: the n-th of one rank is the n-th of another, if name, dtype and size agree, and they overlap
or are about the same distance apart (another clock). Where that fails, because a recording started
later or dropped events, the most frequent distance between the ends of similar events is the clock
offset (a collective ends at the same time on all ranks), and each event is matched to the similar
one with the nearest end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import Part
from traceanalyzer.analyzers.common import kernel_names, names
from traceanalyzer.analyzers.common.columns import source_of, stacked
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.numbering import group_numbers
from traceanalyzer.units import format_first
from traceanalyzer.vocabulary import POINT_TO_POINT

#: One process group; without a recorded group, one stream. ``group_ranks`` distinguishes groups
#: of one name on different ranks.
LANE = ("group", "group_ranks", "stream_key")

#: Columns that agree between two ranks' events of one collective; the size if all have one.
KIND = ("collective", "dtype", "message_bytes")

#: Collectives in which a rank may finish before the last one arrives.
ROOTED = ("broadcast", "reduce", "gather", "scatter", "send", "recv")

#: The collective in which message sizes may differ between ranks (mixture of experts).
UNEVEN = "all_to_all"


_PAIR = 2

#: Largest distance in the two sequences of a pair.
_SHIFTS = 64

#: Tolerances of ends in ns: microseconds for kernels, milliseconds for collectives on CPUs.
_AGREEMENTS = (20_000, 100_000, 1_000_000, 10_000_000)

#: Spreads of distances that differ by less are the same.
_LEAST_SPREAD_NS = 1_000

#: Of distances with this share of the most votes the smallest counts: collectives at regular
#: intervals are seldom a whole interval apart.
_ALMOST = 0.75

_NO_DEVICE = "{where}: neither communication nor GPU work was recorded; {hint}"

_NO_COLLECTIVE = (
    "{where}: GPU work was recorded, but no communication kernels (a job on one GPU has none); "
    "--comm-pattern REGEX selects kernels with other names"
)

_Ints = npt.NDArray[np.int64]


# --- joining the ranks ---------------------------------------------------------------------


def ordered(parts: Sequence[Part]) -> list[Part]:
    """Return the parts by rank and time, on one clock that begins with the first collective.

    Files without a rank get the lowest free ranks, in order of their names. A file without absolute
    times among files that have them is shifted so that all begin together: its clock is then
    derived from the ends of collectives. Of two equal parts the first is kept.
    """
    named = _with_ranks(parts)
    begun = {id(part): _begin(part) for part in named}
    absolute = [begun[id(p)] for p in named if p.epoch_known and p.instances.height]
    origin = min(absolute or begun.values())
    moved = [
        _moved(part, -origin if part.epoch_known or not absolute else -begun[id(part)])
        for part in named
    ]
    by_time = sorted(moved, key=lambda part: (part.rank, _begin(part), part.path))
    return [
        part
        for before, part in zip([None, *by_time], by_time, strict=False)
        if before is None or not _same(before, part)
    ]


def devices_apart(parts: Sequence[Part]) -> list[Part]:
    """Return the parts; if all are of one rank with several GPUs, a part per GPU.

    One process then uses several GPUs, as in DataParallel: the number of a GPU is its rank here.
    """
    if len({part.rank for part in parts}) > 1 or not any(part.by_device for part in parts):
        return [replace(part, by_device={}) for part in parts]
    return [one for part in parts for one in (_of_devices(part) if part.by_device else [part])]


def _of_devices(part: Part) -> list[Part]:
    return [
        replace(
            part,
            rank=device,
            instances=part.instances.filter(device=device),
            activity=activity,
            unclosed=part.unclosed if device == min(part.by_device) else 0,
        )
        for device, activity in part.by_device.items()
    ]


def _with_ranks(parts: Sequence[Part]) -> list[Part]:
    taken = {part.rank for part in parts}
    free = (n for n in range(2 * len(parts)) if n not in taken)
    known = [part for part in parts if part.rank is not None]
    unknown = sorted((part for part in parts if part.rank is None), key=lambda part: part.path)
    return known + [replace(part, rank=next(free), rank_known=False) for part in unknown]


def _begin(part: Part) -> int:
    first = part.instances["start"].min()
    return first if isinstance(first, int) else 0


def _moved(part: Part, by: int) -> Part:
    return replace(
        part,
        instances=_later(part.instances, by),
        steps=_later(part.steps, by),
        shift_ns=part.shift_ns + by,
    )


def _later(frame: pl.DataFrame, by: int) -> pl.DataFrame:
    """Return the rows with their times moved; column by column, as there may be many frames."""
    moved = frame.clone()
    for name in ("start", "end"):
        moved.replace_column(frame.columns.index(name), frame[name] + by)
    return moved


def _same(one: Part, other: Part) -> bool:
    """Return whether both are the same file, for example once compressed."""
    return (
        one.rank == other.rank
        and one.instances.height > 0
        and one.instances.equals(other.instances)
    )


def joined(parts: Sequence[Part], without: Sequence[str] = ()) -> pl.DataFrame:
    """Return all collectives by (rank, start), numbered by ``id``; ``ts`` on the file's clock.

    Args:
        parts: of all ranks.
        without: columns of instances that are not needed: those of many ranks are large.

    Raises:
        MissingData: there are no collectives.
    """
    if not any(part.instances.height for part in parts):
        where = format_first([part.path for part in parts], 3)
        worked = any(part.activity.busy_ns is not None for part in parts)
        text = _NO_COLLECTIVE if worked else _NO_DEVICE
        raise MissingData(text.format(where=where, hint=parts[0].record_hint))
    shift = pl.Series([part.shift_ns for part in parts], dtype=pl.Int64)
    frames = [part.instances.drop(without) for part in parts]
    rows = stacked(frames, **source_of(parts), shift_ns=shift).sort(
        "rank", "start", "end", "name", "stream"
    )
    kernel = names.mapped(rows["name"], kernel_names.function)
    return rows.with_row_index("id").with_columns(
        group=_pairs_apart(),
        ts=pl.col("start") - pl.col("shift_ns"),
        duration_ns=pl.col("end") - pl.col("start"),
        kernel=pl.when(pl.col("message_bytes").is_null()).then(kernel),
    )


def _pairs_apart() -> pl.Expr:
    """Return the group; of sends and receives with the ranks, if several pairs have its name."""
    is_pair = pl.col("collective").is_in(POINT_TO_POINT) & (pl.col("group_size") == _PAIR)
    several = pl.col("group_ranks").n_unique().over("group") > 1
    named = pl.concat_str("group", "group_ranks", separator=" ")
    return pl.when(is_pair & several).then(pl.coalesce(named, "group")).otherwise("group")


def marks(parts: Sequence[Part], offsets: Mapping[int, int]) -> pl.DataFrame:
    """Return the steps of all ranks with ``rank`` and ``arrival`` (start less clock offset)."""
    frames = [part.steps for part in parts]
    rank = pl.Series([part.rank for part in parts], dtype=pl.Int32)
    offset = pl.Series([offsets.get(part.rank or 0, 0) for part in parts], dtype=pl.Int64)
    rows = stacked(frames, rank=rank, offset=offset)
    return rows.with_columns(arrival=pl.col("start") - pl.col("offset")).drop("offset")


# --- lanes ---------------------------------------------------------------------------------


def match(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``instance`` and ``lane``, equal for the rows of one collective and of one group.

    Both are null for a row without a partner.

    Args:
        frame: collectives of all ranks in order of (rank, ts), with ``id``, ``rank`` and
            ``end``; ``group``, ``group_ranks`` and ``seq`` null if not recorded.
    """
    candidates = _candidates(frame)
    if candidates["rank"].n_unique() < _PAIR:
        return unmatched(frame)
    pieces = [
        _by_order(lane) if lane["seq"].has_nulls() else _by_seq(lane) for lane in _lanes(candidates)
    ]
    placed = pl.concat([p.with_columns(lane=pl.lit(i, pl.UInt32)) for i, p in enumerate(pieces)])
    placed = _without_unknown_pairs(placed, candidates)
    shared = placed.filter(pl.col("rank").n_unique().over("lane", "place") >= _PAIR)
    first = shared.select("lane", "place").unique().sort("lane", "place").with_row_index("instance")
    matches = shared.join(first, on=["lane", "place"]).select("id", "instance", "lane")
    return frame.join(matches, on="id", how="left", maintain_order="left")


def _without_unknown_pairs(placed: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
    """Drop sends and receives without a recorded group, unless they are an all_to_all of all ranks.

    That one runs on all ranks, and ends on them at about the same time: apart by less than it
    takes, besides clocks.
    """
    columns = ("id", "collective", "group", "end", "duration_ns")
    rows = placed.join(candidates.select(columns), on="id", maintain_order="left")
    unknown = rows.filter(pl.col("group").is_null(), pl.col("collective") == "send_recv")
    apart = pl.col("end") - pl.col("end").mean().over("lane", "place")
    beyond = (apart - apart.median().over("lane", "rank")).abs().median()
    on_all = pl.len() / (pl.col("place").n_unique() * pl.col("rank").n_unique()) >= _ALMOST
    together = beyond <= pl.col("duration_ns").median()
    sums = unknown.group_by("lane").agg("id", wrong=~(on_all & together))
    wrong = sums.filter("wrong")["id"].explode()
    return placed.filter(~pl.col("id").is_in(wrong.implode()))


def unmatched(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with the columns of :func:`match`, no row with a partner."""
    return frame.with_columns(pl.lit(None, pl.UInt32).alias(n) for n in ("instance", "lane"))


def _candidates(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that can have a partner, with the columns of :data:`LANE`.

    A send or recv can be matched only in a group of two: otherwise the peer is not recorded.
    """
    pointwise = pl.col("collective").is_in(POINT_TO_POINT)
    alone = (pl.col("group_size") < _PAIR).fill_null(value=False)
    unpaired = pointwise & (pl.col("group_size") != _PAIR).fill_null(value=True)
    return frame.filter(~alone & ~unpaired).with_columns(
        collective=pl.when(pointwise).then(pl.lit("send_recv")).otherwise("collective"),
        stream_key=_stream_key(frame),
    )["id", "rank", "start", "end", "seq", "duration_ns", *KIND, *LANE]


def _stream_key(frame: pl.DataFrame) -> pl.Expr:
    """Return the stream if no group is recorded and all ranks use the same streams; else null."""
    unknown = frame.filter(pl.col("group").is_null(), pl.col("stream").is_not_null())
    streams = unknown.group_by("rank").agg(pl.col("stream").unique().sort())
    if streams["stream"].n_unique() != 1:
        return pl.lit(None, dtype=pl.Int64)
    return pl.when(pl.col("group").is_null()).then("stream")


def _lanes(candidates: pl.DataFrame) -> list[pl.DataFrame]:
    """Return one frame per lane, in an order that does not depend on that of the rows."""
    groups = candidates.partition_by(*LANE, as_dict=True)
    return [groups[key] for key in sorted(groups, key=repr)]


def _by_seq(lane: pl.DataFrame) -> pl.DataFrame:
    """Return ``place`` by (collective, seq); rows with one number are counted."""
    _, (number,) = group_numbers(("collective", "seq"), lane)
    rows = lane.select("id", "rank", place=pl.Series(number))
    if rows.n_unique(["rank", "place"]) == rows.height:  # a window takes seven times as long
        return rows
    again = rows.select(pl.int_range(pl.len()).over("rank", "place")).to_series()
    return rows.with_columns(place=pl.col("place") * (again.max() or 0) + pl.col("place") + again)


def _by_order(lane: pl.DataFrame) -> pl.DataFrame:
    """Return ``place`` in the sequence of the rank with most rows."""
    even = pl.col("collective").ne_missing(UNEVEN)
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


# --- two sequences -------------------------------------------------------------------------


def align(reference: pl.DataFrame, other: pl.DataFrame) -> _Ints:
    """Return the row of ``reference`` that matches each row of ``other``; -1 without a match.

    Both have ``kind`` (equal for a match), ``start`` and ``end``, in order of time.
    """
    same = reference["kind"].to_list() == other["kind"].to_list()
    if same and _meet(reference, other):
        return np.arange(other.height)
    behind = np.sort(_pair_distances(reference, other))
    if not behind.size:
        return np.full(other.height, -1)
    needed = min(reference.height, other.height) / 2
    width = next((w for w in _AGREEMENTS if _votes(behind, w).max() >= needed), _AGREEMENTS[-1])
    votes = _votes(behind, width)
    if same and _explains(other["end"].to_numpy() - reference["end"].to_numpy(), behind, width):
        return np.arange(other.height)
    return _nearest(reference, other, _clock_distance(behind, votes))


def _explains(in_order: _Ints, behind: _Ints, width: int) -> bool:
    """Return whether pairs in order are about equally apart, unless clocks that agree fit as well.

    Args:
        in_order: distances of the pairs in order.
        behind: sorted distances of all near pairs.
        width: the tolerance of equal distances.
    """
    most = _ALMOST * _votes(behind, width).max()
    agreeing = behind[np.abs(behind) <= _AGREEMENTS[0]]
    if agreeing.size >= most and _spread(agreeing) <= _spread(in_order) + _LEAST_SPREAD_NS:
        return False  # one recording began some collectives later
    return bool(_votes(np.sort(in_order), width).max() >= most)


def _spread(distances: _Ints) -> float:
    """Return the median distance from the median."""
    return float(np.median(np.abs(distances - np.median(distances))))


def _meet(reference: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Return whether most pairs of rows overlap in time."""
    started = np.maximum(reference["start"].to_numpy(), other["start"].to_numpy())
    ended = np.minimum(reference["end"].to_numpy(), other["end"].to_numpy())
    return float(np.mean(started <= ended)) > 1 / 2


def _votes(distances: _Ints, width: int) -> _Ints:
    """Return how many of the sorted distances are at most ``width`` above each."""
    return np.searchsorted(distances, distances + width, side="right") - np.arange(distances.size)


def _clock_distance(behind: _Ints, votes: _Ints) -> int:
    """Return the clock offset with most votes, of almost equal ones the smallest."""
    good = np.flatnonzero(votes >= _ALMOST * votes.max())
    best = good[np.argmin(np.abs(behind[good]))]
    return int(np.median(behind[best : best + votes[best]]))


def _pair_distances(reference: pl.DataFrame, other: pl.DataFrame) -> _Ints:
    """Return end less end of similar events at near places, counted from either end."""
    ref_kind, ref_end = reference["kind"].to_numpy(), reference["end"].to_numpy()
    kind, end = other["kind"].to_numpy(), other["end"].to_numpy()
    n, m = len(ref_kind), len(kind)
    shifts = {*range(-_SHIFTS, _SHIFTS + 1), *range(n - m - _SHIFTS, n - m + _SHIFTS + 1)}
    distances = [np.empty(0, np.int64)]
    for shift in sorted(shifts):
        lo, hi = max(0, -shift), min(m, n - shift)
        if lo < hi:
            alike = kind[lo:hi] == ref_kind[lo + shift : hi + shift]
            distances.append((end[lo:hi] - ref_end[lo + shift : hi + shift])[alike])
    return np.concatenate(distances)


def _nearest(reference: pl.DataFrame, other: pl.DataFrame, offset: int) -> _Ints:
    """Match each event to the similar one with the nearest end, one to one."""
    ends = other.select("kind", row=pl.int_range(pl.len()), when=pl.col("end") - offset)
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
    places = np.full(other.height, -1)
    places[pairs["row"].to_numpy()] = pairs["place"].to_numpy()
    return places
