"""What can be asked about annotations, and what must be read to answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.errors import OptionError
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS, PROFILER_STEP

By = Literal["rank"]

#: What annotations can be told apart by, besides name and domain.
BY: tuple[By, ...] = get_args(By)

#: Ranges in which users, and libraries, name what they do.
ANNOTATIONS = ("user_annotation", "nvtx")

#: In the names of PyTorch's own annotations, which it recorded as operators until 2021.
OWN_MARKS = (
    PROFILER_STEP,
    "(DataLoader)#",
    "(DataPipe)#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
)

NEEDS = Needs(
    kinds=frozenset((*DEVICE_WORK, *LAUNCH_KINDS, *ANNOTATIONS)),
    names=OWN_MARKS,
    unused=("device", "stream", "external_id", "bytes"),
)


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        names: regular expressions; only annotations of which one matches count, as if there were
            no others. All without any.
        by: what annotations are told apart by besides name and domain, or None.

    Raises:
        OptionError: annotations cannot be told apart so.
    """

    names: Sequence[str] = ()
    by: By | None = None

    def __post_init__(self) -> None:
        if self.by is not None and self.by not in BY:
            known = ", ".join(BY)
            raise OptionError(f"annotations cannot be told apart by {self.by!r}; known are {known}")
