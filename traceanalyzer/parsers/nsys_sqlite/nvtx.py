"""NVTX: ranges that programs and libraries mark, their domains, and what they carry.

A range that starts on one thread and ends on another belongs to neither: its ``tid`` is null.

PyTorch's ``emit_nvtx`` writes what it knows of an operator's call into the name, which is another
one for every call: ``aten::mul, seq = 45328, op_id = 990727``. The name is then ``aten::mul``, as a
Kineto trace has it, and the rest is in ``args`` where those are asked for.
"""

from __future__ import annotations

import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.parsers.nsys_sqlite import layout, payloads
from traceanalyzer.parsers.nsys_sqlite.database import Shape
from traceanalyzer.parsers.nsys_sqlite.export import Export, kind, pid, process_of, span, tid

_PUSH_POP = 59
_START_END = 60
_MARK = 34
#: Ranges and marks that a program wrote as text for a later import.
_TEXT_EVENTS = (70, 71)
_THREAD_NAME = 39
#: Threads are named before much else is marked.
_LOOKED_AT = 20_000
_DOMAIN = 75
_EVENTS = (_PUSH_POP, _START_END, _MARK, *_TEXT_EVENTS)
#: An SQL condition: the row is a range or mark, not the creation of a domain or a name.
HAPPENED = f'"eventType" IN ({", ".join(map(str, _EVENTS))})'
_VALUES = ("uint64Value", "int64Value", "uint32Value", "int32Value")
_REALS = ("doubleValue", "floatValue")
#: What ``emit_nvtx`` adds to the name of an operator begins with the first of these that is there.
_CALL = (", seq = ", ", op_id = ", ", sizes = [")


def ranges(export: Export) -> pl.DataFrame:
    """One row a range or mark; the category is the domain's name, null for the default domain.

    With ``args`` asked for, the payload as JSON; a call of NCCL carries what it communicates.
    """
    have = export.database.tables[layout.NVTX]
    inside = export.inside()
    carried = "args" in export.selection.columns
    blobs = "binaryData" in have and layout.PAYLOAD_ENTRIES in export.database.tables
    created: list[pl.DataFrame] = []
    wanted = f"{HAPPENED} AND ({inside})" if inside else HAPPENED
    rows = export.database.read(
        layout.NVTX,
        integers=("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId")
        + (_VALUES if carried else ()),
        texts=("text", *(("jsonText",) if carried else ())),
        reals=_REALS if carried else (),
        blobs=("binaryData",) if blobs else (),
        where=f'({wanted}) OR "eventType" = {_DOMAIN}',
        shape=_shaped(created, carried=carried, blobs=blobs),
    )
    named = rows.with_columns(_text(export, rows)).drop("textId")
    domains = _domain_names(export, rows, pl.concat(created))
    told = named.with_columns(kind("nvtx"), domains).drop("domainId")
    return payloads.told(export, told) if blobs else told


def thread_names(export: Export) -> dict[int, str]:
    """Names that a program gave its threads when it began, by global thread id."""
    rows = export.database.read(
        layout.NVTX,
        integers=("globalTid", "textId"),
        texts=("text",),
        where=f'"eventType" = {_THREAD_NAME}',
        first=_LOOKED_AT,
    ).drop_nulls("globalTid")
    registered = export.texts(rows["textId"])
    named = {thread: text or registered.get(number) for thread, number, text in rows.iter_rows()}
    return {thread: name for thread, name in named.items() if name}


def _shaped(created: list[pl.DataFrame], *, carried: bool, blobs: bool) -> Shape:
    """What a piece of the table becomes; the domains created in it are added to a list."""
    crosses = pl.col("endGlobalTid").is_not_null() & (pl.col("endGlobalTid") != pl.col("globalTid"))
    thread = pl.when(~crosses).then(tid("globalTid")).alias("tid")
    columns = [
        *span(),
        pid("globalTid"),
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
    """Characters of the name of an operator that ``emit_nvtx`` wrote; null for other texts."""
    return pl.coalesce(pl.col("text").str.find(word, literal=True) for word in _CALL)


def _args() -> pl.Expr:
    """The payload as JSON text, null where there is none."""
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
    """A JSON object of one member, from the value's text; null where there is none."""
    return pl.concat_str(pl.lit(f'{{"{name}": '), value, pl.lit("}"))


def _quoted(text: pl.Expr) -> pl.Expr:
    """Text as a JSON string; control characters, which JSON does not allow, become spaces."""
    escaped = text.str.replace_all("\\", "\\\\", literal=True).str.replace_all(
        '"', '\\"', literal=True
    )
    return pl.format('"{}"', escaped.str.replace_all(r"[\x00-\x1f]", " "))


def _text(export: Export, rows: pl.DataFrame) -> pl.Series:
    """The name: the text itself, else the registered string."""
    if not rows["textId"].len() or rows["textId"].null_count() == rows.height:
        return rows["name"]
    registered = export.named(rows["textId"])
    return rows.select(pl.coalesce("name", registered).alias("name"))["name"]


def _domain_names(export: Export, rows: pl.DataFrame, created: pl.DataFrame) -> pl.Series:
    """The domain of each row; one whose creation was not recorded is called by its number."""
    if not (rows["domainId"] != 0).any():
        return pl.repeat(None, rows.height, dtype=schema.NAME, eager=True).alias("category")
    registered = export.texts(created["textId"])
    told = {
        (process_of(thread), domain): text or registered.get(number)
        for thread, number, domain, text in created.drop_nulls(
            ["globalTid", "domainId"]
        ).iter_rows()
    }
    first, number = numbered([rows["pid"], rows["domainId"]])
    names = [
        None if not domain else told.get((process, domain)) or f"domain {domain}"
        for process, domain in rows.select("pid", "domainId")[first].iter_rows()
    ]
    return pl.Series("category", names, dtype=schema.NAME).gather(pl.Series(number))
