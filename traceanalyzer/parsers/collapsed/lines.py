"""Lines of collapsed stacks -> numbers: frames, lengths, weights and lanes of the samples.

Each distinct frame text is parsed once and numbered in a dictionary. Ordinary lines are processed
in chunks. A line with an unusual frame (a label, an unbalanced bracket from a ``;`` inside a path,
an empty text) or a count that is not an integer is processed by itself.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from operator import methodcaller

import numpy as np
import numpy.typing as npt

from traceanalyzer.frames.stacks import Numbers
from traceanalyzer.parsers.collapsed import text as labels
from traceanalyzer.parsers.collapsed.text import Dialect, is_comment
from traceanalyzer.parsers.tables import Lanes

try:
    import traceanalyzer.parsers.collapsed._frames as _frames
except ImportError:  # pragma: no cover - built without a compiler
    _frames = None  # type: ignore[assignment]

#: Maximum lines and bytes of a record with a multi-line command line.
_MAX_JOINED_LINES = 1000
_MAX_JOINED = 1 << 20
#: Maximum digits of a count: parsing takes quadratic time.
_MAX_COUNT = 400
#: Maximum pieces of a path split at its ``;``.
_MAX_PIECES = 16

_at_last_space = methodcaller("rpartition", b" ")


class FrameNumbers(dict[bytes, int]):
    """Numbers of frame texts, assigned at the first lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = bytearray()  # by number: whether a line with this frame is unusual

    def __missing__(self, text: bytes) -> int:
        number = self[text] = len(self.odd)
        self.odd.append(_is_odd(text))
        return number


def _is_odd(text: bytes) -> bool:
    return (
        not text
        or text.startswith((b"#", b"//", *labels.LABELLED))
        or text[-1:].isspace()
        or _left_open(text) > 0
    )


#: A negative number of bytes: memory that was freed.
_FREED = re.compile(rb"\s-\d+$")


