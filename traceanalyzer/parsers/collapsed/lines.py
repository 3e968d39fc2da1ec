"""Lines of collapsed stacks -> numbers: frames, lengths, weights and lanes of the samples.

A frame's text is looked at once: a dictionary knows its number from then on. Lines that hold
nothing unusual are taken a chunk at a time; what makes a line unusual is a frame's text (a label, a
bracket left open by a cut inside a path, nothing at all) or a count that is no whole number, and
such lines are taken one by one.
"""

from __future__ import annotations

import math
from array import array
from operator import methodcaller

import numpy as np
import numpy.typing as npt

from traceanalyzer.frames.stacks import Numbers
from traceanalyzer.parsers.collapsed import labels
from traceanalyzer.parsers.collapsed.text import Dialect, is_comment
from traceanalyzer.parsers.tables import Lanes

try:
    import traceanalyzer.parsers.collapsed._frames as _frames
except ImportError:  # pragma: no cover - built without a compiler
    _frames = None  # type: ignore[assignment]

#: A record whose command line goes on for more lines or bytes is none.
_MAX_JOINED_LINES = 1000
_MAX_JOINED = 1 << 20
#: A longer count is no number: reading it takes the square of its length.
_MAX_COUNT = 400
#: A path cut at its ``;`` is looked for in so many pieces.
_MAX_PIECES = 16

_at_last_space = methodcaller("rpartition", b" ")


class FrameNumbers(dict[bytes, int]):
    """Numbers of frame texts, given as they are first looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = bytearray()  # by number: whether a line that holds it is unusual

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


class Lines:
    """What has been read: one entry a sample in ``lengths``, ``weights`` and ``lane_of``.

    Attributes:
        frames: frame numbers of all samples, end to end, outermost first.
        second: weights of the second column, where there are two.
        bad: lines that are no sample.
        first_bad: number of the first of them, from 1.
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
        self._line = 1  # number of the line to come
        self._waiting: list[bytes] = []

    def add(self, lines: list[bytes], *, last: bool = False) -> None:
        """Take whole lines; ``last`` when none will follow."""
        lines = self._waiting + lines
        self._waiting = []
        at_once = self.dialect.columns == 1 and not self.dialect.austin
        batch = self._batch(lines, last) if at_once else None
        place = 0  # of the first row that is neither taken nor dropped
        behind = 0  # the first row behind the last record
        dropped: list[int] = []
        for row in batch.odd if batch else range(len(lines)):
            if row < behind:
                continue  # a line of the record before
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
        self._line += len(lines) - len(self._waiting)

    def _batch(self, lines: list[bytes], last: bool) -> _Batch:
        """All lines as if none were unusual, with the rows of those that are."""
        split = list(map(_at_last_space, lines))
        stacks = [stack for stack, _, _ in split]
        counts = [count for _, _, count in split]
        lanes = np.zeros(len(lines), np.uint32)
        if self.dialect.labelled:
            behind = 0  # a command line that goes on: what looks like labels in it are none
            for row, (stack, count) in enumerate(zip(stacks, counts, strict=True)):
                if row < behind:
                    continue
                # what is left as it is will be unusual for its label
                if count.isdigit() and labels.is_closed(stack):
                    lanes[row], stacks[row] = labels.py_spy(stack, self.lanes)
                elif _goes_on(lines[row]):
                    behind = row + (_extent(lines, row, last) or len(lines))
        return _Batch(stacks, counts, lanes, self.numbers)

    def _take(self, batch: _Batch, start: int, end: int, dropped: list[int]) -> None:
        """The plain lines of a batch from one row to another."""
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
        """The record that begins in this row: how many lines it has, its stack and weights.

        No lines: more are needed to tell. No stack: a comment, an empty line or a bad one.
        """
        line, used = lines[row], 1
        if _goes_on(line):
            used = _extent(lines, row, last)
            line = b"\n".join(lines[row : row + used])
        line = line.rstrip()
        if not used or not line or is_comment(line):
            return used, None
        sample = self._weighed(line)
        if sample is None:
            self.bad += 1
            self.first_bad = self.first_bad or self._line + row
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
        """A line's stack and weights; None where it has no count."""
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
    """Lines read all at once, with the rows that have to be looked at one by one.

    Attributes:
        frames: frame numbers of all lines, end to end.
        ends: where each line's frames begin, and where the last line's end.
        lengths: how many frames each line has.
        weights: each line's count.
        lanes: each line's lane.
        odd: rows for which the above may be wrong.
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
    """Counts as numbers, NaN for what is no whole number."""
    if not all(counts) or not b"".join(counts).isdigit() or max(map(len, counts)) > _MAX_COUNT:
        counts = [c if c.isdigit() and len(c) <= _MAX_COUNT else b"nan" for c in counts]
    weights = np.fromiter(map(float, counts), np.float64, len(counts))
    weights[np.isinf(weights)] = np.nan
    return weights


def _goes_on(line: bytes) -> bool:
    """Whether a command line begins in this line and does not end in it."""
    start = labels.opened(line)
    return bool(start) and not labels.closes(line[start:])


def _extent(lines: list[bytes], row: int, last: bool) -> int:
    """How many lines a record has whose command line goes on; 0 when more are needed to tell.

    Nothing in a command line is escaped. Where none of the next lines ends it, it is one bad line.
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


def _rejoined(parts: list[bytes]) -> list[bytes]:
    """Frames of which some were cut inside brackets, as in ``f (a;b.py:1)``."""
    ends = _closing(list(map(_left_open, parts)))
    whole: list[bytes] = []
    place = 0
    while place < len(parts):
        whole.append(b";".join(parts[place : ends[place]]))
        place = ends[place]
    return whole


def _closing(left_open: list[int]) -> list[int]:
    """For each part, behind which part its brackets are closed; itself where they stay open."""
    ends = list(range(1, len(left_open) + 1))
    waiting: list[tuple[int, int]] = []  # (brackets open before it, part): both grow
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
    """The frames of stacks that stand one to a line, numbered in the order they first occur in.

    Returns:
        The distinct frames, the number of each frame as uint32, the frames of each line likewise.
    """
    return _frames.numbered(stacks) if _frames is not None else numbered_in_python(stacks)


def numbered_in_python(stacks: bytes) -> tuple[list[bytes], bytes, bytes]:
    """The same, five times slower."""
    lengths = [line.count(b";") + 1 for line in stacks.split(b"\n")]
    number: dict[bytes, int] = {}
    frames = [
        number.setdefault(frame, len(number)) for frame in stacks.replace(b"\n", b";").split(b";")
    ]
    return list(number), _uint32(frames), _uint32(lengths)


def _uint32(values: list[int]) -> bytes:
    return np.array(values, np.uint32).tobytes()
