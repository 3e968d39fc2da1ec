"""Work, traffic, peaks and utilisation of each launch, from the metrics of Nsight Compute.

All are rates (per second): work and traffic in one launch have the same duration, which cancels in
the arithmetic intensity, and roofline charts of ncu have rates only.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.roofline.metrics import (
    FUSED,
    HMMA_884,
    LEVELS,
    OPERATIONS,
    REQUIRED,
    SECTOR_BYTES,
    quantity,
    tensor_paths,
)

#: Columns that identify a launch; with the file, if the process is unknown.
IDENTITY = ("host", "pid", "id", "kernel", "device", "grid", "block")
ABOUT = (*IDENTITY, "cc", "launches")
_TYPES = {"host": pl.String, "pid": pl.Int64, "id": pl.Int64, "kernel": pl.String,
          "device": pl.Int32, "grid": pl.String, "block": pl.String, "cc": pl.String,
          "launches": pl.Int64}  # fmt: skip
PERCENTAGES = ("sm", "memory", "dram", "l1", "l2", "occupancy", "theoretical_occupancy", "tensor")
COUNTS = ("waves", "registers")


def quantities(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return one row per launch: :data:`ABOUT`, and a column per quantity that was recorded."""
    about = metrics.select("launch", *ABOUT).unique("launch", maintain_order=True)
    about = about.with_columns(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())
    keys = ["section", "label", "metric", "unit"]
    known = pl.col("value").is_not_null() & pl.col("metric").is_not_null()
    rows = metrics.filter(known).select("launch", *keys, "value")
    kinds = rows.select(keys).unique()
    found = [quantity(*(text or "" for text in row)) for row in kinds.cast(pl.String).rows()]
    names = sorted({one[0] for one in found if one})
    named = kinds.with_columns(
        quantity=pl.Series([one and one[0] for one in found], dtype=pl.Enum(names)),
        order=pl.Series([one and one[1] for one in found], dtype=pl.Int16),
    ).drop_nulls("quantity")
    if named.is_empty() or rows.is_empty():
        return about.drop("launch")
    joined = rows.join(named, on=keys, nulls_equal=True).select(
        "launch", "quantity", "order", "value"
    )
    if named["order"].n_unique() > 1:
        joined = joined.sort("order", maintain_order=True)
    columns = [
        pl.col("value").filter(pl.col("quantity") == name).first().alias(name) for name in names
    ]
    wide = joined.group_by("launch").agg(columns)
    return about.join(wide, on="launch", how="left", maintain_order="left").drop("launch")


