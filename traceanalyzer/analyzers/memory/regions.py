"""The memory that a device held at a moment, and where in it there was room."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.memory.ledger import Ledger
from traceanalyzer.limits import MOST_ADDRESS

#: The allocator rounds sizes up to a multiple of this.
ROUND = 512
#: Segments of this size are for requests up to SMALL_REQUEST, and no others use them.
SMALL_SEGMENT = 2 << 20
SMALL_REQUEST = 1 << 20
#: Expandable segments for larger requests are mapped and unmapped in pages of this size.
LARGE_PAGE = 20 << 20


@dataclass(frozen=True)
class Regions:
    """Memory held at a position.

    Attributes:
        segments: ``id``, ``address``, ``total_bytes``, by address: what belongs together;
            ``small``: those for requests up to 1 MiB, which serve no others; ``stream``; ``pool``
            (private, or null); ``expandable``: a mapped range of an expandable segment. Null where
            a segment that was given back since tells none.
        blocks: ``segment``, ``offset_bytes``, ``total_bytes``, ``state`` (``live`` or ``free``),
            ``stack``, by segment and offset: the whole of each segment.
    """

    segments: pl.DataFrame
    blocks: pl.DataFrame

    def free(self) -> pl.DataFrame:
        """Free runs with what is known of their segments."""
        kind = self.segments.select("small", "stream", "pool", segment="id")
        return self.blocks.filter(pl.col("state") == "free").join(kind, on="segment")

    def split_bytes(self) -> int:
        """Free bytes between blocks in use that cannot go back to the driver.

        A segment goes back as a whole, so it is all free bytes of segments that are in use. Of an
        expandable segment free pages are unmapped one by one: only the rest of pages in use counts.
        """
        kind = self.segments.select("small", "expandable", segment="id")
        used = self.blocks.filter((pl.col("state") == "live").any().over("segment"))
        free = used.filter(pl.col("state") == "free").join(kind, on="segment")
        page = pl.when("small").then(SMALL_SEGMENT).otherwise(LARGE_PAGE)
        end = pl.col("offset_bytes") + pl.col("total_bytes")
        pages = end // page - (pl.col("offset_bytes") + page - 1) // page
        unmappable = pl.when("expandable").then(pages.clip(0) * page).otherwise(0)
        return int(free.select((pl.col("total_bytes") - unmappable).sum()).item())

    def divided(self, size: int) -> bool:
        """Whether a segment of this size or more is in use in part."""
        large = self.segments.filter(pl.col("total_bytes") >= size)["id"]
        states = self.blocks.filter(pl.col("segment").is_in(large.implode()))
        return bool((states.group_by("segment").agg(pl.col("state").n_unique())["state"] > 1).any())

    def serving(self, request: int, stream: int | None) -> pl.DataFrame:
        """Free runs that could serve requests of this size on this stream."""
        any_stream = pl.col("stream").is_null() | (stream is None)
        same = any_stream | (pl.col("stream") == (stream or 0))
        small = pl.col("small") == (request <= SMALL_REQUEST)
        return self.free().filter(small, pl.col("pool").is_null(), same)


def regions(
    of: Ledger, segments: pl.DataFrame, blocks: pl.DataFrame, position: int
) -> Regions | None:
    """The memory held at a position; None where no segments are known.

    What is held at the end is known, so later segments are taken away and those that were given
    back since are put in again. Of allocations that are gone at the end the true size is not known:
    it is what was asked for, rounded up, so that a little less may have been free.

    Args:
        of: the device's allocations.
        segments: of the device, at the end.
        blocks: in them.
        position: the moment.
    """
    if of.reserved is None:
        return None
    held = _held(of, segments, position)
    alive = of.alive(position).filter(pl.col("address").is_not_null())
    true_size = blocks.select("address", true="size_bytes").unique("address", keep="first")
    stays = pl.col("end") >= of.positions
    rounded = ((pl.col("bytes") + ROUND - 1) // ROUND).clip(1) * ROUND
    taken = alive.join(true_size, on="address", how="left", maintain_order="left").select(
        pl.col("address").cast(pl.Int64, strict=False),
        "stack",
        size=pl.when(stays).then(pl.coalesce("true", rounded)).otherwise(rounded),
    ).drop_nulls("address").sort("address")  # fmt: skip
    return Regions(
        pl.concat(
            [
                held.select("id", pl.col("address").cast(pl.UInt64), "total_bytes"),
                _told(of, held, segments),
            ],
            how="horizontal",
        ),
        _filled(held, taken),
    )


def _held(of: Ledger, segments: pl.DataFrame, position: int) -> pl.DataFrame:
    """Runs of addresses held; neighbours that were asked for one by one stay apart."""
    later = of.rows[position:].filter(
        pl.col("segment_change") != 0, pl.col("address") < MOST_ADDRESS
    )
    kind = later["kind"].cast(pl.String)
    own = segments.select("address", size="total_bytes", weight=pl.lit(1, pl.Int64))
    undone = -pl.col("segment_change").cast(pl.Int64)
    since = later.select("address", size=pl.col("bytes").fill_null(0), weight=undone)
    runs = pl.concat([own, since]).cast(pl.Int64)
    start, size, weight = (column.to_numpy() for column in runs)
    # an expandable segment is mapped piece by piece, and yet one run of addresses
    apart = segments.filter(~pl.col("expandable").fill_null(value=False))
    asked = later.filter(kind.is_in(["segment_alloc", "segment_free"]))
    cuts = np.concatenate(
        [frame["address"].to_numpy().astype(np.int64) for frame in (apart, asked)]
    )
    at = np.concatenate([start, start + size, cuts])
    change = np.concatenate([weight, -weight, np.zeros(cuts.size, np.int64)])
    points, place = np.unique(at, return_inverse=True)
    depth = np.zeros(points.size, np.int64)
    np.add.at(depth, place, change)
    inside = np.cumsum(depth)[:-1] > 0
    if not points.size or not inside.any():
        return pl.DataFrame(schema={"id": pl.UInt32, "address": pl.Int64, "total_bytes": pl.Int64})
    is_cut = np.isin(points[:-1], cuts)
    first = inside & (is_cut | ~np.concatenate([[False], inside[:-1]]))
    run = np.cumsum(first) - 1
    starts = points[:-1][first]
    sizes = np.bincount(run[inside], (points[1:] - points[:-1])[inside], starts.size)
    return pl.DataFrame({"address": starts, "total_bytes": sizes.astype(np.int64)}).with_row_index(
        "id"
    )


def _told(of: Ledger, held: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """``small``, ``stream``, ``pool`` and ``expandable`` of runs.

    They are those of the segments at the end, else those of events.
    """
    at_end = segments.select(
        pl.col("address").cast(pl.Int64, strict=False),
        "stream",
        pool=pl.col("pool").cast(pl.String),
        small=pl.col("segment_type").cast(pl.String) == "small",
        expandable="expandable",
    ).unique("address", keep="first")
    noted = of.rows.filter(pl.col("segment_change") != 0).select(
        pl.col("address").cast(pl.Int64, strict=False),
        noted="stream",
        mapped=pl.col("kind").cast(pl.String).is_in(["segment_map", "segment_unmap"]),
    )
    return (
        held.join(at_end, on="address", how="left", maintain_order="left")
        .join(noted.unique("address", keep="last"), on="address", how="left", maintain_order="left")
        .select(
            small=pl.coalesce("small", pl.col("total_bytes") == SMALL_SEGMENT),
            stream=pl.coalesce("stream", "noted"),
            pool="pool",
            expandable=pl.coalesce("expandable", "mapped", pl.lit(value=False)),
        )
    )


def _filled(held: pl.DataFrame, taken: pl.DataFrame) -> pl.DataFrame:
    """Each segment as live and free blocks, end to end."""
    start, size = held["address"].to_numpy(), held["total_bytes"].to_numpy()
    at, length = taken["address"].to_numpy(), taken["size"].to_numpy()
    segment = np.searchsorted(start, at, side="right") - 1
    inside = (segment >= 0) & (at < (start + size)[segment]) if start.size else segment >= 0
    kept = taken.filter(pl.Series(inside))
    segment, at, length = segment[inside], at[inside], length[inside]
    offset = at - start[segment] if start.size else at
    columns = {"segment": segment, "offset_bytes": offset, "total_bytes": length}
    live = pl.DataFrame({**columns, "stack": kept["stack"]}).with_columns(state=pl.lit("live"))
    totals = held.select(segment=pl.col("id").cast(pl.Int64), whole="total_bytes")
    after = live.with_columns(
        end=pl.col("offset_bytes") + pl.col("total_bytes"),
        until=pl.col("offset_bytes").shift(-1).over("segment"),
    ).join(totals, on="segment")
    gap = pl.coalesce("until", "whole") - pl.col("end")
    behind = after.select("segment", offset_bytes="end", total_bytes=gap)
    first = live.group_by("segment").agg(first=pl.col("offset_bytes").min())
    ahead = totals.join(first, on="segment", how="left").select(
        "segment", offset_bytes=pl.lit(0, pl.Int64), total_bytes=pl.coalesce("first", "whole")
    )
    free = pl.concat([ahead, behind]).filter(pl.col("total_bytes") > 0)
    both = pl.concat([live, free.with_columns(state=pl.lit("free"))], how="diagonal")
    return both.sort("segment", "offset_bytes").select(
        pl.col("segment").cast(pl.UInt32), "offset_bytes", "total_bytes", "state", "stack"
    )
