"""Several ranks' copies and sets in one answer."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.transfers.extract import Part
from traceanalyzer.analyzers.transfers.findings import found
from traceanalyzer.analyzers.transfers.result import Transfers
from traceanalyzer.analyzers.transfers.sizes import size_class
from traceanalyzer.errors import OptionError

_WAY = ("direction", "memory")
_DEVICE = ("rank", "path", "device")


def combine(parts: Sequence[Part], remarks: Sequence[str] = ()) -> Transfers:
    """The copies and sets of all ranks; ``remarks`` are further notes.

    Raises:
        OptionError: there are no parts.
    """
    if not parts:
        raise OptionError("no trace was given")
    moves = pl.concat(
        [part.moves.with_columns(pl.lit(part.path).alias("path"), size_class()) for part in parts]
    )
    copies = _summed(moves, _WAY)
    place = copies.select(*_WAY, place=pl.int_range(pl.len()))
    sizes = _summed(moves, (*_WAY, "size")).join(place, on=_WAY, how="left", nulls_equal=True)
    devices = _devices(parts, moves)
    span_ns = int(devices["span_ns"].sum())
    known = devices["alone_ns"].drop_nulls()
    return Transfers(
        n=moves.height,
        moved_bytes=int(moves["moved_bytes"].sum()),
        total_ns=int(moves["dur_ns"].sum()),
        span_ns=span_ns,
        alone_ns=int(known.sum()) if known.len() else None,
        findings=found(copies, sizes, span_ns),
        copies=copies,
        sizes=sizes.sort("place", "size").drop("place"),
        devices=devices,
        by_device=_summed(moves, (*_DEVICE, *_WAY)).sort(*_DEVICE, maintain_order=True),
        unsized=int(moves["moved_bytes"].null_count()),
        unfinished=sum(part.unfinished for part in parts),
        remarks=tuple(remarks),
    )


def _summed(moves: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """One row for each combination of the keys, the largest total first."""
    dur, size = pl.col("dur_ns"), pl.col("moved_bytes")
    sized_ns = dur.filter(size.is_not_null()).sum()
    sums = moves.group_by(keys).agg(
        n=pl.len().cast(pl.Int64),
        moved_bytes=_sum_if_known("moved_bytes"),
        total_ns=dur.sum(),
        min_ns=dur.min(),
        median_ns=dur.median().round().cast(pl.Int64),
        max_ns=dur.max(),
        # bytes a nanosecond are 10^9 bytes a second
        rate_gbps=pl.when(sized_ns > 0).then(size.sum() / sized_ns),
        exposed_n=(pl.col("exposed_ns") > 0).sum().cast(pl.Int64),
        exposed_ns=_sum_if_known("exposed_ns"),
    )
    descending = [True, *(False for _ in keys)]
    return sums.with_columns(exposed_frac=_ratio("exposed_ns", "total_ns")).sort(
        "total_ns", *keys, descending=descending, nulls_last=True
    )


def _devices(parts: Sequence[Part], moves: pl.DataFrame) -> pl.DataFrame:
    counted = moves.group_by(_DEVICE).agg(
        n=pl.len().cast(pl.Int64),
        moved_bytes=_sum_if_known("moved_bytes"),
        total_ns=pl.col("dur_ns").sum(),
    )
    devices = pl.concat([part.devices for part in parts])
    return (
        devices.join(counted, on=_DEVICE, nulls_equal=True, how="left")
        .with_columns(
            busy_frac=_ratio("busy_ns", "span_ns"), alone_frac=_ratio("alone_ns", "span_ns")
        )
        .sort(_DEVICE, nulls_last=True)
    )


def _sum_if_known(column: str) -> pl.Expr:
    """The sum; null where nothing is known."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def _ratio(part: str, whole: str) -> pl.Expr:
    """Null where there is nothing of the whole."""
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))
