"""GPU work and Python functions in traces of JAX's, TensorFlow's and ONNX Runtime's profiler.

They are derived from lanes, names and arguments.

The events have no categories. A process ``/device:GPU:0`` is a device, its thread
``Stream #13(Compute)`` a stream; its other threads (``XLA Modules``, ``XLA Ops``, ``Steps``, ...)
repeat that work and become annotations. On a TPU, ``XLA Ops`` is the stream; ``while`` and the
like in it contain other operations and become annotations too. On a CPU the operators of XLA are
slices of host threads with an ``hlo_op``. All arguments are text, including numbers:
``kernel_details``, ``memcpy_details``, ``correlation_id``, ``step_num``. Source: XLA's
``trace_events_to_json.cc``, ``cupti_collector.cc``, ``gpu_event_stats.cc`` and
``python_hooks.cc``: ``$train.py:57 step`` and, of a function in C, ``$time sleep``.

ONNX Runtime has three categories (``core/common/profiler.cc``): ``Session``; ``Node``, a call of an
operator on the host, with ``op_name`` and ``provider``, which tells CPU from GPU; and, in builds
with CUDA profiling, ``Kernel``, with its stream and the name of its node.
"""

import re
from dataclasses import replace

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.tables import as_table
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import KINDS, ON_CPU, ONNXRUNTIME, collective_of_kernel

_DEVICE = re.compile(r"/device:(?:GPU|TPU):(\d{1,5})(?!\d)")
_STREAM = re.compile(r"Stream #(\d{1,18})(?!\d)")
#: Process of a TPU, and its thread with the operations.
_TPU, _OPERATIONS = "/device:TPU:", "XLA Ops"
#: Calls of the driver and of the runtime, of CUDA and HIP.
_DRIVER, _RUNTIME = r"^cu[A-Z]|^Memcpy[HDP]2[HDP]$", r"^(?:cuda|hip)[A-Z]"
#: Allocations and frees on a stream, and what contains other operations, are not device work.
_NO_WORK = r"^(?:Mem(?:Alloc|Free|ory)|(?:while|conditional|call)(?:\.\d+)*$)"
#: Python functions: of a file and line, and in C.
_PYTHON, _IN_C = r"^\$(.+):(\d{1,9}) (.+)$", r"^\$([\w.<>]+) (.+)$"
_WITH_CORRELATION = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")

_NAME, _ARGS = pl.col("name").cast(pl.String), pl.col("args")


def full_selection(selection: Selection) -> Selection:
    """Return the selection to read, as the kinds of events are known only afterwards."""
    kinds = None if selection.kinds is None else selection.kinds | set(KINDS)
    return replace(selection, kinds=kinds, names=(), columns=selection.columns | {"args"})


def with_device_work(trace: Trace, selection: Selection) -> Trace:
    """Classify device work, launch calls and steps, and apply the selection.

    Args:
        trace: all slices of the file, with ``args``.
        selection: what to keep; its windows are applied already.
    """
    devices, streams = _lanes(trace.lanes)
    events = _events(trace.events, devices, streams)
    trace = replace(
        trace,
        events=events,
        launch_configs=_launch_configs(events),
        collectives=_collectives(events),
    )
    return _selected(trace, selection)


def _selected(trace: Trace, selection: Selection) -> Trace:
    if (selected := selection.rows()) is not None:
        trace = trace.select(selected)
    keeps = "args" in selection.columns
    return trace if keeps else replace(trace, events=trace.events.drop("args"))


