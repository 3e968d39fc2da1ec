"""Which drawings of a result are meant, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceanalyzer.errors import OptionError

if TYPE_CHECKING:
    from traceanalyzer.result import Chart, Occupancy, Result

_MAX_OCCUPANCIES = 8


def chosen(result: Result, name: str | None) -> tuple[list[Occupancy], list[Chart]]:
    """The drawings of this name, or all of them: of occupancies the fullest, and charts.

    Raises:
        OptionError: the result has nothing to draw, or nothing of that name.
    """
    filled = [one for one in result.occupancies if name in (None, one.name)]
    if len(filled) > _MAX_OCCUPANCIES:
        fullest = sorted(filled, key=_peak, reverse=True)[:_MAX_OCCUPANCIES]
        filled = [one for one in filled if any(one is kept for kept in fullest)]
    charts = [one for one in result.charts if name in (None, one.name)]
    if not (filled or charts):
        raise OptionError(_nothing(result, name))
    return filled, charts


def _peak(occupancy: Occupancy) -> int:
    most = occupancy.levels["live_bytes"].max()
    return most if isinstance(most, int) else 0


def _nothing(result: Result, name: str | None) -> str:
    known = [one.name for one in result.occupancies] + [one.name for one in result.charts]
    if result.flames and not known:
        return (
            "a flamegraph is no chart; a notebook shows the result as it is, and "
            "traceanalyzer flamegraph PATH -o FILE.svg writes it"
        )
    wanted = "no chart to draw" if name is None else f"no chart {name!r}"
    return f"this result has {wanted}" + (f"; it has {', '.join(known)}" if known else "")
