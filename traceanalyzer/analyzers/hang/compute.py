"""The records of each rank, and their combination over all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers import printed
from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import aggregates, libraries
from traceanalyzer.analyzers.common.aggregates import Aggregates
from traceanalyzer.analyzers.common.names import mapped
from traceanalyzer.analyzers.hang import Options, matching, waiting
from traceanalyzer.analyzers.hang.matching import DEFAULT, FIRST, Groups, parse_ranks
from traceanalyzer.analyzers.hang.result import Hang
from traceanalyzer.analyzers.printed import compute as of_text
from traceanalyzer.errors import InputError, MissingData
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, is_truncated
from traceanalyzer.units import format_first
from traceanalyzer.vocabulary import FLIGHT_RECORDER, PY_SPY_DUMP, dtype_bytes

_RECORD = (
    "set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (newer name: TORCH_FR_BUFFER_SIZE) and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and pass the files it writes"
)
#: PyTorch's names of the dtypes in dumps.
_DTYPES = {
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Double": "float64",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Byte": "uint8",
    "Char": "int8",
    "Bool": "bool",
}
#: Frames of a stack that are shown.
_DEEPEST = 30


#: Sampled stacks; dumps are always read wholly.
NEEDS = Needs({"sample"}, samples=True)


@dataclass(frozen=True)
class Part:
    """The dumps in one trace.

    Attributes:
        dumps: path, rank, backend, entries, has_frames, overwritten (whether the oldest records are
            lost), truncated (the newest are lost), last_ns (the last time in it).
        records: columns of ``collective_records`` with a state (never null), and path, backend,
            order (place among the calls of the rank), ended (it is unknown how), timed_out, bytes,
            place (line of own code), frames (the stack as text); in the order of the calls.
        groups: path, rank, group, description, ranks, last_enqueued.
        threads: path, process, rank, tid, thread, state, place, frames: stacks of py-spy.
        log: printed rows of the log of a job, or None.
    """

    dumps: pl.DataFrame
    records: pl.DataFrame
    groups: pl.DataFrame
    threads: pl.DataFrame
    log: Aggregates | None


def measure(trace: Trace, _options: Options) -> Part:
    """Return the records of a dump, the stacks of ``py-spy dump``, or the events of a log.

    Raises:
        MissingData: the file is neither, or its rank is unknown.
    """
    meta = trace.meta
    is_dump = any(source.format == FLIGHT_RECORDER for source in trace.sources)
    threads, log = _threads(trace), aggregates.of_forms(trace, of_text.FORMS)
    if not is_dump and threads.is_empty() and log is None:
        raise MissingData(f"{meta.path}: no Flight Recorder entries; {_RECORD}")
    if is_dump and any(s.rank is None for s in trace.sources if s.format == FLIGHT_RECORDER):
        raise MissingData(
            f"{meta.path}: unknown rank; the name of a dump ends with its rank (NAME_rank_3), or "
            "use --assume-rank N"
        )
    paths = pl.DataFrame(
        [(s.path, s.rank, s.backend) for s in trace.sources if s.format == FLIGHT_RECORDER],
        schema={"path": pl.String, "rank": pl.Int32, "backend": pl.String},
        orient="row",
    )
    truncated = is_truncated(trace)
    records = _records(trace, paths)
    if truncated:
        records = _without_open_part(records)
    of_dump = records.group_by("rank").agg(
        entries=pl.len().cast(pl.Int64),
        has_frames=pl.col("place").is_not_null().any(),
        overwritten=(pl.col("record").min() > 0).fill_null(value=False),
        last_ns=pl.max_horizontal(
            pl.col(name).max() for name in ("created_ns", "started_ns", "completed_ns")
        ),
    )
    dumps = paths.join(of_dump, on="rank", how="left").with_columns(
        pl.col("entries").fill_null(0),
        pl.lit(truncated).alias("truncated"),
        pl.col("has_frames", "overwritten").fill_null(value=False),
    )
    groups = trace.process_groups.select(
        "rank",
        *(pl.col(name).cast(pl.String) for name in ("group", "description", "ranks")),
        "last_enqueued",
    ).join(paths.select("rank", "path"), on="rank")
    return Part(dumps, records, groups, threads, log)


def _records(trace: Trace, paths: pl.DataFrame) -> pl.DataFrame:
    """Return the records with a normalized state; see :class:`Part`."""
    rows = trace.collective_records.join(paths, on="rank", how="left", maintain_order="left")
    texts = ("group", "op", "dtype", "sizes_in", "sizes_out")
    rows = rows.with_columns(pl.col(name).cast(pl.String) for name in texts)
    places = _places(trace.stacks, rows["stack"])
    rows = rows.join(places, on="stack", how="left", maintain_order="left").with_columns(
        order=pl.int_range(pl.len(), dtype=pl.Int64).over("rank")
    )
    elements = pl.max_horizontal("elements_in", "elements_out")
    size = mapped(rows["dtype"], dtype_bytes, pl.Int64)
    rows = rows.with_columns(dtype=mapped(rows["dtype"], _dtype))
    return rows.with_columns(bytes=elements * size, **_states(rows.schema["state"])).with_columns(
        _coalesced()
    )


def _dtype(text: str) -> str:
    return re.sub(r"\w+", lambda name: _DTYPES.get(name[0], name[0]), text)


def _without_open_part(records: pl.DataFrame) -> pl.DataFrame:
    """Remove scheduled records of the last operation of a truncated dump.

    They may be parts of a coalesced one, whose own record, with their state, is lost.
    """
    key = ["rank", "group", "seq", "p2p_seq", "is_p2p"]
    last = records.group_by("rank", maintain_order=True).last()
    last = last.filter(pl.col("op") != "coalesced").select(key)
    is_scheduled = pl.col("state") == "scheduled"
    opened = records.filter(is_scheduled).join(last, on=key, how="semi", nulls_equal=True)
    return records.join(
        opened.select("rank", "order"), on=["rank", "order"], how="anti", maintain_order="left"
    )


def _states(dtype: pl.DataType) -> dict[str, pl.Expr]:
    """Return state (of this type), ended and timed_out of records.

    NCCL: a record that is retired and not completed has timed out. gloo has no states: a retired
    operation has ended, with or without success.
    """
    state, retired = pl.col("state"), pl.col("retired").fill_null(value=False)
    is_beyond = (state != "scheduled") | pl.col("started_ns").is_not_null()
    tracked = (
        (pl.col("backend") != "gloo").fill_null(value=True)
        | is_beyond.fill_null(value=False).any().over("rank")
    )  # fmt: skip
    completed = (state == "completed").fill_null(value=False) | pl.col("completed_ns").is_not_null()
    unknown = state.is_null() & retired & pl.col("started_ns").is_null()
    started = (state == "started").fill_null(value=False) | pl.col("started_ns").is_not_null()
    done = completed | (retired & ~tracked) | unknown
    name = (
        pl.when(done)
        .then(pl.lit("completed"))
        .when(started)
        .then(pl.lit("started"))
        .otherwise(pl.lit("scheduled"))
    )
    return {
        "state": name.cast(dtype),
        "ended": retired & ~tracked & ~completed,
        "timed_out": retired & tracked & ~done,
    }


def _coalesced() -> Iterator[pl.Expr]:
    """Give the operations of a coalesced group its state; theirs is not updated."""
    key = ["rank", "group", "seq", "p2p_seq"]
    whole = pl.col("op") == "coalesced"
    done = pl.col("state") == "completed"
    for name in ("state", "timed_out"):
        of_group = pl.when(whole).then(name).fill_null(strategy="backward").over(key)
        yield pl.when(done).then(name).otherwise(pl.coalesce(of_group, name)).alias(name)


def _places(stacks: pl.DataFrame, leaves: pl.Series) -> pl.DataFrame:
    """Return stack, place (the innermost line of own code) and frames (text) of these stacks."""
    parent = stacks["parent"].to_list()
    columns = (stacks[name].cast(pl.String).to_list() for name in ("name", "file"))
    frames = list(zip(*columns, stacks["line"].to_list(), strict=True))
    rows = []
    for leaf in leaves.drop_nulls().unique().sort().to_list():
        path, node = [], leaf
        while node is not None:
            path.append(frames[node])
            node = parent[node]
        text = "\n".join(_frame_text(*frame) for frame in path[:_DEEPEST])
        rows.append((leaf, _place(path), text))
    types = {"stack": pl.UInt32, "place": pl.String, "frames": pl.String}
    return pl.DataFrame(rows, schema=types, orient="row")


#: What waits for others, and is called by what shows the reason.
_PASSES_ON = (libraries.STANDARD_LIBRARY, "torch", "zmq", "grpc", "gevent", "uvloop", None)


def _place(path: Sequence[tuple[str | None, str | None, int | None]]) -> str:
    """Return the innermost line of own code, else of a library that uses torch.distributed."""
    for name, file, line in path:  # <string> starts the processes of multiprocessing
        if file != "<string>" and libraries.is_own_code(name, file):
            return _frame_text(name, file, line)
    for name, file, line in path:
        inside = libraries.inside(file or "")
        is_library = libraries.package_of(file) not in _PASSES_ON
        if is_library and len(inside) > 1 and "distributed" not in inside:
            return f"{name} ({'/'.join(inside)}:{line})"
    return _frame_text(*path[0])


def _frame_text(name: str | None, file: str | None, line: int | None) -> str:
    short = PurePath(file).name if file else "?"
    return f"{name} ({short}:{line})" if line else f"{name} ({short})"


def _threads(trace: Trace) -> pl.DataFrame:
    """Return the stacks of ``py-spy dump`` or faulthandler; see :class:`Part`."""
    types = {
        "path": pl.String, "process": pl.String, "rank": pl.Int32, "tid": pl.Int64,
        "thread": pl.String, "state": pl.String, "place": pl.String, "frames": pl.String,
    }  # fmt: skip
    if all(source.format != PY_SPY_DUMP for source in trace.sources):
        return pl.DataFrame(schema=types)
    samples = trace.events.filter(pl.col("kind") == "sample")
    names = trace.lanes.select("pid", "tid", thread="label").unique(["pid", "tid"])
    rows = samples.join(names, on=["pid", "tid"], how="left", nulls_equal=True)
    rows = rows.join(_places(trace.stacks, samples["stack"]), on="stack", how="left")
    commands = names.filter(pl.col("tid").is_null()).select("pid", command="thread")
    rows = rows.join(commands, on="pid", how="left", maintain_order="left")
    # programs that set their title: sglang::scheduler_TP3, VLLM::Worker_TP0
    title = pl.col("command").str.extract(r"^([^\s/]*::\S*)")
    process = pl.coalesce(title, pl.format("process {}", "pid"))
    return rows.select(
        pl.lit(trace.meta.path).alias("path"), process.alias("process"), "rank", "tid", "thread",
        pl.col("category").cast(pl.String).alias("state"), "place", "frames",
    )  # fmt: skip


def combine(parts: Sequence[Part], _options: Options) -> Hang:
    """Align the records of all ranks and find what they wait for.

    Without a dump, the stacks of py-spy show what each rank does.

    Raises:
        InputError: the dumps are of several jobs.
    """
    chosen, others = _one_per_rank(pl.concat([part.dumps for part in parts]))
    all_records, all_groups = (
        pl.concat([getattr(part, name) for part in parts]) for name in ("records", "groups")
    )
    if others.height:
        _check_one_job(chosen, others, all_records, all_groups)
    paths = chosen.select("path", "rank")
    records, groups = (
        rows.join(paths, on=["path", "rank"], how="semi", maintain_order="left")
        for rows in (all_records, all_groups)
    )
    threads = _with_rank(pl.concat([part.threads for part in parts]), records)
    known = Groups.of(groups, chosen)
    records = known.with_group(records.rename({"group": "name"}))
    never = known.with_group(
        groups.filter(pl.col("last_enqueued") == 0).select("rank", name="group")
    )
    matched = matching.match(records, known.members, chosen, never.select("rank", "group"))
    transfers = matching.match_messages(records, known.members, chosen)
    stuck = waiting.find(matched, transfers, known, chosen)
    logs = [part.log for part in parts if part.log is not None]
    return Hang(
        dumps=chosen.sort("rank"),
        repeated=others,
        groups=known,
        records=records,
        matched=matched,
        stuck=stuck,
        threads=threads.sort("rank", "tid", nulls_last=True),
        log=of_text.combine(logs, printed.Options()) if logs else None,
    )


def _one_per_rank(dumps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return one dump per rank, and the others: that with stacks, then the newest, counts."""
    best = dumps.sort(
        "rank", "has_frames", "last_ns", "entries", "path",
        descending=[False, True, True, True, False], nulls_last=True,
    )  # fmt: skip
    first = best.unique("rank", keep="first", maintain_order=True)
    return first, best.join(first, on="path", how="anti").select("path", "rank")


