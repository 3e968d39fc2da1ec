"""Every step with its parts, what is usual on each rank, and what is shown of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import device_work, display, places
from traceanalyzer.analyzers.steps import statistics
from traceanalyzer.result import Chart, Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

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

_GROWN = {"grown": "grew most", "grown_ns": "by"}

_RANKS = display.headings(
    """steps, median_ns: median, mean_ns: mean, std_ns: std, cv_frac: std / mean, min_ns: min,
    max_ns: max, between_ns: between steps, between_frac: of all time"""
)

_PHASES = display.headings(
    """phase, batch: requests, steps, total_ns: total, total_frac: of step time, median_ns: median,
    mean_ns: mean, min_ns: min, max_ns: max, idle_frac: idle"""
)

#: Time between steps that is worth a column.
_BETWEEN_FRAC = 0.01


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Result):
    """How long steps take, what is usual, and what stands out.

    Attributes:
        steps: a row for each step and device: the columns of :func:`~.compute.joined` and
            :func:`~.statistics.judged`, and ``on``, what its rank is called.
        ranks: see :func:`~.statistics.ranks`, and ``on``.
        common: the steps that several ranks have, see :func:`~.statistics.common`.
        phases: steps of an inference engine by phase and batch, see :func:`~.phases.by_phase`.
        by_kernels: steps are not marked but begin at kernels.
        only_slow: rank, path, step and the columns of :func:`~.slow_steps.only_slow`; None but in a
            diagnosis or report.
        between: rank, path and the columns of :func:`~.slow_steps.between`; None but in a diagnosis
            or report.
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    common: pl.DataFrame
    phases: pl.DataFrame
    by_kernels: bool
    only_slow: pl.DataFrame | None = None
    between: pl.DataFrame | None = None

    @property
    def counted(self) -> pl.DataFrame:
        """The rows of ``steps`` that are no warm-up."""
        return self.steps.filter(~pl.col("warm_up"))

    @property
    def parts(self) -> dict[str, str]:
        """Columns of ``steps`` that hold time, and what to call them."""
        return {
            name: label
            for name, label in (device_work.PART_NAMES | statistics.HOST_PARTS).items()
            if self.steps[name].max()
        }

    def view(self) -> View:
        """The steps' times and their parts, over all ranks and by rank."""
        sums = _sums(self)
        return View(
            title="How long do steps take, and what makes some slower?",
            verdict=_verdict(self, sums),
            notes=_notes(self),
            tables=_tables(self, sums),
            scalars=sums,
            charts=partial(_charts, self),
        )


def _sums(result: Steps) -> dict[str, Any]:
    """Over all steps that are no warm-up."""
    each = result.counted.unique(["rank", "path", "number"])["duration_ns"]
    return {
        "step_count": each.len(),
        "warm_up_count": int(result.ranks["warm_up"].sum()),
        "median_ns": each.median(),
        "min_ns": each.min(),
        "max_ns": each.max(),
        "cv_frac": result.ranks["cv_frac"].median(),
    }


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Steps, sums: Mapping[str, Any]) -> str:
    """The usual step and its parts, what stands out, and how ranks differ."""
    usual = (_usual(result, sums), _phases(result), _made_of(result), _warm_up(result))
    return display.sentences(*usual, _slowest(result, sums), _between(result), _apart(result))


def _usual(result: Steps, sums: Mapping[str, Any]) -> str:
    count, usual = sums["step_count"], format_ns(sums["median_ns"])
    ranks = result.ranks.height
    if count == ranks:
        subject = "The only step" if ranks == 1 else f"The only step of each of {ranks} ranks"
        middle = " (median)" if ranks > 1 else ""
        return f"{subject} takes {usual}{middle}: of more it could be told how much they vary."
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


