"""Flame graphs for tests of the renderer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
from sample_results import Sample

from traceanalyzer.drawings import Flame

SCHEMA = {
    "id": pl.UInt32,
    "parent": pl.UInt32,
    "name": pl.String,
    "place": pl.String,
    "group": pl.String,
    "is_own_code": pl.Boolean,
    "imports": pl.Boolean,
    "self": pl.Float64,
    "total": pl.Float64,
    "hidden": pl.UInt32,
    "base": pl.Float64,
}


@dataclass(frozen=True)
class Flames(Sample):
    """A result with flame graphs."""

    burning: tuple[Flame, ...] = ()

    @property
    def flames(self) -> tuple[Flame, ...]:
        return self.burning


def flame(rows: list[tuple[Any, ...]], **about: Any) -> Flame:
    """Return a flame graph of ``(parent, name, place, group, own, self, total, hidden, base)``."""
    numbered = [(number, *row[:5], "import" in row[1], *row[5:]) for number, row in enumerate(rows)]
    frame = pl.DataFrame(numbered, schema=SCHEMA, orient="row")
    texts = {"title": "A small training", "subtitle": "100 samples", "unit": "samples", **about}
    return Flame("flame", frame=frame, **texts)


def training(**about: Any) -> Flame:
    """100 samples: 90 in ``main``, of which ``forward`` calls itself, and 10 in a thread."""
    return flame(
        [
            (None, "<module>", "train.py:30", None, True, 0, 90, 0, None),  # 0
            (0, "main", "train.py:4-9", None, True, 5, 90, 0, None),  # 1
            (1, "forward", "torch/nn/conv.py:5", "torch", False, 10, 50, 0, None),  # 2
            (2, "forward", "torch/nn/conv.py:9", "torch", False, 20, 30, 0, None),  # 3
            (2, "relu", "torch/nn/relu.py:2", "torch", False, 10, 10, 0, None),  # 4
            (3, "relu", "torch/nn/relu.py:2", "torch", False, 10, 10, 0, None),  # 5
            (1, "load", "data.py:3", None, True, 0, 32, 0, None),  # 6
            (6, "read", "numpy/io.py:1", "numpy", False, 32, 32, 0, None),  # 7
            (1, "(7 frames below 1 %)", None, None, False, 3, 3, 7, None),  # 8
            (None, "run", "threading.py:8", "standard library", False, 0, 10, 0, None),  # 9
            (9, "relu", "torch/nn/relu.py:2", "torch", False, 10, 10, 0, None),  # 10
        ],
        **about,
    )


def compared(**about: Any) -> Flame:
    """40 samples and a base scaled to 40: one box grew, one shrank, one is new, two vanished."""
    return flame(
        [
            (None, "main", "train.py:1", None, True, 0, 40, 0, 40),
            (0, "grew", "a.py:1", None, True, 20, 20, 0, 10),
            (0, "shrank", "a.py:2", None, True, 8, 8, 0, 16),
            (0, "new", "a.py:3", None, True, 12, 12, 0, 0),
            (0, "gone", "b.py:4", "b", False, 0, 0, 0, 14),
            (4, "below_gone", "b.py:5", "b", False, 0, 0, 0, 14),
        ],
        **about,
    )


def chain(names: list[str], **about: Any) -> Flame:
    """Return one stack of functions, each a little lighter than its caller."""
    count = len(names)
    rows = [
        (at - 1 if at else None, name, name or None, name or None, False, 1, count - at, 0, None)
        for at, name in enumerate(names)
    ]
    return flame(rows, **about)