class Lines:
    """The samples read: one entry per sample in ``lengths``, ``weights`` and ``lane_of``.

    Attributes:
        frames: frame numbers of all samples, concatenated, outermost first.
        second: weights of the second column, if there are two.
        bad: number of lines that are not samples.
        first_bad: number of the first bad line, from 1.
        freed: number of lines that count freed memory, in Austin's memory mode.
        line: number of the next line, from 1.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.numbers = FrameNumbers()
        self.lanes = Lanes()
        self.frames = array("I")
        self.lengths = array("I")
        self.weights = array("d")
        self.second = array("d")
        self.lane_of = array("I")
        self.bad = 0
        self.first_bad: int | None = None
        self.freed = 0
        self.line = 1
        self._waiting: list[bytes] = []

    def add(self, lines: list[bytes], *, last: bool = False) -> None:
        """Add whole lines; ``last`` if no lines follow."""
        lines = self._waiting + lines
        self._waiting = []
        at_once = self.dialect.columns == 1 and not self.dialect.austin
        batch = self._batch(lines, last) if at_once else None
        place = 0  # first row that is neither taken nor dropped
        behind = 0  # first row after the last record
        dropped: list[int] = []
        for row in batch.odd if batch else range(len(lines)):
            if row < behind:
                continue  # a line of the previous record
            used, sample = self._record(lines, row, last)
            behind = row + used
            if used == 1 and sample is None:
                dropped.append(row)
                continue
            if batch:
                self._take(batch, place, row, dropped)
            place, dropped = behind, []
            if sample:
                self._add(*sample)
            if not used:
                self._waiting = lines[row:]
                break
        else:
            if batch:
                self._take(batch, place, len(lines), dropped)
        self.line += len(lines) - len(self._waiting)

    def _batch(self, lines: list[bytes], last: bool) -> _Batch:
        """Process all lines as ordinary ones, and list the rows of the unusual ones."""
        split = list(map(_at_last_space, lines))
        stacks = [stack for stack, _, _ in split]
        counts = [count for _, _, count in split]
        lanes = np.zeros(len(lines), np.uint32)
        if self.dialect.labelled:
            behind = 0  # labels inside a multi-line command line are not labels
            for row, (stack, count) in enumerate(zip(stacks, counts, strict=True)):
                if row < behind:
                    continue
                # other lines keep their label and are unusual for that
                if count.isdigit() and labels.is_closed(stack):
                    lanes[row], stacks[row] = labels.py_spy(stack, self.lanes)
                elif _goes_on(lines[row]):
                    behind = row + (_extent(lines, row, last) or len(lines))
        batch = _Batch(stacks, counts, lanes, self.numbers)
        batch.weights *= self.dialect.scale
        return batch

    def _take(self, batch: _Batch, start: int, end: int, dropped: list[int]) -> None:
        """Add the ordinary lines of a batch from one row to another."""
        kept = np.ones(end - start, np.bool_)
        kept[np.array(dropped, np.int64) - start] = False
        frames = batch.frames[batch.ends[start] : batch.ends[end]]
        lengths = batch.lengths[start:end]
        if dropped:
            frames = frames[np.repeat(kept, lengths)]
        self.frames.frombytes(frames.tobytes())
        self.lengths.frombytes(lengths[kept].tobytes())
        self.weights.frombytes(batch.weights[start:end][kept].tobytes())
        self.lane_of.frombytes(batch.lanes[start:end][kept].tobytes())

    def _record(
        self, lines: list[bytes], row: int, last: bool
    ) -> tuple[int, tuple[bytes, list[float]] | None]:
        """Parse the record that begins in this row.

        Returns:
            The number of lines, 0 if more lines are needed; stack and weights, None for a comment,
            an empty line or a bad one.
        """
        line, used = lines[row], 1
        if _goes_on(line):
            used = _extent(lines, row, last)
            line = b"\n".join(lines[row : row + used])
        line = line.rstrip()
        if not used or not line or is_comment(line):
            return used, None
        sample = self._weighed(line)
        if sample is None and self.dialect.unit == "bytes" and _FREED.search(line):
            self.freed += 1
        elif sample is None:
            self.bad += 1
            self.first_bad = self.first_bad or self.line + row
        return used, sample

    def _add(self, stack: bytes, weights: list[float]) -> None:
        """Add a sample."""
        read = labels.austin if self.dialect.austin else labels.py_spy
        lane, stack = read(stack, self.lanes)
        frames = self._numbered(stack)
        self.frames.extend(frames)
        self.lengths.append(len(frames))
        self.lane_of.append(lane)
        self.weights.append(weights[0])
        if len(weights) > 1:
            self.second.append(weights[1])

    def _weighed(self, line: bytes) -> tuple[bytes, list[float]] | None:
        """Return a line's stack and weights; None without a valid count."""
        columns = self.dialect.columns
        parts = line.rsplit(None, columns)
        if len(parts) == columns and line[:1].isspace():
            parts = [b"", *parts]
        if len(parts) <= columns:
            return None
        stack, *counts = parts
        if self.dialect.full:
            counts = [count.partition(b",")[0] for count in counts]
        if not all(len(count) <= _MAX_COUNT and labels.COUNT.fullmatch(count) for count in counts):
            return None
        weights = [float(count) * self.dialect.scale for count in counts]
        return (stack, weights) if all(map(math.isfinite, weights)) else None

    def _numbered(self, stack: bytes) -> list[int]:
        if not stack:
            return []
        parts = stack.split(b";")
        numbers = [self.numbers[part] for part in parts]
        if any(map(self.numbers.odd.__getitem__, numbers)):
            numbers = [self.numbers[part] for part in _rejoined(parts)]
        return numbers


