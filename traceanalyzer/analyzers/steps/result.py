"""Result of the steps analysis: data, verdict, notes, tables and charts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import device_steps, device_work, display
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.names import frame_text
from traceanalyzer.analyzers.common.step_marks import DECODE, with_phases
from traceanalyzer.analyzers.common.waits import wait_of
from traceanalyzer.analyzers.steps import By, engine
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns, format_ratio

#: Parts of a batch that Composer marks on the host.
HOST_PARTS = {"forward_ns": "forward", "backward_ns": "backward"}

#: Least excess of a step over its rank's median, or difference between ranks, to report.
APART_FRAC = 0.1

#: Least share of the time between steps, or of a part, to report.
_WORTH_FRAC = 0.05

#: Sentence for the part that grew most.
_FURTHER = {
    "compute": "compute grew most, by {}",
    "communication": "exposed communication grew most, by {}",
    "copies": "exposed copies grew most, by {}",
    "idle": "idle time grew most, by {}",
    "forward": "forward grew most, by {}",
    "backward": "backward grew most, by {}",
}

#: Columns of steps of an inference engine.
_OF_ENGINE = {"tokens": "tokens", "mode": "runs as", "exposed_ns": "exposed host"}

#: Columns of steps that are less important than what an engine's step is.
_HIDE_FIRST = ("grown_ns", "grown", "dataloader_ns", "before_ns", "ratio", "at_ns")
_GROWN = {"grown": "grew most", "grown_ns": "by"}

_RANKS = display.headings(
    """steps, median_ns: median, mean_ns: mean, std_ns: std, cv_frac: std / mean, min_ns: min,
    max_ns: max, between_ns: between steps, between_frac: share of time"""
)

_PHASES = display.headings(
    """phase, batch: requests, tokens, mode: runs as, steps, total_ns: total,
    total_frac: of step time, median_ns: median, mean_ns: mean, min_ns: min, max_ns: max,
    busy_ns: busy, exposed_ns: exposed host, idle_frac: idle"""
)
_SCHEDULER = display.headings(
    """phase, function, each_ns: per step, total_ns: total, total_frac: of exposed"""
)

#: Least share of time between steps for a column.
_BETWEEN_FRAC = 0.01


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Result):
    """Step times, their statistics and their parts.

    Attributes:
        steps: one row per step and device: the columns of :func:`~.compute.joined` and
            :func:`~.compute.judged`, and ``on``, the label of its rank.
        ranks: see :func:`~.compute.by_recording`, and ``on``.
        common: steps that several ranks have, see :func:`~.compute.common`.
        phases: steps of an inference engine by phase, batch and mode, see
            :func:`~.engine.by_phase`.
        exposed: rank, path, step, start, end, function: exposed host time before the steps of an
            inference engine, see :func:`~.engine.measured`.
        scheduler: the same by function, see :func:`~.engine.by_function`.
        by_kernels: steps are inferred from kernels, not marked.
        by: whether device work counts for the step that launched it or in which it runs.
        only_slow: rank, path, step and the columns of :func:`~.slow_steps.only_slow`; None but in a
            diagnosis or report.
        between: rank, path and the columns of :func:`~.slow_steps.between`; None but in a diagnosis
            or report.
        code: rank, path and the columns of :func:`~.slow_steps.code`; None but in a diagnosis or
            report.
        growing: the same of :func:`~.slow_steps.growing`.
        doubles: the same of :func:`~.slow_steps.doubles`.
        host_memory: the same of :func:`~.slow_steps.host_memory`.
        contended: the same of :func:`~.slow_steps.contended`.
    """

    question = "How long do steps take, and what makes some slower?"

    steps: pl.DataFrame
    ranks: pl.DataFrame
    common: pl.DataFrame
    phases: pl.DataFrame
    exposed: pl.DataFrame
    scheduler: pl.DataFrame
    by_kernels: bool
    by: By = "launch"
    only_slow: pl.DataFrame | None = None
    between: pl.DataFrame | None = None
    code: pl.DataFrame | None = None
    growing: pl.DataFrame | None = None
    doubles: pl.DataFrame | None = None
    host_memory: pl.DataFrame | None = None
    contended: pl.DataFrame | None = None

    @cached_property
    def counted(self) -> pl.DataFrame:
        """Rows of ``steps`` without warm-up."""
        return self.steps.filter(~pl.col("warm_up"))

    @cached_property
    def engine_steps(self) -> pl.DataFrame:
        """One row per counted step of an inference engine."""
        return self.counted.unique(["rank", "path", "number"]).drop_nulls("phase")

    @cached_property
    def before_decode(self) -> pl.DataFrame:
        """Rows of ``exposed`` before decode steps."""
        return with_phases(self.exposed).filter(pl.col("phase") == DECODE)

    @cached_property
    def fallen_back(self) -> pl.DataFrame:
        """Decode steps that run eagerly although others run with graphs."""
        decode = self.engine_steps.filter(pl.col("phase") == DECODE).drop_nulls("mode")
        eager = decode.filter(pl.col("mode") == engine.EAGER)
        return eager if eager.height < decode.height else eager.clear()

    @cached_property
    def sums(self) -> dict[str, Any]:
        """Sums over all steps without warm-up."""
        each = self.counted.unique(["rank", "path", "number"])["duration_ns"]
        return {
            "step_count": each.len(),
            "warm_up_count": int(self.ranks["warm_up"].sum()),
            "median_ns": each.median(),
            "min_ns": each.min(),
            "max_ns": each.max(),
            "cv_frac": self.ranks["cv_frac"].median(),
        }

    @property
    def parts(self) -> dict[str, str]:
        """Columns of ``steps`` with nonzero time, and their labels."""
        return {
            name: label
            for name, label in (device_work.PART_NAMES | HOST_PARTS).items()
            if self.steps[name].max()
        }

    def host_between(self, of: Mapping[str, Any]) -> pl.DataFrame:
        """Return the rows of ``between`` of a rank, a row of ``ranks``."""
        if self.between is None:
            return pl.DataFrame(schema={"name": pl.String, "total_ns": pl.Int64, "n": pl.Int64})
        same = pl.col("path") == of["path"], pl.col("rank").eq_missing(of["rank"])
        return self.between.filter(*same)

    def wait_between(self, of: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the wait in most of the time between the steps of a rank, and its function."""
        rows = self.host_between(of)
        waits = rows.with_columns(pl.Series("wait", map(wait_of, rows["name"]), pl.String))
        sums = waits.drop_nulls("wait").group_by("wait", maintain_order=True)
        most = sums.agg(pl.col("name").first(), pl.col("total_ns").sum())
        most = most.filter(2 * pl.col("total_ns") > of["between_ns"])
        return most.select("wait", "name").row(0) if most.height else None

    def view(self) -> View:
        """Build the view: step times and parts, over all ranks and by rank."""
        return self.view_from(_verdict, _notes, _tables, _charts, scalars=self.sums)


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Steps) -> str:
    """Describe the median step and its parts, the slowest step, and differences of ranks."""
    usual = (_usual(result), _phases(result), _exposed(result), _breakdown(result))
    return display.sentences(
        *usual, _warm_up(result), _slowest(result), _between(result), _extra(result), _apart(result)
    )


