"""The answer in one paragraph, and what is to be known of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.analyzers.steps.statistics import DEVICE_PARTS, LEAST_AFTER, WARM_UP_FACTOR
from traceanalyzer.units import format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.steps.result import Steps

#: A step longer than its rank's median by more, ranks that differ by more, are worth a sentence.
APART_FRAC = 0.1

#: So much of the time between steps, or of a part, is worth a sentence.
_WORTH_FRAC = 0.05

#: What grew, in words, and which command looks further into it.
_FURTHER = {
    "compute": "compute grew most, by {} (kernels and operators tell which)",
    "communication": "exposed communication grew most, by {} (comm-outliers tells who was late)",
    "copies": "exposed copies grew most, by {} (overlap tells more)",
    "idle": "idleness grew most, by {} (gpu-idle tells why)",
    "forward": "forward grew most, by {}",
    "backward": "backward grew most, by {}",
}


def verdict(result: Steps) -> str:
    """The usual step and its parts, what stands out, and how ranks differ."""
    said = [
        _usual(result),
        _made_of(result),
        _warm_up(result),
        _slowest(result),
        _between(result),
        _apart(result),
    ]
    return " ".join(sentence for sentence in said if sentence)


def _usual(result: Steps) -> str:
    sums = result.scalars
    count, usual = sums["step_count"], format_ns(sums["median_ns"])
    ranks = result.ranks.height
    if count == ranks:
        whose = "The only step" if ranks == 1 else f"The only step of each of {ranks} ranks"
        middle = " (median)" if ranks > 1 else ""
        return f"{whose} takes {usual}{middle}: of more it could be told how much they vary."
    over = f" on {ranks} ranks" if ranks > 1 else ""
    vary = (
        f" They vary by {format_frac(sums['cv_frac'])} (standard deviation over mean"
        f"{', the typical rank' if ranks > 1 else ''})."
        if sums["cv_frac"] is not None
        else ""
    )
    return (
        f"{count:,} steps{over} take {usual} (median), from {format_ns(sums['min_ns'])} to "
        f"{format_ns(sums['max_ns'])}.{vary}"
    )


def _made_of(result: Steps) -> str:
    """Shares of the counted steps' time on devices."""
    rows = result.counted.drop_nulls("compute_ns")
    whole = int(rows["duration_ns"].sum())
    if not whole:
        return ""
    shares = {
        label: int(rows[name].sum()) / whole
        for name, label in result.parts.items()
        if name in DEVICE_PARTS
    }
    told = [f"{label} {format_frac(s)}" for label, s in shares.items() if s >= _WORTH_FRAC]
    hint = " (gpu-idle tells why)" if shares.get("idle", 0) >= _WORTH_FRAC else ""
    return f"Of that time on the device {_list(told)}{hint}."


def _warm_up(result: Steps) -> str:
    gone = result.steps.filter("warm_up").unique(["rank", "path", "number"], maintain_order=True)
    if gone.is_empty():
        return ""
    worst = gone.sort("ratio", "rank", "number", descending=[True, False, False]).row(0, named=True)
    times = f"{worst['ratio']:.3g} times the median"
    if gone.height == 1:
        took = format_ns(worst["duration_ns"])
        return f"{worst['step']} before them took {took}, {times}: warm-up, not counted."
    return f"{gone.height} first steps took up to {times}: warm-up, not counted."


def _slowest(result: Steps) -> str:
    """The step that exceeds the median by most, of several ranks their median step, and by what."""
    if result.scalars["step_count"] == result.ranks.height:
        return ""
    several = result.common.height > 0
    order = {"ratio": True, "duration_ns": True, "step": False}
    rows = (result.common if several else result.counted).sort(
        list(order), descending=list(order.values())
    )
    worst = rows.row(0, named=True)
    if worst["ratio"] < 1 + APART_FRAC:
        return "No step stands out."
    where = " on the median rank" if several else ""
    return (
        f"The slowest, {worst['step']}, took {format_ns(worst['duration_ns'])}{where}, "
        f"{worst['ratio']:.3g} times the median{_because(result, worst)}."
    )


def _because(result: Steps, row: Mapping[str, Any]) -> str:
    if not result.parts:
        return "; what the training thread was at, gpu-idle tells"
    if row["grown"] is None:
        return ""
    return f"; {_FURTHER[row['grown']].format(format_ns(row['grown_ns']))}"


def _between(result: Steps) -> str:
    """Time that no step is marked in, and what of it Composer's loader took."""
    ranks = result.ranks.sort("between_frac", "rank", descending=[True, False], nulls_last=True)
    most = ranks.row(0, named=True)
    if (most["between_frac"] or 0) < _WORTH_FRAC:
        return ""
    own = result.counted.filter(
        pl.col("rank").eq_missing(pl.lit(most["rank"], pl.Int32)), pl.col("path") == most["path"]
    )
    loading = int(own.unique("number").sort("number").slice(1)["dataloader_ns"].sum())
    where = f"On {most['on']}" if result.ranks.height > 1 else "Another"
    loader = f", {format_ns(loading)} of it in the data loader" if loading else ""
    return (
        f"{where} {format_ns(most['between_ns'])}, {format_frac(most['between_frac'])} of the "
        f"time, lie between the steps{loader}."
    )


def _apart(result: Steps) -> str:
    """The step in which ranks are furthest apart."""
    if result.common.is_empty():
        return ""
    rows = result.common.sort("spread_ns", "step", descending=[True, False])
    widest = rows.row(0, named=True)
    if widest["spread_frac"] < APART_FRAC:
        return "Ranks take about equally long."
    return (
        f"Ranks are furthest apart in {widest['step']}: {widest['slowest']} took "
        f"{format_ns(widest['max_ns'])}, the median rank {format_ns(widest['duration_ns'])}."
    )


def _list(words: list[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def notes(result: Steps) -> tuple[str, ...]:
    """What belongs to a step, and what is not counted."""
    said = []
    if result.steps["compute_ns"].null_count() < result.steps.height:
        said.append(
            "A step is what the host marks. Device work counts for the step in which it runs; a "
            "device lags behind its host, so that some of it was launched in the step before."
        )
    elif result.parts:
        said.append("No device work was recorded: the parts are what Composer marks on the host.")
    else:
        said.append(
            "No device work was recorded, so that steps have no parts here; gpu-idle looks at the "
            "training thread."
        )
    if result.steps.select("rank", "path", "device").n_unique() > result.ranks.height:
        said.append("Ranks with several devices have a row for each; a step's time is the same.")
    if result.ranks["warm_up"].sum():
        said.append(
            f"A first step is warm-up if it takes more than {WARM_UP_FACTOR:g} times the median of "
            f"the steps after it ({LEAST_AFTER} at least) and more than three quarters of them; "
            "medians and the like are without it."
        )
    return tuple(said)
