"""The annotations of all ranks, and what is shown of them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.annotations.options import By
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import BARS, headings, rank_column, sentences
from traceanalyzer.result import Chart, Result, Table, View
from traceanalyzer.units import format_frac, format_ns, format_times

#: A share of all device work that is worth a sentence.
_WORTH_SAYING = 0.1

#: Why device work is in no annotation that was running.
_BESIDE = "one of another thread ran (PyTorch's backward pass has a thread of its own)"

#: Host time exceeds device time far from this factor on.
_FAR = 3.0

_DEVICE = headings(
    "projected_ns: projected, n: launched, device_ns: device work, device_frac: of all, "
    "own_device_ns: directly"
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

#: The pieces of a bar.
_PARTS = ("itself", "annotations in it")

_OUTER = {"rank": "rank", "path": "file", "domain": "domain"}

_MISSING = {"name": "(no name)", "domain": "(default)"}


@dataclass(frozen=True)
class Amount:
    """Pieces of device work, and their summed durations."""

    n: int = 0
    total_ns: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Annotations(Result):
    """What ranges that were named by users and libraries cost, in host time and in device work.

    Device work is kernels, copies and sets; of an *amount* ``n`` is pieces, ``total_ns`` the sum of
    their durations. Work is in a range when the thread of the range launched it by a call that lies
    whole in it.

    Attributes:
        names: regular expressions of the annotations that count; all without any.
        by: what rows are told apart by besides domain and name.
        ranges: how many ranges there are.
        process_wide: those that belong to no thread, of which only host time is known.
        unclosed: annotations that never end, and are not counted.
        work: all device work.
        inside: the amount launched in any annotation.
        beside: the amount launched in no annotation of its thread, while one of another thread ran.
        unlaunched: the amount whose launch call was not recorded, or never ends.
        annotations: a row for each name in a domain, most device work first: ``domain`` (null: the
            default one, or no NVTX), ``name``, ``ranges`` (how many); host time: ``host_ns``,
            ``self_ns`` (without the annotations in it), ``mean_ns``, ``median_ns``, ``min_ns`` and
            ``max_ns`` of a range; ``launching`` (ranges with device work); ``projected_ns``: from
            the start of the first piece of work launched in a range to the end of the last, summed
            over ranges; ``n``, ``kernels`` and ``device_ns``: pieces of work launched in it,
            kernels among them, and the sum of their durations; ``device_frac``: that over all
            device work; ``own_n``, ``own_kernels``, ``own_device_ns``: those of which it is the
            innermost annotation. ``rank`` where asked for (``path`` where a file does not tell it).
        ranks: a row a rank: ``rank``, ``path``, ``ranges``, ``n`` and ``device_ns`` of all its
            work, ``inside_n``, ``inside_ns`` and ``inside_frac`` of that in annotations.
    """

    names: tuple[str, ...]
    by: By | None
    ranges: int
    process_wide: int
    unclosed: int
    work: Amount
    inside: Amount
    beside: Amount
    unlaunched: Amount
    annotations: pl.DataFrame
    ranks: pl.DataFrame

    def view(self) -> View:
        """Annotations, host times, ranks; bars of device work and host time by annotation."""
        amounts = {"work": self.work, "inside": self.inside}
        amounts |= {"beside": self.beside, "unlaunched": self.unlaunched}
        scalars = self.numbers("by", "ranges", "process_wide", "unclosed")
        for name, amount in amounts.items():
            scalars |= {f"{name}_n": amount.n, f"{name}_ns": amount.total_ns}
        return View(
            title="What do annotated ranges cost?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=scalars,
            charts=partial(_charts, self),
        )


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Annotations) -> str:
    """Which annotations hold the device work, what lies in none, and where only the host works."""
    if not result.work.n:
        return _host_only(result)
    total = format_ns(result.work.total_ns)
    if result.inside.n:
        share = _share(result, result.inside.total_ns)
        said = [
            f"Of {total} of device work {share} was launched in annotations.",
            _heaviest(result),
        ]
    else:
        said = [f"None of the {total} of device work was launched in an annotation."]
    said += [_outside(result), _host_bound(result)]
    return sentences(*said)


def _host_only(result: Annotations) -> str:
    row = _most(_by_name(result), "host_ns")
    return (
        "No device work was recorded. Longest on the host was "
        f"{_named(row)}: {format_times(row['ranges'])}, {format_ns(row['host_ns'])} in all."
    )


def _heaviest(result: Annotations) -> str:
    """The annotation with most device work, and the one that launched most itself."""
    rows = _by_name(result)
    most = _most(rows, "device_ns")
    own = _most(rows, "own_device_ns")
    first = (
        f"Most lies in {_named(most)} ({format_times(most['ranges'])}): {most['n']:,} pieces, "
        f"{format_ns(most['device_ns'])}, {_share(result, most['device_ns'])} of all"
    )
    if own["name"] == most["name"]:
        return f"{first}."
    return (
        f"{first}; as the innermost annotation most was launched by {_named(own)}: "
        f"{format_ns(own['own_device_ns'])}, {_share(result, own['own_device_ns'])}."
    )


def _outside(result: Annotations) -> str:
    """How much device work lies in no annotation, and why."""
    outside = result.work.total_ns - result.inside.total_ns
    if outside <= _WORTH_SAYING * result.work.total_ns:
        return ""
    rest = outside - result.beside.total_ns - result.unlaunched.total_ns
    reasons = [
        (result.beside.total_ns, f"while {_BESIDE}"),
        (rest, "while none ran"),
        (result.unlaunched.total_ns, "by calls that were not recorded"),
    ]
    told = ", ".join(f"{format_ns(total)} {why}" for total, why in reasons if total > 0)
    return f"{_share(result, outside)} was launched in none: {told}."


def _host_bound(result: Annotations) -> str:
    """The annotation whose own host time exceeds the time of its device work most, and far."""
    device = pl.col("projected_ns").fill_null(0)
    rows = _by_name(result).with_columns(over=pl.col("self_ns") - device)
    worth = _WORTH_SAYING * int(rows["self_ns"].sum())
    found = rows.filter(pl.col("host_ns") > _FAR * device, pl.col("over") > worth)
    if found.is_empty():
        return ""
    row = _most(found, "over")
    work = (
        f"the device work launched there spans {format_ns(row['projected_ns'])}"
        if row["n"]
        else "no device work is launched there"
    )
    other = ", or another thread launches meanwhile" if result.beside.n else ""
    return (
        f"{_named(row)} took {format_ns(row['host_ns'])} of host time, {work}: the host computes, "
        f"loads or waits in it{other} (traceanalyzer gpu-idle says whether the device is idle)."
    )


def _by_name(result: Annotations) -> pl.DataFrame:
    """The rows of the answer without ranks."""
    sums = ("ranges", "host_ns", "self_ns", "projected_ns", "n", "device_ns", "own_device_ns")
    return result.annotations.group_by("domain", "name").agg(pl.col(sums).sum())


def _most(rows: pl.DataFrame, column: str) -> dict[str, Any]:
    return largest_first(rows, column, "domain", "name", nulls_last=True).row(0, named=True)


def _named(row: dict[str, Any]) -> str:
    return row["name"] or "(no name)"


def _share(result: Annotations, total_ns: int) -> str:
    return format_frac(total_ns / result.work.total_ns if result.work.total_ns else None)


def _notes(result: Annotations) -> tuple[str, ...]:
    """How device work is attributed, and what was not counted."""
    said = []
    if result.work.n:
        said.append(
            "Device work (kernels, copies, sets) is in an annotation when the thread of the "
            "annotation launched it by a call that lies whole in it; work of an annotation is also "
            "that of those around it. Directly is where it is the innermost one."
        )
        said.append(
            "Projected is from the start of the first piece launched in a range to the end of the "
            "last, whatever else ran in between, summed over the ranges."
        )
    if result.process_wide:
        said.append(
            f"{result.process_wide:,} ranges start on one thread and end on another: they belong "
            "to the process, and have host time only."
        )
    if result.unclosed:
        said.append(f"{result.unclosed:,} annotations never end and are not counted.")
    if result.names:
        said.append("Only annotations of the names asked for count, as if there were no others.")
    return tuple(said)


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Annotations) -> tuple[Table, ...]:
    """Annotations with their device work, host times, and ranks where there are several."""
    rows = result.annotations
    keys = _keys(result)
    by_host = largest_first(rows, "host_ns", *keys)
    detail, shown = bool(result.work.n), {**keys, **_HOST}
    host = Table("host", "Host time", by_host, shown, detail=detail, missing=_MISSING)
    if not result.work.n:
        return (host,)
    shown = {**keys, **{name: _HOST[name] for name in _FIRST}, **_DEVICE}
    found = [Table("annotations", "Annotations", rows, shown, missing=_MISSING), host]
    if result.ranks.height > 1:
        columns = {**rank_column(result.ranks), **_RANKS}
        found.append(Table("ranks", "Ranks", result.ranks, columns))
    return tuple(found)


def _keys(result: Annotations) -> dict[str, str]:
    """The columns that tell rows apart, without a domain or rank that is always the same."""
    rows = result.annotations
    outer = [name for name in _OUTER if name in rows.columns and rows[name].n_unique() > 1]
    return {**{name: _OUTER[name] for name in outer}, "name": "annotation"}


def _charts(result: Annotations) -> tuple[Chart, ...]:
    """Bars of the annotations with most device work, and of those with most host time."""
    host = _chart(result, "host", "Host time by annotation", "host_ns", "self_ns")
    if not result.work.n:
        return (host,)
    title = "Device work by annotation that launched it"
    return (_chart(result, "device", title, "device_ns", "own_device_ns"), host)


def _chart(result: Annotations, name: str, title: str, whole: str, own: str) -> Chart:
    """Bars of a sum, in two pieces: an annotation's own part of it, and the rest."""
    sums = result.annotations.group_by("name").agg(pl.col(whole, own).sum())
    rows = sums.filter(pl.col(whole) > 0).sort(whole, "name", descending=[True, False]).head(BARS)
    bars = rows.with_row_index("bar").with_columns(pl.col("name").fill_null(_MISSING["name"]))
    ends = ((_PARTS[0], pl.lit(0, pl.Int64), own), (_PARTS[1], pl.col(own), whole))
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
