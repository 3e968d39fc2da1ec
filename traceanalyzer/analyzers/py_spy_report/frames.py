"""The frames of one trace's stacks: whose each is, and the tree without what does not count."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import libraries
from traceanalyzer.analyzers.py_spy_report.options import Options
from traceanalyzer.frames import intervals, numbering, stack_weights
from traceanalyzer.trace import Trace

BUILT_IN = "built-in"

_MODULE = "<module>"
_PROCESS = r"(?:^|[/\\])multiprocessing[/\\](?:process|forkserver|\w+_tracker)\.py$"
_WORKER = r"(?:^|[/\\])torch[/\\]utils[/\\]data[/\\]_utils[/\\]worker\.py$"


@dataclass(frozen=True)
class Frames:
    """Distinct frames, and the call tree over them.

    Attributes:
        shown: a row a distinct frame: ``name``, ``path``, ``line`` as the report shows them, and
            its ``file`` as the profiler wrote it.
        frame: each node's row of ``shown``.
        parent: each node's caller, :data:`ROOT` for a root; callers come first.
        kept: frames that count; the others are passed over.
        library: each frame's place in the list of libraries asked for, :data:`ROOT` for no match.
            Where none is asked for, 0 for the user's own code.
        child: nodes that are the entry of a child process.
        worker: nodes that are the loop of a DataLoader worker.
    """

    shown: pl.DataFrame
    frame: intervals.Ints
    parent: intervals.Ints
    kept: intervals.Bools
    library: intervals.Ints
    child: intervals.Bools
    worker: intervals.Bools


def frames_of(trace: Trace, options: Options) -> Frames:
    """The frames of a trace, and which of them are the library's.

    A forked process has its parent's frames above its own; those are cut off, so that the parent's
    code does not count what the child does (not under ``match="substring"``, where the
    reference's numbers are wanted).
    """
    stacks = trace.stacks
    rows = stacks.select("name", "file", "line")
    first, frame = numbering.numbered(rows.get_columns())
    distinct = rows[first].with_columns(pl.col("name", "file").cast(pl.String))
    file = pl.col("file").fill_null("")
    is_entry = pl.col("name").str.contains(r"^(?:.*\._bootstrap|_bootstrap|main)$")
    roles = distinct.select(
        child=(file.str.contains(_PROCESS) & is_entry).fill_null(value=False),
        worker=(file.str.contains(_WORKER) & (pl.col("name") == "_worker_loop")).fill_null(
            value=False
        ),
    )
    is_child, is_worker = (role.to_numpy()[frame] for role in roles)
    parent = stacks["parent"].cast(pl.Int64).fill_null(stack_weights.ROOT).to_numpy()
    if options.match != "substring":
        parent = np.where(is_child, stack_weights.ROOT, parent)
    shown = distinct.select(*_shown())
    return Frames(
        shown=shown,
        frame=frame.astype(np.int64),
        parent=parent,
        kept=_kept(shown, options),
        library=_library(shown, options),
        child=is_child,
        worker=is_worker,
    )


def _shown() -> list[pl.Expr]:
    """Name, path and line as itwinai's report has them: frozen modules are ``built-in``."""
    frozen = pl.col("file").str.contains("frozen importlib", literal=True).fill_null(value=False)
    return [
        pl.col("name").fill_null(""),
        pl.when(frozen).then(pl.lit(BUILT_IN)).otherwise("file").alias("path"),
        pl.when(frozen).then(-1).otherwise("line").cast(pl.Int64).alias("line"),
        pl.col("file"),
    ]


def _kept(shown: pl.DataFrame, options: Options) -> intervals.Bools:
    if not options.drop_module:
        return np.ones(shown.height, np.bool_)
    texts = pl.concat_str(pl.col("name"), pl.col("path").fill_null(""), separator="\n")
    held: intervals.Bools = (
        shown.select(texts.str.contains(_MODULE, literal=True)).to_series().to_numpy()
    )
    return ~held


def _library(shown: pl.DataFrame, options: Options) -> intervals.Ints:
    """Which of the libraries asked for each frame belongs to."""
    if not options.library_names:
        own = map(libraries.is_own, shown["name"].to_list(), shown["file"].to_list())
        return np.array([0 if is_own else stack_weights.ROOT for is_own in own], np.int64)
    by = libraries.by_substring if options.match == "substring" else libraries.by_component
    match = by(options.library_names)
    paths = shown["path" if options.match == "substring" else "file"].to_list()
    place = {name: number for number, name in enumerate(options.library_names)}
    told = {
        path: stack_weights.ROOT if (name := match(path)) is None else place[name]
        for path in set(paths)
    }
    return np.array([told[path] for path in paths], np.int64)