def _usual(result: Steps) -> str:
    sums = result.sums
    count, usual = sums["step_count"], format_ns(sums["median_ns"])
    ranks = result.ranks.height
    if count == ranks:
        subject = "The only step" if ranks == 1 else f"The only step of each of {ranks} ranks"
        middle = " (median)" if ranks > 1 else ""
        return f"{subject} takes {usual}{middle}; the variation is unknown."
    over = f" on {ranks} ranks" if ranks > 1 else ""
    vary = (
        f" Variation: {format_frac(sums['cv_frac'])} (standard deviation / mean"
        f"{', median rank' if ranks > 1 else ''})."
        if sums["cv_frac"] is not None
        else ""
    )
    return (
        f"{count:,} steps{over} take {usual} (median), from {format_ns(sums['min_ns'])} to "
        f"{format_ns(sums['max_ns'])}.{vary}"
    )


def _phases(result: Steps) -> str:
    """Describe the median step of each phase of an inference engine."""
    each = result.engine_steps
    sums = each.group_by("phase").agg(n=pl.len(), median_ns=pl.col("duration_ns").median())
    texts = [
        f"{format_count(n, f'{phase} step')} take{'s' * (n == 1)} {format_ns(median)}"
        for phase, n, median in sums.sort("n", "phase", descending=[True, False]).iter_rows()
    ]
    return f"By phase (median): {display.listed(texts)}." if texts else ""


