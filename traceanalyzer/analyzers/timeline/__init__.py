"""The timeline: what each device does at each moment, on one axis for all ranks.

``states`` divides the time of a device and describes its kernels, copies and gaps, ``alignment``
puts all ranks on one axis, ``compute`` measures each rank and combines them; ``result`` is what is
drawn. ``summary`` is the short one of a diagnosis, ``overlays`` the rows that ``merge`` adds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option, step_name

Order = Literal["rank", "host", "cost"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """What does each GPU do at each moment? One row per rank and device, on one time axis.

    Colours show compute, communication (transfer, waiting for another rank), copies, and idle time
    by cause. -o page.html writes a page with zoom; without -o the terminal shows a coarse strip.
    PATH is a trace, several of them, or a folder of all ranks' traces.
    """

    order: Order = option(
        "rank",
        help="Order of the rows; cost: most copying and idle time first.",
        choices=get_args(Order),
        show_default=True,
        measured=False,
    )
    comm_patterns: Sequence[str] = comm_patterns()
    step_name: str | None = step_name()
