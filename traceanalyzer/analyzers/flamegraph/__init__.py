"""Where does the time go? Weighted stacks as a flame graph.

Inputs are traces with sampled stacks or nested slices. ``weights`` has the call tree and weights of
a file, ``tree`` adds or compares those of several files and builds the boxes, ``compute`` combines
both; ``result`` has the data, verdict, notes and tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.flamegraph.options import By, Options, Weight

if TYPE_CHECKING:
    from traceanalyzer.analyzers.flamegraph.result import FlameGraph
    from traceanalyzer.trace import Inputs


def flamegraph(
    inputs: Inputs,
    *,
    base: Inputs | None = None,
    kinds: str | Sequence[str] = (),
    threads: str | Sequence[str] = (),
    weight: Weight | None = None,
    by: By | None = None,
    inverted: bool = False,
    focus: str | None = None,
    min_frac: float | None = None,
    library_names: str | Sequence[str] = (),
    title: str | None = None,
    **reading: Unpack[Reading],
) -> FlameGraph:
    """Return where the time (or other weight) goes, as a flame graph.

    Sampled stacks count with their weight, slices of a trace with their self time. All lines of a
    function are one frame. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them, which are added.
        base: the inputs of another run to compare with, scaled to the same sum.
        kinds: kinds of events; by default samples, else ``python_function``, else all slices on
            host threads.
        threads: only threads with these numbers, or with these texts in their names.
        weight: ``time``, ``count`` or ``bytes``; by default the recorded weight of samples, and the
            time of slices.
        by: one root for each ``process``, ``thread``, ``rank`` or ``file``.
        inverted: bottom-up, from leaf functions up to their callers.
        focus: a regular expression; only stacks through functions with matching names, from the
            outermost such function down.
        min_frac: boxes smaller than this fraction of the total are merged, with their number and
            weight; by default none as long as all can be drawn, else all but the 5,000 largest.
        library_names: libraries to highlight; none: the user's own code.
        title: title of the picture.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no stacks or no matching events were recorded.
        OptionError: an option is invalid, or weights have several units.
    """
    from traceanalyzer.analyzers.flamegraph.compute import FLAMEGRAPH
    from traceanalyzer.run.loop import run

    options = Options(
        kinds, threads, weight, by, inverted, focus, min_frac, base, library_names, title
    )
    return run(FLAMEGRAPH, inputs, options, **reading)
