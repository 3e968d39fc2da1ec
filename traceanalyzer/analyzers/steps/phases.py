"""Steps of inference engines by phase and batch size, from their annotations."""

import re

import polars as pl

from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.vocabulary import ENGINE_STEP

#: Columns that steps of an engine are grouped by.
PHASE = ("phase", "batch")
PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"

_STEP = re.compile(ENGINE_STEP)
_MODES = {"extend": PREFILL}


def phase_of(name: str) -> tuple[str, int] | None:
    """Return the phase of an engine's step and its number of requests; None for other steps.

    A step of vLLM with prefill and decode requests is mixed; its batch counts both.
    """
    match = _STEP.match(name)
    if match is None:
        return None
    if match["prefills"] is not None:
        prefills, decodes = int(match["prefills"]), int(match["decodes"])
        phase = MIXED if prefills and decodes else PREFILL if prefills else DECODE
        return phase, prefills + decodes
    phase = (match["mode"] or match["phase"] or match["diffusion"]).lower()
    batch = match["requests"] or match["batch"] or match["images"]
    return _MODES.get(phase, phase), int(batch)


def with_phases(steps: pl.DataFrame) -> pl.DataFrame:
    """Add ``phase`` and ``batch`` to steps, null for steps not of an inference engine."""
    names = steps["step"].unique().to_list()
    rows = [(name, *(phase_of(name) or (None, None))) for name in names]
    schema = {"step": pl.String, "phase": pl.String, "batch": pl.Int64}
    phases = pl.DataFrame(rows, schema=schema, orient="row")
    return steps.join(phases, on="step", how="left", maintain_order="left")


def by_phase(steps: pl.DataFrame) -> pl.DataFrame:
    """Summarize the steps of engines by phase and batch size, over all ranks.

    Args:
        steps: one row per step and device, with ``phase`` and ``batch``.

    Returns:
        phase, batch (requests in a step), steps (of all ranks), total_ns, total_frac (of all these
        steps), mean_ns, median_ns, min_ns, max_ns, idle_frac (share of the steps in which the
        devices are idle; null without device work); the largest total first.
    """
    rows = steps.drop_nulls("phase")
    each = rows.unique(["rank", "path", "number"], keep="first", maintain_order=True)
    length = pl.col("duration_ns")
    sums = each.group_by(PHASE).agg(
        steps=pl.len().cast(pl.Int64),
        total_ns=length.sum(),
        mean_ns=length.mean(),
        median_ns=length.median(),
        min_ns=length.min(),
        max_ns=length.max(),
    )
    known = rows.drop_nulls("idle_ns").group_by(PHASE)
    idle = known.agg(idle_frac=pl.col("idle_ns").sum() / length.sum())
    ordered = sums.join(idle, on=PHASE, how="left").sort(
        "total_ns", *PHASE, descending=[True, False, False]
    )
    whole = pl.lit(int(ordered["total_ns"].sum()))
    return ordered.select(
        *PHASE, "steps", "total_ns", total_frac=ratio("total_ns", whole),
        **{name: pl.col(name) for name in ("mean_ns", "median_ns", "min_ns", "max_ns")},
        idle_frac=pl.col("idle_frac"),
    )  # fmt: skip