def _lanes(lanes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the processes that are devices (pid, gpu), and their streams (pid, tid, queue)."""
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
    tpus = {pid for pid, tid, label in labels if tid is None and _TPU in label}
    streams += [
        (pid, tid, 0)
        for pid, tid, label in labels
        if pid in tpus and tid is not None and label == _OPERATIONS
    ]
    gpu = {"pid": pl.Int64, "gpu": pl.Int32}
    queue = {"pid": pl.Int64, "tid": pl.Int64, "queue": pl.Int64}
    return (
        pl.DataFrame(list(devices.items()), schema=gpu, orient="row"),
        pl.DataFrame(streams, schema=queue, orient="row"),
    )


def _events(events: pl.DataFrame, devices: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
    """Classify the events; device rows get device and stream instead of process and thread."""
    number = _ARGS.str.extract(r'"correlation_id"\s*:\s*"?(\d{1,18})"?\s*[,}]').cast(pl.Int64)
    size = _ARGS.str.extract(r"\bsize:(\d{1,18})\b").cast(pl.Int64)
    ours = pl.col("category").is_null() & (pl.col("dur") >= 0).fill_null(value=False)
    launched, copied = pl.col("kind").is_in(_WITH_CORRELATION), pl.col("kind") == "gpu_memcpy"
    known, on_gpu = pl.col("derived").is_not_null(), pl.col("gpu").is_not_null()
    return (
        events.lazy()
        .join(devices.lazy(), on="pid", how="left", maintain_order="left")
        .join(streams.lazy(), on=["pid", "tid"], how="left", maintain_order="left")
        .with_columns(gpu=pl.when(ours).then("gpu"), derived=pl.when(ours).then(_kind()))
        .with_columns(
            kind=pl.coalesce("derived", pl.col("kind").cast(pl.String)).cast(schema.KIND),
            category=pl.when(known).then("derived").otherwise("category").cast(schema.NAME),
            name=pl.when(known).then(_name()).otherwise(_NAME).cast(schema.NAME),
            device=pl.coalesce("gpu", "device"),
            # lanes that repeat the work get their tid as stream
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
    """Derive the kind of a slice from lane, name and arguments; null if unknown."""
    on_stream = pl.col("gpu").is_not_null() & pl.col("queue").is_not_null()
    memcpy = _NAME.str.starts_with("Memcpy") | _ARGS.str.contains('"memcpy_details"', literal=True)
    memset = _NAME.str.starts_with("Memset") | _ARGS.str.contains('"memset_details"', literal=True)
    return (
        pl.when(on_stream & memcpy).then(pl.lit("gpu_memcpy"))
        .when(on_stream & memset).then(pl.lit("gpu_memset"))
        .when(on_stream & ~_NAME.str.contains(_NO_WORK)).then(pl.lit("kernel"))
        .when(pl.col("gpu").is_not_null()).then(pl.lit("gpu_user_annotation"))
        .when(_NAME.str.contains(_DRIVER)).then(pl.lit("cuda_driver"))
        .when(_NAME.str.contains(_RUNTIME)).then(pl.lit("cuda_runtime"))
        .when(_step().is_not_null()).then(pl.lit("user_annotation"))
        .when(_ARGS.str.contains('"hlo_op"', literal=True)).then(pl.lit("cpu_op"))
        .when(_NAME.str.contains(f"{_PYTHON}|{_IN_C}")).then(pl.lit("python_function"))
    )  # fmt: skip


def _step() -> pl.Expr:
    """Extract the step number of a host slice."""
    return _ARGS.str.extract(r'"step_num"\s*:\s*"?(\d{1,18})"?\s*[,}]')


def _name() -> pl.Expr:
    """Name copies and Python functions as Kineto does, and number steps.

    ``Memcpy HtoD (Pinned -> Device)``, ``train.py(57): step``, ``<built-in function sleep>``.
    """
    direction = [_NAME.str.extract(r"^Memcpy([HDP])2([HDP])", at) for at in (1, 2)]
    ends = [
        _ARGS.str.extract(rf"\b{end}:(\w+)").str.to_titlecase() for end in ("kind_src", "kind_dst")
    ]
    memory = pl.format(" ({} -> {})", *ends).fill_null("")
    copy = pl.format("Memcpy {}to{}{}", *direction, memory)
    separator = pl.when(_NAME.str.contains(r"(?i)(?:step|iter(?:ation)?)$")).then(pl.lit(" "))
    step = pl.format("{}{}{}", _NAME, separator.otherwise(pl.lit(" step ")), _step())
    return (
        pl.when(pl.col("derived") == "gpu_memcpy").then(pl.coalesce(copy, _NAME))
        .when(pl.col("derived") == "user_annotation").then(step)
        .when(pl.col("derived") == "python_function")
        .then(_NAME.str.replace(_PYTHON, "$1($2): $3").str.replace(_IN_C, "<built-in function $2>"))
        .otherwise(_NAME)
    )  # fmt: skip


def _launch_configs(events: pl.DataFrame) -> pl.DataFrame:
    """Return the launch configurations of kernels with ``kernel_details``."""
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
    configs = rows.select(
        "event",
        **shape,
        registers=pl.col("details").str.extract(rf"\bregs:{number}"),
        shared_memory=shared[0].cast(pl.Int64) + shared[1].cast(pl.Int64),
        local_memory=None,
    )
    return configs.cast(schema.types("launch_configs"))


def _collectives(events: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives among the kernels; only their type is recorded."""
    kernels = events.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("event"), "name", "kind")
    kernels = kernels.filter(pl.col("kind") == "kernel")
    names = kernels["name"].unique().drop_nulls().cast(pl.String)
    by_name = {name: collective for name in names if (collective := collective_of_kernel(name))}
    rows = kernels.select(
        "event", collective=_NAME.replace_strict(by_name, default=None, return_dtype=pl.String)
    ).drop_nulls("collective")
    return as_table(rows, "collectives")


