"""Lines of a job log: the process that printed each, its rank and its time, without prefixes."""

import calendar
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from time import strptime

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.collapsed.text import TOO_LONG, chunks
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.source import Source
from traceanalyzer.schema import MAX_WEIGHT
from traceanalyzer.units import NS_PER_S

#: Longer lines are skipped: tables and log lines have some hundred characters.
_LONGEST = 1 << 16
#: Copies of a terminal may lack the escape character of colours.
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[\d{1,3}(?:;\d{1,3}){0,4}m")
_ESCAPE_BYTES = re.compile(_ESCAPE.pattern.encode())
#: What launchers write before each line of a process: torchrun, ``mpirun --tag-output``, ``srun
#: --label``. The number of torchrun's ``[default0]`` is that of the process in its node.
_LAUNCHER = re.compile(
    r"(?:\[(?P<name>default|rank)(?P<n>\d{1,6})\]:|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>:"
    r"|(?P<srun>\d{1,5}):)(?: |(?=\[|[VDIWE]\d{4} )|$)"
)
_RANK = re.compile(r"\[Rank (\d{1,6})\]|(?:^|\s)rank=(\d{1,6})\s")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[,.](\d{1,9}))?")
#: The first line of a table of operators or of memory behind what anything else writes before each
#: line of a process (Ray, docker compose, kubectl, torchrun), and a table's header.
_BEFORE_TABLE = re.compile(r"(.{1,200}?)(?<!-)(?:-{5,}+(?: {2}-{2,}+){3,} *|\|={20,}+\|)$")
_HEADER = re.compile(r"\s*(?:Name {2}|\| *PyTorch \w+ memory summary)")
_STAMP = re.compile(r"(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:\d\d)?")
_MOST_PREFIXES = 64
#: Places of rank and time: a line's message may contain anything.
_RANK_WITHIN, _TIME_WITHIN = 160, 64


@dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        number: number of the line in the file, from 1.
        text: the line without what the launcher wrote before it.
        process: label of the process that the launcher wrote, or an empty text.
        launched: rank that the launcher wrote, or None.
        complete: whether the line has an end; the last one of a truncated file has none.
        before: what stood before the text, if it was not a launcher's.
        marks: of the marks of ``Lines``, those in its part of the file.
    """

    number: int
    text: str
    process: str
    launched: int | None
    complete: bool = True
    before: str = ""
    marks: tuple[str, ...] = ()

    @property
    def rank(self) -> int | None:
        """The rank in the line, or before it; None without one."""
        match = _RANK.search((self.before + self.text)[:_RANK_WITHIN])
        return int(match[1] or match[2]) if match else self.launched

    @property
    def printed_ns(self) -> int | None:
        """The local time at the beginning of the line, in ns since 1970 without a time zone."""
        match = _TIME.search((self.before + self.text)[:_TIME_WITHIN])
        if match is None:
            return None
        try:
            seconds = calendar.timegm(strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S"))
        except ValueError:
            return None
        fraction = int((match[3] or "0").ljust(9, "0"))
        return seconds * NS_PER_S + fraction if 0 <= seconds < 1 << 32 else None


class Lines:
    """The lines of a file; those that are too long are counted in ``rows``.

    Looking for many marks at once, in a part of the file, takes less time than in each line.
    """

    def __init__(
        self, source: Source, progress: Progress | None, rows: "Rows", marks: Sequence[str] = ()
    ) -> None:
        self._source, self._progress, self._rows = source, progress, rows
        self._marks = [(mark, mark.encode()) for mark in marks]
        self._prefixes = dict[str, re.Pattern[str]]()
        self._of_tables = set[str]()

    def __iter__(self) -> Iterator[Line]:
        number = 0
        last: Line | None = None
        for chunk in chunks(self._source, self._progress):
            marks = self._within(chunk)
            for raw in chunk:
                number += 1
                if last is not None:
                    yield last
                    last = None
                if len(raw) > _LONGEST or raw is TOO_LONG:
                    self._rows.note("data_loss", "long-line", Line(number, "", "", None))
                    continue
                last = self._line(number, raw.decode(errors="replace"), marks)
        if last is not None:
            ends = self._source.damage is None and _ends(self._source)
            yield last if ends else replace(last, complete=False)

    def _within(self, chunk: Sequence[bytes]) -> tuple[str, ...]:
        """Return the marks in lines."""
        text = b"\n".join(chunk)
        if b"\x1b" in text or b"[0m" in text:
            text = _ESCAPE_BYTES.sub(b"", text)
        return tuple(mark for mark, encoded in self._marks if encoded in text)

    def _line(self, number: int, text: str, marks: tuple[str, ...]) -> Line:
        """Return a line without the prefix of a table; it is known from the table's header on."""
        text = plain(text)
        for process, prefix in self._prefixes.items():
            match = prefix.match(text)
            rest = text[match.end() :] if match else ""
            if match and (process in self._of_tables or _HEADER.match(rest)):
                self._of_tables.add(process)
                known = line(number, process, marks)
                return replace(known, text=rest, process=process, before=match[0])
        match = _BEFORE_TABLE.match(text) if text.endswith(("-", "|", " ")) else None
        if match and match[1].strip(" ") and len(self._prefixes) < _MOST_PREFIXES:
            self._prefixes[_STAMP.sub("", match[1]).strip()] = _pattern(match[1])
        return line(number, text, marks)


