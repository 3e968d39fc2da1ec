"""Memory in ``memory_summary()``, messages of errors, and DeepSpeed's lines on memory."""

from collections.abc import Callable, Iterator
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common.aggregates import wide
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import sentences
from traceanalyzer.analyzers.printed import Options
from traceanalyzer.analyzers.printed.job import going
from traceanalyzer.analyzers.printed.result import Form, Problem, table
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Confidence
from traceanalyzer.units import format_bytes, format_count, format_frac, format_times

_SUMMARY, _ERROR, _USAGE, _THROUGHPUT = FORMS = (
    "memory_summary", "out_of_memory", "memory_usage", "throughput",
)  # fmt: skip
_EVENTS = "job_events"
_OF_ROWS = {
    f"{name}_{unit}": pl.Int64
    for unit in ("bytes", "n")
    for name in ("current", "peak", "total_allocated", "total_freed")
} | {"unit_bytes": pl.Int64}
_OF_SUMMARY = {"device": pl.Int32} | dict.fromkeys(("ooms", "retries", "requested_bytes"), pl.Int64)
_OF_CALLS = {
    **dict.fromkeys(("allocated_bytes", "peak_bytes", "reserved_bytes"), pl.Int64),
    **dict.fromkeys(("reserved_peak_bytes", "host_used_bytes"), pl.Int64),
    "host_used_frac": pl.Float64,
}
_OF_ERROR = {"device": pl.Int32} | dict.fromkeys(
    ("requested_bytes", "capacity_bytes", "free_bytes", "allowed_bytes", "allocated_bytes",
     "unused_bytes", "reserved_bytes"), pl.Int64,
)  # fmt: skip
_DEVICES = {
    "rank": pl.Int32,
    "path": pl.String,
    "device": pl.Int32,
    "source": pl.String,
    **dict.fromkeys(("peak_bytes", "reserved_peak_bytes", "end_bytes"), pl.Int64),
    **dict.fromkeys(("reserved_end_bytes", "inactive_split_bytes"), pl.Int64),
    **dict.fromkeys(("retries", "ooms", "requested_bytes", "free_bytes"), pl.Int64),
    **dict.fromkeys(("capacity_bytes", "allowed_bytes", "unit_bytes"), pl.Int64),
    "recovered": pl.Boolean,
}
_DEVICE_TABLE = (
    "device, source, peak_bytes: peak allocated, reserved_peak_bytes: peak reserved, "
    "end_bytes: allocated at end, reserved_end_bytes: reserved at end, "
    "inactive_split_bytes: inactive split at end, retries: cudaMalloc retries, "
    "ooms: out-of-memory errors, requested_bytes: requested, free_bytes: free on the device, "
    "capacity_bytes: of the device, allowed_bytes: allowed to the process, unit_bytes: rounded to"
)
_CALL_TABLE = (
    "name: call, allocated_bytes: allocated, change_bytes: change, peak_bytes: peak, "
    "reserved_bytes: reserved, reserved_peak_bytes: peak reserved, host_used_bytes: host memory, "
    "host_used_frac: of host"
)
_ROW_TABLE = (
    "device, name: what, current_bytes: at end, peak_bytes: peak, "
    "total_allocated_bytes: allocated in total, total_freed_bytes: freed in total, "
    "current_n: number at end, peak_n: peak number, total_allocated_n: number allocated, "
    "total_freed_n: number freed"
)
_USAGE_NOTE = (
    "see_memory_usage rounds to 0.01 GiB (peak reserved to 1 GiB: at least the reserved memory is "
    "shown), and its peaks are those since the previous call."
)
_MEGATRON = "Megatron-LM"
#: What must be unused beyond an allocation that failed: with less, the memory is full.
_ROOM_FRAC = 0.01
OUT_OF_MEMORY = "GPU memory"
_RECORD = (
    "record which code allocates the memory: torch.cuda.memory._record_memory_history() at the "
    "start, and torch.cuda.memory._dump_snapshot(FILE) after the error"
)
#: Source of what the message of an out-of-memory error says.
MESSAGE = "error message"
#: From this share of host memory on, the system soon swaps or ends processes.
_FULL_FRAC = 0.9
#: Contexts and libraries take less of a device.
_OTHERS_FRAC = 0.1
_SUMMARY_NOTE = "memory_summary() rounds down to the unit in 'rounded to'."
_CODE_NOTE = "torch.cuda.memory._dump_snapshot(FILE) records which code allocated the memory."


