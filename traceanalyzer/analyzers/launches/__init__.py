"""How fast the host feeds the device: delays, queues, launch-bound stretches, synchronisation.

``calls`` joins device work to launch calls and follows the queues, ``stretches`` finds when devices
wait for launches and what synchronising calls cost, ``compute`` measures a rank and joins all
ranks; ``result`` holds the numbers and what is shown of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.launches.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.launches.result import Launches
    from traceanalyzer.reading import Inputs


def launches(
    inputs: Inputs, *, step_name: str | None = None, **reading: Unpack[Reading]
) -> Launches:
    """How fast does the host feed the device?

    How long work waits after its launch call, how many launches wait in each stream's queue, when
    the device runs out of work again and again, and what synchronising calls cost. One file is in
    memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        step_name: a regular expression of the slices that are steps.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no device work was recorded, or not the calls that launched it.
        OptionError: ``step_name`` is no regular expression.
    """
    from traceanalyzer.analyzers.launches.compute import LAUNCHES
    from traceanalyzer.run import run

    return run(LAUNCHES, inputs, Options(step_name), **reading)
