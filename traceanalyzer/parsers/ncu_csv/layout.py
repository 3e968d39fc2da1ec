"""Layouts of ncu's CSV: the header line, and its columns by name.

Layouts differ between pages and versions of ncu, so that columns are found by name:

* long (``--page details``, ``--metrics``): a row per launch and metric, and rows of rules;
* summary (``--print-summary``): a row per kernel and metric, with minimum, maximum and average;
* wide (``--page raw``, exports of the GUI): a row per launch, a column per metric. Units are in the
  second line, or in the header: ``gpu__time_duration.sum [ns]``.
"""

from __future__ import annotations

import codecs
import csv
import re
from dataclasses import dataclass

#: Column of the schema -> its names in reports.
NAMES: dict[str, tuple[str, ...]] = {
    "id": ("ID",),
    "pid": ("Process ID",),
    "host": ("Host Name",),
    "kernel": ("Kernel Name", "Demangled Name", "Function Name"),
    "device": ("Device", "Device ID"),
    "cc": ("CC",),
    "grid": ("Grid Size",),
    "block": ("Block Size",),
    "launches": ("Invocations",),
    "section": ("Section Name",),
    "label": ("Body Item Label",),
    "metric": ("Metric Name",),
    "unit": ("Metric Unit",),
    "value": ("Metric Value", "Average"),
    "rule": ("Rule Name",),
    "rule_type": ("Rule Type",),
    "description": ("Rule Description",),
    "speedup_type": ("Estimated Speedup Type",),
    "speedup": ("Estimated Speedup",),
}
#: Columns of wide reports that are not metrics.
_OTHERS = ("Process Name", "Kernel Time", "Context", "Stream", "Minimum", "Maximum", "Process")
#: Columns of NVTX ranges.
_NVTX = re.compile(r"(?:thread|Id):Domain:|thread Domain:|.*:(?:Push/Pop|Start/Stop)_Range")
_HEADED = re.compile(r"(?s)(.*\S)\s*\[([^\[\]]*)\]")
_DELIMITERS = (",", ";", "\t")
#: Longer lines are not headers.
_LONGEST = 1 << 20

#: Beginning of the messages of ncu.
MESSAGE = re.compile(rb"(?m)^==(?:PROF|WARNING|ERROR|LOG)== ")


@dataclass(frozen=True)
class Layout:
    """The columns of one table.

    Attributes:
        delimiter: between cells.
        quoted: whether rows begin with a quotation mark.
        width: number of cells in the header.
        columns: place of the columns of :data:`NAMES` that the table has.
        metrics: wide tables: place, name and unit of each metric; the unit is None if it is not
            in the header.
    """

    delimiter: str
    quoted: bool
    width: int
    columns: dict[str, int]
    metrics: tuple[tuple[int, str, str | None], ...] = ()

    @property
    def is_wide(self) -> bool:
        """Whether each metric has a column."""
        return "metric" not in self.columns


def parse_header(line: str) -> Layout | None:
    """Return the layout of a header line; None for any other line."""
    if "Name" not in line or len(line) > _LONGEST:
        return None
    text = line.strip().lstrip("\ufeff")
    for delimiter in _DELIMITERS:
        cells = cells_of(text, delimiter)
        columns = {
            column: cells.index(name)
            for column, names in NAMES.items()
            for name in reversed(names)
            if name in cells
        }
        if "metric" in columns and not columns.keys() & {"kernel", "launches"}:
            continue
        if "metric" in columns and "value" in columns:
            return Layout(delimiter, text.startswith('"'), len(cells), columns)
        if "metric" not in columns and {"kernel", "id"} <= columns.keys():
            named = {"metric", "unit", "value", "rule", "launches", "label"}
            places = {name: place for name, place in columns.items() if name not in named}
            metrics = _metrics(cells, set(places.values()))
            return Layout(delimiter, text.startswith('"'), len(cells), places, metrics)
    return None


def _metrics(cells: list[str], used: set[int]) -> tuple[tuple[int, str, str | None], ...]:
    metrics = []
    for place, cell in enumerate(cells):
        if place in used or not cell or cell in _OTHERS or _NVTX.match(cell):
            continue
        headed = _HEADED.fullmatch(cell)
        metrics.append((place, headed[1], headed[2]) if headed else (place, cell, None))
    return tuple(metrics)


def cells_of(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line without surrounding spaces; empty if it is not CSV."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def encoding_of(head: bytes) -> str | None:
    """Return the encoding of UTF-16 text (PowerShell's ``>``); None for UTF-8."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head[1:2] == b"\0" and head[:1] not in (b"", b"\0"):
        return "utf-16-le"
    if head[:1] == b"\0" and head[1:2] not in (b"", b"\0"):
        return "utf-16-be"
    return None


def is_report(head: bytes) -> bool:
    """Whether the beginning of a file has a header or a message of ncu."""
    if encoding := encoding_of(head):
        text = head[: len(head) // 2 * 2].decode(encoding, errors="replace")
        if "\0" in text:
            return False
    elif b"\0" in head:
        return False
    else:
        text = head.decode(errors="replace")
    if text.lstrip("\ufeff \r\n")[:1] in ("{", "[", "<"):
        return False
    if MESSAGE.search(text.lstrip("\ufeff").encode(errors="replace")):
        return True
    return any(parse_header(line) for line in text.splitlines())
