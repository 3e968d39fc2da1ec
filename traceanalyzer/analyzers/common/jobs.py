"""Detection of recordings of different jobs by the metadata of the files."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zlib import crc32

import polars as pl

from traceanalyzer.analyzers.common.display import short_paths
from traceanalyzer.trace import Trace, of_kinds
from traceanalyzer.units import NS_PER_S, format_count, format_first
from traceanalyzer.vocabulary import DEVICE_WORK, MEMORY_SNAPSHOT, NSYS, ROCPD

#: Ranks of one job record the same steps. Recordings further apart than this share no step,
#: regardless of the clocks of the hosts.
_APART_NS = 3_600 * NS_PER_S

#: Times from this value on (2001) are times since 1970, even if the file does not specify it.
_ABSOLUTE_NS = 10**18

_HOST_KINDS = ("cpu_op", "user_annotation")

_VENDORS = (
    ("AMD", re.compile(r"\bAMD\b|Radeon|Instinct|\bMI\d{2,3}", re.IGNORECASE)),
    ("NVIDIA", re.compile(r"NVIDIA|Tesla|GeForce|Quadro", re.IGNORECASE)),
)
_VENDOR_OF = {NSYS: "NVIDIA", ROCPD: "AMD"}

#: With fewer names of kernels, programs are not told apart by them.
_LEAST_KERNELS = 3

#: Maximum number of files per job and of jobs in the sentence.
_NAMED = 3
_NAMED_JOBS = 5


@dataclass(frozen=True)
class Recording:
    """Metadata of a file about the job of one rank; None if not recorded.

    Attributes:
        path: path of the file.
        rank: global rank.
        world_size: number of ranks in the job.
        backend: backend of the default process group.
        vendor: vendor of the GPUs, ``NVIDIA`` or ``AMD``.
        gpu: name of the GPUs, if it is the same for all.
        kernels: checksums of the names of compute kernels without arguments, unless they are few.
        pids: host processes, if each rank is one process.
        start_ns: start of the first event, since 1970.
        end_ns: end of the last event, since 1970.
    """

    path: str
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    vendor: str | None = None
    gpu: str | None = None
    kernels: frozenset[int] | None = None
    pids: frozenset[int] = frozenset()
    start_ns: int | None = None
    end_ns: int | None = None


def recording(trace: Trace) -> Recording:
    """Return the metadata of the trace of one rank about its job."""
    return trace.once("recording", lambda: _recording(trace))


def _recording(trace: Trace) -> Recording:
    meta = trace.meta
    host = of_kinds(_HOST_KINDS)
    end = pl.col("ts") + pl.col("dur").fill_null(0)
    recorded = host | of_kinds(DEVICE_WORK)
    start_ns, end_ns, pids = trace.events.select(
        pl.col("ts").filter(recorded).min(),
        end=end.filter(recorded).max(),
        pids=pl.col("pid").filter(host).unique().implode(),
    ).row(0)
    shift = meta.epoch_ns or 0
    # a snapshot may be written long after the recorded steps
    is_timeline = meta.format != MEMORY_SNAPSHOT
    absolute = is_timeline and start_ns is not None and start_ns + shift >= _ABSOLUTE_NS
    # an nsys file has the rank of the process that launched the recorded processes
    one_process = meta.world_size is not None and meta.backend is not None
    gpus = {device.name for device in meta.devices if device.name}
    named = next((v for v, pattern in _VENDORS if any(map(pattern.search, gpus))), None)
    kernels = _kernels(trace)
    return Recording(
        path=meta.path,
        rank=meta.rank,
        world_size=meta.world_size,
        backend=meta.backend,
        vendor=named or _VENDOR_OF.get(meta.format),
        gpu=min(gpus) if len(gpus) == 1 else None,
        kernels=kernels if len(kernels) >= _LEAST_KERNELS else None,
        pids=frozenset(pid for pid in pids if pid is not None) if one_process else frozenset(),
        start_ns=start_ns + shift if absolute else None,
        end_ns=end_ns + shift if absolute else None,
    )


def _kernels(trace: Trace) -> frozenset[int]:
    names = trace.events[:, ["kind", "name"]].filter(pl.col("kind") == "kernel")["name"].unique()
    sums = map(_checksum, names.cast(pl.String))
    return frozenset(one for one in sums if one is not None)


@lru_cache(1 << 16)
def _checksum(kernel: str | None) -> int | None:
    """Return the checksum of a kernel's name without arguments; None for communication."""
    function = re.match(r"(?:void )?([^<(]+)", kernel or "")
    if function is None or re.search("nccl|rccl", kernel or "", re.IGNORECASE):
        return None
    return crc32(function[1].encode())


