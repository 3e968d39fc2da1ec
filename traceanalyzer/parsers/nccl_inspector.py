"""JSON lines of NCCL Inspector: the duration of each collective of a process.

A line has no time of the collective unless ``NCCL_INSPECTOR_DUMP_VERBOSE=1`` was set. With times,
collectives are events; without, they are rows of ``aggregates``: one block per communicator,
collective and source of the durations (rows without ``row`` describe it), one row per collective,
whose number is NCCL's ``coll_sn``.

Specification: <https://github.com/NVIDIA/nccl/tree/master/plugins/profiler/inspector>
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.parsers.tables import as_table
from traceanalyzer.schema import LAST_EPOCH_NS, MAX_BYTES, MAX_RANKS
from traceanalyzer.trace import Meta, Trace, issue_rows
from traceanalyzer.vocabulary import INSPECTOR_FORM, NCCL_INSPECTOR, collective_of_word

if TYPE_CHECKING:
    import polars as pl

_FIRST = re.compile(rb'\s*+\{\s*+"header"\s*+:\s*+\{')
_KEYS = (b'"coll_perf"', b'"p2p_perf"', b'"inspector_output_format_version"')
#: Longer lines are damage: each kernel event of a verbose line has about 120 bytes.
_LONGEST = 1 << 22
_MOST_US = 1 << 43
_MOST_ROWS = (1 << 32) - 1


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether the file begins with a line of NCCL Inspector."""
    return bool(_FIRST.match(head)) and any(key in head for key in _KEYS)


class _Header(msgspec.Struct):
    id: str | int
    rank: int
    n_ranks: int


class _Metadata(msgspec.Struct):
    inspector_output_format_version: str = ""
    hostname: str = ""
    pid: int = 0


class _KernelEvent(msgspec.Struct):
    kernel_stop_ts: int | float = 0  # integers stay exact


class _Times(msgspec.Struct):
    kernel_events: list[_KernelEvent] = []


