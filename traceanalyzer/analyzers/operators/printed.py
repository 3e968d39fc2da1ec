"""Operators from printed ``key_averages`` tables: rows are those of the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common import printed
from traceanalyzer.analyzers.common.columns import per_rank, sum_if_known
from traceanalyzer.analyzers.common.display import sentences
from traceanalyzer.analyzers.operators import result
from traceanalyzer.analyzers.operators.call_tree import BETWEEN
from traceanalyzer.analyzers.operators.compute import SUMS, with_shares
from traceanalyzer.analyzers.operators.options import Options, sort_column
from traceanalyzer.errors import MissingData
from traceanalyzer.result import View
from traceanalyzer.units import format_count, format_frac, format_ns

FORM = "key_averages"
_NUMBERS = {**dict.fromkeys(SUMS, pl.Int64), "flops": pl.Float64}
_TOTALS = {"host_ns": pl.Int64, "device_ns": pl.Int64}
_TEXTS = ("input_dims", "stack")
_LABELS = {"input_dims": "input shapes", "stack": "source locations"}
_OPTION = {"input_dims": "group_by_input_shape=True", "stack": "group_by_stack_n=5"}
#: A smaller share of the total time is due to rounding.
_ALL_FRAC = 0.995


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PrintedOperators(result.Operators):
    """Operators of printed ``key_averages`` tables.

    As :class:`~.result.Operators`; ``kind`` is null, ``operators`` also has ``flops`` (null if not
    counted) and ``is_cut`` (the text shortened the name; such rows are not summed).

    Attributes:
        listed_frac: share of the host time that the rows of the tables cover; less with a
            ``row_limit``; null if a table has no total.
        cut: number of rows with a shortened name.
        repeated: number of tables that show the same recording again.
        without_total: number of tables without the total below them, such as truncated ones; their
            total is the sum of their rows.
    """

    listed_frac: float | None = None
    cut: int = 0
    repeated: int = 0
    without_total: int = 0

    def view(self) -> View:
        """Build the view: operators, memory if recorded, ranks if there are several; bars."""
        return View(
            title="Which operators take the time?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=result.tables(self),
            scalars=self.numbers("sort_by", "n_calls", "host_ns", "device_ns", "listed_frac"),
            charts=partial(result.charts, self),
        )


def combine(rows: pl.DataFrame, options: Options) -> PrintedOperators:
    """Return the operators of all tables; the same recording printed twice counts once.

    Rows of one name are summed over ranks, shapes and stacks, but not if the name is cut.

    Raises:
        MissingData: no table has the data to group or sort by.
    """
    table = printed.wide(rows, FORM, _NUMBERS, _TEXTS).drop_nulls("calls")
    if table.is_empty():
        raise MissingData(
            f"{rows['path'][0]}: the printed table has no complete row; print "
            "key_averages().table() again"
        )
    totals = printed.wide(rows, FORM, _TOTALS).filter(pl.col("row").is_null())
    wanted = [name for name in options.keys if name in _TEXTS]
    for name in wanted:
        if table[name].is_null().all():
            raise MissingData(
                f"{rows['path'][0]}: the printed table has no {_LABELS[name]}; print "
                f"key_averages({_OPTION[name]}).table(), or record a timeline"
            )
    tables, repeated = _distinct(table, totals, wanted)
    listed = pl.concat(one.rows for one in tables)
    host_ns = sum(one.host_ns for one in tables)
    known = [one.device_ns for one in tables if one.device_ns is not None]
    device_ns = sum(known) if known else None
    keys = [name for name in options.keys if name != "kind"]
    operators = _summed(_cut_stacks(listed, options.group_by_stack), keys)
    sort_by = options.sort_by or ("self_device" if device_ns else "self_host")
    if operators[sort_column(sort_by)].is_null().all():
        raise MissingData(f"{rows['path'][0]}: the printed table has no column for {sort_by}")
    more = operators.select("flops", "is_cut")
    operators = operators.with_columns(kind=pl.lit(None, pl.String)).select(*options.keys, *SUMS)
    operators = with_shares(operators, host_ns, device_ns).hstack(more)
    order = [sort_column(sort_by), "self_host_ns", *keys]
    operators = operators.sort(
        order, descending=[True, True, *(False for _ in keys)], nulls_last=True
    )
    running = operators.select("name", "kind", "self_host_ns")
    self_ns = listed["self_host_ns"].sum()
    without_total = sum(not one.has_total for one in tables)
    return PrintedOperators(
        **printed.blank(result.Operators)
        | {
            "sort_by": sort_by,
            "n_calls": int(operators["calls"].sum()),
            "host_ns": host_ns,
            "device_ns": device_ns,
            "operators": operators,
            "running": running.sort(
                "self_host_ns", "name", descending=[True, False], nulls_last=True
            ),
            "ranks": per_rank(tables, [one.numbers() for one in tables]),
            "listed_frac": self_ns / host_ns if host_ns and not without_total else None,
            "cut": int(operators["is_cut"].sum()),
            "repeated": repeated,
            "without_total": without_total,
        }
    )


@dataclass(frozen=True)
class _Table:
    """One printed table: its rows, and the total times below it (else the sum of its rows)."""

    path: str
    rank: int | None
    rows: pl.DataFrame
    host_ns: int
    device_ns: int | None
    has_total: bool

    def numbers(self) -> dict[str, int | None]:
        return {
            "calls": int(self.rows["calls"].sum()),
            "threads": None,
            "host_ns": self.host_ns,
            "device_ns": self.device_ns,
        }

    @property
    def grouped(self) -> list[str]:
        """What rows are grouped by besides the name."""
        return [name for name in _TEXTS if self.rows[name].is_not_null().any()]

    def fits(self, wanted: Sequence[str]) -> tuple[int, int]:
        """Return how well the grouping fits, then the number of rows: the largest fits best."""
        missing = sum(name not in self.grouped for name in wanted)
        return -10 * missing - len(self.grouped), self.rows.height

    def repeats(self, other: "_Table") -> bool:
        """Whether both show one recording: equal totals, and no row of one name that differs."""
        same_rank = self.rank == other.rank
        if not same_rank or (self.host_ns, self.device_ns) != (other.host_ns, other.device_ns):
            return False
        if self.grouped != other.grouped:
            return True  # rows of another grouping differ
        keys, columns = ["name", *_TEXTS], ["calls", "self_host_ns"]
        mine, theirs = (
            one.rows.filter(~pl.col("is_cut")).unique(keys, keep="none").select(keys + columns)
            for one in (self, other)
        )
        both = mine.join(theirs, on=keys, suffix="_other", nulls_equal=True)
        equal = pl.all_horizontal(pl.col(name) == pl.col(f"{name}_other") for name in columns)
        return bool(both.select(equal.all()).item())


def _distinct(
    table: pl.DataFrame, totals: pl.DataFrame, wanted: Sequence[str]
) -> tuple[list[_Table], int]:
    """Return one table per recording, that with the best grouping, and the number of the others."""
    keys = ["path", "rank", "block"]
    printed_totals = {
        (row["path"], row["rank"], row["block"]): row for row in totals.iter_rows(named=True)
    }
    chosen: list[_Table] = []
    repeated = 0
    for rows in table.partition_by(keys, maintain_order=True):
        path, rank, block = rows.row(0, named=True)["path"], rows["rank"][0], rows["block"][0]
        total = printed_totals.get((path, rank, block), {})
        host_ns = total.get("host_ns")
        whole = int(rows["self_host_ns"].sum()) if host_ns is None else host_ns
        one = _Table(path, rank, rows, whole, total.get("device_ns"), host_ns is not None)
        same = next((i for i, other in enumerate(chosen) if one.repeats(other)), None)
        if same is None:
            chosen.append(one)
            continue
        repeated += 1
        if one.fits(wanted) > chosen[same].fits(wanted):
            chosen[same] = one
    return chosen, repeated


def _cut_stacks(rows: pl.DataFrame, frames: int) -> pl.DataFrame:
    """Return the rows with this many frames of their stack, innermost first."""
    stack = pl.col("stack").str.split("\n").list.head(frames).list.join(BETWEEN)
    return rows.with_columns(stack=stack)


def _summed(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Sum rows by the keys; rows with a shortened name stay as they are."""
    numbered = rows.with_row_index("alone")
    alone = pl.when("is_cut").then("alone").alias("alone")
    sums = [sum_if_known(name) for name in _NUMBERS]
    grouped = numbered.with_columns(alone).group_by(*keys, "is_cut", "alone", maintain_order=True)
    return grouped.agg(*sums).drop("alone")


