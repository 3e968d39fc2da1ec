"""Save a run as a baseline, and list the baselines."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import polars as pl

from traceanalyzer import __version__
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.diff import runs
from traceanalyzer.analyzers.diff.compute import DIFF
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run import baselines
from traceanalyzer.run.baselines import PARTS_SCHEMA, Facts, SavedRun
from traceanalyzer.run.find import InputList, each, is_summary
from traceanalyzer.run.loop import collect, guarded
from traceanalyzer.run.summaries import context_path
from traceanalyzer.tools.summarize import summarize
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.units import format_count

_COLUMNS = headings(
    "name: baseline, run, inputs: files, ranks, world_size: world size, gpus: GPU, steps, "
    "step_ns: step, saved, program: version, problem"
)
#: Most files of a run that are recorded by name.
_MOST_NAMES = 1_000
_SCHEMA = {
    "name": pl.String,
    "run": pl.String,
    "path": pl.String,
    "inputs": pl.Int64,
    "ranks": pl.Int64,
    "world_size": pl.Int64,
    "gpus": pl.String,
    "software": pl.String,
    "profilers": pl.String,
    "steps": pl.Int64,
    "step_ns": pl.Float64,
    "saved": pl.String,
    "program": pl.String,
    "problem": pl.String,
}


@dataclass(frozen=True, eq=False, repr=False)
class Baselines(Result):
    """Result of :func:`baselines`: saved runs.

    Attributes:
        runs: one row per run: name (of the baseline), run, path, inputs, ranks, world_size, gpus,
            software, profilers, steps (counted), step_ns (median), saved (UTC), program (version of
            traceanalyzer), problem (why it cannot be used, or the missing files; null if it is
            complete).
        store: the folder of all baselines.
    """

    runs: pl.DataFrame
    store: str

    def view(self) -> View:
        """Build the view: one table of runs."""
        count = self.runs["name"].n_unique()
        text = f"{format_count(count, 'baseline')} in {self.store}"
        broken = self.runs.filter(pl.col("saved").is_null()).height
        lacking = self.runs["problem"].count() - broken
        more = f"; {format_count(broken, 'run')} cannot be used" if broken else ""
        more += f"; files of {format_count(lacking, 'run')} are missing" if lacking else ""
        return View(
            title="Which runs are saved?",
            verdict=f"{text}, {format_count(self.runs.height, 'run')}{more}.",
            tables=(Table("runs", "Saved runs", self.runs, _COLUMNS),),
            scalars={"store": self.store},
        )


def list_baselines(name: str | None = None) -> Baselines:
    """Return the runs of one baseline or of all.

    Args:
        name: the baseline; None for all.

    Raises:
        InputError: there is no such baseline, or the store cannot be read.
        OptionError: the name is invalid.
    """
    chosen = baselines.names() if name is None else [name]
    rows = []
    for one in chosen:
        if name is None and not baselines.has_runs(one):
            continue
        rows += [_row(one, run) for run in baselines.runs_of(one)]
    return Baselines(pl.DataFrame(rows, schema=_SCHEMA), str(baselines.store()))


def _row(name: str, run: SavedRun) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(_SCHEMA)
    row |= {"name": name, "run": run.path.name, "path": str(run.path)}
    if run.facts is None:
        return row | {"problem": run.problem}
    known = {key: value for key, value in asdict(run.facts).items() if key in _SCHEMA}
    texts = {key: ", ".join(known[key]) or None for key in ("gpus", "software", "profilers")}
    return row | known | texts | {"problem": run.problem or None}


def save_baseline(
    name: str,
    inputs: Inputs,
    *,
    add: bool = False,
    force: bool = False,
    workers: int | Literal["auto"] = 1,
    progress: Progress | None = None,
    on_trace: Callable[[Trace], None] | None = None,
) -> Baselines:
    """Save a run under a name: the summaries of its files, and facts about it.

    ``baseline:NAME`` in place of a path then means this run, in every function and command. Several
    processes may save at once.

    Args:
        name: the baseline.
        inputs: files and folders of one run: traces, or the summaries of all of its files.
        add: add a further run of the same version, so that ``diff`` knows the noise between runs.
        force: replace the runs of an existing baseline.
        workers: see :func:`traceanalyzer.summarize`.
        progress: callback with (bytes read, total bytes) of each file.
        on_trace: callback with the trace of each file, for its ``issues``.

    Raises:
        InputError: none of the inputs can be read.
        OptionError: the name is invalid, or an input is a trace in memory.
        OutputError: the baseline exists, or cannot be written.
    """
    if add and force:
        raise OptionError("add and force exclude each other")
    with baselines.new_run(name, add=add, force=force) as folder:
        items = each(inputs)
        if all(isinstance(item, str) and is_summary(item) for item in items):
            _copy([str(item) for item in items], folder)
        else:
            summarize(
                InputList(items), folder, workers=workers, progress=progress, on_trace=on_trace
            )
        baselines.write_facts(folder, _facts(folder))
    return list_baselines(name)


def _copy(paths: Sequence[str], folder: Path) -> None:
    """Copy summaries with the events around their waits.

    Raises:
        OptionError: two of them have the same name.
    """
    for path in paths:
        target = folder / Path(path).name
        if target.exists():
            raise OptionError(f"{path}: another summary has the same name; pass the traces")
        shutil.copyfile(path, target)
        context = Path(context_path(path))
        if context.is_file():
            shutil.copyfile(context, folder / context.name)


def _facts(folder: Path) -> Facts:
    """Return the facts of a complete run, from its summaries."""
    count = sum(is_summary(str(path)) for path in folder.iterdir())
    saved = datetime.now(UTC).isoformat(timespec="seconds")
    files = tuple(sorted(path.name for path in folder.iterdir())[:_MOST_NAMES])
    known = Facts(PARTS_SCHEMA, __version__, saved, inputs=count, ranks=count, files=files)
    try:
        opened, parts = collect(DIFF, str(folder), DIFF.options())
        with guarded(opened.summaries):
            run = runs.run_of(parts)
    except MissingData:
        return known
    sizes = {fact.world_size for fact in run.facts if fact.world_size}
    return replace(
        known,
        ranks=run.ranks,
        world_size=max(sizes, default=None),
        gpus=_texts(name for fact in run.facts for name in fact.gpus),
        software=_texts(name for fact in run.facts for name in fact.software),
        profilers=_texts(f"{fact.format} {fact.version or ''}".strip() for fact in run.facts),
        steps=run.step_count or None,
        step_ns=_median_step(run),
    )


def _median_step(run: runs.Run) -> float | None:
    """Return the median time of the counted steps in ns."""
    if run.steps is None:
        return None
    median: float | None = run.counted["duration_ns"].median()  # type: ignore[assignment]
    return median


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    """Return distinct texts, sorted; very long or very many ones are cut."""
    return tuple(sorted({value[:200] for value in values})[:100])
