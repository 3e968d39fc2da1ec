"""Leaf paths or sums, whose code they belong to, and what is shown of them."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.display import known_columns
from traceanalyzer.analyzers.py_spy_report.options import Options
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_frac, format_weight

#: The path columns of the report; those of the library are null where none is in the stack.
PATH = ("name", "path", "line")
LIBRARY = ("library_function_name", "library_function_path", "library_function_line")
MAIN = "main process"

_NOT_FOUND = "Not Found"

#: The ending of a column's name that makes a table show a unit.
_SUFFIXES = {"ns": "_ns", "bytes": "_bytes"}


@dataclass(frozen=True, eq=False, repr=False)
class LeafPaths(Result):
    """What :func:`traceanalyzer.py_spy_report` found.

    Attributes:
        options: what was asked.
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
    """

    options: Options
    total_samples: float
    unit: str
    tagged_samples: float
    idle_samples: float
    left_out_samples: float
    leaf: dict[str, Any]
    paths: pl.DataFrame
    groups: pl.DataFrame | None
    processes: pl.DataFrame

    def view(self) -> View:
        """Sums where asked for, else paths; processes where there are several."""
        return View(
            title="Which code was running?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=self.numbers(
                "unit", "total_samples", "tagged_samples", "idle_samples", "left_out_samples"
            ),
        )


def _verdict(result: LeafPaths) -> str:
    """How much is the library's, and the heaviest path."""
    if not result.total_samples:
        return "No sample counts."
    share = format_frac(result.tagged_samples / result.total_samples)
    leaf = result.leaf
    where = f" ({_place(leaf['path'], leaf['line'])})" if leaf["path"] else ""
    whose = f", {share} with {_library(result)} on the stack."
    if not result.tagged_samples and result.paths["path"].null_count() == result.paths.height:
        whose = ". Whose code was running cannot be told: the frames name no files."
    return (
        f"{format_weight(result.total_samples, result.unit)}{whose} "
        f"Most often {leaf['name']}{where} was running: {_of_total(result, leaf['samples'])}."
    )


def _library(result: LeafPaths) -> str:
    names = result.options.library_names
    return " or ".join(names) if names else "the user's own code"


def _of_total(result: LeafPaths, weight: float) -> str:
    share = weight / result.total_samples if result.total_samples else 0.0
    return f"{format_weight(weight, result.unit)} ({format_frac(share)})"


def _place(path: str, line: int | None) -> str:
    return path if line is None or line < 0 else f"{path}:{line}"


def _notes(result: LeafPaths) -> tuple[str, ...]:
    """What was matched, what is not counted."""
    missing = result.total_samples - result.tagged_samples
    notes = [f"{_matched(result)}; {_of_total(result, missing)} had no match."]
    if result.idle_samples:
        left_out = result.options.exclude_idle_process or result.options.drop_module
        said = "left out" if left_out else "counted as (no Python frame)"
        notes.append(
            f"{format_weight(result.idle_samples, result.unit)} without any Python frame: {said}."
        )
    if result.options.drop_module and result.left_out_samples > result.idle_samples:
        more = result.left_out_samples - result.idle_samples
        notes.append(f"{format_weight(more, result.unit)} of module-level code only: left out.")
    workers = result.processes.filter(pl.col("role") != MAIN)
    if workers.height and result.options.match != "substring":
        notes.append(
            f"{workers.height} child processes: the stacks of those that were forked begin "
            "where their own code does, so that their parent's functions do not count it."
        )
    return tuple(notes)


def _matched(result: LeafPaths) -> str:
    names = ", ".join(result.options.library_names)
    if not names:
        return "Own code is every file outside of the standard library and the installed packages"
    if result.options.match == "substring":
        return f"A frame is matched when its path contains {names}"
    return f"A frame is matched when {names} is a whole component of its path"


# --- tables ----------------------------------------------------------------------------------


def _tables(result: LeafPaths) -> tuple[Table, ...]:
    """Sums where asked for, else paths; processes where there are several."""
    tables = [_paths(result) if result.groups is None else _groups(result, result.groups)]
    known = result.processes["pid"].is_not_null() | (result.processes["role"] != MAIN)
    if result.processes.height > 1 and known.any():
        tables.append(_processes(result))
    return tuple(tables)


def _paths(result: LeafPaths) -> Table:
    # a frame that is there may have no line
    known = result.paths.filter(pl.col(LIBRARY[0]).is_not_null())
    lined = known[LIBRARY[2]].null_count() == 0
    return Table(
        "leaf_paths",
        "Leaf paths" if result.options.aggregate_leaf_paths else "Stacks by their leaf",
        result.paths,
        {
            **known_columns(result.paths, {"group": result.options.by or "group"}),
            **{name: name for name in (*PATH, *LIBRARY)},
            "proportion": "proportion (n)",
        },
        missing=dict.fromkeys(LIBRARY if lined else LIBRARY[:2], _NOT_FOUND),
        whole=True,
    )


def _processes(result: LeafPaths) -> Table:
    frame, weight = _weights(result.unit, result.processes, "samples")
    return Table(
        "processes",
        "Processes",
        frame,
        {
            **known_columns(result.processes, {"file": "file"}),
            "role": "role",
            "pid": "pid",
            "command": "command",
            weight["samples"]: "time" if result.unit == "ns" else result.unit or "weight",
            "samples_frac": "share",
        },
    )


def _groups(result: LeafPaths, groups: pl.DataFrame) -> Table:
    by = result.options.group_by or "function"
    shown = {"key": by if by != "line" else "function", "path": "path", "line": "line"}
    frame, weight = _weights(result.unit, groups, "self", "total")
    unit = f" {result.unit}" if result.unit not in _SUFFIXES else ""
    columns = {
        **known_columns(groups, {"group": result.options.by or "group"}),
        **{name: label for name, label in shown.items() if name in groups.columns},
        weight["self"]: f"self{unit}",
        "self_frac": "self",
        weight["total"]: f"total{unit}",
        "total_frac": "total",
    }
    name = "libraries" if by == "library" else f"{by}s"
    return Table(name, f"By {by}", frame, columns)


def _weights(unit: str, frame: pl.DataFrame, *names: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """The frame with its weights under names that tell their unit, and those names."""
    suffix = _SUFFIXES.get(unit, "")
    shown = {name: f"{name}{suffix}" for name in names}
    return frame.with_columns(pl.col(n).alias(s) for n, s in shown.items()), shown