class _Performance(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: float
    coll_timing_source: str = ""
    coll_algobw_gbs: float | None = None
    event_trace_ts: _Times | None = None


class _Line(msgspec.Struct):
    header: _Header
    coll_perf: _Performance | None = None
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Series(NamedTuple):
    """Collectives of one kind that a process ran in one communicator."""

    host: str
    pid: int
    group: str
    group_rank: int
    group_size: int
    name: str
    timing: str


@dataclass
class _Recorded:
    """The collectives read so far, as columns, and the lines that could not be read."""

    series: dict[_Series, int] = field(default_factory=dict)
    block: list[int] = field(default_factory=list)
    seq: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    exec_ns: list[int] = field(default_factory=list)
    end_ns: list[int | None] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    version: str | None = None
    issues: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def note(self, severity: str, code: str, number: int) -> None:
        """Count an irregularity."""
        self.issues.setdefault((severity, code), [0, number])[0] += 1

    def add(self, line: _Line, number: int) -> None:
        """Add the collective of a line."""
        header, about, perf = line.header, line.metadata, line.coll_perf
        if perf is None:
            self.note("notice", "other-record", number)
            return
        known = (
            0 <= header.rank < header.n_ranks <= MAX_RANKS
            and 0 <= perf.coll_sn < _MOST_ROWS
            and 0 <= perf.coll_msg_size_bytes < MAX_BYTES
            and 0 < perf.coll_exec_time_us < _MOST_US
        )
        if not known:
            self.note("data_loss", "number-out-of-range", number)
            return
        self.version = self.version or about.inspector_output_format_version[:40] or None
        series = _Series(
            about.hostname[:255],
            about.pid if 0 <= about.pid < 1 << 53 else 0,
            str(header.id)[:80],
            header.rank,
            header.n_ranks,
            collective_of_word(perf.coll) or perf.coll[:80],
            perf.coll_timing_source[:40],
        )
        self.block.append(self.series.setdefault(series, len(self.series)))
        self.seq.append(perf.coll_sn)
        self.size.append(_message_bytes(series.name, header.n_ranks, perf))
        self.exec_ns.append(round(perf.coll_exec_time_us * 1000))
        self.end_ns.append(_end(perf.event_trace_ts))
        self.line.append(number)

    def ranks(self, of_name: int | None) -> dict[tuple[str, int], int | None]:
        """Return the rank of each process (host, pid): its rank in its largest communicator.

        None if it has several of that size, with different ranks in them. The rank in the file's
        name has precedence.
        """
        by_process: dict[tuple[str, int], dict[int, set[int]]] = {}
        for one in self.series:
            sizes = by_process.setdefault((one.host, one.pid), {})
            sizes.setdefault(one.group_size, set()).add(one.group_rank)
        if of_name is not None and len(by_process) == 1:
            return dict.fromkeys(by_process, of_name)
        largest = {process: sizes[max(sizes)] for process, sizes in by_process.items()}
        return {p: next(iter(ranks)) if len(ranks) == 1 else None for p, ranks in largest.items()}


def _message_bytes(name: str, n_ranks: int, perf: _Performance) -> int:
    """Return the bytes of the full message, as nccl-tests counts them.

    NCCL counts the part of one rank for all_gather and reduce_scatter. The bandwidth in the line is
    that of the full message, so it shows whether a version does.
    """
    size = perf.coll_msg_size_bytes
    if name not in ("all_gather", "reduce_scatter"):
        return size
    moved = (perf.coll_algobw_gbs or 0) * perf.coll_exec_time_us * 1000
    is_full = 0 < moved < size * (1 + n_ranks) / 2
    return size if is_full else min(size * n_ranks, MAX_BYTES - 1)


def _end(times: _Times | None) -> int | None:
    """Return the end of the last kernel, in ns since the Unix epoch; None if not recorded."""
    last = max((one.kernel_stop_ts for one in times.kernel_events), default=0) if times else 0
    return round(last * 1000) if 0 < last < LAST_EPOCH_NS // 1000 else None


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read the collectives of one process, or of several whose files were joined.

    Raises:
        MalformedInput: no line has a collective.
        UnreadableFile: the file cannot be read.
    """
    recorded = _read(source, progress)
    if not recorded.block:
        first = "; ".join(f"{code}: line {rows[1]}" for (_, code), rows in recorded.issues.items())
        raise MalformedInput(
            source.path,
            f"no collective of NCCL Inspector in it{f' ({first})' if first else ''}",
            hint="set NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so and "
            "NCCL_INSPECTOR_ENABLE=1 for the job",
        )
    ranks = recorded.ranks(rank_from_name(source.path))
    only = next(iter(ranks.values())) if len(ranks) == 1 else None
    timed = sum(end is not None for end in recorded.end_ns)
    tables = _events(recorded, ranks, selection) if timed else _aggregates(recorded, ranks)
    issues = [
        *((*key, count, f"line {first}") for key, (count, first) in recorded.issues.items()),
        ("data_loss", "no-time", len(recorded.block) - timed if timed else 0, None),
        *source.issues,
    ]
    hosts = {one.host for one in recorded.series}
    meta = Meta(
        path=source.path,
        format=NCCL_INSPECTOR,
        version=recorded.version,
        epoch_ns=tables.pop("epoch_ns", None),
        rank=only,
        world_size=max(one.group_size for one in recorded.series),
        host=next(iter(hosts)) or None if len(hosts) == 1 else None,
        backend="nccl",
    )
    return Trace(sources=(meta,), issues=issue_rows(issues, only), **tables)


def _read(source: Source, progress: Progress | None) -> _Recorded:
    from traceanalyzer.parsers.collapsed.text import chunks

    decode = msgspec.json.Decoder(_Line, strict=True).decode
    recorded, number, bad = _Recorded(), 0, 0
    for chunk in chunks(source, progress):
        for raw in chunk:
            number += 1
            if not raw.strip():
                continue
            try:
                if len(raw) > _LONGEST:
                    raise ValueError
                line = decode(raw)
            except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
                bad = number
                recorded.note("data_loss", "bad-line", number)
                continue
            recorded.add(line, number)
    if bad and bad == number and not _ends_with_a_brace(source):
        count, first = recorded.issues["data_loss", "bad-line"]
        recorded.issues["data_loss", "bad-line"] = [count - 1, first]
        if count == 1:
            del recorded.issues["data_loss", "bad-line"]
        recorded.note("data_loss", "truncated-line", number)
    return recorded


def _ends_with_a_brace(source: Source) -> bool:
    """Whether the last line is complete."""
    end = b""
    for block in source.blocks():
        end = (end + block[-64:]).rstrip()[-1:]
    return end == b"}"


# --- tables ------------------------------------------------------------------------------------


def _aggregates(recorded: _Recorded, ranks: dict[tuple[str, int], int | None]) -> dict[str, Any]:
    """Return the table ``aggregates``."""
    import polars as pl

    names = [one.name for one in recorded.series]
    ranks_of = [ranks[one.host, one.pid] for one in recorded.series]
    of_block = pl.DataFrame(
        {"block": range(len(names)), "name": names, "rank": ranks_of},
        schema={"block": pl.UInt32, "name": pl.String, "rank": pl.Int32},
    )

    def shaped(rows: pl.DataFrame) -> pl.DataFrame:
        full = rows.join(of_block, on="block", how="left", maintain_order="left").with_columns(
            form=pl.lit(INSPECTOR_FORM), is_cut=pl.lit(value=False)
        )
        return as_table(full, "aggregates")

    numbers, texts = ("group_rank", "group_size", "pid"), ("group", "host", "timing")
    about = [
        {"block": block, "metric": name, "line": 1, kind: getattr(one, name)}
        for one, block in recorded.series.items()
        for kind, metrics in (("value", numbers), ("text", texts))
        for name in metrics
        if getattr(one, name) != ""
    ]
    described = pl.DataFrame(
        about,
        schema={
            "block": pl.UInt32, "metric": pl.String, "line": pl.Int64,
            "value": pl.Float64, "text": pl.String,
        },
    )  # fmt: skip
    rows = pl.DataFrame(
        {
            "block": recorded.block, "row": recorded.seq, "line": recorded.line,
            "message_bytes": recorded.size, "total_ns": recorded.exec_ns,
        },
        schema={
            "block": pl.UInt32, "row": pl.UInt32, "line": pl.Int64,
            "message_bytes": pl.Float64, "total_ns": pl.Float64,
        },
    ).sort("block", "row", "line")  # fmt: skip
    index = ["block", "row", "line"]
    long = rows.unpivot(index=index, variable_name="metric", value_name="value")
    return {"aggregates": pl.concat([shaped(described), shaped(long)])}


def _events(
    recorded: _Recorded, ranks: dict[tuple[str, int], int | None], selection: Selection
) -> dict[str, Any]:
    """Return collectives with times as kernels, with the columns of ``collectives``."""
    import polars as pl

    series = list(recorded.series)
    blocks = pl.DataFrame(
        {
            "block": range(len(series)),
            "rank": [ranks[one.host, one.pid] for one in series],
            "pid": [one.pid or None for one in series],
            "name": [one.name for one in series],
            "group": [one.group for one in series],
            "group_size": [one.group_size for one in series],
        },
        schema={
            "block": pl.UInt32, "rank": pl.Int32, "pid": pl.Int64,
            "name": pl.String, "group": pl.String, "group_size": pl.Int32,
        },
    )  # fmt: skip
    rows = pl.DataFrame(
        {
            "block": recorded.block, "seq": recorded.seq, "bytes": recorded.size,
            "dur": recorded.exec_ns, "end": recorded.end_ns,
        },
        schema={
            "block": pl.UInt32, "seq": pl.Int64, "bytes": pl.Int64, "dur": pl.Int64, "end": pl.Int64
        },
    ).drop_nulls("end")  # fmt: skip
    epoch = max(int(rows.select((pl.col("end") - pl.col("dur")).min()).item()), 0)
    rows = (
        rows.with_columns(ts=pl.col("end") - pl.col("dur") - epoch, kind=pl.lit("kernel"), device=0)
        .join(blocks, on="block", how="left", maintain_order="left")
        .with_columns(collective="name")
    )
    if not selection.wants("kernel", None):
        rows = rows.filter([selection.wants("kernel", name) for name in rows["name"]])
    rows = rows.sort("ts", "dur", descending=[False, True], maintain_order=True)
    rows = rows.with_row_index("event")
    return {
        "events": as_table(rows, "events"),
        "collectives": as_table(rows, "collectives"),
        "epoch_ns": epoch,
    }


FORMAT: Format = Format(
    name=NCCL_INSPECTOR,
    suffixes=(".log", ".json", ".jsonl"),
    description="JSON lines of NCCL Inspector (NCCL 2.28 and newer, RCCL)",
    sniff=sniff,
    parse=parse,
    priority=60,
)
