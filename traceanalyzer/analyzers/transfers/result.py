"""Result of the transfers analysis: data, verdict, notes, tables and charts."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.columns import sum_if_known
from traceanalyzer.analyzers.common.display import (
    headings,
    places,
    sentences,
    stacked,
    table_of_known,
)
from traceanalyzer.analyzers.common.gpu_api import XLA, Api
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

#: Direction of a memset.
SET = "memset"
#: The direction of a copy without a name.
NAMELESS = "unknown"

_BOUNDS = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
#: Copies of fewer bytes are small: latency dominates.
SMALL_BYTES = _BOUNDS[1]

_BOUND_LABELS = tuple(map(format_bytes, _BOUNDS))
_CLASSES = (
    f"< {_BOUND_LABELS[0]}",
    *(f"{low} - {high}" for low, high in pairwise(_BOUND_LABELS)),
    f">= {_BOUND_LABELS[-1]}",
)
#: The classes of small copies.
SMALL_SIZES = _CLASSES[: _BOUNDS.index(SMALL_BYTES) + 1]
UNKNOWN = "unknown"
SIZE = pl.Enum((*_CLASSES, UNKNOWN))

#: ``Memcpy HtoD (Pinned -> Device)``, ``Memset (Device)``.
_NAME = re.compile(r"^(?:Memcpy (?P<direction>.+?)|Memset)(?: \((?P<memory>.+)\))?$")

#: Directions as Intel's PTI names them.
_OF_INTEL = {"M2D": "HtoD", "D2M": "DtoH"}

PAGEABLE = "pageable"
SMALL = "small-copies"
EXPOSED = "exposed-copies"
MIGRATIONS = "migrations"

#: The findings, and what to do about each.
ADVICE = {
    PAGEABLE: "pin the host memory (pin_memory=True, tensor.pin_memory()) and copy with "
    "non_blocking=True; traceanalyzer cuda-api shows how long these copies block the host",
    EXPOSED: "copy between host and pinned memory with non_blocking=True on a separate stream to "
    "overlap with kernels of the previous step",
    MIGRATIONS: "prefetch managed memory before kernels use it (cudaMemPrefetchAsync), set its "
    "location (cudaMemAdvise), or allocate with cudaMalloc and copy once; kernels and host threads "
    "stall at each page fault until the pages have migrated",
    SMALL: "gather them into one buffer and copy that once: each copy costs some microseconds "
    "regardless of its size",
}

#: Exposed copies that need not be pinned.
_PINNED = "pinned"
_ADVICE_PINNED = (
    "start them earlier, with non_blocking=True on a separate stream, to overlap with kernels of "
    "the previous step"
)
#: Other advice for programs without PyTorch.
_ADVICE_ELSEWHERE = {
    PAGEABLE: "pin the host memory (cudaMallocHost, cudaHostRegister) and copy with "
    "cudaMemcpyAsync; traceanalyzer cuda-api shows how long these copies block the host",
    EXPOSED: "copy between device and pinned memory with cudaMemcpyAsync on a separate stream to "
    "overlap with kernels",
    _PINNED: "start them earlier, with cudaMemcpyAsync on a separate stream, to overlap with "
    "kernels",
}
#: Advice for copies in programs of JAX and TensorFlow, which copy by themselves.
OF_XLA = (
    "read arrays on the host less often (np.asarray, float(), device_get, .numpy()), only the "
    "numbers needed (reduce on the device), or one step later (JAX: x.copy_to_host_async() before "
    "the read); put inputs on the device ahead of their step (jax.device_put, tf.data prefetch)"
)
#: No memory is faster: a row with a higher bandwidth has durations that are too short.
MOST_GBPS = 30_000
_NEVER_PAGEABLE = r"Pinned|Managed"

_SCHEMA = pl.Schema(
    {
        "finding": pl.Enum(tuple(ADVICE)),
        "what": pl.String(),
        "n": pl.Int64(),
        "moved_bytes": pl.Int64(),
        "total_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
        "advice": pl.String(),
    }
)

_PAGEABLE = "Pageable"
#: Directions from or to the host.
_HOST = r"^(?:HtoD|DtoH|HtoA|AtoH)$"
#: Directions of migrations of managed memory.
_UVM = "UVM "
#: Least number of small copies for a finding.
_MANY = 100
#: Least share of small copies of a direction for a finding.
_MOSTLY = 0.5

_NAMED = 3

#: Least share of device time to report copies.
_WORTH_FRAC = 0.01

#: Columns that show which rows have no bandwidth although size and duration are known.
_RATED = ("direction", "moved_bytes", "total_ns", "rate_gbps")
#: Rates above this are formatted without decimals.
_GREAT_GBPS = 100

_WAY = "direction, memory"
_AMOUNT = "n, moved_bytes: moved, total_ns: total"
_SPEED = "rate_gbps: bandwidth, exposed_frac: exposed"
_FINDINGS = headings("finding, what, n, moved_bytes: moved, total_ns: time, exposed_ns: exposed")
_COPIES = headings(f"{_WAY}, {_AMOUNT}, min_ns: min, median_ns: median, max_ns: max, {_SPEED}")
_SIZES = headings(f"{_WAY}, size, {_AMOUNT}, median_ns: median, {_SPEED}")
#: Columns that a narrow terminal hides before the bandwidth.
_LESS = ("min_ns", "max_ns", "median_ns", "n", "total_ns")
_DEVICES = headings(
    f"""on: device, {_AMOUNT}, busy_ns: busy copying, busy_frac: of span,
    alone_ns: without a kernel, alone_frac: share of span"""
)


@dataclass(frozen=True, eq=False, repr=False)
class Transfers(Result):
    """Result of the transfers analysis: copies and memsets, bandwidth and overlap.

    Rows of ``copies``, ``sizes`` and ``by_device`` have n, moved_bytes (null if not recorded),
    total_ns, min_ns, median_ns, max_ns, rate_gbps (bytes over time, in 10^9 bytes per second; null
    above :data:`MOST_GBPS`),
    exposed_n and exposed_ns (copies, and their time, while no kernel ran on the device; exposed_ns
    is null without recorded kernels) and exposed_frac (of total_ns).

    Attributes:
        n: number of copies and memsets.
        moved_bytes: the sum of their sizes.
        total_ns: the sum of their durations.
        span_ns: first start to last end of device work, summed over devices.
        alone_ns: time in which a device runs copies or memsets but no kernel, summed over devices;
            None without recorded kernels.
        findings: one row per finding: finding, what, n, moved_bytes, total_ns, exposed_ns, advice.
        copies: by direction (``HtoD`` ...; ``set``) and memory; the largest total first.
        sizes: the same by size, a class.
        devices: one row per device: rank, path, device, n, moved_bytes, total_ns, span_ns (first to
            last device work), busy_ns (in which a copy or memset runs), alone_ns (the part of it
            without a kernel), busy_frac and alone_frac (of the span).
        by_device: ``copies`` by rank, path and device.
        both_directions: moved_bytes, up, down: number of copies from and to the host, by size.
        unsized: number of copies and memsets without a recorded size.
        unfinished: number of copies and memsets without an end, which are not counted.
        faults: page faults of managed memory: rank, path, on_gpu, n (on a GPU: fault groups that
            were handled together), total_ns (0 on a CPU, where durations are not recorded).
        stalled: kernel, total_ns: GPU page faults (without them migrations) while it runs.
        program: GPU API and framework of the program.
    """

    question = "What is copied, how fast, and is it overlapped?"
    scalar_names = "n, moved_bytes, total_ns, span_ns, alone_ns, unsized, unfinished"

    n: int
    moved_bytes: int
    total_ns: int
    span_ns: int
    alone_ns: int | None
    findings: pl.DataFrame
    copies: pl.DataFrame
    sizes: pl.DataFrame
    devices: pl.DataFrame
    by_device: pl.DataFrame
    both_directions: pl.DataFrame
    unsized: int
    unfinished: int
    faults: pl.DataFrame
    stalled: pl.DataFrame
    program: Api

    @cached_property
    def round_trips(self) -> str:
        """A sentence if as much data goes to the device as back in as many copies; else empty.

        Then a program copies the same data there and back, for example around each kernel.
        """
        rows = self.copies.filter(pl.col("direction").is_in(("HtoD", "DtoH")))
        sums = rows.group_by("direction").agg(pl.col("n", "moved_bytes").sum())
        if sums.height < 2:
            return ""
        (n, size), most = (one.row(0)[1:] for one in (sums.min(), sums.max()))
        alike = n >= (1 - _ALIKE) * most[0] and size >= (1 - _ALIKE) * most[1]
        if n < _SEVERAL or size < SMALL_BYTES or not alike:
            return self._several_arrays()
        return (
            f"As much data goes to the device as back ({n:,} copies and {format_bytes(size)} each "
            "way): keep the data on the device between kernels."
        )

    def _several_arrays(self) -> str:
        """The same if each size goes to the device for up to a few arrays, and comes back."""
        sizes, up, down = self.both_directions, pl.col("up"), pl.col("down")
        stays = (down >= _SEVERAL) & up.is_between((1 - _ALIKE) * down, _MOST_ARRAYS * down)
        if self.program.pytorch or sizes.is_empty() or not sizes.select(stays.all()).item():
            return ""
        return (
            f"Data of the same sizes goes to the device ({sizes['up'].sum():,} copies) and back "
            f"({sizes['down'].sum():,}): keep it on the device between kernels (OpenACC, OpenMP: "
            "a data region around the loop)."
        )

    def view(self) -> View:
        """Build the view: findings, copies and memsets by direction, size and device; charts."""
        return self.view_from(_verdict, _notes, _tables, _charts)


# --- findings ------------------------------------------------------------------------------


def with_directions(moves: pl.DataFrame) -> pl.DataFrame:
    """Add direction and memory of copies and memsets from their ``name``.

    The direction is for example ``HtoD``, ``set`` for memsets, or the whole name if unknown; the
    memory is for example ``Pinned -> Device``, or null if unknown.
    """
    distinct = moves["name"].unique().drop_nulls()
    matches = [(name, _NAME.match(name)) for name in distinct.cast(pl.String)]
    rows = [
        (name, _OF_INTEL.get(m["direction"], m["direction"] or SET), m["memory"])
        if m
        else (name, name, None)
        for name, m in matches
    ]
    types = {"name": pl.String, "direction": pl.String, "memory": pl.String}
    parsed = pl.DataFrame(rows, schema=types, orient="row").with_columns(name=distinct)
    joined = moves.join(parsed, on="name", how="left")
    return joined.with_columns(pl.col("direction").fill_null(NAMELESS))


def size_class() -> pl.Expr:
    """Return the size class of ``moved_bytes``."""
    size = pl.col("moved_bytes")
    place = pl.sum_horizontal((size >= bound).cast(pl.UInt8) for bound in _BOUNDS)
    known = place.replace_strict(dict(enumerate(_CLASSES)), return_dtype=pl.String)
    return pl.when(size.is_null()).then(pl.lit(UNKNOWN)).otherwise(known).cast(SIZE).alias("size")


def advice(program: Api) -> dict[str, str]:
    """Return the advice for each finding, with the functions of the program's API."""
    texts = ADVICE | {_PINNED: _ADVICE_PINNED} | ({} if program.pytorch else _ADVICE_ELSEWHERE)
    if program.framework == XLA:
        texts |= dict.fromkeys((PAGEABLE, EXPOSED, _PINNED), OF_XLA)
    return {name: program.named(text) for name, text in texts.items()}


