"""Description of each file, combined over all files, and the result of the info analysis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os.path import commonprefix
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.common import soundness, step_marks
from traceanalyzer.analyzers.common.display import headings, known_columns, sentences
from traceanalyzer.analyzers.info import Options
from traceanalyzer.frames import nesting
from traceanalyzer.result import Result, Table, View
from traceanalyzer.trace import Device, Meta, Trace, of_kinds
from traceanalyzer.units import format_count, format_ns, format_ranges, natural

_FILES = (
    "path", "format", "version", "rank", "world_size", "host", "devices", "device_bytes",
    "start_utc", "epoch_ns",
)  # fmt: skip
_CONTENTS = (
    "path", "rank", "span_ns", "steps", "events", "communication", "communication_ns", "dropped",
    "device_work", "launch_calls", "spans",
)  # fmt: skip
_KINDS = ("kind", "events", "sum_ns")
_ISSUES = ("path", "severity", "code", "count", "first")
_SKIPPED = ("path", "reason")

#: Columns of text and of small numbers; the others are whole numbers of 64 bits.
_TEXTS = {*_FILES, "kind", *_ISSUES, *_SKIPPED} - {
    "rank", "world_size", "device_bytes", "epoch_ns", "count",
}  # fmt: skip
_SMALL = ("rank", "world_size")

_SEVERITIES = ("error", "data_loss", "notice", "info")


#: All events and columns.
NEEDS = Needs(frozenset(), samples=True, everything=True)


@dataclass(frozen=True)
class Part:
    """Rows of one trace for the frames of :class:`Info`."""

    files: list[dict[str, Any]]
    contents: list[dict[str, Any]]
    kinds: list[dict[str, Any]]
    issues: list[dict[str, Any]]


def measure(trace: Trace, _options: Options, *, for_rules: bool = False) -> Part:
    """Describe one trace; ``for_rules``: without event kinds and overlapping slices."""
    part = Part([], [], [], [])
    for meta, part_trace in _by_source(trace):
        part.files.append(_file(meta, part_trace.events))
        part.contents.append(_content(meta, part_trace))
    # kinds and issues of a file of several ranks are those of the file
    for one in [trace] if len(trace.sources) == 1 else [one for _, one in _by_source(trace)]:
        issues = one.issues.drop("rank").to_dicts()
        found = soundness.problems(one)
        issues += [dict(zip(_ISSUES[1:], issue, strict=True)) for issue in found]
        if not for_rules:
            part.kinds.extend(_kinds(one))
            issues += _overlapping(one.events)
        part.issues.extend({"path": one.meta.path, **row} for row in issues)
    return part


def combine(parts: Sequence[Part], options: Options) -> Info:
    """Combine the descriptions of all traces, in the order of their ranks and names."""
    parts = sorted(parts, key=_place)
    files = _frame(_FILES, (row for part in parts for row in part.files))
    contents = _frame(_CONTENTS, (row for part in parts for row in part.contents))
    issues = [row for part in parts for row in part.issues]
    recordings = files[["path", "rank", "epoch_ns"]].hstack(contents[["span_ns"]])
    part_of = [number for number, part in enumerate(parts) for _ in part.files]
    issues += soundness.between(_by_file(recordings.with_columns(part=pl.Series(part_of))))
    return Info(
        files=files,
        contents=contents,
        kinds=_all_kinds(_frame(_KINDS, (row for part in parts for row in part.kinds))),
        issues=_worst_first(_frame(_ISSUES, issues)),
        skipped=_frame(_SKIPPED, options.skipped),
    )


INFO = Analyzer(
    "info",
    Options,
    NEEDS,
    measure,
    combine,
    split_ranks=False,
    every_file=True,
    measure_for={"findings": partial(measure, for_rules=True)},
)

#: The mark of Kineto when it has processed what it recorded, which may take many seconds.
_WRITTEN = "Record Window End"

# --- one file --------------------------------------------------------------------------------


def _by_source(trace: Trace) -> Iterator[tuple[Meta, Trace]]:
    """Split a trace of several ranks, joined or of one file, into one trace per rank."""
    ranks = trace.events["rank"].unique().sort()
    sources = trace.sources
    if len(sources) == 1:
        if ranks.drop_nulls().len() < 2:
            yield trace.meta, trace
            return
        sources = tuple(replace(trace.meta, rank=rank) for rank in ranks)
    for meta in sources:
        of_rank = pl.col("rank").eq_missing(pl.lit(meta.rank, dtype=pl.Int32))
        part = trace.select(of_rank, of_rank)
        yield meta, replace(part, sources=(meta,), issues=trace.issues.filter(of_rank))


def _file(meta: Meta, events: pl.DataFrame) -> dict[str, Any]:
    start = _whole(events["ts"].min())
    epoch = None if start is None or meta.epoch_ns is None else meta.epoch_ns + start
    return {
        "path": meta.path,
        "format": meta.format,
        "version": meta.version,
        "rank": meta.rank,
        "world_size": meta.world_size,
        "host": meta.host,
        "devices": _devices(meta.devices),
        "device_bytes": min((one.total_bytes or 0 for one in meta.devices), default=0) or None,
        "start_utc": _utc(epoch),
        "epoch_ns": epoch,
    }


def _content(meta: Meta, trace: Trace) -> dict[str, Any]:
    events = trace.events
    start = _whole(events["ts"].min())
    weight = pl.col("weight") if meta.weight_unit == "ns" else pl.lit(0.0)  # duration of a sample
    length = pl.coalesce("dur", weight.round().cast(pl.Int64, strict=False), 0).clip(0)
    last = (pl.col("ts") + length).filter(pl.col("name").ne_missing(_WRITTEN)).max()
    end = _whole(events.select(last).item())
    columns = events[["kind", "name", "device", "dur"]]
    only = trace.meta.format in vocabulary.ONLY_COMMUNICATION
    communication = columns.filter(pl.lit(only) | _is_communication(events["name"]))
    lost = trace.issues.filter(pl.col("severity").is_in(LOSSES))
    return {
        "path": meta.path,
        "rank": meta.rank,
        "span_ns": None if start is None or end is None else end - start,
        "steps": step_marks.step_marks(trace)["step"].n_unique() or None,
        "events": events.height,
        "communication": communication.height,
        "communication_ns": communication["dur"].clip(0).sum(),
        "dropped": lost["count"].sum(),
        "device_work": columns.filter(of_kinds(vocabulary.DEVICE_WORK)).height,
        "launch_calls": columns.filter(of_kinds(vocabulary.LAUNCH_KINDS)).height,
        "spans": columns.filter(of_kinds(vocabulary.SPAN_KINDS)).height,
    }


def _overlapping(events: pl.DataFrame) -> list[dict[str, Any]]:
    """Report host slices of a thread that overlap without nesting."""
    # scheduling is independent of calls; async slices may overlap
    calls = pl.col("tid").is_not_null() & ~pl.col("kind").is_in(("sched", "async"))
    slices = events.filter(calls, pl.col("dur") >= 0)
    spans = slices.select("pid", "tid", start="ts", end=pl.col("ts") + pl.col("dur"))
    crossing = np.flatnonzero(nesting.nest(spans, ["pid", "tid"])["lane"].to_numpy())
    if not len(crossing):
        return []
    first = f"{slices['name'][int(crossing[0])]} at {slices['ts'][int(crossing[0])]} ns"
    finding = {"severity": "notice", "code": "overlapping-slices", "count": len(crossing)}
    return [{**finding, "first": first}]


def _is_communication(names: pl.Series) -> pl.Expr:
    """Select communication kernels, and host events that run a collective."""
    distinct = names.drop_nulls().unique().cast(pl.String)
    kernels = distinct.filter(distinct.str.contains(vocabulary.COMMUNICATION_PATTERN))
    on_host = [n for n in distinct if n.startswith(vocabulary.HOST_COLLECTIVE_PREFIXES)]
    name = pl.col("name")
    kernel = (pl.col("kind") == "kernel") & name.is_in(kernels.to_list())
    return kernel | (pl.col("device").is_null() & name.is_in(on_host))


def _devices(devices: tuple[Device, ...]) -> str | None:
    names = [device.name or "GPU" for device in devices]
    return ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names)) or None


def _utc(epoch: int | None) -> str | None:
    if epoch is None:
        return None
    time = pl.Series([epoch]).cast(pl.Datetime("ns"))
    text: str = time.dt.strftime("%Y-%m-%d %H:%M:%S").item()
    return text


def _kinds(trace: Trace) -> list[dict[str, Any]]:
    by_kind = trace.events.group_by(pl.col("kind").cast(pl.String)).agg(
        events=pl.len(),
        sum_ns=pl.when(pl.col("dur").is_not_null().any()).then(pl.col("dur").clip(0).sum()),
    )
    tables = (
        ("counter", trace.counters),
        ("flow", trace.flows),
        ("collective record", trace.collective_records),
        ("metric", trace.metrics),
        ("printed number", trace.aggregates),
    )
    rows = [{"kind": kind, "events": frame.height} for kind, frame in tables if frame.height]
    return [*by_kind.to_dicts(), *rows]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


# --- all files -------------------------------------------------------------------------------


def _place(part: Part) -> list[tuple[bool, int, list[tuple[int, int, str]]]]:
    """Return a sort key: rank (unknown ones last) and path of each file."""
    return [(row["rank"] is None, row["rank"] or 0, natural(row["path"])) for row in part.files]


def _by_file(recordings: pl.DataFrame) -> pl.DataFrame:
    """Return one row per file: its rank if it has one, its first time, its longest span."""
    only = pl.when(pl.len() == 1).then(pl.col("rank").first())
    times = pl.col("epoch_ns").min(), pl.col("span_ns").max()
    files = recordings.group_by("part", "path", maintain_order=True)
    return files.agg(only.alias("rank"), *times).drop("part")


def _frame(columns: Sequence[str], rows: Iterable[Any]) -> pl.DataFrame:
    types = {
        name: pl.String if name in _TEXTS else pl.Int32 if name in _SMALL else pl.Int64
        for name in columns
    }
    return pl.DataFrame(list(rows), schema=types, orient="row")


def _all_kinds(kinds: pl.DataFrame) -> pl.DataFrame:
    has_time = pl.col("sum_ns").is_not_null().any()
    return (
        kinds.group_by("kind")
        .agg(
            files=pl.len().cast(pl.Int64),
            events=pl.col("events").sum(),
            sum_ns=pl.when(has_time).then(pl.col("sum_ns").sum()),
        )
        .sort(["events", "kind"], descending=[True, False])
    )


def _worst_first(issues: pl.DataFrame) -> pl.DataFrame:
    severity = pl.col("severity").cast(pl.Enum(_SEVERITIES)).to_physical()
    return issues.sort(severity, maintain_order=True)


# --- result ----------------------------------------------------------------------------------

#: Severities of issues with dropped events.
LOSSES = ("error", "data_loss")

_FILE_HEADINGS = headings(
    "rank, world_size: of, format, version, host, devices, start_utc: start (UTC)"
)
_CONTENT_HEADINGS = headings(
    "span_ns: span, steps, events, communication, communication_ns: comm. sum, dropped"
)
_KIND_HEADINGS = headings("kind, files, events, sum_ns: sum of durations")
_ISSUE_HEADINGS = headings("severity, code: finding, count, first")
_UNCOUNTED = "not counted (--quick)"
_NOTE = "Sums of durations include nested and concurrent events in full."


@dataclass(frozen=True, eq=False, repr=False)
class Info(Result):
    """Result of :func:`traceanalyzer.info`.

    Attributes:
        files: one row per source file, and per rank of a file of several: its metadata.
            ``epoch_ns`` is the absolute time of its first event, ``device_bytes`` the memory of its
            smallest GPU.
        contents: the contents of each row of ``files``. ``communication`` counts communication
            kernels and host-run collectives (gloo, mpi), ``communication_ns`` sums their
            durations, ``dropped`` counts dropped events (findings of severity data_loss or error).
        kinds: one row per event kind over all files; ``sum_ns`` adds durations, also of nested
            events. The pseudo-kinds counter, flow and collective record count readings, points of
            arrows, and records of Flight Recorder dumps.
        issues: one row per file and finding of the parser.
        skipped: files that were not read, and why.
    """

    question = "What is in these files?"

    files: pl.DataFrame
    contents: pl.DataFrame
    kinds: pl.DataFrame
    issues: pl.DataFrame
    skipped: pl.DataFrame

    @cached_property
    def problems(self) -> pl.DataFrame:
        """What is wrong with the recordings: code, path, count, text, advice."""
        return soundness.described(self.issues)

    @property
    def recordings(self) -> pl.DataFrame:
        """The files with a timeline; all files if they are printed text."""
        timed = self.files.filter(pl.col("format") != vocabulary.PRINTED_TEXT)
        return timed if timed.height else self.files

    def view(self) -> View:
        """Build the view: files, contents, kinds, issues and skipped files."""
        return self.view_from(_verdict, _notes, _tables)


# --- verdict ---------------------------------------------------------------------------------


def _verdict(result: Info) -> str:
    """Describe files and ranks, events, dropped events and skipped files."""
    skipped = result.skipped.height
    problems = soundness.sentences(result.problems)
    more = f"{format_count(len(problems) - 1, 'more problem')} of the recording: see the notes."
    return sentences(
        *problems[:1],
        more if len(problems) > 1 else "",
        _which(result.files, result.contents["steps"].drop_nulls()),
        _how_much(result.contents),
        _records(result.kinds),
        _lost(result.issues),
        f"{format_count(skipped, 'file')} skipped." if skipped else "",
    )


def _notes(result: Info) -> Iterator[str]:
    """Yield the problems of the recordings with what to do."""
    rows = result.problems.unique("code", keep="first", maintain_order=True)
    for path, text, advice in rows.select("path", "text", "advice").iter_rows():
        yield " ".join(filter(None, (f"{path}: {text}", advice)))
    yield _NOTE


def _which(files: pl.DataFrame, steps: pl.Series) -> str:
    text = format_count(files["path"].n_unique(), "file")
    ranks = sorted(files["rank"].drop_nulls().unique())
    if ranks:
        world = files["world_size"].max()
        of = f" of {world}" if isinstance(world, int) and world > ranks[-1] else ""
        text += f" ({'rank' if len(ranks) == 1 else 'ranks'} {format_ranges(ranks)}{of})"
    if len(steps):
        low, high = int(steps.min()), int(steps.max())  # type: ignore[arg-type]
        many = f"{low}" if low == high else f"{low} to {high}"
        text += ", one step" if high == 1 else f", {many} steps"
        text += " each" if files.height > 1 else ""
    return f"{text}."


def _how_much(contents: pl.DataFrame) -> str:
    if contents.is_empty():
        return ""
    longest = contents["span_ns"].max()
    over = f" over {format_ns(longest)}" if isinstance(longest, int) else ""
    at_most = " at most" if over and contents.height > 1 else ""
    if contents["events"].null_count() == contents.height:  # only the ends of files were read
        return f"Span: {over.removeprefix(' over ')}{at_most}." if over else ""
    communication = contents["communication"].sum()
    share = f", {communication:,} of them communication" if communication else ""
    return f"{format_count(int(contents['events'].sum()), 'event')}{over}{at_most}{share}."


def _records(kinds: pl.DataFrame) -> str:
    """Describe the records of Flight Recorder dumps."""
    records = int(kinds.filter(pl.col("kind") == "collective record")["events"].sum())
    if not records:
        return ""
    return f"{format_count(records, 'collective record')}: see traceanalyzer hang."


def _lost(issues: pl.DataFrame) -> str:
    lost = issues.filter(pl.col("severity").is_in(LOSSES))
    if lost.is_empty():
        return ""
    codes = ", ".join(sorted(lost["code"].unique()))
    return f"Dropped events in {format_count(lost['path'].n_unique(), 'file')} ({codes})."


# --- tables ----------------------------------------------------------------------------------


def _tables(result: Info) -> tuple[Table, ...]:
    folder = _common_folder(result.files["path"].to_list())
    files, contents, issues, skipped = (
        frame.with_columns(file=pl.col("path").str.strip_prefix(folder))
        for frame in (result.files, result.contents, result.issues, result.skipped)
    )
    named = {"file": "file"}
    # files without counts were read in part
    uncounted = contents.height > 0 and contents["events"].null_count() == contents.height
    none = _UNCOUNTED if uncounted else "none"
    in_contents = known_columns(contents, _CONTENT_HEADINGS)
    in_contents |= {"events": "events"} if uncounted else {}
    title = f"Files in {folder}" if folder else "Files"
    tables = (
        Table(
            "files",
            title,
            files,
            named | known_columns(files, _FILE_HEADINGS),
            hide_first=("version", "host"),
        ),
        Table(
            "contents",
            "Contents",
            contents,
            named | in_contents,
            missing={"events": _UNCOUNTED} if uncounted else {},
        ),
        Table("kinds", "Events by kind", result.kinds, _KIND_HEADINGS, empty=none),
        Table(
            "issues",
            "Issues",
            issues.with_row_index("number", 1),
            {"number": "no."} | named | _ISSUE_HEADINGS,
            empty=none,
            sentences=("first",),
        ),
    )
    unread = Table("skipped", "Skipped files", skipped, named | {"reason": "reason"})
    return (*tables, unread) if skipped.height else tables


def _common_folder(paths: Sequence[str]) -> str:
    """Return the common folder with its slash; empty for a single file or none."""
    if len(paths) < 2:
        return ""
    start = commonprefix(paths)  # noqa: RUF071 - by characters, then back to a slash
    return start[: start.rfind("/") + 1]
