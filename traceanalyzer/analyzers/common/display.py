"""Tables, charts, shares of time and labels of devices, for the results of several analyzers."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.names import mapped
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Table
from traceanalyzer.units import format_count, format_frac, format_ns

#: Maximum number of bars in a chart.
BARS = 15


def headings(text: str) -> dict[str, str]:
    """Parse columns and headings of a table from ``step, wait_ns: wait time``.

    A column without a heading uses its name.
    """
    pairs = (item.partition(": ") for item in re.split(r",\s+", text))
    return {name: heading or name for name, _, heading in pairs}


def sentences(*texts: str) -> str:
    """Join non-empty texts to a paragraph."""
    return " ".join(text for text in texts if text)


def without_end(count: int, what: str) -> list[str]:
    """Return the note on events without an end, which are not counted; none without any."""
    return [f"Not counted: {format_count(count, what)} without an end."] if count else []


def known_columns(
    frame: pl.DataFrame, columns: Mapping[str, str], nonzero: Collection[str] = ()
) -> dict[str, str]:
    """Return the columns with at least one value (in ``nonzero``: other than 0), and headings."""
    return {
        name: heading
        for name, heading in columns.items()
        if name in frame.columns
        and frame[name].null_count() < frame.height
        and (name not in nonzero or frame[name].sum())
    }


def table_of_known(
    name: str, title: str, frame: pl.DataFrame, columns: Mapping[str, str], **more: Any
) -> Table:
    """Return a table without columns of nulls."""
    return Table(name, title, frame, known_columns(frame, columns) or columns, **more)


def rank_column(ranks: pl.DataFrame) -> dict[str, str]:
    """Return the column of ranks, or of files if no rank is known, with its heading."""
    known = ranks["rank"].null_count() < ranks.height
    return {"rank": "rank"} if known else {"path": "file"}


def listed(texts: Sequence[str]) -> str:
    """Join texts to ``a, b and c``."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def bars(
    name: str,
    title: str,
    rows: pl.DataFrame,
    *,
    length: str,
    label: str,
    x_label: str = "total",
    color: str | None = None,
) -> Chart:
    """Return a chart of horizontal bars of the first rows with a nonzero length in ns.

    Args:
        name: key of the chart.
        title: title of the chart.
        rows: rows, longest first.
        length: column of lengths.
        label: column of labels.
        x_label: label of the x axis.
        color: column of bar colors, or None.
    """
    frame = rows.filter(pl.col(length) > 0).head(BARS)
    return Chart(
        name=name, title=title, mark="span", frame=frame.with_columns(zero_ns=pl.lit(0, pl.Int64)),
        x=length, x2="zero_ns", y=label, x_label=x_label, color=color,
    )  # fmt: skip


def stacked(
    name: str,
    title: str,
    frame: pl.DataFrame,
    x: str,
    *,
    y: str = "time_ns",
    x_label: str | None = None,
    y_label: str = "time",
    color: str = "part",
    panel: str | None = None,
) -> Chart:
    """Return a chart of stacked bars.

    Args:
        name: key of the chart.
        title: title of the chart.
        frame: one row per segment of a bar.
        x: column of bars; ``on`` for places.
        y: column of lengths.
        x_label: label of the x axis; default: the column.
        y_label: label of the y axis.
        color: column of segment colors.
        panel: column of panels, or None.
    """
    return Chart(
        name=name, title=title, mark="bar", frame=frame, x=x, y=y,
        x_label=("" if x == "on" else x) if x_label is None else x_label, y_label=y_label,
        color=color, panel=panel, stacked=True,
    )  # fmt: skip


def by_part(
    frame: pl.DataFrame, keys: list[str], parts: Mapping[str, str], value: str = "time_ns"
) -> pl.DataFrame:
    """Unpivot columns of parts, in the given order, to ``keys``, ``part`` and a value.

    Args:
        frame: the rows.
        keys: columns to keep.
        parts: column and name of each part.
        value: name of the column of values.
    """
    wide = frame.select(*keys, *(pl.col(name).alias(label) for name, label in parts.items()))
    return wide.unpivot(index=keys, variable_name="part", value_name=value)


@dataclass(frozen=True)
class Basis:
    """The time of all devices in the steps that count, or all recorded time without steps.

    Attributes:
        whole_ns: time of all counted steps (without steps: of all spans), summed over devices.
        n: number of counted steps times devices (without steps: of devices).
        in_steps: whether steps are marked.
        on_host: whether no device work was recorded and the devices are the main threads.
    """

    whole_ns: int
    n: int
    in_steps: bool
    on_host: bool = False

    @property
    def of(self) -> str:
        """Name of the whole time."""
        return "step time" if self.in_steps else "the recorded time"

    @property
    def per(self) -> str:
        """Unit of :meth:`each_ns`; empty for one device without steps, or in one step."""
        device = "process" if self.on_host else "GPU"
        if self.n == 1:
            return ""
        return f"step and {device}" if self.in_steps else device

    def frac(self, total_ns: float) -> float:
        """Return a total time as a share of the whole time, at most all of it."""
        return min(total_ns / self.whole_ns, 1.0) if self.whole_ns else 0.0

    def each_ns(self, total_ns: float) -> int:
        """Return a total time as the mean per step and device (or per device).

        Kernels that run at the same time cannot take more than all of the time.
        """
        return round(min(total_ns, self.whole_ns) / max(self.n, 1))

    def text(self, total_ns: float) -> str:
        """Format a total time: ``1.45 ms per step and GPU``."""
        time = format_ns(self.each_ns(total_ns))
        return f"{time} per {self.per}" if self.per else time

    def share(self, total_ns: float) -> str:
        """Format a total time and its share: ``1.45 ms per step and GPU (12.1 % of step time)``."""
        return f"{self.text(total_ns)} ({format_frac(self.frac(total_ns))} of {self.of})"


_NO_FILE = re.compile(r"(?:rank -?\d+)?(?: ?device -?\d+)?(?: \(.*\))?")


def places(frame: pl.DataFrame) -> pl.Series:
    """Return labels like ``rank 3``, with ``device 1`` or the file name if needed to be unique.

    Args:
        frame: rank, path, and ``device`` if rows are of devices.

    Returns:
        A column ``on``, one text per row.
    """
    keys = [name for name in ("rank", "path", "device") if name in frame.columns]
    several, files = frame[keys].n_unique(), frame[["rank", "path"]].n_unique()
    parts = []
    if files > 1 and not identified_by_rank(frame):
        parts.append(short_paths(frame["path"]))
    if frame["rank"].null_count() < frame.height:
        parts.append(_label("rank", frame))
    if "device" in keys and (several > files or not parts):
        parts.append(_label("device", frame))
    labels = pl.concat_str(parts or [short_paths(frame["path"])], separator=" ", ignore_nulls=True)
    return frame.select(labels.alias("on")).to_series()


def at_start(place: str) -> str:
    """Capitalize a label of :func:`places` for the start of a sentence, except file names."""
    return f"{place[:1].upper()}{place[1:]}" if _NO_FILE.fullmatch(place) else place


def identified_by_rank(frame: pl.DataFrame) -> bool:
    """Whether ranks identify the files: all are known, and each has one file."""
    files = frame[["rank", "path"]].n_unique()
    return frame["rank"].null_count() == 0 and frame["rank"].n_unique() == files


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
