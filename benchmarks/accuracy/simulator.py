"""Discrete simulation of a job: per rank a host clock, a launch queue, CUDA streams, collectives.

A program is a generator for each rank. It moves the host clock of its rank, launches device work,
and yields at every collective. The simulation goes on with a rank when all ranks of the group have
launched the collective, because only then its end is known; the host of the rank does not wait.
Times are microseconds.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Args = dict[str, Any]
#: category, name, pid, tid, start, duration, arguments.
Event = tuple[str, str, int, int, float, float, Args]
Program = Iterator["Arrival"]
Hook = Callable[["Rank", int, int], Program | None]

START_US = 4_363_300_000_000.0
COMPUTE = 7
QUEUE_LENGTH = 1024
LATENCY_US = 5.0  # from the launch call to the earliest start on the device
GAP_US = 1.1  # between two kernels of one stream


@dataclass(frozen=True)
class Group:
    """A process group: name, description, global ranks, the CUDA stream of its communicator."""

    name: str
    description: str
    ranks: tuple[int, ...]
    stream: int
    gbps: float


@dataclass
class Job:
    """Program, hardware and recording options of a job, and the hooks of faults.

    Attributes:
        family: ``data-parallel``, ``sharded``, ``pipeline``, ``single`` or ``inference``.
        seed: fixes all random choices.
        groups: process groups by purpose, one list for each.
        shapes, stacks, marks: what the profiler records: input shapes, Python stacks, steps.
        kernel_factor: multiplies the duration of a kernel: rank, time, step.
        copy_factor: multiplies the duration of a copy: rank, way.
        transfer_factor: multiplies the transfer time of a collective: group, step.
        hooks: functions that run at a named place of the program, by place.
        options: how the program trains or serves (``programs.Options``).
        skew_us: by how much the clock of a host runs ahead, by host.
        untraced: ranks whose GPU is not recorded.
        truncated: ranks whose file is cut off at ``truncated_at`` of its length.
        mark: name of the range of a step.
        device_marks: annotations are recorded on the device, too (``gpu_user_annotation``).
        recorded_from: share of the run after which the recording begins.
        late_us: by how much later a rank begins.
    """

    family: str
    seed: int
    world: int
    steps: range
    gpus_per_host: int = 8
    gpu: str = "NVIDIA H100 80GB HBM3"
    shapes: bool = False
    stacks: bool = False
    marks: bool = True
    mark: str = "ProfilerStep#{}"
    layers: int = 2
    tokens: int = 8192
    width: int = 2048
    op_us: float = 4.0
    call_us: float = 4.5
    groups: dict[str, list[Group]] = field(default_factory=dict)
    kernel_factor: Callable[[Rank, float, int], float] = lambda *_: 1.0
    copy_factor: Callable[[Rank, str], float] = lambda *_: 1.0
    transfer_factor: Callable[[Group, int], float] = lambda *_: 1.0
    hooks: defaultdict[str, list[Hook]] = field(default_factory=lambda: defaultdict(list))
    options: Any = None
    skew_us: dict[int, float] = field(default_factory=dict)
    untraced: frozenset[int] = frozenset()
    truncated: frozenset[int] = frozenset()
    truncated_at: float = 2 / 3
    device_marks: bool = True
    recorded_from: float = 0.0
    late_us: dict[int, float] = field(default_factory=dict)

    def at(self, place: str, hook: Hook) -> None:
        """Run a function at a place of the program."""
        self.hooks[place].append(hook)

    def group(self, purpose: str, rank: int) -> Group:
        """The process group of a purpose that has the rank."""
        return next(group for group in self.groups[purpose] if rank in group.ranks)


@dataclass
class Arrival:
    """A collective launched by one rank; ``end`` is set after the last rank of the group."""

    key: tuple[str, int]
    members: int
    start: float
    transfer_us: float
    end: float = 0.0


class Rank:
    """One process and its GPU: clocks, streams, and the recorded events."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.dice = random.Random(f"{job.seed} {rank}")
        self.device = rank % job.gpus_per_host
        self.pid = self.tid = 41_200 + 97 * rank
        self.now = START_US + 40 * self.dice.random() + job.late_us.get(rank, 0.0)
        self.step = -1
        self.slower = 1.0  # factor of the time of host operations
        self.sampled = 0.0  # end of the last copy of sampled tokens
        self.events: list[Event] = []
        self.free: defaultdict[int, float] = defaultdict(float)
        self.queued: deque[float] = deque()
        self.sequence: defaultdict[str, int] = defaultdict(int)
        self.external, self.correlation, self.frame_id = 0, 4_000, 0
        self.open: list[int] = []
        # annotations that are open: their thread, and the device work in them by stream
        self.marked: list[tuple[int, dict[int, tuple[float, float]]]] = []
        self.frames: list[int | None] = [None]

    # --- host ---

    def about(self, us: float, spread: float = 0.03) -> float:
        """Return a time with noise."""
        return us * (1 + spread * (2 * self.dice.random() - 1))

    def pause(self, us: float) -> None:
        """Spend host time without an event."""
        self.now += us

    @contextmanager
    def span(self, kind: str, name: str, args: Args | None = None) -> Iterator[None]:
        """Record an operator (``cpu_op``) or annotation around the body."""
        self.now += self.slower * self.about(self.job.op_us / 4)
        self.external += 1
        external, start, tid = self.external, self.now, self.tid
        self.open.append(external)
        marked: dict[int, tuple[float, float]] = {}
        if kind == "user_annotation":
            self.marked.append((tid, marked))
        yield
        self.open.pop()
        if kind == "user_annotation":
            self.marked.pop()
        for stream, (first, last) in marked.items() if self.job.device_marks else ():
            lane = (self.device, stream, first - 0.001, last - first + 0.002)
            note = {"External id": external}
            self.events.append(("gpu_user_annotation", name, *lane, note))
        self.now += self.slower * self.about(self.job.op_us / 4)
        ids = {"External id": external, "Record function id": 0, **(args or {})}
        self.events.append((kind, name, self.pid, tid, start, self.now - start, ids))

    def op(
        self, name: str, dims: list[list[int]] | None = None, kind: str = "c10::BFloat16"
    ) -> Any:
        """Record an operator, with its input shapes if enabled."""
        args: Args = {}
        if dims is not None and self.job.shapes:
            args = {"Input Dims": dims, "Input type": [kind] * len(dims)}
            args["Concrete Inputs"] = [""] * len(dims)
        return self.span("cpu_op", name, args)

    def range(self, name: str) -> Any:
        """Record an annotation (``record_function``)."""
        return self.span("user_annotation", name)

    @contextmanager
    def frame(self, *names: str) -> Iterator[None]:
        """Record Python frames, the outermost first, if stacks are enabled."""
        if not self.job.stacks:
            yield
            return
        begun = []
        for name in names:
            self.now += 0.3
            self.frame_id += 1
            begun.append((name, self.frame_id, self.frames[-1], self.now))
            self.frames.append(self.frame_id)
        yield
        for name, frame, parent, start in reversed(begun):
            self.now += 0.2
            self.frames.pop()
            args: Args = {"Python parent id": parent, "Python id": frame}
            if name.startswith("nn.Module"):
                args["Python module id"] = 0
            self.events.append(
                ("python_function", name, self.pid, self.pid, start, self.now - start, args)
            )

    def call(self, name: str, us: float | None = None, waits: float = 0.0, **args: object) -> float:
        """Record a call of the CUDA runtime, which first waits; return the end of that wait."""
        start = self.now
        self.now += waits + self.slower * self.about(self.job.call_us if us is None else us, 0.1)
        self._record_call(name, start, args)
        self.now += 0.4
        return start + waits

    def _record_call(self, name: str, start: float, args: Args) -> None:
        self.correlation += 1
        ids: Args = {"cbid": _CBID.get(name, 211), "correlation": self.correlation, **args}
        if self.open:
            ids = {"External id": self.open[-1], **ids}
        kind = "cuda_driver" if name.startswith("cu") and name[2:3].isupper() else "cuda_runtime"
        self.events.append((kind, name, self.pid, self.tid, start, self.now - start, ids))

    def overhead(self, name: str, us: float) -> None:
        """Record overhead of the profiler or the driver on the host."""
        self.events.append(("overhead", name, -1, 0, self.now, us, {}))
        self.now += us

    def synchronize(self, name: str = "cudaStreamSynchronize", stream: int | None = None) -> None:
        """Wait on the host for one stream or for the device."""
        start = self.now
        done = self.free[stream] if stream is not None else max(self.free.values(), default=0.0)
        self.now = max(self.now + 1.5, done + 3.0)
        self._record_call(name, start, {})

    def wait_until(self, done: float, name: str = "cudaEventSynchronize") -> None:
        """Wait on the host for an event of the device."""
        start = self.now
        self.now = max(self.now + 1.5, done + 3.0)
        self._record_call(name, start, {})

    def run_hooks(self, place: str, layer: int = 0) -> Program:
        """Run the hooks of faults at a place of the program."""
        for hook in self.job.hooks.get(place, ()):
            more = hook(self, self.step, layer)
            if more is not None:
                yield from more

    # --- device ---

    def launch(self, kernel: str, us: float, stream: int = COMPUTE, **args: object) -> float:
        """Launch a kernel; return its end."""
        factor = self.job.kernel_factor(self, max(self.now, self.free[stream]), self.step)
        return self._enqueue(kernel, self.about(us) * factor, stream, args)

    def _enqueue(self, kernel: str, us: float, stream: int, args: Args) -> float:
        start = self._start(self.call("cudaLaunchKernel", waits=self._full_queue()), stream)
        self._record_kernel(kernel, start, us, stream, args)
        return start + us

    def _full_queue(self) -> float:
        """Return how long a launch waits until the queue has room for it."""
        while self.queued and self.queued[0] <= self.now:
            self.queued.popleft()
        return self.queued.popleft() - self.now if len(self.queued) >= QUEUE_LENGTH else 0.0

    def _start(self, call: float, stream: int) -> float:
        start = max(call + self.about(LATENCY_US, 0.2), self.free[stream] + GAP_US)
        self.queued.append(start)
        return start

    def _record_kernel(self, name: str, start: float, us: float, stream: int, args: Args) -> None:
        ids: Args = {"device": self.device, "context": 1, "stream": stream}
        ids |= {"correlation": self.correlation, "queued": 0, "registers per thread": 64}
        ids |= {"shared memory": 0, "grid": [132, 1, 1], "block": [256, 1, 1], **args}
        if self.open:
            ids = {"External id": self.open[-1], **ids}
        self._occupy("kernel", name, stream, start, us, ids)

    def _occupy(
        self, kind: str, name: str, stream: int, start: float, us: float, ids: Args
    ) -> None:
        """Record device work on a stream, and in the annotations of its thread."""
        self.events.append((kind, name, self.device, stream, start, us, ids))
        self.free[stream] = start + us
        for tid, marked in self.marked:
            if tid == self.tid:
                first, last = marked.get(stream, (start, start))
                marked[stream] = (min(first, start), max(last, start + us))

    def graph(self, kernels: list[tuple[str, float]]) -> None:
        """Launch a CUDA graph: one call, all kernels with its correlation id."""
        start = self._start(self.call("cudaGraphLaunch", 25.0), COMPUTE)
        for name, us in kernels:
            took = self.about(us) * self.job.kernel_factor(self, start, self.step)
            self._record_kernel(name, start, took, COMPUTE, {"graph node id": 0})
            start += took + GAP_US * 0.7

    def copy(self, way: str, size: int, *, pinned: bool = True, wait: bool = False) -> None:
        """Copy between host and device: ``HtoD``, ``DtoH`` or ``DtoD``."""
        source, target = {"HtoD": ("{}", "Device"), "DtoH": ("Device", "{}")}.get(
            way, ("Device", "Device")
        )
        memory = "Pinned" if pinned else "Pageable"
        name = f"Memcpy {way} ({source} -> {target})".format(memory)
        gbps = 1200.0 if way == "DtoD" else 50.0 if pinned else 6.0
        us = self.about(1.2 + size / gbps / 1000) * self.job.copy_factor(self, way)
        start = self.now
        begin = max(start + self.about(LATENCY_US, 0.2), self.free[COMPUTE] + GAP_US)
        # a pageable copy returns when the driver has read (or written) the host's memory
        blocks = not pinned and way != "DtoD"
        self.now = begin + us + 2.0 if blocks else start + self.job.call_us
        self._record_call("cudaMemcpyAsync", start, {})
        ids: Args = {"device": self.device, "context": 1, "stream": COMPUTE, "bytes": size}
        ids |= {"correlation": self.correlation, "memory bandwidth (GB/s)": size / us / 1000}
        if self.open:
            ids = {"External id": self.open[-1], **ids}
        self._occupy("gpu_memcpy", name, COMPUTE, begin, us, ids)
        if wait:
            self.synchronize(stream=COMPUTE)

    def wait_stream(self, waiting: int, other: int) -> None:
        """Let a stream wait for the queued work of another one."""
        self.call("cudaEventRecord", 0.8)
        self.call("cudaStreamWaitEvent", 0.8)
        if self.free[other] > self.free[waiting]:
            self.free[waiting] = self.free[other]

    def collective(
        self,
        what: Collective,
        group: Group,
        elements: int,
        stream: int | None = None,
        after_compute: bool = True,
    ) -> Program:
        """Launch a collective on the stream of the group, or on the given one."""
        lane = group.stream if stream is None else stream
        self.sequence[group.name] += 1
        peers = [r for r in group.ranks if r != self.rank]
        args = collective_args(what, group, elements)
        name = what.annotation.format(rank=self.rank, peer=peers[0] if peers else 0)
        with self.span("cpu_op", "record_param_comms", args), self.range(name):
            if lane != COMPUTE and after_compute:
                self.wait_stream(lane, COMPUTE)
            waits = self._full_queue()
            start = self._start(self.call("cudaLaunchKernelExC", 6.0, waits), lane)
            us = transfer_us(what, group, elements) * self.job.transfer_factor(group, self.step)
            key = (group.name, self.sequence[group.name])
            arrival = Arrival(key, len(group.ranks), start, self.about(us, 0.04))
            yield arrival
            device_args = {**args, "grid": [24, 1, 1], "block": [544, 1, 1]}
            end = arrival.end + 0.7 * self.dice.random()
            note = self.open.pop()  # the kernel belongs to record_param_comms
            self._record_kernel(what.kernel, start, end - start, lane, device_args)
            self.open.append(note)

    def host_collective(self, name: str, group: Group, us: float) -> Program:
        """Run a collective on the host: all ranks leave it together."""
        self.sequence[name] += 1
        start = self.now
        arrival = Arrival((name, self.sequence[name]), len(group.ranks), start, self.about(us))
        yield arrival
        self.now = arrival.end + 0.7 * self.dice.random()
        self.events.append(("mpi", name, self.pid, self.tid, start, self.now - start, {}))