def _exposed(result: Steps) -> str:
    """Describe the exposed host time before decode steps, if it is worth it."""
    steps = result.engine_steps.filter(pl.col("phase") == DECODE).drop_nulls("exposed_ns")
    each, length = steps["exposed_ns"].mean(), steps["duration_ns"].mean()
    if not isinstance(each, float) or each <= _WORTH_FRAC * float(length or 0):  # type: ignore[arg-type]
        return ""
    functions = result.scheduler.filter(pl.col("phase") == DECODE)["function"]
    mostly = "".join(f", mostly {frame_text(one)}" for one in functions.head(1))
    return f"Exposed host time before a decode step: {format_ns(each)} (mean){mostly}."


def _breakdown(result: Steps) -> str:
    """Describe the shares of device time in the counted steps."""
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
    return f"Device time: {display.listed(labels)}." if labels else ""


def _warm_up(result: Steps) -> str:
    excluded = result.steps.filter("warm_up").unique(
        ["rank", "path", "number"], maintain_order=True
    )
    if excluded.is_empty():
        return ""
    worst = largest_first(excluded, "ratio", "rank", "number").row(0, named=True)
    times = f"{format_ratio(worst['ratio'])} the median"
    if excluded.height == 1:
        took = format_ns(worst["duration_ns"])
        return f"{worst['step']} took {took}, {times}: warm-up, not counted."
    ranks = excluded.n_unique(["rank", "path"])
    where = f"at the start{f' of {ranks} ranks' * (ranks > 1)}"
    return f"{excluded.height} steps {where} took up to {times}: warm-up, not counted."


def _slowest(result: Steps) -> str:
    """Describe the step that exceeds the median most (of ranks: the median rank), and its cause."""
    if result.sums["step_count"] == result.ranks.height:
        return ""
    several = result.common.height > 0
    order = {"ratio": True, "duration_ns": True, "step": False}
    rows = (result.common if several else result.counted).sort(
        list(order), descending=list(order.values())
    )
    worst = rows.row(0, named=True)
    fast, slow = device_steps.two_levels(rows["duration_ns"]) or (_NONE, _NONE)
    if slow.len() > fast.len() >= _LEAST_FAST * rows.height and slow[0] >= _SPLIT * fast[-1]:
        usual = float(np.median(fast))
        times = format_ratio(float(np.median(slow)) / usual)
        rest = f"the other {fast.len()} ({format_ns(usual)})"
        return f"{slow.len()} of {rows.height} steps take {times} as long as {rest}."
    if worst["ratio"] < 1 + APART_FRAC:
        return "No step is much slower than the median."
    where = " on the median rank" if several else ""
    return (
        f"The slowest step, {worst['step']}, took {format_ns(worst['duration_ns'])}{where}, "
        f"{format_ratio(worst['ratio'])} the median{_cause(result, worst)}."
    )


#: Slow and fast steps are named from this ratio between them on, if at least this share are fast.
_SPLIT, _LEAST_FAST = 1.2, 0.25
_NONE = pl.Series(dtype=pl.Int64)


