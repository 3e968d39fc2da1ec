"""Tables of all formats: events in order, sampled stacks, and tables in temporary files."""

import mmap
import sys
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet, finalize

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import OutputError
from traceanalyzer.frames.stacks import NONE, Tree
from traceanalyzer.machine import give_back

Ints = npt.NDArray[np.int64]
Order = npt.NDArray[np.uint32]
Array = npt.NDArray[Any]
T = TypeVar("T")

#: Frames converted and times compared per batch, to limit memory.
_AT_ONCE, _COMPARED_AT_ONCE = 1 << 16, 1 << 20


def time_order(
    start: Ints, lengths: Callable[[Order], Ints], place: Ints | None = None
) -> Order | None:
    """Return row numbers sorted by (start, -length, place): ``ts``, ``dur``, place in the file.

    Nearly all times are distinct: one stable sort by time, which is fast for a few sorted runs,
    then a second sort of the runs of equal times only.

    Args:
        start: start of each row.
        lengths: returns the lengths of the given rows, called for rows with equal starts only; -1
            for open-ended rows, so that they follow the closed ones of the same start.
        place: place of each row in the file; default: the row number.

    Returns:
        None if the rows are sorted already.
    """
    if (start[1:] > start[:-1]).all():
        return None
    order = np.argsort(start, kind="stable").astype(np.uint32)
    same = _repeated(start, order)
    if not same.any():
        return order
    tied = np.zeros(len(start), dtype=bool)
    tied[1:] = same
    tied[:-1] |= same
    run = np.cumsum(~np.concatenate([[False], same]))[tied]
    rows = order[tied]
    last = rows if place is None else place[rows]
    order[tied] = rows[np.lexsort((last, -lengths(rows), run))]
    return order


def _repeated(start: Ints, order: Order) -> npt.NDArray[np.bool_]:
    """Mark starts equal to the previous one in the order; in batches, to save memory."""
    same = np.zeros(len(order) - 1, np.bool_)
    for low in range(0, len(same), _COMPARED_AT_ONCE):
        some = start[order[low : low + _COMPARED_AT_ONCE + 1]]
        same[low : low + _COMPARED_AT_ONCE] = some[1:] == some[:-1]
    return same


class Frame(NamedTuple):
    """A function and its location; None for an unknown file or line."""

    name: str
    file: str | None = None
    line: int | None = None


@dataclass
class Lanes:
    """Processes and threads of a file.

    Attributes:
        number: number of each (pid, tid); None for an unknown id.
        commands: command line by process.
        parents: parent process by process.
        threads: thread name by (pid, tid).
        textual: threads with a synthetic id.
        by_label: numbers by label text, a cache for parsers.
    """

    number: dict[tuple[int | None, int | None], int] = field(
        default_factory=lambda: {(None, None): 0}
    )
    commands: dict[int, str | None] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    threads: dict[tuple[int | None, int], str | None] = field(default_factory=dict)
    textual: set[tuple[int | None, int]] = field(default_factory=set)
    by_label: dict[bytes, int] = field(default_factory=dict)

    def of(self, pid: int | None, tid: int | None) -> int:
        """Return the number of a lane; new lanes get the next one."""
        return self.number.setdefault((pid, tid), len(self.number))

    def add_process(self, pid: int, command: str | None, parent: int | None) -> None:
        """Record a process and one of its command lines; the order of calls does not matter."""
        self.commands[pid] = _one(self.commands.get(pid), command)
        if parent is not None and parent != pid:
            self.parents[pid] = min(self.parents.get(pid, parent), parent)

    def add_thread(self, pid: int | None, tid: int, name: str | None) -> None:
        """Record a thread; its name may follow later."""
        self.threads[pid, tid] = _one(self.threads.get((pid, tid)), name)


def _one(first: str | None, second: str | None) -> str | None:
    """Return the shorter of two names, whatever the order of the lines."""
    if first is None or second is None:
        return first or second
    return min(first, second, key=lambda name: (len(name), name))


