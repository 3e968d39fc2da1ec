"""Rules for copies: exposed copies, and migrations of managed memory."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.gpu_api import in_hip
from traceanalyzer.analyzers.diagnosis.device_time import (
    COPIES,
    intervals_of,
    only_rank,
    only_step,
)
from traceanalyzer.analyzers.diagnosis.idle import in_steps, waits_for
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, rule
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.analyzers.transfers.result import MIGRATIONS, Transfers, page_faults
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

#: Maximum number of items in a list.
_NAMED = 3


@rule(
    "overlap",
    "copies that are not overlapped with compute or communication",
    "exposed copies and memsets, and wait time of other ranks for them, as a share of step time "
    "(of the recorded time if no steps are marked)",
    {"warning": 0.05, "critical": 0.2},
    uses=("comm_outliers", "gpu_idle", "transfers"),
)
def _exposed_copies(_: Overlap, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    losses = time.of_cause(COPIES)
    total = int(losses["lost_ns"].sum())
    if not total:
        return
    copies, rank = _exposed(answers), only_rank(losses)
    top = copies.row(0, named=True) if copies.height else {"direction": "", "memory": ""}
    place = in_steps(losses, time, rank)
    others = ""
    if rank is not None and losses["waited"].any():
        place += f" on rank {rank}"
        others = ", including wait time of other ranks"
    yield Measured(
        size=time.frac(total),
        title=f"Exposed {_DIRECTIONS.get(top['direction'], '')}copies{place}: "
        f"{time.share(total)}{others}.",
        evidence=(
            *(waits_for(time, COPIES, rank) if rank is not None else ()),
            *(_numbers(row) for row in copies.head(_NAMED).iter_rows(named=True)),
        ),
        advice=_copying(top["direction"], top["memory"] or "", answers),
        total_ns=total,
        rank=rank,
        step=only_step(losses),
        intervals=intervals_of(losses),
    )


#: Directions of copies in a title.
_DIRECTIONS = {
    "HtoD": "host-to-device ",
    "DtoH": "device-to-host ",
    "DtoD": "device-to-device ",
    "PtoP": "peer-to-peer ",
}


def _exposed(answers: Answers) -> pl.DataFrame:
    """Return the kinds of copies with exposed time, longest first."""
    transfers = answers.get("transfers")
    if not isinstance(transfers, Transfers):
        return pl.DataFrame()
    exposed = transfers.copies.filter(pl.col("exposed_ns") > 0)
    return largest_first(exposed, "exposed_ns", "direction", "memory")


def _numbers(row: Mapping[str, Any]) -> str:
    """Return count, size and exposed time of one kind of copies."""
    memory = f" ({row['memory']})" if row["memory"] else ""
    size = f", {format_bytes(row['moved_bytes'])} in total" if row["moved_bytes"] else ""
    count = f"{row['n']:,} {'copy' if row['n'] == 1 else 'copies'}"
    if row["direction"] == "memset":
        count = format_count(row["n"], "memset")
    return f"{row['direction']}{memory}: {count}{size}, {format_ns(row['exposed_ns'])} exposed."


def _copying(direction: str, memory: str, answers: Answers) -> str:
    """Return advice for exposed copies of a direction and memory."""
    if direction == "DtoD":
        return (
            "Avoid device-to-device copies (clone, contiguous, cat, changes of layout or type), or "
            "fuse them into the kernels that use the data; transfers lists the copies."
        )
    pytorch = answers.program.pytorch
    if "Pageable" in memory or not memory:
        pinned = "DataLoader(pin_memory=True), tensor.pin_memory()" if pytorch else "cudaMallocHost"
        start = f"pinned host memory ({pinned}) and"
    else:
        start = "start them earlier on a separate stream with"
    call = ".to(device, non_blocking=True)" if pytorch else "cudaMemcpyAsync"
    text = f"Overlap copies with compute: {start} {call}; transfers lists the copies."
    return in_hip(text) if answers.program.amd else text


@rule(
    "transfers",
    "migrations and page faults of managed memory",
    "time of migrations or of GPU page faults, whichever is larger, as a share of device time",
    {"info": 0.02, "warning": 0.1, "critical": 0.3},
)
def _migrations(result: Transfers, _: Answers) -> Iterator[Measured]:
    rows = result.findings.filter(pl.col("finding").cast(pl.String) == MIGRATIONS)
    if rows.is_empty() or not result.span_ns:
        return
    faults = result.faults.filter("on_gpu")["total_ns"].sum()
    cost = max(int(rows["total_ns"].sum()), int(faults))
    advice = str(rows["advice"][0])
    moved = f"{format_count(int(rows['n'].sum()), 'migration')} move"
    size = format_bytes(int(rows["moved_bytes"].sum()))
    yield Measured(
        size=cost / result.span_ns,
        title=f"Migrations and page faults of managed memory: {format_ns(cost)} "
        f"({format_frac(cost / result.span_ns)} of device time).",
        evidence=(f"{moved} {size}{page_faults(result.faults)}.",),
        advice=f"{advice[:1].upper()}{advice[1:]}.",
        total_ns=cost,
        of="device time",
    )


RULES = (_exposed_copies, _migrations)
