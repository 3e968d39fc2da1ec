"""Traces of MosaicML Composer: merged files, ranks, and PyTorch events in Composer's files.

Composer's times are microseconds since 1970. With a PyTorch profiler it appends Kineto's events and
drops their time base (``baseTimeNanoseconds``), so that one file has two clocks. The base is
recovered because it is a multiple of :data:`BASE_STEP_NS`.
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

#: Kineto's time base is a multiple of three ``std::chrono::months``.
BASE_STEP_NS = 7_889_238 * 10**9
#: Maximum time from Composer's clock synchronisation to PyTorch's events.
_LONGEST_RUN_NS = 30 * 86_400 * 10**9
_CLOCKS_DIFFER_NS = 3_600 * 10**9
#: Key in ``Meta.extra``: time of the first PyTorch event on PyTorch's clock.
TORCH_START = "composer_torch_start_ns"
#: Key in ``Meta.extra`` of a file whose PyTorch events use Composer's clock: before 2.4, PyTorch
#: wrote times since 1970 too.
ONE_CLOCK = "composer_torch_on_one_clock"
#: Key in ``Meta.extra``: time at which Composer synchronised the clocks of all ranks, on the clock
#: of this rank.
SYNC_NS = "composer_clock_sync_ns"
#: Key in ``Meta.extra``: upper bound of its error.
SYNC_ERROR_NS = "composer_clock_sync_error_ns"
_SYNC, _SYNC_ERROR = "clock_sync_timestamp_us", "clock_sync_error_bound"
_PROCESS = re.compile(r"Rank (\d+) training loop process")


#: Composer's merger writes this before the events of the ranks.
_MERGED = re.compile(rb'\[\s*+\{"name": "thread_sort_index", "ph": "M", "pid":')
_PART = re.compile(rb'training loop process"|"callback/\w+/event/|"name": "event/\w')


def is_merged(head: bytes) -> bool:
    """Whether a file with these first bytes was merged by Composer from the ranks' files."""
    return _MERGED.match(head) is not None


def is_part(head: bytes) -> bool:
    """Whether Composer wrote a file with these first bytes for one rank."""
    return head.startswith(b"[") and not is_merged(head) and _PART.search(head) is not None


def ranks_by_pid(metadata: Sequence[Metadata]) -> dict[int, int]:
    """Return the rank of each process in a Composer file; empty for any other file."""
    ranks: dict[int, int] = {}
    for name, pid, *_, args in metadata:
        if name == "global_rank" and (rank := _value(args)) >= 0:
            ranks[pid] = rank
        elif name == "process_name" and (match := _PROCESS.fullmatch(str(_args(args).get("name")))):
            ranks.setdefault(pid, int(match[1]))
    return ranks


def with_ranks(frames: Frames, ranks: Mapping[int, int], pids: npt.NDArray[Any]) -> Frames:
    """Return the tables of a merged file, each row with the rank of its process.

    Args:
        frames: all tables, with null ranks.
        ranks: rank by process id.
        pids: process of each row of ``events``; the table itself has none for device work.
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


def synchronised_at(metadata: Sequence[Metadata]) -> int:
    """Return the time of the clock synchronisation in ns; 0 if it was not recorded."""
    values = (_value(args) for name, *_, args in metadata if name == _SYNC)
    return min((1000 * value for value in values if value > 0), default=0)


def synchronisation(metadata: Sequence[Metadata]) -> dict[str, int]:
    """Return the clock synchronisation for ``Meta.extra``: its time, and its error if known."""
    sync_ns = synchronised_at(metadata)
    errors = [1000 * _value(args) for name, *_, args in metadata if name == _SYNC_ERROR]
    bounds = {SYNC_ERROR_NS: max(errors)} if errors and max(errors) >= 0 else {}
    return {SYNC_NS: sync_ns, **bounds} if sync_ns else {}


def torch_base(metadata: Sequence[Metadata], first: int) -> int | None:
    """Return the time base of PyTorch's events in ns; 0 if all events use one clock.

    Args:
        metadata: metadata events of the file.
        first: earliest time in the file, in ns.

    Returns:
        None if the clocks cannot be aligned.
    """
    synchronised = synchronised_at(metadata)
    if first == NEVER or first >= BASE_STEP_NS or synchronised < BASE_STEP_NS:
        return 0
    earliest = synchronised - _CLOCKS_DIFFER_NS - first
    base = -(-earliest // BASE_STEP_NS) * BASE_STEP_NS
    return base if base - earliest <= _LONGEST_RUN_NS else None


def on_one_clock(frames: Frames, base: int) -> Frames:
    """Return the tables with the base added to the times of PyTorch's events."""
    moved = pl.when(pl.col("ts") < BASE_STEP_NS).then(pl.col("ts") + base).otherwise("ts")
    return {
        name: frame.with_columns(ts=moved) if "ts" in frame.columns else frame
        for name, frame in frames.items()
    }


def _value(args: str) -> int:
    return integer(_args(args).get("value"))


def _args(text: str) -> dict[str, Any]:
    args = msgspec.json.decode(text)
    return args if isinstance(args, dict) else {}
