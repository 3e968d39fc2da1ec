"""What an analysis wants of each of several inputs, one file in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """An input, or a rank of it, that gave nothing: its path, and why."""

    path: str
    why: str


@dataclass(frozen=True)
class Gathered(Generic[Part]):
    """What several inputs contribute to an analysis.

    Attributes:
        parts: of every rank.
        skipped: the inputs that gave nothing, and ranks of others that did not.
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

    Of several inputs those that cannot be read are skipped; so are ranks that lack what is needed
    where others have it. Where memory counts, ``take`` makes of a trace the little that ``extract``
    gets in its place: the trace is forgotten before.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing has what is needed.
        OptionError: no input is of the rank that is asked for.
    """
    items = each(inputs)
    found = Gathered[Part]([], [], [])
    failed: InputError | MissingData | None = None
    for item in items:
        path = item.meta.path if isinstance(item, Trace) else item
        try:
            held = [cut(item, reading) if isinstance(item, Trace) else _read(item, needs, reading)]
            own = _contributed(held, extract, take, reading.get("rank"), alone=len(items) == 1)
        except (InputError, MissingData) as error:
            failed = failed or error
            why = error.what if isinstance(error, InputError) else str(error)
            found.skipped.append(Skipped(path, why.removeprefix(f"{path}: ")))
            continue
        found.parts.extend(own.parts)
        found.skipped.extend(own.skipped)
        found.cut_off.extend(own.cut_off)
    if failed and not found.parts:
        raise failed
    if not found.parts:
        rank = reading.get("rank")
        raise OptionError("no input" if rank is None else f"no input is of rank {rank}")
    return found


def _contributed(
    held: list[Trace],
    extract: Callable[[Any], Part],
    take: Callable[[Trace], Any] | None,
    rank: int | None,
    *,
    alone: bool,
) -> Gathered[Part]:
    """What the ranks of one input contribute, those left out that lack what is needed.

    Args:
        held: the trace; the list is emptied, so that it can be forgotten while it is divided.
        extract: as of :func:`gather`.
        take: as of :func:`gather`.
        rank: which, or None for all.
        alone: the trace is the only input.

    Raises:
        MissingData: every rank lacks something.
    """
    path, is_cut = held[0].meta.path, is_cut_off(held[0])
    chosen = of_rank(held, rank, alone=alone)
    cut_off = [path] if chosen and is_cut else []
    found = Gathered[Part]([], [], cut_off)
    lacking: list[MissingData] = []

    def attempt(do: Callable[[Any], Any], what: Any, of: int | None) -> list[Any]:
        try:
            return [do(what)]
        except MissingData as error:
            lacking.append(perhaps_cut_off(error, is_cut=is_cut))
            why = str(lacking[-1]).removeprefix(f"{path}: ")
            found.skipped.append(Skipped(rank_of(path, of), why))
            return []

    taken: list[tuple[int | None, Any]] = []
    while chosen:
        own = chosen.pop(0)
        of = own.meta.rank
        taken += [(of, made) for made in attempt(take or extract, own, of)]
        del own
    for of, made in taken:
        found.parts.extend(attempt(extract, made, of) if take else [made])
    if lacking and not found.parts:
        raise lacking[0]
    return found


def rank_of(path: str, rank: int | None) -> str:
    """What to call one rank of a file."""
    return path if rank is None else f"{path}, rank {rank}"


def perhaps_cut_off(error: MissingData, *, is_cut: bool) -> MissingData:
    """The error, which says that the file is cut off where it is: profilers write kernels last."""
    if not is_cut:
        return error
    return MissingData(f"{error} (this file is cut off: what is missing may have been at its end)")


def cut_off_notes(paths: Iterable[str]) -> tuple[str, ...]:
    """A line of a result's notes for each input whose end is missing."""
    lost = "what was lost at its end is in none of these numbers"
    return tuple(f"{path} is cut off: {lost}." for path in paths)


def skipped_notes(skipped: Iterable[Skipped]) -> tuple[str, ...]:
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
