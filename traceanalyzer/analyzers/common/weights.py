"""Which files' weights can be added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from traceanalyzer.analyzers.base import Skipped
from traceanalyzer.trace import Meta


class Weighted(Protocol):
    """A part whose weights have a unit."""

    @property
    def path(self) -> str:
        """The file."""

    @property
    def unit(self) -> str | None:
        """Of the weights; None or empty where that is not known."""


W = TypeVar("W", bound=Weighted)


def of_one_unit(parts: Sequence[tuple[Meta, W]]) -> tuple[list[W], list[Skipped]]:
    """The parts of one unit, samples if there are any, and the others with the reason."""
    units = [part.unit for _, part in parts]
    unit = "samples" if "samples" in units else units[0]
    alike = [part for _, part in parts if part.unit == unit]
    others = [part for _, part in parts if part.unit != unit]
    return alike, [Skipped(part.path, f"counts {part.unit or 'nothing known'}") for part in others]