class _Batch:
    """Lines processed as one batch, with the rows to process one by one.

    Attributes:
        frames: frame numbers of all lines, concatenated.
        ends: start of each line's frames, and the end of the last line's.
        lengths: number of frames per line.
        weights: count of each line.
        lanes: lane of each line.
        odd: unusual rows, for which the above may be wrong.
    """

    def __init__(
        self, stacks: list[bytes], counts: list[bytes], lanes: Numbers, numbers: FrameNumbers
    ) -> None:
        self.lanes = lanes
        self.weights = _whole(counts)
        distinct, frames, lengths = numbered(b"\n".join(stacks))
        known = np.fromiter(map(numbers.__getitem__, distinct), np.uint32, len(distinct))
        self.frames = known[np.frombuffer(frames, np.uint32)]
        self.lengths = np.frombuffer(lengths, np.uint32)
        self.ends = np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))
        odd = np.isnan(self.weights)
        unusual = np.frombuffer(bytes(numbers.odd), np.bool_)
        if unusual.any():
            odd |= np.logical_or.reduceat(unusual[self.frames], self.ends[:-1])
        self.odd: list[int] = np.flatnonzero(odd).tolist()


def _whole(counts: list[bytes]) -> npt.NDArray[np.float64]:
    """Return counts as floats, NaN for counts that are not integers."""
    if not all(counts) or not b"".join(counts).isdigit() or max(map(len, counts)) > _MAX_COUNT:
        counts = [c if c.isdigit() and len(c) <= _MAX_COUNT else b"nan" for c in counts]
    weights = np.fromiter(map(float, counts), np.float64, len(counts))
    weights[np.isinf(weights)] = np.nan
    return weights


def _goes_on(line: bytes) -> bool:
    """Whether a command line begins in this line and continues in the next."""
    start = labels.opened(line)
    return bool(start) and not labels.closes(line[start:])


def _extent(lines: list[bytes], row: int, last: bool) -> int:
    """Return the number of lines of a record with a multi-line command line; 0: more are needed.

    Command lines are not escaped. If none of the next lines ends it, the line itself is bad.
    """
    size = 0
    for following in range(row + 1, min(len(lines), row + _MAX_JOINED_LINES)):
        line = lines[following]
        size += len(line)
        if size > _MAX_JOINED or labels.opened(line):
            return 1
        if labels.closes(line):
            return following + 1 - row
    return 1 if last or len(lines) - row >= _MAX_JOINED_LINES else 0


def _rejoined(parts: list[bytes]) -> Iterator[bytes]:
    """Join frames that were split inside brackets, as in ``f (a;b.py:1)``."""
    ends = _closing(list(map(_left_open, parts)))
    place = 0
    while place < len(parts):
        yield b";".join(parts[place : ends[place]])
        place = ends[place]


def _closing(left_open: list[int]) -> list[int]:
    """Return the part after which each part's brackets are closed; the next one if they are not."""
    ends = list(range(1, len(left_open) + 1))
    waiting: list[tuple[int, int]] = []  # (brackets open before the part, part), both ascending
    level = 0
    for place, opened in enumerate(left_open):
        waiting.append((level, place))
        level += opened
        while waiting and waiting[-1][0] >= level:
            start = waiting.pop()[1]
            if place - start < _MAX_PIECES:
                ends[start] = place + 1
    return ends


def _left_open(text: bytes) -> int:
    return text.count(b"(") + text.count(b"[") - text.count(b")") - text.count(b"]")


def numbered(stacks: bytes) -> tuple[list[bytes], bytes, bytes]:
    """Number the frames of stacks, one stack per line, in order of first appearance.

    Returns:
        The distinct frames, the number of each frame and the frame count of each line, as uint32.
    """
    return _frames.numbered(stacks) if _frames is not None else numbered_in_python(stacks)


def numbered_in_python(stacks: bytes) -> tuple[list[bytes], bytes, bytes]:
    """Python version of :func:`numbered`, five times slower."""
    lengths = [line.count(b";") + 1 for line in stacks.split(b"\n")]
    number: dict[bytes, int] = {}
    frames = [
        number.setdefault(frame, len(number)) for frame in stacks.replace(b"\n", b";").split(b";")
    ]
    return list(number), _uint32(frames), _uint32(lengths)


def _uint32(values: list[int]) -> bytes:
    return np.array(values, np.uint32).tobytes()
