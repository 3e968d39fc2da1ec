"""Format tables as trace events: slices with their arguments, flow points, counters, samples.

Typed columns become arguments with Kineto's names. If the source is a Chrome trace and was read
with the arguments' text (column ``args``), only that text is written: typed columns were read from
it. Text of other formats, such as the payload of an NVTX range, becomes the argument ``args``, and
a category that does not name a kind the argument ``category``. Invalid JSON from damaged files
becomes a JSON string.
"""

from collections.abc import Iterator, Mapping

import msgspec
import polars as pl

from traceanalyzer.exporters.chrome_trace.tracks import (
    ORIGINAL_TID,
    PLACE,
    PROCESS,
    THREAD,
    Tracks,
    lookup,
    member,
    members,
    microseconds,
    quoted,
    quoted_column,
)
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import kind_of_category

#: Rows per batch: about 50 MB of text.
ROWS = 1 << 16

#: Kinds determined by the phase, whatever the category.
_OF_PHASE = ("async", "sample", "object")

#: Samples of a sampling profiler, written as ``samples``; others are written as events.
_IS_SAMPLE = (pl.col("kind") == "sample") & pl.col("weight").is_not_null()

_is_async = pl.col("kind") == "async"
_is_open = pl.col("dur").is_null()

#: Beginning of an event: the first match is used.
_SHAPES = (
    (_is_async & _is_open, '{"ph":"n"'),
    (_is_async, '{"ph":"b"'),
    (pl.col("kind") == "object", '{"ph":"N"'),
    (pl.col("kind") == "sample", '{"ph":"P"'),
    (_is_open, '{"ph":"i","s":"t"'),
    (pl.lit(value=True), '{"ph":"X"'),
)

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
    "source": "Src Rank",
    "target": "Dst Rank",
    "splits_in": "In split size",
    "splits_out": "Out split size",
}
_INPUTS = {
    "input_dims": "Input Dims",
    "input_types": "Input type",
    "concrete_inputs": "Concrete Inputs",
}
_MEMORY = {
    "device_type": "Device Type",
    "allocated_bytes": "Total Allocated",
    "reserved_bytes": "Total Reserved",
}

#: The format whose ``args`` include all typed columns.
_CHROME = "chrome-trace"

_items = msgspec.json.Decoder(list[msgspec.Raw])

_PHASES = {"start": "s", "step": "t", "end": "f"}


def slice_texts(trace: Trace, tracks: Tracks) -> Iterator[pl.Series]:
    """Yield every event except samples, in table order: ``X``, ``i`` if open, async as a pair."""
    for first in range(0, trace.events.height, ROWS):
        rows = (
            trace.events.slice(first, ROWS)
            .drop("rank", "pid", "tid")
            .with_row_index("event", first)
            .hstack(tracks.of_event.slice(first, ROWS))
        )
        rows = lookup(rows, tracks.places, PLACE)
        rows = rows.with_columns(keeps_category=_is_kept(rows["category"]))
        texts = rows.select(_category(rows["category"]), quoted_column(rows["name"]))
        frame = _with_arguments(trace, rows).with_columns(texts)
        yield frame.filter(~_IS_SAMPLE).select(_event(frame)).to_series()


def _event(frame: pl.DataFrame) -> pl.Expr:
    phase = pl.coalesce(pl.when(is_so).then(pl.lit(text)) for is_so, text in _SHAPES)
    begin = members(
        phase,
        *_identity(),
        member("ts", microseconds(pl.col("ts"))),
        member("dur", microseconds(pl.when(~_is_async).then("dur"))),
        member("sf", pl.col("stack")),
        member("args", pl.col("arguments")),
    )
    parts = [begin, pl.lit("}")]
    if (frame["kind"] == "async").any():
        parts.append(pl.when(_is_async & ~_is_open).then(_async_end()))
    return pl.concat_str(parts, ignore_nulls=True)


def _async_end() -> pl.Expr:
    end = member("ts", microseconds(pl.col("ts") + pl.col("dur")))
    return pl.concat_str(pl.lit(',\n{"ph":"e",'), members(*_identity(), end), pl.lit("}"))


def _identity() -> list[pl.Expr]:
    """Return the members of both ends of an async event; objects have a row number as id too."""
    return [
        member("cat", pl.col("category")),
        member("name", pl.col("name")),
        pl.col("where"),
        member("id", pl.when(_is_async | (pl.col("kind") == "object")).then("event")),
    ]


