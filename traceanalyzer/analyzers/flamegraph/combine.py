"""The parts of all files in, the flamegraph and its tables out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from traceanalyzer.analyzers.flamegraph import words
from traceanalyzer.analyzers.flamegraph.drawing import drawn, known_functions
from traceanalyzer.analyzers.flamegraph.functions import functions
from traceanalyzer.analyzers.flamegraph.joining import Joined, focused, joined
from traceanalyzer.analyzers.flamegraph.part import Part
from traceanalyzer.analyzers.flamegraph.result import FlameGraph
from traceanalyzer.analyzers.libraries import by_component
from traceanalyzer.errors import OptionError
from traceanalyzer.result import Flame
from traceanalyzer.units import format_frac, format_weight

_SHOWN_FILES = 3


def combine(
    parts: Sequence[Part],
    bases: Sequence[Part] = (),
    *,
    by_group: bool = False,
    reverse: bool = False,
    focus: str | None = None,
    min_frac: float | None = None,
    libraries: Sequence[str] = (),
    title: str | None = None,
    skipped: Sequence[tuple[str, str]] = (),
) -> FlameGraph:
    """Where the weight of the files' stacks lies.

    Args:
        parts: what :func:`extract` gave of each file; all are added.
        bases: the same of a run to compare with, scaled to the same sum. Without any, a file's own
            column "before" is the base.
        by_group: draw the groups of the parts apart.
        reverse: from the functions that ran up to their callers.
        focus: a regular expression; only stacks through functions whose name it matches, from the
            outermost such function down. All shares are of these stacks.
        min_frac: boxes smaller than this part of everything are summed up; by default none are as
            long as they can be drawn, then all but the 5,000 heaviest.
        libraries: whose code is to stand out, by folders or modules; by default the user's own.
        title: of the picture.
        skipped: files that could not be read, and why.

    Raises:
        InputError: weights of several units.
        OptionError: a pattern that no function matches, no fraction.
        MissingData: the stacks have no weight.
    """
    if min_frac is not None and not 0 <= min_frac < 1:
        raise OptionError(f"--min-frac {min_frac:g}: is a part of 1, such as 0.001")
    everything = joined(parts, bases)
    whole = focused(everything, focus) if focus else everything
    known = known_functions(whole.frames, by_component(libraries) if libraries else None)
    table = functions(whole, known)
    boxes = drawn(whole, known, by_group=by_group, reverse=reverse, min_frac=min_frac)
    total = float(whole.weights[0].sum())
    counts = sum((part.counts for part in (*parts, *bases)), Counter[str]())
    facts = [_focus_fact(focus, total, everything)] if focus else []
    if whole.base is not None:
        facts.append(_base_fact(whole, bases))
    return FlameGraph(
        total=total,
        unit=whole.unit,
        base=whole.base,
        whose=f"the code of {' or '.join(libraries)}" if libraries else "your own code",
        functions=table,
        flame=Flame(
            name="flamegraph",
            title=title or _title(parts),
            subtitle=_subtitle(whole, total, reverse=reverse, focus=focus, bases=bases),
            unit=whole.unit,
            frame=boxes.frame,
            inverted=reverse,
        ),
        least_frac=boxes.least_frac,
        hidden=boxes.hidden,
        hidden_frac=boxes.hidden_weight / total,
        remarks=(
            *facts,
            *words.notes(counts, table),
            *(f"{path}: {why}; skipped." for path, why in skipped),
        ),
    )


def _title(parts: Sequence[Part]) -> str:
    names = list(dict.fromkeys(part.path for part in parts))
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    return ", ".join(names[:_SHOWN_FILES]) + more


def _subtitle(
    whole: Joined, total: float, *, reverse: bool, focus: str | None, bases: Sequence[Part]
) -> str:
    said = [format_weight(total, whole.unit)]
    if focus:
        said.append(f"stacks through {focus}")
    if reverse:
        said.append("callers below what they call")
    if bases:
        said.append(f"compared with {_title(bases)}")
    elif whole.base is not None:
        said.append("after, compared with before")
    return ", ".join(said)


def _focus_fact(focus: str, total: float, everything: Joined) -> str:
    share = format_frac(total / everything.weights[0].sum())
    return f"Only stacks through functions that match {focus}: {share} of everything recorded."


def _base_fact(whole: Joined, bases: Sequence[Part]) -> str:
    recorded = format_weight(whole.base or 0, whole.unit)
    of = _title(bases) if bases else 'the files\' column "before"'
    return f"The base, {of}, has {recorded} in all; its weights are scaled to the same sum."