def form(rows: pl.DataFrame, _options: Options) -> Form | None:
    """Return the memory of each device, the calls of see_memory_usage, and all rows of summaries.

    ``memory``: one row per device and source, with the columns of a recording of the same meaning.
    ``memory_calls``: the calls in order: number, name (the message), allocated_bytes, change_bytes
    (since the previous call) ... ``memory_summary``: every row of memory_summary().
    """
    blocks = wide(rows, _SUMMARY, _OF_SUMMARY).drop_nulls("device")
    device = blocks.select("path", "rank", "block", *_OF_SUMMARY)
    summary = (
        wide(rows, _SUMMARY, _OF_ROWS)
        .drop_nulls("row")
        .join(device, on=["path", "rank", "block"], how="left", nulls_equal=True,
              maintain_order="left")
    )  # fmt: skip
    calls = _calls(rows)
    sources = [
        _of_summaries(summary),
        _of_requirement(rows, device),
        _of_errors(rows, device),
        _of_calls(calls),
        _of_throughput(rows),
    ]
    known = pl.concat([pl.DataFrame(schema=_DEVICES), *sources], how="diagonal_relaxed")
    devices = largest_first(
        known.select(pl.col(name).cast(dtype) for name, dtype in _DEVICES.items()),
        "peak_bytes", "rank", "path", "device", "source", nulls_last=True,
    )  # fmt: skip
    if devices.is_empty():
        return None
    summary = summary.select("rank", "path", "device", "name", *_OF_ROWS, "line")
    tables = (
        table("memory", "Memory of devices", devices, _DEVICE_TABLE),
        table("memory_calls", "Memory by line", calls, _CALL_TABLE),
        table("memory_summary", "memory_summary()", summary, _ROW_TABLE, detail=True),
    )
    named = _names_of(rows)
    ooms, retries = (int(devices[name].sum()) for name in ("ooms", "retries"))
    failed = devices.filter(pl.col("ooms") > 0)
    peak_bytes = devices["peak_bytes"].max()
    return Form(
        tuple(one for one in tables if one.frame.height),
        named(_verdict(devices, calls, ooms)),
        tuple(map(named, _notes(summary, devices, retries))),
        {"peak_bytes": peak_bytes, "ooms": ooms, "retries": retries},
        partial(_charts, calls),
        urgent=ooms > 0 or bool(_full_host(calls)),
        problems=(_problem(failed, ooms, _at(rows), named),) if ooms else (),
    )


#: Module and environment variable of PyTorch by the device in the message of an error.
_OF_API = {
    "NPU": ("torch.npu.", "PYTORCH_NPU_ALLOC_CONF"),
    "XPU": ("torch.xpu.", "PYTORCH_XPU_ALLOC_CONF"),
    "HIP": ("torch.cuda.", "PYTORCH_HIP_ALLOC_CONF"),
}


def _names_of(rows: pl.DataFrame) -> Callable[[str], str]:
    """Return what replaces CUDA's names in a text by those of the devices of the errors."""
    apis = rows.filter(form=_ERROR)["name"].cast(pl.String).drop_nulls().unique()
    module, variable = _OF_API.get(apis[0] if apis.len() == 1 else "", ("", ""))

    def named(text: str) -> str:
        if not module:
            return text
        return text.replace("torch.cuda.", module).replace("PYTORCH_CUDA_ALLOC_CONF", variable)

    return named


def _of_summaries(summary: pl.DataFrame) -> pl.DataFrame:
    """Return a row per summary."""

    def of(name: str, column: str) -> pl.Expr:
        return pl.col(f"{column}_bytes").filter(pl.col("name") == name).first()

    keys = ["rank", "path", "block", *_OF_SUMMARY]
    return summary.group_by(keys, maintain_order=True).agg(
        source=pl.lit("memory_summary"),
        peak_bytes=of("Allocated memory", "peak"),
        reserved_peak_bytes=of("GPU reserved memory", "peak"),
        end_bytes=of("Allocated memory", "current"),
        reserved_end_bytes=of("GPU reserved memory", "current"),
        inactive_split_bytes=of("Non-releasable memory", "current"),
        unit_bytes=of("Allocated memory", "unit").fill_null(of("GPU reserved memory", "unit")),
    )