def _cause(result: Steps, row: Mapping[str, Any]) -> str:
    if not result.parts:
        return "; diagnose looks for the cause"
    if row["grown"] is None:
        return ""
    return f"; {_FURTHER[row['grown']].format(format_ns(row['grown_ns']))}"


def _between(result: Steps) -> str:
    """Describe the time between steps, and the part of it in Composer's data loader."""
    ranks = result.ranks.sort("between_frac", "rank", descending=[True, False], nulls_last=True)
    most = ranks.row(0, named=True)
    if (most["between_frac"] or 0) < _WORTH_FRAC:
        return ""
    rows = result.counted.filter(
        pl.col("rank").eq_missing(pl.lit(most["rank"], pl.Int32)), pl.col("path") == most["path"]
    )
    loading = int(rows.unique("number").sort("number").slice(1)["dataloader_ns"].sum())
    where = f" on {most['on']}" if result.ranks.height > 1 else ""
    loader = f", {format_ns(loading)} of it in the data loader" if loading else ""
    return (
        f"Time between steps{where}: {format_ns(most['between_ns'])} "
        f"({format_frac(most['between_frac'])} of the time){loader}."
    )


def _extra(result: Steps) -> str:
    """Describe device work between steps that counts for no step."""
    most = result.ranks.sort("extra_frac", descending=True, nulls_last=True).row(0, named=True)
    if (most["extra_frac"] or 0) < _WORTH_FRAC:
        return ""
    where = f" on {most['on']}" if result.ranks.height > 1 else ""
    return (
        f"Device work between steps{where}: {format_ns(most['extra_ns'])} in "
        f"{format_count(most['extra_count'], 'pause')} "
        f"({format_frac(most['extra_frac'])} of the time)."
    )


def _apart(result: Steps) -> str:
    """Describe the step in which ranks differ most."""
    if result.common.is_empty():
        return ""
    widest = result.common.sort("spread_ns", "step", descending=[True, False]).row(0, named=True)
    if widest["spread_frac"] < APART_FRAC:
        return "Step times of ranks are about equal."
    return (
        f"Ranks differ most in {widest['step']}: {widest['slowest']} took "
        f"{format_ns(widest['max_ns'])}, the median rank {format_ns(widest['duration_ns'])}."
    )


_BY_LAUNCH = (
    "Steps are marked on the host. Device work counts for the step that launched it: on the device "
    "a step starts after all work that was launched before it, and ends with its own. --by window "
    "counts work in the step in which it runs."
)
_BY_WINDOW = (
    "Steps are marked on the host. Device work counts for the step in which it runs; as the device "
    "lags behind the host, some of it was launched in the previous step."
)


def _notes(result: Steps) -> Iterator[str]:
    """Describe what belongs to a step, and what is not counted."""
    if result.by_kernels:
        yield (
            "No steps are marked: a step is one repeat of a sequence of kernels, from its first "
            "kernel to that of the next repeat. Use --step-every REGEX for the kernel that begins "
            "a step, or --step-name REGEX for host slices that are steps."
        )
    elif result.steps["compute_ns"].null_count() < result.steps.height:
        yield _BY_LAUNCH if result.by == "launch" else _BY_WINDOW
    elif result.parts:
        yield "No device work was recorded: the parts are Composer's host marks."
    else:
        yield (
            "No device work was recorded, so steps have no breakdown; gpu-idle analyzes the main "
            "thread."
        )
    if result.steps.select("rank", "path", "device").n_unique() > result.ranks.height:
        yield "Ranks with several devices have one row per device with the same step time."
    if result.ranks["warm_up"].sum():
        yield (
            f"A first step is warm-up if it takes more than {device_steps.WARM_UP_FACTOR:g} times "
            f"the median of the steps after it (at least {device_steps.LEAST_AFTER}) and more than "
            "three quarters of them. Statistics exclude warm-up."
        )


