"""The answer: every step with its parts, what is usual on each rank, and how far ranks differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from traceanalyzer.analyzers.places import short_paths, told_by_rank
from traceanalyzer.analyzers.steps import verdict as words
from traceanalyzer.analyzers.steps.charts import charts
from traceanalyzer.analyzers.steps.statistics import DEVICE_PARTS, HOST_PARTS
from traceanalyzer.result import Chart, Result, Table

_GROWN = {"grown": "grew most", "grown_ns": "by"}

#: Time between steps that is worth a column.
_BETWEEN_FRAC = 0.01


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Result):
    """What :func:`steps` found.

    Attributes:
        steps: a row for each step and device: the columns of :func:`~.joining.joined` and
            :func:`~.statistics.judged`, and ``on``, what its rank is called.
        ranks: see :func:`~.statistics.ranks`, and ``on``.
        common: the steps that several ranks have, see :func:`~.statistics.common`.
        remarks: further notes.
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    common: pl.DataFrame
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "How long do training steps take, and what makes some slower?"

    @property
    def verdict(self) -> str:
        """The usual step, how much steps vary, and what the slowest spends its time on."""
        return words.verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What belongs to a step, and what is not counted."""
        return (*words.notes(self), *self.remarks)

    @property
    def counted(self) -> pl.DataFrame:
        """The rows of ``steps`` that are no warm-up."""
        return self.steps.filter(~pl.col("warm_up"))

    @property
    def parts(self) -> dict[str, str]:
        """Columns of ``steps`` that hold time, and what to call them."""
        return {
            name: label
            for name, label in (DEVICE_PARTS | HOST_PARTS).items()
            if self.steps[name].max()
        }

    @property
    def tables(self) -> tuple[Table, ...]:
        """Steps, the slowest first, those of several ranks together; ranks; each rank's steps."""
        if self.scalars["step_count"] == self.ranks.height:
            return (self._steps(),)
        if self.common.is_empty():
            return (self._steps(), self._ranks())
        return (self._common(), self._ranks(), replace(self._steps(), detail=True))

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The steps' times, and their parts."""
        return charts(self)

    @property
    def scalars(self) -> dict[str, Any]:
        """Over all steps that are no warm-up."""
        each = self.counted.unique(["rank", "path", "number"])["duration_ns"]
        return {
            "step_count": each.len(),
            "warm_up_count": int(self.ranks["warm_up"].sum()),
            "median_ns": each.median(),
            "min_ns": each.min(),
            "max_ns": each.max(),
            "cv_frac": self.ranks["cv_frac"].median(),
        }

    def _keys(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
        """The columns that tell ranks apart, where there are several."""
        known = {"rank": "rank"} if has_data(self.ranks, "rank") else {}
        if self.ranks.height == 1 or told_by_rank(self.ranks):
            return frame, known
        return frame.with_columns(file=short_paths(frame["path"])), {"file": "file", **known}

    def _steps(self) -> Table:
        slowest = ["warm_up", "duration_ns", "rank", "path", "number", "device"]
        frame = self.steps.sort(
            slowest, descending=[False, True, False, False, False, False], nulls_last=True
        )
        frame, keys = self._keys(frame)
        several = self.steps.select("rank", "path", "device").n_unique() > self.ranks.height
        between = (self.ranks["between_frac"] > _BETWEEN_FRAC).any()
        columns = {
            **keys,
            "step": "step",
            **({"device": "device"} if several else {}),
            **({"at_ns": "at"} if frame["at_ns"].max() else {}),
            "duration_ns": "time",
            "ratio": "x median",
            **({"before_ns": "time before"} if between else {}),
            **({"dataloader_ns": "data loader"} if has_data(frame, "dataloader_ns") else {}),
            **self.parts,
            **(_GROWN if has_data(frame, "grown") else {}),
            **({"warm_up": "warm-up"} if frame["warm_up"].any() else {}),
        }
        return Table("steps", "Steps, the slowest first", frame, columns)

    def _ranks(self) -> Table:
        frame, keys = self._keys(self.ranks)
        columns = {
            **keys,
            "steps": "steps",
            "median_ns": "median",
            "mean_ns": "mean",
            "std_ns": "std",
            "cv_frac": "std / mean",
            "min_ns": "min",
            "max_ns": "max",
            "between_ns": "between steps",
            "between_frac": "of all time",
            **({"warm_up": "warm-up"} if frame["warm_up"].sum() else {}),
        }
        title = "By rank" if has_data(frame, "rank") else "Over all steps"
        return Table("ranks", title, frame, columns)

    def _common(self) -> Table:
        frame = self.common.sort("duration_ns", "step", descending=[True, False])
        columns = {
            "step": "step",
            **({"ranks": "ranks"} if frame["ranks"].min() != self.ranks.height else {}),
            "duration_ns": "median",
            "ratio": "x median",
            "slowest": "slowest",
            "max_ns": "its time",
            **self.parts,
            **_GROWN,
        }
        told = {name: label for name, label in columns.items() if has_data(frame, name)}
        return Table("common", "Steps over all ranks, the slowest first", frame, told)


def has_data(frame: pl.DataFrame, name: str) -> bool:
    """Whether a column holds anything but nulls."""
    return frame[name].null_count() < frame.height
