"""Several ranks' operators in one answer."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.operators.extract import SUMS, Part
from traceanalyzer.analyzers.operators.question import Question, SortBy, column
from traceanalyzer.analyzers.operators.result import Operators
from traceanalyzer.errors import MissingData

#: What is told of host and device time, and in which unit.
_PARTS = ("self", "self", "total", "total", "mean")
_UNITS = ("ns", "frac", "ns", "frac", "ns")

#: What is missing where there is nothing to sort by, and the kind that would tell.
_LACKING = {
    "device": ("device work", "kernel"),
    "memory": ("allocation of that kind", "cpu_instant_event"),
}


def combine(parts: Sequence[Part], question: Question, notes: Sequence[str] = ()) -> Operators:
    """The operators of all ranks, summed by row.

    Raises:
        MissingData: what rows are to be sorted by was not recorded.
    """
    busy = [part.device_ns for part in parts if part.device_ns is not None]
    device_ns = sum(busy) if busy else None
    rows = _summed([part.rows for part in parts], question.keys)
    running = _summed([part.running for part in parts], ("name", "kind"))
    sort_by = question.sort_by or ("self_host" if device_ns is None else "self_device")
    host_ns = int(rows["self_host_ns"].sum())
    rows = _with_shares(rows, host_ns, device_ns)
    _require(rows, sort_by, parts[0])
    ordered = rows.sort(
        column(sort_by),
        "self_host_ns",  # many calls launch nothing, or allocate nothing
        *question.keys,
        descending=[True, True, *(False for _ in question.keys)],
        nulls_last=True,
    )
    return Operators(
        question=question,
        sort_by=sort_by,
        n_calls=int(rows["calls"].sum()),
        host_ns=host_ns,
        device_ns=device_ns,
        unlaunched_ns=sum(part.unlaunched_ns for part in parts),
        outside_bytes=sum(part.outside_bytes for part in parts),
        unclosed=sum(part.unclosed for part in parts),
        operators=ordered,
        running=running.sort("self_host_ns", "name", "kind", descending=[True, False, False]),
        ranks=_ranks(parts),
        code_hint=parts[0].hints["other code"],
        remarks=tuple(notes),
    )


def _summed(frames: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """One row for each combination of the keys; a sum of nulls is null."""
    rows = pl.concat(frames)
    sums = (pl.col(name) for name in rows.columns if name not in keys)
    return rows.group_by(keys).agg(
        pl.when(value.is_not_null().any()).then(value.sum()) for value in sums
    )


def _require(rows: pl.DataFrame, sort_by: SortBy, part: Part) -> None:
    if rows[column(sort_by)].is_not_null().any():
        return
    what, kind = _LACKING["memory" if "memory" in sort_by else "device"]
    raise MissingData(f"{part.path}: no {what} was recorded; {part.hints[kind]}")


def _with_shares(rows: pl.DataFrame, host_ns: int, device_ns: int | None) -> pl.DataFrame:
    """The rows with means of a call, and with shares of all host time and all device work."""
    keys = [name for name in rows.columns if name not in SUMS]
    host = [_share(f"{of}_host_ns", host_ns) for of in ("self", "total")]
    device = [_share(f"{of}_device_ns", device_ns) for of in ("self", "total")]
    means = [
        (pl.col(f"total_{of}_ns") / pl.col("calls")).round().cast(pl.Int64).alias(f"mean_{of}_ns")
        for of in ("host", "device")
    ]
    times = [
        f"{of}_{where}_{unit}"
        for where in ("host", "device")
        for of, unit in zip(_PARTS, _UNITS, strict=True)
    ]
    memory = [name for name in SUMS if "memory" in name]
    return rows.with_columns(*host, *device, *means).select(*keys, "calls", *times, *memory)


def _share(name: str, whole: int | None) -> pl.Expr:
    value = pl.col(name) / whole if whole else pl.lit(None, pl.Float64)
    return value.alias(name.replace("_ns", "_frac"))


def _ranks(parts: Sequence[Part]) -> pl.DataFrame:
    rows = [
        (
            part.rank,
            part.path,
            int(part.rows["calls"].sum()),
            part.threads,
            int(part.rows["self_host_ns"].sum()),
            part.device_ns,
        )
        for part in parts
    ]
    types = {
        "rank": pl.Int32, "path": pl.String, "calls": pl.Int64, "threads": pl.Int64,
        "host_ns": pl.Int64, "device_ns": pl.Int64,
    }  # fmt: skip
    frame = pl.DataFrame(rows, schema=types, orient="row")
    return frame.sort("rank", "path", nulls_last=True, maintain_order=True)
