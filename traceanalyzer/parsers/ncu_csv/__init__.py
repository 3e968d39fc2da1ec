"""Reports of Nsight Compute as CSV (``ncu --csv``), in every layout that ncu writes.

Here rows are separated from the other output of the program, the header and the columns are found,
and numbers and units converted; ``reader`` builds the table ``metrics``.

Specification: <https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html>
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import polars as pl

from traceanalyzer.parsers.contract import Format, on_use
from traceanalyzer.vocabulary import NCU_CSV

#: A record with quoted line breaks has at most this many lines.
_LINES = 64
_LONGEST = 1 << 20
#: Of a longer line only the beginning is kept; a row with values of all instances may be long.
_LONGEST_LINE = 1 << 25
_QUOTE, _LINE_BREAK = 34, 10
_CHARS = 300


@dataclass
class Messages:
    """Lines that are not rows.

    Attributes:
        errors: lines ``==ERROR==``, without the prefix; warnings: lines ``==WARNING==``.
        other: number of other lines, such as output of the program.
        bad: number of rows with an open quotation mark, which are skipped.
        counts: number of errors and of warnings.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    other: int = 0
    bad: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"errors": 0, "warnings": 0})

    def add(self, line: bytes) -> None:
        """Count a line; the first messages are kept."""
        for prefix, name in ((b"==ERROR==", "errors"), (b"==WARNING==", "warnings")):
            if line.startswith(prefix):
                self.counts[name] += 1
                kept: list[str] = getattr(self, name)
                if len(kept) < 3:
                    kept.append(line[len(prefix) :].decode(errors="replace").strip()[:_CHARS])
                return
        if line.strip() and not line.startswith((b"==PROF==", b"==LOG==")):
            self.other += 1


def chunks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks that end with a record: at a line break outside of quotation marks."""
    rest = b""
    for block in _bounded(blocks):
        data = rest + block
        end = _last_record(data)
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        yield rest


def _bounded(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks without the ends of endless lines, which would have to be in memory."""
    length = 0
    for block in blocks:
        first, last = block.find(b"\n"), block.rfind(b"\n")
        end = len(block) if first < 0 else first
        room = max(_LONGEST_LINE - length, 0)
        length = length + end if first < 0 else len(block) - last - 1
        yield block if end <= room else block[:room] + block[end:]


def _last_record(data: bytes) -> int:
    """Return where the last complete record ends; the last line if quotation marks do not match."""
    last = end = data.rfind(b"\n") + 1
    # faster than bytes.count where they are frequent
    quotes = int(np.count_nonzero(np.frombuffer(data, np.uint8, end) == _QUOTE)) if end else 0
    for _ in range(_LINES):
        if not end:  # a record that goes on, unless it is too long for one
            return 0 if len(data) < _LONGEST else last
        if quotes % 2 == 0:
            return end
        before = data.rfind(b"\n", 0, end - 1) + 1
        quotes -= data.count(b'"', before, end)
        end = before
    return last


def regular_rows(data: bytes, layout: Layout) -> int:
    """Return the number of rows of a chunk whose lines are all rows; 0 if some are not.

    Rows begin with a quotation mark. A header is not a row.
    """
    if not layout.quoted or not data.startswith(b'"') or b'"Kernel Name"' in data:
        return 0
    content = np.frombuffer(data, np.uint8)
    begins = np.flatnonzero(content == _LINE_BREAK) + 1
    is_open = not data.endswith(b"\n")
    if bool((content[begins if is_open else begins[:-1]] == _QUOTE).all()):
        return len(begins) + is_open
    return 0


def sections(
    data: bytes, layout: Layout | None, messages: Messages
) -> Iterator[tuple[Layout | None, list[bytes]]]:
    """Yield the layout and the rows of each run of rows in a chunk.

    A header begins a new table; its layout comes first, with no rows.
    """
    rows: list[bytes] = []
    record: list[bytes] = []
    for line in data.split(b"\n"):
        if record:
            record.append(line)
            if sum(part.count(b'"') for part in record) % 2 == 0:
                rows.append(b"\n".join(record))
                record = []
            elif len(record) >= _LINES:
                rows += closed(record, layout, messages)
                record = []
            continue
        if b"Name" in line and (header := parse_header(line.decode(errors="replace"))):
            if header == layout and not header.is_wide:  # several reports in one log
                continue
            if rows:
                yield layout, rows
                rows = []
            layout = header
            yield layout, []
        elif not _is_row(line, layout):
            messages.add(line)
        elif line.count(b'"') % 2:
            record = [line]
        else:
            rows.append(line)
    if record:
        rows += closed(record, layout, messages)
    if rows:
        yield layout, rows


def is_short(data: bytes, layout: Layout | None) -> bool:
    """Whether the last line is a row with fewer cells than the table."""
    last = data.rpartition(b"\n")[2]
    if layout is None or not layout.quoted or not last.startswith(b'"'):
        return False
    return last.count(b'"') < 2 * layout.width


def _is_row(line: bytes, layout: Layout | None) -> bool:
    if layout is None or line.startswith(b"=="):
        return False
    if layout.quoted:
        return line.startswith(b'"')
    return line.count(layout.delimiter.encode()) >= min(len(layout.columns), 3)


