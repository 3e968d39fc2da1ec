"""Stacks, sampled or nested, from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, Unpack

from traceanalyzer.analyzers import flamegraph as flame
from traceanalyzer.analyzers import leaf_paths
from traceanalyzer.analyzers.flamegraph import FlameGraph
from traceanalyzer.analyzers.leaf_paths import By, GroupBy, LeafPaths, Match, Question
from traceanalyzer.api.gathering import Reading, cut
from traceanalyzer.api.reading import Inputs, each, known, read, several
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import KINDS

Part = TypeVar("Part")


def py_spy_report(
    inputs: Inputs,
    *,
    library_names: str | Sequence[str] = (),
    match: Match = "component",
    aggregate_leaf_paths: bool = False,
    group_by: GroupBy | None = None,
    by: By | None = None,
    drop_module: bool = False,
    exclude_idle_process: bool = False,
    rate: float | None = None,
    **reading: Unpack[Reading],
) -> LeafPaths:
    """Which code was running when a sampling profiler looked, and whose it is.

    A stack counts for its leaf frame, and is tagged by the innermost frame of a library, as
    :mod:`traceanalyzer.analyzers.leaf_paths` says. Any format with sampled stacks will do.

    Args:
        inputs: a trace, a file or a folder, or several of them. Of a folder or of several, what
            cannot be read or has no samples is skipped and named.
        library_names: whose frames to look for, the first listed wins; none: the user's own code,
            which is what lies outside of the standard library and the installed packages.
        match: ``component``: whole components of a path; ``substring``: anywhere in the path.
        aggregate_leaf_paths: one row for equal paths instead of one for each line of the file.
        group_by: sum by ``function``, ``line``, ``file``, ``module`` or ``library``: self, and
            total with what it calls.
        by: rows apart for each ``process``, ``thread``, ``rank`` or ``file``.
        drop_module: leave out module-level code, as itwinai's report does.
        exclude_idle_process: leave out samples without any Python frame.
        rate: samples a second; then the answer is in seconds.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: no file can be read.
        MissingData: no samples.
        OptionError: an option makes no sense.
    """
    names = several(library_names)
    asked = Question(
        names, match, aggregate_leaf_paths, group_by, by, drop_module, exclude_idle_process
    )
    rank, wanted = reading.get("rank"), _reading(("sample", "lane"), reading)
    parts, skipped = _extracted(inputs, lambda t: leaf_paths.extract(t, asked), wanted, rank)
    return leaf_paths.combine(parts, asked, rate=rate, skipped=skipped)


def flamegraph(
    inputs: Inputs,
    *,
    base: Inputs | None = None,
    kinds: Sequence[str] = (),
    threads: Sequence[str] = (),
    weight: flame.Weight | None = None,
    by: By | None = None,
    reverse: bool = False,
    focus: str | None = None,
    min_frac: float | None = None,
    library_names: str | Sequence[str] = (),
    title: str | None = None,
    **reading: Unpack[Reading],
) -> FlameGraph:
    """Which functions does the time, or whatever else was sampled, go into?

    Sampled stacks count with their weight, slices of a trace with their time less that of the
    slices in them. A function is one frame whatever its line. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them, added up.
        base: the same of another run, scaled to the same sum, to compare with.
        kinds: kinds of events; without any the samples, else ``python_function``, else all slices
            on threads of the host.
        threads: only threads of these numbers, or with these words in their name.
        weight: ``time``, ``count`` or ``bytes``; by default what samples were recorded with, and
            the time of slices.
        by: a root for each ``process``, ``thread``, ``rank`` or ``file``.
        reverse: from the functions that ran up to their callers.
        focus: a regular expression; only stacks through functions whose name it matches, from the
            outermost such function down.
        min_frac: boxes smaller than this part of everything are summed up, their number and
            weight shown; by default none as long as they can be drawn, then all but the 5,000
            heaviest.
        library_names: whose code stands out; none: the user's own code.
        title: of the picture.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: there are no stacks, or nothing of what is asked for.
        OptionError: an option makes no sense, or weights are of several units.
    """
    known(kinds, KINDS, "kind")
    wanted = {"sample", "lane", *kinds} if kinds else flame.KINDS

    def extracted(trace: Trace) -> flame.Part:
        return flame.extract(
            trace,
            kinds=kinds,
            threads=threads,
            weight=weight,
            by=by,
            since_ns=reading.get("since_ns"),
            until_ns=reading.get("until_ns"),
        )

    # slices are cut at the window's ends, which is done when they are extracted
    whole: Reading = {**reading, "since_ns": None, "until_ns": None}
    rank, read_whole = reading.get("rank"), _reading(wanted, whole)
    parts, skipped = _extracted(inputs, extracted, read_whole, rank)
    bases, lost = _extracted(base, extracted, read_whole, rank) if base is not None else ([], [])
    return flame.combine(
        parts,
        bases,
        by_group=by is not None,
        reverse=reverse,
        focus=focus,
        min_frac=min_frac,
        libraries=several(library_names),
        title=title,
        skipped=[*skipped, *lost],
    )


def _reading(kinds: Iterable[str], how: Reading) -> Callable[[Trace | str, int | None], Trace]:
    """Reads a path, as of a rank, and shows it to ``seen``; cuts a trace in memory."""

    def reading(item: Trace | str, rank: int | None) -> Trace:
        if isinstance(item, Trace):
            return cut(item, how)
        trace = read(
            item,
            kinds=kinds,
            format=how.get("format"),
            rank=rank,
            since_ns=how.get("since_ns"),
            until_ns=how.get("until_ns"),
            progress=how.get("progress"),
        )
        if seen := how.get("seen"):
            seen(trace)
        return trace

    return reading


def _extracted(
    inputs: Inputs,
    extract: Callable[[Trace], Part],
    reading: Callable[[Trace | str, int | None], Trace],
    rank: int | None,
) -> tuple[list[Part], list[tuple[str, str]]]:
    """What is wanted of each input of the rank; of several, what cannot be read, and why.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing has what is wanted.
        OptionError: no input is of the rank.
    """
    items = each(inputs)
    own_rank = rank if len(items) == 1 else None
    parts: list[Part] = []
    skipped: list[tuple[str, str]] = []
    failed: InputError | MissingData | None = None
    for item in items:
        try:
            trace = reading(item, own_rank)
            if rank in (None, own_rank, trace.meta.rank):
                parts.append(extract(trace))
        except (InputError, MissingData) as error:
            failed = failed or error
            why = error.what if isinstance(error, InputError) else "no stacks"
            skipped.append((str(item), why))
    if failed and not parts:
        raise failed
    if not parts:
        raise OptionError("no input" if rank is None else f"no input is of rank {rank}")
    return parts, skipped
