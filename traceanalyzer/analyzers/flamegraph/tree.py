"""The call tree of all files with their weights and those of a base, and sums by function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import own_lines
from traceanalyzer.analyzers.common.columns import is_whole
from traceanalyzer.analyzers.common.libraries import is_own_code, package_of
from traceanalyzer.analyzers.common.names import mapped
from traceanalyzer.analyzers.flamegraph import Options
from traceanalyzer.analyzers.flamegraph.result import column
from traceanalyzer.analyzers.flamegraph.weights import FRAMES, NO_STACK, Part, Weighted
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.frames import intervals, numbering, stack_weights


@dataclass(frozen=True)
class Joined(Weighted):
    """Weights of all files.

    Attributes:
        base: the sum of the recorded weights of the base, or None; ``weights`` has them scaled to
            the same sum.
    """

    base: float | None = None


def joined(parts: Sequence[Part], bases: Sequence[Part] = ()) -> Joined:
    """Join all parts in one tree; the base is ``bases``, else the columns "before" of the parts.

    Raises:
        InputError: the parts' weights have several units.
        MissingData: no stack has a weight.
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
    """Select stacks through functions with matching names, from the outermost one down.

    Raises:
        OptionError: the pattern is not a regular expression, or matches no function.
    """
    names = whole.frames["name"].fill_null("")
    try:
        wanted = names.str.contains(pattern).to_numpy()
    except pl.exceptions.ComputeError:
        raise OptionError(f"--focus {pattern}: is not a regular expression") from None
    forest, node = stack_weights.focus(whole.forest, wanted)
    place = node[whole.node]
    kept = place != stack_weights.ROOT
    if not whole.weights[0, kept].any():
        raise OptionError(f"--focus {pattern}: no stack has a matching function")
    return replace(
        whole,
        forest=forest,
        node=place[kept],
        group=whole.group[kept],
        weights=whole.weights[:, kept],
    )


def functions(whole: Joined, known: pl.DataFrame) -> pl.DataFrame:
    """Return one row per function with a weight, the highest self weight first.

    ``self_*`` is the weight of the stacks that end in it, ``total_*`` of those that contain it
    (recursion counts once), ``inner_*`` of those in which it is the innermost own function (null
    for others). ``*_frac`` are fractions of the total; ``base_*`` those of the base, and
    ``change_*`` the differences to it. Ties are sorted by name and place.

    Args:
        whole: weights on the call tree.
        known: ``name``, ``place``, ``group`` and ``is_own_code`` of its functions.
    """
    self_weights = stack_weights.added(whole.node, whole.weights, whole.forest.parent.size)
    alone, within = stack_weights.by_frame(whole.forest, self_weights, known.height)
    nearest = stack_weights.innermost(whole.forest, known["is_own_code"].to_numpy())
    inside = nearest != stack_weights.ROOT
    inner = stack_weights.added(nearest[inside], self_weights[:, inside], known.height)
    whole_weight = self_weights[0].sum()
    frame = known.rename({"group": "package"})
    named = {"self": alone, "total": within, "inner": inner}
    columns: list[pl.Series] = []
    for name, weights in named.items():
        columns.append(_weight(column(name, whole.unit), weights[0]))
        columns.append(pl.Series(f"{name}_frac", weights[0] / whole_weight))
    if whole.base is not None:
        for name, weights in named.items():
            now, before = weights / whole_weight  # the base is scaled to the same sum
            columns.append(pl.Series(f"base_{name}_frac", before))
            columns.append(pl.Series(f"change_{name}_frac", now - before))
    inner_columns = [one.name for one in columns if "inner" in one.name]
    weighs = within.any(axis=0)
    return (
        frame.with_columns(columns)
        .with_columns(pl.when("is_own_code").then(pl.col(inner_columns)))
        .filter(pl.Series(weighs))
        .sort(column("self", whole.unit), "name", "place", descending=[True, False, False])
    )


