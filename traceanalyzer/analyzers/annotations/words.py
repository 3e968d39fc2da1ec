"""Annotations in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.units import format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.annotations.result import Annotations

#: A share of all device work that is worth a sentence.
_WORTH_SAYING = 0.1

#: Why device work is in no annotation that was running.
_BESIDE = "one of another thread ran (PyTorch's backward pass has a thread of its own)"

#: Host time exceeds device time far from this factor on.
_FAR = 3.0


def verdict(result: Annotations) -> str:
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
    return " ".join(part for part in said if part)


def _host_only(result: Annotations) -> str:
    row = _most(_by_name(result), "host_ns")
    return (
        "No device work was recorded. Longest on the host was "
        f"{_named(row)}: {_times(row)}, {format_ns(row['host_ns'])} in all."
    )


def _heaviest(result: Annotations) -> str:
    """The annotation with most device work, and the one that launched most itself."""
    rows = _by_name(result)
    most = _most(rows, "device_ns")
    own = _most(rows, "own_device_ns")
    first = (
        f"Most lies in {_named(most)} ({_times(most)}): {most['n']:,} pieces, "
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
    ordered = rows.sort(column, "domain", "name", descending=[True, False, False], nulls_last=True)
    return ordered.row(0, named=True)


def _named(row: dict[str, Any]) -> str:
    return row["name"] or "(no name)"


def _times(row: dict[str, Any]) -> str:
    return "once" if row["ranges"] == 1 else f"{row['ranges']:,} times"


def _share(result: Annotations, total_ns: int) -> str:
    return format_frac(total_ns / result.work.total_ns if result.work.total_ns else None)


def notes(result: Annotations) -> tuple[str, ...]:
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
    if result.question.names:
        said.append("Only annotations of the names asked for count, as if there were no others.")
    return tuple(said)