# --- ONNX Runtime --------------------------------------------------------------------------------


def of_onnxruntime(trace: Trace, selection: Selection) -> Trace:
    """Name nodes ``onnx::Conv (CUDAExecutionProvider)``, and find device work; apply the selection.

    Nodes that run on the CPU between nodes on a GPU, and copies back to the GPU, are ranges, as no
    GPU work is launched meanwhile; all other nodes are operators.

    Args:
        trace: all slices of the file, with ``args``.
        selection: what to keep; its windows are applied already.
    """
    texts = (rf'"{key}"\s*:\s*"([^"\\]*)"' for key in ("op_name", "provider"))
    op, provider = map(_ARGS.str.extract, texts)
    category, ranges = pl.col("category").cast(pl.String), pl.lit("user_annotation")
    is_node = (category == "Node") & _NAME.str.ends_with("_kernel_time") & op.is_not_null()
    is_work = ((category == "Kernel") & op.is_not_null()).fill_null(value=False)
    on_gpu = trace.events.select((is_node & (provider != ON_CPU)).any()).item()
    between = on_gpu & ((provider == ON_CPU) | (op == "MemcpyFromHost"))
    is_copy = op.str.starts_with("Memcpy")
    kind = (
        pl.when((category == "Session") | is_node & between).then(ranges)
        .when(is_node).then(pl.lit("cpu_op"))
        .when(is_work & is_copy).then(pl.lit("gpu_memcpy"))
        .when(is_work).then(pl.lit("kernel"))
    )  # fmt: skip
    direction = pl.when(op == "MemcpyToHost").then(pl.lit("DtoH")).otherwise(pl.lit("HtoD"))
    stream = _ARGS.str.extract(r'"stream"\s*:\s*"?(\d{1,18})').cast(pl.Int64)
    events = trace.events.with_columns(
        kind=pl.coalesce(kind, pl.col("kind").cast(pl.String)).cast(schema.KIND),
        category=pl.coalesce(kind, category).cast(schema.NAME),
        name=pl.when(is_node).then(pl.format("onnx::{} ({})", op, provider))
        .when(is_work & is_copy).then(pl.format("Memcpy {}", direction))
        .otherwise(_NAME).cast(schema.NAME),
        device=pl.when(is_work).then(0).otherwise("device").cast(pl.Int32),
        stream=pl.when(is_work).then(stream).otherwise("stream"),
        **{lane: pl.when(~is_work).then(lane) for lane in ("pid", "tid")},
    )  # fmt: skip
    sources = (replace(trace.meta, version=ONNXRUNTIME),)
    return _selected(replace(trace, sources=sources, events=events), selection)
