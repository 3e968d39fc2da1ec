"""Result of the py-spy report: leaf paths or sums, verdict, notes and tables."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common import own_lines
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import known_columns
from traceanalyzer.analyzers.py_spy_report import Options
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_weight

#: The path columns of the report; those of the library are null if it is not in the stack.
PATH = ("name", "path", "line")
LIBRARY = ("library_function_name", "library_function_path", "library_function_line")
MAIN = "main process"

#: Name of a leaf without a Python frame.
NO_FRAME = "(no Python frame)"

#: Smaller shares are not in a sentence.
_LEAST = 0.01

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
        loading: the lines in whose samples the main thread loads a batch of a DataLoader itself:
            ``place``, ``name``, ``path``, ``line`` (null without own code), ``calls``, ``samples``.
        busy_samples: weight of what the main threads do, waits included, and of code that other
            threads and processes run.
        idle_samples: weight without a Python frame.
        left_out_samples: weight that is not in ``total_samples``.
        paths: one row per path, or per line of the file: ``group``, ``name``, ``path``, ``line``,
            ``library_function_name``, ``library_function_path``, ``library_function_line``,
            ``library``, ``samples``, ``samples_frac``, ``doing`` (what it does instead of running
            code: it waits for something, imports modules, or has no Python frame), ``caller`` (the
            function that calls the leaf's library, else its file), ``proportion``; most samples
            first.
        groups: sums if requested: ``group``, ``key``, ``path``, ``line``, ``self``, ``self_frac``,
            ``total``, ``total_frac``; most ``self`` first.
        lines: one row per line of own code (or of the libraries) that runs, the innermost one of
            each stack: ``group``, ``place``, ``name``, ``path``, ``line``, ``calls`` (the call
            below it with most samples, null for the line itself), ``calls_frac`` (its share of the
            line), ``samples``, ``samples_frac`` (of the samples that run code).
        activities: what the samples do: ``activity``, ``place`` (the own line with most of it),
            ``calls``, ``place_frac``, ``samples``, ``samples_frac`` (of all samples).
        locks: lines of own code in which threads wait for a lock: ``place``, ``holder`` (where one
            thread is meanwhile), ``samples``.
        waits: what the main thread waits for, by line of own code, unless for a recorded thread:
            ``activity``, ``place``, ``calls``, ``samples``, ``frac`` (of the main thread).
        processes: ``file``, ``pid``, ``command``, ``role``, ``samples``, ``samples_frac``.
    """

    question = "Which line of my code takes the time?"
    scalar_names = "unit, total_samples, tagged_samples, idle_samples, left_out_samples"

    options: Options
    total_samples: float
    unit: str
    tagged_samples: float
    loading: pl.DataFrame
    busy_samples: float
    idle_samples: float
    left_out_samples: float
    lines: pl.DataFrame
    activities: pl.DataFrame
    paths: pl.DataFrame
    groups: pl.DataFrame | None
    processes: pl.DataFrame
    locks: pl.DataFrame
    waits: pl.DataFrame

    @property
    def running(self) -> pl.DataFrame:
        """The rows of ``paths`` that run code: without ``doing``."""
        return self.paths.filter(pl.col("doing").is_null())

    @property
    def loading_samples(self) -> float:
        """Weight in which the main thread loads a batch of a DataLoader itself."""
        return float(self.loading["samples"].sum())

    @property
    def loader_wait_frac(self) -> float:
        """Share of the main process, without threads in the background, that waits for a batch."""
        is_main = self.processes["role"] == MAIN
        whole = float(self.processes.filter(is_main)["samples"].sum())
        times = {row["activity"]: row["samples"] for row in self.activities.iter_rows(named=True)}
        if is_main.all():
            whole -= times.get(own_lines.BACKGROUND, 0) + times.get(own_lines.IDLE, 0)
        return min(float(times.get(own_lines.LOADER, 0)) / (whole or 1), 1.0)

    def view(self) -> View:
        """Build the view: sums or paths if requested, else lines; processes of several."""
        return self.view_from(_verdict, _notes, _tables)


