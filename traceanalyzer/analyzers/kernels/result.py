"""Result of the kernels analysis: data, verdict, notes, tables and charts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import display, replays
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE
from traceanalyzer.analyzers.common.kernel_names import OTHER, plain_float
from traceanalyzer.analyzers.common.launching import Beginning, note_launched_before
from traceanalyzer.analyzers.kernels import By
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View, memoized
from traceanalyzer.units import format_frac, format_ns, format_times

_NAMED = 3

#: Least share of the device work for a sentence in the verdict.
_NOTABLE_FRAC = 0.1

_SHARES = display.headings("n, total_ns: total, device_frac: of device")
_LENGTHS = display.headings(
    "mean_ns: mean, min_ns: min, median_ns: median, p99_ns: p99, max_ns: max"
)
#: Columns of the first table of kernels, as names need room; the others are a second table.
_FIRST = ("n", "total_ns", "device_frac", "mean_ns", "max_ns")
_GROUPED = ("n", "total_ns", "device_frac", "mean_ns", "median_ns", "max_ns")
_LATER = ("n", "min_ns", "median_ns", "p99_ns")
_DEVICES = display.headings(
    "device, n, total_ns: total, busy_ns: busy, span_ns: span, busy_frac: busy/span"
)

#: Columns that a narrow terminal hides first.
_HIDE_FIRST = ("min_ns", "p99_ns", "median_ns")

_REPLAYED = ("replayed", "replayed_ns", "replayed_matched", "replayed_matched_ns")

_UNKNOWN = dict.fromkeys(("operator", "annotation", "module", "code"), "(none known)")
#: What kernels count for, by group.
_COUNTED = {
    "operator": "the innermost operator around its launch call",
    "annotation": "the innermost annotation around its launch call",
    "module": "the module in its arguments, else the one around its launch call",
    "code": (
        "the lines that it was compiled of or captured from, else the function of own code around "
        "its launch call"
    ),
}


@dataclass(frozen=True, eq=False, repr=False)
class Kernels(Result):
    """Device time by kernel, copy and memset.

    Attributes:
        by: what kernels are also grouped by.
        n: number of device events.
        total_ns: sum of their durations.
        busy_ns: time in which at least one of them ran, summed over the devices.
        span_ns: first start to last end of each device's work, summed over the devices.
        unfinished: number of device events without an end, which are not counted.
        launched_before_ns: time of device work launched before the recording started; None if
            unknown or at most a small part.
        named_ns: time of the kernels whose arguments have their module or code; 0 unless grouped
            by these.
        replayed: kernels replayed by CUDA or HIP graphs without it, 0 unless grouped by operator,
            module or code; replayed_ns: their time.
        replayed_matched: those counted for the operator that launches them in a capture or a step
            without replay; replayed_matched_ns: their time.
        families: one row per family: the columns of ``by``, ``family``, ``n``, ``total_ns``,
            ``device_frac`` (share of the sum of all durations, of the same device or rank if
            grouped by it), ``mean_ns``, ``min_ns``, ``median_ns``, ``p99_ns``, ``max_ns``; largest
            total first.
        names: the same by ``name``, with ``family`` and ``kernel`` (the name, shortened as far as
            it stays unique).
        groups: one row per group of ``by``: ``n``, ``total_ns``, ``device_frac``, ``family``
            (with the largest total) and ``family_frac``, its share of the group's total.
        devices: one row per device: ``rank``, ``path``, ``device``, ``n``, ``total_ns``,
            ``busy_ns``, ``span_ns``, ``busy_frac`` (busy over span).
        by_step: one row per kernel, step and device, without communication and tuning: ``rank``,
            ``path``, ``device``, ``step`` (in which it was launched, or null), ``kernel``,
            ``blocks`` (of its grid, null if not recorded), ``n``, ``total_ns``,
            ``busy_ns`` (calls at the same time count once), ``fusible_ns`` (at most that, see
            :func:`~.compute.fusible_ns`), ``max_ns``, ``local_memory`` (bytes per thread). None
            except in a diagnosis or report.
        training: device work by its purpose in training: rank, path and the columns of
            :func:`~.training.training`. None except in a diagnosis or report.
        heavy: where the kernels with most time are launched: ``kernel`` and the columns of
            :func:`~.compute.places`. None except in a diagnosis or report.
        has_operators: operators were recorded. False except in a diagnosis or report.
        beginnings: first device work whose launch calls were not read.
    """

    question = "Which kernels take the time?"
    scalar_names = "by, n, total_ns, busy_ns, span_ns, unfinished, launched_before_ns"

    by: By | None
    n: int
    total_ns: int
    busy_ns: int
    span_ns: int
    unfinished: int
    launched_before_ns: int | None
    replayed: int
    replayed_ns: int
    replayed_matched: int
    replayed_matched_ns: int
    families: pl.DataFrame
    names: pl.DataFrame
    groups: pl.DataFrame | None
    devices: pl.DataFrame
    by_step: pl.DataFrame | None
    training: pl.DataFrame | None = None
    heavy: pl.DataFrame | None = None
    has_operators: bool = False
    beginnings: tuple[Beginning, ...] = ()
    named_ns: int = 0

    @property
    def group(self) -> tuple[str, ...]:
        """The columns of ``families`` and ``names`` that they are grouped by."""
        return tuple(self.families.columns[: self.families.columns.index("family")])

    def view(self) -> View:
        """Build the view: groups if requested, families, names, devices; bar charts."""
        scalars = self.numbers()
        if self.by in ("operator", "module", "code"):
            scalars |= self.numbers("named_ns", *_REPLAYED)
        return self.view_from(_verdict, _notes, _tables, _charts, scalars=scalars)

    @memoized
    def heaviest(self, key: str) -> pl.DataFrame:
        """``key`` (``family`` or ``name``), ``n`` and ``total_ns`` over all groups."""
        rows = self.families if key == "family" else self.names
        keys = ["family"] if key == "family" else ["name", "kernel", "family"]
        return largest_first(
            rows.group_by(keys).agg(pl.col("n", "total_ns").sum()), "total_ns", *keys
        )

    def place(self, kernel: str | None, work_kind: str = COMPUTE) -> Mapping[str, Any]:
        """Return the row of a kernel (None: of all work of a kind) in ``heavy``; or nothing."""
        is_this = pl.col("kernel").eq_missing(kernel) & (pl.col("work_kind") == work_kind)
        rows = None if self.heavy is None else self.heavy.filter(is_this)
        return {} if rows is None or rows.is_empty() else rows.row(0, named=True)


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Kernels) -> str:
    """Describe which families and which kernel take the device time."""
    families = result.heaviest("family")
    parts = [f"{name} {_share(result, total)}" for name, _, total in families.head(_NAMED).rows()]
    many = display.count_devices(result.devices) > 1
    span = format_frac(result.busy_ns / result.span_ns) if result.span_ns else "all"
    subject = "Devices were" if many else "The device was"
    busy = (
        f"{subject} busy for {format_ns(result.busy_ns)} ({span} of the span). Device work: "
        f"{', '.join(parts)}."
    )
    more = (_heaviest(result), _communication(result, families), _plain_float(result))
    return display.sentences(busy, *more)


def _heaviest(result: Kernels) -> str:
    kernels = result.heaviest("name").filter(~pl.col("family").str.contains("^mem(?:cpy|set)"))
    if kernels.is_empty():
        return ""
    row = kernels.row(0, named=True)
    total, name = format_ns(row["total_ns"]), row["kernel"] or "one without a name"
    return (
        f"The kernel with the highest total time is {name}: {total}, "
        f"{_share(result, row['total_ns'])} of the device work; it ran {format_times(row['n'])}."
    )


def _share(result: Kernels, total_ns: int) -> str:
    return format_frac(total_ns / result.total_ns if result.total_ns else None)


def _communication(result: Kernels, families: pl.DataFrame) -> str:
    total = int(families.filter(pl.col("family") == COMMUNICATION)["total_ns"].sum())
    if total <= _NOTABLE_FRAC * result.total_ns:
        return ""
    return (
        "Communication kernels also run while they wait for other ranks: comm-outliers separates "
        "wait time from transfer time."
    )


def _plain_float(result: Kernels) -> str:
    """Report kernels that, by their names, do not use tensor cores."""
    rows = result.heaviest("name")
    names = plain_float(rows["name"].drop_nulls())
    total = int(rows.filter(pl.col("name").is_in(names))["total_ns"].sum())
    if total <= _NOTABLE_FRAC * result.total_ns:
        return ""
    return (
        f"{format_ns(total)} ({_share(result, total)}) are single-precision matrix multiplications "
        "and convolutions that, by kernel name, do not use tensor cores. Try mixed precision "
        "(torch.autocast), or TF32 on Ampere and later."
    )


def _notes(result: Kernels) -> Iterator[str]:
    """Describe how shares are defined, and what was not counted."""
    if result.total_ns > 1.001 * result.busy_ns > 0:
        yield (
            f"Kernels overlap: the sum of their durations ({format_ns(result.total_ns)}), which "
            "shares refer to, is longer than the busy time."
        )
    if OTHER in result.families["family"]:
        yield "Families are derived from kernel names; other has the kernels with unknown names."
    if result.names["name"].str.contains(r"^CUDA graph \d+$").any():
        yield (
            "Whole CUDA graphs were recorded in place of their kernels; nsys profile "
            "--cuda-graph-trace=node records the kernels."
        )
    yield from display.without_end(result.unfinished, "device event")
    if counted := _COUNTED.get(result.by or ""):
        yield f"A kernel counts for {counted}, and for none if the launch was not recorded."
    if named := result.named_ns:
        yield (
            f"{format_ns(named)} ({format_frac(named / result.total_ns)} of the device work) has "
            f"its {result.by} in the arguments of the kernels."
        )
    yield from replays.note(
        result.replayed, result.replayed_matched, result.replayed_ns, result.replayed_matched_ns,
        result.by or "operator",
    )  # fmt: skip
    yield from note_launched_before(result.launched_before_ns, result.total_ns)


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Kernels) -> tuple[Table, ...]:
    """Build the tables: groups if requested, families, names; devices if there are several."""
    group = _group(result)
    numbers = {**_SHARES, **_LENGTHS}
    first, later, grouped = (
        {name: numbers[name] for name in names} for names in (_FIRST, _LATER, _GROUPED)
    )
    kernel = {**group, "kernel": "kernel"}
    family = {} if group else {"family": "family"}
    tables = [
        _table(
            "families",
            "Families",
            result.families,
            {**group, "family": "family", **(grouped if group else numbers)},
        ),
        _table("names", "Kernels, copies and memsets", result.names, {**kernel, **family, **first}),
        _table("lengths", "Durations", result.names, {**kernel, **later}, detail=True),
    ]
    if result.groups is not None:
        largest = {"family": "largest family", "family_frac": "its share"}
        by = f"By {result.by}"
        tables.insert(0, _table("groups", by, result.groups, {**group, **_SHARES, **largest}))
    if result.devices.height > 1:
        columns = {**display.rank_column(result.devices), **_DEVICES}
        tables.append(Table("devices", "Devices", result.devices, columns))
    return tuple(tables)


def _table(
    name: str, title: str, frame: pl.DataFrame, columns: dict[str, str], *, detail: bool = False
) -> Table:
    return Table(
        name, title, frame, columns, missing=_UNKNOWN, detail=detail, hide_first=_HIDE_FIRST
    )


def _group(result: Kernels) -> dict[str, str]:
    """Return the columns to group by, without a rank or device that is constant."""
    group = result.group
    outer = [name for name in group[:-1] if result.devices[name].n_unique() > 1]
    return {name: name for name in (*outer, *group[-1:])}


def _charts(result: Kernels) -> Iterator[Chart]:
    """Build bars of the families and of the names with most time."""
    families, names = result.heaviest("family"), result.heaviest("name")
    total = "total_ns"
    yield display.bars("families", "Device work by family", families, length=total, label="family")
    yield display.bars(
        "names", "Kernels by total time", names, length=total, label="kernel", color="family"
    )
