"""How nsys recorded: requested events, messages of nsys, reasons for missing GPU work."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from traceanalyzer.parsers.nsys_sqlite import tables
from traceanalyzer.parsers.sqlite.rows import Finding
from traceanalyzer.vocabulary import NO_GPU_WORK

_WARNING, _ERROR = 2, 3
_MOST_MESSAGES = 20
_LONGEST_MESSAGE = 200

#: Value in ``META_DATA_CAPTURE`` by option of ``nsys profile``.
_EVENT_TYPES = {
    "--trace=cuda": "Cuda",
    "--trace=nvtx": "NvtxEvents",
    "--trace=osrt": "OSRuntime",
}
_DEVICE_WORK = (tables.KERNEL, tables.GRAPH_TRACE, tables.MEMCPY, tables.MEMSET)
_ABOUT_CUDA = r"(?i)cuda|cupti|\bgpus?\b|driver"
#: nsys writes this message whenever CUDA events are missing, whatever the reason.
_NO_EVENTS = r"(?i)^(?:no|not all) cuda events"
#: Pattern of a message of nsys, advice.
_REMEDIES = (
    (
        r"(?i)driver.*(?:not supported|newer|too new)|unsupported driver",
        "use a release of Nsight Systems that supports the installed driver",
    ),
    (
        r"(?i)INVALID_DEVICE|NOT_COMPATIBLE|NOT_SUPPORTED|LEGACY_PROFILER",
        "this nsys release cannot trace this GPU or its mode (MIG, vGPU): use a newer release",
    ),
    (
        r"(?i)MULTIPLE_SUBSCRIBERS|another (?:tool|profiler)",
        "another profiler (torch.profiler, DCGM) uses CUPTI: run nsys without it",
    ),
    (
        r"(?i)PRIVILEGES|permission",
        "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
    ),
)
_LOST_BUFFERS = "let the program exit normally, so that nsys can write its buffers"
_NO_CUDA = "check that the profiled process uses CUDA"


@dataclass(frozen=True)
class Failure:
    """The reason why an export has no GPU work although it was requested.

    Attributes:
        severity: ``error`` if nsys reports one, ``data_loss`` if CUDA calls were recorded, else
            ``notice``: the program may not use CUDA.
        text: reason and advice.
    """

    severity: str
    text: str


def failure(export: tables.Export) -> Failure | None:
    """Return the reason for missing GPU work; None if there is some, or if it was not requested."""
    if any(_has_rows(export, table) for table in _DEVICE_WORK):
        return None
    reports = _reports(export).filter(pl.col("text").str.contains(_ABOUT_CUDA))
    specific = reports.filter(~pl.col("text").str.contains(_NO_EVENTS))
    ordered = specific.sort("severity", descending=True, maintain_order=True)
    failed = bool((reports["severity"] == _ERROR).any())
    if not failed and _EVENT_TYPES["--trace=cuda"] not in _event_types(export):
        return None
    called = _has_rows(export, tables.RUNTIME)
    severity = "error" if failed else "data_loss" if called else "notice"
    text = "CUDA was traced (--trace=cuda), but GPU work is missing"
    remedy = _LOST_BUFFERS if called else _NO_CUDA
    for message in ordered["text"].head(1):
        known = (advice for pattern, advice in _REMEDIES if re.search(pattern, message))
        remedy = next(known, remedy)
        text += f': nsys reports "{message.rstrip(".")}"'
    return Failure(severity, f"{text}; {remedy}")


def findings(export: tables.Export) -> Iterator[Finding]:
    """Yield messages of nsys, the reason for missing GPU work, and what was not requested.

    A table that is missing although its option was on, or although another table of the same option
    exists, had nothing to record.
    """
    for severity, text, count in _reports(export).head(_MOST_MESSAGES).iter_rows():
        yield "notice" if severity == _ERROR else "info", "nsys-message", count, text
    if reason := failure(export):
        yield reason.severity, NO_GPU_WORK, 1, reason.text
    traced = _event_types(export)
    done = {option for option, name in _EVENT_TYPES.items() if name in traced}
    done |= {r.option for r in tables.RECORDINGS if export.database.has(r.table)}
    for recording in tables.RECORDINGS:
        if recording.option not in done:
            done.add(recording.option)
            yield "info", "not-recorded", 1, f"{recording.what}: nsys profile {recording.option}"


def _reports(export: tables.Export) -> pl.DataFrame:
    """Return warnings and errors of nsys: severity, text (one line), count."""
    rows = export.database.read(tables.DIAGNOSTICS, integers=("severity",), texts=("text",))
    lines = pl.col("text").str.replace_all(r"\s+", " ").str.strip_chars()
    reports = rows.drop_nulls().filter(pl.col("severity").is_in((_WARNING, _ERROR)))
    cut = reports.with_columns(lines.str.slice(0, _LONGEST_MESSAGE))
    return cut.group_by("severity", "text", maintain_order=True).agg(count=pl.len())


def _event_types(export: tables.Export) -> set[str]:
    """Return the requested event types in ``META_DATA_CAPTURE``."""
    rows = export.database.read(tables.CAPTURE, texts=("name", "value")).drop_nulls()
    return set(rows.filter(pl.col("name") == "CAPTURE_EVENT_TYPE")["value"])


def _has_rows(export: tables.Export, table: str) -> bool:
    return export.database.read(table, integers=("start",), first=1).height > 0
