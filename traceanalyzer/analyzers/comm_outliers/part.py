"""What one rank's file contributes: all that the comparison of ranks needs of it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

#: Columns of :attr:`Part.instances`, one row per collective of this rank, in order of start.
INSTANCES: dict[str, type[pl.DataType]] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.String,
    "collective": pl.String,
    "dtype": pl.String,
    "message_bytes": pl.Int64,
    "group": pl.String,
    "group_size": pl.Int32,
    "group_ranks": pl.String,
    "seq": pl.Int64,
    "device": pl.Int32,
    "stream": pl.Int64,
    "step": pl.String,
    "compute_ns": pl.Int64,
    "memory_ns": pl.Int64,
    "beside": pl.String,
}

#: Columns of :attr:`Part.steps`, one row per step annotation.
STEPS: dict[str, type[pl.DataType]] = {"step": pl.String, "start": pl.Int64, "end": pl.Int64}


@dataclass(frozen=True)
class Part:
    """One file's communication.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        host: host name, or None.
        world_size: ranks in the job, or None.
        shift_ns: added to the trace's times to give the times here.
        epoch_known: those are absolute times, so that parts can be compared.
        instances: one row per collective, columns :data:`INSTANCES`, absolute times.
        steps: the steps' annotations, columns :data:`STEPS`, absolute times.
        span_ns: first start to last end of device work, and of communication where that is the
            host's; of all events read where there is no device work.
        busy_ns: union of all device work, over all streams; None without device work.
        comm_ns: union of the communication, over all streams.
        overlap_ns: part of ``comm_ns`` during which compute kernels ran on the same device; on any
            where the communication is the host's.
        unclosed: communication events without an end, which are not counted.
        wants_launches: reading the launch calls too would tell more about its collectives.
        rank_known: False once a rank was made up for a file that does not tell.
        record_hint: how collectives are recorded with the profiler that wrote the file.
    """

    rank: int | None
    path: str
    host: str | None
    world_size: int | None
    shift_ns: int
    epoch_known: bool
    instances: pl.DataFrame
    steps: pl.DataFrame
    span_ns: int
    busy_ns: int | None
    comm_ns: int
    overlap_ns: int | None
    unclosed: int = 0
    wants_launches: bool = False
    rank_known: bool = True
    record_hint: str = ""
