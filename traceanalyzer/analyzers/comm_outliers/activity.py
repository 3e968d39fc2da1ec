"""Activity of a straggler while others waited, and memory of devices during outliers.

Each interval is divided by host and device activity. Host: at every moment the innermost event
counts, on the thread that issued the collective; without one, on the thread that marks steps, then
on the other threads that issue collectives. So an operator takes precedence over the annotation or
Python frame around it, and time inside an annotation outside any operator (Python, or an unrecorded
wait) belongs to the annotation; ``within`` is the enclosing annotation. The host parts of an
interval, including ``nothing recorded``, add up to it exactly.

Device: the sum of overlaps of each kernel, copy or memset, and ``idle`` when none ran. Streams run
in parallel, so these parts may exceed the interval.

NCCL allocates buffers on the device, outside PyTorch's allocator. On a nearly full device it uses
small buffers, or fails; the allocator stops the device to free memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.comm_outliers.arrivals import Window
from traceanalyzer.analyzers.common.names import ADDRESS, frame_text, starting_with
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import Meta, Trace, of_kinds, overlaps
from traceanalyzer.units import format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.memory.usage import Fill

IDLE = "idle"

NOTHING = "nothing recorded"

#: Reported parts of each interval, on each side.
_TOP = 5

#: Share of an interval from which its second largest part is named too.
_WORTH = 0.1

#: Kinds of host activity, most specific first.
_HOST_KINDS = (
    "cpu_op",
    "user_annotation",
    "python_function",
    *vocabulary.LAUNCH_KINDS,
    "nvtx",
    "osrt",
)

_ISSUING = starting_with(vocabulary.PARAM_COMMS, "c10d::", *vocabulary.NCCL_ANNOTATION_PREFIXES)

_ANNOTATIONS = ("user_annotation", "nvtx")

_PART = ("kind", "name", "within", "overlap_ns")

_LONGEST = 70

_TYPES = {
    "window": pl.UInt32,
    "side": pl.String,
    "kind": pl.String,
    "name": pl.String,
    "within": pl.String,
    "overlap_ns": pl.Int64,
    "overlap_frac": pl.Float64,
}

#: From this share of the device's memory on it is nearly full.
NEAR_FULL_FRAC: Final = 0.95

TYPES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "id": pl.UInt32,
    "rank": pl.Int32,
    "device": pl.Int32,
    "collective": pl.String,
    "step": pl.String,
    "duration_ns": pl.Int64,
    "taken_bytes": pl.Int64,
    "capacity_bytes": pl.Int64,
    "taken_frac": pl.Float64,
    "aligned": pl.Boolean,
    "near_full": pl.Boolean,
}


def divide(windows: Sequence[Window], traces: Sequence[Trace]) -> pl.DataFrame:
    """Return the largest parts of every interval: window (its number), side, kind, name, overlap.

    An interval of a rank without a trace has no rows; without host events (or device work) in the
    trace, no rows of that side.
    """
    parts = []
    for number, window in enumerate(windows):
        trace = _trace_of(window, traces)
        if trace is not None:
            parts += [part.with_columns(window=number) for part in _sides(window, trace)]
    rows = [
        pl.DataFrame(schema=_TYPES),
        *(f.select(pl.col(n).cast(t) for n, t in _TYPES.items()) for f in parts),
    ]
    return pl.concat(rows)


def labels(parts: pl.DataFrame, side: str) -> pl.DataFrame:
    """Return ``window`` and a column named after the side with the text of its largest parts.

    ``train_step outside any operator 46.9 ms (99.8 %)``; the second part too if it is a tenth of
    the interval or more.
    """
    order = pl.int_range(pl.len()).over("window")
    rows = parts.filter(pl.col("side") == side).with_columns(order=order)
    second = (pl.col("order") == 1) & (pl.col("overlap_frac") >= _WORTH)
    top = rows.filter((pl.col("order") == 0) | second)
    texts = pl.Series(side, [_label(part) for part in top.iter_rows(named=True)], dtype=pl.String)
    return (
        top.select("window", texts)
        .group_by("window", maintain_order=True)
        .agg(pl.col(side).str.join(", "))
    )


def _label(part: Mapping[str, Any]) -> str:
    what = _short(part["name"])
    if part["side"] == "host" and part["kind"] in _ANNOTATIONS:
        what += " outside any operator"
    elif part["within"] is not None:
        what += f" in {_short(part['within'])}"
    return f"{what} {format_ns(part['overlap_ns'])} ({format_frac(part['overlap_frac'])})"


def _short(name: str) -> str:
    """Return a name short enough for texts; tables have the full name."""
    name = frame_text(name)
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."


def _trace_of(window: Window, traces: Sequence[Trace]) -> Trace | None:
    """Return the trace of the window's rank; the only trace of a file may have another rank."""
    of_file = [trace for trace in traces if trace.meta.path == window.path]
    for trace in of_file:
        if trace.meta.rank in (None, window.rank):
            return trace
    return of_file[0] if len(of_file) == 1 else None


