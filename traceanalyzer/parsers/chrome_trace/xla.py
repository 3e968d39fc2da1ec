"""What JAX's and TensorFlow's profiler recorded on GPUs, which lanes and arguments tell.

Its events have no categories. A process ``/device:GPU:0`` stands for a device, a thread of it
called ``Stream #13(Compute)`` for a stream; its other threads (``XLA Modules``, ``XLA Ops``,
``Steps``, ...) tell that work once more and are annotations here. Arguments are text, numbers too:
``kernel_details``, ``memcpy_details``, ``correlation_id``, ``step_num``. Source: XLA's
``trace_events_to_json.cc``, ``cupti_collector.cc`` and ``gpu_event_stats.cc``.
"""

import re
from dataclasses import replace

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.tables import as_table
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import KINDS, collective_of_kernel

_DEVICE = re.compile(r"/device:GPU:(\d{1,5})(?!\d)")
_STREAM = re.compile(r"Stream #(\d{1,18})(?!\d)")
#: Calls of the driver and of the runtime, of CUDA and HIP.
_DRIVER, _RUNTIME = r"^cu[A-Z]", r"^(?:cuda|hip)[A-Z]"
#: Memory taken and given back on a stream is no work of it.
_NO_WORK = r"^Mem(?:Alloc|Free|ory)"
_WITH_CORRELATION = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")

_NAME, _ARGS = pl.col("name").cast(pl.String), pl.col("args")


def everything(selection: Selection) -> Selection:
    """What must be read, where only afterwards is known of what kind each event is."""
    kinds = None if selection.kinds is None else selection.kinds | set(KINDS)
    return replace(selection, kinds=kinds, names=(), columns=selection.columns | {"args"})


def told(trace: Trace, selection: Selection) -> Trace:
    """The trace with device work, launch calls and steps as such, and of it what is asked for.

    Args:
        trace: all slices of the file, with ``args``.
        selection: what is asked for; its windows have been seen to.
    """
    devices, streams = _lanes(trace.lanes)
    events = _events(trace.events, devices, streams)
    trace = replace(
        trace,
        events=events,
        launch_configs=_launch_configs(events),
        collectives=_collectives(events),
    )
    if (asked := selection.rows()) is not None:
        trace = trace.select(asked)
    return (
        trace if "args" in selection.columns else replace(trace, events=trace.events.drop("args"))
    )


