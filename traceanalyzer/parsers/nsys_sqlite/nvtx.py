"""NVTX: ranges marked by programs and libraries, their domains and payloads.

A range that starts on one thread and ends on another belongs to neither: its ``tid`` is null.

PyTorch's ``emit_nvtx`` appends details of an operator call to the name, so that every call has a
different one: ``aten::mul, seq = 45328, op_id = 990727``. The name becomes ``aten::mul``, as in
Kineto traces, and the rest goes into ``args`` if selected.

NCCL's ranges have a binary payload with details of the call, present if the report was exported
with ``--include-blobs=true``. It begins with a header of 32 bytes (domain, schema, sizes); the
table of payload schemas has the offsets of the fields. Fields are identified by name, as schema
numbers differ between runs.
"""

import struct
from dataclasses import dataclass

import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.parsers.nsys_sqlite import host, tables
from traceanalyzer.parsers.sqlite.database import Shape
from traceanalyzer.parsers.sqlite.rows import kind_of, span, with_collectives
from traceanalyzer.schema import MAX_RANKS
from traceanalyzer.vocabulary import collective_of_word

_PUSH_POP = 59
_START_END = 60
_MARK = 34
#: Ranges and marks that a program wrote as text for later import.
_TEXT_EVENTS = (70, 71)
_THREAD_NAME = 39
#: Number of first rows that are searched for thread names.
_LOOKED_AT = 20_000
_DOMAIN = 75
_EVENTS = (_PUSH_POP, _START_END, _MARK, *_TEXT_EVENTS)
#: An SQL condition: the row is a range or mark, not the creation of a domain or a name.
HAPPENED = f'"eventType" IN ({", ".join(map(str, _EVENTS))})'
_VALUES = ("uint64Value", "int64Value", "uint32Value", "int32Value")
_REALS = ("doubleValue", "floatValue")
#: ``emit_nvtx`` details in an operator name begin at the first of these that occurs.
_CALL = (", seq = ", ", op_id = ", ", sizes = [")

#: The header of a payload: domain, schema, sizes.
_HEADER = struct.Struct("<IIIIQQ")
_COMMUNICATOR = "NCCL communicator ID"
_SIZE = "Message size [bytes]"
_RANKS = "No. of ranks"
_RANK = "Rank"
_FIELDS = (_COMMUNICATOR, _SIZE, _RANKS, _RANK)
#: ``struct`` format by NVTX code of integers: C's short, int, long and long long, from 3 on, then
#: those of 8 to 64 bits, each signed and unsigned; 22 is a size.
_NUMBERS = {**dict(enumerate("hHiIqQqQbBhHiIqQ", 3)), 22: "Q"}
_NCCL = "nccl"
#: Maximum message size; multiplied by the maximum number of ranks it must fit 64 bits.
_MOST_BYTES = 1 << 40
_PAYLOADS_LOOKED_AT = 500_000


@dataclass(frozen=True)
class _Field:
    name: str
    offset: int
    number: struct.Struct


def ranges(export: tables.Export) -> pl.DataFrame:
    """Return one row per range or mark; the category is the domain, null for the default one.

    ``args``, if selected, is the payload as JSON; NCCL calls get the columns of ``collectives``.
    """
    inside = export.inside()
    carried = "args" in export.selection.columns
    blobs = _has_payloads(export)
    created: list[pl.DataFrame] = []
    wanted = f"{HAPPENED} AND ({inside})" if inside else HAPPENED
    shape = _shaped(created, carried=carried, blobs=blobs)
    rows = export.database.read(
        tables.NVTX,
        integers=("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId")
        + (_VALUES if carried else ()),
        texts=("text", *(("jsonText",) if carried else ())),
        reals=_REALS if carried else (),
        blobs=("binaryData",) if blobs else (),
        where=f'({wanted}) OR "eventType" = {_DOMAIN}',
        # the payloads of any process may tell the size of a communicator
        shape=shape if blobs else export.of_processes(shape),
    )
    named = rows.with_columns(_text(export, rows)).drop("textId")
    domains = _domain_names(export, rows, pl.concat(created))
    events = named.with_columns(kind_of("nvtx"), domains).drop("domainId")
    events = _with_payloads(export, events) if blobs else events
    is_mpi = (pl.col("category") == "MPI") & pl.col("name").cast(pl.String).str.starts_with("MPI_")
    if not events.select(is_mpi.any()).item():
        return events
    # nsys before 2023 writes calls of MPI as ranges
    others = pl.col("collective") if "collective" in events.columns else pl.lit(None, schema.NAME)
    collective = pl.when(is_mpi).then(host.collectives_of_mpi(events["name"])).otherwise(others)
    kind = pl.when(is_mpi).then(pl.lit("mpi")).otherwise("kind").cast(schema.KIND)
    category = pl.when(~is_mpi).then("category")
    return events.with_columns(kind=kind, category=category, collective=collective)


