"""How fast does the host feed the device? Delays, queues, launch-bound stretches, synchronisation.

In goes a rank's trace, read for :data:`NEEDS`. :func:`lay` joins device work to its launch calls
and takes the few columns that count, :func:`measure` makes a :class:`Part` of them (:func:`extract`
does both), :func:`combine` puts ranks together into a :class:`Launches`; :func:`launches` does all
of it for traces in memory. The public API and the command line import this.
"""

from traceanalyzer.analyzers.launches.combine import combine, launches
from traceanalyzer.analyzers.launches.extract import Ground, extract, lay, measure
from traceanalyzer.analyzers.launches.needs import NEEDS
from traceanalyzer.analyzers.launches.part import Part
from traceanalyzer.analyzers.launches.result import Launches

__all__ = [
    "NEEDS",
    "Ground",
    "Launches",
    "Part",
    "combine",
    "extract",
    "launches",
    "lay",
    "measure",
]
