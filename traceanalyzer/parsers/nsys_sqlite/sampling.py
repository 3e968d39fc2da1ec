"""Stacks of threads that nsys sampled."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames import stacks
from traceanalyzer.parsers.nsys_sqlite import layout
from traceanalyzer.parsers.nsys_sqlite.export import Export, kind, pid, tid
from traceanalyzer.parsers.sampled import Frame, stacks_table


def samples(export: Export) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row a sample, each counting 1, and the table ``stacks`` they point into.

    A frame is a function, with the library or program it lies in as its file. A sample whose stack
    was not walked has none.
    """
    rows = export.database.read(
        layout.SAMPLES,
        integers=("id", "start", "globalTid"),
        where=export.inside(end=None),
        shape=lambda piece: piece.select(
            "id", pid("globalTid"), tid("globalTid"), ts="start", weight=1.0
        ),
    )
    chains = export.database.read(
        layout.CALLCHAINS, integers=("id", "symbol", "module", "stackDepth")
    )
    told = chains.join(rows.select("id"), on="id", how="semi").sort(
        "id", "stackDepth", descending=[False, True], maintain_order=True
    )
    frames = told.select("symbol", "module").unique(maintain_order=True).with_row_index("frame")
    numbers = told.join(
        frames, on=["symbol", "module"], how="left", nulls_equal=True, maintain_order="left"
    )["frame"]
    lengths = told.group_by("id", maintain_order=True).len()
    tree = stacks.build(
        numbers.to_numpy().astype(np.uint32), lengths["len"].to_numpy().astype(np.uint32)
    )
    leaf = lengths.select("id", stack=pl.Series(tree.leaf))
    joined = rows.join(leaf, on="id", how="left", maintain_order="left").drop("id")
    table = stacks_table(tree, _frames(export, frames))
    return joined.with_columns(kind("sample")), table if len(tree.frame) else schema.empty("stacks")


def _frames(export: Export, frames: pl.DataFrame) -> list[Frame]:
    texts = export.texts(pl.concat([frames["symbol"], frames["module"]]))
    return [
        Frame(texts.get(symbol) or "[unknown]", texts.get(module))
        for symbol, module in frames.select("symbol", "module").iter_rows()
    ]
