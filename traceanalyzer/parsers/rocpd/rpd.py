"""RPD files of rocmProfileData: operations of the GPU, API calls and ranges, monitors.

An operation belongs to the API call that ``rocpd_api_ops`` links to it, which also has its process,
its size and its launch configuration. ``rocpd_kernelapi`` records the grid of
``hipExtModuleLaunchKernel`` in work items, all other grids in blocks.

``Barrier`` and unnamed ``Task`` operations are not device work: they become rows of kind
``gpu_user_annotation``. A ``Task`` that names a kernel is a kernel of a HIP graph.
"""

import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.parsers.rocpd.recording import (
    COUNTERS,
    Recording,
    api_kind,
    copy_name,
    first_kind,
    launch_shape,
    range_category,
    without_details,
)
from traceanalyzer.parsers.sqlite.rows import DatabaseReader
from traceanalyzer.trace import Device

OP, API, LINKS = "rocpd_op", "rocpd_api", "rocpd_api_ops"
KERNEL, COPY, MONITOR = "rocpd_kernelapi", "rocpd_copyapi", "rocpd_monitor"
STRINGS, ARGUMENTS, METADATA = "rocpd_string", "rocpd_ustring", "rocpd_metadata"
OPERATORS = "ext_autogradapi"

#: Required columns by table.
REQUIRED: dict[str, tuple[str, ...]] = {
    OP: ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"),
    API: ("id", "pid", "tid", "start", "end", "apiName_id", "args_id"),
    LINKS: ("api_id", "op_id"),
    KERNEL: ("api_ptr_id", "gridX", "workgroupX"),
    COPY: ("api_ptr_id", "size"),
    MONITOR: ("deviceType", "deviceId", "monitorType", "start", "value"),
    STRINGS: ("id", "string"),
    OPERATORS: ("api_ptr_id", "autogradName_id"),
}
#: Tables without which rows have no name or process.
ESSENTIAL = (OP, API, LINKS, STRINGS)
#: A file without any of these is not one of RPD.
IDENTIFYING = (OP, API)
#: Tables without events, or with data that other tables have too.
DESCRIBING = (
    METADATA,
    ARGUMENTS,
    "rocpd_barrierop",
    "rocpd_kernelcodeobject",
    "rocpd_op_inputSignals",
    "ext_callstack",
)

#: Kind by pattern of an operation's type; the first match is used.
_KINDS = (
    ("kernel", r"(?i)^kernel"),
    ("gpu_memcpy", r"(?i)copy"),
    ("gpu_memset", r"(?i)fill|memset"),
)
_NO_WORK = "gpu_user_annotation"
_TASK = "Task"
_MARKER = "UserMarker"
#: Launch calls that record the grid in work items.
_IN_WORK_ITEMS = r"^hip(?:Ext|Hcc)ModuleLaunchKernel"
#: Unit of the monitors whose unit is documented.
_MONITORS = {"sclk": "sclk [MHz]"}
_HOST_KINDS = frozenset(("cuda_runtime", "cuda_driver", "overhead", "nvtx", "cpu_op"))
_DEVICE_KINDS = frozenset((*(kind for kind, _ in _KINDS), _NO_WORK))


def logical_name(table: str) -> str | None:
    """Return the name of a table, or None for an unknown table."""
    return table if table in REQUIRED or table in DESCRIBING else None


def read(reading: DatabaseReader) -> Recording:
    """Read the selected rows of an RPD file."""
    database, kinds = reading.database, reading.selection.kinds
    metadata = database.read(METADATA, texts=("tag", "value")).drop_nulls()
    values = dict(metadata.iter_rows())
    recording = Recording(version=f"RPD, schema {values.get('schema_version', 'unknown')}")
    strings = _Strings(reading)
    links = _links(reading)
    recording.used = _used(reading, links)
    wanted = None if kinds is None or reading.selection.names else kinds
    if database.has(OP) and (wanted is None or wanted & _DEVICE_KINDS):
        recording.parts.append(_operations(reading, strings, links))
    if database.has(API) and (wanted is None or wanted & _HOST_KINDS):
        recording.parts.append(_calls(reading, strings))
    if kinds is None or "counter" in kinds:
        recording.counters = _monitors(reading)
    gpus = database.read(OP, integers=("gpuId",))["gpuId"].drop_nulls().unique().sort()
    recording.devices = tuple(Device(gpu) for gpu in gpus if 0 <= gpu < 1 << 31)
    starts = [database.read(table, integers=("start",))["start"].min() for table in (OP, API)]
    recording.start_ns = min((t for t in starts if isinstance(t, int)), default=None)
    return recording