@dataclass(frozen=True)
class Collective:
    """A collective as PyTorch and NCCL name it; ``wire`` is bytes on the link per message byte."""

    word: str
    annotation: str
    kernel: str
    wire: Callable[[int], float]
    gathers: bool = False
    scatters: bool = False
    latency_us: float = 14.0


def transfer_us(what: Collective, group: Group, elements: int) -> float:
    """Time of a transfer after the last rank has arrived; two bytes for each element."""
    size = 2 * elements * what.wire(len(group.ranks))
    return max(what.latency_us + 1.2 * len(group.ranks), size / group.gbps / 1000)


def collective_args(what: Collective, group: Group, elements: int) -> Args:
    """Return the arguments that PyTorch records for a collective."""
    world = len(group.ranks)
    return {
        "Collective name": what.word,
        "In msg nelems": elements // world if what.gathers else elements,
        "Out msg nelems": elements // world if what.scatters else elements,
        "Group size": world,
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": str(list(group.ranks)),
    }


_CBID = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cudaMemcpyAsync": 41,
    "cudaStreamSynchronize": 131, "cudaDeviceSynchronize": 165, "cudaMalloc": 20, "cudaFree": 22,
    "cudaEventRecord": 135, "cudaStreamWaitEvent": 147, "cudaGraphLaunch": 311,
}  # fmt: skip


def simulate(job: Job, program: Callable[[Rank], Program]) -> list[Rank]:
    """Run the program on all ranks; return them with their events.

    Raises:
        RuntimeError: ranks wait for each other forever.
    """
    ranks = [Rank(job, number) for number in range(job.world)]
    ready = deque(program(rank) for rank in ranks)
    waiting: defaultdict[tuple[str, int], list[tuple[Program, Arrival]]] = defaultdict(list)
    while ready:
        running = ready.popleft()
        arrival = next(running, None)
        if arrival is None:
            continue
        there = waiting[arrival.key]
        there.append((running, arrival))
        if len(there) == arrival.members:
            end = max(a.start for _, a in there) + there[0][1].transfer_us
            for program_of_rank, a in there:
                a.end = end
                ready.append(program_of_rank)
            del waiting[arrival.key]
    if waiting:
        raise RuntimeError(f"{sorted(waiting)} never complete")
    return ranks
