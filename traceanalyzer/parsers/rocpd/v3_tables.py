"""The tables of rocprofv3's databases, and the joins that their readers share.

Every table has the file's uuid in its name (``rocpd_region_0000abcd``), and a merged database has
one set of tables per process. Views without the uuid would join them; they are never used, so the
tables are found by name and concatenated. Rows refer to each other by ``id`` within one ``guid``.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.sqlite.database import Database
from traceanalyzer.parsers.sqlite.rows import DatabaseReader
from traceanalyzer.schema import MAX_RANKS

DISPATCH, COPY, REGION = "rocpd_kernel_dispatch", "rocpd_memory_copy", "rocpd_region"
ALLOCATE, COUNTER, SAMPLE = "rocpd_memory_allocate", "rocpd_pmc_event", "rocpd_sample"
EVENT, ARGUMENT, STRING, METADATA = "rocpd_event", "rocpd_arg", "rocpd_string", "rocpd_metadata"
SYMBOL, AGENT, NODE = "rocpd_info_kernel_symbol", "rocpd_info_agent", "rocpd_info_node"
PROCESS, THREAD, PMC = "rocpd_info_process", "rocpd_info_thread", "rocpd_info_pmc"
TRACK, STREAM, QUEUE = "rocpd_track", "rocpd_info_stream", "rocpd_info_queue"

#: Required columns by table.
REQUIRED: dict[str, tuple[str, ...]] = {
    DISPATCH: ("id", "pid", "agent_id", "kernel_id", "start", "end"),
    COPY: ("id", "pid", "start", "end", "name_id", "size"),
    REGION: ("id", "pid", "tid", "start", "end", "name_id"),
    ALLOCATE: ("id", "pid", "type", "start", "size"),
    COUNTER: ("event_id", "pmc_id", "value"),
    SAMPLE: ("timestamp",),
    EVENT: ("id", "stack_id"),
    ARGUMENT: ("event_id", "name", "value"),
    STRING: ("id", "string"),
    METADATA: ("tag", "value"),
    SYMBOL: ("id", "kernel_name"),
    AGENT: ("id", "type"),
    NODE: ("id",),
    PROCESS: ("id", "pid"),
    THREAD: ("id", "tid"),
    PMC: ("id", "name"),
    TRACK: ("id",),
}
#: Tables that identify the format.
IDENTIFYING = (DISPATCH, REGION, COPY, PROCESS)
#: Tables without events.
DESCRIBING = (STREAM, QUEUE, "rocpd_info_code_object")

#: Names of agents that do not name a model.
_NO_MODEL = r"^[CG]PU_Agent$"
#: The uuid behind a table's name, with or without an underscore.
_UUID = re.compile(r"_?(?:[0-9a-fA-F]{4,}(?:[_-][0-9a-fA-F]{4,})*)?")
_ID = ["guid", "id"]
_MOST_GPUS = 1 << 16
#: Tables without which rows have no name or place.
ESSENTIAL = ("rocpd_string", "rocpd_info_process", "rocpd_info_agent", "rocpd_info_kernel_symbol")
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def logical_name(table: str) -> str | None:
    """Return the name of a table without its uuid, or None for an unknown table."""
    matches = (
        name
        for name in (*REQUIRED, *DESCRIBING)
        if table.startswith(name) and _UUID.fullmatch(table, len(name))
    )
    return max(matches, key=len, default=None)


@dataclass
class Tables:
    """The tables of an open database by their names without uuid.

    Attributes:
        reading: the database and the selection.
        places: the tables of each name.
    """

    reading: DatabaseReader
    places: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in sorted(self.reading.database.tables):
            if name := logical_name(table):
                self.places.setdefault(name, []).append(table)

    @property
    def database(self) -> Database:
        """The open file."""
        return self.reading.database

    def has(self, *names: str) -> bool:
        """Whether any of the tables exists."""
        return any(name in self.places for name in names)

    def read(
        self,
        name: str,
        *,
        integers: Sequence[str] = (),
        texts: Sequence[str] = (),
        reals: Sequence[str] = (),
        where: str | None = None,
    ) -> pl.DataFrame:
        """Read columns of all tables of a name, with ``guid``."""
        parts = [
            self.database.read(
                table, integers=integers, texts=("guid", *texts), reals=reals, where=where
            ).with_columns(pl.col("guid").fill_null(table))
            # a name that no table has: no rows
            for table in self.places.get(name, ("",))
        ]
        return pl.concat(parts)

    def described(
        self, name: str, *, integers: Sequence[str] = (), texts: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Read a table that rows refer to: one row per (guid, id)."""
        rows = self.read(name, integers=("id", *integers), texts=texts).drop_nulls("id")
        return rows.unique(_ID, keep="first", maintain_order=True)

    def joined(self, rows: pl.DataFrame, key: str, table: pl.DataFrame) -> pl.DataFrame:
        """Add the columns of a table that ``key`` refers to."""
        return rows.join(
            table, left_on=["guid", key], right_on=_ID, how="left", maintain_order="left"
        )

    def strings(self) -> pl.DataFrame:
        """Return all strings."""
        return self.described(STRING, texts=("string",))

    def processes(self) -> pl.DataFrame:
        """Return the processes: guid, id, real_pid, owner (number in the file), ..."""
        rows = self.described(PROCESS, integers=("pid", "nid"), texts=("command", "environment"))
        return rows.rename({"pid": "real_pid"}).with_row_index("owner").cast({"owner": pl.Int64})

    def threads(self) -> pl.DataFrame:
        """Return the threads: guid, id, real_tid, process (id), label."""
        rows = self.described(THREAD, integers=("tid", "pid"), texts=("name",))
        return rows.rename({"tid": "real_tid", "pid": "process", "name": "label"})

    def agents(self) -> pl.DataFrame:
        """Return CPUs and GPUs: guid, id, device (number of a GPU, null for a CPU), label."""
        rows = self.described(
            AGENT, integers=("type_index", "nid"), texts=("type", "name", "product_name")
        )
        gpu = pl.col("type") == "GPU"
        place = gpu.cast(pl.Int64).cum_sum().over("guid", "nid") - 1
        recorded = pl.when(pl.col("type_index").is_between(0, _MOST_GPUS)).then("type_index")
        number = pl.coalesce(recorded, place).cast(pl.Int32)
        name = pl.when(~pl.col("name").str.contains(_NO_MODEL)).then("name")
        return rows.select(
            *_ID, device=pl.when(gpu).then(number), label=pl.coalesce("product_name", name)
        )

    def on_gpu(self, rows: pl.DataFrame, key: str) -> pl.DataFrame:
        """Add the ``device`` of an agent; its id in a file without descriptions of agents."""
        if not self.has(AGENT):
            return rows.with_columns(device=pl.col(key).cast(pl.Int32, strict=False))
        return self.joined(rows, key, self.agents().select(*_ID, "device"))

    def events(self) -> pl.DataFrame:
        """Return guid, id, stack_id and category of all events."""
        rows = self.described(EVENT, integers=("stack_id", "category_id"))
        named = self.joined(rows, "category_id", self.strings())
        return named.select(
            *_ID,
            correlation=pl.when(pl.col("stack_id") != 0).then("stack_id"),
            category=pl.col("string"),
        )

    def placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Replace ids by the process, ``owner`` and thread they refer to."""
        known = self.processes().select(*_ID, "real_pid", "owner")
        rows = self.joined(rows, "pid", known)
        rows = rows.with_columns(pid=pl.coalesce("real_pid", "pid")).drop("real_pid")
        if "tid" not in rows.columns:
            return rows
        threads = self.threads().select(*_ID, "real_tid")
        rows = self.joined(rows, "tid", threads)
        return rows.with_columns(tid=pl.coalesce("real_tid", "tid")).drop("real_tid")


def recorded_ranks(processes: pl.DataFrame) -> dict[int, tuple[int, int | None]]:
    """Return rank and world size by owner, from the recorded environment of each process."""
    ranks = {}
    for owner, text in processes.select("owner", "environment").drop_nulls().iter_rows():
        values = _environment(text)
        for rank_name, size_name in zip(_RANKS, _SIZES, strict=True):
            rank, size = _number(values.get(rank_name)), _number(values.get(size_name))
            if rank is not None:
                ranks[owner] = rank, size
                break
    return ranks


def _environment(text: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _number(value: object) -> int | None:
    text = str(value)
    number = int(text) if re.fullmatch(r"[0-9]{1,7}", text) else None
    return number if number is not None and number < MAX_RANKS else None


def kind(word: str) -> pl.Expr:
    """Return a constant ``kind`` column."""
    return pl.lit(word, dtype=schema.KIND).alias("kind")
