"""What the question about launches needs of a trace, and the limits that its answer goes by."""

from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.analyzers.step_marks import MARK_KINDS, MARK_NAMES
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS

NEEDS = Needs(
    kinds=frozenset((*DEVICE_WORK, *LAUNCH_KINDS, *MARK_KINDS, "python_function")),
    names=MARK_NAMES,
    unused=("external_id", "bytes"),
)

#: A kernel that runs shorter than this costs about as much to launch as it runs.
SHORT_KERNEL_NS = 10_000

#: A launch call that takes longer than this is slow.
SLOW_CALL_NS = 50_000

#: Work that starts later than this after its launch call is late: it had to wait for something.
LATE_NS = 100_000

#: Work that starts on an idle device within this after its launch call waited for nothing else.
PROMPT_NS = 20_000

#: Launches that CUDA queues for a stream before a launch call blocks.
FULL_QUEUE = 1024

#: A gap longer than this is no matter of launching, and neither is a device busy for longer.
LONG_NS = 1_000_000

#: Fewer gaps than this are no stretch.
MIN_GAPS = 10

#: A device that is busy for more than this share of a stretch is not held up by launches.
MOSTLY_BUSY_FRAC = 0.9
