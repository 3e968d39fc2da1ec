"""What is in these files: format, rank, time, events by kind, communication, what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.step_marks import step_marks
from traceanalyzer.frames import nesting
from traceanalyzer.result import Result, Table
from traceanalyzer.trace import Device, Meta, Trace
from traceanalyzer.units import format_ns

_FILES: dict[str, Any] = {
    "path": pl.String,
    "format": pl.String,
    "version": pl.String,
    "rank": pl.Int32,
    "world_size": pl.Int32,
    "host": pl.String,
    "devices": pl.String,
    "start_utc": pl.String,
    "epoch_ns": pl.Int64,
}
_CONTENTS: dict[str, Any] = {
    "path": pl.String,
    "rank": pl.Int32,
    "span_ns": pl.Int64,
    "steps": pl.Int64,
    "events": pl.Int64,
    "communication": pl.Int64,
    "communication_ns": pl.Int64,
    "lost": pl.Int64,
}
_KINDS: dict[str, Any] = {
    "kind": pl.String,
    "files": pl.Int64,
    "events": pl.Int64,
    "sum_ns": pl.Int64,
}
_ISSUES: dict[str, Any] = {
    "path": pl.String,
    "severity": pl.String,
    "code": pl.String,
    "count": pl.Int64,
    "first": pl.String,
}
_SKIPPED: dict[str, Any] = {"path": pl.String, "reason": pl.String}

_FILES_SHOWN = {
    "file": "file",
    "rank": "rank",
    "world_size": "of",
    "format": "format",
    "version": "version",
    "host": "host",
    "devices": "devices",
    "start_utc": "start (UTC)",
}
_CONTENTS_SHOWN = {
    "file": "file",
    "span_ns": "span",
    "steps": "steps",
    "events": "events",
    "communication": "communication",
    "communication_ns": "comm. sum",
    "lost": "lost",
}
_KINDS_SHOWN = {"kind": "kind", "files": "files", "events": "events", "sum_ns": "sum of durations"}
_ISSUES_SHOWN = {
    "file": "file",
    "severity": "severity",
    "code": "finding",
    "count": "count",
    "first": "first",
}

_LOSSES = ("error", "data_loss")
_SEVERITIES = ("error", "data_loss", "notice", "info")


@dataclass(frozen=True, eq=False, repr=False)
class Info(Result):
    """What :func:`info` found.

    Attributes:
        files: a row a source file: what it says about itself. ``epoch_ns`` is the absolute time of
            its first event.
        contents: a row a source file: how much is in it. ``communication`` counts communication
            kernels and host-run collectives (gloo, mpi), ``communication_ns`` sums their
            durations, ``lost`` counts what findings of severity data_loss or error lost.
        kinds: a row an event kind over all files; ``sum_ns`` adds up durations, nested ones too.
            The pseudo-kinds counter and flow count readings and arrow points.
        issues: what was odd or lost, a row a file and finding.
        skipped: files that were not read, and why.
    """

    files: pl.DataFrame
    contents: pl.DataFrame
    kinds: pl.DataFrame
    issues: pl.DataFrame
    skipped: pl.DataFrame

    @property
    def title(self) -> str:
        """The question."""
        return "What is in these files?"

    @property
    def verdict(self) -> str:
        """One sentence on each: the files and ranks, the events, the losses, the skipped."""
        sentences = [
            _which(self.files, self.contents["steps"].drop_nulls()),
            _how_much(self.contents),
            _lost(self.issues),
        ]
        if self.skipped.height:
            sentences.append(f"{_counted(self.skipped.height, 'file')} skipped.")
        return " ".join(sentence for sentence in sentences if sentence)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Files, contents, kinds and issues; skipped files where there are any."""
        folder = _common_folder(self.files["path"].to_list())
        title = f"Files in {folder}" if folder else "Files"
        tables = [
            Table("files", title, self.files, _told(self.files, _FILES_SHOWN)),
            Table("contents", "Contents", self.contents, _told(self.contents, _CONTENTS_SHOWN)),
            Table("kinds", "Events by kind", self.kinds, _KINDS_SHOWN),
            Table("issues", "Odd or lost", self.issues, _ISSUES_SHOWN),
        ]
        if self.skipped.height:
            shown = {"file": "file", "reason": "why"}
            tables.append(Table("skipped", "Skipped files", self.skipped, shown))
        return tuple(replace(t, frame=_with_file(t.frame, folder)) for t in tables)

    @property
    def notes(self) -> tuple[str, ...]:
        """How the sums are to be read."""
        return ("A sum of durations counts nested and concurrent events each in full.",)


