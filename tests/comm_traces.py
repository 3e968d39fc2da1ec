"""Small traces of ranks that communicate, written down event by event."""

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

#: The arguments NCCL kernels carry in modern recordings.
TOLD = ("dtype", "elements_in", "elements_out", "group", "group_size", "group_ranks", "seq")


def device(name: str, ts: int, dur: int | None, **more: Any) -> dict[str, Any]:
    """A piece of device work; ``more`` overrides columns or tells of the collective."""
    return {"kind": "kernel", "name": name, "ts": ts, "dur": dur, "device": 0, "stream": 7, **more}


def host(kind: str, name: str, ts: int, dur: int, **more: Any) -> dict[str, Any]:
    """An event of the main thread, unless ``more`` says otherwise."""
    return {"kind": kind, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, **more}


def step(number: int, ts: int, dur: int) -> dict[str, Any]:
    return host("user_annotation", f"ProfilerStep#{number}", ts, dur)


def trace(events: Iterable[dict[str, Any]], rank: int | None = 0, **meta: Any) -> Trace:
    """A trace of these events, in the schema's order, with its ``collectives``."""
    rows = [{"rank": rank, **event} for event in events]
    told = [
        {"event": number, "collective": _collective(row), **{k: row.get(k) for k in TOLD}}
        for number, row in enumerate(rows)
        if _is_told(row)
    ]
    path = meta.pop("path", f"rank{rank}.json")
    source = Meta(**{"path": path, "format": "test", "rank": rank, "epoch_ns": 0, **meta})
    made = sort_events(
        Trace(
            sources=(source,),
            events=_table("events", rows),
            collectives=_table("collectives", told),
        )
    )
    assert schema.check(made.tables) == []
    return made


def _collective(row: dict[str, Any]) -> str | None:
    if "collective" in row:
        return row["collective"]
    by_name = collective_of_kernel if row["kind"] in DEVICE_WORK else collective_of_word
    return by_name(row["name"])


def _is_told(row: dict[str, Any]) -> bool:
    words = ("nccl", "gloo:", "record_param_comms", "c10d::")
    return any(word in (row["name"] or "") for word in words) or any(key in row for key in TOLD)


def _table(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    types = {c.name: c.dtype for c in schema.TABLES[name] if not c.on_request}
    columns = {key: [row.get(key) for row in rows] for key in types}
    return pl.DataFrame(columns, schema=types)
