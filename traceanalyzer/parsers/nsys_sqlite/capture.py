"""How nsys recorded: requested events, messages of nsys, reasons for missing GPU work."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import polars as pl

from traceanalyzer.parsers.nsys_sqlite import host, tables
from traceanalyzer.parsers.sqlite.rows import Finding
from traceanalyzer.units import format_ns
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
_UPDATE = "update the GPU driver and Nsight Systems, and stop other profilers that use CUPTI"
_ON_WSL = "record on Linux without WSL2, or update the Windows driver and Nsight Systems"
_WSL = r"(?i)microsoft|wsl"
_SYSTEM_NAMES = ("OsDescription", "SoftwareReleaseVersion", "KernelVersion", "OperatingSystem")
#: Calls that launch device work.
_LAUNCHING = r"(?i)launch|memcpy|memset"
#: Synchronisation that is recorded up to this share of the calls shows that buffers were written.
_TO_THE_END = 0.9

#: Errors after which a CUDA context is unusable: the program failed. Others are answers to queries
#: (600 not ready, 1 of a pointer that CUDA does not know) or handled by the program (2, memory).
_FATAL = {
    214: "uncorrectable ECC error",
    220: "uncorrectable NVLink error",
    226: "contained GPU error",
    700: "illegal memory access",
    702: "timeout of a kernel",
    710: "failed assertion in a kernel",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "failed kernel",
    999: "unknown error",
}
_TRACE_FORKS = (
    "if the others are ranks, record processes that fork starts: nsys profile "
    "--trace-fork-before-exec=true"
)
_FIND_FAILURE = "find the failing kernel with compute-sanitizer, correct it, and record again"


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
    calls = _calls(export)
    launched = calls.filter(pl.col("name").str.contains(_LAUNCHING)).height > 0
    severity = "error" if failed else "data_loss" if launched else "notice"
    text = "CUDA was traced (--trace=cuda), but GPU work is missing"
    remedy = _NO_CUDA if calls.is_empty() else _LOST_BUFFERS
    if failed_calls(export):
        text, remedy = f"{text}: the program failed", _FIND_FAILURE
    elif calls.height and not launched:
        text = "the program made CUDA calls, but launched no kernel, copy or memset"
        remedy = "record the part of the program that uses the GPU"
    elif _has_all_synchronisation(export, calls):
        text += ", although synchronisation is recorded to the end"
        remedy = _ON_WSL if re.search(_WSL, _system(export)) else _UPDATE
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


def failed_calls(export: tables.Export) -> tuple[int, str] | None:
    """Return how many calls returned that the program failed, and the first; None if none did."""
    if "returnValue" not in export.database.tables.get(tables.RUNTIME, ()):
        return None
    failed = pl.col("returnValue").is_in(list(_FATAL))
    rows = export.database.read(
        tables.RUNTIME,
        integers=("start", "nameId", "returnValue"),
        shape=lambda piece: piece.filter(failed),
    )
    if rows.is_empty():
        return None
    start, name, code = rows.sort("start", nulls_last=True).row(0)
    call = host.call_name(export.texts(rows["nameId"]).get(name) or "a CUDA call")
    at = "" if start is None else f" at {format_ns(start)}"
    text = f"the program failed: {call} returned {code} ({_FATAL[code]}){at}"
    return rows.height, f"{text}; {_FIND_FAILURE}"


def untraced_processes(export: tables.Export, using: Collection[int]) -> tuple[int, str] | None:
    """Return how many ranks of the job may not be traced, and why; None if there is no sign of it.

    One process communicates, and as many processes as the machine has GPUs have its name. Processes
    that are started with fork are traced only on request.

    Args:
        export: the open export.
        using: processes that use a device.
    """
    rows = export.database.read(tables.PROCESSES, integers=("globalPid",), texts=("name",))
    known = rows.select(tables.pid("globalPid"), "name").drop_nulls().unique()
    working = known.filter(pl.col("pid").is_in(list(using)))
    siblings = known.filter(pl.col("name").is_in(working["name"].implode())).height
    gpus = export.database.read(tables.GPUS, texts=("name",)).height
    if working.height != 1 or not 1 < siblings == gpus:
        return None
    named = "\"value\" LIKE 'nccl%Kernel%'"
    if export.database.read(tables.STRINGS, texts=("value",), where=named).is_empty():
        return None
    text = f"only 1 of {siblings} processes named {working['name'][0]} has GPU work"
    return siblings - 1, f"{text}, on a machine with {gpus} GPUs; {_TRACE_FORKS}"


def _calls(export: tables.Export) -> pl.DataFrame:
    """Return the distinct CUDA calls: name, first and last start."""
    rows = export.database.read(tables.RUNTIME, integers=("start", "nameId"))
    calls = rows.group_by("nameId").agg(first=pl.col("start").min(), last=pl.col("start").max())
    texts = export.texts(calls["nameId"])
    names = [texts.get(number) or "" for number in calls["nameId"]]
    return calls.select("first", "last", name=pl.Series(names, dtype=pl.String))


def _has_all_synchronisation(export: tables.Export, calls: pl.DataFrame) -> bool:
    """Whether synchronisation on the device is recorded until the last CUDA calls."""
    rows = export.database.read(tables.SYNCHRONIZATION, integers=("start",))
    begin, end = calls.select(pl.col("first").min(), pl.col("last").max()).row(0)
    last = rows["start"].max()
    return isinstance(last, int) and last - begin >= _TO_THE_END * (end - begin)


def _system(export: tables.Export) -> str:
    """Return the descriptions of the operating system."""
    rows = export.database.read(tables.SYSTEM, texts=("name", "value")).drop_nulls()
    return " ".join(rows.filter(pl.col("name").is_in(_SYSTEM_NAMES))["value"])


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
