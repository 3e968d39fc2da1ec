"""The call tree of all files, the weights of a base beside theirs, and the sums by function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.columns import is_whole
from traceanalyzer.analyzers.common.libraries import is_own, package_of
from traceanalyzer.analyzers.common.names import mapped
from traceanalyzer.analyzers.flamegraph.options import Options
from traceanalyzer.analyzers.flamegraph.result import column
from traceanalyzer.analyzers.flamegraph.weights import FRAMES, Part, Weighted
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.frames import intervals, numbering, stack_weights


@dataclass(frozen=True)
class Joined(Weighted):
    """Weights of all files.

    Attributes:
        base: the sum of the base's weights as they were recorded, or None; in ``weights`` they are
            scaled to the same sum.
    """

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
    kept = place != stack_weights.ROOT
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
    inside = nearest != stack_weights.ROOT
    inner = stack_weights.added(nearest[inside], own[:, inside], known.height)
    all_of_it = own[0].sum()
    frame = known.rename({"group": "package"})
    named = {"self": alone, "total": within, "inner": inner}
    columns: list[pl.Series] = []
    for name, weights in named.items():
        columns.append(_weight(column(name, whole.unit), weights[0]))
        columns.append(pl.Series(f"{name}_frac", weights[0] / all_of_it))
    if whole.base is not None:
        for name, weights in named.items():
            now, before = weights / all_of_it  # the base is scaled to the same sum
            columns.append(pl.Series(f"base_{name}_frac", before))
            columns.append(pl.Series(f"change_{name}_frac", now - before))
    theirs = [one.name for one in columns if "inner" in one.name]
    weighs = within.any(axis=0)
    return (
        frame.with_columns(columns)
        .with_columns(pl.when("own").then(pl.col(theirs)))
        .filter(pl.Series(weighs))
        .sort(column("self", whole.unit), "name", "place", descending=[True, False, False])
    )


def _one_tree(
    parts: Sequence[Part],
) -> tuple[pl.DataFrame, stack_weights.Forest, list[intervals.Ints]]:
    """The functions and calls of all parts, and where the weights of each lie."""
    if len(parts) == 1:
        return parts[0].frames, parts[0].forest, [parts[0].node]
    own = pl.concat([part.frames for part in parts])
    lines = pl.col("first").min(), pl.col("last").max()
    frames, number = numbering.summed_by_text(own, ["name", "file"], *lines)
    nodes = np.cumsum([0, *(part.forest.parent.size for part in parts)])
    used = np.cumsum([0, *(part.frames.height for part in parts)])
    parents = [
        np.where(
            part.forest.parent == stack_weights.ROOT, stack_weights.ROOT, part.forest.parent + start
        )
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
    return series.cast(pl.Int64) if is_whole(series) else series


# --- boxes -----------------------------------------------------------------------------------

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
        tree = stack_weights.Pruned(forest, own, np.zeros(forest.parent.size, np.int64))
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
    is_code = partial(is_own, "") if library is None else lambda file: library(file) is not None
    own = mapped(frames["file"], is_code, pl.Boolean).fill_null(value=False)
    if library is None:  # a module that was typed in
        typed_in = (frames["name"] == "<module>") & (frames["file"] == "<string>")
        own |= typed_in.fill_null(value=False)
    first, last = pl.col("first").cast(pl.String), pl.col("last").cast(pl.String)
    lines = pl.when(first == last).then(":" + first).otherwise(":" + first + "-" + last)
    without_file = pl.when(pl.col("file").is_null()).then(pl.col("name").str.extract(_NAMESPACE))
    return frames.select(
        "name",
        place=pl.col("file") + lines.fill_null(""),
        group=pl.coalesce(mapped(frames["file"], package_of), without_file),
        own=own,
    )


def _large(size: stack_weights.Weights, min_frac: float | None) -> tuple[intervals.Bools, float]:
    """Which boxes to draw, and the size from which they are."""
    if min_frac is not None:
        return size >= min_frac, min_frac
    if size.size <= 2 * BOXES:
        return np.ones(size.size, np.bool_), 0.0
    first_out = float(np.partition(size, size.size - BOXES - 1)[size.size - BOXES - 1])
    return size > first_out, first_out


def _boxes(tree: stack_weights.Pruned, known: pl.DataFrame, least_frac: float) -> pl.DataFrame:
    """One row a box."""
    forest, own, hidden = tree
    total = stack_weights.totals(forest, own)
    # what stands for others is no function: it lies one behind the last
    names = pl.concat([known, pl.DataFrame({"own": [False]})], how="diagonal")[forest.frame]
    words = pl.format("({} frames below {} %)", "hidden", pl.lit(f"{100 * least_frac:.2g}"))
    size, has_parent = forest.parent.size, forest.parent != stack_weights.ROOT
    return pl.DataFrame(
        [
            pl.Series("id", np.arange(size), pl.UInt32),
            intervals.nullable("parent", forest.parent, has_parent).cast(pl.UInt32),
            *names,
            pl.Series("self", own[0]),
            pl.Series("total", total[0]),
            pl.Series("hidden", hidden, pl.UInt32),
            pl.Series("base", total[1] if len(total) > 1 else [None] * size, pl.Float64),
        ]
    ).with_columns(
        name=pl.when(pl.col("hidden") > 0).then(words).otherwise(pl.col("name").fill_null("")),
    )
