"""The call tree of all files, the weights of a base beside theirs, and the sums by function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from traceanalyzer.analyzers.flamegraph.result import column
from traceanalyzer.analyzers.flamegraph.weights import FRAMES, Part
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.frames import stack_weights
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.frames.stack_weights import ROOT, Forest, Weights
from traceanalyzer.limits import MOST_WEIGHT


@dataclass(frozen=True)
class Joined:
    """Weights on the call tree of all files.

    Attributes:
        unit: of the weights.
        frames: the functions, columns of :data:`~.weights.FRAMES`; their rows are numbers in
            ``forest``.
        forest: the call tree, in order.
        node: the node of each weight.
        group: the number of the group it belongs to.
        weights: the weights; the second series, if there is one, are those of the base, scaled to
            the same sum.
        groups: what the groups are called.
        base: the sum of the base's weights as they were recorded, or None.
    """

    unit: str
    frames: pl.DataFrame
    forest: Forest
    node: Ints
    group: Ints
    weights: Weights
    groups: tuple[str, ...]
    base: float | None = None


def joined(parts: Sequence[Part], bases: Sequence[Part] = ()) -> Joined:
    """All parts in one tree; ``bases``, or else the columns "before" of the parts, are the base.

    Raises:
        InputError: the parts' weights are not of one unit.
        MissingData: nothing has a weight.
    """
    everything = [*parts, *(_as_base(part) for part in bases)]
    _check(everything)
    if bases:
        everything[: len(parts)] = [_without_base(part) for part in parts]
    groups = tuple(sorted({label for part in everything for label in part.groups}))
    place = {label: at for at, label in enumerate(groups)}
    numbers = [np.array([place[label] for label in part.groups], np.int64) for part in everything]
    frames, forest, nodes = _one_tree(everything)
    weights = np.concatenate([part.weights for part in everything], axis=1)
    total, base = weights.sum(axis=1).tolist()
    if not total or (bases and not base):
        where = everything[0 if not total else -1].path
        raise MissingData(f"{where}: the stacks have no weight")
    if base:
        weights[1] *= total / base
    return Joined(
        unit=parts[0].unit,
        frames=frames,
        forest=forest,
        node=np.concatenate(nodes),
        group=np.concatenate([n[p.group] for n, p in zip(numbers, everything, strict=True)]),
        weights=weights if base else weights[:1],
        groups=groups,
        base=base or None,
    )


def focused(whole: Joined, pattern: str) -> Joined:
    """Only stacks through functions whose name matches, from the outermost such function down.

    Raises:
        OptionError: the pattern is no regular expression, or no function is called so.
    """
    names = whole.frames["name"].fill_null("")
    try:
        wanted = names.str.contains(pattern).to_numpy()
    except pl.exceptions.ComputeError:
        raise OptionError(f"--focus {pattern}: is no regular expression") from None
    forest, node = stack_weights.focus(whole.forest, wanted)
    place = node[whole.node]
    kept = place != ROOT
    if not whole.weights[0, kept].any():
        raise OptionError(f"--focus {pattern}: no stack goes through a function of that name")
    return replace(
        whole,
        forest=forest,
        node=place[kept],
        group=whole.group[kept],
        weights=whole.weights[:, kept],
    )


def functions(whole: Joined, known: pl.DataFrame) -> pl.DataFrame:
    """One row a function that has a weight, the heaviest by itself first, ties by name and place.

    ``self_*`` is the weight of the stacks that end in it, ``total_*`` of those that it is in
    (recursion counts once), ``inner_*`` of those in which it is the innermost own function (null
    for others). ``*_frac`` are parts of everything; ``base_*`` those of the base, and ``change_*``
    how much larger they are here.

    Args:
        whole: weights on the call tree.
        known: ``name``, ``place``, ``group`` and ``own`` of its functions.
    """
    own = stack_weights.added(whole.node, whole.weights, whole.forest.parent.size)
    alone, within = stack_weights.by_frame(whole.forest, own, known.height)
    nearest = stack_weights.innermost(whole.forest, known["own"].to_numpy())
    inside = nearest != ROOT
    inner = stack_weights.added(nearest[inside], own[:, inside], known.height)
    all_of_it = own[0].sum()
    frame = known.rename({"group": "package"})
    named = {"self": alone, "total": within, "inner": inner}
    columns: list[pl.Expr | pl.Series] = []
    for name, weights in named.items():
        columns.append(_weight(column(name, whole.unit), weights[0]))
        columns.append(pl.Series(f"{name}_frac", weights[0] / all_of_it))
    if whole.base is not None:
        for name, weights in named.items():
            now, before = weights / all_of_it  # the base is scaled to the same sum
            columns.append(pl.Series(f"base_{name}_frac", before))
            columns.append(pl.Series(f"change_{name}_frac", now - before))
    theirs = [
        name for name in (c.name for c in columns if isinstance(c, pl.Series)) if "inner" in name
    ]
    weighs = within.any(axis=0)
    return (
        frame.with_columns(columns)
        .with_columns(pl.when("own").then(pl.col(theirs)))
        .filter(pl.Series(weighs))
        .sort(column("self", whole.unit), "name", "place", descending=[True, False, False])
    )


def _one_tree(parts: Sequence[Part]) -> tuple[pl.DataFrame, Forest, list[Ints]]:
    """The functions and calls of all parts, and where the weights of each lie."""
    if len(parts) == 1:
        return parts[0].frames, parts[0].forest, [parts[0].node]
    own = pl.concat([part.frames for part in parts]).with_row_index("_row")
    frames = (
        own.group_by("name", "file")
        .agg(pl.col("first").min(), pl.col("last").max(), "_row")
        .sort("name", "file")
    )
    number = np.empty(own.height, np.int64)
    number[frames["_row"].explode(empty_as_null=False).to_numpy()] = np.repeat(
        np.arange(frames.height), frames["_row"].list.len().to_numpy()
    )
    nodes = np.cumsum([0, *(part.forest.parent.size for part in parts)])
    used = np.cumsum([0, *(part.frames.height for part in parts)])
    parents = [
        np.where(part.forest.parent == ROOT, ROOT, part.forest.parent + start)
        for part, start in zip(parts, nodes, strict=False)
    ]
    numbers = [number[part.forest.frame + start] for part, start in zip(parts, used, strict=False)]
    forest, node = stack_weights.merge(np.concatenate(parents), np.concatenate(numbers))
    places = [node[part.node + start] for part, start in zip(parts, nodes, strict=False)]
    return frames.select(list(FRAMES)), forest, places


def _check(parts: Sequence[Part]) -> None:
    first = parts[0]
    for other in parts:
        if other.unit != first.unit:
            units = [unit or "of no known unit" for unit in (other.unit, first.unit)]
            raise InputError(
                other.path,
                f"its weights are {units[0]}, those of {first.path} {units[1]}",
                hint="--kind sample, or --weight count, may make them alike",
            )


def _as_base(part: Part) -> Part:
    """A part whose weights are those of the base."""
    return replace(part, weights=np.stack([np.zeros_like(part.weights[0]), part.weights[0]]))


def _without_base(part: Part) -> Part:
    return replace(part, weights=np.stack([part.weights[0], np.zeros_like(part.weights[0])]))


def _weight(name: str, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> pl.Series:
    """Whole weights as whole numbers."""
    series = pl.Series(name, values)
    whole = (values == np.floor(values)) & (np.abs(values) <= MOST_WEIGHT)
    return series.cast(pl.Int64) if whole.all() else series
