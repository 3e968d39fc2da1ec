"""Sample results for tests of renderers: ordinary, hostile and empty."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traceanalyzer.drawings import Chart
from traceanalyzer.result import Finding, Result, Table, View

LONG_KERNEL = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>, ncclWork*)"
)

#: Names that an untrusted file may contain.
HOSTILE = (
    "<script>document.title = 'pwned'</script>",
    '"><img src=x onerror="document.title=\'pwned\'">',
    'it\'s & "quoted" &amp; </svg></style><b>',
    "$\\frac{1}{$ _underscore %s {}",
    "\u202egpj.exe\u2066",
    "nul\x00 esc\x1b[31m bell\x07 \x9b31m line\nbreak\ttab",
    "שלום مرحبا 内核 Ω",
    '=HYPERLINK("http://example.invalid")',
    "@sum",
    "x" * 10_000,
    "_starts_with_underscore",
    "",
)


@dataclass(frozen=True)
class Sample(Result):
    """A result given by its parts."""

    titled: str = "Which communication took unusually long?"
    text: str = "Rank 2 is late: the others waited 48.2 ms for it in 12 of 60 collectives."
    table_list: tuple[Table, ...] = ()
    drawn: tuple[Chart, ...] = ()
    noted: tuple[str, ...] = ()
    wrong: tuple[Finding, ...] = ()

    def view(self) -> View:
        return View(
            self.titled,
            self.text,
            notes=self.noted,
            tables=self.table_list,
            charts=lambda: self.drawn,
            scalars={"wait_ns": 48_200_000, "late_rank": 2},
            findings=self.wrong,
        )


def groups() -> Table:
    frame = pl.DataFrame(
        {
            "group": ["all_reduce bfloat16", "all_gather", LONG_KERNEL],
            "count": [28_010, 160, 3],
            "median_ns": [798_900, 805_700, 12_000],
            "max_ns": [17_570_000, 25_050_000, 7_635_000],
            "sent_bytes": [25_600_000, 1_048_576, None],
            "share_frac": [0.456, 0.0034, 0.2],
            "busbw_gbps": [178.31, 45.2, None],
            "pid": [1_234_567, 1_234_568, None],
            "late": [True, False, None],
            "ranks": [[0, 1, 2], [3], None],
        }
    )
    columns = {name: name.removesuffix("_ns").removesuffix("_bytes") for name in frame.columns}
    return Table("groups", "Communication by group", frame, columns)


def durations(ranks: int = 4, each: int = 12) -> Chart:
    rows = [
        (rank, i * 40_000_000, 800_000 + 10_000 * rank + 9_000_000 * (i == 7 and rank == 1))
        for rank in range(ranks)
        for i in range(each)
    ]
    frame = pl.DataFrame(rows, schema=["rank", "ts_ns", "dur_ns"], orient="row").with_columns(
        outlier=pl.col("dur_ns") > 5_000_000, end_ns=pl.col("ts_ns") + pl.col("dur_ns")
    )
    return Chart(
        "durations",
        "Duration of every collective",
        "scatter",
        frame,
        x="ts_ns",
        y="dur_ns",
        x_label="start",
        y_label="duration",
        color="rank",
        emphasis="outlier",
        emphasis_label="outlier",
        log_y=True,
    )


def skew() -> Chart:
    frame = pl.DataFrame(
        {
            "collective": range(6),
            "skew_ns": [3_200_000, 900_000, 16_000_000, 1_100_000, None, 5_400_000],
            "late_rank": [0, 2, 1, None, None, 1],
        }
    )
    return Chart(
        "skew", "Arrival skew", "bar", frame, "collective", "skew_ns", "collective", "skew",
        color="late_rank",
    )  # fmt: skip


def ordinary() -> Sample:
    empty = Table("none", "Outliers", pl.DataFrame({"rank": []}), {"rank": "rank"}, "none found")
    notes = ("Bandwidth is not shown where the size of the message was not recorded.",)
    return Sample(table_list=(groups(), empty), drawn=(durations(), skew()), noted=notes)


def wrong(*names: str) -> tuple[Finding, ...]:
    """Return a finding per name, which is used in every text field."""
    return tuple(
        Finding(
            name,
            "warning",
            "low",
            name,
            (name, name),
            name,
            name,
            3,
            0,
            name,
            12_000,
            4096,
            0.5,
            name,
            name,
        )
        for name in names
    )


def hostile() -> Sample:
    """Return a result with hostile names in every text."""
    frame = pl.DataFrame(
        {"name": HOSTILE, "dur_ns": [(i + 1) * 1000 for i in range(len(HOSTILE))]}
    ).with_columns(
        end_ns=pl.col("dur_ns") * 2, again=pl.col("name"), ringed=pl.col("dur_ns") > 10_000
    )
    everything = " ".join(HOSTILE)
    tables = (Table("bad", everything, frame, {"name": HOSTILE[0], "dur_ns": HOSTILE[2]}),)
    charts = tuple(
        Chart(
            f"{mark} {HOSTILE[1]}",
            HOSTILE[3] + HOSTILE[2],
            mark,
            frame,
            x="name" if mark == "bar" else "dur_ns",
            y="name" if mark == "span" else "dur_ns",
            x_label=HOSTILE[4],
            y_label=HOSTILE[0],
            color="again",
            x2="end_ns" if mark == "span" else None,
            emphasis="ringed",
            emphasis_label=HOSTILE[10],
            panel="again" if mark == "scatter" else None,
        )
        for mark in ("bar", "span", "scatter", "line")
    )
    return Sample(everything, everything, tables, charts, HOSTILE, wrong(*HOSTILE))


def empty() -> Sample:
    table, chart = groups(), durations()
    return Sample(
        table_list=(Table("groups", "Groups", table.frame.clear(), table.columns),),
        drawn=(Chart("none", "None", "bar", chart.frame.clear(), "rank", "dur_ns", "r", "d"),),
    )