def _check_one_job(
    chosen: pl.DataFrame, others: pl.DataFrame, records: pl.DataFrame, groups: pl.DataFrame
) -> None:
    """Check that further dumps of a rank are of the same job.

    They are not if they are in another folder and share no record with the chosen one, or if the
    default group has other ranks.

    Raises:
        InputError: some are of another job.
    """
    mine = chosen.select("rank", of="path")
    pairs = others.join(mine, on="rank")
    call = ["rank", "record", "seq", "op", "created_ns"]
    of_chosen = records.join(mine, left_on=["rank", "path"], right_on=["rank", "of"], how="semi")
    shared = records.join(others, on=["rank", "path"], how="semi").join(
        of_chosen, on=call, how="semi", nulls_equal=True
    )
    recorded = {*records["path"].unique()}
    unlike = pairs.join(shared, on="path", how="anti").filter(
        pl.col("path").is_in(recorded), pl.col("of").is_in(recorded)
    )
    worlds = groups.filter((pl.col("description") == DEFAULT) | (pl.col("group") == FIRST)).select(
        "path", world=pl.col("ranks").map_elements(parse_ranks, pl.List(pl.Int64))
    ).filter(pl.col("world").list.len() > 1)  # fmt: skip
    both = pairs.join(worlds, on="path").join(worlds, left_on="of", right_on="path", suffix="_of")
    rows = [row for row in unlike.select("rank", "path", "of").iter_rows()
            if PurePath(row[1]).parent != PurePath(row[2]).parent]  # fmt: skip
    resized = both.filter(pl.col("world") != pl.col("world_of")).select("rank", "path", "of")
    rows += resized.iter_rows()
    if not rows:
        return
    paths = sorted({path for row in rows for path in row[1:]})
    folders = sorted({str(PurePath(path).parent) for path in paths})
    names, remedy = (folders, "one folder") if len(folders) > 1 else (paths, "the files of one job")
    raise InputError(
        min(rows)[2],
        f"the dumps are of several jobs: rank {min(rows)[0]} has unrelated ones",
        hint=f"pass {remedy}: {format_first(names, 3)}",
    )


