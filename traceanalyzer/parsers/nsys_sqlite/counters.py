"""Metrics that the GPUs themselves were sampled for."""

from __future__ import annotations

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.nsys_sqlite import layout
from traceanalyzer.parsers.nsys_sqlite.export import Export


def gpu_metrics(export: Export) -> pl.DataFrame:
    """``counters``: one row a reading, named by its metric, with a series for each GPU.

    A metric is known by its name; its number is one of this file and of this sort of GPU. The low
    byte of the type is the GPU's number. They belong to no process.
    """
    names = export.database.read(
        layout.GPU_METRIC_NAMES, integers=("typeId", "metricId"), texts=("metricName",)
    ).unique(["typeId", "metricId"], maintain_order=True)
    rows = export.database.read(
        layout.GPU_METRICS,
        integers=("timestamp", "typeId", "metricId", "value"),
        where=export.inside("timestamp", None),
    )
    told = rows.join(names, on=["typeId", "metricId"], how="left", maintain_order="left")
    unknown = pl.format("metric {}", "metricId")
    readings = told.drop_nulls(["timestamp", "typeId", "value"]).select(
        ts="timestamp",
        name=pl.coalesce("metricName", unknown).cast(schema.NAME),
        series=pl.format("GPU {}", pl.col("typeId") & 0xFF).cast(schema.NAME),
        rank=pl.lit(None, dtype=pl.Int32),
        pid=pl.lit(None, dtype=pl.Int64),
        value=pl.col("value").cast(pl.Float64),
    )
    return readings.sort("ts", maintain_order=True)
