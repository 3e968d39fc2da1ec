"""The answer: leaf paths or sums, and whose code they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.leaf_paths.extract import LIBRARY, MAIN, PATH
from traceanalyzer.analyzers.leaf_paths.question import Question
from traceanalyzer.result import Result, Table
from traceanalyzer.units import format_frac, format_weight

NOT_FOUND = "Not Found"

#: The ending of a column's name that makes a table show a unit.
_SUFFIXES = {"ns": "_ns", "bytes": "_bytes"}

_GROUPED = {
    "function": "functions",
    "line": "lines",
    "file": "files",
    "module": "modules",
    "library": "libraries",
}


@dataclass(frozen=True, eq=False, repr=False)
class LeafPaths(Result):
    """What :func:`leaf_paths` found.

    Attributes:
        question: what was asked.
        total_samples: weight of all stacks that count, in ``unit``.
        unit: ``samples``, ``ns`` or ``bytes``, or empty.
        tagged_samples: those with a frame of the library, or of the user's own code.
        idle_samples: those without any Python frame.
        left_out_samples: what is not in ``total_samples``.
        paths: a row a path, or a line of the file: ``group``, ``name``, ``path``, ``line``,
            ``library_function_name``, ``library_function_path``, ``library_function_line``,
            ``library``, ``samples``, ``samples_frac``, ``proportion``; most samples first.
        groups: sums, where asked for: ``group``, ``key``, ``path``, ``line``, ``self``,
            ``self_frac``, ``total``, ``total_frac``; most ``self`` first.
        leaf: the leaf with most samples in all its stacks: ``name``, ``path``, ``line``,
            ``samples``.
        processes: ``file``, ``pid``, ``command``, ``role``, ``samples``, ``samples_frac``.
        skipped: files that could not be read, and why.
    """

    question: Question
    total_samples: float
    unit: str
    tagged_samples: float
    idle_samples: float
    left_out_samples: float
    leaf: dict[str, Any]
    paths: pl.DataFrame
    groups: pl.DataFrame | None
    processes: pl.DataFrame
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "Which code was running?"

    @property
    def verdict(self) -> str:
        """How much is the library's, and the heaviest path."""
        if not self.total_samples:
            return "No sample counts."
        share = format_frac(self.tagged_samples / self.total_samples)
        leaf = self.leaf
        where = f" ({_place(leaf['path'], leaf['line'])})" if leaf["path"] else ""
        whose = f", {share} with {self._library()} on the stack."
        if not self.tagged_samples and self.paths["path"].null_count() == self.paths.height:
            whose = ". Whose code was running cannot be told: the frames name no files."
        return (
            f"{format_weight(self.total_samples, self.unit)}{whose} "
            f"Most often {leaf['name']}{where} was running: {self._of_total(leaf['samples'])}."
        )

    @property
    def tables(self) -> tuple[Table, ...]:
        """Sums where asked for, else paths; processes where there are several."""
        tables = [self._paths() if self.groups is None else self._groups(self.groups)]
        known = self.processes["pid"].is_not_null() | (self.processes["role"] != MAIN)
        if self.processes.height > 1 and known.any():
            tables.append(self._processes())
        return tuple(tables)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was matched, what is not counted, what was skipped."""
        missing = self.total_samples - self.tagged_samples
        notes = [f"{self._matched()}; {self._of_total(missing)} had no match."]
        if self.idle_samples:
            left_out = self.question.exclude_idle or self.question.drop_module
            said = "left out" if left_out else "counted as (no Python frame)"
            notes.append(
                f"{format_weight(self.idle_samples, self.unit)} without any Python frame: {said}."
            )
        if self.question.drop_module and self.left_out_samples > self.idle_samples:
            more = self.left_out_samples - self.idle_samples
            notes.append(f"{format_weight(more, self.unit)} of module-level code only: left out.")
        workers = self.processes.filter(pl.col("role") != MAIN)
        if workers.height and self.question.match != "substring":
            notes.append(
                f"{workers.height} child processes: the stacks of those that were forked begin "
                "where their own code does, so that their parent's functions do not count it."
            )
        notes += [f"{path}: {why}; skipped." for path, why in self.skipped]
        return tuple(notes)

    @property
    def scalars(self) -> dict[str, Any]:
        """The sums."""
        return {
            "unit": self.unit,
            "total_samples": self.total_samples,
            "tagged_samples": self.tagged_samples,
            "idle_samples": self.idle_samples,
            "left_out_samples": self.left_out_samples,
        }

    def _weights(self, frame: pl.DataFrame, *names: str) -> tuple[pl.DataFrame, dict[str, str]]:
        """The frame with its weights under names that tell their unit, and those names."""
        suffix = _SUFFIXES.get(self.unit, "")
        shown = {name: f"{name}{suffix}" for name in names}
        return frame.with_columns(pl.col(n).alias(s) for n, s in shown.items()), shown

    def _paths(self) -> Table:
        # a frame that is there may have no line
        known = self.paths.filter(pl.col(LIBRARY[0]).is_not_null())
        lined = known[LIBRARY[2]].null_count() == 0
        return Table(
            "leaf_paths",
            "Leaf paths" if self.question.aggregate else "Stacks by their leaf",
            self.paths,
            {
                **_told(self.paths, {"group": self.question.by or "group"}),
                **{name: name for name in (*PATH, *LIBRARY)},
                "proportion": "proportion (n)",
            },
            missing=dict.fromkeys(LIBRARY if lined else LIBRARY[:2], NOT_FOUND),
            whole=True,
        )

    def _processes(self) -> Table:
        frame, weight = self._weights(self.processes, "samples")
        return Table(
            "processes",
            "Processes",
            frame,
            {
                **_told(self.processes, {"file": "file"}),
                "role": "role",
                "pid": "pid",
                "command": "command",
                weight["samples"]: "time" if self.unit == "ns" else self.unit or "weight",
                "samples_frac": "share",
            },
        )

    def _groups(self, groups: pl.DataFrame) -> Table:
        by = self.question.group_by or "function"
        shown = {"key": by if by != "line" else "function", "path": "path", "line": "line"}
        frame, weight = self._weights(groups, "self", "total")
        unit = f" {self.unit}" if self.unit not in _SUFFIXES else ""
        columns = {
            **_told(groups, {"group": self.question.by or "group"}),
            **{name: label for name, label in shown.items() if name in groups.columns},
            weight["self"]: f"self{unit}",
            "self_frac": "self",
            weight["total"]: f"total{unit}",
            "total_frac": "total",
        }
        return Table(_GROUPED[by], f"By {by}", frame, columns)

    def _library(self) -> str:
        names = self.question.libraries
        return " or ".join(names) if names else "the user's own code"

    def _matched(self) -> str:
        names = ", ".join(self.question.libraries)
        if not names:
            return (
                "Own code is every file outside of the standard library and the installed packages"
            )
        if self.question.match == "substring":
            return f"A frame is matched when its path contains {names}"
        return f"A frame is matched when {names} is a whole component of its path"

    def _of_total(self, weight: float) -> str:
        share = weight / self.total_samples if self.total_samples else 0.0
        return f"{format_weight(weight, self.unit)} ({format_frac(share)})"


def _place(path: str, line: int | None) -> str:
    return path if line is None or line < 0 else f"{path}:{line}"


def _told(frame: pl.DataFrame, columns: Mapping[str, str]) -> dict[str, str]:
    """The columns that say something."""
    return {n: label for n, label in columns.items() if frame[n].null_count() < frame.height}
