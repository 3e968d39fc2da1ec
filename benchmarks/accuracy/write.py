"""Write the events of a simulation as Kineto's Chrome JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from benchmarks.accuracy.simulator import START_US, Event, Job, Rank

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))
from kineto_text import span_events  # type: ignore[import-not-found]

_DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
_GPUS = {
    "NVIDIA H100 80GB HBM3": {"totalGlobalMem": 84_942_979_072, "computeMajor": 9, "numSms": 132},
    "NVIDIA A100-SXM4-80GB": {"totalGlobalMem": 85_094_825_984, "computeMajor": 8, "numSms": 108},
    "NVIDIA GeForce RTX 4090": {"totalGlobalMem": 25_386_352_640, "computeMajor": 8, "numSms": 128},
}


def write_kineto(job: Job, ranks: list[Rank], folder: Path) -> None:
    """Write a file for each rank, named like those of ``tensorboard_trace_handler``."""
    for rank in ranks:
        text = orjson.dumps(_document(job, rank))
        if rank.rank in job.truncated:
            text = text[: int(len(text) * job.truncated_at)]
        (
            folder / f"host{rank.rank // job.gpus_per_host}_{rank.pid}.{rank.rank}.pt.trace.json"
        ).write_bytes(text)


def _document(job: Job, rank: Rank) -> dict[str, Any]:
    return {**_header(job, rank), "traceEvents": _metadata(job, rank) + _slices(job, rank)}


def _header(job: Job, rank: Rank) -> dict[str, Any]:
    gpus = [
        {"id": i, "name": job.gpu, "computeMinor": 0, **_GPUS[job.gpu]}
        for i in range(min(job.gpus_per_host, job.world))
    ]
    header: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": gpus}
    if job.world > 1:
        header["distributedInfo"] = _distributed(job, rank)
    extra = {"record_shapes": int(job.shapes), "with_stack": int(job.stacks)}
    return {
        **header,
        **{name: value for name, value in extra.items() if value},
        "cuda_runtime_version": 12080,
        "cuda_driver_version": 12080,
        "trace_id": f"{job.seed % 2**32:024X}{rank.rank:08X}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
        "traceName": f"./trace_{rank.rank}.json",
        "host_name": f"host{rank.rank // job.gpus_per_host}",
    }


def _distributed(job: Job, rank: Rank) -> dict[str, Any]:
    mine = {g.name: g for groups in job.groups.values() for g in groups if rank.rank in g.ranks}
    everyone = list(range(job.world))
    config = [
        {"pg_name": g.name, "pg_desc": g.description, "backend_config": "cuda:nccl"}
        | {"pg_size": len(g.ranks), "ranks": list(g.ranks)}
        for g in mine.values()
    ]
    if "0" not in mine:
        world = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}
        config.insert(0, {**world, "pg_size": job.world, "ranks": everyone})
    info = {"backend": "nccl", "rank": rank.rank, "world_size": job.world}
    return {**info, "pg_count": len(config), "pg_config": config, "nccl_version": "2.27.3"}


def _metadata(job: Job, rank: Rank) -> list[dict[str, Any]]:
    ts, pid = START_US - 50, rank.pid
    rows: list[tuple[str, int, int, dict[str, object]]] = [
        ("process_name", pid, 0, {"name": "python"}),
        ("process_labels", pid, 0, {"labels": "CPU"}),
        ("process_sort_index", pid, 0, {"sort_index": pid}),
        ("thread_name", pid, pid, {"name": f"thread {pid} (python)"}),
        ("thread_name", pid, pid + 31, {"name": f"thread {pid + 31} (pt_autograd_0)"}),
    ]
    if rank.rank not in job.untraced:
        rows += [
            ("process_name", rank.device, 0, {"name": "python"}),
            ("process_labels", rank.device, 0, {"labels": f"GPU {rank.device}"}),
        ]
        streams = sorted({event[3] for event in rank.events if event[0] == "kernel"})
        rows += [("thread_name", rank.device, s, {"name": f"stream {s} "}) for s in streams]
    return [
        {"name": name, "ph": "M", "ts": ts, "pid": pid, "tid": tid, "args": args}
        for name, pid, tid, args in rows
    ]


def _slices(job: Job, rank: Rank) -> list[dict[str, Any]]:
    skew = job.skew_us.get(rank.rank // job.gpus_per_host, 0.0)
    events: list[Event] = rank.events
    if rank.rank in job.untraced:
        events = [
            event
            for event in events
            if event[0] not in _DEVICE_KINDS and not event[0].startswith("cuda")
        ]
    rows: list[dict[str, Any]] = [
        {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid,
         "ts": round(ts + skew, 3), "dur": round(dur, 3), "args": args}
        for kind, name, pid, tid, ts, dur, args in events
    ]  # fmt: skip
    end = max(event[4] + event[5] for event in events) + skew
    start = START_US - 50 + skew
    rows += span_events(round(start, 3), round(end, 3))
    return rows