def sample_events(
    lanes: Lanes,
    lane_of: npt.NDArray[np.uint32],
    weights: npt.NDArray[np.float64],
    leaf: npt.NDArray[np.uint32],
    rank: int | None,
    **more: pl.Series,
) -> pl.DataFrame:
    """Build ``events`` of kind ``sample``, in the given order.

    Args:
        lanes: the lanes that ``lane_of`` refers to.
        lane_of: lane of each sample.
        weights: weight of each sample.
        leaf: leaf row of ``stacks`` of each sample, ``NONE`` for an empty stack.
        rank: rank of the file.
        more: further columns.
    """
    of_lane = pl.DataFrame(
        list(lanes.number), schema={"pid": pl.Int64, "tid": pl.Int64}, orient="row"
    )
    known = of_lane[lane_of]
    stack = pl.Series(leaf)
    given: dict[str, pl.Expr | pl.Series] = {
        "kind": pl.lit("sample", dtype=schema.KIND),
        "rank": pl.lit(rank, dtype=pl.Int32),
        "stack": pl.when(stack != int(NONE)).then(stack),
        "weight": pl.Series(weights),
        **more,
    }
    nothing: dict[str, pl.Expr | pl.Series] = {
        name: pl.lit(None, dtype) for name, dtype in schema.types("events").items()
    }
    frame = known.with_columns(**{**nothing, "pid": pl.col("pid"), "tid": pl.col("tid"), **given})
    return frame.select(*nothing)


def as_table(frame: pl.DataFrame, table: str, on_request: Container[str] = ()) -> pl.DataFrame:
    """Return the frame's columns in the schema's types and order; missing columns are null."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in schema.types(table, on_request).items()
    )


def stacks_table(tree: Tree, frames: Iterable[Frame]) -> pl.DataFrame:
    """Build ``stacks`` from a prefix tree; its frame numbers are indices into ``frames``."""
    return tree_table(tree, _texts(frames))


def tree_table(tree: Tree, texts: pl.DataFrame) -> pl.DataFrame:
    """Build ``stacks`` from a prefix tree; its frame numbers are rows of ``texts``.

    Args:
        tree: the prefix tree.
        texts: ``name``, ``file`` and ``line`` of each frame.
    """
    parent = pl.Series(tree.parent)
    return texts[tree.frame].select(
        id=pl.int_range(pl.len(), dtype=pl.UInt32),
        parent=pl.when(parent != int(NONE)).then(parent),
        name="name",
        file="file",
        line="line",
    )


def _texts(frames: Iterable[Frame]) -> pl.DataFrame:
    types = {"name": pl.String, "file": pl.String, "line": pl.Int32}
    rest = iter(frames)
    parts = [pl.DataFrame(schema=types)]
    while some := list(islice(rest, _AT_ONCE)):
        parts.append(pl.DataFrame(some, schema=types, orient="row"))
    return pl.concat(parts).cast({"name": schema.NAME, "file": schema.NAME})


def lanes_table(lanes: Lanes, rank: int | None) -> pl.DataFrame:
    """Build ``lanes``: processes, then threads, in order of first appearance."""
    rows: list[tuple[object, ...]] = [
        (rank, pid, None, command, _child_of(lanes.parents.get(pid)), None, False)
        for pid, command in lanes.commands.items()
    ]
    rows += [
        (rank, *thread, name, None, None, thread in lanes.textual)
        for thread, name in lanes.threads.items()
    ]
    return pl.DataFrame(rows, schema=schema.types("lanes"), orient="row")


def _child_of(parent: int | None) -> str | None:
    return None if parent is None else f"child of {parent}"


# --- tables in temporary files ----------------------------------------------------------------
#
# Only what an analysis uses of them is in memory. A file has no name in the temporary folder
# (``--temp``, ``TMPDIR``): the system deletes it with its column, and when the process ends or is
# killed.

#: Smaller columns stay in memory.
_LEAST_BYTES = 1 << 20
#: Temporary files of columns, with their addresses in memory.
_files: WeakKeyDictionary[mmap.mmap, range] = WeakKeyDictionary()
_growing: WeakSet["Growing"] = WeakSet()


class Growing:
    """An array that is written to a temporary file piece by piece."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype, self.size = np.dtype(dtype), 0
        _growing.add(self)
        with _explained():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - until the array is complete
        finalize(self, self._file.close)

    def add(self, part: Array) -> None:
        """Append elements.

        Raises:
            OutputError: there is no space.
        """
        self.size += part.nbytes
        with _explained():
            self._file.write(np.ascontiguousarray(part, self.dtype).data)

    def whole(self) -> Array:
        """Return the array; nothing can be appended any more."""
        if not self.size:
            return np.empty(0, self.dtype)
        with _explained(), self._file as file:
            file.flush()
            memory = mmap.mmap(file.fileno(), 0)  # writable: readers correct single rows
        array = np.frombuffer(memory, self.dtype)
        _files[memory] = range(array.ctypes.data, array.ctypes.data + self.size)
        _growing.discard(self)
        return array


