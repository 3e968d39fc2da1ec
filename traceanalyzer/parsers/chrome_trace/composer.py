"""Traces of MosaicML Composer: merged files, their ranks, and PyTorch's events among Composer's.

Composer's times are microseconds since 1970. With a PyTorch profiler it appends Kineto's events and
drops the base of their times (``baseTimeNanoseconds``), so that one file has two clocks. The base
is a multiple of :data:`BASE_STEP_NS`, and it is recovered from that.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy.typing as npt
import polars as pl

from traceanalyzer.parsers.chrome_trace.columns import NEVER, Metadata
from traceanalyzer.parsers.chrome_trace.decode import integer

Frames = dict[str, pl.DataFrame]

#: Kineto's base of times is a multiple of three ``std::chrono::months``.
BASE_STEP_NS = 7_889_238 * 10**9
#: PyTorch's events begin at most so long after Composer compared the clocks of the ranks.
_LONGEST_RUN_NS = 30 * 86_400 * 10**9
_CLOCKS_DIFFER_NS = 3_600 * 10**9
#: The key in ``Meta.extra``: the time of the first PyTorch event as PyTorch writes it.
TORCH_START = "composer_torch_start_ns"
#: The key in ``Meta.extra`` of a file in which PyTorch's events have Composer's clock: before 2.4
#: PyTorch wrote times since 1970 too.
ONE_CLOCK = "composer_torch_on_one_clock"
_SYNC = "clock_sync_timestamp_us"
_PROCESS = re.compile(r"Rank (\d+) training loop process")


#: What Composer's merger puts before the events of the ranks.
_MERGED = re.compile(rb'\[\s*+\{"name": "thread_sort_index", "ph": "M", "pid":')
_PART = re.compile(rb'training loop process"|"callback/\w+/event/|"name": "event/\w')


def is_merged(head: bytes) -> bool:
    """Whether a file with these first bytes is one that Composer merged of those of the ranks."""
    return _MERGED.match(head) is not None


def is_part(head: bytes) -> bool:
    """Whether Composer wrote a file with these first bytes for one rank."""
    return head.startswith(b"[") and not is_merged(head) and _PART.search(head) is not None


def ranks_by_pid(metadata: Sequence[Metadata]) -> dict[int, int]:
    """The rank of each process, in a file that Composer wrote; empty for any other file."""
    found: dict[int, int] = {}
    for name, pid, *_, args in metadata:
        if name == "global_rank" and (rank := _value(args)) >= 0:
            found[pid] = rank
        elif name == "process_name" and (match := _PROCESS.fullmatch(str(_args(args).get("name")))):
            found.setdefault(pid, int(match[1]))
    return found


def with_ranks(frames: Frames, ranks: Mapping[int, int], pids: npt.NDArray[Any]) -> Frames:
    """The tables of a merged file, each row with the rank of its process.

    Args:
        frames: all tables, their rank null.
        ranks: rank by process id.
        pids: the process of each row of ``events``; device work has none in the table.
    """
    old, new = list(ranks), list(ranks.values())

    def rank(pid: pl.Expr) -> pl.Expr:
        return pid.replace_strict(old, new, default=None, return_dtype=pl.Int32)

    changed = {
        name: frame.with_columns(rank=rank(pl.col("pid")))
        for name, frame in frames.items()
        if {"rank", "pid"} <= set(frame.columns) and name != "events"
    }
    events = frames["events"].with_columns(_pid=pl.Series(pids))
    changed["events"] = events.with_columns(rank=rank(pl.col("_pid"))).drop("_pid")
    return frames | changed


def torch_base(metadata: Sequence[Metadata], first: int) -> int | None:
    """The base of the times of PyTorch's events in ns; 0 where there are none on another clock.

    Args:
        metadata: of the file.
        first: the earliest time in the file, in ns.

    Returns:
        None where PyTorch's events cannot belong to the time of Composer's.
    """
    values = (_value(args) for name, *_, args in metadata if name == _SYNC)
    synchronised = min((1000 * value for value in values if value > 0), default=0)
    if first == NEVER or first >= BASE_STEP_NS or synchronised < BASE_STEP_NS:
        return 0
    earliest = synchronised - _CLOCKS_DIFFER_NS - first
    base = -(-earliest // BASE_STEP_NS) * BASE_STEP_NS
    return base if base - earliest <= _LONGEST_RUN_NS else None


def on_one_clock(frames: Frames, base: int) -> Frames:
    """The tables with the base added to the times of PyTorch's events."""
    moved = pl.when(pl.col("ts") < BASE_STEP_NS).then(pl.col("ts") + base).otherwise("ts")
    return {
        name: frame.with_columns(ts=moved) if "ts" in frame.columns else frame
        for name, frame in frames.items()
    }


def _value(args: str) -> int:
    return integer(_args(args).get("value"))


def _args(text: str) -> dict[str, Any]:
    found = msgspec.json.decode(text)
    return found if isinstance(found, dict) else {}
