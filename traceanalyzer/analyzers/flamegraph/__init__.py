"""Where does the time go? Weighted stacks as a flame graph.

Inputs are traces with sampled stacks or nested slices. ``weights`` has the call tree and weights of
a file, ``tree`` adds or compares those of several files and builds the boxes, ``compute`` combines
both; ``result`` has the data, verdict, notes and tables.
"""

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
    """Show where the time goes: an interactive flame graph as SVG, or HTML by FILE's suffix.

    PATH has sampled stacks (py-spy raw, collapsed, speedscope) or is a trace with nested slices
    (Chrome JSON, Parquet); several, or a folder of ranks, are added.
    """

    kinds: Sequence[str] = option(
        (),
        help="Kind of events, such as kernel. Repeatable. Default: samples, else python_function, "
        "else all host slices.",
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
        help="Weight of boxes. Default: as sampled; for slices, their time.",
        choices=get_args(Weight),
    )
    by: By | None = option(
        None, help="One root for each. Default: one for all.", choices=get_args(By)
    )
    inverted: bool = option(
        False, help="Inverted (bottom-up): from leaf functions up to callers.", measured=False
    )
    focus: str | None = option(
        None,
        help="Only stacks through matching functions, from there down.",
        metavar="REGEX",
        measured=False,
    )
    min_frac: float | None = option(
        None,
        help="Merge boxes below this fraction of the total. Default: draw at least the 5,000 "
        "largest.",
        metavar="X",
        minimum=0,
        measured=False,
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
        help="Highlight the code of NAME. Repeatable. Default: own code.",
        flag="--library-name",
        metavar="NAME",
        measured=False,
    )
    title: str | None = option(
        None, help="Title of the picture. Default: the files.", metavar="TEXT", measured=False
    )
    window: tuple[int | None, int | None] = option(
        (None, None), help="Since and until: slices are cut there.", command_line=False
    )

    def __post_init__(self) -> None:
        if self.min_frac is not None and not 0 <= self.min_frac < 1:
            raise OptionError(
                f"--min-frac {self.min_frac:g}: must be >= 0 and < 1, for example 0.001"
            )
        super().__post_init__()
