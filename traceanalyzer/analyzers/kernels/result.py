"""The kernels of all ranks, and what is shown of them."""

from dataclasses import dataclass
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common import replays
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.analyzers.common.display import bars, headings, rank_column, sentences
from traceanalyzer.analyzers.common.kernel_names import OTHER, is_plain_float
from traceanalyzer.analyzers.common.launching import Beginning, note_launched_before
from traceanalyzer.analyzers.common.places import count_devices
from traceanalyzer.analyzers.kernels.options import By
from traceanalyzer.result import Chart, Result, Table, View
from traceanalyzer.units import format_frac, format_ns, format_times

_NAMED = 3

#: Shares of the busy time from which something is worth a sentence.
_WORTH_SAYING = 0.1

_SHARES = headings("n, total_ns: total, busy_frac: of busy, span_frac: of span")
_LENGTHS = headings("mean_ns: mean, min_ns: min, median_ns: median, p99_ns: p99, max_ns: max")
#: What is told at first of kernels, whose names need room; the rest is a table of its own.
_FIRST = ("n", "total_ns", "busy_frac", "mean_ns", "max_ns")
_GROUPED = ("n", "total_ns", "busy_frac", "mean_ns", "median_ns", "max_ns")
_LATER = ("n", "span_frac", "min_ns", "median_ns", "p99_ns")
_DEVICES = headings(
    "device, n, total_ns: total, busy_ns: busy, span_ns: span, busy_frac: busy/span"
)

_REPLAYED = ("replayed", "replayed_ns", "replayed_matched", "replayed_matched_ns")

_UNKNOWN = {"operator": "(none known)", "annotation": "(none known)"}


@dataclass(frozen=True, eq=False, repr=False)
class Kernels(Result):
    """Which kernels, copies and sets take the devices' time.

    Attributes:
        by: what kernels are grouped by besides.
        n: pieces of device work.
        total_ns: their summed durations.
        busy_ns: time in which at least one of them ran, summed over the devices.
        span_ns: first start to last end of each device's work, summed over the devices.
        unfinished: pieces without an end, which are not counted.
        launched_before_ns: time of the device work that was launched before the recording started,
            summed up; None where that is not known, or can be but a small part.
        replayed: kernels that CUDA or HIP graphs replayed, 0 unless grouped by operator;
            replayed_ns: their time.
        replayed_matched: those counted for the operator that launches them in a capture or a step
            without replay; replayed_matched_ns: their time.
        families: one row a family: the columns of the groups where asked for, ``family``, ``n``,
            ``total_ns``, ``busy_frac`` and ``span_frac`` (total over the busy time and the span),
            ``mean_ns``, ``min_ns``, ``median_ns``, ``p99_ns``, ``max_ns``; largest total first.
        names: the same by ``name``, with ``kernel``, which is the name cut to what tells it from
            the others, and ``family``.
        groups: one row a group where asked for: ``n``, ``total_ns``, the shares, the ``family``
            that takes most of it, and ``family_frac``, how much of the group's total.
        devices: one row a device: ``rank``, ``path``, ``device``, ``n``, ``total_ns``,
            ``busy_ns``, ``span_ns``, ``busy_frac`` (busy over span).
        by_step: one row a kernel of each step of each device, communication left out: ``rank``,
            ``path``, ``device``, ``step`` (in which it was launched, null where it was in none),
            ``kernel``, ``blocks`` (of its grid, null where not recorded), ``n``, ``total_ns``.
            None but in a diagnosis or report.
        training: device work by its purpose in training: rank, path and the columns of
            :func:`~.training.training`; None but in a diagnosis or report.
        beginnings: first device work whose launch calls were not read.
    """

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
    beginnings: tuple[Beginning, ...] = ()

    @property
    def group(self) -> tuple[str, ...]:
        """The columns of ``families`` and ``names`` that tell groups apart."""
        return tuple(self.families.columns[: self.families.columns.index("family")])

    def view(self) -> View:
        """Groups where asked for, families, names, devices; bars of families and names."""
        return View(
            title="Which kernels take the time?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=self.numbers(
                "by",
                "n",
                "total_ns",
                "busy_ns",
                "span_ns",
                "unfinished",
                "launched_before_ns",
                *(_REPLAYED if self.by == "operator" else ()),
            ),
            charts=partial(_charts, self),
        )

    def heaviest(self, key: str) -> pl.DataFrame:
        """``key`` (``family`` or ``name``), ``n`` and ``total_ns`` over all groups."""
        rows = self.families if key == "family" else self.names
        keys = ["family"] if key == "family" else ["name", "kernel", "family"]
        return largest_first(
            rows.group_by(keys).agg(pl.col("n", "total_ns").sum()), "total_ns", *keys
        )


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Kernels) -> str:
    """Which families and which kernel take the busy time, and what that says."""
    families = result.heaviest("family")
    parts = [f"{name} {_share(result, total)}" for name, _, total in families.head(_NAMED).rows()]
    many = count_devices(result.devices) > 1
    span = format_frac(result.busy_ns / result.span_ns) if result.span_ns else "all"
    who, whose = ("devices were", "their") if many else ("device was", "its")
    busy = (
        f"The {who} busy for {format_ns(result.busy_ns)}, {span} of the span of {whose} work: "
        f"{', '.join(parts)}."
    )
    more = (_heaviest(result), _communication(result, families), _plain_float(result))
    return sentences(busy, *more)


