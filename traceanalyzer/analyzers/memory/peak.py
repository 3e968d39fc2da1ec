"""The peak of each device, and what was alive then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from traceanalyzer.analyzers.memory.ground import Ground, Window, known_stack
from traceanalyzer.analyzers.memory.ledger import ACTIVE, Ledger
from traceanalyzer.analyzers.memory.lines import LINE

#: Points kept of a curve.
POINTS: Final = 2000

#: Columns of the table of devices; see :class:`~.result.Memory`.
DEVICES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "rank": pl.Int32,
    "path": pl.String,
    "device": pl.Int32,
    "noted": pl.String,
    "events": pl.Int64,
    "peak_bytes": pl.Int64,
    "peak_ns": pl.Int64,
    "peak_event": pl.Int64,
    "peak_n": pl.Int64,
    "reserved_at_peak_bytes": pl.Int64,
    "reserved_peak_bytes": pl.Int64,
    "reserved_peak_ns": pl.Int64,
    "start_bytes": pl.Int64,
    "end_bytes": pl.Int64,
    "reserved_end_bytes": pl.Int64,
    "allocated_end_bytes": pl.Int64,
    "fragmentation_frac": pl.Float64,
    "inactive_bytes": pl.Int64,
    "inactive_split_bytes": pl.Int64,
    "inactive_split_n": pl.Int64,
    "largest_free_bytes": pl.Int64,
    "allocations": pl.Int64,
    "segment_allocs": pl.Int64,
    "segment_frees": pl.Int64,
    "retries": pl.Int64,
    "ooms": pl.Int64,
    "before_n": pl.Int64,
    "before_bytes": pl.Int64,
    "reused_n": pl.Int64,
    "twice_n": pl.Int64,
    "resized_n": pl.Int64,
    "lost_n": pl.Int64,
    "difference_bytes": pl.Int64,
}


@dataclass(frozen=True)
class Peak:
    """What one device contributes.

    Attributes:
        device: a row: see :class:`~.result.Memory`.
        alive: a row a stack that holds memory at the peak.
        timeline: live and reserved bytes over time.
    """

    device: dict[str, Any]
    alive: pl.DataFrame
    timeline: pl.DataFrame


def peak_position(of: Ledger, window: Window = (None, None)) -> int:
    """The first position at which most is live."""
    first, last = of.between(*window)
    return first + int(of.live[first : last + 1].argmax())


def measure(of: Ledger, ground: Ground) -> Peak:
    """The peak of one device and what is known of its memory."""
    at = peak_position(of, ground.window)
    first, last = of.between(*ground.window)
    place = {"rank": ground.rank, "path": ground.path, "device": of.device}
    return Peak(
        device={
            **place,
            **_curve(of, at, first, last),
            **_held(of, ground),
            **_churn(of, first, last),
            **_fits(of),
        },
        alive=alive(of, ground, at),
        timeline=timeline(of).select(
            *(pl.lit(value, DEVICES[name]).alias(name) for name, value in place.items()), pl.all()
        ),
    )


def alive(of: Ledger, ground: Ground, position: int) -> pl.DataFrame:
    """What is live at a position, by stack and category; the most bytes first.

    Returns:
        rank, path, device, category, confidence, function, file, line, own, n, live_bytes,
        live_frac (of all that is live), before_n (of them there before the history), stack (the
        frames, the outermost first, ``;`` between), row (of ``stacks``).
    """
    told = of.alive(position)
    told = told.with_columns(*ground.code(of, told), known_stack(told).alias("row"))
    keys = ("row", "category", "confidence", *LINE)
    summed = (
        told.group_by(keys)
        .agg(
            n=pl.len().cast(pl.Int64),
            live_bytes=pl.col("bytes").sum(),
            before_n=(pl.col("start") == 0).sum().cast(pl.Int64),
        )
        .sort("live_bytes", *keys, descending=[True, *(False for _ in keys)], nulls_last=True)
    )
    total = int(summed["live_bytes"].sum())
    return summed.select(
        pl.lit(ground.rank, pl.Int32).alias("rank"),
        pl.lit(ground.path).alias("path"),
        pl.lit(of.device, pl.Int32).alias("device"),
        "category",
        "confidence",
        *LINE,
        "n",
        "live_bytes",
        live_frac=pl.col("live_bytes") / total if total else pl.lit(None, pl.Float64),
        before_n="before_n",
        stack=ground.lines.paths(summed["row"]),
        row="row",
    )


def _curve(of: Ledger, at: int, first: int, last: int) -> dict[str, Any]:
    reserved = of.reserved
    top = None if reserved is None else first + int(reserved[first : last + 1].argmax())
    return {
        "noted": of.noted,
        "events": of.rows.height,
        "peak_bytes": int(of.live[at]),
        "peak_ns": of.time_ns(at),
        "peak_event": at - 1 if at else None,
        "peak_n": of.alive(at).height,
        "reserved_at_peak_bytes": None if reserved is None else int(reserved[at]),
        "reserved_peak_bytes": None if reserved is None or top is None else int(reserved[top]),
        "reserved_peak_ns": None if top is None else of.time_ns(top),
        "start_bytes": int(of.live[first]),
        "end_bytes": int(of.live[last]),
        "reserved_end_bytes": None if reserved is None else int(reserved[last]),
    }


def _held(of: Ledger, ground: Ground) -> dict[str, Any]:
    """What the blocks tell of the end; None where there are none."""
    segments, blocks = ground.of_device(of.device)
    names = (
        "allocated_end_bytes", "fragmentation_frac", "inactive_bytes", "inactive_split_bytes",
        "inactive_split_n", "largest_free_bytes",
    )  # fmt: skip
    if blocks.is_empty():
        return dict.fromkeys(names)
    active = pl.col("state").cast(pl.String).is_in(ACTIVE)
    size = pl.col("size_bytes")
    whole = blocks.group_by("segment").agg(split=active.any())
    idle = blocks.filter(~active).join(whole, on="segment")
    allocated = int(blocks.filter(active)["size_bytes"].sum())
    reserved = int(segments["total_bytes"].sum())
    split = idle.filter("split")
    largest = idle.select(size.max()).item()
    told = (
        allocated,
        1 - allocated / reserved if reserved else None,
        int(idle["size_bytes"].sum()),
        int(split["size_bytes"].sum()),
        split.height,
        int(largest or 0),
    )
    return dict(zip(names, told, strict=True))


def _churn(of: Ledger, first: int, last: int) -> dict[str, Any]:
    """How often memory was asked of the driver and given back, from one position to another."""
    rows = of.rows[first:last]
    kind = rows["kind"].cast(pl.String)
    given_back = rows["segment_change"] == -1
    # before a cudaMalloc is tried again, and before an error, one call gives cached segments back;
    # torch.cuda.empty_cache() does so too, but by a call of its own
    followed = kind.shift(-1).is_in(["segment_alloc", "segment_map", "oom"])
    retry = given_back & followed & (rows["stack"] == rows["stack"].shift(-1))
    return {
        "allocations": int((rows["change"] == 1).sum()),
        "segment_allocs": int((rows["segment_change"] == 1).sum()),
        "segment_frees": int((rows["segment_change"] == -1).sum()),
        "retries": int(retry.sum()),
        "ooms": int((kind == "oom").sum()),
    }


def _fits(of: Ledger) -> dict[str, Any]:
    quality = of.quality
    return {
        "before_n": quality.before_n,
        "before_bytes": quality.before_bytes,
        "reused_n": quality.reused_n,
        "twice_n": quality.twice_n,
        "resized_n": quality.resized_n,
        "lost_n": quality.lost_n,
        "difference_bytes": quality.difference_bytes,
    }


def timeline(of: Ledger, points: int = POINTS) -> pl.DataFrame:
    """The curves at no more than so many positions, each stretch's highest point among them.

    Returns:
        event (position), time_ns, live_bytes, reserved_bytes.
    """
    at = thinned(of, points)
    time = of.rows["ts"]
    first = at[at > 0] - 1
    known = pl.Series([None] * int((at == 0).sum()) + time[first].to_list(), dtype=pl.Int64)
    reserved = None if of.reserved is None else of.reserved[at]
    return pl.DataFrame(
        {
            "event": at,
            "time_ns": known,
            "live_bytes": of.live[at],
            "reserved_bytes": pl.Series(
                [None] * at.size if reserved is None else reserved, dtype=pl.Int64
            ),
        }
    )


def thinned(of: Ledger, points: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Positions that show the curve of what is live: of each stretch the first and the highest."""
    n = of.positions
    if n <= points:
        return np.arange(n)
    edges = np.linspace(0, n, (points - 2) // 2 + 1).astype(np.int64)[:-1]
    stretch = np.repeat(np.arange(edges.size), np.diff(np.append(edges, n)))
    order = np.lexsort((of.live, stretch))
    highest = order[np.append(edges[1:], n) - 1]
    return np.unique(np.concatenate([edges, highest, [n - 1, peak_position(of)]]))