def _phases(result: Steps) -> str:
    """The usual step of each phase of an inference engine."""
    each = result.counted.drop_nulls("phase").unique(["rank", "path", "number"])
    sums = each.group_by("phase").agg(n=pl.len(), median_ns=pl.col("duration_ns").median())
    texts = [
        f"{format_count(n, f'{phase} step')} take{'s' * (n == 1)} {format_ns(median)}"
        for phase, n, median in sums.sort("n", "phase", descending=[True, False]).iter_rows()
    ]
    return f"By phase (median): {display.listed(texts)}." if texts else ""


def _made_of(result: Steps) -> str:
    """Shares of the counted steps' time on devices."""
    rows = result.counted.drop_nulls("compute_ns")
    whole = int(rows["duration_ns"].sum())
    if not whole:
        return ""
    shares = {
        label: int(rows[name].sum()) / whole
        for name, label in result.parts.items()
        if name in device_work.PART_NAMES
    }
    labels = [f"{label} {format_frac(s)}" for label, s in shares.items() if s >= _WORTH_FRAC]
    hint = " (gpu-idle tells why)" if shares.get("idle", 0) >= _WORTH_FRAC else ""
    return f"Of that time on the device {display.listed(labels)}{hint}." if labels else ""


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


def _slowest(result: Steps, sums: Mapping[str, Any]) -> str:
    """The step that exceeds the median by most, of several ranks their median step, and by what."""
    if sums["step_count"] == result.ranks.height:
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
        return "; gpu-idle shows what the main thread did"
    if row["grown"] is None:
        return ""
    return f"; {_FURTHER[row['grown']].format(format_ns(row['grown_ns']))}"


def _between(result: Steps) -> str:
    """Time that no step is marked in, and what of it Composer's loader took."""
    ranks = result.ranks.sort("between_frac", "rank", descending=[True, False], nulls_last=True)
    most = ranks.row(0, named=True)
    if (most["between_frac"] or 0) < _WORTH_FRAC:
        return ""
    rows = result.counted.filter(
        pl.col("rank").eq_missing(pl.lit(most["rank"], pl.Int32)), pl.col("path") == most["path"]
    )
    loading = int(rows.unique("number").sort("number").slice(1)["dataloader_ns"].sum())
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


def _notes(result: Steps) -> tuple[str, ...]:
    """What belongs to a step, and what is not counted."""
    notes = []
    if result.by_kernels:
        notes.append(
            "No steps are marked: a step is one repeat of a sequence of kernels, from the first "
            "kernel of a repeat to that of the next. --step-every REGEX names the kernel that "
            "begins a step, --step-name REGEX slices of the host."
        )
    elif result.steps["compute_ns"].null_count() < result.steps.height:
        notes.append(
            "A step is what the host marks. Device work counts for the step in which it runs; a "
            "device lags behind its host, so that some of it was launched in the step before."
        )
    elif result.parts:
        notes.append("No device work was recorded: the parts are what Composer marks on the host.")
    else:
        notes.append(
            "No device work was recorded, so that steps have no parts here; gpu-idle looks at the "
            "main thread."
        )
    if result.steps.select("rank", "path", "device").n_unique() > result.ranks.height:
        notes.append("Ranks with several devices have a row for each; a step's time is the same.")
    if result.ranks["warm_up"].sum():
        notes.append(
            f"A first step is warm-up if it takes more than {statistics.WARM_UP_FACTOR:g} times "
            f"the median of the steps after it ({statistics.LEAST_AFTER} at least) and more than "
            "three quarters of them; medians and the like are without it."
        )
    return tuple(notes)


# --- tables --------------------------------------------------------------------------------


def _tables(result: Steps, sums: Mapping[str, Any]) -> tuple[Table, ...]:
    """Phases; steps, the slowest first, those of several ranks together; ranks; each rank's."""
    by_phase = "Steps of the inference engine by phase and batch size"
    phases = display.table_of_known("phases", by_phase, result.phases, _PHASES)
    return (*((phases,) if result.phases.height else ()), *_step_tables(result, sums))