def by_line(counted: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of own code (:data:`LIBRARY`) with samples, most first.

    With name, path and ``below``, the samples, of the function below it with most of them.
    """
    used = counted.drop_nulls(LIBRARY[0]).filter(pl.col("samples") > 0)
    leaves = used.group_by(*LIBRARY, "name", "path")
    each = largest_first(leaves.agg(pl.col("samples").sum()), "samples", "name", "path")
    lines = each.group_by(LIBRARY, maintain_order=True)
    first = pl.col("name", "path").first(), pl.col("samples").first().alias("below")
    return largest_first(lines.agg(*first, pl.col("samples").sum()), "samples", *LIBRARY)


def _verdict(result: LeafPaths) -> str:
    """Describe the lines of own code, or of the libraries, with most time."""
    if not result.total_samples:
        return "No samples are counted."
    if result.lines.height:
        names = " or ".join(result.options.library_names)
        tagged = format_frac(result.tagged_samples / result.total_samples)
        loading = result.loading_samples / result.total_samples
        shares = [f"{names} on the stack {tagged}"] * bool(names)
        shares += [f"loading batches {format_frac(loading)}"] * (loading >= _LEAST)
        return own_lines.answer(result.lines, result.activities, result.unit, shares)
    functions = _functions(result)
    if functions.is_empty():
        of_total = _of_total(result, result.total_samples)
        return f"No sample runs code: {of_total} wait, import or compile."
    place, share = functions.row(0, named=True)["place"], functions["samples_frac"][0]
    return (
        f"{place} has the highest self share: {format_frac(share)}. "
        f"{own_lines.unknown(functions['path'], result.options.library_names)}"
    )


def _functions(result: LeafPaths) -> pl.DataFrame:
    """Return the leaves that run code, each once, most samples first."""
    line = pl.when(pl.col("line") >= 0).then("line").alias("line")
    return (
        result.running.with_columns(line)
        .group_by("group", *PATH, maintain_order=True)
        .agg(pl.col("samples", "samples_frac").sum())
        .with_columns(place=own_lines.place_of(*map(pl.col, PATH)))
        .sort("samples", "place", descending=[True, False])
    )


def _of_total(result: LeafPaths, weight: float) -> str:
    share = weight / result.total_samples if result.total_samples else 0.0
    return f"{format_weight(weight, result.unit)} ({format_frac(share)})"


def _notes(result: LeafPaths) -> Iterator[str]:
    """Describe what was matched, and what is not counted."""
    yield f"{_matched(result)}."
    if result.idle_samples:
        left_out = result.options.exclude_idle_process or result.options.drop_module
        handled = "left out" if left_out else "counted as idle"
        yield (
            f"{format_weight(result.idle_samples, result.unit)} without a Python frame: {handled}."
        )
    if result.options.drop_module and result.left_out_samples > result.idle_samples:
        more = result.left_out_samples - result.idle_samples
        yield f"{format_weight(more, result.unit)} of module-level code only: left out."
    workers = result.processes.filter(pl.col("role") != MAIN)
    if workers.height and result.options.match != "substring":
        yield (
            f"{format_count(workers.height, 'child process', 'es')}: stacks count from the entry "
            "of the child; frames of the parent above it are left out."
        )


def _matched(result: LeafPaths) -> str:
    names = ", ".join(result.options.library_names)
    if not names:
        return (
            "Own code is every file outside the standard library and the installed packages; "
            "--library-name NAME selects other code"
        )
    if result.options.match == "substring":
        return f"A frame matches if its path contains {names}"
    return f"A frame matches if {names} is a whole component of its path"


# --- tables ----------------------------------------------------------------------------------


def _tables(result: LeafPaths) -> tuple[Table, ...]:
    """Build the tables: sums if requested, else paths; processes if there are several."""
    by_library = result.options.library_names or result.options.aggregate_leaf_paths
    if result.groups is not None:
        tables = [_groups(result, result.groups)]
    else:
        tables = [_paths(result)] if by_library else [_lines(result)]
        if not by_library and result.activities.height > 1:
            tables.append(_activities(result))
    known = result.processes["pid"].is_not_null() | (result.processes["role"] != MAIN)
    if result.processes.height > 1 and known.any():
        tables.append(_processes(result))
    return tuple(tables)


def _lines(result: LeafPaths) -> Table:
    """Build the table of own lines; without own code, of the functions that ran."""
    rows = result.lines if result.lines.height else _functions(result)
    frame, weight = _weights(result.unit, rows, "samples")
    columns = {
        **known_columns(rows, {"group": result.options.by or "group"}),
        "place": "your code" if result.lines.height else "function",
        **known_columns(rows, {"calls": "calls"}),
        **_weight_columns(result, weight["samples"]),
    }
    title = "Lines of your code" if result.lines.height else "Functions"
    if result.running.height < result.paths.height:
        title += f" ({_share_of(result)})"
    return Table("lines", title, frame, columns, missing={"calls": "(itself)"})


def _share_of(result: LeafPaths) -> str:
    running = float(result.running["samples"].sum())
    return f"share of the {format_weight(running, result.unit)} that run code"


def _activities(result: LeafPaths) -> Table:
    frame, weight = _weights(result.unit, result.activities, "samples")
    columns = {
        "activity": "activity",
        **known_columns(frame, {"place": "most of it in", "calls": "calls"}),
        **_weight_columns(result, weight["samples"]),
    }
    return Table("activities", "What the samples do", frame, columns, hide_first=("calls", "place"))


def _weight_columns(result: LeafPaths, column: str) -> dict[str, str]:
    label = "time" if result.unit == "ns" else result.unit or "weight"
    return {column: label, "samples_frac": "share"}


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
            **_weight_columns(result, weight["samples"]),
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
