"""Scalability metrics of itwinai: its CSV files, and the metrics of a file store of MLflow.

``epoch-time/*.csv``, ``gpu-energy-data/*.csv``, ``computation-data/*.csv`` (until 0.3), the files
``epoch_time_s``, ``gpu_power_W`` and ``gpu_utilization_percent`` of a run in MLflow's file store,
and its artifact ``torch_profiling_averages.csv``. They have no timeline: rows become
``aggregates``.
"""

import re

from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace
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


def sniff(head: bytes, path: str) -> bool:
    """Whether the first line has the columns of such a file, or all lines are of a metric."""
    first = head.partition(b"\n")[0]
    names = {name.strip(b' \r"') for name in first[:1000].split(b",")}
    if any(header <= names for header in _HEADERS):
        return True
    return _METRIC.search(path) is not None and _LINES.match(head) is not None


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:  # noqa: ARG001 - small, always read wholly
    """Read all rows; see :func:`traceanalyzer.parsers.itwinai.reader.parse`."""
    from traceanalyzer.parsers.itwinai import reader

    return reader.parse(source, progress)


FORMAT: Format = Format(
    name=ITWINAI,
    suffixes=(".csv",),
    description="scalability metrics of itwinai (CSV files, MLflow file store)",
    spec_url="https://itwinai.readthedocs.io/latest/how-it-works/scalability-report/scalability_report.html",
    sniff=sniff,
    parse=parse,
    priority=39,
)
