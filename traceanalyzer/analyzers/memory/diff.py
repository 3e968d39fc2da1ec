"""What holds more or less memory at the peak of one run than at that of another.

Compared are the devices with the highest peak of each run. Code is the same where its functions and
files are; of a file only the last two parts of its path count, so that runs of different users, in
different environments, can be compared.
"""

from __future__ import annotations

from typing import Final

import polars as pl

_FILE: Final = r"^.*?((?:[^/\\]+[/\\])?[^/\\]+)$"
_PLACE: Final = r"\((?:[^()]*[/\\])?([^/\\()]+[/\\][^/\\()]+)\)"
_CODE: Final = ("function", "code")
_AMOUNTS: Final = ("n", "base_n", "live_bytes", "base_bytes", "changed_bytes")
_PLACED: Final = ("rank", "path", "device")


def difference(new: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
    """Live bytes at the peak by stack, in two runs; the largest change first.

    Args:
        new: rows of ``Memory.alive`` of one device.
        old: those of the device to compare with.

    Returns:
        function, file, line, stack (null where only the other run has it: then as it has it), n,
        base_n, live_bytes, base_bytes, changed_bytes.
    """
    own, base = (_by_stack(frame) for frame in (new, old))
    renamed = {name: f"base_{name}" for name in ("n", "file", "line", "stack")}
    keys = ("function", "code", "place", "told")
    joined = own.join(
        base.rename({**renamed, "live_bytes": "base_bytes"}),
        on=keys, how="full", coalesce=True, nulls_equal=True,
    ).with_columns(pl.col("n", "base_n", "live_bytes", "base_bytes").fill_null(0))  # fmt: skip
    found = joined.select(
        "function",
        "code",
        *(pl.coalesce(name, f"base_{name}").alias(name) for name in ("file", "line", "stack")),
        "n",
        "base_n",
        "live_bytes",
        "base_bytes",
        changed_bytes=pl.col("live_bytes") - pl.col("base_bytes"),
    )
    return _largest_first(found, ("function", "file", "line", "stack"))


def by_line(changes: pl.DataFrame) -> pl.DataFrame:
    """The changes by line of code.

    A line that moved is the same line, where its function has only one that holds memory in each
    run.
    """
    held = changes.with_columns(
        ours=pl.when(pl.col("n") > 0).then("line"),
        theirs=pl.when(pl.col("base_n") > 0).then("line"),
    )
    lines = held.group_by(_CODE).agg(
        moved=(pl.col("ours").drop_nulls().n_unique() == 1)
        & (pl.col("theirs").drop_nulls().n_unique() == 1),
        now=pl.col("ours").drop_nulls().first(),
    )
    told = changes.join(lines, on=_CODE, how="left", nulls_equal=True, maintain_order="left")
    kept = told.with_columns(line=pl.when("moved").then("now").otherwise("line"))
    sums = kept.group_by(*_CODE, "line").agg(pl.col("file").first(), pl.col(_AMOUNTS).sum())
    return _largest_first(sums.drop("code"), ("function", "file", "line"))


def fullest(devices: pl.DataFrame, alive: pl.DataFrame) -> pl.DataFrame:
    """The rows of ``alive`` of the device with the highest peak."""
    order = [True, *(False for _ in _PLACED)]
    first = devices.sort("peak_bytes", *_PLACED, descending=order).head(1).select(_PLACED)
    return alive.join(first, on=_PLACED, nulls_equal=True, maintain_order="left")


def _by_stack(alive: pl.DataFrame) -> pl.DataFrame:
    """Sums by code and stack, told by the ends of paths; of alike ones the first is shown."""
    told = alive.with_columns(
        code=pl.col("file").str.extract(_FILE),
        place=pl.col("line"),
        told=pl.col("stack").str.replace_all(_PLACE, "($1)"),
    )
    return told.group_by("function", "code", "place", "told", maintain_order=True).agg(
        pl.col("file", "line", "stack").first(), pl.col("n", "live_bytes").sum()
    )


def _largest_first(frame: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    return frame.sort(
        pl.col("changed_bytes").abs(),
        *keys,
        descending=[True, *(False for _ in keys)],
        nulls_last=True,
    )
