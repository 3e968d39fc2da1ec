"""Causes of out-of-memory errors: request, reserved and free memory at each error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.common import columns
from traceanalyzer.analyzers.common.columns import concat_tables
from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.memory import (
    OomOptions,
    attribution,
    growth,
    ledger,
    oom_causes,
    regions,
)
from traceanalyzer.analyzers.memory.rank_memory import (
    ALIVE,
    RankMemory,
    alive,
    known_table,
    peak_position,
    rank_memory,
    summed,
    with_line,
)
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.units import format_bytes, format_count, format_frac

#: Columns that identify a device.
_DEVICE = ("rank", "path", "device")
#: Imbalance is reported if all other devices are below this share of the failed one.
_EVEN_FRAC = 0.75
_DATA_PARALLEL = (
    r"torch[/\\]nn[/\\]parallel[/\\]"
    r"(?:data_parallel|replicate|scatter_gather|parallel_apply)\.py"
)
_DEVICES = headings(
    "on: device, at_error_bytes: allocated at the error, reserved_at_error_bytes: reserved, "
    "peak_bytes: peak allocated"
)
_ERRORS = headings(
    "on: device, event, time_ns: at, request_bytes: requested, "
    "device_free_bytes: free on device, reserved_bytes: reserved, allocated_bytes: allocated, "
    "usable_bytes: usable, largest_free_bytes: largest free block, "
    "outside_bytes: outside PyTorch, cause"
)
#: Columns that a narrow terminal hides before the cause.
_LESS_OF_ERRORS = ("largest_free_bytes", "outside_bytes", "time_ns", "usable_bytes")
_RECORD = "Call torch.cuda.memory._record_memory_history() before the workload"
_STARTED_LATE = f"most memory was allocated before the history starts. {_RECORD}"
_REMAINDER = "no out-of-memory error in the readable part of the file. Write the file again"
#: Issues of incomplete histories, and how to record a complete one.
_INCOMPLETE = {
    "truncated": _REMAINDER,
    "damaged-file": _REMAINDER,
    "no-history": f"no history was recorded. {_RECORD}",
    "history-overflowed": "the oldest events of the history were overwritten. Record with a larger "
    "max_entries (torch.cuda.memory._record_memory_history)",
}
_ADVICE_COLUMNS = {"cause": "cause", "n": "errors", "advice": "advice"}


def measure(trace: Trace, options: OomOptions) -> MemoryErrors:
    """Return the out-of-memory errors of a trace of one rank.

    Raises:
        MissingData: no memory events were recorded.
        OptionError: the capacity is less than reserved and free memory.
    """
    return of_rank(rank_memory(trace, options), options.capacity_bytes, at_peak=True)


def measure_for_report(trace: Trace, options: OomOptions) -> MemoryErrors:
    """Return the result of :func:`measure`, if it has errors or the history is complete.

    Raises:
        MissingData: the history lacks its start or end, and the rest has no error.
    """
    result = of_rank(rank_memory(trace, options), options.capacity_bytes)
    issues = trace.issues.filter(pl.col("code").is_in(list(_INCOMPLETE)))["code"].to_list()
    whole = result.devices.filter(pl.col("before_bytes") * 2 < pl.col("peak_bytes")).height
    if result.errors.height or (whole and not issues):
        return result
    raise MissingData(f"{trace.meta.path}: {_INCOMPLETE[issues[0]] if issues else _STARTED_LATE}")


def of_rank(
    rank: RankMemory, capacity_bytes: int | None = None, *, at_peak: bool = False
) -> MemoryErrors:
    """Return the out-of-memory errors of a rank; raises as :func:`measure`.

    Args:
        rank: its memory.
        capacity_bytes: memory of the device, if known.
        at_peak: without errors, return what was live at the peak of each device.
    """
    free_bytes = dict(rank.trace.memory_totals.select("event", "free_bytes").drop_nulls().rows())
    errors = []
    # there may be no error, and nothing live
    first, event = rank.ledgers[0], pl.lit(None, pl.Int64).alias("event")
    live = [alive(first, rank, peak_position(first, rank.window)).clear().with_columns(event)]
    for history in rank.ledgers:
        pairs = list(_errors(history, rank, free_bytes, capacity_bytes))
        grown = _steady_growth(rank, history.device) if pairs else 0
        failed = [
            _with_growth(row, grown, _kept(history, rank, row["event"] + 1)) for row, _ in pairs
        ]
        rows = pl.DataFrame(failed, schema=_SCHEMA)
        errors.append(rank.with_device(history, rows))
        live += [frame for _, frame in pairs]
    if at_peak and not sum(rows.height for rows in errors):
        live += [alive(one, rank, int(one.live.argmax())).with_columns(event)
                 for one in rank.ledgers]  # fmt: skip
    devices = [rank.with_device(history, _use(history, errors)) for history in rank.ledgers]
    return MemoryErrors(pl.concat(errors), pl.concat(live), pl.concat(devices))


def combine(parts: Sequence[MemoryErrors], options: OomOptions) -> MemoryErrors:
    """Combine the errors of all ranks, the earliest first; without absolute times, by rank."""
    errors, alive, devices = concat_tables(parts, "errors", "alive", "devices")
    order = [*_DEVICE, "event"]
    return MemoryErrors(
        errors.sort("unix_ns", *order, nulls_last=True),
        alive.sort(*order, nulls_last=True, maintain_order=True),
        devices.sort(*_DEVICE, nulls_last=True),
        windowed=options.windowed,
    )


def _steady_growth(rank: RankMemory, device: int | None) -> int:
    """Return the bytes by which a device's live memory grew from step to step; 0 if unknown."""
    try:
        suspects = growth.of_rank(rank).suspects
    except (MissingData, OptionError):  # no steps, or too many
        return 0
    same = pl.col("device").eq_missing(pl.lit(device, pl.Int32))
    return int(suspects.filter(same)["grown_bytes"].sum())