def _is_kept(category: pl.Series) -> pl.Expr:
    """Whether a row's category is written as ``cat``, because it determines the row's kind.

    True for Chrome traces; the domain of an NVTX range does not determine its kind.
    """
    distinct = category.drop_nulls().unique()
    kinds = [kind_of_category(text) for text in distinct.cast(pl.String)]
    implied = pl.col("category").replace_strict(
        distinct, pl.Series(kinds, dtype=pl.String), default=None, return_dtype=pl.String
    )
    kind = pl.col("kind").cast(pl.String)
    return (implied == kind) | kind.is_in(_OF_PHASE) | _is_memory()


def _category(category: pl.Series) -> pl.Expr:
    """Return the original category, or else the kind, as Kineto's categories are kinds."""
    implied = pl.col("kind").is_in([*_OF_PHASE, "other"]) | _is_memory()
    kind = pl.concat_str(pl.lit('"'), pl.col("kind").cast(pl.String), pl.lit('"'))
    original = pl.when("keeps_category").then(quoted_column(category))
    return pl.coalesce(original, pl.when(~implied).then(kind)).alias("category")


def _is_memory() -> pl.Expr:
    """Whether a row is a PyTorch allocation, by its name."""
    return (pl.col("name") == "[memory]").fill_null(value=False)


# --- arguments ---------------------------------------------------------------------------------