@dataclass(frozen=True)
class Part:
    """What is told of one trace: rows of the frames of :class:`Info`."""

    files: list[dict[str, Any]]
    contents: list[dict[str, Any]]
    kinds: list[pl.DataFrame]
    issues: list[dict[str, Any]]


def info(traces: Iterable[Trace], skipped: Sequence[tuple[str, str]] = ()) -> Info:
    """What each trace is and holds.

    Traces are looked at one after another and not kept, so a generator costs the memory of the
    largest file only.

    Args:
        traces: traces read with all their kinds.
        skipped: (path, reason) of files that were not read.
    """
    return combine([look(trace) for trace in traces], skipped)


def look(trace: Trace) -> Part:
    """What one trace is and holds."""
    part = Part([], [], [], [])
    for meta, own in _by_source(trace):
        part.files.append(_file(meta, own.events))
        part.contents.append(_content(meta, own))
        part.kinds.append(_kinds(own))
        part.issues.extend({"path": meta.path, **row} for row in own.issues.drop("rank").to_dicts())
        part.issues.extend({"path": meta.path, **row} for row in _overlapping(own.events))
    return part


def combine(parts: Sequence[Part], skipped: Sequence[tuple[str, str]] = ()) -> Info:
    """What all traces are and hold."""
    files = [row for part in parts for row in part.files]
    contents = [row for part in parts for row in part.contents]
    issues = [row for part in parts for row in part.issues]
    return Info(
        files=pl.DataFrame(files, schema=_FILES, orient="row"),
        contents=pl.DataFrame(contents, schema=_CONTENTS, orient="row"),
        kinds=_all_kinds(pl.concat([_empty_kinds(), *(k for part in parts for k in part.kinds)])),
        issues=_worst_first(pl.DataFrame(issues, schema=_ISSUES, orient="row")),
        skipped=pl.DataFrame(list(skipped), schema=_SKIPPED, orient="row"),
    )


def _by_source(trace: Trace) -> Iterator[tuple[Meta, Trace]]:
    """A trace of several joined ranks as one trace a rank again."""
    if len(trace.sources) == 1:
        yield trace.meta, trace
        return
    for meta in trace.sources:
        own = pl.col("rank").eq_missing(pl.lit(meta.rank, dtype=pl.Int32))
        part = trace.select(own, own)
        yield meta, Trace(**{**vars(part), "issues": trace.issues.filter(own)})


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
        "start_utc": _utc(epoch),
        "epoch_ns": epoch,
    }


def _content(meta: Meta, trace: Trace) -> dict[str, Any]:
    events = trace.events
    start = _whole(events["ts"].min())
    weight = pl.col("weight") if meta.weight_unit == "ns" else pl.lit(0.0)  # how long a sample is
    length = pl.coalesce("dur", weight.round().cast(pl.Int64, strict=False), 0)
    end = _whole(events.select((pl.col("ts") + length).max()).item())
    communication = events.filter(_is_communication(events["name"]))
    lost = trace.issues.filter(pl.col("severity").is_in(_LOSSES))
    return {
        "path": meta.path,
        "rank": meta.rank,
        "span_ns": None if start is None or end is None else end - start,
        "steps": step_marks(trace)["step"].n_unique() or None,
        "events": events.height,
        "communication": communication.height,
        "communication_ns": communication["dur"].sum(),
        "lost": lost["count"].sum(),
    }


