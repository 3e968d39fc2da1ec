"""Result of the operators analysis: data, verdict, notes, tables and charts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from traceanalyzer.analyzers.common import display, replays
from traceanalyzer.analyzers.common.names import ANY_STEP
from traceanalyzer.analyzers.gpu_idle.causes import OPERATOR
from traceanalyzer.analyzers.operators import SortBy, call_tree
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

_NAMED = 3

#: PyTorch's names of the wait for a DataLoader or DataPipe.
LOADER = re.compile(r"enumerate\(Data\w+\)#")

_KEYS = {"name": "operator", "input_dims": "input shapes", "stack": "called from"}
_DEVICE = display.headings(
    "self_device_ns: self device, self_device_frac: of device, total_device_ns: total device"
)
_HOST = display.headings(
    "self_host_ns: self host, self_host_frac: of host, total_host_ns: total host, "
    "mean_host_ns: host/call"
)
#: Columns left out if host and device are shown, and if rows have more keys than the name.
_DROPPED_FOR_BOTH = ("mean_host_ns",)
_DROPPED_FOR_KEYS = ("total_device_ns", "self_host_frac", "mean_host_ns")
_MEMORY = display.headings(
    "self_device_memory_bytes: self device, total_device_memory_bytes: total device, "
    "self_host_memory_bytes: self host, total_host_memory_bytes: total host"
)

_SPANS = display.headings(
    "name: span, thread: thread, n: spans, self_ns: self, total_ns: total, max_ns: longest"
)
_RANKS = {"calls": "calls", "threads": "threads", "host_ns": "host", "device_ns": "device"}


@dataclass(frozen=True, eq=False, repr=False)
class Operators(Result):
    """Time and memory of each operator, summed over calls and ranks.

    Attributes:
        sort_by: the column that rows are sorted by.
        n_calls: number of calls.
        host_ns: time in which threads were in any call, summed over the threads of all ranks.
        device_ns: time of all device work; None if none was recorded.
        unlaunched_ns: part of it without a known operator.
        outside_bytes: bytes allocated minus bytes freed outside of any call.
        unclosed: number of operators without an end, which are not counted.
        replayed: number of kernels replayed by CUDA or HIP graphs; replayed_ns: their device time.
        replayed_matched: those counted for the operator that launches them in a capture or a step
            without replay; replayed_matched_ns: their device time.
        operators: one row per operator: ``name``, ``kind``, ``input_dims`` and ``stack`` if grouped
            by them, ``calls``, then ``self_``, ``total_`` and ``mean_`` of ``host_ns`` and
            ``device_ns``, ``self_`` and ``total_`` shares ``host_frac`` and ``device_frac``
            (of the total without calls nested in calls of the same row),
            ``self_`` and ``total_`` of ``host_memory_bytes`` and ``device_memory_bytes``. Null if
            the data was not recorded.
        running: ``name``, ``kind`` and ``self_host_ns``, as in ``operators``, of the threads that
            run operators, without those that only wait in Python or for the network.
        ranks: one row per file and rank: ``rank``, ``path``, ``calls``, ``threads``, ``host_ns``,
            ``device_ns``.
        code_hint: how to record the code outside of any call.
        spans: if neither operators nor GPU calls were recorded, one row per thread and name: thread
            (null for asynchronous spans), name, n, ``self_ns`` (null for asynchronous ones),
            ``total_ns``, ``max_ns``.
    """

    question = "Which operators take the time?"
    scalar_names = (
        "sort_by, n_calls, host_ns, device_ns, unlaunched_ns, outside_bytes, unclosed, replayed, "
        "replayed_ns, replayed_matched, replayed_matched_ns"
    )

    sort_by: SortBy
    n_calls: int
    host_ns: int
    device_ns: int | None
    unlaunched_ns: int
    outside_bytes: int
    unclosed: int
    replayed: int
    replayed_ns: int
    replayed_matched: int
    replayed_matched_ns: int
    operators: pl.DataFrame
    running: pl.DataFrame
    ranks: pl.DataFrame
    code_hint: str = ""
    spans: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=call_tree.SPANS))

    def view(self) -> View:
        """Build the view: operators, memory if recorded, ranks if there are several; bars."""
        if self.spans.is_empty():
            return self.view_from(_verdict, _notes, tables, charts)
        title = "Which spans take the time?"
        return self.view_from(_of_spans, _notes, tables, charts, title=title)


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Operators) -> str:
    """Describe which operators take device and host time."""
    parts = []
    if result.device_ns:
        parts.append(_launched(result, result.device_ns))
    whole, is_python = result.host_ns, pl.col("kind") == call_tree.FRAMES
    idle_ns = whole - int(result.running["self_host_ns"].sum())
    idle = f", {format_ns(idle_ns)} of it in threads without operators" if idle_ns else ""
    heaviest = most_time(result.running.filter(~is_python), "self_host_ns", whole)
    longest = f"; highest self time: {heaviest}" if heaviest else ""
    parts.append(f"Host threads spent {format_ns(whole)} in calls{idle}{longest}.")
    if frames := most_time(result.running.filter(is_python).head(1), "self_host_ns", whole):
        parts.append(f"Python function with the highest self time: {frames}.")
    return " ".join([*parts, *_meaning(result)])


def _of_spans(result: Operators) -> str:
    """Describe which spans take the time of threads, and the asynchronous ones."""
    on_threads = result.spans.drop_nulls("thread")
    others = result.spans.filter(pl.col("thread").is_null())
    parts = []
    if on_threads.height:
        whole, sums = result.host_ns, on_threads.group_by("name").agg(pl.col("self_ns").sum())
        longest = most_time(sums.sort(-pl.col("self_ns"), "name"), "self_ns", whole)
        count = format_count(int(result.ranks["threads"].sum()), "thread")
        parts.append(
            f"{count} spent {format_ns(whole)} in spans"
            f"{f'; highest self time: {longest}' if longest else ''}."
        )
    if others.height:
        names = others.sort(-pl.col("total_ns"), "name").head(_NAMED)
        each = [
            f"{row['name']} ({row['n']:,}, up to {format_ns(row['max_ns'])})"
            for row in names.iter_rows(named=True)
        ]
        count = format_count(int(others["n"].sum()), "asynchronous span")
        parts.append(f"{count}: {', '.join(each)}.")
    return " ".join(parts)


def _launched(result: Operators, device_ns: int) -> str:
    by_name = result.operators.group_by("name").agg(pl.col("self_device_ns").sum())
    ordered = by_name.sort("self_device_ns", "name", descending=[True, False])
    heaviest = most_time(ordered, "self_device_ns", device_ns)
    launchers = (
        f"most launched by {heaviest}" if heaviest else "none launched by a recorded operator"
    )
    return f"Device work takes {format_ns(device_ns)}, {launchers}."


def most_time(rows: pl.DataFrame, column: str, whole: int) -> str:
    """Name the first rows with time, each with its share of the whole."""
    largest = rows.filter(pl.col(column) > 0).head(_NAMED)
    parts = [
        f"{name} ({format_frac(value / whole)})"
        for name, value in largest.select("name", column).iter_rows()
    ]
    return ", ".join(parts)


def _meaning(result: Operators) -> Iterator[str]:
    """Explain the self time of the call with most of it, where the name does not."""
    rows = result.running.filter(pl.col("kind") != call_tree.FRAMES)
    if rows.is_empty():
        return
    row = rows.row(0, named=True)
    name = row["name"]
    if LOADER.match(name):
        costs = "; traceanalyzer gpu-idle shows its cost" * _idleness_known(result)
        yield f"{name} is the wait for the next batch{costs}."
    elif row["kind"] in ("user_annotation", "nvtx") or name == ANY_STEP:
        yield (
            f"Self time of {name} is code or waiting outside of any operator; "
            f"{result.code_hint} shows which code."
        )
    elif row["kind"] in call_tree.CALLS and "ynchronize" in name:
        yield f"{name} is the host waiting for the device, not host work."


def _idleness_known(result: Operators) -> bool:
    """Whether gpu-idle can analyze the trace: it needs device work or host operators."""
    calls = result.operators.filter(pl.col("kind") == "cpu_op")["name"]
    return result.device_ns is not None or calls.str.contains(OPERATOR).any()


def _notes(result: Operators) -> Iterator[str]:
    """Describe what was not counted, and how shares are defined."""
    if result.spans.height:
        yield "Self time excludes nested spans; asynchronous spans have no thread."
        return
    counted = (
        "Self time excludes nested calls; total time includes them (recursive calls twice, but "
        "once in shares). Host shares are of the self time of all threads."
    )
    if (result.operators["kind"] == "cpu_op").any():
        counted += (
            " An operator that only calls another one of the same name counts as one call with it."
        )
    yield counted
    idle_ns = result.host_ns - int(result.running["self_host_ns"].sum())
    if idle_ns:
        yield (
            f"{format_ns(idle_ns)} of host time is in threads without operators, which wait or "
            "communicate over the network."
        )
    if result.device_ns and result.unlaunched_ns:
        share = format_frac(result.unlaunched_ns / result.device_ns)
        yield (
            f"{format_ns(result.unlaunched_ns)} ({share}) of device work is not attributed to a "
            "row: its launch was not recorded, or is outside of any operator."
        )
    if result.outside_bytes:
        done = "allocated" if result.outside_bytes > 0 else "freed"
        yield (
            f"{format_bytes(abs(result.outside_bytes))} were {done} outside of any call, and are "
            "not attributed to a row."
        )
    yield from replays.note(
        result.replayed, result.replayed_matched, result.replayed_ns, result.replayed_matched_ns
    )
    yield from display.without_end(result.unclosed, "operator")
    if "stack" in result.operators.columns:
        alone = result.operators["stack"].is_null() & (result.operators["kind"] != call_tree.FRAMES)
        if alone.any():
            yield (
                "Backward operators run in a thread without Python frames; their rows have no "
                "stack."
            )


# --- tables and charts ---------------------------------------------------------------------


def tables(result: Operators) -> tuple[Table, ...]:
    """Build the tables of operators, memory and ranks; memory first if rows are sorted by it."""
    if result.spans.height:
        return (Table("spans", "Spans", result.spans, _SPANS), *_ranks(result))
    rows = result.operators
    keys = {name: label for name, label in _KEYS.items() if name in rows.columns}
    both = result.device_ns is not None
    left_out = _DROPPED_FOR_KEYS if len(keys) > 1 else _DROPPED_FOR_BOTH if both else ()
    times = {"calls": "calls", **(_DEVICE if both else {}), **_HOST}
    times = {name: label for name, label in times.items() if name not in left_out}
    if "flops" in rows.columns and rows["flops"].is_not_null().any():
        times["flops"] = "FLOPs"
    is_python = pl.col("kind") == call_tree.FRAMES
    named, frames = rows.filter(~is_python), rows.filter(is_python)
    result_tables = [Table("operators", "Operators", named, {**keys, **times})]
    if frames.height:
        columns = {**keys, **times, "name": "Python function"}
        columns = display.known_columns(frames, columns, _DEVICE)
        result_tables.append(Table("python_functions", "Python functions", frames, columns))
    memory = {name: label for name, label in _MEMORY.items() if rows[name].is_not_null().any()}
    if "memory" in result.sort_by:
        result_tables.insert(0, _memory(rows, keys, memory))
    elif memory:
        largest = rows.sort(*memory, "name", descending=[True] * len(memory) + [False])
        used = pl.any_horizontal(pl.col(name) != 0 for name in memory)
        result_tables.append(_memory(largest.filter(used), keys, memory))
    return (*result_tables, *_ranks(result))


def _ranks(result: Operators) -> Iterator[Table]:
    if result.ranks.height > 1:
        columns = {**display.rank_column(result.ranks), **_RANKS}
        yield display.table_of_known("ranks", "Ranks", result.ranks, columns)


def _memory(rows: pl.DataFrame, keys: dict[str, str], memory: dict[str, str]) -> Table:
    columns = {**keys, "calls": "calls", **memory}
    return Table("memory", "Memory allocated minus freed", rows, columns)


def charts(result: Operators) -> tuple[Chart, ...]:
    """Build bars of the operators with most time; host time is of threads that run operators."""
    if result.spans.height:
        return (_chart(result.spans, "self_ns", "self time", "Spans"),)
    host = _chart(result.running, "self_host_ns", "self host time")
    if result.device_ns is None:
        return (host,)
    return (_chart(result.operators, "self_device_ns", "self device time"), host)


def _chart(rows: pl.DataFrame, column: str, label: str, what: str = "Operators") -> Chart:
    names = rows.group_by("name").agg(pl.col(column).sum())
    heaviest = names.filter(pl.col(column) > 0).sort(column, "name", descending=[True, False])
    title = f"{what} by {label}"
    name = column.removesuffix("_ns")
    return display.bars(name, title, heaviest, length=column, label="name", x_label=label)
