"""Reports of Nsight Compute (``.ncu-rep``), read by NVIDIA's module ``ncu_report`` if installed.

The module is proprietary: it is part of Nsight Compute (``extras/python``) and on PyPI. Without it,
ncu exports the report as CSV. The module gives no process and host; launches are numbered in order.

Specification: <https://docs.nvidia.com/nsight-compute/PythonReportInterface/index.html>
"""

from collections.abc import Iterator
from typing import Any

import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput, UnknownFormat
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import NCU_REP

_MAGIC = b"NVR\0"
#: Types of messages by the number that the module uses.
_TYPES = {0: "INF", 1: "INF", 2: "OPT", 3: "WRN", 4: "ERR"}
_SPEEDUPS = {1: "local", 2: "global"}
_Row = tuple[Any, ...]
_COLUMNS = ("id", "kernel", "device", "cc", "grid", "block", "section", "metric", "unit", "value",
            "text", "rule", "rule_type", "speedup_type", "speedup_frac")  # fmt: skip


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether the file begins like a report of Nsight Compute."""
    return head.startswith(_MAGIC)


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read a report with ``ncu_report``.

    Raises:
        UnknownFormat: the module is not installed; the message has the command that exports CSV.
        MalformedInput: the module cannot read the file, or it has no kernel.
    """
    from traceanalyzer.parsers.ncu_csv.reader import trace_of

    export = f"ncu --import {source.path} --csv --page raw --print-units base > FILE.csv"
    try:
        import ncu_report  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UnknownFormat(
            source.path,
            "a report of Nsight Compute, which only NVIDIA's module ncu_report reads",
            hint=f"export it: {export}",
        ) from None
    if source.compression:
        raise MalformedInput(source.path, "a compressed report of Nsight Compute", hint="unpack it")
    try:
        rows = list(_rows(ncu_report.load_report(source.path), selection))
    except Exception as error:  # noqa: BLE001 - the module raises anything
        raise MalformedInput(
            source.path, f"ncu_report cannot read it: {_first_line(error)}", hint=f"try {export}"
        ) from None
    if progress:
        progress(source.size, source.size)
    if not rows:
        raise MalformedInput(source.path, "a report of Nsight Compute without kernels")
    types = schema.types("metrics")
    frame = pl.DataFrame(rows, schema={name: types[name] for name in _COLUMNS}, orient="row")
    others = {name: pl.lit(None, types[name]) for name in ("host", "pid", "label")}
    full = frame.with_columns(launches=pl.lit(1, pl.Int64), **others)
    order = [name for name in types if name not in ("launch", "rank")]
    return trace_of(source, NCU_REP, [full.select(order)], [], rank_from_name(source.path))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _rows(report: Any, selection: Selection) -> Iterator[_Row]:
    """Yield the metrics and rules of all launches of a report."""
    number = 0
    for at in range(report.num_ranges()):
        of_range = report.range_by_idx(at)
        for index in range(of_range.num_actions()):
            yield from _of_launch(number, of_range.action_by_idx(index), selection.metrics)
            number += 1


def _of_launch(number: int, action: Any, substrings: tuple[str, ...]) -> Iterator[_Row]:
    from traceanalyzer.parsers.ncu_csv import unit_of

    names = list(action.metric_names())

    def value(name: str) -> Any:
        return action.metric_by_name(name).value() if name in names else None

    major, minor = (value(f"device__attribute_compute_capability_{part}") for part in
                    ("major", "minor"))  # fmt: skip
    cc = f"{major}.{minor}" if major is not None else None
    sizes = [tuple(value(f"launch__{of}_dim_{axis}") for axis in "xyz") for of in ("grid", "block")]
    shapes = [f"({', '.join(map(str, one))})" if None not in one else None for one in sizes]
    place = (number, str(action.name()), None, cc, *shapes)
    for name in sorted(names):
        if substrings and not any(part in name for part in substrings):
            continue
        metric = action.metric_by_name(name)
        unit, factor = unit_of(str(metric.unit() or ""))
        content = metric.value()
        is_number = isinstance(content, (int, float)) and abs(content) < float("inf")
        amount = float(content) * factor if is_number else None
        text = content if isinstance(content, str) and content else None
        yield (*place, None, name, unit or None, amount, text, None, None, None, None)
    for rule in action.rule_results_as_dicts():
        message = rule.get("rule_message") or {}
        speedup = rule.get("speedup_estimation") or {}
        amount = speedup.get("speedup")
        yield (
            *place, rule.get("section_identifier"), None, None, None, message.get("message"),
            rule.get("rule_identifier"), _TYPES.get(_whole(message.get("type"))),
            _SPEEDUPS.get(_whole(speedup.get("type"))), None if amount is None else amount / 100,
        )  # fmt: skip


def _whole(value: Any) -> int:
    return -1 if value is None else int(value)


FORMAT: Format = Format(
    name=NCU_REP,
    suffixes=(".ncu-rep",),
    description="reports of Nsight Compute, with NVIDIA's module ncu_report",
    sniff=sniff,
    parse=parse,
    priority=45,
)
