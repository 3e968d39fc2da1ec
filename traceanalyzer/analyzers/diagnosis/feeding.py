"""Rules about the host: launches that come too late, and calls that hold it up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import polars as pl

from traceanalyzer.analyzers.api_calls import CudaApi
from traceanalyzer.analyzers.api_calls.findings import (
    ALLOC_IN_LOOP,
    ASYNC_PAGEABLE,
    FINDINGS,
    SYNC_MEMCPY,
    SYNC_MEMSET,
)
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule
from traceanalyzer.analyzers.launches import Launches
from traceanalyzer.analyzers.launches.needs import SHORT_KERNEL_NS
from traceanalyzer.units import format_bytes, format_frac, format_ns

_CALLS = {
    ASYNC_PAGEABLE: ("pageable-copies", "asynchronous copies from or to pageable memory block"),
    SYNC_MEMCPY: ("synchronous-copies", "copies by synchronous calls hold the host up"),
    SYNC_MEMSET: ("synchronous-sets", "sets of memory by synchronous calls hold the host up"),
    ALLOC_IN_LOOP: ("allocation-in-loop", "memory is allocated or freed between launches"),
}


def rules() -> tuple[Rule, ...]:
    """Launch-bound stretches, and each of the calls that hold the host up."""
    return (
        Rule(
            "launch-bound",
            "launches",
            "devices run out of work again and again because the host launches too slowly",
            "waiting for launches as a share of the devices' time",
            {"warning": 0.05, "critical": 0.2},
            _launch_bound,
        ),
        *(
            Rule(
                rule,
                "cuda_api",
                looks_for,
                "time of the host in these calls, as a share of its recorded time",
                {"info": 0.01, "warning": 0.05, "critical": 0.25},
                partial(_calls, finding),
            )
            for finding, (rule, looks_for) in _CALLS.items()
        ),
    )


def _launch_bound(result: Launches, _: Answers) -> Iterator[Measured]:
    if not result.waiting_ns or not result.span_ns:
        return
    share = result.waiting_ns / result.span_ns
    yield Measured(
        size=share,
        title=f"Launch-bound: for {format_frac(share)} of the devices' time "
        f"({format_ns(result.waiting_ns)}) they wait for the host's next launch.",
        evidence=tuple(_of_launches(result)),
        advice='Fewer and larger launches: CUDA graphs, torch.compile(mode="reduce-overhead"), '
        "fused or foreach optimizers, larger batches; and no .item(), .cpu() or print in the loop, "
        "so that the host can run ahead.",
        cost_ns=result.waiting_ns,
        cost_frac=share,
    )


def _of_launches(result: Launches) -> Iterator[str]:
    if result.kernels:
        short = result.short_kernels / result.kernels
        yield (
            f"{format_frac(short)} of the kernels are shorter than {format_ns(SHORT_KERNEL_NS)}."
        )
    named = result.places.drop_nulls("place")
    if named.height:
        sums = named.group_by("place").agg(pl.col("waiting_ns").sum())
        place, waiting = sums.sort("waiting_ns", "place", descending=[True, False]).row(0)
        yield f"{format_frac(waiting / result.waiting_ns)} of the waiting is in {place}."
    if result.synchronised_ns:
        share = result.synchronised_ns / result.waiting_ns
        yield f"{format_frac(share)} of it lies around calls that wait for the device."


def _calls(finding: str, result: CudaApi, _: Answers) -> Iterator[Measured]:
    for row in result.findings.filter(pl.col("finding").cast(pl.String) == finding).rows(
        named=True
    ):
        share = row["host_ns"] / result.span_ns if result.span_ns else 0.0
        moved = row["moved_bytes"]
        yield Measured(
            size=share,
            title=f"{row['n']:,} {FINDINGS[finding].told(row['n'])} took the host "
            f"{format_ns(row['host_ns'])}, {format_frac(share)} of its time.",
            evidence=(f"They moved {format_bytes(moved)}.",) if moved else (),
            advice=f"{row['advice'][:1].upper()}{row['advice'][1:]}.",
            cost_ns=row["host_ns"],
            cost_frac=share,
            of="the host's time",
            confidence="medium",  # the host may have had time to spare
        )
