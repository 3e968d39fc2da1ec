"""What NCCL says of a call in the bytes that its NVTX range carries.

The bytes are there when the report was exported with ``--include-blobs=true``. They begin with a
header of 32 bytes (domain, schema, sizes); behind it lie the fields, each where the table of
payload schemas says. Fields are found by their names: the schemas' numbers are those of a run.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import polars as pl

from traceanalyzer import schema
from traceanalyzer.limits import MOST_RANKS
from traceanalyzer.parsers.nsys_sqlite import layout
from traceanalyzer.parsers.nsys_sqlite.export import Export, process_of
from traceanalyzer.vocabulary import collective_of_word

_HEADER = struct.Struct("<IIIIQQ")
_COMMUNICATOR = "NCCL communicator ID"
_SIZE = "Message size [bytes]"
_RANKS = "No. of ranks"
_RANK = "Rank"
_FIELDS = (_COMMUNICATOR, _SIZE, _RANKS, _RANK)
#: NVTX's codes of whole numbers, as ``struct`` reads them.
_NUMBERS = {
    3: "<h",
    4: "<H",
    5: "<i",
    6: "<I",
    7: "<q",
    8: "<Q",
    9: "<q",
    10: "<Q",
    11: "<b",
    12: "<B",
    13: "<h",
    14: "<H",
    15: "<i",
    16: "<I",
    17: "<q",
    18: "<Q",
    22: "<Q",
}
_CALL = "nccl"
#: More is no message's size; times as many ranks as there can be it must still fit 64 bits.
_MOST_BYTES = 1 << 40
_LOOKED_AT = 500_000


@dataclass(frozen=True)
class _Field:
    name: str
    offset: int
    number: struct.Struct


def told(export: Export, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with what their bytes tell of a collective, in the columns of ``collectives``."""
    own = rows["name"].cast(pl.String).str.starts_with(_CALL).fill_null(value=False)
    carrying = own & rows["binaryData"].is_not_null()
    bare = rows.drop("binaryData")
    if not carrying.any():
        return bare
    schemas = _schemas(export)
    places = carrying.arg_true()
    decoded = [_decoded(data, schemas) for data in rows["binaryData"].gather(places)]
    names = rows["name"].gather(places).cast(pl.String).to_list()
    sizes = _group_sizes(decoded)
    found = [
        (place, *_described(name, fields, sizes))
        for place, name, fields in zip(places, names, decoded, strict=True)
        if fields and collective_of_word(name.removeprefix(_CALL))
    ]
    types = {
        "row": pl.UInt32,
        "collective": pl.String,
        "dtype": pl.String,
        "elements_in": pl.Int64,
        "elements_out": pl.Int64,
        "group": pl.String,
        "group_size": pl.Int32,
    }
    texts = ("collective", "dtype", "group")
    described = pl.DataFrame(found, schema=types, orient="row").cast(
        dict.fromkeys(texts, schema.NAME)
    )
    numbered = bare.with_row_index("row")
    return numbered.join(described, on="row", how="left", maintain_order="left").drop("row")


def ranks(export: Export) -> dict[int, tuple[int, int]]:
    """Rank and number of ranks of each process, by the largest communicator it made.

    Communicators are made when a program begins: only the first ranges are looked at.
    """
    have = export.database.tables.get(layout.NVTX, ())
    if "binaryData" not in have or layout.PAYLOAD_ENTRIES not in export.database.tables:
        return {}
    schemas = _schemas(export)
    told = [number for number, fields in schemas.items() if _RANK in {f.name for f in fields}]
    if not told:
        return {}
    # bytes 9 to 12 of the header are the schema's number
    here = ", ".join(f"x'{struct.pack('<I', number).hex()}'" for number in told)
    rows = export.database.read(
        layout.NVTX,
        integers=("globalTid",),
        blobs=("binaryData",),
        where=f'"binaryData" IS NOT NULL AND substr(CAST("binaryData" AS BLOB), 9, 4) IN ({here})',
        first=_LOOKED_AT,
    )
    found: dict[int, tuple[int, int]] = {}
    for thread, data in rows.drop_nulls().iter_rows():
        fields = _decoded(data, schemas)
        size, rank = fields.get(_RANKS, 0), fields.get(_RANK)
        if rank is None or not 0 <= rank < size <= MOST_RANKS:
            continue
        process = process_of(thread)
        if size > found.get(process, (0, 0))[1]:
            found[process] = rank, size
    return found


def _schemas(export: Export) -> dict[int, list[_Field]]:
    rows = export.database.read(
        layout.PAYLOAD_ENTRIES, integers=("schemaId", "type", "offset"), texts=("name",)
    )
    found: dict[int, list[_Field]] = {}
    for number, kind, offset, name in rows.unique(maintain_order=True).iter_rows():
        if name in _FIELDS and kind in _NUMBERS and number is not None:
            field = _Field(name, offset or 0, struct.Struct(_NUMBERS[kind]))
            found.setdefault(number, []).append(field)
    return found


def _decoded(data: bytes, schemas: dict[int, list[_Field]]) -> dict[str, int]:
    """The fields we know, by name; nothing of bytes that are too short for them."""
    if len(data) < _HEADER.size:
        return {}
    number = _HEADER.unpack_from(data)[2]
    found = {}
    for field in schemas.get(number, ()):
        at = _HEADER.size + field.offset
        if field.offset >= 0 and at + field.number.size <= len(data):
            found[field.name] = field.number.unpack_from(data, at)[0]
    return found


def _group_sizes(decoded: list[dict[str, int]]) -> dict[int, int]:
    """Number of ranks of each communicator that was made while recording."""
    return {
        fields[_COMMUNICATOR]: fields[_RANKS]
        for fields in decoded
        if _COMMUNICATOR in fields and 0 < fields.get(_RANKS, 0) < MOST_RANKS
    }


def _described(name: str, fields: dict[str, int], sizes: dict[int, int]) -> tuple[object, ...]:
    """Collective, dtype, elements in and out, group and its size; a byte is an element.

    NCCL tells what a rank puts in, and for a reduce_scatter what it gets out: a share of that.
    """
    collective = collective_of_word(name.removeprefix(_CALL))
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