#: Messages that end at the end of a line, but not complete, and the lines that continue them.
_WRAPPED = re.compile(
    r"out of memory\. Tried to allocate (?!.*(?:unallocated|reserved in total|cached))"
    r"|Watchdog caught collective operation timeout:\s*$"
)
_CONTINUES = re.compile(
    r"\s*(?:WorkNCCL\(|[A-Z]?PU (?:\d+ )?has a |Process \d+ has "
    r"|Including non-PyTorch|Of the allocated "
    r"|is (?:reserved|allocated|free)\b|(?:memory )?in use\.|(?:reserved|allocated) by PyTorch"
    r"|(?:but )?unallocated\b|by PyTorch\b"
    r"|[\d.]+ [KMGT]iB (?:is|already|free|current|reserved|total)\b)"
)
_MOST_JOINED = 6


def joined(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines, and messages of errors that are wrapped as one line."""
    first: Line | None = None
    more = 0
    for one in lines:
        if first is not None:
            if more < _MOST_JOINED and one.process == first.process and _CONTINUES.match(one.text):
                text = f"{first.text.rstrip()} {one.text.strip()}"
                first, more = replace(first, text=text, complete=one.complete), more + 1
                continue
            yield first
        first, more = (one, 0) if _WRAPPED.search(one.text) else (None, 0)
        if first is None:
            yield one
    if first is not None:
        yield first


def _pattern(prefix: str) -> re.Pattern[str]:
    """Return the pattern of a prefix with any time stamp; empty lines end before its blanks."""
    stem = prefix.rstrip()
    escaped = _STAMP.pattern.join(map(re.escape, _STAMP.split(stem, maxsplit=1)))
    return re.compile(f"{escaped}(?:{prefix[len(stem) :]}|$)")


def plain(text: str) -> str:
    """Return a line without colours and a progress bar before it."""
    if "\x1b" in text or "[0m" in text:
        text = _ESCAPE.sub("", text)
    return text.rstrip("\r").rpartition("\r")[2]


def line(number: int, text: str, marks: tuple[str, ...] = ()) -> Line:
    """Return a line without colours, a progress bar before it and the launcher's prefix."""
    text = plain(text)
    match = _LAUNCHER.match(text)
    if match is None:
        return Line(number, text, "", None, marks=marks)
    of_job = match["mpi"] or match["srun"] or (match["n"] if match["name"] == "rank" else None)
    rank = None if of_job is None else int(of_job)
    return Line(number, text[match.end() :], match[0].strip(), rank, marks=marks)


def _ends(source: Source) -> bool:
    """Whether the file ends with a line end."""
    end = b"\n"
    for block in source.blocks():
        end = block[-1:]
    return end == b"\n"


# --- numbers with units --------------------------------------------------------------------------


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµ]*)\s*")
#: Powers of ten by prefix.
_LARGE = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_POWERS = {**_LARGE, "m": -3, "u": -6, "µ": -6, "n": -9, "p": -12}
_BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_VALUES_LONGEST = 64
#: Numbers without a unit of their own beyond this are damage.
_MOST = 1e30
#: Metrics that are whole numbers, exact below 2^53 (104 days in ns).
_WHOLE = ("_ns", "_bytes", "calls", "_n")


def number(text: str) -> float | None:
    """Return a number without a unit; None for any other text."""
    value, unit = _parts(text)
    return _scaled(value, 0) if unit == "" else None


