"""Copies and memsets of each rank, combined over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import columns
from traceanalyzer.analyzers.common.device_work import DEVICE, MIGRATIONS
from traceanalyzer.analyzers.common.gpu_api import Api, api_of, joined_api
from traceanalyzer.analyzers.common.names import named
from traceanalyzer.analyzers.transfers import Options, result
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, linking
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, of_kinds, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK, PAGE_FAULT

_MOVES = ("gpu_memcpy", "gpu_memset")
_WAY = ("direction", "memory")
_DEVICE = ("rank", "path", "device")


#: Copies and memsets, and the kernels that may overlap with them; streams show impossible times.
NEEDS = Needs({*DEVICE_WORK, PAGE_FAULT}, unused=("category", "tid", "correlation", "external_id"))


@dataclass(frozen=True)
class Part:
    """One rank's copies and memsets.

    Attributes:
        path: the file.
        moves: one row per copy or memset with an end: rank, device, direction, memory, moved_bytes,
            dur_ns, exposed_ns (without a kernel running on the device; null without recorded
            kernels).
        devices: one row per device: rank, path, device, span_ns (of its work), busy_ns (in which at
            least one copy or memset ran), alone_ns (the part of it without a kernel, or null).
        unfinished: number of copies and memsets without an end.
        faults: rank, path, on_gpu, n, total_ns of page faults of managed memory.
        stalled: kernel, total_ns: GPU page faults (without them migrations) while it runs.
        program: GPU API and framework of the program.
    """

    path: str
    moves: pl.DataFrame
    devices: pl.DataFrame
    unfinished: int
    faults: pl.DataFrame
    stalled: pl.DataFrame
    program: Api


def measure(trace: Trace, _options: Options) -> Part:
    """Return the copies and memsets of one rank.

    Raises:
        MissingData: no copies or memsets with an end were recorded.
    """
    of_moves = of_kinds(_MOVES)
    ends = pl.col("dur") >= 0
    interval = {"start": pl.col("ts"), "end": pl.col("ts") + pl.col("dur")}
    moves = trace.events.select(
        *DEVICE, **interval, name="name", moved_bytes="bytes", dur_ns="dur"
    ).filter(trace.events.select(of_moves & ends).to_series())  # fmt: skip
    faults = trace.events.filter(pl.col("kind") == PAGE_FAULT)
    if moves.is_empty() and faults.is_empty():
        hint = record_hint(trace.meta, "device work")
        raise MissingData(f"{trace.meta.path}: no copies or memsets were recorded; {hint}")
    is_work = trace.events.select(of_kinds(DEVICE_WORK) & ends).to_series()
    work = trace.events.select(*DEVICE, "kind", **interval).filter(is_work)
    kernels = intervals.union(work.filter(~of_moves), DEVICE)
    known = trace.events.select((pl.col("kind") == "kernel").any()).item()
    overlapped = intervals.overlap_with(moves[[*DEVICE, "start", "end"]], kernels, DEVICE)
    exposed = (pl.col("dur_ns") - overlapped["overlap"]) if known else pl.lit(None, pl.Int64)
    directed = result.with_directions(moves.with_columns(exposed_ns=exposed))
    recorded = int(trace.events.select(of_moves.sum()).item())
    path = pl.lit(trace.meta.path).alias("path")
    return Part(
        path=trace.meta.path,
        moves=directed[[*DEVICE, "direction", "memory", "moved_bytes", "dur_ns", "exposed_ns"]],
        devices=_copying(work, moves, faults, kernels if known else None).select(
            "rank", path, "device", "span_ns", "busy_ns", "alone_ns"
        ),
        unfinished=recorded - moves.height,
        faults=_faults(faults).with_columns(path),
        stalled=_stalled(trace),
        program=api_of(trace),
    )


def combine(parts: Sequence[Part], _options: Options) -> result.Transfers:
    """Sum the copies and memsets of all ranks by direction, memory and size."""
    path = pl.Series([part.path for part in parts], dtype=pl.String)
    moves = columns.stacked([part.moves for part in parts], path=path).with_columns(
        result.size_class()
    )
    copies = _summed(moves, _WAY)
    place = copies.select(*_WAY, place=pl.int_range(pl.len()))
    sizes = _summed(moves, (*_WAY, "size")).join(place, on=_WAY, how="left", nulls_equal=True)
    devices = _devices(parts, moves)
    span_ns = int(devices["span_ns"].sum())
    known = devices["alone_ns"].drop_nulls()
    program = joined_api([part.program for part in parts])
    stalled = pl.concat([part.stalled for part in parts])
    stalled = stalled.group_by("kernel").agg(pl.col("total_ns").sum())
    return result.Transfers(
        n=moves.height,
        moved_bytes=int(moves["moved_bytes"].sum()),
        total_ns=int(moves["dur_ns"].sum()),
        span_ns=span_ns,
        alone_ns=int(known.sum()) if known.len() else None,
        findings=result.findings_of(copies, sizes, span_ns, result.advice(program)),
        copies=copies,
        sizes=sizes.sort("place", "size").drop("place"),
        devices=devices,
        by_device=_summed(moves, (*_DEVICE, *_WAY)).sort(*_DEVICE, maintain_order=True),
        both_directions=_both_directions(moves),
        unsized=int(moves["moved_bytes"].null_count()),
        unfinished=sum(part.unfinished for part in parts),
        faults=pl.concat([part.faults for part in parts]),
        stalled=columns.largest_first(stalled, "total_ns", "kernel"),
        program=program,
    )


def _both_directions(moves: pl.DataFrame) -> pl.DataFrame:
    """Count the large copies from (up) and to the host (down) by size: moved_bytes, up, down."""
    large = moves.filter(pl.col("moved_bytes") >= result.SMALL_BYTES)
    up, down = ((pl.col("direction") == one).sum() for one in ("HtoD", "DtoH"))
    counts = large.group_by("moved_bytes").agg(up=up, down=down)
    return counts.filter(pl.col("up") + pl.col("down") > 0)


TRANSFERS = Analyzer("transfers", Options, NEEDS, measure, combine)


# --- one rank ------------------------------------------------------------------------------


def _faults(faults: pl.DataFrame) -> pl.DataFrame:
    """Count page faults of managed memory: rank, on_gpu, n, total_ns."""
    on_gpu = pl.col("device").is_not_null()
    return faults.group_by("rank", on_gpu=on_gpu).agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("dur").fill_null(0).sum()
    )


def _stalled(trace: Trace) -> pl.DataFrame:
    """Sum the time of GPU page faults, without any that of migrations, by the kernel meanwhile."""
    rows = trace.events[["kind", "name", *DEVICE, "ts", "dur"]].filter(pl.col("dur") > 0)
    stalls = rows.filter(pl.col("kind") == PAGE_FAULT, pl.col("device").is_not_null())
    stalls = stalls if stalls.height else rows.filter(named(rows, [MIGRATIONS]))
    if stalls.is_empty():
        return pl.DataFrame(schema={"kernel": pl.String, "total_ns": pl.Int64})
    kernels = rows.filter(pl.col("kind") == "kernel")
    spans = kernels.select(*DEVICE, start="ts", end=pl.col("ts") + pl.col("dur"))
    at = linking.label_by_interval(stalls.select(*DEVICE, "ts", "dur"), spans, DEVICE)
    of_kernel = at.select(kernel=kernels["name"][at["interval"]].cast(pl.String), dur="dur")
    return of_kernel.drop_nulls().group_by("kernel").agg(total_ns=pl.col("dur").sum())


def _copying(
    work: pl.DataFrame, moves: pl.DataFrame, faults: pl.DataFrame, kernels: pl.DataFrame | None
) -> pl.DataFrame:
    """Return how long each device with copies or page faults copied, and without a kernel."""
    length = pl.col("end") - pl.col("start")
    copying = intervals.union(moves, DEVICE)
    if kernels is None:
        alone_ns = pl.lit(None, pl.Int64)
    else:
        # the overlap is faster than a difference, which would sort millions of kernels
        copying = intervals.overlap_with(copying, kernels, DEVICE)
        alone_ns = (length - pl.col("overlap")).sum()
    busy = copying.group_by(DEVICE).agg(busy_ns=length.sum(), alone_ns=alone_ns)
    moved = pl.concat([moves[[*DEVICE]], faults[[*DEVICE]].drop_nulls("device")]).unique()
    span = columns.grouped(work, DEVICE, span_ns=pl.col("end").max() - pl.col("start").min())
    joined = moved.join(span, on=DEVICE, how="left", nulls_equal=True)
    devices = joined.join(busy, on=DEVICE, how="left", nulls_equal=True).sort(DEVICE)
    # devices with copies of zero duration only
    zero = pl.col("busy_ns", *(() if kernels is None else ("alone_ns",))).fill_null(0)
    return devices.with_columns(zero)


# --- all ranks -----------------------------------------------------------------------------


def _summed(moves: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Sum the moves by the keys, the largest total first."""
    dur, size = pl.col("dur_ns"), pl.col("moved_bytes")
    sized_ns = dur.filter(size.is_not_null()).sum()
    sums = moves.group_by(keys).agg(
        n=pl.len().cast(pl.Int64),
        moved_bytes=columns.sum_if_known("moved_bytes"),
        total_ns=dur.sum(),
        min_ns=dur.min(),
        median_ns=columns.whole(dur.median()),
        max_ns=dur.max(),
        # bytes per ns = 10^9 bytes per s
        rate_gbps=pl.when(sized_ns > 0).then(size.sum() / sized_ns),
        exposed_n=(pl.col("exposed_ns") > 0).sum().cast(pl.Int64),
        exposed_ns=columns.sum_if_known("exposed_ns"),
    )
    possible = pl.when(pl.col("rate_gbps") <= result.MOST_GBPS).then("rate_gbps")
    shares = sums.with_columns(
        exposed_frac=columns.ratio("exposed_ns", "total_ns"), rate_gbps=possible
    )
    return columns.largest_first(shares, "total_ns", *keys, nulls_last=True)


def _devices(parts: Sequence[Part], moves: pl.DataFrame) -> pl.DataFrame:
    counted = moves.group_by(_DEVICE).agg(
        n=pl.len().cast(pl.Int64),
        moved_bytes=columns.sum_if_known("moved_bytes"),
        total_ns=pl.col("dur_ns").sum(),
    )
    devices = pl.concat([part.devices for part in parts])
    return (
        devices.join(counted, on=_DEVICE, nulls_equal=True, how="left")
        .with_columns(
            busy_frac=columns.ratio("busy_ns", "span_ns"),
            alone_frac=columns.ratio("alone_ns", "span_ns"),
        )
        .sort(_DEVICE, nulls_last=True)
    )


def transfers(inputs: Inputs, **reading: Unpack[Reading]) -> result.Transfers:
    """Return copies and memsets by direction, memory and size, their bandwidth and overlap.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no copies or memsets were recorded.
    """
    return run(TRANSFERS, inputs, Options(), **reading)
