"""What single producers of traces write otherwise than the format means it, set right.

Each is undone by what is spelled exactly so; nothing else is changed:

* our own exporter moves slices that do not nest to overflow tracks
  (:mod:`traceanalyzer.exporters.chrome_trace.tracks`): the argument ``"traceanalyzer tid"``, always
  the first, holds the own tid of a slice, flow point or thread name written under another one;
* py-spy's begin and end events are named as its other formats name frames, since no other column
  could hold the file and line that their arguments tell; its frames that stand for a thread or a
  process are lanes, as in its raw format;
* MosaicML Composer's system profiler has counters under names and in units that are not true: its
  "gb" of memory are bytes / 2**9, its "kb" of the network bytes / 2**3, its disk counters have a
  series that is literally called ``field_name``, and its CUDA memory is in 10^9 bytes under names
  that do not tell. Nothing is changed into what is spelled so: reading a file that was exported
  changes nothing more.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from traceanalyzer.parsers.chrome_trace.decode import ABSENT, BAD_TEXT, Args, Event
from traceanalyzer.parsers.collapsed import labels
from traceanalyzer.parsers.tables import Lanes

RawArgs = Callable[[], list[msgspec.Raw]]

# --- our own exporter ------------------------------------------------------------------------

_origin = re.compile(rb'\{"traceanalyzer tid":(?:-?\d+|"(?:[^"\\]|\\.)*"),?')


def undo_overflow(events: list[Event], moved: Sequence[int], raw_args: RawArgs) -> RawArgs:
    """Give moved events their own tid, take the names from the tracks they were moved to.

    Args:
        events: events of any writer, which are changed.
        moved: the rows of those that have an ``original_tid``.
        raw_args: gives the arguments' text of every event.

    Returns:
        What gives the arguments' texts as they were before the move.
    """
    for row in moved:
        event = events[row]
        if event.ph == "M":
            event.name = None
        elif type(event.args) is Args:
            event.tid = event.args.original_tid
    return (lambda: _own_args(raw_args(), moved)) if moved else raw_args


def _own_args(texts: list[msgspec.Raw], moved: Sequence[int]) -> list[msgspec.Raw]:
    """The texts without the mark; null where there was nothing else."""
    own = list(texts)
    for row in moved:
        text = _origin.sub(b"{", bytes(own[row]), count=1)
        own[row] = ABSENT if text == b"{}" else msgspec.Raw(text)
    return own


# --- py-spy ----------------------------------------------------------------------------------

#: A phase that means nothing.
_NOTHING = "("


class _Place(msgspec.Struct, gc=False):
    """Where a function is."""

    filename: Any = None
    line: Any = None


_decode_place = msgspec.json.Decoder(_Place).decode


def name_py_spy_frames(events: list[Event], own: Sequence[int], raw_args: RawArgs) -> None:
    """Call py-spy's slices ``NAME (FILE:LINE)``, let its labels name processes and threads.

    Args:
        events: events of any writer, which are changed.
        own: the rows of those that py-spy wrote.
        raw_args: gives the arguments' text of every event.
    """
    texts = raw_args() if own else []
    for row in own:
        event = events[row]
        try:
            place = _decode_place(texts[row])
        except BAD_TEXT:
            continue
        if not isinstance(event.name, str) or not isinstance(place.filename, str):
            continue
        if place.filename:
            event.name = _frame(event.name, place.filename, place.line)
        elif event.name.encode(errors="replace").startswith(labels.LABELLED):
            _label(event, event.name)


def _frame(name: str, file: str, line: Any) -> str:
    """A function as py-spy's raw format writes it, without a line where it tells none."""
    return f"{name} ({file}:{line})" if type(line) is int and line > 0 else f"{name} ({file})"


def _label(event: Event, text: str) -> None:
    """Make of the begin of a label the metadata that names its lane, of its end nothing."""
    lanes = Lanes()
    _, rest = labels.py_spy(text.encode(errors="replace"), lanes)
    if rest:
        return
    begins, event.ph = event.ph == "B", _NOTHING
    for (_, tid), name in lanes.threads.items() if begins else ():
        event.ph, event.name, event.args = "M", "thread_name", Args(name=name or f"thread {tid}")
    for pid, command in lanes.commands.items() if begins else ():
        event.ph, event.name, event.args = "M", "process_name", Args(name=command)
        event.pid = pid


# --- Composer --------------------------------------------------------------------------------


class TrueCounter(NamedTuple):
    """What a counter is called here, and what its readings are multiplied by."""

    name: str
    series: str
    factor: float


_MEMORY = re.compile(r"memory/(?:swap|virtual)")
_MEMORY_SERIES = re.compile(r"(used|free|available)_gb")
_CUDA = re.compile(r"memory/cuda/((?:current|peak)_(?:allocated|active|inactive|reserved))_mem")
_RETRIES = ("memory/cuda/alloc_retries", "alloc_retries")
_DISK = re.compile(r"(disk/.+)/((?:read|write)_(?:count|bytes|time)|busy_time)", re.DOTALL)
_NETWORK = re.compile(r"(network/.+)/kb_(sent|recv)", re.DOTALL)


def true_counter(name: str, series: str) -> TrueCounter | None:
    """What a counter of Composer's spelling really is; None for any other."""
    if _MEMORY.fullmatch(name) and (told := _MEMORY_SERIES.fullmatch(series)):
        return TrueCounter(name, f"{told[1]}_bytes", 2**9)
    if (told := _CUDA.fullmatch(name)) and series == f"{told[1]}_mem":
        return TrueCounter("memory/cuda", f"{told[1]}_bytes", 10**9)
    if (name, series) == _RETRIES:
        return TrueCounter("memory/cuda", series, 1)
    if (told := _DISK.fullmatch(name)) and series == "field_name":
        return TrueCounter(told[1], told[2].replace("_time", "_time_ms"), 1)
    if (told := _NETWORK.fullmatch(name)) and series == f"kb_{told[2]}":
        return TrueCounter(told[1], f"{told[2]}_bytes", 2**3)
    return None


def undo_composer_units(counters: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Readings with true names and values, and how many of them were changed.

    Bytes are whole: of what Composer rounded to five digits of 10^9 bytes the rest is 0.

    Args:
        counters: the table ``counters``, its names as text.
    """
    pairs = counters.select("name", "series").unique()
    told = [(*pair, *true) for pair in pairs.iter_rows() if (true := true_counter(*pair))]
    if not told:
        return counters, 0
    texts = dict.fromkeys(("name", "series", "true_name", "true_series"), pl.String)
    known = pl.DataFrame(told, schema={**texts, "factor": pl.Float64}, orient="row")
    joined = counters.join(known, on=["name", "series"], how="left", maintain_order="left")
    changed = joined.with_columns(
        name=pl.coalesce("true_name", "name"),
        series=pl.coalesce("true_series", "series"),
        value=pl.coalesce((pl.col("value") * pl.col("factor")).round(), "value"),
    )
    return changed.select(counters.columns), int(joined["factor"].is_not_null().sum())