def calls_of_lines(whole: Joined, known: pl.DataFrame) -> pl.DataFrame:
    """Return the weight by highlighted function, call below it, and what the stacks do.

    Args:
        whole: weights on the call tree.
        known: ``place`` and ``is_own_code`` of its functions.

    Returns:
        The rows of :func:`~traceanalyzer.analyzers.common.own_lines.lines`.
    """
    texts = whole.frames.select("name", "file")
    forest = whole.forest
    starts = own_lines.starts_process(texts)[forest.frame]
    calls = own_lines.CallTree(
        texts,
        known["is_own_code"].to_numpy(),
        np.where(starts, stack_weights.ROOT, forest.parent),
        forest.frame,
    )
    has_stack = (whole.frames["name"] != NO_STACK).fill_null(value=True).to_numpy()
    node = np.where(has_stack[forest.frame[whole.node]], whole.node, stack_weights.ROOT)
    weight, group = pl.Series(whole.weights[0]), pl.repeat(None, node.size, eager=True)
    sums = own_lines.sums(calls, node, weight, group)
    name, place, file = pl.col("name").fill_null(""), pl.col("place"), pl.col("file")
    line = pl.lit(None)
    owner = known.select(place=own_lines.place_of(name, place, line))[sums["owner"]]
    call = texts.select(calls=own_lines.call_of(name, file))[sums["call"]]
    return pl.concat([sums.drop("owner", "call"), owner, call], how="horizontal")


def _one_tree(
    parts: Sequence[Part],
) -> tuple[pl.DataFrame, stack_weights.Forest, list[intervals.Ints]]:
    """Return the functions and calls of all parts, and the nodes of their weights."""
    if len(parts) == 1:
        return parts[0].frames, parts[0].forest, [parts[0].node]
    all_frames = pl.concat([part.frames for part in parts])
    lines = pl.col("first").min(), pl.col("last").max()
    frames, number = numbering.summed_by_text(all_frames, ["name", "file"], *lines)
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
    """Check that the parts fit together, and the row numbers of each, which summaries store.

    Raises:
        InputError: the parts' weights have several units.
        ValueError: a row number is out of range; in a cycle of callers no loop would end.
    """
    first = parts[0]
    for other in parts:
        parent, size = other.forest.parent, other.forest.parent.size
        ranges = (
            (parent + 1, size + 1),
            (other.forest.frame, other.frames.height),
            (other.node, size),
            (other.group, len(other.groups)),
        )
        in_range = all(((rows >= 0) & (rows < end)).all() for rows, end in ranges)
        in_order = (parent < np.arange(size)).all() and (np.diff(parent) >= 0).all()
        if not in_range or not in_order:
            raise ValueError("a call tree with wrong row numbers")
        if other.unit != first.unit:
            units = [unit or "an unknown unit" for unit in (other.unit, first.unit)]
            raise InputError(
                other.path,
                f"weights are in {units[0]}, those of {first.path} in {units[1]}",
                hint="--kind sample or --weight count may give the same unit",
            )


def _as_base(part: Part) -> Part:
    """Return a part with its weights as those of the base."""
    return replace(part, weights=np.stack([np.zeros_like(part.weights[0]), part.weights[0]]))


def _without_base(part: Part) -> Part:
    return replace(part, weights=np.stack([part.weights[0], np.zeros_like(part.weights[0])]))