def nanoseconds(text: str) -> float | None:
    """Return a time such as ``6.087ms``, ``1.08 s``, ``1.77 Gs`` in ns; None for any other text."""
    value, unit = _parts(text)
    power = _POWERS.get(unit[:-1]) if unit.endswith("s") else None
    return None if power is None else _whole(_scaled(value, power + 9))


def size(text: str) -> float | None:
    """Return a size such as ``1.98 MB``, ``4 B``, ``512 MiB`` in bytes; None for any other text.

    PyTorch and DeepSpeed mean multiples of 1024 by KB, MB and GB.
    """
    value, unit = _parts(text)
    factor = _BINARY.get(unit[:-1].removesuffix("i").lower()) if unit[-1:] in ("B", "b") else None
    return None if value is None or factor is None else _whole(_scaled(value * factor, 0))


def count(text: str, unit: str = "") -> float | None:
    """Return a count such as ``229.36 M``, ``21.83 GMACs``; None for any other text."""
    value, ending = _parts(text)
    power = _POWERS.get(ending.removesuffix(unit))  # DeepSpeed of 2021 prints ``21.83 G``
    return None if power is None else _scaled(value, power)


def _parts(text: str) -> tuple[Decimal | None, str]:
    """Return number and unit; decimals, so that ``1.08 T`` is exactly 1,080,000,000,000."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _VALUES_LONGEST else None
    return (Decimal(match[1]), match[2]) if match and match[1].isascii() else (None, "")


def _scaled(value: Decimal | None, power: int) -> float | None:
    """Return a number times a power of ten; None for numbers beyond Float64."""
    scaled = None if value is None else float(value.scaleb(power))
    return scaled if scaled is not None and math.isfinite(scaled) else None


def _whole(value: float | None) -> float | None:
    """Round a number: ``1.98 MB`` is not a fraction of a byte."""
    return None if value is None else float(round(value))


#: Rows that are converted at a time.
_AT_ONCE = 1 << 15


@dataclass
class Rows:
    """The rows of ``aggregates`` read so far, as columns, and what could not be read.

    Attributes:
        columns: values of the last rows by column.
        frames: the rows before, in batches.
        issues: count and first line by (severity, code).
        blocks: number of blocks.
    """

    columns: dict[str, list[object]] = field(
        default_factory=lambda: {name: [] for name in schema.types("aggregates")}
    )
    frames: list[pl.DataFrame] = field(default_factory=list)
    issues: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    blocks: int = 0

    def block(self) -> int:
        """Return the number of a new block."""
        self.blocks += 1
        return self.blocks - 1

    def add(
        self,
        form: str,
        place: tuple[int, int | None],
        line: Line,
        values: Mapping[str, float | str | None],
        *,
        name: str | None = None,
        rank: int | None = None,
    ) -> None:
        """Add the numbers and texts of one line.

        Args:
            form: the form of the text.
            place: number of the block, number of the row in it.
            line: the line.
            values: number or text by metric; None is left out.
            name: what the line is about.
            rank: the rank that it is about, by default that of the line.
        """
        rank, printed_ns = line.rank if rank is None else rank, line.printed_ns
        is_cut = bool(name and name.endswith("..."))
        for metric, value in values.items():
            known = value if isinstance(value, str) else self._within(metric, value, line)
            if known is None:
                continue
            is_text = isinstance(known, str)
            row = (
                rank, form, *place, name, is_cut, metric,
                None if is_text else known, known if is_text else None, printed_ns, line.number,
            )  # fmt: skip
            for column, cell in zip(self.columns.values(), row, strict=True):
                column.append(cell)
        if len(self.columns["line"]) >= _AT_ONCE:
            self._flush()

    def table(self) -> pl.DataFrame:
        """Return the table ``aggregates``."""
        self._flush()
        return pl.concat(self.frames)

    def _flush(self) -> None:
        """Convert the last rows: as Python objects they take ten times the memory."""
        self.frames.append(pl.DataFrame(self.columns, schema=schema.types("aggregates")))
        for values in self.columns.values():
            values.clear()

    def _within(self, metric: str, value: float | None, line: Line) -> float | None:
        if value is None:
            return None
        if abs(value) < (MAX_WEIGHT if metric.endswith(_WHOLE) else _MOST):
            return value
        self.note("data_loss", "number-out-of-range", line)
        return None

    def note(self, severity: str, code: str, line: Line) -> None:
        """Count an irregularity."""
        counted = self.issues.setdefault((severity, code), [0, line.number])
        counted[0] += 1
