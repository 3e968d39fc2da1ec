"""Kernels in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.device_work import COMMUNICATION
from traceanalyzer.analyzers.kernel_families import OTHER, is_plain_float
from traceanalyzer.units import format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.kernels.result import Kernels

_NAMED = 3

#: Shares of the busy time from which something is worth a sentence.
_WORTH_SAYING = 0.1


def verdict(result: Kernels) -> str:
    """Which families and which kernel take the busy time, and what that says."""
    families = result.heaviest("family")
    parts = [f"{name} {_share(result, total)}" for name, _, total in families.head(_NAMED).rows()]
    many = result.devices.height > 1
    span = format_frac(result.busy_ns / result.span_ns) if result.span_ns else "all"
    who, whose = ("devices were", "their") if many else ("device was", "its")
    busy = (
        f"The {who} busy for {format_ns(result.busy_ns)}, {span} of the span of {whose} work: "
        f"{', '.join(parts)}."
    )
    said = (
        busy,
        _heaviest(result),
        _communication(result, families),
        _plain_float(result),
    )
    return " ".join(part for part in said if part)


def _heaviest(result: Kernels) -> str:
    kernels = result.heaviest("name").filter(~pl.col("family").str.contains("^mem(?:cpy|set)"))
    if kernels.is_empty():
        return ""
    row = kernels.row(0, named=True)
    times = "once" if row["n"] == 1 else f"{row['n']:,} times"
    return (
        f"The heaviest kernel is {row['kernel']}: {times}, {format_ns(row['total_ns'])} in all, "
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


def notes(result: Kernels) -> tuple[str, ...]:
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
    if result.unfinished:
        said.append(f"{result.unfinished} pieces of device work never end and are not counted.")
    by = result.question.by
    if by in ("operator", "annotation"):
        said.append(
            f"A kernel is counted for the innermost {by} around its launch call, and for none "
            "where its launch was not recorded."
        )
    return tuple(said)
