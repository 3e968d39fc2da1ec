"""Lines of own code by the time of sampled stacks, and leaf frames tagged by library.

The input are traces with ``sample`` events. ``compute`` selects the frames that count, finds their
library, and combines the rows of all files; ``result`` has the data, verdict, notes and tables. The
lines of own code are those of :mod:`traceanalyzer.analyzers.common.own_lines`.

The method of leaf paths is that of itwinai's ``generate-py-spy-report``: a stack counts for its
leaf, and is tagged by the innermost frame of the library. In contrast, all samples count by
default: also those of module code, of idle processes and of stacks without frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, option
from traceanalyzer.errors import OptionError

Match = Literal["component", "substring"]
GroupBy = Literal["function", "line", "file", "module", "library"]
By = Literal["process", "thread", "rank", "file"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show which lines of your code take the time, from sampled stacks.

    PATH is a file written by `py-spy record -f raw`, another file with sampled stacks, or a folder
    of them; `-` or a pipe reads standard input. Without PATH, the folder py-spy-outputs or
    py-spy-output is used.
    """

    library_names: Sequence[str] = option(
        (),
        help="Leaf paths, tagged by the innermost frame of NAME. Repeatable, the first wins. "
        "Default: lines of own code.",
        flag="--library-name",
        metavar="NAME",
    )
    match: Match = option(
        "component",
        help="Match NAME as a whole path component, or anywhere in the path.",
        choices=get_args(Match),
        show_default=True,
    )
    aggregate_leaf_paths: bool = option(False, help="Leaf paths, equal ones merged into one row.")
    group_by: GroupBy | None = option(
        None, help="Self and total sums instead of lines.", choices=get_args(GroupBy)
    )
    by: By | None = option(None, help="Also group by this.", choices=get_args(By))
    drop_module: bool = option(False, help="Ignore module-level code.")
    exclude_idle_process: bool = option(False, help="Ignore samples without a Python frame.")
    rate: float | None = option(
        None,
        help="Samples per second; the report is then in seconds.",
        command_line=False,
        measured=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not name for name in self.library_names):
            raise OptionError("a library name is empty")
        if self.match == "substring" and not self.library_names:
            raise OptionError("match substring needs a library name")
