"""Result of the annotations analysis: data, verdict, notes, tables and charts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.annotations import By
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import (
    BARS,
    headings,
    rank_column,
    sentences,
    without_end,
)
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns, format_times

#: Least share of all device work to report.
_NOTABLE_FRAC = 0.1

#: Why device work is outside of the running annotations.
_OTHER_THREAD = "another thread had one (PyTorch runs backward in a separate thread)"

#: Least factor of host time over device time to report.
_FAR = 3.0

_DEVICE = headings(
    "projected_ns: projected, n: launched, device_ns: device work, device_frac: of all, "
    "self_device_ns: self device"
)
_HOST = headings(
    "ranges: n, host_ns: host, self_ns: self, mean_ns: mean, median_ns: median, min_ns: min, "
    "max_ns: max"
)
_RANKS = headings(
    "ranges: annotations, n: device work, device_ns: total, inside_n: in annotations, "
    "inside_ns: total of these, inside_frac: share"
)
_FIRST = ("ranges", "host_ns", "self_ns")

#: Parts of a bar.
_PARTS = ("self", "nested annotations")

_OUTER = {"rank": "rank", "path": "file", "domain": "domain"}

_MISSING = {"name": "(no name)", "domain": "(default)"}


@dataclass(frozen=True)
class Amount:
    """Number of device events, and the sum of their durations."""

    n: int = 0
    total_ns: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Annotations(Result):
    """Host time and device work of ranges that users and libraries name.

    Device work is kernels, copies and memsets; of an *amount* ``n`` is the number of device events,
    ``total_ns`` the sum of their durations. Work is in a range if its launch call is completely
    inside the range on the same thread.

    Attributes:
        names: regular expressions of the selected annotations; all if empty.
        by: what rows are also grouped by.
        ranges: number of ranges.
        process_wide: number of ranges without a thread, with host time only.
        unclosed: number of annotations without an end, which are not counted.
        work: all device work.
        inside: the amount launched in any annotation.
        other_thread: the amount launched in no annotation of its thread while another thread had
            one.
        unlaunched: the amount without a recorded launch call that has an end.
        annotations: one row per domain and name, most device work first: ``domain`` (null: the
            default one, or no NVTX), ``name``, ``ranges`` (their number); host time: ``host_ns``,
            ``self_ns`` (without nested annotations), ``mean_ns``, ``median_ns``, ``min_ns`` and
            ``max_ns`` of a range; ``launching`` (ranges with device work); ``projected_ns``: from
            the start of the first device event launched in a range to the end of the last, summed
            over ranges; ``n``, ``kernels`` and ``device_ns``: number of device events launched in
            it, number of kernels, and the sum of durations; ``device_frac``: its share of all
            device work; ``self_n``, ``self_kernels``, ``self_device_ns``: those with this
            annotation as the innermost. Ranges inside one of their own row count in ``ranges`` and
            in the statistics of a range only. With ``by``, also ``rank`` (``path`` if a file has
            none).
        ranks: one row per rank: ``rank``, ``path``, ``ranges``, ``n`` and ``device_ns`` of all its
            work, ``inside_n``, ``inside_ns`` and ``inside_frac`` of the work in annotations.
    """

    question = "What do annotated ranges cost?"

    names: tuple[str, ...]
    by: By | None
    ranges: int
    process_wide: int
    unclosed: int
    work: Amount
    inside: Amount
    other_thread: Amount
    unlaunched: Amount
    annotations: pl.DataFrame
    ranks: pl.DataFrame

    def view(self) -> View:
        """Build the view: annotations, host times, ranks; bars of device work and host time."""
        amounts = {"work": self.work, "inside": self.inside}
        amounts |= {"other_thread": self.other_thread, "unlaunched": self.unlaunched}
        scalars = self.numbers("by", "ranges", "process_wide", "unclosed")
        for name, amount in amounts.items():
            scalars |= {f"{name}_n": amount.n, f"{name}_ns": amount.total_ns}
        return self.view_from(_verdict, _notes, _tables, _charts, scalars=scalars)


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Annotations) -> str:
    """Describe annotations with most device work, work outside, and host-only annotations."""
    if not result.work.n:
        return _host_only(result)
    total = format_ns(result.work.total_ns)
    if result.inside.n:
        share = _share(result, result.inside.total_ns)
        parts = [
            f"{share} of device work ({total}) was launched in annotations.",
            _heaviest(result),
        ]
    else:
        parts = [f"None of the {total} of device work was launched in an annotation."]
    parts += [_outside(result), _host_bound(result)]
    return sentences(*parts)


def _host_only(result: Annotations) -> str:
    row = _most(_by_name(result), "host_ns")
    return (
        "No device work was recorded. The annotation with most host time is "
        f"{_named(row)}: {format_ns(row['host_ns'])}, {format_times(row['ranges'])}."
    )


def _heaviest(result: Annotations) -> str:
    """Describe the annotations with most total and most self device time."""
    rows = _by_name(result)
    most = _most(rows, "device_ns")
    direct = _most(rows, "self_device_ns")
    first = (
        f"{_named(most)} ({format_times(most['ranges'])}) has the most: {most['n']:,} device "
        f"events, {format_ns(most['device_ns'])}, {_share(result, most['device_ns'])} of all"
    )
    if direct["name"] == most["name"]:
        return f"{first}."
    return (
        f"{first}; {_named(direct)} has the highest self device time: "
        f"{format_ns(direct['self_device_ns'])}, {_share(result, direct['self_device_ns'])}."
    )


def _outside(result: Annotations) -> str:
    """Describe the device work outside of annotations by reason."""
    outside = result.work.total_ns - result.inside.total_ns
    if outside <= _NOTABLE_FRAC * result.work.total_ns:
        return ""
    rest = outside - result.other_thread.total_ns - result.unlaunched.total_ns
    reasons = [
        (result.other_thread.total_ns, f"while {_OTHER_THREAD}"),
        (rest, "with none running"),
        (result.unlaunched.total_ns, "by calls that were not recorded"),
    ]
    details = ", ".join(f"{format_ns(total)} {why}" for total, why in reasons if total > 0)
    return f"{_share(result, outside)} was launched outside of annotations: {details}."


def _host_bound(result: Annotations) -> str:
    """Describe the annotation with the largest excess of host time over device time."""
    device = pl.col("projected_ns").fill_null(0)
    rows = _by_name(result).with_columns(over=pl.col("self_ns") - device)
    worth = _NOTABLE_FRAC * int(rows["self_ns"].sum())
    bound = rows.filter(pl.col("host_ns") > _FAR * device, pl.col("over") > worth)
    if bound.is_empty():
        return ""
    row = _most(bound, "over")
    work = (
        f"its device work spans {format_ns(row['projected_ns'])}"
        if row["n"]
        else "without device work"
    )
    other = ", or another thread launches meanwhile" if result.other_thread.n else ""
    return (
        f"{_named(row)} takes {format_ns(row['host_ns'])} of host time, {work}: the host computes, "
        f"loads or waits in it{other} (traceanalyzer gpu-idle shows whether the device is idle)."
    )


def _by_name(result: Annotations) -> pl.DataFrame:
    """Return the rows summed over ranks."""
    sums = ("ranges", "host_ns", "self_ns", "projected_ns", "n", "device_ns", "self_device_ns")
    return result.annotations.group_by("domain", "name").agg(pl.col(sums).sum())


def _most(rows: pl.DataFrame, column: str) -> dict[str, Any]:
    return largest_first(rows, column, "domain", "name", nulls_last=True).row(0, named=True)


def _named(row: dict[str, Any]) -> str:
    return row["name"] or "(no name)"


def _share(result: Annotations, total_ns: int) -> str:
    return format_frac(total_ns / result.work.total_ns if result.work.total_ns else None)


def _notes(result: Annotations) -> Iterator[str]:
    """Describe how device work is attributed, and what was not counted."""
    if result.work.n:
        yield (
            "Device work (kernels, copies, memsets) counts for all annotations around its launch "
            "call on the same thread; self device time counts for the innermost one only."
        )
        yield (
            "Projected time is from the start of the first device event launched in a range to the "
            "end of the last, summed over the ranges."
        )
    if result.process_wide:
        yield (
            f"{format_count(result.process_wide, 'range')} with start and end on different "
            "threads: host time only."
        )
    yield from without_end(result.unclosed, "annotation")
    if result.names:
        yield "Only annotations with matching names count, as if there were no others."


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Annotations) -> Iterator[Table]:
    """Build the tables: annotations, host times, and ranks if there are several."""
    rows = result.annotations
    keys = _keys(result)
    by_host = largest_first(rows, "host_ns", *keys)
    detail, columns = bool(result.work.n), {**keys, **_HOST}
    host = Table("host", "Host time", by_host, columns, detail=detail, missing=_MISSING)
    if not result.work.n:
        yield host
        return
    columns = {**keys, **{name: _HOST[name] for name in _FIRST}, **_DEVICE}
    yield Table("annotations", "Annotations", rows, columns, missing=_MISSING)
    yield host
    if result.ranks.height > 1:
        columns = {**rank_column(result.ranks), **_RANKS}
        yield Table("ranks", "Ranks", result.ranks, columns)


def _keys(result: Annotations) -> dict[str, str]:
    """Return the columns to group by, without a domain or rank that is constant."""
    rows = result.annotations
    outer = [name for name in _OUTER if name in rows.columns and rows[name].n_unique() > 1]
    return {**{name: _OUTER[name] for name in outer}, "name": "annotation"}


def _charts(result: Annotations) -> tuple[Chart, ...]:
    """Build bars of the annotations with most device work and most host time."""
    host = _chart(result, "host", "Host time by annotation", "host_ns", "self_ns")
    if not result.work.n:
        return (host,)
    title = "Device work by annotation that launched it"
    return (_chart(result, "device", title, "device_ns", "self_device_ns"), host)


def _chart(result: Annotations, name: str, title: str, whole: str, self_column: str) -> Chart:
    """Build bars of a sum in two parts: self, and nested annotations."""
    sums = result.annotations.group_by("name").agg(pl.col(whole, self_column).sum())
    rows = sums.filter(pl.col(whole) > 0).sort(whole, "name", descending=[True, False]).head(BARS)
    bars = rows.with_row_index("bar").with_columns(pl.col("name").fill_null(_MISSING["name"]))
    ends = ((_PARTS[0], pl.lit(0, pl.Int64), self_column), (_PARTS[1], pl.col(self_column), whole))
    pieces = [
        bars.select("bar", "name", start_ns=start, end_ns=end, part=pl.lit(part))
        for part, start, end in ends
    ]
    filled = pl.concat(pieces).filter(pl.col("end_ns") > pl.col("start_ns"))
    part = pl.col("part").cast(pl.Enum(_PARTS))
    return Chart(
        name=name, title=title, mark="span",
        frame=filled.sort("bar", "start_ns").drop("bar").with_columns(part),
        x="end_ns", x2="start_ns", y="name", x_label="total", color="part",
    )  # fmt: skip
