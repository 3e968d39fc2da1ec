"""Tables of ``key_averages().table()``: rows as printed, shares of the totals below each table."""

import re
from collections.abc import Iterator
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common.aggregates import wide
from traceanalyzer.analyzers.common.columns import largest_first, ratio
from traceanalyzer.analyzers.common.display import bars
from traceanalyzer.analyzers.printed import Options
from traceanalyzer.analyzers.printed.result import Form, table
from traceanalyzer.drawings import Chart
from traceanalyzer.units import format_count, format_frac, format_ns

FORMS = ("key_averages",)

_MEMORY = tuple(
    f"{part}_{place}_memory_bytes" for place in ("device", "host") for part in ("self", "total")
)
_NUMBERS = {
    **dict.fromkeys(("calls", "self_device_ns", "total_device_ns"), pl.Int64),
    **dict.fromkeys(("self_host_ns", "total_host_ns", *_MEMORY, "node"), pl.Int64),
    "flops": pl.Float64,
}
#: As printed, for tables without totals.
_SHARES = {
    f"{part}_{place}_frac": pl.Float64 for place in ("device", "host") for part in ("self", "total")
}
_TOTALS = {"host_ns": pl.Int64, "device_ns": pl.Int64}
#: What rows are grouped by besides the name, and how a table names it.
_GROUPS = {"overload": "overload", "input_dims": "input shapes", "stack": "source location"}
_TABLE = ["rank", "path", "table"]
_KEYS = "name: operator, overload, node, input_dims: input shapes, stack: source location"
_TIMES = (
    "calls, self_device_ns: self device, self_device_frac: of device, "
    "total_device_ns: total device, self_host_ns: self host, self_host_frac: of host, "
    "total_host_ns: total host, flops: FLOPs"
)
_SIZES = (
    "calls, self_device_memory_bytes: self device, total_device_memory_bytes: total device, "
    "self_host_memory_bytes: self host, total_host_memory_bytes: total host"
)
_SUMS = (
    "grouped_by: grouped by, rows, cut: names cut, calls, device_ns: self device total, "
    "host_ns: self host total, listed_frac: in the rows (host)"
)
#: A smaller share of the total time is due to rounding, and a larger one contradicts the total.
_ALL_FRAC, _WHOLE_FRAC = 0.995, 1.005
#: A smaller share of device time in the host time means that the device waits for the host.
_HOST_BOUND_FRAC = 0.5


def form(rows: pl.DataFrame, _options: Options) -> Form | None:
    """Return the rows of all tables, their memory, and the totals of each table.

    ``operators``: rank, path, table (number in its file), name, is_cut (the text shortened the
    name), overload, input_dims, stack, calls, ``self_`` and ``total_`` of ``host_ns`` and
    ``device_ns``, their shares of the printed totals (without totals, the shares as printed),
    ``mean_host_ns``, flops (of all calls), and memory. ``operator_totals``: grouped_by, rows, cut
    (rows with a shortened name), calls, the totals below the table (``host_ns``, ``device_ns``),
    listed_frac (part of ``host_ns`` in rows).
    """
    numbers = {**_NUMBERS, **dict.fromkeys(_SHARES, pl.Float64)}
    read = wide(rows, FORMS[0], numbers, tuple(_GROUPS))
    number = (pl.col("block").rank("dense").over("path", "rank") - 1).cast(pl.Int64)
    read = read.with_columns(table=number, stack=pl.col("stack").str.replace_all("\n", " < "))
    printed = read.drop_nulls("calls")
    if printed.is_empty():
        return None
    footers = wide(rows, FORMS[0], _TOTALS).filter(pl.col("row").is_null())
    tables = read.select(*_TABLE, "block").unique()
    totals = _totals(printed, footers.join(tables, on=["path", "rank", "block"], nulls_equal=True))
    by = "self_device_ns" if (printed["self_device_ns"].max() or 0) else "self_host_ns"
    operators = _operators(printed, totals, by)
    numbered = "table, " if totals["table"].max() else ""
    used = pl.any_horizontal(pl.col(name) != 0 for name in _MEMORY)
    memory = operators.filter(used).sort(
        *_MEMORY, "name", descending=[True] * 4 + [False], nulls_last=True
    )
    listed = [
        table("operators", "Operators", operators, f"{numbered}{_KEYS}, {_TIMES}"),
        table("operator_memory", "Memory allocated minus freed by operator", memory,
              f"{numbered}{_KEYS}, {_SIZES}"),
        table("operator_totals", "Tables of operators", totals, f"{numbered}{_SUMS}"),
    ]  # fmt: skip
    return Form(
        tuple(one for one in listed if one.frame.height),
        _verdict(operators, totals, by),
        tuple(_notes(operators, totals)),
        {name: totals[name][0] for name in _TOTALS} if totals.height == 1 else {},
        partial(_charts, operators, by),
    )


