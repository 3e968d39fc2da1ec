"""Weights on trees of stacks: totals, and trees merged, split, inverted, cut.

A :class:`Forest` is a tree of calls as arrays. The forests made here are in order: level by level,
the children of one node beside one another with distinct frames that ascend, in the order of their
parents. So every path occurs once, and forests of the same paths are the same arrays. Weights are
float64 of shape (series, nodes): one series, or two where recordings are compared. ``own`` weights
are those of a node alone, totals include all that lies below it.

Everything goes level by level over whole arrays, O(n log n) for n nodes and a fixed cost for each
level, so bound the levels with ``deepest`` where the stacks come from elsewhere. Three million
nodes on 60 levels, one core of an AMD EPYC: :func:`merge` 0.5 s, :func:`totals` 0.02 s,
:func:`by_frame` 0.4 s, :func:`prune` 0.1 s, :func:`split` into 8 groups 1.9 s.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traceanalyzer.frames.intervals import Bools, Ints, narrow

Weights = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int32]

#: The parent of a root.
ROOT = -1


class Forest(NamedTuple):
    """Nodes of call trees: the row of the calling node or :data:`ROOT`, and the frame's number."""

    parent: Ints
    frame: Ints


class Pruned(NamedTuple):
    """A forest in which some nodes stand for others.

    ``hidden`` is for each node how many nodes it stands for; 0: it is one itself.
    """

    forest: Forest
    own: Weights
    hidden: Ints