class _Strings:
    """The strings of a file by id."""

    def __init__(self, reading: DatabaseReader) -> None:
        self._tables = {
            table: reading.database.read(table, integers=("id",), texts=("string",))
            .drop_nulls("id")
            .unique("id", keep="first", maintain_order=True)
            for table in (STRINGS, ARGUMENTS)
        }

    def of(self, ids: pl.Series, table: str = STRINGS) -> pl.Series:
        """Return the string of each id; null for unknown ids and empty strings."""
        strings = self._tables[table] if self._tables[table].height else self._tables[STRINGS]
        joined = ids.to_frame("id").join(strings, on="id", how="left", maintain_order="left")
        text = joined["string"]
        return joined.select(pl.when(text != "").then(text).alias(ids.name)).to_series()


def _links(reading: DatabaseReader) -> pl.DataFrame:
    """Return the API call of each operation: id, api, alone (its only operation), pid."""
    links = reading.database.read(LINKS, integers=("api_id", "op_id")).drop_nulls()
    first = links.unique("op_id", keep="first", maintain_order=True)
    calls = reading.database.read(API, integers=("id", "pid")).unique("id", keep="first")
    return first.join(calls, left_on="api_id", right_on="id", how="left").select(
        "pid", id="op_id", api="api_id", alone=pl.len().over("api_id") == 1
    )


def _used(reading: DatabaseReader, links: pl.DataFrame) -> pl.DataFrame:
    """Return the processes and GPUs of all operations."""
    joined = reading.database.read(OP, integers=("id", "gpuId")).join(links, on="id", how="left")
    return joined.select(owner="pid", device=pl.col("gpuId").cast(pl.Int32, strict=False)).unique()


def _operations(reading: DatabaseReader, strings: _Strings, links: pl.DataFrame) -> pl.DataFrame:
    """Return one row per operation of a GPU."""
    rows = reading.read(OP, *REQUIRED[OP], where=reading.inside())
    types = strings.of(rows["opType_id"])
    rows = rows.with_columns(type=types, text=strings.of(rows["description_id"])).join(
        links, on="id", how="left", maintain_order="left"
    )
    of_graph = (pl.col("type") == _TASK) & (pl.col("text") != _TASK)
    kind = pl.coalesce(
        pl.when(of_graph).then(pl.lit("kernel", schema.KIND)),
        first_kind(pl.col("type"), _KINDS),
        pl.lit(_NO_WORK, schema.KIND),
    )
    rows = rows.with_columns(kind=kind)
    rows = _sized(reading, _configured(reading, strings, rows))
    return rows.select(
        "kind", "pid", "bytes", *_SHAPE,
        ts="start",
        dur=pl.col("end") - pl.col("start"),
        category=pl.col("type").cast(schema.NAME),
        name=_names(rows),
        owner="pid",
        device=pl.col("gpuId").cast(pl.Int32, strict=False),
        stream="queueId",
        correlation="api",
    )  # fmt: skip


def _names(rows: pl.DataFrame) -> pl.Series:
    """Return the names: of kernels as recorded, of copies and memsets as in Kineto."""
    first, number = numbered([rows[c].cast(pl.Categorical) for c in ("kind", "type", "text")])
    distinct = []
    for kind, type_, text in rows.select("kind", "type", "text")[first].iter_rows():
        if kind == "gpu_memcpy":
            distinct.append(copy_name(type_))
        elif kind == "gpu_memset":
            distinct.append("Memset (Device)")
        else:
            distinct.append(text or type_)
    return pl.Series("name", distinct, dtype=schema.NAME).gather(pl.Series(number))


