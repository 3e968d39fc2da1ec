"""The options of ``py_spy_report``."""

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
    """Which code was running when the profiler looked, and whose it is.

    PATH is what `py-spy record -f raw` wrote, any other file with sampled stacks, or a folder of
    them; `-` or a pipe is read from standard input. Without any, the folder py-spy-outputs or
    py-spy-output is looked for.
    """

    library_names: Sequence[str] = option(
        (),
        help="Tag stacks by the innermost frame of NAME. Repeatable, the first wins. Default: your "
        "own code.",
        flag="--library-name",
        metavar="NAME",
    )
    match: Match = option(
        "component",
        help="NAME is a whole component of a path, or stands anywhere in it.",
        choices=get_args(Match),
        show_default=True,
    )
    aggregate_leaf_paths: bool = option(False, help="One row for equal paths.")
    group_by: GroupBy | None = option(
        None,
        help="Sums instead of paths: alone, and with what is called.",
        choices=get_args(GroupBy),
    )
    by: By | None = option(None, help="Rows apart for each.", choices=get_args(By))
    drop_module: bool = option(False, help="Leave out module-level code.")
    exclude_idle_process: bool = option(False, help="Leave out samples without a Python frame.")
    rate: float | None = option(
        None, help="Samples a second; then the report is in seconds.", command_line=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not name for name in self.library_names):
            raise OptionError("a library's name is empty")
        if self.match == "substring" and not self.library_names:
            raise OptionError("match substring needs a library's name")