def merge(
    parent: Ints, frame: Ints, deepest: int | None = None, rest: int = 0
) -> tuple[Forest, Ints]:
    """One node for each path of frames, whatever the order of the rows.

    Args:
        parent: the calling row of each row, or :data:`ROOT`; in any order, without circles.
        frame: each row's frame.
        deepest: levels to keep as they are. Rows below become one node a parent on a last level.
        rest: the frame of those nodes.

    Returns:
        The forest, in order, and the node of each row.
    """
    depth = depths(parent)
    if deepest is not None and depth.max(initial=0) >= deepest:
        parent, frame, depth = _flattened(parent, frame, depth, deepest, rest)
    order = np.argsort(narrow(depth), kind="stable")
    node = np.empty(parent.size, np.int64)
    frames = int(frame.max(initial=0)) + 1
    parents, merged, size = [], [], 0
    for lo, hi in pairwise([0, *np.cumsum(np.bincount(depth)).tolist()]):
        rows = order[lo:hi]
        above = node[parent[rows]] if size else ROOT
        paths, place = np.unique((above + 1) * frames + frame[rows], return_inverse=True)
        node[rows] = size + place
        parents.append(paths // frames - 1)
        merged.append(paths % frames)
        size += paths.size
    return Forest(_joined(parents), _joined(merged)), node


def added(place: Ints, weights: Weights, size: int) -> Weights:
    """The weights summed by the place each belongs to, of ``size`` places."""
    sums = [np.bincount(place, series, size) for series in weights]
    return np.array(sums, np.float64).reshape(len(weights), size)


def totals(forest: Forest, own: Weights) -> Weights:
    """The weight of each node of a forest in order, with all that lies below it."""
    total = own.astype(np.float64)
    for lo, hi in reversed(_levels(forest.parent)[1:]):
        above = forest.parent[lo:hi]
        first = above[0]
        sums = added(above - first, total[:, lo:hi], int(above[-1] - first) + 1)
        total[:, first : first + sums.shape[1]] += sums
    return total


def by_frame(forest: Forest, own: Weights, frames: int) -> tuple[Weights, Weights]:
    """For each frame the weight of its nodes alone, and of all stacks that it is in.

    A stack that holds a frame several times counts once.
    """
    outermost = ~_in_itself(forest)
    total = totals(forest, own)[:, outermost]
    return added(forest.frame, own, frames), added(forest.frame[outermost], total, frames)


def weighted(forest: Forest, own: Weights) -> tuple[Forest, Weights]:
    """The nodes of a forest in order that have a weight, or lie above one that does."""
    used = totals(forest, own).any(axis=0)
    number = np.cumsum(used) - 1
    parent = forest.parent[used]
    return Forest(np.where(parent == ROOT, ROOT, number[parent]), forest.frame[used]), own[:, used]


def innermost(forest: Forest, wanted: Bools) -> Ints:
    """For each node the wanted frame nearest above it, itself included; :data:`ROOT` if none is.

    Args:
        forest: the calls, in order.
        wanted: for each frame, whether it is.
    """
    node = nearest(forest.parent, wanted[forest.frame])
    return np.where(node == ROOT, ROOT, forest.frame[node])


def focus(forest: Forest, wanted: Bools) -> tuple[Forest, Ints]:
    """What some functions do, wherever they are called: the stacks from them down, merged.

    Args:
        forest: the calls, in order.
        wanted: for each frame, whether a stack begins there; the outermost one counts.

    Returns:
        The forest, in order, and where each node is now: :data:`ROOT` for one that is left out,
        as none of the wanted frames is above it.
    """
    inside = nearest(forest.parent, wanted[forest.frame]) != ROOT
    rows = np.flatnonzero(inside)
    above = forest.parent[rows]
    called = np.not_equal(above, ROOT) & inside[above]
    number = np.cumsum(inside) - 1
    found, merged = merge(np.where(called, number[above], ROOT), forest.frame[rows])
    node = np.full(inside.size, ROOT)
    node[rows] = merged
    return found, node


def split(
    forest: Forest, node: Ints, group: Ints, weights: Weights, group_frame: Ints
) -> tuple[Forest, Weights]:
    """Each group's stacks under a root of its own.

    Args:
        forest: the calls of all groups, in order.
        node: the node at which a weight lies.
        group: the number of the group that the weight belongs to.
        weights: the weights, of shape (series, weights).
        group_frame: the frame of each group's root.
    """
    groups = group_frame.size
    base = np.zeros(0, np.int64)
    found = [base]  # node * groups + group, of all nodes that a group uses
    code = np.unique(node * groups + group)
    for lo, hi in reversed(_levels(forest.parent)):
        ends = code[np.searchsorted(code, lo * groups) : np.searchsorted(code, hi * groups)]
        here = np.union1d(ends, base)
        above = forest.parent[here // groups]
        base = above[above != ROOT] * groups + here[above != ROOT] % groups
        found.append(here)
    used = np.concatenate(found[::-1])  # ascends, as nodes lie level by level
    above = forest.parent[used // groups] * groups + used % groups
    root = above < 0
    calls = np.where(root, used % groups, groups + np.searchsorted(used, above))
    parent = np.concatenate([np.full(groups, ROOT), calls])
    frame = np.concatenate([group_frame, forest.frame[used // groups]])
    place = groups + np.searchsorted(used, node * groups + group)
    made, number = merge(parent, frame)
    return made, added(number[place], weights, made.parent.size)


def invert(
    forest: Forest, own: Weights, least: Weights, rest: int, *, keep_roots: bool = False
) -> Pruned:
    """The forest from the leaves up: roots are the frames that ran, below them who called them.

    Args:
        forest: the calls, in order.
        own: the weights of its nodes; those that have none in any series are no leaves.
        least: for each series, the weight from which a node is of interest. What is below that in
            all of them is summed up in one node a parent, without its callers.
        rest: the frame of those nodes, above all others.
        keep_roots: the roots stay what they are, and the stacks of each are inverted below it.

    Returns:
        The forest, in order. A node's ``own`` weight is that of the stacks which begin there.
    """
    floor = int(np.searchsorted(forest.parent, 0)) if keep_roots else 0
    at = np.flatnonzero((own > 0).any(axis=0))
    weights, node = own[:, at], np.full(at.size, ROOT)
    parts = [
        Pruned(Forest(forest.parent[:floor], forest.frame[:floor]), own[:, :floor], _no(floor))
    ]
    if floor:
        node, deeper = nearest(forest.parent, forest.parent == ROOT)[at], at >= floor
        at, weights, node = at[deeper], weights[:, deeper], node[deeper]
    size, frames = floor, rest + 1
    while at.size:
        code, place = np.unique((node + 1) * frames + forest.frame[at], return_inverse=True)
        small: Bools = np.all(added(place, weights, code.size) < least[:, None], axis=0)
        code, joined = np.unique(
            np.where(small, code // frames * frames + rest, code), return_inverse=True
        )
        hidden = np.bincount(joined[small], minlength=code.size)
        ends = small[place] | (forest.parent[at] < floor)
        place = joined[place]
        level = Forest(code // frames - 1, code % frames)
        parts.append(Pruned(level, added(place[ends], weights[:, ends], code.size), hidden))
        on = ~ends
        at, node, weights = forest.parent[at[on]], size + place[on], weights[:, on]
        size += code.size
    return Pruned(
        Forest(_joined([p.forest.parent for p in parts]), _joined([p.forest.frame for p in parts])),
        np.concatenate([p.own for p in parts], axis=1),
        _joined([p.hidden for p in parts]),
    )


def prune(tree: Pruned, stays: Bools, rest: int) -> Pruned:
    """Some of the nodes; the others are summed up in one node under each parent.

    Nothing is lost: the own weights of the result have the same sum. A node that would stand for a
    single other one is that one instead.

    Args:
        tree: the forest, in order, its weights, and what its nodes stand for already.
        stays: which nodes stay; where one does, so do those above it.
        rest: the frame of nodes that stand for others, above all others.
    """
    forest, own, hidden = tree
    total = totals(forest, own)
    many = totals(forest, np.maximum(hidden, 1)[None].astype(np.float64))[0]
    above = forest.parent
    outer = ~stays & ((above == ROOT) | stays[above])
    rows = np.flatnonzero(stays | outer)
    number = np.cumsum(stays | outer) - 1
    parent = np.where(above[rows] == ROOT, ROOT, number[above[rows]])
    frame = np.where(outer, rest, forest.frame)[rows]
    cut, node = merge(parent, frame)
    count = np.where(outer, many, hidden)[rows]
    hidden = added(node, count[None], cut.parent.size)[0].astype(np.int64)
    single = (hidden == 1)[node] & outer[rows] & (forest.frame[rows] != rest)
    cut.frame[node[single]] = forest.frame[rows[single]]
    hidden[node[single]] = 0
    return Pruned(cut, added(node, np.where(outer, total, own)[:, rows], cut.parent.size), hidden)


def nearest(parent: Ints, wanted: Bools) -> Ints:
    """For each node the innermost wanted one on its way to the root, itself included.

    The paths double in length in every pass, so the deepest stack costs its logarithm.
    """
    found: Ints = np.where(wanted, np.arange(parent.size), parent)
    rows = np.flatnonzero((found != ROOT) & ~wanted)
    while rows.size:
        rows = rows[~wanted[found[rows]]]
        found[rows] = found[found[rows]]
        rows = rows[found[rows] != ROOT]
    return found


def depths(parent: Ints) -> Rows:
    """How many rows lie above each one; the paths to the roots double in length in every pass."""
    depth: Rows = np.not_equal(parent, ROOT).astype(np.int32)
    if (parent[1:] >= parent[:-1]).all():  # level by level already
        for lo, hi in _levels(parent)[1:]:
            depth[lo:hi] = depth[parent[lo]] + 1
        return depth
    above = parent.copy()
    rows = np.flatnonzero(depth)
    while rows.size:
        over = above[rows]
        further, higher = depth[over], above[over]
        depth[rows] += further
        above[rows] = higher
        rows = rows[higher != ROOT]
    return depth


def _flattened(
    parent: Ints, frame: Ints, depth: Rows, deepest: int, rest: int
) -> tuple[Ints, Ints, Rows]:
    """Rows below the ``deepest`` levels as children of the last of these."""
    deep = depth >= deepest
    above = np.where(deep, parent, np.arange(parent.size))
    rows = np.flatnonzero(deep)
    while rows.size:
        above[rows] = above[above[rows]]
        rows = rows[depth[above[rows]] >= deepest]
    return np.where(deep, above, parent), np.where(deep, rest, frame), np.minimum(depth, deepest)


def _levels(parent: Ints) -> list[tuple[int, int]]:
    """Where each level of a forest in order begins and ends."""
    edges = [0]
    while edges[-1] < parent.size:
        edges.append(int(np.searchsorted(parent, edges[-1])))
    return list(pairwise(edges))


def _in_itself(forest: Forest) -> Bools:
    """Which nodes of a forest in order lie below one of the same frame.

    Depth first, the nodes below one follow it without a gap. So among those of one frame, in that
    order, a node lies in an earlier one if any of them reaches beyond it.
    """
    parent, size = forest.parent, forest.parent.size
    below = totals(forest, np.ones((1, size)))[0].astype(np.int64)
    before = np.cumsum(below) - below
    first = np.ones(size, np.bool_)
    first[1:] = parent[1:] != parent[:-1]
    place = before - before[np.maximum.accumulate(np.where(first, np.arange(size), 0))]
    for lo, hi in _levels(parent)[1:]:
        place[lo:hi] += place[parent[lo:hi]] + 1
    order = np.empty(size, np.int64)
    order[place] = np.arange(size)
    order = order[np.argsort(narrow(forest.frame[order]), kind="stable")]
    shift = forest.frame[order] * (size + 1)  # so that no frame reaches into the next one
    begin = place[order] + shift
    reach = np.maximum.accumulate(begin + below[order])
    inside = np.zeros(size, np.bool_)
    inside[order[1:]] = reach[:-1] > begin[1:]
    return inside


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else _no(0)


def _no(size: int) -> Ints:
    return np.zeros(size, np.int64)