def _of_requirement(rows: pl.DataFrame, summaries: pl.DataFrame) -> pl.DataFrame:
    """Return the line ``Memory requirement`` where no summary has the same figure."""
    name = "requirement_bytes"
    lines = wide(rows, _SUMMARY, {name: pl.Int64}).drop_nulls(name)
    others = lines.join(summaries, on=["path", "rank"], how="anti", nulls_equal=True)
    peak = pl.col(name).alias("reserved_peak_bytes")
    return others.select("rank", "path", peak, source=pl.lit("Memory requirement"))


def _of_errors(rows: pl.DataFrame, summaries: pl.DataFrame) -> pl.DataFrame:
    """Return the errors of devices without a summary; a message can be printed several times."""
    events = (
        wide(rows, _EVENTS, {"n": pl.Int64, "last": pl.Int64})
        .filter(pl.col("name") == OUT_OF_MEMORY)
        .with_columns(line=pl.coalesce("last", "line"))
        .sort("line")
    )
    place = ["path", "rank"]
    others = events.join(summaries, on=place, how="anti", nulls_equal=True).unique(
        place, keep="last"
    )
    errors, full = wide(rows, _ERROR, _OF_ERROR), pl.col("allocated_bytes").is_not_null()
    known = errors.filter(full).join(summaries, on=[*place, "device"], how="anti", nulls_equal=True)
    # messages that are cut or short may be printed again, or explained by a summary
    short = errors.filter(~full).join(summaries, on=place, how="anti", nulls_equal=True)
    same, has_device = [*place, "requested_bytes"], pl.col("device").is_not_null()
    of_device = [*same, "device"]
    short = short.join(errors.filter(full), on=of_device, how="anti", nulls_equal=True)
    short = short.sort("capacity_bytes", nulls_last=True).unique(of_device, keep="first")
    named = pl.concat([errors.filter(full), short]).filter(has_device)
    others_short = short.filter(~has_device).join(named, on=same, how="anti", nulls_equal=True)
    short = pl.concat([short.filter(has_device), others_short])
    errors = pl.concat([known, short.sort("line"), others.sort("line")], how="diagonal")
    reserved = pl.coalesce(
        "reserved_bytes", pl.col("allocated_bytes") + pl.col("unused_bytes").fill_null(0)
    )
    errors = errors.unique(["path", "rank", *_OF_ERROR], keep="last", maintain_order=True)
    goes = going(rows)
    went_on = [
        goes.went_on(path, line, OUT_OF_MEMORY)
        for path, line in errors.select("path", "line").iter_rows()
    ]
    return errors.select(
        "rank", "path", "device", "requested_bytes", "free_bytes", "capacity_bytes",
        "allowed_bytes",
        source=pl.lit(MESSAGE),
        ooms=pl.lit(1),
        recovered=pl.Series(went_on, dtype=pl.Boolean),
        end_bytes="allocated_bytes",
        reserved_end_bytes=reserved,
    )  # fmt: skip


def _at(rows: pl.DataFrame) -> int:
    """Return the order of the first error that its program did not survive, among failures."""
    goes = going(rows)
    events = wide(rows, _EVENTS, {"n": pl.Int64, "last": pl.Int64}).filter(
        pl.col("name") == OUT_OF_MEMORY
    )
    others = rows.filter(form=_ERROR).select("path", "line", last="line")
    lines = pl.concat([events.select("path", "line", pl.coalesce("last", "line")), others])
    return min(
        (
            goes.at(*one)
            for one in lines.iter_rows()
            if not goes.went_on(one[0], one[2], OUT_OF_MEMORY)
        ),
        default=0,
    )