def spilled(value: T) -> T:
    """Return a value whose large columns are in temporary files.

    Args:
        value: an array, a frame, or a list or dataclass of frames.

    Raises:
        OutputError: there is no space.
    """
    changed: Any = value
    if isinstance(value, pl.DataFrame):
        changed = value.with_columns(_placed(one) for one in value if _is_large(one))
    elif isinstance(value, np.ndarray):
        if value.nbytes >= _LEAST_BYTES:
            growing = Growing(value.dtype)
            growing.add(value)
            changed = growing.whole()
    elif isinstance(value, list):
        changed = [*map(spilled, value)]
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: spilled(getattr(value, one.name)) for one in fields(value) if one.init}
        changed = replace(value, **parts)
    return cast("T", changed)


def texts_in_file(texts: pl.Series, codes: Array, null: int) -> pl.Series:
    """Return the text of each code in a file, without a copy in memory; null for one code."""
    import pyarrow as pa  # takes time and memory

    _, views, *rest = texts.to_arrow(compat_level=pl.CompatLevel.newest()).buffers()
    each, file = np.frombuffer(views, "V16"), Growing("V16")
    for low in range(0, len(codes), _COMPARED_AT_ONCE):
        file.add(each[np.minimum(codes[low : low + _COMPARED_AT_ONCE], len(each) - 1)])
    known = pa.py_buffer(np.packbits(codes != null, bitorder="little"))
    buffers = [known, pa.py_buffer(file.whole()), *rest]
    return pl.Series(pa.Array.from_buffers(pa.string_view(), len(codes), buffers))


def unload() -> None:
    """Free the memory of what was loaded from the files; it is loaded again where it is used."""
    if sys.platform == "linux" and _files:
        for file in list(_files):
            file.madvise(mmap.MADV_DONTNEED)
        give_back()


@contextmanager
def _explained() -> Iterator[None]:
    """Turn an error of the temporary folder into one line, with the bytes that are needed."""
    try:
        yield
    except OSError as error:
        needed = sum(map(len, _files.values())) + sum(one.size for one in _growing)
        raise OutputError(
            f"{tempfile.tempdir or 'temporary files'}: {(error.strerror or str(error)).lower()} "
            f"({needed / 1e6:,.0f} MB and more are needed for tables); pass --temp DIR or set "
            "TMPDIR to a folder with enough space"
        ) from error


def _is_large(column: pl.Series) -> bool:
    return column.estimated_size() >= _LEAST_BYTES and not column.dtype.is_nested()


def _placed(column: pl.Series) -> pl.Series | pl.Expr:
    """Return a column in a file; if all values are equal, that value, which takes no memory."""
    kind = column.dtype
    if column.eq_missing(column[0]).all():
        return pl.lit(column[0], kind).alias(column.name)
    if not isinstance(kind, pl.Categorical | pl.Enum):
        return _mapped(column)
    # before polars 2 it would be copied
    return _mapped(column.to_physical()).cat.to(kind) if hasattr(column.cat, "to") else column


def _mapped(column: pl.Series) -> pl.Series:
    import pyarrow as pa  # takes time and memory

    array = column.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
    buffers, starts = array.buffers(), [0]
    if any(buffers[1].address in place for place in _files.values()):
        return column
    file = Growing(np.uint8)
    for buffer in buffers:
        file.add(np.frombuffer(buffer or b"", np.uint8))
        file.add(np.zeros(-file.size % 64, np.uint8))
        starts.append(file.size)
    whole = pa.py_buffer(file.whole())
    places = [one and whole.slice(low, one.size) for one, low in zip(buffers, starts, strict=False)]
    moved = pa.Array.from_buffers(array.type, len(array), places, array.null_count, array.offset)
    return pl.Series(column.name, moved)
