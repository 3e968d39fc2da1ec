"""Recorded processes and their ranks, threads, GPUs, host and time; what was not captured.

The rank of a process comes from the first available of: MPI; NCCL communicators; a thread called
``MPI Rank 3``; for a single process with GPU work, the file name, then the environment in which
nsys was started (``RANK``, ``OMPI_COMM_WORLD_RANK``, ``PMI_RANK``, ``SLURM_PROCID``). Several
processes without ranks are numbered by device, or else by process id, and an issue reports it.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

import polars as pl

from traceanalyzer.parsers.nsys_sqlite import host, nvtx, tables
from traceanalyzer.parsers.source import rank_from_name
from traceanalyzer.parsers.sqlite.rows import RANK_VARIABLES, lanes_of, numbered_by_device
from traceanalyzer.trace import Device, Issue, Meta
from traceanalyzer.units import format_ns
from traceanalyzer.vocabulary import NO_GPU_WORK, NSYS

_MPI_THREAD = re.compile(r"^MPI Rank (\d{1,7})$")
#: Maximum number of processes in a chain of comparisons; more use a lookup table.
_FEW = 8
#: Number of kernels read to determine which process uses which device.
_LOOKED_AT = 20_000
#: Number of rows of each table that are searched for the first event.
_FIRST_ROWS = 10_000


@dataclass(frozen=True)
class Identity:
    """Ranks and devices of the processes of an export.

    Attributes:
        ranks: rank by process, if the export has several.
        rank: rank of the whole export, if it has only one.
        world_size: number of ranks in the job, or None.
        numbered: ranks were not recorded; processes are numbered instead.
        gpus: GPU number by process and device ordinal, if ordinals differ between processes.
        devices: device by process, for processes that use only one.
        owners: number of processes that share GPUs and are not ranks.
    """

    ranks: dict[int, int] = field(default_factory=dict)
    rank: int | None = None
    world_size: int | None = None
    numbered: bool = False
    gpus: dict[tuple[int, int], int] = field(default_factory=dict)
    devices: dict[int, int] = field(default_factory=dict)
    owners: int = 0

    def processes_of(self, ranks: Collection[int] | None) -> frozenset[int] | None:
        """Return the processes of some ranks; None for all."""
        if ranks is None:
            return None
        return frozenset(process for process, rank in self.ranks.items() if rank in ranks)

    def of(self, process: pl.Expr) -> pl.Expr:
        """Return the rank of each process id."""
        if len(self.ranks) > _FEW:
            return process.replace_strict(self.ranks, default=None, return_dtype=pl.Int32)
        rank = pl.lit(self.rank, dtype=pl.Int32)
        for pid, value in self.ranks.items():
            rank = pl.when(process == pid).then(pl.lit(value, dtype=pl.Int32)).otherwise(rank)
        return rank

    def applied(self, rows: pl.DataFrame, *, processes: bool) -> pl.DataFrame:
        """Add the rank of each row's process; drop ``pid`` unless ``processes``."""
        rows = self._on_gpus(rows)
        # series by series: a query would copy all columns if their chunks differ
        ranks = rows["pid"].to_frame().with_columns(rank=self.of(pl.col("pid")))
        kept = [column for column in rows if processes or column.name != "pid"]
        return pl.DataFrame([*kept, ranks["rank"]])

    def _on_gpus(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Replace device ordinals by GPU numbers, if ordinals differ between processes.

        Synchronisation is always recorded on device 0; it gets the device of its process.
        """
        if "device" not in rows.columns:
            return rows
        waits = pl.col("kind") == "cuda_sync"
        if any(self.devices.values()) and rows.select(waits.any()).item():
            only = pl.col("pid").replace_strict(self.devices, default=None, return_dtype=pl.Int32)
            device = pl.when(waits).then(pl.coalesce(only, "device")).otherwise("device")
            rows = rows.with_columns(device=device)
        if not self.gpus:
            return rows
        known = pl.DataFrame(
            [(*ordinal, gpu) for ordinal, gpu in self.gpus.items()],
            schema={"pid": pl.Int64, "device": pl.Int32, "gpu": pl.Int32},
            orient="row",
        )
        joined = rows.join(known, on=["pid", "device"], how="left", maintain_order="left")
        return joined.with_columns(device=pl.coalesce("gpu", "device")).drop("gpu")


def identify(export: tables.Export, path: str) -> Identity:
    """Determine ranks and devices of the processes of an export."""
    devices = _devices_used(export)
    gpus = _gpu_numbers(export, devices)
    only = {process: next(iter(used)) for process, used in devices.items() if len(used) == 1}
    used = {
        process: {gpus.get((process, device), device) for device in ordinals}
        for process, ordinals in devices.items()
    }
    return replace(_ranks(export, path, used), devices=only, gpus=gpus)


def _ranks(export: tables.Export, path: str, used: dict[int, set[int]]) -> Identity:
    if ranks := host.mpi_ranks(export) or _named_threads(export):
        return _recorded(ranks, max(ranks.values()) + 1 if len(ranks) > 1 else None)
    if by_nccl := nvtx.nccl_ranks(export):
        size = max(size for _, size in by_nccl.values())
        return _recorded({process: rank for process, (rank, _) in by_nccl.items()}, size)
    shared = len(used) > 1 and _share_a_device(export, used)
    if len(used) > 1 and not shared:
        return Identity(numbered_by_device(used), numbered=True)
    owners = len(used) if shared else 0
    if (rank := rank_from_name(path)) is not None:
        return Identity(rank=rank, owners=owners)
    return replace(_of_environment(export), owners=owners)


def _recorded(ranks: dict[int, int], size: int | None) -> Identity:
    """Return recorded ranks; with a single rank, all processes belong to it."""
    if len(set(ranks.values())) == 1:
        return Identity(rank=next(iter(ranks.values())), world_size=size)
    return Identity(ranks, world_size=size)


def describe(export: tables.Export, identity: Identity, path: str) -> Meta:
    """Return the metadata of the export."""
    values = _pairs(export, next((t for t in tables.EXPORT if export.database.has(t)), ""))
    version, number = values.get("EXPORT_PRODUCT_VERSION"), values.get("EXPORT_SCHEMA_VERSION")
    session = export.read(tables.SESSION, "utcEpochNs").drop_nulls()
    failed = failure(export)
    return Meta(
        path=path,
        format=NSYS,
        version=f"{version} (schema {number})" if version else "before 2022",
        epoch_ns=session.row(0)[0] if session.height else None,
        start_ns=_first_event(export),
        rank=identity.rank,
        world_size=identity.world_size,
        devices=_gpus(export),
        host=_pairs(export, tables.SYSTEM).get("Hostname"),
        weight_unit="samples" if export.database.has(tables.SAMPLES) else None,
        no_gpu_work=failed.text if failed else None,
    )


def lanes(export: tables.Export, identity: Identity, used: Collection[int]) -> pl.DataFrame:
    """Build ``lanes``: the processes with events, then their named threads.

    Args:
        export: the open export.
        identity: ranks of the processes.
        used: processes of events.
    """
    processes = export.read(tables.PROCESSES, "globalPid", texts=("name",)).select(
        tables.pid("globalPid"), tid=pl.lit(None, dtype=pl.Int64), label="name"
    )
    threads = _thread_names(export).select(
        tables.pid("globalTid"), tables.tid("globalTid"), label="name"
    )
    known = pl.concat([processes, threads]).filter(pl.col("pid").is_in(used))
    return lanes_of(known.with_columns(rank=identity.of(pl.col("pid"))))


def _pairs(export: tables.Export, table: str) -> dict[str, str]:
    rows = export.database.read(table, texts=("name", "value")).drop_nulls()
    return dict(zip(rows["name"], rows["value"], strict=True))


def _devices_used(export: tables.Export) -> dict[int, set[int]]:
    """Return the devices used by each process, from the first kernels, or else the contexts."""
    places = pl.DataFrame(schema={"globalPid": pl.Int64, "deviceId": pl.Int64})
    for table in (tables.KERNEL, tables.MEMCPY):
        rows = export.read(table, "globalPid", "deviceId", first=_LOOKED_AT)
        places = pl.concat([places, rows.unique()])
    contexts = export.read(tables.CUDA_CONTEXTS, "processId", "deviceId").drop_nulls()
    streams = export.read(tables.CUDA_STREAMS, "processId").drop_nulls()
    used: dict[int, set[int]] = {}
    known = places.drop_nulls().select(tables.pid("globalPid"), "deviceId")
    for process, device in known.iter_rows():
        used.setdefault(process, set()).add(device)
    for process, device in contexts.iter_rows():
        used.setdefault(process, {device})
    for process in streams["processId"].unique().sort():
        used.setdefault(process, set())
    return used


def _gpu_numbers(export: tables.Export, used: dict[int, set[int]]) -> dict[tuple[int, int], int]:
    """Return the GPU of each (process, device ordinal), if ordinals differ between processes."""
    rows = export.read(tables.CUDA_DEVICES, "pid", "cudaId", "gpuId").drop_nulls()
    gpus = {(process, ordinal): gpu for process, ordinal, gpu in rows.iter_rows()}
    by_ordinal: dict[int, set[int]] = {}
    for (process, ordinal), gpu in gpus.items():
        if process in used:
            by_ordinal.setdefault(ordinal, set()).add(gpu)
    return gpus if any(len(numbers) > 1 for numbers in by_ordinal.values()) else {}


def _share_a_device(export: tables.Export, used: dict[int, set[int]]) -> bool:
    """Whether several processes use one GPU: they are not the ranks of a job, one per GPU.

    Ordinals of devices are those of a process: they are of one GPU if the export lists the GPU of
    each, or has only one.
    """
    listed = export.read(tables.CUDA_DEVICES, "pid").drop_nulls()
    known = set(used) <= set(listed["pid"]) or len(_gpus(export)) == 1
    return known and sum(map(len, used.values())) > len(set[int]().union(*used.values()))


def _thread_names(export: tables.Export) -> pl.DataFrame:
    """Return thread names; of several, the one with the lowest priority number, the program's."""
    rows = export.read(tables.THREAD_NAMES, "nameId", "priority", "globalTid")
    sorted_ = rows.drop_nulls(["nameId", "globalTid"]).sort("priority", maintain_order=True)
    ordered = sorted_.unique("globalTid", keep="first", maintain_order=True)
    names = export.named(ordered["nameId"]).cast(pl.String).alias("name")
    return ordered.select("globalTid", names)


def _named_threads(export: tables.Export) -> dict[int, int]:
    """Return ranks by process, from threads called ``MPI Rank 3``."""
    ranks = {}
    for thread, name in [*_thread_names(export).iter_rows(), *nvtx.thread_names(export).items()]:
        if match := _MPI_THREAD.match(name or ""):
            ranks[tables.process_of(thread)] = int(match[1])
    return ranks


def _of_environment(export: tables.Export) -> Identity:
    """Return the rank in the environment in which nsys was started."""
    text = _pairs(export, tables.SYSTEM).get("DeviceEnvironment", "")
    for rank, size in RANK_VARIABLES:
        if (value := _variable(text, rank)) is not None:
            return Identity(rank=value, world_size=_variable(text, size))
    return Identity()


def _variable(text: str, name: str) -> int | None:
    match = re.search(rf"(?:^|;){name}=(\d{{1,7}})(?:;|$)", text)
    return int(match[1]) if match else None


def _gpus(export: tables.Export) -> tuple[Device, ...]:
    number = ("cuDevice", "id", "deviceId")  # before 2022: deviceId
    rows = export.read(tables.GPUS, *number, "totalMemory", texts=("name",))
    numbered = rows.select(pl.coalesce(number), "name", "totalMemory").drop_nulls("cuDevice")
    distinct = numbered.unique(maintain_order=True).sort("cuDevice")
    return tuple(Device(*row) for row in distinct.iter_rows())


def _first_event(export: tables.Export) -> int | None:
    """Return the earliest start in the first rows of the tables, which are roughly ordered."""
    firsts = []
    for table in (recording.table for recording in tables.RECORDINGS):
        time = "timestamp" if table == tables.GPU_METRICS else "start"
        happened = nvtx.HAPPENED if table == tables.NVTX else None
        rows = export.database.read(table, integers=(time,), where=happened, first=_FIRST_ROWS)
        firsts.append(rows[time].min())
    return min((first for first in firsts if isinstance(first, int)), default=None)


_WARNING, _ERROR = 2, 3
_MOST_MESSAGES = 20
_LONGEST_MESSAGE = 200

#: Value in ``META_DATA_CAPTURE`` by option of ``nsys profile``.
_EVENT_TYPES = {"--trace=cuda": "Cuda", "--trace=nvtx": "NvtxEvents", "--trace=osrt": "OSRuntime"}
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
    read = export.database.read
    if any(read(table, integers=("start",), first=1).height for table in _DEVICE_WORK):
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


def issues_of(export: tables.Export) -> Iterator[Issue]:
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
    columns = ("start", "nameId", "returnValue")
    rows = export.read(tables.RUNTIME, *columns, shape=lambda piece: piece.filter(failed))
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
