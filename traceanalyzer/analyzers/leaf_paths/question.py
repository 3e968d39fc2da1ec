"""What is asked of the stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from traceanalyzer.errors import OptionError

Match = Literal["component", "substring"]
GroupBy = Literal["function", "line", "file", "module", "library"]
By = Literal["process", "thread", "rank", "file"]


@dataclass(frozen=True)
class Question:
    """How paths are made, summed and tagged.

    Attributes:
        libraries: names of libraries, the first wins; empty: the user's own code.
        match: ``component``, a library is whole components of a path; ``substring``, as itwinai's
            report has it, and then stacks of forked processes keep their parents' frames too.
        aggregate: one row for equal paths, else one for each line of the file.
        group_by: sum by function, line, file, module or library instead.
        by: rows apart for each process, thread, rank or file.
        drop_module: leave out frames of ``<module>``, and stacks that have no others.
        exclude_idle: leave out samples without any Python frame.
    """

    libraries: tuple[str, ...] = ()
    match: Match = "component"
    aggregate: bool = False
    group_by: GroupBy | None = None
    by: By | None = None
    drop_module: bool = False
    exclude_idle: bool = False

    def __post_init__(self) -> None:
        if any(not name for name in self.libraries):
            raise OptionError("a library's name is empty")
        if self.match == "substring" and not self.libraries:
            raise OptionError("match substring needs a library's name")