def thread_names(export: tables.Export) -> dict[int, str]:
    """Return the thread names set by the program at its start, by global thread id."""
    rows = export.read(
        tables.NVTX,
        "globalTid",
        "textId",
        texts=("text",),
        where=f'"eventType" = {_THREAD_NAME}',
        first=_LOOKED_AT,
    ).drop_nulls("globalTid")
    registered = export.texts(rows["textId"])
    named = {thread: text or registered.get(number) for thread, number, text in rows.iter_rows()}
    return {thread: name for thread, name in named.items() if name}


def nccl_ranks(export: tables.Export) -> dict[int, tuple[int, int]]:
    """Return rank and number of ranks of each process, from its largest NCCL communicator.

    Communicators are created at the start of a program: only the first ranges are read.
    """
    if not _has_payloads(export):
        return {}
    schemas = _schemas(export)
    numbers = [number for number, fields in schemas.items() if _RANK in {f.name for f in fields}]
    if not numbers:
        return {}
    # bytes 9 to 12 of the header are the schema's number
    here = [struct.pack("<I", number).hex() for number in numbers]
    is_here = pl.col("binaryData").bin.encode("hex").str.slice(16, 8).is_in(here)
    rows = export.read(
        tables.NVTX,
        "globalTid",
        blobs=("binaryData",),
        where='"binaryData" IS NOT NULL',
        shape=lambda piece: piece.filter(is_here),
        first=_PAYLOADS_LOOKED_AT,
    )
    ranks: dict[int, tuple[int, int]] = {}
    for thread, data in rows.drop_nulls().iter_rows():
        fields = _decoded(data, schemas)
        size, rank = fields.get(_RANKS, 0), fields.get(_RANK)
        if rank is None or not 0 <= rank < size <= MAX_RANKS:
            continue
        process = tables.process_of(thread)
        if size > ranks.get(process, (0, 0))[1]:
            ranks[process] = rank, size
    return ranks


def _shaped(created: list[pl.DataFrame], *, carried: bool, blobs: bool) -> Shape:
    """Return the function that shapes a piece of the table; ``created`` collects new domains."""
    crosses = pl.col("endGlobalTid").is_not_null() & (pl.col("endGlobalTid") != pl.col("globalTid"))
    thread = pl.when(~crosses).then(tables.tid("globalTid")).alias("tid")
    columns = [
        *span(),
        tables.pid("globalTid"),
        thread,
        pl.col("textId").cast(pl.UInt32, strict=False),
        pl.col("domainId").fill_null(0),
        pl.col("text")
        .str.head(_name_length())
        .fill_null(pl.col("text"))
        .cast(schema.NAME)
        .alias("name"),
    ]
    if carried:
        columns.append(_args())
    if blobs:
        columns.append(pl.col("binaryData"))

    def shaped(piece: pl.DataFrame) -> pl.DataFrame:
        domain = piece["eventType"] == _DOMAIN
        created.append(piece.filter(domain).select_seq("globalTid", "textId", "domainId", "text"))
        return (piece.filter(~domain) if domain.any() else piece).select_seq(columns)

    return shaped


def _name_length() -> pl.Expr:
    """Return the length of the operator name in a text of ``emit_nvtx``; null for other texts."""
    return pl.coalesce(pl.col("text").str.find(word, literal=True) for word in _CALL)


def _args() -> pl.Expr:
    """Return the payload as JSON text, null without one."""
    number = pl.coalesce(
        *(pl.col(name).cast(pl.String) for name in _VALUES),
        *(pl.when(pl.col(name).is_finite()).then(pl.col(name)).cast(pl.String) for name in _REALS),
    )
    return pl.coalesce(
        "jsonText",
        pl.when(number.is_not_null()).then(_member("payload", number)),
        _member("call", _quoted(pl.col("text").str.slice(_name_length() + 2))),
    ).alias("args")


def _member(name: str, value: pl.Expr) -> pl.Expr:
    """Return a JSON object with one member, from the value's text; null without one."""
    return pl.concat_str(pl.lit(f'{{"{name}": '), value, pl.lit("}"))


def _quoted(text: pl.Expr) -> pl.Expr:
    """Return text as a JSON string; control characters, invalid in JSON, become spaces."""
    escaped = text.str.replace_all("\\", "\\\\", literal=True).str.replace_all(
        '"', '\\"', literal=True
    )
    return pl.format('"{}"', escaped.str.replace_all(r"[\x00-\x1f]", " "))