def _with_growth(row: dict[str, Any], grown: int, kept: oom_causes.Kept | None) -> dict[str, Any]:
    """Replace cause and advice of an error if growth is its cause: of steps, or of what is kept."""
    if oom_causes.is_growth(grown, row):
        return row | {"cause": oom_causes.GROWTH, "advice": oom_causes.growth_advice(grown)}
    is_plain = row["cause"] in (oom_causes.DEMAND, oom_causes.FRAGMENTATION)
    if kept is not None and is_plain and oom_causes.is_growth(kept.total, row):
        return row | {"cause": oom_causes.GROWTH, "advice": kept.advice}
    return row


#: What one stack allocated is kept if nothing of it was freed, of so many blocks of one size or
#: more, with at least such a share of live memory, while everything else grew by less, and as many
#: other blocks came and went.
_LEAST_KEPT, _KEPT_FRAC, _SAME, _OTHERS = 8, 0.3, 1.1, 0.2
#: Categories that are kept on purpose, and frames of activations that are kept for backward.
_ON_PURPOSE = ("parameters", "gradients", "optimizer state", "communication buffers")
_FOR_BACKWARD = "checkpoint"


def _kept(history: ledger.Ledger, rank: RankMemory, position: int) -> oom_causes.Kept | None:
    """Return the blocks of one stack that fill the memory one by one, such as results in a list."""
    rows = history.allocations.filter(
        pl.col("start").is_between(1, position), ~pl.col("category").is_in(_ON_PURPOSE)
    )
    size, start = pl.col("bytes"), pl.col("start")
    sums = rows.group_by("stack").agg(
        n=pl.len(), total=size.sum(), least=size.min(), most=size.max(), first=start.min(),
        last=start.max(), freed=(pl.col("end") <= position).sum(),
    )  # fmt: skip
    large = sums.filter(
        pl.col("n") >= _LEAST_KEPT, pl.col("freed") == 0,
        pl.col("most") <= _SAME * pl.col("least"),
        pl.col("total") >= _KEPT_FRAC * int(history.live[position]),
    ).sort("total", "stack", descending=[True, False])  # fmt: skip
    for row in large.head(1).iter_rows(named=True):
        frames = rank.lines.paths(pl.Series([row["stack"]], dtype=pl.UInt32))[0] or ""
        grown = int(history.live[row["last"]] - history.live[row["first"]])
        others = grown - row["total"] * (row["n"] - 1) / row["n"]
        between = history.allocations.filter(
            pl.col("start") > row["first"], pl.col("end") <= row["last"]
        )
        is_alone = others <= _OTHERS * row["total"] and between.height >= row["n"] - 1
        if is_alone and _FOR_BACKWARD not in frames:
            return oom_causes.Kept(row["n"], row["total"], frames)
    return None


