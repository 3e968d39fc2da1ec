"""Costs and gains of findings fit into the time of the run, in every recording at hand."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from conftest import ROOT, SHARED

import traceanalyzer as ta
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.findings.judge import RULES
from traceanalyzer.findings.program import Program
from traceanalyzer.findings.result import BUSY, Diagnosis
from traceanalyzer.result import Finding

ROUNDING = 1e-3
#: Files and folders of one run each.
RUNS = [
    path
    for pattern in (
        "fixtures/*ranks*", "fixtures/nsys/*.sqlite", "fixtures/rocpd/training.*",
        "fixtures/tutorial/*", "fixtures/transformer", "fixtures/composer", "fixtures/jax_cpu",
        "fixtures/torchscript", "fixtures/upgrade", "fixtures/xla", "shared/data/causes/*/*",
        "shared/data/chrome/kineto*/*", "shared/data/nsys/*.sqlite*", "shared/data/rocpd/*",
        "shared/data/whatif/kineto",
    )
    for path in sorted((SHARED.parent if pattern.startswith("shared") else ROOT).glob(pattern))
]  # fmt: skip
#: Of job ST: wait time that is rated as bubble of the pipeline and as its unequal stage.
TOO_MUCH = {"whatif": 0.014}
#: Rules about time in which devices are busy, or about slow steps, whatever they do.
OF_BUSY_TIME = {
    "uneven-steps", "prefill-stalls", "eager-decode",
    *(one.id for one in RULES
      if one.function.__module__.endswith(("busy", "heavy_kernels", "clocks"))),
}  # fmt: skip


def lost_frac(one: Finding, ranks: int) -> float:
    """The cost of a finding that is lost time.

    Stragglers also work longer themselves, by as much as each of the other ranks waits for them.
    """
    if one.id != "straggler" or one.intervals is None:
        return one.cost_frac or 0.0
    length = pl.col("end_ns") - pl.col("start_ns")
    waits = one.intervals.group_by("rank").agg(length.sum().alias("ns"))["ns"]
    waiting = int((waits * 4 > waits.max()).sum())
    return (one.cost_frac or 0.0) * waiting / max(ranks, waiting + 1)


def together_frac(result: Diagnosis) -> float:
    """The gain of removing all causes, from the note; 0 without one."""
    shares = re.findall(r"All gains together: .* \(([\d.]+) %\)", "\n".join(result.input_notes))
    return float(shares[0]) / 100 if shares else 0.0


def counted(result: Diagnosis) -> list[Finding]:
    """The findings whose cost is a share of the time budget."""
    return [one for one in result.findings if one.of == result.of and "once" not in one.per]


@pytest.mark.sample(12)
@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_costs_and_gains_fit_into_the_time_of_the_run(path: Path) -> None:
    try:
        result = ta.diagnose(path)
    except TraceAnalyzerError:
        pytest.skip("not a recording of a run")
    gains = [one.gain_frac for one in result.findings if one.gain_frac is not None]
    assert all(gain <= 1 for gain in gains)
    findings = counted(result)
    if not findings:
        return
    lost = 1 - float(result.budget.filter(part=BUSY)["time_frac"].sum())
    known = [one.intervals["rank"] for one in findings if one.intervals is not None]
    ranks = pl.concat([pl.Series(dtype=pl.Int32), *known]).n_unique()
    costs = [(one.id, lost_frac(one, ranks)) for one in findings if one.id not in OF_BUSY_TIME]
    excess = TOO_MUCH.get(path.parent.name, 0.0)
    assert sum(cost for _, cost in costs) <= lost + excess + ROUNDING, costs
    alone = [one.gain_frac or 0.0 for one in findings if one.gain_basis == "replay"]
    if len(alone) > 1:
        assert max(alone) - ROUNDING <= together_frac(result) <= 1


@pytest.mark.parametrize(
    ("gpus", "advice", "text"),
    [
        ("Tesla V100", "use bfloat16, which needs no scaler, or fused=True", "use fused=True"),
        ("Tesla T4", "in float16 or bfloat16 (DeepSpeed: bf16)", "in float16 (DeepSpeed: fp16)"),
        ("NVIDIA A100-SXM4-80GB", "use bfloat16", "use bfloat16"),
        ("", "use bfloat16", "use bfloat16"),
    ],
)  # fmt: skip
def test_gpus_without_bfloat16(gpus: str, advice: str, text: str) -> None:
    assert Program(gpus=gpus).fitting(advice) == text
    assert ("bfloat16" in Program(gpus=gpus).faster_precision) == ("bfloat16" in text)
