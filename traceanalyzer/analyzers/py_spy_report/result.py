"""Result of the py-spy report: leaf paths or sums, verdict, notes and tables."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.display import known_columns
from traceanalyzer.analyzers.py_spy_report.options import Options
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_weight

#: The path columns of the report; those of the library are null if it is not in the stack.
PATH = ("name", "path", "line")
LIBRARY = ("library_function_name", "library_function_path", "library_function_line")
MAIN = "main process"
#: What a sample does that imports a module.
IMPORTS = "imports modules"

_NO_LIBRARY = "Not Found"

#: Suffixes of column names by unit.
_SUFFIXES = {"ns": "_ns", "bytes": "_bytes"}


@dataclass(frozen=True, eq=False, repr=False)
class LeafPaths(Result):
    """Result of :func:`traceanalyzer.py_spy_report`.

    Attributes:
        options: the options.
        total_samples: weight of all counted stacks, in ``unit``.
        unit: ``samples``, ``ns`` or ``bytes``, or empty.
        tagged_samples: weight with a frame of the library, or of the user's own code.
        idle_samples: weight without a Python frame.
        left_out_samples: weight that is not in ``total_samples``.
        paths: one row per path, or per line of the file: ``group``, ``name``, ``path``, ``line``,
            ``library_function_name``, ``library_function_path``, ``library_function_line``,
            ``library``, ``samples``, ``samples_frac``, ``doing`` (what it does instead of running
            code: it waits for something or imports modules), ``proportion``; most samples first.
        groups: sums if requested: ``group``, ``key``, ``path``, ``line``, ``self``, ``self_frac``,
            ``total``, ``total_frac``; most ``self`` first.
        leaf: the leaf with most samples: ``name``, ``path``, ``line``, ``samples``, ``doing``.
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

    @property
    def running(self) -> pl.DataFrame:
        """The rows of ``paths`` that run code: they neither wait nor import modules."""
        return self.paths.filter(pl.col("doing").is_null())

    def view(self) -> View:
        """Build the view: sums if requested, else paths; processes if there are several."""
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
    """Describe the share of the library, and the most frequent leaf."""
    if not result.total_samples:
        return "No samples are counted."
    share = format_frac(result.tagged_samples / result.total_samples)
    leaf = result.leaf
    where = f" ({_place(leaf['path'], leaf['line'])})" if leaf["path"] else ""
    tagged = f", {share} with {_library(result)} on the stack."
    if not result.tagged_samples and result.paths["path"].null_count() == result.paths.height:
        tagged = ". The frames have no files, so own code is unknown."
    doing = f", which {leaf['doing']}" if leaf["doing"] else ""
    return (
        f"{format_weight(result.total_samples, result.unit)}{tagged} "
        f"The most frequent leaf is {leaf['name']}{where}{doing}: "
        f"{_of_total(result, leaf['samples'])}.{_that_runs(result)}"
    )


def _that_runs(result: LeafPaths) -> str:
    """Return the most frequent leaf that runs code, if the most frequent one does not."""
    if not result.leaf["doing"]:
        return ""
    leaves = result.running.group_by(PATH, maintain_order=True).agg(pl.col("samples").sum())
    for name, path, line, samples in leaves.sort("samples", descending=True).head(1).iter_rows():
        where = f" ({_place(path, line)})" if path else ""
        return f" Of code that runs it is {name}{where}: {_of_total(result, samples)}."
    return ""


def _library(result: LeafPaths) -> str:
    names = result.options.library_names
    return " or ".join(names) if names else "own code"


def _of_total(result: LeafPaths, weight: float) -> str:
    share = weight / result.total_samples if result.total_samples else 0.0
    return f"{format_weight(weight, result.unit)} ({format_frac(share)})"


def _place(path: str, line: int | None) -> str:
    return path if line is None or line < 0 else f"{path}:{line}"


def _notes(result: LeafPaths) -> tuple[str, ...]:
    """Describe what was matched, and what is not counted."""
    missing = result.total_samples - result.tagged_samples
    notes = [f"{_matched(result)}; {_of_total(result, missing)} had no match."]
    if result.idle_samples:
        left_out = result.options.exclude_idle_process or result.options.drop_module
        handled = "left out" if left_out else "counted as (no Python frame)"
        notes.append(
            f"{format_weight(result.idle_samples, result.unit)} without a Python frame: {handled}."
        )
    if result.options.drop_module and result.left_out_samples > result.idle_samples:
        more = result.left_out_samples - result.idle_samples
        notes.append(f"{format_weight(more, result.unit)} of module-level code only: left out.")
    workers = result.processes.filter(pl.col("role") != MAIN)
    if workers.height and result.options.match != "substring":
        notes.append(
            f"{format_count(workers.height, 'child process', 'es')}: stacks of forked processes "
            "start at the entry of the child, without the frames of the parent."
        )
    return tuple(notes)


def _matched(result: LeafPaths) -> str:
    names = ", ".join(result.options.library_names)
    if not names:
        return "Own code is every file outside the standard library and the installed packages"
    if result.options.match == "substring":
        return f"A frame matches if its path contains {names}"
    return f"A frame matches if {names} is a whole component of its path"


# --- tables ----------------------------------------------------------------------------------


def _tables(result: LeafPaths) -> tuple[Table, ...]:
    """Build the tables: sums if requested, else paths; processes if there are several."""
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
        missing=dict.fromkeys(LIBRARY if lined else LIBRARY[:2], _NO_LIBRARY),
        whole=True,
        hide_first=("path", "line", LIBRARY[1]),
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
    labels = {"key": by if by != "line" else "function", "path": "path", "line": "line"}
    frame, weight = _weights(result.unit, groups, "self", "total")
    unit = f" {result.unit}" if result.unit not in _SUFFIXES else ""
    columns = {
        **known_columns(groups, {"group": result.options.by or "group"}),
        **{name: label for name, label in labels.items() if name in groups.columns},
        weight["self"]: f"self{unit}",
        "self_frac": "self",
        weight["total"]: f"total{unit}",
        "total_frac": "total",
    }
    name = "libraries" if by == "library" else f"{by}s"
    return Table(name, f"By {by}", frame, columns)


def _weights(unit: str, frame: pl.DataFrame, *names: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """Rename the weight columns with a suffix for the unit, and return the new names."""
    suffix = _SUFFIXES.get(unit, "")
    renamed = {name: f"{name}{suffix}" for name in names}
    return frame.with_columns(pl.col(n).alias(s) for n, s in renamed.items()), renamed