def _use(history: ledger.Ledger, errors: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the memory of a device at its peak, and at the first error of the file."""
    first = pl.concat(errors)["time_ns"].drop_nulls().min()
    known = isinstance(first, int) and not history.rows["ts"].null_count()
    at = int((history.rows["ts"] <= first).sum()) if known else None
    numbers = {
        "events": history.rows.height,
        "peak_bytes": int(history.live.max()),
        "reserved_bytes": None if history.reserved is None else int(history.reserved.max()),
        "before_bytes": history.quality.before_bytes,
        "at_error_bytes": None if at is None else int(history.live[at]),
        "reserved_at_error_bytes": None
        if at is None or history.reserved is None
        else history.reserved[at],
    }
    return pl.DataFrame(numbers, schema=dict.fromkeys(numbers, pl.Int64))


def _errors(
    history: ledger.Ledger, rank: RankMemory, free_bytes: dict[int, int], capacity: int | None
) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    """Yield the row of each error and the memory live at it."""
    failed = history.rows.with_row_index("at").filter(pl.col("kind").cast(pl.String) == "oom")
    first, last = history.between(*rank.window)
    epoch = rank.epoch_ns
    for row in failed.iter_rows(named=True):
        position = int(row["at"]) + 1
        if not first < position <= last:
            continue
        memory = regions.regions(history, *rank.of_device(history.device), position)
        sizes = _sizes(history, rank, row, memory, free_bytes.get(row["event"]), capacity)
        divided = memory is not None and memory.divided(oom_causes.SPLIT_BYTES)
        at = oom_causes.situation(sizes, rank, divided=divided)
        unclear = sizes.get("unused_bytes") is None or sizes["device_free_bytes"] is None
        reason = oom_causes.UNKNOWN if unclear else oom_causes.cause(at)
        line = rank.lines.code_of(pl.Series([row["stack"]], dtype=pl.UInt32))
        live = alive(history, rank, position)
        again = (2 * pl.col("bytes") >= (row["bytes"] or 0)) | pl.col("stack").is_in([row["stack"]])
        later = history.allocations.filter(pl.col("start") > position, again)
        advice = oom_causes.advice(at, reason)
        private = rank.of_device(history.device)[0].drop_nulls("pool")
        in_pools = 2 * private["total_bytes"].sum() > (sizes["reserved_bytes"] or 0)
        if reason == oom_causes.ELSEWHERE and in_pools and private["pool"].n_unique() > 1:
            advice = oom_causes.ADVICE["failed"]["private pools"]
        if reason == oom_causes.DEMAND:
            frames = rank.lines.paths(pl.Series([row["stack"]], dtype=pl.UInt32))[0]
            advice = oom_causes.demand_advice(at.request, frames or "", live) + advice
        yield (
            {
                "event": row["at"],
                "time_ns": row["ts"],
                "unix_ns": None if epoch is None or row["ts"] is None else epoch + row["ts"],
                **sizes,
                "missing_bytes": None if unclear else at.missing,
                "recovered": later.height > 0,
                "cause": reason,
                "advice": advice,
                **(line.select("function", "file", "line").row(0, named=True)),
            },
            live.with_columns(event=pl.lit(row["at"], pl.Int64)),
        )


def _sizes(
    history: ledger.Ledger,
    rank: RankMemory,
    row: dict[str, Any],
    memory: regions.Regions | None,
    free: int | None,
    capacity: int | None,
) -> dict[str, Any]:
    """Return the known sizes of a row of errors."""
    position = int(row["at"]) + 1
    reserved = None if history.reserved is None else int(history.reserved[position])
    if capacity is not None and capacity < (reserved or 0) + (free or 0):
        used = f"{format_bytes(reserved)} reserved and {format_bytes(free)} free"
        raise OptionError(f"--capacity {format_bytes(capacity)}: {rank.path} has {used}")
    request = row["bytes"]
    sizes = {
        "request_bytes": request,
        "device_free_bytes": free,
        "reserved_bytes": reserved,
        "allocated_bytes": int(history.live[position]),
        "pending_bytes": _pending(history, position),
    }
    if memory is not None:
        serving = memory.serving(request or 0, row["stream"])["total_bytes"]
        sizes["unused_bytes"] = int(memory.free()["total_bytes"].sum())
        sizes["usable_bytes"] = int(serving.sum())
        sizes["largest_free_bytes"] = serving.max() or 0
    if capacity is not None and reserved is not None and free is not None:
        sizes["outside_bytes"] = max(capacity - reserved - free, 0)
    return sizes


def _pending(history: ledger.Ledger, position: int) -> int:
    """Return the bytes whose free waits for another stream."""
    rows = history.rows[:position].select(
        "kind", "address", requested=pl.int_range(1, pl.len() + 1)
    )
    requests = rows.filter(pl.col("kind").cast(pl.String) == "free_requested")
    last = requests.group_by("address").agg(pl.col("requested").max())
    live = history.alive(position).join(last, on="address")
    return int(live.filter(pl.col("requested") > pl.col("start"))["bytes"].sum())


#: Columns of the table of errors, without those of the device.
_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,
    "time_ns": pl.Int64,
    "unix_ns": pl.Int64,
    **{f"{one.name}_bytes": pl.Int64 for one in fields(oom_causes.Situation) if one.type is int},
    "missing_bytes": pl.Int64,
    "recovered": pl.Boolean,
    "cause": oom_causes.CAUSE,
    "advice": pl.String,
    "function": pl.String,
    "file": pl.String,
    "line": pl.Int32,
}


# --- result ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class MemoryErrors(Result):
    """Result of :func:`traceanalyzer.memory_oom`.

    Attributes:
        errors: one row per out-of-memory error, the earliest first: rank, path, device, event,
            time_ns (after the first event of the file), unix_ns (since the Unix epoch; null if the
            file has no absolute times), request_bytes, device_free_bytes (free memory of the device
            as seen by the allocator), reserved_bytes, allocated_bytes (requested bytes of live
            allocations), unused_bytes (free in reserved memory), usable_bytes (unused in segments
            that can serve the request: same size class and stream, no private pool),
            largest_free_bytes (largest usable block), pending_bytes (freed, but waiting for another
            stream), outside_bytes (capacity - reserved - free; null without a capacity),
            missing_bytes (by which the request exceeds all free memory), recovered (later, the
            same stack or another one allocated at least half of it), cause, advice, and function,
            file, line of the request.
        alive: live memory at each error by stack: columns of ``Memory.alive``, and event; without
            errors that at the peak of each device, with event null (not in a report).
        devices: one row per device: rank, path, device, events, peak_bytes, reserved_bytes (at its
            peak), before_bytes (allocated before the history), and at_error_bytes and
            reserved_at_error_bytes at the first error of the file (null without an error or times).
        windowed: whether only a time window was analyzed.
    """

    question = "Why did memory run out?"

    errors: pl.DataFrame
    alive: pl.DataFrame
    devices: pl.DataFrame
    windowed: bool = False

    def summary(self) -> str:
        """Return the number of errors and the first cause in a sentence; empty without errors."""
        if self.errors.is_empty():
            return ""
        row = self.errors.row(0, named=True)
        return (
            f"{_count(self.errors)}: {_request(row)} (cause: {row['cause']}). "
            "See traceanalyzer memory --oom."
        )

    def view(self) -> View:
        """Return the errors, advice, and memory live at the first error."""
        return self.view_from(_verdict, _notes, _tables, scalars={"ooms": self.errors.height})


def _verdict(result: MemoryErrors) -> str:
    """State the number of errors, and the first error with its cause and fix."""
    if result.errors.is_empty() and result.windowed:
        return "No out-of-memory errors in the selected time window."
    if result.errors.is_empty():
        return sentences("No out-of-memory error is in the history.", _of_peak(result))
    first = result.errors.row(0, named=True)
    failure = f"{_count(result.errors)}: {_failure(first)}"
    return sentences(failure, _imbalance(result, first), _replication(result, first))


def _at_peak(result: MemoryErrors) -> pl.DataFrame:
    """Return what was live at the peak of the fullest device; without errors only."""
    fullest = result.devices.sort("peak_bytes", *_DEVICE, descending=[True] + [False] * 3).head(1)
    rows = result.alive.filter(pl.col("event").is_null())
    return rows.join(fullest.select(_DEVICE), on=_DEVICE, how="semi", nulls_equal=True)


def _of_peak(result: MemoryErrors) -> str:
    """Return what fills the memory of the fullest device at its peak, and what reduces it."""
    live = _at_peak(result)
    if live.is_empty():
        return ""
    place = live.select(_DEVICE).row(0, named=True)
    device = result.devices.join(live.select(_DEVICE).head(1), on=_DEVICE, nulls_equal=True)
    peak, reserved = device.select("peak_bytes", "reserved_bytes").row(0)
    sums = live.group_by("category").agg(pl.col("live_bytes", "live_frac").sum())
    largest = columns.largest_first(sums, "live_bytes", "category").head(_CATEGORIES)
    each = ", ".join(
        f"{name} {format_frac(frac)}"
        for name, frac in largest.select("category", "live_frac").drop_nulls().iter_rows()
    )
    size = f"{format_bytes(peak)} allocated"
    size += f" of {format_bytes(reserved)} reserved" if reserved else ""
    lines = columns.largest_first(
        live.group_by(*attribution.LINE).agg(pl.col("live_bytes").sum()), "live_bytes",
        *attribution.LINE, nulls_last=True,
    ).filter(2 * pl.col("live_bytes") > peak)  # fmt: skip
    line = attribution.frame_text(*lines.row(0)[:3]) if lines["function"].count() else ""
    advice = oom_causes.advice_on_peak(largest["category"][0], peak, reserved, line)
    return f"Peak{located(place)}: {size} ({each}). Try: {advice}."


#: Categories of live memory that are named.
_CATEGORIES = 3


def _count(errors: pl.DataFrame) -> str:
    """Return the number of errors and the device of the first."""
    which = "" if errors.height == 1 else ", the first"
    place = located(errors.row(0, named=True))
    return f"{format_count(errors.height, 'out-of-memory error')}{which}{place}"


def _imbalance(result: MemoryErrors, row: dict[str, Any]) -> str:
    """State the memory of other devices, if it is much less."""
    same = pl.all_horizontal(pl.col(k).eq_missing(pl.lit(row[k])) for k in _DEVICE)
    used = result.devices.with_columns(used=pl.coalesce("at_error_bytes", "peak_bytes"))
    others = used.filter(~same)["used"]
    most = others.max()
    if not isinstance(most, int) or most > _EVEN_FRAC * row["allocated_bytes"]:
        return ""
    allocated, other = format_bytes(row["allocated_bytes"]), format_bytes(most)
    which = f"{other} on the other device" if others.len() == 1 else (
        f"at most {other} on each of the other {others.len():,} devices"
    )  # fmt: skip
    return f"Imbalance: {allocated} allocated{located(row)}, {which}."


def _replication(result: MemoryErrors, row: dict[str, Any]) -> str:
    """Recommend DistributedDataParallel if DataParallel allocated live memory."""
    same = [pl.col(k).eq_missing(pl.lit(row[k])) for k in (*_DEVICE, "event")]
    parallel = result.alive.filter(*same, pl.col("stack").str.contains(_DATA_PARALLEL))
    if parallel.is_empty():
        return ""
    return (
        f"torch.nn.DataParallel allocated {format_bytes(int(parallel['live_bytes'].sum()))} of "
        "live memory: it gathers outputs and gradients on one device. Use DistributedDataParallel."
    )


def located(row: dict[str, Any]) -> str:
    """Return `` on device 0 of rank 3`` for a row; empty if neither is known."""
    device = "" if row["device"] is None else f"device {row['device']}"
    rank = "" if row["rank"] is None else f"rank {row['rank']}"
    place = " of ".join(one for one in (device, rank) if one)
    return f" on {place}" if place else ""


def _request(row: dict[str, Any]) -> str:
    """Return the line of code and its requested size."""
    line = attribution.frame_text(row["function"], row["file"], row["line"])
    size = row["request_bytes"]
    return f"{line} requested {'memory' if size is None else format_bytes(size)}"


def _in_pool(row: dict[str, Any]) -> str:
    """Return how much of the unused memory can serve a request, and its largest block."""
    if not row["usable_bytes"]:
        return ""
    usable, largest = format_bytes(row["usable_bytes"]), format_bytes(row["largest_free_bytes"])
    return f" ({usable} of it usable for this request, in blocks of at most {largest})"


def _failure(row: dict[str, Any]) -> str:
    """State the request, the memory at the error, the cause and the fix."""
    free, reserved, unused = row["device_free_bytes"], row["reserved_bytes"], row["unused_bytes"]
    sizes = [
        f"{format_bytes(reserved)} reserved" if reserved is not None else "",
        f"{format_bytes(row['allocated_bytes'])} allocated",
        f"{format_bytes(unused)} unused{_in_pool(row)}" if unused is not None else "",
        f"{format_bytes(free)} free on the device" if free is not None else "",
    ]
    listed = ", ".join(one for one in sizes if one)
    return (
        f"{_request(row)}. At the error: {listed}. {oom_causes.sentence(row)} Try: {row['advice']}."
    )


def _notes(result: MemoryErrors) -> Iterator[str]:
    """Return the other causes, and how sizes are computed."""
    causes = result.errors.select("cause", "advice").unique(maintain_order=True).rows()
    yield from (f"Other errors (cause: {reason}): {fix}." for reason, fix in causes[1:])
    if result.errors.is_empty():
        yield (
            "To record an error, keep torch.cuda.memory._record_memory_history() on and dump the "
            "snapshot in torch._C._cuda_attach_out_of_memory_observer."
        )
    if result.errors.height:
        yield (
            "Unused memory is reconstructed from the history; blocks freed after the error count "
            "with their requested size, rounded up to 512 bytes."
        )
        if result.errors["outside_bytes"].null_count():
            yield (
                "Snapshots do not record the capacity of the device. Set --capacity SIZE to see "
                "memory used outside PyTorch."
            )


def _tables(result: MemoryErrors) -> tuple[Table, ...]:
    """Return the tables of errors, advice and live memory."""
    advice = result.errors.group_by("cause", "advice", maintain_order=True).agg(
        n=pl.len().cast(pl.Int64)
    )
    first = result.errors.head(1).select("rank", "path", "device", "event")
    keys = [*first.columns, "function", "file", "line", "category"]
    lines = with_line(summed(result.alive, keys))
    at_first = lines.join(first, on=first.columns, nulls_equal=True, maintain_order="left")
    several = result.devices.height > 1 and result.errors.height > 0
    if result.errors.is_empty() and result.alive.height:
        peak = with_line(summed(_at_peak(result), ["rank", "path", "device", *keys[4:]]))
        return (known_table("peak", "Live at the peak", peak, ALIVE),)
    return (
        replace(
            known_table("errors", "Errors", result.errors, _ERRORS), hide_first=_LESS_OF_ERRORS
        ),
        *([known_table("devices", "All devices", result.devices, _DEVICES)] if several else []),
        Table("advice", "What to try", advice, _ADVICE_COLUMNS, detail=True, whole=True),
        known_table("first", "Live at the first error", at_first, ALIVE),
        known_table("alive", "Live at each error", with_line(result.alive), ALIVE, detail=True),
    )


MEMORY_OOM = Analyzer(
    "memory_oom",
    OomOptions,
    ledger.NEEDS,
    measure,
    combine,
    whole_file=True,
    measure_for={"page": measure_for_report},
)


def memory_oom(
    inputs: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    min_bytes: int | None = None,
    capacity_bytes: int | None = None,
    **reading: Unpack[Reading],
) -> MemoryErrors:
    """Why did memory run out: fragmentation, real demand, or memory outside PyTorch?

    For each out-of-memory error in the history of a snapshot: the request, free memory of the
    device, reserved, allocated and unused memory, the largest free block, and live memory by stack.

    Args:
        inputs: memory snapshots.
        library_name: packages whose frames name an allocation; default: your own code.
        min_bytes: list and draw only allocations of at least this size; totals count all.
        capacity_bytes: memory of the device, to compute memory used outside PyTorch; snapshots do
            not record it.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no memory events were recorded.
        OptionError: the capacity is less than reserved and free memory.
    """
    options = OomOptions(library_name, min_bytes, capacity_bytes=capacity_bytes)
    return run(MEMORY_OOM, inputs, options, **reading)
