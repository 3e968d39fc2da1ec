"""The boxes of a flamegraph: the call tree as asked for, and no more of it than can be drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.libraries import is_own, package_of
from traceanalyzer.analyzers.flamegraph.options import Options
from traceanalyzer.analyzers.flamegraph.tree import Joined
from traceanalyzer.frames import stack_weights
from traceanalyzer.frames.intervals import Bools
from traceanalyzer.frames.stack_weights import ROOT, Pruned, Weights

#: So many boxes, the heaviest, are drawn of a tree that has more than twice as many. Each may have
#: one more below it that stands for its small callees.
BOXES = 5_000

#: Callers are not looked up of what weighs less than this part of everything.
_NEGLIGIBLE = 1e-5

#: ``aten`` of ``aten::mm``: what colours a frame that has no file.
_NAMESPACE = r"^(?:void )?([A-Za-z_]\w*)::"


@dataclass(frozen=True)
class Drawn:
    """The boxes, and what they leave out.

    Attributes:
        frame: as :class:`~traceanalyzer.result.Flame` has it.
        least_frac: what weighs less than this part of everything is summed up.
        hidden: how many boxes are.
        hidden_weight: what they weigh.
    """

    frame: pl.DataFrame
    least_frac: float
    hidden: int
    hidden_weight: float


def drawn(whole: Joined, known: pl.DataFrame, options: Options) -> Drawn:
    """The boxes.

    Args:
        whole: weights on the call tree.
        known: for each of its functions ``name``, ``place``, ``group`` and ``own``.
        options: ``by`` gives a root for each group, ``reverse`` goes from the functions that ran
            up to their callers, below the groups' roots. What weighs less than ``min_frac`` is
            summed up; by default nothing as long as it can be drawn, then all but the
            :data:`BOXES` heaviest.
    """
    min_frac = options.min_frac
    frames, groups = known.height, len(whole.groups)
    if options.by:
        roots = np.arange(frames, frames + groups)
        forest, own = stack_weights.split(
            whole.forest, whole.node, whole.group, whole.weights, roots
        )
        labels = pl.DataFrame({"name": whole.groups, "own": [False] * groups})
        known = pl.concat([known, labels], how="diagonal")
    else:
        own = stack_weights.added(whole.node, whole.weights, whole.forest.parent.size)
        forest = whole.forest
    rest = known.height
    sums = own.sum(axis=1)
    if options.reverse:
        least = _NEGLIGIBLE if min_frac is None else min(min_frac, _NEGLIGIBLE)
        tree = stack_weights.invert(
            forest, own, sums * least, rest, keep_roots=options.by is not None
        )
    else:
        forest, own = stack_weights.weighted(forest, own)
        tree = Pruned(forest, own, np.zeros(forest.parent.size, np.int64))
    size = (stack_weights.totals(tree.forest, tree.own) / sums[:, None]).max(axis=0)
    stays, least_frac = _large(size, min_frac)
    if tree.hidden.any():
        least_frac = max(least_frac, _NEGLIGIBLE if min_frac is None else min_frac)
    tree = stack_weights.prune(tree, stays, rest)
    gone = tree.hidden > 0
    return Drawn(
        frame=_boxes(tree, known, least_frac),
        least_frac=least_frac,
        hidden=int(tree.hidden.sum()),
        hidden_weight=float(tree.own[0, gone].sum()),
    )


def known_functions(
    frames: pl.DataFrame, library: Callable[[str | None], str | None] | None
) -> pl.DataFrame:
    """What is drawn of each function: ``name``, ``place``, ``group``, and whether it is ``own``.

    Args:
        frames: ``name``, ``file``, ``first`` and ``last`` line.
        library: tells the library of a file to stand out; None for the user's own code.
    """
    keyed = frames.with_columns(_module=pl.col("name") == "<module>")
    files = keyed.select("file", "_module").unique()  # far fewer than functions
    pairs = list(files.iter_rows())
    told = files.with_columns(
        own=pl.Series(
            [
                library(file) is not None if library else is_own("<module>" if module else "", file)
                for file, module in pairs
            ],
            dtype=pl.Boolean,
        ),
        group=pl.Series([package_of(file) for file, _ in pairs], dtype=pl.String),
    )
    named = keyed.join(
        told, on=["file", "_module"], how="left", nulls_equal=True, maintain_order="left"
    )
    first, last = pl.col("first").cast(pl.String), pl.col("last").cast(pl.String)
    lines = pl.when(first == last).then(":" + first).otherwise(":" + first + "-" + last)
    without_file = pl.when(pl.col("file").is_null()).then(pl.col("name").str.extract(_NAMESPACE))
    return named.select(
        "name",
        place=pl.col("file") + lines.fill_null(""),
        group=pl.coalesce("group", without_file),
        own="own",
    )


def _large(size: Weights, min_frac: float | None) -> tuple[Bools, float]:
    """Which boxes to draw, and the size from which they are."""
    if min_frac is not None:
        return size >= min_frac, min_frac
    if size.size <= 2 * BOXES:
        return np.ones(size.size, np.bool_), 0.0
    first_out = float(np.partition(size, size.size - BOXES - 1)[size.size - BOXES - 1])
    return size > first_out, first_out


def _boxes(tree: Pruned, known: pl.DataFrame, least_frac: float) -> pl.DataFrame:
    """One row a box."""
    forest, own, hidden = tree
    total = stack_weights.totals(forest, own)
    # what stands for others is no function: it lies one behind the last
    names = pl.concat([known, pl.DataFrame({"own": [False]})], how="diagonal")[forest.frame]
    words = pl.format("({} frames below {} %)", "hidden", pl.lit(f"{100 * least_frac:.2g}"))
    size = forest.parent.size
    return pl.DataFrame(
        [
            pl.Series("id", np.arange(size), pl.UInt32),
            pl.Series("parent", np.where(forest.parent == ROOT, 0, forest.parent), pl.UInt32),
            *names,
            pl.Series("self", own[0]),
            pl.Series("total", total[0]),
            pl.Series("hidden", hidden, pl.UInt32),
            pl.Series("base", total[1] if len(total) > 1 else [None] * size, pl.Float64),
        ]
    ).with_columns(
        parent=pl.when(pl.Series(forest.parent != ROOT)).then("parent"),
        name=pl.when(pl.col("hidden") > 0).then(words).otherwise(pl.col("name").fill_null("")),
    )
