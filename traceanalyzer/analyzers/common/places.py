"""Labels of devices, ranks and files in tables of several."""

import re
from itertools import takewhile
from pathlib import PurePath

import polars as pl

from traceanalyzer.analyzers.common.names import mapped

_NO_FILE = re.compile(r"(?:rank -?\d+)?(?: ?device -?\d+)?(?: \(.*\))?")


def places(frame: pl.DataFrame) -> pl.Series:
    """Return labels like ``rank 3``, with ``device 1`` or the file name if needed to be unique.

    Args:
        frame: rank, path, and ``device`` if rows are of devices.

    Returns:
        A column ``on``, one text per row.
    """
    keys = [name for name in ("rank", "path", "device") if name in frame.columns]
    several = frame.select(keys).unique()
    files = several.select("rank", "path").unique()
    parts = []
    if files.height > 1 and not identified_by_rank(files):
        parts.append(short_paths(frame["path"]))
    if files["rank"].null_count() < files.height:
        parts.append(_label("rank", frame))
    if "device" in keys and (several.height > files.height or not parts):
        parts.append(_label("device", frame))
    labels = pl.concat_str(parts or [short_paths(frame["path"])], separator=" ", ignore_nulls=True)
    return frame.select(labels.alias("on")).to_series()


def at_start(place: str) -> str:
    """Capitalize a label of :func:`places` for the start of a sentence, except file names."""
    return f"{place[:1].upper()}{place[1:]}" if _NO_FILE.fullmatch(place) else place


def identified_by_rank(frame: pl.DataFrame) -> bool:
    """Whether ranks identify the files: all are known, and each has one file."""
    files = frame.select("rank", "path").unique()
    return files["rank"].null_count() == 0 and files["rank"].n_unique() == files.height


def count_devices(frame: pl.DataFrame) -> int:
    """Count the distinct devices in rows of rank, path and device.

    Several recordings of the device of a rank (profiler cycles, processes that share it) are one
    device; files without a rank have separate devices.
    """
    where = pl.when(pl.col("rank").is_null()).then("path")
    return frame.select("rank", where, "device").n_unique()


def short_paths(paths: pl.Series) -> pl.Series:
    """Return file names, with the differing folders if names are not unique."""
    parts = {path: PurePath(path).parts for path in paths.unique()}
    if len({components[-1] for components in parts.values()}) == len(parts):
        return mapped(paths, lambda path: parts[path][-1])
    shared = takewhile(lambda level: len(set(level)) == 1, zip(*parts.values(), strict=False))
    depth = len(list(shared))
    return mapped(paths, lambda path: str(PurePath(*parts[path][depth:])))


def _label(column: str, frame: pl.DataFrame) -> pl.Series:
    """Return labels like ``rank 3``; null if not known."""
    return frame.select(pl.format(f"{column} {{}}", column)).to_series()