# --- words -------------------------------------------------------------------------------------


def _verdict(answer: PrintedOperators) -> str:
    host = result.most_time(answer.running, "self_host_ns", answer.host_ns or 1)
    whole = "of the printed rows" if answer.without_total else "total"
    rows = format_count(answer.operators.height, "printed row")
    limited = not (answer.listed_frac and answer.listed_frac >= _ALL_FRAC)
    among = f" of the {rows}" if limited else ""
    texts = [
        f"Self CPU time {whole}: {format_ns(answer.host_ns)}; highest self time{among}: {host}."
    ]
    if answer.device_ns:
        by_device = answer.operators.sort(
            "self_device_ns", "name", descending=[True, False], nulls_last=True
        )
        most = result.most_time(by_device, "self_device_ns", answer.device_ns)
        texts.insert(0, f"Device time total: {format_ns(answer.device_ns)}; most{among} in {most}.")
    return sentences(*texts)


def _notes(answer: PrintedOperators) -> tuple[str, ...]:
    notes = [printed.NOTE]
    if answer.cut:
        notes.append(
            f"{format_count(answer.cut, 'name')} cut by the text (...): different operators may "
            "look alike, so these rows are not summed. table(max_name_column_width=200) prints "
            "whole names."
        )
    if answer.listed_frac is not None and answer.listed_frac < _ALL_FRAC:
        notes.append(
            f"The rows cover {format_frac(answer.listed_frac)} of the host time; "
            "table(row_limit=-1) prints all."
        )
    if answer.without_total:
        text = format_count(answer.without_total, "table")
        notes.append(
            f"{text} without the total below the rows, so truncated or not printed to its end: "
            "host times and shares are of the printed rows, not of the whole run."
        )
    if answer.repeated:
        text = format_count(answer.repeated, "table")
        notes.append(f"Not counted: {text} of a recording that another table shows.")
    if answer.device_ns:
        notes.append(
            "Device time of kernels is listed in their own rows and in those of the operators that "
            "launched them: the rows add up to more than the total."
        )
    return tuple(notes)
