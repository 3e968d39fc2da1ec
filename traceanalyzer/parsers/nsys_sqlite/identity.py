"""Who was recorded: processes and their ranks, threads, GPUs, the host, the time.

The rank of a process comes from the first of these that tells it: MPI; the communicators that NCCL
made; a thread called ``MPI Rank 3``; for a single process with work on a GPU the file's name, then
the environment nsys was started in (``RANK``, ``OMPI_COMM_WORLD_RANK``, ``PMI_RANK``,
``SLURM_PROCID``). Several such processes that nobody numbers are numbered by their devices, else in
the order of their ids, and an issue says so.
"""

import re
from dataclasses import dataclass, field, replace

import polars as pl

from traceanalyzer.parsers.nsys_sqlite import capture, host, nvtx, tables
from traceanalyzer.parsers.source import rank_from_name
from traceanalyzer.trace import Device, Meta

_MPI_THREAD = re.compile(r"^MPI Rank (\d{1,7})$")
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
#: Processes compared with one by one; more are looked up.
_FEW = 8
#: Rows of kernels looked at to see which process uses which device.
_LOOKED_AT = 20_000
#: The first event is looked for in so many first rows of each table.
_FIRST_ROWS = 10_000


@dataclass(frozen=True)
class Identity:
    """What is known about the processes of an export.

    Attributes:
        ranks: of each process that has one of its own.
        rank: of the whole export, where it is one rank's.
        world_size: number of ranks in the job, or None.
        numbered: the ranks are our own numbers: nobody told any.
        gpus: the GPU's number by process and the process's own number of it, where those differ
            from process to process.
        devices: the device of each process that uses one only.
    """

    ranks: dict[int, int] = field(default_factory=dict)
    rank: int | None = None
    world_size: int | None = None
    numbered: bool = False
    gpus: dict[tuple[int, int], int] = field(default_factory=dict)
    devices: dict[int, int] = field(default_factory=dict)

    def of(self, process: pl.Expr) -> pl.Expr:
        """The rank of each process id."""
        if len(self.ranks) > _FEW:
            return process.replace_strict(self.ranks, default=None, return_dtype=pl.Int32)
        rank = pl.lit(self.rank, dtype=pl.Int32)
        for own, told in self.ranks.items():
            rank = pl.when(process == own).then(pl.lit(told, dtype=pl.Int32)).otherwise(rank)
        return rank

    def applied(self, rows: pl.DataFrame, *, processes: bool) -> pl.DataFrame:
        """The rows with the rank of their process, without ``pid`` where it is not asked for."""
        told = self._on_gpus(rows)
        # series by series: a query copies all columns where some lie in one piece and some in many
        own = told["pid"].to_frame().with_columns(rank=self.of(pl.col("pid")))
        kept = [column for column in told if processes or column.name != "pid"]
        return pl.DataFrame([*kept, own["rank"]])

    def _on_gpus(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Devices by the GPUs' numbers, where processes number them differently.

        Synchronisation is recorded on device 0 whichever device it is of: that of its process.
        """
        if "device" not in rows.columns:
            return rows
        waits = pl.col("kind") == "cuda_sync"
        if any(self.devices.values()) and rows.select(waits.any()).item():
            own = pl.col("pid").replace_strict(self.devices, default=None, return_dtype=pl.Int32)
            device = pl.when(waits).then(pl.coalesce(own, "device")).otherwise("device")
            rows = rows.with_columns(device=device)
        if not self.gpus:
            return rows
        known = pl.DataFrame(
            [(*own, gpu) for own, gpu in self.gpus.items()],
            schema={"pid": pl.Int64, "device": pl.Int32, "gpu": pl.Int32},
            orient="row",
        )
        joined = rows.join(known, on=["pid", "device"], how="left", maintain_order="left")
        return joined.with_columns(device=pl.coalesce("gpu", "device")).drop("gpu")


def identify(export: tables.Export, path: str) -> Identity:
    """Ranks and devices of the processes of an export."""
    devices = _devices_used(export)
    gpus = _gpu_numbers(export, devices)
    only = {process: next(iter(used)) for process, used in devices.items() if len(used) == 1}
    return replace(_ranks(export, path, devices, gpus), devices=only, gpus=gpus)


def _ranks(
    export: tables.Export, path: str, devices: dict[int, set[int]], gpus: dict[tuple[int, int], int]
) -> Identity:
    if told := host.mpi_ranks(export) or _named_threads(export):
        return _told(told, max(told.values()) + 1 if len(told) > 1 else None)
    if by_nccl := nvtx.nccl_ranks(export):
        size = max(size for _, size in by_nccl.values())
        return _told({process: rank for process, (rank, _) in by_nccl.items()}, size)
    if len(devices) > 1:
        return Identity(_numbered(devices, gpus), numbered=True)
    if (rank := rank_from_name(path)) is not None:
        return Identity(rank=rank)
    return _of_environment(export)


def _told(ranks: dict[int, int], size: int | None) -> Identity:
    """Ranks that the export tells; an export of one is that rank's with all its processes."""
    if len(set(ranks.values())) == 1:
        return Identity(rank=next(iter(ranks.values())), world_size=size)
    return Identity(ranks, world_size=size)


def describe(export: tables.Export, identity: Identity, path: str, name: str) -> Meta:
    """What the export says about itself."""
    told = _pairs(export, next((t for t in tables.EXPORT if export.database.has(t)), ""))
    version, number = told.get("EXPORT_PRODUCT_VERSION"), told.get("EXPORT_SCHEMA_VERSION")
    session = export.database.read(tables.SESSION, integers=("utcEpochNs",)).drop_nulls()
    failed = capture.failure(export)
    return Meta(
        path=path,
        format=name,
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


def lanes(export: tables.Export, identity: Identity, seen: pl.DataFrame) -> pl.DataFrame:
    """``lanes``: the processes seen, then their threads that have names.

    Args:
        export: the opened export.
        identity: whose ranks to tell.
        seen: the distinct pid and tid of events.
    """
    processes = export.database.read(
        tables.PROCESSES, integers=("globalPid",), texts=("name",)
    ).select(tables.pid("globalPid"), label="name", tid=pl.lit(None, dtype=pl.Int64))
    threads = _thread_names(export).select(
        tables.pid("globalTid"), label="name", tid=tables.tid("globalTid")
    )
    known = pl.concat(
        [processes.select("pid", "tid", "label"), threads.select("pid", "tid", "label")]
    )
    ours = set(seen["pid"].drop_nulls().unique())
    rows = known.filter(pl.col("pid").is_in(ours)).unique(
        ["pid", "tid"], keep="first", maintain_order=True
    )
    return rows.sort("tid", "pid", nulls_last=False, maintain_order=True).select(
        rank=identity.of(pl.col("pid")),
        pid="pid",
        tid="tid",
        label="label",
        labels=pl.lit(None, dtype=pl.String),
        sort_index=pl.lit(None, dtype=pl.Int64),
        textual=pl.lit(value=False),
    )


def _pairs(export: tables.Export, table: str) -> dict[str, str]:
    rows = export.database.read(table, texts=("name", "value")).drop_nulls()
    return dict(zip(rows["name"], rows["value"], strict=True))


def _devices_used(export: tables.Export) -> dict[int, set[int]]:
    """Processes with work on devices, and the devices; from the first kernels, or the contexts."""
    places = pl.DataFrame(schema={"globalPid": pl.Int64, "deviceId": pl.Int64})
    for table in (tables.KERNEL, tables.MEMCPY):
        rows = export.database.read(table, integers=("globalPid", "deviceId"), first=_LOOKED_AT)
        places = pl.concat([places, rows.unique()])
    contexts = export.database.read(
        tables.CUDA_CONTEXTS, integers=("processId", "deviceId")
    ).drop_nulls()
    streams = export.database.read(tables.CUDA_STREAMS, integers=("processId",)).drop_nulls()
    found: dict[int, set[int]] = {}
    for process, device in (
        places.drop_nulls().select(tables.pid("globalPid"), "deviceId").iter_rows()
    ):
        found.setdefault(process, set()).add(device)
    for process, device in contexts.iter_rows():
        found.setdefault(process, {device})
    for process in streams["processId"].unique().sort():
        found.setdefault(process, set())
    return found


def _gpu_numbers(export: tables.Export, used: dict[int, set[int]]) -> dict[tuple[int, int], int]:
    """The GPU behind each process's own device number, where several processes are recorded."""
    rows = export.database.read(
        tables.CUDA_DEVICES, integers=("pid", "cudaId", "gpuId")
    ).drop_nulls()
    told = {(process, own): gpu for process, own, gpu in rows.iter_rows()}
    meant: dict[int, set[int]] = {}
    for (process, own), gpu in told.items():
        if process in used:
            meant.setdefault(own, set()).add(gpu)
    return told if any(len(gpus) > 1 for gpus in meant.values()) else {}


def _numbered(devices: dict[int, set[int]], gpus: dict[tuple[int, int], int]) -> dict[int, int]:
    """Processes numbered by device where each has one of its own, else in order of their ids."""
    own = {
        process: {gpus.get((process, device), device) for device in used}
        for process, used in devices.items()
    }
    single = {process: min(used) for process, used in own.items() if len(used) == 1}
    distinct = len(single) == len(own) and len(set(single.values())) == len(single)
    ordered = sorted(own, key=lambda process: (single[process] if distinct else 0, process))
    return {process: number for number, process in enumerate(ordered)}


def _thread_names(export: tables.Export) -> pl.DataFrame:
    """Names of threads; of several the one of least priority number, which is the program's."""
    rows = export.database.read(
        tables.THREAD_NAMES, integers=("nameId", "priority", "globalTid")
    ).drop_nulls(["nameId", "globalTid"])
    ordered = rows.sort("priority", maintain_order=True).unique(
        "globalTid", keep="first", maintain_order=True
    )
    names = export.named(ordered["nameId"]).cast(pl.String).alias("name")
    return ordered.select("globalTid", names)


def _named_threads(export: tables.Export) -> dict[int, int]:
    """Ranks by threads called ``MPI Rank 3``."""
    found = {}
    named = [*_thread_names(export).iter_rows(), *nvtx.thread_names(export).items()]
    for thread, name in named:
        if match := _MPI_THREAD.match(name or ""):
            found[tables.process_of(thread)] = int(match[1])
    return found


def _of_environment(export: tables.Export) -> Identity:
    """The rank that the launcher told the process in which nsys was started."""
    text = _pairs(export, tables.SYSTEM).get("DeviceEnvironment", "")
    for rank, size in zip(_RANK_VARIABLES, _SIZE_VARIABLES, strict=True):
        if (own := _variable(text, rank)) is not None:
            return Identity(rank=own, world_size=_variable(text, size))
    return Identity()


def _variable(text: str, name: str) -> int | None:
    match = re.search(rf"(?:^|;){name}=(\d{{1,7}})(?:;|$)", text)
    return int(match[1]) if match else None


def _gpus(export: tables.Export) -> tuple[Device, ...]:
    rows = export.database.read(
        tables.GPUS, integers=("id", "cuDevice", "totalMemory"), texts=("name",)
    )
    numbered = rows.select(pl.coalesce("cuDevice", "id"), "name", "totalMemory").drop_nulls(
        "cuDevice"
    )
    return tuple(
        Device(*row) for row in numbered.unique(maintain_order=True).sort("cuDevice").iter_rows()
    )


def _first_event(export: tables.Export) -> int | None:
    """The earliest start in the first rows of the tables, which are about in order of time."""
    firsts = []
    for table in (recording.table for recording in tables.RECORDINGS):
        time = "timestamp" if table == tables.GPU_METRICS else "start"
        happened = nvtx.HAPPENED if table == tables.NVTX else None
        rows = export.database.read(table, integers=(time,), where=happened, first=_FIRST_ROWS)
        firsts.append(rows[time].min())
    return min((first for first in firsts if isinstance(first, int)), default=None)