def _problem(failed: pl.DataFrame, ooms: int, at: int, named: Callable[[str], str]) -> Problem:
    """Return the problem of devices with errors; those of a summary alone may have been handled."""
    went_on = bool(failed["recovered"].fill_null(value=False).all())
    count = f"{format_count(ooms, 'out-of-memory error')} in the log."
    title = sentences(count, why(failed), "The program went on after it." * went_on)
    sure: Confidence = "medium" if (failed["source"] == MESSAGE).any() else "low"
    size = 0.5 if went_on else 1
    return Problem(OUT_OF_MEMORY, named(title), named(_RECORD), size, (), sure, at)


def _calls(rows: pl.DataFrame) -> pl.DataFrame:
    calls = wide(rows, _USAGE, _OF_CALLS)
    return calls.with_columns(
        pl.max_horizontal("reserved_peak_bytes", "reserved_bytes").alias("reserved_peak_bytes"),
        change_bytes=pl.col("allocated_bytes").diff().over("path", "rank", "block"),
    ).select(
        "rank", "path", pl.col("row").alias("number"), "name", "allocated_bytes", "change_bytes",
        *[name for name in _OF_CALLS if name != "allocated_bytes"], "printed_ns", "line",
    )  # fmt: skip


def _of_calls(calls: pl.DataFrame) -> pl.DataFrame:
    of_megatron = pl.col("name").str.contains(r"^after \d+ iterations$").fill_null(value=False)
    of_titan = pl.col("name").str.contains(r"^step \d+$").fill_null(value=False)
    others = pl.when(of_titan).then(pl.lit("TorchTitan")).otherwise(pl.lit("see_memory_usage"))
    source = pl.when(of_megatron).then(pl.lit(_MEGATRON)).otherwise(others)
    return calls.group_by("rank", "path", source=source, maintain_order=True).agg(
        pl.col("peak_bytes").max(),
        pl.col("reserved_peak_bytes").max(),
        end_bytes=pl.col("allocated_bytes").last(),
        reserved_end_bytes=pl.col("reserved_bytes").last(),
    )


def _of_throughput(rows: pl.DataFrame) -> pl.DataFrame:
    numbers = {"allocated_bytes": pl.Int64, "peak_bytes": pl.Int64}
    lines = wide(rows, _THROUGHPUT, numbers).drop_nulls("peak_bytes")
    return lines.group_by("rank", "path", maintain_order=True).agg(
        pl.col("peak_bytes").max(),
        source=pl.lit("throughput lines"),
        end_bytes=pl.col("allocated_bytes").last(),
    )


def _verdict(devices: pl.DataFrame, calls: pl.DataFrame, ooms: int) -> str:
    named = (("peak_bytes", "allocated"), ("reserved_peak_bytes", "reserved"))
    peaks = [(devices[name].max(), what) for name, what in named]
    size, what = next((one for one in peaks if one[0]), (None, ""))
    peak = f"Peak memory: {format_bytes(size)} {what}." if size else ""  # type: ignore[arg-type]
    errors = f"{format_count(ooms, 'out-of-memory error')}." if ooms else ""
    return sentences(_full_host(calls), errors, peak, why(devices) if ooms else "")


def why(devices: pl.DataFrame) -> str:
    """Return a sentence on why an allocation failed, of the table ``memory``; empty if unknown."""
    return _fragmentation(devices) or _demand(devices)


def _full_host(calls: pl.DataFrame) -> str:
    """Return a sentence on host memory that is almost full, which ends or stops a job."""
    full = calls.filter(pl.col("host_used_frac") > _FULL_FRAC)
    if full.is_empty():
        return ""
    row = full.sort("host_used_frac", descending=True).row(0, named=True)
    return (
        f"Host memory is almost full: {format_bytes(row['host_used_bytes'])}, "
        f"{format_frac(row['host_used_frac'])} of the host."
    )