def _with_rank(threads: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Find the rank of stacks without one by the thread that called the collectives."""
    calls = records.select(tid="thread", of_thread="rank").drop_nulls().unique()
    callers = calls.filter(pl.col("tid").is_unique())
    joined = threads.join(callers, on="tid", how="left", maintain_order="left")
    of_file = pl.col("of_thread").drop_nulls().first().over("path", "process")
    return joined.with_columns(rank=pl.coalesce("rank", of_file)).drop("of_thread")


HANG = Analyzer(
    "hang", Options, NEEDS, measure, combine, split_ranks=False, every_file=True, whole_file=True,
    of_one_job="",
)  # fmt: skip


def hang(inputs: Inputs, **reading: Unpack[Reading]) -> Hang:
    """Find the rank that a hanging job waits for.

    Inputs are Flight Recorder dumps of PyTorch, one per rank, the output of ``py-spy dump`` of the
    ranks, logs of the job, or several of them. Collectives are aligned by group and sequence
    number, sends and receives by their order. Ranks of a group without a dump are suspects, not
    errors. A time window is ignored: dumps have no beginning.

    Args:
        inputs: a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`. All dumps are compared;
            ``rank`` selects the rows of the tables of ranks and stacks.

    Raises:
        InputError: no input can be read, or the dumps are of several jobs.
        MissingData: no input is a Flight Recorder dump of a known rank, of py-spy, or a log.
        OptionError: no input has the rank.
    """
    rank = reading.pop("rank", None)
    return run(HANG, inputs, Options(), **reading).of_rank(rank)