_SHAPE = tuple(f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz")


def _configured(reading: DatabaseReader, strings: _Strings, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the launch configuration of kernels, the grid in blocks."""
    theirs = [f"{of}{axis}" for of in ("grid", "workgroup") for axis in "XYZ"]
    configs = reading.database.read(KERNEL, integers=("api_ptr_id", *theirs))
    calls = reading.database.read(API, integers=("id", "apiName_id"))
    launched = configs.join(calls, left_on="api_ptr_id", right_on="id", how="left")
    in_items = strings.of(launched["apiName_id"]).str.contains(_IN_WORK_ITEMS)
    sizes = launch_shape("grid{}", "workgroup{}", "XYZ", in_items.fill_null(value=False))
    shapes = launched.select("api_ptr_id", *sizes).unique("api_ptr_id", keep="first")
    joined = rows.join(
        shapes, left_on="api", right_on="api_ptr_id", how="left", maintain_order="left"
    )
    kernels = (pl.col("kind") == "kernel") & pl.col("alone")
    return joined.with_columns(pl.when(kernels).then(column).alias(column) for column in _SHAPE)


def _sized(reading: DatabaseReader, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the size of copies; a call with several operations records the size of all together."""
    sizes = reading.read(COPY, "api_ptr_id", "size").unique("api_ptr_id", keep="first")
    joined = rows.join(
        sizes, left_on="api", right_on="api_ptr_id", how="left", maintain_order="left"
    )
    copies = (pl.col("kind") == "gpu_memcpy") & pl.col("alone") & (pl.col("size") >= 0)
    return joined.with_columns(bytes=pl.when(copies).then("size"))


def _calls(reading: DatabaseReader, strings: _Strings) -> pl.DataFrame:
    """Return one row per API call, range and operator."""
    rows = reading.read(API, *REQUIRED[API], where=reading.inside())
    called, text = strings.of(rows["apiName_id"]), strings.of(rows["args_id"], ARGUMENTS)
    rows = rows.with_columns(called=called, text=text)
    rows = _with_operators(reading, strings, rows)
    marked = pl.col("called") == _MARKER
    operator = pl.coalesce("operator", pl.when(marked).then(without_details(pl.col("text"))))
    name = pl.when(marked).then(pl.coalesce(operator, "text", "called")).otherwise("called")
    kind = (
        pl.when(operator.is_not_null())
        .then(pl.lit("cpu_op", schema.KIND))
        .otherwise(api_kind(pl.col("called")))
    )
    rows = rows.with_columns(kind=kind, title=name)
    is_range = pl.col("kind") == "nvtx"
    calls = pl.col("kind").is_in(("cuda_runtime", "cuda_driver"))
    columns = [
        pl.col("start").alias("ts"),
        (pl.col("end") - pl.col("start")).alias("dur"),
        pl.when(is_range).then(range_category(pl.col("title"))).alias("category"),
        pl.col("title").cast(schema.NAME).alias("name"),
        pl.col("pid").alias("owner"),
        pl.when(calls).then("id").alias("correlation"),
    ]
    if "input_dims" in reading.selection.columns:
        columns.append(pl.col("sizes").alias("input_dims"))
    return rows.select("kind", "pid", "tid", *columns)


def _with_operators(reading: DatabaseReader, strings: _Strings, rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``operator`` and ``sizes`` of ranges that PyTorch's autograd profiler marked."""
    marked = reading.read(OPERATORS, "api_ptr_id", "autogradName_id", texts=("sizes",))
    known = marked.select(
        "api_ptr_id",
        operator=strings.of(marked["autogradName_id"]),
        sizes=pl.when(pl.col("sizes").str.contains(r"^\[.*\]$")).then("sizes"),
    ).unique("api_ptr_id", keep="first")
    return rows.join(known, left_on="id", right_on="api_ptr_id", how="left", maintain_order="left")


def _monitors(reading: DatabaseReader) -> pl.DataFrame:
    """Return ``counters``: readings of clocks, power and temperature, one series per device.

    A row lasts while its value is the same. The end of the last one of a series is a reading too:
    readings count until the next one.
    """
    rows = reading.database.read(
        MONITOR,
        integers=("deviceId", "start", "end"),
        texts=("deviceType", "monitorType", "value"),
        where=reading.inside("start", None),
    )
    series = ("deviceType", "deviceId", "monitorType")
    last = rows.sort("start", maintain_order=True).group_by(series, maintain_order=True).last()
    ends = last.filter(pl.col("end") > pl.col("start")).with_columns(start="end")
    rows = pl.concat([rows, ends.select(rows.columns)])
    value = pl.col("value").str.strip_chars().cast(pl.Float64, strict=False)
    named = pl.col("monitorType").replace(_MONITORS)
    device = pl.col("deviceType").fill_null("device").str.replace("(?i)^gpu$", "GPU")
    readings = rows.select(
        ts="start",
        name=named.cast(schema.NAME),
        series=pl.format("{} {}", device, pl.col("deviceId").fill_null(0)).cast(schema.NAME),
        pid=pl.lit(None, dtype=pl.Int64),
        value=value,
    )
    finite = pl.col("value").is_finite()
    return readings.drop_nulls(["ts", "name", "value"]).filter(finite).select(*COUNTERS)
