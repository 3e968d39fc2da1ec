"""Lines of a job log: the process that printed each, its rank and its time, without prefixes."""

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import strptime

from traceanalyzer.parsers.collapsed.text import TOO_LONG, chunks
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.source import Source
from traceanalyzer.units import NS_PER_S

#: Longer lines are skipped: tables and log lines have some hundred characters.
_LONGEST = 1 << 16
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: What launchers write before each line of a process: torchrun, ``mpirun --tag-output``, ``srun
#: --label``. The number of torchrun's ``[default0]`` is that of the process in its node.
_LAUNCHER = re.compile(
    r"(?:\[(?P<name>default|rank)(?P<n>\d{1,6})\]:|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>:"
    r"|(?P<srun>\d{1,5}):)(?: |(?=\[)|$)"
)
_RANK = re.compile(r"\[Rank (\d{1,6})\]|(?:^|\s)rank=(\d{1,6})\s")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[,.](\d{1,9}))?")
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
    """

    number: int
    text: str
    process: str
    launched: int | None
    complete: bool

    @property
    def rank(self) -> int | None:
        """The rank in the line, or before it; None without one."""
        match = _RANK.search(self.text[:_RANK_WITHIN])
        return int(match[1] or match[2]) if match else self.launched

    @property
    def printed_ns(self) -> int | None:
        """The local time at the beginning of the line, in ns since 1970 without a time zone."""
        match = _TIME.search(self.text[:_TIME_WITHIN])
        if match is None:
            return None
        try:
            seconds = calendar.timegm(strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S"))
        except ValueError:
            return None
        fraction = int((match[3] or "0").ljust(9, "0"))
        return seconds * NS_PER_S + fraction if 0 <= seconds < 1 << 32 else None


class Lines:
    """The lines of a file.

    Attributes:
        too_long: number of lines that were skipped because of their length.
        first_too_long: the number of the first one.
    """

    def __init__(self, source: Source, progress: Progress | None) -> None:
        self._source, self._progress = source, progress
        self.too_long = 0
        self.first_too_long: int | None = None

    def __iter__(self) -> Iterator[Line]:
        number = 0
        last: Line | None = None
        for chunk in chunks(self._source, self._progress):
            for raw in chunk:
                number += 1
                if last is not None:
                    yield last
                    last = None
                if len(raw) > _LONGEST or raw is TOO_LONG:
                    self.too_long += 1
                    self.first_too_long = self.first_too_long or number
                    continue
                last = line(number, raw.decode(errors="replace"))
        if last is not None:
            ends = self._source.damage is None and _ends(self._source)
            yield last if ends else replace(last, complete=False)


def line(number: int, text: str) -> Line:
    """Return a line without colours, a progress bar before it and the launcher's prefix."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    text = text.rstrip("\r").rpartition("\r")[2]
    match = _LAUNCHER.match(text)
    if match is None:
        return Line(number, text, "", None, complete=True)
    of_job = match["mpi"] or match["srun"] or (match["n"] if match["name"] == "rank" else None)
    rank = None if of_job is None else int(of_job)
    return Line(number, text[match.end() :], match[0].strip(), rank, complete=True)


def _ends(source: Source) -> bool:
    """Whether the file ends with a line end."""
    end = b"\n"
    for block in source.blocks():
        end = block[-1:]
    return end == b"\n"
