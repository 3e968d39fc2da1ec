"""Small traces of communicating ranks, given event by event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from traceanalyzer import schema
from traceanalyzer.trace import Meta, Trace, sort_events
from traceanalyzer.vocabulary import DEVICE_WORK, collective_of_kernel, collective_of_word

US = 1_000
MS = 1_000_000

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)"
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "void gemm<128>(float*)"

#: Arguments of NCCL kernels in recent recordings.
RECORDED = (
    *("dtype", "elements_in", "elements_out"),
    *("group", "group_size", "group_ranks", "seq", "peer", "splits_in", "splits_out"),
)


def device(name: str, ts: int, dur: int | None, **more: Any) -> dict[str, Any]:
    """Return a device event; ``more`` overrides columns or describes the collective."""
    return {"kind": "kernel", "name": name, "ts": ts, "dur": dur, "device": 0, "stream": 7, **more}


def host(kind: str, name: str, ts: int, dur: int, **more: Any) -> dict[str, Any]:
    """Return an event, by default of the main thread."""
    return {"kind": kind, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, **more}


def step(number: int, ts: int, dur: int) -> dict[str, Any]:
    return host("user_annotation", f"ProfilerStep#{number}", ts, dur)


def trace(events: Iterable[dict[str, Any]], rank: int | None = 0, **meta: Any) -> Trace:
    """Return a trace of these events in the order of the schema, with its ``collectives``."""
    rows = [{"rank": rank, **event} for event in events]
    recorded = [
        {"event": number, "collective": _collective(row), **{k: row.get(k) for k in RECORDED}}
        for number, row in enumerate(rows)
        if _is_recorded(row)
    ]
    path = meta.pop("path", f"rank{rank}.json")
    source = Meta(**{"path": path, "format": "test", "rank": rank, "epoch_ns": 0, **meta})
    result = sort_events(
        Trace(
            sources=(source,),
            events=_table("events", rows),
            collectives=_table("collectives", recorded),
        )
    )
    assert schema.check(result.tables) == []
    return result


def _collective(row: dict[str, Any]) -> str | None:
    if "collective" in row:
        return row["collective"]
    by_name = collective_of_kernel if row["kind"] in DEVICE_WORK else collective_of_word
    return by_name(row["name"])


def _is_recorded(row: dict[str, Any]) -> bool:
    parts = ("nccl", "gloo:", "record_param_comms", "c10d::")
    return any(part in (row["name"] or "") for part in parts) or any(key in row for key in RECORDED)


def _table(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    given = {key for row in rows for key in row}
    columns = schema.TABLES[name]
    types = {c.name: c.dtype for c in columns if not c.on_request or c.name in given}
    values = {key: [row.get(key) for row in rows] for key in types}
    return pl.DataFrame(values, schema=types)