def findings_of(
    copies: pl.DataFrame, sizes: pl.DataFrame, span_ns: int, advice: Mapping[str, str]
) -> pl.DataFrame:
    """Return one row per finding, direction and memory.

    Args:
        copies: sums by direction and memory.
        sizes: the same by class of size.
        span_ns: first start to last end of work, summed over devices.
        advice: of each finding.

    Returns:
        finding, what, n, moved_bytes, total_ns, exposed_ns (null if unknown), advice.
    """
    rows = [
        *_of_pageable(copies),
        *_of_migrations(copies, span_ns),
        *_of_exposed(copies, span_ns),
        *_of_small(copies, sizes),
    ]
    with_advice = [{**row, "advice": advice[row["advice"] or row["finding"]]} for row in rows]
    return pl.DataFrame(with_advice, schema=_SCHEMA)


def _of_pageable(copies: pl.DataFrame) -> Iterator[dict[str, Any]]:
    pageable = copies.filter(pl.col("memory").str.contains(_PAGEABLE), pl.col("direction") != SET)
    for row in pageable.rows(named=True):
        yield {"finding": PAGEABLE, "what": _way_of(row), **_sums(row)}


def _of_migrations(copies: pl.DataFrame, span_ns: int) -> Iterator[dict[str, Any]]:
    migrations = copies.filter(pl.col("direction").str.starts_with(_UVM))
    for row in migrations.filter(pl.col("total_ns") >= _WORTH_FRAC * span_ns).rows(named=True):
        yield {"finding": MIGRATIONS, "what": _way_of(row), **_sums(row)}


