"""The segments of a device at a position, and the live and free blocks in them."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.memory.ledger import Ledger
from traceanalyzer.schema import MAX_ADDRESS

#: The allocator rounds sizes up to a multiple of this.
ROUND = 512
#: Segments of this size serve requests up to SMALL_REQUEST only.
SMALL_SEGMENT = 2 << 20
SMALL_REQUEST = 1 << 20
#: Expandable segments for larger requests are mapped and unmapped in pages of this size.
LARGE_PAGE = 20 << 20


@dataclass(frozen=True)
class Regions:
    """Reserved memory at a position.

    Attributes:
        segments: ``id``, ``address``, ``total_bytes``, sorted by address; ``small`` (serves
            requests up to 1 MiB only), ``stream``, ``pool`` (private pool, or null),
            ``expandable`` (a mapped range of an expandable segment). Null where not known for a
            segment that was freed later.
        blocks: ``segment``, ``offset_bytes``, ``total_bytes``, ``state`` (``live`` or ``free``),
            ``stack``, sorted by segment and offset; they cover each segment.
    """

    segments: pl.DataFrame
    blocks: pl.DataFrame

    def free(self) -> pl.DataFrame:
        """Return the free blocks with ``small``, ``stream`` and ``pool`` of their segments."""
        kind = self.segments.select("small", "stream", "pool", segment="id")
        return self.blocks.filter(pl.col("state") == "free").join(kind, on="segment")

    def split_bytes(self) -> int:
        """Return the free bytes between live blocks, which cannot be returned to the driver.

        A segment is freed as a whole, so all free bytes of segments with live blocks count. Pages
        of an expandable segment are unmapped one by one, so only free bytes in used pages count.
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
        """Whether a segment of at least this size has both live and free blocks."""
        large = self.segments.filter(pl.col("total_bytes") >= size)["id"]
        states = self.blocks.filter(pl.col("segment").is_in(large.implode()))
        return bool((states.group_by("segment").agg(pl.col("state").n_unique())["state"] > 1).any())

    def serving(self, request: int, stream: int | None) -> pl.DataFrame:
        """Return the free blocks that could serve requests of this size on this stream."""
        any_stream = pl.col("stream").is_null() | (stream is None)
        same = any_stream | (pl.col("stream") == (stream or 0))
        small = pl.col("small") == (request <= SMALL_REQUEST)
        return self.free().filter(small, pl.col("pool").is_null(), same)


