"""Whether slow collectives ran while the device's memory was nearly full.

NCCL allocates its buffers on the device, beside PyTorch's allocator. Where next to nothing is left,
it makes do with small ones, or fails; the allocator itself stops the device to give memory back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceanalyzer.trace import Meta

if TYPE_CHECKING:  # what makes them is only loaded where memory is asked about
    from traceanalyzer.analyzers.memory.fill import Fill

#: From this share of the device's memory on it is nearly full.
NEAR_FULL_FRAC: Final = 0.95

TYPES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "id": pl.UInt32,
    "rank": pl.Int32,
    "device": pl.Int32,
    "collective": pl.String,
    "step": pl.String,
    "duration_ns": pl.Int64,
    "taken_bytes": pl.Int64,
    "capacity_bytes": pl.Int64,
    "taken_frac": pl.Float64,
    "aligned": pl.Boolean,
    "near_full": pl.Boolean,
}


def fullness(
    outliers: pl.DataFrame, metas: Mapping[str, Meta], fills: Sequence[Fill]
) -> pl.DataFrame:
    """How full the device was during each outlier, where its memory is known.

    Args:
        outliers: rows of ``CommOutliers.outliers()``.
        metas: of the traces, by path.
        fills: what is known of devices' memory. One belongs to the outliers of its rank and device;
            one whose file tells no rank to those of the only rank there is.

    Returns:
        A row an outlier: id, rank, device, collective, step, duration_ns, taken_bytes (the most
        that was taken of the device meanwhile), capacity_bytes (null where the trace does not tell
        the device's memory), taken_frac, aligned (whether that was at the same time; else it is the
        most of the whole history) and near_full.
    """
    alone = outliers["rank"].n_unique() == 1
    rows = []
    for row in outliers.iter_rows(named=True):
        fill = _of(row, fills, alone)
        meta = metas.get(row["path"])
        if fill is None or meta is None:
            continue
        begin = row["ts"] + (meta.epoch_ns or 0)
        taken, aligned = fill.taken(begin, begin + row["duration_ns"])
        capacity = _capacity(meta, row["device"])
        frac = taken / capacity if capacity else None
        rows.append(
            {
                **{name: row[name] for name in TYPES if name in row},
                "taken_bytes": taken,
                "capacity_bytes": capacity,
                "taken_frac": frac,
                "aligned": aligned and meta.epoch_ns is not None,
                "near_full": frac is not None and frac >= NEAR_FULL_FRAC,
            }
        )
    return pl.DataFrame(rows, schema=TYPES)


def _of(row: Mapping[str, Any], fills: Sequence[Fill], alone: bool) -> Fill | None:
    """What is known of the memory of an outlier's device."""
    own = [f for f in fills if f.rank == row["rank"] or (f.rank is None and alone)]
    exact = [f for f in own if row["device"] is not None and f.device == row["device"]]
    # a process that sees one device only calls it 0, whichever it is
    return exact[0] if exact else own[0] if len(own) == 1 else None


def _capacity(meta: Meta, device: int | None) -> int | None:
    """Memory of a device; where all are alike, of any."""
    told = {one.id: one.total_bytes for one in meta.devices if one.total_bytes}
    if device in told:
        return told[device]
    return next(iter(told.values())) if len(set(told.values())) == 1 else None