def _of_exposed(copies: pl.DataFrame, span_ns: int) -> Iterator[dict[str, Any]]:
    exposed = copies.filter(pl.col("direction").str.contains(_HOST), pl.col("exposed_ns") > 0)
    for row in exposed.filter(pl.col("exposed_ns") >= _WORTH_FRAC * span_ns).rows(named=True):
        pinned = re.search(_NEVER_PAGEABLE, row["memory"] or "")
        yield {
            "finding": EXPOSED,
            "what": _way_of(row),
            **_sums(row),
            "n": row["exposed_n"],
            "advice": _PINNED if pinned else "",
        }


def _of_small(copies: pl.DataFrame, sizes: pl.DataFrame) -> Iterator[dict[str, Any]]:
    small = sizes.filter(pl.col("size").is_in(SMALL_SIZES), pl.col("direction") != SET)
    small = small.filter(~pl.col("direction").str.starts_with(_UVM))
    way = ["direction", "memory"]
    sums = (pl.col("n", "moved_bytes", "total_ns").sum(), sum_if_known("exposed_ns"))
    both = small.group_by(way).agg(sums).join(
        copies.select(*way, of="n"), on=way, nulls_equal=True
    )  # fmt: skip
    many = both.filter(pl.col("n") >= _MANY, pl.col("n") >= _MOSTLY * pl.col("of"))
    for row in many.sort("n", *way, descending=[True, False, False]).rows(named=True):
        what = f"{_way_of(row)} < {format_bytes(SMALL_BYTES)}"
        yield {"finding": SMALL, "what": what, **_sums(row)}


