"""Random traces that satisfy the schema, and every analysis of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from trace_rows import table

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.analyzers import registry
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.trace import sort_events
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, KINDS

_EDGES = (0, 1, -1, (1 << 31) - 1, -(1 << 31), 1 << 53, (1 << 63) - 1, -(1 << 63))
_TIMES = (0, -1, 10**9, 10**18, -(10**18), schema.LAST_NS, -schema.LAST_NS)
_HOSTILE = ("", " ", "\x1b[31m\n", "<script>", "$\\frac{1}{$", "=1+1", "a" * 5000, "スレッド", "%s")
_NCCL = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
)
_STEPS = (*(f"ProfilerStep#{n}" for n in range(5)), "Iteration 3", "step 2", "train_step_9")
_NAMES = {
    "kernel": (
        *_NCCL,
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>()",
        "ampere_sgemm_128x64_tn",
        "triton_poi_fused_add_0",
        "k",
    ),
    "gpu_memcpy": ("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy"),
    "gpu_memset": ("Memset (Device)",),
    "gpu_user_annotation": (*_STEPS, "nccl:all_reduce"),
    "cuda_runtime": (
        *("cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemcpy", "cudaMalloc"),
        *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaGraphLaunch", "cudaFree"),
        *("cudaEventSynchronize", "cudaStreamWaitEvent", "cudaHostAlloc"),
    ),
    "cuda_driver": ("cuLaunchKernel", "cuStreamSynchronize", "cuMemAlloc_v2"),
    "cuda_sync": ("Stream Sync", "Context Sync", "Event Sync", "Stream Wait Event"),
    "cpu_op": (
        *("aten::mm", "aten::add", "aten::item", "aten::to", "record_param_comms"),
        *("c10d::allreduce_", "gloo:all_reduce", "autograd::engine::evaluate_function: MmBackward"),
    ),
    "user_annotation": (
        *_STEPS,
        *("nccl:all_reduce", "gloo:all_reduce", "Optimizer.step#Adam.step", "## train ##"),
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    ),
    "python_function": (
        *("train.py(12): step", "torch/nn/modules/module.py(1518): _call_impl", "<built-in len>"),
        "torch/utils/data/dataloader.py(628): __next__",
    ),
    "nvtx": (*_STEPS, "ncclAllReduce", "aten::mm, seq = 1", "forward"),
    "osrt": ("poll", "sem_wait", "pthread_cond_wait", "read"),
    "mpi": ("MPI_Allreduce", "MPI_Wait"),
    "cpu_instant_event": ("[memory]", "mark"),
    "overhead": ("Activity Buffer Request", "CUPTI_OVERHEAD"),
}
_FRAMES = (
    ("main", "/home/ada/train.py"),
    ("_call_impl", "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"),
    ("__next__", "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py"),
    ("<module>", "train.py"),
    ("at::native::add", None),
    ("", ""),
)
#: Kinds by frequency: those that analyses use most.
_OFTEN = (
    *("kernel",) * 8,
    *("gpu_memcpy", "cuda_runtime", "cpu_op", "user_annotation") * 4,
    *("python_function", "cpu_instant_event", "sample", "alloc", "free_completed") * 2,
    *(kind for kind in KINDS if kind not in ALLOCATOR_KINDS),
    *ALLOCATOR_KINDS,
)


class Maker:
    """Generator of one trace; the columns with odd values are chosen once per trace."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.oddity = chance.choice((0.0, 0.0, 0.05, 0.5))
        self.nulls = chance.choice((0.0, 0.02, 0.3))
        self.scale = chance.choice((1, 1_000, 1_000_000, 1_000_000_000_000))
        self.kinds = self._kinds()
        self.ranks = chance.choice(((None,), (0,), (0, 1), (0, 1, None), range(2000), (-3, 7)))
        self.origin = chance.choice((0, 0, 10**15, -(10**9), schema.LAST_NS - 50 * self.scale))
        self.timeless = chance.random() < 0.1
        self.linked = chance.choice((0.0, 0.9))

    def _kinds(self) -> Sequence[str]:
        if self.chance.random() < 0.5:
            return _OFTEN
        return [self.chance.choice(_OFTEN) for _ in range(self.chance.randrange(1, 5))]

    def number(self, *usual: int | None) -> int | None:
        """Return a usual value, None, or a limit of Int64."""
        dice = self.chance.random()
        if dice < self.oddity:
            return self.chance.choice(_EDGES)
        return None if dice > 1 - self.nulls else self.chance.choice(usual)

    def size(self, *usual: int | None, frees: bool = False) -> int | None:
        """Return the same for a column of sizes; negative ones are frees."""
        value = self.number(*usual)
        most = schema.MAX_BYTES - 1
        return None if value is None else max(-most if frees else 0, min(value, most))

    def address(self) -> int:
        return abs(self.number(0, 512, 1 << 40) or 0)

    def small(self, *usual: int | None) -> int | None:
        """Return the same for a column of Int32."""
        value = self.number(*usual)
        return None if value is None else max(min(value, (1 << 31) - 1), -(1 << 31))

    def text(self, *usual: str | None) -> str | None:
        dice = self.chance.random()
        if dice < self.oddity:
            return self.chance.choice(_HOSTILE)
        return None if dice > 1 - self.nulls else self.chance.choice(usual)

    def real(self, *usual: float | None) -> float | None:
        if self.chance.random() < self.oddity:
            return self.chance.choice((0.0, -1.0, 1e300, -1e300, 1e-300, None))
        return self.chance.choice(usual)

    def weight(self) -> float | None:
        value = self.real(1.0, 2.5)
        return None if value is None else max(0.0, min(value, float(schema.MAX_WEIGHT)))

    def span(self, kind: str) -> tuple[int | None, int | None]:
        """Return start and duration of an event."""
        if self.timeless and kind in schema.TIMELESS_KINDS:
            return None, None
        ticks = self.chance.choice((0, 1, 1, 2, 5, 30))
        start = self.origin + self.scale * self.chance.randrange(40)
        ts, dur = start, self.number(ticks * self.scale)
        if self.chance.random() < self.oddity:
            ts = self.chance.choice(_TIMES)
            dur = None if dur is None else self.chance.choice(_TIMES)
        if dur is not None:
            dur = max(-schema.LAST_NS, min(ts + dur, schema.LAST_NS)) - ts
            dur = max(-schema.MAX_DURATION_NS, min(dur, schema.MAX_DURATION_NS))
        return ts, None if kind in ALLOCATOR_KINDS else dur

    def events(self, count: int) -> list[dict[str, Any]]:
        """Return rows of ``events``, some of them linked."""
        rows = []
        for number in range(count):
            one = self.event()
            rows.append(one)
            if self.chance.random() < self.linked:
                rows += self.linked_rows(one, 100 + number)
        return rows

    def linked_rows(self, one: dict[str, Any], number: int) -> list[dict[str, Any]]:
        """Return the launch call of device work, or the free of an allocation."""
        later = {
            **one,
            "ts": one["ts"] and min(one["ts"] + self.scale, schema.LAST_NS),
            "dur": None,
        }
        if one["kind"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            one["correlation"] = number
            earlier = max(one["ts"] - self.scale * self.chance.randrange(9), -schema.LAST_NS)
            name, tid = self.text(*_NAMES["cuda_runtime"]), self.number(100)
            call = {"kind": "cuda_runtime", "name": name, "tid": tid, "device": None}
            return [{**one, **call, "stream": None, "ts": earlier, "dur": 0}]
        if one["kind"] == "alloc":
            return [{**later, "kind": "free_requested"}, {**later, "kind": "free_completed"}]
        if one["name"] == "[memory]" and one["bytes"]:
            return [{**later, "bytes": -one["bytes"]}]
        return []

    def event(self) -> dict[str, Any]:
        """Return a row of ``events``, mostly a realistic one."""
        kind = self.chance.choice(self.kinds)
        on_device = kind in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
        ts, dur = self.span(kind)
        device = self.small(0, 0, 0, 1) if on_device or kind in ALLOCATOR_KINDS else None
        return {
            "ts": ts,
            "dur": dur,
            "kind": kind,
            "category": self.text(kind),
            "name": self.text(*_NAMES.get(kind, (kind,))),
            "rank": self.chance.choice(self.ranks),
            "pid": self.number(100, 100, 200),
            "tid": None if on_device else self.number(100, 100, 101),
            "device": device,
            "stream": self.number(7, 7, 20) if on_device else None,
            "correlation": self.number(*range(1, 9)),
            "external_id": self.number(None, *range(1, 5)),
            "bytes": self.size(
                None,
                512,
                4096,
                1 << 30,
                -512,
                frees=kind in (*ALLOCATOR_KINDS, "cpu_instant_event"),
            ),
            "address": self.address() if device is not None else None,
            "stack": self.chance.choice((None, *range(6))),
            "weight": self.weight() if kind == "sample" else None,
            "args": self.text(None, '{"stream": 7}', "{"),
            "input_dims": self.text(None, "[[2, 3], []]", "[["),
            "input_types": self.text(None, '["float", "Scalar"]', '["fl'),
            "concrete_inputs": self.text(None, '["", "1"]', "["),
        }

    def stacks(self) -> list[dict[str, Any]]:
        rows = []
        for row, (name, file) in enumerate(_FRAMES):
            parent = self.chance.choice((None, *range(row)))
            line = self.small(None, 12)
            rows.append({"id": row, "parent": parent, "name": name, "file": file, "line": line})
        return rows

    def collective(self, event: int) -> dict[str, Any]:
        return {
            "event": event,
            "collective": self.text("all_reduce", "all_gather", "send", "barrier"),
            "dtype": self.text("Float", "BFloat16", "unheard"),
            "elements_in": self.size(0, 1024, 1 << 30),
            "elements_out": self.size(0, 1024, 1 << 30),
            "group": self.text("0", "tp", "default_pg"),
            "group_size": self.small(1, 2, 8, 0),
            "group_ranks": self.text("[0, 1]", "[0, ..., 7]", "", "[[", "0,1"),
            "seq": self.number(None, *range(4)),
        }

    def memory(self, event: int) -> dict[str, Any]:
        return {
            "event": event,
            "device_type": self.small(0, 1, 1),
            "allocated_bytes": self.size(0, 4096, 1 << 33),
            "reserved_bytes": self.size(0, 8192, 1 << 34),
            "free_bytes": self.size(None, 0, 1 << 20),
        }

    def counter(self) -> dict[str, Any]:
        return {
            "ts": self.origin + self.scale * self.chance.randrange(40),
            "name": self.text("cpu", "disk_bytes", "GPU Metrics") or "",
            "series": self.text("cpu0_percent", "read_bytes", "SM Active") or "",
            "rank": self.chance.choice(self.ranks),
            "pid": self.number(None, 100),
            "value": self.real(0.0, 50.0, 1e12) or 0.0,
        }

    def flow(self, events: int) -> dict[str, Any]:
        return {
            "ts": self.origin + self.scale * self.chance.randrange(40),
            "phase": self.chance.choice(("start", "step", "end")),
            "category": self.text("ac2g", "fwdbwd"),
            "name": self.text("ac2g"),
            "flow": self.chance.randrange(3),
            "rank": self.chance.choice(self.ranks),
            "pid": self.number(100) or 0,
            "tid": self.number(100) or 0,
            "event": self.chance.randrange(events) if events else None,
        }

    def segment(self, row: int) -> dict[str, Any]:
        size = self.size(0, 512, 1 << 21) or 0
        return {
            "id": row,
            "rank": self.chance.choice(self.ranks),
            "device": self.small(0, 1) or 0,
            "address": (row + 1) << 30,
            "total_bytes": size,
            "allocated_bytes": self.size(size, 0) or 0,
            "active_bytes": self.size(size, 0) or 0,
            "stream": self.number(0, 7),
            "pool": self.text(None, "1:0"),
            "segment_type": self.text("small", "large"),
            "expandable": self.chance.choice((None, True, False)),
            "stack": self.chance.choice((None, *range(6))),
        }

    def block(self, segments: int) -> dict[str, Any]:
        segment = self.chance.randrange(segments)
        return {
            "segment": segment,
            "address": ((segment + 1) << 30) + self.chance.choice((0, 512, 4096)),
            "size_bytes": self.size(512, 4096, 0) or 0,
            "requested_bytes": self.size(None, 500),
            "state": self.text("active_allocated", "inactive", "active_pending_free") or "",
            "stack": self.chance.choice((None, *range(6))),
        }

    def lane(self) -> dict[str, Any]:
        return {
            "rank": self.chance.choice(self.ranks),
            "pid": self.number(100, 200),
            "tid": self.number(None, 100, 101),
            "label": self.text("python", "thread 101 (MainThread)"),
            "labels": self.text(None, "GPU 0", "CPU"),
            "sort_index": self.number(None, 0),
            "textual": self.chance.choice((True, False)),
        }

    def issue(self) -> dict[str, Any]:
        return {
            "severity": self.chance.choice(("info", "notice", "data_loss", "error")),
            "code": self.text("truncated", "no-time") or "",
            "count": self.number(1, 20) or 0,
            "first": self.text(None, "byte 7"),
            "rank": self.chance.choice(self.ranks),
        }

    def meta(self) -> ta.Meta:
        device = ta.Device(0, self.text("NVIDIA H100"), self.size(None, 80 << 30))
        return ta.Meta(
            path=self.chance.choice(("a/rank0.json", "b/rank1.json", "x")),
            format=self.chance.choice(("chrome-trace", "nsys-sqlite", "memory-snapshot")),
            epoch_ns=self.chance.choice((None, 0, 1_700_000_000_000_000_000, 1 << 62)),
            start_ns=self.chance.choice((None, self.origin)),
            rank=self.chance.choice(self.ranks),
            world_size=self.small(None, 2, 8, 0),
            devices=self.chance.choice(((), (device,))),
            host=self.text(None, "node-1"),
            backend=self.chance.choice((None, "nccl", "gloo")),
            weight_unit=self.chance.choice((None, "samples", "ns", "bytes")),
        )

    def trace(self, most: int) -> ta.Trace:
        few = self.chance.randrange
        count = few(most + 1)
        drop = self.chance.choice(((), ON_REQUEST))
        rows = self.events(count)
        count = len(rows)
        events = table("events", *rows, drop=drop)
        segments = [self.segment(row) for row in range(few(4))]
        blocks = [self.block(len(segments)) for _ in range(few(6) if segments else 0)]
        tables = {
            "stacks": self.stacks(),
            "launch_configs": [self.launch_shape(row) for row in range(count) if few(2)],
            "collectives": [self.collective(row) for row in range(count) if few(3)],
            "memory_totals": [self.memory(row) for row in range(count) if few(3)],
            "lanes": [self.lane() for _ in range(few(4))],
            "flows": [self.flow(count) for _ in range(few(4))],
            "counters": [self.counter() for _ in range(few(12))],
            "segments": segments,
            "blocks": blocks,
            "issues": [self.issue() for _ in range(few(3))],
        }
        frames = {name: table(name, *rows) for name, rows in tables.items()}
        return sort_events(ta.Trace(sources=(self.meta(),), events=events, **frames))

    def launch_shape(self, event: int) -> dict[str, Any]:
        axes = {f"{of}_{axis}": self.small(1, 128) for of in ("grid", "block") for axis in "xyz"}
        more = {"registers": self.small(32), "shared_memory": self.number(0)}
        return {"event": event, **axes, **more}


def any_trace(chance: Random, most: int = 40) -> ta.Trace:
    """Return a random trace of up to ``most`` events that satisfies the schema."""
    trace = Maker(chance).trace(most)
    wrong = schema.check(trace.tables)
    assert not wrong, wrong
    return trace


Question = Callable[[Any], Any]

#: Every analysis with the options that change its computation.
QUESTIONS: dict[str, Question] = {
    "annotations": ta.annotations,
    "annotations by rank": partial(ta.annotations, by="rank"),
    "cuda api": ta.cuda_api,
    "comm outliers": ta.comm_outliers,
    "diagnose": ta.diagnose,
    "diff": lambda traces: ta.diff(traces, traces),
    "comm outliers, all": partial(ta.comm_outliers, factor=1.0, z=0.0, min_wait_ns=0),
    "flamegraph": ta.flamegraph,
    "flamegraph, all kinds": partial(ta.flamegraph, kinds=("kernel", "cpu_op"), by="rank"),
    "flamegraph, counted": partial(ta.flamegraph, weight="count", inverted=True),
    "flamegraph, compared": lambda traces: ta.flamegraph(traces, base=traces),
    "gpu idle": ta.gpu_idle,
    "gpu idle, every gap": partial(ta.gpu_idle, min_gap_ns=0, by="step"),
    "host metrics": ta.host_metrics,
    "kernels": ta.kernels,
    "launches": ta.launches,
    "memory": ta.memory,
    "memory diff": lambda traces: ta.memory_diff(traces, traces),
    "memory growth": ta.memory_growth,
    "memory growth, by events": partial(ta.memory_growth, step_every=3),
    "memory oom": ta.memory_oom,
    "modules": ta.modules,
    "modules by pattern": partial(ta.modules, patterns=".", depth=2),
    "operators": ta.operators,
    "operators by shape and stack": partial(
        ta.operators, group_by_input_shape=True, group_by_stack=3
    ),
    "overlap": ta.overlap,
    "overlap by step": partial(ta.overlap, by="step"),
    "py spy report": ta.py_spy_report,
    "py spy report, by function": partial(ta.py_spy_report, group_by="function", rate=100.0),
    "py spy report, paths": partial(ta.py_spy_report, aggregate_leaf_paths=True, by="thread"),
    "steps": ta.steps,
    "steps by name": partial(ta.steps, step_name="."),
    "transfers": ta.transfers,
}
for _entry in registry.public():  # new analyses are included automatically
    QUESTIONS.setdefault(_entry.name.replace("_", " "), _entry.function())
