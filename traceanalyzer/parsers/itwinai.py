"""Scalability metrics of itwinai: its CSV files, and the metrics of a file store of MLflow.

``epoch-time/*.csv``, ``gpu-energy-data/*.csv``, ``computation-data/*.csv`` (until 0.3), the files
``epoch_time_s``, ``gpu_power_W`` and ``gpu_utilization_percent`` of a run in MLflow's file store,
and its artifact ``torch_profiling_averages.csv``. They have no timeline: rows become
``aggregates``.

Specification: <https://itwinai.readthedocs.io/latest/how-it-works/scalability-report/scalability_report.html>
"""

import io
import re
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.parsers.tables import as_table
from traceanalyzer.trace import Meta, Trace, issue_rows
from traceanalyzer.vocabulary import ITWINAI

#: Columns that identify each file, in the first line.
_HEADERS = (
    {b"epoch_id", b"time", b"name", b"nodes"},
    {b"utilization", b"power", b"num_global_gpus", b"strategy", b"probing_interval"},
    {b"name", b"self_cuda_time_total", b"strategy", b"num_gpus", b"global_rank"},
)
#: Files of metrics in MLflow's store, and their lines: timestamp, value, step.
_METRIC = re.compile(r"[\\/]metrics[\\/](?:epoch_time_s|gpu_power_W|gpu_utilization_percent)$")
_LINES = re.compile(rb"(?:\d{10,16} [-+.\deE]{1,30} \d{1,12}\r?\n?)+")
#: Forms of rows: epoch times, samples of GPUs, times by kernel or operator.
EPOCHS, SAMPLES, AVERAGES = "epochs", "gpu_samples", "kernel_averages"

#: By form, the metric of each column and its factor; the column of the name is a text.
_COLUMNS: dict[str, dict[str, tuple[str, float]]] = {
    EPOCHS: {"time": ("time_ns", 1e9), "nodes": ("nodes", 1)},
    SAMPLES: {
        "power": ("power_w", 1),
        "utilization": ("utilization_frac", 0.01),
        "num_global_gpus": ("gpus", 1),
        "probing_interval": ("interval_s", 1),
        "node_idx": ("node", 1),
    },
    AVERAGES: {"self_cuda_time_total": ("self_device_ns", 1e3), "num_gpus": ("gpus", 1)},
}
#: Metrics of MLflow: the form, the metric and its factor.
_METRICS = {
    "epoch_time_s": (EPOCHS, "time_ns", 1e9),
    "gpu_power_W": (SAMPLES, "power_w", 1),
    "gpu_utilization_percent": (SAMPLES, "utilization_frac", 0.01),
}
#: Larger numbers are damage.
_MOST = 1e30
_SMALL_FILE = 4096


def sniff(head: bytes, path: str) -> bool:
    """Whether the first line has the columns of such a file, or all lines are of a metric."""
    first = head.partition(b"\n")[0]
    names = {name.strip(b' \r"') for name in first[:1000].split(b",")}
    if any(header <= names for header in _HEADERS):
        return True
    return _METRIC.search(path) is not None and _LINES.match(head) is not None


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:  # noqa: ARG001 - small, always read wholly
    """Read one file.

    Raises:
        MalformedInput: no row is complete.
        UnreadableFile: the file cannot be read.
    """
    text = b"".join(bytes(block) for block in source.blocks(progress=progress))
    path = Path(source.path)
    try:
        is_metric = path.name in _METRICS
        form, rows, number = _of_metric(path, text) if is_metric else _of_csv(text)
    except PolarsError:
        what = "damaged CSV: its rows cannot be separated, for example because a quote is missing"
        raise MalformedInput(source.path, what, hint="copy or record it again") from None
    if rows.is_empty():
        raise MalformedInput(
            source.path, "no row has all numbers", hint="pass the whole folder of the run"
        )
    table = _table(form, rows, _run(path))
    issues = [("data_loss", "incomplete-row", number - rows.height, None), *source.issues]
    meta = Meta(path=source.path, format=ITWINAI, version=form)
    return Trace(sources=(meta,), aggregates=table, issues=issue_rows(issues, None))