def _heaviest(result: Kernels) -> str:
    kernels = result.heaviest("name").filter(~pl.col("family").str.contains("^mem(?:cpy|set)"))
    if kernels.is_empty():
        return ""
    row = kernels.row(0, named=True)
    total = format_ns(row["total_ns"])
    return (
        f"The heaviest kernel is {row['kernel']}: {format_times(row['n'])}, {total} in all, "
        f"{_share(result, row['total_ns'])} of the busy time."
    )


def _share(result: Kernels, total_ns: int) -> str:
    return format_frac(total_ns / result.busy_ns if result.busy_ns else None)


def _communication(result: Kernels, families: pl.DataFrame) -> str:
    total = int(families.filter(pl.col("family") == COMMUNICATION)["total_ns"].sum())
    if total <= _WORTH_SAYING * result.busy_ns:
        return ""
    return (
        "A communication kernel also runs while it waits for other ranks: traceanalyzer "
        "comm-outliers tells waiting from transfer, traceanalyzer overlap what compute hides."
    )


def _plain_float(result: Kernels) -> str:
    """Kernels whose name says that they leave the tensor cores idle."""
    rows = result.heaviest("name")
    names = [name for name in rows["name"] if name is not None and is_plain_float(name)]
    total = int(rows.filter(pl.col("name").is_in(names))["total_ns"].sum())
    if total <= _WORTH_SAYING * result.busy_ns:
        return ""
    return (
        f"{format_ns(total)} ({_share(result, total)}) are matrix multiplications and convolutions "
        "in single precision that by their names use no tensor cores: mixed precision "
        "(torch.autocast), or from Ampere on TF32, would."
    )


def _notes(result: Kernels) -> tuple[str, ...]:
    """How shares are meant, and what was not counted."""
    said = []
    if result.total_ns > 1.001 * result.busy_ns > 0:
        said.append(
            f"Kernels on parallel streams run at the same time: all together they took "
            f"{format_frac(result.total_ns / result.busy_ns)} of the busy time, so shares add up "
            "to more than 100 %."
        )
    if OTHER in result.families["family"]:
        said.append("Families go by the names of kernels; other is what no known name tells.")
    if result.names["name"].str.contains(r"^CUDA graph \d+$").any():
        said.append(
            "Whole CUDA graphs were recorded in place of their kernels; nsys profile "
            "--cuda-graph-trace=node records the kernels."
        )
    if result.unfinished:
        said.append(f"{result.unfinished} pieces of device work never end and are not counted.")
    by = result.by
    if by in ("operator", "annotation"):
        said.append(
            f"A kernel is counted for the innermost {by} around its launch call, and for none "
            "where its launch was not recorded."
        )
    said += replays.note(
        result.replayed, result.replayed_matched, result.replayed_ns, result.replayed_matched_ns
    )
    return (*said, *note_launched_before(result.launched_before_ns, result.total_ns))


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Kernels) -> tuple[Table, ...]:
    """Groups where asked for, families, names; devices where there are several."""
    group = _group(result)
    numbers = {**_SHARES, **_LENGTHS}
    first, later, grouped = (
        {name: numbers[name] for name in told} for told in (_FIRST, _LATER, _GROUPED)
    )
    kernel = {**group, "kernel": "kernel"}
    family = {} if group else {"family": "family"}
    found = [
        _table(
            "families",
            "Families",
            result.families,
            {**group, "family": "family", **(grouped if group else numbers)},
        ),
        _table("names", "Kernels, copies and sets", result.names, {**kernel, **family, **first}),
        _table("lengths", "How long they run", result.names, {**kernel, **later}, detail=True),
    ]
    if result.groups is not None:
        mostly = {"family": "mostly", "family_frac": "of it"}
        by = f"By {result.by}"
        found.insert(0, _table("groups", by, result.groups, {**group, **_SHARES, **mostly}))
    if result.devices.height > 1:
        columns = {**rank_column(result.devices), **_DEVICES}
        found.append(Table("devices", "Devices", result.devices, columns))
    return tuple(found)


def _table(
    name: str, title: str, frame: pl.DataFrame, columns: dict[str, str], *, detail: bool = False
) -> Table:
    return Table(name, title, frame, columns, missing=_UNKNOWN, detail=detail)


def _group(result: Kernels) -> dict[str, str]:
    """The columns that tell groups apart, without a rank or device that is always the same."""
    group = result.group
    outer = [name for name in group[:-1] if result.devices[name].n_unique() > 1]
    return {name: name for name in (*outer, *group[-1:])}


def _charts(result: Kernels) -> tuple[Chart, ...]:
    """Bars of the families and of the heaviest names."""
    families, names = result.heaviest("family"), result.heaviest("name")
    total = "total_ns"
    return (
        bars("families", "Device work by family", families, length=total, label="family"),
        bars("names", "Kernels by total time", names, length=total, label="kernel", color="family"),
    )