def regions(
    history: Ledger, segments: pl.DataFrame, blocks: pl.DataFrame, position: int
) -> Regions | None:
    """Return the reserved memory at a position; None if no segments are known.

    The segments at the end are known: later segment events are undone. The block size of
    allocations that are freed by the end is not known; the rounded requested size is used, so
    slightly less may have been free.

    Args:
        history: ledger of the device.
        segments: segments of the device at the end.
        blocks: blocks in these segments.
        position: position in the history.
    """
    if history.reserved is None:
        return None
    runs = _runs(history, segments, position)
    alive = history.alive(position).filter(pl.col("address").is_not_null())
    block_size = blocks.select("address", block="size_bytes").unique("address", keep="first")
    live_at_end = pl.col("end") >= history.positions
    rounded = ((pl.col("bytes") + ROUND - 1) // ROUND).clip(1) * ROUND
    live = alive.join(block_size, on="address", how="left", maintain_order="left").select(
        pl.col("address").cast(pl.Int64, strict=False),
        "stack",
        size=pl.when(live_at_end).then(pl.coalesce("block", rounded)).otherwise(rounded),
    ).drop_nulls("address").sort("address")  # fmt: skip
    return Regions(
        pl.concat(
            [
                runs.select("id", pl.col("address").cast(pl.UInt64), "total_bytes"),
                _properties(history, runs, segments),
            ],
            how="horizontal",
        ),
        _with_free(runs, live),
    )


def _runs(history: Ledger, segments: pl.DataFrame, position: int) -> pl.DataFrame:
    """Return the reserved address ranges; adjacent segments allocated separately stay separate."""
    later = history.rows[position:].filter(
        pl.col("segment_change") != 0, pl.col("address") < MAX_ADDRESS
    )
    kind = later["kind"].cast(pl.String)
    at_end = segments.select("address", size="total_bytes", weight=pl.lit(1, pl.Int64))
    undo = -pl.col("segment_change").cast(pl.Int64)
    undone = later.select("address", size=pl.col("bytes").fill_null(0), weight=undo)
    changes = pl.concat([at_end, undone]).cast(pl.Int64)
    start, size, weight = (column.to_numpy() for column in changes)
    # an expandable segment is mapped in pieces but is one range of addresses
    separate = segments.filter(~pl.col("expandable").fill_null(value=False))
    allocated = later.filter(kind.is_in(["segment_alloc", "segment_free"]))
    cuts = np.concatenate(
        [frame["address"].to_numpy().astype(np.int64) for frame in (separate, allocated)]
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


def _properties(history: Ledger, runs: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Return ``small``, ``stream``, ``pool`` and ``expandable`` of runs.

    Taken from the segments at the end, else from events.
    """
    at_end = segments.select(
        pl.col("address").cast(pl.Int64, strict=False),
        "stream",
        pool=pl.col("pool").cast(pl.String),
        small=pl.col("segment_type").cast(pl.String) == "small",
        expandable="expandable",
    ).unique("address", keep="first")
    recorded = history.rows.filter(pl.col("segment_change") != 0).select(
        pl.col("address").cast(pl.Int64, strict=False),
        recorded="stream",
        mapped=pl.col("kind").cast(pl.String).is_in(["segment_map", "segment_unmap"]),
    )
    return (
        runs.join(at_end, on="address", how="left", maintain_order="left")
        .join(
            recorded.unique("address", keep="last"), on="address", how="left", maintain_order="left"
        )
        .select(
            small=pl.coalesce("small", pl.col("total_bytes") == SMALL_SEGMENT),
            stream=pl.coalesce("stream", "recorded"),
            pool="pool",
            expandable=pl.coalesce("expandable", "mapped", pl.lit(value=False)),
        )
    )


def _with_free(runs: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Return the live blocks of each run, with the gaps between them as free blocks."""
    start, size = runs["address"].to_numpy(), runs["total_bytes"].to_numpy()
    at, length = blocks["address"].to_numpy(), blocks["size"].to_numpy()
    segment = np.searchsorted(start, at, side="right") - 1
    inside = (segment >= 0) & (at < (start + size)[segment]) if start.size else segment >= 0
    stack = blocks["stack"].filter(pl.Series(inside))
    segment, at, length = segment[inside], at[inside], length[inside]
    offset = at - start[segment] if start.size else at
    columns = {"segment": segment, "offset_bytes": offset, "total_bytes": length}
    live = pl.DataFrame({**columns, "stack": stack}).with_columns(state=pl.lit("live"))
    totals = runs.select(segment=pl.col("id").cast(pl.Int64), whole="total_bytes")
    after = live.with_columns(
        end=pl.col("offset_bytes") + pl.col("total_bytes"),
        until=pl.col("offset_bytes").shift(-1).over("segment"),
    ).join(totals, on="segment")
    gap = pl.coalesce("until", "whole") - pl.col("end")
    following = after.select("segment", offset_bytes="end", total_bytes=gap)
    first = live.group_by("segment").agg(first=pl.col("offset_bytes").min())
    leading = totals.join(first, on="segment", how="left").select(
        "segment", offset_bytes=pl.lit(0, pl.Int64), total_bytes=pl.coalesce("first", "whole")
    )
    free = pl.concat([leading, following]).filter(pl.col("total_bytes") > 0)
    both = pl.concat([live, free.with_columns(state=pl.lit("free"))], how="diagonal")
    return both.sort("segment", "offset_bytes").select(
        pl.col("segment").cast(pl.UInt32), "offset_bytes", "total_bytes", "state", "stack"
    )