def _with_arguments(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the text of all arguments to rows of ``events``.

    Args:
        trace: the trace.
        rows: consecutive rows, with their number as ``event``, ``original``, the original tid of a
            row on an overflow track, and ``keeps_category``, whether the category is written as
            ``cat``.

    Returns:
        The rows with ``arguments``, null without any.
    """
    of_memory = _side(trace.memory_totals, rows, _MEMORY)
    frame = rows.with_columns(is_memory=pl.col("event").is_in(of_memory["event"].implode()))
    for name, side in (
        ("kernel", _side(_with_triples(trace.launch_configs, rows), rows, _KERNELS)),
        ("collective", _side(_with_ends(trace.collectives), rows, _COLLECTIVES)),
        ("memory", of_memory),
    ):
        named = side.rename({"members": name})
        frame = frame.join(named, on="event", how="left", maintain_order="left")
    json_columns = [name for name in ("args", *_INPUTS) if name in frame.columns]
    frame = frame.with_columns(_valid(frame[name]) for name in json_columns)
    if _has_full_args(trace):
        return frame.with_columns(arguments=_with_origin())
    typed = members(*_typed(frame), *_further(frame))
    built = pl.when(typed != "").then(pl.concat_str(pl.lit("{"), typed, pl.lit("}")))
    return frame.with_columns(arguments=built)


def _has_full_args(trace: Trace) -> bool:
    """Whether the trace has the full text of arguments; a column of nulls was not stored."""
    is_chrome = all(meta.format == _CHROME for meta in trace.sources)
    return is_chrome and "args" in trace.events.columns and trace.events["args"].count() > 0


def _typed(frame: pl.DataFrame) -> list[pl.Expr]:
    device, size = pl.col("device"), pl.col("bytes")
    inputs = [member(key, pl.col(of)) for of, key in _INPUTS.items() if of in frame.columns]
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
        *inputs,
    ]


def _further(frame: pl.DataFrame) -> list[pl.Expr]:
    """Return additional arguments for sources of other formats."""
    category = pl.when(~pl.col("keeps_category")).then(quoted_column(frame["category"]))
    text = [member("args", pl.col("args"))] * ("args" in frame.columns)
    return [member("category", category), *text]


def _with_origin() -> pl.Expr:
    """Return the arguments' text, with the original tid first for rows on an overflow track."""
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


def _with_ends(collectives: pl.DataFrame) -> pl.DataFrame:
    """Add ``source`` of a receive and ``target`` of a send, as PyTorch records the peer."""
    kind = pl.col("collective").cast(pl.String)
    return collectives.with_columns(
        source=pl.when(kind == "recv").then("peer"), target=pl.when(kind == "send").then("peer")
    )


def _side(table: pl.DataFrame, rows: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """Return ``event`` and ``members`` (null if empty) of a side table for these rows."""
    side = _of_rows(table, rows)
    values = (
        member(
            key, quoted_column(side[name]) if side[name].dtype == pl.Categorical else pl.col(name)
        )
        for name, key in names.items()
    )
    text = members(*values).replace("", None)
    return side.select("event", members=text).unique("event", keep="first")


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
    """Return the texts, with invalid JSON converted to a JSON string."""
    given = [text.encode() for text in texts.drop_nulls()]
    try:
        # compared one by one: two invalid texts may form a valid value together
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


# --- flows, counters, samples ------------------------------------------------------------------


def flow_texts(trace: Trace, tracks: Tracks) -> Iterator[pl.Series]:
    """Yield every flow point, on the track of its slice, with the arrow's number as id.

    An end is bound to the slice around it (``"bp":"e"``, like Kineto), unless its slice begins
    later.
    """
    slices = tracks.of_event.with_columns(begin=trace.events["ts"])
    for points in trace.flows.iter_slices(ROWS):
        bound = slices.select(pl.all().gather(points["event"]).name.suffix("_slice"))
        same = pl.all_horizontal(
            pl.col(f"{name}_slice").eq_missing(pl.col(name)) for name in THREAD
        )
        lane = pl.when(same).then("lane_slice").fill_null(0)
        placed = lookup(points.hstack(bound).with_columns(lane=lane), tracks.places, PLACE)
        yield placed.select(_flow(placed)).to_series()


def _flow(frame: pl.DataFrame) -> pl.Expr:
    is_end = pl.col("phase") == "end"
    later = (pl.col("begin_slice") > pl.col("ts")).fill_null(value=False)
    phase = pl.col("phase").cast(pl.String).replace_strict(_PHASES)
    origin = member(ORIGINAL_TID, pl.col("original"))
    text = members(
        pl.concat_str(pl.lit('{"ph":"'), phase, pl.lit('"')),
        member("id", pl.col("flow")),
        pl.col("where"),
        member("ts", microseconds(pl.col("ts"))),
        member("cat", quoted_column(frame["category"])),
        member("name", quoted_column(frame["name"])),
        pl.when(is_end & ~later).then(pl.lit('"bp":"e"')),
        pl.concat_str(pl.lit('"args":{'), origin, pl.lit("}")),
    )
    return text + "}"


def counter_texts(trace: Trace, tracks: Tracks) -> pl.Series:
    """Return counter readings; adjacent readings of one counter and time share an event."""
    finite = trace.counters.filter(pl.col("value").is_finite())
    frame = lookup(finite, tracks.processes, PROCESS)
    same_event = pl.struct("ts", "name", *PROCESS).rle_id().alias("run")
    # an event has one reading per series
    again = pl.int_range(pl.len()).over("run", "series").alias("again")
    readings = frame.with_columns(same_event).with_columns(again)
    reading = pl.concat_str(quoted_column(frame["series"]), pl.lit(":"), "value")
    events = readings.group_by("run", "again", maintain_order=True).agg(
        pl.first("ts", "name", "process"), args=reading.str.join(",")
    )
    text = members(
        pl.lit('{"ph":"C"'),
        member("name", quoted_column(events["name"])),
        member("pid", pl.col("process")),
        member("ts", microseconds(pl.col("ts"))),
        pl.concat_str(pl.lit('"args":{'), "args", pl.lit("}")),
    )
    return events.select(text + "}").to_series()


def frame_texts(trace: Trace) -> pl.Series:
    """Return the members of ``stackFrames``: row of ``stacks`` -> function, file and caller."""
    text = members(
        member("name", quoted_column(trace.stacks["name"])),
        member("category", quoted_column(trace.stacks["file"])),
        pl.concat_str(pl.lit('"parent":"'), "parent", pl.lit('"')),
    )
    return trace.stacks.select(
        pl.concat_str(pl.lit('"'), "id", pl.lit('":{'), text, pl.lit("}"))
    ).to_series()


def sample_texts(trace: Trace, tracks: Tracks) -> pl.Series:
    """Return the items of ``samples``."""
    samples = lookup(trace.events.filter(_IS_SAMPLE), tracks.processes, PROCESS)
    samples = lookup(samples, tracks.threads, THREAD)
    text = members(
        pl.concat_str(pl.lit('{"ts":'), microseconds(pl.col("ts"))),
        member("name", quoted_column(samples["name"])),
        member("pid", pl.col("process")),
        member("tid", pl.coalesce("thread", pl.col("tid").cast(pl.String))),
        member("sf", pl.col("stack")),
        member("weight", pl.col("weight")),
    )
    return samples.select(text + "}").to_series()
