"""What can be asked about kernels, and what must be read to answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.errors import OptionError
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS

By = Literal["device", "stream", "rank", "operator", "annotation"]

#: What kernels can be told apart by.
BY: tuple[By, ...] = get_args(By)

#: Columns that tell the groups of a ``By`` apart, the outer ones first.
GROUP: dict[By, tuple[str, ...]] = {
    "rank": ("rank",),
    "device": ("rank", "device"),
    "stream": ("rank", "device", "stream"),
    "operator": ("operator",),
    "annotation": ("annotation",),
}

#: Slices in which users, and PyTorch itself, name what they do.
ANNOTATIONS = ("user_annotation", "nvtx")

#: In the names of PyTorch's own annotations, which it recorded as operators until 2021.
OWN_MARK = "#"


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        by: what kernels are told apart by besides family and name, or None.
        patterns: regular expressions of further names that are communication.

    Raises:
        OptionError: kernels cannot be told apart so.
    """

    by: By | None = None
    patterns: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.by is not None and self.by not in BY:
            known = ", ".join(BY)
            raise OptionError(f"kernels cannot be told apart by {self.by!r}; known are {known}")

    @property
    def group(self) -> tuple[str, ...]:
        """The columns that tell groups apart."""
        return GROUP[self.by] if self.by else ()

    @property
    def needs(self) -> Needs:
        """What to read."""
        if self.by == "operator":
            return Needs(frozenset((*DEVICE_WORK, *LAUNCH_KINDS, "cpu_op")))
        if self.by == "annotation":
            return Needs(frozenset((*DEVICE_WORK, *LAUNCH_KINDS, *ANNOTATIONS)), (OWN_MARK,))
        unused = ("pid", "tid", "stream", "correlation", "external_id", "bytes")
        told = ("stream",) if self.by == "stream" else ()
        return Needs(frozenset(DEVICE_WORK), unused=tuple(set(unused) - set(told)))