# --- tables --------------------------------------------------------------------------------


def _tables(result: Steps) -> tuple[Table, ...]:
    """Build the tables of phases, of steps over all ranks, of ranks, and of steps by rank."""
    by_phase = "Steps of the inference engine by phase and batch size"
    phases = display.table_of_known("phases", by_phase, result.phases, _PHASES)
    title = "Exposed host time before steps: what the host runs while the devices wait"
    code = Table("scheduler", title, result.scheduler, _SCHEDULER)
    return (*[table for table in (phases, code) if table.frame.height], *_step_tables(result))


def _step_tables(result: Steps) -> tuple[Table, ...]:
    if result.sums["step_count"] == result.ranks.height:
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
        **{name: label for name, label in _OF_ENGINE.items() if _has_data(frame, name)},
        **({"device": "device"} if several else {}),
        "at_ns": "start",
        "duration_ns": "time",
        "ratio": "time / median",
        **({"before_ns": "time before"} if between else {}),
        **({"dataloader_ns": "data loader"} if _has_data(frame, "dataloader_ns") else {}),
        **result.parts,
        **(_GROWN if _has_data(frame, "grown") else {}),
        **({"warm_up": "warm-up"} if frame["warm_up"].any() else {}),
    }
    hide_first = (*reversed(result.parts), *_HIDE_FIRST)
    return Table("steps", "Steps, the slowest first", frame, columns, hide_first=hide_first)


def _ranks(result: Steps) -> Table:
    frame, keys = _keys(result, result.ranks)
    columns = {**keys, **_RANKS, **({"warm_up": "warm-up"} if frame["warm_up"].sum() else {})}
    title = "By rank" if _has_data(frame, "rank") else "Over all steps"
    return Table("ranks", title, frame, columns)


def _common(result: Steps) -> Table:
    frame = result.common.sort("duration_ns", "step", descending=[True, False])
    columns = {
        "step": "step",
        **({"ranks": "ranks"} if frame["ranks"].min() != result.ranks.height else {}),
        "duration_ns": "median",
        "ratio": "time / median",
        "slowest": "slowest",
        "max_ns": "max",
        **result.parts,
        **_GROWN,
    }
    return display.table_of_known(
        "common",
        "Steps over all ranks, the slowest first",
        frame,
        columns,
        hide_first=tuple(reversed(result.parts)),
    )


def _keys(result: Steps, frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
    """Return the columns that identify ranks if there are several."""
    known = {"rank": "rank"} if _has_data(result.ranks, "rank") else {}
    if result.ranks.height == 1 or display.identified_by_rank(result.ranks):
        return frame, known
    return frame.with_columns(file=display.short_paths(frame["path"])), {"file": "file", **known}


def _has_data(frame: pl.DataFrame, name: str) -> bool:
    """Whether a column has any value but null."""
    return frame[name].null_count() < frame.height


# --- charts --------------------------------------------------------------------------------


def _charts(result: Steps) -> tuple[Chart, ...]:
    """Build charts of step times by rank and of their parts if known."""
    return (_times(result), *([_parts(result)] if result.parts else []))


def _times(result: Steps) -> Chart:
    each = result.steps.unique(["rank", "path", "number"], keep="first", maintain_order=True)
    color = "rank" if display.identified_by_rank(result.ranks) else "on"
    several = result.ranks.height > 1
    return Chart(
        name="times",
        title="Step times",
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
    frame = result.steps.with_columns(display.places(result.steps))
    # all parts of a device, so that each part always has the same colour
    parts = device_work.PART_NAMES if "compute_ns" in result.parts else result.parts
    rows = display.by_part(frame, ["on", "step"], parts)
    panel = "on" if frame["on"].n_unique() > 1 else None
    return display.stacked("parts", "Step time breakdown", rows, "step", panel=panel)