def _sides(window: Window, trace: Trace) -> Iterator[pl.DataFrame]:
    end, spans = pl.col("ts") + pl.col("dur"), [(window.start_ns, window.end_ns)]
    near = trace.events.filter(overlaps(pl.col("ts"), end, spans))
    near = near.with_columns(pl.col("kind").cast(pl.String), start="ts", end=end)
    clipped = intervals.clip(near, window.start_ns, window.end_ns)
    length = window.end_ns - window.start_ns
    if trace.events["kind"].is_in(("cpu_op", "python_function")).any():
        host = clipped.filter(of_kinds(_HOST_KINDS), pl.col("tid").is_not_null())
        parts = _host(host, _threads(trace, window))
        rest = length - int(parts["overlap_ns"].sum())
        yield _largest(parts, "host", NOTHING, rest, length)
    if trace.events["kind"].is_in(vocabulary.DEVICE_WORK).any():
        device = clipped.filter(pl.col("kind").is_in(vocabulary.DEVICE_WORK))
        if window.device is not None:
            device = device.filter(device=window.device)
        rest = length - intervals.measure(device)["length"].item()
        yield _largest(_device(device), "device", IDLE, rest, length)


def _largest(parts: pl.DataFrame, side: str, rest: str, left: int, length: int) -> pl.DataFrame:
    """Return the parts by name and the rest of the interval, largest first."""
    remainder = pl.DataFrame({"name": [rest], "overlap_ns": [left]})
    named = pl.col("name").str.replace(ADDRESS, "")
    return (
        pl.concat([parts, remainder], how="diagonal")
        .group_by("kind", named, "within")
        .agg(pl.col("overlap_ns").sum())
        .filter(pl.col("overlap_ns") > 0)
        .sort("overlap_ns", "name", "kind", "within", descending=[True, False, False, False])
        .head(_TOP)
        .with_columns(side=pl.lit(side), overlap_frac=pl.col("overlap_ns") / length)
    )


def _device(work: pl.DataFrame) -> pl.DataFrame:
    """Return the time in which work of a name runs, on any stream."""
    sums = intervals.measure(work, ["kind", "name"]).rename({"length": "overlap_ns"})
    return _parts(sums.with_columns(within=pl.lit(None, pl.String)))


def _parts(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(_TYPES[name]) for name in _PART)


# --- host ----------------------------------------------------------------------------------


def _threads(trace: Trace, window: Window) -> list[int]:
    """Return the threads to analyse, most relevant first; empty if none issues or marks steps."""
    names = trace.events["name"].drop_nulls().unique().cast(pl.String)
    hosts = trace.events.filter(pl.col("tid").is_not_null())
    issuing = hosts.filter(pl.col("name").is_in(_matching(names, _ISSUING)))
    marking = hosts.filter(pl.col("name").is_in(_matching(names, vocabulary.steps_pattern())))
    last = issuing.filter(pl.col("ts") <= window.end_ns).tail(1)
    return list(dict.fromkeys([*last["tid"], *marking["tid"], *issuing["tid"]]))


def _matching(names: pl.Series, pattern: str) -> list[str]:
    return names.filter(names.str.contains(pattern)).to_list()