def merged(parts: Sequence[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Return the launches of all files; those that several files describe are one row.

    ncu exports pages of one report to several files: they agree in host, process, number and kernel
    of a launch. Launches of an unknown process are those of their file alone.
    """
    frames = []
    for number, (path, frame) in enumerate(parts):
        of_file = pl.when(pl.col("pid").is_null() | pl.col("id").is_null()).then(
            pl.int_range(pl.len(), dtype=pl.Int64) * len(parts) + number
        )
        frames.append(frame.with_columns(path=pl.lit(path), alone=of_file))
    rows = pl.concat(frames, how="diagonal")
    keys = [*IDENTITY, "alone"]
    if rows.select(keys).is_duplicated().any():
        others = [name for name in rows.columns if name not in keys]
        rows = rows.group_by(keys, maintain_order=True).agg(
            pl.col(name).drop_nulls().first() for name in others
        )
    return rows.drop("alone")


def rates(launches: pl.DataFrame) -> pl.DataFrame:
    """Return one row per launch with rates in SI units, null where metrics are missing.

    Returns:
        :data:`ABOUT`, ``path``, ``time_ns``, ``work PRECISION`` (FLOP/s), ``traffic LEVEL``
        (byte/s), ``peak PRECISION`` (FLOP/s), ``roof LEVEL`` (byte/s), percentages as ``..._frac``,
        ``waves``, ``registers``.
    """
    has = set(launches.columns)
    seconds = _known(has, "time_ns") / 1e9
    columns: dict[str, pl.Expr] = {"time_ns": _known(has, "time_ns")}
    for precision in OPERATIONS:
        columns[f"work {precision}"] = _work(has, precision, seconds)
        columns[f"peak {precision}"] = _peak(has, precision)
    columns |= _tensor(has, seconds)
    for level, unit in LEVELS.items():
        columns[f"traffic {level}"] = _traffic(has, unit, seconds)
        columns[f"roof {level}"] = _known(has, f"{unit}_peak") * _known(has, f"{unit}_hz")
    for name in PERCENTAGES:
        columns[f"{name}_frac"] = _known(has, f"{name}_pct") / 100
    for name in COUNTS:
        columns[name] = _known(has, name)
    finite = (pl.when(expr.is_finite()).then(expr).alias(name) for name, expr in columns.items())
    return launches.select("path", *ABOUT, *finite)


def _known(has: set[str], name: str) -> pl.Expr:
    return pl.col(name) if name in has else pl.lit(None, pl.Float64)


def _work(has: set[str], precision: str, seconds: pl.Expr) -> pl.Expr:
    """Return FLOP/s of scalar instructions: from rates per cycle, counts, or ncu's chart."""
    fused = FUSED[precision][0]
    hz = pl.coalesce(_known(has, "smsp_hz"), _known(has, "sm_hz"))
    of_cycles = _sum(has, "rate", precision) * hz
    of_counts = _sum(has, "count", precision) / pl.when(seconds > 0).then(seconds)
    add, multiply = (factor for _, factor in OPERATIONS[precision][:2])
    letter = fused[0]
    charted = (
        _known(has, f"chart {letter}add") * add
        + _known(has, f"chart {letter}mul") * multiply
        + _known(has, f"chart {fused}")  # operations, not instructions
    ) * _known(has, f"chart {precision}_hz")
    return pl.coalesce(of_cycles, of_counts, charted)


def _sum(has: set[str], of: str, precision: str) -> pl.Expr:
    """Return the sum of the operations; null if one that every GPU has is missing."""
    total = pl.lit(0.0)
    for place, (name, factor) in enumerate(OPERATIONS[precision]):
        value = _known(has, f"{of} {name}") * factor
        total = total + (value if place < REQUIRED else value.fill_null(0.0))
    return total


def _peak(has: set[str], precision: str) -> pl.Expr:
    name, factor = FUSED[precision]
    hz = pl.coalesce(_known(has, "sm_hz"), _known(has, "smsp_hz"))
    counted = _known(has, f"peak {name}") * factor * hz
    charted = _known(has, f"chart {precision}_peak") * _known(has, f"chart {precision}_hz")
    return pl.coalesce(counted, charted)


def _tensor(has: set[str], seconds: pl.Expr) -> dict[str, pl.Expr]:
    """Return work and peaks of tensor cores by precision."""
    columns: dict[str, pl.Expr] = {}
    hz = _known(has, "sm_hz")
    names = {name.partition(" ")[2] for name in has if name.startswith(("tensor_count ",
             "tensor_rate "))}  # fmt: skip
    for path in tensor_paths(names):
        counts = _known(has, f"tensor_count {path.name}") / pl.when(seconds > 0).then(seconds)
        work = pl.coalesce(_known(has, f"tensor_rate {path.name}") * hz, counts)
        key = f"work {path.precision}"
        columns[key] = pl.sum_horizontal(columns[key], work) if key in columns else work
        peak = _known(has, f"tensor_peak {path.name}") * hz
        key = f"peak {path.precision}"
        columns[key] = pl.max_horizontal(columns[key], peak) if key in columns else peak
    if "tensor_instructions" in has:
        estimate = pl.col("tensor_instructions") * HMMA_884 / pl.when(seconds > 0).then(seconds)
        old = pl.when(pl.col("cc") == "7.0").then(estimate)
        key = "work fp16 tensor"
        columns[key] = pl.coalesce(columns[key], old) if key in columns else old
        columns.setdefault("peak fp16 tensor", pl.lit(None, pl.Float64))
    return columns


def _traffic(has: set[str], unit: str, seconds: pl.Expr) -> pl.Expr:
    """Return byte/s of a level: its bytes, or reads and writes, or sectors of 32 bytes."""
    second = pl.when(seconds > 0).then(seconds)
    if unit == "dram":
        pairs = [
            _known(has, f"dram_read_{of}") + _known(has, f"dram_write_{of}")
            for of in ("bytes", "sectors")
        ]
        moved = pl.coalesce(_known(has, "dram_bytes"), pairs[0], pairs[1] * SECTOR_BYTES)
    else:
        moved = pl.coalesce(
            _known(has, f"{unit}_bytes"), _known(has, f"{unit}_sectors") * SECTOR_BYTES
        )
    return pl.coalesce(moved / second, _known(has, f"{unit}_bps"))