def _of_csv(text: bytes) -> tuple[str, pl.DataFrame, int]:
    """Return form, complete rows, and the number of all rows."""
    frame = pl.read_csv(
        io.BytesIO(text), infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy"
    )
    frame = frame.rename({name: name.strip().lstrip("\ufeff") for name in frame.columns})
    form = (
        EPOCHS if "epoch_id" in frame.columns else SAMPLES if "power" in frame.columns else AVERAGES
    )
    numbers = {
        metric: pl.col(name).str.strip_chars().cast(pl.Float64, strict=False) * factor
        for name, (metric, factor) in _COLUMNS[form].items()
        if name in frame.columns
    }
    rows = frame.select(
        *(value.alias(metric) for metric, value in numbers.items()),
        pl.col("name" if form == EPOCHS else "strategy").alias("strategy"),
        *(["name"] if form == AVERAGES else []),
    )
    known = pl.all_horizontal((pl.col(metric).abs() < _MOST).fill_null(False) for metric in numbers)
    return form, rows.filter(known), frame.height


def _of_metric(path: Path, text: bytes) -> tuple[str, pl.DataFrame, int]:
    """Return the same of a metric of MLflow, whose run has the parameters as files."""
    form, metric, factor = _METRICS[path.name]
    run = path.parent.parent
    lines = text.splitlines()
    values = [line.split(b" ")[1] for line in lines if line.count(b" ") >= 2]
    column = pl.Series([value.decode("ascii", "replace") for value in values], dtype=pl.String)
    rows = pl.DataFrame({metric: column.cast(pl.Float64, strict=False) * factor})
    known = rows.filter((pl.col(metric).abs() < _MOST).fill_null(value=False))
    numbers = {"gpus": _parameter(run, "global_world_size")}
    if form == SAMPLES:
        numbers["interval_s"] = _parameter(run, "probing_interval") or "1"
    columns = [
        pl.lit(value).cast(pl.Float64, strict=False).alias(name)
        for name, value in numbers.items()
        if value
    ]
    strategy = _parameter(run, "strategy")
    named = known.with_columns(*columns, strategy=pl.lit(strategy or None, pl.String))
    return form, named, len(lines)


def _parameter(run: Path, name: str, depth: int = 3) -> str:
    """Return a parameter of a run of MLflow, or of the run that it belongs to; empty without."""
    value = _small(run / "params" / name)
    parent = _parent(run)
    return value or (_parameter(parent, name, depth - 1) if parent and depth else "")


def _parent(run: Path) -> Path | None:
    """Return the folder of the run that a run belongs to."""
    name = _small(run / "tags" / "mlflow.parentRunId")
    return run.parent / name if name.isalnum() else None


def _small(path: Path) -> str:
    """Return the text of a small file next to the data; empty if there is none.

    A link may lead to a file that is not of the run, and a pipe may never end.
    """
    try:
        if path.is_symlink() or not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(_SMALL_FILE).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _run(path: Path) -> str:
    """Return the folder of the run: of MLflow the outermost, of CSV files that of their folders."""
    parts = path.parts
    for marker in ("metrics", "artifacts"):
        if marker in parts[:-1] and (path.name in _METRICS or marker == "artifacts"):
            run = Path(*parts[: len(parts) - 1 - parts[::-1].index(marker)])
            for _ in range(3):
                run = _parent(run) or run
            return str(run)
    return str(path.parent.parent)


def _table(form: str, rows: pl.DataFrame, run: str) -> pl.DataFrame:
    """Return the table ``aggregates``."""
    about = rows["name"] if "name" in rows.columns else rows["strategy"]
    numbered = rows.with_row_index("row").with_columns(about.alias("name"), run=pl.lit(run))
    strings = ["run", "strategy"]
    keys = ["row", "name"]
    numbers = [name for name in rows.columns if rows[name].dtype == pl.Float64]
    of_numbers = numbered.unpivot(numbers, index=keys, variable_name="metric", value_name="value")
    of_texts = numbered.unpivot(strings, index=keys, variable_name="metric", value_name="text")
    long = pl.concat([of_numbers, of_texts], how="diagonal").drop_nulls("metric")
    long = long.filter(pl.col("value").is_not_null() | pl.col("text").is_not_null())
    filled = long.with_columns(
        form=pl.lit(form),
        block=pl.lit(0, pl.UInt32),
        is_cut=pl.lit(value=False),
        line=pl.col("row").cast(pl.Int64) + 1,
    )
    return as_table(filled, "aggregates").sort("row", "metric")


FORMAT: Format = Format(
    name=ITWINAI,
    suffixes=(".csv",),
    description="scalability metrics of itwinai (CSV files, MLflow file store)",
    sniff=sniff,
    parse=parse,
    priority=39,
)