def _host(events: pl.DataFrame, threads: Sequence[int]) -> pl.DataFrame:
    """Return the innermost events and their time; no moment is counted twice."""
    parts = [pl.DataFrame(schema={name: _TYPES[name] for name in _PART})]
    covered = events.select("start", "end").clear()
    for tid in threads or events["tid"].unique().sort().to_list():
        on_thread = events.filter(pl.col("tid") == tid)
        pieces = intervals.overlap_with(_innermost(on_thread), covered)
        free = pl.col("end") - pl.col("start") - pl.col("overlap")
        parts.append(_parts(pieces.with_columns(overlap_ns=free)))
        covered = pl.concat([covered, on_thread.select("start", "end")])
    return pl.concat(parts)


def _innermost(events: pl.DataFrame) -> pl.DataFrame:
    """Divide one thread's time at starts and ends, each piece with its innermost event.

    ``within`` is the innermost annotation around that event, except the step's.
    """
    edges = pl.concat([events["start"], events["end"]]).unique().sort()
    pieces = pl.DataFrame({"ts": edges, "start": edges, "end": edges.shift(-1)}).drop_nulls()
    rows = linking.enclosing(pieces, events).drop_nulls("slice")
    inner = rows.with_columns(events[name].gather(rows["slice"]) for name in ("kind", "name"))
    ranges = events.filter(
        of_kinds(_ANNOTATIONS),
        ~pl.col("name").cast(pl.String).str.contains(vocabulary.steps_pattern()),
    )
    around = linking.enclosing(rows.select("ts"), ranges)["slice"]
    is_range = of_kinds(_ANNOTATIONS)
    return inner.with_columns(
        within=pl.when(~is_range).then(ranges["name"].cast(pl.String).gather(around))
    )


# --- memory --------------------------------------------------------------------------------


def fullness(
    outliers: pl.DataFrame, metas: Mapping[str, Meta], fills: Sequence[Fill]
) -> pl.DataFrame:
    """Return how full the device was during each outlier with memory data.

    Args:
        outliers: rows of ``CommOutliers.outliers()``.
        metas: metadata of the traces, by path.
        fills: memory of devices over time. Each belongs to the outliers of its rank and device;
            without a rank, to those of the only rank.

    Returns:
        A row per outlier: id, rank, device, collective, step, duration_ns, taken_bytes (maximum
        during the outlier), capacity_bytes (null if not recorded), taken_frac, aligned (whether
        that is at the same time; otherwise it is the maximum of the whole history) and near_full.
    """
    alone = outliers["rank"].n_unique() == 1
    rows = []
    for row in outliers.iter_rows(named=True):
        fill = _of(row, fills, alone)
        meta = metas.get(row["path"])
        if fill is None or meta is None:
            continue
        begin = row["ts"] + (meta.epoch_ns or 0)
        taken, aligned = fill.taken(begin, begin + row["duration_ns"])
        capacity = _capacity(meta, row["device"])
        frac = taken / capacity if capacity else None
        rows.append(
            {
                **{name: row[name] for name in TYPES if name in row},
                "taken_bytes": taken,
                "capacity_bytes": capacity,
                "taken_frac": frac,
                "aligned": aligned and meta.epoch_ns is not None,
                "near_full": frac is not None and frac >= NEAR_FULL_FRAC,
            }
        )
    return pl.DataFrame(rows, schema=TYPES)


def _of(row: Mapping[str, Any], fills: Sequence[Fill], alone: bool) -> Fill | None:
    """Return the memory of an outlier's device."""
    of_rank = [f for f in fills if f.rank == row["rank"] or (f.rank is None and alone)]
    exact = [f for f in of_rank if row["device"] is not None and f.device == row["device"]]
    # a process with one visible device numbers it 0
    return exact[0] if exact else of_rank[0] if len(of_rank) == 1 else None


def _capacity(meta: Meta, device: int | None) -> int | None:
    """Return the memory of a device; if all devices have the same, that of any."""
    known = {one.id: one.total_bytes for one in meta.devices if one.total_bytes}
    if device in known:
        return known[device]
    return next(iter(known.values())) if len(set(known.values())) == 1 else None
