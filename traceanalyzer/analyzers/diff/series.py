"""Several runs in order, such as versions: in which one did a role become slower?"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.diff import compute, runs
from traceanalyzer.analyzers.diff.options import Options
from traceanalyzer.analyzers.diff.runs import Part
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_change, format_ns

#: States of a role that changed.
_CHANGED = (runs.SLOWER, runs.FASTER, runs.NEW, runs.GONE)
_NAMED = 2
_NOTE = "Each run is compared with the first one; a role has changed in the first run that differs."


@dataclass(frozen=True, eq=False, repr=False)
class DiffSeries(Result):
    """Result of :func:`traceanalyzer.diff_series`.

    Attributes:
        runs: run (its number), path, value_ns (the measure), change_frac and outcome (against the
            first run).
        roles: role, run_1_ns, run_2_ns ... (null if a run does not have the role), jump (number of
            the first run that differs significantly from run 1, or null), change_ns, kernel and
            in_place_of (in that run); the largest change first.
    """

    runs: pl.DataFrame
    roles: pl.DataFrame

    def view(self) -> View:
        """Build the view: the runs, and roles by run."""
        names = [name for name in self.roles.columns if name.startswith("run_")]
        labels = {"role": "role"} | {name: name[4:-3] for name in names}
        more = headings("jump: changed in run, change_ns: change, kernel, in_place_of: in place of")
        columns = headings("run, path, value_ns: value, change_frac: change, outcome: verdict")
        return View(
            title="In which run did it get slower?",
            verdict=self._verdict(),
            notes=(_NOTE,),
            tables=(
                Table("runs", "Runs", self.runs, columns),
                Table("roles", "Kernels by role and run", self.roles, {**labels, **more}),
            ),
            scalars={"runs": self.runs.height},
        )

    def _verdict(self) -> str:
        changed = self.runs.filter(pl.col("outcome").is_in(("regression", "improvement")))
        if changed.is_empty():
            return "No run differs significantly from the first one."
        row = changed.row(0, named=True)
        text = (
            f"Run {row['run']} ({row['path']}) is the first that differs: "
            f"{format_ns(row['value_ns'])}, {format_change(row['change_frac'])} ({row['outcome']})."
        )
        rows = self.roles.filter(pl.col("jump") == row["run"]).head(_NAMED)
        by = [
            f"{role} {format_ns(abs(ns))} {'more' if ns > 0 else 'less'}"
            + (f", {kernel} in place of {other}" if other else "")
            for role, ns, kernel, other in rows.select(
                "role", "change_ns", "kernel", "in_place_of"
            ).iter_rows()
        ]
        return f"{text} Roles that changed there: {'; '.join(by)}." if by else text


def combine(every: Sequence[Sequence[Part]], options: Options) -> DiffSeries:
    """Compare each run with the one before it.

    Raises:
        OptionError: there are fewer than two runs.
        MissingData: two runs cannot be compared.
    """
    if len(every) < 2:
        raise OptionError("diff_series needs at least two runs")
    each = [compute.combine(after, options, every[0]) for after in every[1:]]
    rows: list[tuple[object, ...]] = []
    roles: list[pl.DataFrame] = []
    for number, one in enumerate(each, 2):
        if one.measure is None or one.roles is None:
            why = one.why or "no kernels were recorded"
            raise MissingData(f"run {number} cannot be compared with the first one: {why}")
        paths = dict(one.runs.select("run", "path").iter_rows())
        if number == 2:
            rows.append((1, paths["before"], round(one.measure.before), None, None))
        change = one.measure.change_frac
        rows.append((number, paths["after"], round(one.measure.after), change, one.outcome))
        roles.append(_named(one.roles).with_columns(run=pl.lit(number)))
    table = pl.DataFrame(rows, orient="row", schema={
        "run": pl.Int64, "path": pl.String, "value_ns": pl.Int64, "change_frac": pl.Float64,
        "outcome": pl.String,
    })  # fmt: skip
    return DiffSeries(table, _by_run(roles))


def _named(roles: pl.DataFrame) -> pl.DataFrame:
    """Return roles by operator and shapes, or by the kernel of the first run that has it."""
    kernel = pl.coalesce("before_kernel", "after_kernel")
    name = pl.col("role").str.replace(r" \(position .*\)$", "")
    sums = [
        pl.when(pl.col(column).count() > 0).then(pl.col(column).sum()).alias(column)
        for column in ("before_ns", "after_ns", "change_ns")
    ]
    keyed = roles.with_columns(
        role=pl.when(pl.col("operator").is_null()).then(kernel).otherwise(name)
    )
    firsts = pl.col("state", "kernel", "in_place_of").first()
    return keyed.group_by("role", maintain_order=True).agg(*sums, firsts)


def _by_run(roles: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return one row per role with its time in each run, and the run in which it changed."""
    wide = roles[0].select("role", run_1_ns="before_ns")
    for number, frame in enumerate(roles, 2):
        column = frame.select("role", pl.col("after_ns").alias(f"run_{number}_ns"))
        wide = wide.join(column, on="role", how="full", coalesce=True)
    changed = pl.concat(roles).filter(pl.col("state").is_in(_CHANGED))
    first = changed.sort("run", maintain_order=True).unique("role", keep="first")
    jumps = first.select("role", "change_ns", "kernel", "in_place_of", jump=pl.col("run"))
    times = [name for name in wide.columns if name != "role"]
    rows = wide.filter(pl.any_horizontal(pl.col(times).is_not_null())).join(
        jumps, on="role", how="left"
    )
    ordered = rows.sort(
        pl.col("change_ns").abs(), "role", descending=[True, False], nulls_last=True
    )
    return ordered.select("role", *times, "jump", "change_ns", "kernel", "in_place_of")
