"""What each file is and holds, and what all of them do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.common.step_marks import step_marks
from traceanalyzer.analyzers.info.options import Options
from traceanalyzer.analyzers.info.result import LOSSES, Info
from traceanalyzer.frames import nesting
from traceanalyzer.trace import Device, Meta, Trace

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

_SEVERITIES = ("error", "data_loss", "notice", "info")


def needs(_options: Options) -> Needs:
    """Everything."""
    return Needs(frozenset(), samples=True, everything=True)


@dataclass(frozen=True)
class Part:
    """What is told of one trace: rows of the frames of :class:`Info`."""

    files: list[dict[str, Any]]
    contents: list[dict[str, Any]]
    kinds: list[pl.DataFrame]
    issues: list[dict[str, Any]]


def measure(trace: Trace, _options: Options) -> Part:
    """What one trace is and holds."""
    part = Part([], [], [], [])
    for meta, own in _by_source(trace):
        part.files.append(_file(meta, own.events))
        part.contents.append(_content(meta, own))
        part.kinds.append(_kinds(own))
        part.issues.extend({"path": meta.path, **row} for row in own.issues.drop("rank").to_dicts())
        part.issues.extend({"path": meta.path, **row} for row in _overlapping(own.events))
    return part


def combine(parts: Sequence[Part], options: Options, _base: Sequence[Part] = ()) -> Info:
    """What all traces are and hold."""
    files = [row for part in parts for row in part.files]
    contents = [row for part in parts for row in part.contents]
    issues = [row for part in parts for row in part.issues]
    return Info(
        files=pl.DataFrame(files, schema=_FILES, orient="row"),
        contents=pl.DataFrame(contents, schema=_CONTENTS, orient="row"),
        kinds=_all_kinds(pl.concat([_empty_kinds(), *(k for part in parts for k in part.kinds)])),
        issues=_worst_first(pl.DataFrame(issues, schema=_ISSUES, orient="row")),
        skipped=pl.DataFrame(list(options.skipped), schema=_SKIPPED, orient="row"),
    )


INFO = Analyzer("info", Options, needs, measure, combine, split_ranks=False)


# --- one file --------------------------------------------------------------------------------


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
    lost = trace.issues.filter(pl.col("severity").is_in(LOSSES))
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


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


# --- all files -------------------------------------------------------------------------------


def _empty_kinds() -> pl.DataFrame:
    return pl.DataFrame(schema={name: _KINDS[name] for name in ("kind", "events", "sum_ns")})


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
