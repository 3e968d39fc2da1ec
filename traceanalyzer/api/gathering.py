"""What an analysis wants of each of several inputs, one file in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import polars as pl

from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.analyzers.ranks import of_rank
from traceanalyzer.api.reading import Inputs, Progress, each, read
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.trace import Trace, is_cut_off

Part = TypeVar("Part")

#: Columns that events with a duration have no use for, a fifth of their memory.
_OF_SAMPLES = ("address", "stack", "weight")


class Reading(TypedDict, total=False):
    """How files are read; all of it may be left out.

    Attributes:
        format: the files' format, to override detection by content.
        rank: of several inputs, only those of this rank; of one file, its rank where it does not
            tell or tells wrong.
        since_ns: leave out what ends before this time after each input's first event.
        until_ns: leave out what starts at or after this time after each input's first event.
        progress: called with (bytes read, bytes in all) of each file.
        seen: called with the trace of each file, for its ``issues``.
    """

    format: str | None
    rank: int | None
    since_ns: int | None
    until_ns: int | None
    progress: Progress | None
    seen: Callable[[Trace], None] | None


def cut(trace: Trace, reading: Reading) -> Trace:
    """The stretch of a trace in memory that is asked for, as it is read of a file."""
    return trace.between(reading.get("since_ns"), reading.get("until_ns"))


@dataclass(frozen=True)
class Skipped:
    """An input that gave nothing: its path, and why."""

    path: str
    why: str


@dataclass(frozen=True)
class Gathered(Generic[Part]):
    """What several inputs contribute to an analysis.

    Attributes:
        parts: of every rank.
        skipped: the inputs that gave nothing.
        cut_off: the paths of those whose end is missing.
    """

    parts: list[Part]
    skipped: list[Skipped]
    cut_off: list[str]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing in the answer, a line for each input that lacks something."""
        return (*cut_off_notes(self.cut_off), *skipped_notes(self.skipped))


def gather(
    inputs: Inputs,
    needs: Needs,
    extract: Callable[[Any], Part],
    *,
    take: Callable[[Trace], Any] | None = None,
    **reading: Unpack[Reading],
) -> Gathered[Part]:
    """``extract`` of every rank of every input.

    Of several inputs, those that cannot be read or lack what is needed are skipped. Where memory
    counts, ``take`` makes of a trace the little that ``extract`` gets in its place: the trace is
    forgotten before.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing has what is needed.
        OptionError: no input is of the rank that is asked for.
    """
    items = each(inputs)
    rank = reading.get("rank")
    cut_off: list[str] = []

    def taken(item: Trace | str) -> list[Any]:
        held = [cut(item, reading) if isinstance(item, Trace) else _read(item, needs, reading)]
        ends = [held[0].meta.path] if is_cut_off(held[0]) else []
        chosen = of_rank(held, rank, alone=len(items) == 1)
        cut_off.extend(ends if chosen else ())
        found = []
        while chosen:
            own = chosen.pop(0)
            try:
                found.append((take or extract)(own))
            except MissingData as error:
                raise perhaps_cut_off(error, own) from None
        return found

    parts: list[Part] = []
    skipped: list[Skipped] = []
    failed: InputError | MissingData | None = None
    for item in items:
        try:
            parts.extend(extract(own) if take else own for own in taken(item))
        except (InputError, MissingData) as error:
            failed = failed or error
            path = item.meta.path if isinstance(item, Trace) else item
            why = error.what if isinstance(error, InputError) else str(error)
            skipped.append(Skipped(path, why.removeprefix(f"{path}: ")))
    if failed and not parts:
        raise failed
    if not parts:
        raise OptionError("no input" if rank is None else f"no input is of rank {rank}")
    return Gathered(parts, skipped, [p for p in cut_off if p not in {one.path for one in skipped}])


def perhaps_cut_off(error: MissingData, trace: Trace) -> MissingData:
    """The error, which says that the file is cut off where it is: profilers write kernels last."""
    if not is_cut_off(trace):
        return error
    return MissingData(f"{error} (this file is cut off: what is missing may have been at its end)")


def cut_off_notes(paths: Iterable[str]) -> tuple[str, ...]:
    """A line of a result's notes for each input whose end is missing."""
    lost = "what was lost at its end is in none of these numbers"
    return tuple(f"{path} is cut off: {lost}." for path in paths)


def skipped_notes(skipped: Sequence[Skipped]) -> tuple[str, ...]:
    """A line of a result's notes for each input that was left out."""
    return tuple(f"Left out: {one.path}: {one.why}." for one in skipped)


def _read(path: str, needs: Needs, reading: Reading) -> Trace:
    trace = read(
        path,
        kinds=needs.kinds,
        names=needs.names,
        columns=needs.columns,
        unused=(*_beside(needs), "launch_configs", *needs.unused),
        format=reading.get("format"),
        since_ns=reading.get("since_ns"),
        until_ns=reading.get("until_ns"),
        progress=reading.get("progress"),
    )
    if seen := reading.get("seen"):
        seen(trace)
    return _lightened(trace, needs)


def _beside(needs: Needs) -> tuple[str, ...]:
    return () if needs.samples else _OF_SAMPLES


def _lightened(trace: Trace, needs: Needs) -> Trace:
    """The trace without what is not looked at, whichever parser made it."""
    types = trace.events.schema
    unused = [pl.lit(None, types[name]).alias(name) for name in needs.unused]
    events = trace.events.drop(_beside(needs)).with_columns(unused)
    return replace(trace, events=events, launch_configs=trace.launch_configs.clear())
