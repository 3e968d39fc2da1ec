"""Stacks of a snapshot as the schema's prefix tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames import stacks
from traceanalyzer.parsers.memory_snapshot import layout
from traceanalyzer.parsers.memory_snapshot.words import Ints, Reading, Words, sequence_numbers
from traceanalyzer.parsers.sampled import tree_table

#: What a snapshot writes where it knows no file, and a line that stands for none.
_NO_FILE = ("", "??")
_LAST_LINE = (1 << 31) - 1


@dataclass(frozen=True)
class Stacks:
    """The table, and the leaf of each stack in it."""

    table: pl.DataFrame
    leaf: Ints

    def of(self, reading: Reading, words: Words) -> pl.Series:
        """Rows of the table for words that name stacks; null where there is none."""
        numbers = reading.sequence_numbers(words)
        found = pl.Series(self.leaf[numbers]).cast(pl.UInt32)
        return pl.select(pl.when(pl.Series(numbers >= 0)).then(found)).to_series()


def read(reading: Reading, used: list[Words]) -> Stacks:
    """The stacks that these columns name."""
    named = np.unique(np.concatenate([sequence_numbers(words) for words in used]))
    named = named[named >= 0]
    frames, lengths = reading.frames(named)
    tree = stacks.build(frames, lengths)
    leaf = np.zeros(int(named.max(initial=-1)) + 2, np.int64)  # the last is for none
    leaf[named] = tree.leaf
    return Stacks(tree_table(tree, _frames(reading)), leaf)


def _frames(reading: Reading) -> pl.DataFrame:
    """Name, file and line of each frame; C++ frames often know neither file nor line."""
    rows = reading.table(layout.FRAMES)
    line = reading.integers(rows.words("line"), unsigned=True)
    found = pl.DataFrame(
        {
            "name": reading.strings(rows.words("name")).fill_null("?"),
            "file": reading.strings(rows.words("filename")),
            "line": line,
        }
    )
    return found.select(
        pl.col("name").cast(schema.NAME),
        pl.when(~pl.col("file").is_in(_NO_FILE)).then("file").cast(schema.NAME).alias("file"),
        pl.when(pl.col("line").is_between(1, _LAST_LINE)).then("line").cast(pl.Int32).alias("line"),
    )