def _totals(printed: pl.DataFrame, footers: pl.DataFrame) -> pl.DataFrame:
    """Return one row per table, longest device or host time first."""
    groups = pl.concat_list(
        pl.when(pl.col(name).is_not_null().any()).then(pl.lit(label))
        for name, label in _GROUPS.items()
    )
    sums = printed.group_by(_TABLE, maintain_order=True).agg(
        groups.first().list.drop_nulls().list.join(", ").alias("grouped_by"),
        pl.len().cast(pl.Int64).alias("rows"),
        pl.col("is_cut").sum().cast(pl.Int64).alias("cut"),
        pl.col("calls").sum(),
        pl.col("self_host_ns").sum().alias("listed_ns"),
    )
    lines = footers.group_by(_TABLE).agg(pl.col(name).drop_nulls().first() for name in _TOTALS)
    joined = sums.join(lines, on=_TABLE, how="left", nulls_equal=True, maintain_order="left")
    known = joined.with_columns(
        listed_frac=ratio("listed_ns", "host_ns"),
        grouped_by=pl.when(pl.col("grouped_by") != "").then("grouped_by"),
    )
    return known.drop("listed_ns").sort(
        "device_ns", "host_ns", *_TABLE, descending=[True, True, *(False for _ in _TABLE)],
        nulls_last=True,
    )  # fmt: skip