def _lanes(lanes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The processes that are devices (pid, gpu), and their streams (pid, tid, queue)."""
    labels = lanes.drop_nulls("label").select("pid", "tid", "label").rows()
    devices = {
        pid: int(match[1])
        for pid, tid, label in labels
        if tid is None and (match := _DEVICE.search(label))
    }
    streams = [
        (pid, tid, int(match[1]))
        for pid, tid, label in labels
        if pid in devices and tid is not None and (match := _STREAM.match(label))
    ]
    gpu = {"pid": pl.Int64, "gpu": pl.Int32}
    queue = {"pid": pl.Int64, "tid": pl.Int64, "queue": pl.Int64}
    return (
        pl.DataFrame(list(devices.items()), schema=gpu, orient="row"),
        pl.DataFrame(streams, schema=queue, orient="row"),
    )


def _events(events: pl.DataFrame, devices: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
    """The events, those on devices with device and stream in place of process and thread."""
    number = _ARGS.str.extract(r'"correlation_id"\s*:\s*"?(\d{1,18})"?\s*[,}]').cast(pl.Int64)
    size = _ARGS.str.extract(r"\bsize:(\d{1,18})\b").cast(pl.Int64)
    ours = pl.col("category").is_null() & (pl.col("dur") >= 0).fill_null(value=False)
    launched, copied = pl.col("kind").is_in(_WITH_CORRELATION), pl.col("kind") == "gpu_memcpy"
    known, on_gpu = pl.col("told").is_not_null(), pl.col("gpu").is_not_null()
    return (
        events.lazy()
        .join(devices.lazy(), on="pid", how="left", maintain_order="left")
        .join(streams.lazy(), on=["pid", "tid"], how="left", maintain_order="left")
        .with_columns(gpu=pl.when(ours).then("gpu"), told=pl.when(ours).then(_kind()))
        .with_columns(
            kind=pl.coalesce("told", pl.col("kind").cast(pl.String)).cast(schema.KIND),
            category=pl.when(known).then("told").otherwise("category").cast(schema.NAME),
            name=pl.when(known).then(_name()).otherwise(_NAME).cast(schema.NAME),
            device=pl.coalesce("gpu", "device"),
            # lanes that tell the work once more lie beside its streams
            stream=pl.when(on_gpu).then(pl.coalesce("queue", "tid")).otherwise("stream"),
            pid=pl.when(~on_gpu).then("pid"),
            tid=pl.when(~on_gpu).then("tid"),
        )
        .with_columns(
            correlation=pl.coalesce("correlation", pl.when(launched).then(number)),
            bytes=pl.coalesce("bytes", pl.when(copied).then(size)),
        )
        .select(events.columns)
        .collect()
    )


def _kind() -> pl.Expr:
    """What sort of event a slice is, by lane, name and arguments; null where they do not tell."""
    works = pl.col("gpu").is_not_null() & pl.col("queue").is_not_null()
    copies = _NAME.str.starts_with("Memcpy") | _ARGS.str.contains('"memcpy_details"', literal=True)
    sets = _NAME.str.starts_with("Memset") | _ARGS.str.contains('"memset_details"', literal=True)
    return (
        pl.when(works & copies).then(pl.lit("gpu_memcpy"))
        .when(works & sets).then(pl.lit("gpu_memset"))
        .when(works & ~_NAME.str.contains(_NO_WORK)).then(pl.lit("kernel"))
        .when(pl.col("gpu").is_not_null()).then(pl.lit("gpu_user_annotation"))
        .when(_NAME.str.contains(_DRIVER)).then(pl.lit("cuda_driver"))
        .when(_NAME.str.contains(_RUNTIME)).then(pl.lit("cuda_runtime"))
        .when(_step().is_not_null()).then(pl.lit("user_annotation"))
    )  # fmt: skip


def _step() -> pl.Expr:
    """The number of the step that a slice of the host stands for."""
    return _ARGS.str.extract(r'"step_num"\s*:\s*"?(\d{1,18})"?\s*[,}]')


def _name() -> pl.Expr:
    """Copies as Kineto calls them, ``Memcpy HtoD (Pinned -> Device)``, and steps numbered."""
    way = [_NAME.str.extract(r"^Memcpy([HDP])2([HDP])", at) for at in (1, 2)]
    ends = [
        _ARGS.str.extract(rf"\b{end}:(\w+)").str.to_titlecase() for end in ("kind_src", "kind_dst")
    ]
    memory = pl.format(" ({} -> {})", *ends).fill_null("")
    copy = pl.format("Memcpy {}to{}{}", *way, memory)
    word = pl.when(_NAME.str.contains(r"(?i)(?:step|iter(?:ation)?)$")).then(pl.lit(" "))
    step = pl.format("{}{}{}", _NAME, word.otherwise(pl.lit(" step ")), _step())
    return (
        pl.when(pl.col("told") == "gpu_memcpy").then(pl.coalesce(copy, _NAME))
        .when(pl.col("told") == "user_annotation").then(step)
        .otherwise(_NAME)
    )  # fmt: skip


def _launch_configs(events: pl.DataFrame) -> pl.DataFrame:
    """How kernels were launched, where ``kernel_details`` tell."""
    details = _ARGS.str.extract(r'"kernel_details"\s*:\s*"([^"]*)"')
    number = r"(\d{1,9})"
    shape = {
        f"{of}_{axis}": pl.col("details").str.extract(rf"\b{of}:(?:\d+,){{{at}}}{number}")
        for of in ("grid", "block")
        for at, axis in enumerate("xyz")
    }
    shared = [
        pl.col("details").str.extract(rf"\b{of}_shared:{number}") for of in ("static", "dynamic")
    ]
    rows = events.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("event"),
        pl.when(pl.col("kind") == "kernel").then(details).alias("details"),
    ).drop_nulls()
    told = rows.select(
        "event",
        **shape,
        registers=pl.col("details").str.extract(rf"\bregs:{number}"),
        shared_memory=shared[0].cast(pl.Int64) + shared[1].cast(pl.Int64),
    )
    return told.cast({c.name: c.dtype for c in schema.LAUNCH_CONFIGS})


def _collectives(events: pl.DataFrame) -> pl.DataFrame:
    """Which kernels are collectives, and which; more is not recorded."""
    kernels = events.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("event"), "name", "kind")
    kernels = kernels.filter(pl.col("kind") == "kernel")
    names = kernels["name"].unique().drop_nulls().cast(pl.String)
    words = {name: word for name in names if (word := collective_of_kernel(name))}
    told = kernels.select(
        "event",
        collective=_NAME.replace_strict(words, default=None, return_dtype=pl.String),
    ).drop_nulls("collective")
    return as_table(told, schema.COLLECTIVES)
