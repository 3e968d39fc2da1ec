"""The options of ``flamegraph``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, option
from traceanalyzer.errors import OptionError
from traceanalyzer.vocabulary import KINDS

Weight = Literal["time", "count", "bytes"]
By = Literal["process", "thread", "rank", "file"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Which functions does the time go into? Writes an interactive SVG, or HTML by FILE's suffix.

    PATH holds sampled stacks (py-spy raw, collapsed, speedscope), or a trace whose slices nest
    (Chrome JSON, Parquet); several, or a folder of ranks, are added up.
    """

    kinds: Sequence[str] = option(
        (),
        help="Kind of events, such as kernel. Repeatable. Default: samples, else python_function, "
        "else all of the host.",
        flag="--kind",
        metavar="KIND",
        choices=KINDS,
    )
    threads: Sequence[str] = option(
        (),
        help="Only this thread, by its number or a part of its name. Repeatable.",
        flag="--thread",
        metavar="TID|NAME",
    )
    weight: Weight | None = option(
        None,
        help="What makes a box wide. Default: as sampled; of slices, their time.",
        choices=get_args(Weight),
    )
    by: By | None = option(
        None, help="A root for each; else all are added up.", choices=get_args(By)
    )
    reverse: bool = option(False, help="From the functions that ran up to their callers.")
    focus: str | None = option(
        None, help="Only stacks through matching functions, from there.", metavar="REGEX"
    )
    min_frac: float | None = option(
        None,
        help="Sum up boxes below this part of everything. Default: draw the 5,000 heaviest at "
        "least.",
        metavar="X",
        minimum=0,
    )
    base: object = option(
        None,
        help="Compare with BASE, scaled to the same sum.",
        flag="--diff",
        metavar="BASE",
        inputs=True,
    )
    library_names: Sequence[str] = option(
        (),
        help="Code that stands out. Repeatable. Default: your own.",
        flag="--library-name",
        metavar="NAME",
    )
    title: str | None = option(None, help="Of the picture. Default: the files.", metavar="TEXT")
    window: tuple[int | None, int | None] = option(
        (None, None), help="Since and until: slices are cut there.", command_line=False
    )

    def __post_init__(self) -> None:
        if self.min_frac is not None and not 0 <= self.min_frac < 1:
            raise OptionError(f"--min-frac {self.min_frac:g}: is a part of 1, such as 0.001")
        super().__post_init__()
