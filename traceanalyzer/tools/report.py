"""Report on a run: findings, key numbers, an overview of ranks, the result of each analyzer."""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Unpack

import polars as pl

from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Examination, Reading, result_of
from traceanalyzer.analyzers.common import columns, display
from traceanalyzer.analyzers.common.display import headings, known_columns
from traceanalyzer.analyzers.flamegraph import Options as FlamegraphOptions
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.registry import REPLAY
from traceanalyzer.analyzers.timeline.result import Timeline
from traceanalyzer.analyzers.what_if.replay import Replay
from traceanalyzer.drawings import Fact, Section, Table
from traceanalyzer.findings.judge import judge, with_thresholds
from traceanalyzer.findings.result import EXPOSED_COMMUNICATION, IDLE, WAIT, Diagnosis
from traceanalyzer.findings.rule import Rule
from traceanalyzer.result import Report, Result
from traceanalyzer.run.loop import examine, guarded
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.units import format_first

#: Ranks with a share this far from the median come first in the table of ranks.
_DEVIATES = 0.02
#: In flame graphs, boxes narrower than a quarter of a pixel are merged.
_A_QUARTER_PIXEL = 0.25 / 1200
#: Maximum number of inputs in the title.
_NAMED = 3


def report(
    inputs: Inputs,
    *,
    thresholds: str | Sequence[str] = (),
    named: Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Report:
    """Run diagnose and all analyses that the files support, reading each file once.

    Args:
        inputs: traces, files and folders of any format, of one run.
        thresholds: changed thresholds of findings, for example ``straggler=5%``.
        named: names of the inputs in the title and in commands, for example their folder; default:
            the inputs.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        OptionError: a threshold is invalid, or no input has the requested rank.
    """
    rules = with_thresholds(thresholds)
    options = {"flamegraph": FlamegraphOptions(min_frac=_A_QUARTER_PIXEL)}
    examined = examine(inputs, options=options, **reading)
    with guarded(examined.summaries):
        return build(examined, rules, list(named) or _paths(inputs))


def _paths(inputs: Inputs) -> list[str]:
    several = [inputs] if isinstance(inputs, Trace | str | os.PathLike) else list(inputs)
    return [one.meta.path if isinstance(one, Trace) else os.fspath(one) for one in several]


def build(examination: Examination, rules: Sequence[Rule], paths: Sequence[str]) -> Report:
    """Return the report of a run.

    Args:
        examination: the results of all analyzers.
        rules: the rules of diagnose.
        paths: names of the inputs in the title and in commands.
    """
    results, diagnosis = _on_one_axis(examination.results), judge(examination, rules)
    sections = {one.key: one for one in _sections(results, paths)}
    return Report(
        about=_about(paths),
        diagnosis_result=diagnosis,
        facts=facts(results, diagnosis),
        overview=overview(results),
        timeline=_marked(sections.pop("timeline", None), diagnosis, examination),
        sections=tuple(sections.values()),
        command=_command("report", paths),
    )


def _on_one_axis(results: Mapping[str, Result]) -> Mapping[str, Result]:
    """Return the results with the idle gaps on the axis of the timeline."""
    idle, timeline = result_of(results, GpuIdle), result_of(results, Timeline)
    if idle is None or timeline is None:
        return results
    return {**results, "gpu_idle": idle.on_axis(timeline.places, one_clock=timeline.one_clock)}


def _marked(section: Section | None, diagnosis: Result, examination: Examination) -> Section | None:
    """Return the section of the timeline with marks of the findings and the critical path."""
    if section is None or not isinstance(section.result, Timeline):
        return section
    marked, replay = section.result.with_findings(diagnosis.diagnosis), examination.replay
    if isinstance(replay, Replay):
        return replace(section, result=marked.with_path(*replay.drawn_path()))
    return replace(section, result=marked.with_path(None, examination.missing.get(REPLAY, "")))


def _about(paths: Sequence[str]) -> str:
    return format_first([PurePath(path).name or path for path in paths], _NAMED)


def _command(command: str, paths: Sequence[str]) -> str:
    return f"traceanalyzer {command} {shlex.join(paths)}"


def _sections(results: Mapping[str, Result], paths: Sequence[str]) -> tuple[Section, ...]:
    return tuple(
        Section(entry.name, entry.section or "", _command(entry.command, paths), result)
        for entry in registry.in_report()
        if (result := results.get(entry.name)) is not None
        and not (entry.name == "memory_oom" and not result.scalars["ooms"])
    )


# --- key numbers -----------------------------------------------------------------------------


def facts(results: Mapping[str, Result], diagnosis: Diagnosis) -> tuple[Fact, ...]:
    """Return the known key numbers: ranks, span, steps, peak memory, and shares of the time.

    All shares are those of the time budget of the diagnosis: of step time of all devices, or of the
    recorded time if no steps are marked.
    """
    numbers = (fact for name, of in _FACTS.items() if name in results for fact in of(results[name]))
    return (*numbers, *_shares_of_time(results, diagnosis))


def _files(result: Any) -> Iterator[Fact]:
    ranks = result.files["rank"].drop_nulls().n_unique()
    name, count = ("ranks", ranks) if ranks else ("files", result.files.height)
    yield Fact(name, name, count)
    span = result.contents["span_ns"].max()
    if isinstance(span, int):
        yield Fact("span_ns", "recorded", span)


def _steps(result: Any) -> Iterator[Fact]:
    sums, most = result.scalars, result.ranks["steps"].max()
    if isinstance(most, int):
        yield Fact("step_count", "steps", most)
    if sums["median_ns"] is not None:
        yield Fact("median_ns", "median step", sums["median_ns"])


def _shares_of_time(results: Mapping[str, Any], diagnosis: Diagnosis) -> Iterator[Fact]:
    """Yield idle time, data loading, exposed communication and wait time of the time budget."""
    rows = diagnosis.budget.select("part", "name", "time_frac")

    def fact(name: str, label: str, which: pl.Expr) -> Fact:
        share = float(rows.filter(which)["time_frac"].sum())
        return Fact(name, f"{label} (of {diagnosis.of})", share)

    idle = result_of(results, GpuIdle)
    if idle is not None and rows.height:
        label = "main thread idle" if idle.coverage.on_host else "GPU idle"
        yield fact("idle_frac", label, pl.col("part") == IDLE)
        loading = causes.NAMES[causes.DATALOADING]
        yield fact("dataloading_frac", loading, pl.col("name") == loading)
    on_host = pl.col("name").is_in((WAIT, causes.IN_COLLECTIVES))
    communication = {
        "exposed_frac": (EXPOSED_COMMUNICATION, pl.col("part") == EXPOSED_COMMUNICATION),
        "in_collectives_frac": (
            f"{causes.IN_COLLECTIVES} on the host", (pl.col("part") == IDLE) & on_host,
        ),
    }  # fmt: skip
    of_parts = [(key, *one) for key, one in communication.items() if rows.filter(one[1]).height]
    yield from (fact(*one) for one in of_parts)
    compared = results.get("comm_outliers")
    if of_parts and compared is not None and compared.totals.n_matched:
        yield fact("wait_frac", WAIT, pl.col("name") == WAIT)


def _filled(result: Any) -> Iterator[Fact]:
    peak = result.devices["peak_bytes"].max()
    if isinstance(peak, int):
        yield Fact("peak_bytes", "peak memory", peak)


def _sampled(result: Any) -> Iterator[Fact]:
    suffix = {"ns": "_ns", "bytes": "_bytes"}.get(result.unit, "")
    yield Fact(f"total{suffix}", result.unit or "weight", result.total_samples)


#: Facts of each result, by the name of its analyzer.
_FACTS: dict[str, Callable[[Any], Iterator[Fact]]] = {
    "info": _files,
    "steps": _steps,
    "memory": _filled,
    "py_spy_report": _sampled,
}


_KEYS = ("rank", "path")

#: Columns and headings of the overview; columns of nulls are dropped.
_COLUMNS = headings(
    "on: rank, format, host, dropped, steps, median_ns: median step, "
    "busy_frac: any device work, idle_frac: idle, dataloading_frac: data loading, "
    "compute_frac: compute, exposed_frac: exposed communication, wait_ns: wait time, "
    "imposed_ns: wait of others, peak_bytes: peak memory, events"
)


def overview(results: Mapping[str, Result]) -> Table:
    """Return the table of ranks: one row per file and rank.

    Columns: ``on`` (rank or file name), rank, path, format, host, events, dropped (dropped events),
    steps, median_ns, busy_frac, idle_frac and dataloading_frac (of device time), compute_frac and
    exposed_frac (exposed communication), wait_ns (for other ranks), imposed_ns (that other ranks
    waited for it), peak_bytes.
    """
    info: Any = results["info"]
    rows = info.files.select(*_KEYS, "format", "host").with_columns(
        info.contents["events", "dropped"]
    )
    for name, result in results.items():
        if name in _OF_RANKS:
            rows = columns.left_join(rows, _OF_RANKS[name](result), _KEYS)
    rows = _deviating_first(rows.with_columns(_names(rows)))
    known = known_columns(rows, _COLUMNS, ("dropped", "dataloading_frac"))
    if rows.height > 1 and rows["format"].n_unique() == 1:
        del known["format"]  # what ranks do not differ in
    idle = result_of(results, GpuIdle)
    if idle is not None and idle.coverage.on_host and "busy_frac" in known:
        known["busy_frac"] = "in operators"
    known["on"] = "rank" if rows["rank"].null_count() < rows.height else "file"
    shares = " (shares of the recorded time)" * any(name.endswith("_frac") for name in known)
    title = "Ranks" if known["on"] == "rank" else "Inputs"
    return Table("overview", f"{title}{shares}", rows, known)


def _deviating_first(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort ranks by their largest deviation from the median of a column, others after them."""
    of_ranks = pl.col("rank").is_not_null()
    shares = [pl.col(name) for name in rows.columns if name.endswith("_frac")]
    away = [share - share.median() for share in shares]
    if "median_ns" in rows:
        whole = pl.col("median_ns").median() * pl.col("steps").median()
        times = [pl.col(name) for name in ("wait_ns", "imposed_ns") if name in rows]
        away += [(time - time.median()) / whole for time in times]
        away.append(pl.col("median_ns") / pl.col("median_ns").median() - 1)
    largest = pl.max_horizontal([pl.lit(0.0), *(value.abs() for value in away)]).fill_nan(0)
    deviation = pl.when(of_ranks & (largest >= _DEVIATES)).then(largest).otherwise(0.0)
    return rows.sort(deviation, descending=True, maintain_order=True)


def _names(rows: pl.DataFrame) -> pl.Series:
    """Return a label per row: the rank if it identifies the file, else the file name."""
    numbered = rows.select(*_KEYS, ranked=pl.col("rank").is_not_null()).with_row_index("row")
    parts = [
        part.select("row", display.places(part.select(_KEYS)).cast(pl.String))
        for part in numbered.partition_by("ranked")
    ]
    return pl.concat(parts).sort("row")["on"]


def _shares(rows: pl.DataFrame, whole: pl.Expr, **parts: pl.Expr) -> pl.DataFrame:
    """Return sums of each rank as shares of a total."""
    sums = {name: columns.ratio(part.sum(), whole.sum()) for name, part in parts.items()}
    return rows.group_by(_KEYS).agg(**sums)


def _of_idle(result: Any) -> pl.DataFrame:
    span, busy, loading = pl.col("end") - pl.col("start"), pl.col("busy_ns"), "dataloading_ns"
    rows = _shares(result.units, span, busy_frac=busy, dataloading_frac=pl.col(loading))
    idle = 1 - pl.col("busy_frac")
    return rows.select(*_KEYS, "busy_frac", idle.alias("idle_frac"), "dataloading_frac")


def _of_communication(result: Any) -> pl.DataFrame:
    waits = result.ranks.select("rank", "wait_ns", "imposed_ns")
    paths: pl.DataFrame = result.instances.select(*_KEYS).unique()
    return paths.join(waits, on="rank", nulls_equal=True)


#: Columns of :data:`_COLUMNS` with the keys, by analyzer.
_OF_RANKS: dict[str, Callable[[Any], pl.DataFrame]] = {
    "steps": lambda result: result.ranks.select(*_KEYS, "steps", "median_ns"),
    "gpu_idle": _of_idle,
    "overlap": lambda result: _shares(
        result.devices,
        pl.col("span_ns"),
        compute_frac=pl.col("compute_ns"),
        exposed_frac=pl.col("exposed_communication_ns"),
    ),
    "comm_outliers": _of_communication,
    "memory": lambda result: result.devices.group_by(_KEYS).agg(pl.col("peak_bytes").max()),
}
