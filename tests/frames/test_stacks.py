"""The prefix tree of stacks, compared with one of dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from traceanalyzer.frames.stacks import NONE, Interner, Tree, build

STACKS = st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=30)


def built(stacks: list[list[int]]) -> Tree:
    flat = np.array([frame for stack in stacks for frame in stack], np.uint32)
    return build(flat, np.array([len(stack) for stack in stacks], np.uint32))


def interned(stacks: list[list[int]]) -> Tree:
    tree = Interner()
    return tree.tree(np.array([tree.path(stack) for stack in stacks], np.uint32))


def path(tree: Tree, leaf: int) -> list[int]:
    result = []
    while leaf != NONE:
        result.append(int(tree.frame[leaf]))
        leaf = int(tree.parent[leaf])
    return result[::-1]


@pytest.mark.parametrize("way", [built, interned])
@given(stacks=STACKS)
def test_every_stack_is_a_path_and_every_beginning_is_there_once(way, stacks):
    tree = way(stacks)
    assert [path(tree, int(leaf)) for leaf in tree.leaf] == stacks
    beginnings = {tuple(stack[:n]) for stack in stacks for n in range(1, len(stack) + 1)}
    assert len(tree.frame) == len(tree.parent) == len(beginnings)
    inner = tree.parent != NONE
    assert (tree.parent[inner] < np.flatnonzero(inner)).all()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), max_size=5))
def test_few_long_stacks_share_what_they_can(parts):
    stacks = [[0] * length + [last] for length, last in parts]
    tree = built(stacks)
    assert [path(tree, int(leaf)) for leaf in tree.leaf] == stacks
    assert len(tree.frame) == len({tuple(s[:n]) for s in stacks for n in range(1, len(s) + 1)})


def test_a_stack_of_a_million_frames():
    tree = built([list(range(1_000_000)), [0, 1], [0, 1]])
    assert len(tree.frame) == 1_000_000
    assert tree.leaf.tolist() == [int(tree.leaf[0]), 1, 1]
    assert tree.frame[tree.leaf[0]] == 999_999
