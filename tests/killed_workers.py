"""A measuring function whose worker is killed by one of its files."""

from __future__ import annotations

import os
import signal
from typing import Any

from traceanalyzer.inputs import _measured_apart

#: Part of the name of the file that needs too much memory.
TOO_LARGE = "rank5."


def measured_or_killed(task: Any) -> Any:
    """Measure the files of a task as :mod:`traceanalyzer.inputs`; the kernel kills the process."""
    if any(TOO_LARGE in str(item) for item in task[0].items):
        os.kill(os.getpid(), signal.SIGKILL)
    return _measured_apart(task)
