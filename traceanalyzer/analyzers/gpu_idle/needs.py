"""What has to be read: device work, and all that shows what the host was at."""

from __future__ import annotations

from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS

#: Host slices that say what a thread was doing.
HOST = ("cpu_op", "user_annotation", "python_function", *LAUNCH_KINDS, "nvtx", "osrt", "other")

#: What the profiler itself recorded as its own doing.
OVERHEAD = "overhead"

NEEDS = Needs(frozenset((*DEVICE_WORK, *HOST, OVERHEAD)), unused=("external_id", "stream"))
