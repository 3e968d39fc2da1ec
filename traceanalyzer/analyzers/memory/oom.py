"""Why memory ran out: one row an out-of-memory error, with what could have served the request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from traceanalyzer.analyzers.base import Analyzer
from traceanalyzer.analyzers.common.columns import together
from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.memory import attribution, ledger, oom_causes, regions
from traceanalyzer.analyzers.memory.options import OomOptions
from traceanalyzer.analyzers.memory.rank_memory import RankMemory, alive, rank_memory
from traceanalyzer.analyzers.memory.tables import ALIVE, shown_table, summed, times_of, with_line
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.result import Result, Table, View
from traceanalyzer.trace import Trace
from traceanalyzer.units import format_bytes

#: A device's columns.
_PLACE = ("rank", "path", "device")
#: Devices below this share of the one that ran out are worth a sentence.
_EVEN_FRAC = 0.75
_DATA_PARALLEL = (
    r"torch[/\\]nn[/\\]parallel[/\\]"
    r"(?:data_parallel|replicate|scatter_gather|parallel_apply)\.py"
)
_DEVICES = headings(
    "on: device, at_error_bytes: in use at the error, reserved_at_error_bytes: reserved, "
    "peak_bytes: peak in use"
)
_RECORD = "call torch.cuda.memory._record_memory_history() before the work that matters"
_BEGUN_LATE = f"most memory was allocated before the history begins; {_RECORD}"
#: Issues of histories that are a part only, and what to record.
_PARTS = {
    "truncated": "no out-of-memory error is in what is left of the file; write it again",
    "damaged-file": "no out-of-memory error is in what is left of the file; write it again",
    "no-history": f"no history was recorded; {_RECORD}",
    "history-overflowed": "the oldest events of the history were overwritten; record with a larger "
    "max_entries (torch.cuda.memory._record_memory_history)",
}
_ERRORS = headings(
    "on: device, event, time_ns: at, request_bytes: asked for, "
    "device_free_bytes: free on the device, reserved_bytes: reserved, allocated_bytes: allocated, "
    "usable_bytes: usable, largest_free_bytes: largest piece, outside_bytes: outside PyTorch, cause"
)
_TO_TRY = {"cause": "cause", "n": "errors", "advice": "what to try"}


def measure(trace: Trace, options: OomOptions) -> MemoryErrors:
    """The out-of-memory errors of a trace of one rank.

    Raises:
        MissingData: it tells nothing of memory.
        OptionError: the capacity is less than what is known to be there.
    """
    return of_rank(rank_memory(trace, options), options.capacity_bytes)


def measure_for_report(trace: Trace, options: OomOptions) -> MemoryErrors:
    """As :func:`measure`; that a part of a history has no error says nothing about the rest.

    Raises:
        MissingData: the history lacks its beginning or its end, and what is there has no error.
    """
    found = measure(trace, options)
    lost = trace.issues.filter(pl.col("code").is_in(list(_PARTS)))["code"].to_list()
    whole = found.devices.filter(pl.col("before_bytes") * 2 < pl.col("peak_bytes")).height
    if found.errors.height or (whole and not lost):
        return found
    raise MissingData(f"{trace.meta.path}: {_PARTS[lost[0]] if lost else _BEGUN_LATE}")


def of_rank(own: RankMemory, capacity_bytes: int | None = None) -> MemoryErrors:
    """The out-of-memory errors of a rank; raises as :func:`measure`."""
    told = dict(own.trace.memory_totals.select("event", "free_bytes").drop_nulls().rows())
    errors = []
    # nothing may be live, and there may be no error
    live = [alive(own.ledgers[0], own, 0).clear().with_columns(event=pl.lit(None, pl.Int64))]
    for of in own.ledgers:
        found = list(_errors(of, own, told, capacity_bytes))
        rows = pl.DataFrame([row for row, _ in found], schema=_SCHEMA)
        errors.append(own.placed(of, rows))
        live += [frame for _, frame in found]
    places = [own.placed(of, _use(of, errors)) for of in own.ledgers]
    return MemoryErrors(pl.concat(errors), pl.concat(live), pl.concat(places))


def combine(
    parts: Sequence[MemoryErrors], options: OomOptions, _base: Sequence[MemoryErrors] = ()
) -> MemoryErrors:
    """The errors of all ranks."""
    errors, alive, devices = together(parts, "errors", "alive", "devices")
    return MemoryErrors(errors, alive, devices, windowed=options.windowed)


def _use(of: ledger.Ledger, errors: list[pl.DataFrame]) -> pl.DataFrame:
    """The memory of a device at its peak, and when memory ran out first on any of the file."""
    first = pl.concat(errors)["time_ns"].drop_nulls().min()
    known = isinstance(first, int) and not of.rows["ts"].null_count()
    at = int((of.rows["ts"] <= first).sum()) if known else None
    numbers = {
        "events": of.rows.height,
        "peak_bytes": int(of.live.max()),
        "before_bytes": of.quality.before_bytes,
        "at_error_bytes": None if at is None else int(of.live[at]),
        "reserved_at_error_bytes": None if at is None or of.reserved is None else of.reserved[at],
    }
    return pl.DataFrame(numbers, schema=dict.fromkeys(numbers, pl.Int64))


def _errors(
    of: ledger.Ledger, own: RankMemory, told: dict[int, int], capacity: int | None
) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    failed = of.rows.with_row_index("at").filter(pl.col("kind").cast(pl.String) == "oom")
    first, last = of.between(*own.window)
    for row in failed.iter_rows(named=True):
        position = int(row["at"]) + 1
        if not first < position <= last:
            continue
        held = regions.regions(of, *own.of_device(of.device), position)
        known = _known(of, own, row, held, told.get(row["event"]), capacity)
        divided = held is not None and held.divided(oom_causes.SPLIT_BYTES)
        at = oom_causes.situation(known, own, divided=divided)
        unclear = known.get("unused_bytes") is None or known["device_free_bytes"] is None
        why = oom_causes.UNKNOWN if unclear else oom_causes.cause(at)
        line = own.lines.of(pl.Series([row["stack"]], dtype=pl.UInt32))
        yield (
            {
                "event": row["at"],
                "time_ns": row["ts"],
                **known,
                "missing_bytes": None if unclear else at.missing,
                "cause": why,
                "advice": oom_causes.advice(at, why),
                **(line.select("function", "file", "line").row(0, named=True)),
            },
            alive(of, own, position).with_columns(event=pl.lit(row["at"], pl.Int64)),
        )


def _known(
    of: ledger.Ledger,
    own: RankMemory,
    row: dict[str, Any],
    held: regions.Regions | None,
    free: int | None,
    capacity: int | None,
) -> dict[str, Any]:
    """The sizes of a row of errors that are known."""
    position = int(row["at"]) + 1
    reserved = None if of.reserved is None else int(of.reserved[position])
    if capacity is not None and capacity < (reserved or 0) + (free or 0):
        there = f"{format_bytes(reserved)} reserved and {format_bytes(free)} free"
        raise OptionError(f"--capacity {format_bytes(capacity)}: {own.path} has {there}")
    request = row["bytes"]
    known = {
        "request_bytes": request,
        "device_free_bytes": free,
        "reserved_bytes": reserved,
        "allocated_bytes": int(of.live[position]),
        "pending_bytes": _pending(of, position),
    }
    if held is not None:
        serving = held.serving(request or 0, row["stream"])["total_bytes"]
        known["unused_bytes"] = int(held.free()["total_bytes"].sum())
        known["usable_bytes"] = int(serving.sum())
        known["largest_free_bytes"] = serving.max() or 0
    if capacity is not None and reserved is not None and free is not None:
        known["outside_bytes"] = max(capacity - reserved - free, 0)
    return known


def _pending(of: ledger.Ledger, position: int) -> int:
    """Bytes that were freed and stay until another stream is done with them."""
    asked = of.rows[:position].select("kind", "address", asked=pl.int_range(1, pl.len() + 1))
    requests = asked.filter(pl.col("kind").cast(pl.String) == "free_requested")
    last = requests.group_by("address").agg(pl.col("asked").max())
    waiting = of.alive(position).join(last, on="address").filter(pl.col("asked") > pl.col("start"))
    return int(waiting["bytes"].sum())


#: Columns of the table of errors without its place: sizes as a situation has them.
_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,
    "time_ns": pl.Int64,
    **{f"{one.name}_bytes": pl.Int64 for one in fields(oom_causes.Situation) if one.type == "int"},
    "missing_bytes": pl.Int64,
    "cause": oom_causes.CAUSE,
    "advice": pl.String,
    "function": pl.String,
    "file": pl.String,
    "line": pl.Int32,
}


# --- result ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class MemoryErrors(Result):
    """What :func:`traceanalyzer.memory_oom` found.

    Attributes:
        errors: a row an out-of-memory error: rank, path, device, event, time_ns, request_bytes,
            device_free_bytes (free on the device, as the allocator was told), reserved_bytes,
            allocated_bytes (requested by all that was live), unused_bytes (free in what is
            reserved), usable_bytes (of it in segments that serve such requests: of the size's
            class, the stream, and no private pool), largest_free_bytes (the largest run of those),
            pending_bytes (freed, but waiting for another stream), outside_bytes (capacity less
            reserved less free; null where the capacity is not given), missing_bytes (that all free
            memory together falls short of), cause, advice, and function, file, line of the request.
        alive: what was live at each, by stack: as ``Memory.alive``, with event.
        devices: the devices looked at: rank, path, device, events, peak_bytes, before_bytes (there
            before the history); at_error_bytes and
            reserved_at_error_bytes when memory ran out first on a device of the file (null where
            it did not, or without times).
        windowed: only a stretch of the history was looked at.
    """

    errors: pl.DataFrame
    alive: pl.DataFrame
    devices: pl.DataFrame
    windowed: bool = False

    def summary(self) -> str:
        """The first error and its cause in a sentence; empty where there is none."""
        if self.errors.is_empty():
            return ""
        row = self.errors.row(0, named=True)
        asked = _request(row)
        return (
            f"Memory ran out {times_of(self.errors.height)}{located(row)}: {asked}; cause: "
            f"{row['cause']}. See traceanalyzer memory --oom."
        )

    def view(self) -> View:
        """Errors, what to try, what was live at the first."""
        return View(
            title="Why did memory run out?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars={"ooms": self.errors.height},
        )


def _verdict(result: MemoryErrors) -> str:
    """The first error, and the causes of all."""
    if result.errors.is_empty() and result.windowed:
        return "No out-of-memory error is in this stretch of the history."
    if result.errors.is_empty():
        return (
            "No out-of-memory error is in the history. To record one, keep "
            "torch.cuda.memory._record_memory_history() on and dump the snapshot in "
            "torch._C._cuda_attach_out_of_memory_observer."
        )
    first = result.errors.row(0, named=True)
    n = result.errors.height
    which = "" if n == 1 else "; the first time"
    said = f"Memory ran out {times_of(n)}{which}{located(first)}: {_failure(first)}"
    return sentences(said, _imbalance(result, first), _replication(result, first))


def _imbalance(result: MemoryErrors, row: dict[str, Any]) -> str:
    """How much other devices use, where it is much less."""
    same = pl.all_horizontal(pl.col(k).eq_missing(pl.lit(row[k])) for k in _PLACE)
    used = result.devices.with_columns(used=pl.coalesce("at_error_bytes", "peak_bytes"))
    others = used.filter(~same)["used"]
    most = others.max()
    if not isinstance(most, int) or most > _EVEN_FRAC * row["allocated_bytes"]:
        return ""
    which = "the other device uses" if others.len() == 1 else (
        f"each of the other {others.len():,} devices uses at most"
    )  # fmt: skip
    full = format_bytes(row["allocated_bytes"])
    return f"Imbalance: {full} are in use{located(row)}, {which} {format_bytes(most)}."


def _replication(result: MemoryErrors, row: dict[str, Any]) -> str:
    """A hint where DataParallel made a part of what is live."""
    same = [pl.col(k).eq_missing(pl.lit(row[k])) for k in (*_PLACE, "event")]
    parallel = result.alive.filter(*same, pl.col("stack").str.contains(_DATA_PARALLEL))
    if parallel.is_empty():
        return ""
    return (
        f"{format_bytes(int(parallel['live_bytes'].sum()))} of the memory in use were allocated by "
        "torch.nn.DataParallel, which gathers outputs and gradients on one device: use "
        "DistributedDataParallel."
    )


def located(row: dict[str, Any]) -> str:
    """Rank and device of a row; empty where neither is known."""
    of_device = "" if row["device"] is None else f"device {row['device']}"
    of_rank = "" if row["rank"] is None else f"rank {row['rank']}"
    named = " of ".join(one for one in (of_device, of_rank) if one)
    return f" on {named}" if named else ""


def _request(row: dict[str, Any]) -> str:
    """Which line asked for how much."""
    line = attribution.frame_text(row["function"], row["file"], row["line"])
    size = row["request_bytes"]
    return f"{line} asked for {'memory' if size is None else format_bytes(size)}"


def _failure(row: dict[str, Any]) -> str:
    asked = _request(row)
    free, reserved = row["device_free_bytes"], row["reserved_bytes"]
    told = [
        f"{format_bytes(free)} were free on the device" if free is not None else "",
        f"{format_bytes(reserved)} were reserved" if reserved is not None else "",
        f"{format_bytes(row['allocated_bytes'])} {'' if reserved is None else 'of it '}in use",
    ]
    if row["unused_bytes"] is not None:
        told.append(f"{format_bytes(row['unused_bytes'])} unused")
    if row["usable_bytes"]:
        usable, largest = format_bytes(row["usable_bytes"]), format_bytes(row["largest_free_bytes"])
        told.append(f"{usable} of that for such requests, the largest piece {largest}")
    why = oom_causes.sentence(row)
    return f"{asked}; {', '.join(one for one in told if one)}. {why} To try: {row['advice']}."


def _notes(result: MemoryErrors) -> tuple[str, ...]:
    """How numbers are meant."""
    causes = result.errors.select("cause", "advice").unique(maintain_order=True).rows()
    said = [f"Other errors, {why}: {what}." for why, what in causes[1:]]
    if result.errors.height:
        said.append(
            "What was unused is reconstructed from the history; blocks freed since are counted "
            "at the size that was asked for, rounded up to 512 bytes."
        )
        if result.errors["outside_bytes"].null_count():
            said.append(
                "A snapshot does not tell how much memory the device has; with --capacity SIZE "
                "memory outside PyTorch can be told."
            )
    return tuple(said)


def _tables(result: MemoryErrors) -> tuple[Table, ...]:
    """Errors, what to try, what was live at the first."""
    advice = result.errors.group_by("cause", "advice", maintain_order=True).agg(
        n=pl.len().cast(pl.Int64)
    )
    first = result.errors.head(1).select("rank", "path", "device", "event")
    keys = [*first.columns, "function", "file", "line", "category"]
    lines = with_line(summed(result.alive, keys))
    at_first = lines.join(first, on=first.columns, nulls_equal=True, maintain_order="left")
    several = result.devices.height > 1 and result.errors.height > 0
    return (
        shown_table("errors", "Errors", result.errors, _ERRORS),
        *([shown_table("devices", "All devices", result.devices, _DEVICES)] if several else []),
        Table("advice", "What to try", advice, _TO_TRY, detail=True, whole=True),
        shown_table("first", "Live at the first error", at_first, ALIVE),
        shown_table("alive", "Live at each error", with_line(result.alive), ALIVE, detail=True),
    )


MEMORY_OOM = Analyzer(
    "memory_oom",
    OomOptions,
    ledger.needs,
    measure,
    combine,
    whole_file=True,
    report_measure=measure_for_report,
)