def _fragmentation(devices: pl.DataFrame) -> str:
    """Return a sentence if more memory was unused than an allocation wanted, with room."""
    reserved, wanted = pl.col("reserved_end_bytes"), pl.col("requested_bytes")
    unused = reserved - pl.col("end_bytes")
    allowed = (pl.col("allowed_bytes") - reserved).clip(0)
    free = pl.min_horizontal("free_bytes", allowed).fill_null(0)
    has_room = unused + free - wanted > _ROOM_FRAC * reserved
    rows = devices.with_columns(unused=unused).filter(wanted > free, has_room)
    half = devices.filter(pl.col("reserved_peak_bytes") >= 2 * pl.col("peak_bytes"))
    for row in half.head(1 if rows.is_empty() else 0).iter_rows(named=True):
        least, reserved = row["reserved_peak_bytes"] - row["peak_bytes"], row["reserved_peak_bytes"]
        return (
            f"Fragmentation: {format_bytes(least)} of {format_bytes(reserved)} reserved memory "
            "were never allocated: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        )
    if rows.is_empty():
        return ""
    row = rows.row(0, named=True)
    more = f" and {format_bytes(row['free_bytes'])} free" if row["free_bytes"] else ""
    return (
        f"Fragmentation: {format_bytes(row['requested_bytes'])} were not available in one piece, "
        f"with {format_bytes(row['unused'])} reserved and not allocated{more}: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )


def _demand(devices: pl.DataFrame) -> str:
    """Return a sentence on why an allocation failed: who has the memory, or which limit it hit."""
    rows = devices.filter(pl.col("ooms") > 0).drop_nulls("requested_bytes")
    if rows.is_empty():
        return ""
    row = rows.row(0, named=True)
    gpu = f"GPU {row['device']}" if row["device"] is not None else "a GPU"
    if row["capacity_bytes"] is None or row["free_bytes"] is None:
        return f"{format_bytes(row['requested_bytes'])} were requested on {gpu}."
    requested, end, capacity, free = (
        format_bytes(row[f"{name}_bytes"]) for name in ("requested", "end", "capacity", "free")
    )
    gpu = f"{requested} were requested on {gpu}"
    if row["requested_bytes"] > row["capacity_bytes"]:
        return f"{gpu}, which has {capacity}: one tensor is too large; the traceback has its line."
    if row["allowed_bytes"] is not None:
        used = f": its tensors take {end}" if row["end_bytes"] is not None else ""
        return (
            f"{gpu}, of which this process may use {format_bytes(row['allowed_bytes'])} of "
            f"{capacity} (set_per_process_memory_fraction){used}."
        )
    if row["free_bytes"] > row["requested_bytes"]:
        return (
            f"{gpu} while {free} of {capacity} were free: the model does not fill it. Look for a "
            "limit of the container, the driver, or the host memory that the driver maps."
        )
    if row["end_bytes"] is None:
        return f"{gpu}, of which {free} of {capacity} were free."
    others = row["capacity_bytes"] - row["free_bytes"] - row["reserved_end_bytes"]
    outside = ""
    if others > _OTHERS_FRAC * row["capacity_bytes"]:
        outside = (
            f"; {format_bytes(others)} are not of its allocator: another process, or libraries "
            "such as NCCL (nvidia-smi names processes)"
        )
    if row["end_bytes"] > row["capacity_bytes"]:
        outside = ": the rest is host memory, which drivers of Windows use as memory of the GPU"
    return f"{gpu}, where tensors of PyTorch take {end} of {capacity}{outside}."


def _notes(summary: pl.DataFrame, devices: pl.DataFrame, retries: int) -> Iterator[str]:
    if summary.height:
        yield _SUMMARY_NOTE
    if retries:
        yield (
            "The allocator freed cached segments and retried cudaMalloc "
            f"{format_times(retries)}, which synchronises the device."
        )
    if "see_memory_usage" in devices["source"]:
        yield _USAGE_NOTE
    yield _CODE_NOTE


def _charts(calls: pl.DataFrame) -> tuple[Chart, ...]:
    """Build a line of allocated memory over the calls."""
    if calls.height < 2:
        return ()
    several = calls.select("rank", "path").n_unique() > 1
    by = "rank" if calls["rank"].null_count() == 0 else "path"
    frame = calls.with_columns(pl.col(by).cast(pl.String))
    return (
        Chart(
            name="memory_calls", title="Allocated memory by call", mark="line", frame=frame,
            x="number", y="allocated_bytes", x_label="call", y_label="allocated",
            color=by if several else None,
        ),
    )  # fmt: skip