def _step_tables(result: Steps, sums: Mapping[str, Any]) -> tuple[Table, ...]:
    if sums["step_count"] == result.ranks.height:
        return (_steps(result),)
    if result.common.is_empty():
        return (_steps(result), _ranks(result))
    return (_common(result), _ranks(result), replace(_steps(result), detail=True))


def _steps(result: Steps) -> Table:
    slowest = ["warm_up", "duration_ns", "rank", "path", "number", "device"]
    frame = result.steps.sort(
        slowest, descending=[False, True, False, False, False, False], nulls_last=True
    )
    frame, keys = _keys(result, frame)
    several = result.steps.select("rank", "path", "device").n_unique() > result.ranks.height
    between = (result.ranks["between_frac"] > _BETWEEN_FRAC).any()
    columns = {
        **keys,
        "step": "step",
        **({"device": "device"} if several else {}),
        **({"at_ns": "at"} if frame["at_ns"].max() else {}),
        "duration_ns": "time",
        "ratio": "x median",
        **({"before_ns": "time before"} if between else {}),
        **({"dataloader_ns": "data loader"} if _has_data(frame, "dataloader_ns") else {}),
        **result.parts,
        **(_GROWN if _has_data(frame, "grown") else {}),
        **({"warm_up": "warm-up"} if frame["warm_up"].any() else {}),
    }
    return Table("steps", "Steps, the slowest first", frame, columns)


def _ranks(result: Steps) -> Table:
    frame, keys = _keys(result, result.ranks)
    columns = {
        **keys,
        **_RANKS,
        **({"warm_up": "warm-up"} if frame["warm_up"].sum() else {}),
    }
    title = "By rank" if _has_data(frame, "rank") else "Over all steps"
    return Table("ranks", title, frame, columns)


def _common(result: Steps) -> Table:
    frame = result.common.sort("duration_ns", "step", descending=[True, False])
    columns = {
        "step": "step",
        **({"ranks": "ranks"} if frame["ranks"].min() != result.ranks.height else {}),
        "duration_ns": "median",
        "ratio": "x median",
        "slowest": "slowest",
        "max_ns": "its time",
        **result.parts,
        **_GROWN,
    }
    return display.table_of_known(
        "common", "Steps over all ranks, the slowest first", frame, columns
    )


def _keys(result: Steps, frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
    """The columns that tell ranks apart, where there are several."""
    known = {"rank": "rank"} if _has_data(result.ranks, "rank") else {}
    if result.ranks.height == 1 or places.told_by_rank(result.ranks):
        return frame, known
    return frame.with_columns(file=places.short_paths(frame["path"])), {"file": "file", **known}


def _has_data(frame: pl.DataFrame, name: str) -> bool:
    """Whether a column holds anything but nulls."""
    return frame[name].null_count() < frame.height


# --- charts --------------------------------------------------------------------------------


def _charts(result: Steps) -> tuple[Chart, ...]:
    """Times by rank, and the parts stacked, where they are known."""
    return (_times(result), *([_parts(result)] if result.parts else []))


def _times(result: Steps) -> Chart:
    each = result.steps.unique(["rank", "path", "number"], keep="first", maintain_order=True)
    color = "rank" if places.told_by_rank(result.ranks) else "on"
    several = result.ranks.height > 1
    return Chart(
        name="times",
        title="How long each step takes",
        mark="line" if several else "bar",  # bars begin at 0
        frame=each.select("step", "duration_ns", "warm_up", color),
        x="step",
        y="duration_ns",
        x_label="step",
        y_label="time",
        color=color if several else None,
        emphasis="warm_up",
        emphasis_label="warm-up",
    )


def _parts(result: Steps) -> Chart:
    frame = result.steps.with_columns(places.places(result.steps))
    # all of a device's parts, so that each has its colour whatever else there is
    parts = device_work.PART_NAMES if "compute_ns" in result.parts else result.parts
    rows = display.by_part(frame, ["on", "step"], parts)
    panel = "on" if frame["on"].n_unique() > 1 else None
    title = "What the steps' time is made of"
    return display.stacked("parts", title, rows, "step", panel=panel)
