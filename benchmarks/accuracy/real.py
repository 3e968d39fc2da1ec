"""Faults injected into real recordings; names and other events do not change.

A fault moves events in time: a map from old to new times stretches a part of the recording or
inserts time while the device is idle. If a rank is delayed, the collectives of all ranks still end
together.
"""

from __future__ import annotations

import bisect
import gzip
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from benchmarks.accuracy.fault import Case, Expected

#: Real recordings are not part of the project.
SHARED = Path(os.environ.get("TRACEANALYZER_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data"
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
#: Times are compared in steps of this many microseconds: timestamps near 10^15 have no fractions.
TICK = 1.0
_COLLECTIVE = re.compile(r"^nccl(Dev)?Kernel|^gloo:all_reduce$")


@dataclass
class Recording:
    """One file."""

    name: str
    document: Any
    events: list[dict[str, Any]] = field(default_factory=list)

    def named(self, pattern: str) -> list[dict[str, Any]]:
        """Return host slices with a matching name, by time."""
        rows = [e for e in self.events if re.search(pattern, e["name"]) and not _on_device(e)]
        return sorted(rows, key=lambda e: e["ts"])

    def device_work(self) -> list[dict[str, Any]]:
        """Return kernels and copies, by time."""
        return sorted((e for e in self.events if _on_device(e)), key=lambda e: e["ts"])

    def collectives(self) -> list[dict[str, Any]]:
        """Return collectives by time: on the device, or those of gloo."""
        rows = [e for e in self.events if _COLLECTIVE.match(e["name"])]
        return sorted(rows, key=lambda e: e["ts"])

    def span_us(self) -> float:
        """Return the time from the first slice to the last."""
        return max(map(end_of, self.events)) - float(min(e["ts"] for e in self.events))

    def idle_in(self, slice_: dict[str, Any]) -> float | None:
        """Return the first moment in a host slice without running or launched device work."""
        moment = slice_["ts"] + TICK
        for launched, end in self.pending():
            if launched > moment:
                break
            moment = max(moment, end + TICK)
        return float(moment) if moment < end_of(slice_) else None

    def pending(self) -> list[tuple[float, float]]:
        """Return launch time and end of device work, by launch."""
        calls = {
            e["args"].get("correlation"): e["ts"]
            for e in self.events
            if str(e.get("cat", "")).lower() in ("cuda_runtime", "cuda_driver", "runtime")
        }
        rows = self.device_work()
        return sorted(
            (min(e["ts"], calls.get(e["args"].get("correlation"), e["ts"])), end_of(e))
            for e in rows
        )

    def warp(self, points: list[tuple[float, float]]) -> None:
        """Move all events by a map from old to new times, linear between its points."""
        points = sorted(points)
        old = [point[0] for point in points]

        def moved(t: float) -> float:
            i = bisect.bisect_right(old, t) - 1
            if i < 0:
                return t
            if i == len(points) - 1:
                return points[i][1] + t - old[i]
            (a, start), (b, end) = points[i], points[i + 1]
            return start + (t - a) * (end - start) / (b - a)

        for event in self.document_events():
            if isinstance(event.get("ts"), int | float) and event["ts"] > 0:
                end = moved(event["ts"] + event.get("dur", 0))
                event["ts"] = round(moved(event["ts"]), 3)
                if "dur" in event:
                    event["dur"] = round(end - event["ts"], 3)

    def insert(self, moments: list[tuple[float, float]]) -> None:
        """Insert time: pairs of a moment and a duration."""
        points, total = [], 0.0
        for at, us in sorted(moments):
            points += [(at, at + total), (at + TICK / 2, at + TICK / 2 + total + us)]
            total += us
        self.warp(points)

    def document_events(self) -> list[dict[str, Any]]:
        """Return all events of the file."""
        events = self.document["traceEvents"] if isinstance(self.document, dict) else self.document
        return list(events)


def end_of(event: dict[str, Any]) -> float:
    """Return the end of a slice."""
    return float(event["ts"] + event["dur"])


def _on_device(event: dict[str, Any]) -> bool:
    return str(event.get("cat", "")).lower() in _DEVICE


def load(place: str) -> list[Recording]:
    """Load the files of a folder, or one file."""
    path = DATA / place
    files = sorted(path.glob("*.json.gz")) if path.is_dir() else [path]
    files = [file for file in files if "key_averages" not in file.name]
    return [_load(file) for file in files]


def _load(path: Path) -> Recording:
    document = orjson.loads(gzip.decompress(path.read_bytes()))
    recording = Recording(path.name.removesuffix(".gz"), document)
    recording.events = [
        e for e in recording.document_events()
        if e.get("ph") == "X" and isinstance(e.get("dur"), int | float) and e.get("cat") != "Trace"
    ]  # fmt: skip
    return recording


def save(recordings: list[Recording], folder: Path) -> None:
    """Write the files."""
    for one in recordings:
        (folder / one.name).write_bytes(orjson.dumps(one.document))


# --- a delayed rank ----------------------------------------------------------------------------


def delay(recordings: list[Recording], late: int, moments: list[tuple[float, float]]) -> None:
    """Insert time on one rank; the collectives that follow end later on all ranks.

    The delay first shortens the wait time of the rank, then the others wait for it.
    """
    straggler, others = recordings[late], [r for i, r in enumerate(recordings) if i != late]
    theirs = [r.collectives() for r in others]
    points: list[tuple[float, float]] = []
    shifts: list[list[tuple[float, float]]] = [[] for _ in others]
    behind = 0.0
    pending = sorted(moments)
    for number, mine in enumerate(straggler.collectives()):
        while pending and pending[0][0] < mine["ts"]:
            at, us = pending.pop(0)
            points += [(at, us)]
            behind += us
        if not behind or any(number >= len(rows) for rows in theirs):
            continue
        last = max(rows[number]["ts"] for rows in theirs)
        slack = min(behind, max(0.0, last - mine["ts"]), 0.95 * mine["dur"])
        points += [(mine["ts"] + TICK, -slack)] if slack > TICK else []
        extra = behind - slack
        for rows, shift in zip(theirs, shifts, strict=True):
            shift.append((end_of(rows[number]) - TICK, extra))
        behind = 0.0
    straggler.warp(_map(points, straggler))
    for one, shift in zip(others, shifts, strict=True):
        one.insert(shift)


def _map(points: list[tuple[float, float]], straggler: Recording) -> list[tuple[float, float]]:
    """Return old and new times: durations are inserted, or (negative) removed from collectives."""
    pairs, total = [], 0.0
    ends = {e["ts"] + TICK: end_of(e) for e in straggler.collectives()}
    for at, us in sorted(points):
        until = at + TICK / 2 if us > 0 else max(at + TICK / 2, ends[at] - TICK)
        pairs += [(at, at + total), (until, until + total + us)]
        total += us
    return pairs


# --- the faults ----------------------------------------------------------------------------------

Inject = Callable[[list[Recording]], Expected]
FAULTS: dict[str, tuple[str, Inject]] = {}


def fault(place: str) -> Callable[[Inject], Inject]:
    """Add a fault in the recording at a place below the data folder."""

    def add(inject: Inject) -> Inject:
        FAULTS[inject.__name__.strip("_").replace("_", "-")] = (place, inject)
        return inject

    return add


RESNET = "chrome/kineto/resnet50_dataloader_workers4.json.gz"
NCCL = "chrome/kineto/nccl_a100_rank0of2.json.gz"
DLRM = "chrome/kineto/dlrm_8ranks"
V100 = "chrome/kineto/v100_absolute_ns_ts.json.gz"
A100 = "chrome/kineto/a100_rank3of8_sendrecv.json.gz"
MI300 = "chrome/kineto/mi300_rank0of8_rccl.json.gz"
B200 = "chrome/kineto/b200_rank0of8_eager.json.gz"
DDP = "chrome/kineto_ddp_cpu/ddp4"
STACKS = "chrome/kineto_ddp_cpu/ddp4_stack"
LOADING = r"(?i)data[ -_]?load|loader|wait_for_batch"
SLOW_KERNELS = (
    r"(?i)slow(er)? (GPU|device)|slow-gpu|throttl|same kernel|kernels? [^.]*(longer|slower)"
)


def lengthen(one: Recording, pattern: str, us: float, which: slice = slice(None)) -> None:
    """Insert time into host slices while the device is idle."""
    moments = [one.idle_in(slice_) for slice_ in one.named(pattern)[which]]
    one.insert([(at, us) for at in moments if at is not None])


@fault(RESNET)
def resnet_loader(files: list[Recording]) -> Expected:
    """Delay each batch by 80 ms."""
    lengthen(files[0], r"^enumerate\(DataLoader\)", 80_000)
    return Expected(LOADING)


@fault(RESNET)
def resnet_loader_in_one_step(files: list[Recording]) -> Expected:
    """Delay the batch of the fifth step."""
    lengthen(files[0], r"^enumerate\(DataLoader\)", 300_000, slice(4, 5))
    return Expected(LOADING, steps=(9,))


@fault(RESNET)
def resnet_pageable_copies(files: list[Recording]) -> Expected:
    """The copies of batches from pageable memory take 60 ms."""
    copies = [e for e in files[0].device_work() if "HtoD" in e["name"] and e["dur"] > 100]
    files[0].insert([(e["ts"] + e["dur"] / 2, 60_000) for e in copies])
    return Expected(r"(?i)pageable|pinned|cop(y|ies)")


@fault(NCCL)
def a100_optimizer_on_host(files: list[Recording]) -> Expected:
    """The host waits in the optimizer in each step."""
    lengthen(files[0], r"^Optimizer\.step", 150_000)
    return Expected(r"(?i)host|launch", place=r"(?i)Optimizer\.step|## optimizer ##")


@fault(NCCL)
def a100_allocations(files: list[Recording]) -> Expected:
    """The allocator calls cudaFree and cudaMalloc in each step."""
    added_calls(files[0], ("cudaFree", "cudaMalloc"), 120_000)
    return Expected(r"(?i)memory[ -]management|alloc", place="cudaMalloc|cudaFree")


def added_calls(one: Recording, names: tuple[str, ...], us: float) -> None:
    """Insert calls at the start of the optimizer of each step."""
    anchors = one.named(r"^## optimizer ##")
    moments = [anchor["ts"] + TICK for anchor in anchors]
    one.insert([(at, us) for at in moments])
    rows = one.document_events()
    for number, (at, anchor) in enumerate(zip(moments, anchors, strict=True)):
        start = at + number * us
        for i, name in enumerate(names):
            ids = {"cbid": 20, "correlation": 90_000_000 + 10 * number + i}
            when = {"ts": round(start + i * us / len(names) + 1, 3), "dur": us / len(names) - 3}
            lane = {"pid": anchor["pid"], "tid": anchor["tid"]}
            rows.append(
                {"ph": "X", "cat": "cuda_runtime", "name": name, **lane, **when, "args": ids}
            )
    one.document["traceEvents"] = rows


@fault(NCCL)
def a100_checkpoint(files: list[Recording]) -> Expected:
    """A checkpoint is written after the second of three steps."""
    one = files[0]
    anchor = one.named(r"^ProfilerStep#5")[0]
    at = end_of(anchor) - 20
    one.insert([(at, 400_000)])
    rows = one.document_events()
    lane = {"pid": anchor["pid"], "tid": anchor["tid"]}
    row = {"ph": "X", "cat": "user_annotation", "name": "save_checkpoint", **lane}
    rows.append({**row, "ts": at + 1, "dur": 399_990.0, "args": {}})
    one.document["traceEvents"] = rows
    return Expected(r"(?i)checkpoint|\bsav(e|ing)", steps=(5,))


def throttle(one: Recording, step: int, factor: float) -> None:
    """Stretch the recording from a step on."""
    start = one.named(rf"^ProfilerStep#{step}$")[0]["ts"]
    end = max(map(end_of, one.events))
    one.warp([(start, start), (end, start + (end - start) * factor)])


@fault(V100)
def v100_throttled(files: list[Recording]) -> Expected:
    """The GPU throttles in the last two steps."""
    throttle(files[0], 104, 1.8)
    return Expected(SLOW_KERNELS, steps=(104, 105))


@fault(A100)
def a100_throttled(files: list[Recording]) -> Expected:
    """The GPU throttles in the last two steps."""
    throttle(files[0], 1013, 1.8)
    return Expected(SLOW_KERNELS, steps=(1013, 1014))


@fault(MI300)
def mi300_throttled(files: list[Recording]) -> Expected:
    """The GPU throttles in the last step."""
    throttle(files[0], 17, 2.0)
    return Expected(SLOW_KERNELS, steps=(17,))


@fault(B200)
def b200_module_loading(files: list[Recording]) -> Expected:
    """Loading of kernels takes 8 ms each time."""
    lengthen(files[0], r"^Lazy Function Loading", 8_000)
    return Expected(r"(?i)module[ -]loading|lazy|code of kernels")


@fault(DLRM)
def dlrm_late_batch(files: list[Recording]) -> Expected:
    """Rank 5 waits for its batch."""
    anchor = files[5].named(r"^## wait_for_batch ##")[0]
    delay(files, 5, [(anchor["ts"] + 1, 9_000)])
    return Expected(LOADING, rank=5)


@fault(DLRM)
def dlrm_late_copy(files: list[Recording]) -> Expected:
    """Rank 3 copies its batch to the GPU later."""
    anchor = files[3].named(r"^## copy_batch_to_gpu ##")[0]
    delay(files, 3, [(anchor["ts"] + 1, 9_000)])
    return Expected(r"(?i)copy_batch_to_gpu|cop(y|ies)", rank=3)


@fault(DLRM)
def dlrm_slow_gpu(files: list[Recording]) -> Expected:
    """All kernels of rank 2 take ten times as long (the job is not bound by them)."""
    one = files[2]
    collectives = one.collectives()
    work = [
        e for e in one.device_work()
        if not any(c["ts"] < end_of(e) and e["ts"] < end_of(c) for c in collectives)
    ]  # fmt: skip
    delay(files, 2, [(e["ts"] + e["dur"] / 2, 9 * e["dur"]) for e in work])
    return Expected(SLOW_KERNELS, rank=2)


@fault(DLRM)
def dlrm_slow_link(files: list[Recording]) -> Expected:
    """All collectives take longer after the last rank has arrived."""
    for one in files:
        one.insert([(end_of(e) - TICK, 2_500) for e in one.collectives()])
    return Expected(
        r"(?i)slow[ -](link|collective|network|communication)|bandwidth|took long on all ranks"
    )


@fault(DDP)
def gloo_late_loader(files: list[Recording]) -> Expected:
    """Rank 1 waits 150 ms for the batches of two steps."""
    rows = files[1].named(r"^enumerate\(DataLoader\)")
    delay(files, 1, [(e["ts"] + e["dur"] / 2, 150_000) for e in rows[2:4]])
    return Expected(LOADING, rank=1)


@fault(STACKS)
def gloo_late_optimizer(files: list[Recording]) -> Expected:
    """Rank 0 stays in its optimizer for 200 ms in two steps."""
    rows = files[0].named(r"^Optimizer\.step")
    delay(files, 0, [(e["ts"] + e["dur"] / 2, 200_000) for e in rows[1:3]])
    return Expected(r"(?i)Optimizer\.step|optim", rank=0)


def cases() -> list[tuple[str, Callable[[], Case]]]:
    """Return a function that creates each case; nothing if the recordings are missing."""
    return [(name, partial(_case, name)) for name in FAULTS] if DATA.is_dir() else []


def _case(name: str) -> Case:
    place, inject = FAULTS[name]
    files = load(place)
    before = max(one.span_us() for one in files)
    expected = inject(files)
    cost = 1 - before / max(one.span_us() for one in files)
    write, unchanged = partial(save, files), partial(save, load(place))
    return Case(name, "real", 0, place, (expected,), max(0.0, cost), write, unchanged)
