"""Result of the CUDA API analysis: data, findings, verdict, notes, tables and charts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.common import display
from traceanalyzer.analyzers.common.columns import sum_if_known
from traceanalyzer.analyzers.common.names import distinct, matcher, named
from traceanalyzer.drawings import Chart
from traceanalyzer.files import packaged
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

#: Calls in a sentence, and the least share of the time of one.
_NAMED, _LEAST = 3, 0.001

#: Least share of the time in calls to report a finding.
_WORTH_FRAC = 0.01

_SUMMED = (
    "Durations are summed over all threads; a runtime call and the driver call in it both count if "
    "both were recorded."
)

_FINDINGS = display.headings(
    """finding, what, n, host_ns: host time, host_frac: of all calls, moved_bytes: moved,
    copy_ns: device time, waited: waited for it"""
)
_CALLS = display.headings(
    """call, class, n, total_ns: total, total_frac: of all, mean_ns: mean, median_ns: median,
    min_ns: min, max_ns: max, p99_ns: p99"""
)
_MOVES = display.headings(
    """call, copy, n, moved_bytes: moved, host_ns: host time, copy_ns: device time,
    waited: waited for it, finding"""
)
_ALLOCATIONS = display.headings(
    """call, n, total_ns: host time, max_ns: max, loop_n: in the loop, loop_ns: host time there,
    late_n: in its second half, late_ns: host time then"""
)
_RANKS = display.headings(
    """on: rank, n, total_ns: total, span_ns: first to last call, waiting_ns: waiting,
    copying_ns: blocking copies, allocating_ns: allocating in the loop"""
)


@dataclass(frozen=True, eq=False, repr=False)
class CudaApi(Result):
    """Host time of runtime and driver calls, and findings of calls that block the host.

    Attributes:
        n: number of runtime and driver calls.
        total_ns: sum of their durations over all threads.
        span_ns: first start to last end of calls, summed over ranks.
        findings: one row per finding: finding, rule (of ``nsys analyze``, or null), what, n,
            host_ns (in these calls), host_frac (of total_ns), moved_bytes and copy_ns (of the
            copies and memsets on the device), waited (calls that returned after the copy), advice.
        calls: one row per name: call, class (what it does), n, total_ns, total_frac, mean_ns,
            median_ns, min_ns, max_ns, p99_ns, synchronises (only waits for the device); the
            largest total first.
        moves: calls that copied or set memory by call, name (of the copy or memset) and finding: n,
            moved_bytes, host_ns, max_ns, copy_ns, waited.
        allocations: by call: n, total_ns, max_ns, loop_n and loop_ns between the first and the
            last launch, late_n and late_ns in the second half of that.
        ranks: one row per rank: rank, path, n, total_ns, span_ns, waiting_ns, copying_ns,
            allocating_ns.
        by_rank: the columns of ``calls`` for each rank and path.
        unfinished: number of calls without an end, which are not counted.
        alone: number of calls that copy or set memory without a recorded copy or memset.
    """

    question = "What do CUDA calls cost the host, and which block it?"
    scalar_names = "n, total_ns, span_ns, unfinished, alone"

    n: int
    total_ns: int
    span_ns: int
    findings: pl.DataFrame
    calls: pl.DataFrame
    moves: pl.DataFrame
    allocations: pl.DataFrame
    ranks: pl.DataFrame
    by_rank: pl.DataFrame
    unfinished: int
    alone: int

    def view(self) -> View:
        """Build the view: findings, calls by name, copies, allocations, ranks."""
        return self.view_from(_verdict, _notes, _tables, _charts)


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: CudaApi) -> str:
    """Describe the calls with most time, and findings with advice."""
    if not result.total_ns:
        return f"{format_count(result.n, 'API call')} of zero duration: nothing to measure."
    heaviest = [
        f"{call or 'calls without a name'} {format_frac(frac)}"
        for call, frac in result.calls.select("call", "total_frac").head(_NAMED).rows()
        if frac >= _LEAST
    ]
    took = "takes" if result.n == 1 else "take"
    counted = f"{format_count(result.n, 'API call')} {took} {format_ns(result.total_ns)}"
    parts = [f"{counted} of host time: {', '.join(heaviest)}."]
    worth = result.findings.filter(pl.col("host_frac") >= _WORTH_FRAC)
    parts += [_finding(result, row) for row in worth.rows(named=True)]
    if result.findings.is_empty():
        parts.append("No blocking copies, synchronising calls or allocations between launches.")
    elif worth.is_empty():
        parts.append(
            "Blocking copies, synchronising calls and allocations between launches take < 1 %."
        )
    return " ".join(parts)


def _finding(result: CudaApi, row: dict[str, Any]) -> str:
    took = "takes" if row["n"] == 1 else "take"
    cost = f"{took} {format_ns(row['host_ns'])} ({format_frac(row['host_frac'])})"
    opening = f"{row['n']:,} {FINDINGS[row['finding']].sentence(row['n'])} {cost}"
    if row["copy_ns"] is not None:
        opening += f", the copies take {format_ns(row['copy_ns'])} on the device"
    if row["finding"] == ALLOC_IN_LOOP and not result.allocations["late_n"].sum():
        return f"{opening}, all in the first half: probably warm-up."
    return f"{opening}: {row['advice']}."


def _notes(result: CudaApi) -> Iterator[str]:
    """Describe what was not counted, and how to read the numbers."""
    yield _SUMMED
    if result.alone:
        calls = format_count(result.alone, "call")
        yield (
            f"{calls} that copy or set memory without a recorded copy or memset: only the call is "
            "counted."
        )
    yield from display.without_end(result.unfinished, "call")


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: CudaApi) -> Iterator[Table]:
    """Build the tables: findings, calls by name, copies, allocations, ranks."""
    copy = pl.col("name").str.strip_prefix("Memcpy ").alias("copy")
    moves = result.moves.with_columns(copy)
    yield display.table_of_known("findings", "Findings", result.findings, _FINDINGS)
    yield Table("calls", "Calls", result.calls, _CALLS, hide_first=("min_ns", "p99_ns", "mean_ns"))
    yield display.table_of_known("moves", "Calls that copy or set memory", moves, _MOVES)
    yield Table("allocations", "Calls that allocate or free", result.allocations, _ALLOCATIONS)
    if result.ranks.height > 1:
        ranks = result.ranks.with_columns(display.places(result.ranks))
        by_rank = result.by_rank.with_columns(display.places(result.by_rank))
        yield Table("ranks", "Ranks", ranks, _RANKS)
        yield Table("by_rank", "Calls by rank", by_rank, {"on": "rank", **_CALLS}, detail=True)


def _charts(result: CudaApi) -> Iterator[Chart]:
    """Build bars of the calls with most time."""
    title = "Calls by total time"
    yield display.bars(
        "calls", title, result.calls, length="total_ns", label="call", x_label="host time"
    )


ASYNC_PAGEABLE = "async-pageable"
SYNC_MEMCPY = "sync-memcpy"
SYNC_PINNED = "sync-memcpy-pinned"
SYNC_MEMSET = "sync-memset"
VALUE_READ = "value-read"
SYNC_CALL = "sync-call"
ALLOC_IN_LOOP = "alloc-in-loop"

#: Synchronous copies to the device of at most this many bytes return before they are done.
_STAGED_BYTES = 64 * 1024

#: A copy from the device of at most this many bytes reads single values, not a buffer.
_VALUE_BYTES = 256

_PAGEABLE = r"Pageable"
_FROM_DEVICE = r"DtoH"
_TO_DEVICE = r"HtoD"
_ON_DEVICE = r"[DA]to[DA] |PtoP"
#: Memory for which a synchronous memset waits; memsets of device memory do not.
_HOST_VISIBLE = r"Pinned|Managed"

_ASYNCHRONOUS = r"(?i)async|enqueue|append"


@dataclass(frozen=True)
class Sorts:
    """Names of calls by what they do.

    Attributes:
        moving: calls that copy or set memory.
        waiting: those of ``moving`` that by name return after the copy.
        synchronising: calls that only wait for the device.
        allocating: calls that allocate or free driver memory; stream-ordered calls
            (``cudaMallocAsync``) use a pool and are not included.
        launching: calls that launch kernels or graphs.
    """

    moving: tuple[str, ...]
    waiting: tuple[str, ...]
    synchronising: tuple[str, ...]
    allocating: tuple[str, ...]
    launching: tuple[str, ...]


def sorted_out(names: Iterable[str]) -> Sorts:
    """Classify names of calls."""
    waits, returns = map(matcher, (vocabulary.SYNCHRONISING_CALLS, [_ASYNCHRONOUS]))
    known = sorted(names)
    prompt = {name for name in known if returns(name)}
    moving = _in_class(known, vocabulary.COPY, vocabulary.MEMSET)
    return Sorts(
        moving=moving,
        waiting=tuple(name for name in moving if name not in prompt),
        synchronising=tuple(
            name
            for name in known
            if name not in moving
            and (vocabulary.call_class(name) == vocabulary.SYNCHRONISE or waits(name))
        ),
        allocating=tuple(
            name for name in _in_class(known, *vocabulary.ALLOCATES) if name not in prompt
        ),
        launching=_in_class(known, vocabulary.LAUNCH),
    )


def _in_class(names: Iterable[str], *classes: str) -> tuple[str, ...]:
    return tuple(name for name in names if vocabulary.call_class(name) in classes)


@dataclass(frozen=True)
class Finding:
    """Texts of a finding.

    Attributes:
        rule: the corresponding rule of ``nsys analyze``, or None.
        what: short label of the call.
        one: subject of a sentence, singular.
        several: subject of a sentence, plural.
        advice: what to do.
    """

    what: str
    one: str
    several: str
    advice: str
    rule: str | None = None

    def sentence(self, n: int) -> str:
        """Return the subject of a sentence on ``n`` calls."""
        return self.one if n == 1 else self.several


FINDINGS = {
    name: Finding(**{key: text.format(bytes=_VALUE_BYTES) for key, text in texts.items()})
    for name, texts in packaged("analyzers/cuda_api/findings.toml").items()
}

ID = pl.Enum(tuple(FINDINGS))


def of_moves(moves: pl.DataFrame, sorts: Sorts) -> pl.Series:
    """Return the finding of calls that copied or set memory; null for calls that do not block.

    Args:
        moves: call (its name), kind, name (of the copy or memset) and moved_bytes.
        sorts: the names of calls by what they do.
    """
    names = distinct(moves)
    to_device, from_device, on_device, pageable, visible = (
        named(names, [pattern])
        for pattern in (_TO_DEVICE, _FROM_DEVICE, _ON_DEVICE, _PAGEABLE, _HOST_VISIBLE)
    )
    waits = pl.col("call").is_in(sorts.waiting)
    copies = (pl.col("kind") == "gpu_memcpy") & pl.col("name").is_not_null()
    staged = to_device & (pl.col("moved_bytes") <= _STAGED_BYTES)
    blocks = copies & ~staged.fill_null(value=False) & ~on_device
    blocking = (waits & blocks) | (~waits & pageable)
    is_value = from_device & (pl.col("moved_bytes") <= _VALUE_BYTES)
    finding = (
        pl.when(copies & blocking & is_value)
        .then(pl.lit(VALUE_READ))
        .when(copies & ~waits & pageable)
        .then(pl.lit(ASYNC_PAGEABLE))
        .when(waits & blocks & visible)
        .then(pl.lit(SYNC_PINNED))
        .when(waits & blocks)
        .then(pl.lit(SYNC_MEMCPY))
        .when(waits & ~copies & visible)
        .then(pl.lit(SYNC_MEMSET))
    )
    return moves.select(finding.cast(ID).alias("finding")).to_series()


def findings_of(
    calls: pl.DataFrame, moves: pl.DataFrame, allocations: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per finding that occurs, the most host time first.

    Args:
        calls: synchronises, n and total_ns of each name.
        moves: finding, n, moved_bytes, host_ns, copy_ns and waited of calls that copied or set
            memory.
        allocations: loop_n and loop_ns of allocating functions.

    Returns:
        finding, rule, what, n, host_ns, moved_bytes and copy_ns (of the copies and memsets), waited
        (number of calls that returned after the copy), advice.
    """
    moved = (
        moves.drop_nulls("finding")
        .group_by("finding")
        .agg(pl.col("n", "host_ns", "copy_ns", "waited").sum(), sum_if_known("moved_bytes"))
    )
    waiting = calls.filter("synchronises").select(
        pl.lit(SYNC_CALL, ID).alias("finding"), pl.col("n").sum(), host_ns=pl.col("total_ns").sum()
    )
    allocating = allocations.select(
        pl.lit(ALLOC_IN_LOOP, ID).alias("finding"),
        n=pl.col("loop_n").sum(),
        host_ns=pl.col("loop_ns").sum(),
    )
    rows = pl.concat([moved, waiting, allocating], how="diagonal").filter(pl.col("n") > 0)
    names = rows["finding"].cast(pl.String).to_list()
    texts = {
        text: pl.Series([getattr(FINDINGS[name], text) for name in names], dtype=pl.String)
        for text in ("rule", "what", "advice")
    }
    labelled = rows.with_columns(**texts)[
        ["finding", "rule", "what", "n", "host_ns", "moved_bytes", "copy_ns", "waited", "advice"]
    ]
    return labelled.sort("host_ns", "finding", descending=[True, False])