def _weight(name: str, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> pl.Series:
    """Return a column of weights, as integers if all are whole."""
    series = pl.Series(name, values)
    return series.cast(pl.Int64) if is_whole(series) else series


# --- boxes -----------------------------------------------------------------------------------

#: Number of boxes, the largest, that are drawn of a tree with more than twice as many. Each may
#: have one more below it for its merged small callees.
BOXES = 5_000

#: Callers of frames below this fraction of the total are not resolved.
_NEGLIGIBLE = 1e-5

#: ``aten`` of ``aten::mm``: the colour group of a frame without a file.
_NAMESPACE = r"^(?:void )?([A-Za-z_]\w*)::"


@dataclass(frozen=True)
class Drawn:
    """The boxes, and the number and weight of merged ones.

    Attributes:
        frame: the frame of :class:`~traceanalyzer.drawings.Flame`.
        least_frac: boxes below this fraction of the total are merged.
        hidden: number of merged boxes.
        hidden_weight: their weight.
    """

    frame: pl.DataFrame
    least_frac: float
    hidden: int
    hidden_weight: float


def drawn(whole: Joined, known: pl.DataFrame, options: Options) -> Drawn:
    """Build the boxes.

    Args:
        whole: weights on the call tree.
        known: for each of its functions ``name``, ``place``, ``group`` and ``is_own_code``.
        options: ``by`` gives one root per group, ``inverted`` inverts the tree below the roots.
            Boxes below ``min_frac`` are merged; by default none as long as all can be drawn, else
            all but the :data:`BOXES` largest.
    """
    min_frac = options.min_frac
    frames, groups = known.height, len(whole.groups)
    if options.by:
        roots = np.arange(frames, frames + groups)
        forest, weights = stack_weights.split(
            whole.forest, whole.node, whole.group, whole.weights, roots
        )
        labels = pl.DataFrame({"name": whole.groups, "is_own_code": [False] * groups})
        known = pl.concat([known, labels], how="diagonal")
    else:
        weights = stack_weights.added(whole.node, whole.weights, whole.forest.parent.size)
        forest = whole.forest
    rest = known.height
    sums = weights.sum(axis=1)
    if options.inverted:
        least = _NEGLIGIBLE if min_frac is None else min(min_frac, _NEGLIGIBLE)
        tree = stack_weights.invert(
            forest, weights, sums * least, rest, keep_roots=options.by is not None
        )
    else:
        forest, weights = stack_weights.weighted(forest, weights)
        tree = stack_weights.Pruned(forest, weights, np.zeros(forest.parent.size, np.int64))
    size = (stack_weights.totals(tree.forest, tree.self_weights) / sums[:, None]).max(axis=0)
    stays, least_frac = _large(size, min_frac)
    if tree.hidden.any():
        least_frac = max(least_frac, _NEGLIGIBLE if min_frac is None else min_frac)
    tree = stack_weights.prune(tree, stays, rest)
    gone = tree.hidden > 0
    return Drawn(
        frame=_boxes(tree, known, least_frac, inverted=options.inverted),
        least_frac=least_frac,
        hidden=int(tree.hidden.sum()),
        hidden_weight=float(tree.self_weights[0, gone].sum()),
    )


def known_functions(
    frames: pl.DataFrame, library: Callable[[str | None], str | None] | None
) -> pl.DataFrame:
    """Return ``name``, ``place``, ``group`` and ``is_own_code`` (own code) of each function.

    Args:
        frames: ``name``, ``file``, ``first`` and ``last`` line.
        library: returns the highlighted library of a file, or None; None for the user's own code.
    """
    is_code = (
        partial(is_own_code, "") if library is None else lambda file: library(file) is not None
    )
    own_code = mapped(frames["file"], is_code, pl.Boolean).fill_null(value=False)
    if library is None:  # a module that was typed in
        typed_in = (frames["name"] == "<module>") & (frames["file"] == "<string>")
        own_code |= typed_in.fill_null(value=False)
    first, last = pl.col("first").cast(pl.String), pl.col("last").cast(pl.String)
    lines = pl.when(first == last).then(":" + first).otherwise(":" + first + "-" + last)
    without_file = pl.when(pl.col("file").is_null()).then(pl.col("name").str.extract(_NAMESPACE))
    return frames.select(
        "name",
        place=pl.col("file") + lines.fill_null(""),
        group=pl.coalesce(mapped(frames["file"], package_of), without_file),
        is_own_code=own_code,
    )


def _large(size: stack_weights.Weights, min_frac: float | None) -> tuple[intervals.Bools, float]:
    """Return a mask of the boxes to draw, and their least size."""
    if min_frac is not None:
        return size >= min_frac, min_frac
    if size.size <= 2 * BOXES:
        return np.ones(size.size, np.bool_), 0.0
    first_out = float(np.partition(size, size.size - BOXES - 1)[size.size - BOXES - 1])
    return size > first_out, first_out


def _boxes(
    tree: stack_weights.Pruned, known: pl.DataFrame, least_frac: float, *, inverted: bool
) -> pl.DataFrame:
    """Return one row per box."""
    forest, weights, hidden = tree
    total = stack_weights.totals(forest, weights)
    # merged boxes are not functions: their number is one after the last
    functions = pl.concat([known, pl.DataFrame({"is_own_code": [False]})], how="diagonal")
    names = functions[forest.frame]
    imports = own_lines.imports(
        functions.select("name", file="place"), functions["is_own_code"].to_numpy(), *forest
    )
    label = pl.format("({} frames below {} %)", "hidden", pl.lit(f"{100 * least_frac:.2g}"))
    size, has_parent = forest.parent.size, forest.parent != stack_weights.ROOT
    return pl.DataFrame(
        [
            pl.Series("id", np.arange(size), pl.UInt32),
            intervals.nullable("parent", forest.parent, has_parent).cast(pl.UInt32),
            *names,
            pl.Series("imports", imports & (not inverted)),
            pl.Series("self", weights[0]),
            pl.Series("total", total[0]),
            pl.Series("hidden", hidden, pl.UInt32),
            pl.Series("base", total[1] if len(total) > 1 else [None] * size, pl.Float64),
        ]
    ).with_columns(
        name=pl.when(pl.col("hidden") > 0).then(label).otherwise(pl.col("name").fill_null(""))
    )
