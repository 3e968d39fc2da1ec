"""Rules about what devices do, how even steps are, and which code runs on the host."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from traceanalyzer.analyzers.common.kernel_families import is_plain_float
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.py_spy_report.result import LeafPaths
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.units import format_frac, format_ns, format_weight


def rules() -> tuple[Rule, ...]:
    """Steps that differ, time between them, single precision, hot lines."""
    return (
        Rule(
            "uneven-steps",
            "steps",
            "some steps take longer than the usual one",
            "time beyond each rank's median step, as a share of all steps' time",
            {"info": 0.02, "warning": 0.1, "critical": 0.3},
            _uneven,
        ),
        Rule(
            "time-between-steps",
            "steps",
            "time passes between steps: evaluation, logging, checkpoints",
            "time between steps as a share of the time from the first to the last",
            {"info": 0.05, "warning": 0.15, "critical": 0.4},
            _between,
        ),
        Rule(
            "no-tensor-cores",
            "kernels",
            "matrix multiplications and convolutions in single precision, without tensor cores",
            "their share of the busy time",
            {"warning": 0.1, "critical": 0.5},
            _plain_float,
        ),
        Rule(
            "hot-line",
            "py_spy_report",
            "one line of your own code is on the stack in many samples",
            "share of the samples",
            {"info": 0.1},
            _hot_line,
        ),
    )


def _uneven(result: Steps, _: Answers) -> Iterator[Measured]:
    each = result.counted.unique(["rank", "path", "number"], maintain_order=True)
    whole = int(each["duration_ns"].sum())
    over = pl.col("duration_ns") - pl.col("duration_ns").median().over("rank", "path")
    longer = each.with_columns(over=over.clip(0)).sort("over", descending=True)
    cost = round(longer["over"].sum())
    if not cost or not whole:
        return
    worst = longer.row(0, named=True)
    grown = worst["grown"]
    grew = f", mostly {grown} ({format_ns(worst['grown_ns'])} more)" if grown else ""
    rank = f" of {worst['on']}" if result.ranks.height > 1 else ""
    slowest = (
        f"The slowest is {worst['step']}{rank}: {format_ns(worst['duration_ns'])}, "
        f"{worst['ratio']:.3g} times the median{grew}."
    )
    yield Measured(
        size=cost / whole,
        title=f"Steps are uneven: together they take {format_ns(cost)} more than if each took the "
        f"median, {format_frac(cost / whole)} of their time.",
        evidence=(slowest,),
        advice="See what the slow steps spend their time on that others do not: traceanalyzer "
        "steps and gpu-idle --by step show it.",
        cost_ns=cost,
        cost_frac=cost / whole,
        of="step time",
        confidence="high" if each.height >= _ENOUGH * result.ranks.height else "low",
    )


#: From so many steps a rank on, their median says what is usual.
_ENOUGH = 5


def _between(result: Steps, _: Answers) -> Iterator[Measured]:
    rows = result.ranks.drop_nulls("between_frac").sort(
        "between_frac", "on", descending=[True, False]
    )
    if rows.is_empty():
        return
    worst = rows.row(0, named=True)
    rank = f" on {worst['on']}" if result.ranks.height > 1 else ""
    yield Measured(
        size=worst["between_frac"],
        title=f"Between steps{rank} pass {format_ns(worst['between_ns'])}, "
        f"{format_frac(worst['between_frac'])} of the time.",
        advice="Evaluate, log and save less often, or beside the training; what happens there "
        "shows in a flamegraph.",
        cost_ns=int(rows["between_ns"].sum()),
        cost_frac=worst["between_frac"],
        of="the training's time",
        confidence="medium",
    )


def _plain_float(result: Kernels, _: Answers) -> Iterator[Measured]:
    rows = result.heaviest("name")
    plain = [name for name in rows["name"] if name is not None and is_plain_float(name)]
    found = rows.filter(pl.col("name").is_in(plain))
    cost = int(found["total_ns"].sum())
    if not cost or not result.busy_ns:
        return
    yield Measured(
        size=cost / result.busy_ns,
        title=f"{format_ns(cost)} ({format_frac(cost / result.busy_ns)} of the busy time) are "
        "matrix multiplications and convolutions in single precision, without tensor cores.",
        evidence=(f"The heaviest is {found['kernel'][0]}: {format_ns(found['total_ns'][0])}.",),
        advice="Mixed precision (torch.autocast, bfloat16), or from Ampere on TF32 "
        '(torch.set_float32_matmul_precision("high")), is several times as fast.',
        cost_ns=cost,
        cost_frac=cost / result.busy_ns,
        of="the busy time",
        confidence="medium",  # told by names
    )


def _hot_line(result: LeafPaths, _: Answers) -> Iterator[Measured]:
    if not result.total_samples:
        return
    keys = ["library_function_name", "library_function_path", "library_function_line"]
    sums = (
        result.paths.drop_nulls("library_function_line")
        .group_by(keys)
        .agg(pl.col("samples").sum())
        .sort("samples", *keys, descending=[True, False, False, False])
    )
    if sums.is_empty():
        return
    name, path, line, samples = sums.row(0)
    share = samples / result.total_samples
    own, whole = (format_weight(n, result.unit) for n in (samples, result.total_samples))
    yield Measured(
        size=share,
        title=f"{format_frac(share)} of the samples are in or below one line of your own code: "
        f"{name} ({path}:{line}).",
        evidence=(f"These are {own} of {whole}.",),
        advice="The flamegraph shows what it calls.",
        cost_frac=share,
        of="the samples",
    )