def several_jobs(recordings: Iterable[Recording]) -> str:
    """Return a sentence with the files of each job; empty if all can be from one job.

    Recordings are from different jobs if their world sizes, backends or GPU vendors differ, if they
    are more than an hour apart, or if different processes recorded the same rank. Unless
    both have one world size above 1, they are so too if their GPUs differ, or if they have no
    kernel in common. Missing metadata matches any value.
    """
    ordered = sorted(recordings, key=lambda one: (one.start_ns or 0, one.path))
    jobs = [run for job in _compatible(ordered) for run in _runs(job)]
    if len(jobs) < 2:
        return ""
    paths = pl.Series([one.path for one in ordered], dtype=pl.String)
    names = dict(zip(paths, short_paths(paths), strict=True))
    facts = [_facts(job) for job in jobs]
    differ = [len(set(column)) > 1 for column in zip(*facts, strict=True)]
    differ[_PROCESS] &= sum(differ) == 1
    each = []
    for job, row in zip(jobs[:_NAMED_JOBS], facts, strict=False):
        known = [fact for fact, differs in zip(row, differ, strict=True) if fact and differs]
        files = format_first(list(dict.fromkeys(names[one.path] for one in job)), _NAMED)
        each.append(f"{files} ({', '.join(known)})" if known else files)
    more = len(jobs) - _NAMED_JOBS
    return (
        f"The files are of {len(jobs):,} different jobs, whose ranks cannot be compared: "
        f"{'; '.join(each)}{f'; and {more:,} more' if more > 0 else ''}. "
        "Run the command once for each job, with the files of that job only"
        f"{_comparing(jobs)}.{_same_rank(ordered)}"
    )


def _comparing(jobs: Sequence[Sequence[Recording]]) -> str:
    """Suggest ``diff`` for two files, which may be of one training before and after a change."""
    paths = list(dict.fromkeys(one.path for job in jobs for one in job))
    return f", or compare two runs: traceanalyzer diff {' '.join(paths)}" * (
        len(jobs) == len(paths) == 2
    )


def _same_rank(ordered: Sequence[Recording]) -> str:
    """Return the sentence on processes that recorded one rank at the same time; empty without any.

    Processes of one job have different ranks: their rank was not set, or they wrote the same files.
    """
    last: dict[int, Recording] = {}
    for one in ordered:
        if one.rank is None or one.start_ns is None:
            continue
        other = last.get(one.rank)
        apart = other is None or not other.pids or not one.pids or bool(other.pids & one.pids)
        if other and not apart and one.start_ns < (other.end_ns or 0):
            return (
                f" Rank {one.rank} is recorded by several processes at the same time: if they are "
                "of one job, set the rank of each before the profiler writes its file, and write "
                "one file per rank."
            )
        last[one.rank] = one
    return ""


def _compatible(ordered: Sequence[Recording]) -> list[list[Recording]]:
    """Return groups of recordings without conflicting metadata."""
    spans = _time_spans(ordered)
    keys = [
        (one.world_size, one.backend, one.vendor, span, one.gpu, one.kernels)
        for one, span in zip(ordered, spans, strict=True)
    ]
    groups: list[list[tuple[Any, ...]]] = []
    # keys with the most metadata come first: the others match more groups
    for key in sorted(dict.fromkeys(keys), key=lambda key: key.count(None)):
        group = next((g for g in groups if all(_agree(key, other) for other in g)), None)
        if group is None:
            groups.append(group := [])
        group.append(key)
    return [
        [one for one, key in zip(ordered, keys, strict=True) if key in group] for group in groups
    ]


