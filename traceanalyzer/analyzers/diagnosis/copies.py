"""Rules about copies: those that nothing hides, and managed memory that migrates."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.diagnosis.device_time import (
    COPIES,
    intervals_of,
    only_rank,
    only_step,
)
from traceanalyzer.analyzers.diagnosis.idle import in_steps, waits_for
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, rule
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.analyzers.transfers.result import ADVICE, MIGRATIONS, Transfers, page_faults
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

#: So many things are named.
_NAMED = 3


@rule(
    "overlap",
    "copies run while neither compute nor communication does",
    "exposed copies and sets, and wait time of other ranks for them, as a share of step time (of "
    "the recorded time, where no steps are marked)",
    {"warning": 0.05, "critical": 0.2},
    uses=("comm_outliers", "gpu_idle", "transfers"),
)
def _exposed_copies(_: Overlap, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    losses = time.of_cause(COPIES)
    total = int(losses["lost_ns"].sum())
    if not total:
        return
    ways, rank = _ways(answers), only_rank(losses)
    top = ways.row(0, named=True) if ways.height else {"direction": "", "memory": ""}
    main = _WAYS.get(top["direction"], "") if ways.height else ""
    where = in_steps(losses, time, rank)
    size = f"{format_frac(time.frac(total))} of {time.of} ({time.text(total)})"
    title = f"Copies{main} run{where} while no kernel does: {size}."
    if rank is not None and losses["waited"].any():
        title = (
            f"Copies{main} run{where} on rank {rank} while no kernel does, and the other ranks "
            f"wait for it: {size}."
        )
    yield Measured(
        size=time.frac(total),
        title=title,
        evidence=(
            *(waits_for(time, COPIES, rank) if rank is not None else ()),
            *(_of_way(row) for row in ways.head(_NAMED).iter_rows(named=True)),
        ),
        advice=_copying(top["direction"], top["memory"] or "", answers),
        total_ns=total,
        rank=rank,
        step=only_step(losses),
        intervals=intervals_of(losses),
    )


#: Directions of copies in a sentence.
_WAYS = {
    "HtoD": " from the host to the device",
    "DtoH": " from the device to the host",
    "DtoD": " within the device",
    "PtoP": " between devices",
}


def _ways(answers: Answers) -> pl.DataFrame:
    """The kinds of copies without a kernel beside them, the most such time first."""
    found = answers.get("transfers")
    if not isinstance(found, Transfers):
        return pl.DataFrame()
    exposed = found.copies.filter(pl.col("exposed_ns") > 0)
    return largest_first(exposed, "exposed_ns", "direction", "memory")


def _of_way(row: Mapping[str, Any]) -> str:
    memory = f" ({row['memory']})" if row["memory"] else ""
    size = f" of {format_bytes(row['moved_bytes'])} in total" if row["moved_bytes"] else ""
    count = f"{row['n']:,} {'copy' if row['n'] == 1 else 'copies'}"
    if row["direction"] == "set":
        count = format_count(row["n"], "memset")
    alone = f"{format_ns(row['exposed_ns'])} without a kernel"
    return f"{row['direction']}{memory}: {count}{size}, {alone}."


def _copying(direction: str, memory: str, answers: Answers) -> str:
    """What may help against exposed copies, by their direction and memory."""
    if direction == "DtoD":
        return (
            "Avoid copies within the device (clone, contiguous, concatenation, changes of layout "
            "or type), or fuse them into the kernels that use the data; transfers lists them."
        )
    pytorch = answers.program.pytorch
    if "Pageable" in memory or not memory:
        pinned = "DataLoader(pin_memory=True), tensor.pin_memory()" if pytorch else "cudaMallocHost"
        start = f"Pinned host memory ({pinned}) and asynchronous copies let"
    else:
        start = "Asynchronous copies on a separate stream, started earlier, let"
    how = " with .to(device, non_blocking=True)" if pytorch else " with cudaMemcpyAsync"
    return f"{start} them run beside compute{how}; transfers lists them."


@rule(
    "transfers",
    "managed memory migrates when it is touched",
    "time of migrations and of GPU page faults, the larger, as a share of the devices' time",
    {"info": 0.02, "warning": 0.1, "critical": 0.3},
)
def _migrations(result: Transfers, _: Answers) -> Iterator[Measured]:
    rows = result.findings.filter(pl.col("finding").cast(pl.String) == MIGRATIONS)
    if rows.is_empty() or not result.span_ns:
        return
    faults = result.faults.filter("on_gpu")["total_ns"].sum()
    cost = max(int(rows["total_ns"].sum()), int(faults))
    moved = f"{format_count(int(rows['n'].sum()), 'migration')} move"
    size = format_bytes(int(rows["moved_bytes"].sum()))
    yield Measured(
        size=cost / result.span_ns,
        title=f"Migrations and page faults of managed memory take {format_ns(cost)}, "
        f"{format_frac(cost / result.span_ns)} of the devices' time.",
        evidence=(f"{moved} {size}{page_faults(result.faults)}.",),
        advice=f"{ADVICE[MIGRATIONS][:1].upper()}{ADVICE[MIGRATIONS][1:]}.",
        total_ns=cost,
    )


RULES = (_exposed_copies, _migrations)
