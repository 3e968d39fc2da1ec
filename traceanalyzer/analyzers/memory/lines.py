"""Which line of code a stack stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import numpy as np
import polars as pl

from traceanalyzer.analyzers import libraries
from traceanalyzer.frames.ancestors import NONE, Ints, nearest
from traceanalyzer.trace import Trace

#: What stands in the place of a line that is not known.
NO_STACK: Final = "(no stack recorded)"
_PYTHON = re.compile(r"\.(?:py|pyx|pyi|ipynb)$|^<(?:stdin|string|ipython-input.*|ipykernel.*)>$")
#: What a backward pass calls of each function.
_NODE = re.compile(r"^torch::autograd::.*::apply\(")
#: C++ frames that every allocation has: how the stack was taken, the allocator, the dispatcher.
_PLUMBING = re.compile(
    r"^(?:torch::(?:unwind|CapturedTraceback|cuda)::|c10::|at::(?:detail|_ops|\(anonymous)|"
    r"at::native::(?:new_)?empty|gather_with_cpp|std::)"
)
#: Frames shown of a stack from its leaf and from its root, and letters of each.
_INNER: Final = 200
_OUTER: Final = 20
_LONGEST: Final = 1000
_ANONYMOUS = "(anonymous namespace)::"
_SCHEMA: Final = {
    "function": pl.String,
    "file": pl.String,
    "line": pl.Int32,
    "own": pl.Boolean,
}
#: The columns that name a line of code.
LINE: Final = tuple(_SCHEMA)
#: What a frame can be, that which is best to show first.
_FLAGS: Final = dict.fromkeys(("own", "python", "node", "telling"), pl.Boolean)
_SEPARATOR = re.compile(r"[/\\]")


@dataclass(frozen=True)
class Lines:
    """For each row of ``stacks``, the code to name it by.

    Attributes:
        parent: the row of the caller, NONE for a root.
        frames: ``name``, ``file``, ``line`` of each row.
        own: the innermost frame that is the user's, or of the library asked for; NONE without one.
        shown: the frame to show: ``own``, else the innermost Python frame, else the node of
            the backward pass, else the innermost one that not every allocation has.
    """

    parent: Ints
    frames: pl.DataFrame
    own: Ints
    shown: Ints

    def of(self, stacks: pl.Series) -> pl.DataFrame:
        """``function``, ``file``, ``line`` of stacks, and if it is ``own``; null without one."""
        rows = stacks.cast(pl.Int64)
        known = rows.fill_null(0).to_numpy()
        if not self.parent.size:
            return pl.DataFrame(schema=_SCHEMA).clear(stacks.len())
        told = self.frames[self.shown[known]].select(
            function="name", file="file", line="line", own=pl.Series(self.own[known] != NONE)
        )
        there = pl.Series(rows.is_not_null())
        shown = [pl.when(there).then(pl.col(name)).alias(name) for name in told.columns]
        found: pl.DataFrame = told.select(shown)
        return found

    def path(self, stack: int) -> list[str]:
        """The frames of a stack as text, the innermost first; of a very deep one both ends."""
        rows = []
        while stack != NONE:
            rows.append(stack)
            stack = int(self.parent[stack])
        left_out = len(rows) - _INNER - _OUTER
        if left_out <= 0:
            return [self._text(row) for row in rows]
        inner, outer = rows[:_INNER], rows[-_OUTER:]
        return [*map(self._text, inner), f"({left_out:,} more)", *map(self._text, outer)]

    def paths(self, stacks: pl.Series) -> pl.Series:
        """Each stack as one text, the outermost frame first, ``;`` between; null without one."""
        texts = {
            row: ";".join(reversed(self.path(row))) for row in stacks.drop_nulls().unique().sort()
        }
        return stacks.replace_strict(texts, default=None, return_dtype=pl.String)

    def _text(self, row: int) -> str:
        name, file, line = self.frames.row(row)
        place = file if line is None else f"{file}:{line}"
        return (f"{name} ({place})" if file else name)[:_LONGEST]


def lines(trace: Trace, library_names: Sequence[str] = ()) -> Lines:
    """The code of each stack of a trace.

    Args:
        trace: with the table ``stacks``.
        library_names: libraries whose frames count as one's own; by default the user's code does.
    """
    stacks = trace.stacks
    parent = stacks["parent"].cast(pl.Int64).fill_null(NONE).to_numpy()
    frames = stacks.select(pl.col("name", "file").cast(pl.String), "line")
    named = frames.select("name", "file").unique()
    told = named.rows()
    python = [file is not None and _PYTHON.search(file) is not None for _, file in told]
    if library_names:
        match = libraries.by_component(library_names)
        own = [match(file) is not None for _, file in told]
    else:
        own = [
            libraries.is_own(*frame) and is_python
            for frame, is_python in zip(told, python, strict=True)
        ]
    telling = [name is not None and _PLUMBING.search(name) is None for name, _ in told]
    node = [name is not None and _NODE.search(name) is not None for name, _ in told]
    flags = pl.DataFrame(
        {"own": own, "python": python, "node": node, "telling": telling}, schema=_FLAGS
    )
    joined = frames.join(
        pl.concat([named, flags], how="horizontal"),
        on=["name", "file"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    shown = np.arange(parent.size)
    for flag in reversed(_FLAGS):
        found = nearest(parent, joined[flag].to_numpy())
        shown = np.where(found == NONE, shown, found)
    return Lines(parent, frames, nearest(parent, joined["own"].to_numpy()), shown)


def frame_text(name: str | None, file: str | None, line: int | None) -> str:
    """A frame as people write it: ``forward (model.py:40)``; of C++ the function's name alone."""
    if not name:
        return NO_STACK
    if not file or "::" in name:
        return re.split(
            r"[(<](?=.)", name.replace(_ANONYMOUS, "").removeprefix("void "), maxsplit=1
        )[0]
    short = _SEPARATOR.split(str(PurePath(file)))[-1]
    return f"{name} ({short})" if line is None else f"{name} ({short}:{line})"
