"""What one file gives to a flamegraph: its call tree, and the weights on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from traceanalyzer.frames.intervals import Ints
from traceanalyzer.frames.stack_weights import ROOT, Forest, Weights, merge

#: Levels of a stack that are told apart; deeper frames become one.
DEEPEST = 2_000

#: Stands in a stack for what is not known by name, or not told apart.
NO_STACK = "(no stack)"
TOO_DEEP = f"(deeper than {DEEPEST:,} frames)"

#: Columns of a table of functions; ``first`` and ``last`` are the lines seen in it.
FRAMES = {"name": pl.String, "file": pl.String, "first": pl.Int32, "last": pl.Int32}


@dataclass(frozen=True)
class Calls:
    """Weights at rows of call trees, as they come.

    Attributes:
        frames: ``name``, ``file`` and ``line`` of each row of the trees.
        parent: the calling row of each row, or ROOT.
        row: the row that each weight lies at; ROOT for a stack without frames.
        weight: the weights.
        before: which of them are of the run that the file itself compares with.
        events: the row of ``events`` of each weight.
        unit: of the weights: ``samples``, ``ns``, ``bytes``, ``events``, or empty if not known.
        counts: what was left out or is odd, by the words of the notes.
    """

    frames: pl.DataFrame
    parent: Ints
    row: Ints
    weight: Weights
    before: np.ndarray[tuple[int], np.dtype[np.bool_]]
    events: pl.Series
    unit: str
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Part:
    """A file's weighted stacks, a function being one frame whatever its line.

    Attributes:
        path: the file.
        unit: of the weights.
        frames: the functions by (name, file), columns :data:`FRAMES`; row numbers are the numbers
            that ``forest`` has.
        forest: the call tree, in order.
        node: the node of each weight.
        group: the number of the group it belongs to.
        weights: the weights; the second series is of the run that the file compares with.
        groups: what the groups are called.
        counts: what was left out or is odd, by the words of the notes.
    """

    path: str
    unit: str
    frames: pl.DataFrame
    forest: Forest
    node: Ints
    group: Ints
    weights: Weights
    groups: tuple[str, ...]
    counts: Counter[str]


def part(path: str, calls: Calls, group: Ints, groups: tuple[str, ...]) -> Part:
    """One file's part, of the weights of its rows and the group of each."""
    frames, number = functions(calls.frames)
    rest, no_stack = frames.height, frames.height + 1
    extra = pl.DataFrame({"name": [TOO_DEEP, NO_STACK]})
    bare = calls.row == ROOT
    parent = np.append(calls.parent, ROOT) if bare.any() else calls.parent
    frame = np.append(number, no_stack) if bare.any() else number
    forest, node = merge(parent, frame, DEEPEST, rest)
    pairs = node[np.where(bare, parent.size - 1, calls.row)] * len(groups) + group
    used, place = np.unique(pairs, return_inverse=True)
    weights = [
        np.bincount(place[side], calls.weight[side], used.size)
        for side in (~calls.before, calls.before)
    ]
    return Part(
        path=path,
        unit=calls.unit,
        frames=pl.concat([frames, extra], how="diagonal"),
        forest=forest,
        node=used // len(groups),
        group=used % len(groups),
        weights=np.array(weights, np.float64),
        groups=groups,
        counts=calls.counts,
    )


def functions(frames: pl.DataFrame) -> tuple[pl.DataFrame, Ints]:
    """The distinct (name, file), sorted, with the first and last line; the number of each row."""
    found = (
        frames.with_row_index("_row")
        .group_by("name", "file")
        .agg(pl.col("line").min().alias("first"), pl.col("line").max().alias("last"), "_row")
        .with_columns(pl.col("name", "file").cast(pl.String))
        .sort("name", "file")
    )
    number = np.empty(frames.height, np.int64)
    number[found["_row"].explode(empty_as_null=False).to_numpy()] = np.repeat(
        np.arange(found.height), found["_row"].list.len().to_numpy()
    )
    return found.select(pl.col(name).cast(dtype) for name, dtype in FRAMES.items()), number