def _way_of(row: dict[str, Any]) -> str:
    return f"{row['direction']} ({row['memory']})" if row["memory"] else str(row["direction"])


def _sums(row: dict[str, Any]) -> dict[str, Any]:
    sums = {name: row[name] for name in ("n", "moved_bytes", "total_ns", "exposed_ns")}
    return {**sums, "advice": ""}


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Transfers) -> str:
    """Describe what is copied, its time, and the findings."""
    parts = [_way(row) for row in result.copies.head(_NAMED).rows(named=True)]
    of = f"{format_bytes(result.moved_bytes)} in " if result.moved_bytes else ""
    subject = "1 copy or memset moves" if result.n == 1 else f"{result.n:,} copies and memsets move"
    took = f"{subject} {of}{format_ns(result.total_ns)}"
    took = f"{took}: {', '.join(parts)}." if parts else ""
    return sentences(took, _exposed(result), _migrating(result), _pageable(result), _small(result))


def _way(row: dict[str, Any]) -> str:
    """Format direction, memory and time, and the bandwidth if copies are not small."""
    memory = f" ({row['memory']})" if row["memory"] else ""
    text = f"{row['direction']}{memory} {format_ns(row['total_ns'])}"
    rate = row["rate_gbps"]
    if rate is None or row["moved_bytes"] < SMALL_BYTES * row["n"]:
        return text
    return f"{text} at {rate:,.0f} GB/s" if rate >= _GREAT_GBPS else f"{text} at {rate:.3g} GB/s"


#: Copies there and back: at least so many, and sums that differ by at most this share.
_SEVERAL, _ALIKE = 4, 0.1
#: Most arrays that go to the device for each that comes back.
_MOST_ARRAYS = 3


def _exposed(result: Transfers) -> str:
    """Describe the time of exposed copies."""
    if result.alone_ns is None or not result.span_ns:
        return ""
    if result.round_trips:
        share = format_frac(result.alone_ns / result.span_ns)
        taking = f"take {format_ns(result.alone_ns)} ({share} of device time)"
        return f"Exposed copies and memsets {taking}. {result.round_trips}"
    share = format_frac(result.alone_ns / result.span_ns)
    text = f"Exposed copies and memsets take {format_ns(result.alone_ns)} ({share} of device time)"
    findings = result.findings.filter(pl.col("finding") == EXPOSED)
    return f"{text}: {findings['advice'][0]}." if findings.height else f"{text}."


def _migrating(result: Transfers) -> str:
    """Describe migrations of managed memory and page faults."""
    rows = result.findings.filter(pl.col("finding") == MIGRATIONS)
    size = format_bytes(int(rows["moved_bytes"].sum()))
    n, total = int(rows["n"].sum()), int(rows["total_ns"].sum())
    moved = f"{format_count(n, 'migration')} of managed memory move {size} in {format_ns(total)}"
    texts = [*[moved] * (n > 0), *filter(None, [page_faults(result.faults)])]
    return f"{'; '.join(texts)}: {advice(result.program)[MIGRATIONS]}." if texts else ""


