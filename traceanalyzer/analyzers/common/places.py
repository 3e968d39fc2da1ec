"""What a device, a rank or a file is called where several are shown."""

import re
from itertools import takewhile
from pathlib import PurePath

import polars as pl

from traceanalyzer.analyzers.common.names import mapped

_NO_FILE = re.compile(r"(?:rank -?\d+)?(?: ?device -?\d+)?")


def places(frame: pl.DataFrame) -> pl.Series:
    """``rank 3``, with ``device 1`` or the file's name where the rank alone does not tell.

    Args:
        frame: rank, path, and ``device`` where rows are of devices.

    Returns:
        A column ``on``, one text a row.
    """
    keys = [name for name in ("rank", "path", "device") if name in frame.columns]
    several = frame.select(keys).unique()
    files = several.select("rank", "path").unique()
    parts = []
    if files.height > 1 and not told_by_rank(files):
        parts.append(short_paths(frame["path"]))
    if files["rank"].null_count() < files.height:
        parts.append(_worded("rank", frame))
    if "device" in keys and (several.height > files.height or not parts):
        parts.append(_worded("device", frame))
    words = pl.concat_str(parts or [short_paths(frame["path"])], separator=" ", ignore_nulls=True)
    return frame.select(words.alias("on")).to_series()


def at_start(place: str) -> str:
    """A place of :func:`places` at the start of a sentence: the names of files stay as they are."""
    return f"{place[:1].upper()}{place[1:]}" if _NO_FILE.fullmatch(place) else place


def told_by_rank(frame: pl.DataFrame) -> bool:
    """Whether every rank is known and one file's only, so that it tells the files apart."""
    files = frame.select("rank", "path").unique()
    return files["rank"].null_count() == 0 and files["rank"].n_unique() == files.height


def count_devices(frame: pl.DataFrame) -> int:
    """How many devices rows of rank, path and device are of.

    Recordings of one rank's device (cycles of a profiler, processes that share it) are one device;
    where the rank is not known, each file has its own.
    """
    where = pl.when(pl.col("rank").is_null()).then("path")
    return frame.select("rank", where, "device").n_unique()


def short_paths(paths: pl.Series) -> pl.Series:
    """Files by their names, with the folders in which they differ where the names do not tell."""
    parts = {path: PurePath(path).parts for path in paths.unique()}
    if len({own[-1] for own in parts.values()}) == len(parts):
        return mapped(paths, lambda path: parts[path][-1])
    shared = takewhile(lambda level: len(set(level)) == 1, zip(*parts.values(), strict=False))
    depth = len(list(shared))
    return mapped(paths, lambda path: str(PurePath(*parts[path][depth:])))


def _worded(column: str, frame: pl.DataFrame) -> pl.Series:
    """``rank 3``; null where not known."""
    return frame.select(pl.format(f"{column} {{}}", column)).to_series()