def _text(export: tables.Export, rows: pl.DataFrame) -> pl.Series:
    """Return the names: the text itself, else the registered string."""
    if not rows["textId"].len() or rows["textId"].null_count() == rows.height:
        return rows["name"]
    registered = export.named(rows["textId"])
    return rows.select(pl.coalesce("name", registered).alias("name"))["name"]


def _domain_names(export: tables.Export, rows: pl.DataFrame, created: pl.DataFrame) -> pl.Series:
    """Return the domain name of each row; the number if its creation was not recorded."""
    if not (rows["domainId"] != 0).any():
        return pl.repeat(None, rows.height, dtype=schema.NAME, eager=True).alias("category")
    registered = export.texts(created["textId"])
    known = {
        (tables.process_of(thread), domain): text or registered.get(number)
        for thread, number, domain, text in created.drop_nulls(
            ["globalTid", "domainId"]
        ).iter_rows()
    }
    first, number = numbered([rows["pid"], rows["domainId"]])
    names = [
        None if not domain else known.get((process, domain)) or f"domain {domain}"
        for process, domain in rows.select("pid", "domainId")[first].iter_rows()
    ]
    return pl.Series("category", names, dtype=schema.NAME).gather(pl.Series(number))


# --- payloads of NCCL ----------------------------------------------------------------------------


def _has_payloads(export: tables.Export) -> bool:
    have = export.database.tables
    return "binaryData" in have.get(tables.NVTX, ()) and tables.PAYLOAD_ENTRIES in have


def _with_payloads(export: tables.Export, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of ``collectives`` from NCCL's payloads."""
    of_nccl = rows["name"].cast(pl.String).str.starts_with(_NCCL).fill_null(value=False)
    carrying = of_nccl & rows["binaryData"].is_not_null()
    bare = rows.drop("binaryData")
    if not carrying.any():
        return bare
    schemas = _schemas(export)
    places = carrying.arg_true()
    decoded = [_decoded(data, schemas) for data in rows["binaryData"].gather(places)]
    names = rows["name"].gather(places).cast(pl.String).to_list()
    sizes = {
        fields[_COMMUNICATOR]: fields[_RANKS]
        for fields in decoded
        if _COMMUNICATOR in fields and 0 < fields.get(_RANKS, 0) < MAX_RANKS
    }
    values = [
        (place, *_described(name, fields, sizes))
        for place, name, fields in zip(places, names, decoded, strict=True)
        if fields and collective_of_word(name.removeprefix(_NCCL))
    ]
    return with_collectives(bare.with_row_index("row"), values, {"row": pl.UInt32}).drop("row")


def _schemas(export: tables.Export) -> dict[int, list[_Field]]:
    rows = export.read(tables.PAYLOAD_ENTRIES, "schemaId", "type", "offset", texts=("name",))
    schemas: dict[int, list[_Field]] = {}
    for number, kind, offset, name in rows.unique(maintain_order=True).iter_rows():
        if name in _FIELDS and kind in _NUMBERS and number is not None:
            field = _Field(name, offset or 0, struct.Struct("<" + _NUMBERS[kind]))
            schemas.setdefault(number, []).append(field)
    return schemas


def _decoded(data: bytes, schemas: dict[int, list[_Field]]) -> dict[str, int]:
    """Return the known fields by name; fields beyond the end of the bytes are skipped."""
    if len(data) < _HEADER.size:
        return {}
    number = _HEADER.unpack_from(data)[2]
    values = {}
    for field in schemas.get(number, ()):
        at = _HEADER.size + field.offset
        if field.offset >= 0 and at + field.number.size <= len(data):
            values[field.name] = field.number.unpack_from(data, at)[0]
    return values


def _described(name: str, fields: dict[str, int], sizes: dict[int, int]) -> tuple[object, ...]:
    """Return collective, dtype, elements in and out, group and its size; elements are bytes.

    NCCL records the input size of a rank, but for reduce_scatter its output size.
    """
    collective = collective_of_word(name.removeprefix(_NCCL))
    size, group = fields.get(_SIZE), fields.get(_COMMUNICATOR)
    size = size if size is not None and size < _MOST_BYTES else None
    ranks = sizes.get(group) if group is not None else None
    put_in, got_out = size, None
    if collective == "reduce_scatter" and size is not None:
        put_in, got_out = None if ranks is None else size * ranks, size
    return (
        collective,
        None if size is None else "byte",
        put_in,
        got_out,
        None if group is None else f"{group:#x}",
        ranks,
    )
