"""Prefix tree of stacks given as lists of frame numbers.

A stack is a run of numbers in one flat array, outermost frame first; ``lengths`` splits the array.
In the tree, every parent precedes its children.

There are two methods. While there are more stacks than remaining levels, the tree is built level by
level: the nodes of a level are the distinct pairs (parent node, frame), found by one sort. The few
remaining long stacks are sorted as byte strings, and each adds the frames that it does not share
with the previous one: a stack of a million frames takes linear time, not a million sorts.

5.9 million frames of 130,490 real stacks, on one core: 0.4 s; with a dictionary of (node, frame)
2.1 s, all as sorted strings 1.1 s. 6 million frames of 2 million stacks: 0.2 s, 2.5 s, 13 s.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.int64]

#: The parent of a root, and the leaf of an empty stack.
NONE = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class Tree:
    """A prefix tree.

    Attributes:
        parent: parent of each node, ``NONE`` for a root; always a smaller number.
        frame: frame number of each node.
        leaf: last node of each stack, ``NONE`` for an empty one.
    """

    parent: Numbers
    frame: Numbers
    leaf: Numbers


def build(frames: Numbers, lengths: Numbers) -> Tree:
    """Build the prefix tree of stacks.

    Args:
        frames: frame numbers of all stacks, concatenated, outermost first.
        lengths: number of frames of each stack; they add up to ``len(frames)``.

    Returns:
        The tree; at most ``len(frames)`` nodes.
    """
    counts = lengths.astype(np.int64)
    starts = np.cumsum(counts) - counts
    growing = _Growing(np.full(len(counts), NONE, np.uint32))
    open_ = np.flatnonzero(counts)
    depth, deepest = 0, int(counts.max(initial=0))
    width = int(frames.max(initial=0)) + 1
    while len(open_) > deepest - depth:
        _add_level(growing, open_, frames[starts[open_] + depth], width)
        depth += 1
        open_ = open_[counts[open_] > depth]
    _add_long(growing, open_, [frames[starts[s] + depth : starts[s] + counts[s]] for s in open_])
    return growing.tree()


class _Growing:
    """The nodes so far, and the last node of each stack."""

    def __init__(self, reached: Numbers) -> None:
        self.reached = reached
        self.size = 0
        self._parents: list[Numbers] = []
        self._frames: list[Numbers] = []

    def add(self, parents: Numbers, frames: Numbers) -> None:
        self.size += len(frames)
        self._parents.append(parents)
        self._frames.append(frames)

    def tree(self) -> Tree:
        none = [np.empty(0, np.uint32)]
        return Tree(
            np.concatenate(self._parents or none),
            np.concatenate(self._frames or none),
            self.reached,
        )


def _add_level(growing: _Growing, stacks: Rows, frames: Numbers, width: int) -> None:
    """Add the next frame of each of these stacks."""
    above = growing.reached[stacks]
    # a root's parent is the largest number; plus one, modulo 2**32, it is 0
    keys = (above + np.uint32(1)).astype(np.uint64) * np.uint64(width) + frames
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    new = np.empty(len(keys), np.bool_)
    new[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    firsts = order[new]
    reached = np.empty(len(keys), np.uint32)
    reached[order] = (np.cumsum(new) + (growing.size - 1)).astype(np.uint32)
    growing.reached[stacks] = reached
    growing.add(above[firsts], frames[firsts])


def _add_long(growing: _Growing, stacks: Rows, rest: list[Numbers]) -> None:
    """Add the remaining frames of these stacks."""
    above = growing.reached[stacks]
    # big-endian bytes sort as the numbers do
    order = sorted(range(len(rest)), key=lambda i: (above[i], rest[i].astype(">u4").tobytes()))
    last, previous, nodes = -1, np.empty(0, np.uint32), np.empty(0, np.uint32)
    for i in order:
        shared = _shared(previous, rest[i]) if above[i] == last else 0
        fresh = np.arange(growing.size, growing.size + len(rest[i]) - shared, dtype=np.uint32)
        if len(fresh):
            parents = fresh - np.uint32(1)
            parents[0] = nodes[shared - 1] if shared else above[i]
            growing.add(parents, rest[i][shared:])
        last, previous, nodes = above[i], rest[i], np.concatenate((nodes[:shared], fresh))
        growing.reached[stacks[i]] = nodes[-1]


def _shared(one: Numbers, other: Numbers) -> int:
    """Return the length of the common prefix of two stacks."""
    both = min(len(one), len(other))
    differ = np.flatnonzero(one[:both] != other[:both])
    return int(differ[0]) if len(differ) else both


class Interner:
    """A prefix tree that grows frame by frame, for stacks given as calls and returns."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}

    def child(self, node: int, frame: int) -> int:
        """Return the node of a frame below a node; ``NONE`` for a root."""
        return self._nodes.setdefault((node, frame), len(self._nodes))

    def path(self, frames: Iterable[int]) -> int:
        """Return the last node of a stack, outermost frame first; ``NONE`` for an empty one."""
        node = int(NONE)
        for frame in frames:
            node = self.child(node, frame)
        return node

    def tree(self, leaf: Numbers) -> Tree:
        """Return the tree of all nodes, with these leaves."""
        pairs = np.array(list(self._nodes), dtype=np.uint32).reshape(-1, 2)
        return Tree(pairs[:, 0].copy(), pairs[:, 1].copy(), leaf)