def closed(record: list[bytes], layout: Layout | None, messages: Messages) -> list[bytes]:
    """Return the complete rows after the first line, whose quotation mark is open."""
    messages.bad += 1
    rows = []
    for line in record[1:]:
        if not _is_row(line, layout) or b'"Kernel Name"' in line:  # output, or a header
            messages.add(line)
        elif line.count(b'"') % 2:
            messages.bad += 1
        else:
            rows.append(line)
    return rows


_SPACES = "[ \u00a0\u202f'\u2019]"
#: Numbers that are certainly written with a decimal comma, or with a decimal point.
_COMMA = r"^[+-]?(?:\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}|\d+,(?:\d{1,2}|\d{4,})|0,\d+)$"
_POINT = r"^[+-]?(?:\d{1,3}(?:,\d{3})+\.\d+|\d{1,3}(?:,\d{3}){2,}|\d+\.(?:\d{1,2}|\d{4,})|0\.\d+)$"
#: A value with those of its instances: ``12 (3; 4; 5)``.
_INSTANCES = r"^([^()]+?)\s*\(.*\)$"
#: Cells without a value.
_NOTHING = ("", "n/a", "(!) n/a", "no data", "(!) nan", "-", "--")

_TIMES = {
    "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6,
    "second": 1e9, "s": 1e9, "minute": 60e9, "hour": 3600e9,
}  # fmt: skip
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BASES = ("byte", "hz", "inst", "sector", "request", "cycle", "thread", "warp", "op", "bit")
_PREFIXED = re.compile(rf"([KkMGTP]?)({'|'.join(_BASES)})s?", re.IGNORECASE)


@cache
def unit_of(text: str) -> tuple[str, float]:
    """Return the base unit and the factor to it: ``Kbyte`` is 1000 ``byte``.

    Times become ``ns``, frequencies ``hz``, rates ``.../s``; unknown units stay as they are.
    """
    above, slash, below = text.strip().partition("/")
    if not slash:
        return ("ns", _TIMES[above]) if above in _TIMES else _prefixed(above)
    unit, factor = _prefixed(above)
    if below in _TIMES:
        factor *= 1e9 / _TIMES[below]
        return ("hz", factor) if unit == "cycle" else (f"{unit}/s", factor)
    return f"{unit}/{below}", factor


def _prefixed(text: str) -> tuple[str, float]:
    match = _PREFIXED.fullmatch(text)
    if match is None:
        return text, 1.0
    prefix = match[1] if match[1] in _PREFIXES else match[1].upper()
    return match[2].lower(), _PREFIXES[prefix]


class Numbers:
    """Converts columns of text to numbers; remembers which decimal separator a file has.

    Attributes:
        decimal_comma: whether ambiguous numbers have a decimal comma; None: not known yet.
        with_comma: number of values that certainly have one.
    """

    def __init__(self) -> None:
        self.decimal_comma: bool | None = None
        self.with_comma = 0

    def convert(self, texts: pl.Series) -> pl.Series:
        """Return finite numbers as Float64; null for text, NaN, infinity and missing values."""
        cells = texts.str.strip_chars().str.replace_all(_SPACES, "")
        comma = cells.str.contains(_COMMA).fill_null(value=False)
        self._learn(cells, int(comma.sum()))
        point = _number(cells.str.replace_all(",", "", literal=True))
        if self.decimal_comma or comma.any():
            european = _number(
                cells.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
            )
            sure_point = cells.str.contains(_POINT).fill_null(value=False)
            use = (comma | ~sure_point) if self.decimal_comma else comma
            point = pl.select(pl.when(use).then(european).otherwise(point)).to_series()
        # a rare form, with a slower pattern
        if (missing := point.is_null() & cells.str.contains("(", literal=True)).any():
            first = texts.filter(missing).str.strip_chars().str.extract(_INSTANCES)
            plain = self.convert(first) if first.count() else first.cast(pl.Float64)
            point = point.scatter(missing.arg_true(), plain)
        return point

    def _learn(self, cells: pl.Series, with_comma: int) -> None:
        self.with_comma += with_comma
        if self.decimal_comma is None or (with_comma and not self.decimal_comma):
            with_point = int(cells.str.contains(_POINT).sum() or 0)
            if with_comma or with_point:
                self.decimal_comma = with_comma > with_point


def _number(cells: pl.Series) -> pl.Series:
    numbers = cells.cast(pl.Float64, strict=False)
    return numbers.set(~numbers.is_finite(), None)


def text_values(texts: pl.Series, numbers: pl.Series) -> pl.Series:
    """Return the values that are text, such as ``CachePreferNone``; null for all others."""
    cells = texts.str.strip_chars()
    nothing = cells.str.to_lowercase().is_in([*_NOTHING, "nan", "inf", "-inf", "+inf", "-nan"])
    return cells.set(numbers.is_not_null() | nothing | cells.is_null(), None)


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
_LONGEST_HEADER = 1 << 20

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
    if "Name" not in line or len(line) > _LONGEST_HEADER:
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


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether a line is a header of ncu, or a message of ncu."""
    if b"\0" in head or head.lstrip()[:1] in (b"{", b"[", b"<"):
        return False
    if MESSAGE.search(head):
        return True
    return any(parse_header(line) for line in head.decode(errors="replace").splitlines())


FORMAT: Format = Format(
    name=NCU_CSV,
    suffixes=(".csv", ".txt", ".log"),
    description="metrics of Nsight Compute (ncu --csv), any page",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.ncu_csv.reader:parse"),
    priority=40,
)