def page_faults(faults: pl.DataFrame) -> str:
    """Format page faults: ``500 groups of GPU page faults take 20 ms``; empty without any."""
    sums = faults.group_by("on_gpu").agg(pl.col("n", "total_ns").sum()).sort("on_gpu")
    texts = [
        f"{format_count(n, 'group')} of GPU page faults {'take' if n > 1 else 'takes'} "
        f"{format_ns(total)}"
        if on_gpu
        else f"{format_count(n, 'CPU page fault')}"
        for on_gpu, n, total in sums.reverse().iter_rows()
    ]
    return "; ".join(texts)


def _pageable(result: Transfers) -> str:
    rows = result.findings.filter(pl.col("finding") == PAGEABLE)
    if rows.is_empty():
        return ""
    n, total = int(rows["n"].sum()), int(rows["total_ns"].sum())
    copies = "1 copy is" if n == 1 else f"{n:,} copies are"
    return f"{copies} from or to pageable memory ({format_ns(total)}): {rows['advice'][0]}."


def _small(result: Transfers) -> str:
    """Describe small copies if they take a notable share of the time."""
    rows = result.findings.filter(pl.col("finding") == SMALL)
    n, total = int(rows["n"].sum()), int(rows["total_ns"].sum())
    if not total or total < _WORTH_FRAC * result.span_ns:
        return ""
    size = format_bytes(SMALL_BYTES)
    return f"{n:,} copies are smaller than {size} ({format_ns(total)}): {rows['advice'][0]}."


def _notes(result: Transfers) -> Iterator[str]:
    """Describe how numbers are defined, and what was not counted."""
    if result.devices["alone_ns"].null_count():
        yield "Without recorded kernels the overlap of copies is unknown."
    if result.alone_ns is not None:
        yield (
            "Exposed is the time of copies and memsets without a kernel running on the device; "
            "communication kernels count as kernels."
        )
    if result.unsized:
        yield f"{result.unsized:,} copies or memsets have no recorded size, so no bandwidth."
    rated = pl.concat(
        rows.filter(pl.col("moved_bytes") > 0, pl.col("total_ns") > 0)
        for rows in (result.copies.select(_RATED), result.sizes.select(_RATED))
    )
    fast = rated.filter(pl.col("rate_gbps").is_null())
    if fast.height:
        kinds = ", ".join(fast["direction"].unique().sort())
        yield (
            f"No bandwidth for some rows ({kinds}): it would exceed {MOST_GBPS:,} GB/s, so the "
            "recorded durations are too short."
        )
    if result.unfinished:
        yield f"Not counted: {result.unfinished:,} copies or memsets without an end."


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Transfers) -> Iterator[Table]:
    """Build the tables: findings, copies and memsets by direction, by size, by device."""
    devices = result.devices.with_columns(places(result.devices))
    yield table_of_known("findings", "Findings", result.findings, _FINDINGS)
    yield table_of_known("copies", "Copies and memsets", result.copies, _COPIES, hide_first=_LESS)
    yield table_of_known("sizes", "By size", result.sizes, _SIZES, hide_first=_LESS)
    yield table_of_known("devices", "Devices", devices, _DEVICES)
    if devices.height > 1:
        by_device = result.by_device.with_columns(places(result.by_device))
        columns = {"on": "device", **_COPIES}
        table = table_of_known(
            "by_device", "Copies and memsets by device", by_device, columns, detail=True
        )
        yield table


def _charts(result: Transfers) -> tuple[Chart, ...]:
    """Build charts of time and bandwidth by size class."""
    parts = [pl.col("direction"), pl.format(" ({})", "memory").fill_null("")]
    frame = result.sizes.with_columns(copy=pl.concat_str(parts)).sort("size", "copy")
    title = "Time of copies and memsets by size"
    total = stacked("total", title, frame, "size", y="total_ns", y_label="total", color="copy")
    rate = Chart(
        name="bandwidth", title="Bandwidth by size", mark="scatter",
        frame=frame.drop_nulls("rate_gbps"), x="size", y="rate_gbps", x_label="size",
        y_label="bandwidth", color="copy", log_y=True,
    )  # fmt: skip
    return (total, *([rate] if rate.frame.height else []))
