"""The ``args`` of events as JSON text.

Typed columns become the arguments that Kineto writes, under Kineto's names. What was a Chrome trace
and was read with the arguments' own text (column ``args``) is written with that text and nothing
else: all that is typed was read from it. Text of other formats, such as the payload of an NVTX
range, is one more argument, ``args``, and so is a ``category`` that is no word for a kind. Text
that is no JSON, as damaged files leave it, becomes a JSON string.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl

from traceanalyzer.exporters.chrome_trace.text import member, members, quoted, quoted_column
from traceanalyzer.exporters.chrome_trace.tracks import ORIGINAL_TID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceanalyzer.trace import Trace

_KERNELS = {
    "grid": "grid",
    "block": "block",
    "registers": "registers per thread",
    "shared_memory": "shared memory",
}
_COLLECTIVES = {
    "collective": "Collective name",
    "dtype": "dtype",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "group": "Process Group Name",
    "group_size": "Group size",
    "group_ranks": "Process Group Ranks",
    "seq": "Seq",
}
_MEMORY = {
    "device_type": "Device Type",
    "allocated_bytes": "Total Allocated",
    "reserved_bytes": "Total Reserved",
}

#: The format whose arguments are all of what is typed.
_CHROME = "chrome-trace"

_items = msgspec.json.Decoder(list[msgspec.Raw])


def with_arguments(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of ``events``, with their number as ``event``, and the text of all their arguments.

    Args:
        trace: the trace the rows are of.
        rows: consecutive rows, with ``original``, the own tid of a row on an overflow track, and
            ``own_category``, whether the category is written elsewhere.

    Returns:
        The rows with ``arguments``, null where there are none.
    """
    of_memory = _side(trace.memory_totals, rows, _MEMORY)
    frame = rows.with_columns(is_memory=pl.col("event").is_in(of_memory["event"].implode()))
    for name, side in (
        ("kernel", _side(_with_triples(trace.launch_configs, rows), rows, _KERNELS)),
        ("collective", _side(trace.collectives, rows, _COLLECTIVES)),
        ("memory", of_memory),
    ):
        named = side.rename({"members": name})
        frame = frame.join(named, on="event", how="left", maintain_order="left")
    own_texts = [name for name in ("args", "input_dims") if name in frame.columns]
    frame = frame.with_columns(_valid(frame[name]) for name in own_texts)
    if _has_own_text(trace):
        return frame.with_columns(arguments=_with_origin())
    typed = members(*_typed(frame), *_further(frame))
    built = pl.when(typed != "").then(pl.concat_str(pl.lit("{"), typed, pl.lit("}")))
    return frame.with_columns(arguments=built)


def _has_own_text(trace: Trace) -> bool:
    """Whether the arguments' whole text is there; a column of nulls was asked for, not stored."""
    is_chrome = all(meta.format == _CHROME for meta in trace.sources)
    return is_chrome and "args" in trace.events.columns and trace.events["args"].count() > 0


def _typed(frame: pl.DataFrame) -> list[pl.Expr]:
    device, size = pl.col("device"), pl.col("bytes")
    input_dims = [member("Input Dims", pl.col("input_dims"))] * ("input_dims" in frame.columns)
    return [
        member(ORIGINAL_TID, pl.col("original")),
        member("External id", pl.col("external_id")),
        member("correlation", pl.col("correlation")),
        pl.when("is_memory").then(member("Device Id", device)).otherwise(member("device", device)),
        member("stream", pl.col("stream")),
        pl.when("is_memory").then(member("Bytes", size)).otherwise(member("bytes", size)),
        member("Addr", pl.col("address")),
        pl.col("kernel"),
        pl.col("collective"),
        pl.col("memory"),
        *input_dims,
    ]


def _further(frame: pl.DataFrame) -> list[pl.Expr]:
    """What the columns of other formats tell besides."""
    category = pl.when(~pl.col("own_category")).then(quoted_column(frame["category"]))
    text = [member("args", pl.col("args"))] * ("args" in frame.columns)
    return [member("category", category), *text]


def _with_origin() -> pl.Expr:
    """The given text, with the own tid put in front where the row lies on an overflow track."""
    given, origin = pl.col("args"), member(ORIGINAL_TID, pl.col("original"))
    rest = given.str.slice(1)
    comma = pl.when(rest.str.strip_chars_start().str.starts_with("}")).then(pl.lit(""))
    moved = (
        pl.when(given.str.starts_with("{"))
        .then(pl.concat_str(pl.lit("{"), origin, comma.otherwise(pl.lit(",")), rest))
        .otherwise(pl.concat_str(pl.lit("{"), origin, pl.lit(',"args":'), given, pl.lit("}")))
    )
    bare = pl.concat_str(pl.lit("{"), origin, pl.lit("}"))
    return pl.when(pl.col("original").is_null()).then(given).otherwise(pl.coalesce(moved, bare))


def _side(table: pl.DataFrame, rows: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """``event`` and ``members``, null where there are none, of a side table for these rows."""
    own = _of_rows(table, rows)
    values = (
        member(key, quoted_column(own[name]) if own[name].dtype == pl.Categorical else pl.col(name))
        for name, key in names.items()
    )
    text = members(*values).replace("", None)
    return own.select("event", members=text).unique("event", keep="first")


def _with_triples(kernels: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    return _of_rows(kernels, rows).with_columns(
        pl.format(
            "[{},{},{}]",
            *(pl.col(f"{name}_{axis}").cast(pl.String).fill_null("null") for axis in "xyz"),
        ).alias(name)
        for name in ("grid", "block")
    )


def _of_rows(table: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    if rows.is_empty():
        return table.clear()
    return table.filter(pl.col("event").is_between(rows["event"][0], rows["event"][-1]))


def _valid(texts: pl.Series) -> pl.Series:
    """The given texts, those that are no JSON value as a JSON string."""
    given = [text.encode() for text in texts.drop_nulls()]
    try:
        # compared one by one: no text can be half a value that another one completes
        if list(map(bytes, _items.decode(b"[" + b",".join(given) + b"]"))) == given:
            return texts
    except msgspec.DecodeError:
        pass
    return texts.map_elements(_as_value, return_dtype=pl.String)


def _as_value(text: str) -> str:
    try:
        is_value = len(_items.decode(f"[{text}]")) == 1
    except msgspec.DecodeError:
        is_value = False
    return text if is_value else quoted(text)
