"""Operations on weighted stacks, compared with dictionaries of paths."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from traceanalyzer.frames import stack_weights as sw
from traceanalyzer.frames.stack_weights import ROOT, Forest, Pruned

FRAMES = 4
REST = FRAMES
Path = tuple[int, ...]
Paths = dict[Path, tuple[float, ...]]

modest = settings(max_examples=60, deadline=None)

#: Stacks, each with two weights.
STACKS = st.lists(
    st.tuples(
        st.lists(st.integers(0, FRAMES - 1), min_size=1, max_size=6).map(tuple),
        st.tuples(st.integers(0, 5), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=12,
)


def rows_of(stacks: list[tuple[Path, tuple[int, int]]], seed: int = 0):
    """A row for every frame of every stack, in any order: no path is shared yet."""
    forest_rows: list[tuple[int, int, tuple[float, float]]] = []
    for path, weights in stacks:
        for level, frame in enumerate(path):
            above = len(forest_rows) - 1 if level else ROOT
            forest_rows.append((above, frame, weights if level == len(path) - 1 else (0, 0)))
    order = list(range(len(forest_rows)))
    random.Random(seed).shuffle(order)  # noqa: S311 - any order will do
    place = {row: at for at, row in enumerate(order)}
    parent = np.array([place.get(forest_rows[row][0], ROOT) for row in order], np.int64)
    frame = np.array([forest_rows[row][1] for row in order], np.int64)
    self_weights = np.array([forest_rows[row][2] for row in order], np.float64).T.reshape(2, -1)
    return parent, frame, self_weights


def forest_of(stacks) -> tuple[Forest, np.ndarray]:
    parent, frame, self_weights = rows_of(stacks)
    forest, node = sw.merge(parent, frame)
    return forest, sw.added(node, self_weights, forest.parent.size)


def paths_of(forest: Forest) -> list[Path]:
    result: list[Path] = []
    for parent, frame in zip(forest.parent.tolist(), forest.frame.tolist(), strict=True):
        result.append((*(result[parent] if parent != ROOT else ()), frame))
    return result


def as_dict(forest: Forest, weights: np.ndarray) -> Paths:
    return dict(zip(paths_of(forest), map(tuple, weights.T.tolist()), strict=True))


def self_weights_of(stacks, key=lambda path: path) -> Paths:
    """The sum of the weights of each path, and of every path that leads there."""
    sums: dict[Path, list[float]] = {}
    for stack, weights in stacks:
        path = key(stack)
        for length in range(1, len(path) + 1):
            sums.setdefault(path[:length], [0.0, 0.0])
        if path:
            sums[path] = [a + b for a, b in zip(sums[path], weights, strict=True)]
    return {path: tuple(sums[path]) for path in sums}


def total_of(self_weights: Paths) -> Paths:
    return {
        path: tuple(
            sum(
                weights[series]
                for other, weights in self_weights.items()
                if other[: len(path)] == path
            )
            for series in range(2)
        )
        for path in self_weights
    }


def pruned(tree: Pruned, least: list[float]) -> Pruned:
    total = sw.totals(tree.forest, tree.self_weights)
    return sw.prune(tree, (total >= np.array(least)[:, None]).any(axis=0), REST)


def in_order(forest: Forest) -> bool:
    depth = sw.depths(forest.parent)
    key = list(zip(depth, forest.parent, forest.frame, strict=True))
    return key == sorted(set(key))


@modest
@given(STACKS, st.integers(0, 3))
def test_merge_makes_one_node_of_each_path(stacks, seed):
    parent, frame, self_weights = rows_of(stacks, seed)
    forest, node = sw.merge(parent, frame)
    assert in_order(forest)
    merged = sw.added(node, self_weights, forest.parent.size)
    assert as_dict(forest, merged) == self_weights_of(stacks)
    assert as_dict(forest, sw.totals(forest, merged)) == total_of(self_weights_of(stacks))
    again, same = sw.merge(*forest)
    assert all(map(np.array_equal, again, forest))
    assert (same == np.arange(same.size)).all()


@modest
@given(STACKS, st.integers(1, 4))
def test_merge_flattens_deep_levels(stacks, deepest):
    parent, frame, self_weights = rows_of(stacks)
    forest, node = sw.merge(parent, frame, deepest, REST)
    flat = self_weights_of(stacks, lambda p: p if len(p) <= deepest else (*p[:deepest], REST))
    assert as_dict(forest, sw.added(node, self_weights, forest.parent.size)) == flat


@modest
@given(STACKS)
def test_a_function_counts_once_in_each_stack(stacks):
    alone, within = sw.by_frame(*forest_of(stacks), FRAMES)
    for frame in range(FRAMES):
        for series in range(2):
            ends = sum(w[series] for path, w in stacks if path[-1] == frame)
            holds = sum(w[series] for path, w in stacks if frame in path)
            assert (alone[series, frame], within[series, frame]) == (ends, holds)


@modest
@given(STACKS, st.sets(st.integers(0, FRAMES - 1)))
def test_focus_begins_stacks_at_the_outermost_wanted_frame(stacks, wanted):
    chosen = np.array([frame in wanted for frame in range(FRAMES)])
    whole, weights = forest_of(stacks)
    forest, node = sw.focus(whole, chosen)
    kept = node != ROOT
    self_weights = sw.added(node[kept], weights[:, kept], forest.parent.size)

    def cut(path: Path) -> Path:
        return path[next((at for at, f in enumerate(path) if f in wanted), len(path)) :]

    assert in_order(forest)
    assert as_dict(forest, self_weights) == self_weights_of(stacks, cut)


@modest
@given(STACKS, st.sets(st.integers(0, FRAMES - 1)))
def test_the_innermost_wanted_frame(stacks, wanted):
    forest, _ = forest_of(stacks)
    result = sw.innermost(forest, np.array([frame in wanted for frame in range(FRAMES)]))
    assert result.tolist() == [
        next((frame for frame in path[::-1] if frame in wanted), ROOT) for path in paths_of(forest)
    ]


@modest
@given(STACKS)
def test_nodes_without_weight_are_dropped(stacks):
    forest, self_weights = sw.weighted(*forest_of(stacks))
    assert in_order(forest)
    assert as_dict(forest, self_weights) == self_weights_of(
        [(path, w) for path, w in stacks if any(w)]
    )


@modest
@given(STACKS)
def test_inverted_stacks_begin_with_their_leaf(stacks):
    forest, self_weights = forest_of(stacks)
    tree = sw.invert(forest, self_weights, np.zeros(2), REST)
    ran = [(path, weights) for path, weights in stacks if any(weights)]
    assert in_order(tree.forest)
    assert not tree.hidden.any()
    assert as_dict(tree.forest, tree.self_weights) == self_weights_of(ran, lambda path: path[::-1])
    twice = sw.invert(tree.forest, tree.self_weights, np.zeros(2), REST)
    assert as_dict(twice.forest, twice.self_weights) == self_weights_of(ran)


@modest
@given(STACKS)
def test_inverted_below_roots_that_stay(stacks):
    forest, self_weights = forest_of(stacks)
    tree = sw.invert(forest, self_weights, np.zeros(2), REST, keep_roots=True)
    ran = [(path, w) for path, w in stacks if any(w)] + [(p[:1], (0, 0)) for p, _ in stacks]
    assert as_dict(tree.forest, tree.self_weights) == self_weights_of(
        ran, lambda path: (path[0], *path[:0:-1])
    )


@modest
@given(STACKS, st.floats(0, 12))
def test_inversion_drops_callers_of_small_nodes(stacks, least):
    forest, self_weights = forest_of(stacks)
    bounds = np.array([least, least])
    tree = sw.invert(forest, self_weights, bounds, REST)
    exact = sw.invert(forest, self_weights, np.zeros(2), REST)
    assert tree.self_weights.sum(axis=1).tolist() == self_weights.sum(axis=1).tolist()
    full = as_dict(exact.forest, sw.totals(exact.forest, exact.self_weights))
    named = as_dict(tree.forest, sw.totals(tree.forest, tree.self_weights))
    assert {p: w for p, w in named.items() if REST not in p} == {
        path: weights for path, weights in full.items() if max(weights) >= least
    }
    counted = dict(zip(paths_of(tree.forest), tree.hidden.tolist(), strict=True))
    assert {path[:-1]: n for path, n in counted.items() if n} == Counter(
        path[:-1]
        for path, weights in full.items()
        if max(weights) < least and max(full.get(path[:-1], (least,))) >= least
    )


@modest
@given(STACKS, st.floats(0, 12), st.floats(0, 12))
def test_pruning_keeps_the_sum_and_counts_hidden_nodes(stacks, least, base_least):
    forest, self_weights = forest_of(stacks)
    plain = Pruned(forest, self_weights, np.zeros(forest.parent.size, np.int64))
    tree = pruned(plain, [least, base_least])
    assert tree.self_weights.sum(axis=1).tolist() == self_weights.sum(axis=1).tolist()
    full = as_dict(forest, sw.totals(forest, self_weights))
    small = {p for p, w in full.items() if w[0] < least and w[1] < base_least}
    left = as_dict(tree.forest, sw.totals(tree.forest, tree.self_weights))
    count = dict(zip(paths_of(tree.forest), tree.hidden.tolist(), strict=True))
    assert len(count) == tree.hidden.size, "a path occurs twice"
    for path, weights in left.items():
        if count[path]:
            siblings = {p for p in small if p[:-1] == path[:-1]}
            gone = {p for p in small if p[: len(path)] in siblings}
            below = [full[p] for p in siblings]
            assert path[-1] == REST
            assert count[path] == len(gone) > 1
            assert weights == tuple(map(sum, zip(*below, strict=True)))
        else:
            assert weights == full[path]
    assert tree.hidden.sum() + (tree.hidden == 0).sum() == forest.parent.size


@modest
@given(STACKS, st.floats(0, 6), st.floats(0, 12))
def test_pruning_again_counts_what_was_hidden_before(stacks, first, second):
    forest, self_weights = forest_of(stacks)
    plain = Pruned(forest, self_weights, np.zeros(forest.parent.size, np.int64))
    once = pruned(plain, [second, second])
    inverse = sw.invert(forest, self_weights, np.full(2, first), REST)
    tree = pruned(inverse, [max(first, second)] * 2)
    assert np.maximum(tree.hidden, 1).sum() == np.maximum(inverse.hidden, 1).sum()
    assert tree.self_weights.sum() == once.self_weights.sum() == self_weights.sum()


@modest
@given(st.lists(st.tuples(st.integers(0, 2), STACKS), min_size=1, max_size=3))
def test_split_puts_each_group_under_a_separate_root(parts):
    everything = [stack for _, stacks in parts for stack in stacks]
    forest, _ = forest_of(everything)
    number = {path: at for at, path in enumerate(paths_of(forest))}
    rows = [(number[path], group, w) for group, stacks in parts for path, w in stacks]
    node, group = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    weights = np.array([row[2] for row in rows], np.float64).T
    roots = np.array([12, 11, 13])
    forest_rows, self_weights = sw.split(forest, node, group, weights, roots)
    assert in_order(forest_rows)
    expected = self_weights_of(
        [((int(roots[g]), *path), w) for g, stacks in parts for path, w in stacks]
        + [((int(root),), (0, 0)) for root in roots]
    )
    assert as_dict(forest_rows, self_weights) == expected


def test_empty_forest():
    none = np.zeros(0, np.int64)
    forest, node = sw.merge(none, none)
    self_weights = sw.added(node, np.zeros((1, 0)), 0)
    assert sw.totals(forest, self_weights).shape == (1, 0)
    assert [part.tolist() for part in sw.by_frame(forest, self_weights, 2)] == [[[0, 0]], [[0, 0]]]
    tree = sw.prune(sw.invert(forest, self_weights, np.zeros(1), 2), np.zeros(0, np.bool_), 2)
    assert tree.self_weights.shape == (1, 0)
    assert sw.focus(forest, np.array([True, True]))[1].size == 0
    assert sw.weighted(forest, self_weights)[1].shape == (1, 0)


@pytest.mark.matrix
@pytest.mark.parametrize("shuffled", [False, True])
def test_stack_of_a_million_frames_is_fast(shuffled):
    size = 300_000
    parent = np.arange(-1, size - 1)
    if shuffled:  # callers after what they call
        parent = np.append(np.arange(1, size), ROOT)
    forest, node = sw.merge(parent, np.arange(size) % 3, 100, 3)
    assert forest.parent.size == 101
    assert (node == 100).sum() == size - 100
