"""The answer in one paragraph, and what is to be known of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.analyzers.parts import PARTS
from traceanalyzer.units import format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.overlap.result import Overlap

#: Less of the devices' time is not worth working on.
SMALL_FRAC = 0.05

#: Ranks that differ by less expose equally much.
_APART_FRAC = 0.1


def verdict(result: Overlap) -> str:
    """How much communication is exposed, what that costs, what else the time goes to."""
    sums = result.scalars
    if not sums["span_ns"]:
        return "All recorded device work is of no duration: there is nothing to measure."
    said = [
        _made_of(result, sums),
        _communication(result, sums),
        _copies(sums),
        _idle(sums),
    ]
    return " ".join(sentence for sentence in said if sentence)


def _made_of(result: Overlap, sums: Mapping[str, Any]) -> str:
    """The parts, as shares of the whole."""
    compute, communication, copies, idle = (
        format_frac(sums[f"{part}_ns"] / sums["span_ns"]) for part in PARTS
    )
    devices = result.devices.height
    whose = (
        "the recorded device time" if devices == 1 else f"the recorded time of {devices} devices"
    )
    exposed = f"exposed communication {communication}, " if sums["communication_ns"] else ""
    return (
        f"Compute takes {compute} of {whose}, {exposed}exposed copies {copies}; for {idle} nothing "
        "runs."
    )


def _communication(result: Overlap, sums: Mapping[str, Any]) -> str:
    exposed, whole = sums["exposed_communication_ns"], sums["communication_ns"]
    if not whole:
        return "No communication ran on the device, so there is none to hide."
    if not exposed:
        return "All communication is hidden behind compute: it costs no time."
    opening = (
        f"Of the communication {format_frac(sums['overlap_frac'])} is hidden behind compute, the "
        f"other {format_ns(exposed)} of {format_ns(whole)} are exposed."
    )
    if exposed < SMALL_FRAC * sums["span_ns"]:
        return f"{opening} Hiding more of it would gain little."
    return (
        f"{opening} No more than that can be won by starting collectives earlier, in smaller "
        f"buckets or beside other compute.{_ranks(result)} comm-outliers tells, from the files of "
        "all ranks, how much of it is waiting for a late rank."
    )


def _ranks(result: Overlap) -> str:
    """Which ranks expose most and least, where they differ."""
    ranks = (
        result.devices.drop_nulls("rank")
        .group_by("rank")
        .agg(pl.col("exposed_communication_ns", "span_ns").sum())
        .filter(pl.col("span_ns") > 0)
        .with_columns(share=pl.col("exposed_communication_ns") / pl.col("span_ns"))
        .sort("share", "rank", descending=[True, False])
    )
    if ranks.height < 2:
        return ""
    most, least = ranks.row(0, named=True), ranks.row(-1, named=True)
    if most["share"] - least["share"] < _APART_FRAC:
        return ""
    return (
        f" Rank {most['rank']} exposes most ({format_frac(most['share'])} of its time), rank "
        f"{least['rank']} least ({format_frac(least['share'])}): the rank with least is often the "
        "one that the others wait for."
    )


def _copies(sums: Mapping[str, Any]) -> str:
    share = sums["exposed_memory_ns"] / sums["span_ns"]
    if share < SMALL_FRAC:
        return ""
    return (
        f"Copies and sets during which neither compute nor communication runs cost "
        f"{format_frac(share)}: pinned memory and non_blocking=True let them run beside compute."
    )


def _idle(sums: Mapping[str, Any]) -> str:
    idle = sums["idle_ns"] / sums["span_ns"]
    if idle < SMALL_FRAC:
        return ""
    more = sums["idle_ns"] > sums["exposed_communication_ns"] > 0
    return f"{'More is lost to idleness' if more else 'Devices are idle too'}: gpu-idle tells why."


def notes(result: Overlap) -> tuple[str, ...]:
    """What counts as what, and what is not counted."""
    adding_up = (
        "Compute, exposed communication, exposed copies and idle add up to the span, from a "
        "device's first work to its last; work that runs beside compute is hidden."
    )
    said = [adding_up]
    if result.by == "step":
        said.append("Device work counts for the step in which it runs, not that launched it.")
    if low := result.low.height:
        width, stretches = max(result.timeline["span_ns"]), result.timeline.height
        said.append(
            f"Of {stretches:,} stretches of {format_ns(width)} {low:,} are busy for less than half "
            "of the time; --top all lists them, gpu-idle tells why."
        )
    if result.unfinished:
        said.append(f"Not counted: {result.unfinished:,} pieces of device work without an end.")
    return tuple(said)
