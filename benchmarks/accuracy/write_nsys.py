"""Write the events of a simulation like ``nsys export --type sqlite``, one process per rank."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from typing import Any

from benchmarks.accuracy.simulator import START_US, Event, Job, Rank

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))
from make_nsys import (  # type: ignore[import-not-found]
    ALL_REDUCE_SCHEMA,
    COMMUNICATOR,
    NCCL,
    Process,
    describe,
    payload,
    serialised,
    set_up,
)
from nsys_tables import Export  # type: ignore[import-not-found]

_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
_STEP = re.compile(r"ProfilerStep#(\d+)")
_CALLS = {"allreduce": "ncclAllReduce"}
#: Annotations of PyTorch itself, which nsys has only inside ``emit_nvtx``.
_OF_PYTORCH = re.compile(r"enumerate\(|Optimizer\.|DistributedDataParallel|FSDP::|nccl:")


def write_nsys(job: Job, ranks: list[Rank], folder: Path) -> None:
    """Write one export for all ranks of a host."""
    export = Export(folder / "report.sqlite")
    describe(export, "host0")
    for rank in ranks:
        process = Process(export, rank.rank, 1_000_000)
        if job.world > 1:
            set_up(process, job.world)
        else:
            export.add("TARGET_INFO_GPU", id=0, name=job.gpu, totalMemory=80 << 30, cuDevice=0)
            export.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=process.pid)
        for event in rank.events:
            _add(export, process, rank, event)
    export.close()


def _add(export: Any, process: Any, rank: Rank, event: Event) -> None:
    kind, name, _pid, tid, ts, dur, args = event
    start = 5_000_000 + round((ts - START_US) * 1000)
    when = {"start": start, "end": start + round(dur * 1000)}
    thread = serialised(process.pid, process.pid + (tid - rank.pid if tid >= rank.pid else 0))
    if kind in ("cuda_runtime", "cuda_driver"):
        ids = {"globalTid": thread, "correlationId": args["correlation"]}
        text = export.string(f"{name}_v3020")
        export.add("CUPTI_ACTIVITY_KIND_RUNTIME", **when, **ids, nameId=text)
    elif kind == "kernel":
        _kernel(export, process, name, when, args)
    elif kind == "gpu_memcpy":
        way = next(way for way in _COPY_KINDS if way in name)
        host = 0 if "Pageable" in name else 1
        kinds = {"HtoD": (host, 2), "DtoH": (2, host), "DtoD": (2, 2)}[way]
        more = {"copyKind": _COPY_KINDS[way], "srcKind": kinds[0], "dstKind": kinds[1]}
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            **when, **_on_device(process, args), **more, bytes=args["bytes"],
        )  # fmt: skip
    elif kind == "mpi":
        handle = {"globalTid": thread, "commHandle": 91, "size": 1 << 20}
        export.add("MPI_COLLECTIVES_EVENTS", textId=export.string(name), **when, **handle)
    elif kind == "user_annotation":
        _range(process, name, when, thread)
    elif name == "record_param_comms" and args["Collective name"] in _CALLS:
        payload_bytes = struct.pack("<QQQ", COMMUNICATOR, 2 * args["In msg nelems"], 0)
        values = {"globalTid": thread, "binaryData": payload(ALL_REDUCE_SCHEMA, payload_bytes)}
        name = _CALLS[args["Collective name"]]
        process.range(when["start"], when["end"], name, NCCL, **values)


def _on_device(process: Any, args: dict[str, Any]) -> dict[str, int]:
    return {
        "deviceId": 0,
        "contextId": 1,
        "streamId": args["stream"],
        "correlationId": args["correlation"],
        "globalPid": serialised(process.pid),
    }


def _kernel(export: Any, process: Any, name: str, when: dict[str, int], args: Any) -> None:
    grid, block = args["grid"], args["block"]
    sizes = {f"grid{axis}": size for axis, size in zip("XYZ", grid, strict=True)}
    sizes |= {f"block{axis}": size for axis, size in zip("XYZ", block, strict=True)}
    short = re.split(r"[<(]", name.removeprefix("void "))[0].rsplit("::", 1)[-1]
    graph = {"graphNodeId": 1} if "graph node id" in args else {}
    export.add(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        **when, **_on_device(process, args), **sizes, **graph, registersPerThread=64,
        demangledName=export.string(name), shortName=export.string(short),
    )  # fmt: skip


def _range(process: Any, name: str, when: dict[str, int], thread: int) -> None:
    step = _STEP.fullmatch(name)
    if step or not _OF_PYTORCH.match(name):
        text = f"step {step[1]}" if step else name
        process.range(when["start"], when["end"], text, globalTid=thread)
