"""The answer as tables and charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.diff.noise import STATE
from traceanalyzer.result import Chart, Table

if TYPE_CHECKING:
    from traceanalyzer.analyzers.diff.result import Diff

_TIMES = {
    "before_ns": "before",
    "after_ns": "after",
    "change_ns": "change",
    "change_frac": "change",
    "noise_ns": "noise",
    "state": "verdict",
}
_ALIKE = (("before_ns", "after_ns"), ("change_ns", "noise_ns"))
_COUNTS = {"before_n": "n before", "after_n": "n after"}
_RUNS = {
    "run": "run",
    "path": "path",
    "files": "files",
    "ranks": "ranks",
    "steps": "steps",
    "format": "format",
    "gpus": "GPU",
}
_FILES = {
    "run": "run",
    "path": "file",
    "rank": "rank",
    "format": "format",
    "gpus": "GPU",
    "cut_off": "cut off",
}
_BARS = 15


def tables(result: Diff) -> tuple[Table, ...]:
    """What is known of both runs, the most telling first."""
    found = list(_tables(result))
    runs = Table("runs", "What was compared", result.runs, _told(result.runs, _RUNS))
    return (*found[:1], runs, *found[1:]) if len(found) > 1 else (runs, *found)


def _tables(result: Diff) -> Iterator[Table]:
    step = "a step" if result.measure is not None and result.measure.name == "step" else "in all"
    named: tuple[tuple[str, str, pl.DataFrame | None, dict[str, str], bool], ...] = (
        ("parts", f"What the time is made of, {step}", result.parts, {"part": "part"}, False),
        ("families", f"Device work by family, {step}", result.families,
         {"family": "family"}, False),
        ("kernels", f"Kernels, copies and sets, {step}", result.kernels,
         {"kernel": "kernel"}, False),
        ("collectives", "Collectives by kind, medians", result.collectives,
         {"collective": "collective", "dtype": "dtype", "message_bytes": "message",
          "group_size": "ranks", "kernel": "kernel"}, False),
        ("operators_on_device", f"Operators by the device work they launch, {step}",
         result.on_device, {"name": "operator"}, True),
        ("operators_on_host", f"Operators by their own time on the host, {step}",
         result.on_host, {"name": "operator"}, False),
    )  # fmt: skip
    for name, title, frame, keys, detail in named:
        if frame is not None:
            told = _told(frame, {**keys, **_TIMES, **_COUNTS})
            yield Table(name, title, frame, told, "nothing in either", detail=detail, alike=_ALIKE)
    if result.functions is not None:
        yield _functions(result.functions)
    if result.memory is not None:
        lines, _, peaks = result.memory.tables
        yield Table("memory", "Memory live at the peak, by line of code, what changed",
                    lines.frame, lines.columns, "nothing changed")  # fmt: skip
        yield Table("peaks", peaks.title, peaks.frame, peaks.columns, detail=True)
    yield Table("files", "Files", result.files, _told(result.files, _FILES), detail=True)


def _told(frame: pl.DataFrame, columns: Mapping[str, str]) -> dict[str, str]:
    """The columns of which anything is known; counts only where they differ."""
    told = {
        name: label
        for name, label in columns.items()
        if name in frame.columns and frame[name].null_count() < max(frame.height, 1)
    }
    if _COUNTS.keys() <= told.keys() and frame["before_n"].equals(frame["after_n"]):
        return {name: label for name, label in told.items() if name not in _COUNTS}
    return told


def _functions(frame: pl.DataFrame) -> Table:
    columns = {
        "name": "function",
        "place": "file:lines",
        "before_frac": "before",
        "after_frac": "after",
        "change_frac": "change",
        "noise_frac": "noise",
        "state": "verdict",
        "before_total_frac": "with callees before",
        "after_total_frac": "after",
    }
    return Table("functions", "Functions by their share of the samples, by themselves", frame,
                 _told(frame, columns))  # fmt: skip


def charts(result: Diff) -> tuple[Chart, ...]:
    """Step times of both runs, and the changes of parts and kernels."""
    found = []
    if result.steps.height and result.measure is not None:
        found.append(_times(result.steps))
    for frame, what, label in (
        (result.parts, "part", "What a step's time is made of: changes"),
        (result.kernels, "kernel", "Kernels: changes"),
    ):
        if frame is not None and (frame["change_ns"] != 0).any():
            found.append(_changes(frame, what, label))
    return tuple(found)


def _times(steps: pl.DataFrame) -> Chart:
    return Chart(
        name="steps", title="How long each step takes", mark="scatter",
        frame=steps.select("run", "number", "duration_ns", "warm_up"),
        x="number", y="duration_ns", x_label="step", y_label="time", color="run",
        emphasis="warm_up", emphasis_label="warm-up",
    )  # fmt: skip


def _changes(frame: pl.DataFrame, what: str, title: str) -> Chart:
    rows = frame.filter(pl.col("change_ns") != 0).head(_BARS)
    return Chart(
        name=f"{what}s", title=title, mark="span",
        frame=rows.select(what, pl.lit(0, pl.Int64).alias("zero_ns"), "change_ns",
                          pl.col("state").cast(STATE)),
        x="zero_ns", x2="change_ns", y=what, x_label="change", y_label="", color="state",
    )  # fmt: skip