def _agree(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether all known values are equal, or have something in common.

    The ranks of a job with a world size may differ in GPUs and kernels, which come last.
    """
    known = one[0] == other[0] and (one[0] or 0) > 1
    pairs = list(zip(one, other, strict=True))[: -2 if known else None]
    return all(
        None in (a, b) or a == b or (isinstance(a, frozenset) and not a.isdisjoint(b))
        for a, b in pairs
    )


def _time_spans(ordered: Sequence[Recording]) -> list[int | None]:
    """Return the number of the time span of each recording; cycles of a process share one."""
    spans: list[int | None] = []
    of_process: dict[tuple[int | None, int], int] = {}
    last, end_ns = 0, None
    for one in ordered:
        if one.start_ns is None or one.end_ns is None:
            spans.append(None)
            continue
        known = [of_process[one.rank, pid] for pid in one.pids if (one.rank, pid) in of_process]
        if known:
            last = known[0]
        elif end_ns is not None and one.start_ns > end_ns + _APART_NS:
            last = max(span for span in spans if span is not None) + 1
        of_process |= {(one.rank, pid): last for pid in one.pids}
        spans.append(last)
        end_ns = max(end_ns or 0, one.end_ns)
    return spans


def _runs(job: Sequence[Recording]) -> list[list[Recording]]:
    """Return the runs of a job, which have different processes for the same rank.

    A rank that some of the runs lack has the runs that began at the nearest times, in their order.
    """
    of_rank: dict[int | None, list[list[Recording]]] = {}
    for one in job:
        known = of_rank.setdefault(one.rank, [])
        process = next((run for run in known if run[0].pids & one.pids), None)
        is_new = not known or (one.pids and one.rank is not None)
        if process is None and is_new:
            known.append([one])
        else:
            (process or known[0]).append(one)
    begins = [_begins(known) for known in of_rank.values()]
    most = max(begins, key=len)
    runs: list[list[Recording]] = [[] for _ in most]
    for known, of_known in zip(of_rank.values(), begins, strict=True):
        for number, run in _nearest(of_known, most).items():
            runs[run] += known[number]
    return [sorted(run, key=lambda one: (one.start_ns or 0, one.path)) for run in runs]


def _begins(processes: Sequence[Sequence[Recording]]) -> list[int | None]:
    return [process[0].start_ns for process in processes]


def _nearest(begins: Sequence[int | None], runs: Sequence[int | None]) -> dict[int, int]:
    """Return the number of the run of each process, each once and in order, nearest in sum."""

    def apart(number: int, run: int) -> int:
        process, begin = begins[number], runs[run]
        return 0 if process is None or begin is None else abs(process - begin)

    spare = len(runs) - len(begins)
    # the least sums of the first processes among the first runs
    sums: list[list[float]] = [[0] * (len(runs) + 1)]
    for number in range(len(begins)):
        least = [math.inf] * (len(runs) + 1)
        for run in range(number, number + spare + 1):
            least[run + 1] = min(least[run], sums[number][run] + apart(number, run))
        sums.append(least)
    chosen, run = {}, len(runs)
    for number in reversed(range(len(begins))):
        run = min(run, number + spare + 1)
        while sums[number + 1][run] == sums[number + 1][run - 1]:
            run -= 1
        chosen[number] = run = run - 1
    return chosen


#: Index of the process in :func:`_facts`; it is named only if nothing else differs.
_PROCESS = 3


def _facts(job: Sequence[Recording]) -> tuple[str | None, ...]:
    """Return world size, backend, vendor, process and time of a job as texts."""
    first = {
        name: next((value for one in job if (value := getattr(one, name)) is not None), None)
        for name in ("world_size", "backend", "gpu", "vendor", "start_ns")
    }
    world, start_ns = first["world_size"], first["start_ns"]
    pid = min((pid for one in job for pid in one.pids), default=None)
    return (
        None if world is None else format_count(world, "rank"),
        first["backend"],
        first["gpu"] or first["vendor"],
        None if pid is None else f"process {pid}",
        None
        if start_ns is None
        else f"{datetime.fromtimestamp(start_ns / NS_PER_S, UTC):%Y-%m-%d %H:%M} UTC",
    )
