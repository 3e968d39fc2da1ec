"""Which functions does the time go into? Weighted stacks as a flamegraph.

In go traces with sampled stacks, or with slices that nest; out comes a ``FlameGraph``, whose
picture any renderer can draw. ``compute`` takes from a file its call tree and weights (``weights``)
and adds those of several files up, or compares them with others, and makes the boxes (``tree``);
``result`` says what they show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.flamegraph.options import By, Options, Weight

if TYPE_CHECKING:
    from traceanalyzer.analyzers.flamegraph.result import FlameGraph
    from traceanalyzer.reading import Inputs


def flamegraph(
    inputs: Inputs,
    *,
    base: Inputs | None = None,
    kinds: str | Sequence[str] = (),
    threads: str | Sequence[str] = (),
    weight: Weight | None = None,
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
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: there are no stacks, or nothing of what is asked for.
        OptionError: an option makes no sense, or weights are of several units.
    """
    from traceanalyzer.analyzers.flamegraph.compute import FLAMEGRAPH
    from traceanalyzer.run import run

    options = Options(
        kinds, threads, weight, by, reverse, focus, min_frac, base, library_names, title
    )
    return run(FLAMEGRAPH, inputs, options, **reading)