def _operators(printed: pl.DataFrame, totals: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the rows of all tables with shares of the total of their table, largest first."""
    whole = totals.select(*_TABLE, *_TOTALS)
    joined = printed.join(whole, on=_TABLE, how="left", nulls_equal=True, maintain_order="left")
    shares = {
        name: _within(ratio(f"{name[:-5]}_ns", f"{name.split('_')[1]}_ns").fill_null(pl.col(name)))
        for name in _SHARES
    }
    mean = (pl.col("total_host_ns") / pl.col("calls")).round().cast(pl.Int64, strict=False)
    rows = joined.with_columns(**shares, mean_host_ns=pl.when(pl.col("calls") > 0).then(mean))
    whole_ns = pl.col(f"{by.split('_')[1]}_ns")
    contradicts = (pl.col(by) > whole_ns * _WHOLE_FRAC).fill_null(value=False)
    ordered = rows.sort(
        contradicts, by, "self_host_ns", "name", *_TABLE, "line",
        descending=[False, True, True, *(False for _ in ("name", *_TABLE, "line"))],
        nulls_last=True,
    )  # fmt: skip
    return ordered.select(
        "rank", "path", "table", "name", "is_cut", *_GROUPS, *_NUMBERS, *_SHARES, "mean_host_ns",
        "line",
    )  # fmt: skip


def _within(share: pl.Expr) -> pl.Expr:
    """Return the share; null where a row has more than the total of its table."""
    return pl.when(share <= _WHOLE_FRAC).then(share.clip(upper_bound=1.0))


#: Rows of marked steps, and of waits for streams and events (``enable_cuda_sync_events``).
_NO_OPERATORS = r"^ProfilerStep|^(?:Context|Stream|Event) Sync$|^Stream Wait Event$"


#: Rows of marked steps, of Lightning's actions, and of the DataLoader.
_RANGES = r"ProfilerStep|\[pl\]|enumerate\(DataLoader"

#: Parts of names of kernels, copies and operators, which ranges of the user rarely have.
_OF_WORK = r"(?i)::|[<(]|kernel|gemm|conv|mma|nccl|rccl|mem(?:cpy|set)|triton|\.\.\.$|\d{3}"


def _is_range(operators: pl.DataFrame) -> pl.Expr:
    """Whether a row is a range on the device (record_function, a compiled graph), not work.

    It has no host time, and as much device time as all operators or more.
    """
    device, host = pl.col("self_device_ns"), pl.col("self_host_ns")
    of_operators = int(operators.select(device.filter(host > 0).sum()).item() or 0)
    compiled = pl.col("name").str.starts_with("## Call CompiledFxGraph")
    is_long = (host == 0) & (device >= max(of_operators, 1))
    return compiled | (is_long & ~pl.col("name").str.contains(_OF_WORK)).fill_null(value=False)


def _verdict(operators: pl.DataFrame, totals: pl.DataFrame, by: str) -> str:
    """Return the row with most time; before it, whether the device mostly waits for the host."""
    ran = operators.filter(~pl.col("name").str.contains(_NO_OPERATORS), ~_is_range(operators))
    outside = _outside(operators)
    operators = ran if ran.height else operators
    row, busy_frac = operators.row(0, named=True), None
    if by == "self_device_ns" and totals.height == 1:
        busy_frac = totals.select(ratio("device_ns", "host_ns")).item()
    if busy_frac is not None and 0 < busy_frac < _HOST_BOUND_FRAC:
        top = operators.sort("self_host_ns", descending=True, nulls_last=True).row(0, named=True)
        highest = f"{top['name']} has the highest self host time: {format_ns(top['self_host_ns'])}."
        return (
            f"The device time is {format_frac(busy_frac)} of the host time: the device mostly "
            f"waits for the host. {outside or highest}"
        )
    place = by.split("_")[1]
    share = row[f"self_{place}_frac"]
    size = format_ns(row[by]) if share is None else f"{format_frac(share)} of the printed total"
    before = f"{outside} Of the operators, " * (place == "host" and bool(outside))
    return f"{before}{row['name']} has the highest self {place} time of the printed rows: {size}."


def _outside(operators: pl.DataFrame) -> str:
    """Return a sentence if a range has the highest self host time, which is that of no operator."""
    top = operators.sort("self_host_ns", descending=True, nulls_last=True).row(0, named=True)
    if not re.match(_RANGES, top["name"]):
        return ""
    share = top["self_host_frac"]
    size = format_ns(top["self_host_ns"]) if share is None else format_frac(share)
    return f"{size} of the host time is in no operator ({top['name']}): Python code, data loading."


def _notes(operators: pl.DataFrame, totals: pl.DataFrame) -> Iterator[str]:
    for place in ("device", "host"):
        wrong = operators.join(
            totals.select(*_TABLE, whole=f"{place}_ns"), on=_TABLE, nulls_equal=True
        )
        wrong = wrong.filter(pl.col(f"self_{place}_ns") > pl.col("whole") * _WHOLE_FRAC)
        of_device = (pl.col("self_host_ns") == 0) & (place == "device")  # kernels, annotations
        for is_range, why in (
            (True, "the span of an annotation on the device includes the time without work"),
            (False, "its profiler counted calls, such as the loading of kernels, as work"),
        ):
            if (rows := wrong.filter(of_device == is_range)).height:
                yield (
                    f"{format_count(rows.height, 'row')} with more self {place} time than the "
                    f"printed total ({rows['name'][0]}): {why}. No shares are given for them, and "
                    "they come last."
                )
    if totals.height > 1:
        yield (
            "Rows of several tables of operators are not summed: the same recording may be printed "
            "more than once."
        )
    if cut := int(totals["cut"].sum()):
        yield (
            f"{format_count(cut, 'name')} cut by the text (...), so different operators may look "
            "alike. table(max_name_column_width=200) prints whole names."
        )
    least = totals["listed_frac"].min()
    if isinstance(least, float) and least < _ALL_FRAC:
        yield (
            f"A table of operators lists {format_frac(least)} of the host time; "
            "table(row_limit=-1) prints all rows."
        )
    if without := totals["host_ns"].null_count():
        yield (
            f"{format_count(without, 'table')} of operators without the total below the rows, so "
            "truncated or not printed to its end: shares are those printed in the rows."
        )
    if totals["device_ns"].max():
        yield (
            "Device time of kernels is listed in their own rows and in those of the operators that "
            "launched them: the rows add up to more than the total."
        )


def _charts(operators: pl.DataFrame, by: str) -> tuple[Chart, ...]:
    """Build bars of the operators with the highest self time, of the largest table."""
    first = operators.row(0, named=True)
    of_one = operators.filter(pl.col(name).eq_missing(first[name]) for name in _TABLE)
    heaviest = largest_first(of_one.group_by("name").agg(pl.col(by).sum()), by, "name")
    label = by.removesuffix("_ns").replace("_", " ")
    return (
        bars("operators", f"Operators by {label} time", heaviest, length=by, label="name",
             x_label=f"{label} time"),
    )  # fmt: skip
