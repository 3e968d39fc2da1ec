"""Stacks of threads that nsys sampled."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames import stacks
from traceanalyzer.parsers.nsys_sqlite import layout
from traceanalyzer.parsers.nsys_sqlite.export import Export, kind, pid, tid
from traceanalyzer.parsers.sampled import Frame, stacks_table

_PLACE = ["symbol", "module"]
#: What stands for the name of a function that nsys has no symbol for.
_ADDRESS = re.compile(r"0x[0-9a-f]+")
UNRESOLVED = "[unresolved]"


def samples(export: Export) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row a sample, each counting 1, and the table ``stacks`` they point into.

    A frame is a function, with the library or program it lies in as its file. Functions that nsys
    has only an address of are one for each library. A sample whose stack was not walked has none.
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
    places = told.select(_PLACE).unique(maintain_order=True)
    frames = _frames(export, places)
    number = {frame: at for at, frame in enumerate(dict.fromkeys(frames))}
    numbered = pl.Series("frame", [number[frame] for frame in frames], dtype=pl.UInt32)
    numbers = told.join(
        places.with_columns(numbered),
        on=_PLACE,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["frame"]
    lengths = told.group_by("id", maintain_order=True).len()
    tree = stacks.build(numbers.to_numpy(), lengths["len"].to_numpy().astype(np.uint32))
    leaf = lengths.select("id", stack=pl.Series(tree.leaf))
    joined = rows.join(leaf, on="id", how="left", maintain_order="left").drop("id")
    table = stacks_table(tree, list(number))
    return joined.with_columns(kind("sample")), table if len(tree.frame) else schema.empty("stacks")


def _frames(export: Export, places: pl.DataFrame) -> list[Frame]:
    texts = export.texts(pl.concat([places["symbol"], places["module"]]))
    return [
        Frame(_function(texts.get(symbol)), texts.get(module))
        for symbol, module in places.iter_rows()
    ]


def _function(symbol: str | None) -> str:
    if not symbol:
        return "[unknown]"
    return UNRESOLVED if _ADDRESS.fullmatch(symbol) else symbol