def _overlapping(events: pl.DataFrame) -> list[dict[str, Any]]:
    """A finding when host slices of a thread cross, so that neither lies in the other."""
    # a thread leaves a core whatever it is doing; async slices overlap by nature
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
    """Communication kernels, and the host events that run a collective themselves."""
    distinct = names.drop_nulls().unique().cast(pl.String)
    kernels = distinct.filter(distinct.str.contains(vocabulary.COMMUNICATION_PATTERN))
    on_host = [n for n in distinct if n.startswith(vocabulary.HOST_COLLECTIVE_PREFIXES)]
    name = pl.col("name").cast(pl.String)
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


# --- all files -------------------------------------------------------------------------------


def _empty_kinds() -> pl.DataFrame:
    return pl.DataFrame(schema={name: _KINDS[name] for name in ("kind", "events", "sum_ns")})


def _kinds(trace: Trace) -> pl.DataFrame:
    by_kind = trace.events.group_by(pl.col("kind").cast(pl.String)).agg(
        events=pl.len().cast(pl.Int64),
        sum_ns=pl.when(pl.col("dur").is_not_null().any()).then(pl.col("dur").sum()),
    )
    rows = [
        {"kind": kind, "events": frame.height, "sum_ns": None}
        for kind, frame in (("counter", trace.counters), ("flow", trace.flows))
        if frame.height
    ]
    return pl.concat([by_kind, pl.DataFrame(rows, schema=by_kind.schema, orient="row")])


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


# --- what is shown --------------------------------------------------------------------------


def _told(frame: pl.DataFrame, shown: Mapping[str, str]) -> dict[str, str]:
    """The columns in which at least one file says something."""
    empty = {name for name in frame.columns if frame[name].null_count() == frame.height}
    return {name: label for name, label in shown.items() if name not in empty}


def _common_folder(paths: Sequence[str]) -> str:
    """The folder that all files lie in, with its slash; empty for a single file or none."""
    if len(paths) < 2:
        return ""
    start = commonprefix(paths)  # noqa: RUF071 - by characters, then back to a slash
    return start[: start.rfind("/") + 1]


def _with_file(frame: pl.DataFrame, folder: str) -> pl.DataFrame:
    """Paths as short names, where the frame has any."""
    if "path" not in frame.columns:
        return frame
    return frame.with_columns(file=pl.col("path").str.strip_prefix(folder))


# --- words -----------------------------------------------------------------------------------


def _which(files: pl.DataFrame, steps: pl.Series) -> str:
    text = _counted(files.height, "file")
    ranks = sorted(files["rank"].drop_nulls().unique())
    if ranks:
        world = _whole(files["world_size"].max())
        of = f" of {world}" if world else ""
        text += f" of {'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}{of}"
    if len(steps):
        low, high = _whole(steps.min()), _whole(steps.max())
        many = f"{low}" if low == high else f"{low} to {high}"
        text += ", one step" if high == 1 else f", {many} steps"
        text += " each" if files.height > 1 else ""
    return f"{text}."


def _how_much(contents: pl.DataFrame) -> str:
    if contents.is_empty():
        return ""
    longest = _whole(contents["span_ns"].max())
    over = "" if longest is None else f" over {format_ns(longest)}"
    at_most = " at most" if over and contents.height > 1 else ""
    communication = contents["communication"].sum()
    share = f", {communication:,} of them communication" if communication else ""
    return f"{contents['events'].sum():,} events{over}{at_most}{share}."


def _lost(issues: pl.DataFrame) -> str:
    lost = issues.filter(pl.col("severity").is_in(_LOSSES))
    if lost.is_empty():
        return ""
    codes = ", ".join(sorted(lost["code"].unique()))
    return f"{_counted(lost['path'].n_unique(), 'file')} lost events ({codes})."


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ranges(numbers: Sequence[int]) -> str:
    """Sorted whole numbers with runs joined: ``0-3, 6``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
